//! A fleet that grows, shrinks, and whose instances are replaced.

use super::super::super::member::Member;
use super::kit::*;

/// A new member: its first beats.
fn joins(kit: &mut Kit, n: usize, registered: bool) {
    let mut m: Member = member(n, kit.groups.len());
    m.beat = 0;
    m.says = kit.members.value[0].says.clone();
    kit.members.value.push(m);
    kit.members.value.sort_by(|a, b| a.instance.cmp(&b.instance));
    kit.nodes.value.push(client_node(n));
    if registered {
        kit.rows().push(healthy(n));
    }
}

fn leaves(kit: &mut Kit, n: usize) {
    kit.members.value.retain(|m| m.instance != instance(n));
    kit.nodes.value.retain(|c| *c.name != *name(n));
    kit.drop(n);
}

#[test]
fn growing_from_three_to_five_and_shrinking_to_two_finds_nothing() {
    let mut kit = Kit::new(3, 1);
    kit.later(20 * MINUTE);
    // The cluster and the load balancer know a new node before its agent has said who it is.
    kit.nodes.value.push(client_node(3));
    kit.rows().push(healthy(3));
    assert_eq!(keys(&kit.later(8 * MINUTE)), Vec::<String>::new());
    kit.nodes.value.pop();
    kit.rows().pop();
    // And an agent before it is registered.
    joins(&mut kit, 3, false);
    joins(&mut kit, 4, false);
    for _ in 0..30 {
        assert_eq!(keys(&kit.later(15_000)), Vec::<String>::new());
    }
    kit.rows().push(healthy(3));
    kit.rows().push(healthy(4));
    assert_eq!(keys(&kit.later(20 * MINUTE)), Vec::<String>::new());
    kit.minimum(2, 1);
    for n in [4, 1, 2] {
        // The target goes first, then the machine.
        let retired = order();
        kit.record.value.retired.insert(instance(n), retired);
        kit.drop(n);
        assert_eq!(keys(&kit.later(MINUTE)), Vec::<String>::new(), "{n}");
        leaves(&mut kit, n);
        assert_eq!(keys(&kit.later(20 * MINUTE)), Vec::<String>::new(), "{n}");
    }
    assert_eq!(kit.members.value.len(), 2);
}

#[test]
fn a_replaced_instance_is_found_missing_only_by_the_count_and_its_successor_has_its_grace() {
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    // Its goodbye: the document goes, the target is listed for a while.
    kit.members.value.retain(|m| m.instance != instance(1));
    kit.nodes.value.retain(|c| *c.name != *name(1));
    assert_eq!(keys(&kit.two()), ["below-minimum/au-search"], "two are two");
    kit.drop(1);
    joins(&mut kit, 5, false);
    assert_eq!(keys(&kit.two()), Vec::<String>::new(), "the one that is missing is new");
    kit.rows().push(healthy(5));
    assert_eq!(keys(&kit.later(20 * MINUTE)), Vec::<String>::new());
}

#[test]
fn a_new_node_that_is_never_registered_is_told_when_its_grace_is_over_also_by_an_agent_that_starts_then() {
    let mut kit = Kit::new(3, 1);
    kit.later(MINUTE);
    joins(&mut kit, 3, false);
    assert_eq!(keys(&kit.later(9 * MINUTE)), Vec::<String>::new());
    let mut late = Kit { memory: Default::default(), hearts: Default::default(), ..kit.clone() };
    assert_eq!(keys(&late.two()), Vec::<String>::new(), "its own beats tell how new it is");
    for k in [&mut kit, &mut late] {
        assert_eq!(keys(&k.later(2 * MINUTE)), ["running-not-registered/es-client-3"]);
    }
}
