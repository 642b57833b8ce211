//! Metrics: what a scrape says and does not say, who answers it, what is shipped to go with it, and the watchdog.
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

mod agents;
mod exposition;
mod ports;
mod promtool;
mod served;
mod settings;
mod shipped;
#[path = "../support/mod.rs"]
mod support;
mod values;
mod watchdog;
