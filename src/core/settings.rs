//! Settings that a cycle carries with it, so that the way back never depends on a config file.

use super::target::Target;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What kind of load balancer a group belongs to: it decides how much its announcements lag behind its traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BalancerKind {
    /// Application load balancer (HTTP, HTTPS groups).
    Application,
    /// Network (or gateway) load balancer: minutes both ways.
    Network,
}

/// What the targets of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetType {
    /// EC2 instance ids.
    Instance,
    /// IP addresses.
    Ip,
    /// Lambda, another load balancer, or a value that this version does not know: not ours to move.
    Other,
}

/// What a group says about itself (DescribeTargetGroups and DescribeTargetGroupAttributes). Waits come from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GroupFacts {
    /// What its targets are.
    pub target_type: TargetType,
    /// Which kind of load balancer.
    pub balancer: BalancerKind,
    /// The group's own port, the default for its targets.
    pub port: Option<u16>,
    /// `deregistration_delay.timeout_seconds`
    pub deregistration_delay_ms: u64,
    /// Health check interval.
    pub interval_ms: u64,
    /// Passes in a row that make a target healthy.
    pub healthy_threshold: u32,
}

/// One target of the own node with what its group says, as written down before the first deregister call. This list is
/// what "back" means.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnTarget {
    /// The target.
    pub target: Target,
    /// Its group.
    pub facts: GroupFacts,
}

/// How the own node is checked; stored with the cycle. Secrets are named by file, never held.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CheckSettings {
    /// Base URL of the own node, without a path.
    pub url: Arc<str>,
    /// Deadline of one call, connect included.
    pub timeout_ms: u64,
    /// PEM file with further roots to trust.
    pub ca_file: Option<Arc<str>>,
    /// File with an Elasticsearch API key.
    pub api_key_file: Option<Arc<str>>,
    /// File with `user:password`.
    pub basic_auth_file: Option<Arc<str>>,
    /// PEM file with a client certificate and its private key.
    #[serde(default)]
    pub client_cert_file: Option<Arc<str>>,
    /// Index that a canary search (`size=0`) asks; none = no canary.
    pub canary_index: Option<Arc<str>>,
    /// The name that the own node must answer with, whatever else is known of it.
    pub node_name: Arc<str>,
    /// Who must answer. Learnt in the claim; `None` = not known (a recovery without state).
    pub expect: Option<NodeIdentity>,
    /// Passes in a row that are needed.
    pub passes: u32,
    /// Over at least this time.
    pub over_ms: u64,
    /// Between two tries.
    pub every_ms: u64,
}

/// Who answered on the own node's port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// `name` of `GET /`
    pub node_name: Arc<str>,
    /// Node id, where it was read.
    pub node_id: Option<Arc<str>>,
    /// `cluster_uuid` of `GET /`, never `_na_`.
    pub cluster_uuid: Arc<str>,
}

/// One node check that passed, or how it failed to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CheckPass {
    /// Who answered.
    pub identity: NodeIdentity,
    /// Cluster colour, for people and for starting, never for coming back.
    pub colour: Option<Colour>,
}

/// The worst shard of the whole cluster: no property of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Colour {
    /// All shards assigned.
    Green,
    /// A replica is missing.
    Yellow,
    /// A primary is missing.
    Red,
}
