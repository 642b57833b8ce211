//! `ELBv2` through the AWS SDK: the [`LoadBalancer`](crate::ports::LoadBalancer) port.
//!
//! Architecture invariant: a write names exactly one target, by id and port, and nothing is retried in here: retries
//! are the core's, which sees every single answer.

pub mod classify;
mod client;
mod genuine;
mod rows;

pub use client::{Elb, ElbSettings, ElbTimeouts, http_client};
