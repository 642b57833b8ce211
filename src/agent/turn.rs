//! The loop: what does the core want? do it, tell the core, commit, again. People's requests are events like any other.

use super::executor::execute;
use super::facts::Asked;
use super::progress::Log;
use super::seldom::Seldom;
use super::shared::{NodeView, Shared, World, jitter};
use super::supervisor::caught;
use super::turns::Loop;
use crate::clock::Clock;
use crate::control::protocol::RunReply;
use crate::core::cycle::{Doubt, Durable, Seen, StageName};
use crate::core::decide::{Step, decide};
use crate::core::effect::Want;
use crate::core::error::Jitter;
use crate::core::event::Event;
use crate::core::exit::Exit;
use crate::core::heal::Off;
use crate::core::page::{self, PageKind, Severity};
use crate::core::plan::Kind;
use crate::core::record::Hold;
use crate::core::time::Now;
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
        /// By whom, and how.
        asked: Asked,
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

/// No effect takes longer than this, in ms: every call has a total timeout, and few are made of many calls.
pub const EFFECT_MS: u64 = 120_000;
/// Later than expected by more than this means that the process stood still, in ms.
const GAP_MS: u64 = 5_000;
/// Between two tries to store what is only in memory, in ms.
pub(super) const DISK_RETRY_MS: u64 = 5_000;

/// A page about the agent itself has a message of at most so many bytes.
const MESSAGE_BYTES_MAX: usize = 2 * 1024;

/// An absence of the own target that self-heal is to end.
#[derive(Clone, Debug)]
pub(super) struct Absent {
    pub(super) since: Now,
    /// One draw for the whole absence: of one at each look the least of all would count.
    pub(super) drawn: Jitter,
    /// The fleet was below its floor meanwhile: who would be last does not go back to waiting for long.
    pub(super) below_floor: bool,
}

/// The loop's own state.
pub struct Agent<W: World> {
    pub(super) shared: Arc<Shared<W>>,
    pub(super) journal: Journal<W::Disk>,
    pub(super) seen: Seen,
    queue: mpsc::Receiver<Request>,
    log: Log,
    /// The own target has been out since, with no cycle to explain it.
    pub(super) out: Option<Absent>,
    /// The read that self-heal acted on last.
    pub(super) healed_on: Option<Now>,
    /// `hold --all`, as this agent first saw it.
    pub(super) off: Off,
    /// The latch for the lost state is acknowledged.
    pub(super) lost_latched: bool,
    /// A page about a lost state whose way back cannot be planned yet has been raised.
    pub(super) lost_paged: bool,
    /// The disk refused a step, and the state stayed where it was: not again before then.
    pub(super) stalled: Option<Now>,
    /// By then at the latest the loop should have gone on.
    expected: Option<Now>,
    /// What the disk refuses is logged now and then.
    disk_log: Seldom,
    /// Steps whose panic has been paged about.
    pub(super) panicked: BTreeSet<&'static str>,
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
            healed_on: None,
            off: Off::default(),
            lost_latched: false,
            lost_paged: false,
            stalled: None,
            expected: None,
            disk_log: Seldom::default(),
            panicked: BTreeSet::new(),
            status: String::new(),
            notify,
        }
    }

    /// Resumes what was stored. What cannot be resumed becomes a way back of its own, latched and paged.
    pub async fn recover(&mut self, found: Found) {
        if let Some(seen) = self.journal.now().record.clone() {
            let parts = self.shared.parts();
            if &*seen.fleet == parts.config.fleet.as_str() {
                parts.fleet.seen(seen.counter);
            }
        }
        match found {
            Found::Fresh => {
                tracing::info!("no state file: a fresh node, if the record agrees");
                self.event(&Event::Doubt(Some(Doubt::Unproven))).await;
            }
            Found::Resumed => tracing::info!(stage = ?self.journal.now().stage(), "state read"),
            Found::Foreign(why, boot) => {
                tracing::warn!(why, "state of another instance set aside: a fresh node, if the record agrees");
                self.event(&Event::Doubt(Some(Doubt::Unproven))).await;
                if boot.is_some_and(|boot| boot == self.shared.clock.now().boot) {
                    // A boot id never travels: it is this machine that was out, under another id.
                    let message = format!(
                        "{why}; its cycle is not over and is of this very boot, so this node may be OUT under that id: \
                         which instance is this (node.instance_id)?"
                    );
                    self.raise(PageKind::AgentFault, Severity::Critical, message.into()).await;
                }
            }
            Found::Unreadable(why) => {
                tracing::error!(why, "state unreadable: latched, way back only");
                let cycle = self.lost_cycle().await;
                self.event(&Event::Doubt(Some(Doubt::Lost { why: why.into(), cycle }))).await;
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

    /// Runs until `stop` is ready. Clean at any moment: the state already says what to do next.
    pub async fn run(mut self, mut stop: tokio::sync::watch::Receiver<bool>) {
        let mut observed = self.shared.observed.subscribe();
        loop {
            if matches!(self.journal.now().doubt, Some(Doubt::Lost { .. })) && self.stalled.is_none() {
                self.plan_quarantine().await;
            }
            self.raise_found().await;
            self.turned();
            let now = self.shared.clock.now();
            self.notice_a_gap(&now).await;
            self.say(&now);
            self.stalled = self.stalled.take().filter(|at| now.since(at).is_none() && at.boot == now.boot);
            let terminating = self.shared.observed.borrow().terminating;
            let wanted = match &self.stalled {
                Some(at) => Want::Wait(at.clone()),
                // Its own termination ends the obligation to return: what it still owes is to say so (`peers.rs`).
                None if terminating => Want::Idle,
                None => want(self.journal.now(), &self.seen, &now),
            };
            let wake = match wanted {
                Want::Do(effect) => match self.journal.ready(effect) {
                    Some(ready) => {
                        self.expected = Some(now.plus(EFFECT_MS));
                        let shared = self.shared.clone();
                        let durable = self.journal.now().clone();
                        tokio::select! {
                            event = execute(&shared, ready, &durable) => self.event(&event).await,
                            () = stopped(&mut stop) => return,
                        }
                        self.turned();
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
            let (clock, turns) = (self.shared.clock.clone(), self.shared.turns.clone());
            self.expected = Some(wake.clone());
            tokio::select! {
                request = self.queue.recv() => match request {
                    Some(request) => self.request(request).await,
                    None => return,
                },
                _ = observed.changed() => {
                    self.turned();
                    if let Err(why) = caught(self.look_at_self()).await {
                        self.panicked("looking at the own node", &why).await;
                    }
                }
                () = clock.sleep_until(&wake) => self.tick().await,
                // It may wait for an hour; that it could go on at any moment is told meanwhile.
                () = turns.waiting(Loop::Agent, &clock) => {}
                () = stopped(&mut stop) => return,
            }
        }
    }

    /// One piece of work is done. The next may be an effect, with a deadline of its own.
    fn turned(&self) {
        self.shared.turns.turned(Loop::Agent, &self.shared.clock.now(), EFFECT_MS);
    }

    /// The machine was frozen, or this process stopped: what it knows is old, and deadlines have passed unseen.
    async fn notice_a_gap(&mut self, now: &Now) {
        let expected = self.expected.take();
        if expected.is_some_and(|at| now.boot != at.boot || now.since(&at).is_some_and(|ms| ms > GAP_MS)) {
            self.event(&Event::StoodStill).await;
        }
    }

    /// Things that a person must hear, found by tasks that cannot page.
    async fn raise_found(&mut self) {
        let found = std::mem::take(&mut self.shared.cache().to_page);
        for (kind, severity, message) in found {
            self.raise(kind, severity, message).await;
        }
    }

    async fn tick(&mut self) {
        self.turned();
        self.notice_a_gap(&self.shared.clock.now()).await;
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

    pub(super) async fn event(&mut self, event: &Event) {
        let now = self.shared.clock.now();
        let step = decide(self.journal.now(), &self.seen, event, &now, jitter());
        self.commit(step, &now).await;
    }

    pub(super) async fn commit(&mut self, step: Step, now: &Now) {
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
        self.shared.metrics.stepped(before, after, now);
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
        self.turned();
        match request {
            Request::Begin { kind, asked, reply } => {
                let answer = self.begin(kind, asked).await;
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

    pub(super) async fn raise(&mut self, kind: PageKind, severity: Severity, message: Arc<str>) {
        let now = self.shared.clock.now();
        let mut durable = self.journal.now().clone();
        let message = cut(message);
        let page = page::about_cycle(&durable, kind, severity, message, &now);
        page::raise(&mut durable, page);
        let step = Step { durable, seen: self.seen.clone() };
        self.commit(step, &now).await;
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
