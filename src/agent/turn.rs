//! The loop: what does the core want? do it, tell the core, commit, again. People's requests are events like any other.

use super::executor::execute;
use super::facts::{self, Asked};
use super::progress::Log;
use super::seldom::Seldom;
use super::shared::{NodeView, Parts, Shared, World, jitter};
use super::supervisor::caught;
use crate::clock::Clock;
use crate::control::protocol::RunReply;
use crate::core::cycle::{Durable, Failure, FailureClass, Seen, Stage, StageName};
use crate::core::decide::{Step, decide};
use crate::core::effect::Want;
use crate::core::error::Fault;
use crate::core::event::Event;
use crate::core::exit::Exit;
use crate::core::guard::{self, Verdicts};
use crate::core::page::{self, PageKind, Severity};
use crate::core::plan::{Kind, Plan};
use crate::core::record::{Hold, Pause, Record};
use crate::core::target::Own;
use crate::core::time::{Dwell, Now};
use crate::core::want::want;
use crate::state::journal::{Commit, Found, Journal};
use serde_json::json;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};

/// What other tasks ask of the loop.
#[derive(Debug)]
pub enum Request {
    /// Begin a cycle of this kind, or attach to the same one.
    Begin {
        /// What for.
        kind: Kind,
        /// Who.
        by: Arc<str>,
        /// Guards overridden, with reasons.
        overrides: Vec<(Arc<str>, Arc<str>)>,
        /// The caller's own name for its request; empty = none.
        request: Arc<str>,
        /// The answer.
        reply: oneshot::Sender<RunReply>,
    },
    /// Put this node back.
    Rejoin {
        /// Who.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
        /// Without the node check.
        skip_check: bool,
        /// The answer.
        reply: oneshot::Sender<Result<String, (Exit, String)>>,
    },
    /// Keep this node out, mid-cycle.
    Hold {
        /// What for.
        hold: Hold,
        /// The answer.
        reply: oneshot::Sender<Result<String, (Exit, String)>>,
    },
    /// A sink has accepted this page.
    PageAccepted(u64),
    /// Something to tell people about this agent itself.
    Fault(PageKind, Severity, Arc<str>),
}

/// Between two tries to store what is only in memory, in ms.
const DISK_RETRY_MS: u64 = 5_000;

/// A page about the agent itself has a message of at most so many bytes.
const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// Steps that a hold on the way back may take before its caller is told that it did not come about.
const HOLD_TRIES: u32 = 20;

/// The loop's own state.
pub struct Agent<W: World> {
    pub(super) shared: Arc<Shared<W>>,
    pub(super) journal: Journal<W::Disk>,
    seen: Seen,
    queue: mpsc::Receiver<Request>,
    log: Log,
    /// The own target has been out since, with no cycle to explain it.
    pub(super) out: Option<Dwell>,
    /// There was no state. A fresh node only where an acknowledged record knows nothing of this instance.
    pub(super) stateless: bool,
    /// A page about a quarantine that cannot be planned yet has been raised.
    quarantine_paged: bool,
    /// `hold --all` as this agent first saw it, and its time.
    pub(super) hold_all: Option<(Pause, Dwell)>,
    /// The state was unreadable, and its way back is not planned yet: why.
    pub(super) quarantine: Option<String>,
    /// The disk refused a step, and the state stayed where it was: not again before then.
    stalled: Option<Now>,
    /// What the disk refuses is logged now and then.
    disk_log: Seldom,
    /// Steps whose panic has been paged about.
    panicked: BTreeSet<&'static str>,
    status: String,
    notify: Box<dyn Fn(&str) + Send + Sync>,
}

impl<W: World> Agent<W> {
    /// Over a journal that has just been opened. `notify` is told what the agent waits for (`STATUS=`).
    pub fn new(
        shared: Arc<Shared<W>>,
        journal: Journal<W::Disk>,
        queue: mpsc::Receiver<Request>,
        notify: Box<dyn Fn(&str) + Send + Sync>,
    ) -> Agent<W> {
        let seen = Seen::recovered();
        Agent {
            shared,
            journal,
            seen,
            queue,
            log: Log::default(),
            out: None,
            stateless: false,
            quarantine_paged: false,
            hold_all: None,
            quarantine: None,
            stalled: None,
            disk_log: Seldom::default(),
            panicked: BTreeSet::new(),
            status: String::new(),
            notify,
        }
    }

    /// Resumes what was stored. What cannot be resumed becomes a way back of its own, latched and paged.
    pub async fn recover(&mut self, found: Found) {
        match found {
            Found::Fresh => {
                tracing::info!("no state file: a fresh node, if the record agrees");
                self.stateless = true;
            }
            Found::Resumed => tracing::info!(stage = ?self.journal.now().stage(), "state read"),
            Found::Foreign(why) => {
                tracing::warn!(why, "state of another instance set aside: a fresh node, if the record agrees");
                self.stateless = true;
            }
            Found::Unreadable(why) => {
                tracing::error!(why, "state unreadable: latched, way back only");
                self.quarantine = Some(why);
                self.plan_quarantine().await;
            }
        }
        self.event(&Event::Recovered).await;
        let leaving =
            matches!(self.journal.now().stage(), Some(StageName::Claim | StageName::Deregister | StageName::Drain));
        if leaving && self.shared.parts().problem.is_some() {
            // With a bad config only the way back goes on.
            let reason: Arc<str> = "the config file cannot be used".into();
            self.event(&Event::Rejoin { by: "backstop".into(), reason, skip_check: false }).await;
        }
    }

    /// This node's state is gone: latch, page, and put the node back if it passes. Tried until its way back can be planned.
    pub(super) async fn plan_quarantine(&mut self) {
        let Some(why) = self.quarantine.clone() else { return };
        let parts = self.shared.parts();
        let now = self.shared.clock.now();
        if parts.config.mode == crate::config::Mode::Observe {
            // Nothing is written to AWS, and this node took nothing out: a person hears, and that is all.
            self.quarantine = None;
            let message = format!("{why}; this agent observes, so nothing else is done");
            return self.raise(PageKind::AgentFault, Severity::Critical, message.into()).await;
        }
        let asked = Asked { by: "backstop".into(), ..Asked::default() };
        let plan = match self.plan(&parts, Kind::Recovery, asked).await {
            Ok(plan) => plan,
            Err(fault) => {
                tracing::error!(%fault, "the way back of this node cannot be planned yet");
                if !self.quarantine_paged {
                    self.quarantine_paged = true;
                    let message = format!("{why}; its way back cannot be planned yet, and is tried again: {fault}");
                    self.raise(PageKind::AgentFault, Severity::Critical, message.into()).await;
                }
                self.stalled = Some(now.plus(DISK_RETRY_MS));
                return;
            }
        };
        self.quarantine = None;
        let plan = match parts.fleet.read().await.ok().and_then(|r| r.slots.get(&self.shared.instance()).cloned()) {
            // Under the lost cycle's own name: its job is killed, its slot freed, its latch set.
            Some(slot) => Plan { id: slot.cycle, ..plan },
            None => plan,
        };
        let mut step = decide(self.journal.now(), &self.seen, &Event::Start(Arc::new(plan)), &now, jitter());
        if let Some(c) = &mut step.durable.cycle {
            let (stage, class) = (StageName::Check, FailureClass::State);
            c.failure = Some(Failure { stage, class, message: why.into(), at: now.clone() });
            c.kill_job = true;
        }
        page::raise_failure(&mut step.durable, &now);
        self.commit(step, &now).await;
    }

    /// Runs until `stop` is ready. Clean at any moment: the state already says what to do next.
    pub async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut observed = self.shared.observed.subscribe();
        loop {
            if self.quarantine.is_some() && self.stalled.is_none() {
                self.plan_quarantine().await;
            }
            let now = self.shared.clock.now();
            self.say(&now);
            self.stalled = self.stalled.take().filter(|at| now.since(at).is_none() && at.boot == now.boot);
            let wanted = match &self.stalled {
                Some(at) => Want::Wait(at.clone()),
                None => want(self.journal.now(), &self.seen, &now),
            };
            let wake = match wanted {
                Want::Do(effect) => match self.journal.ready(effect) {
                    Some(ready) => {
                        let shared = self.shared.clone();
                        let durable = self.journal.now().clone();
                        tokio::select! {
                            event = execute(&shared, ready, &durable) => self.event(&event).await,
                            () = stopped(&mut stop) => return,
                        }
                        while let Ok(request) = self.queue.try_recv() {
                            self.request(request).await;
                        }
                        continue;
                    }
                    None => now.plus(DISK_RETRY_MS), // only the disk is in the way
                },
                Want::Wait(at) => at,
                Want::Idle => now.plus(3_600_000),
            };
            let owed = self.journal.committed().is_none();
            let wake = if owed && wake.since(&now).is_none_or(|ms| ms > DISK_RETRY_MS) {
                now.plus(DISK_RETRY_MS)
            } else {
                wake
            };
            let clock = self.shared.clock.clone();
            tokio::select! {
                request = self.queue.recv() => match request {
                    Some(request) => self.request(request).await,
                    None => return,
                },
                _ = observed.changed() => {
                    if let Err(why) = caught(self.look_at_self()).await {
                        self.panicked("looking at the own node", &why).await;
                    }
                }
                () = clock.sleep_until(&wake) => self.tick().await,
                () = stopped(&mut stop) => return,
            }
        }
    }

    async fn tick(&mut self) {
        if self.journal.committed().is_none()
            && let Err(e) = self.journal.retry().await
        {
            let now = self.shared.clock.now();
            if let Some(times) = self.disk_log.due(&now) {
                tracing::error!(error = %e, times, "the state is still only in memory");
            }
        }
        self.event(&Event::Tick).await;
    }

    async fn event(&mut self, event: &Event) {
        let now = self.shared.clock.now();
        let step = decide(self.journal.now(), &self.seen, event, &now, jitter());
        self.commit(step, &now).await;
    }

    async fn commit(&mut self, step: Step, now: &Now) {
        let before = self.journal.now().clone();
        let (seen, commit) = self.journal.advance(&self.seen, step, now).await;
        self.seen = seen;
        let after = self.journal.now().clone();
        if matches!(commit, Commit::Refused(_)) && after == before {
            self.stalled = Some(now.plus(DISK_RETRY_MS));
        }
        let unstored = match &commit {
            Commit::Refused(e) => {
                if let Some(times) = self.disk_log.due(now) {
                    tracing::error!(error = %e, stage = ?after.stage(), times, "the state could not be stored");
                }
                Some(e.to_string())
            }
            Commit::Unchanged | Commit::Stored => {
                if matches!(commit, Commit::Stored) && self.disk_log.over() {
                    tracing::info!("the state is stored again");
                }
                self.journal.committed().is_none().then(|| "not stored yet".to_owned())
            }
        };
        self.tell(&before, &after, now);
        let view = NodeView { durable: after, seen: self.seen.clone(), unstored };
        self.shared.node.send_replace(Arc::new(view));
    }

    /// Audit, log and progress of what a step changed.
    fn tell(&mut self, before: &Durable, after: &Durable, now: &Now) {
        if self.log.note(before, after, &self.seen, now) {
            self.shared.progress.send_replace(Arc::new(self.log.clone()));
        }
        let (was, is) = (before.stage(), after.stage());
        if was != is {
            let c = after.cycle.as_ref().or(before.cycle.as_ref());
            let cycle = c.map(|c| c.plan.id.to_string());
            let failure = c.and_then(|c| c.failure.as_ref()).map(|f| f.message.to_string());
            tracing::info!(cycle, from = ?was, to = ?is, failure, "stage");
            self.shared.audit.record(&json!({
                "at": crate::alerts::text::rfc3339(now.wall_ms), "event": "stage", "cycle": cycle,
                "job": c.map(|c| c.plan.job_name()), "by": c.map(|c| c.plan.by.clone()),
                "from": was, "to": is, "failure": failure,
                "ended": if is.is_none() { after.last.clone() } else { None },
            }));
        }
        for p in after.pages.iter().filter(|p| !before.pages.iter().any(|q| q.seq == p.seq)) {
            tracing::error!(kind = p.kind.label(), message = %p.message, "page raised");
            self.shared.audit.record(&json!({
                "at": crate::alerts::text::rfc3339(now.wall_ms), "event": "page", "kind": p.kind.label(),
                "severity": p.severity, "cycle": p.cycle, "message": p.message,
            }));
        }
    }

    fn say(&mut self, now: &Now) {
        let text = match &self.journal.now().cycle {
            Some(c) => super::status::waiting_for(c, &self.seen, now),
            None => "idle".to_owned(),
        };
        if text != self.status {
            (self.notify)(&text);
            self.status = text;
        }
    }

    async fn request(&mut self, request: Request) {
        match request {
            Request::Begin { kind, by, overrides, request, reply } => {
                let answer = self.begin(kind, Asked { by, request, overrides }).await;
                let _ = reply.send(answer);
            }
            Request::Rejoin { by, reason, skip_check, reply } => {
                let answer = self.rejoin(by, reason, skip_check).await;
                let _ = reply.send(answer);
            }
            Request::Hold { hold, reply } => {
                let answer = self.hold(hold).await;
                let _ = reply.send(answer);
            }
            Request::PageAccepted(seq) => self.event(&Event::PageAccepted(seq)).await,
            Request::Fault(kind, severity, message) => self.raise(kind, severity, message).await,
        }
    }

    async fn raise(&mut self, kind: PageKind, severity: Severity, message: Arc<str>) {
        let now = self.shared.clock.now();
        let mut durable = self.journal.now().clone();
        let message = cut(message);
        let page = page::about_cycle(&durable, kind, severity, message, &now);
        page::raise(&mut durable, page);
        let step = Step { durable, seen: self.seen.clone() };
        self.commit(step, &now).await;
    }

    async fn begin(&mut self, kind: Kind, asked: Asked) -> RunReply {
        let parts = self.shared.parts();
        let names = |cycle: String| (cycle, parts.config.node.name.to_string(), parts.config.fleet.to_string());
        if let Some(c) = &self.journal.now().cycle {
            let same = matches!((&c.plan.kind, &kind), (Kind::Patch(a), Kind::Patch(b)) if a.same_as(b));
            let again = !asked.request.is_empty() && c.plan.request == asked.request;
            if again || (same && c.failure.is_none()) {
                let (cycle, node, fleet) = names(c.plan.id.to_string());
                return RunReply::Attached { cycle, node, fleet };
            }
            let message =
                format!("busy with cycle {} (job {}, stage {})", c.plan.id, c.plan.job_name(), c.stage.name());
            return refused(Exit::Busy, message, None, Some("backstop wait".to_owned()));
        }
        if let Some(last) = &self.journal.now().last
            && !asked.request.is_empty()
            && last.request == asked.request
        {
            // The answer was lost, and the cycle is over: its verdict is what was asked for.
            let (cycle, node, fleet) = names(last.cycle.to_string());
            return RunReply::Attached { cycle, node, fleet };
        }
        if let Some(why) = &self.quarantine {
            return refused(Exit::StateUnreadable, why.clone(), None, Some("backstop explain".to_owned()));
        }
        let leaves = matches!(kind, Kind::Patch(_) | Kind::Hold(_));
        if leaves && self.journal.committed().is_none() && self.journal.retry().await.is_err() {
            return refused(Exit::Guard, "state-durable: the state directory cannot be written".to_owned(), None, None);
        }
        let (verdicts, record) = self.guards(&parts, &kind, &asked.overrides).await;
        if let Some(v) = verdicts.first_refusal() {
            let next = next_for(v.exit, &parts, record.as_ref());
            let message = format!("{}: {}", v.guard, v.sentence);
            self.shared.audit.record(&json!({
                "at": crate::alerts::text::rfc3339(self.shared.clock.now().wall_ms),
                "event": "refused", "by": asked.by, "guard": v.guard, "message": v.sentence,
            }));
            return refused(v.exit, message, Some(verdicts.clone()), next);
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
        let (cycle, node, fleet) = names(id);
        RunReply::Started { cycle, node, fleet }
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
    async fn plan(&mut self, parts: &Arc<Parts<W>>, kind: Kind, asked: Asked) -> Result<Plan, Fault> {
        match caught(facts::plan(&self.shared, parts, kind, asked)).await {
            Ok(planned) => planned,
            Err(why) => {
                self.panicked("planning a cycle", &why).await;
                Err(Fault::transport(format!("planning a cycle: {why}")))
            }
        }
    }

    /// A step of the loop that ended in a panic is logged each time, and paged about once.
    async fn panicked(&mut self, step: &'static str, why: &str) {
        tracing::error!(step, why, "a step of the agent's loop came to nothing");
        if self.panicked.insert(step) {
            let message = format!("a step of the agent came to nothing ({step}: {why}); it goes on without");
            self.raise(PageKind::AgentFault, Severity::Warning, message.into()).await;
        }
    }

    async fn rejoin(&mut self, by: Arc<str>, reason: Arc<str>, skip_check: bool) -> Result<String, (Exit, String)> {
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
        let seen = self.shared.observed.borrow().clone();
        let fresh = !seen.faults.contains_key("load balancer");
        let own = seen.own.clone();
        if fresh && !own.is_empty() && own.iter().all(|o| *o == Own::InService) {
            return Ok("this node is in service; nothing to do".to_owned());
        }
        match self.begin(Kind::Return, Asked { by: by.clone(), ..Asked::default() }).await {
            RunReply::Started { cycle, .. } | RunReply::Attached { cycle, .. } => {
                if skip_check {
                    self.event(&Event::Rejoin { by, reason, skip_check }).await;
                }
                Ok(format!("on its way back, cycle {cycle}"))
            }
            RunReply::Refused { message, exit, .. } => Err((Exit::from_code(exit).unwrap_or(Exit::Guard), message)),
        }
    }

    async fn hold(&mut self, hold: Hold) -> Result<String, (Exit, String)> {
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

async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    // A closed channel means that whoever could stop us is gone: then it is over, too.
    drop(stop.wait_for(|s| *s).await);
}

/// What a page says is stored with the state, which has to stay small enough to be stored at all.
fn cut(message: Arc<str>) -> Arc<str> {
    match message.get(..message.floor_char_boundary(MESSAGE_BYTES_MAX)) {
        Some(head) if head.len() < message.len() => format!("{head} ... (cut; the log has all of it)").into(),
        _ => message,
    }
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
        | Exit::ContactLost => Some(format!("backstop explain {node}")),
    }
}
