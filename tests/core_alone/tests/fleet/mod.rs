//! The world around the shipped `want`, `decide`, `settle_commit`, `apply`, `evaluate`, `floor`, `heal` and `in_service`:
//! agents that crash, machines that restart, a disk that fills up, a store that loses answers, load balancers that lag.
//! One [`Act`] is one step of one party.
use backstop_core_alone::cycle::{Durable, StageName};
use backstop_core_alone::decide::decide;
use backstop_core_alone::error::Jitter;
use backstop_core_alone::event::Event;
use backstop_core_alone::record::Op;
use backstop_core_alone::rules::{Mutant, Rules};
use backstop_core_alone::target::Own;
use backstop_core_alone::time::Now;
use stateright::{Model, Property};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

mod acts;
pub mod home;
mod intern;
mod names;
mod quotient;
mod renaming;
mod rules;
mod tables;
pub mod walk;
mod world;

pub use names::{CYCLES, Clock, HOLD, What};
pub use renaming::PERMUTED;
pub use tables::*;

pub const NODES: usize = 3;
pub const GROUPS: usize = 2;

pub fn bit(i: usize) -> u8 {
    1 << i
}
fn cycle_bit(c: u8) -> u8 {
    1 << (c - 1)
}

/// Which faults a run may draw from; `faults` and `verbs` say how many in one history.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub crash: bool,
    pub disk: bool,
    pub store: bool,
    pub lost: bool,
    pub reads: bool,
    pub deadline: bool,
    pub job: bool,
    pub outside: bool,
    pub death: bool,
    /// Calls to the load balancer, the job runner and the machine that fail, done or not.
    pub calls: bool,
    /// A machine that restarts unasked; time that passes between an acknowledgement and its use.
    pub power: bool,
    /// Somebody else registers the target.
    pub foreign: bool,
}
impl Faults {
    /// Those of the miniature.
    pub const ALL: Faults = Faults {
        crash: true,
        disk: true,
        store: true,
        lost: true,
        reads: true,
        deadline: true,
        job: true,
        outside: true,
        death: true,
        calls: false,
        power: false,
        foreign: false,
    };
    /// And those that it leaves out.
    pub const MORE: Faults = Faults { calls: true, power: true, foreign: true, ..Faults::ALL };
}

/// Of whom `retire` may be said (the person's word, not the protocol's).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetireOf {
    Dead,
    Silent,
    Frozen,
}

/// What a run is about.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    pub n: usize,
    pub groups: usize,
    pub rules: Rules,
    pub cycles: u8,
    pub faults: u8,
    pub verbs: u8,
    pub kinds: Faults,
    pub retire: RetireOf,
    pub symmetric: bool,
    /// The machine restarts after each good job.
    pub reboot: bool,
    /// Two node checks, a quiet period and a bake time, one tick each.
    pub dwells: bool,
    /// The server leaves out rows of targets that it does not know.
    pub silent: bool,
    /// Node 0 has lost its state mid-cycle: its old slot is in the record, its target is out.
    pub recovery: bool,
}

#[derive(Clone)]
pub struct Fleet {
    pub f: Config,
    pub t: Arc<Tables>,
    pub homes: Arc<home::Homes>,
    start: World,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    pub disk: Disk,
    pub ram: Option<Ram>, // None: the agent is down
    pub clock: Clock,
    pub alive: bool, // the instance
    pub full: bool,
    pub target: Targets,
    pub before: Targets, // what a lagging read still says
    pub job: Job,
    pub sick: bool,
    pub asked: bool, // the machine was asked to restart, and has not yet
    pub started: u8,
    // Ghosts: what really happened, for the rules alone.
    pub left: bool,      // this cycle called deregister
    pub away: bool,      // ... and the node was not in service since
    pub excused: bool,   // others left for an outside reason after this agent's last fleet read
    pub looked: bool,    // the agent has read its own target in this stage (kept where somebody else may register it)
    pub foreign: bool,   // somebody else registered the target after that, or the look was a lagging one
    pub restarted: bool, // the machine did restart since `reboot` was entered
    pub failed: u8,      // cycles whose failure was recorded, a bit each
    pub cleared: u8,     // latches that a person cleared
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bad {
    LeftBelowFloor,
    StepWithoutSlot,
    StepAfterFailure,
    JobInService,
    StartOverFailure,
    HomeBeforeLatch,
    OutwardUncommitted,
    NotRestarted,
    Invariant,
    FailedInSilence,
    PartlyHome,
}

/// In two words; clocks stand still in the quotient.
impl Hash for Node {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ram = self.ram.map_or(0, |r| r.number() + 1);
        state.write_u64(u64::from(self.disk.number()) << 32 | u64::from(ram));
        let flags = [
            self.alive,
            self.full,
            self.sick,
            self.asked,
            self.left,
            self.away,
            self.excused,
            self.looked,
            self.foreign,
            self.restarted,
        ];
        let mut bits = flags.iter().fold(1_u64, |b, f| b << 1 | u64::from(*f));
        for t in self.target.iter().chain(&self.before) {
            bits = bits << 2 | *t as u64;
        }
        bits = bits << 3 | self.job as u64;
        for n in [self.started, self.failed, self.cleared] {
            bits = bits << 8 | u64::from(n);
        }
        state.write_u64(bits);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World {
    pub node: [Node; NODES],
    pub rec: Rec,
    /// A write whose answer was lost: it may land as long as nothing newer was acknowledged.
    pub late: Option<(u8, Write)>,
    pub store: bool,
    pub faults: u8,
    pub verbs: u8,
    pub outside: bool, // ghost: a node left service for a reason outside the protocol
    pub bad: Option<Bad>,
}

/// How an effect goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum How {
    Clean,
    CrashAfter,
    Lost,
    Late,
    Stale,
    Unknown,
    /// The call was made and its answer is an error.
    DoneButError,
    /// The call was not made, and its answer is an error.
    Error,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Act {
    // the agent
    Run(usize),
    Turn(usize, How),
    Reconcile(usize),
    Deadline(usize),
    HoldEnds(usize),
    Crash(usize),
    Boot(usize),
    /// It was down until after its stage's deadline.
    BootLate(usize),
    Persist(usize),
    /// Something without meaning here (a page) was to be stored, and the disk refused.
    PageNotStored(usize),
    // its surroundings
    Progress(usize, usize),
    JobEnds(usize, Job),
    JobLeavesSick(usize),
    Heal(usize),
    Restarts(usize),
    PowerFails(usize),
    Stall(usize),
    DiskFull(usize),
    DiskFree(usize),
    StoreDown,
    StoreUp,
    Land,
    Lose,
    Deregistered(usize, usize),
    Registered(usize, usize),
    Dies(usize),
    PeerLatches(usize),
    Expire(usize, u8),
    HoldVanishes(usize),
    // an operator
    Retire(usize),
    Clear(usize, u8),
    Hold(usize),
    Rejoin(usize),
}

impl Fleet {
    pub fn new(f: Config) -> Fleet {
        Fleet::with(f, Tables::new(&f, false))
    }
    /// With whole values: for walks only, since no two of its states are alike.
    pub fn whole(f: Config) -> Fleet {
        Fleet::with(f, Tables::new(&f, true))
    }
    fn with(f: Config, t: Tables) -> Fleet {
        Fleet { f, start: first(&f, &t), t: Arc::new(t), homes: Arc::default() }
    }
    pub fn is(&self, m: Mutant) -> bool {
        self.f.rules.is(m)
    }

    pub fn init(&self) -> World {
        self.start
    }
}

fn first(f: &Config, t: &Tables) -> World {
    let here = t.names.now(Clock::ZERO);
    let node = |i: usize| {
        let disk = t.disk(Durable::new(t.names.instance[i].clone()));
        let targets = std::array::from_fn(|g| if g < f.groups && i < f.n { Lb::Healthy } else { Lb::Out });
        Node {
            disk,
            ram: Some(t.ram(&disk.d, &Default::default(), &here)),
            clock: Clock::ZERO,
            alive: true,
            full: false,
            target: targets,
            before: targets,
            job: Job::New,
            sick: false,
            asked: false,
            started: 0,
            left: false,
            away: false,
            excused: false,
            looked: false,
            foreign: false,
            restarted: false,
            failed: 0,
            cleared: 0,
        }
    };
    let sheet = Sheet {
        slot: [0; NODES],
        latch: [[LatchState::None; CYCLES]; NODES],
        hold: [false; NODES],
        member: std::array::from_fn(|i| i < f.n),
    };
    let mut w = World {
        node: std::array::from_fn(node),
        rec: t.sheet_record(&sheet),
        late: None,
        store: true,
        faults: f.faults,
        verbs: f.verbs,
        outside: false,
        bad: None,
    };
    if f.recovery {
        w.rec = t.sheet_record(&Sheet { slot: [1, 0, 0], ..sheet });
        lost_state(t, &mut w.node[0], &here);
    }
    w
}

/// Out for its first cycle when its state became unreadable; the second is the way back.
fn lost_state(t: &Tables, n: &mut Node, here: &Now) {
    let lost = Event::StateLost(t.names.plans[&(0, 2, What::Recovery)].clone(), "the state cannot be read".into());
    let step = decide(&n.disk.d, &Default::default(), &lost, here, Jitter(0));
    let ram = t.ram(&step.durable, &step.seen, here);
    (n.disk, n.ram) = (ram.disk, Some(ram));
    (n.target, n.before) = ([Lb::Out; GROUPS], [Lb::Out; GROUPS]);
    (n.started, n.left, n.away) = (2, true, true); // the failure counts from its acknowledged latch on
}

impl Model for Fleet {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        vec![self.init()]
    }
    fn actions(&self, w: &World, out: &mut Vec<Act>) {
        self.possible(w, out);
    }
    fn next_state(&self, last: &World, act: Act) -> Option<World> {
        let w = self.canonical(self.step(last, act)?);
        (w != *last).then_some(w)
    }
    fn properties(&self) -> Vec<Property<Self>> {
        rules::properties(&self.f)
    }
}
