//! Several agents claim at the same moment.
//!
//! In process, 200 rounds each: real agents (loop, journal, guards, core) over one real file store. A barrier in front of
//! the store lets nobody write before everybody has read the same record, so every round is the race that a
//! read-then-write would lose. Proven there: what the compare-and-set lets through, and that the floor holds at each
//! deregister call, whatever the order of the rest. Between real processes, a few rounds: the same through the binary, its
//! socket, the lock file and the AWS SDK, asked at the same moment, without a barrier.

use crate::fakes::{Fake, Scale, instance, name};
use crate::meeting::Meeting;
use crate::running::Running;
use crate::scene::{BOUND, Scene, options};
use backstop::agent::shared::NodeView;
use backstop::agent::supervisor::{Task, spawn};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Ended, StageName};
use backstop::core::exit::Exit;
use backstop::core::ids::CycleId;
use backstop::core::job::RebootPolicy;
use backstop::core::record::{self, Record};
use backstop::fleet::file::{FileFleet, FileStore};
use backstop::rehearse::fleet::patch_request;
use backstop::rehearse::pace;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::mpsc;

const ROUNDS: usize = 200;

/// How many may be out, and how many must stay.
#[derive(Clone, Copy)]
struct Limits {
    members: usize,
    claimants: usize,
    max_unavailable: u32,
    minimum_healthy: u32,
    minimum_during_patch: u32,
}

impl Limits {
    /// As a config says it.
    fn config(self) -> String {
        format!(
            "max_unavailable = {}\nminimum_healthy = {}\nminimum_during_patch = {}\n",
            self.max_unavailable, self.minimum_healthy, self.minimum_during_patch
        )
    }
}

/// One agent that wants to leave.
struct Claimant {
    running: Running,
    seat: Meeting,
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
    /// Asks for a cycle, and waits until it is out, on its way back, or over.
    async fn claim(&self) -> Claimed {
        let cycle = match self.running.run_job().await {
            RunReply::Started { cycle, .. } => CycleId(cycle.into()),
            other => panic!("the barrier keeps everybody from a look at a taken slot: {other:?}"),
        };
        let settled = |v: &Arc<NodeView>| match v.durable.stage() {
            None => v.durable.last.as_ref().is_some_and(|e| e.cycle == cycle),
            Some(stage) => matches!(stage, StageName::Drain | StageName::Check),
        };
        let mut node = self.running.shared.node.subscribe();
        let waited = pace::within(BOUND, node.wait_for(settled)).await;
        let view = waited.expect("it comes to a rest without any time passing").unwrap().clone();
        let writes = self.seat.acknowledged();
        Claimed { stage: view.durable.stage(), cycle, last: view.durable.last.clone(), writes }
    }
}

/// A store with a record in it.
fn store(dir: &std::path::Path) -> FileStore {
    let store = FileStore::open(dir).unwrap();
    store.create(&serde_json::to_vec(&Record::new("test".into())).unwrap()).unwrap();
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

/// What came of one race.
struct Round {
    /// Of each claim, by number.
    claimed: Vec<Claimed>,
    record: Record,
    /// Deregister calls, by target.
    deregistered: BTreeMap<String, usize>,
    /// Who is out.
    out: Vec<String>,
    /// Fewest in service at any time.
    fewest: usize,
}

async fn round(dir: &std::path::Path, l: Limits) -> Round {
    let files = FileFleet::new(FileStore::open(dir).unwrap());
    let world = Fake::first_of(Scale { nodes: l.members, groups: 1, drains_end: false });
    let meeting = Meeting::new(files, l.claimants);
    let mut claimants = Vec::new();
    for n in 1..=l.claimants {
        let seat = meeting.seat();
        let running = Running::loop_alone(&world.node(n, seat.clone()), &l.config()).await;
        claimants.push(Claimant { running, seat });
    }
    let asked: Vec<Task<Claimed>> = claimants.into_iter().map(|c| spawn(async move { c.claim().await })).collect();
    let mut claimed = Vec::new();
    for task in asked {
        claimed.push(task.join().await.unwrap());
    }
    let read = meeting.first_reads();
    assert!(read.len() == l.claimants && read.iter().all(|v| *v == read[0]), "all have read the same before any write");
    let (deregistered, out, fewest) = world.left();
    Round { claimed, record: present(&FileStore::open(dir).unwrap()), deregistered, out, fewest }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_two_that_have_read_before_either_writes_one_goes_and_the_other_says_who() {
    let l = Limits { members: 3, claimants: 2, max_unavailable: 1, minimum_healthy: 3, minimum_during_patch: 2 };
    let temp = tempfile::tempdir().unwrap();
    let store = store(temp.path());
    let mut winners = BTreeMap::new();
    for _ in 0..ROUNDS {
        let counter = clean(&store);
        let Round { claimed, record, deregistered, out: gone, fewest } = round(temp.path(), l).await;
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
        assert_eq!(deregistered, BTreeMap::from([(instance(winner + 1), 1)]));
        assert_eq!((gone.len(), fewest), (1, 2));
    }
    eprintln!("won: {winners:?}");
}

/// Two slots, and a floor that leaves room for both: two go, never three.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_three_with_two_slots_two_go_and_the_floor_holds() {
    let l = Limits { members: 3, claimants: 3, max_unavailable: 2, minimum_healthy: 2, minimum_during_patch: 1 };
    let temp = tempfile::tempdir().unwrap();
    let store = store(temp.path());
    for _ in 0..ROUNDS {
        clean(&store);
        let Round { claimed, record, out: gone, fewest, .. } = round(temp.path(), l).await;
        assert!(fewest >= 1, "{claimed:?}");
        let out: Vec<&Claimed> = claimed.iter().filter(|c| c.stage == Some(StageName::Drain)).collect();
        assert_eq!((out.len(), gone.len(), record.slots.len()), (2, 2, 2), "{claimed:?}");
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
    let store = store(temp.path());
    let (mut went, mut floored) = (0_usize, 0_usize);
    for _ in 0..ROUNDS {
        clean(&store);
        let Round { claimed, record, deregistered, out: gone, fewest } = round(temp.path(), l).await;
        assert!(fewest >= 2 && gone.len() <= 1, "{claimed:?}");
        for (i, c) in claimed.iter().enumerate() {
            let mine = instance(i + 1);
            let has_slot = record.slots.keys().any(|id| id.as_str() == mine);
            match c.stage {
                Some(StageName::Drain) => {
                    went += 1;
                    assert!(gone.contains(&mine) && has_slot, "{c:?}");
                }
                // The floor was gone right before the call: it turned round without having left, and may not have given
                // its slot back yet.
                Some(_) => {
                    floored += 1;
                    assert!(!deregistered.contains_key(&mine) && has_slot, "{c:?}");
                }
                None => {
                    let exit = c.last.as_ref().unwrap().exit;
                    floored += usize::from(matches!(exit, Exit::BelowMinimum | Exit::EndedEarly));
                    assert!(matches!(exit, Exit::SlotHeld | Exit::BelowMinimum | Exit::EndedEarly), "{c:?}");
                    assert!(!deregistered.contains_key(&mine) && !has_slot, "{c:?}");
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
