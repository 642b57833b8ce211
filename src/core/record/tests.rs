//! The record's changes one by one; what many writers do together is the model's part (`tests/core_alone`).
#![allow(clippy::pedantic, clippy::arithmetic_side_effects, reason = "tests of small numbers")]

use super::super::invariant;
use super::super::rules::Rules;
use super::*;

fn rules(max_unavailable: u32) -> Rules {
    Rules {
        max_unavailable,
        minimum_healthy: 2,
        minimum_during_patch: 1,
        #[cfg(feature = "mutants")]
        mutant: Mutant::None,
    }
}

fn order(by: &str, since_ms: u64) -> Pause {
    Pause { by: by.into(), reason: "because of the disk".into(), since_ms, extra: Extra::new() }
}

fn cycle(n: u64) -> CycleId {
    CycleId(format!("c-{n:012x}").into())
}

fn node(i: u64) -> InstanceId {
    InstanceId(format!("i-{i}").into())
}

fn slot(i: u64, c: u64) -> Slot {
    let node = NodeName(format!("node-{i}").into());
    Slot { cycle: cycle(c), node, job: "kernel".into(), budget_s: 60, since_ms: 1, extra: Extra::new() }
}

fn latch(i: u64) -> Latch {
    Latch {
        instance: node(i),
        node: NodeName(format!("node-{i}").into()),
        stage: "check".into(),
        class: "deadline".into(),
        message: "no answer on 9200".into(),
        job: "kernel".into(),
        since_ms: 5,
        cleared: None,
        extra: Extra::new(),
    }
}

fn hold(i: u64) -> Hold {
    Hold { node: NodeName(format!("node-{i}").into()), order: order("ann", 1), for_s: 60, extra: Extra::new() }
}

fn finished(c: u64, at_ms: u64) -> Finished {
    Finished { cycle: cycle(c), node: "node-1".into(), job: "kernel".into(), at_ms, good: true, extra: Extra::new() }
}

fn claim(i: u64, c: u64) -> Op {
    Op::Claim { instance: node(i), slot: slot(i, c) }
}
fn confirm(i: u64, c: u64, leaving: bool) -> Op {
    Op::Confirm { instance: node(i), cycle: cycle(c), leaving }
}
fn free(i: u64, c: u64, failed: bool) -> Op {
    let latch = failed.then(|| latch(i));
    Op::Free { instance: node(i), cycle: cycle(c), latch, finished: Some(finished(c, 9)) }
}
fn add_latch(i: u64, c: u64) -> Op {
    Op::AddLatch { cycle: cycle(c), latch: latch(i) }
}
fn clear(c: u64) -> Op {
    Op::ClearLatch { latch: cycle(c).latch(), order: order("ann", c) }
}
fn enter_hold(i: u64, instead_of: Option<(CycleId, Option<Latch>)>) -> Op {
    Op::Hold { instance: node(i), hold: hold(i), instead_of }
}
fn retire(i: u64) -> Op {
    Op::Retire { instance: node(i), order: order("ann", 1), latch: latch(i) }
}

fn empty() -> Record {
    Record::new("blue".into())
}
fn after(ops: &[Op]) -> Record {
    ops.iter().fold(empty(), |r, op| apply(&r, op, &rules(1)).unwrap())
}

fn every_op() -> Vec<(&'static str, Record, Op)> {
    let running = after(&[claim(1, 1)]);
    vec![
        ("claim", empty(), claim(1, 1)),
        ("confirm", running.clone(), confirm(1, 1, true)),
        ("latch", running.clone(), add_latch(1, 1)),
        ("free", running.clone(), free(1, 1, false)),
        ("free, failed", running.clone(), free(1, 1, true)),
        ("pause", empty(), Op::Pause(order("ann", 1))),
        ("hold", empty(), enter_hold(1, None)),
        ("hold mid-cycle", running.clone(), enter_hold(1, Some((cycle(1), None)))),
        ("hold mid-cycle, failed", running.clone(), enter_hold(1, Some((cycle(1), Some(latch(1)))))),
        ("end hold", after(&[enter_hold(1, None)]), Op::EndHold { instance: node(1) }),
        ("hold all", empty(), Op::HoldAll(hold(1))),
        ("goodbye", running.clone(), Op::Goodbye { instance: node(1), latch: latch(1) }),
        ("unretire", after(&[retire(1)]), Op::Unretire { instance: node(1) }),
        ("retire", running, retire(1)),
    ]
}

/// A write whose answer was lost is written again.
#[test]
fn every_change_written_twice_is_the_same_change() {
    for (name, r, op) in every_op() {
        let once = apply(&r, &op, &rules(1)).unwrap();
        assert_eq!(apply(&once, &op, &rules(1)), Ok(once.clone()), "{name}");
        assert_eq!(super::super::invariant::record(&once), Ok(()), "{name}");
    }
    let latched = after(&[add_latch(1, 1)]);
    let cleared = apply(&latched, &clear(1), &rules(1)).unwrap();
    assert!(matches!(apply(&cleared, &clear(1), &rules(1)), Err(Refusal::NoSuchLatch(_))), "a second person is told");
}

#[test]
fn leading_away_or_freeing_is_outward_and_the_rest_is_not() {
    for (name, _, op) in every_op() {
        let outward = !["latch", "pause", "hold all", "unretire"].contains(&name);
        assert_eq!(op.outward(), outward, "{name}");
    }
    assert!(!clear(1).outward() && !Op::Unpause.outward());
}

#[test]
fn slots_are_counted_and_the_loser_is_told_who_holds_it() {
    for max in 1..4_u32 {
        let mut r = empty();
        for i in 0..u64::from(max) {
            r = apply(&r, &claim(i, i + 1), &rules(max)).unwrap();
        }
        match apply(&r, &claim(9, 9), &rules(max)) {
            Err(Refusal::SlotHeld(holder, s)) => {
                assert_eq!((holder, s.node.as_str(), &*s.job), (node(0), "node-0", "kernel"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(r.leavers().len(), usize::try_from(max).unwrap());
    }
}

#[test]
fn each_refusal_says_who_or_why() {
    let running = after(&[claim(1, 1)]);
    let latched = after(&[claim(1, 1), add_latch(1, 1)]);
    let says = |r: &Record, op: Op| {
        let refusal = apply(r, &op, &rules(1)).unwrap_err();
        let (exit, text) = super::super::decide::refused(&refusal);
        (exit.code(), text)
    };
    let (code, text) = says(&latched, claim(2, 2));
    assert_eq!(code, 100);
    for part in ["L-000000000001", "node-1", "check", "kernel", "no answer on 9200"] {
        assert!(text.contains(part), "{text}");
    }
    let (code, text) = says(&running, claim(2, 2));
    assert!(code == 10 && text.contains("node-1") && text.contains("kernel"), "{code} {text}");
    let (code, text) = says(&after(&[Op::Pause(order("ann", 1))]), claim(2, 2));
    assert!(code == 12 && text.contains("ann") && text.contains("because of the disk"), "{code} {text}");
    let (code, text) = says(&after(&[enter_hold(2, None)]), claim(2, 2));
    assert!(code == 12 && text.contains("ann"), "{code} {text}");
    let (code, text) = says(&after(&[retire(2)]), claim(2, 2));
    assert!(code == 17 && text.contains("ann"), "{code} {text}");
    let (code, text) = says(&running, claim(1, 7));
    assert!(code == 10 && text.contains("c-000000000001"), "{code} {text}");
    assert_eq!(says(&empty(), Op::Unpause).0, 2);
}

#[test]
fn a_latch_is_told_before_any_other_refusal() {
    let ops = [claim(1, 1), add_latch(1, 1), Op::Pause(order("ann", 1)), enter_hold(2, None)];
    assert!(matches!(apply(&after(&ops), &claim(2, 2), &rules(1)), Err(Refusal::Latched(..))));
}

#[test]
fn a_pause_stops_new_cycles_and_none_that_has_begun() {
    let r = after(&[claim(1, 1), Op::Pause(order("ann", 1))]);
    assert!(apply(&r, &claim(1, 1), &rules(1)).is_ok(), "the same cycle again");
    assert!(apply(&r, &confirm(1, 1, true), &rules(1)).is_ok());
    assert!(matches!(apply(&r, &claim(2, 2), &rules(2)), Err(Refusal::Paused(_))));
    let open = apply(&r, &Op::Unpause, &rules(1)).unwrap();
    assert!(apply(&open, &claim(2, 2), &rules(2)).is_ok());
}

#[test]
fn confirm_is_refused_without_the_slot_by_the_own_latch_or_tombstone_and_before_leaving_by_any_latch() {
    let r = after(&[claim(1, 1)]);
    assert_eq!(apply(&r, &confirm(1, 1, true), &rules(1)), Ok(r.clone()));
    assert_eq!(apply(&r, &confirm(1, 2, true), &rules(1)), Err(Refusal::SlotGone));
    assert_eq!(apply(&r, &confirm(2, 1, false), &rules(1)), Err(Refusal::SlotGone));
    let other = apply(&r, &add_latch(2, 7), &rules(1)).unwrap();
    assert!(matches!(apply(&other, &confirm(1, 1, true), &rules(1)), Err(Refusal::Latched(..))));
    assert!(apply(&other, &confirm(1, 1, false), &rules(1)).is_ok(), "who is out already may do its job");
    let own = apply(&r, &add_latch(1, 1), &rules(1)).unwrap();
    let cleared = apply(&own, &clear(1), &rules(1)).unwrap();
    for r in [own, cleared] {
        for leaving in [true, false] {
            assert!(matches!(apply(&r, &confirm(1, 1, leaving), &rules(1)), Err(Refusal::OwnLatch(_))));
        }
    }
    let held = apply(&r, &enter_hold(1, Some((cycle(1), None))), &rules(1)).unwrap();
    assert!(matches!(apply(&held, &confirm(1, 1, false), &rules(1)), Err(Refusal::Held(_))));
}

#[test]
fn a_latch_is_one_per_cycle_and_a_tombstone_wins() {
    let r = after(&[add_latch(1, 1)]);
    let mut lost = latch(1);
    lost.class = "lost".into();
    let again = apply(&r, &Op::AddLatch { cycle: cycle(1), latch: lost }, &rules(1)).unwrap();
    assert_eq!(again, r, "the first one tells what happened");
    let cleared = apply(&r, &clear(1), &rules(1)).unwrap();
    for late in [add_latch(1, 1), free(1, 1, true), enter_hold(1, Some((cycle(1), Some(latch(1)))))] {
        let r = apply(&cleared, &late, &rules(1)).unwrap();
        assert_eq!(r.open_latches().count(), 0, "{late:?}");
    }
    assert!(
        matches!(apply(&cleared, &claim(1, 1), &rules(1)), Err(Refusal::OwnLatch(_))),
        "not even a claim that is late"
    );
}

#[test]
fn tombstones_are_bounded_the_oldest_goes_and_an_open_latch_never() {
    let mut r = after(&[add_latch(1, 5_000)]);
    let last = u64::try_from(TOMBSTONES_MAX).unwrap() + 40;
    for c in 1..=last {
        r = apply(&r, &add_latch(1, c), &rules(1)).unwrap();
        r = apply(&r, &clear(c), &rules(1)).unwrap();
    }
    assert_eq!(r.latches.len(), TOMBSTONES_MAX + 1);
    assert_eq!(r.open_latches().count(), 1);
    assert!(!r.latches.contains_key(&cycle(40)) && r.latches.contains_key(&cycle(41)));
}

#[test]
fn finished_cycles_are_counted_once_and_bounded() {
    let mut r = after(&[claim(1, 1), free(1, 1, false), free(1, 1, false)]);
    assert_eq!(r.finished.len(), 1);
    let ended = |c: u64, at_ms| {
        let Op::Free { instance, cycle, latch, finished: Some(f) } = free(1, c, false) else { panic!("it frees") };
        Op::Free { instance, cycle, latch, finished: Some(Finished { at_ms, ..f }) }
    };
    let kept = u64::try_from(FINISHED_KEPT).unwrap();
    for c in 2..=2 * kept {
        r = apply(&r, &ended(c, 10_000_000_000 + c), &rules(1)).unwrap();
    }
    assert_eq!(u64::try_from(r.finished.len()).unwrap(), 2 * kept - 1, "all of a day count for rate and budget");
    r = apply(&r, &ended(9_999, 10_000_000_000 + 3 * 86_400_000), &rules(1)).unwrap();
    assert_eq!(r.finished.len(), FINISHED_KEPT, "older ones are kept for people only");
}

#[test]
fn a_restored_record_has_what_members_saw_last_and_no_latch_is_lost() {
    let old = after(&[claim(1, 1), add_latch(2, 2)]);
    let new = apply(&apply(&old, &clear(2), &rules(1)).unwrap(), &free(1, 1, false), &rules(1)).unwrap();
    let new = Record { counter: old.counter + 2, ..new };
    let other = Record { counter: old.counter + 1, ..apply(&old, &add_latch(3, 3), &rules(1)).unwrap() };
    let foreign = Record { counter: 999, ..Record::new("green".into()) };
    let seen = [old, other, new.clone(), foreign].map(|r| r.without_history());
    let r = Record::restored(&new.fleet, &seen, 70);
    assert!(r.slots.is_empty(), "the last one who looked saw no slot");
    assert!(r.latches[&cycle(2)].cleared.is_some(), "cleared once is cleared");
    assert!(r.latches[&cycle(3)].cleared.is_none(), "seen by one member only, and still there");
    assert_eq!((r.counter, invariant::record(&r)), (71, Ok(())), "above everything that was ever seen");
    assert_eq!(Record::restored(&"blue".into(), &[], 0), Record::new("blue".into()), "a new fleet");
}

#[test]
fn free_takes_no_slot_of_another_cycle_or_instance() {
    let r = after(&[claim(1, 1)]);
    for op in [free(1, 2, false), free(2, 1, false)] {
        assert!(apply(&r, &op, &rules(1)).unwrap().slots.contains_key(&node(1)), "{op:?}");
    }
}

/// A hold's write that lands late must not give away the slot of a cycle that has failed in the meantime.
#[test]
fn a_hold_mid_cycle_keeps_the_slot_and_its_end_takes_both() {
    let r = after(&[claim(1, 1), enter_hold(1, Some((cycle(1), None)))]);
    assert!(r.slots.contains_key(&node(1)) && r.holds.contains_key(&node(1)));
    assert_eq!(r.leavers().len(), 1);
    assert!(matches!(apply(&r, &claim(2, 2), &rules(1)), Err(Refusal::SlotHeld(..))), "until it is freed");
    let freed = apply(&r, &Op::Free { instance: node(1), cycle: cycle(1), latch: None, finished: None }, &rules(1));
    assert_eq!(freed.unwrap().leavers().len(), 1, "the hold explains who is out");
    let over = apply(&r, &Op::EndHold { instance: node(1) }, &rules(1)).unwrap();
    assert!(over.leavers().is_empty());
    assert!(matches!(apply(&r, &enter_hold(1, None), &rules(1)), Err(Refusal::OtherCycle(_))));
}

#[test]
fn retire_frees_the_slot_with_a_latch_and_the_instance_never_claims_again() {
    let r = after(&[claim(1, 1), retire(1)]);
    assert!(r.slots.is_empty() && r.open_latches().count() == 1);
    let own = after(&[claim(1, 1), add_latch(1, 1), clear(1), retire(1)]);
    assert_eq!(own.open_latches().count(), 0, "that cycle has been looked at");
    let idle = after(&[retire(2)]);
    assert_eq!(idle.open_latches().count(), 0, "nothing was under way");
    assert!(matches!(apply(&idle, &claim(2, 2), &rules(1)), Err(Refusal::Retired(_))));
    assert!(matches!(apply(&idle, &enter_hold(2, None), &rules(1)), Err(Refusal::Retired(_))));
}

#[test]
fn stamps_make_every_write_another_one() {
    let a = stamped(empty(), "n-1".into());
    let b = stamped(a.clone(), "n-2".into());
    assert_eq!((a.counter, b.counter), (2, 3));
    assert_ne!(a.nonce, b.nonce);
    let last = stamped(Record { counter: u64::MAX, ..empty() }, "n".into());
    assert_eq!(last.counter, u64::MAX);
}

/// An older version writes back what a newer one has added, at every level.
#[test]
fn unknown_fields_are_kept_by_every_change() {
    let full = after(&[
        claim(1, 1),
        free(1, 1, true),
        clear(1),
        enter_hold(2, None),
        Op::Pause(order("ann", 1)),
        Op::HoldAll(hold(2)),
        retire(3),
    ]);
    let mut json = serde_json::to_value(&full).unwrap();
    json["slots"] = serde_json::json!({ "i-7": serde_json::to_value(slot(7, 7)).unwrap() });
    let paths = [
        "",
        "/slots/i-7",
        "/latches/c-000000000001",
        "/latches/c-000000000001/cleared",
        "/pause",
        "/holds/i-2",
        "/holds/i-2/order",
        "/hold_all",
        "/retired/i-3",
        "/finished/0",
    ];
    for path in paths {
        let at = json.pointer_mut(path).unwrap_or_else(|| panic!("{path}"));
        at.as_object_mut().unwrap().insert("newer".into(), serde_json::json!({ "a": [1, null] }));
    }
    let read: Record = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), json, "read and written");
    let mut next = serde_json::to_value(apply(&read, &add_latch(7, 7), &rules(1)).unwrap()).unwrap();
    next["latches"].as_object_mut().unwrap().remove("c-000000000007");
    assert_eq!(next, json, "and changed by somebody who does not know them");
}

#[test]
fn a_missing_field_is_not_read_as_empty() {
    let json = serde_json::to_value(after(&[claim(1, 1), add_latch(1, 1)])).unwrap();
    for field in ["schema", "fleet", "counter", "nonce", "slots", "latches", "holds", "retired", "finished"] {
        let mut cut = json.clone();
        cut.as_object_mut().unwrap().remove(field);
        assert!(serde_json::from_value::<Record>(cut).is_err(), "{field}");
    }
}
