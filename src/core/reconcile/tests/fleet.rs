//! Counts, plans, and what concerns more than one node.

use super::super::super::finding::Kind;
use super::super::super::page::Severity;
use super::super::super::record::Pause;
use super::super::super::target::{Reason, TargetState};
use super::kit::*;

const GONE: Option<Reason> = Some(Reason::NotRegistered);
const FAILS: Option<Reason> = Some(Reason::FailedHealthChecks);

#[test]
fn a_fleet_that_is_well_has_no_finding_and_every_kind_of_reconcile_is_shown_absent() {
    let report = Kit::new(3, 2).two();
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(report.unjudged_about.is_empty());
    for kind in Kind::ALL {
        let subject = if kind == Kind::Blind { "es-client-0: members" } else { "es-client-1" };
        assert_eq!(report.shows_absent(&(kind, subject.into())), !kind.made_elsewhere(), "{kind:?}");
    }
    assert!(!report.shows_absent(&(Kind::Blind, "es-client-1: members".into())), "another agent's sight");
}

#[test]
fn a_finding_is_told_at_the_second_read_and_not_by_looking_twice_at_one() {
    let mut kit = Kit::new(3, 1);
    kit.put(1, TargetState::Unhealthy, FAILS);
    assert_eq!(keys(&kit.look()), Vec::<String>::new());
    let again = kit.judge();
    assert_eq!(keys(&again), Vec::<String>::new());
    assert!(!again.shows_absent(&(Kind::Unhealthy, "es-client-1".into())), "seen once: neither told nor resolved");
    assert_eq!(keys(&kit.later(15_000)), ["below-minimum/au-search", "unhealthy/es-client-1"]);
    kit.put(1, TargetState::Healthy, None);
    let well = kit.later(15_000);
    assert_eq!(keys(&well), Vec::<String>::new());
    assert!(well.shows_absent(&(Kind::Unhealthy, "es-client-1".into())));
    kit.put(1, TargetState::Unhealthy, FAILS);
    assert_eq!(keys(&kit.later(15_000)), Vec::<String>::new(), "it starts anew");
}

#[test]
fn below_minimum_names_who_is_missing_and_why_and_below_floor_takes_its_place() {
    let mut kit = Kit::new(3, 2);
    kit.put(1, TargetState::Unhealthy, FAILS);
    let report = kit.two();
    assert_eq!(
        sentence(&report, Kind::BelowMinimum, FLEET),
        "2 of 3 members in service, minimum 3: es-client-1 is unhealthy (Target.FailedHealthChecks) in es-clients"
    );
    assert!(report.shows_absent(&(Kind::BelowFloor, FLEET.into())));
    kit.drop(2);
    let report = kit.two();
    assert_eq!(
        sentence(&report, Kind::BelowFloor, FLEET),
        "1 of 3 members in service, floor 2: es-client-1 is unhealthy (Target.FailedHealthChecks) in es-clients; \
         es-client-2 is not registered in es-clients and not registered in es-internal"
    );
    assert!(find(&report, Kind::BelowMinimum, FLEET).is_none());
    assert!(
        !report.shows_absent(&(Kind::BelowMinimum, FLEET.into())),
        "the lesser alert is not resolved by the worse one"
    );
    assert_eq!(report.findings[0].kind, Kind::BelowFloor, "worst first");
}

#[test]
fn one_node_in_every_group_counts_once_and_in_some_groups_not_at_all() {
    let mut kit = Kit::new(3, 2);
    let id = instance(2).0;
    kit.groups[1].list.value.retain(|r| r.id != id);
    let report = kit.two();
    assert_eq!(keys(&report), ["below-minimum/au-search", "missing-from-group/es-client-2"]);
    assert_eq!(
        sentence(&report, Kind::MissingFromGroup, "es-client-2"),
        "es-client-2 is not registered in es-internal, while it is healthy in es-clients"
    );
}

#[test]
fn an_emptied_group_is_below_floor_at_the_second_read() {
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    kit.rows().clear();
    kit.members.value.iter_mut().for_each(|m| m.says.own_age_ms = Some(5_000));
    let mut told = Vec::new();
    for look in 0..4 {
        if look == 1 {
            kit.members.value.iter_mut().for_each(|m| m.sees = vec!["not registered".into()]);
        }
        told.push(find(&kit.later(15_000), Kind::BelowFloor, FLEET).is_some());
    }
    assert_eq!(told, [false, true, true, true]);
    let report = kit.judge();
    let running = (0..3).filter(|n| find(&report, Kind::RunningNotRegistered, &name(*n)).is_some()).count();
    assert_eq!(running, 3);
}

#[test]
fn a_cycle_or_hold_is_silent_until_its_time_by_this_agents_first_sight_is_over() {
    for hold_it in [false, true] {
        let mut kit = Kit::new(3, 1);
        let members = |kit: &mut Kit| match hold_it {
            true => drop(kit.record.value.holds.insert(instance(1), hold(1, 600))),
            false => drop(kit.record.value.slots.insert(instance(1), slot(1, 600))),
        };
        kit.settings.held_grace_ms = 0;
        members(&mut kit);
        kit.drop(1);
        let silent = kit.later(10 * MINUTE);
        assert_eq!(keys(&silent), Vec::<String>::new(), "{hold_it}");
        assert!(!silent.shows_absent(&(Kind::BelowMinimum, FLEET.into())));
        let report = kit.later(45_000);
        let over = if hold_it { "held-too-long/es-client-1" } else { "cycle-overdue/es-client-1" };
        let mut expected = vec!["below-minimum/au-search", "running-not-registered/es-client-1", over];
        expected.sort_unstable();
        let mut found = keys(&report);
        found.sort_unstable();
        assert_eq!(found, expected, "{hold_it}");
        let what = sentence(&report, Kind::RunningNotRegistered, "es-client-1");
        assert!(
            what.ends_with(if hold_it { "its hold by ann is over" } else { "cycle c-1 (job kernel) is over" }),
            "{what}"
        );
    }
}

#[test]
fn nothing_silences_below_floor() {
    let mut kit = Kit::new(3, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.record.value.holds.insert(instance(2), hold(2, 7_200));
    kit.drop(1);
    kit.drop(2);
    let report = kit.two();
    assert_eq!(keys(&report), ["below-floor/au-search"]);
    let what = sentence(&report, Kind::BelowFloor, FLEET);
    assert!(what.contains("(cycle c-1 (job kernel))") && what.contains("(held by ann)"), "{what}");
}

#[test]
fn what_an_open_latch_explains_is_told_by_latched_for_as_long_as_it_is_open() {
    let mut kit = Kit::new(3, 1);
    kit.record.value.latches.insert("c-7f3a".into(), latch(1));
    kit.put(1, TargetState::Unhealthy, FAILS);
    let report = kit.later(600 * MINUTE);
    assert_eq!(keys(&report), ["latched/es-client-1"]);
    assert_eq!(
        sentence(&report, Kind::Latched, "es-client-1"),
        "a cycle of es-client-1 failed in check (transport: connection refused); patching is blocked on every node \
         until: backstop latch clear L-7f3a --reason …"
    );
    let latch = kit.record.value.latches.get_mut(&"c-7f3a".into()).unwrap();
    latch.cleared = Some(order());
    assert_eq!(keys(&kit.two()), ["below-minimum/au-search", "unhealthy/es-client-1"]);
}

#[test]
fn a_slots_node_and_an_own_failure_are_not_said_to_be_without_a_latch() {
    let mut kit = Kit::new(3, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.own_failure = true;
    let report = kit.two();
    for n in 0..2 {
        assert!(!report.shows_absent(&(Kind::Latched, name(n).into())), "{n}");
    }
    assert!(report.shows_absent(&(Kind::Latched, name(2).into())));
}

#[test]
fn all_registered_targets_that_fail_at_once_are_one_critical_finding_about_the_fleet() {
    let mut kit = Kit::new(3, 1);
    (0..3).for_each(|n| kit.put(n, TargetState::Unhealthy, FAILS));
    let report = kit.two();
    assert_eq!(keys(&report), ["below-floor/au-search", "unhealthy/au-search"]);
    let f = find(&report, Kind::Unhealthy, FLEET).unwrap();
    assert_eq!(f.severity, Severity::Critical);
    assert!(f.sentence.contains("all 3 in es-clients") && f.sentence.ends_with("Nothing is changed"), "{}", f.sentence);
    assert!(!report.shows_absent(&(Kind::Unhealthy, "es-client-1".into())), "nor is one node's alert resolved by it");
    kit.put(0, TargetState::Healthy, None);
    assert_eq!(
        keys(&kit.two()),
        ["below-floor/au-search", "unhealthy/es-client-1", "unhealthy/es-client-2"],
        "two of three are two nodes"
    );
}

#[test]
fn a_second_node_that_something_else_takes_out_is_more_than_the_slots() {
    let mut kit = Kit::new(4, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.put(1, TargetState::Draining, Some(Reason::DeregistrationInProgress));
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
    kit.drop(2);
    let report = kit.two();
    assert_eq!(
        sentence(&report, Kind::MoreOutThanSlots, FLEET),
        "2 members are deregistered, max_unavailable is 1; no slot, hold or latch explains es-client-2: something else \
         takes nodes out"
    );
    let mut kit = Kit::new(5, 1);
    for n in 1..3 {
        kit.record.value.slots.insert(instance(n), slot(n, 7_200));
    }
    let what = sentence(&kit.two(), Kind::MoreOutThanSlots, FLEET);
    assert_eq!(what, "2 slots are taken, max_unavailable is 1: es-client-1 and es-client-2");
}

#[test]
fn a_holder_that_restarts_its_machine_is_not_gone_and_one_without_a_document_is() {
    let mut kit = Kit::new(3, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.drop(1);
    kit.still = vec![instance(1)];
    let report = kit.later(20 * MINUTE);
    assert_eq!(keys(&report), Vec::<String>::new(), "neither silent nor gone");
    assert!(!report.shows_absent(&(Kind::SlotHolderGone, "es-client-1".into())));
    let report = kit.later(11 * MINUTE);
    assert_eq!(keys(&report), ["slot-holder-gone/es-client-1"]);
    kit.members.value.remove(1);
    kit.nodes.value.remove(1);
    kit.minimum(2, 1);
    let report = kit.two();
    let gone = "es-client-1 holds a slot for cycle c-1 (job kernel), and is no member any more";
    assert_eq!(sentence(&report, Kind::SlotHolderGone, "es-client-1"), gone);
}

#[test]
fn a_silent_agent_is_told_once_three_of_its_own_promises_are_missed() {
    let mut kit = Kit::new(3, 1);
    kit.members.value[2].says.beat_every_ms = 250_000;
    kit.look();
    kit.still = vec![instance(1), instance(2)];
    assert_eq!(keys(&kit.later(3 * MINUTE)), ["agent-silent/es-client-1"]);
    let report = kit.later(11 * MINUTE);
    assert_eq!(keys(&report), ["agent-silent/es-client-1", "agent-silent/es-client-2"]);
    assert_eq!(
        sentence(&report, Kind::AgentSilent, "es-client-2"),
        "the agent of es-client-2 has not written its beat for more than 12m30s"
    );
    kit.record.value.holds.insert(instance(1), hold(1, 7_200));
    assert_eq!(keys(&kit.two()), ["agent-silent/es-client-2"], "a held machine may be off");
}

#[test]
fn pauses_and_holds_that_go_on_too_long_are_told() {
    let mut kit = Kit::new(3, 1);
    kit.settings.paused_too_long_ms = 30 * MINUTE;
    kit.record.value.pause = Some(order());
    kit.record.value.hold_all = Some(hold(0, 600));
    assert_eq!(keys(&kit.later(24 * MINUTE)), Vec::<String>::new());
    assert_eq!(keys(&kit.later(2 * MINUTE)), ["held-too-long/au-search"]);
    let report = kit.later(6 * MINUTE);
    assert_eq!(keys(&report), ["paused-too-long/au-search", "held-too-long/au-search"]);
    kit.record.value.pause = Some(Pause { since_ms: 9, ..order() });
    let report = kit.two();
    assert_eq!(keys(&report), ["held-too-long/au-search"], "another pause has a time of its own");
    assert!(!report.shows_absent(&(Kind::PausedTooLong, FLEET.into())));
}

#[test]
fn another_port_is_told_as_such_beside_the_right_one_too() {
    let mut kit = Kit::new(3, 1);
    kit.drop(1);
    let mut r = healthy(1);
    r.port = Some(80);
    kit.rows().push(r.clone());
    let what = sentence(&kit.two(), Kind::WrongPort, "es-client-1");
    assert_eq!(what, "es-client-1 is registered under port 80 only in es-clients");
    kit.rows().push(healthy(1));
    let report = kit.two();
    assert_eq!(keys(&report), ["wrong-port/es-client-1"]);
    assert_eq!(
        sentence(&report, Kind::WrongPort, "es-client-1"),
        "es-client-1 is also registered under port 80 in es-clients"
    );
    // Two nodes at one address, each under a port of its own.
    let mut kit = Kit::new(3, 1);
    let id = instance(1).0;
    kit.members.value[2].targets[0].id = id.clone();
    kit.members.value[2].targets[0].port = 9201;
    kit.rows().retain(|r| r.id != instance(2).0);
    let mut second = healthy(1);
    second.port = Some(9201);
    kit.rows().push(second);
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
}

#[test]
fn ip_groups_are_matched_by_the_targets_of_the_documents() {
    let mut kit = Kit::new(3, 1);
    for n in 0..3 {
        let ip: std::sync::Arc<str> = format!("10.0.0.{n}").into();
        kit.members.value[n].targets[0].id = ip.clone();
        kit.rows()[n].id = ip;
    }
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
    kit.rows().remove(1);
    let report = kit.two();
    assert!(find(&report, Kind::RunningNotRegistered, "es-client-1").is_some(), "{:?}", keys(&report));
}

#[test]
fn client_nodes_are_members_by_id_else_by_name_else_by_address() {
    let mut kit = Kit::new(3, 1);
    kit.nodes.value[0].name = "renamed".into();
    kit.members.value[1].node_id = None;
    kit.members.value[2].node_id = None;
    kit.nodes.value[2].name = "also-renamed".into();
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
}

#[test]
fn a_client_node_without_agent_and_a_target_of_nobody_are_told_after_the_grace_and_never_counted() {
    let mut kit = Kit::new(3, 1);
    kit.drop(2);
    kit.minimum(3, 1);
    kit.nodes.value.push(client_node(7));
    kit.nodes.value.push(client_node(8));
    kit.settings.other_nodes = vec!["es-client-8*".into()];
    kit.rows().push(healthy(9));
    let usual = ["below-minimum/au-search", "running-not-registered/es-client-2"];
    assert_eq!(keys(&kit.later(9 * MINUTE)), usual);
    let report = kit.later(2 * MINUTE);
    let stray = format!("es-clients {}:9200", instance(9));
    assert_eq!(keys(&report)[2..], ["node-without-agent/es-client-7".to_owned(), format!("foreign-target/{stray}")]);
    assert!(sentence(&report, Kind::BelowMinimum, FLEET).starts_with("2 of 3 members"));
}

#[test]
fn a_differing_config_is_one_finding_after_the_grace_alike_in_the_eyes_of_all() {
    let mut kit = Kit::new(3, 2);
    kit.members.value[1].says.minimum_healthy = Some(2);
    assert_eq!(keys(&kit.later(9 * MINUTE)), Vec::<String>::new());
    let seen = sentence(&kit.later(2 * MINUTE), Kind::ConfigDiffers, FLEET);
    assert!(seen.contains("es-client-1 with minimum_healthy 2"), "{seen}");
    assert!(seen.contains("es-client-0 and es-client-2 with minimum_healthy 3"), "{seen}");
    let mut other = kit.clone();
    other.settings.minimum_healthy = 2;
    other.memory = super::super::Memory::default();
    assert_eq!(sentence(&other.later(11 * MINUTE), Kind::ConfigDiffers, FLEET), seen);
    // An older agent that says nothing differs in nothing.
    kit.members.value[1].says.minimum_healthy = None;
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
    kit.members.value[1].targets.pop();
    let report = kit.later(11 * MINUTE);
    assert!(find(&report, Kind::ConfigDiffers, FLEET).is_some(), "another list of groups");
}

#[test]
fn two_agents_of_one_identity_are_told_and_a_restart_is_not() {
    let mut kit = Kit::new(3, 1);
    kit.look();
    kit.members.value[1].boot = super::super::super::time::BootId("restarted".into());
    assert_eq!(keys(&kit.later(MINUTE)), Vec::<String>::new());
    for n in 0..4 {
        kit.members.value[1].boot = super::super::super::time::BootId(["x", "y"][n % 2].into());
        kit.later(15_000);
    }
    let report = kit.judge();
    assert_eq!(keys(&report), ["two-with-one-identity/i-00000000000000001"]);
    // My own document, by another hand.
    let mut kit = Kit::new(3, 1);
    kit.wrote = Some(super::super::Wrote {
        boot: kit.members.value[0].boot.clone(),
        beat: kit.members.value[0].beat + 1_000,
        since: kit.now.clone(),
    });
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
    kit.members.value[0].beat += 5_000;
    assert_eq!(keys(&kit.two()), ["two-with-one-identity/i-00000000000000000"]);
}

#[test]
fn patches_that_do_not_happen_are_told_by_what_documents_and_record_say() {
    const DAY: u64 = 24 * 60 * MINUTE;
    let mut kit = Kit::new(3, 1);
    kit.settings.patch_overdue_after_ms = Some(30 * DAY);
    let wall = kit.now.wall_ms;
    let ago = |days: u64| Some(wall - days * DAY);
    kit.members.value[0].says.joined_ms = ago(10);
    kit.members.value[1].says.joined_ms = ago(90);
    kit.members.value[1].says.patched_ms = ago(40);
    kit.members.value[2].says.refused_since_ms = ago(2);
    let report = kit.two();
    assert_eq!(keys(&report), ["patch-overdue/es-client-1", "patch-refused/es-client-2"]);
    assert!(!report.shows_absent(&(Kind::PatchOverdue, "es-client-2".into())), "it is not known when");
    kit.record.value.finished.push(super::super::super::record::Finished {
        cycle: "c-9".into(),
        node: "es-client-1".into(),
        job: "kernel".into(),
        at_ms: wall - DAY,
        good: true,
        extra: Default::default(),
    });
    assert_eq!(keys(&kit.two()), ["patch-refused/es-client-2"]);
}

#[test]
fn one_node_that_is_gone_by_name_only_is_found_by_its_own_agent() {
    let mut kit = Kit::new(5, 1);
    kit.groups[0].list.every_ms = None;
    kit.groups[0].named.every_ms = Some(15_000);
    kit.groups[0].named.value = super::super::super::target::Named::Rows(vec![row(0, TargetState::Unused, GONE)]);
    let report = kit.two();
    assert_eq!(keys(&report), ["running-not-registered/es-client-0"]);
    assert!(
        !report.shows_absent(&(Kind::RunningNotRegistered, "es-client-1".into())),
        "of the others it knows nothing"
    );
    assert!(!report.shows_absent(&(Kind::BelowMinimum, FLEET.into())));
}

#[test]
fn a_report_has_room_for_so_many_findings_and_counts_the_rest() {
    let mut kit = Kit::new(400, 1);
    kit.minimum(1, 1);
    (1..400).for_each(|n| kit.put(n, TargetState::Unhealthy, FAILS));
    kit.nodes.value.truncate(200);
    let report = kit.two();
    assert_eq!(report.findings.len(), super::super::FINDINGS_MAX);
    let last = report.findings.last().unwrap();
    assert!(last.sentence.ends_with("; and 143 more findings that no report has room for"), "{}", last.sentence);
    for n in 1..400 {
        for kind in [Kind::Unhealthy, Kind::RegisteredNotRunning] {
            let about = (kind, name(n).into());
            let right = find(&report, kind, &name(n)).is_some() || !report.shows_absent(&about);
            assert!(right || (kind == Kind::Unhealthy) == (n >= 200), "{kind:?} {n}");
        }
    }
    assert_eq!(report.finds().len(), super::super::super::member::FINDS_MAX);
}

#[test]
fn agents_of_another_group_are_a_differing_config_and_not_out_of_service() {
    let mut kit = Kit::new(3, 1);
    for m in &mut kit.members.value[1..] {
        m.targets[0].group = arn(7);
    }
    kit.rows().clear();
    kit.rows().extend((0..3).map(healthy));
    kit.later(2 * MINUTE);
    let report = kit.later(11 * MINUTE);
    let told = keys(&report);
    assert!(told.contains(&format!("config-differs/{FLEET}")), "{told:?}");
    let of_nodes = ["below-floor", "below-minimum", "running-not-registered", "out-of-service", "more-out-than-slots"];
    assert!(!told.iter().any(|k| of_nodes.iter().any(|kind| k.starts_with(kind))), "{told:?}");
}

/// Agents read the record and the lists at different moments; a cycle begins and ends between them.
#[test]
fn a_cycle_that_begins_and_ends_between_two_reads_is_no_finding() {
    let mut kit = Kit::new(3, 1);
    kit.later(11 * MINUTE);
    // It is seen draining before the record is read that explains it.
    kit.put(1, TargetState::Draining, None);
    assert_eq!(keys(&kit.later(1_000)), Vec::<String>::new());
    kit.record.value.slots.insert(instance(1), slot(1, 3_600));
    assert_eq!(keys(&kit.later(2 * MINUTE)), Vec::<String>::new());
    // It comes home: the record says so first, twice, and the list is still the old one.
    kit.record.value.slots.clear();
    for _ in 0..2 {
        kit.now = kit.now.plus(2_000);
        let now = kit.now.clone();
        kit.record.read(&now);
        assert_eq!(keys(&kit.judge()), Vec::<String>::new(), "a read from before the end of its plan");
    }
    // A read that began since then counts, and it is the first of two.
    let once = kit.later(2_000);
    assert_eq!(keys(&once), Vec::<String>::new(), "one read is none");
    assert_eq!(keys(&kit.later(15_000)), ["below-minimum/au-search", "running-not-registered/es-client-1"]);
}

#[test]
fn a_new_member_has_its_grace_until_it_was_in_service_once() {
    let mut kit = Kit::new(4, 1);
    kit.minimum(4, 2);
    for member in &mut kit.members.value[2..] {
        member.beat = 0;
    }
    kit.put(2, TargetState::Initial, None);
    kit.drop(3);
    assert_eq!(keys(&kit.later(MINUTE)), Vec::<String>::new(), "both are starting");
    kit.put(2, TargetState::Healthy, None);
    kit.later(MINUTE);
    kit.drop(2);
    let report = kit.later(45_000);
    assert!(find(&report, Kind::RunningNotRegistered, "es-client-2").is_some(), "{:?}", keys(&report));
    assert!(find(&report, Kind::RunningNotRegistered, "es-client-3").is_none(), "it never was in service");
    assert!(find(&report, Kind::BelowMinimum, FLEET).is_some(), "{:?}", keys(&report));
}
