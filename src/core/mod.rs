//! The pure core: no I/O, no clock, no async, no randomness. Time, jitter and nonces come in with the event.

pub mod client_node;
pub mod cycle;
pub mod decide;
pub mod effect;
pub mod error;
pub mod event;
pub mod exit;
pub mod finding;
pub mod guard;
pub mod heal;
pub mod ids;
pub mod invariant;
pub mod job;
pub mod member;
pub mod page;
pub mod plan;
pub mod record;
pub mod rules;
pub mod settings;
pub mod target;
pub mod time;
pub mod want;
