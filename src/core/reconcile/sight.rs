//! What one agent knows as it compares: each source with when that read began, and its present fault.

use super::super::client_node::ClientNode;
use super::super::error::Fault;
use super::super::heart::Hearts;
use super::super::ids::{InstanceId, NodeName};
use super::super::member::Member;
use super::super::record::{Hold, Pause, Record, Slot};
use super::super::settings::{BalancerKind, GroupFacts};
use super::super::target::{GroupArn, Named, Row};
use super::super::time::{BootId, Now};
use super::first::FirstSeen;
use std::sync::Arc;

/// One source: its last complete answer, and how the last try ended.
#[derive(Debug)]
pub struct Seen<'a, T: ?Sized> {
    /// The last complete answer, and when that read began; `None` = never.
    pub answer: Option<(&'a T, &'a Now)>,
    /// The last try failed: the answer is an older one.
    pub fault: Option<&'a Fault>,
    /// How often this agent reads it at present; `None` = it does not, and is not blind for that.
    pub every_ms: Option<u64>,
}

impl<T: ?Sized> Clone for Seen<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: ?Sized> Copy for Seen<'_, T> {}

impl<T: ?Sized> Default for Seen<'_, T> {
    fn default() -> Self {
        Seen { answer: None, fault: None, every_ms: None }
    }
}

impl<'a, T: ?Sized> Seen<'a, T> {
    /// The answer, where it may be believed: the last try did not fail, and it is not older than `max_ms`.
    pub fn fresh(&self, now: &Now, max_ms: u64) -> Option<(&'a T, &'a Now)> {
        self.answer.filter(|(_, at)| self.fault.is_none() && now.since(at).is_some_and(|ms| ms <= max_ms))
    }
}

/// One configured group.
#[derive(Clone, Copy, Debug)]
pub struct GroupSight<'a> {
    /// Which.
    pub group: &'a GroupArn,
    /// What it says about itself; `None` = never read.
    pub facts: Option<GroupFacts>,
    /// All its rows, of a complete answer.
    pub list: Seen<'a, [Row]>,
    /// The answer to the question by name about the own target.
    pub named: Seen<'a, Named>,
}

/// What this agent wrote last as its member document, where at least one such write of this process was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrote {
    /// Its boot.
    pub boot: BootId,
    /// The highest beat that it tried to write.
    pub beat: u64,
    /// When the first acknowledged write had ended: what was read after that shows it.
    pub since: Now,
}

/// Everything that one agent knows.
#[derive(Clone, Copy, Debug)]
pub struct Sight<'a> {
    /// Fleet.
    pub fleet: &'a Arc<str>,
    /// This instance.
    pub me: &'a InstanceId,
    /// This node.
    pub node: &'a NodeName,
    /// All configured groups, in the config's order.
    pub groups: &'a [GroupSight<'a>],
    /// All member documents, in the order of their instance ids.
    pub members: Seen<'a, [Member]>,
    /// Their hearts.
    pub hearts: &'a Hearts,
    /// The coordinating-only nodes that the cluster lists.
    pub nodes: Seen<'a, [ClientNode]>,
    /// The fleet record.
    pub record: Seen<'a, Record>,
    /// When this agent first saw what the record says.
    pub first: &'a FirstSeen,
    /// The own state has a cycle (a return, too, which takes no slot).
    pub own_cycle: bool,
    /// The own state has a failure whose latch may not be in the record yet.
    pub own_failure: bool,
    /// What this agent wrote as its own document; `None` = nothing was acknowledged yet.
    pub wrote: Option<&'a Wrote>,
}

/// How old what stands in the record is, as far as these settings let it be told.
impl Sight<'_> {
    pub(super) fn slot_ms(&self, slot: &Slot, settings: &Settings, now: &Now) -> u64 {
        settings.age_ms(self.first.slot_ms(&slot.cycle, now), slot.since_ms, now)
    }

    pub(super) fn hold_ms(&self, instance: &InstanceId, hold: &Hold, settings: &Settings, now: &Now) -> u64 {
        settings.age_ms(self.first.hold_ms(instance, now), hold.order.since_ms, now)
    }

    pub(super) fn pause_ms(&self, pause: &Pause, settings: &Settings, now: &Now) -> u64 {
        settings.age_ms(self.first.pause_ms(now), pause.since_ms, now)
    }

    pub(super) fn hold_all_ms(&self, order: &Pause, settings: &Settings, now: &Now) -> u64 {
        settings.age_ms(self.first.hold_all_ms(now), order.since_ms, now)
    }
}

/// A source, as an agent can be blind for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// The whole list of a group.
    LoadBalancer(GroupArn),
    /// The own target.
    OwnTarget,
    /// Member documents.
    Members,
    /// The cluster's list of client nodes.
    ClusterNodes,
    /// The fleet record.
    FleetRecord,
}

impl Source {
    /// For people; stable, since it is part of a subject.
    pub fn label(&self) -> String {
        match self {
            Source::LoadBalancer(group) => format!("load balancer {}", group.name()),
            Source::OwnTarget => "own target".to_owned(),
            Source::Members => "members".to_owned(),
            Source::ClusterNodes => "cluster nodes".to_owned(),
            Source::FleetRecord => "fleet record".to_owned(),
        }
    }
}

/// The numbers that findings rest on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `minimum_healthy`
    pub minimum_healthy: u32,
    /// `minimum_during_patch`: the floor.
    pub minimum_during_patch: u32,
    /// `max_unavailable`
    pub max_unavailable: u32,
    /// Between two looks at whole groups.
    pub every_ms: u64,
    /// An observation that is older is unknown.
    pub stale_after_ms: u64,
    /// Not seen for this long: blind.
    pub blind_after_ms: u64,
    /// While the record is unknown a plan may explain an absence: it is told after this time.
    pub unknown_plan_after_ms: u64,
    /// Slots and orders are counted from their first sight alone (`None`, as an agent does), or by their own time too, less
    /// this much for clocks that differ: for people, of somebody who has seen nothing before.
    pub clocks_differ_ms: Option<u64>,
    /// A new node, target or differing config is given this long.
    pub grace_ms: u64,
    /// A member that has not beaten for this long (or for three of its own promises) is silent.
    pub silent_after_ms: u64,
    /// The holder of a slot may restart its machine: silent for this long, it is gone.
    pub holder_silent_after_ms: u64,
    /// A hold may be late home by this much.
    pub held_grace_ms: u64,
    /// A pause is too long after this time.
    pub paused_too_long_ms: u64,
    /// No good cycle on a node for this long; `None` = not looked at.
    pub patch_overdue_after_ms: Option<u64>,
    /// Only refusals on a node for this long; `None` = not looked at.
    pub refused_after_ms: Option<u64>,
    /// What initial and draining targets get beyond their group's own settings, behind an application load balancer.
    pub margin_application_ms: u64,
    /// The same behind a network load balancer, which lags by minutes both ways.
    pub margin_network_ms: u64,
    /// Client nodes of the cluster that are no business of this fleet: names, a `*` at the end stands for any rest.
    pub other_nodes: Vec<Arc<str>>,
}

impl Default for Settings {
    fn default() -> Settings {
        const MINUTE: u64 = 60_000;
        Settings {
            minimum_healthy: 3,
            minimum_during_patch: 2,
            max_unavailable: 1,
            every_ms: 15_000,
            stale_after_ms: MINUTE,
            blind_after_ms: 5 * MINUTE,
            unknown_plan_after_ms: 5 * MINUTE,
            clocks_differ_ms: None,
            grace_ms: 10 * MINUTE,
            silent_after_ms: 90_000,
            holder_silent_after_ms: 30 * MINUTE,
            held_grace_ms: 15 * MINUTE,
            paused_too_long_ms: 24 * 60 * MINUTE,
            patch_overdue_after_ms: None,
            refused_after_ms: Some(24 * 60 * MINUTE),
            margin_application_ms: MINUTE,
            margin_network_ms: 5 * MINUTE,
            other_nodes: Vec::new(),
        }
    }
}

impl Settings {
    fn margin_ms(&self, kind: BalancerKind) -> u64 {
        match kind {
            BalancerKind::Application => self.margin_application_ms,
            BalancerKind::Network => self.margin_network_ms,
        }
    }

    /// How long a target of this group may be `initial`.
    pub fn initial_ms(&self, facts: &GroupFacts) -> u64 {
        let checks = facts.interval_ms.saturating_mul(u64::from(facts.healthy_threshold));
        checks.saturating_add(self.margin_ms(facts.balancer))
    }

    /// How long a target of this group may be `draining`.
    pub fn draining_ms(&self, facts: &GroupFacts) -> u64 {
        facts.deregistration_delay_ms.saturating_add(self.margin_ms(facts.balancer))
    }

    /// How old something in the record is: seen for so long, and written at `wall_ms` by its writer's clock.
    fn age_ms(&self, seen_ms: u64, wall_ms: u64, now: &Now) -> u64 {
        let by_clock = |differ: u64| now.wall_ms.saturating_sub(wall_ms).saturating_sub(differ);
        self.clocks_differ_ms.map_or(seen_ms, |differ| seen_ms.max(by_clock(differ)))
    }

    /// This client node is no business of this fleet.
    pub fn other(&self, name: &str) -> bool {
        let fits = |pattern: &str| pattern.strip_suffix('*').map_or(pattern == name, |start| name.starts_with(start));
        self.other_nodes.iter().any(|p| fits(p))
    }
}
