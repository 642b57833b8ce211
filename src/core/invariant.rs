//! Named invariants of stored values: checked on commit, on load and in every test.

use super::cycle::{Durable, Stage, StageName};
use super::plan::Kind;
use super::record::Record;

/// A broken invariant, by name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub &'static str);

/// Groups that one cycle can handle.
pub const GROUPS_MAX: usize = 16;

/// What holds of every stored state.
pub fn durable(d: &Durable) -> Result<(), Broken> {
    let Some(c) = &d.cycle else { return Ok(()) };
    let rule = |holds: bool, name: &'static str| if holds { Ok(()) } else { Err(Broken(name)) };
    let at = c.stage.name();
    rule(c.plan.instance == d.instance, "a cycle is of the instance whose state it is in")?;
    rule(!c.plan.targets.is_empty(), "the list of targets is written down before anything leaves")?;
    rule(c.plan.targets.len() <= GROUPS_MAX, "no more groups than a cycle can handle")?;
    // A claim that turned round on a full disk is on the way back without having left.
    let stayed = c.early.is_some() && at.homeward();
    rule(
        matches!(at, StageName::Claim | StageName::Deregister | StageName::Release) || c.out_since.is_some() || stayed,
        "from drain to settle the node may be out, and since when is known",
    )?;
    rule(
        c.failure.is_none()
            || !matches!(
                at,
                StageName::Claim | StageName::Deregister | StageName::Drain | StageName::Patch | StageName::Reboot
            ),
        "a failed cycle is on the way back",
    )?;
    rule(
        !matches!(at, StageName::Patch | StageName::Reboot) || matches!(c.plan.kind, Kind::Patch(_)),
        "only a patch has a job",
    )?;
    rule(!matches!(c.stage, Stage::Held { .. }) || matches!(c.plan.kind, Kind::Hold(_)), "only a hold is held")?;
    rule(
        !matches!(c.stage, Stage::Reboot { .. }) || c.verdict.as_ref().is_some_and(super::job::Verdict::good),
        "a reboot follows a good job only",
    )
}

/// What holds of every record.
pub fn record(r: &Record) -> Result<(), Broken> {
    let rule = |holds: bool, name: &'static str| if holds { Ok(()) } else { Err(Broken(name)) };
    rule(r.slots.keys().all(|i| !r.retired.contains_key(i)), "a retired instance has no slot")?;
    rule(r.finished.len() <= super::record::FINISHED_MAX, "finished cycles are bounded")
}
