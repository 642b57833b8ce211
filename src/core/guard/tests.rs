//! Every guard: what it says, with which exit code, and that unknown is no.
#![allow(clippy::pedantic, clippy::arithmetic_side_effects, reason = "tests of small numbers")]

use super::super::ids::NodeName;
use super::super::record::{Extra, Finished, Hold, Latch, Pause, Slot};
use super::super::time::{BootId, Now};
use super::*;
use std::collections::BTreeSet;

const DAY_MS: u64 = 86_400_000;
const NOW_MS: u64 = 1_700_000_000_000;

fn set(ids: &[&str]) -> BTreeSet<InstanceId> {
    ids.iter().map(|i| (*i).into()).collect()
}

fn view(healthy: &[&str]) -> FleetView {
    let begun = Now { wall_ms: NOW_MS, boot: BootId("b".into()), since_boot_ms: 1 };
    FleetView { members: set(&["i-0", "i-1", "i-2"]), in_service: set(healthy), begun }
}

fn rules() -> Rules {
    Rules {
        max_unavailable: 1,
        minimum_healthy: 3,
        minimum_during_patch: 2,
        #[cfg(feature = "mutants")]
        mutant: Mutant::None,
    }
}

fn order(by: &str) -> Pause {
    Pause { by: by.into(), reason: "a flood".into(), since_ms: 0, extra: Extra::new() }
}

fn slot(c: &str) -> Slot {
    let node = NodeName("node-9".into());
    Slot { cycle: c.into(), node, job: "kernel".into(), budget_s: 1, since_ms: 0, extra: Extra::new() }
}

fn latch() -> Latch {
    Latch {
        instance: "i-1".into(),
        node: "node-1".into(),
        stage: "settle".into(),
        class: "refused".into(),
        message: "AccessDenied".into(),
        job: "kernel".into(),
        since_ms: 0,
        cleared: None,
        extra: Extra::new(),
    }
}

fn yes() -> Fact {
    Fact::Yes("so".into())
}

/// Everything is well.
fn facts() -> Facts {
    Facts {
        instance: "i-0".into(),
        cycle: None,
        wall_ms: NOW_MS,
        record: Ok(Record::new("blue".into())),
        fleet: Ok(view(&["i-0", "i-1", "i-2"])),
        names: [("i-0", "node-0"), ("i-1", "node-1")].map(|(i, n)| (i.into(), n.into())).into(),
        cycles_per_hour: None,
        cycles_per_day: None,
        acts: Fact::Yes("mode is act".to_owned()),
        identity: yes(),
        state_durable: yes(),
        register_allowed: yes(),
        cluster_reachable: yes(),
        drain_fits: yes(),
        pager_reachable: yes(),
        package_manager_free: yes(),
        autoscaling: yes(),
    }
}

fn with_record(change: impl FnOnce(&mut Record)) -> Facts {
    let mut f = facts();
    change(f.record.as_mut().unwrap());
    f
}

fn said(f: &Facts, guard: Guard) -> Verdict {
    evaluate(f, &rules(), &[]).0.into_iter().find(|v| v.guard == guard).unwrap()
}

fn ran(n: usize, ago_ms: u64) -> impl FnOnce(&mut Record) {
    move |r| {
        r.finished = (0..n)
            .map(|i| Finished {
                cycle: format!("c-{i}").as_str().into(),
                node: "node-1".into(),
                job: "kernel".into(),
                at_ms: NOW_MS.saturating_sub(ago_ms),
                good: true,
                extra: Extra::new(),
            })
            .collect();
    }
}

#[test]
fn when_all_is_well_every_guard_passes_and_each_has_a_sentence() {
    let v = evaluate(&facts(), &rules(), &[]);
    assert!(v.pass(), "{v:?}");
    assert_eq!(v.0.len(), Guard::ALL.len());
    assert!(v.0.iter().all(|v| v.said == Said::Pass && !v.sentence.is_empty()), "{v:?}");
}

/// (the world, which guard refuses, exit code, what its sentence names)
fn refusals() -> Vec<(Facts, Guard, u8, &'static [&'static str])> {
    let no = || Fact::No("not so, and here is why".into());
    let hold = || Hold { node: "node-0".into(), order: order("ann"), for_s: 1, extra: Extra::new() };
    let why: &[&str] = &["here is why"];
    vec![
        (
            with_record(|r| _ = r.latches.insert("c-7".into(), latch())),
            Guard::NoLatch,
            100,
            &["L-7", "node-1", "settle", "refused", "kernel", "AccessDenied"],
        ),
        (Facts { acts: Fact::No("this agent observes".to_owned()), ..facts() }, Guard::Mode, 12, &["observe"]),
        (with_record(|r| r.pause = Some(order("bob"))), Guard::NoPause, 12, &["bob", "a flood"]),
        (with_record(|r| _ = r.holds.insert("i-0".into(), hold())), Guard::NoHold, 12, &["ann", "a flood"]),
        (
            with_record(|r| _ = r.slots.insert("i-1".into(), slot("c-9"))),
            Guard::SlotFree,
            10,
            &["node-9", "c-9", "kernel"],
        ),
        (with_record(|r| _ = r.slots.insert("i-0".into(), slot("c-9"))), Guard::SlotFree, 10, &["c-9"]),
        (Facts { fleet: Ok(view(&["i-1", "i-2"])), ..facts() }, Guard::SelfInService, 17, &["not in service"]),
        (Facts { fleet: Ok(view(&["i-0", "i-1"])), ..facts() }, Guard::MinimumHealthy, 11, &["2 in service", "need 3"]),
        (Facts { fleet: Ok(view(&["i-0", "i-1"])), ..facts() }, Guard::PeersSettled, 15, &["i-2"]),
        (Facts { fleet: Ok(view(&["i-0", "i-2"])), ..facts() }, Guard::PeersSettled, 15, &["node-1 (i-1)"]),
        (with_record(ran(6, 60_000)), Guard::Rate, 14, &["6 of 6", "hour"]),
        (with_record(ran(12, 2 * 3_600_000)), Guard::Budget, 14, &["12 of 12", "day"]),
        (Facts { identity: no(), ..facts() }, Guard::Identity, 17, why),
        (Facts { state_durable: no(), ..facts() }, Guard::StateDurable, 17, why),
        (Facts { register_allowed: no(), ..facts() }, Guard::RegisterAllowed, 17, why),
        (Facts { cluster_reachable: no(), ..facts() }, Guard::ClusterReachable, 13, why),
        (Facts { drain_fits: no(), ..facts() }, Guard::DrainFits, 17, why),
        (Facts { pager_reachable: no(), ..facts() }, Guard::PagerReachable, 17, why),
        (Facts { package_manager_free: no(), ..facts() }, Guard::PackageManagerFree, 17, why),
        (Facts { autoscaling: no(), ..facts() }, Guard::Autoscaling, 17, why),
    ]
}

#[test]
fn every_guard_refuses_with_its_sentence_and_its_exit_code() {
    let mut seen = BTreeSet::from([Guard::FleetRecord]); // it never says no: it cannot tell (below)
    for (f, guard, code, names) in refusals() {
        let v = said(&f, guard);
        assert_eq!((v.said, v.exit.code()), (Said::Refused, code), "{guard}: {v:?}");
        for name in names {
            assert!(v.sentence.contains(name), "{guard}: {} does not name {name}", v.sentence);
        }
        assert!(!evaluate(&f, &rules(), &[]).pass(), "{guard}");
        seen.insert(guard);
    }
    assert_eq!(seen.len(), Guard::ALL.len());
}

#[test]
fn unknown_is_refused_by_every_guard_that_can_be_in_doubt() {
    let doubt = || Fact::Unknown("cannot be told".into());
    let no_record = Facts { record: Err("the store is away".into()), ..facts() };
    let no_fleet = Facts { fleet: Err("throttled".into()), ..facts() };
    use Guard as G;
    let rows: Vec<(Facts, &[Guard])> = vec![
        (
            no_record,
            &[
                G::FleetRecord,
                G::NoLatch,
                G::NoPause,
                G::NoHold,
                G::SlotFree,
                G::Rate,
                G::Budget,
                G::MinimumHealthy,
                G::PeersSettled,
            ],
        ),
        (no_fleet, &[G::SelfInService, G::MinimumHealthy, G::PeersSettled, G::Rate, G::Budget]),
        (Facts { identity: doubt(), ..facts() }, &[G::Identity]),
        (Facts { state_durable: doubt(), ..facts() }, &[G::StateDurable]),
        (Facts { register_allowed: doubt(), ..facts() }, &[G::RegisterAllowed]),
        (Facts { cluster_reachable: doubt(), ..facts() }, &[G::ClusterReachable]),
        (Facts { drain_fits: doubt(), ..facts() }, &[G::DrainFits]),
        (Facts { pager_reachable: doubt(), ..facts() }, &[G::PagerReachable]),
        (Facts { package_manager_free: doubt(), ..facts() }, &[G::PackageManagerFree]),
        (Facts { autoscaling: doubt(), ..facts() }, &[G::Autoscaling]),
    ];
    for (f, unknown) in rows {
        let v = evaluate(&f, &rules(), &[]);
        let got: Vec<_> = v.0.iter().filter(|v| v.said == Said::Unknown).map(|v| v.guard).collect();
        assert_eq!(BTreeSet::from_iter(got), BTreeSet::from_iter(unknown.iter().copied()));
        assert!(!v.pass() && v.only_unknown());
    }
}

#[test]
fn what_cannot_be_told_is_unreachable_and_not_below_minimum() {
    let f = Facts { fleet: Err("throttled".into()), ..facts() };
    for guard in [Guard::MinimumHealthy, Guard::PeersSettled] {
        assert_eq!(said(&f, guard).exit, Exit::Unreachable, "{guard}");
    }
}

#[test]
fn a_latch_is_told_before_every_other_refusal() {
    let mut worst = with_record(|r| {
        r.latches.insert("c-7".into(), latch());
        r.pause = Some(order("bob"));
        r.slots.insert("i-1".into(), slot("c-9"));
    });
    worst.acts = Fact::No("observes".to_owned());
    worst.identity = Fact::No("nobody".into());
    worst.fleet = Err("throttled".into());
    let v = evaluate(&worst, &rules(), &[]);
    assert_eq!(v.first_refusal().unwrap().exit, Exit::Latched);
    assert!(!v.only_unknown());
}

fn over(guard: Guard) -> Vec<(Arc<str>, Arc<str>)> {
    vec![(guard.label().into(), "I know better".into())]
}

#[test]
fn overrides_count_only_where_they_are_allowed_and_only_for_the_named_guard() {
    for (f, guard, ..) in refusals() {
        let v = evaluate(&f, &rules(), &over(guard));
        let own = v.0.iter().find(|v| v.guard == guard).unwrap();
        let overridden = own.said == Said::Overridden;
        assert_eq!(overridden, guard.overridable(), "{guard}");
        let other = if guard == Guard::Rate { Guard::Budget } else { Guard::Rate };
        let v = evaluate(&f, &rules(), &over(other));
        assert_eq!(v.0.iter().find(|v| v.guard == guard).unwrap().said, Said::Refused, "{guard} by {other}");
    }
    use Guard as G;
    let never: BTreeSet<_> = Guard::ALL.into_iter().filter(|g| !g.overridable()).collect();
    let named = [
        G::Identity,
        G::Mode,
        G::StateDurable,
        G::FleetRecord,
        G::SelfInService,
        G::SlotFree,
        G::NoLatch,
        G::NoPause,
        G::NoHold,
    ];
    assert_eq!(never, BTreeSet::from(named));
}

#[test]
fn minimum_healthy_is_never_overridden_below_one_other_that_stays() {
    let mut stays = with_record(|_| ());
    stays.fleet = Ok(view(&["i-0", "i-1"]));
    let v = evaluate(&stays, &rules(), &over(Guard::MinimumHealthy));
    assert_eq!(v.0.iter().find(|v| v.guard == Guard::MinimumHealthy).unwrap().said, Said::Overridden);
    let mut leaves = with_record(|r| _ = r.slots.insert("i-1".into(), slot("c-9")));
    leaves.fleet = Ok(view(&["i-0", "i-1"]));
    for f in [leaves, Facts { fleet: Ok(view(&["i-0"])), ..facts() }, Facts { fleet: Err("?".into()), ..facts() }] {
        let v = evaluate(&f, &rules(), &over(Guard::MinimumHealthy));
        assert!(v.0.iter().find(|v| v.guard == Guard::MinimumHealthy).unwrap().blocks());
    }
    let floor_of = |healthy: &[&str], leavers: &[&str], named: bool| {
        floor(&view(healthy), &"i-0".into(), &set(leavers), &rules(), named)
    };
    assert!(floor_of(&["i-0", "i-1", "i-2"], &["i-0"], false));
    assert!(!floor_of(&["i-0", "i-1"], &["i-0"], false));
    assert!(floor_of(&["i-0", "i-1"], &["i-0"], true));
    assert!(!floor_of(&["i-0", "i-1"], &["i-0", "i-1"], true), "it leaves: nobody stays");
    assert!(!floor_of(&["i-0"], &[], true));
}

#[test]
fn three_of_three_is_the_normal_case_and_who_leaves_does_not_stay() {
    assert_eq!(said(&facts(), Guard::MinimumHealthy).said, Said::Pass);
    let hold = Hold { node: "node-1".into(), order: order("ann"), for_s: 1, extra: Extra::new() };
    for f in [
        with_record(|r| _ = r.slots.insert("i-1".into(), slot("c-9"))),
        with_record(|r| _ = r.holds.insert("i-1".into(), hold)),
    ] {
        assert_eq!(said(&f, Guard::MinimumHealthy).said, Said::Refused, "all three healthy, one about to leave");
    }
}

#[test]
fn a_peer_that_the_record_explains_is_settled() {
    let hold = Hold { node: "node-2".into(), order: order("ann"), for_s: 1, extra: Extra::new() };
    let mut f = with_record(|r| _ = r.holds.insert("i-2".into(), hold));
    f.fleet = Ok(view(&["i-0", "i-1"]));
    assert_eq!(said(&f, Guard::PeersSettled).said, Said::Pass);
}

#[test]
fn the_own_slot_is_no_obstacle_to_the_cycle_that_holds_it() {
    let mut f = with_record(|r| _ = r.slots.insert("i-0".into(), slot("c-9")));
    f.cycle = Some("c-9".into());
    assert_eq!(said(&f, Guard::SlotFree).said, Said::Pass);
}

#[test]
fn rate_and_budget_count_their_window_warn_at_four_fifths_and_refuse_at_the_limit() {
    let of = |n: usize, ago: u64, guard: Guard| said(&with_record(ran(n, ago)), guard);
    for (n, expected) in [(4, Said::Pass), (5, Said::Warn), (6, Said::Refused)] {
        assert_eq!(of(n, 60_000, Guard::Rate).said, expected, "{n}");
    }
    for (n, expected) in [(9, Said::Pass), (10, Said::Warn), (12, Said::Refused)] {
        assert_eq!(of(n, DAY_MS / 2, Guard::Budget).said, expected, "{n}");
    }
    assert_eq!(of(6, 3_600_001, Guard::Rate).said, Said::Pass, "an hour ago is over");
    assert_eq!(of(12, DAY_MS + 1, Guard::Budget).said, Said::Pass);
    let warned = of(5, 60_000, Guard::Rate);
    assert!(warned.sentence.contains("node-1") && warned.sentence.contains("kernel"), "{}", warned.sentence);
    let future = with_record(|r| {
        ran(6, 0)(r);
        r.finished.iter_mut().for_each(|f| f.at_ms = NOW_MS + DAY_MS);
    });
    assert_eq!(said(&future, Guard::Rate).said, Said::Refused, "another host's clock is no way round a limit");
    let mut limited = with_record(ran(1, 60_000));
    limited.cycles_per_hour = Some(1);
    assert_eq!(said(&limited, Guard::Rate).said, Said::Refused);
}

#[test]
fn labels_are_distinct_and_find_their_guard() {
    let labels: BTreeSet<_> = Guard::ALL.iter().map(|g| g.label()).collect();
    assert_eq!(labels.len(), Guard::ALL.len());
    assert!(Guard::ALL.into_iter().all(|g| Guard::from_label(g.label()) == Some(g)));
    assert_eq!(Guard::from_label("no-such-guard"), None);
}
