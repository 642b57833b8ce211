//! Guards: named predicates that all have to pass before a node may leave. Unknown is refused.

use super::exit::Exit;
use super::ids::{CycleId, InstanceId, NodeName};
use super::member::FleetView;
use super::record::Record;
use super::rules::{Mutant, Rules};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

/// The names, as printed and as given to `--override`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Guard {
    /// The agent knows which instance it runs on, and no peer says the same of itself.
    Identity,
    /// The state directory takes a durable write, and has room.
    StateDurable,
    /// The fleet record can be read and is the one that is expected.
    FleetRecord,
    /// No failed cycle that nobody has cleared.
    NoLatch,
    /// No operator has stopped new cycles.
    NoPause,
    /// No operator holds this instance.
    NoHold,
    /// A slot is free.
    SlotFree,
    /// This node is healthy in every group.
    SelfInService,
    /// Enough members are in service, and enough others stay.
    MinimumHealthy,
    /// Every other member is in service, or the record explains why not.
    PeersSettled,
    /// Not too many cycles in an hour.
    Rate,
    /// Not too many cycles in a day.
    Budget,
    /// This node has the right to come back.
    RegisterAllowed,
    /// The own node reaches its cluster now.
    ClusterReachable,
    /// The groups' drain fits into what a cycle may take.
    DrainFits,
    /// A page would reach somebody.
    PagerReachable,
    /// No package manager is at work.
    PackageManagerFree,
    /// An Auto Scaling group does not terminate a node that left.
    Autoscaling,
    /// This agent is allowed to act.
    Mode,
}

impl Guard {
    /// All of them, in the order in which they are told.
    pub const ALL: [Guard; 19] = [
        Guard::NoLatch,
        Guard::Mode,
        Guard::Identity,
        Guard::StateDurable,
        Guard::FleetRecord,
        Guard::NoPause,
        Guard::NoHold,
        Guard::SlotFree,
        Guard::SelfInService,
        Guard::MinimumHealthy,
        Guard::PeersSettled,
        Guard::Rate,
        Guard::Budget,
        Guard::RegisterAllowed,
        Guard::ClusterReachable,
        Guard::DrainFits,
        Guard::PagerReachable,
        Guard::PackageManagerFree,
        Guard::Autoscaling,
    ];

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            Guard::Identity => "identity",
            Guard::StateDurable => "state-durable",
            Guard::FleetRecord => "fleet-record",
            Guard::NoLatch => "no-latch",
            Guard::NoPause => "no-pause",
            Guard::NoHold => "no-hold",
            Guard::SlotFree => "slot-free",
            Guard::SelfInService => "self-in-service",
            Guard::MinimumHealthy => "minimum-healthy",
            Guard::PeersSettled => "peers-settled",
            Guard::Rate => "rate",
            Guard::Budget => "budget",
            Guard::RegisterAllowed => "register-allowed",
            Guard::ClusterReachable => "cluster-reachable",
            Guard::DrainFits => "drain-fits",
            Guard::PagerReachable => "pager-reachable",
            Guard::PackageManagerFree => "package-manager-free",
            Guard::Autoscaling => "autoscaling",
            Guard::Mode => "mode",
        }
    }

    /// The guard of that name.
    pub fn from_label(label: &str) -> Option<Guard> {
        Guard::ALL.into_iter().find(|g| g.label() == label)
    }

    /// Can be overridden for one run, by name, with a reason, by the admin role.
    pub const fn overridable(self) -> bool {
        !matches!(
            self,
            Guard::Identity
                | Guard::Mode
                | Guard::StateDurable
                | Guard::FleetRecord
                | Guard::SelfInService
                | Guard::SlotFree
                | Guard::NoLatch
                | Guard::NoPause
                | Guard::NoHold
        )
    }

    /// Stands in the way of an operator's hold too. The others are about patching: a node is held though the fleet is latched
    /// or paused, and the hold's own entry is in the record by then. The floor is read again right before it leaves.
    pub const fn counts_for_hold(self) -> bool {
        matches!(
            self,
            Guard::Identity
                | Guard::Mode
                | Guard::StateDurable
                | Guard::FleetRecord
                | Guard::RegisterAllowed
                | Guard::Autoscaling
        )
    }

    /// Answered by the fleet record alone.
    const fn in_record(self) -> bool {
        matches!(self, Guard::NoLatch | Guard::NoPause | Guard::NoHold | Guard::SlotFree | Guard::Rate | Guard::Budget)
    }

    const fn exit(self) -> Exit {
        match self {
            Guard::NoLatch => Exit::Latched,
            Guard::Mode | Guard::NoPause | Guard::NoHold => Exit::Paused,
            Guard::SlotFree => Exit::SlotHeld,
            Guard::MinimumHealthy => Exit::BelowMinimum,
            Guard::PeersSettled => Exit::PeersNotSettled,
            Guard::Rate | Guard::Budget => Exit::Rate,
            Guard::FleetRecord | Guard::ClusterReachable => Exit::Unreachable,
            Guard::Identity
            | Guard::StateDurable
            | Guard::SelfInService
            | Guard::RegisterAllowed
            | Guard::DrainFits
            | Guard::PagerReachable
            | Guard::PackageManagerFree
            | Guard::Autoscaling => Exit::Guard,
        }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// What the shell found out about one thing, with its sentence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// So.
    Yes(String),
    /// Not so.
    No(String),
    /// Cannot be told.
    Unknown(String),
}

/// Everything that the guards look at, read moments ago.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Which instance asks.
    pub instance: InstanceId,
    /// Its cycle, where its slot is taken already.
    pub cycle: Option<CycleId>,
    /// The wall clock, for rate and budget.
    pub wall_ms: u64,
    /// The fleet record; `Err` = why it cannot be used.
    pub record: Result<Record, String>,
    /// Who is in service; `Err` = why that is unknown.
    pub fleet: Result<FleetView, String>,
    /// What people call the members.
    pub names: BTreeMap<InstanceId, NodeName>,
    /// Cycles per hour, or two per member.
    pub cycles_per_hour: Option<u32>,
    /// Cycles per day, or four per member.
    pub cycles_per_day: Option<u32>,
    /// See [`Guard::Mode`].
    pub acts: Fact,
    /// See the guard of that name.
    pub identity: Fact,
    /// See the guard of that name.
    pub state_durable: Fact,
    /// See the guard of that name.
    pub register_allowed: Fact,
    /// See the guard of that name.
    pub cluster_reachable: Fact,
    /// See the guard of that name.
    pub drain_fits: Fact,
    /// See the guard of that name.
    pub pager_reachable: Fact,
    /// See the guard of that name.
    pub package_manager_free: Fact,
    /// See the guard of that name.
    pub autoscaling: Fact,
}

/// What one guard says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Said {
    /// Go.
    Pass,
    /// Go, and tell: a limit is near.
    Warn,
    /// Refused or unknown, and overridden for this run.
    Overridden,
    /// No.
    Refused,
    /// Cannot be told: no.
    Unknown,
}

/// One guard's verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Verdict {
    /// Which.
    pub guard: Guard,
    /// What.
    pub said: Said,
    /// Why, for people.
    pub sentence: Arc<str>,
    /// What `run` exits with where this is the first refusal.
    pub exit: Exit,
}

impl Verdict {
    /// Stands in the way.
    pub const fn blocks(&self) -> bool {
        matches!(self.said, Said::Refused | Said::Unknown)
    }
}

/// All verdicts, in the order in which they are told.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Verdicts(pub Vec<Verdict>);

impl Verdicts {
    /// Nothing stands in the way.
    pub fn pass(&self) -> bool {
        self.first_refusal().is_none()
    }

    /// Only those that count for a hold.
    #[must_use]
    pub fn for_hold(&self) -> Verdicts {
        Verdicts(self.0.iter().filter(|v| v.guard.counts_for_hold()).cloned().collect())
    }

    /// The refusal that is told first: a latch before anything else. Where the record is unknown that is the reason, not what
    /// could not be read in it.
    pub fn first_refusal(&self) -> Option<&Verdict> {
        let record_unknown = self.0.iter().any(|v| v.guard == Guard::FleetRecord && v.blocks());
        let mut blocking = self.0.iter().filter(|v| v.blocks());
        blocking.find(|v| !(record_unknown && v.said == Said::Unknown && v.guard.in_record()))
    }

    /// Everything that stands in the way is merely unknown: worth a short retry.
    pub fn only_unknown(&self) -> bool {
        !self.pass() && self.0.iter().all(|v| v.said != Said::Refused)
    }
}

/// Evaluates all guards. `overrides` are names with reasons; names that cannot be overridden have no effect.
pub fn evaluate(facts: &Facts, rules: &Rules, overrides: &[(Arc<str>, Arc<str>)]) -> Verdicts {
    let verdict = |guard: Guard| {
        let overridden = guard.overridable() && overrides.iter().any(|(name, _)| &**name == guard.label());
        let (said, sentence) = look(guard, facts, rules, overridden);
        let counts = !matches!(said, Said::Refused | Said::Unknown) || !overridden || guard == Guard::MinimumHealthy;
        let said = if counts { said } else { Said::Overridden };
        let exit = match (said, guard.exit()) {
            (
                Said::Unknown,
                Exit::Latched | Exit::SlotHeld | Exit::BelowMinimum | Exit::PeersNotSettled | Exit::Rate,
            ) => Exit::Unreachable,
            (_, exit) => exit,
        };
        Verdict { guard, said, sentence: sentence.into(), exit }
    };
    Verdicts(Guard::ALL.into_iter().map(verdict).collect())
}

fn of_fact(fact: &Fact) -> (Said, String) {
    match fact {
        Fact::Yes(s) => (Said::Pass, s.clone()),
        Fact::No(s) => (Said::Refused, s.clone()),
        Fact::Unknown(s) => (Said::Unknown, s.clone()),
    }
}

fn look(guard: Guard, facts: &Facts, rules: &Rules, overridden: bool) -> (Said, String) {
    match guard {
        Guard::Identity => of_fact(&facts.identity),
        Guard::StateDurable => of_fact(&facts.state_durable),
        Guard::RegisterAllowed => of_fact(&facts.register_allowed),
        Guard::ClusterReachable => of_fact(&facts.cluster_reachable),
        Guard::DrainFits => of_fact(&facts.drain_fits),
        Guard::PagerReachable => of_fact(&facts.pager_reachable),
        Guard::PackageManagerFree => of_fact(&facts.package_manager_free),
        Guard::Autoscaling => of_fact(&facts.autoscaling),
        Guard::Mode => of_fact(&facts.acts),
        Guard::FleetRecord => match &facts.record {
            Ok(r) => (Said::Pass, format!("fleet {}, counter {}", r.fleet, r.counter)),
            Err(why) => (Said::Unknown, why.clone()),
        },
        Guard::NoLatch | Guard::NoPause | Guard::NoHold | Guard::SlotFree | Guard::Rate | Guard::Budget => {
            match &facts.record {
                Ok(r) => by_record(guard, r, facts, rules),
                Err(_) => (Said::Unknown, "the fleet record is unknown".to_owned()),
            }
        }
        Guard::SelfInService | Guard::MinimumHealthy | Guard::PeersSettled => match &facts.fleet {
            Ok(view) => by_fleet(guard, view, facts, rules, overridden),
            Err(why) if rules.is(Mutant::UnknownIsHealthy) => (Said::Pass, why.clone()),
            Err(why) => (Said::Unknown, why.clone()),
        },
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "called for the six guards that the record alone answers")]
fn by_record(guard: Guard, r: &Record, facts: &Facts, rules: &Rules) -> (Said, String) {
    match guard {
        Guard::NoLatch => match r.open_latches().next() {
            None => (Said::Pass, "no latch".to_owned()),
            Some((id, l)) => (
                Said::Refused,
                format!("{id}: {} failed in {} ({}; job {}): {}", l.node, l.stage, l.class, l.job, l.message),
            ),
        },
        Guard::NoPause => match &r.pause {
            None => (Said::Pass, "not paused".to_owned()),
            Some(p) => (Said::Refused, format!("paused by {}: {}", p.by, p.reason)),
        },
        Guard::NoHold => match r.holds.get(&facts.instance) {
            None => (Said::Pass, "not held".to_owned()),
            Some(h) => (Said::Refused, format!("held by {}: {}", h.order.by, h.order.reason)),
        },
        Guard::SlotFree => slot_free(r, facts, rules),
        Guard::Rate => limit(r, facts, 3_600_000, facts.cycles_per_hour, 2, "hour"),
        _ => limit(r, facts, 86_400_000, facts.cycles_per_day, 4, "day"),
    }
}

fn slot_free(r: &Record, facts: &Facts, rules: &Rules) -> (Said, String) {
    if let Some(own) = r.slots.get(&facts.instance) {
        return if Some(&own.cycle) == facts.cycle.as_ref() {
            (Said::Pass, format!("held by this cycle, {}", own.cycle))
        } else {
            (Said::Refused, format!("held by this instance for another cycle, {}", own.cycle))
        };
    }
    let taken = u32::try_from(r.slots.len()).unwrap_or(u32::MAX);
    match r.slots.values().next() {
        Some(s) if taken >= rules.max_unavailable => {
            (Said::Refused, format!("held by {} (cycle {}, job {})", s.node, s.cycle, s.job))
        }
        _ => (Said::Pass, format!("{} of {} free", rules.max_unavailable.saturating_sub(taken), rules.max_unavailable)),
    }
}

/// Cycles within the window; a time in the future (another clock) counts.
fn limit(r: &Record, facts: &Facts, window_ms: u64, max: Option<u32>, per_member: u32, unit: &str) -> (Said, String) {
    let members = match &facts.fleet {
        Ok(view) => u32::try_from(view.members.len()).unwrap_or(u32::MAX),
        Err(_) => 0,
    };
    let max = match (max, members) {
        (Some(max), _) => max,
        (None, 0) => return (Said::Unknown, "the number of members is unknown".to_owned()),
        (None, n) => n.saturating_mul(per_member),
    };
    let recent = r.finished.iter().filter(|f| f.at_ms >= facts.wall_ms.saturating_sub(window_ms));
    let n = u32::try_from(recent.count()).unwrap_or(u32::MAX);
    let last = r.finished.last().map_or(String::new(), |f| format!("; the last one {} on {}", f.job, f.node));
    let sentence = format!("{n} of {max} cycles in the last {unit}{last}");
    if n >= max {
        (Said::Refused, sentence)
    } else if n.saturating_mul(10) >= max.saturating_mul(8) {
        (Said::Warn, sentence)
    } else {
        (Said::Pass, sentence)
    }
}

fn by_fleet(guard: Guard, view: &FleetView, facts: &Facts, rules: &Rules, overridden: bool) -> (Said, String) {
    let me_in = view.in_service.contains(&facts.instance);
    if guard == Guard::SelfInService {
        return match (me_in, view.members.contains(&facts.instance)) {
            (true, _) => (Said::Pass, "healthy in every group".to_owned()),
            (false, true) => (Said::Refused, "this node is not in service itself".to_owned()),
            (false, false) => (Said::Refused, "this node is not a member of the fleet yet".to_owned()),
        };
    }
    let leavers = match &facts.record {
        Ok(_) if rules.is(Mutant::FloorCountsLeavers) => BTreeSet::new(),
        Ok(r) => r.leavers(),
        Err(_) => return (Said::Unknown, "the fleet record is unknown".to_owned()),
    };
    if guard == Guard::PeersSettled {
        let out = view
            .members
            .iter()
            .find(|m| **m != facts.instance && !view.in_service.contains(*m) && !leavers.contains(*m));
        return match out {
            None => (Said::Pass, "every other member is in service or explained".to_owned()),
            Some(m) => {
                let who = facts.names.get(m).map_or_else(|| m.to_string(), |name| format!("{name} ({m})"));
                (Said::Refused, format!("{who} is out of service and the record does not say why"))
            }
        };
    }
    let (n, stay) = (view.in_service_count(), view.staying(&facts.instance, &leavers));
    let sentence = format!(
        "{n} in service, need {} including this node; {stay} others would stay, need {}",
        rules.minimum_healthy, rules.minimum_during_patch
    );
    if me_in && n >= rules.minimum_healthy && stay >= rules.minimum_during_patch {
        (Said::Pass, sentence)
    } else if overridden && stay >= 1 {
        (Said::Overridden, sentence)
    } else {
        (Said::Refused, sentence)
    }
}

/// The floor right before a deregister call: enough others stay, by a read begun after the acknowledgement whose leavers
/// these are. An override of `minimum-healthy` lets it go down to one other, never further.
pub fn floor(
    view: &FleetView,
    me: &InstanceId,
    leavers: &BTreeSet<InstanceId>,
    rules: &Rules,
    overridden: bool,
) -> bool {
    let need = if overridden { 1.min(rules.minimum_during_patch) } else { rules.minimum_during_patch };
    let none = BTreeSet::new();
    let leavers = if rules.is(Mutant::FloorCountsLeavers) { &none } else { leavers };
    view.staying(me, leavers) >= need
}

#[cfg(test)]
mod tests;
