//! What must hold for any sight: what is not known is never shown absent; nothing grows without bounds.

use super::super::super::finding::{About, Report};
use super::super::super::target::{Named, Reason, Row, TargetState};
use super::super::{FINDINGS_MAX, Memory};
use super::kit::*;
use proptest::prelude::*;

const REASONS: [Option<Reason>; 6] = [
    None,
    Some(Reason::NotRegistered),
    Some(Reason::NotInUse),
    Some(Reason::FailedHealthChecks),
    Some(Reason::HealthCheckDisabled),
    Some(Reason::Unknown),
];

/// What one member is like, and how the record and the cluster see it.
#[derive(Clone, Debug)]
struct Node {
    at: Vec<(usize, usize)>,
    port: u8,
    listed: u8,
    plan: u8,
    still: bool,
    sees_itself: bool,
    young: bool,
}

fn node(groups: usize) -> impl Strategy<Value = Node> {
    // Healthy is the usual thing.
    let state = prop_oneof![3 => Just(1_usize), 2 => 0_usize..10];
    let at = proptest::collection::vec((state, 0..REASONS.len()), groups);
    (at, 0_u8..12, 0_u8..8, 0_u8..12, 0_u8..8, 0_u8..3, 0_u8..8).prop_map(
        |(at, port, listed, plan, still, sees, young)| Node {
            at,
            port,
            listed,
            plan,
            still: still == 0,
            sees_itself: sees == 0,
            young: young == 0,
        },
    )
}

fn fleet() -> impl Strategy<Value = (Vec<Node>, u8, bool)> {
    (1_usize..3).prop_flat_map(|groups| (proptest::collection::vec(node(groups), 1..6), 0_u8..6, any::<bool>()))
}

fn kit((nodes, extra, named): &(Vec<Node>, u8, bool)) -> Kit {
    let groups = nodes[0].at.len();
    let mut kit = Kit::new(nodes.len(), groups);
    kit.groups.iter_mut().for_each(|g| g.list.value.clear());
    for (n, node) in nodes.iter().enumerate() {
        for (g, (state, reason)) in node.at.iter().enumerate() {
            let group = &mut kit.groups[g];
            let Some(state) = TargetState::ALL.get(*state) else { continue }; // not listed
            let mut r = row(n, *state, REASONS[*reason]);
            match node.port {
                0 => r.port = Some(80),
                1 => r.port = None,
                2 => group.list.value.push(Row { port: Some(80), ..r.clone() }),
                3 => r.shifted = true,
                _ => {}
            }
            group.list.value.push(r.clone());
            if *named && n == 0 {
                group.named.every_ms = Some(15_000);
                group.named.value = Named::Rows(vec![r]);
            }
        }
        let m = &mut kit.members.value[n];
        if node.sees_itself {
            m.says.own_age_ms = Some(1_000);
        }
        if node.young {
            m.beat = 0;
        }
        if node.listed == 0 {
            kit.nodes.value.retain(|c| *c.name != *name(n));
        }
        if node.still {
            kit.still.push(instance(n));
        }
        let record = &mut kit.record.value;
        match node.plan {
            0 => drop(record.slots.insert(instance(n), slot(n, 7_200))),
            1 => drop(record.slots.insert(instance(n), slot(n, 10))),
            2 => drop(record.holds.insert(instance(n), hold(n, 7_200))),
            3 => drop(record.latches.insert(format!("c-{n}").as_str().into(), latch(n))),
            4 => drop(record.retired.insert(instance(n), order())),
            _ => {}
        }
    }
    match extra {
        0 => kit.record.value.pause = Some(order()),
        1 => kit.nodes.value.push(client_node(77)),
        2 => kit.groups[0].list.value.push(healthy(88)),
        3 => kit.members.value[0].says.max_unavailable = Some(9),
        _ => {}
    }
    kit.settings.grace_ms = MINUTE;
    kit.settings.paused_too_long_ms = MINUTE;
    kit
}

/// Takes sources away: never read, failing, or too old.
fn without(kit: &mut Kit, which: u16, how: u8) {
    fn take<T>(src: &mut Src<T>, how: u8) {
        match how {
            0 => src.begun = None,
            1 => src.fails(),
            _ => (src.every_ms, src.begun) = (None, None),
        }
    }
    let bit = |n: u16| which & (1 << n) != 0;
    if bit(0) {
        take(&mut kit.members, how);
    }
    if bit(1) {
        take(&mut kit.nodes, how);
    }
    if bit(2) {
        take(&mut kit.record, how);
    }
    for (g, group) in kit.groups.iter_mut().enumerate() {
        if bit(3 + u16::try_from(g).unwrap()) {
            take(&mut group.list, how);
        }
        if bit(5) {
            take(&mut group.named, how);
        }
    }
}

fn abouts(report: &Report) -> Vec<About> {
    report.findings.iter().map(|f| f.about()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(600),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn who_knows_less_never_shows_absent_what_who_knows_more_finds(
        fleet in fleet(), which in 1_u16..64, how in 0_u8..3, minutes in 0_u64..9,
    ) {
        let mut full = kit(&fleet);
        full.later(15_000 + minutes * MINUTE);
        let before = full.memory.clone();
        let found = full.later(15_000);
        // The same moment, seen by somebody who knows less and remembers the same.
        let mut partial = Kit { memory: before, ..full.clone() };
        without(&mut partial, which, how);
        let report = partial.judge();
        // Who is not to read a source is not blind for that.
        let judged = |about: &About| how != 2 || about.0 != super::super::super::finding::Kind::Blind;
        for about in abouts(&found).into_iter().filter(judged) {
            prop_assert!(
                !report.shows_absent(&about),
                "{about:?} is found by {:?} and shown absent without sources {which:b}", keys(&found)
            );
        }
        // Nor does an agent that has only just begun to look.
        let fresh = partial.judge_with(&mut Memory::default());
        for about in abouts(&found).into_iter().filter(judged) {
            prop_assert!(!fresh.shows_absent(&about), "{about:?} is shown absent by a first look");
        }
    }

    #[test]
    fn looking_again_at_the_same_changes_nothing(fleet in fleet(), minutes in 0_u64..9) {
        let mut kit = kit(&fleet);
        let once = kit.later(15_000 + minutes * MINUTE);
        let memory = kit.memory.clone();
        prop_assert_eq!(&kit.judge(), &once);
        prop_assert_eq!(&kit.memory, &memory);
    }

    #[test]
    fn sentences_are_short_subjects_are_unique_and_the_worst_is_first(fleet in fleet()) {
        let mut kit = kit(&fleet);
        let report = kit.later(12 * MINUTE);
        prop_assert!(report.findings.len() <= FINDINGS_MAX);
        prop_assert!(report.findings.windows(2).all(|w| w[0].severity >= w[1].severity));
        let mut about = abouts(&report);
        about.sort();
        about.dedup();
        prop_assert_eq!(about.len(), report.findings.len());
        for f in &report.findings {
            prop_assert!(f.sentence.len() < 2_000 && !f.sentence.is_empty(), "{}", f.sentence);
            prop_assert!(!report.shows_absent(&f.about()));
        }
    }
}

#[test]
fn what_is_remembered_of_thousands_of_strangers_is_bounded() {
    let mut kit = Kit::new(3, 2);
    for turn in 0..40 {
        for g in &mut kit.groups {
            g.list.value = (0..1_500).map(|n| healthy(10_000 + turn * 1_500 + n)).collect();
        }
        kit.nodes.value = (0..1_500).map(|n| client_node(20_000 + turn * 1_500 + n)).collect();
        let report = kit.later(15_000);
        assert!(report.findings.len() <= FINDINGS_MAX);
        assert!(report.unjudged_about.len() <= 4_096, "{}", report.unjudged_about.len());
        assert!(kit.memory.len() <= 3 * 4_096, "{}", kit.memory.len());
    }
}
