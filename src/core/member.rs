//! Member documents, and who of the members is in service by one read of the load balancer.

use super::ids::{InstanceId, NodeName};
use super::record::Extra;
use super::target::{GroupArn, Poll, Target};
use super::time::{BootId, Now};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// One document per member, written by its own agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Schema of this document.
    pub schema: u32,
    /// Which instance: also the document's id.
    pub instance: InstanceId,
    /// Node name.
    pub node: NodeName,
    /// Its targets, one per configured group.
    pub targets: Vec<Target>,
    /// Version of its agent.
    pub agent: Arc<str>,
    /// The newest record schema that it can read.
    pub reads_schema: u32,
    /// Its boot.
    pub boot: BootId,
    /// Goes up with each beat.
    pub beat: u64,
    /// What it is doing, for people on other nodes.
    pub doing: Arc<str>,
    /// When written, by its own clock, in ms since 1970: for people only.
    pub at_ms: u64,
    /// The Elasticsearch node's id, as it last answered.
    #[serde(default)]
    pub node_id: Option<Arc<str>>,
    /// Where the node's HTTP port is reached from other hosts: address and port.
    #[serde(default)]
    pub address: Option<Arc<str>>,
    /// What it sees of itself, by group, for people on other nodes.
    #[serde(default)]
    pub sees: Vec<Arc<str>>,
    /// The fleet record as it last saw it, without the finished cycles: a lost one is made again from these. Not looked
    /// into before then: a newer form must not make its member unreadable.
    #[serde(default)]
    pub record: Option<serde_json::Value>,
    /// What it says of itself to the others' reconcile.
    #[serde(default)]
    pub says: Says,
    /// Keys of alerts that fire and that its pagers have accepted: the other agents need not send them.
    #[serde(default)]
    pub told: Vec<Arc<str>>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Keys of findings that a member tells others of, at most.
pub const FINDS_MAX: usize = 64;

/// What a member says of itself to the others' reconcile. Everything in it may be missing: an older agent says nothing, and
/// nothing follows from that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Says {
    /// Its next beat comes within this time, in ms; 0 = not said. Others call it silent by this promise.
    pub beat_every_ms: u64,
    /// How old its last read of its own targets ([`Member::sees`]) was as it wrote this, in ms; `None` = not said, and then
    /// `sees` is evidence of nothing.
    pub own_age_ms: Option<u64>,
    /// Its `minimum_healthy`.
    pub minimum_healthy: Option<u32>,
    /// Its `minimum_during_patch`.
    pub minimum_during_patch: Option<u32>,
    /// Its `max_unavailable`.
    pub max_unavailable: Option<u32>,
    /// What it finds, as `kind/subject`, at most [`FINDS_MAX`]: so that a node that reads its own target only hears of it.
    pub finds: Vec<Arc<str>>,
    /// When it became a member, by its own clock, in ms since 1970.
    pub joined_ms: Option<u64>,
    /// When its last patch ended well, by its own clock, in ms since 1970.
    pub patched_ms: Option<u64>,
    /// Since when every patch that was asked for was refused, by its own clock, in ms since 1970.
    pub refused_since_ms: Option<u64>,
}

/// Who is in service, by one read of all groups that began at `begun`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetView {
    /// All members.
    pub members: BTreeSet<InstanceId>,
    /// Members that are `healthy` in every group that they are a target of.
    pub in_service: BTreeSet<InstanceId>,
    /// Before the first byte of this read was sent.
    pub begun: Now,
}

impl FleetView {
    /// Members in service that stay: neither this one, nor anyone with a slot or a hold.
    pub fn staying(&self, me: &InstanceId, leavers: &BTreeSet<InstanceId>) -> u32 {
        let n = self.in_service.iter().filter(|i| *i != me && !leavers.contains(*i)).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Members in service.
    pub fn in_service_count(&self) -> u32 {
        u32::try_from(self.in_service.len()).unwrap_or(u32::MAX)
    }
}

/// Reads a fleet out of the groups' whole lists. Targets that belong to no member do not count; a member counts once,
/// whatever the number of its rows; a group that was not read leaves nobody in service.
pub fn in_service(members: &[Member], groups: &[GroupArn], polls: &BTreeMap<GroupArn, Poll>, begun: Now) -> FleetView {
    let serving: BTreeMap<&GroupArn, BTreeSet<(&str, u16)>> =
        polls.iter().map(|(g, p)| (g, p.in_service().collect())).collect();
    let serves = |t: &Target| serving.get(&t.group).is_some_and(|s| s.contains(&(&*t.id, t.port)));
    let all = |m: &Member| groups.iter().all(|g| m.targets.iter().any(|t| t.group == *g && serves(t)));
    FleetView {
        members: members.iter().map(|m| m.instance.clone()).collect(),
        in_service: members.iter().filter(|m| !groups.is_empty() && all(m)).map(|m| m.instance.clone()).collect(),
        begun,
    }
}
