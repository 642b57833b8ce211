//! The way back: check, register, settle, release. The one road that every cycle takes, failed or not. Nothing here ends
//! it but success: a fault sets the pace, a deadline pages and goes on.

#![expect(clippy::wildcard_enum_match_arm, reason = "total by design: what does not fit a stage changes nothing")]

use super::super::cycle::{Cycle, Ended, Stage, StageName, stage_ms};
use super::super::error::{Class, Fault};
use super::super::event::Event;
use super::super::exit::Exit;
use super::super::page::{PageKind, Severity};
use super::super::plan::{Kind, Plan};
use super::super::rules::Mutant;
use super::super::settings::CheckPass;
use super::super::target::Own;
use super::super::time::{Deadline, Dwell};
use super::super::want;
use super::Turn;
use std::sync::Arc;

/// Between two looks at a target that is not healthy yet, in ms, at least.
const SETTLE_POLL_MS: u64 = 250;

impl Turn<'_> {
    pub(super) fn homeward(&mut self, e: &Event) {
        match e {
            Event::Acked { .. } => return self.homeward_acked(),
            Event::Unanswered(_) | Event::CasRefused(_) => {
                // It may have landed. The way back never waits for the store.
                if self.latch_is_due() {
                    self.v.tried = true;
                } else {
                    self.c.hold = None;
                }
                return;
            }
            Event::Hold(hold) => {
                if self.may_hold() {
                    self.c.hold = Some(hold.clone());
                    self.v.own.clear();
                }
                return;
            }
            Event::Own(own, fault) if self.c.hold.is_some() => return self.hold_read(own, fault.as_ref()),
            Event::Killed(result) => {
                self.v.killed = true;
                match result {
                    Ok(()) => self.c.kill_job = false,
                    Err(_) if self.c.kill_paged => {}
                    Err(f) => {
                        self.c.kill_paged = true;
                        let message = format!("the job could not be killed; the node goes back all the same: {f}");
                        self.page(PageKind::AgentFault, Severity::Warning, message.into());
                    }
                }
                return;
            }
            _ => {}
        }
        match self.c.stage.name() {
            StageName::Check => self.check(e),
            StageName::Register => self.register(e),
            _ => self.settle(e),
        }
    }

    /// A node that is on its way into service is held once it is there, through the road out.
    fn may_hold(&self) -> bool {
        match self.c.stage.name() {
            StageName::Check => true,
            StageName::Register => self.v.called == 0,
            _ => false,
        }
    }

    /// The look before a hold: one that is registered somewhere, or of which that is not known, is not held here.
    fn hold_read(&mut self, own: &[Own], fault: Option<&Fault>) {
        self.note_own(own, fault);
        self.v.next_at = None;
        if own.iter().any(|o| o.registered() || *o == Own::Unknown) {
            self.c.hold = None;
            self.v.own.clear();
        }
    }

    /// The write under way, if any, is the latch: it goes before a hold.
    fn latch_is_due(&self) -> bool {
        self.c.latch().is_some() && !self.v.latched && !self.v.tried && !self.c.plan.rules.is(Mutant::LatchAfterWayBack)
    }

    fn homeward_acked(&mut self) {
        if self.latch_is_due() {
            (self.v.tried, self.v.latched) = (true, true);
            return;
        }
        let Some(hold) = self.c.hold.take() else { return };
        // The entry is in the record: this cycle is over, the hold begins.
        let instead = format!("held by {} while it was out: {}", hold.order.by, hold.order.reason);
        let ended = self.ended();
        // A failure stays one: whoever waits for the job's verdict gets it now, and not that of the hold.
        self.d.last = Some(match self.c.failure {
            Some(_) => {
                Ended { exit: Exit::FailedOut, message: format!("{}; {instead}", ended.message).into(), ..ended }
            }
            None => Ended { exit: Exit::EndedEarly, message: instead.into(), ..ended },
        });
        let plan = Plan { kind: Kind::Hold(hold.clone()), ..(*self.c.plan).clone() };
        let out_since = self.c.out_since.clone().or_else(|| Some(self.now.clone()));
        let (kill_job, kill_paged) = (self.c.kill_job, self.c.kill_paged);
        self.c = Cycle { out_since, kill_job, kill_paged, ..Cycle::start(Arc::new(plan), self.now) };
        self.go(Stage::Held { until: Deadline::start(self.now, hold.for_s.saturating_mul(1_000)) });
        (self.v.latched, self.v.doubt) = (false, false);
    }

    fn check(&mut self, e: &Event) {
        let Event::Checked(result) = e else { return };
        match result {
            Ok(pass) => self.passed(pass),
            Err(f) => {
                (self.v.passes, self.v.first_pass) = (0, None);
                // The latch is tried again after every failed check, and so is the job that would not die.
                (self.v.tried, self.v.killed) = (false, false);
                self.retry(f);
                self.no_later_than(self.c.plan.check.every_ms, f);
                self.page_early(f, "the node check");
            }
        }
    }

    /// A node that is merely not there yet is asked again as often as the config says.
    fn no_later_than(&mut self, every_ms: u64, fault: &Fault) {
        let soon = matches!(fault.class, Class::Transport | Class::NotReady | Class::OutcomeUnknown);
        if soon && fault.retry_after_ms.is_none() {
            let at = self.now.plus(every_ms);
            self.v.next_at = self.v.next_at.take().map(|n| if n.since_boot_ms > at.since_boot_ms { at } else { n });
        }
    }

    fn passed(&mut self, _: &CheckPass) {
        self.v.passes = self.v.passes.saturating_add(1);
        let first = self.v.first_pass.get_or_insert_with(|| self.now.clone()).clone();
        let check = &self.c.plan.check;
        let (need, over) = (check.passes.max(1), check.over_ms);
        if self.v.passes >= need && self.now.since(&first).is_some_and(|ms| ms >= over) {
            return self.go(Stage::Register);
        }
        let apart = over.checked_div(u64::from(need.saturating_sub(1).max(1))).unwrap_or(0);
        self.answered(Some(apart));
    }

    fn register(&mut self, e: &Event) {
        match e {
            Event::Own(own, fault) => {
                let (asked, tries, auth) = (self.v.fault.clone(), self.v.tries, self.v.auth_since.clone());
                self.note_own(own, fault.as_ref());
                let accepted = self.v.accepted;
                let home = |g: usize, o: &Own| o.registered() && want::bit(accepted, g);
                let mut each = own.iter().enumerate().map(|(g, o)| home(g, o));
                let one = self.c.plan.rules.is(Mutant::OneGroupIsHome);
                if if one { each.any(|h| h) } else { each.all(|h| h) } {
                    self.go(Stage::Settle);
                    return self.settle(e); // the same read is the first look of it
                }
                if self.v.fault.is_none() {
                    // Why a group does not list it, for page and pace.
                    (self.v.fault, self.v.tries, self.v.auth_since) = (asked, tries, auth);
                }
                // Unknown or not: open towards service. What was not accepted is called again: a read that shows it
                // registered may lag.
                let missing = own.iter().enumerate().filter(|(g, o)| !home(*g, o));
                self.v.called = missing.fold(self.v.called, |bits, (g, _)| want::without_bit(bits, g));
            }
            Event::Called(group, result) => {
                self.v.called = want::with_bit(self.v.called, *group);
                match result {
                    Ok(()) if self.c.plan.rules.is(Mutant::ReleaseBeforeSettle) => self.go(Stage::Release),
                    Ok(()) => {
                        self.v.accepted = want::with_bit(self.v.accepted, *group);
                        self.answered(None);
                    }
                    Err(f) => {
                        self.retry(f);
                        let name = self.c.plan.targets.get(*group).map(|t| t.target.to_string());
                        self.page_early(f, &format!("RegisterTargets of {}", name.unwrap_or_default()));
                    }
                }
            }
            _ => {}
        }
    }

    fn settle(&mut self, e: &Event) {
        let Event::Own(own, fault) = e else { return };
        self.note_own(own, fault.as_ref());
        let lost = |o: &Own| matches!(o, Own::Draining | Own::Gone | Own::NoRow);
        if own.iter().any(lost) && !self.c.plan.rules.is(Mutant::SettleOnlyWaits) {
            return self.go(Stage::Register);
        }
        let unknown_is_good = self.c.plan.rules.is(Mutant::UnknownIsHealthy);
        let good = |o: &Own| *o == Own::InService || (unknown_is_good && *o == Own::Unknown);
        let one = self.c.plan.rules.is(Mutant::OneGroupIsHome);
        if if one { own.iter().any(good) } else { own.iter().all(good) } {
            let bake_ms = self.c.plan.limits.bake_ms;
            let bake = self.v.bake.get_or_insert_with(|| Dwell::start(self.now, bake_ms)).clone();
            if bake.over(self.now) {
                return self.go(Stage::Release);
            }
            let poll = self.c.plan.limits.poll_ms.max(bake_ms.checked_div(3).unwrap_or(0));
            let over_at = bake.over_at(self.now);
            let at = self.now.plus(poll);
            self.v.next_at = Some(if at.since_boot_ms < over_at.since_boot_ms { at } else { over_at });
        } else {
            (self.v.bake, self.v.disk_refused) = (None, false);
            if fault.is_none() {
                // Looked at often at first, and then the later the seldomer.
                let waited = self.now.roughly_since(&self.c.entered).checked_div(10).unwrap_or(0);
                let poll = self.c.plan.limits.poll_ms;
                self.v.next_at = Some(self.now.plus(waited.clamp(SETTLE_POLL_MS.min(poll), poll)));
            }
            self.needs_a_person(own);
        }
    }

    /// Some reasons do not heal by waiting. Said at once; the waiting goes on.
    fn needs_a_person(&mut self, own: &[Own]) {
        let stuck = own.iter().enumerate().find_map(|(g, o)| match o {
            Own::NotYet(state, Some(reason)) if reason.needs_a_person() => Some((g, *state, *reason)),
            _ => None,
        });
        let Some((group, state, reason)) = stuck else { return };
        if self.c.refused_paged {
            return;
        }
        self.c.refused_paged = true;
        let name = self.c.plan.targets.get(group).map(|t| t.target.to_string()).unwrap_or_default();
        let message =
            format!("{name} is registered but {} ({}): waiting does not heal that", state.label(), reason.label());
        self.page(PageKind::OutOfService, Severity::Critical, message.into());
    }

    /// It is in service, and baked; only the disk keeps the slot from being given back. No failure: the node is not out.
    fn slot_waits_for_disk(&mut self) {
        self.c.deadline = Deadline::start(self.now, stage_ms(&self.c.plan, &self.c.stage));
        if !self.c.disk_paged {
            self.c.disk_paged = true;
            let message = "the node is back in service, but the state directory cannot be written: its slot is not given \
                           back, and no other node can be patched";
            self.page(PageKind::ReleaseStuck, Severity::Warning, message.into());
        }
    }

    pub(super) fn homeward_deadline(&mut self) {
        if self.c.stage == Stage::Settle && self.v.disk_refused {
            return self.slot_waits_for_disk();
        }
        let first = self.c.late.is_none();
        let stage = self.c.stage.name();
        self.c.late.get_or_insert(stage);
        if self.c.failure.is_none() {
            self.fail_late();
        } else if first {
            let why = match &self.v.fault {
                Some(f) => format!("still OUT: {stage} takes longer than its deadline: {f}"),
                None => format!("still OUT: {stage} takes longer than its deadline"),
            };
            let kind = if self.c.plan.latches() { PageKind::Latched } else { PageKind::OutOfService };
            self.page(kind, Severity::Critical, why.into());
        }
        self.c.deadline = self.c.deadline.clone().spent(self.now);
    }

    /// The slot that the hold took the place of is given back; until then it stays, as a leaver's does.
    pub(super) fn held(&mut self, e: &Event) {
        match e {
            Event::Acked { .. } if self.v.acked_at.is_some() && want::leaves_for_good(&self.c) => {
                self.d.retired = true;
                self.idle = Some(Ended { message: "out, and retired".into(), ..self.ended() });
            }
            Event::Acked { .. } => {
                self.answered(None);
                self.v.acked_at = Some(self.now.clone());
            }
            Event::Unanswered(f) => self.retry(f),
            Event::CasRefused(_) => self.retry(&Fault::transport("the fleet record refused to free the slot")),
            _ => {}
        }
    }

    pub(super) fn release(&mut self, e: &Event) {
        match e {
            Event::Acked { .. } => self.idle = Some(self.ended()),
            Event::Unanswered(f) => self.retry(f),
            // The record never refuses to free: whatever it says, nothing of this cycle is left in it.
            Event::CasRefused(_) => self.retry(&Fault::transport("the fleet record refused to free the slot")),
            _ => {}
        }
    }
}
