//! The agent: in process with a controlled clock, disk and faults, and as a real process that is killed.

#![allow(unreachable_pub, reason = "modules of one test binary")]

mod disk;
mod fakes;
mod kill;
mod scene;
mod way_back;
