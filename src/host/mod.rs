//! The machine this agent runs on.

pub mod identity;
