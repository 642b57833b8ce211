//! The fleet record: one document per fleet, changed only by compare-and-set, only by [`apply`].
//!
//! A yes is an acknowledged write. Counter and nonce make each write distinct: an acknowledged one makes every older
//! unanswered one void, since its expected version no longer fits.

use super::ids::{CycleId, InstanceId, LatchId, NodeName};
use super::rules::{Mutant, Rules};
use super::time::Now;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The schema this version writes.
pub const SCHEMA: u32 = 1;
/// Finished cycles kept for people, however old.
pub const FINISHED_KEPT: usize = 256;
/// Finished cycles kept at most: younger ones than [`FINISHED_MS`] count for rate and budget.
pub const FINISHED_MAX: usize = 8_192;
/// Rate and budget look back a day; clocks of different hosts may differ by as much again.
const FINISHED_MS: u64 = 2 * 86_400_000;
/// Cleared latches (tombstones) kept beside the open ones.
pub const TOMBSTONES_MAX: usize = 256;

/// Retired instances kept: an id is never given to another machine soon.
pub const RETIRED_MAX: usize = 512;

/// Fields of a newer version, kept as they are by every writer.
pub type Extra = BTreeMap<String, serde_json::Value>;

/// The document.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Record {
    /// Schema of the document.
    pub schema: u32,
    /// Which fleet: a record of another fleet is refused.
    pub fleet: Arc<str>,
    /// Goes up by one with each write; going back means a restored copy.
    pub counter: u64,
    /// Written by whom last: makes two writes with the same content distinct.
    pub nonce: Arc<str>,
    /// Who may be out of service, by instance.
    pub slots: BTreeMap<InstanceId, Slot>,
    /// Failures that nobody has looked at, and tombstones of cleared ones, by cycle.
    pub latches: BTreeMap<CycleId, Latch>,
    /// No new cycles.
    pub pause: Option<Pause>,
    /// Nodes that an operator keeps out, by instance.
    pub holds: BTreeMap<InstanceId, Hold>,
    /// No self-heal anywhere.
    pub hold_all: Option<Hold>,
    /// Instances said to be gone for good: they take no slot again.
    pub retired: BTreeMap<InstanceId, Pause>,
    /// The last cycles, oldest first.
    pub finished: Vec<Finished>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The right to be out of service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// Which cycle.
    pub cycle: CycleId,
    /// Node name, for people.
    pub node: NodeName,
    /// Job name, for people.
    pub job: Arc<str>,
    /// How long the cycle may take, counted by each peer from its own first sight of this cycle, in seconds.
    pub budget_s: u64,
    /// When it was taken by the holder's clock, in ms since 1970: for people only.
    pub since_ms: u64,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A failure lock. No expiry.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Latch {
    /// Which instance.
    pub instance: InstanceId,
    /// Which node.
    pub node: NodeName,
    /// Where the cycle failed.
    pub stage: Arc<str>,
    /// Failure class label.
    pub class: Arc<str>,
    /// What happened, for people.
    pub message: Arc<str>,
    /// Job name.
    pub job: Arc<str>,
    /// When, by the clock of whoever set it, in ms since 1970: for people only.
    pub since_ms: u64,
    /// Cleared by a person: a tombstone, so that a late write cannot set it again.
    pub cleared: Option<Pause>,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Something that a person did, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pause {
    /// Who.
    pub by: Arc<str>,
    /// Why.
    pub reason: Arc<str>,
    /// When, in ms since 1970: for people only.
    pub since_ms: u64,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A node kept out on purpose. Stays in the record until its node is in service again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Hold {
    /// Node name.
    pub node: NodeName,
    /// Who and why.
    pub order: Pause,
    /// For how long, in seconds, counted on the node itself.
    pub for_s: u64,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The class of a latch that peers set for a holder that is gone or overdue.
pub const LOST: &str = "lost";

impl Latch {
    /// For a cycle whose node is gone, or has not come home in the time that it stated. Said by whoever notices.
    pub fn lost(instance: &InstanceId, slot: &Slot, why: &str, now: &Now) -> Latch {
        Latch {
            instance: instance.clone(),
            node: slot.node.clone(),
            stage: "unknown".into(),
            class: LOST.into(),
            message: why.into(),
            job: slot.job.clone(),
            since_ms: now.wall_ms,
            cleared: None,
            extra: Extra::new(),
        }
    }
}

/// The field of a hold's order that says that its node is leaving for good.
const LEAVES: &str = "retires";

impl Hold {
    /// The hold with which a node leaves for good: once it is out it is retired.
    #[must_use]
    pub fn for_good(mut self) -> Hold {
        self.order.extra.insert(LEAVES.to_owned(), true.into());
        self
    }

    /// Its node is to be retired once it is out.
    pub fn retires(&self) -> bool {
        self.order.extra.get(LEAVES) == Some(&true.into())
    }
}

/// One ended cycle, for rate and budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Finished {
    /// Which cycle.
    pub cycle: CycleId,
    /// Node name.
    pub node: NodeName,
    /// Job name.
    pub job: Arc<str>,
    /// When, in ms since 1970, by the holder's clock.
    pub at_ms: u64,
    /// Ended well.
    pub good: bool,
    /// Unknown fields.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Why the record, as it is, does not allow a change. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// A failed cycle that nobody has cleared.
    Latched(LatchId, Box<Latch>),
    /// All slots are taken; one of the holders.
    SlotHeld(InstanceId, Box<Slot>),
    /// An operator stopped new cycles.
    Paused(Pause),
    /// This instance is held.
    Held(Hold),
    /// This instance was retired.
    Retired(Pause),
    /// This instance holds a slot of another cycle.
    OtherCycle(CycleId),
    /// This cycle has no slot (any more).
    SlotGone,
    /// This cycle has a latch or a tombstone: it may only walk the way back.
    OwnLatch(LatchId),
    /// No open latch of that name.
    NoSuchLatch(LatchId),
    /// No pause is set.
    NotPaused,
    /// No hold of this instance.
    NotHeld,
}

/// A change of the record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Take a slot; again and again the same answer for the same cycle.
    Claim {
        /// Who.
        instance: InstanceId,
        /// With what.
        slot: Slot,
    },
    /// "Is it still mine?", asked by a write right before each destructive step.
    Confirm {
        /// Who.
        instance: InstanceId,
        /// Which cycle.
        cycle: CycleId,
        /// Before leaving: refused by any latch, not only by the own one.
        leaving: bool,
    },
    /// Set a latch. Idempotent by cycle; a tombstone wins.
    AddLatch {
        /// Which cycle failed.
        cycle: CycleId,
        /// What is said of it.
        latch: Latch,
    },
    /// Free the slot of this cycle; a failed one leaves its latch in the same write.
    Free {
        /// Who.
        instance: InstanceId,
        /// Which cycle.
        cycle: CycleId,
        /// Its latch, where it failed.
        latch: Option<Latch>,
        /// What is remembered of it; `None` where nothing had begun.
        finished: Option<Finished>,
    },
    /// A person has looked.
    ClearLatch {
        /// Which.
        latch: LatchId,
        /// Who and why.
        order: Pause,
    },
    /// Stop new cycles.
    Pause(Pause),
    /// Allow them again.
    Unpause,
    /// Keep this instance out. Mid-cycle its entry comes before the slot goes, which is a later [`Op::Free`]: a write that
    /// lands late must never give away the slot of a cycle that has failed in the meantime.
    Hold {
        /// Who.
        instance: InstanceId,
        /// What for.
        hold: Hold,
        /// The cycle whose place it takes, with its latch where it failed.
        instead_of: Option<(CycleId, Option<Latch>)>,
    },
    /// The held node is in service again; a slot that was to go with its hold goes too.
    EndHold {
        /// Who.
        instance: InstanceId,
    },
    /// Switch self-heal off for the whole fleet.
    HoldAll(Hold),
    /// The time of the order that switched it off is over.
    EndHoldAll(Pause),
    /// This instance is gone for good: slot and hold go, a slot leaves a latch.
    Retire {
        /// Which instance.
        instance: InstanceId,
        /// Who says so and why.
        order: Pause,
        /// The latch that is left for a cycle that was under way.
        latch: Latch,
    },
    /// A retired instance is to take part again.
    Unretire {
        /// Which instance.
        instance: InstanceId,
    },
    /// This instance is being terminated: slot and hold go, a slot leaves a latch.
    Goodbye {
        /// Which instance.
        instance: InstanceId,
        /// The latch that is left for a cycle that was under way.
        latch: Latch,
    },
}

impl Op {
    /// Leads away from service, or frees something: only from a committed decision.
    pub const fn outward(&self) -> bool {
        match self {
            Op::Claim { .. }
            | Op::Confirm { .. }
            | Op::Free { .. }
            | Op::Hold { .. }
            | Op::EndHold { .. }
            | Op::Retire { .. }
            | Op::Goodbye { .. } => true,
            Op::AddLatch { .. }
            | Op::ClearLatch { .. }
            | Op::Pause(_)
            | Op::Unpause
            | Op::HoldAll(_)
            | Op::EndHoldAll(_)
            | Op::Unretire { .. } => false,
        }
    }
}

impl Record {
    /// An empty record.
    pub fn new(fleet: Arc<str>) -> Record {
        Record {
            schema: SCHEMA,
            fleet,
            counter: 1,
            nonce: "".into(),
            slots: BTreeMap::new(),
            latches: BTreeMap::new(),
            pause: None,
            holds: BTreeMap::new(),
            hold_all: None,
            retired: BTreeMap::new(),
            finished: Vec::new(),
            extra: Extra::new(),
        }
    }

    /// Who does not count as staying: holders of a slot or a hold.
    pub fn leavers(&self) -> BTreeSet<InstanceId> {
        self.slots.keys().chain(self.holds.keys()).cloned().collect()
    }

    /// Latches that nobody has cleared, in a stable order.
    pub fn open_latches(&self) -> impl Iterator<Item = (LatchId, &Latch)> {
        self.latches.iter().filter(|(_, l)| l.cleared.is_none()).map(|(c, l)| (c.latch(), l))
    }

    /// What a member keeps of it in its own document, so that a lost record can be made again: all but the finished
    /// cycles.
    #[must_use]
    pub fn without_history(&self) -> Record {
        Record { finished: Vec::new(), ..self.clone() }
    }

    /// A record in place of one that was lost: slots, pause and holds as they were last seen by anybody, latches and
    /// tombstones as seen by each (a latch that somebody saw cleared is cleared), and a counter above them all and above
    /// `highest`.
    pub fn restored(fleet: &Arc<str>, seen: &[Record], highest: u64) -> Record {
        let last = seen.iter().filter(|r| r.fleet == *fleet).max_by_key(|r| r.counter);
        let mut r = last.map_or_else(|| Record::new(fleet.clone()), Record::clone);
        for other in seen.iter().filter(|r| r.fleet == *fleet) {
            for (cycle, latch) in &other.latches {
                let known = r.latches.entry(cycle.clone()).or_insert_with(|| latch.clone());
                if known.cleared.is_none() {
                    known.cleared.clone_from(&latch.cleared);
                }
            }
        }
        r.bound_tombstones();
        r.counter = if last.is_some() || highest > 0 { r.counter.max(highest).saturating_add(1) } else { r.counter };
        r
    }

    fn add_latch(&mut self, cycle: &CycleId, latch: &Latch, rules: &Rules) {
        let fits = match self.latches.get(cycle) {
            None => true,
            Some(old) => old.cleared.is_some() && rules.is(Mutant::NoTombstone),
        };
        if fits {
            self.latches.insert(cycle.clone(), latch.clone());
        }
    }

    fn finish(&mut self, finished: &Finished) {
        if self.finished.iter().any(|f| f.cycle == finished.cycle) {
            return;
        }
        self.finished.push(finished.clone());
        let newest = self.finished.iter().map(|f| f.at_ms).max().unwrap_or(0);
        let surplus = self.finished.len().saturating_sub(FINISHED_KEPT);
        let mut n = 0_usize;
        self.finished.retain(|f| {
            n = n.saturating_add(1);
            n > surplus || newest.saturating_sub(f.at_ms) < FINISHED_MS
        });
        let over = self.finished.len().saturating_sub(FINISHED_MAX);
        self.finished.drain(..over);
    }

    fn bound_tombstones(&mut self) {
        let mut old: Vec<(u64, CycleId)> =
            self.latches.iter().filter_map(|(c, l)| l.cleared.as_ref().map(|x| (x.since_ms, c.clone()))).collect();
        old.sort();
        let over = old.len().saturating_sub(TOMBSTONES_MAX);
        for (_, cycle) in old.into_iter().take(over) {
            self.latches.remove(&cycle);
        }
    }

    fn claim(&mut self, instance: &InstanceId, slot: &Slot, rules: &Rules) -> Result<(), Refusal> {
        if let Some((id, latch)) = self.open_latches().next() {
            return Err(Refusal::Latched(id, Box::new(latch.clone())));
        }
        if self.latches.contains_key(&slot.cycle) {
            return Err(Refusal::OwnLatch(slot.cycle.latch()));
        }
        if let Some(order) = self.retired.get(instance) {
            return Err(Refusal::Retired(order.clone()));
        }
        if let Some(hold) = self.holds.get(instance) {
            return Err(Refusal::Held(hold.clone()));
        }
        match self.slots.get(instance) {
            Some(own) if own.cycle == slot.cycle => return Ok(()),
            Some(own) => return Err(Refusal::OtherCycle(own.cycle.clone())),
            None => {}
        }
        if let Some(pause) = &self.pause {
            return Err(Refusal::Paused(pause.clone()));
        }
        let taken = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        if let (true, Some((holder, held))) = (taken >= rules.max_unavailable, self.slots.iter().next()) {
            return Err(Refusal::SlotHeld(holder.clone(), Box::new(held.clone())));
        }
        self.slots.insert(instance.clone(), slot.clone());
        Ok(())
    }

    fn confirm(&self, instance: &InstanceId, cycle: &CycleId, leaving: bool, rules: &Rules) -> Result<(), Refusal> {
        if self.latches.contains_key(cycle) && !rules.is(Mutant::ConfirmIgnoresOwnLatch) {
            return Err(Refusal::OwnLatch(cycle.latch()));
        }
        if let (true, Some((id, latch))) = (leaving, self.open_latches().next()) {
            return Err(Refusal::Latched(id, Box::new(latch.clone())));
        }
        if let Some(hold) = self.holds.get(instance) {
            return Err(Refusal::Held(hold.clone()));
        }
        match self.slots.get(instance) {
            Some(own) if own.cycle == *cycle => Ok(()),
            _ => Err(Refusal::SlotGone),
        }
    }

    /// Whoever is gone for good holds nothing; what it was at is a failure that somebody has to look at.
    fn gone(&mut self, instance: &InstanceId, latch: &Latch, rules: &Rules) {
        if let Some(slot) = self.slots.remove(instance)
            && !rules.is(Mutant::RetireDropsFailure)
        {
            self.add_latch(&slot.cycle, latch, rules);
        }
        self.holds.remove(instance);
    }

    fn bound_retired(&mut self) {
        let mut old: Vec<(u64, InstanceId)> = self.retired.iter().map(|(i, o)| (o.since_ms, i.clone())).collect();
        old.sort();
        let over = old.len().saturating_sub(RETIRED_MAX);
        for (_, instance) in old.into_iter().take(over) {
            self.retired.remove(&instance);
        }
    }

    fn free(&mut self, instance: &InstanceId, cycle: &CycleId) {
        if self.slots.get(instance).is_some_and(|s| s.cycle == *cycle) {
            self.slots.remove(instance);
        }
    }
}

/// The change as a pure function. The caller writes the result under the version that `old` was read with, with the
/// counter one higher and a fresh nonce ([`stamped`]). A repeated change is written again: its acknowledgement is the
/// answer, not the content.
pub fn apply(old: &Record, op: &Op, rules: &Rules) -> Result<Record, Refusal> {
    let mut r = old.clone();
    match op {
        Op::Claim { instance, slot } => r.claim(instance, slot, rules)?,
        Op::Confirm { instance, cycle, leaving } => r.confirm(instance, cycle, *leaving, rules)?,
        Op::AddLatch { cycle, latch } => r.add_latch(cycle, latch, rules),
        Op::Free { instance, cycle, latch, finished } => {
            if let Some(latch) = latch {
                r.add_latch(cycle, latch, rules);
            }
            if let Some(finished) = finished {
                r.finish(finished);
            }
            r.free(instance, cycle);
        }
        Op::ClearLatch { latch: id, order } => {
            let open = r.latches.iter_mut().find(|(c, l)| c.latch() == *id && l.cleared.is_none());
            let Some((_, latch)) = open else { return Err(Refusal::NoSuchLatch(id.clone())) };
            latch.cleared = Some(order.clone());
            r.bound_tombstones();
        }
        Op::Pause(pause) => r.pause = Some(pause.clone()),
        Op::Unpause => {
            if r.pause.take().is_none() {
                return Err(Refusal::NotPaused);
            }
        }
        Op::Hold { instance, hold, instead_of } => {
            if let Some(order) = r.retired.get(instance) {
                return Err(Refusal::Retired(order.clone()));
            }
            match instead_of {
                Some((cycle, latch)) => {
                    if let Some(latch) = latch {
                        r.add_latch(cycle, latch, rules);
                    }
                }
                None => {
                    if let Some(own) = r.slots.get(instance) {
                        return Err(Refusal::OtherCycle(own.cycle.clone()));
                    }
                }
            }
            r.holds.insert(instance.clone(), hold.clone());
        }
        Op::EndHold { instance } => {
            r.holds.remove(instance);
            r.slots.remove(instance);
        }
        Op::HoldAll(hold) => r.hold_all = Some(hold.clone()),
        Op::EndHoldAll(order) => r.hold_all = r.hold_all.take().filter(|hold| hold.order != *order),
        Op::Retire { instance, order, latch } => {
            r.gone(instance, latch, rules);
            r.retired.insert(instance.clone(), order.clone());
            r.bound_retired();
        }
        Op::Unretire { instance } => {
            r.retired.remove(instance);
        }
        Op::Goodbye { instance, latch } => r.gone(instance, latch, rules),
    }
    Ok(r)
}

/// The record as it is to be written: one higher, by a nonce of its own.
#[must_use]
pub fn stamped(mut next: Record, nonce: Arc<str>) -> Record {
    next.counter = next.counter.saturating_add(1);
    next.nonce = nonce;
    next
}

/// How far a fleet's record had come.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordSeen {
    /// Which fleet's.
    pub fleet: Arc<str>,
    /// Its counter.
    pub counter: u64,
}

#[cfg(test)]
mod tests;
