//! Delivers what waits in the durable state. A page counts as delivered when a sink has accepted it; until then it waits,
//! across restarts too.

use super::shared::{Parts, Shared, World, jitter};
use super::status::waiting_for;
use super::supervisor::{Task, fenced, spawn};
use super::turn::Request;
use super::turns::Loop;
use crate::alerts::Rendered;
use crate::alerts::text::{Context, render};
use crate::clock::Clock;
use crate::core::error::{Fault, Schedule};
use crate::core::page::Page;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Between tries to deliver one page. A sink's `Retry-After` is honoured up to the schedule's own limit.
const PACE: Schedule = Schedule { base_ms: 2_000, cap_ms: 60_000 };

/// Runs for ever; the queue is the agent's loop, which forgets what was accepted. Every page has a task and a pace of its
/// own: none waits behind another. There are never more than the durable state holds.
pub async fn deliver<W: World>(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>) {
    let mut node = shared.node.subscribe();
    let mut under_way: BTreeMap<u64, Task<()>> = BTreeMap::new();
    loop {
        let waiting: Vec<u64> = node.borrow_and_update().durable.pages.iter().map(|page| page.seq).collect();
        under_way.retain(|seq, _| waiting.contains(seq));
        for seq in waiting {
            under_way.entry(seq).or_insert_with(|| spawn(deliver_one(shared.clone(), queue.clone(), seq)));
        }
        tokio::select! {
            changed = node.changed() => if changed.is_err() {
                return;
            },
            () = shared.turns.waiting(Loop::Pages, &shared.clock) => {}
        }
    }
}

/// Until it is accepted. It is not sent again before the loop has forgotten it, which ends this task.
async fn deliver_one<W: World>(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>, seq: u64) {
    let mut tries = 0_u32;
    loop {
        // Read again each time: what was folded into it meanwhile belongs to it.
        let page = shared.node.borrow().durable.pages.iter().find(|page| page.seq == seq).cloned();
        let Some(page) = page else { return };
        match send(&shared, page).await {
            Ok(()) => break,
            Err(retry_after_ms) => {
                let wait_ms = PACE.wait_ms(tries, jitter(), retry_after_ms);
                tries = tries.saturating_add(1);
                shared.clock.sleep_ms(wait_ms).await;
            }
        }
    }
    shared.cache().page_accepted = Some((seq, shared.clock.now()));
    // A loop that is gone needs to forget nothing.
    let _ = queue.send(Request::PageAccepted(seq)).await;
}

/// All sinks get it; one acceptance is enough. `Err`: how long the sinks ask to be left alone, in ms. A panic, in the text
/// or in a sink, is a failed try.
async fn send<W: World>(shared: &Arc<Shared<W>>, page: Page) -> Result<(), Option<u64>> {
    let parts = shared.parts();
    let (seq, kind, writer, of) = (page.seq, page.kind, shared.clone(), parts.clone());
    let rendered = match fenced(async move { Arc::new(written(&writer, &of, &page)) }).await {
        Ok(rendered) => rendered,
        Err(why) => {
            tracing::error!(page = seq, why, "the text of a page cannot be written");
            return Err(None);
        }
    };
    let (mut accepted, mut wait) = (false, None);
    for (i, sink) in parts.sinks.iter().enumerate() {
        match send_to(parts.clone(), i, rendered.clone()).await {
            Ok(()) => {
                tracing::info!(page = rendered.id, key = rendered.key, sink = sink.name(), "page accepted");
                shared.cache().page_told = Some((kind.label(), sink.name()));
                shared.cache().page_faults.remove(sink.name());
                accepted = true;
            }
            Err(fault) => {
                tracing::error!(page = rendered.id, key = rendered.key, sink = sink.name(), fault = %fault, "page not accepted");
                wait = wait.max(fault.retry_after_ms);
                shared.cache().page_faults.insert(sink.name(), fault);
            }
        }
    }
    if accepted { Ok(()) } else { Err(wait) }
}

async fn send_to<W: World>(parts: Arc<Parts<W>>, sink: usize, rendered: Arc<Rendered>) -> Result<(), Fault> {
    let sent = fenced(async move {
        match parts.sinks.get(sink) {
            Some(sink) => sink.deliver(&rendered).await,
            None => Ok(()),
        }
    });
    sent.await.unwrap_or_else(|why| Err(Fault::transport(format!("sending the page ended in {why}"))))
}

fn written<W: World>(shared: &Shared<W>, parts: &Parts<W>, page: &Page) -> Rendered {
    let now = shared.clock.now();
    let seen = shared.observed.borrow().clone();
    let node = shared.node.borrow().clone();
    let targets = match &node.durable.cycle {
        Some(c) => c.plan.targets.iter().map(|t| t.target.clone()).collect(),
        None => Vec::new(),
    };
    let context = Context {
        fleet: parts.config.fleet.to_string(),
        node: parts.config.node.name.to_string(),
        in_service: seen.fleet.as_ref().map(|v| (v.in_service_count(), now.since(&v.begun).unwrap_or(0))),
        members: seen.fleet.as_ref().and_then(|v| u32::try_from(v.members.len()).ok()),
        floor: parts.config.minimum_during_patch,
        targets,
        now_ms: now.wall_ms,
        doing: node.durable.cycle.as_ref().map(|c| waiting_for(c, &node.seen, &now)),
    };
    render(page, &context)
}
