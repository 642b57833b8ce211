//! Elasticsearch and `OpenSearch` over plain HTTP: the [`NodeCheck`](crate::ports::NodeCheck) and
//! [`ClusterNodes`](crate::ports::ClusterNodes) ports.
//!
//! Architecture invariant: success is defined positively, and everything else is a fault whose class is `transport`
//! unless a complete answer says more. The order is always status, headers, bytes, and only then parsing, and no
//! decision asks for the type of a client library's error.

pub mod classify;
mod client_nodes;
pub(crate) mod http;
mod node_check;
pub(crate) mod secrets;

pub use node_check::NodeChecker;
