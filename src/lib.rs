//! backstop: a node that leaves its load balancer to be patched always comes back, or a person is paged.

pub mod core;
pub mod fleet;
pub mod host;
pub mod jobs;
pub mod ports;
pub mod state;
