//! Elasticsearch and `OpenSearch` over plain HTTP: the [`NodeCheck`](crate::ports::NodeCheck) port.
//!
//! Architecture invariant: success is defined positively, and everything else is a fault whose class is `transport`
//! unless a complete answer says more. The order is always status, headers, bytes, and only then parsing, and no
//! decision asks for the type of a client library's error.

pub mod classify;
mod http;
mod node_check;
mod secrets;

pub use node_check::NodeChecker;
