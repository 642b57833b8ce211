//! The real program against the real control server over a real socket; only the agent behind it is scripted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "helpers of a test fail the test"
)]

mod faces;
mod fake;
mod json;
mod roles;
mod run;
mod samples;
mod server;
mod wait;
mod world;
