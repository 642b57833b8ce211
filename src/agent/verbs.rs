//! What people ask of the loop: begin a cycle, put this node back, keep it out.

use super::executor::execute;
use super::facts::{self, Asked};
use super::shared::{Parts, World, nonce};
use super::supervisor::caught;
use super::turn::Agent;
use crate::clock::Clock;
use crate::control::protocol::RunReply;
use crate::core::cycle::{Doubt, Durable, Stage, StageName};
use crate::core::decide::Step;
use crate::core::effect::Want;
use crate::core::error::{Class, Fault};
use crate::core::event::Event;
use crate::core::exit::Exit;
use crate::core::guard::{self, Verdict, Verdicts};
use crate::core::ids::CycleId;
use crate::core::job::{Owed, RebootPolicy};
use crate::core::page::{PageKind, Severity};
use crate::core::plan::{Kind, Plan};
use crate::core::record::{Hold, Op, Record};
use crate::core::target::Own;
use crate::core::want::want;
use crate::fleet::Outcome;
use crate::ports::{Host as _, Jobs as _};
use serde_json::json;
use std::sync::Arc;

/// Steps that a hold on the way back may take before its caller is told that it did not come about.
const HOLD_TRIES: u32 = 20;

impl<W: World> Agent<W> {
    pub(super) async fn begin(&mut self, kind: Kind, asked: Asked) -> RunReply {
        let parts = self.shared.parts();
        self.prove_first(&parts).await;
        if let Some(reply) = self.over_already(&parts, &kind, &asked).await {
            return reply;
        }
        if let Some(reply) = self.under_way(&parts, &kind, &asked) {
            return reply;
        }
        if asked.only_owed {
            return nothing_owed();
        }
        if let Some(Doubt::Lost { why, .. }) = &self.journal.now().doubt {
            return refused(Exit::StateUnreadable, why.to_string(), None, Some("backstop explain".to_owned()));
        }
        let leaves = matches!(kind, Kind::Patch(_) | Kind::Hold(_));
        if leaves && self.journal.now().doubt.is_some() {
            let message = "this node has no state, and the fleet record has not told yet what it knows of it";
            return refused(Exit::Unreachable, message.to_owned(), None, Some("backstop status".to_owned()));
        }
        if leaves && self.journal.committed().is_none() && self.journal.retry().await.is_err() {
            return refused(Exit::Guard, "state-durable: the state directory cannot be written".to_owned(), None, None);
        }
        let (verdicts, record) = self.guards(&parts, &kind, &asked.overrides).await;
        let patch = matches!(kind, Kind::Patch(_));
        self.shared.metrics.judged(&verdicts);
        if let Some(v) = verdicts.first_refusal() {
            self.note_refusal(&asked.by, v, patch);
            let next = next_for(v.exit, &parts, record.as_ref());
            let message = format!("{}: {}", v.guard, v.sentence);
            return refused(v.exit, message, Some(verdicts.clone()), next);
        }
        if let Some(reply) = self.job_ready(&parts, &kind).await {
            return reply;
        }
        let plan = match self.plan(&parts, kind, asked).await {
            Ok(plan) => Arc::new(plan),
            Err(f) => return refused(Exit::Unreachable, f.to_string(), Some(verdicts), None),
        };
        if let (true, Err(why)) = (leaves, self.journal.has_room_for(&plan, &self.shared.clock.now())) {
            return refused(Exit::Usage, why, Some(verdicts), None);
        }
        let id = plan.id.to_string();
        self.event(&Event::Start(plan)).await;
        if self.journal.now().cycle.is_none() {
            return refused(Exit::Guard, "state-durable: the state directory cannot be written".to_owned(), None, None);
        }
        self.shared.cache().refused_since_ms.take_if(|_| patch);
        let (node, fleet) = (parts.config.node.name.to_string(), parts.config.fleet.to_string());
        RunReply::Started { cycle: id, node, fleet }
    }

    /// What is said of a request while there is a cycle.
    fn under_way(&self, parts: &Parts<W>, kind: &Kind, asked: &Asked) -> Option<RunReply> {
        let c = self.journal.now().cycle.as_ref()?;
        let same = matches!((&c.plan.kind, kind), (Kind::Patch(a), Kind::Patch(b)) if a.same_as(b));
        let again = !asked.request.is_empty() && c.plan.request == asked.request;
        if again || same {
            let unit = c.plan.job().and_then(|job| job.unit.as_deref()).map(str::to_owned);
            return Some(attached(parts, &c.plan.id, unit));
        }
        if asked.only_owed {
            return Some(nothing_owed());
        }
        if let (Some(f), true) = (&c.failure, c.plan.latches()) {
            // Told before any other refusal.
            let latch = c.plan.id.latch();
            let message =
                format!("{latch}: {} failed in {} (job {}): {}", c.plan.node, f.stage, c.plan.job_name(), f.message);
            return Some(refused(Exit::Latched, message, None, Some(format!("backstop explain {}", c.plan.node))));
        }
        let message = format!("busy with cycle {} (job {}, stage {})", c.plan.id, c.plan.job_name(), c.stage.name());
        Some(refused(Exit::Busy, message, None, Some("backstop wait".to_owned())))
    }

    /// The cycle that was asked for is over, and this is about its verdict.
    async fn over_already(&mut self, parts: &Parts<W>, kind: &Kind, asked: &Asked) -> Option<RunReply> {
        let durable = self.journal.now();
        // The answer was lost.
        if let Some(last) = &durable.last
            && !asked.request.is_empty()
            && last.request == asked.request
        {
            return Some(attached(parts, &last.cycle, None));
        }
        let Kind::Patch(job) = kind else { return None };
        let owed = durable.owed.as_ref()?;
        let id = owed.ended.as_ref()?.cycle.clone();
        if !owed.counts(job, &asked.request, &self.shared.clock.now()) {
            return None;
        }
        self.hand_over(asked).await;
        Some(attached(parts, &id, None))
    }

    /// Its verdict is this request's from now on: told again where the answer gets lost, and owed to no other one.
    async fn hand_over(&mut self, asked: &Asked) {
        let now = self.shared.clock.now();
        let durable = self.journal.now().clone();
        let taken_by = Some(asked.request.clone()).filter(|request| !request.is_empty());
        let owed = durable.owed.clone().zip(taken_by).map(|(owed, by)| Owed { taken_by: Some(by), ..owed });
        let step = Step { durable: Durable { owed, ..durable }, seen: self.seen.clone() };
        self.commit(step, &now).await;
    }

    /// Could its job be started, and is it allowed to? Asked before the node leaves for it.
    async fn job_ready(&self, parts: &Parts<W>, kind: &Kind) -> Option<RunReply> {
        let Kind::Patch(job) = kind else { return None };
        let restarts = self.journal.now().clone().restarts(&self.shared.clock.now());
        let cap = parts.config.limits.reboots_per_day;
        if job.reboots && restarts >= usize::try_from(cap).unwrap_or(usize::MAX) {
            let message = format!(
                "this job restarts the machine, and {restarts} restarts were in 24 hours already (limits.reboots_per_day)"
            );
            return Some(refused(Exit::Rate, message, None, None));
        }
        let mut ready = parts.jobs.ready(job).await;
        if ready.is_ok() && matches!(job.reboot, RebootPolicy::WhenNeeded | RebootPolicy::Always) {
            ready = parts.host.may_reboot().await;
        }
        let fault = ready.err()?;
        let exit = match fault.class {
            Class::Refused => Exit::Usage,
            Class::NotReady => Exit::Busy,
            Class::Transport | Class::Throttled | Class::Auth | Class::OutcomeUnknown => Exit::Unreachable,
        };
        Some(refused(exit, fault.message, None, None))
    }

    /// A guard has refused: on the record, and since when that is so with every patch.
    fn note_refusal(&self, by: &str, v: &Verdict, patch: bool) {
        let wall_ms = self.shared.clock.now().wall_ms;
        if patch {
            self.shared.cache().refused_since_ms.get_or_insert(wall_ms);
        }
        self.shared.audit.record(&json!({
            "at": crate::alerts::text::rfc3339(wall_ms),
            "event": "refused", "by": by, "guard": v.guard, "message": v.sentence,
        }));
    }

    /// The verdicts, and the record that they were read from.
    async fn guards(
        &mut self,
        parts: &Arc<Parts<W>>,
        kind: &Kind,
        overrides: &[(Arc<str>, Arc<str>)],
    ) -> (Verdicts, Option<Record>) {
        if matches!(kind, Kind::Return | Kind::Recovery) {
            return (Verdicts(Vec::new()), None); // nothing stands in the way of coming back
        }
        let facts = match caught(facts::gather(&self.shared, parts, None)).await {
            Ok(facts) => facts,
            Err(why) => {
                self.panicked("looking at the guards", &why).await;
                facts::unknown(&self.shared, &why)
            }
        };
        let verdicts = guard::evaluate(&facts, &parts.rules(), overrides);
        let verdicts = if matches!(kind, Kind::Hold(_)) { verdicts.for_hold() } else { verdicts };
        (verdicts, facts.record.ok())
    }

    /// A plan, or why there is none: a panic on the way to it is a fault like any other.
    pub(super) async fn plan(&mut self, parts: &Arc<Parts<W>>, kind: Kind, asked: Asked) -> Result<Plan, Fault> {
        match caught(facts::plan(&self.shared, parts, kind, asked)).await {
            Ok(planned) => planned,
            Err(why) => {
                self.panicked("planning a cycle", &why).await;
                Err(Fault::transport(format!("planning a cycle: {why}")))
            }
        }
    }

    /// A step of the loop that ended in a panic is logged each time, and paged about once.
    pub(super) async fn panicked(&mut self, step: &'static str, why: &str) {
        tracing::error!(step, why, "a step of the agent's loop came to nothing");
        self.shared.metrics.panicked(step);
        if self.panicked.insert(step) {
            let message = format!("a step of the agent came to nothing ({step}: {why}); it goes on without");
            self.raise(PageKind::AgentFault, Severity::Warning, message.into()).await;
        }
    }

    pub(super) async fn rejoin(
        &mut self,
        by: Arc<str>,
        reason: Arc<str>,
        skip_check: bool,
    ) -> Result<String, (Exit, String)> {
        if let Some(c) = &self.journal.now().cycle {
            let (id, stage) = (c.plan.id.clone(), c.stage.name());
            if stage == StageName::Release {
                return Ok(format!("cycle {id} is over but for its slot; the node is back"));
            }
            self.event(&Event::Rejoin { by, reason, skip_check }).await;
            return Ok(format!("cycle {id} (was in {stage}) is on its way back"));
        }
        let parts = self.shared.parts();
        if parts.config.mode == crate::config::Mode::Observe {
            let message = "mode = \"observe\": this agent never registers anything; use the aws command of the README";
            return Err((Exit::Paused, message.to_owned()));
        }
        let back = self.member_again(&parts).await;
        let seen = self.shared.observed.borrow().clone();
        let fresh = !seen.faults.contains_key("load balancer");
        let own = seen.own.clone();
        if fresh && !own.is_empty() && own.iter().all(|o| *o == Own::InService) {
            return Ok(format!("this node is in service; nothing to do{back}"));
        }
        match self.begin(Kind::Return, Asked { by: by.clone(), ..Asked::default() }).await {
            RunReply::Started { cycle, .. } | RunReply::Attached { cycle, .. } => {
                if skip_check {
                    self.event(&Event::Rejoin { by, reason, skip_check }).await;
                }
                Ok(format!("on its way back, cycle {cycle}{back}"))
            }
            RunReply::Refused { message, exit, .. } => Err((Exit::from_code(exit).unwrap_or(Exit::Guard), message)),
        }
    }

    /// A node that was retired and is put back takes part again. Coming back does not wait for the record. What is to be
    /// added to the answer.
    async fn member_again(&mut self, parts: &Parts<W>) -> &'static str {
        let me = self.shared.instance();
        let retired = |record: &Record| record.retired.contains_key(&me);
        let seen = self.shared.observed.borrow().record.as_ref().is_some_and(|(record, _)| retired(record));
        if !seen && !self.journal.now().retired {
            return "";
        }
        match parts.fleet.change(&Op::Unretire { instance: me }, &parts.rules(), nonce).await {
            Outcome::Acked(record) => {
                self.shared.saw_record(*record);
                "; it is no longer retired"
            }
            Outcome::Refused(_) | Outcome::Unanswered(_) => {
                "; the record still says that it is retired: once its store answers, backstop rejoin again"
            }
        }
    }

    pub(super) async fn hold(&mut self, hold: Hold) -> Result<String, (Exit, String)> {
        let Some(c) = &self.journal.now().cycle else {
            let by = hold.order.by.clone();
            return match self.begin(Kind::Hold(hold), Asked { by, ..Asked::default() }).await {
                RunReply::Started { cycle, .. } | RunReply::Attached { cycle, .. } => {
                    Ok(format!("leaving for the hold, cycle {cycle}; follow it with: backstop wait"))
                }
                RunReply::Refused { message, exit, .. } => Err((Exit::from_code(exit).unwrap_or(Exit::Guard), message)),
            };
        };
        let stage = c.stage.name();
        if !matches!(stage, StageName::Check | StageName::Register) {
            let message = format!("cycle {} is in {stage}: backstop rejoin first, or wait until it is over", c.plan.id);
            return Err((Exit::Busy, message));
        }
        self.event(&Event::Hold(hold)).await;
        if !self.hold_pending() {
            return Err((Exit::Busy, "the node is on its way into service: hold it once it is there".to_owned()));
        }
        // The read and the write that turn it into a hold are the next things that the state wants.
        for _ in 0..HOLD_TRIES {
            let now = self.shared.clock.now();
            match want(self.journal.now(), &self.seen, &now) {
                Want::Do(effect) if self.hold_pending() => {
                    let Some(ready) = self.journal.ready(effect) else { break };
                    let durable = self.journal.now().clone();
                    let event = execute(&self.shared, ready, &durable).await;
                    self.event(&event).await;
                }
                Want::Wait(at) if self.hold_pending() => {
                    self.shared.clock.sleep_until(&at).await;
                    self.event(&Event::Tick).await;
                }
                Want::Do(_) | Want::Wait(_) | Want::Idle => break,
            }
        }
        if matches!(self.journal.now().cycle.as_ref().map(|c| &c.stage), Some(Stage::Held { .. })) {
            Ok("held".to_owned())
        } else {
            let why =
                "the hold did not come about (the record did not acknowledge it, or the node is registered already)";
            Err((Exit::Unreachable, format!("{why}; the node goes on home")))
        }
    }

    fn hold_pending(&self) -> bool {
        self.journal.now().cycle.as_ref().is_some_and(|c| c.hold.is_some())
    }
}

/// `unit`: of the job that is under way.
fn attached<W: World>(parts: &Parts<W>, cycle: &CycleId, unit: Option<String>) -> RunReply {
    let (node, fleet) = (parts.config.node.name.to_string(), parts.config.fleet.to_string());
    RunReply::Attached { cycle: cycle.to_string(), node, fleet, unit }
}

fn nothing_owed() -> RunReply {
    refused(Exit::Done, "no verdict is owed for this job".to_owned(), None, None)
}

fn refused(exit: Exit, message: String, verdicts: Option<Verdicts>, next: Option<String>) -> RunReply {
    RunReply::Refused { exit: exit.code(), message, verdicts, next }
}

/// The exact next command for a refusal; `record` is the one that refused.
pub fn next_for<W: World>(exit: Exit, parts: &Parts<W>, record: Option<&Record>) -> Option<String> {
    let node = &parts.config.node.name;
    let open = || record.and_then(|r| r.open_latches().next());
    match exit {
        Exit::Paused if parts.problem.is_some() => Some("backstop config check".to_owned()),
        Exit::Latched => Some(match open() {
            Some((id, l)) => format!("backstop explain {}; then backstop latch clear {id} --reason \"...\"", l.node),
            None => "backstop latch list".to_owned(),
        }),
        Exit::SlotHeld | Exit::PeersNotSettled | Exit::BelowMinimum => Some("backstop status".to_owned()),
        Exit::Paused => Some("backstop unpause --reason \"...\"   (or: backstop rejoin)".to_owned()),
        Exit::Done => None,
        Exit::Internal
        | Exit::Usage
        | Exit::Unreachable
        | Exit::Rate
        | Exit::NoAgent
        | Exit::Guard
        | Exit::Busy
        | Exit::FailedBack
        | Exit::FailedOut
        | Exit::NotRebooted
        | Exit::EndedEarly
        | Exit::StateUnreadable
        | Exit::ContactLost
        | Exit::RestartBySsm => Some(format!("backstop explain {node}")),
    }
}
