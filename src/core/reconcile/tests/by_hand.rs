//! The targets that a page names: what is out, and is not being patched.

use super::super::super::finding::{About, Kind};
use super::super::super::member::FleetView;
use super::super::by_hand::{Known, targets};
use super::kit::*;
use std::collections::BTreeSet;

/// Whose targets a page about this names, where the first `in_service` nodes serve.
fn named(kit: &Kit, kind: Kind, subject: &str, in_service: &[usize]) -> Vec<String> {
    let view = FleetView {
        in_service: in_service.iter().map(|n| instance(*n)).collect(),
        members: BTreeSet::default(),
        begun: kit.now.clone(),
    };
    let known = Known {
        members: &kit.members.value,
        view: Some(&view),
        record: Some(&kit.record.value),
        first: &kit.first,
        hearts: &kit.hearts,
        settings: &kit.settings,
        now: &kit.now,
    };
    let about: About = (kind, subject.into());
    targets(&about, &known).iter().map(|t| t.id.to_string()).collect()
}

fn id(n: usize) -> String {
    instance(n).to_string()
}

#[test]
fn a_page_names_who_is_out_and_nobody_whose_cycle_or_hold_is_in_its_time() {
    let mut kit = Kit::new(5, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 3_600));
    kit.record.value.holds.insert(instance(2), hold(2, 3_600));
    kit.look();
    assert_eq!(named(&kit, Kind::BelowFloor, FLEET, &[0, 4]), [id(3)]);
    assert_eq!(named(&kit, Kind::BelowMinimum, FLEET, &[0, 3, 4]), Vec::<String>::new());
    assert_eq!(named(&kit, Kind::RunningNotRegistered, &name(3), &[0, 4]), [id(3)]);
    // A hold may be late home by a quarter of an hour.
    kit.later(76 * MINUTE);
    assert_eq!(named(&kit, Kind::BelowFloor, FLEET, &[0, 4]), [id(1), id(2), id(3)], "their time is over");
    assert_eq!(named(&kit, Kind::CycleOverdue, &name(1), &[0, 4]), [id(1)]);
    assert_eq!(named(&kit, Kind::HeldTooLong, &name(2), &[0, 4]), [id(2)]);
    assert_eq!(named(&kit, Kind::CycleOverdue, &name(1), &[0, 1, 4]), Vec::<String>::new(), "it serves");
}

#[test]
fn a_holder_whose_agent_is_gone_or_whose_cycle_failed_is_named() {
    let mut kit = Kit::new(4, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.look();
    kit.still = vec![instance(1)];
    kit.later(29 * MINUTE);
    assert_eq!(named(&kit, Kind::BelowFloor, FLEET, &[0]), [id(2), id(3)], "it may restart its machine");
    kit.later(2 * MINUTE);
    assert_eq!(named(&kit, Kind::BelowFloor, FLEET, &[0]), [id(1), id(2), id(3)]);
    assert_eq!(named(&kit, Kind::SlotHolderGone, &name(1), &[0]), [id(1)]);

    let mut kit = Kit::new(4, 1);
    kit.record.value.slots.insert(instance(1), slot(1, 7_200));
    kit.record.value.latches.insert("c-1".into(), latch(1));
    kit.look();
    assert_eq!(named(&kit, Kind::Latched, &name(1), &[0, 2, 3]), [id(1)]);
    assert_eq!(named(&kit, Kind::Latched, &name(1), &[0, 1, 2, 3]), Vec::<String>::new(), "it is back");
}

#[test]
fn a_node_that_was_held_since_its_page_was_raised_is_not_named_by_it() {
    let mut kit = Kit::new(4, 1);
    kit.look();
    assert_eq!(named(&kit, Kind::RunningNotRegistered, &name(1), &[0]), [id(1)]);
    kit.record.value.holds.insert(instance(1), hold(1, 3_600));
    kit.later(15_000);
    assert_eq!(named(&kit, Kind::RunningNotRegistered, &name(1), &[0]), Vec::<String>::new());
}
