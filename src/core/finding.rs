//! Findings: each is one difference between what should be and what is. Reconcile makes them (`reconcile.rs`), the book of
//! alerts (`alert.rs`) decides who hears of them and when.

use super::page::{PageKind, Severity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a finding is about. The label is part of an alert's key and the name of its runbook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A member is not in service beyond its deadline, whatever the reason.
    OutOfService,
    /// A running client node whose target no group knows.
    RunningNotRegistered,
    /// A target of a member whose node does not run.
    RegisteredNotRunning,
    /// Registered under another port than the member's.
    WrongPort,
    /// Registered, and fails the load balancer's checks.
    Unhealthy,
    /// `initial` for longer than the group's own settings explain.
    StuckInitial,
    /// `draining` for longer than the group's own settings explain.
    StuckDraining,
    /// `unused` for a reason that waiting does not heal: not wired, stopped, unusable.
    NotInUse,
    /// Fewer members in service than `minimum_healthy`, and no planned absence explains it.
    BelowMinimum,
    /// Fewer members in service than `minimum_during_patch`.
    BelowFloor,
    /// A slot is held for longer than its budget, counted from this agent's first sight of it.
    CycleOverdue,
    /// More members are out than the slots and holds of the record explain.
    MoreOutThanSlots,
    /// The holder of a slot is gone, or its agent is silent.
    SlotHolderGone,
    /// A failed cycle that nobody has cleared.
    Latched,
    /// An agent cannot see one of its sources.
    Blind,
    /// A member's agent no longer beats.
    AgentSilent,
    /// A running client node of the cluster without an agent.
    NodeWithoutAgent,
    /// A target that belongs to no member.
    ForeignTarget,
    /// A member is registered in some of the groups only.
    MissingFromGroup,
    /// Agents of one fleet run with different numbers or groups.
    ConfigDiffers,
    /// Two agents say that they are the same instance.
    TwoWithOneIdentity,
    /// No successful cycle for a stated time.
    PatchOverdue,
    /// Only refusals for a stated time.
    PatchRefused,
    /// New cycles are stopped for longer than a stated time.
    PausedTooLong,
    /// A node is held for longer than its order says.
    HeldTooLong,
    /// Self-heal has used up its share of the day.
    HealedTooOften,
    /// A sink refuses pages for good.
    SinkRefuses,
    /// A slot or hold cannot be given back.
    ReleaseStuck,
    /// The configuration cannot be used.
    ConfigUnusable,
    /// A part of the agent failed.
    AgentFault,
    /// `backstop alert test`: nothing is wrong.
    Test,
}

impl Kind {
    /// All of them, for tables.
    pub const ALL: [Kind; 31] = [
        Kind::OutOfService,
        Kind::RunningNotRegistered,
        Kind::RegisteredNotRunning,
        Kind::WrongPort,
        Kind::Unhealthy,
        Kind::StuckInitial,
        Kind::StuckDraining,
        Kind::NotInUse,
        Kind::BelowMinimum,
        Kind::BelowFloor,
        Kind::CycleOverdue,
        Kind::MoreOutThanSlots,
        Kind::SlotHolderGone,
        Kind::Latched,
        Kind::Blind,
        Kind::AgentSilent,
        Kind::NodeWithoutAgent,
        Kind::ForeignTarget,
        Kind::MissingFromGroup,
        Kind::ConfigDiffers,
        Kind::TwoWithOneIdentity,
        Kind::PatchOverdue,
        Kind::PatchRefused,
        Kind::PausedTooLong,
        Kind::HeldTooLong,
        Kind::HealedTooOften,
        Kind::SinkRefuses,
        Kind::ReleaseStuck,
        Kind::ConfigUnusable,
        Kind::AgentFault,
        Kind::Test,
    ];

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            Kind::OutOfService => "out-of-service",
            Kind::RunningNotRegistered => "running-not-registered",
            Kind::RegisteredNotRunning => "registered-not-running",
            Kind::WrongPort => "wrong-port",
            Kind::Unhealthy => "unhealthy",
            Kind::StuckInitial => "stuck-initial",
            Kind::StuckDraining => "stuck-draining",
            Kind::NotInUse => "not-in-use",
            Kind::BelowMinimum => "below-minimum",
            Kind::BelowFloor => "below-floor",
            Kind::CycleOverdue => "cycle-overdue",
            Kind::MoreOutThanSlots => "more-out-than-slots",
            Kind::SlotHolderGone => "slot-holder-gone",
            Kind::Latched => "latched",
            Kind::Blind => "blind",
            Kind::AgentSilent => "agent-silent",
            Kind::NodeWithoutAgent => "node-without-agent",
            Kind::ForeignTarget => "foreign-target",
            Kind::MissingFromGroup => "missing-from-group",
            Kind::ConfigDiffers => "config-differs",
            Kind::TwoWithOneIdentity => "two-with-one-identity",
            Kind::PatchOverdue => "patch-overdue",
            Kind::PatchRefused => "patch-refused",
            Kind::PausedTooLong => "paused-too-long",
            Kind::HeldTooLong => "held-too-long",
            Kind::HealedTooOften => "healed-too-often",
            Kind::SinkRefuses => "sink-refuses",
            Kind::ReleaseStuck => "release-stuck",
            Kind::ConfigUnusable => "config-unusable",
            Kind::AgentFault => "agent-fault",
            Kind::Test => "test",
        }
    }
}

impl Kind {
    /// How bad, in the one place where that is decided. (`unhealthy` of a whole fleet is the one exception: critical.)
    /// One node that is out is critical where it lost its place in the load balancer or nobody knows why it is out; a node
    /// that merely fails is a warning as long as the rest suffices, and `below-minimum` says when it does not.
    pub const fn severity(self) -> Severity {
        match self {
            Kind::OutOfService
            | Kind::RunningNotRegistered
            | Kind::BelowMinimum
            | Kind::BelowFloor
            | Kind::CycleOverdue
            | Kind::MoreOutThanSlots
            | Kind::SlotHolderGone
            | Kind::Latched
            | Kind::TwoWithOneIdentity
            | Kind::SinkRefuses
            | Kind::ReleaseStuck => Severity::Critical,
            Kind::RegisteredNotRunning
            | Kind::WrongPort
            | Kind::Unhealthy
            | Kind::StuckInitial
            | Kind::StuckDraining
            | Kind::NotInUse
            | Kind::Blind
            | Kind::AgentSilent
            | Kind::NodeWithoutAgent
            | Kind::ForeignTarget
            | Kind::MissingFromGroup
            | Kind::ConfigDiffers
            | Kind::PatchOverdue
            | Kind::PatchRefused
            | Kind::PausedTooLong
            | Kind::HeldTooLong
            | Kind::HealedTooOften
            | Kind::ConfigUnusable
            | Kind::AgentFault
            | Kind::Test => Severity::Warning,
        }
    }

    /// What it means, in one line of `docs/findings.md`.
    pub const fn meaning(self) -> &'static str {
        match self {
            Kind::OutOfService => {
                "a member is not in service beyond its deadline, for a reason that no other kind names: registered nowhere \
                 and not known to run, health checks off, a zonal shift; or its own agent's way back is late or refused"
            }
            Kind::RunningNotRegistered => "Elasticsearch runs, and no group has its target (or it drains), unplanned",
            Kind::RegisteredNotRunning => {
                "a target is registered whose node the cluster does not list as a client node"
            }
            Kind::WrongPort => "a member's id is registered under a port that is no member's",
            Kind::Unhealthy => {
                "a registered target fails the load balancer's checks. With the fleet as subject: all registered targets \
                 of a group do at once, so the cluster or the check is at fault and not a node (the same check fails \
                 against a peer too); nothing is changed"
            }
            Kind::StuckInitial => "a target is `initial` for longer than its group's own settings explain",
            Kind::StuckDraining => "a target is `draining` for longer than its group's own settings explain",
            Kind::NotInUse => {
                "`unused` for a reason that waiting does not heal: no listener or zone, stopped, unusable IP"
            }
            Kind::BelowMinimum => "fewer members in service than `minimum_healthy`, and no planned absence explains it",
            Kind::BelowFloor => "fewer members in service than `minimum_during_patch`; nothing silences it",
            Kind::CycleOverdue => {
                "a slot is held for longer than its budget, counted from this agent's first sight of it"
            }
            Kind::MoreOutThanSlots => {
                "more members are deregistered than slots, holds and latches of the record explain"
            }
            Kind::SlotHolderGone => "the holder of a slot is no member any more, or its agent is silent for too long",
            Kind::Latched => "a failed cycle that nobody has cleared: patching is blocked on every node",
            Kind::Blind => "an agent has not seen one of its sources for five minutes; unknown is not well",
            Kind::AgentSilent => "a member's agent does not beat any more",
            Kind::NodeWithoutAgent => "the cluster lists a client node that is no member",
            Kind::ForeignTarget => "a group has a target that is no member's; it never counts, and is never removed",
            Kind::MissingFromGroup => "a member is registered in some of the groups only",
            Kind::ConfigDiffers => "agents of one fleet run with different numbers or groups",
            Kind::TwoWithOneIdentity => "two agents write as the same instance",
            Kind::PatchOverdue => "a node had no successful cycle for a stated time",
            Kind::PatchRefused => "every patch that was asked for on a node was refused for a stated time",
            Kind::PausedTooLong => "new cycles are stopped for longer than a stated time",
            Kind::HeldTooLong => "a node is held for longer than its order says",
            Kind::HealedTooOften => "self-heal has used up its share of the day on a node",
            Kind::SinkRefuses => "a pager refuses pages for good",
            Kind::ReleaseStuck => "a node is back, and its slot or hold cannot be given back",
            Kind::ConfigUnusable => "the configuration cannot be used; no cycle starts",
            Kind::AgentFault => "a part of an agent failed",
            Kind::Test => "`backstop alert test`: nothing is wrong",
        }
    }

    /// It tells how many nodes the fleet lacks.
    pub const fn lacks_nodes(self) -> bool {
        matches!(self, Kind::BelowMinimum | Kind::BelowFloor)
    }

    /// It tells where a member's targets stand: whoever is named looks for itself.
    pub const fn about_a_target(self) -> bool {
        matches!(
            self,
            Kind::OutOfService
                | Kind::RunningNotRegistered
                | Kind::RegisteredNotRunning
                | Kind::WrongPort
                | Kind::Unhealthy
                | Kind::StuckInitial
                | Kind::StuckDraining
                | Kind::NotInUse
                | Kind::MissingFromGroup
        )
    }

    /// Reconcile never makes it, so that no look of its proves it absent.
    pub const fn made_elsewhere(self) -> bool {
        matches!(
            self,
            Kind::HealedTooOften
                | Kind::SinkRefuses
                | Kind::ReleaseStuck
                | Kind::ConfigUnusable
                | Kind::AgentFault
                | Kind::Test
        )
    }
}

impl From<PageKind> for Kind {
    fn from(kind: PageKind) -> Kind {
        match kind {
            PageKind::Latched => Kind::Latched,
            PageKind::OutOfService => Kind::OutOfService,
            PageKind::ReleaseStuck => Kind::ReleaseStuck,
            PageKind::ConfigUnusable => Kind::ConfigUnusable,
            PageKind::AgentFault => Kind::AgentFault,
        }
    }
}

/// One difference between what should be and what is, as one look shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Finding {
    /// What.
    pub kind: Kind,
    /// About whom: a node's name, a target, a group, a source of an agent, or the fleet's name. Stable across agents and
    /// restarts: with fleet and kind it is the alert's key.
    pub subject: Arc<str>,
    /// How bad.
    pub severity: Severity,
    /// What is so, for people: who, since when, how it is known.
    pub sentence: Arc<str>,
}

impl Finding {
    /// What it is about, in short: kind and subject.
    pub fn about(&self) -> About {
        (self.kind, self.subject.clone())
    }
}

/// Kind and subject: with the fleet's name, the key of an alert.
pub type About = (Kind, Arc<str>);

/// What one look came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What is wrong, worst first.
    pub findings: Vec<Finding>,
    /// Kinds that this look could not judge at all: no finding of theirs is no evidence that all is well.
    pub unjudged: BTreeSet<Kind>,
    /// Single subjects that this look could not judge, or must not: what is planned is neither raised nor resolved.
    pub unjudged_about: BTreeSet<About>,
    /// Of these, what a plan explains.
    pub planned: BTreeSet<About>,
    /// Whose look it was: only about its own sight it can tell that it is not [`Kind::Blind`].
    pub looker: Arc<str>,
}

impl Default for Report {
    /// Of a look that saw nothing: it proves nothing.
    fn default() -> Report {
        Report {
            findings: Vec::new(),
            unjudged: Kind::ALL.into_iter().collect(),
            unjudged_about: BTreeSet::new(),
            planned: BTreeSet::new(),
            looker: "".into(),
        }
    }
}

impl Report {
    /// Of a look that could judge everything.
    pub fn complete(looker: &str, findings: Vec<Finding>) -> Report {
        let (unjudged, unjudged_about) = (BTreeSet::new(), BTreeSet::new());
        Report { findings, unjudged, unjudged_about, planned: BTreeSet::new(), looker: looker.into() }
    }

    /// This look shows that it is not so: neither found nor unjudged.
    pub fn shows_absent(&self, about: &About) -> bool {
        if about.0 == Kind::Blind && !self.own_sight(&about.1) {
            return false;
        }
        !self.unjudged.contains(&about.0)
            && !self.unjudged_about.contains(about)
            && !self.findings.iter().any(|f| f.kind == about.0 && f.subject == about.1)
    }

    /// A subject `node: source` of whoever looked.
    fn own_sight(&self, subject: &str) -> bool {
        subject.strip_prefix(&*self.looker).is_some_and(|rest| rest.starts_with(": "))
    }

    /// What the member document tells other nodes of it: `kind/subject`, worst first.
    pub fn finds(&self) -> Vec<Arc<str>> {
        let key = |f: &Finding| format!("{}/{}", f.kind.label(), f.subject).into();
        self.findings.iter().take(super::member::FINDS_MAX).map(key).collect()
    }
}
