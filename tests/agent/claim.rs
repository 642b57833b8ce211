//! Several agents claim at the same moment.
//!
//! In process, 200 rounds each: real agents (loop, journal, guards, core) over one real file store. A barrier in front of
//! the store lets nobody write before everybody has read the same record, so every round is the race that a
//! read-then-write would lose. Proven there: what the compare-and-set lets through, and that the floor holds at each
//! deregister call, whatever the order of the rest. Between real processes, a few rounds: the same through the binary, its
//! socket, the lock file and the AWS SDK, asked at the same moment, without a barrier.

use crate::fakes::row;
use crate::scene::{BOUND, Scene, options};
use backstop::agent::shared::{NodeView, Parts, Shared, World};
use backstop::agent::supervisor::{Task, spawn};
use backstop::agent::turn::{Agent, Request};
use backstop::clock::ManualClock;
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Ended, Seen, StageName};
use backstop::core::error::Fault;
use backstop::core::exit::Exit;
use backstop::core::ids::{CycleId, InstanceId};
use backstop::core::job::{JobSpec, JobStatus, RebootPolicy};
use backstop::core::member::Member;
use backstop::core::plan::Kind;
use backstop::core::record::{self, Record};
use backstop::core::settings::{BalancerKind, CheckPass, CheckSettings, GroupFacts, NodeIdentity, TargetType};
use backstop::core::target::{GroupArn, Named, Poll, Reason, Row, Target, TargetState};
use backstop::core::time::{BootId, Now};
use backstop::fleet::Fleet;
use backstop::fleet::file::{FileFleet, FileStore};
use backstop::host::identity::InstanceIdentity;
use backstop::ports::{
    BoxFuture, CasFault, FleetStore, Host, Jobs, LoadBalancer, MayRegister, NodeCheck, PageSink, Version,
};
use backstop::rehearse::fleet::patch_request;
use backstop::rehearse::pace;
use backstop::state::fault::{FaultDisk, FaultFiles};
use backstop::state::journal::Journal;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::{Barrier, mpsc, oneshot, watch};

const ROUNDS: usize = 200;
const GROUP: &str = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef";

/// What everybody sees: one group, in which a drain never ends.
#[derive(Default)]
struct Group {
    members: usize,
    out: BTreeSet<String>,
    /// Deregister calls, by target.
    deregistered: BTreeMap<String, usize>,
    /// Fewest in service at any time.
    fewest: usize,
}

/// One node's view of it: load balancer, node, machine and pager.
#[derive(Clone)]
struct Node {
    instance: String,
    group: Arc<Mutex<Group>>,
}

fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

fn name(n: usize) -> String {
    format!("es-client-{n}")
}

fn facts() -> GroupFacts {
    GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Application,
        port: Some(9200),
        deregistration_delay_ms: 60_000,
        interval_ms: 10_000,
        healthy_threshold: 2,
    }
}

impl LoadBalancer for Node {
    async fn poll(&self, target: &Target, by_name: bool) -> Result<Poll, Fault> {
        let group = self.group.lock().unwrap();
        let list: Vec<Row> = (1..=group.members)
            .map(instance)
            .map(|id| {
                let draining = group.out.contains(&id).then_some(Reason::DeregistrationInProgress);
                let state = if draining.is_some() { TargetState::Draining } else { TargetState::Healthy };
                row(&id, state, draining)
            })
            .collect();
        let mine = list.iter().filter(|r| r.id == target.id).cloned().collect();
        Ok(Poll { list, named: by_name.then_some(Named::Rows(mine)) })
    }

    async fn register(&self, target: &Target) -> Result<(), Fault> {
        self.group.lock().unwrap().out.remove(&*target.id);
        Ok(())
    }

    async fn deregister(&self, target: &Target) -> Result<(), Fault> {
        assert_eq!(*target.id, *self.instance, "nobody takes out another one");
        let mut group = self.group.lock().unwrap();
        group.out.insert(target.id.to_string());
        *group.deregistered.entry(target.id.to_string()).or_default() += 1;
        group.fewest = group.fewest.min(group.members - group.out.len());
        Ok(())
    }

    async fn group(&self, _: &GroupArn) -> Result<GroupFacts, Fault> {
        Ok(facts())
    }

    async fn may_register(&self, _: &GroupArn, _: TargetType, _: u16) -> MayRegister {
        MayRegister::Yes
    }
}

impl NodeCheck for Node {
    async fn check(&self, settings: &CheckSettings) -> Result<CheckPass, Fault> {
        // The check's URL names the node: see `config`.
        let node_name = settings.url.trim_start_matches("http://").split(':').next().unwrap_or_default().into();
        Ok(CheckPass { identity: NodeIdentity { node_name, node_id: None, cluster_uuid: "uuid".into() }, colour: None })
    }
}

impl Jobs for Node {
    async fn ask(&self, _: &str) -> Result<JobStatus, Fault> {
        Ok(JobStatus::New)
    }

    async fn start(&self, _: &str, _: &JobSpec, _: u64) -> Result<(), Fault> {
        panic!("no drain ends here")
    }

    async fn running(&self) -> Result<Vec<String>, Fault> {
        Ok(Vec::new())
    }

    async fn kill(&self, _: &str) -> Result<(), Fault> {
        Ok(())
    }
}

impl Host for Node {
    fn connections(&self, _: u16, _: &[IpAddr]) -> Result<u32, Fault> {
        Ok(0)
    }

    async fn reboot(&self) -> Result<(), Fault> {
        Ok(())
    }

    fn shutting_down(&self) -> bool {
        false
    }

    async fn lifecycle(&self) -> Result<Option<Arc<str>>, Fault> {
        Ok(None)
    }

    fn package_manager(&self) -> Result<Option<String>, Fault> {
        Ok(None)
    }
}

impl PageSink for Node {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn deliver<'a>(&'a self, _: &'a backstop::alerts::Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }
}

/// The file store, but the first write of each agent waits until all agents are at theirs: by then all have read.
#[derive(Clone)]
struct Meeting {
    store: FileFleet,
    barrier: Arc<Barrier>,
    /// What each first write expects the record to be.
    read: Arc<Mutex<Vec<Version>>>,
    met: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
}

impl FleetStore for Meeting {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.store.read().await
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        if !self.met.swap(true, Ordering::SeqCst) {
            self.read.lock().unwrap().push(expected.clone());
            self.barrier.wait().await;
        }
        let done = self.store.compare_and_set(expected, bytes).await;
        self.acknowledged.fetch_add(usize::from(done.is_ok()), Ordering::SeqCst);
        done
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        self.store.create(bytes).await
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        self.store.members().await
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        self.store.put_member(instance, bytes).await
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        self.store.delete_member(instance).await
    }
}

impl World for Node {
    type Balancer = Node;
    type Check = Node;
    type Store = Meeting;
    type Jobs = Node;
    type Host = Node;
    type Clock = ManualClock;
    type Disk = FaultDisk;
}

/// How many may be out, and how many must stay.
#[derive(Clone, Copy)]
struct Limits {
    members: usize,
    claimants: usize,
    max_unavailable: u32,
    minimum_healthy: u32,
    minimum_during_patch: u32,
}

fn config(n: usize, l: Limits) -> String {
    format!(
        "fleet = \"test\"\noutside_watch = \"none\"\nmax_unavailable = {}\nminimum_healthy = {}\n\
         minimum_during_patch = {}\n[[target_group]]\narn = {GROUP:?}\n\
         [node]\ninstance_id = {:?}\nname = {:?}\n[elasticsearch]\nurl = \"http://{}:9200\"\n\
         [record]\nstore = \"file\"\nsingle_host = true\npath = \"/nowhere\"\n\
         [limits]\ncycles_per_hour = 1000\ncycles_per_day = 1000\nfree_disk_mib = 1\n\
         [pager.webhook]\nurl = \"http://127.0.0.1:9/\"\n",
        l.max_unavailable,
        l.minimum_healthy,
        l.minimum_during_patch,
        instance(n),
        name(n),
        name(n),
    )
}

/// One agent as one process would be.
struct Claimant {
    shared: Arc<Shared<Node>>,
    queue: mpsc::Sender<Request>,
    acknowledged: Arc<AtomicUsize>,
    _stop: watch::Sender<bool>,
    _task: Task<()>,
}

/// What came of its claim.
#[derive(Debug)]
struct Claimed {
    stage: Option<StageName>,
    cycle: CycleId,
    last: Option<Ended>,
    /// Acknowledged writes of the record.
    writes: usize,
}

impl Claimant {
    async fn start(n: usize, l: Limits, clock: &ManualClock, node: Node, store: Meeting) -> Claimant {
        let (config, _) = backstop::config::parse("test.toml", config(n, l).as_bytes(), "host")
            .unwrap_or_else(|problems| panic!("{problems}"));
        let acknowledged = store.acknowledged.clone();
        let disk = Arc::new(FaultDisk::new(&FaultFiles::default()));
        let (journal, found) = Journal::open(&disk, &InstanceId(instance(n).into()));
        let view = NodeView { durable: journal.now().clone(), seen: Seen::default(), unstored: None };
        let parts = Parts {
            config,
            problem: None,
            warnings: Vec::new(),
            balancer: node.clone(),
            check: node.clone(),
            fleet: Fleet::new(store, "test".into()),
            jobs: node.clone(),
            host: node.clone(),
            sinks: vec![Box::new(node)],
        };
        let identity = InstanceIdentity { instance_id: instance(n).into(), local_ipv4: None };
        let shared = Arc::new(Shared::new(parts, identity, clock.clone(), disk, view));
        let (queue, requests) = mpsc::channel(4);
        let (stop, stopped) = watch::channel(false);
        let mut agent = Agent::new(shared.clone(), journal, requests, Box::new(|_| {}));
        agent.recover(found).await;
        Claimant { shared, queue, acknowledged, _stop: stop, _task: spawn(agent.run(stopped)) }
    }

    /// Asks for a cycle, and waits until it is out, on its way back, or over.
    async fn claim(&self) -> Claimed {
        let (reply, answer) = oneshot::channel();
        let job =
            JobSpec { name: "patch".into(), argv: vec!["patch".into()], reboots: false, reboot: RebootPolicy::Never };
        let begin = Request::Begin {
            kind: Kind::Patch(job),
            by: "test".into(),
            overrides: Vec::new(),
            request: "".into(),
            reply,
        };
        self.queue.send(begin).await.unwrap();
        let cycle = match answer.await.unwrap() {
            RunReply::Started { cycle, .. } => CycleId(cycle.into()),
            other => panic!("the barrier keeps everybody from a look at a taken slot: {other:?}"),
        };
        let settled = |v: &Arc<NodeView>| match v.durable.stage() {
            None => v.durable.last.as_ref().is_some_and(|e| e.cycle == cycle),
            Some(stage) => matches!(stage, StageName::Drain | StageName::Check),
        };
        let mut node = self.shared.node.subscribe();
        let waited = pace::within(BOUND, node.wait_for(settled)).await;
        let view = waited.expect("it comes to a rest without any time passing").unwrap().clone();
        let writes = self.acknowledged.load(Ordering::SeqCst);
        Claimed { stage: view.durable.stage(), cycle, last: view.durable.last.clone(), writes }
    }
}

/// A store with a record and all members in it.
fn store(dir: &std::path::Path, members: usize) -> FileStore {
    let store = FileStore::open(dir).unwrap();
    store.create(&serde_json::to_vec(&Record::new("test".into())).unwrap()).unwrap();
    for n in 1..=members {
        let target = Target { group: GroupArn(GROUP.into()), id: instance(n).into(), port: 9200 };
        let member = Member {
            schema: 1,
            instance: InstanceId(instance(n).into()),
            node: name(n).as_str().into(),
            targets: vec![target],
            agent: "test".into(),
            reads_schema: 1,
            boot: BootId("boot".into()),
            beat: 1,
            doing: "idle".into(),
            node_id: None,
            address: None,
            sees: Vec::new(),
            record: None,
            at_ms: 0,
            extra: BTreeMap::new(),
        };
        store.put_member(&instance(n), &serde_json::to_vec(&member).unwrap()).unwrap();
    }
    store
}

fn present(store: &FileStore) -> Record {
    serde_json::from_slice(&store.read().unwrap().unwrap().0).unwrap()
}

/// Everything of the last round is gone, as after a person has looked.
fn clean(store: &FileStore) -> u64 {
    let (bytes, version) = store.read().unwrap().unwrap();
    let old: Record = serde_json::from_slice(&bytes).unwrap();
    let next = record::stamped(Record { counter: old.counter, ..Record::new("test".into()) }, "clean".into());
    store.compare_and_set(&version, &serde_json::to_vec(&next).unwrap()).unwrap();
    next.counter
}

/// One race; what came of each claim, by number, with the record and the group afterwards.
async fn round(dir: &std::path::Path, l: Limits) -> (Vec<Claimed>, Record, Group) {
    let clock = ManualClock::new(Now { wall_ms: 1_700_000_000_000, boot: BootId("boot".into()), since_boot_ms: 1 });
    let files = FileFleet::new(FileStore::open(dir).unwrap());
    let group = Group { members: l.members, fewest: l.members, ..Group::default() };
    let group = Arc::new(Mutex::new(group));
    let (barrier, read) = (Arc::new(Barrier::new(l.claimants)), Arc::default());
    let mut claimants = Vec::new();
    for n in 1..=l.claimants {
        let store = Meeting {
            store: files.clone(),
            barrier: barrier.clone(),
            read: Arc::clone(&read),
            met: Arc::default(),
            acknowledged: Arc::default(),
        };
        let node = Node { instance: instance(n), group: group.clone() };
        claimants.push(Claimant::start(n, l, &clock, node, store).await);
    }
    let asked: Vec<Task<Claimed>> = claimants.into_iter().map(|c| spawn(async move { c.claim().await })).collect();
    let mut claimed = Vec::new();
    for task in asked {
        claimed.push(task.join().await.unwrap());
    }
    let read: Vec<Version> = read.lock().unwrap().clone();
    assert!(read.len() == l.claimants && read.iter().all(|v| *v == read[0]), "all have read the same before any write");
    let record = present(&FileStore::open(dir).unwrap());
    let group = std::mem::take(&mut *group.lock().unwrap());
    (claimed, record, group)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_two_that_have_read_before_either_writes_one_goes_and_the_other_says_who() {
    let l = Limits { members: 3, claimants: 2, max_unavailable: 1, minimum_healthy: 3, minimum_during_patch: 2 };
    let temp = tempfile::tempdir().unwrap();
    let store = store(temp.path(), l.members);
    let mut winners = BTreeMap::new();
    for _ in 0..ROUNDS {
        let counter = clean(&store);
        let (claimed, record, group) = round(temp.path(), l).await;
        let out: Vec<usize> = (0..2).filter(|i| claimed[*i].stage == Some(StageName::Drain)).collect();
        let [winner] = out[..] else { panic!("one goes: {claimed:?}") };
        let loser = &claimed[1 - winner];
        *winners.entry(winner).or_insert(0_usize) += 1;

        let last = loser.last.as_ref().unwrap();
        assert_eq!((loser.stage, last.exit), (None, Exit::SlotHeld), "{last:?}");
        let (holder, cycle) = (name(winner + 1), claimed[winner].cycle.as_str());
        assert!(last.message.contains(&holder) && last.message.contains(cycle), "{}", last.message);
        assert_eq!(loser.writes, 0, "it changes nothing");
        assert_eq!(record.counter, counter + u64::try_from(claimed[winner].writes).unwrap());

        let slots: Vec<_> = record.slots.iter().map(|(i, s)| (i.as_str(), s.cycle.as_str())).collect();
        assert_eq!(slots, [(instance(winner + 1).as_str(), cycle)]);
        assert!(record.latches.is_empty() && record.finished.is_empty());
        assert_eq!(group.deregistered, BTreeMap::from([(instance(winner + 1), 1)]));
        assert_eq!((group.out.len(), group.fewest), (1, 2));
    }
    eprintln!("won: {winners:?}");
}

/// Two slots, and a floor that leaves room for both: two go, never three.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_three_with_two_slots_two_go_and_the_floor_holds() {
    let l = Limits { members: 3, claimants: 3, max_unavailable: 2, minimum_healthy: 2, minimum_during_patch: 1 };
    let temp = tempfile::tempdir().unwrap();
    let store = store(temp.path(), l.members);
    for _ in 0..ROUNDS {
        clean(&store);
        let (claimed, record, group) = round(temp.path(), l).await;
        assert!(group.fewest >= 1, "{claimed:?}");
        let out: Vec<&Claimed> = claimed.iter().filter(|c| c.stage == Some(StageName::Drain)).collect();
        assert_eq!((out.len(), group.out.len(), record.slots.len()), (2, 2, 2), "{claimed:?}");
        let loser = claimed.iter().find(|c| c.stage != Some(StageName::Drain)).unwrap();
        let last = loser.last.as_ref().unwrap();
        assert_eq!((loser.stage, last.exit, loser.writes), (None, Exit::SlotHeld, 0), "{last:?}");
        let holders: Vec<String> = record.slots.values().map(|s| s.node.to_string()).collect();
        assert!(holders.iter().any(|h| last.message.contains(h)), "{}", last.message);
    }
}

/// Two slots, and a floor that leaves room for one: two slots are given, and yet one goes at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_three_with_two_slots_one_goes_where_the_floor_allows_no_more() {
    let l = Limits { members: 3, claimants: 3, max_unavailable: 2, minimum_healthy: 3, minimum_during_patch: 2 };
    let temp = tempfile::tempdir().unwrap();
    let store = store(temp.path(), l.members);
    let (mut went, mut floored) = (0_usize, 0_usize);
    for _ in 0..ROUNDS {
        clean(&store);
        let (claimed, record, group) = round(temp.path(), l).await;
        assert!(group.fewest >= 2 && group.out.len() <= 1, "{claimed:?}");
        for (i, c) in claimed.iter().enumerate() {
            let mine = instance(i + 1);
            let has_slot = record.slots.keys().any(|id| id.as_str() == mine);
            match c.stage {
                Some(StageName::Drain) => {
                    went += 1;
                    assert!(group.out.contains(&mine) && has_slot, "{c:?}");
                }
                // The floor was gone right before the call: it turned round without having left, and keeps its slot
                // until it is settled.
                Some(_) => {
                    floored += 1;
                    assert!(!group.deregistered.contains_key(&mine) && has_slot, "{c:?}");
                }
                None => {
                    let exit = c.last.as_ref().unwrap().exit;
                    floored += usize::from(exit == Exit::BelowMinimum);
                    assert!(matches!(exit, Exit::SlotHeld | Exit::BelowMinimum), "{c:?}");
                    assert!(!group.deregistered.contains_key(&mine) && !has_slot, "{c:?}");
                }
            }
        }
    }
    eprintln!("{went} went, {floored} were held back by the floor");
    assert!(floored > 0, "the floor was what held somebody back");
}

/// Real processes, asked at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_processes_asked_at_once_one_goes() {
    let mut o = options();
    o.nodes = 3;
    let s = Scene::with(o).await;
    for round in 1..=4 {
        let (send, mut replies) = mpsc::channel(3);
        let mut tasks = Vec::new();
        for machine in s.fleet.machines() {
            let (machine, send) = (machine.clone(), send.clone());
            let script =
                format!("echo {} >> {}; read code < {}", machine.name(), s.runs_file().display(), s.fifo().display());
            tasks.push(pace::Task::start(async move {
                let request = patch_request("patch", &["sh", "-c", &script], RebootPolicy::Never);
                let reply = machine.run(&request).await.unwrap();
                let _ = send.send((machine, reply)).await;
            }));
        }
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(replies.recv().await.unwrap());
        }
        s.until("one job", || s.runs() >= round).await;
        let winner = std::fs::read_to_string(s.runs_file()).unwrap().lines().last().unwrap().to_owned();
        for (machine, reply) in &all {
            let (exit, message) = match reply {
                RunReply::Started { .. } if machine.name() == winner => continue,
                RunReply::Started { cycle, .. } => {
                    let outcome = machine.wait_ended(cycle, BOUND).await.unwrap();
                    (outcome.exit, outcome.message)
                }
                RunReply::Refused { exit, message, .. } => (*exit, message.clone()),
                RunReply::Attached { .. } => panic!("{reply:?}"),
            };
            assert_eq!(exit, Exit::SlotHeld.code(), "{}: {message}", machine.name());
            assert!(message.contains(&winner), "the loser says who: {message}");
        }
        // The winner waits in its job: this is what everybody else sees of it.
        assert_eq!((s.runs(), s.fleet.in_service()), (round, 2));
        let record = s.fleet.record().unwrap();
        assert_eq!(
            record.slots.values().map(|s| s.node.to_string()).collect::<Vec<_>>(),
            std::slice::from_ref(&winner)
        );
        s.let_job_end(0).await;
        let (machine, reply) = all.into_iter().find(|(m, _)| m.name() == winner).unwrap();
        let RunReply::Started { cycle, .. } = reply else { panic!("{reply:?}") };
        let outcome = machine.wait_ended(&cycle, BOUND).await.unwrap();
        assert_eq!((outcome.exit, s.fleet.in_service()), (0, 3), "{}", outcome.message);
    }
    let record = s.fleet.record().unwrap();
    assert!(record.slots.is_empty() && record.latches.is_empty());
    assert_eq!(record.finished.len(), 4, "losers leave no trace: {record:?}");
    assert_eq!(s.fleet.receiver().received(), []);
}
