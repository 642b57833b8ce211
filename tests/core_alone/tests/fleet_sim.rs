//! Fleets of 3, 30 and 1,000 agents for an hour of virtual time: who looks at what, what that costs, and how soon a node that
//! vanishes is found. `core::look` and `core::reconcile` run for real, each agent with a clock of its own; the world is a
//! load balancer with one group, a cluster and a store of documents.
//!
//! Simplified at a thousand: an agent that reads its own target only follows the hearts of the members in line and of a few
//! after them, not of all.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_types,
    reason = "tests of small numbers; what fails here fails the test"
)]

use backstop_core_alone::client_node::ClientNode;
use backstop_core_alone::cycle::Durable;
use backstop_core_alone::heal::heal;
use backstop_core_alone::heart::Hearts;
use backstop_core_alone::ids::{InstanceId, NodeName};
use backstop_core_alone::look::{Agenda, Looker, Pace, Role, Task, Throttle, pace};
use backstop_core_alone::member::{Member, Says};
use backstop_core_alone::reconcile::{FirstSeen, GroupSight, Memory, Seen, Settings, Sight, reconcile};
use backstop_core_alone::record::{Extra, Record};
use backstop_core_alone::rules::{Mutant, Rules};
use backstop_core_alone::settings::{BalancerKind, GroupFacts, TargetType};
use backstop_core_alone::target::{GroupArn, Named, Own, Poll, Reason, Row, Target, TargetState};
use backstop_core_alone::time::{BootId, Now};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;
use std::sync::Arc;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
/// Of the load balancer: two failed checks, 5 s apart.
const NOTICED_AFTER: u64 = 10 * SECOND;
const DRAIN: u64 = 30 * SECOND;
const EVERY: u64 = 15 * SECOND;
const FOUND_WITHIN: u64 = 60 * SECOND;
/// Hearts that an agent follows that reads its own target only.
const FOLLOWED: usize = 24;

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// What becomes of a node, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fate {
    ProcessKilled,
    Deregistered,
    InstanceGone,
    AgentKilled,
    Restored,
}

fn instance(n: usize) -> InstanceId {
    InstanceId(format!("i-{:017x}", n * 7 + 1).into())
}

fn node_name(n: usize) -> String {
    format!("es-client-{n}")
}

/// The world as it is at one moment.
struct World {
    n: usize,
    group: GroupArn,
    facts: GroupFacts,
    fates: Vec<(u64, usize, Fate)>,
    documents: BTreeMap<InstanceId, Member>,
    record: Record,
    calls: Vec<u64>,
    writes: usize,
}

impl World {
    fn fate(&self, node: usize, now: u64) -> Option<(u64, Fate)> {
        let past = self.fates.iter().filter(|(at, n, f)| *n == node && *at <= now && *f != Fate::AgentKilled);
        past.max_by_key(|(at, _, _)| *at).map(|(at, _, f)| (*at, *f)).filter(|(_, f)| *f != Fate::Restored)
    }

    fn agent_lives(&self, node: usize, now: u64) -> bool {
        let dead = |f: Fate| matches!(f, Fate::AgentKilled | Fate::InstanceGone);
        !self.fates.iter().any(|(at, n, f)| *n == node && *at <= now && dead(*f))
    }

    fn state(&self, node: usize, now: u64) -> Option<(TargetState, Option<Reason>)> {
        match self.fate(node, now) {
            Some((at, Fate::ProcessKilled)) if now >= at + NOTICED_AFTER => {
                Some((TargetState::Unhealthy, Some(Reason::FailedHealthChecks)))
            }
            Some((at, Fate::Deregistered)) if now >= at + DRAIN => None,
            Some((_, Fate::Deregistered)) => Some((TargetState::Draining, Some(Reason::DeregistrationInProgress))),
            // Terminated: the load balancer drops it.
            Some((at, Fate::InstanceGone)) if now >= at + NOTICED_AFTER => None,
            Some(_) | None => Some((TargetState::Healthy, None)),
        }
    }

    fn row(&self, node: usize, now: u64) -> Option<Row> {
        let (state, reason) = self.state(node, now)?;
        Some(Row { id: instance(node).0, port: Some(9200), state, reason, shifted: false })
    }

    fn list(&mut self, now: u64) -> Vec<Row> {
        self.calls.push(now);
        (0..self.n).filter_map(|n| self.row(n, now)).collect()
    }

    fn named(&mut self, node: usize, now: u64) -> Row {
        self.calls.push(now);
        self.row(node, now).unwrap_or_else(|| Row {
            id: instance(node).0,
            port: Some(9200),
            state: TargetState::Unused,
            reason: Some(Reason::NotRegistered),
            shifted: false,
        })
    }

    fn client_nodes(&self, now: u64) -> Vec<ClientNode> {
        let runs = |n: &usize| !matches!(self.fate(*n, now), Some((_, Fate::ProcessKilled | Fate::InstanceGone)));
        let one = |n: usize| ClientNode {
            id: format!("node-id-{n}").into(),
            name: node_name(n).into(),
            address: format!("10.0.{}.{}", n / 250, n % 250).into(),
            port: Some(9200),
        };
        (0..self.n).filter(runs).map(one).collect()
    }
}

struct Agent {
    node: usize,
    me: InstanceId,
    name: NodeName,
    clock_offset: u64,
    boot: BootId,
    agenda: Agenda,
    hearts: Hearts,
    first: FirstSeen,
    memory: Memory,
    beat: u64,
    finds: Vec<Arc<str>>,
    list: Option<(Vec<Row>, Now)>,
    named: Option<(Named, Now)>,
    members: Option<(Rc<Vec<Member>>, Now)>,
    /// The newest documents of those in line and a few after them.
    low: BTreeMap<InstanceId, Member>,
    nodes: Option<(Vec<ClientNode>, Now)>,
    record_at: Option<Now>,
    own: Option<Own>,
    role: Option<Role>,
}

impl Agent {
    fn new(node: usize, offset: u64) -> Agent {
        Agent {
            node,
            me: instance(node),
            name: NodeName(node_name(node).into()),
            clock_offset: offset,
            boot: BootId(format!("boot-{node}").into()),
            agenda: Agenda::default(),
            hearts: Hearts::default(),
            first: FirstSeen::default(),
            memory: Memory::default(),
            // A fleet that has been there for long.
            beat: 1_000_000,
            finds: Vec::new(),
            list: None,
            named: None,
            members: None,
            low: BTreeMap::new(),
            nodes: None,
            record_at: None,
            own: None,
            role: None,
        }
    }

    fn clock(&self, now: u64) -> Now {
        let since_boot_ms = now + self.clock_offset;
        Now { wall_ms: now + self.clock_offset % 7_919, boot: self.boot.clone(), since_boot_ms }
    }

    fn document(&self, group: &GroupArn, pace: &Pace, now: &Now) -> Member {
        let own_age = match self.role {
            Some(Role::Whole) => self.list.as_ref().map(|(_, at)| at),
            _ => self.named.as_ref().map(|(_, at)| at),
        };
        Member {
            schema: 1,
            instance: self.me.clone(),
            node: self.name.clone(),
            targets: vec![Target { group: group.clone(), id: self.me.0.clone(), port: 9200 }],
            agent: "1".into(),
            reads_schema: 1,
            boot: self.boot.clone(),
            beat: self.beat,
            doing: "idle".into(),
            at_ms: now.wall_ms,
            node_id: Some(format!("node-id-{}", self.node).into()),
            address: None,
            sees: self.own.iter().map(|o| o.sentence().into()).collect(),
            record: None,
            says: Says {
                beat_every_ms: pace.beat_ms,
                own_age_ms: own_age.and_then(|at| now.since(at)),
                finds: self.finds.clone(),
                ..Says::default()
            },
            told: Vec::new(),
            extra: Extra::new(),
        }
    }

    fn pace(&self, size: usize) -> Pace {
        let low: Vec<Member> = self.low.values().cloned().collect();
        pace(&Looker {
            me: &self.me,
            node: &self.name,
            fleet: "blue",
            members: &low,
            size,
            hearts: &self.hearts,
            busy: false,
            out: self.own.is_some_and(|o| o != Own::InService),
            balancer: Throttle::default(),
            store: Throttle::default(),
            every_ms: EVERY,
            silent_after_ms: Settings::default().silent_after_ms,
        })
    }

    fn do_task(&mut self, task: Task, w: &mut World, pace: &Pace, at: u64) {
        let now = self.clock(at);
        match task {
            Task::Beat => {
                self.beat += 1;
                let document = self.document(&w.group, pace, &now);
                w.documents.insert(self.me.clone(), document);
            }
            Task::Members => {
                let all: Vec<Member> = w.documents.values().cloned().collect();
                if pace.role == Role::Whole || w.n <= 100 {
                    self.hearts.see_all(&all, &now, EVERY);
                } else {
                    self.hearts.see_some(&all[..FOLLOWED.min(all.len())], &now, EVERY);
                }
                self.low = all.iter().take(FOLLOWED).map(|m| (m.instance.clone(), m.clone())).collect();
                self.members = Some((Rc::new(all), now));
            }
            Task::Watch => {
                let some: Vec<Member> = pace.watched.iter().filter_map(|i| w.documents.get(i).cloned()).collect();
                self.hearts.see_some(&some, &now, EVERY);
                self.low.extend(some.into_iter().map(|m| (m.instance.clone(), m)));
            }
            Task::Record => {
                self.first.see(&w.record, &now);
                self.record_at = Some(now);
            }
            Task::Nodes => self.nodes = Some((w.client_nodes(at), now)),
            Task::Groups => {
                let list = w.list(at);
                let mut poll = Poll { list: list.clone(), named: None };
                if !list.iter().any(|r| r.id == self.me.0) {
                    poll.named = Some(Named::Rows(vec![w.named(self.node, at)]));
                }
                self.own = Some(poll.own(&self.me.0, 9200));
                self.named = poll.named.map(|n| (n, now.clone()));
                self.list = Some((list, now));
            }
            Task::Own => {
                let row = w.named(self.node, at);
                self.own = Some(match (row.state, row.reason) {
                    (TargetState::Healthy, _) => Own::InService,
                    (TargetState::Draining, _) => Own::Draining,
                    (_, Some(Reason::NotRegistered)) => Own::Gone,
                    (state, reason) => Own::NotYet(state, reason),
                });
                self.named = Some((Named::Rows(vec![row]), now));
            }
        }
    }

    /// What it finds; also whether it would write to the load balancer.
    fn judge(&mut self, w: &mut World, pace: &Pace, at: u64) -> Vec<String> {
        let now = self.clock(at);
        fn seen<'a, T: ?Sized>(answer: Option<(&'a T, &'a Now)>, every_ms: Option<u64>) -> Seen<'a, T> {
            Seen { answer, fault: None, every_ms }
        }
        let group = GroupSight {
            group: &w.group,
            facts: Some(w.facts),
            list: seen(self.list.as_ref().map(|(l, at)| (l.as_slice(), at)), pace.groups_ms),
            named: seen(self.named.as_ref().map(|(n, at)| (n, at)), pace.own_ms),
        };
        let fleet: Arc<str> = "blue".into();
        let sight = Sight {
            fleet: &fleet,
            me: &self.me,
            node: &self.name,
            groups: &[group],
            members: seen(self.members.as_ref().map(|(m, at)| (m.as_slice(), at)), Some(pace.members_ms)),
            hearts: &self.hearts,
            nodes: seen(self.nodes.as_ref().map(|(n, at)| (n.as_slice(), at)), pace.nodes_ms),
            record: seen(self.record_at.as_ref().map(|at| (&w.record, at)), Some(pace.record_ms)),
            first: &self.first,
            own_cycle: false,
            own_failure: false,
            wrote: None,
        };
        let settings = Settings { every_ms: EVERY, minimum_healthy: 2, minimum_during_patch: 1, ..Settings::default() };
        let report = reconcile(&sight, &settings, &mut self.memory, &now);
        self.finds = report.finds();
        let rules = Rules { max_unavailable: 1, minimum_healthy: 2, minimum_during_patch: 1, mutant: Mutant::None };
        let own = self.own.as_slice();
        if heal(&Durable::new(self.me.clone()), own, Some(&w.record), false, &self.me, &rules).is_some() {
            w.writes += 1;
        }
        report.findings.iter().map(|f| format!("{}/{}", f.kind.label(), f.subject)).collect()
    }
}

/// When what was first told, and by how many agents.
#[derive(Debug, Default)]
struct Told(BTreeMap<String, (u64, BTreeSet<usize>)>);

struct Hour {
    world: World,
    told: Told,
}

fn run(n: usize, fates: &[(u64, usize, Fate)], seed: u64, until: u64) -> Hour {
    let mut rng = Rng(seed);
    let mut agents: Vec<Agent> = (0..n).map(|i| Agent::new(i, rng.next() % HOUR)).collect();
    let mut world = World {
        n,
        group: GroupArn("arn:aws:elasticloadbalancing:eu-west-1:1:targetgroup/es-clients/0".into()),
        facts: GroupFacts {
            target_type: TargetType::Instance,
            balancer: BalancerKind::Application,
            port: Some(9200),
            deregistration_delay_ms: DRAIN,
            interval_ms: 5_000,
            healthy_threshold: 2,
        },
        fates: fates.to_vec(),
        documents: BTreeMap::new(),
        record: Record::new("blue".into()),
        calls: Vec::new(),
        writes: 0,
    };
    // All have written a document some time before.
    for a in &agents {
        let now = a.clock(0);
        world.documents.insert(a.me.clone(), a.document(&world.group, &a.pace(n), &now));
    }
    let mut told = Told::default();
    let mut queue: BinaryHeap<Reverse<(u64, usize)>> = (0..n).map(|i| Reverse((rng.next() % EVERY, i))).collect();
    while let Some(Reverse((at, i))) = queue.pop() {
        if at > until {
            break;
        }
        let agent = &mut agents[i];
        if !world.agent_lives(i, at) {
            continue;
        }
        let pace = agent.pace(n);
        agent.role = Some(pace.role);
        let now = agent.clock(at);
        let (tasks, wait) = agent.agenda.due(&pace, &now, rng.next());
        for task in &tasks {
            agent.do_task(*task, &mut world, &pace, at);
        }
        // A thousand agents that judge at each of their turns would only repeat themselves.
        let news = [Task::Groups, Task::Own, Task::Members].iter().any(|t| tasks.contains(t));
        if news && agent.record_at.is_some() {
            for key in agent.judge(&mut world, &pace, at) {
                told.0.entry(key).or_insert_with(|| (at, BTreeSet::new())).1.insert(i);
            }
        }
        queue.push(Reverse((at + wait, i)));
    }
    Hour { world, told }
}

fn calls_per_s(hour: &Hour, from: u64, to: u64) -> f64 {
    let n = hour.world.calls.iter().filter(|at| (from..to).contains(*at)).count();
    n as f64 * 1_000.0 / (to - from) as f64
}

/// The first few things that were told.
fn some(hour: &Hour) -> Vec<(&String, u64)> {
    hour.told.0.iter().map(|(key, (at, _))| (key, *at)).take(8).collect()
}

fn found(hour: &Hour, node: usize) -> Option<(u64, String)> {
    let about = format!("/{}", node_name(node));
    let of = hour.told.0.iter().filter(|(key, _)| key.ends_with(&about)).map(|(key, (at, _))| (*at, key.clone()));
    of.min()
}

const SIZES: [usize; 3] = [3, 30, 1_000];

#[test]
fn a_fleet_at_rest_costs_the_same_at_every_size_writes_nothing_and_finds_nothing() {
    let mut rates = Vec::new();
    for n in SIZES {
        let hour = run(n, &[], 1, HOUR);
        assert!(hour.told.0.is_empty(), "{n}: {:?}", some(&hour));
        assert_eq!(hour.world.writes, 0, "{n}");
        rates.push(calls_per_s(&hour, 5 * MINUTE, HOUR));
    }
    println!("calls per second and group at {SIZES:?}: {rates:.3?}");
    let (least, most) = (rates.iter().copied().fold(f64::MAX, f64::min), rates.iter().copied().fold(0.0, f64::max));
    assert!(most <= 0.3 && most <= least * 1.1, "{rates:?}");
}

#[test]
fn a_node_that_vanishes_is_found_within_a_minute_at_every_size_and_nothing_before() {
    for n in SIZES {
        for (k, fate) in [Fate::ProcessKilled, Fate::Deregistered, Fate::InstanceGone].into_iter().enumerate() {
            let node = n * 2 / 3;
            let at = 20 * MINUTE + 7_321 * k as u64;
            let hour = run(n, &[(at, node, fate)], 2 + k as u64, at + 3 * MINUTE);
            let (when, what) = found(&hour, node).unwrap_or_else(|| panic!("{n} {fate:?}: {:?}", some(&hour)));
            println!("{n:5} {fate:?}: {what} after {:.1} s", (when as f64 - at as f64) / 1_000.0);
            assert!(
                when >= at && when <= at + FOUND_WITHIN,
                "{n} {fate:?}: {what} after {} ms",
                when as i64 - at as i64
            );
            let early = hour.told.0.values().filter(|(t, _)| *t < at).count();
            assert_eq!(early, 0, "{n} {fate:?}: {:?}", some(&hour));
            let others = hour.told.0.keys().filter(|k| !k.ends_with(&node_name(node)) && !k.ends_with("/blue"));
            assert_eq!(others.count(), 0, "{n} {fate:?}: {:?}", some(&hour));
        }
    }
}

#[test]
fn a_node_that_was_put_back_is_left_alone_again_and_the_calls_go_back_to_their_rate() {
    for n in SIZES {
        let fates = [(10 * MINUTE, n - 1, Fate::Deregistered), (15 * MINUTE, n - 1, Fate::Restored)];
        let hour = run(n, &fates, 11, HOUR);
        assert!(found(&hour, n - 1).is_some(), "{n}");
        assert!(hour.world.writes > 0, "{n}: its own agent would have put it back");
        let rate = calls_per_s(&hour, 20 * MINUTE, HOUR);
        assert!(rate <= 0.23, "{n}: {rate}");
    }
}

#[test]
fn when_the_three_readers_die_the_next_take_over_and_find_who_vanishes() {
    for n in [30, 1_000] {
        let killed = 20 * MINUTE;
        let vanishes = killed + 3 * MINUTE;
        let mut fates: Vec<_> = (0..3).map(|r| (killed, r, Fate::AgentKilled)).collect();
        fates.push((vanishes, n / 2, Fate::Deregistered));
        let hour = run(n, &fates, 5, HOUR);
        let (when, what) = found(&hour, n / 2).unwrap_or_else(|| panic!("{n}: {:?}", some(&hour)));
        assert!(when <= vanishes + FOUND_WITHIN, "{n}: {what} {} ms after", when - vanishes);
        assert!(calls_per_s(&hour, vanishes, HOUR) > 0.19, "{n}: three read again");
        assert!(calls_per_s(&hour, vanishes + MINUTE, HOUR) <= 0.3, "{n}: and no more than three");
        for reader in 0..3 {
            let key = format!("agent-silent/{}", node_name(reader));
            let (at, _) = hour.told.0.get(&key).unwrap_or_else(|| panic!("{n}: {key} in {:?}", some(&hour)));
            assert!(*at > killed && *at <= killed + 4 * MINUTE, "{n}: {key} after {} ms", at - killed);
        }
        let blind = hour.told.0.keys().filter(|k| k.starts_with("blind/")).count();
        assert_eq!(blind, 0, "{n}: {:?}", some(&hour));
    }
}
