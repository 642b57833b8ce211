//! The pure core: no I/O, no clock, no async, no randomness. Time, jitter and nonces come in with the event.

pub mod error;
pub mod job;
pub mod settings;
pub mod target;
pub mod time;
