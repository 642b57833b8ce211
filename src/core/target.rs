//! A target as the load balancer knows it, and what its states mean: who is in service, who is gone.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// An ELBv2 target group ARN. Validated where it enters (config); here it is an opaque key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GroupArn(pub Arc<str>);

impl GroupArn {
    /// The group's name inside the ARN, for people; the whole text where it has none.
    pub fn name(&self) -> &str {
        self.0.split('/').nth(1).unwrap_or(&self.0)
    }
}

impl fmt::Display for GroupArn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// (target group, id, port): always all three.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Target {
    /// The group.
    pub group: GroupArn,
    /// Instance id, or IP address in a group of type `ip`.
    pub id: Arc<str>,
    /// The port, sent with every call.
    pub port: u16,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:{}", self.group.name(), self.id, self.port)
    }
}

/// State of one target as ELBv2 reports it, read strictly: a value we do not know is [`TargetState::Unknown`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TargetState {
    /// Registering, or first checks.
    Initial,
    /// Serving.
    Healthy,
    /// Failing its checks.
    Unhealthy,
    /// Network load balancer: failing, established connections kept.
    UnhealthyDraining,
    /// Deregistered, the delay is not over.
    Draining,
    /// Not in the group, or in a group that is not wired; the reason tells.
    Unused,
    /// Checks are off, or ELB cannot tell.
    Unavailable,
    /// A value that this version does not know.
    Unknown,
}

impl TargetState {
    /// All of them, for tables.
    pub const ALL: [TargetState; 8] = [
        TargetState::Initial,
        TargetState::Healthy,
        TargetState::Unhealthy,
        TargetState::UnhealthyDraining,
        TargetState::Draining,
        TargetState::Unused,
        TargetState::Unavailable,
        TargetState::Unknown,
    ];

    /// As in the API.
    pub const fn label(self) -> &'static str {
        match self {
            TargetState::Initial => "initial",
            TargetState::Healthy => "healthy",
            TargetState::Unhealthy => "unhealthy",
            TargetState::UnhealthyDraining => "unhealthy.draining",
            TargetState::Draining => "draining",
            TargetState::Unused => "unused",
            TargetState::Unavailable => "unavailable",
            TargetState::Unknown => "unknown",
        }
    }
}

/// The reason beside a state; absent for healthy targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// `Elb.RegistrationInProgress`
    RegistrationInProgress,
    /// `Elb.InitialHealthChecking`
    InitialHealthChecking,
    /// `Target.ResponseCodeMismatch`
    ResponseCodeMismatch,
    /// `Target.Timeout`
    Timeout,
    /// `Target.FailedHealthChecks`
    FailedHealthChecks,
    /// `Target.NotRegistered`: the only one that means "gone".
    NotRegistered,
    /// `Target.NotInUse`: registered, but the group is not wired to a listener or zone.
    NotInUse,
    /// `Target.DeregistrationInProgress`
    DeregistrationInProgress,
    /// `Target.InvalidState`: stopped or terminated.
    InvalidState,
    /// `Target.IpUnusable`
    IpUnusable,
    /// `Target.HealthCheckDisabled`
    HealthCheckDisabled,
    /// `Elb.InternalError`
    InternalError,
    /// A value that this version does not know.
    Unknown,
}

impl Reason {
    /// As in the API.
    pub const fn label(self) -> &'static str {
        match self {
            Reason::RegistrationInProgress => "Elb.RegistrationInProgress",
            Reason::InitialHealthChecking => "Elb.InitialHealthChecking",
            Reason::ResponseCodeMismatch => "Target.ResponseCodeMismatch",
            Reason::Timeout => "Target.Timeout",
            Reason::FailedHealthChecks => "Target.FailedHealthChecks",
            Reason::NotRegistered => "Target.NotRegistered",
            Reason::NotInUse => "Target.NotInUse",
            Reason::DeregistrationInProgress => "Target.DeregistrationInProgress",
            Reason::InvalidState => "Target.InvalidState",
            Reason::IpUnusable => "Target.IpUnusable",
            Reason::HealthCheckDisabled => "Target.HealthCheckDisabled",
            Reason::InternalError => "Elb.InternalError",
            Reason::Unknown => "unknown reason",
        }
    }

    /// Does not heal by waiting: worth a page at once on the way back.
    pub const fn needs_a_person(self) -> bool {
        matches!(self, Reason::NotInUse | Reason::InvalidState | Reason::IpUnusable | Reason::HealthCheckDisabled)
    }
}

/// One row of DescribeTargetHealth.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Row {
    /// Target id.
    pub id: Arc<str>,
    /// `None` where the server left it out: matches no target.
    pub port: Option<u16>,
    /// State.
    pub state: TargetState,
    /// Reason, absent for healthy ones.
    pub reason: Option<Reason>,
    /// A zonal shift is active: healthy, and yet no traffic.
    pub shifted: bool,
}

impl Row {
    /// Counts as serving.
    pub fn in_service(&self) -> bool {
        self.state == TargetState::Healthy && !self.shifted
    }
}

/// What one group said about the own target in one poll: by name, and in the same poll's whole list.
///
/// Both are needed: a list may leave out what a question by name finds (and the other way round), and an empty 200 proves
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Poll {
    /// The whole list.
    pub list: Vec<Row>,
    /// The answer to the question by name (id and port); `None` = it was not asked.
    pub named: Option<Named>,
}

/// Answer to a question by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Named {
    /// These rows (none: the server leaves out what it does not know).
    Rows(Vec<Row>),
    /// `InvalidTarget`: an answer without a row.
    InvalidTarget,
}

impl Named {
    /// Reads a target out of an answer by name. With no list beside it, a row left out says nothing.
    pub fn own(&self, id: &str, port: u16) -> Own {
        let Named::Rows(rows) = self else { return Own::Unknown };
        let mut matching = rows.iter().filter(|r| &*r.id == id && r.port == Some(port));
        match (matching.next(), matching.next()) {
            (Some(one), None) => of_row(one),
            _ => Own::Unknown,
        }
    }
}

/// What a poll says about the own target in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Own {
    /// Registered and serving.
    InService,
    /// Registered (or registering), not serving.
    NotYet(TargetState, Option<Reason>),
    /// Deregistered, the delay is not over.
    Draining,
    /// `unused` with `Target.NotRegistered`: said in so many words.
    Gone,
    /// No row, though the same poll's whole list shows another target. Twice in a row = gone.
    NoRow,
    /// Throttled, partial, contradictory, an empty 200, a state that nobody knows.
    Unknown,
}

impl Own {
    /// Still (or again) registered.
    pub const fn registered(self) -> bool {
        matches!(self, Own::InService | Own::NotYet(..))
    }

    /// For people.
    pub fn sentence(self) -> String {
        match self {
            Own::InService => "healthy".to_owned(),
            Own::NotYet(state, None) => state.label().to_owned(),
            Own::NotYet(state, Some(reason)) => format!("{} ({})", state.label(), reason.label()),
            Own::Draining => "draining".to_owned(),
            Own::Gone => "not registered".to_owned(),
            Own::NoRow => "not listed".to_owned(),
            Own::Unknown => "unknown".to_owned(),
        }
    }
}

fn of_row(row: &Row) -> Own {
    match (row.state, row.reason) {
        (TargetState::Healthy, _) if row.shifted => Own::NotYet(TargetState::Healthy, row.reason),
        (TargetState::Healthy, _) => Own::InService,
        (TargetState::Draining, _) => Own::Draining,
        // One emulator says `unavailable` beside this reason; the reason is the fact.
        (TargetState::Unused | TargetState::Unavailable, Some(Reason::NotRegistered)) => Own::Gone,
        // `unused` without a reason, or with one that nobody knows: not proven gone, not proven registered.
        (TargetState::Unused, None | Some(Reason::Unknown)) | (TargetState::Unknown, _) => Own::Unknown,
        (state, reason) => Own::NotYet(state, reason),
    }
}

impl Poll {
    /// Reads the own target out of a poll. Matches on id and port; anything contradictory is unknown.
    pub fn own(&self, id: &str, port: u16) -> Own {
        let matching = |rows: &[Row]| -> Vec<Own> {
            rows.iter().filter(|r| &*r.id == id && r.port == Some(port)).map(of_row).collect()
        };
        let listed = match matching(&self.list).as_slice() {
            [] => None,
            [one] => Some(*one),
            _ => return Own::Unknown, // the same id and port twice
        };
        let named = match &self.named {
            None => return listed.unwrap_or(Own::Unknown),
            Some(Named::InvalidTarget) => None,
            Some(Named::Rows(rows)) => match matching(rows).as_slice() {
                [] => None,
                [one] => Some(*one),
                _ => return Own::Unknown,
            },
        };
        let others = self.list.iter().any(|r| !(&*r.id == id && r.port == Some(port)));
        match (listed, named) {
            (Some(a), Some(b)) if a == b => a,
            // Two reads a moment apart may straddle a change; both agree that the target is on its way in.
            (Some(a), Some(b)) if a.registered() && b.registered() => pessimist(a, b),
            // A list shows only registered targets; by name "not registered" is the positive statement.
            (None, Some(Own::Gone)) => Own::Gone,
            (None, None) if others => Own::NoRow,
            _ => Own::Unknown,
        }
    }

    /// Targets that count as serving in this group: by every row that names them. Two rows that disagree are no good news.
    pub fn in_service(&self) -> impl Iterator<Item = (&str, u16)> {
        let mut targets = BTreeMap::new();
        for row in &self.list {
            if let Some(port) = row.port {
                *targets.entry((&*row.id, port)).or_insert(true) &= row.in_service();
            }
        }
        targets.into_iter().filter(|(_, serving)| *serving).map(|(target, _)| target)
    }
}

/// Of two reads of a registered target the one that is not in service.
fn pessimist(a: Own, b: Own) -> Own {
    if a == Own::InService { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, port: u16, state: TargetState, reason: Option<Reason>) -> Row {
        Row { id: id.into(), port: Some(port), state, reason, shifted: false }
    }
    fn healthy(id: &str) -> Row {
        row(id, 9200, TargetState::Healthy, None)
    }
    #[expect(clippy::unnecessary_wraps, reason = "as the field has it")]
    fn named(rows: Vec<Row>) -> Option<Named> {
        Some(Named::Rows(rows))
    }

    #[test]
    fn an_empty_200_is_unknown_and_never_gone() {
        let p = Poll { list: vec![], named: named(vec![]) };
        assert_eq!(p.own("i-1", 9200), Own::Unknown);
        let p = Poll { list: vec![], named: Some(Named::InvalidTarget) };
        assert_eq!(p.own("i-1", 9200), Own::Unknown);
    }

    #[test]
    fn by_name_alone_only_what_is_said_counts() {
        let gone = row("i-1", 9200, TargetState::Unused, Some(Reason::NotRegistered));
        assert_eq!(Named::Rows(vec![gone]).own("i-1", 9200), Own::Gone);
        assert_eq!(Named::Rows(vec![healthy("i-1")]).own("i-1", 9200), Own::InService);
        let nothing = [vec![], vec![healthy("i-2")], vec![healthy("i-1"), healthy("i-1")]];
        for rows in nothing {
            assert_eq!(Named::Rows(rows).own("i-1", 9200), Own::Unknown);
        }
        assert_eq!(Named::InvalidTarget.own("i-1", 9200), Own::Unknown);
    }

    #[test]
    fn no_row_counts_only_while_another_target_is_listed() {
        let p = Poll { list: vec![healthy("i-2")], named: named(vec![]) };
        assert_eq!(p.own("i-1", 9200), Own::NoRow);
        let p = Poll { list: vec![healthy("i-2")], named: Some(Named::InvalidTarget) };
        assert_eq!(p.own("i-1", 9200), Own::NoRow);
    }

    #[test]
    fn only_not_registered_means_gone() {
        for reason in [Reason::NotInUse, Reason::InvalidState, Reason::IpUnusable] {
            let r = row("i-1", 9200, TargetState::Unused, Some(reason));
            let p = Poll { list: vec![r.clone()], named: named(vec![r]) };
            assert_eq!(p.own("i-1", 9200), Own::NotYet(TargetState::Unused, Some(reason)));
        }
        let r = row("i-1", 9200, TargetState::Unused, Some(Reason::NotRegistered));
        let p = Poll { list: vec![healthy("i-2")], named: named(vec![r]) };
        assert_eq!(p.own("i-1", 9200), Own::Gone);
    }

    #[test]
    fn list_and_name_that_disagree_are_unknown() {
        let gone = row("i-1", 9200, TargetState::Unused, Some(Reason::NotRegistered));
        let p = Poll { list: vec![healthy("i-1")], named: named(vec![gone]) };
        assert_eq!(p.own("i-1", 9200), Own::Unknown);
        let p = Poll { list: vec![healthy("i-2")], named: named(vec![healthy("i-1")]) };
        assert_eq!(p.own("i-1", 9200), Own::Unknown);
    }

    #[test]
    fn another_port_is_another_target() {
        let p = Poll { list: vec![row("i-1", 80, TargetState::Healthy, None)], named: named(vec![]) };
        assert_eq!(p.own("i-1", 9200), Own::NoRow);
        let mut unported = healthy("i-1");
        unported.port = None;
        let p = Poll { list: vec![unported], named: named(vec![]) };
        assert_eq!(p.own("i-1", 9200), Own::NoRow);
    }

    #[test]
    fn a_zonal_shift_takes_a_healthy_target_out_of_service() {
        let mut r = healthy("i-1");
        r.shifted = true;
        assert!(!r.in_service());
        let p = Poll { list: vec![r.clone()], named: named(vec![r]) };
        assert_eq!(p.own("i-1", 9200), Own::NotYet(TargetState::Healthy, None));
    }

    #[test]
    fn one_target_twice_serves_only_where_both_rows_say_so() {
        let draining = row("i-1", 9200, TargetState::Draining, Some(Reason::DeregistrationInProgress));
        let p = Poll { list: vec![healthy("i-1"), draining.clone(), healthy("i-2"), healthy("i-2")], named: None };
        assert_eq!(p.in_service().collect::<Vec<_>>(), [("i-2", 9200)]);
        let p = Poll { list: vec![draining, healthy("i-1")], named: None };
        assert_eq!(p.in_service().count(), 0);
    }

    #[test]
    fn unknown_states_and_reasons_are_unknown() {
        for (state, reason) in
            [(TargetState::Unknown, None), (TargetState::Unused, None), (TargetState::Unused, Some(Reason::Unknown))]
        {
            let r = row("i-1", 9200, state, reason);
            let p = Poll { list: vec![r.clone()], named: named(vec![r]) };
            assert_eq!(p.own("i-1", 9200), Own::Unknown, "{state:?} {reason:?}");
        }
    }
}
