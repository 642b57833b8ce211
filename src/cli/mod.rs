//! The command line.

pub mod agent;
