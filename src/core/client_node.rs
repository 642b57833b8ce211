//! A client node as the cluster itself lists it.

use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One coordinating-only node (`node.roles: []`) of the Elasticsearch nodes API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClientNode {
    /// The node's id: kept across restarts.
    pub id: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The IP address of its HTTP port, without the port.
    pub address: Arc<str>,
    /// Its HTTP port; `None` where it publishes none.
    pub port: Option<u16>,
}
