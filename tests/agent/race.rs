//! A race of in-process agents for the fleet record, in any store: a barrier in front of it lets nobody write before
//! everybody has read the same record.

use crate::fakes::{Fake, Scale, instance, name};
use crate::meeting::Meeting;
use crate::running::Running;
use crate::scene::BOUND;
use backstop::agent::shared::NodeView;
use backstop::agent::supervisor::{Task, spawn};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Ended, StageName};
use backstop::core::exit::Exit;
use backstop::core::ids::CycleId;
use backstop::core::record::{self, Record};
use backstop::fleet::Store;
use backstop::ports::FleetStore;
use backstop::rehearse::pace;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const ROUNDS: usize = 200;

/// How many may be out, and how many must stay.
#[derive(Clone, Copy)]
pub struct Limits {
    pub members: usize,
    pub claimants: usize,
    pub max_unavailable: u32,
    pub minimum_healthy: u32,
    pub minimum_during_patch: u32,
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
pub struct Claimed {
    pub stage: Option<StageName>,
    pub cycle: CycleId,
    pub last: Option<Ended>,
    /// Acknowledged writes of the record.
    pub writes: usize,
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

/// The record as it is.
pub async fn present(store: &Store) -> Record {
    serde_json::from_slice(&store.read().await.unwrap().unwrap().0).unwrap()
}

/// Everything of the last round is gone, as after a person has looked.
pub async fn clean(store: &Store) -> u64 {
    let (bytes, version) = store.read().await.unwrap().unwrap();
    let old: Record = serde_json::from_slice(&bytes).unwrap();
    let next = record::stamped(Record { counter: old.counter, ..Record::new("test".into()) }, "clean".into());
    store.compare_and_set(&version, serde_json::to_vec(&next).unwrap()).await.unwrap();
    next.counter
}

/// A new record.
pub async fn begin(store: &Store) {
    store.create(serde_json::to_vec(&Record::new("test".into())).unwrap()).await.unwrap();
}

/// What came of one race.
pub struct Round {
    /// Of each claim, by number.
    pub claimed: Vec<Claimed>,
    pub record: Record,
    /// Deregister calls, by target.
    pub deregistered: BTreeMap<String, usize>,
    /// Who is out.
    pub out: Vec<String>,
    /// Fewest in service at any time.
    pub fewest: usize,
}

/// One race. `open` gives each agent a store of its own, with nothing learnt yet.
pub async fn round(open: &impl Fn() -> Store, l: Limits) -> Round {
    let world = Fake::first_of(Scale { nodes: l.members, groups: 1, drains_end: false });
    let meeting = Meeting::new(l.claimants);
    let mut claimants = Vec::new();
    for n in 1..=l.claimants {
        let seat = meeting.seat(open());
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
    Round { claimed, record: present(&open()).await, deregistered, out, fewest }
}

/// Of two that have read before either writes one goes, and the other says who.
pub async fn one_of_two_goes(open: impl Fn() -> Store, rounds: usize) {
    let l = Limits { members: 3, claimants: 2, max_unavailable: 1, minimum_healthy: 3, minimum_during_patch: 2 };
    let store = open();
    begin(&store).await;
    for _ in 0..rounds {
        let counter = clean(&store).await;
        let Round { claimed, record, deregistered, out: gone, fewest } = round(&open, l).await;
        let out: Vec<usize> = (0..2).filter(|i| claimed[*i].stage == Some(StageName::Drain)).collect();
        let [winner] = out[..] else { panic!("one goes: {claimed:?}") };
        let loser = &claimed[1 - winner];

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
}
