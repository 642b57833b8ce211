//! backstop: a node that leaves its load balancer to be patched always comes back, or a person is paged.

mod causes;
pub mod clock;
pub mod core;
pub mod elasticsearch;
pub mod elbv2;
pub mod host;
pub mod ports;
