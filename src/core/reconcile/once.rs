//! One tick by itself, of somebody who remembers nothing: a check that cron or a monitoring system runs. What it sees twice
//! it tells at once; what only time can show it does not judge, and says so.

use super::super::exit::Exit;
use super::super::finding::{Kind, Report};
use super::sight::Settings;

/// Looks that a finding needs, as everywhere.
pub const LOOKS: u32 = 2;

/// Kinds that need a memory longer than two looks. A report of one tick neither raises nor denies them.
pub const NEEDS_TIME: [Kind; 8] = [
    Kind::StuckInitial,
    Kind::StuckDraining,
    Kind::CycleOverdue,
    Kind::SlotHolderGone,
    Kind::AgentSilent,
    Kind::TwoWithOneIdentity,
    Kind::PausedTooLong,
    Kind::HeldTooLong,
];

impl Settings {
    /// For one tick: nothing is given time, since there will be no later look.
    #[must_use]
    pub fn once(self) -> Settings {
        Settings { blind_after_ms: 0, grace_ms: 0, ..self }
    }
}

/// How one tick ends: what says that cycles are blocked first, then too few nodes, then what could not be seen.
pub fn verdict(report: &Report) -> Exit {
    let any = |kinds: &[Kind]| report.findings.iter().any(|f| kinds.contains(&f.kind));
    if any(&[Kind::Latched]) {
        Exit::Latched
    } else if any(&[Kind::BelowFloor, Kind::BelowMinimum]) {
        Exit::BelowMinimum
    } else if any(&[Kind::Blind]) {
        Exit::Unreachable
    } else if report.findings.is_empty() {
        Exit::Done
    } else {
        Exit::PeersNotSettled
    }
}
