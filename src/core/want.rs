//! Which effect a state asks for. Entry and recovery alike: it depends on what is stored and on what this process has
//! learnt since it entered the stage, on nothing else.

use super::cycle::{Cycle, Durable, Seen, Stage};
use super::effect::{Effect, Want};
use super::plan::{Kind, Plan};
use super::record::{Extra, Latch, Op, Pause};
use super::rules::Mutant;
use super::target::Own;
use super::time::Now;

/// What this state wants.
pub fn want(d: &Durable, v: &Seen, now: &Now) -> Want {
    let Some(c) = &d.cycle else { return Want::Idle };
    if c.deadline.due(now) && !looks_first(c, v) {
        return Want::Wait(now.clone()); // a tick, which acts on it
    }
    if let Some(effect) = urgent(c, v, now) {
        return Want::Do(effect);
    }
    if let Some(at) = &v.next_at
        && at.boot == now.boot
        && at.since_boot_ms > now.since_boot_ms
    {
        let no_deadline = c.deadline.fired() || looks_first(c, v);
        return Want::Wait(earlier(at.clone(), c.deadline.due_at(now), no_deadline));
    }
    match &c.stage {
        Stage::Claim { .. } => Want::Do(claim(c, v, now)),
        Stage::Deregister => Want::Do(deregister(c, v, now)),
        Stage::Drain => Want::Do(drain(v)),
        Stage::Patch => Want::Do(patch(c, v, now)),
        Stage::Reboot { from, asked } => reboot(c, v, now, from == &now.boot, *asked),
        // The hold's entry is in the record: only now the slot goes.
        Stage::Held { .. } if v.acked_at.is_none() => Want::Do(Effect::Record(Op::Free {
            instance: c.plan.instance.clone(),
            cycle: c.plan.id.clone(),
            latch: None,
            finished: None,
        })),
        Stage::Held { .. } if leaves_for_good(c) => Want::Do(Effect::Record(retire(c, now))),
        Stage::Held { until } => Want::Wait(until.due_at(now)),
        Stage::Check if c.skip_check.is_some() => Want::Wait(now.clone()),
        Stage::Check => Want::Do(Effect::Check),
        Stage::Register => Want::Do(register(c, v)),
        Stage::Settle => Want::Do(Effect::ReadOwn),
        Stage::Release => Want::Do(Effect::Record(release(c, now))),
    }
}

/// A process that has just started, or stood still, looks once before it takes a deadline for missed: the world may have
/// got there in the meantime. Only where a look leads nowhere by itself.
pub(super) fn looks_first(c: &Cycle, v: &Seen) -> bool {
    v.unread
        && matches!(c.stage, Stage::Drain | Stage::Patch | Stage::Check | Stage::Register | Stage::Settle)
        && !c.deadline.fired()
}

fn earlier(a: Now, b: Now, b_is_over: bool) -> Now {
    if b_is_over || a.since_boot_ms <= b.since_boot_ms { a } else { b }
}

/// On the way back, before anything else and without waiting: the latch of a failure, an operator's hold, a job that must
/// not go on.
fn urgent(c: &Cycle, v: &Seen, now: &Now) -> Option<Effect> {
    if !c.stage.name().homeward() {
        return None;
    }
    let rules = &c.plan.rules;
    if let (Some(latch), false, false) = (c.latch(), v.latched, v.tried)
        && !rules.is(Mutant::LatchAfterWayBack)
    {
        return Some(Effect::Record(Op::AddLatch { cycle: c.plan.id.clone(), latch }));
    }
    let due = v.next_at.as_ref().is_none_or(|at| at.boot != now.boot || at.since_boot_ms <= now.since_boot_ms);
    if c.kill_job && !v.killed && due {
        return Some(Effect::KillJob);
    }
    if let (Some(hold), true) = (&c.hold, due) {
        if v.own.is_empty() {
            return Some(Effect::ReadOwn); // only a node that is out is held on its way back
        }
        return Some(Effect::Record(Op::Hold {
            instance: c.plan.instance.clone(),
            hold: hold.clone(),
            instead_of: Some((c.plan.id.clone(), c.latch())),
        }));
    }
    None
}

/// The acknowledgement in hand is young enough for a destructive call.
fn acked(c: &Cycle, v: &Seen, now: &Now) -> bool {
    let age = v.acked_at.as_ref().and_then(|at| now.since(at));
    age.is_some_and(|ms| ms <= c.plan.limits.ack_max_age_ms)
}

fn confirm(c: &Cycle, v: &Seen, leaving: bool) -> Effect {
    ask(c, v, hold_or(&c.plan, || Op::Confirm { instance: c.plan.instance.clone(), cycle: c.plan.id.clone(), leaving }))
}

/// A hold's entry is written again where a patch confirms its slot.
fn hold_or(plan: &Plan, op: impl FnOnce() -> Op) -> Op {
    match &plan.kind {
        Kind::Hold(hold) => Op::Hold { instance: plan.instance.clone(), hold: hold.clone(), instead_of: None },
        Kind::Patch(_) | Kind::Return | Kind::Recovery => op(),
    }
}

#[cfg(feature = "mutants")]
fn ask(c: &Cycle, v: &Seen, op: Op) -> Effect {
    if v.doubt && c.plan.rules.is(Mutant::ClaimByRead) { Effect::ReadRecord } else { Effect::Record(op) }
}

#[cfg(not(feature = "mutants"))]
fn ask(_: &Cycle, _: &Seen, op: Op) -> Effect {
    Effect::Record(op)
}

fn claim(c: &Cycle, v: &Seen, now: &Now) -> Effect {
    let before_slot = c.plan.rules.is(Mutant::FloorBeforeSlot);
    if before_slot && !v.guards {
        return Effect::ReadGuards;
    }
    if v.acked_at.is_none() {
        let slot = || Op::Claim { instance: c.plan.instance.clone(), slot: c.plan.slot(now.wall_ms) };
        return ask(c, v, hold_or(&c.plan, slot));
    }
    Effect::ReadGuards
}

fn deregister(c: &Cycle, v: &Seen, now: &Now) -> Effect {
    let rules = &c.plan.rules;
    let once = rules.is(Mutant::FloorOncePerCycle) || rules.is(Mutant::FloorBeforeSlot);
    let next = (0..groups(c)).find(|g| !bit(v.called, *g));
    match next {
        None => Effect::ReadOwn,
        // A hold of a node that is out already takes nobody away: then the floor is not asked.
        Some(_) if v.own.is_empty() && matches!(c.plan.kind, Kind::Hold(_)) => Effect::ReadOwn,
        Some(_) if !acked(c, v, now) => confirm(c, v, true),
        // Nothing is called before it is written down that this node may be out.
        Some(_) if (!v.floor && !once) || c.out_since.is_none() => Effect::ReadFleet,
        Some(g) => Effect::Deregister(g),
    }
}

fn drain(v: &Seen) -> Effect {
    if v.gone { Effect::CountConnections } else { Effect::ReadOwn }
}

fn patch(c: &Cycle, v: &Seen, now: &Now) -> Effect {
    if v.started || !v.job_new {
        Effect::AskJob
    } else if !acked(c, v, now) {
        confirm(c, v, false)
    } else if !v.gone {
        Effect::ReadOwn
    } else {
        Effect::StartJob
    }
}

fn reboot(c: &Cycle, v: &Seen, now: &Now, same_boot: bool, asked: u8) -> Want {
    if !same_boot || c.plan.rules.is(Mutant::SameBootCounts) {
        return Want::Wait(now.clone()); // a tick, which notices it
    }
    if v.started || (asked > 0 && c.by_ssm()) {
        return Want::Wait(c.deadline.due_at(now));
    }
    Want::Do(if (asked == 0 && !c.by_ssm()) || !acked(c, v, now) {
        confirm(c, v, false)
    } else if !v.gone {
        Effect::ReadOwn
    } else {
        Effect::Reboot
    })
}

fn register(c: &Cycle, v: &Seen) -> Effect {
    // The call before the read: one that lags may still show the target as it was before it left.
    (0..groups(c)).find(|g| !bit(v.called, *g)).map_or(Effect::ReadOwn, Effect::Register)
}

/// Held only until the record says that it is retired.
pub(super) fn leaves_for_good(c: &Cycle) -> bool {
    matches!(&c.plan.kind, Kind::Hold(hold) if hold.retires())
}

fn retire(c: &Cycle, now: &Now) -> Op {
    let instance = c.plan.instance.clone();
    let order = match &c.plan.kind {
        Kind::Hold(hold) => hold.order.clone(),
        Kind::Patch(_) | Kind::Return | Kind::Recovery => {
            Pause { by: c.plan.by.clone(), reason: "".into(), since_ms: now.wall_ms, extra: Extra::new() }
        }
    };
    // Its own slot is free by now; a slot of another cycle would be one that nobody explains.
    let latch = Latch::lost(&instance, &c.plan.slot(now.wall_ms), "retired while a cycle of it had a slot", now);
    Op::Retire { instance, order, latch }
}

fn release(c: &Cycle, now: &Now) -> Op {
    match c.plan.kind {
        Kind::Hold(_) => Op::EndHold { instance: c.plan.instance.clone() },
        Kind::Patch(_) | Kind::Return | Kind::Recovery => Op::Free {
            instance: c.plan.instance.clone(),
            cycle: c.plan.id.clone(),
            latch: c.latch(),
            finished: c.finished(now),
        },
    }
}

pub(super) fn groups(c: &Cycle) -> usize {
    c.plan.targets.len()
}

pub(super) fn bit(bits: u16, i: usize) -> bool {
    u32::try_from(i).ok().and_then(|i| 1_u16.checked_shl(i)).is_some_and(|b| bits & b != 0)
}

pub(super) fn with_bit(bits: u16, i: usize) -> u16 {
    bits | u32::try_from(i).ok().and_then(|i| 1_u16.checked_shl(i)).unwrap_or(0)
}

pub(super) fn without_bit(bits: u16, i: usize) -> u16 {
    bits & !u32::try_from(i).ok().and_then(|i| 1_u16.checked_shl(i)).unwrap_or(0)
}

/// Every group says gone: in so many words, or twice in a row by leaving the row out.
pub(super) fn all_gone(own: &[Own], no_row: &[u8], one_is_enough: bool) -> bool {
    let gone = |(i, o): (usize, &Own)| match o {
        Own::Gone => true,
        Own::NoRow => no_row.get(i).is_some_and(|n| *n >= 2),
        Own::InService | Own::NotYet(..) | Own::Draining | Own::Unknown => false,
    };
    let mut each = own.iter().enumerate().map(gone);
    !own.is_empty() && if one_is_enough { each.any(|g| g) } else { each.all(|g| g) }
}
