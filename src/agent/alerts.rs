//! The desk behind the book of alerts (`core/alert`): it tells the book what happens, stores it, and sends what is due.
//!
//! Storing and sending wait for nothing but themselves: a disk that refuses delays no page, and no page waits for another
//! one, for each delivery has a task of its own. A page of the cycle machine counts as delivered when one sink has accepted
//! it; every configured sink is owed it nevertheless.

use super::seldom::Seldom;
use super::shared::{Observed, Parts, Shared, World, jitter};
use super::sight;
use super::status::waiting_for;
use super::supervisor::{Task, fenced, spawn};
use super::turn::Request;
use super::turns::Loop;
use super::{evidence, missing};
use crate::alerts::Rendered;
use crate::alerts::text::{Context, render};
use crate::bounded::blocking;
use crate::clock::Clock;
use crate::control::protocol::SILENT_MS;
use crate::core::alert::{Book, Delivered, Delivery, Peers, Sink};
use crate::core::error::{Class, Fault};
use crate::core::finding::Report;
use crate::core::ids::InstanceId;
use crate::core::page::{PageKind, Severity};
use crate::core::reconcile::by_hand;
use crate::core::time::Now;
use crate::state::ledger::{FoundBook, Ledger};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// The stored book is waited for so long; then the agent begins without.
const READ_WAIT: Duration = Duration::from_secs(10);
/// Between two tries to store what the disk refuses, in ms.
const STORE_RETRY_MS: u64 = 5_000;
/// Ends of deliveries that may wait for the desk.
const ENDS_MAX: usize = 64;

/// Something that the desk started has ended.
enum End {
    Delivery(u64, Box<Delivery>, Delivered),
    Stored(Box<Book>, Result<(), String>),
}

/// Runs for ever; the queue is the agent's loop, which forgets what was accepted.
pub async fn deliver<W: World>(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>) {
    // Before anything is waited for: no look is missed.
    let reports = shared.report.subscribe();
    let ledger = open(&shared, &queue).await;
    let (ends, ended) = mpsc::channel(ENDS_MAX);
    let desk = Desk {
        reports,
        parts: None,
        shared,
        queue,
        ledger,
        ends,
        started: 0,
        under_way: BTreeMap::new(),
        acknowledging: BTreeMap::new(),
        acknowledged: BTreeSet::new(),
        storing: None,
        stored: None,
        store_not_before: None,
        refused: Seldom::default(),
        looks: 0,
    };
    desk.run(ended).await;
}

/// The book as the last process left it; once in each process, for a desk that died goes on with what is in memory.
async fn open<W: World>(shared: &Arc<Shared<W>>, queue: &mpsc::Sender<Request>) -> Arc<Ledger<W::Disk>> {
    let now = shared.clock.now();
    if let Some(ledger) = shared.ledger.get() {
        shared.book().started(&now);
        return ledger.clone();
    }
    let (disk, me) = (shared.disk.clone(), shared.instance());
    let read = blocking(READ_WAIT, move || Ledger::open(&disk, &me)).await;
    let (ledger, found) = read.unwrap_or_else(|why| {
        (Ledger::unread(&shared.disk), FoundBook::Lost(format!("the book of alerts could not be read: {why}")))
    });
    match found {
        FoundBook::Fresh => {}
        FoundBook::Kept(kept) => {
            let mut book = shared.book();
            let (fleet, node) = (book.fleet.clone(), book.node.clone());
            *book = *kept;
            (book.fleet, book.node) = (fleet, node);
        }
        FoundBook::Lost(why) => {
            tracing::error!(why, "alerts begin anew; what still fires is found again");
            let message =
                format!("{why}. Alerts begin anew: what still fires is found again, what was over is not told");
            let _ = queue.try_send(Request::Fault(PageKind::AgentFault, Severity::Warning, message.into()));
        }
    }
    shared.book().started(&now);
    let ledger = Arc::new(ledger);
    let _ = shared.ledger.set(ledger.clone());
    ledger
}

struct Desk<W: World> {
    shared: Arc<Shared<W>>,
    queue: mpsc::Sender<Request>,
    ledger: Arc<Ledger<W::Disk>>,
    reports: watch::Receiver<Arc<(Report, Now)>>,
    /// Those of the last turn: others were made by a reload.
    parts: Option<Arc<Parts<W>>>,
    ends: mpsc::Sender<End>,
    started: u64,
    under_way: BTreeMap<u64, Task<()>>,
    acknowledging: BTreeMap<u64, Task<()>>,
    acknowledged: BTreeSet<u64>,
    storing: Option<Task<()>>,
    /// What is on the disk.
    stored: Option<Book>,
    store_not_before: Option<Now>,
    refused: Seldom,
    /// Looks of the observer that have been judged.
    looks: u64,
}

impl<W: World> Desk<W> {
    async fn run(mut self, mut ended: mpsc::Receiver<End>) {
        let mut node = self.shared.node.subscribe();
        let mut observed = self.shared.observed.subscribe();
        let mut reports = self.shared.report.subscribe();
        let clock = self.shared.clock.clone();
        loop {
            let next = self.turn();
            let wait = async {
                match &next {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                end = ended.recv() => match end {
                    Some(end) => self.end(end),
                    None => return,
                },
                changed = node.changed() => if changed.is_err() { return },
                _ = observed.changed() => {}
                _ = reports.changed() => {}
                () = wait => {}
                () = self.shared.turns.waiting(Loop::Pages, &clock) => {}
            }
        }
    }

    /// Tells the book what is so, and does what it owes. When something will be due.
    fn turn(&mut self) -> Option<Now> {
        let (shared, now) = (self.shared.clone(), self.shared.clock.now());
        let (parts, seen, node) = (shared.parts(), shared.observed.borrow().clone(), shared.node.borrow().clone());
        let report = self.reports.has_changed().unwrap_or(false).then(|| self.reports.borrow_and_update().clone());
        let problem = parts.problem.is_some() || shared.cache().reload_problem.is_some();
        let reloaded = self.parts.as_ref().is_some_and(|had| !Arc::ptr_eq(had, &parts));
        self.parts = Some(parts.clone());
        let new_look = std::mem::replace(&mut self.looks, seen.looks) != seen.looks;
        let (due, accepted, next) = {
            let mut book = shared.book();
            book.sinks(parts.sinks.iter().map(|sink| known(&**sink)).collect());
            if reloaded {
                book.reloaded();
            }
            book.peers(peers(&shared.instance(), &seen, parts.config.reconcile.every_ms, &now));
            book.pages(&node.durable.pages, &now);
            if let Some(report) = report {
                book.look(&report.0, &now);
            }
            if new_look {
                evidence::judge(&mut book, &node.durable, &seen, problem, &now);
            }
            book.tick(&now);
            let due = book.due(&now);
            for d in &due {
                book.begin(d, &now);
            }
            (due, book.acknowledged(), book.next_due(&now))
        };
        for delivery in due {
            self.send(parts.clone(), delivery);
        }
        self.acknowledge(accepted);
        let store = self.store(&now);
        [next, store].into_iter().flatten().min_by_key(|at| at.since_boot_ms)
    }

    fn send(&mut self, parts: Arc<Parts<W>>, delivery: Delivery) {
        self.started = self.started.saturating_add(1);
        let (n, shared, ends) = (self.started, self.shared.clone(), self.ends.clone());
        let task = spawn(async move {
            let outcome = send_one(&shared, parts, &delivery).await;
            let _ = ends.send(End::Delivery(n, Box::new(delivery), outcome)).await;
        });
        self.under_way.insert(n, task);
    }

    fn end(&mut self, end: End) {
        let now = self.shared.clock.now();
        match end {
            End::Delivery(n, delivery, outcome) => {
                self.under_way.remove(&n);
                self.shared.book().result(&delivery, &outcome, &now, jitter());
            }
            End::Stored(book, Ok(())) => {
                self.storing = None;
                self.stored = Some(*book);
                if self.refused.over() {
                    tracing::info!("the book of alerts is stored again");
                }
            }
            End::Stored(_, Err(why)) => {
                self.storing = None;
                self.store_not_before = Some(now.plus(STORE_RETRY_MS));
                if let Some(times) = self.refused.due(&now) {
                    tracing::error!(why, times, "the book of alerts is only in memory; pages are sent all the same");
                }
            }
        }
    }

    /// The loop forgets what was accepted; told once, for a queue that is full is waited for.
    fn acknowledge(&mut self, accepted: Vec<u64>) {
        self.acknowledged.retain(|seq| accepted.contains(seq));
        self.acknowledging.retain(|seq, _| accepted.contains(seq));
        for seq in accepted {
            if self.acknowledged.insert(seq) {
                let queue = self.queue.clone();
                let told = spawn(async move {
                    // A loop that is gone needs to forget nothing.
                    let _ = queue.send(Request::PageAccepted(seq)).await;
                });
                self.acknowledging.insert(seq, told);
            }
        }
    }

    /// One at a time, and only what has changed. When the disk is asked again after a refusal.
    fn store(&mut self, now: &Now) -> Option<Now> {
        if self.storing.is_some() {
            return None;
        }
        let book = self.shared.book().at_rest();
        let never = self.stored.is_none() && book.alerts().is_empty();
        if never || self.stored.as_ref() == Some(&book) {
            return None;
        }
        if let Some(at) = self.store_not_before.as_ref().filter(|at| now.boot == at.boot && now.since(at).is_none()) {
            return Some(at.clone());
        }
        let (ledger, ends) = (self.ledger.clone(), self.ends.clone());
        self.storing = Some(spawn(async move {
            let saved = fenced({
                let book = book.clone();
                async move { ledger.save(book).await.map_err(|e| e.to_string()) }
            });
            let saved = saved.await.unwrap_or_else(Err);
            let _ = ends.send(End::Stored(Box::new(book), saved)).await;
        }));
        None
    }
}

fn known(sink: &dyn crate::ports::PageSink) -> Sink {
    Sink { name: sink.name().into(), dedups: sink.dedups(), renew_ms: sink.renew_ms() }
}

/// Members whose beat this agent has seen change lately.
fn peers(me: &InstanceId, seen: &Observed, every_ms: u64, now: &Now) -> Peers {
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let beats =
        |i: &InstanceId| seen.hearts.get(i).is_some_and(|h| now.since(&h.changed).is_some_and(|ms| ms <= SILENT_MS));
    Peers::of(me, members.iter().filter(|m| beats(&m.instance)), every_ms)
}

/// One try. A panic, in the text or in the sink, is a failed one.
async fn send_one<W: World>(shared: &Arc<Shared<W>>, parts: Arc<Parts<W>>, d: &Delivery) -> Delivered {
    let (writer, of, told) = (shared.clone(), parts.clone(), d.clone());
    let rendered = match fenced(async move { written(&writer, &of, &told).map(Arc::new) }).await {
        Ok(Some(rendered)) => rendered,
        Ok(None) => return fault("there is no such alert any more"),
        Err(why) => {
            tracing::error!(page = &*d.id, why, "the text of a page cannot be written");
            return fault(&why);
        }
    };
    let (page, sink) = (rendered.clone(), d.sink.clone());
    let sent = fenced(async move {
        match parts.sinks.iter().find(|s| *s.name() == *sink) {
            Some(sink) => sink.deliver(&page).await,
            None => Err(Fault::transport("this sink is no longer configured")),
        }
    });
    let sent = sent.await.unwrap_or_else(|why| Err(Fault::transport(format!("sending the page ended in {why}"))));
    let sink = d.sink.to_string();
    match sent {
        Ok(()) => {
            tracing::info!(page = rendered.id, key = rendered.key, event = rendered.event, sink, "page accepted");
            let at = shared.clock.now();
            let seq = shared.book().get(&d.about).and_then(|a| a.page.as_ref()).map_or(0, |p| p.seq);
            let mut cache = shared.cache();
            cache.page_accepted = Some((seq, at));
            cache.page_told = Some((rendered.kind.clone(), sink.clone()));
            cache.page_faults.remove(&sink);
            Delivered::Accepted
        }
        Err(fault) => {
            tracing::error!(page = rendered.id, key = rendered.key, sink, fault = %fault, "page not accepted");
            let why: Arc<str> = fault.message.as_str().into();
            let retry_after_ms = fault.retry_after_ms;
            let class = fault.class;
            shared.cache().page_faults.insert(sink, fault);
            match class {
                Class::Auth | Class::Refused => Delivered::Refused { why },
                Class::Transport | Class::Throttled | Class::NotReady | Class::OutcomeUnknown => {
                    Delivered::Fault { why, retry_after_ms }
                }
            }
        }
    }
}

fn fault(why: &str) -> Delivered {
    Delivered::Fault { why: why.into(), retry_after_ms: None }
}

/// The page with what is known now: what was folded into it meanwhile belongs to it.
fn written<W: World>(shared: &Shared<W>, parts: &Parts<W>, d: &Delivery) -> Option<Rendered> {
    let now = shared.clock.now();
    let seen = shared.observed.borrow().clone();
    let node = shared.node.borrow().clone();
    let (alert, listed) = {
        let book = shared.book();
        (book.get(&d.about)?.clone(), book.listed(&d.about))
    };
    let cycle = node.durable.cycle.as_ref().filter(|_| alert.own);
    let settings = sight::settings(&parts.config);
    let known = sight::known(&seen, &settings, &now);
    let context = Context {
        fleet: parts.config.fleet.to_string(),
        node: parts.config.node.name.to_string(),
        in_service: seen.fleet.as_ref().map(|v| (v.in_service_count(), now.since(&v.begun).unwrap_or(0))),
        members: seen.fleet.as_ref().and_then(|v| u32::try_from(v.members.len()).ok()),
        floor: parts.config.minimum_during_patch,
        targets: match cycle {
            Some(c) => c.plan.targets.iter().map(|t| t.target.clone()).collect(),
            None => by_hand::targets(&d.about, &known),
        },
        now_ms: now.wall_ms,
        doing: cycle.map(|c| waiting_for(c, &node.seen, &now)),
        listed,
        missing: if alert.kind.lacks_nodes() { missing::of(shared, parts, &seen) } else { Vec::new() },
    };
    Some(render(&alert, d, &context))
}
