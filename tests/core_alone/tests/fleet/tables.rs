//! The shipped functions behind handles: each distinct call is made once.
use super::intern::{Handle, Memo, Table};
use super::names::{CYCLES, Clock, Names, STALL_MS, cycle_of};
use super::quotient::{Quotient, number_of};
use super::renaming::Renamed;
use super::{Config, GROUPS, NODES, bit};
use backstop_core_alone::cycle::{Durable, FailureClass, Seen, Stage, StageName};
use backstop_core_alone::decide::{Step, decide, settle_commit};
use backstop_core_alone::effect::{Effect, Want};
use backstop_core_alone::error::{Fault, Jitter};
use backstop_core_alone::event::Event;
use backstop_core_alone::exit_codes::ExitCodes;
use backstop_core_alone::guard::{self, Fact, Facts};
use backstop_core_alone::job::{JobResult, JobStatus, Verdict};
use backstop_core_alone::member::{FleetView, in_service};
use backstop_core_alone::record::{Op, Record, Refusal, Slot, apply};
use backstop_core_alone::rules::Mutant;
use backstop_core_alone::settings::{CheckPass, NodeIdentity};
use backstop_core_alone::target::{Named, Own, Poll, Reason, Row, TargetState};
use backstop_core_alone::time::Now;
use backstop_core_alone::want::want;
use backstop_core_alone::{heal, invariant};
use std::collections::{BTreeMap, BTreeSet};

/// A stored state.
#[derive(Debug)]
pub struct Stored {
    pub d: Durable,
    pub stage: Option<StageName>,
    /// Number of a cycle that can leave something in the record; 0 = none.
    pub cycle: u8,
    pub failed: bool,
    /// Number of the cycle under way, whatever it is for.
    pub remembers: u8,
    pub renamed: Renamed<Disk>,
}

pub type Disk = Handle<Stored>;
impl Stored {
    /// A hold waits for its acknowledgement.
    pub fn holds(&self) -> bool {
        self.d.cycle.as_ref().is_some_and(|c| c.hold.is_some())
    }
}

/// What a running process has: its decision, and what it has learnt since.
#[derive(Debug)]
pub struct Running {
    pub disk: Disk,
    pub v: Seen,
    pub now: Now,
    pub todo: Todo,
    pub outward: bool,
    pub renamed: Renamed<Ram>,
}
pub type Ram = Handle<Running>;

#[derive(Debug)]
pub struct Written {
    pub op: Op,
    pub claims: bool,
    /// The node and cycle whose failure it records.
    pub fails: Option<(usize, u8)>,
    pub renamed: Renamed<Write>,
}
pub type Write = Handle<Written>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LatchState {
    None,
    Set,
    Cleared,
}

/// All of a record that is not text or time. `build` makes the record of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sheet {
    pub slot: [u8; NODES],
    pub latch: [[LatchState; CYCLES]; NODES],
    pub hold: [bool; NODES],
    pub member: [bool; NODES],
}
pub struct Shared {
    pub r: Record,
    pub sheet: Sheet,
    /// Who does not count as staying, a bit each.
    pub leavers: u8,
    pub renamed: Renamed<Rec>,
}
pub type Rec = Handle<Shared>;

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.sheet.fmt(f)
    }
}

/// What the state wants, without its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Todo {
    Nothing,
    Tick,
    Wait,
    Write(Write),
    ReadRecord,
    ReadGuards,
    ReadFleet,
    ReadOwn,
    Deregister(u8),
    Register(u8),
    Count,
    AskJob,
    StartJob,
    KillJob,
    Reboot,
    Check,
}

/// A target as it really is in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lb {
    Out,
    Initial,
    Healthy,
    Draining,
}
pub type Targets = [Lb; GROUPS];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Job {
    New,
    Running,
    Good,
    Bad,
    /// Started, gone, and no verdict.
    Lost,
}

/// What came back. `Event`s are made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Answer {
    Start(u8, super::names::What),
    Recovered,
    /// ... and the stage's deadline has passed in the meantime.
    RecoveredLate,
    /// Not an event: a change without meaning here that the disk refuses.
    NotStored,
    Tick,
    Deadline,
    HoldTime,
    Stall,
    Rejoin,
    Hold,
    Acked {
        leavers: u8,
    },
    Refused,
    Unanswered,
    /// The record as read, and who is in service, a bit each.
    Guards(Option<Rec>, Option<u8>, u8),
    Fleet(Option<u8>, u8),
    Own([Own; GROUPS]),
    Called(u8, bool),
    Counted,
    Job(Option<Job>),
    Started(bool),
    Killed(bool),
    Checked(bool),
}

/// What one answer led to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub ram: Ram,
    /// Now on the disk.
    pub stored: Option<Disk>,
    pub clock: Clock,
    pub broke: Option<Broke>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broke {
    Invariant,
    FailedInSilence,
}

pub struct Tables {
    pub names: Names,
    f: Config,
    /// Keep whole values: nothing is taken out of them.
    whole: bool,
    stored: Table<Durable, Stored>,
    running: Table<(Durable, Seen, Now), Running>,
    writes: Table<Op, Written>,
    records: Table<Record, Shared>,
    decided: Memo<(Ram, Answer, bool), Outcome>,
    applied: Memo<(Rec, Write), Option<Rec>>,
    seen: Memo<([Targets; NODES], u8), u8>,
    own: [[[Own; 2]; 2]; 4],
}

impl Tables {
    pub fn new(f: &Config, whole: bool) -> Tables {
        Tables {
            names: Names::new(f),
            f: *f,
            whole,
            stored: Table::new(),
            running: Table::new(),
            writes: Table::new(),
            records: Table::new(),
            decided: Memo::new(),
            applied: Memo::new(),
            seen: Memo::new(),
            own: own_table(),
        }
    }
    pub fn sizes(&self) -> String {
        let (s, r, d) = (self.stored.len(), self.running.len(), self.decided.len());
        format!("{s} stored, {r} running, {} records, {d} decisions", self.records.len())
    }

    pub fn disk(&self, d: Durable) -> Disk {
        self.stored.get(d, |d| Stored {
            stage: d.stage(),
            cycle: number_of(d),
            remembers: d.cycle.as_ref().map_or(0, |c| cycle_of(&c.plan.id).1),
            failed: d.cycle.as_ref().is_some_and(|c| c.failure.is_some()),
            d: d.clone(),
            renamed: Default::default(),
        })
    }

    /// A process with this decision and this knowledge, by this clock.
    pub fn ram(&self, d: &Durable, v: &Seen, now: &Now) -> Ram {
        let key = if self.whole {
            (d.clone(), v.clone(), now.clone())
        } else {
            let q = Quotient::of(&self.names, now, d);
            (q.durable(d), q.seen(d, v), q.present())
        };
        let disk = self.disk(key.0.clone());
        self.running.get(key, |(d, v, now)| {
            let wanted = want(d, v, now);
            let outward = matches!(&wanted, Want::Do(e) if e.outward());
            Running {
                disk,
                v: v.clone(),
                now: now.clone(),
                todo: self.todo(wanted, now),
                outward,
                renamed: Default::default(),
            }
        })
    }

    fn todo(&self, wanted: Want, now: &Now) -> Todo {
        let group = |g: usize| u8::try_from(g).unwrap();
        match wanted {
            Want::Idle => Todo::Nothing,
            Want::Wait(at) if at == *now => Todo::Tick,
            Want::Wait(_) => Todo::Wait,
            Want::Do(effect) => match effect {
                Effect::Record(op) => Todo::Write(self.op(op)),
                Effect::ReadRecord => Todo::ReadRecord,
                Effect::ReadGuards => Todo::ReadGuards,
                Effect::ReadFleet => Todo::ReadFleet,
                Effect::ReadOwn => Todo::ReadOwn,
                Effect::Deregister(g) => Todo::Deregister(group(g)),
                Effect::Register(g) => Todo::Register(group(g)),
                Effect::CountConnections => Todo::Count,
                Effect::AskJob => Todo::AskJob,
                Effect::StartJob => Todo::StartJob,
                Effect::KillJob => Todo::KillJob,
                Effect::Reboot => Todo::Reboot,
                Effect::Check => Todo::Check,
            },
        }
    }

    pub fn op(&self, op: Op) -> Write {
        self.writes.get(op, |op| {
            let fails = match op {
                Op::AddLatch { cycle, .. }
                | Op::Free { cycle, latch: Some(_), .. }
                | Op::Hold { instead_of: Some((cycle, Some(_))), .. } => Some(cycle_of(cycle)),
                _ => None,
            };
            Written { op: op.clone(), claims: matches!(op, Op::Claim { .. }), fails, renamed: Default::default() }
        })
    }

    // ---- one node ----

    pub fn boot(&self, disk: Disk, clock: Clock) -> Ram {
        self.ram(&disk.d, &Seen::recovered(), &self.names.now(clock))
    }
    /// The stored state of a machine that has restarted, and its clock.
    pub fn reboots(&self, disk: Disk, clock: Clock) -> (Disk, Clock) {
        let next = clock.next_boot();
        if self.whole {
            return (disk, next);
        }
        let now = self.names.now(next);
        let q = Quotient::new(&self.names, &now);
        (self.disk(q.durable(&disk.d)), Clock::ZERO)
    }

    /// `decide`, then the commit as every driver of the core makes it, then the wait that was asked for.
    pub fn learn(&self, ram: Ram, answer: Answer, stores: bool) -> Outcome {
        if self.whole {
            self.learned(ram, answer, stores)
        } else {
            self.decided.get((ram, answer, stores), || self.learned(ram, answer, stores))
        }
    }

    fn learned(&self, ram: Ram, answer: Answer, stores: bool) -> Outcome {
        let event = self.event(ram, answer);
        let (mut d, mut v) = (ram.disk.d.clone(), ram.v.clone());
        let mut now = self.time(ram, answer);
        let (mut stored, mut broke) = (false, None);
        let mut turn = |d: &mut Durable, v: &mut Seen, e: &Event, now: &Now| {
            let step = decide(d, v, e, now, Jitter(0));
            broke = broke.or(self.broken(d, &step));
            let mut next = step;
            if next.durable != *d {
                stored = stores;
                next = settle_commit(d, v, next, stores, now);
                broke = broke.or(self.broken(d, &next));
            }
            (*d, *v) = (next.durable, next.seen);
        };
        if answer == Answer::NotStored {
            let durable = Durable { page_seq: d.page_seq + 1, ..d.clone() };
            let next = settle_commit(&d, &v, Step { durable, seen: v.clone() }, false, &now);
            (d, v) = (next.durable, next.seen);
        } else {
            turn(&mut d, &mut v, &event, &now);
        }
        for _ in 0..8 {
            let Some(at) = v.next_at.clone().filter(|at| at.since(&now).is_some_and(|ms| ms > 0)) else { break };
            now = at;
            turn(&mut d, &mut v, &Event::Tick, &now);
        }
        let waits = v.next_at.as_ref().is_some_and(|at| now.since(at).is_none());
        assert!(!waits || self.f.rules.mutant == Mutant::HomewardNeedsCommit, "a wait ends: {d:?} {v:?}");
        let ram = self.ram(&d, &v, &now);
        let clock = if self.whole { self.names.clock(&now) } else { Clock::ZERO };
        Outcome { ram, stored: stored.then_some(ram.disk), clock, broke }
    }

    fn broken(&self, before: &Durable, step: &Step) -> Option<Broke> {
        if invariant::durable(&step.durable).is_err() {
            return Some(Broke::Invariant);
        }
        let failure = |d: &Durable| d.cycle.as_ref().and_then(|c| c.failure.clone());
        let new = failure(&step.durable).filter(|_| failure(before).is_none())?;
        let cycle = step.durable.cycle.as_ref().map(|c| &c.plan.id);
        let paged = step.durable.pages.iter().any(|p| p.cycle.as_ref() == cycle && p.class == Some(new.class));
        (!paged && new.class != FailureClass::Cancelled).then_some(Broke::FailedInSilence)
    }

    fn time(&self, ram: Ram, answer: Answer) -> Now {
        let cycle = ram.disk.d.cycle.as_ref();
        let now = &ram.now;
        match answer {
            Answer::Deadline | Answer::RecoveredLate => cycle.map_or(now.clone(), |c| c.deadline.due_at(now)),
            Answer::HoldTime => match cycle.map(|c| &c.stage) {
                Some(Stage::Held { until }) => until.due_at(now),
                _ => now.clone(),
            },
            Answer::Stall => now.plus(STALL_MS),
            _ => now.clone(),
        }
    }

    fn event(&self, ram: Ram, answer: Answer) -> Event {
        let fault = || Fault::transport("no answer");
        let done = |ok: bool| if ok { Ok(()) } else { Err(fault()) };
        let i = self.names.node(&ram.disk.d.instance);
        match answer {
            Answer::Start(c, what) => Event::Start(self.names.plans[&(i, c, what)].clone()),
            Answer::Recovered | Answer::RecoveredLate => Event::Recovered,
            Answer::NotStored | Answer::Tick | Answer::Deadline | Answer::HoldTime | Answer::Stall => Event::Tick,
            Answer::Rejoin => Event::Rejoin { by: "somebody".into(), reason: "a reason".into(), skip_check: false },
            Answer::Hold => Event::Hold(self.names.hold.clone()),
            Answer::Acked { leavers } => Event::Acked { leavers: self.set(leavers) },
            Answer::Refused => Event::CasRefused(Box::new(Refusal::SlotGone)),
            Answer::Unanswered => Event::Unanswered(fault()),
            Answer::Guards(record, healthy, members) => Event::Guards(self.guards(ram, record, healthy, members)),
            Answer::Fleet(healthy, members) => {
                Event::Fleet(healthy.map(|h| self.view(h, members, &ram.now)).ok_or_else(fault))
            }
            Answer::Own(own) => {
                let own = own[..self.f.groups].to_vec();
                let fault = own.contains(&Own::Unknown).then(fault);
                Event::Own(own, fault)
            }
            Answer::Called(g, ok) => Event::Called(usize::from(g), done(ok)),
            Answer::Counted => Event::Connections(Ok(0)),
            Answer::Job(job) => Event::Job(job.map(job_status).ok_or_else(fault)),
            Answer::Started(ok) => Event::Started(done(ok)),
            Answer::Killed(ok) => Event::Killed(done(ok)),
            Answer::Checked(true) => {
                let identity = NodeIdentity { node_name: "a-node".into(), node_id: None, cluster_uuid: "u".into() };
                Event::Checked(Ok(CheckPass { identity, colour: None }))
            }
            Answer::Checked(false) => Event::Checked(Err(fault())),
        }
    }

    fn set(&self, bits: u8) -> BTreeSet<backstop_core_alone::ids::InstanceId> {
        (0..NODES).filter(|i| bits & bit(*i) != 0).map(|i| self.names.instance[i].clone()).collect()
    }
    fn view(&self, healthy: u8, members: u8, now: &Now) -> FleetView {
        FleetView { members: self.set(members), in_service: self.set(healthy), begun: now.clone() }
    }

    fn guards(&self, ram: Ram, record: Option<Rec>, healthy: Option<u8>, members: u8) -> guard::Verdicts {
        let c = ram.disk.d.cycle.as_ref().expect("guards are asked in a cycle");
        let yes = || Fact::Yes(String::new());
        let facts = Facts {
            instance: ram.disk.d.instance.clone(),
            cycle: Some(c.plan.id.clone()),
            wall_ms: ram.now.wall_ms,
            record: record.map(|r| r.r.clone()).ok_or_else(String::new),
            fleet: healthy.map(|h| self.view(h, members, &ram.now)).ok_or_else(String::new),
            names: std::collections::BTreeMap::new(),
            cycles_per_hour: Some(1_000),
            cycles_per_day: Some(1_000),
            acts: Fact::Yes(String::new()),
            identity: yes(),
            state_durable: yes(),
            register_allowed: yes(),
            cluster_reachable: yes(),
            drain_fits: yes(),
            pager_reachable: yes(),
            package_manager_free: yes(),
            autoscaling: yes(),
        };
        guard::evaluate(&facts, &c.plan.rules, &c.plan.overrides)
    }

    pub fn heal(&self, ram: Ram, own: &[Own], record: Option<Rec>) -> Option<heal::Heal> {
        let d = &ram.disk.d;
        heal::heal(d, own, record.map(|r| &r.value().r), false, &d.instance, &self.f.rules)
    }

    /// The quotient of a stored state, under its node's clock.
    pub fn reduced_disk(&self, d: &Durable, now: &Now) -> Disk {
        self.disk(Quotient::new(&self.names, now).durable(d))
    }

    /// The same decision. Whole values may differ in pages and texts: a driver stores those before it acts outwards.
    pub fn same(&self, a: Disk, b: Disk, now: &Now) -> bool {
        a == b || (self.whole && self.reduced_disk(&a.d, now) == self.reduced_disk(&b.d, now))
    }

    // ---- the load balancer ----

    pub fn own(&self, lb: Lb, others_listed: bool) -> Own {
        self.own[lb as usize][usize::from(others_listed)][usize::from(self.f.silent)]
    }

    /// Who is in service, by one read of whole groups.
    pub fn in_service(&self, read: [Targets; NODES], members: u8) -> u8 {
        self.seen.get((read, members), || {
            let docs: Vec<_> =
                (0..self.f.n).filter(|i| members & bit(*i) != 0).map(|i| self.names.members[i].clone()).collect();
            let polls: BTreeMap<_, _> = (0..self.f.groups)
                .map(|g| {
                    let list = (0..self.f.n).filter_map(|i| listed(&format!("i-{i}"), read[i][g])).collect();
                    (self.names.groups[g].clone(), Poll { list, named: None })
                })
                .collect();
            let now = self.names.now(Clock::ZERO);
            let view = in_service(&docs, &self.names.groups, &polls, now);
            view.in_service.iter().fold(0, |b, i| b | bit(self.names.node(i)))
        })
    }

    // ---- the record ----

    pub fn apply(&self, record: Rec, write: Write) -> Option<Rec> {
        let compute = || apply(&record.r, &write.op, &self.f.rules).ok().map(|r| self.record(r));
        self.applied.get((record, write), compute)
    }

    fn record(&self, r: Record) -> Rec {
        assert_eq!(invariant::record(&r), Ok(()));
        let sheet = self.sheet(&r);
        self.records.get(self.build(&sheet), |r| Shared {
            leavers: leavers(&self.names, r),
            r: r.clone(),
            sheet,
            renamed: Default::default(),
        })
    }

    fn sheet(&self, r: &Record) -> Sheet {
        let slot = |i: usize| r.slots.get(&self.names.instance[i]).map_or(0, |s| cycle_of(&s.cycle).1);
        let latch = |i: usize, c: usize| match r.latches.get(&self.names.cycle(i, u8::try_from(c).unwrap() + 1)) {
            _ if i >= self.f.n => LatchState::None,
            None => LatchState::None,
            Some(l) if l.cleared.is_some() => LatchState::Cleared,
            Some(_) => LatchState::Set,
        };
        Sheet {
            slot: std::array::from_fn(slot),
            latch: std::array::from_fn(|i| {
                std::array::from_fn(|c| if i < self.f.n { latch(i, c) } else { LatchState::None })
            }),
            hold: std::array::from_fn(|i| r.holds.contains_key(&self.names.instance[i])),
            member: std::array::from_fn(|i| i < self.f.n && !r.retired.contains_key(&self.names.instance[i])),
        }
    }

    fn build(&self, s: &Sheet) -> Record {
        let mut r = Record::new("fleet".into());
        let name = |i: usize| self.names.instance[i].clone();
        for i in 0..self.f.n {
            if s.slot[i] != 0 {
                r.slots.insert(name(i), Slot { ..self.names.slot(i, s.slot[i]) });
            }
            for c in 0..CYCLES {
                let id = self.names.cycle(i, u8::try_from(c).unwrap() + 1);
                match s.latch[i][c] {
                    LatchState::None => {}
                    l => _ = r.latches.insert(id, self.names.latch(i, l == LatchState::Cleared)),
                }
            }
            if s.hold[i] {
                r.holds.insert(name(i), self.names.hold.clone());
            }
            if !s.member[i] {
                r.retired.insert(name(i), self.names.order.clone());
            }
        }
        r
    }

    pub fn sheet_record(&self, s: &Sheet) -> Rec {
        self.record(self.build(s))
    }
}

fn leavers(names: &Names, r: &Record) -> u8 {
    r.leavers().iter().fold(0, |b, i| b | bit(names.node(i)))
}

fn job_status(job: Job) -> JobStatus {
    let ended = |code| {
        let result = JobResult::Exited(code);
        JobStatus::Ended(Verdict { result, reboot_needed: false, output_tail: "".into(), codes: ExitCodes::Plain })
    };
    match job {
        Job::New => JobStatus::New,
        Job::Running => JobStatus::Running,
        Job::Good => ended(0),
        Job::Bad => ended(1),
        Job::Lost => JobStatus::Lost,
    }
}

fn row(id: &str, state: TargetState, reason: Option<Reason>) -> Row {
    Row { id: id.into(), port: Some(9200), state, reason, shifted: false }
}

fn listed(id: &str, lb: Lb) -> Option<Row> {
    match lb {
        Lb::Out => None,
        Lb::Initial => Some(row(id, TargetState::Initial, Some(Reason::RegistrationInProgress))),
        Lb::Healthy => Some(row(id, TargetState::Healthy, None)),
        Lb::Draining => Some(row(id, TargetState::Draining, Some(Reason::DeregistrationInProgress))),
    }
}

/// What a poll says of the own target: by its state, by whether others are listed, and by whether the server leaves out
/// the rows of targets that it does not know.
fn own_table() -> [[[Own; 2]; 2]; 4] {
    let own = |lb: Lb, others: bool, silent: bool| {
        let mut list: Vec<Row> = listed("i-0", lb).into_iter().collect();
        let gone = row("i-0", TargetState::Unused, Some(Reason::NotRegistered));
        let named = if list.is_empty() && !silent { vec![gone] } else { list.clone() };
        if others {
            list.extend(listed("i-1", Lb::Healthy));
        }
        Poll { list, named: Some(Named::Rows(named)) }.own("i-0", 9200)
    };
    let all = [Lb::Out, Lb::Initial, Lb::Healthy, Lb::Draining];
    all.map(|lb| [false, true].map(|others| [false, true].map(|silent| own(lb, others, silent))))
}
