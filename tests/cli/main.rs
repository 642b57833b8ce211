//! The real program against the real control server over a real socket; only the agent behind it is scripted.
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

mod faces;
mod fake;
mod json;
mod manual;
mod roles;
mod run;
mod samples;
mod server;
mod wait;
mod world;
