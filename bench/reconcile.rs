//! What one look costs: `reconcile` for fleets of 10 to 1,000 nodes behind 10 groups. One JSON object.
//!
//! No process is started and nothing is built for it but the library: `cargo bench --bench reconcile`.
#![allow(
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, not the product"
)]

use backstop::core::client_node::ClientNode;
use backstop::core::heart::Hearts;
use backstop::core::ids::{InstanceId, NodeName};
use backstop::core::member::{Member, Says};
use backstop::core::reconcile::{FirstSeen, GroupSight, Memory, Seen, Settings, Sight, reconcile};
use backstop::core::record::{Extra, Record};
use backstop::core::settings::{BalancerKind, GroupFacts, TargetType};
use backstop::core::target::{GroupArn, Reason, Row, Target, TargetState};
use backstop::core::time::{BootId, Now};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

const GROUPS: usize = 10;
const SIZES: [usize; 5] = [10, 30, 100, 300, 1_000];

fn at(ms: u64) -> Now {
    Now { wall_ms: ms, boot: BootId("b".into()), since_boot_ms: ms }
}

/// As instance ids are: alike at the beginning, different at the end, in no order.
fn id(n: usize) -> Arc<str> {
    format!("i-0{:016x}", (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).into()
}

struct Fleet {
    groups: Vec<GroupArn>,
    lists: Vec<Vec<Row>>,
    members: Vec<Member>,
    nodes: Vec<ClientNode>,
    hearts: Hearts,
    record: Record,
}

/// Every `failing`th node fails its checks in every group; 0 = all are well.
fn fleet(n: usize, failing: usize) -> Fleet {
    let arn = |g| {
        GroupArn(
            format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-{g}/0123456789abcdef").into(),
        )
    };
    let groups: Vec<GroupArn> = (0..GROUPS).map(arn).collect();
    let row = |i: usize| {
        let fails = failing > 0 && i.is_multiple_of(failing);
        let (state, reason) = match fails {
            true => (TargetState::Unhealthy, Some(Reason::Timeout)),
            false => (TargetState::Healthy, None),
        };
        Row { id: id(i), port: Some(9200), state, reason, shifted: false }
    };
    let member = |i: usize| Member {
        schema: 1,
        instance: InstanceId(id(i)),
        node: NodeName(format!("es-client-{i}").into()),
        targets: groups
            .iter()
            .map(|g| Target { group: GroupArn(g.0.to_string().into()), id: id(i), port: 9200 })
            .collect(),
        agent: "1".into(),
        reads_schema: 1,
        boot: BootId("m".into()),
        beat: 100_000,
        doing: "idle".into(),
        at_ms: 0,
        node_id: Some(format!("Nq3yV0b6QvCk8nW{i:07}").into()),
        address: Some(format!("10.0.{}.{}:9200", i / 250, i % 250).into()),
        sees: vec!["healthy".into(); GROUPS],
        record: None,
        says: Says {
            beat_every_ms: 15_000,
            own_age_ms: Some(3_000),
            minimum_healthy: Some(3),
            minimum_during_patch: Some(2),
            max_unavailable: Some(1),
            ..Says::default()
        },
        told: Vec::new(),
        extra: Extra::new(),
    };
    let node = |i: usize| ClientNode {
        id: format!("Nq3yV0b6QvCk8nW{i:07}").into(),
        name: format!("es-client-{i}").into(),
        address: format!("10.0.{}.{}", i / 250, i % 250).into(),
        port: Some(9200),
    };
    let mut members: Vec<Member> = (0..n).map(member).collect();
    members.sort_by(|a, b| a.instance.cmp(&b.instance));
    let mut hearts = Hearts::default();
    hearts.see_all(&members, &at(1_000), 15_000);
    // Each group answers in an order of its own.
    let list = |g: usize| {
        let mut rows: Vec<Row> = (0..n).map(row).collect();
        rows.rotate_left(g * n / GROUPS);
        rows
    };
    let record = Record::new("blue".into());
    Fleet { lists: (0..GROUPS).map(list).collect(), groups, members, nodes: (0..n).map(node).collect(), hearts, record }
}

/// Microseconds of one look: the median of many, and the findings of the last.
fn measure(f: &Fleet) -> (f64, usize) {
    let facts = GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Application,
        port: Some(9200),
        deregistration_delay_ms: 300_000,
        interval_ms: 10_000,
        healthy_threshold: 5,
    };
    let (fleet, me, node): (Arc<str>, _, _) = ("blue".into(), f.members[0].instance.clone(), f.members[0].node.clone());
    let (first, settings) = (FirstSeen::default(), Settings::default());
    let mut memory = Memory::default();
    let mut times = Vec::new();
    let mut findings = 0;
    for turn in 0..200_u64 {
        let now = at(1_000 + turn);
        let seen = f.groups.iter().zip(&f.lists).map(|(group, rows)| GroupSight {
            group,
            facts: Some(facts),
            list: Seen { answer: Some((rows.as_slice(), &now)), fault: None, every_ms: Some(15_000) },
            named: Seen::default(),
        });
        let groups: Vec<GroupSight<'_>> = seen.collect();
        let sight = Sight {
            fleet: &fleet,
            me: &me,
            node: &node,
            groups: &groups,
            members: Seen { answer: Some((f.members.as_slice(), &now)), fault: None, every_ms: Some(15_000) },
            hearts: &f.hearts,
            nodes: Seen { answer: Some((f.nodes.as_slice(), &now)), fault: None, every_ms: Some(30_000) },
            record: Seen { answer: Some((&f.record, &now)), fault: None, every_ms: Some(15_000) },
            first: &first,
            own_cycle: false,
            own_failure: false,
            wrote: None,
        };
        let begun = Instant::now();
        let report = black_box(reconcile(black_box(&sight), &settings, &mut memory, &now));
        times.push(begun.elapsed().as_secs_f64() * 1e6);
        findings = report.findings.len();
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], findings)
}

fn main() {
    let cost = |failing: usize| -> serde_json::Value {
        SIZES
            .into_iter()
            .map(|n| {
                let (us, findings) = measure(&fleet(n, failing));
                (n.to_string(), serde_json::json!({ "us": (us * 10.0).round() / 10.0, "findings": findings }))
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    println!("{}", serde_json::json!({ "groups": GROUPS, "all_well": cost(0), "every_tenth_fails": cost(10) }));
}
