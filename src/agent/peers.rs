//! What others have left behind: a slot whose holder is gone, or has not come home in the time that it stated, becomes a
//! latch. And the own goodbye, when this instance is being terminated.

use super::shared::{Observed, Parts, World, nonce};
use super::turn::Agent;
use crate::clock::Clock;
use crate::core::record::{Extra, Latch, Op, Record, Slot};
use crate::fleet::Outcome;

/// Why a slot of somebody else has become a latch; `None` = it has not.
fn lost(slot: &Slot, seen_ms: u64, is_member: bool) -> Option<String> {
    if !is_member {
        return Some(format!("{} held the slot for cycle {} and is no member any more", slot.node, slot.cycle));
    }
    (seen_ms >= slot.budget_s.saturating_mul(1_000)).then(|| {
        let budget_s = slot.budget_s;
        format!("{} has not come home in the {budget_s} s that its cycle {} stated", slot.node, slot.cycle)
    })
}

impl<W: World> Agent<W> {
    /// Any peer says so; whoever comes first is enough, since the latch has the cycle's name.
    pub(super) async fn latch_lost_slots(&mut self, parts: &Parts<W>, seen: &Observed, record: &Record) {
        let (me, now) = (self.shared.instance(), self.shared.clock.now());
        let Some((members, read)) = seen.members.as_ref().filter(|_| !seen.faults.contains_key("members")) else {
            return;
        };
        for (instance, slot) in record.slots.iter().filter(|(i, s)| **i != me && !record.latches.contains_key(&s.cycle))
        {
            // Nothing is told by comparing two hosts' clocks: its budget runs from this agent's first sight of it, and the
            // members that count were read after that.
            let seen_ms = seen.first.slot_ms(&slot.cycle, &now);
            let read_ms = now.since(read).unwrap_or(u64::MAX);
            let is_member = read_ms >= seen_ms || members.iter().any(|m| m.instance == *instance);
            let Some(why) = lost(slot, seen_ms, is_member) else { continue };
            let latch = Latch::lost(instance, slot, &why, &now);
            match parts.fleet.change(&Op::AddLatch { cycle: slot.cycle.clone(), latch }, &parts.rules(), nonce).await {
                Outcome::Acked(record) => {
                    tracing::error!(cycle = %slot.cycle, why, "latched for a peer");
                    self.shared.saw_record(*record);
                }
                outcome @ (Outcome::Refused(_) | Outcome::Unanswered(_)) => {
                    tracing::warn!(cycle = %slot.cycle, why, ?outcome, "a peer's slot is lost, and its latch is not set yet");
                }
            }
        }
    }

    /// This instance is being terminated: it is no member any more, and what it was at is a failure.
    pub(super) async fn say_goodbye(&mut self, parts: &Parts<W>, record: Option<&Record>) {
        let me = self.shared.instance();
        let Some(record) = record else { return };
        if self.journal.committed().is_none() || !(record.slots.contains_key(&me) || record.holds.contains_key(&me)) {
            return;
        }
        let now = self.shared.clock.now();
        let slot = record.slots.get(&me).cloned().unwrap_or_else(|| Slot {
            cycle: "none".into(),
            node: self.shared.node_name(),
            job: "none".into(),
            budget_s: 0,
            since_ms: now.wall_ms,
            extra: Extra::default(),
        });
        let latch = Latch::lost(&me, &slot, "its instance was terminated in the middle of its cycle", &now);
        let outcome = parts.fleet.change(&Op::Goodbye { instance: me, latch }, &parts.rules(), nonce).await;
        match outcome {
            Outcome::Acked(record) => {
                tracing::warn!(cycle = %slot.cycle, "this instance is being terminated: its slot is free, a latch stays");
                self.shared.saw_record(*record);
            }
            Outcome::Refused(_) | Outcome::Unanswered(_) => {
                tracing::warn!(?outcome, "this instance is being terminated, and the record does not say so yet");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_lost_when_its_time_is_over_by_the_own_clock_or_its_holder_is_gone() {
        let slot = Slot {
            cycle: "c-1".into(),
            node: "es-client-2".into(),
            job: "kernel".into(),
            budget_s: 60,
            since_ms: 0, // by its holder's clock, ages ago: means nothing
            extra: Extra::default(),
        };
        let lost = |seen_ms, member| lost(&slot, seen_ms, member).is_some();
        assert!(!lost(59_999, true) && lost(60_000, true));
        assert!(lost(1, false), "nobody brings it home");
    }
}
