//! One tick of somebody who has seen nothing before: what is old is old by its writer's clock, and what is not known is no
//! proof.

use super::super::super::exit::Exit;
use super::super::super::finding::{Finding, Kind, Report};
use super::super::super::page::Severity;
use super::super::once::{CLOCKS_DIFFER_MS, verdict};
use super::kit::*;

const BUDGET_S: u64 = 7_200;

fn tick(kit: &mut Kit) -> Report {
    kit.settings = kit.settings.clone().once();
    kit.look();
    kit.now = kit.now.plus(5_000);
    kit.look()
}

/// A slot, a hold, or self-heal off, so old by the clock of who wrote it.
fn planned(which: &str, age_ms: u64) -> Kit {
    let mut kit = Kit::new(3, 1);
    kit.settings.held_grace_ms = 0;
    let since_ms = kit.now.wall_ms - age_ms;
    match which {
        "slot" => {
            let slot = super::super::super::record::Slot { since_ms, ..slot(1, BUDGET_S) };
            kit.record.value.slots.insert(instance(1), slot);
        }
        _ => {
            let mut hold = hold(1, BUDGET_S);
            hold.order.since_ms = since_ms;
            kit.record.value.holds.insert(instance(1), hold);
        }
    }
    kit.drop(1);
    kit
}

#[test]
fn a_tick_takes_a_slot_or_hold_for_a_plan_until_its_time_and_an_hour_for_the_clocks_are_over() {
    for (which, over) in [("slot", "cycle-overdue/es-client-1"), ("hold", "held-too-long/es-client-1")] {
        let edge = BUDGET_S * 1_000 + CLOCKS_DIFFER_MS;
        let quiet = tick(&mut planned(which, edge - 10_000));
        assert_eq!(keys(&quiet), Vec::<String>::new(), "{which}");
        let mut told = keys(&tick(&mut planned(which, edge)));
        told.sort_unstable();
        let mut expected = vec!["below-minimum/au-search", "running-not-registered/es-client-1", over];
        expected.sort_unstable();
        assert_eq!(told, expected, "{which}");
        // A clock that is ahead makes nothing old.
        let mut ahead = planned(which, 0);
        ahead.now.wall_ms -= 1_000_000;
        assert_eq!(keys(&tick(&mut ahead)), Vec::<String>::new(), "{which}");
    }
}

#[test]
fn an_agent_never_goes_by_the_clocks_of_others() {
    let mut kit = planned("slot", 100 * BUDGET_S * 1_000);
    assert_eq!(keys(&kit.two()), Vec::<String>::new());
}

#[test]
fn a_tick_that_cannot_read_the_record_tells_that_and_no_absence_which_a_plan_may_explain() {
    let mut kit = Kit::new(3, 1);
    kit.drop(1);
    kit.record.fails();
    let report = tick(&mut kit);
    assert_eq!(keys(&report), ["blind/es-client-0: fleet record"]);
    for about in [(Kind::BelowMinimum, FLEET.into()), (Kind::RunningNotRegistered, "es-client-1".into())] {
        assert!(!report.shows_absent(&about), "{about:?}");
    }
    kit.drop(2);
    let report = tick(&mut kit);
    assert_eq!(keys(&report), ["below-floor/au-search", "blind/es-client-0: fleet record"], "no plan explains that");
}

#[test]
fn a_tick_that_finds_no_member_at_all_was_pointed_at_an_empty_place() {
    let mut kit = Kit::new(3, 1);
    kit.members.value.clear();
    let report = tick(&mut kit);
    assert_eq!(keys(&report), ["blind/es-client-0: members"]);
    assert!(!report.shows_absent(&(Kind::BelowFloor, FLEET.into())));
}

#[test]
fn a_tick_ends_with_what_is_critical_before_what_it_cannot_see() {
    let finding = |kind: Kind, severity| Finding { kind, subject: "x".into(), severity, sentence: "x".into() };
    let (blind, out) = (finding(Kind::Blind, Severity::Critical), finding(Kind::OutOfService, Severity::Critical));
    let odd = finding(Kind::ForeignTarget, Severity::Warning);
    let ends = |findings: &[&Finding]| verdict(&Report::complete("x", findings.iter().map(|f| (*f).clone()).collect()));
    assert_eq!(ends(&[&blind, &odd]), Exit::Unreachable);
    assert_eq!(ends(&[&blind, &out]), Exit::PeersNotSettled);
    assert_eq!(ends(&[&odd]), Exit::PeersNotSettled);
    let floor = finding(Kind::BelowFloor, Severity::Critical);
    assert_eq!(ends(&[&blind, &out, &floor]), Exit::BelowMinimum);
}
