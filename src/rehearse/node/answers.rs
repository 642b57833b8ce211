//! What a client node answers, by its view of the cluster. Measured on real servers, not remembered.

use crate::rehearse::http::{Request, Response};
use crate::rehearse::shapes;
use serde_json::{Map, Value, json};
use std::net::{Ipv4Addr, SocketAddr};

/// The cluster's colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// All shards are there.
    Green,
    /// A replica is missing.
    Yellow,
    /// A primary is missing.
    Red,
}

impl Colour {
    /// As in the API.
    pub const fn label(self) -> &'static str {
        match self {
            Colour::Green => "green",
            Colour::Yellow => "yellow",
            Colour::Red => "red",
        }
    }
}

/// How a node sees its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// It has joined and knows the master.
    Joined,
    /// Open, never joined: uuid `_na_`, health 503.
    NotJoined,
    /// It had joined, and the master is gone: health 503, reads and searches work.
    NoMaster,
    /// The master does not answer: neither does any call that needs it.
    FrozenMaster,
}

/// Another client node, as the cluster lists it.
#[derive(Clone, Debug)]
pub struct PeerFacts {
    /// Node name.
    pub name: String,
    /// Node id.
    pub node_id: String,
    /// Its HTTP address.
    pub address: SocketAddr,
}

/// Who a node is.
#[derive(Clone, Debug)]
pub struct NodeFacts {
    /// Node name.
    pub name: String,
    /// Node id.
    pub node_id: String,
    /// Cluster name.
    pub cluster_name: String,
    /// Cluster uuid.
    pub cluster_uuid: String,
    /// Version number.
    pub version: String,
    /// The HTTP address that it publishes. Set by the node when it starts.
    pub address: SocketAddr,
    /// The other client nodes.
    pub peers: Vec<PeerFacts>,
    /// The cluster's colour.
    pub colour: Colour,
}

impl NodeFacts {
    /// A node of the rehearsal's cluster; its id follows from its name.
    pub fn new(name: &str) -> NodeFacts {
        NodeFacts {
            name: name.to_owned(),
            node_id: node_id(name),
            cluster_name: "rehearsal".to_owned(),
            cluster_uuid: "R3hearsa1ClusterUuid_A".to_owned(),
            version: "8.19.0".to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            peers: Vec::new(),
            colour: Colour::Green,
        }
    }

    /// What others list about it.
    pub fn as_peer(&self) -> PeerFacts {
        PeerFacts { name: self.name.clone(), node_id: self.node_id.clone(), address: self.address }
    }

    /// The answer to a request; `None`: it never comes.
    pub fn answer(&self, view: View, request: &Request) -> Option<Response> {
        let local = request.query_is("local", "true");
        let path = request.path().trim_end_matches('/');
        let response = match path {
            "" => self.root(view),
            "/_cluster/health" => match view {
                View::FrozenMaster if !local => return None,
                View::NotJoined | View::NoMaster if !local => shapes::no_master("master_not_discovered_exception"),
                View::Joined | View::NotJoined | View::NoMaster | View::FrozenMaster => self.health(view),
            },
            _ if path.starts_with("/_nodes/_local") => self.nodes(&[self.as_peer()]),
            _ if path.starts_with("/_nodes/coordinating_only:true") || path.starts_with("/_nodes/_all") => {
                let mut all = vec![self.as_peer()];
                if view != View::NotJoined {
                    all.extend(self.peers.iter().cloned());
                }
                self.nodes(&all)
            }
            _ if path.ends_with("/_search") => {
                if view == View::NotJoined {
                    shapes::not_recovered()
                } else {
                    search()
                }
            }
            _ => {
                let error = format!("no handler found for uri [{}] and method [{}]", request.target, request.method);
                Response::json(400, &json!({"error": error}))
            }
        };
        Some(response.with("x-elastic-product", "Elasticsearch"))
    }

    fn root(&self, view: View) -> Response {
        let uuid = if view == View::NotJoined { "_na_" } else { &self.cluster_uuid };
        let body = json!({
            "name": self.name,
            "cluster_name": self.cluster_name,
            "cluster_uuid": uuid,
            "version": {
                "number": self.version,
                "build_flavor": "default",
                "build_type": "tar",
                "build_hash": "0000000000000000000000000000000000000000",
                "build_date": "2025-07-01T00:00:00.000000000Z",
                "build_snapshot": false,
                "lucene_version": "9.12.2",
                "minimum_wire_compatibility_version": "7.17.0",
                "minimum_index_compatibility_version": "7.0.0"
            },
            "tagline": "You Know, for Search"
        });
        Response::json(200, &body)
    }

    fn health(&self, view: View) -> Response {
        let alone = view == View::NotJoined;
        let nodes = if alone { 1 } else { self.peers.len().saturating_add(2) };
        let colour = if matches!(view, View::NotJoined | View::NoMaster) { Colour::Red } else { self.colour };
        let shards = i32::from(!alone);
        let body = json!({
            "cluster_name": self.cluster_name,
            "status": colour.label(),
            "timed_out": false,
            "number_of_nodes": nodes,
            "number_of_data_nodes": shards,
            "active_primary_shards": shards,
            "active_shards": shards,
            "relocating_shards": 0,
            "initializing_shards": 0,
            "unassigned_shards": 0,
            "delayed_unassigned_shards": 0,
            "number_of_pending_tasks": 0,
            "number_of_in_flight_fetch": 0,
            "task_max_waiting_in_queue_millis": 0,
            "active_shards_percent_as_number": 100.0
        });
        Response::json(200, &body)
    }

    fn nodes(&self, nodes: &[PeerFacts]) -> Response {
        let listed: Map<String, Value> = nodes
            .iter()
            .map(|n| {
                let ip = n.address.ip().to_string();
                let publish = n.address.to_string();
                let node = json!({
                    "name": n.name,
                    "transport_address": format!("{ip}:9300"),
                    "host": ip,
                    "ip": ip,
                    "version": self.version,
                    "roles": [],
                    "attributes": {},
                    "http": {
                        "bound_address": [publish],
                        "publish_address": publish,
                        "max_content_length_in_bytes": 104_857_600
                    }
                });
                (n.node_id.clone(), node)
            })
            .collect();
        let body = json!({
            "_nodes": {"total": nodes.len(), "successful": nodes.len(), "failed": 0},
            "cluster_name": self.cluster_name,
            "nodes": listed
        });
        Response::json(200, &body)
    }
}

fn search() -> Response {
    let body = json!({
        "took": 1,
        "timed_out": false,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": {"value": 1, "relation": "eq"}, "max_score": null, "hits": []}
    });
    Response::json(200, &body)
}

/// 22 characters, as node ids have, from the name.
fn node_id(name: &str) -> String {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).take(14).collect();
    format!("{:0<22}", format!("Node{plain}"))
}
