//! One tick by itself, of somebody who remembers nothing: a check that cron or a monitoring system runs. What it sees twice
//! it tells at once; what only time can show it does not judge, and says so.

use super::super::exit::Exit;
use super::super::finding::{Kind, Report};
use super::super::page::Severity;
use super::sight::Settings;

/// Looks that a finding needs, as everywhere.
pub const LOOKS: u32 = 2;

/// Kinds that need a memory longer than two looks. A report of one tick neither raises nor denies them.
pub const NEEDS_TIME: [Kind; 5] =
    [Kind::StuckInitial, Kind::StuckDraining, Kind::SlotHolderGone, Kind::AgentSilent, Kind::TwoWithOneIdentity];

/// Somebody who has never looked before sees only by the clocks of other hosts how old a slot or an order is: they are
/// believed but for this much, in ms. An agent never does that: nothing that is *done* may rest on two hosts' clocks.
pub const CLOCKS_DIFFER_MS: u64 = 3_600_000;

impl Settings {
    /// For one tick: nothing is given time, since there will be no later look. What a plan may explain is not told while the
    /// record is not known, for no time proves here that there is none; that it is not known is told instead.
    #[must_use]
    pub fn once(self) -> Settings {
        let clocks_differ_ms = Some(CLOCKS_DIFFER_MS);
        Settings { blind_after_ms: 0, grace_ms: 0, unknown_plan_after_ms: u64::MAX, clocks_differ_ms, ..self }
    }
}

/// How one tick ends: what says that cycles are blocked first, then too few nodes, then whatever else is critical, then what
/// could not be seen.
pub fn verdict(report: &Report) -> Exit {
    let any = |kinds: &[Kind]| report.findings.iter().any(|f| kinds.contains(&f.kind));
    let critical = report.findings.iter().any(|f| f.severity == Severity::Critical && f.kind != Kind::Blind);
    if any(&[Kind::Latched]) {
        Exit::Latched
    } else if any(&[Kind::BelowFloor, Kind::BelowMinimum]) {
        Exit::BelowMinimum
    } else if critical {
        Exit::PeersNotSettled
    } else if any(&[Kind::Blind]) {
        Exit::Unreachable
    } else if report.findings.is_empty() {
        Exit::Done
    } else {
        Exit::PeersNotSettled
    }
}
