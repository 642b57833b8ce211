//! A fleet of three behind one group (or more), all well, to be changed by each test; seen by es-client-0.

use super::super::super::client_node::ClientNode;
use super::super::super::error::Fault;
use super::super::super::finding::{Finding, Kind, Report};
use super::super::super::heart::Hearts;
use super::super::super::ids::InstanceId;
use super::super::super::member::{Member, Says};
use super::super::super::record::{Extra, Hold, Latch, Pause, Record, Slot};
use super::super::super::settings::{BalancerKind, GroupFacts, TargetType};
use super::super::super::target::{GroupArn, Named, Reason, Row, Target, TargetState};
use super::super::super::time::{BootId, Now};
use super::super::*;
use std::sync::Arc;

pub const FLEET: &str = "au-search";
pub const MINUTE: u64 = 60_000;

pub fn at(ms: u64) -> Now {
    Now { wall_ms: 1_700_000_000_000 + ms, boot: BootId("boot-0".into()), since_boot_ms: 10_000_000 + ms }
}

pub fn instance(n: usize) -> InstanceId {
    InstanceId(format!("i-{n:017x}").into())
}

pub fn name(n: usize) -> String {
    format!("es-client-{n}")
}

pub fn arn(group: usize) -> GroupArn {
    let of = ["es-clients", "es-internal"];
    let name = of.get(group).map_or(format!("group-{group}"), |n| (*n).to_owned());
    GroupArn(format!("arn:aws:elasticloadbalancing:eu-west-1:1:targetgroup/{name}/{group}").into())
}

pub fn row(n: usize, state: TargetState, reason: Option<Reason>) -> Row {
    Row { id: instance(n).0, port: Some(9200), state, reason, shifted: false }
}

pub fn healthy(n: usize) -> Row {
    row(n, TargetState::Healthy, None)
}

pub fn facts() -> GroupFacts {
    GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Application,
        port: Some(9200),
        deregistration_delay_ms: 300_000,
        interval_ms: 10_000,
        healthy_threshold: 5,
    }
}

pub fn member(n: usize, groups: usize) -> Member {
    let target = |g| Target { group: arn(g), id: instance(n).0, port: 9200 };
    Member {
        schema: 1,
        instance: instance(n),
        node: name(n).as_str().into(),
        targets: (0..groups).map(target).collect(),
        agent: "1".into(),
        reads_schema: 1,
        boot: BootId(format!("boot-{n}").into()),
        beat: 100_000,
        doing: "idle".into(),
        at_ms: 0,
        node_id: Some(format!("node-id-{n}").into()),
        address: Some(format!("10.0.0.{n}:9200").into()),
        sees: vec!["healthy".into(); groups],
        record: None,
        says: Says {
            beat_every_ms: 15_000,
            minimum_healthy: Some(3),
            minimum_during_patch: Some(2),
            max_unavailable: Some(1),
            ..Says::default()
        },
        told: Vec::new(),
        extra: Extra::new(),
    }
}

pub fn client_node(n: usize) -> ClientNode {
    ClientNode {
        id: format!("node-id-{n}").into(),
        name: name(n).into(),
        address: format!("10.0.0.{n}").into(),
        port: Some(9200),
    }
}

pub fn order() -> Pause {
    Pause { by: "ann".into(), reason: "a move".into(), since_ms: 0, extra: Extra::new() }
}

pub fn slot(n: usize, budget_s: u64) -> Slot {
    Slot {
        cycle: format!("c-{n}").as_str().into(),
        node: name(n).as_str().into(),
        job: "kernel".into(),
        budget_s,
        since_ms: 0,
        extra: Extra::new(),
    }
}

pub fn hold(n: usize, for_s: u64) -> Hold {
    Hold { node: name(n).as_str().into(), order: order(), for_s, extra: Extra::new() }
}

pub fn latch(n: usize) -> Latch {
    Latch {
        instance: instance(n),
        node: name(n).as_str().into(),
        stage: "check".into(),
        class: "transport".into(),
        message: "connection refused".into(),
        job: "kernel".into(),
        since_ms: 0,
        cleared: None,
        extra: Extra::new(),
    }
}

/// A source: what it would answer, whether it does.
#[derive(Clone, Debug)]
pub struct Src<T> {
    pub value: T,
    pub begun: Option<Now>,
    pub fault: Option<Fault>,
    pub every_ms: Option<u64>,
}

impl<T> Src<T> {
    pub fn new(value: T) -> Src<T> {
        Src { value, begun: None, fault: None, every_ms: Some(15_000) }
    }
    pub fn read(&mut self, now: &Now) {
        if self.fault.is_none() && self.every_ms.is_some() {
            self.begun = Some(now.clone());
        }
    }
    pub fn fails(&mut self) {
        self.fault = Some(Fault::transport("connection refused"));
    }
    fn seen<'a, U: ?Sized>(&'a self, value: &'a U) -> Seen<'a, U> {
        Seen { answer: self.begun.as_ref().map(|at| (value, at)), fault: self.fault.as_ref(), every_ms: self.every_ms }
    }
}

#[derive(Clone, Debug)]
pub struct Group {
    pub arn: GroupArn,
    pub facts: Option<GroupFacts>,
    pub list: Src<Vec<Row>>,
    pub named: Src<Named>,
}

#[derive(Clone, Debug)]
pub struct Kit {
    pub now: Now,
    pub me: InstanceId,
    pub groups: Vec<Group>,
    pub members: Src<Vec<Member>>,
    pub hearts: Hearts,
    pub nodes: Src<Vec<ClientNode>>,
    pub record: Src<Record>,
    pub first: FirstSeen,
    pub own_cycle: bool,
    pub own_failure: bool,
    pub wrote: Option<Wrote>,
    pub settings: Settings,
    pub memory: Memory,
    /// Members whose agents do not beat.
    pub still: Vec<InstanceId>,
}

impl Kit {
    pub fn new(members: usize, groups: usize) -> Kit {
        let group = |g| {
            let mut named = Src::new(Named::InvalidTarget);
            named.every_ms = None;
            Group { arn: arn(g), facts: Some(facts()), list: Src::new((0..members).map(healthy).collect()), named }
        };
        Kit {
            now: at(0),
            me: instance(0),
            groups: (0..groups).map(group).collect(),
            members: Src::new((0..members).map(|n| member(n, groups)).collect()),
            hearts: Hearts::default(),
            nodes: Src::new((0..members).map(client_node).collect()),
            record: Src::new(Record::new(FLEET.into())),
            first: FirstSeen::default(),
            own_cycle: false,
            own_failure: false,
            wrote: None,
            settings: Settings::default(),
            memory: Memory::default(),
            still: Vec::new(),
        }
    }

    /// All sources are read now.
    pub fn read(&mut self) {
        let now = self.now.clone();
        for g in &mut self.groups {
            g.list.read(&now);
            g.named.read(&now);
        }
        self.nodes.read(&now);
        self.record.read(&now);
        if self.record.begun.as_ref() == Some(&now) {
            self.first.see(&self.record.value, &now);
        }
        self.members.read(&now);
        if self.members.begun.as_ref() == Some(&now) {
            for m in self.members.value.iter_mut().filter(|m| !self.still.contains(&m.instance)) {
                m.beat += 1;
            }
            self.hearts.see_all(&self.members.value, &now, 15_000);
        }
    }

    /// What is known now, put together.
    pub fn judge(&mut self) -> Report {
        let mut memory = std::mem::take(&mut self.memory);
        let report = self.judge_with(&mut memory);
        self.memory = memory;
        report
    }

    pub fn judge_with(&self, memory: &mut Memory) -> Report {
        let fleet: Arc<str> = FLEET.into();
        let groups: Vec<GroupSight<'_>> = self
            .groups
            .iter()
            .map(|g| GroupSight {
                group: &g.arn,
                facts: g.facts,
                list: g.list.seen(g.list.value.as_slice()),
                named: g.named.seen(&g.named.value),
            })
            .collect();
        let node = "es-client-0".into();
        let sight = Sight {
            fleet: &fleet,
            me: &self.me,
            node: &node,
            groups: &groups,
            members: self.members.seen(self.members.value.as_slice()),
            hearts: &self.hearts,
            nodes: self.nodes.seen(self.nodes.value.as_slice()),
            record: self.record.seen(&self.record.value),
            first: &self.first,
            own_cycle: self.own_cycle,
            own_failure: self.own_failure,
            wrote: self.wrote.as_ref(),
        };
        reconcile(&sight, &self.settings, memory, &self.now)
    }

    pub fn look(&mut self) -> Report {
        self.read();
        self.judge()
    }

    /// So much later, having looked every 15 s.
    pub fn later(&mut self, ms: u64) -> Report {
        let mut report = None;
        let end = self.now.plus(ms);
        while self.now.since_boot_ms < end.since_boot_ms {
            self.now = self.now.plus(15_000.min(end.since_boot_ms - self.now.since_boot_ms));
            report = Some(self.look());
        }
        report.expect("time passes")
    }

    /// Two looks, 15 s apart.
    pub fn two(&mut self) -> Report {
        self.look();
        self.later(15_000)
    }

    pub fn rows(&mut self) -> &mut Vec<Row> {
        &mut self.groups[0].list.value
    }

    /// This node stands so in the first group.
    pub fn put(&mut self, n: usize, state: TargetState, reason: Option<Reason>) {
        let id = instance(n).0;
        self.rows().retain(|r| r.id != id);
        self.rows().push(row(n, state, reason));
    }

    /// It is not listed in any group.
    pub fn drop(&mut self, n: usize) {
        let id = instance(n).0;
        self.groups.iter_mut().for_each(|g| g.list.value.retain(|r| r.id != id));
    }

    pub fn minimum(&mut self, healthy: u32, during: u32) {
        self.settings.minimum_healthy = healthy;
        self.settings.minimum_during_patch = during;
        for m in &mut self.members.value {
            m.says.minimum_healthy = Some(healthy);
            m.says.minimum_during_patch = Some(during);
        }
    }
}

/// `kind/subject` of all findings.
pub fn keys(report: &Report) -> Vec<String> {
    report.findings.iter().map(|f| format!("{}/{}", f.kind.label(), f.subject)).collect()
}

pub fn find<'r>(report: &'r Report, kind: Kind, subject: &str) -> Option<&'r Finding> {
    report.findings.iter().find(|f| f.kind == kind && &*f.subject == subject)
}

pub fn sentence(report: &Report, kind: Kind, subject: &str) -> String {
    find(report, kind, subject)
        .unwrap_or_else(|| panic!("{kind:?} {subject} in {:?}", keys(report)))
        .sentence
        .to_string()
}
