//! Findings about what the fleet record says.

use super::super::finding::Kind;
use super::super::ids::InstanceId;
use super::super::record::{Record, Slot};
use super::super::time::Now;
use super::memory::{Candidate, Draft};
use super::text;
use super::world::World;

const KINDS: [Kind; 5] =
    [Kind::CycleOverdue, Kind::SlotHolderGone, Kind::Latched, Kind::PausedTooLong, Kind::HeldTooLong];

/// Judges the record. What stands in it and is not too long yet is left as it is: another agent may have seen it for longer.
pub(super) fn judge(w: &World<'_>, draft: &mut Draft) {
    if w.sight.own_failure {
        draft.leave(Kind::Latched, w.sight.node.as_str());
    }
    let Some((record, begun)) = w.record else {
        draft.cannot(&KINDS);
        return;
    };
    for (instance, slot) in &record.slots {
        holder(w, instance, slot, begun, draft);
    }
    latches(record, begun, draft);
    holds(w, record, begun, draft);
    if let Some(pause) = &record.pause {
        if w.sight.pause_ms(pause, w.settings, w.now) < w.settings.paused_too_long_ms {
            draft.leave(Kind::PausedTooLong, w.sight.fleet);
        } else {
            let (by, why, long) = (&pause.by, &pause.reason, text::span(w.settings.paused_too_long_ms));
            let what = format!("patching is paused by {by} ({why}) for longer than {long}; end it: backstop unpause");
            draft.find(Candidate::new(Kind::PausedTooLong, w.sight.fleet, what, begun));
        }
    }
}

fn holder(w: &World<'_>, instance: &InstanceId, slot: &Slot, begun: &Now, draft: &mut Draft) {
    let node = slot.node.as_str();
    // Its cycle may have failed and not be able to say so yet.
    draft.leave(Kind::Latched, node);
    let budget = slot.budget_s.saturating_mul(1_000);
    let what = format!("{node} holds a slot for cycle {} (job {})", slot.cycle, slot.job);
    if w.sight.slot_ms(slot, w.settings, w.now) < budget {
        draft.leave(Kind::CycleOverdue, node);
    } else {
        let what = format!("{what} for longer than its budget of {}", text::span(budget));
        draft.find(Candidate::new(Kind::CycleOverdue, node, what, begun));
    }
    if w.members.is_none() {
        draft.leave(Kind::SlotHolderGone, node);
        return;
    }
    let Some(p) = w.people.iter().find(|p| p.member.instance == *instance) else {
        let what = format!("{what}, and is no member any more");
        draft.find(Candidate::new(Kind::SlotHolderGone, node, what, begun));
        return;
    };
    let least = w.settings.holder_silent_after_ms;
    if let Some(heart) = p.heart.filter(|h| !w.is_me(p) && h.still_ms() >= least) {
        let what = format!("{what}, and its agent has been silent for {}", text::span(heart.still_ms()));
        draft.find(Candidate::new(Kind::SlotHolderGone, node, what, begun));
    } else if p.heart.is_none_or(|h| h.silent(w.settings.silent_after_ms)) {
        draft.leave(Kind::SlotHolderGone, node);
    }
}

fn latches(record: &Record, begun: &Now, draft: &mut Draft) {
    for (id, latch) in record.open_latches() {
        let (node, stage, class, message) = (&latch.node, &latch.stage, &latch.class, &latch.message);
        let what = format!(
            "a cycle of {node} failed in {stage} ({class}: {message}); patching is blocked on every node until: backstop \
             latch clear {id} --reason …"
        );
        draft.find(Candidate::new(Kind::Latched, node.as_str(), what, begun));
    }
}

fn holds(w: &World<'_>, record: &Record, begun: &Now, draft: &mut Draft) {
    let grace = w.settings.held_grace_ms;
    for (instance, hold) in &record.holds {
        let (node, by, why) = (hold.node.as_str(), &hold.order.by, &hold.order.reason);
        let time = hold.for_s.saturating_mul(1_000);
        if w.sight.hold_ms(instance, hold, w.settings, w.now) < time.saturating_add(grace) {
            draft.leave(Kind::HeldTooLong, node);
        } else {
            let what = format!("{node} is held by {by} ({why}) for longer than the {} of its order", text::span(time));
            draft.find(Candidate::new(Kind::HeldTooLong, node, what, begun));
        }
    }
    if let Some(all) = &record.hold_all {
        let (by, why, time) = (&all.order.by, &all.order.reason, all.for_s.saturating_mul(1_000));
        if w.sight.hold_all_ms(&all.order, w.settings, w.now) < time.saturating_add(grace) {
            draft.leave(Kind::HeldTooLong, w.sight.fleet);
        } else {
            let long = text::span(time);
            let what = format!("self-heal is off by {by} ({why}) for longer than the {long} of its order");
            draft.find(Candidate::new(Kind::HeldTooLong, w.sight.fleet, what, begun));
        }
    }
}
