//! The agent: in process with a controlled clock, disk and faults, and as a real process that is killed.
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

mod claim;
mod config_reload;
mod disk;
mod faces;
mod fakes;
mod fleet_changes;
mod hold;
mod job_ready;
mod kill;
mod lost;
mod meeting;
mod once;
mod pagers;
mod pagers_over_restart;
mod pages;
mod panics;
mod race;
mod retire;
mod running;
mod scene;
mod ssm;
mod start_states;
mod start_up;
#[path = "../support/mod.rs"]
mod support;
mod terminated;
mod together;
mod trouble;
mod two_of_one;
mod views;
mod watched;
mod way_back;
