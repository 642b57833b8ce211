//! Where one member's target stands in one group, and what that means for the member: the table of findings about nodes.

use super::super::finding::Kind;
use super::super::target::{Reason, Row, TargetState};
use super::text;

/// Where a member's target stands in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Healthy, and given traffic.
    InService,
    /// Healthy, and a zonal shift keeps traffic away.
    Shifted,
    /// Registering, or first checks.
    Initial(Option<Reason>),
    /// Fails its checks.
    Failing(TargetState, Option<Reason>),
    /// Deregistered, the delay is not over.
    Draining,
    /// Registered, and waiting does not make it serve.
    NotInUse(TargetState, Option<Reason>),
    /// Its health checks are off.
    ChecksOff,
    /// Not registered.
    Absent,
    /// Not under its own port, but under this one.
    OtherPort(u16),
    /// Its document names no target in this group.
    NoTarget,
    /// Not known.
    Unknown,
}

/// What one row says.
pub(super) fn of_row(row: &Row) -> Standing {
    match (row.state, row.reason) {
        (TargetState::Healthy, _) if row.shifted => Standing::Shifted,
        (TargetState::Healthy, _) => Standing::InService,
        (TargetState::Initial, reason) => Standing::Initial(reason),
        (TargetState::Unhealthy | TargetState::UnhealthyDraining, reason) => Standing::Failing(row.state, reason),
        (TargetState::Draining, _) => Standing::Draining,
        (TargetState::Unused | TargetState::Unavailable, Some(Reason::NotRegistered)) => Standing::Absent,
        // Not proven gone, not proven registered.
        (TargetState::Unused, None | Some(Reason::Unknown)) => Standing::Unknown,
        (TargetState::Unused, reason) => Standing::NotInUse(row.state, reason),
        (TargetState::Unavailable, Some(Reason::HealthCheckDisabled)) => Standing::ChecksOff,
        // The load balancer itself cannot tell.
        (TargetState::Unavailable | TargetState::Unknown, _) => Standing::Unknown,
    }
}

impl Standing {
    /// A target of the group, serving or not.
    pub(super) const fn registered(self) -> bool {
        matches!(
            self,
            Standing::InService
                | Standing::Shifted
                | Standing::Initial(_)
                | Standing::Failing(..)
                | Standing::NotInUse(..)
                | Standing::ChecksOff
        )
    }

    /// Not a target of the group, for certain, as far as this member is concerned.
    pub(super) const fn gone(self) -> bool {
        matches!(self, Standing::Draining | Standing::Absent | Standing::OtherPort(_) | Standing::NoTarget)
    }

    /// Two rows of one target: the same, or of two registered ones that which does not serve; else unknown.
    pub(super) fn and(self, other: Standing) -> Standing {
        match (self, other) {
            (a, b) if a == b => a,
            (Standing::InService, b) if b.registered() => b,
            (a, b) if a.registered() && b.registered() => a,
            _ => Standing::Unknown,
        }
    }

    /// For people.
    pub(super) fn words(self) -> String {
        match self {
            Standing::InService => "healthy".to_owned(),
            Standing::Shifted => "healthy, but a zonal shift keeps traffic away".to_owned(),
            Standing::Initial(reason) => text::state(TargetState::Initial, reason),
            Standing::Failing(state, reason) | Standing::NotInUse(state, reason) => text::state(state, reason),
            Standing::Draining => "draining".to_owned(),
            Standing::ChecksOff => text::state(TargetState::Unavailable, Some(Reason::HealthCheckDisabled)),
            Standing::Absent => "not registered".to_owned(),
            Standing::OtherPort(port) => format!("registered under port {port} only"),
            Standing::NoTarget => "no target of its agent".to_owned(),
            Standing::Unknown => "unknown".to_owned(),
        }
    }
}

/// Does the cluster list it?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Running {
    /// It does.
    Yes,
    /// A complete answer does not.
    No,
    /// No answer that may be believed.
    Unknown,
}

/// The one closest name for what is wrong with a member; a drain or a start that takes too long is told beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// In service everywhere, and running as far as is known.
    None,
    /// This kind, in these words.
    Found(Kind, String),
    /// On its way in: nothing is wrong unless it takes too long.
    Starting,
    /// Not known.
    Unknown,
}

/// What is so in some of the groups, as `unhealthy in a and b, draining in c`.
fn told(at: &[(&str, Standing)], of: impl Fn(Standing) -> bool) -> String {
    let mut parts: Vec<(String, Vec<&str>)> = Vec::new();
    for (group, standing) in at.iter().filter(|(_, s)| of(*s)) {
        let words = standing.words();
        match parts.iter_mut().find(|(w, _)| *w == words) {
            Some((_, groups)) => groups.push(group),
            None => parts.push((words, vec![group])),
        }
    }
    let parts: Vec<String> = parts.iter().map(|(w, groups)| format!("{w} in {}", text::list(groups, ", "))).collect();
    text::list(&parts, ", ")
}

/// What is wrong with a member that stands so in these groups.
pub(super) fn cause(node: &str, at: &[(&str, Standing)], running: Running) -> Cause {
    let any = |of: fn(Standing) -> bool| at.iter().any(|(_, s)| of(*s));
    let all = |of: fn(Standing) -> bool| at.iter().all(|(_, s)| of(*s));
    let unknown = any(|s| s == Standing::Unknown);
    let found = |kind, sentence| Cause::Found(kind, sentence);
    if any(|s| matches!(s, Standing::OtherPort(_))) {
        return found(Kind::WrongPort, format!("{node} is {}", told(at, |s| matches!(s, Standing::OtherPort(_)))));
    }
    if any(|s| matches!(s, Standing::NotInUse(..))) {
        let what = told(at, |s| matches!(s, Standing::NotInUse(..)));
        return found(Kind::NotInUse, format!("{node} is registered, but {what}: waiting does not heal that"));
    }
    if unknown && !any(|s| matches!(s, Standing::Failing(..))) {
        return Cause::Unknown;
    }
    // Another config than this agent's, which `config-differs` tells; where its targets stand is not known here.
    if all(|s| s == Standing::NoTarget) {
        return Cause::Unknown;
    }
    if !unknown && all(Standing::gone) {
        return nowhere(node, &told(at, Standing::gone), running);
    }
    if !unknown && any(Standing::gone) {
        let (out, there) = (told(at, Standing::gone), told(at, Standing::registered));
        return found(Kind::MissingFromGroup, format!("{node} is {out}, while it is {there}"));
    }
    if any(|s| matches!(s, Standing::Failing(..))) {
        return failing(node, &told(at, |s| matches!(s, Standing::Failing(..))), running);
    }
    if any(|s| s == Standing::ChecksOff) {
        let what = told(at, |s| s == Standing::ChecksOff);
        return found(Kind::OutOfService, format!("{node} is {what}: nothing tells whether it serves"));
    }
    if any(|s| matches!(s, Standing::Initial(_))) {
        return Cause::Starting;
    }
    if any(|s| s == Standing::Shifted) {
        return found(Kind::OutOfService, format!("{node} is {}", told(at, |s| s == Standing::Shifted)));
    }
    match running {
        Running::No => {
            let what = "is healthy in every group, but the cluster does not list it as a client node";
            found(Kind::RegisteredNotRunning, format!("{node} {what}"))
        }
        Running::Yes | Running::Unknown => Cause::None,
    }
}

fn nowhere(node: &str, what: &str, running: Running) -> Cause {
    let (kind, runs) = match running {
        Running::Yes => (Kind::RunningNotRegistered, "it runs, and no cycle or hold explains it"),
        Running::No => (Kind::OutOfService, "the cluster does not list it either"),
        Running::Unknown => (Kind::OutOfService, "whether it runs is not known"),
    };
    Cause::Found(kind, format!("{node} is {what}; {runs}"))
}

fn failing(node: &str, what: &str, running: Running) -> Cause {
    let (kind, runs) = match running {
        Running::Yes => (Kind::Unhealthy, "the cluster lists it"),
        Running::No => (Kind::RegisteredNotRunning, "the cluster does not list it as a client node"),
        Running::Unknown => (Kind::Unhealthy, "whether it runs is not known"),
    };
    Cause::Found(kind, format!("{node} is {what}; {runs}"))
}
