//! backstop: a node that leaves its load balancer to be patched always comes back, or a person is paged.

pub mod core;
pub mod ports;
pub mod rehearse;
