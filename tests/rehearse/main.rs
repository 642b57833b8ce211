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

use std::time::Duration;

/// The product.
const PROGRAM: &str = env!("CARGO_BIN_EXE_backstop");
/// Longest wait (real) for anything.
const BOUND: Duration = Duration::from_secs(100);
