//! Reconcile's look at the own node, after each look of the observer: what it may put right by itself (`core/heal.rs`).

use super::facts::Asked;
use super::shared::{Parts, World, jitter, nonce};
use super::turn::{Absent, Agent};
use crate::clock::Clock;
use crate::core::cycle::Doubt;
use crate::core::event::Event;
use crate::core::heal::{Heal, heal, out, used_up, wait_ms};
use crate::core::plan::Kind;
use crate::core::record::{Op, Record, RecordSeen};
use crate::core::target::Own;
use crate::core::time::Dwell;
use crate::fleet::Outcome;
use crate::ports::{Host, LoadBalancer, NodeCheck};
use serde_json::json;
use std::sync::Arc;

/// Said when self-heal has done what it may.
const NO_MORE: &str = "this node was deregistered by another hand three times in 24 hours and has registered itself each \
                       time; it stays OUT now until somebody has found out who does that (then: backstop rejoin)";

impl<W: World> Agent<W> {
    /// Reconcile's look at the own node, after each look of the observer.
    pub(super) async fn look_at_self(&mut self) {
        let parts = self.shared.parts();
        let seen = self.shared.observed.borrow().clone();
        let now = self.shared.clock.now();
        let blind = seen.faults.contains_key("load balancer");
        let own: &[Own] = if blind { &[] } else { &seen.own };
        let record = seen.record.as_ref().filter(|_| !seen.faults.contains_key("fleet record")).map(|(r, _)| r);
        if let Some(record) = record {
            self.note_record(&parts, record).await;
            if self.unproven() && self.prove(&parts, record, own).await {
                return;
            }
        }
        self.off.see(record, &now);
        if seen.terminating {
            return self.say_goodbye(&parts, record).await;
        }
        if let (Some(record), true) = (record, parts.acts()) {
            self.latch_lost_slots(&parts, &seen, record).await;
        }
        if !parts.acts() || blind {
            return;
        }
        let me = self.shared.instance();
        if let (Some(order), Some(_)) = (self.off.over(&now).cloned(), record.filter(|r| r.hold_all.is_some())) {
            // Whoever saw it first ends it for all: a restart of another agent must not begin its time again.
            self.heal_record(&parts, &Op::EndHoldAll(order)).await;
        }
        match heal(self.journal.now(), own, record, self.off.is_on(&now), &me, &parts.rules()) {
            None => {
                self.out = None;
                let mut cache = self.shared.cache();
                (cache.heals_at, cache.heals_no_more) = (None, None);
            }
            Some(Heal::Register) => {
                let below_floor = seen.fleet.as_ref().is_some_and(|v| {
                    v.in_service_count() < parts.config.minimum_during_patch && now.since(&v.begun).is_some()
                });
                let (every, after) = (parts.config.reconcile.every_ms, parts.config.reconcile.self_heal_after_ms);
                let new = || Absent { since: now.clone(), drawn: jitter(), below_floor };
                let absent = self.out.get_or_insert_with(new);
                absent.below_floor |= below_floor;
                let due = Dwell::start(&absent.since, wait_ms(after, absent.below_floor, every, absent.drawn));
                self.shared.cache().heals_at = Some(due.over_at(&now));
                if !due.over(&now) {
                    return;
                }
                if used_up(self.journal.now(), &now) {
                    // Somebody takes it out again and again: it stays out until a person has found out who.
                    self.shared.cache().heals_no_more = Some(NO_MORE.into());
                    return;
                }
                // One read is acted on once: the next one shows what came of it.
                let fresh = seen.own_at.is_some() && self.healed_on != seen.own_at;
                // Traffic for a machine that goes down would be lost; the next boot puts it right.
                if fresh && !parts.host.shutting_down().await {
                    self.healed_on.clone_from(&seen.own_at);
                    self.heal_registration(&parts, own).await;
                }
            }
            Some(Heal::FreeSlot(cycle)) => {
                let op = Op::Free { instance: me, cycle, latch: None, finished: None };
                self.heal_record(&parts, &op).await;
            }
            Some(Heal::EndHold) => self.heal_record(&parts, &Op::EndHold { instance: me }).await,
        }
    }

    /// How far the record had come is kept: after a restart, too, an older copy of it proves nothing.
    async fn note_record(&mut self, parts: &Parts<W>, record: &Record) {
        let seen = RecordSeen { fleet: parts.config.fleet.as_str().into(), counter: record.counter };
        if self.journal.now().record.as_ref() != Some(&seen) {
            self.event(&Event::RecordSeen(seen)).await;
        }
    }

    /// A cycle that began in the meantime (a return, while the record could not be read) comes first.
    fn unproven(&self) -> bool {
        let d = self.journal.now();
        d.doubt == Some(Doubt::Unproven) && d.cycle.is_none()
    }

    /// Before a cycle begins: its own slot must not be taken for one of the time before.
    pub(super) async fn prove_first(&mut self, parts: &Arc<Parts<W>>) {
        if self.unproven()
            && let Ok(record) = parts.fleet.read().await
        {
            let seen = self.shared.observed.borrow().clone();
            let own: &[Own] = if seen.faults.contains_key("load balancer") { &[] } else { &seen.own };
            self.prove(parts, &record, own).await;
        }
    }

    /// A node without state asks the record about itself: a slot means that its state was lost, a hold that it is held.
    /// True where a cycle begins, or is to begin.
    async fn prove(&mut self, parts: &Arc<Parts<W>>, record: &Record, own: &[Own]) -> bool {
        let me = self.shared.instance();
        if let Some(slot) = record.slots.get(&me) {
            let why = format!(
                "this node has no state, but the fleet record has a slot for its cycle {} (job {})",
                slot.cycle, slot.job
            );
            tracing::error!(why, "latched, way back only");
            let lost = Doubt::Lost { why: why.into(), cycle: slot.cycle.clone() };
            self.event(&Event::Doubt(Some(lost))).await;
            self.plan_quarantine().await;
            return true;
        }
        let unknown = own.is_empty() || own.contains(&Own::Unknown);
        if unknown && record.holds.contains_key(&me) {
            return true; // whether it is held out is not told yet: nothing is decided on that
        }
        let out = own.iter().all(|o| !o.registered());
        if let (Some(hold), true) = (record.holds.get(&me), out) {
            let asked = Asked { by: hold.order.by.clone(), ..Asked::default() };
            match self.plan(parts, Kind::Hold(hold.clone()), asked).await {
                Ok(plan) => self.event(&Event::Adopt(Arc::new(plan))).await,
                Err(fault) => tracing::warn!(%fault, "held by the record; its cycle cannot be planned yet"),
            }
            return true;
        }
        self.event(&Event::Doubt(None)).await;
        false
    }

    /// Registers the own target wherever it is not. A call that is not accepted is made again after the next look, and only
    /// what was accepted counts for the day.
    async fn heal_registration(&mut self, parts: &Parts<W>, own: &[Own]) {
        let Ok(targets) = self.shared.own_targets(parts, u64::MAX).await else { return };
        if let Err(fault) = parts.check.check(&parts.config.check_settings()).await {
            tracing::warn!(%fault, "out of service, and the node check does not pass");
            return;
        }
        let mut accepted = false;
        for (t, _) in targets.iter().zip(own).filter(|(_, own)| out(own)) {
            tracing::warn!(target = %t.target, "not registered and no cycle explains it: registering");
            let result = parts.balancer.register(&t.target).await;
            let at = crate::alerts::text::rfc3339(self.shared.clock.now().wall_ms);
            let outcome = result.as_ref().err().map(ToString::to_string);
            accepted |= result.is_ok();
            let line = json!({"at": at, "event": "self-heal", "target": t.target.to_string(), "fault": outcome});
            self.shared.audit.record(&line);
        }
        if accepted {
            // Its time begins anew: the load balancer may take a moment to show it.
            self.out = None;
            self.event(&Event::Healed).await;
        }
    }

    /// Frees what this node does not remember; only while its state is on the disk.
    async fn heal_record(&mut self, parts: &Parts<W>, op: &Op) {
        if self.journal.committed().is_none() {
            return;
        }
        let outcome = parts.fleet.change(op, &parts.rules(), nonce).await;
        match outcome {
            Outcome::Acked(record) => {
                tracing::info!(?op, "an entry of this instance that no cycle explains was removed");
                self.shared.saw_record(*record);
            }
            Outcome::Refused(_) | Outcome::Unanswered(_) => {
                tracing::warn!(?outcome, "an entry of this instance could not be removed");
            }
        }
    }
}
