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

/// Runs for ever; the queue is the agent's loop, which forgets what was accepted.
pub async fn deliver<W: World>(shared: Arc<Shared<W>>, queue: mpsc::Sender<Request>) {
    let mut node = shared.node.subscribe();
    let mut tries = 0_u32;
    loop {
        let next = node.borrow_and_update().durable.pages.first().cloned();
        let Some(page) = next else {
            if node.changed().await.is_err() {
                return;
            }
            continue;
        };
        let parts = shared.parts();
        if send(&shared, &parts, &page).await {
            tries = 0;
            shared.cache().page_accepted = Some((page.seq, shared.clock.now()));
            if queue.send(Request::PageAccepted(page.seq)).await.is_err() {
                return;
            }
            // Until the loop has forgotten it, it is still first.
            let gone = |v: &Arc<super::shared::NodeView>| v.durable.pages.iter().all(|p| p.seq != page.seq);
            if node.wait_for(gone).await.is_err() {
                return;
            }
        } else {
            let wait = PACE.wait_ms(tries, jitter(), None);
            tries = tries.saturating_add(1);
            shared.clock.sleep_ms(wait).await;
        }
    }
}

/// All sinks get it; one acceptance is enough.
async fn send<W: World>(shared: &Shared<W>, parts: &Parts<W>, page: &Page) -> bool {
    let rendered = written(shared, parts, page);
    let mut accepted = false;
    for sink in &parts.sinks {
        match sink.deliver(&rendered).await {
            Ok(()) => {
                tracing::info!(page = rendered.id, key = rendered.key, sink = sink.name(), "page accepted");
                shared.cache().page_faults.remove(sink.name());
                accepted = true;
            }
            Err(fault) => {
                tracing::error!(page = rendered.id, key = rendered.key, sink = sink.name(), fault = %fault, "page not accepted");
                shared.cache().page_faults.insert(sink.name(), fault);
            }
        }
    }
    accepted
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
