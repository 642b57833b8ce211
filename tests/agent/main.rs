//! The agent: in process with a controlled clock, disk and faults, and as a real process that is killed.

#![allow(unreachable_pub, reason = "modules of one test binary")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    reason = "helpers of a test fail the test"
)]

mod claim;
mod config_reload;
mod disk;
mod fakes;
mod kill;
mod scene;
mod start_states;
mod way_back;
