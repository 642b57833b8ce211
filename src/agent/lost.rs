//! What becomes of a node that has lost its state: latched and paged at once, its jobs killed, put back if it passes.

use super::facts::{self, Asked};
use super::shared::{Parts, World, nonce};
use super::turn::{Agent, DISK_RETRY_MS};
use crate::clock::Clock;
use crate::core::cycle::{Doubt, lost_latch};
use crate::core::event::Event;
use crate::core::ids::CycleId;
use crate::core::page::{PageKind, Severity};
use crate::core::plan::{Kind, Plan};
use crate::core::record::Op;
use crate::fleet::Outcome;
use crate::ports::Jobs;
use std::sync::Arc;

impl<W: World> Agent<W> {
    /// Which cycle the lost state was about, as far as the record or the job runner can tell: its slot is to be freed, its
    /// job killed. Else a name of its own.
    pub(super) async fn lost_cycle(&self) -> CycleId {
        let parts = self.shared.parts();
        if let Some(slot) = parts.fleet.read().await.ok().and_then(|r| r.slots.get(&self.shared.instance()).cloned()) {
            return slot.cycle;
        }
        match parts.jobs.running().await.as_deref() {
            Ok([cycle]) => cycle.as_str().into(),
            Ok(_) | Err(_) => facts::new_cycle_id(),
        }
    }

    /// This node's state is gone: latch, page, and put the node back if it passes. Tried until its way back can be planned.
    pub(super) async fn plan_quarantine(&mut self) {
        let Some(Doubt::Lost { why, cycle }) = self.journal.now().doubt.clone() else { return };
        let parts = self.shared.parts();
        let now = self.shared.clock.now();
        if parts.config.mode == crate::config::Mode::Observe {
            // Nothing is written to AWS, and this node took nothing out: a person hears, and that is all.
            self.event(&Event::Doubt(None)).await;
            let message = format!("{why}; this agent observes, so nothing else is done");
            return self.raise(PageKind::AgentFault, Severity::Critical, message.into()).await;
        }
        if !self.lost_latched {
            // Before anything that may take its time: no other node may start on top of this.
            let latch = lost_latch(&self.shared.instance(), &self.shared.node_name(), &why, &now);
            let op = Op::AddLatch { cycle: cycle.clone(), latch };
            self.lost_latched = matches!(parts.fleet.change(&op, &parts.rules(), nonce).await, Outcome::Acked(_));
        }
        let why = if self.kill_forgotten(&parts, &cycle).await {
            format!("{why}; its job still ran and is killed: see what it left behind").into()
        } else {
            why
        };
        let asked = Asked { by: "backstop".into(), ..Asked::default() };
        match self.plan(&parts, Kind::Recovery, asked).await {
            Ok(plan) => self.event(&Event::StateLost(Arc::new(Plan { id: cycle, ..plan }), why)).await,
            Err(fault) => {
                tracing::error!(%fault, "the way back of this node cannot be planned yet");
                if !self.lost_paged {
                    self.lost_paged = true;
                    let message = format!("{why}; its way back cannot be planned yet, and is tried again: {fault}");
                    self.raise(PageKind::AgentFault, Severity::Critical, message.into()).await;
                }
                self.stalled = Some(now.plus(DISK_RETRY_MS));
            }
        }
    }

    /// Jobs that this node no longer knows of. The lost cycle's own one is killed on its way back: true where it runs.
    async fn kill_forgotten(&self, parts: &Parts<W>, cycle: &CycleId) -> bool {
        let mut runs = false;
        for job in parts.jobs.running().await.unwrap_or_default() {
            if job == cycle.as_str() {
                runs = true;
            } else {
                tracing::warn!(job, "a job that no state knows of is killed");
                if let Err(fault) = parts.jobs.kill(&job).await {
                    tracing::error!(job, %fault, "it could not be killed");
                }
            }
        }
        runs
    }
}
