//! Sources that fail, that are old, that contradict each other.

use super::super::super::error::{Class, Fault};
use super::super::super::finding::{Kind, Report};
use super::super::super::target::{Named, Reason, TargetState};
use super::super::Wrote;
use super::kit::*;

const FAILS: Option<Reason> = Some(Reason::FailedHealthChecks);

/// Makes one source fail.
fn fail(kit: &mut Kit, source: usize) {
    match source {
        0 => kit.groups[0].list.fails(),
        1 => kit.members.fails(),
        2 => kit.nodes.fails(),
        _ => kit.record.fails(),
    }
}

const LABELS: [&str; 4] = ["load balancer es-clients", "members", "cluster nodes", "fleet record"];

#[test]
fn a_source_that_fails_for_five_minutes_is_blind_for_this_agent_alone_and_recovers() {
    for (source, label) in LABELS.into_iter().enumerate() {
        let mut kit = Kit::new(3, 1);
        kit.later(MINUTE);
        fail(&mut kit, source);
        let subject = format!("es-client-0: {label}");
        let report = kit.later(5 * MINUTE);
        assert_eq!(keys(&report), Vec::<String>::new(), "{label}");
        assert!(!report.shows_absent(&(Kind::Blind, subject.as_str().into())), "{label}");
        let report = kit.later(15_000);
        assert_eq!(keys(&report), [format!("blind/{subject}")]);
        let what = sentence(&report, Kind::Blind, &subject);
        let end = "for more than 5m00s: connection refused (transport)";
        assert_eq!(what, format!("es-client-0 has not seen its source \"{label}\" {end}"));
        (kit.groups[0].list.fault, kit.members.fault, kit.nodes.fault, kit.record.fault) = (None, None, None, None);
        let report = kit.later(15_000);
        assert!(report.shows_absent(&(Kind::Blind, subject.into())), "{label}");
    }
}

#[test]
fn a_source_that_this_agent_is_not_to_read_is_not_missed() {
    let mut kit = Kit::new(3, 1);
    kit.groups[0].list.every_ms = None;
    kit.nodes.every_ms = None;
    assert_eq!(keys(&kit.later(30 * MINUTE)), Vec::<String>::new());
}

#[test]
fn an_old_answer_is_as_good_as_none() {
    let mut kit = Kit::new(3, 1);
    kit.put(1, TargetState::Unhealthy, FAILS);
    assert_eq!(keys(&kit.two()), ["below-minimum/au-search", "unhealthy/es-client-1"]);
    kit.now = kit.now.plus(61_000);
    let report = kit.judge();
    assert_eq!(keys(&report), Vec::<String>::new());
    for kind in Kind::ALL.into_iter().filter(|k| *k != Kind::Blind) {
        assert!(!report.shows_absent(&(kind, "es-client-1".into())), "{kind:?}");
        assert!(!report.shows_absent(&(kind, FLEET.into())), "{kind:?}");
    }
    assert_eq!(keys(&kit.look()), ["below-minimum/au-search", "unhealthy/es-client-1"], "and then it is told at once");
}

#[test]
fn a_throttled_read_neither_counts_nor_begins_anew() {
    let mut kit = Kit::new(3, 1);
    kit.put(1, TargetState::Unhealthy, FAILS);
    kit.look();
    kit.groups[0].list.fault = Some(Fault::new(Class::Throttled, "Rate exceeded"));
    assert_eq!(keys(&kit.later(30_000)), Vec::<String>::new());
    kit.groups[0].list.fault = None;
    assert_eq!(keys(&kit.later(15_000)), ["below-minimum/au-search", "unhealthy/es-client-1"]);
}

#[test]
fn an_empty_list_is_not_believed_where_the_own_target_is_registered_by_name() {
    let mut kit = Kit::new(3, 1);
    kit.groups[0].named.every_ms = Some(15_000);
    kit.groups[0].named.value = Named::Rows(vec![healthy(0)]);
    kit.later(MINUTE);
    kit.rows().clear();
    let report = kit.later(5 * MINUTE);
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(!report.shows_absent(&(Kind::BelowFloor, FLEET.into())));
    let report = kit.later(15_000);
    assert_eq!(keys(&report), ["blind/es-client-0: load balancer es-clients"]);
    let what = sentence(&report, Kind::Blind, "es-client-0: load balancer es-clients");
    let why = "its list of 0 targets leaves somebody out: asked by name, es-client-0 is healthy";
    assert!(what.ends_with(why), "{what}");
    // By name, too: then it is so.
    kit.groups[0].named.value = Named::Rows(vec![row(0, TargetState::Unused, Some(Reason::NotRegistered))]);
    assert!(find(&kit.two(), Kind::BelowFloor, FLEET).is_some());
}

#[test]
fn a_list_without_a_peer_that_reads_itself_healthy_since_is_not_believed() {
    let mut kit = Kit::new(3, 1);
    kit.members.value.iter_mut().for_each(|m| m.says.own_age_ms = Some(2_000));
    kit.later(MINUTE);
    kit.drop(1);
    let report = kit.later(MINUTE);
    assert_eq!(keys(&report), Vec::<String>::new());
    let report = kit.later(6 * MINUTE);
    assert_eq!(keys(&report), ["blind/es-client-0: load balancer es-clients"]);
    // What it read before this agent missed it is no contradiction, however often it is beaten again.
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    kit.drop(1);
    let mut told = Vec::new();
    for n in 0..4 {
        kit.members.value[1].says.own_age_ms = Some(2_000 + n * 15_000);
        told.push(find(&kit.later(15_000), Kind::RunningNotRegistered, "es-client-1").is_some());
    }
    assert_eq!(told, [false, true, true, true]);
}

#[test]
fn a_list_that_was_contradicted_stays_so_until_the_member_says_something_else() {
    let mut kit = Kit::new(3, 1);
    kit.members.value.iter_mut().for_each(|m| m.says.own_age_ms = Some(2_000));
    kit.later(MINUTE);
    kit.drop(1);
    kit.later(30_000);
    // The document is read after the list, with a newer claim: looked at once more, the same list is no truer.
    let lists = |kit: &mut Kit, every_ms| kit.groups.iter_mut().for_each(|g| g.list.every_ms = every_ms);
    let told = |report: &Report| find(report, Kind::RunningNotRegistered, "es-client-1").is_some();
    for _ in 0..30 {
        lists(&mut kit, None);
        let again = kit.later(7_000);
        assert!(!told(&again), "{:?}", keys(&again));
        // The list is read twice, the document once.
        lists(&mut kit, Some(15_000));
        let members = kit.members.every_ms.take();
        let twice = [kit.later(5_000), kit.later(10_000)];
        assert!(!twice.iter().any(told), "{:?}", keys(&twice[1]));
        kit.members.every_ms = members;
        kit.look();
    }
    assert_eq!(keys(&kit.look()), ["blind/es-client-0: load balancer es-clients"]);
    // It beats on, and has not read itself since: then the list is believed.
    let mut found = Vec::new();
    for n in 1..8 {
        kit.members.value[1].says.own_age_ms = Some(2_000 + n * 15_000);
        found.push(told(&kit.later(15_000)));
    }
    assert_eq!((found[1], found[6]), (false, true), "{found:?}");
}

#[test]
fn what_is_found_about_another_member_waits_for_a_read_of_the_members_after_it() {
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    kit.drop(1);
    let members = kit.members.every_ms.take();
    let told = |report: &Report| find(report, Kind::RunningNotRegistered, "es-client-1").is_some();
    assert!(!told(&kit.two()) && !told(&kit.later(15_000)), "by then it may have said goodbye");
    kit.members.every_ms = members;
    assert!(told(&kit.look()));
    // It has said goodbye: it is nobody's any more.
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    kit.drop(1);
    kit.members.every_ms = None;
    kit.two();
    kit.members.every_ms = members;
    kit.members.value.remove(1);
    assert!(!told(&kit.two()));
}

#[test]
fn two_rows_of_one_target_that_disagree_and_a_row_without_a_port_are_unknown() {
    for port in [Some(9200), None] {
        let mut kit = Kit::new(3, 1);
        if port.is_none() {
            kit.drop(1);
        }
        let mut second = row(1, TargetState::Draining, Some(Reason::DeregistrationInProgress));
        second.port = port;
        kit.rows().push(second);
        let report = kit.two();
        assert_eq!(keys(&report), Vec::<String>::new(), "{port:?}");
        assert!(!report.shows_absent(&(Kind::OutOfService, "es-client-1".into())), "{port:?}");
        assert!(!report.shows_absent(&(Kind::BelowMinimum, FLEET.into())), "{port:?}");
    }
}

#[test]
fn members_that_cannot_be_read_hide_no_emptied_group() {
    let mut kit = Kit::new(3, 1);
    kit.look();
    kit.members.fails();
    kit.put(1, TargetState::Unhealthy, FAILS);
    kit.put(2, TargetState::Unhealthy, FAILS);
    let report = kit.two();
    let what = sentence(&report, Kind::BelowFloor, FLEET);
    assert!(what.starts_with("1 of targets that may be members") || what.starts_with("at most 1 of targets"), "{what}");
    assert!(what.contains("es-client-1 is unhealthy"), "who it was, by what was known: {what}");
    assert!(!report.shows_absent(&(Kind::AgentSilent, "es-client-1".into())));
    kit.put(1, TargetState::Healthy, None);
    kit.put(2, TargetState::Healthy, None);
    let report = kit.two();
    assert!(find(&report, Kind::BelowFloor, FLEET).is_none());
    assert!(!report.shows_absent(&(Kind::BelowFloor, FLEET.into())), "healthy targets may be nobody's");
}

#[test]
fn members_that_leave_out_this_agents_own_document_are_not_believed() {
    let mut kit = Kit::new(3, 1);
    kit.wrote = Some(Wrote { boot: kit.now.boot.clone(), beat: u64::MAX, since: kit.now.clone() });
    kit.members.value.clear();
    let report = kit.two();
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(!report.shows_absent(&(Kind::BelowFloor, FLEET.into())));
    assert_eq!(keys(&kit.later(6 * MINUTE)), ["blind/es-client-0: members"]);
}

#[test]
fn a_list_of_client_nodes_that_names_no_healthy_member_is_not_believed() {
    let mut kit = Kit::new(3, 1);
    kit.nodes.value.clear();
    let report = kit.two();
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(!report.shows_absent(&(Kind::RegisteredNotRunning, "es-client-1".into())));
    assert_eq!(keys(&kit.later(6 * MINUTE)), ["blind/es-client-0: cluster nodes"]);
}

#[test]
fn one_read_of_the_cluster_is_not_two_however_often_the_groups_are_read() {
    let mut kit = Kit::new(3, 1);
    kit.nodes.value.remove(1);
    kit.look();
    kit.nodes.every_ms = None;
    assert_eq!(keys(&kit.later(45_000)), Vec::<String>::new());
    kit.nodes.every_ms = Some(30_000);
    assert_eq!(keys(&kit.later(15_000)), ["registered-not-running/es-client-1"]);
}

#[test]
fn while_the_record_is_unknown_an_absence_may_be_planned_but_not_for_ever() {
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    kit.record.fails();
    kit.drop(1);
    let report = kit.later(4 * MINUTE);
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(!report.shows_absent(&(Kind::RunningNotRegistered, "es-client-1".into())));
    let report = kit.later(2 * MINUTE);
    assert_eq!(
        keys(&report),
        ["below-minimum/au-search", "running-not-registered/es-client-1", "blind/es-client-0: fleet record"]
    );
    let what = sentence(&report, Kind::RunningNotRegistered, "es-client-1");
    assert!(what.ends_with("the fleet record cannot be read: a cycle or a hold may explain it"), "{what}");
}

#[test]
fn what_the_record_last_said_still_explains_until_its_time() {
    let mut kit = Kit::new(3, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 1_200));
    kit.look();
    kit.record.fails();
    kit.drop(1);
    assert_eq!(keys(&kit.later(19 * MINUTE)), ["blind/es-client-0: fleet record"]);
    let report = kit.later(2 * MINUTE);
    assert!(find(&report, Kind::RunningNotRegistered, "es-client-1").is_some(), "{:?}", keys(&report));
    assert!(find(&report, Kind::CycleOverdue, "es-client-1").is_none(), "whether the slot is there is not known");
}

#[test]
fn another_boot_begins_with_an_empty_memory() {
    let mut kit = Kit::new(3, 1);
    kit.put(1, TargetState::Unhealthy, FAILS);
    assert!(!keys(&kit.two()).is_empty());
    kit.now.boot = super::super::super::time::BootId("another".into());
    kit.now.since_boot_ms = 5;
    let report = kit.look();
    assert_eq!(keys(&report), Vec::<String>::new());
    assert!(!report.shows_absent(&(Kind::Unhealthy, "es-client-1".into())), "seen once");
    assert!(!keys(&kit.later(15_000)).is_empty());
}
