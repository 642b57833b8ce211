//! When this agent first saw what the record says. Nothing expires by comparing two hosts' clocks: budgets, holds and pauses
//! are counted from here.

use super::super::ids::{CycleId, InstanceId};
use super::super::record::{Pause, Record};
use super::super::time::Now;
use std::collections::BTreeMap;

/// First sights. As large as the record itself: what has left the record is forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstSeen {
    slots: BTreeMap<CycleId, Now>,
    holds: BTreeMap<InstanceId, (Pause, Now)>,
    pause: Option<(Pause, Now)>,
    hold_all: Option<(Pause, Now)>,
    latches: BTreeMap<CycleId, Now>,
}

/// An order keeps its first sight as long as it is the same one.
fn keep(known: &mut Option<(Pause, Now)>, order: Option<&Pause>, begun: &Now) {
    *known = order.map(|o| match known.take() {
        Some((same, at)) if same == *o => (same, at),
        _ => (o.clone(), begun.clone()),
    });
}

impl FirstSeen {
    /// Takes in a record that was read just now; `begun` is when that read began.
    pub fn see(&mut self, record: &Record, begun: &Now) {
        self.slots.retain(|c, _| record.slots.values().any(|s| s.cycle == *c));
        for slot in record.slots.values() {
            self.slots.entry(slot.cycle.clone()).or_insert_with(|| begun.clone());
        }
        self.holds.retain(|i, (order, _)| record.holds.get(i).is_some_and(|h| h.order == *order));
        for (instance, hold) in &record.holds {
            self.holds.entry(instance.clone()).or_insert_with(|| (hold.order.clone(), begun.clone()));
        }
        let open = |c: &CycleId| record.latches.get(c).is_some_and(|l| l.cleared.is_none());
        self.latches.retain(|c, _| open(c));
        for cycle in record.latches.keys().filter(|c| open(c)) {
            self.latches.entry(cycle.clone()).or_insert_with(|| begun.clone());
        }
        keep(&mut self.pause, record.pause.as_ref(), begun);
        keep(&mut self.hold_all, record.hold_all.as_ref().map(|h| &h.order), begun);
    }

    /// How long the slot of this cycle has been seen, in ms; one that was never seen is new.
    pub fn slot_ms(&self, cycle: &CycleId, now: &Now) -> u64 {
        self.slots.get(cycle).map_or(0, |at| now.roughly_since(at))
    }

    /// How long this instance has been seen held by its present order.
    pub fn hold_ms(&self, instance: &InstanceId, now: &Now) -> u64 {
        self.holds.get(instance).map_or(0, |(_, at)| now.roughly_since(at))
    }

    /// How long the present pause has been seen.
    pub fn pause_ms(&self, now: &Now) -> u64 {
        self.pause.as_ref().map_or(0, |(_, at)| now.roughly_since(at))
    }

    /// How long the present `hold --all` has been seen.
    pub fn hold_all_ms(&self, now: &Now) -> u64 {
        self.hold_all.as_ref().map_or(0, |(_, at)| now.roughly_since(at))
    }

    /// How long the latch of this cycle has been seen.
    pub fn latch_ms(&self, cycle: &CycleId, now: &Now) -> u64 {
        self.latches.get(cycle).map_or(0, |at| now.roughly_since(at))
    }
}
