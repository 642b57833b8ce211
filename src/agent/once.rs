//! One tick of reconcile by itself: two looks with nothing but a config, no agent, no state, and no write to anything.

use super::shared::Observed;
use super::sight;
use crate::clock::Clock;
use crate::config::Config;
use crate::core::finding::Report;
use crate::core::ids::{InstanceId, NodeName};
use crate::core::look::{Pace, Role};
use crate::core::member::{FleetView, in_service};
use crate::core::reconcile::{Memory, once};
use crate::core::settings::CheckSettings;
use crate::core::target::{GroupArn, Poll, Target};
use crate::fleet::Fleet;
use crate::ports::{ClusterNodes, FleetStore, LoadBalancer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What it looks with.
pub struct Eyes<B, N, S> {
    /// ELBv2.
    pub balancer: B,
    /// The cluster's list of nodes.
    pub nodes: N,
    /// Record and members.
    pub fleet: Fleet<S>,
}

/// What one tick came to.
#[derive(Debug)]
pub struct Tick {
    /// The findings of two looks.
    pub report: Report,
    /// What the second look read.
    pub seen: Observed,
    /// Who is in service; `None` = not known.
    pub view: Option<FleetView>,
}

/// Looks twice, `apart_ms` apart.
pub async fn tick<B: LoadBalancer, N: ClusterNodes, S: FleetStore>(
    eyes: &Eyes<B, N, S>,
    config: &Config,
    looker: &str,
    apart_ms: u64,
    clock: &impl Clock,
) -> Tick {
    let every_ms = config.reconcile.every_ms;
    let settings = sight::settings(config).once();
    // No member: where this host is one, its document is read like any other's.
    let (me, node) = (InstanceId("".into()), NodeName::from(looker));
    let mut memory = Memory::default();
    let mut seen = Observed { pace: Some(pace(every_ms)), ..Observed::default() };
    let mut tick = Tick { report: Report::default(), seen: Observed::default(), view: None };
    for look in 0..once::LOOKS {
        if look > 0 {
            clock.sleep_ms(apart_ms).await;
        }
        let view = read(eyes, config, clock, &mut seen).await;
        let looker = sight::Looker {
            me: &me,
            node: &node,
            config,
            own_cycle: false,
            own_failure: false,
            wrote: None,
            facts: BTreeMap::new(),
        };
        tick.report = sight::judge(&looker, &seen, &settings, &mut memory, &clock.now());
        tick.view = view;
    }
    tick.seen = seen;
    tick
}

/// Everything, as often as every agent of the first three reads it.
fn pace(every_ms: u64) -> Pace {
    Pace {
        role: Role::Whole,
        groups_ms: Some(every_ms),
        own_ms: None,
        nodes_ms: Some(every_ms),
        beat_ms: every_ms,
        watched: Vec::new(),
        watch_ms: every_ms,
        members_ms: every_ms,
        record_ms: every_ms,
    }
}

/// One look, the lists first: what may explain who is missing in them (a goodbye, a slot) is looked at after that.
async fn read<B: LoadBalancer, N: ClusterNodes, S: FleetStore>(
    eyes: &Eyes<B, N, S>,
    config: &Config,
    clock: &impl Clock,
    seen: &mut Observed,
) -> Option<FleetView> {
    let listed = clock.now();
    let mut polls: BTreeMap<GroupArn, Poll> = BTreeMap::new();
    for configured in &config.target_groups {
        let group = configured.arn.clone();
        // The list is the group's: whose target is named does not matter.
        let target = Target { group: group.clone(), id: "".into(), port: configured.port.unwrap_or_default() };
        match eyes.balancer.poll(&target, false).await {
            Ok(poll) => {
                seen.lists.insert(group.clone(), (poll.list.clone(), listed.clone()));
                seen.list_faults.remove(&group);
                polls.insert(group, poll);
            }
            Err(fault) => {
                seen.list_faults.insert(group, fault);
            }
        }
    }
    let begun = clock.now();
    seen.saw_members(eyes.fleet.members().await, begun, config.reconcile.every_ms);
    let begun = clock.now();
    seen.saw_record(eyes.fleet.read().await, begun);
    let begun = clock.now();
    // The cluster is asked by way of the own node: where that is out on purpose nobody is blind for it.
    let asked = nodes(eyes, config).await;
    let down = asked.is_err() && own_is_planned(config, seen);
    if let Some(pace) = &mut seen.pace {
        pace.nodes_ms = Some(config.reconcile.every_ms).filter(|_| !down);
    }
    if !down {
        seen.saw_nodes(asked, begun);
    }
    seen.looks = seen.looks.saturating_add(1);
    let groups: Vec<GroupArn> = config.target_groups.iter().map(|g| g.arn.clone()).collect();
    let (members, _) = seen.members.as_ref().filter(|_| !seen.faults.contains_key("members"))?;
    (polls.len() == groups.len()).then(|| in_service(members, &groups, &polls, listed))
}

/// This host's node has a slot or is held, by a record that was read in this look.
fn own_is_planned(config: &Config, seen: &Observed) -> bool {
    let own = |node: &NodeName| node.as_str() == &*config.node.name;
    let record = seen.record.as_ref().filter(|_| !seen.faults.contains_key("fleet record"));
    record.is_some_and(|(r, _)| r.slots.values().any(|s| own(&s.node)) || r.holds.values().any(|h| own(&h.node)))
}

/// The own node's word; and where this host has none, that of the servers which hold the record.
async fn nodes<B, N: ClusterNodes, S>(
    eyes: &Eyes<B, N, S>,
    config: &Config,
) -> Result<Vec<crate::core::client_node::ClientNode>, crate::core::error::Fault> {
    let own = config.check_settings();
    let first = match eyes.nodes.client_nodes(&own).await {
        Ok(nodes) => return Ok(nodes),
        Err(fault) => fault,
    };
    let mut asked: BTreeSet<Arc<str>> = BTreeSet::from([own.url.clone()]);
    for url in &config.elasticsearch.record_endpoints {
        if !asked.insert(url.clone()) {
            continue;
        }
        let other = CheckSettings { url: url.clone(), ..own.clone() };
        if let Ok(nodes) = eyes.nodes.client_nodes(&other).await {
            return Ok(nodes);
        }
    }
    Err(first)
}
