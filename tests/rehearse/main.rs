//! Whole fleets of real processes: through the product's own `rehearse` verb, and through the pieces that it is made of.
#![allow(
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "what fails here fails the test"
)]

mod fleets;
mod orphans;
mod scenarios;

#[path = "../support/mod.rs"]
mod support;

use support::{BOUND, PROGRAM};
