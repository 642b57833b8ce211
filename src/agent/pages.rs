//! Delivers what waits in the durable state. A page counts as delivered when a sink has accepted it; until then it waits,
//! across restarts too.

use super::shared::{Parts, Shared, World, jitter};
use super::status::waiting_for;
use super::turn::Request;
use crate::alerts::Rendered;
use crate::alerts::text::{Context, render};
use crate::clock::Clock;
use crate::core::error::Schedule;
use crate::core::page::Page;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Between tries at a sink that does not accept.
const PACE: Schedule = Schedule { base_ms: 2_000, cap_ms: 60_000 };

/// Runs for ever; the queue is the agent's loop, which forgets what was accepted. One page that no sink takes does not hold
/// back the others.
pub async fn deliver<W: World>(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>) {
    let mut node = shared.node.subscribe();
    let mut tries = 0_u32;
    loop {
        let waiting = node.borrow_and_update().durable.pages.clone();
        if waiting.is_empty() {
            tries = 0;
            if node.changed().await.is_err() {
                return;
            }
            continue;
        }
        let mut retry_after_ms = None;
        let mut left = 0_usize;
        for page in &waiting {
            let parts = shared.parts();
            match send(&shared, &parts, page).await {
                Ok(()) => {
                    shared.cache().page_accepted = Some((page.seq, shared.clock.now()));
                    if queue.send(Request::PageAccepted(page.seq)).await.is_err() {
                        return;
                    }
                    // Until the loop has forgotten it, it would be sent again.
                    let gone = |v: &Arc<super::shared::NodeView>| v.durable.pages.iter().all(|p| p.seq != page.seq);
                    if node.wait_for(gone).await.is_err() {
                        return;
                    }
                }
                Err(wait) => {
                    left = left.saturating_add(1);
                    retry_after_ms = retry_after_ms.max(wait);
                }
            }
        }
        if left > 0 {
            let wait = PACE.wait_ms(tries, jitter(), retry_after_ms);
            tries = tries.saturating_add(1);
            shared.clock.sleep_ms(wait).await;
        }
    }
}

/// All sinks get it; one acceptance is enough. `Err`: how long the sinks ask to be left alone, in ms.
async fn send<W: World>(shared: &Shared<W>, parts: &Parts<W>, page: &Page) -> Result<(), Option<u64>> {
    let rendered = written(shared, parts, page);
    let (mut accepted, mut wait) = (false, None);
    for sink in &parts.sinks {
        match sink.deliver(&rendered).await {
            Ok(()) => {
                tracing::info!(page = rendered.id, key = rendered.key, sink = sink.name(), "page accepted");
                shared.cache().page_told = Some((page.kind.label(), sink.name()));
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
