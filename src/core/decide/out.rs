//! The road out: claim, deregister, drain, patch, reboot. Every exit from here on is the way back.

#![expect(clippy::wildcard_enum_match_arm, reason = "total by design: what does not fit a stage changes nothing")]

use super::super::cycle::{Early, FailureClass, Stage};
use super::super::error::{Class, Fault};
use super::super::event::Event;
use super::super::exit::Exit;
use super::super::guard::{self, Guard, Verdicts};
use super::super::job::{JobResult, JobStatus, Owed, RebootPolicy};
use super::super::plan::Kind;
use super::super::record::Refusal;
use super::super::rules::Mutant;
use super::super::target::Own;
use super::super::time::{BootId, Deadline, Dwell};
use super::super::want;
use super::Turn;

/// What a machine that goes down ends its processes with.
const SIGHUP: i32 = 1;
/// See [`SIGHUP`].
const SIGKILL: i32 = 9;
/// See [`SIGHUP`].
const SIGTERM: i32 = 15;
/// A reboot is asked for so often at most in one cycle, over all starts of the agent.
const REBOOT_ASKS_MAX: u8 = 3;
/// Reads that said nothing, in a row, before a guard counts as refused.
const UNKNOWN_MAX: u8 = 3;
/// Between two looks at the running job, in ms: a quarter of the time that it has run, within these.
const JOB_POLL_MS: (u64, u64) = (20, 500);
/// Between two looks at the load balancer while the drain has long to go, in ms.
const DRAIN_LOOK_MS: u64 = 30_000;
/// The last part of the drain is watched closely, in ms.
const DRAIN_CLOSE_MS: u64 = 500;

impl Turn<'_> {
    pub(super) fn claim(&mut self, e: &Event) {
        match e {
            Event::Acked { leavers } => {
                self.answered(None);
                (self.v.acked_at, self.v.leavers) = (Some(self.now.clone()), leavers.clone());
                self.c.stage = Stage::Claim { acked: true };
                if self.c.plan.rules.is(Mutant::FloorBeforeSlot) {
                    self.go(Stage::Deregister);
                }
            }
            Event::Unanswered(f) => {
                self.v.doubt = true;
                self.retry(f);
            }
            Event::CasRefused(refusal) => {
                let (exit, message) = refused(refusal);
                self.end_claim(exit, &message);
            }
            Event::Guards(verdicts) if matches!(self.c.plan.kind, Kind::Hold(_)) => self.guards(&verdicts.for_hold()),
            Event::Guards(verdicts) => self.guards(verdicts),
            _ => {}
        }
    }

    fn guards(&mut self, verdicts: &Verdicts) {
        if verdicts.pass() {
            if self.c.plan.rules.is(Mutant::FloorBeforeSlot) && self.v.acked_at.is_none() {
                self.v.guards = true;
                return;
            }
            return self.go(Stage::Deregister);
        }
        self.v.unknown = self.v.unknown.saturating_add(1);
        if verdicts.only_unknown() && self.v.unknown < UNKNOWN_MAX {
            return self.retry(&Fault::new(Class::Transport, "a guard could not be answered"));
        }
        if let Some(v) = verdicts.first_refusal() {
            self.end_claim(v.exit, &format!("{}: {}", v.guard, v.sentence));
        }
    }

    /// A claim ends through `release` wherever a write of it may have landed or may still: an acknowledged write without
    /// this cycle is the fence.
    pub(super) fn end_claim(&mut self, exit: Exit, message: &str) {
        let stored = self.c.stage == Stage::Claim { acked: true };
        let fence = stored || self.v.acked_at.is_some() || (self.v.doubt && !self.c.plan.rules.is(Mutant::NoFence));
        self.c.early.get_or_insert(Early { exit, message: message.into() });
        if fence {
            self.go(Stage::Release);
        } else {
            self.idle = Some(self.ended());
        }
    }

    pub(super) fn deregister(&mut self, e: &Event) {
        match e {
            Event::Acked { leavers } => {
                self.answered(None);
                (self.v.acked_at, self.v.leavers, self.v.floor) = (Some(self.now.clone()), leavers.clone(), false);
            }
            Event::Unanswered(f) => self.retry(f),
            Event::CasRefused(refusal) => self.home(Exit::EndedEarly, &refused(refusal).1),
            Event::Fleet(Ok(view)) => {
                // Only a read begun after the acknowledgement counts.
                let Some(acked) = &self.v.acked_at else { return };
                if view.begun.since(acked).is_none() {
                    return;
                }
                let p = &self.c.plan;
                let named = p.overrides.iter().any(|(name, _)| &**name == Guard::MinimumHealthy.label());
                if guard::floor(view, &p.instance, &self.v.leavers, &p.rules, named) {
                    self.answered(None);
                    self.v.floor = true;
                    self.may_be_out();
                } else {
                    let stay = view.staying(&p.instance, &self.v.leavers);
                    let need = p.rules.minimum_during_patch;
                    let why = format!("minimum-healthy: only {stay} others would stay, need {need}");
                    self.home(Exit::EndedEarly, &why);
                }
            }
            Event::Fleet(Err(f)) if self.c.plan.rules.is(Mutant::UnknownIsHealthy) => {
                self.retry(f);
                (self.v.floor, self.v.next_at) = (true, None);
                self.may_be_out();
            }
            Event::Fleet(Err(f)) => {
                self.v.unknown = self.v.unknown.saturating_add(1);
                if self.v.unknown < UNKNOWN_MAX {
                    self.retry(f);
                } else {
                    self.home(Exit::EndedEarly, &format!("minimum-healthy: who is in service is unknown: {f}"));
                }
            }
            Event::Called(group, result) => {
                // Whatever the answer was: a yes proves nothing, a no may be "not registered". A read tells.
                self.v.called = want::with_bit(self.v.called, *group);
                match result {
                    Ok(()) => self.answered(None),
                    Err(f) => self.retry(f),
                }
            }
            Event::Own(own, fault) => self.deregister_own(own, fault.as_ref()),
            _ => {}
        }
    }

    fn deregister_own(&mut self, own: &[Own], fault: Option<&Fault>) {
        let last = self.v.fault.clone();
        self.note_own(own, fault);
        if self.v.fault.is_none() {
            self.v.fault = last; // why a group still calls it healthy, for the page
        }
        for (g, _) in own.iter().enumerate().filter(|(_, o)| **o == Own::InService) {
            self.v.called = want::without_bit(self.v.called, g);
        }
        // Before the first call "unhealthy" is no answer to it.
        let asked = self.c.out_since.is_some();
        if !asked && fault.is_none() {
            self.v.next_at = None;
        }
        let out = |o: &Own| !matches!(o, Own::InService | Own::Unknown) && (asked || !o.registered());
        let one = self.c.plan.rules.is(Mutant::OneGroupIsEnough);
        if if one { own.iter().any(out) } else { own.iter().all(out) } {
            self.go(Stage::Drain);
            self.drain_own(own, None); // the same read is the first look of the drain
        }
    }

    pub(super) fn drain(&mut self, e: &Event) {
        match e {
            Event::Own(own, fault) => self.drain_own(own, fault.as_ref()),
            Event::Connections(Ok(n)) => {
                self.v.connections = Some(*n);
                self.v.quiet = match self.v.quiet.take() {
                    _ if *n > 0 => None,
                    None => Some(Dwell::start(self.now, self.c.plan.limits.quiet_ms)),
                    quiet => quiet,
                };
                let poll = self.c.plan.limits.poll_ms.min(DRAIN_CLOSE_MS);
                self.answered(Some(poll));
                if self.v.quiet.as_ref().is_some_and(|q| q.over(self.now)) {
                    self.leave_drain();
                }
            }
            Event::Connections(Err(f)) => {
                (self.v.quiet, self.v.connections) = (None, None);
                self.retry(f);
            }
            _ => {}
        }
    }

    fn drain_own(&mut self, own: &[Own], fault: Option<&Fault>) {
        self.note_own(own, fault);
        if self.registered_again() {
            self.fail(FailureClass::RegisteredAgain, "the target was registered again by another hand");
            return self.go(Stage::Check);
        }
        if self.all_gone() {
            (self.v.gone, self.v.next_at) = (true, None);
            if self.c.plan.limits.quiet_ms == 0 {
                self.leave_drain();
            }
        } else if fault.is_none() {
            // Poll near the group's own delay: it shows `draining` for the whole of it.
            let left = self.c.plan.delay_ms().saturating_sub(self.c.deadline.elapsed_ms(self.now));
            let wait = left.saturating_sub(DRAIN_CLOSE_MS).min(DRAIN_LOOK_MS);
            let close = self.c.plan.limits.poll_ms.min(DRAIN_CLOSE_MS);
            self.v.next_at = Some(self.now.plus(wait.max(close)));
        }
    }

    pub(super) fn all_gone(&self) -> bool {
        want::all_gone(&self.v.own, &self.v.no_row, self.c.plan.rules.is(Mutant::OneGroupIsEnough))
    }

    fn leave_drain(&mut self) {
        match &self.c.plan.kind {
            Kind::Hold(hold) => {
                let until = Deadline::start(self.now, hold.for_s.saturating_mul(1_000));
                self.go(Stage::Held { until });
            }
            Kind::Patch(_) => self.go(Stage::Patch),
            Kind::Return | Kind::Recovery => self.go(Stage::Check),
        }
    }

    pub(super) fn drain_deadline(&mut self) {
        match (self.v.gone, self.c.plan.limits.connections_left_fail) {
            (false, _) => {
                self.fail_late();
                self.go(Stage::Check);
            }
            (true, true) => {
                let n = self.v.connections.unwrap_or(0);
                self.fail(FailureClass::Connections, &format!("{n} connections left when the drain's time was over"));
                self.go(Stage::Check);
            }
            (true, false) => {
                self.c.cut = self.v.connections.filter(|n| *n > 0);
                self.leave_drain();
            }
        }
    }

    pub(super) fn patch(&mut self, e: &Event) {
        match e {
            Event::Acked { leavers } => {
                self.answered(None);
                // Only a look after the acknowledgement counts.
                (self.v.acked_at, self.v.leavers, self.v.gone) = (Some(self.now.clone()), leavers.clone(), false);
            }
            Event::Unanswered(f) => self.retry(f),
            Event::CasRefused(refusal) if self.job_not_started() => self.home_without_job(&refused(refusal).1),
            Event::CasRefused(refusal) => {
                self.fail(FailureClass::SlotLost, &refused(refusal).1);
                self.leave_patch();
            }
            Event::Own(own, fault) => self.still_gone(own, fault.as_ref()),
            Event::Started(Ok(())) => {
                (self.v.started, self.c.job_started) = (true, true);
                self.answered(Some(self.job_poll_ms()));
            }
            Event::Started(Err(f)) => {
                // It may have started: ask, and look again before the next try.
                (self.v.job_new, self.v.gone, self.v.start_failed) = (false, false, true);
                self.retry(f);
            }
            Event::Job(Ok(status)) => self.job(status),
            Event::Job(Err(f)) => self.retry(f),
            _ => {}
        }
    }

    /// Home from `patch` without a verdict: the job may run, or be about to.
    pub(super) fn leave_patch(&mut self) {
        self.c.kill_job |= self.c.stage == Stage::Patch;
        self.go(Stage::Check);
    }

    /// For certain: the runner said so in this stage, and nothing was asked of it since.
    pub(super) fn job_not_started(&self) -> bool {
        self.v.job_new && !self.v.started && !self.v.start_failed && !self.c.job_started
    }

    /// Ended before the job: no failure. It is called off all the same, so that a crash here cannot start it later.
    pub(super) fn home_without_job(&mut self, why: &str) {
        self.c.kill_job = true;
        self.home(Exit::EndedEarly, why);
    }

    /// The look right before a job or a reboot.
    fn still_gone(&mut self, own: &[Own], fault: Option<&Fault>) {
        self.note_own(own, fault);
        if self.registered_again() {
            self.fail(FailureClass::RegisteredAgain, "the target was registered again by another hand");
            return self.leave_patch();
        }
        if self.all_gone() {
            (self.v.gone, self.v.next_at) = (true, None);
        }
    }

    fn job_poll_ms(&self) -> u64 {
        let ran = self.now.roughly_since(&self.c.entered).checked_div(4).unwrap_or(0);
        ran.clamp(JOB_POLL_MS.0, JOB_POLL_MS.1)
    }

    fn job(&mut self, status: &JobStatus) {
        if self.ended_by_its_restart(status) {
            let _ = self.d.restarts(self.now);
            self.d.reboots_ms.push(self.now.wall_ms);
            if let JobStatus::Ended(verdict) = status {
                self.c.verdict = Some(verdict.clone());
            }
            return self.go(Stage::Check);
        }
        match status {
            JobStatus::New if self.c.job_started => {
                let message = "the job was started, and the job runner knows nothing of it any more";
                self.fail(FailureClass::JobLost, message);
                self.leave_patch();
            }
            JobStatus::New => {
                (self.v.job_new, self.v.started) = (true, false);
                self.v.next_at = None;
            }
            JobStatus::Running => {
                (self.v.started, self.c.job_started) = (true, true);
                self.answered(Some(self.job_poll_ms()));
            }
            JobStatus::Lost => {
                self.fail(FailureClass::JobLost, "the job was started, does not run, and left no verdict");
                self.leave_patch();
            }
            JobStatus::Ended(verdict) => {
                self.c.verdict = Some(verdict.clone());
                if !verdict.good() {
                    self.fail(FailureClass::Job, &format!("the job failed: {}", verdict.said()));
                    return self.go(Stage::Check);
                }
                let policy = self.c.plan.job().map_or(RebootPolicy::Never, |job| job.reboot);
                let wanted = match policy {
                    RebootPolicy::Never => false,
                    RebootPolicy::WhenNeeded | RebootPolicy::Ssm => verdict.wants_reboot(),
                    RebootPolicy::Always => true,
                };
                let from = self.now.boot.clone();
                self.go(if wanted { Stage::Reboot { from, asked: 0 } } else { Stage::Check });
            }
        }
    }

    /// It has restarted the machine, as it said that it would: what runs then is ended by that, or leaves no word at all.
    fn ended_by_its_restart(&self, status: &JobStatus) -> bool {
        let declared = self.c.plan.job().is_some_and(|job| job.reboots);
        let restarted = self.c.entered.boot != self.now.boot;
        let by_that = match status {
            JobStatus::Lost => true,
            JobStatus::New => self.c.job_started,
            JobStatus::Ended(verdict) => matches!(verdict.result, JobResult::Signalled(SIGTERM | SIGKILL | SIGHUP)),
            JobStatus::Running => false,
        };
        declared && restarted && by_that
    }

    pub(super) fn reboot(&mut self, e: &Event) {
        let Stage::Reboot { from, asked } = self.c.stage.clone() else { return };
        match e {
            Event::Acked { .. } => {
                self.answered(None);
                (self.v.acked_at, self.v.gone) = (Some(self.now.clone()), false);
                // SSM restarts as soon as it is told, so it is told after the look that this agent takes before it asks.
                if asked == 0 && !self.c.by_ssm() {
                    self.ask_for_restart(from);
                }
            }
            Event::Unanswered(f) => self.retry(f),
            Event::CasRefused(refusal) => {
                self.fail(FailureClass::SlotLost, &refused(refusal).1);
                self.go(Stage::Check);
            }
            Event::Own(own, fault) => {
                self.still_gone(own, fault.as_ref());
                if asked == 0 && self.c.by_ssm() && self.v.gone {
                    self.ask_for_restart(from);
                }
            }
            Event::Started(Ok(())) => {
                self.v.started = true;
                self.answered(None);
            }
            Event::Started(Err(f)) => {
                self.v.gone = false;
                self.retry(f);
            }
            _ => {}
        }
    }

    /// On the disk before anybody restarts the machine, and counted.
    fn ask_for_restart(&mut self, from: BootId) {
        let restarts = self.d.restarts(self.now);
        if restarts >= usize::try_from(self.c.plan.limits.reboots_per_day).unwrap_or(usize::MAX) {
            let message = format!("a reboot is needed, and {restarts} were asked for in 24 hours already");
            self.fail(FailureClass::NotRebooted, &message);
            return self.go(Stage::Check);
        }
        if let (true, Some(job)) = (self.c.by_ssm(), self.c.plan.job()) {
            // Its caller ends now, and comes back after the restart.
            let (cycle, since_ms) = (self.c.plan.id.clone(), self.now.wall_ms);
            self.d.owed = Some(Owed { cycle, job: job.fingerprint(), since_ms, ended: None, taken_by: None });
        }
        self.d.reboots_ms.push(self.now.wall_ms);
        self.c.stage = Stage::Reboot { from, asked: 1 };
    }

    /// A process that starts in the boot that should have ended cannot tell whether the last one asked, nor whether the
    /// machine did restart and hides it: it asks, but not at every start for ever.
    pub(super) fn asked_before(&mut self, from: BootId, asked: u8) {
        if asked < REBOOT_ASKS_MAX && !self.c.by_ssm() {
            self.c.stage = Stage::Reboot { from, asked: asked.saturating_add(1) };
        } else {
            // Its deadline tells.
            self.v.started = true;
        }
    }

    /// The boot id is the old one: asked again once, then failed.
    pub(super) fn reboot_deadline(&mut self) {
        let Stage::Reboot { from, asked } = self.c.stage.clone() else { return };
        // Who was told once by its caller's exit code is not told again.
        if asked == 1 && !self.c.by_ssm() {
            self.go(Stage::Reboot { from, asked: 2 });
        } else {
            let why = match &self.v.fault {
                Some(f) => format!("the machine did not reboot: {f}"),
                None => "the machine did not reboot: the boot id is still the old one".to_owned(),
            };
            self.fail(FailureClass::NotRebooted, &why);
            self.go(Stage::Check);
        }
    }
}

/// A refusal of the record, for the caller.
pub fn refused(refusal: &Refusal) -> (Exit, String) {
    match refusal {
        Refusal::Latched(id, l) => {
            (Exit::Latched, format!("{id}: {} failed in {} (job {}): {}", l.node, l.stage, l.job, l.message))
        }
        Refusal::SlotHeld(_, s) => {
            (Exit::SlotHeld, format!("the slot is held by {} (cycle {}, job {})", s.node, s.cycle, s.job))
        }
        Refusal::Paused(p) => (Exit::Paused, format!("paused by {}: {}", p.by, p.reason)),
        Refusal::Held(h) => (Exit::Paused, format!("held by {}: {}", h.order.by, h.order.reason)),
        Refusal::Retired(p) => (Exit::Guard, format!("this instance was retired by {}: {}", p.by, p.reason)),
        Refusal::OtherCycle(c) => (Exit::SlotHeld, format!("this instance holds a slot for another cycle, {c}")),
        Refusal::SlotGone => (Exit::EndedEarly, "this cycle's slot is gone from the record".to_owned()),
        Refusal::OwnLatch(id) => (Exit::EndedEarly, format!("this cycle has a latch already, {id}")),
        Refusal::NoSuchLatch(id) => (Exit::Usage, format!("there is no open latch {id}")),
        Refusal::NotPaused => (Exit::Usage, "the fleet is not paused".to_owned()),
        Refusal::NotHeld => (Exit::Usage, "this instance is not held".to_owned()),
    }
}
