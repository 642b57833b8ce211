//! backstop: a node that leaves its load balancer to be patched always comes back, or a person is paged.
//!
//! `core` is pure and decides; everything else reads the world and carries decisions out. ARCHITECTURE.md has the map.

pub mod agent;
pub mod alerts;
pub mod bounded;
pub mod causes;
pub mod cli;
pub mod clock;
pub mod config;
pub mod control;
pub mod core;
pub mod dbus;
pub mod elasticsearch;
pub mod elbv2;
pub mod fleet;
pub mod host;
pub mod http_client;
pub mod jobs;
pub mod metrics;
pub mod ports;
pub mod rehearse;
pub mod state;
pub mod supervisor;
pub mod telemetry;
pub mod words;
