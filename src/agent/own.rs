//! Reconcile's look at the own node, after each look of the observer: what it may put right by itself (`core/heal.rs`).

use super::shared::{Parts, World, nonce};
use super::turn::Agent;
use crate::clock::Clock;
use crate::core::heal::{Heal, heal};
use crate::core::ids::InstanceId;
use crate::core::record::{Op, Record};
use crate::core::time::{Dwell, Now};
use crate::fleet::Outcome;
use crate::ports::{Host, LoadBalancer, NodeCheck};
use serde_json::json;

impl<W: World> Agent<W> {
    /// Reconcile's look at the own node, after each look of the observer.
    pub(super) async fn look_at_self(&mut self) {
        let parts = self.shared.parts();
        let seen = self.shared.observed.borrow().clone();
        let now = self.shared.clock.now();
        if !parts.acts() || parts.host.shutting_down() || seen.faults.contains_key("load balancer") {
            return;
        }
        let record = seen.record.as_ref().filter(|_| !seen.faults.contains_key("fleet record")).map(|(r, _)| r);
        let me = self.shared.instance();
        // Without a record only the registration may be put right: nothing is freed that it might explain.
        if let (true, Some(record)) = (self.stateless, record) {
            self.stateless = false;
            if let Some(why) = known_to(record, &me) {
                tracing::error!(why, "no state of its own, and the record knows this instance: latched, way back only");
                self.quarantine = Some(why);
                return self.plan_quarantine().await;
            }
        }
        let off = self.healing_is_off(record, &now);
        // The core takes the record's word for it; whether its time is over is counted here.
        let timed = record.map(|r| Record { hold_all: r.hold_all.clone().filter(|_| off), ..r.clone() });
        if off && record.is_none() {
            return;
        }
        match heal(self.journal.now(), &seen.own, timed.as_ref(), &me, &parts.rules()) {
            None => self.out = None,
            Some(Heal::Register(group)) => {
                let after = parts.config.reconcile.self_heal_after_ms;
                let since = self.out.get_or_insert_with(|| Dwell::start(&now, after)).clone();
                if since.over(&now) {
                    self.heal_registration(&parts, group).await;
                }
            }
            Some(Heal::FreeSlot(cycle)) => {
                let op = Op::Free { instance: me, cycle, latch: None, finished: None };
                self.heal_record(&parts, &op).await;
            }
            Some(Heal::EndHold) => self.heal_record(&parts, &Op::EndHold { instance: me }).await,
        }
    }

    /// `hold --all`, for its stated time: counted here from this agent's own first sight of it.
    fn healing_is_off(&mut self, record: Option<&Record>, now: &Now) -> bool {
        let Some(record) = record else {
            // Unknown: what was last seen stays in force for its time.
            return self.hold_all.as_ref().is_some_and(|(_, until)| !until.over(now));
        };
        let Some(hold) = &record.hold_all else {
            self.hold_all = None;
            return false;
        };
        let seen = self.hold_all.take().filter(|(order, _)| *order == hold.order);
        let (order, until) =
            seen.unwrap_or_else(|| (hold.order.clone(), Dwell::start(now, hold.for_s.saturating_mul(1_000))));
        let over = until.over(now);
        self.hold_all = Some((order, until));
        !over
    }

    async fn heal_registration(&mut self, parts: &Parts<W>, group: usize) {
        let Ok(own) = self.shared.own_targets(parts, u64::MAX).await else { return };
        let Some(t) = own.get(group) else { return };
        if let Err(fault) = parts.check.check(&parts.config.check_settings()).await {
            tracing::warn!(%fault, target = %t.target, "out of service, and the node check does not pass");
            return;
        }
        tracing::warn!(target = %t.target, "not registered and no cycle explains it: registering");
        let result = parts.balancer.register(&t.target).await;
        let at = crate::alerts::text::rfc3339(self.shared.clock.now().wall_ms);
        let outcome = result.as_ref().err().map(ToString::to_string);
        self.shared
            .audit
            .record(&json!({"at": at, "event": "self-heal", "target": t.target.to_string(), "fault": outcome}));
    }

    /// Frees what this node does not remember; only while its state is on the disk.
    async fn heal_record(&mut self, parts: &Parts<W>, op: &Op) {
        if self.journal.committed().is_none() {
            return;
        }
        let outcome = parts.fleet.change(op, &parts.rules(), nonce).await;
        match outcome {
            Outcome::Acked(_) => tracing::info!(?op, "an entry of this instance that no cycle explains was removed"),
            Outcome::Refused(_) | Outcome::Unanswered(_) => {
                tracing::warn!(?outcome, "an entry of this instance could not be removed");
            }
        }
    }
}

/// What the record says of an instance that has no state of its own: then that state was lost.
fn known_to(record: &Record, me: &InstanceId) -> Option<String> {
    let slot = record.slots.get(me)?;
    Some(format!(
        "this node has no state, but the fleet record has a slot for its cycle {} (job {})",
        slot.cycle, slot.job
    ))
}
