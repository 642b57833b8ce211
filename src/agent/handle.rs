//! The agent as the control server sees it.

use super::facts::{self, Asked};
use super::shared::{Shared, World, jitter, nonce};
use super::status;
use super::supervisor::{caught, fenced};
use super::turn::Request;
use super::verbs::next_for;
use crate::clock::Clock;
use crate::control::backend::{Backend, Caller};
use crate::control::protocol::{
    CheckReply, ClearRequest, Done, Explain, History, HoldRequest, InitRequest, Progress, ReasonRequest, RejoinRequest,
    RetireRequest, RunReply, RunRequest, Status, TestReply, TestRequest, VERSION,
};
use crate::core::cycle::{Cycle, Stage};
use crate::core::error::Schedule;
use crate::core::exit::Exit;
use crate::core::guard::{self, Guard};
use crate::core::ids::LatchId;
use crate::core::job::JobSpec;
use crate::core::plan::Kind;
use crate::core::record::{Hold, Op, Pause, Record};
use crate::fleet::{Found, Outcome};
use crate::ports::{BoxFuture, CasFault};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// `progress` waits this long for news.
const NEWS: Duration = Duration::from_secs(20);
/// The disk is waited for so long where somebody wants to read its journal.
const HISTORY_WAIT: Duration = Duration::from_secs(10);
/// Guards that nobody can answer are asked again so often before a run is refused for that ...
const UNKNOWN_AGAIN: u32 = 2;
/// ... this far apart.
const UNKNOWN_PACE: Schedule = Schedule { base_ms: 1_000, cap_ms: 4_000 };
/// At most 7 days.
const HOLD_MAX_S: u64 = 7 * 86_400;

/// Reads the config again and replaces the adapters.
pub type Reload = Arc<dyn Fn() -> BoxFuture<'static, Done> + Send + Sync>;

/// Cheap to clone; one per connection.
pub struct Handle<W: World> {
    pub(super) shared: Arc<Shared<W>>,
    queue: mpsc::Sender<Request>,
    reload: Reload,
}

impl<W: World> Clone for Handle<W> {
    fn clone(&self) -> Self {
        Handle { shared: self.shared.clone(), queue: self.queue.clone(), reload: self.reload.clone() }
    }
}

/// OUT beyond its budget; one that only waits to give its slot back is in service.
fn is_late(c: &Cycle) -> bool {
    c.late.is_some() && c.stage != Stage::Release
}

fn done(message: impl Into<String>) -> Done {
    Done { exit: Exit::Done.code(), message: message.into(), next: None }
}

pub(super) fn not(exit: Exit, message: impl Into<String>, next: Option<&str>) -> Done {
    Done { exit: exit.code(), message: message.into(), next: next.map(str::to_owned) }
}

impl<W: World> Handle<W> {
    /// The queue is the loop's.
    pub fn new(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>, reload: Reload) -> Handle<W> {
        Handle { shared, queue, reload }
    }

    pub(super) fn order(&self, by: &Caller, reason: &str) -> Pause {
        let since_ms = self.shared.clock.now().wall_ms;
        Pause {
            by: by.name.as_str().into(),
            reason: reason.into(),
            since_ms,
            extra: crate::core::record::Extra::default(),
        }
    }

    pub(super) fn note(&self, verb: &str, by: &Caller, what: &serde_json::Value, outcome: &Done) {
        let at = crate::alerts::text::rfc3339(self.shared.clock.now().wall_ms);
        self.shared.audit.record(&json!({
            "at": at, "event": verb, "by": by.name, "uid": by.uid, "what": what, "exit": outcome.exit, "outcome": outcome.message,
        }));
    }

    pub(super) async fn change(&self, op: Op, good: String) -> Done {
        let parts = self.shared.parts();
        match parts.fleet.change(&op, &parts.rules(), nonce).await {
            Outcome::Acked(record) => {
                self.shared.saw_record(*record);
                done(good)
            }
            Outcome::Refused(refusal) => {
                let (exit, message) = crate::core::decide::refused(&refusal);
                not(exit, message, Some("backstop status"))
            }
            Outcome::Unanswered(fault) => {
                let message = format!("not acknowledged by the fleet record (it may or may not have landed): {fault}");
                not(Exit::Unreachable, message, Some("backstop status"))
            }
        }
    }

    /// The fleet's record, made once; and made again only for a stated reason, from what the members last saw.
    async fn make_record(&self, reason: &str) -> Done {
        let parts = self.shared.parts();
        let fleet = &parts.config.fleet;
        let (found, members) = match (parts.fleet.found().await, parts.fleet.members().await) {
            (Ok(found), Ok(members)) => (found, members),
            (Err(f), _) | (_, Err(f)) => return not(Exit::Unreachable, f.to_string(), Some("backstop status")),
        };
        let mut seen: Vec<Record> =
            members.iter().filter_map(|m| serde_json::from_value(m.record.clone()?).ok()).collect();
        seen.extend(self.shared.observed.borrow().record.as_ref().map(|(r, _)| r.clone()));
        let highest = parts.fleet.highest().max(seen.iter().map(|r| r.counter).max().unwrap_or(0));
        let again =
            format!("backstop init --fleet --reason \"...\"   (fleet {fleet}; first find out what happened to it)");
        let (version, was) = match found {
            Found::Good => {
                let message = format!("fleet {fleet} has a record already; nothing was changed");
                return not(Exit::Usage, message, Some("backstop status"));
            }
            Found::Unusable { why, record: Some(theirs), .. }
                if theirs.schema != crate::core::record::SCHEMA || *theirs.fleet != *fleet.as_str() =>
            {
                return not(Exit::Usage, format!("{why}; it is never replaced"), Some("backstop config show"));
            }
            Found::Unusable { why, .. } if reason.is_empty() => {
                let message = format!("{why}; it is replaced only for a reason, and nothing was changed");
                return not(Exit::Usage, message, Some(&again));
            }
            Found::Nothing if highest > 0 && reason.is_empty() => {
                let message = format!(
                    "fleet {fleet} had a record (its members saw counter {highest}), and it is gone; it is made again \
                     only for a reason, and nothing was changed"
                );
                return not(Exit::Usage, message, Some(&again));
            }
            Found::Unusable { version, record, .. } => (Some(version), record),
            Found::Nothing => (None, None),
        };
        seen.extend(was.map(|r| *r));
        seen.retain(|r| crate::core::invariant::record(r).is_ok());
        let record = Record { nonce: nonce(), ..Record::restored(&fleet.as_str().into(), &seen, highest) };
        let made = parts.fleet.create(&record, version.as_ref()).await;
        if made.is_ok() {
            self.shared.saw_record(record.clone());
        }
        match made {
            Ok(()) if highest == 0 => done(format!("fleet {fleet} has a record now")),
            Ok(()) => done(format!(
                "fleet {fleet} has a record again, with what its members last saw: {} slots, {} open latches, {} holds{}",
                record.slots.len(),
                record.open_latches().count(),
                record.holds.len(),
                if record.pause.is_some() { ", and the pause" } else { "" }
            )),
            Err(CasFault::Conflict) => not(
                Exit::Usage,
                format!("somebody else wrote the record of fleet {fleet} first; nothing was changed"),
                Some("backstop status"),
            ),
            Err(CasFault::Fault(f)) => not(Exit::Unreachable, f.to_string(), Some("backstop status")),
        }
    }

    async fn ask<T>(&self, make: impl FnOnce(oneshot::Sender<T>) -> Request) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.queue.try_send(make(reply)).ok()?;
        answer.await.ok()
    }

    pub(super) async fn ask_verb(
        &self,
        make: impl FnOnce(oneshot::Sender<Result<String, (Exit, String)>>) -> Request,
    ) -> Done {
        match self.ask(make).await {
            Some(Ok(message)) => done(message),
            Some(Err((exit, message))) => not(exit, message, Some("backstop explain")),
            None => not(Exit::Internal, "the agent is too busy to answer; try again", None),
        }
    }
}

impl<W: World> Backend for Handle<W> {
    fn status(&self) -> Status {
        status::status(&self.shared)
    }

    async fn run(&self, by: Caller, r: RunRequest) -> RunReply {
        let refuse =
            |exit: Exit, message: String| RunReply::Refused { exit: exit.code(), message, verdicts: None, next: None };
        if r.unit.is_none() && r.argv.iter().all(String::is_empty) {
            return refuse(Exit::Usage, "no command: backstop run -- COMMAND …".to_owned());
        }
        let reason: Arc<str> = r.reason.clone().unwrap_or_default().into();
        for name in &r.overrides {
            match Guard::from_label(name) {
                Some(g) if g.overridable() && !reason.trim().is_empty() => {}
                Some(g) if g.overridable() => return refuse(Exit::Usage, format!("--override {name} needs --reason")),
                Some(_) => return refuse(Exit::Usage, format!("the guard {name} cannot be overridden")),
                None => return refuse(Exit::Usage, format!("there is no guard {name}; backstop check -v lists them")),
            }
        }
        let job = JobSpec {
            name: r.name.as_str().into(),
            argv: r.argv.iter().map(|a| a.as_str().into()).collect(),
            reboots: r.job_reboots,
            reboot: r.reboot,
            unit: r.unit.as_deref().map(Arc::from),
        };
        let overrides: Vec<(Arc<str>, Arc<str>)> =
            r.overrides.iter().map(|n| (n.as_str().into(), reason.clone())).collect();
        if !overrides.is_empty() {
            self.note("override", &by, &json!(r.overrides), &done(reason.to_string()));
        }
        let asked = Asked {
            by: by.name.as_str().into(),
            request: r.request_id.as_str().into(),
            overrides,
            only_owed: r.only_owed,
        };
        for tries in 0_u32.. {
            let (kind, asked) = (Kind::Patch(job.clone()), asked.clone());
            match self.ask(|reply| Request::Begin { kind, asked, reply }).await {
                // What cannot be told at one moment may well be at the next.
                Some(RunReply::Refused { verdicts: Some(v), .. }) if v.only_unknown() && tries < UNKNOWN_AGAIN => {
                    self.shared.clock.sleep_ms(UNKNOWN_PACE.wait_ms(tries, jitter(), None)).await;
                }
                Some(reply) => return reply,
                None => break,
            }
        }
        refuse(Exit::Internal, "the agent is too busy to answer; try again".to_owned())
    }

    async fn check(&self) -> CheckReply {
        let parts = self.shared.parts();
        let looked = caught(facts::gather(&self.shared, &parts, None)).await;
        let facts = looked.unwrap_or_else(|why| facts::unknown(&self.shared, &why));
        let verdicts = guard::evaluate(&facts, &parts.rules(), &[]);
        let busy = self.shared.node.borrow().durable.cycle.is_some();
        let exit = match verdicts.first_refusal() {
            Some(v) => v.exit,
            None if busy => Exit::Busy,
            None => Exit::Done,
        };
        let mut would_take = Vec::new();
        if let Ok(own) = self.shared.own_targets(&parts, u64::MAX).await {
            for t in &own {
                would_take.push((format!("drain (group {})", t.target.group.name()), t.facts.deregistration_delay_ms));
            }
            let first = own.iter().map(|t| t.facts.interval_ms).max().unwrap_or(0);
            would_take.push(("first health check".to_owned(), first));
        }
        would_take.push(("quiet period".to_owned(), parts.config.drain.quiet_ms));
        would_take.push(("check".to_owned(), parts.config.check.over_ms));
        would_take.push(("bake".to_owned(), parts.config.settle_bake_ms));
        CheckReply {
            v: VERSION,
            node: parts.config.node.name.to_string(),
            verdicts,
            exit: exit.code(),
            warnings: status::all_warnings(&self.shared),
            would_take,
            next: next_for(exit, &parts, facts.record.as_ref().ok()),
        }
    }

    async fn progress(&self, cycle: Option<String>, after: u64) -> Progress {
        let mut log = self.shared.progress.subscribe();
        let node = self.shared.node.subscribe();
        let wanted = |id: &str| cycle.as_deref().is_none_or(|c| c == id);
        let answer = |l: &super::progress::Log| -> Option<Progress> {
            let durable = node.borrow().durable.clone();
            let present = durable.cycle.as_ref().map(|c| c.plan.id.to_string());
            let steps: Vec<_> = match &l.cycle {
                Some(c) if wanted(c.as_str()) => l.steps.iter().filter(|s| s.n > after).cloned().collect(),
                _ => Vec::new(),
            };
            // A hold that took the place of this very cycle is not what its caller waits for.
            let held_instead = cycle.is_some()
                && durable.cycle.as_ref().is_some_and(|c| matches!(c.plan.kind, Kind::Hold(_)))
                && durable.last.as_ref().is_some_and(|e| present.as_deref() == Some(e.cycle.as_str()));
            if let Some(id) = present.filter(|id| wanted(id) && !held_instead) {
                let late =
                    durable.cycle.as_ref().is_some_and(is_late) && l.cycle.as_ref().is_some_and(|c| c.as_str() == id);
                let awaits_restart = durable.cycle.as_ref().is_some_and(Cycle::awaits_restart);
                return (!steps.is_empty() || late).then_some(Progress {
                    steps,
                    late,
                    awaits_restart,
                    ..Progress::default()
                });
            }
            match durable.ended(|id| wanted(id.as_str())) {
                Some(ended) => Some(Progress { steps, ended: Some(ended.clone()), ..Progress::default() }),
                // A state that was lost is about to become a way back, under this very name where that is known.
                None if durable.doubt.is_some() => None,
                None => Some(Progress { unknown: true, ..Progress::default() }),
            }
        };
        let deadline = tokio::time::timeout(NEWS, async {
            loop {
                let present = log.borrow_and_update().clone();
                if let Some(progress) = answer(&present) {
                    return progress;
                }
                if log.changed().await.is_err() {
                    return Progress::default();
                }
            }
        });
        if let Ok(progress) = deadline.await {
            return progress;
        }
        let present = node.borrow().durable.cycle.clone();
        let late = present.as_ref().is_some_and(is_late);
        let awaits_restart = present.as_ref().is_some_and(Cycle::awaits_restart);
        Progress { late, awaits_restart, ..Progress::default() }
    }

    async fn rejoin(&self, by: Caller, r: RejoinRequest) -> Done {
        let (name, reason): (Arc<str>, Arc<str>) = (by.name.as_str().into(), r.reason.as_str().into());
        let skip_check = r.skip_check;
        let outcome = self.ask_verb(|reply| Request::Rejoin { by: name, reason, skip_check, reply }).await;
        self.note("rejoin", &by, &json!(r), &outcome);
        outcome
    }

    async fn hold(&self, by: Caller, r: HoldRequest) -> Done {
        if r.for_s == 0 || r.for_s > HOLD_MAX_S {
            return not(Exit::Usage, "a hold lasts from one second to seven days", None);
        }
        let order = self.order(&by, &r.reason);
        let outcome = if r.all {
            let hold = Hold {
                node: self.shared.node_name(),
                order,
                for_s: r.for_s,
                extra: crate::core::record::Extra::default(),
            };
            self.change(Op::HoldAll(hold), "self-heal is off for the whole fleet".to_owned()).await
        } else {
            let hold = Hold {
                node: self.shared.node_name(),
                order,
                for_s: r.for_s,
                extra: crate::core::record::Extra::default(),
            };
            self.ask_verb(|reply| Request::Hold { hold, reply }).await
        };
        self.note("hold", &by, &json!(r), &outcome);
        outcome
    }

    async fn pause(&self, by: Caller, r: ReasonRequest) -> Done {
        let op = Op::Pause(self.order(&by, &r.reason));
        let outcome = self.change(op, "paused: no cycle starts on any node".to_owned()).await;
        self.note("pause", &by, &json!(r), &outcome);
        outcome
    }

    async fn unpause(&self, by: Caller, r: ReasonRequest) -> Done {
        let outcome = self.change(Op::Unpause, "cycles may start again".to_owned()).await;
        self.note("unpause", &by, &json!(r), &outcome);
        outcome
    }

    async fn clear_latch(&self, by: Caller, r: ClearRequest) -> Done {
        let parts = self.shared.parts();
        let id = LatchId(r.latch.as_str().into());
        let outcome = match parts.fleet.read().await {
            Err(f) => not(Exit::Unreachable, f.to_string(), Some("backstop status")),
            Ok(record) => match record.open_latches().find(|(open, _)| *open == id) {
                None => not(Exit::Usage, format!("there is no open latch {id}"), Some("backstop latch list")),
                Some((_, latch)) => {
                    let slot = record.slots.contains_key(&latch.instance);
                    let view = super::executor::read_fleet(&self.shared, &parts, false).await;
                    let out = view.as_ref().map_or(true, |v| {
                        v.members.contains(&latch.instance) && !v.in_service.contains(&latch.instance)
                    });
                    if (out || slot) && !r.unresolved {
                        let next = format!("backstop explain {}", latch.node);
                        let why = if view.is_err() {
                            "whether it is in service is unknown"
                        } else {
                            "it is not back in service"
                        };
                        not(
                            Exit::Guard,
                            format!(
                                "{} still counts as out ({why}); clear it once it is back, or with --unresolved",
                                latch.node
                            ),
                            Some(&next),
                        )
                    } else {
                        let op = Op::ClearLatch { latch: id.clone(), order: self.order(&by, &r.reason) };
                        self.change(op, format!("latch {id} is cleared; cycles may start again")).await
                    }
                }
            },
        };
        self.note("latch clear", &by, &json!(r), &outcome);
        outcome
    }

    async fn retire(&self, by: Caller, r: RetireRequest) -> Done {
        self.retire_noted(by, r).await
    }

    async fn init(&self, by: Caller, r: InitRequest) -> Done {
        let outcome = self.make_record(r.reason.as_deref().unwrap_or_default().trim()).await;
        self.note("init", &by, &json!(r), &outcome);
        outcome
    }

    async fn explain(&self, node: Option<String>) -> Explain {
        status::explain(&self.shared, node.as_deref())
    }

    async fn history(&self, limit: usize) -> History {
        let shared = self.shared.clone();
        let read = crate::bounded::blocking(HISTORY_WAIT, move || shared.audit.entries()).await;
        let mut lines = read.unwrap_or_else(|why| vec![json!({"event": "unreadable", "message": why})]);
        let over = lines.len().saturating_sub(limit);
        lines.drain(..over);
        History { v: VERSION, lines }
    }

    async fn alert_test(&self, by: Caller, r: TestRequest) -> TestReply {
        let parts = self.shared.parts();
        let (fleet, node) = (parts.config.fleet.to_string(), parts.config.node.name.to_string());
        let now = self.shared.clock.now();
        let only = r.sink.clone();
        let tried =
            fenced(
                async move { crate::alerts::test::try_all(&parts.sinks, only.as_deref(), &fleet, &node, &now).await },
            );
        let results = tried.await.unwrap_or_default();
        let told: Vec<String> = results.iter().map(|r| format!("{}: {}", r.sink, r.message)).collect();
        let reply = crate::alerts::test::reply(results, true, VERSION);
        self.note("alert test", &by, &json!(r), &Done { exit: reply.exit, message: told.join("; "), next: None });
        reply
    }

    async fn reload(&self) -> Done {
        (self.reload)().await
    }
}
