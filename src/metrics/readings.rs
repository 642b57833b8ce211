//! What the agent knows at one moment, as values. Pure: whatever is not known, or was read too long ago, has no value.

use super::seconds;
use super::table::{self, Metric};
use crate::core::cycle::{Durable, StageName};
use crate::core::finding::{Kind, Report};
use crate::core::ids::{CycleId, InstanceId};
use crate::core::member::FleetView;
use crate::core::plan;
use crate::core::record::Record;
use crate::core::target::{GroupArn, Own, Poll, TargetState};
use crate::core::time::Now;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// What was read longer ago than this is not known any more, in ms: the time after which an agent counts as blind.
pub const FRESH_MS: u64 = 300_000;

/// What the agent knows. Each read has the moment at which it began.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The present moment.
    pub now: &'a Now,
    /// When this agent started, in ms since 1970.
    pub started_ms: u64,
    /// `act` or `observe`.
    pub mode: &'static str,
    /// Configured groups.
    pub groups: &'a [GroupArn],
    /// Config.
    pub minimum_healthy: u32,
    /// Config.
    pub minimum_during_patch: u32,
    /// The own state.
    pub durable: &'a Durable,
    /// Whole groups.
    pub polls: &'a BTreeMap<GroupArn, Poll>,
    /// The own target by group, in the order of `groups`.
    pub own: &'a [Own],
    /// When `polls` and `own` were read.
    pub own_at: Option<&'a Now>,
    /// Who is in service.
    pub fleet: Option<&'a FleetView>,
    /// The fleet record.
    pub record: Option<(&'a Record, &'a Now)>,
    /// How many members there are.
    pub members: Option<(usize, &'a Now)>,
    /// When slots and holds were first seen.
    pub sights: &'a Sights,
    /// What the last look came to.
    pub report: Option<&'a Report>,
    /// Alerts that no sink has accepted yet.
    pub undelivered: u32,
    /// When each loop last completed a turn, in ms since 1970.
    pub turns: &'a [(&'static str, u64)],
}

/// A slot, or a hold as it was ordered.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Leave {
    Slot(CycleId),
    Hold(InstanceId, u64),
}

/// When this agent first saw each slot and hold of the record. Their budgets count from there: two hosts' clocks are never
/// compared.
#[derive(Clone, Debug, Default)]
pub struct Sights(BTreeMap<Leave, Now>);

impl Sights {
    /// The record as it was read.
    pub fn look(&mut self, record: &Record, now: &Now) {
        let present: BTreeSet<Leave> = leaves(record).map(|(leave, _, _)| leave).collect();
        self.0.retain(|leave, _| present.contains(leave));
        for leave in present {
            self.0.entry(leave).or_insert_with(|| now.clone());
        }
    }

    /// Longer ago than that. What was never seen has just been seen; in doubt (another boot) its time is over.
    fn over(&self, leave: &Leave, budget_s: u64, now: &Now) -> bool {
        let Some(seen) = self.0.get(leave) else { return false };
        now.since(seen).is_none_or(|ms| ms > budget_s.saturating_mul(1_000))
    }
}

/// Slots and holds: whose, and for how many seconds.
fn leaves(record: &Record) -> impl Iterator<Item = (Leave, &InstanceId, u64)> {
    let slots = record.slots.iter().map(|(i, s)| (Leave::Slot(s.cycle.clone()), i, s.budget_s));
    let holds = record.holds.iter().map(|(i, h)| (Leave::Hold(i.clone(), h.order.since_ms), i, h.for_s));
    slots.chain(holds)
}

/// One value, with the values of its metric's labels.
type Sample = (Vec<(&'static str, Cow<'static, str>)>, f64);

/// Values by metric; registered as a collector.
#[derive(Debug, Default)]
pub struct Readings(Vec<(Metric, Vec<Sample>)>);

impl Readings {
    /// Everything that is known.
    pub fn of(facts: &Facts<'_>) -> Readings {
        let mut readings = Readings::default();
        readings.agent(facts);
        readings.own(facts);
        readings.groups(facts);
        readings.fleet(facts);
        readings.record(facts);
        readings.report(facts);
        readings
    }

    fn set(&mut self, metric: Metric, value: f64) {
        self.0.push((metric, vec![(Vec::new(), value)]));
    }

    fn set_each<L: Into<Cow<'static, str>>>(
        &mut self,
        metric: Metric,
        label: &'static str,
        values: impl IntoIterator<Item = (L, f64)>,
    ) {
        let samples = values.into_iter().map(|(l, value)| (vec![(label, l.into())], value)).collect();
        self.0.push((metric, samples));
    }

    fn agent(&mut self, f: &Facts<'_>) {
        let build = vec![("version", env!("CARGO_PKG_VERSION").into()), ("mode", f.mode.into())];
        self.0.push((table::BUILD_INFO, vec![(build, 1.0)]));
        self.set(table::STARTED, seconds(f.started_ms));
        self.set_each(table::LOOP_LAST_TURN, "loop", f.turns.iter().map(|(name, ms)| (*name, seconds(*ms))));
        self.set(table::MINIMUM_HEALTHY, f.minimum_healthy.into());
        self.set(table::MINIMUM_DURING_PATCH, f.minimum_during_patch.into());
        self.set(table::ALERTS_UNDELIVERED, f64::from(f.undelivered));
        let source = |name: &'static str, at: Option<&Now>| at.map(|at| (name, seconds(at.wall_ms)));
        let sources = [
            source("load-balancer", f.own_at),
            source("fleet-record", f.record.map(|(_, at)| at)),
            source("members", f.members.map(|(_, at)| at)),
        ];
        self.set_each(table::RECONCILE_LAST_SUCCESS, "source", sources.into_iter().flatten());
    }

    fn own(&mut self, f: &Facts<'_>) {
        let stage = f.durable.stage();
        self.set_each(table::CYCLE_STAGE, "stage", StageName::ALL.map(|s| (s.label(), flag(stage == Some(s)))));
        let planned = |c: &crate::core::cycle::Cycle| {
            matches!(c.plan.kind, plan::Kind::Patch(_) | plan::Kind::Hold(_)) && c.late.is_none()
        };
        self.set(table::OWN_ABSENCE_PLANNED, flag(f.durable.cycle.as_ref().is_some_and(planned)));
        if !is_fresh(f.own_at, f.now) || f.own.len() != f.groups.len() || f.own.is_empty() {
            return;
        }
        // Out of one group is out, whatever the others say; in service is only who is known to be in all.
        if f.own.iter().any(|own| !matches!(own, Own::InService | Own::Unknown)) {
            self.set(table::IN_SERVICE, 0.0);
        } else if f.own.iter().all(|own| *own == Own::InService) {
            self.set(table::IN_SERVICE, 1.0);
        }
    }

    fn groups(&mut self, f: &Facts<'_>) {
        if !is_fresh(f.own_at, f.now) {
            return;
        }
        let healthy = f.groups.iter().filter_map(|g| {
            let poll = f.polls.get(g)?;
            Some((group_label(f.groups, g), count(poll.in_service().count())))
        });
        self.set_each(table::HEALTHY_TARGETS, "group", healthy.collect::<Vec<_>>());
        let mut states = Vec::new();
        for (group, own) in f.groups.iter().zip(f.own) {
            let Some(present) = state_label(*own) else { continue };
            for state in TargetState::ALL.into_iter().filter(|s| *s != TargetState::Unknown).map(TargetState::label) {
                let labels = vec![("group", group_label(f.groups, group).into()), ("state", state.into())];
                states.push((labels, flag(state == present)));
            }
        }
        self.0.push((table::TARGET_STATE, states));
    }

    fn fleet(&mut self, f: &Facts<'_>) {
        if let Some((members, _)) = f.members.filter(|(_, at)| is_fresh(Some(at), f.now)) {
            self.set(table::MEMBERS, count(members));
        }
        let Some(view) = f.fleet.filter(|view| is_fresh(Some(&view.begun), f.now)) else { return };
        self.set(table::MEMBERS_IN_SERVICE, view.in_service_count().into());
        let Some((record, _)) = f.record.filter(|(_, at)| is_fresh(Some(at), f.now)) else { return };
        let explained: BTreeSet<&InstanceId> = leaves(record)
            .filter(|(leave, i, budget)| {
                view.members.contains(*i) && !view.in_service.contains(*i) && !f.sights.over(leave, *budget, f.now)
            })
            .map(|(_, i, _)| i)
            .collect();
        self.set(table::PLANNED_ABSENCE, count(explained.len()));
    }

    fn record(&mut self, f: &Facts<'_>) {
        let Some((record, _)) = f.record.filter(|(_, at)| is_fresh(Some(at), f.now)) else { return };
        self.set(table::LATCHED, count(record.open_latches().count()));
        self.set(table::SLOTS_HELD, count(record.slots.len()));
        let slot = |leave: &Leave| matches!(leave, Leave::Slot(_));
        let overdue = leaves(record).filter(|(leave, _, budget)| slot(leave) && f.sights.over(leave, *budget, f.now));
        self.set(table::SLOTS_OVERDUE, count(overdue.count()));
        if let Some(since) = record.slots.values().map(|s| s.since_ms).min() {
            self.set(table::SLOT_HELD_SINCE, seconds(since));
        }
    }

    /// None found counts only where the look could judge the kind throughout.
    fn report(&mut self, f: &Facts<'_>) {
        let Some(report) = f.report else { return };
        let judged = |kind: Kind| {
            let found = report.findings.iter().filter(|finding| finding.kind == kind).count();
            let doubt = report.unjudged.contains(&kind) || report.unjudged_about.iter().any(|(k, _)| *k == kind);
            (found > 0 || !doubt).then_some(count(found))
        };
        let kinds = Kind::ALL.into_iter().filter(|kind| *kind != Kind::Test);
        let each: Vec<_> = kinds.filter_map(|kind| Some((kind.label(), judged(kind)?))).collect();
        self.set_each(table::FINDINGS, "kind", each);
        if let Some(n) = judged(Kind::RunningNotRegistered) {
            self.set(table::RUNNING_NOT_REGISTERED, n);
        }
    }
}

impl Collector for Readings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (metric, samples) in &self.0 {
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, MetricType::Gauge)?;
            if let [(labels, value)] = samples.as_slice()
                && labels.is_empty()
            {
                ConstGauge::new(*value).encode(family)?;
                continue;
            }
            for (labels, value) in samples {
                ConstGauge::new(*value).encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

fn is_fresh(at: Option<&Now>, now: &Now) -> bool {
    at.and_then(|at| now.since(at)).is_some_and(|ms| ms <= FRESH_MS)
}

fn flag(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

#[expect(clippy::cast_precision_loss, reason = "of targets, members and pages there are few")]
fn count(n: usize) -> f64 {
    n as f64
}

/// A group's name, or where two have the same one (in two accounts) all of its ARN.
fn group_label(groups: &[GroupArn], group: &GroupArn) -> String {
    let twice = groups.iter().filter(|g| g.name() == group.name()).count() > 1;
    if twice { group.to_string() } else { group.name().to_owned() }
}

/// The state that the API has for it; a target that is not registered is `unused` there.
fn state_label(own: Own) -> Option<&'static str> {
    match own {
        Own::InService => Some(TargetState::Healthy.label()),
        // Healthy without traffic (a zonal shift) is no good news, and the API has no word for it.
        Own::NotYet(TargetState::Healthy, _) => Some(TargetState::Unavailable.label()),
        Own::NotYet(TargetState::Unknown, _) | Own::Unknown => None,
        Own::NotYet(state, _) => Some(state.label()),
        Own::Draining => Some(TargetState::Draining.label()),
        Own::Gone | Own::NoRow => Some(TargetState::Unused.label()),
    }
}
