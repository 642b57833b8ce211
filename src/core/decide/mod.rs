//! The one transition function. Pure and total: what does not fit a stage changes nothing.
//!
//! `out.rs` is the road out (claim to reboot), `back.rs` the way back (check to release).

#![expect(clippy::wildcard_enum_match_arm, reason = "total by design: what does not fit a stage changes nothing")]

mod back;
mod out;

pub use out::refused;

use super::cycle::{Cycle, Durable, Early, Ended, Failure, FailureClass, Seen, Stage, StageName, advance, stage_ms};
use super::error::{Fault, Jitter, PageWhen};
use super::event::Event;
use super::exit::Exit;
use super::heal;
use super::job::RUN_PREFIX;
use super::page::{self, PageKind, Severity};
use super::plan::{Kind, Plan};
use super::rules::Mutant;
use super::time::{Deadline, Now};
use super::want;
use std::sync::Arc;

/// What an event leads to. Where `durable` differs from what is stored it is committed before anything else happens.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The next stored state.
    pub durable: Durable,
    /// What this process knows now.
    pub seen: Seen,
}

/// How long credentials may be refused on the way back before it pages.
const AUTH_PAGE_MS: u64 = 60_000;

/// Before an effect is repeated whose decision the disk refused, in ms.
const COMMIT_RETRY_MS: u64 = 1_000;

/// The whole policy.
pub fn decide(d: &Durable, v: &Seen, event: &Event, now: &Now, jitter: Jitter) -> Step {
    if let Event::PageAccepted(seq) = event {
        let mut durable = d.clone();
        durable.pages.retain(|p| p.seq != *seq);
        return Step { durable, seen: v.clone() };
    }
    if let Event::RecordSeen(seen) = event {
        let mut durable = d.clone();
        let highest = durable.record.as_ref().filter(|r| r.fleet == seen.fleet).map_or(0, |r| r.counter);
        if seen.counter > highest {
            durable.record = Some(seen.clone());
        }
        return Step { durable, seen: v.clone() };
    }
    if let Event::Healed = event {
        let mut durable = d.clone();
        durable.heals_ms = heal::of_today(&d.heals_ms, now);
        durable.heals_ms.push(now.wall_ms);
        return Step { durable, seen: v.clone() };
    }
    if let Event::Doubt(doubt) = event {
        return Step { durable: Durable { doubt: doubt.clone(), ..d.clone() }, seen: v.clone() };
    }
    match (&d.cycle, event) {
        (None, Event::StateLost(plan, why)) => state_lost(d, plan, why, now),
        (None, Event::Adopt(plan)) => adopt(d, plan, now),
        (None, Event::Start(plan)) => {
            let cycle = Some(Cycle::start(plan.clone(), now));
            // Whoever is put back is a member again.
            let retired = d.retired && plan.kind != Kind::Return;
            Step { durable: Durable { cycle, retired, ..d.clone() }, seen: Seen::default() }
        }
        (None, _) | (Some(_), Event::Start(_) | Event::StateLost(..) | Event::Adopt(_)) => {
            Step { durable: d.clone(), seen: v.clone() }
        }
        (Some(c), _) => {
            let mut t = Turn { d: d.clone(), c: c.clone(), v: v.clone(), now, jitter, idle: None };
            t.event(event);
            t.done()
        }
    }
}

/// What this node was doing is not known: latched and paged at once, its job killed, the node put back if it passes.
fn state_lost(d: &Durable, plan: &Arc<Plan>, why: &Arc<str>, now: &Now) -> Step {
    let failure =
        Failure { stage: StageName::Check, class: FailureClass::State, message: why.clone(), at: now.clone() };
    let cycle = Cycle { failure: Some(failure), kill_job: true, ..Cycle::start(plan.clone(), now) };
    let mut durable = Durable { cycle: Some(cycle), doubt: None, ..d.clone() };
    page::raise_failure(&mut durable, now);
    Step { durable, seen: Seen::default() }
}

/// A node that is out and has lost its state finds its hold in the record: it is held on, from now for the stated time.
fn adopt(d: &Durable, plan: &Arc<Plan>, now: &Now) -> Step {
    let Kind::Hold(hold) = &plan.kind else { return Step { durable: d.clone(), seen: Seen::default() } };
    let until = Deadline::start(now, hold.for_s.saturating_mul(1_000));
    let stage = Stage::Held { until: until.clone() };
    let cycle = Cycle { stage, deadline: until, out_since: Some(now.clone()), ..Cycle::start(plan.clone(), now) };
    Step { durable: Durable { cycle: Some(cycle), doubt: None, ..d.clone() }, seen: Seen::default() }
}

/// The commit of a decision, as every driver of the core does it: stored, or turned homeward, or not at all.
pub fn settle_commit(present: &Durable, v: &Seen, step: Step, stored: bool, now: &Now) -> Step {
    if stored {
        return Step { seen: Seen { disk_refused: false, ..step.seen }, ..step };
    }
    let durable = advance(present, step.durable.clone(), false, now);
    let seen = if durable == step.durable {
        step.seen
    } else if durable == *present {
        // The same effect again, but not in a busy loop.
        Seen { next_at: Some(now.plus(COMMIT_RETRY_MS)), disk_refused: true, ..v.clone() }
    } else {
        v.entering()
    };
    Step { durable, seen }
}

/// One event being worked on.
struct Turn<'a> {
    d: Durable,
    c: Cycle,
    v: Seen,
    now: &'a Now,
    jitter: Jitter,
    /// The cycle is over.
    idle: Option<Ended>,
}

impl Turn<'_> {
    fn done(mut self) -> Step {
        if let Some(ended) = self.idle {
            if let Some(owed) = self.d.owed.as_mut().filter(|owed| owed.cycle == ended.cycle) {
                owed.ended = Some(ended.clone());
            }
            (self.d.cycle, self.d.last) = (None, Some(ended));
            return Step { durable: self.d, seen: Seen::default() };
        }
        self.d.cycle = Some(self.c);
        Step { durable: self.d, seen: self.v }
    }

    fn event(&mut self, e: &Event) {
        match e {
            Event::Tick => return self.tick(),
            Event::Recovered => return self.recovered(),
            Event::StoodStill => {
                self.v.unread = true;
                return;
            }
            Event::Rejoin { by, reason, skip_check } => return self.rejoin(by, reason, *skip_check),
            Event::OwnLatch(message) => {
                // On the road out no record with its latch acknowledges anything.
                if self.c.stage.name().homeward() || self.c.stage == Stage::Release {
                    self.fail(FailureClass::SlotLost, message);
                }
                return;
            }
            _ => {}
        }
        let stage = self.c.stage.name();
        match e {
            Event::Own(own, fault) if own.len() != want::groups(&self.c) => {
                // "All of them" must not be true of a read that left a group out.
                let unknown = vec![super::target::Own::Unknown; want::groups(&self.c)];
                let left_out = || Fault::transport("the read does not tell of every target group");
                self.at_stage(&Event::Own(unknown, Some(fault.clone().unwrap_or_else(left_out))));
            }
            _ => self.at_stage(e),
        }
        if self.v.unread && self.c.stage.name() == stage && self.bad_news(e) {
            self.v.unread = false;
        }
    }

    /// The look that a late deadline waited for says that the stage is not done.
    fn bad_news(&self, e: &Event) -> bool {
        match (self.c.stage.name(), e) {
            (StageName::Drain, Event::Own(..)) => !self.v.gone,
            (StageName::Drain, Event::Connections(n)) => *n != Ok(0),
            (StageName::Check, Event::Checked(result)) => result.is_err(),
            (StageName::Register, Event::Called(_, result)) => result.is_err(),
            (StageName::Settle, Event::Own(..)) => self.v.bake.is_none(),
            (StageName::Patch, Event::Job(_)) | (StageName::Register, Event::Own(..)) => true,
            _ => false,
        }
    }

    fn at_stage(&mut self, e: &Event) {
        match self.c.stage.name() {
            StageName::Claim => self.claim(e),
            StageName::Deregister => self.deregister(e),
            StageName::Drain => self.drain(e),
            StageName::Patch => self.patch(e),
            StageName::Reboot => self.reboot(e),
            StageName::Held => self.held(e),
            StageName::Check | StageName::Register | StageName::Settle => self.homeward(e),
            StageName::Release => self.release(e),
        }
    }

    fn tick(&mut self) {
        self.v.next_at = self.v.next_at.take().filter(|at| self.now.since(at).is_none() && at.boot == self.now.boot);
        if self.c.stage == Stage::Check && self.c.deadline.other_boot(self.now) {
            // Counted from entering `check` in the present boot.
            self.c.deadline = Deadline::start(self.now, stage_ms(&self.c.plan, &self.c.stage));
        }
        if let Stage::Reboot { from, .. } = &self.c.stage
            && (*from != self.now.boot || self.c.plan.rules.is(Mutant::SameBootCounts))
        {
            return self.go(Stage::Check);
        }
        if let Stage::Held { until } = &self.c.stage {
            if until.expired(self.now) {
                self.go(Stage::Check);
            }
            return;
        }
        if self.c.stage == Stage::Check && self.c.skip_check.is_some() {
            return self.go(Stage::Register);
        }
        if self.c.deadline.due(self.now) && !want::looks_first(&self.c, &self.v) {
            self.deadline();
        }
    }

    fn recovered(&mut self) {
        let boot_changed = self.c.entered.boot != self.now.boot;
        match &self.c.stage {
            Stage::Claim { acked: false } => {
                self.end_claim(Exit::EndedEarly, "the agent was restarted while it claimed the slot");
            }
            Stage::Claim { .. } | Stage::Deregister | Stage::Drain if boot_changed && self.runs_a_command() => {
                let message =
                    "the machine was restarted before the job began, and the unit of its command went with that";
                self.home(Exit::EndedEarly, message);
            }
            Stage::Patch if boot_changed && !self.c.plan.job().is_some_and(|j| j.reboots) => {
                let message = "the machine was restarted while the job ran, and the job does not declare that";
                self.fail(FailureClass::BootChanged, message);
                self.leave_patch();
            }
            Stage::Reboot { from, asked } if *from == self.now.boot && *asked > 0 => {
                let (from, asked) = (from.clone(), *asked);
                self.asked_before(from, asked);
                self.tick();
            }
            _ => self.tick(),
        }
    }

    /// By a unit that root has defined for this run alone, below `/run`.
    fn runs_a_command(&self) -> bool {
        let unit = self.c.plan.job().and_then(|job| job.unit.as_deref());
        unit.is_some_and(|unit| unit.starts_with(RUN_PREFIX))
    }

    fn deadline(&mut self) {
        match &self.c.stage {
            Stage::Claim { .. } => self.end_claim(Exit::Unreachable, "the claim was not answered in time"),
            Stage::Deregister if self.c.out_since.is_none() => {
                let why = self.v.fault.as_ref().map_or_else(String::new, |f| format!(": {f}"));
                let message = format!("it could not be confirmed in time that this node may leave{why}");
                self.home(Exit::Unreachable, &message);
            }
            Stage::Deregister | Stage::Patch => {
                self.c.kill_job = self.c.stage == Stage::Patch;
                self.fail_late();
                self.go(Stage::Check);
            }
            Stage::Drain => self.drain_deadline(),
            Stage::Reboot { .. } => self.reboot_deadline(),
            Stage::Held { .. } => {}
            Stage::Check | Stage::Register | Stage::Settle => self.homeward_deadline(),
            Stage::Release => {
                self.c.deadline = self.c.deadline.clone().spent(self.now);
                let message = match &self.v.fault {
                    Some(f) => format!("the fleet record does not acknowledge that the slot is free: {f}"),
                    None => "the fleet record does not acknowledge that the slot is free".to_owned(),
                };
                self.page(PageKind::ReleaseStuck, Severity::Warning, message.into());
            }
        }
    }

    fn rejoin(&mut self, by: &str, reason: &str, skip_check: bool) {
        let why = format!("ended by {by}: {reason}");
        match self.c.stage.name() {
            StageName::Claim => self.end_claim(Exit::EndedEarly, &why),
            StageName::Deregister | StageName::Drain => self.home(Exit::EndedEarly, &why),
            StageName::Patch if self.job_not_started() => self.home_without_job(&why),
            StageName::Patch | StageName::Reboot => {
                self.c.kill_job = self.c.stage == Stage::Patch;
                self.fail(FailureClass::Cancelled, &why);
                self.go(Stage::Check);
            }
            StageName::Held => self.go(Stage::Check),
            StageName::Check | StageName::Register | StageName::Settle => {
                // Back as soon as it can: a hold that is not acknowledged yet is called off.
                (self.v.next_at, self.v.tries, self.c.hold) = (None, 0, None);
            }
            StageName::Release => {}
        }
        if skip_check && self.c.stage.name().homeward() {
            self.c.skip_check = Some(why.into());
        }
    }

    /// Enters a stage: what was learnt in the last one is forgotten.
    fn go(&mut self, stage: Stage) {
        let (from, to) = (self.c.stage.name(), stage.name());
        self.c.bounced |= from == StageName::Settle && to == StageName::Register;
        // Deregistered again and again while it settles: the time that was given goes on, and its end pages.
        let goes_on = self.c.bounced && from.homeward() && matches!(to, StageName::Register | StageName::Settle);
        if !goes_on {
            self.c.deadline = Deadline::start(self.now, stage_ms(&self.c.plan, &stage));
        }
        self.c.entered = self.now.clone();
        let rules = &self.c.plan.rules;
        let unread = rules.is(Mutant::FloorOncePerCycle) || rules.is(Mutant::FloorBeforeSlot);
        // A hold finds its node out already.
        if stage == Stage::Drain || (unread && stage == Stage::Deregister) {
            self.may_be_out();
        }
        self.c.stage = stage;
        self.v = self.v.entering();
    }

    /// From here on the node may be out: written down before the first call that leads there.
    fn may_be_out(&mut self) {
        self.c.out_since.get_or_insert_with(|| self.now.clone());
    }

    /// Home without a failure: an operator's or a late guard's word. A node that no call was made for has only its slot to
    /// give back: it is not registered again.
    fn home(&mut self, exit: Exit, message: &str) {
        self.c.early.get_or_insert(Early { exit, message: message.into() });
        self.go(if self.c.out_since.is_some() { Stage::Check } else { Stage::Release });
    }

    /// Records the first failure: latch and page follow from it. Never chooses a road.
    fn fail(&mut self, class: FailureClass, message: &str) {
        if self.c.failure.is_some() {
            return;
        }
        let stage = self.c.stage.name();
        self.c.failure = Some(Failure { stage, class, message: message.into(), at: self.now.clone() });
        self.v.tried = false;
        self.d.cycle = Some(self.c.clone());
        page::raise_failure(&mut self.d, self.now);
    }

    /// The stage's deadline has passed: its last fault is the reason, where there is one.
    fn fail_late(&mut self) {
        let budget_s = self.c.deadline.budget_ms().checked_div(1_000).unwrap_or(0);
        let stage = self.c.stage.name();
        if let Some(f) = self.v.fault.clone() {
            return self.fail(FailureClass::Call(f.class), &format!("{stage} took longer than {budget_s} s: {f}"));
        }
        let own = self.v.own.iter().map(|o| o.sentence()).collect::<Vec<_>>().join(", ");
        let last = if own.is_empty() { String::new() } else { format!("; last seen: {own}") };
        self.fail(FailureClass::Deadline, &format!("{stage} took longer than {budget_s} s{last}"));
    }

    fn page(&mut self, kind: PageKind, severity: Severity, message: Arc<str>) {
        self.d.cycle = Some(self.c.clone());
        let page = page::about_cycle(&self.d, kind, severity, message, self.now);
        page::raise(&mut self.d, page);
    }

    /// A call failed: pace by its class.
    fn retry(&mut self, fault: &Fault) {
        let wait = fault.class.schedule().wait_ms(self.v.tries, self.jitter, fault.retry_after_ms);
        self.v.tries = self.v.tries.saturating_add(1);
        self.v.next_at = Some(self.now.plus(wait));
        self.v.fault = Some(fault.clone());
    }

    /// A call was answered: back to the normal pace.
    fn answered(&mut self, next_ms: Option<u64>) {
        (self.v.tries, self.v.fault, self.v.auth_since) = (0, None, None);
        self.v.next_at = next_ms.map(|ms| self.now.plus(ms));
    }

    /// Keeps what a read of the own target said. True where at least one group gave an answer.
    fn note_own(&mut self, own: &[super::target::Own], fault: Option<&Fault>) {
        use super::target::Own;
        self.v.no_row.resize(own.len(), 0);
        for (n, o) in self.v.no_row.iter_mut().zip(own) {
            *n = if *o == Own::NoRow { n.saturating_add(1) } else { 0 };
        }
        self.v.own = own.to_vec();
        let poll = self.c.plan.limits.poll_ms;
        match fault {
            Some(f) => self.retry(f),
            None => self.answered(Some(poll)),
        }
    }

    /// Two reads in a row that show the target registered while it must be out.
    fn registered_again(&mut self) -> bool {
        let registered = self.v.own.iter().any(|o| o.registered());
        self.v.again = if registered { self.v.again.saturating_add(1) } else { 0 };
        self.v.again >= 2
    }

    /// What a fault on the way back means beside the retry: some classes page before the deadline.
    fn page_early(&mut self, fault: &Fault, what: &str) {
        let due = match fault.class.page() {
            PageWhen::Now => true,
            PageWhen::Early => {
                let since = self.v.auth_since.get_or_insert_with(|| self.now.clone()).clone();
                self.now.since(&since).is_none_or(|ms| ms >= AUTH_PAGE_MS)
            }
            PageWhen::AtDeadline => false,
        };
        if due && !self.c.refused_paged {
            self.c.refused_paged = true;
            self.page(PageKind::OutOfService, Severity::Critical, format!("{what}: {fault}").into());
        }
    }

    fn ended(&self) -> Ended {
        let (exit, message): (Exit, Arc<str>) = match (&self.c.failure, &self.c.early) {
            (Some(f), _) => {
                let exit = match f.class {
                    FailureClass::NotRebooted => Exit::NotRebooted,
                    FailureClass::State => Exit::StateUnreadable,
                    FailureClass::Cancelled => Exit::EndedEarly,
                    FailureClass::Call(_)
                    | FailureClass::Deadline
                    | FailureClass::Job
                    | FailureClass::JobLost
                    | FailureClass::BootChanged
                    | FailureClass::RegisteredAgain
                    | FailureClass::Connections
                    | FailureClass::Disk
                    | FailureClass::SlotLost => Exit::FailedBack,
                };
                (exit, format!("failed in {} ({}): {}", f.stage, f.class.label(), f.message).into())
            }
            (None, Some(early)) => (early.exit, early.message.clone()),
            (None, None) => (Exit::Done, "done, back in service".into()),
        };
        // A hold that took the place of a cycle ends with that cycle's verdict.
        let replaced = self.d.last.as_ref().filter(|last| last.cycle == self.c.plan.id);
        let (exit, message) = match replaced {
            Some(last) if last.exit == Exit::FailedOut && exit == Exit::Done => (Exit::FailedBack, &last.message),
            Some(last) if exit == Exit::Done => (last.exit, &last.message),
            _ => (exit, &message),
        };
        let (job, verdict, latch) = match replaced {
            Some(last) => (last.job.clone(), last.verdict.clone(), last.latch.clone()),
            None => (self.c.plan.job_name(), self.c.verdict.clone(), self.c.latch().map(|_| self.c.plan.id.latch())),
        };
        let message = message.clone();
        Ended {
            cycle: self.c.plan.id.clone(),
            request: self.c.plan.request.clone(),
            job,
            exit,
            message,
            latch,
            verdict,
            at: self.now.clone(),
            out_ms: self.c.out_since.as_ref().map_or(0, |since| self.now.roughly_since(since)),
        }
    }
}

#[cfg(test)]
mod tests;
