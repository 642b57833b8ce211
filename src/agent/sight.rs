//! What this agent knows, as reconcile takes it (`core/reconcile.rs`), and what of the config it rests on.

use super::shared::{Observed, Parts, Shared, World};
use crate::config::Config;
use crate::core::finding::{Finding, Kind, Report};
use crate::core::ids::{InstanceId, NodeName};
use crate::core::reconcile::{GroupSight, Memory, Seen, Settings, Sight, Wrote, by_hand, reconcile};
use crate::core::settings::GroupFacts;
use crate::core::target::{GroupArn, Named, Row};
use crate::core::time::Now;
use std::collections::BTreeMap;
use std::sync::Arc;

/// An observation may be as old as so many of its own turns.
const STALE_TURNS: u64 = 4;

/// The numbers that findings rest on.
pub(super) fn settings(c: &Config) -> Settings {
    let usual = Settings::default();
    let every_ms = c.reconcile.every_ms;
    Settings {
        minimum_healthy: c.minimum_healthy,
        minimum_during_patch: c.minimum_during_patch,
        max_unavailable: c.max_unavailable,
        every_ms,
        stale_after_ms: usual.stale_after_ms.max(every_ms.saturating_mul(STALE_TURNS)),
        margin_application_ms: c.drain.margin_application_ms,
        margin_network_ms: c.drain.margin_network_ms,
        other_nodes: c.reconcile.other_nodes.clone(),
        patch_overdue_after_ms: c.reconcile.patch_overdue_after_ms,
        ..usual
    }
}

/// What a page is written by.
pub(super) fn known<'a>(o: &'a Observed, settings: &'a Settings, now: &'a Now) -> by_hand::Known<'a> {
    by_hand::Known {
        members: o.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default(),
        view: o.fleet.as_ref(),
        record: o.record.as_ref().map(|(r, _)| r),
        first: &o.first,
        hearts: &o.hearts,
        settings,
        now,
    }
}

/// A source with its fault, as often as it is read.
fn seen<'a, T: ?Sized>(
    answer: Option<(&'a T, &'a Now)>,
    fault: Option<&'a crate::core::error::Fault>,
    every_ms: Option<u64>,
) -> Seen<'a, T> {
    Seen { answer, fault, every_ms }
}

/// Who looks, and what it knows beside what it has read.
pub(super) struct Looker<'a> {
    pub(super) me: &'a InstanceId,
    pub(super) node: &'a NodeName,
    pub(super) config: &'a Config,
    pub(super) own_cycle: bool,
    pub(super) own_failure: bool,
    pub(super) wrote: Option<&'a Wrote>,
    pub(super) facts: BTreeMap<GroupArn, GroupFacts>,
}

/// What one look comes to.
pub(super) fn report<W: World>(
    shared: &Shared<W>,
    parts: &Parts<W>,
    o: &Observed,
    wrote: Option<&Wrote>,
    memory: &mut Memory,
    now: &Now,
) -> Report {
    let (own_cycle, own_failure) = {
        let view = shared.node.borrow();
        let cycle = view.durable.cycle.as_ref();
        (cycle.is_some(), cycle.is_some_and(|c| c.failure.is_some()))
    };
    let facts = shared.cache().groups.iter().map(|(arn, (facts, _))| (arn.clone(), *facts)).collect();
    let looker = Looker {
        me: &shared.instance(),
        node: &shared.node_name(),
        config: &parts.config,
        own_cycle,
        own_failure,
        wrote,
        facts,
    };
    let mut report = judge(&looker, o, &settings(&parts.config), memory, now);
    used_up(shared, &mut report);
    report
}

/// Puts together what was read, as reconcile takes it.
pub(super) fn judge(l: &Looker<'_>, o: &Observed, settings: &Settings, memory: &mut Memory, now: &Now) -> Report {
    let fleet: Arc<str> = l.config.fleet.as_str().into();
    let pace = o.pace.as_ref();
    let (groups_ms, own_ms) = pace.map_or((None, None), |p| (p.groups_ms, p.own_ms));
    let groups: Vec<GroupSight<'_>> = l
        .config
        .target_groups
        .iter()
        .map(|configured| {
            let group = &configured.arn;
            let list = o.lists.get(group).map(|(rows, at): &(Vec<Row>, Now)| (rows.as_slice(), at));
            let named = o.named.get(group).map(|(named, at): &(Named, Now)| (named, at));
            // Facts that cannot be read keep anything from being asked: the fault is the whole source's.
            let asked = o.faults.get("load balancer").filter(|_| !l.facts.contains_key(group));
            GroupSight {
                group,
                facts: l.facts.get(group).copied(),
                list: seen(list, o.list_faults.get(group).or(asked), groups_ms),
                named: seen(named, o.named_faults.get(group).or(asked), own_ms),
            }
        })
        .collect();
    let sight = Sight {
        fleet: &fleet,
        me: l.me,
        node: l.node,
        groups: &groups,
        members: seen(
            o.members.as_ref().map(|(m, at)| (m.as_slice(), at)),
            o.faults.get("members"),
            pace.map(|p| p.members_ms),
        ),
        hearts: &o.hearts,
        nodes: seen(
            o.nodes.as_ref().map(|(n, at)| (n.as_slice(), at)),
            o.faults.get("cluster nodes"),
            pace.and_then(|p| p.nodes_ms).filter(|_| !l.own_cycle),
        ),
        record: seen(o.record.as_ref().map(|(r, at)| (r, at)), o.faults.get("fleet record"), pace.map(|p| p.record_ms)),
        first: &o.first,
        own_cycle: l.own_cycle,
        own_failure: l.own_failure,
        wrote: l.wrote,
    };
    reconcile(&sight, settings, memory, now)
}

/// Self-heal tells of itself: nobody else counts how often it has acted.
fn used_up<W: World>(shared: &Shared<W>, report: &mut Report) {
    report.unjudged.remove(&Kind::HealedTooOften);
    let Some(sentence) = shared.cache().heals_no_more.clone() else { return };
    let (kind, node) = (Kind::HealedTooOften, shared.node_name());
    report.findings.push(Finding { kind, subject: node.0, severity: crate::core::page::Severity::Critical, sentence });
}
