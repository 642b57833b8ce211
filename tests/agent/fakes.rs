//! A world whose time and faults are controlled: nodes behind target groups, everything in memory. Only agents are real
//! (`running`): their loop, journal, observer and page delivery. A [`Fake`] is one node's view of the world.

#[path = "fakes/hands.rs"] // other test binaries have this file by its path
mod hands;

use crate::meeting::Meeting;
use backstop::agent::shared::World;
use backstop::alerts::Rendered;
use backstop::clock::{Clock, ManualClock};
use backstop::core::client_node::ClientNode;
use backstop::core::error::{Class, Fault};
use backstop::core::exit_codes::ExitCodes;
use backstop::core::ids::InstanceId;
use backstop::core::job::{JobResult, JobSpec, JobStatus, Verdict};
use backstop::core::member::{Member, Says};
use backstop::core::record::Record;
use backstop::core::settings::{BalancerKind, CheckPass, CheckSettings, GroupFacts, NodeIdentity, TargetType};
use backstop::core::target::{GroupArn, Named, Poll, Reason, Row, Target, TargetState};
use backstop::core::time::{BootId, Now};
use backstop::ports::{
    BoxFuture, CasFault, ClusterNodes, FleetStore, Host, Jobs, LoadBalancer, MayRegister, NodeCheck, PageSink, Version,
};
use backstop::state::fault::{FaultDisk, FaultFiles};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The first node; most tests have an agent on this one only.
pub const ME: &str = "i-00000000000000001";
pub const GROUPS: [&str; 2] = [
    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef",
    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-internal/fedcba9876543210",
];
/// How long a drain takes, unless it never ends.
const DRAIN_MS: u64 = 20_000;
const INITIAL_MS: u64 = 10_000;

/// The instance of a node, by its number from 1 on.
pub fn instance(n: usize) -> String {
    format!("i-{n:017x}")
}

/// The name of a node.
pub fn name(n: usize) -> String {
    format!("es-client-{n}")
}

/// What there is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub nodes: usize,
    pub groups: usize,
    pub drains_end: bool,
}

impl Scale {
    /// Three nodes behind two groups.
    pub const USUAL: Scale = Scale { nodes: 3, groups: 2, drains_end: true };
}

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Poll,
    Named,
    Group,
    Register,
    Deregister,
    Check,
    ReadRecord,
    WriteRecord,
    KillJob,
    Nodes,
    Members,
    Beat,
    Lifecycle,
    Page,
}

/// How.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Class(Class),
    /// What an adapter makes of an error that nobody told it about.
    NeverHeardOf,
    Panic,
}

impl Trouble {
    pub fn all() -> Vec<Trouble> {
        let classes = Class::ALL.into_iter().map(Trouble::Class);
        classes.chain([Trouble::NeverHeardOf, Trouble::Panic]).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Out,
    Initial(u64),
    Healthy,
    Failing,
    Draining(u64),
}

struct Inner {
    scale: Scale,
    /// Of each node, in each group.
    places: BTreeMap<String, Vec<Place>>,
    /// Deregister calls, by target.
    deregistered: BTreeMap<String, usize>,
    /// Fewest nodes that were in service in every group at any time.
    fewest: usize,
    record: Option<Vec<u8>>,
    members: BTreeMap<String, Vec<u8>>,
    /// Members whose heart a test makes beat.
    in_hand: std::collections::BTreeSet<String>,
    job: JobStatus,
    next_verdict: Option<Verdict>,
    /// Why no job could be started.
    no_job: Option<Fault>,
    trouble: BTreeMap<Call, Trouble>,
    /// Everything that the pager has accepted, in order.
    told: Vec<Rendered>,
    calls: Vec<(Call, u64)>,
    shown: [Option<Shown>; 2],
    orphan: Option<String>,
    package_manager: Option<String>,
    lifecycle: BTreeMap<usize, &'static str>,
    takes_anything: bool,
    reboots: u32,
    /// Client nodes of the cluster without an agent.
    strangers: Vec<usize>,
    /// Nodes under the name of another number.
    renamed: BTreeMap<usize, usize>,
    /// Nodes that the cluster does not list.
    stopped: std::collections::BTreeSet<usize>,
    /// Targets that a whole list leaves out.
    hidden: std::collections::BTreeSet<String>,
    /// Reads of the load balancer are answered only once this is false.
    hangs: tokio::sync::watch::Sender<bool>,
    /// Members whose hearts beat of themselves say where they stand.
    talkative: bool,
}

impl Inner {
    fn places(&mut self, instance: &str) -> &mut Vec<Place> {
        self.places.get_mut(instance).unwrap()
    }

    fn serving(&self) -> usize {
        self.places.values().filter(|p| p.iter().all(|p| *p == Place::Healthy)).count()
    }
}

/// What a group says about the own target, whatever is so.
#[derive(Clone, Debug)]
pub struct Shown {
    /// Rows in the whole list.
    pub list: Vec<Row>,
    /// By name.
    pub named: Named,
    /// The list shows the other targets too.
    pub others: bool,
}

/// One node in the world. Clones are the same one.
#[derive(Clone)]
pub struct Fake {
    pub clock: ManualClock,
    /// The disk of this node.
    pub files: FaultFiles,
    /// Which instance, from 1 on.
    pub n: usize,
    /// The node's name is that of this one: another number where an instance was replaced.
    named: usize,
    /// Where the fleet record is, if not in here.
    meeting: Option<Meeting>,
    /// A save that takes longer (real) counts as refused; `None`: as in the product.
    pub patience: Option<Duration>,
    inner: Arc<Mutex<Inner>>,
    activity: Arc<AtomicU64>,
}

pub fn good() -> Verdict {
    Verdict { result: JobResult::Exited(0), reboot_needed: false, output_tail: "".into(), codes: ExitCodes::Plain }
}

impl Fake {
    /// The first of three nodes.
    pub fn new() -> Fake {
        Fake::first_of(Scale::USUAL)
    }

    pub fn first_of(scale: Scale) -> Fake {
        let start = Now { wall_ms: 1_700_000_000_000, boot: BootId("boot-1".into()), since_boot_ms: 50_000 };
        let record = serde_json::to_vec(&Record::new("test".into())).unwrap();
        let all = || (1..=scale.nodes).map(instance);
        let members = (1..=scale.nodes).map(|n| (instance(n), serde_json::to_vec(&member(n, scale.groups)).unwrap()));
        Fake {
            clock: ManualClock::new(start),
            files: FaultFiles::default(),
            n: 1,
            named: 1,
            meeting: None,
            patience: None,
            inner: Arc::new(Mutex::new(Inner {
                scale,
                places: all().map(|i| (i, vec![Place::Healthy; scale.groups])).collect(),
                deregistered: BTreeMap::new(),
                fewest: scale.nodes,
                record: Some(record),
                members: members.collect(),
                in_hand: std::collections::BTreeSet::new(),
                job: JobStatus::New,
                next_verdict: Some(good()),
                no_job: None,
                trouble: BTreeMap::new(),
                told: Vec::new(),
                calls: Vec::new(),
                shown: [None, None],
                orphan: None,
                package_manager: None,
                lifecycle: BTreeMap::new(),
                takes_anything: false,
                reboots: 0,
                strangers: Vec::new(),
                renamed: BTreeMap::new(),
                stopped: std::collections::BTreeSet::new(),
                hidden: std::collections::BTreeSet::new(),
                hangs: tokio::sync::watch::Sender::new(false),
                talkative: false,
            })),
            activity: Arc::default(),
        }
    }

    /// One whose agents give up a save after so long.
    pub fn patient(patience: Duration) -> Fake {
        Fake { patience: Some(patience), ..Fake::new() }
    }

    /// Another node of this world, with a disk of its own, and its way to the fleet record.
    pub fn node(&self, n: usize, meeting: Meeting) -> Fake {
        Fake { n, named: n, files: FaultFiles::default(), meeting: Some(meeting), ..self.clone() }
    }

    pub fn instance(&self) -> String {
        instance(self.n)
    }

    pub fn node_name(&self) -> String {
        name(self.named)
    }

    /// Deregister calls by target, who is not in service, and the fewest that ever were.
    pub fn left(&self) -> (BTreeMap<String, usize>, Vec<String>, usize) {
        let i = self.inner();
        let out = i.places.iter().filter(|(_, p)| p.iter().any(|p| *p != Place::Healthy));
        (i.deregistered.clone(), out.map(|(id, _)| id.clone()).collect(), i.fewest)
    }

    /// From now on the group with this index says this; `None`: what is so.
    pub fn show(&self, group: usize, shown: Option<Shown>) {
        self.inner().shown[group] = shown;
    }

    /// Somebody else's hand on the record; `None` removes it.
    pub fn put_record(&self, record: Option<&Record>) {
        self.put_bytes(record.map(|r| serde_json::to_vec(r).unwrap()));
    }

    /// The same, with whatever bytes.
    pub fn put_bytes(&self, bytes: Option<Vec<u8>>) {
        self.inner().record = bytes;
    }

    /// A job that runs though no state knows of it, until it is killed.
    pub fn orphan(&self, cycle: Option<&str>) {
        self.inner().orphan = cycle.map(str::to_owned);
    }

    pub fn orphan_runs(&self) -> bool {
        self.inner().orphan.is_some()
    }

    /// A package manager at work.
    pub fn package_manager(&self, name: Option<&str>) {
        self.inner().package_manager = name.map(str::to_owned);
    }

    /// Reboots that were asked for.
    pub fn reboots(&self) -> u32 {
        self.inner().reboots
    }

    /// The load balancer takes targets that do not exist.
    pub fn takes_anything(&self) {
        self.inner().takes_anything = true;
    }

    /// Somebody has taken the own target out of every group, without a drain.
    pub fn take_out(&self) {
        self.inner().places(ME).fill(Place::Out);
    }

    /// Somebody has taken every target out of every group.
    pub fn take_all_out(&self) {
        self.inner().places.values_mut().for_each(|p| p.fill(Place::Out));
    }

    /// What instance metadata says of this node's lifecycle.
    pub fn lifecycle(&self, state: Option<&'static str>) {
        match state {
            Some(state) => self.inner().lifecycle.insert(self.n, state),
            None => self.inner().lifecycle.remove(&self.n),
        };
    }

    /// Who has a member document.
    pub fn members(&self) -> Vec<String> {
        self.inner().members.keys().cloned().collect()
    }

    /// Another member's heart beats, or its document goes.
    pub fn beats(&self, n: usize, beat: Option<u64>) {
        let mut i = self.inner();
        let groups = i.scale.groups;
        i.in_hand.insert(instance(n));
        match beat {
            Some(beat) => {
                i.members.insert(instance(n), serde_json::to_vec(&Member { beat, ..member(n, groups) }).unwrap())
            }
            None => i.members.remove(&instance(n)),
        };
    }

    /// The job runs.
    pub fn job_runs(&self) -> bool {
        self.inner().job == JobStatus::Running
    }

    /// The job was asked for.
    pub fn job_began(&self) -> bool {
        self.inner().job != JobStatus::New
    }

    pub fn groups(&self) -> usize {
        self.inner().scale.groups
    }

    /// Goes up with each call: the world is at rest when it does not.
    pub fn activity(&self) -> u64 {
        self.activity.load(Ordering::SeqCst)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn trouble(&self, call: Call, trouble: Option<Trouble>) {
        match trouble {
            Some(t) => self.inner().trouble.insert(call, t),
            None => self.inner().trouble.remove(&call),
        };
    }

    /// The job does not end by itself, or ends so.
    pub fn job_ends(&self, verdict: Option<Verdict>) {
        let mut i = self.inner();
        i.next_verdict.clone_from(&verdict);
        if let (JobStatus::Running, Some(v)) = (&i.job, verdict) {
            i.job = JobStatus::Ended(v);
        }
    }

    /// What the runner says of the job from now on.
    pub fn job_is(&self, verdict: Verdict) {
        self.inner().job = JobStatus::Ended(verdict);
    }

    /// No job could be started for this reason.
    pub fn no_job(&self, why: Option<Fault>) {
        self.inner().no_job = why;
    }

    pub fn record(&self) -> Record {
        serde_json::from_slice(self.inner().record.as_ref().unwrap()).unwrap()
    }

    /// What was paged about; not that it is over.
    /// Pages that the cycle machine and the agent itself raise; what reconcile finds beside them is in `all_pages`.
    pub fn pages(&self) -> Vec<Rendered> {
        let own = ["latched", "out-of-service", "release-stuck", "config-unusable", "agent-fault"];
        self.all_pages().into_iter().filter(|p| own.contains(&p.kind.as_str())).collect()
    }

    pub fn all_pages(&self) -> Vec<Rendered> {
        // What is over, and what is told again, is no page.
        self.told().into_iter().filter(|p| p.event == "trigger").collect()
    }

    pub fn calls(&self, call: Call) -> usize {
        self.inner().calls.iter().filter(|(c, _)| *c == call).count()
    }

    /// Healthy in both groups.
    pub fn in_service(&self) -> bool {
        self.settle();
        self.inner().places(&self.instance()).iter().all(|p| *p == Place::Healthy)
    }

    fn settle(&self) {
        let now = self.clock.now().since_boot_ms;
        let mut i = self.inner();
        let drains_end = i.scale.drains_end;
        for p in i.places.values_mut().flatten() {
            *p = match *p {
                Place::Initial(since) if now >= since + INITIAL_MS => Place::Healthy,
                Place::Draining(since) if drains_end && now >= since + DRAIN_MS => Place::Out,
                same => same,
            };
        }
    }

    /// A write: as every call, but one of which nothing is known may have been applied, and here it has been.
    fn write(&self, call: Call, apply: impl FnOnce(&mut Inner)) -> Result<(), Fault> {
        let outcome = self.call(call);
        if outcome.as_ref().err().is_none_or(|f| f.class == Class::OutcomeUnknown) {
            apply(&mut self.inner());
        }
        outcome
    }

    /// One call: counted, and failed if it was told to.
    fn call(&self, call: Call) -> Result<(), Fault> {
        self.activity.fetch_add(1, Ordering::SeqCst);
        let at = self.clock.now().since_boot_ms;
        let trouble = {
            let mut i = self.inner();
            i.calls.push((call, at));
            i.trouble.get(&call).copied()
        };
        match trouble {
            None => Ok(()),
            Some(Trouble::Class(class)) => Err(Fault::new(class, format!("{call:?} was told to fail"))),
            Some(Trouble::NeverHeardOf) => Err(Fault::transport("an error that nobody was told about")),
            Some(Trouble::Panic) => panic!("{call:?} was told to panic"),
        }
    }

    fn group_of(t: &Target) -> usize {
        GROUPS.iter().position(|g| **g == *t.group.0).unwrap()
    }
}

/// The document of a node's agent.
pub fn member(n: usize, groups: usize) -> Member {
    Member {
        schema: 1,
        instance: InstanceId(instance(n).into()),
        node: name(n).as_str().into(),
        targets: GROUPS[..groups].iter().map(|g| target(g, &instance(n))).collect(),
        agent: "test".into(),
        reads_schema: 1,
        boot: BootId("other".into()),
        beat: 1,
        doing: "idle".into(),
        node_id: None,
        address: None,
        sees: Vec::new(),
        record: None,
        says: Says::default(),
        told: Vec::new(),
        at_ms: 0,
        extra: BTreeMap::new(),
    }
}

fn target(group: &str, id: &str) -> Target {
    Target { group: GroupArn(group.into()), id: id.into(), port: 9200 }
}

pub fn row(id: &str, state: TargetState, reason: Option<Reason>) -> Row {
    Row { id: id.into(), port: Some(9200), state, reason, shifted: false }
}

impl Place {
    fn row(self, id: &str) -> Row {
        match self {
            Place::Healthy => row(id, TargetState::Healthy, None),
            Place::Initial(_) => row(id, TargetState::Initial, Some(Reason::InitialHealthChecking)),
            Place::Failing => row(id, TargetState::Unhealthy, Some(Reason::FailedHealthChecks)),
            Place::Draining(_) => row(id, TargetState::Draining, Some(Reason::DeregistrationInProgress)),
            Place::Out => row(id, TargetState::Unused, Some(Reason::NotRegistered)),
        }
    }
}

impl LoadBalancer for Fake {
    async fn poll(&self, t: &Target, by_name: bool) -> Result<Poll, Fault> {
        self.call(Call::Poll)?;
        self.goes_on().await;
        self.settle();
        let group = Fake::group_of(t);
        let inner = self.inner();
        let rows: Vec<Row> = inner.places.iter().map(|(id, places)| places[group].row(id)).collect();
        let (own, others): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(|r| *r.id == *t.id);
        let (mut list, named) = match inner.shown[group].clone() {
            Some(shown) => (if shown.others { others } else { Vec::new() }, (shown.list, shown.named)),
            None => {
                // The whole list does not show who is not registered.
                let listed = own.iter().filter(|r| r.reason != Some(Reason::NotRegistered)).cloned().collect();
                let gone = |r: &Row| r.reason == Some(Reason::NotRegistered);
                (others.into_iter().filter(|r| !gone(r)).collect(), (listed, Named::Rows(own)))
            }
        };
        list.extend(named.0);
        list.retain(|r| !inner.hidden.contains(&*r.id));
        Ok(Poll { list, named: by_name.then_some(named.1) })
    }

    async fn named(&self, t: &Target) -> Result<Named, Fault> {
        self.call(Call::Named)?;
        let poll = self.poll(t, true).await?;
        Ok(poll.named.unwrap_or(Named::InvalidTarget))
    }

    async fn register(&self, t: &Target) -> Result<(), Fault> {
        let now = self.clock.now().since_boot_ms;
        self.write(Call::Register, |i| {
            let p = &mut i.places(&t.id)[Fake::group_of(t)];
            if matches!(p, Place::Out | Place::Draining(_)) {
                *p = Place::Initial(now);
            }
        })
    }

    async fn deregister(&self, t: &Target) -> Result<(), Fault> {
        assert_eq!(*t.id, *self.instance(), "nobody takes out another one");
        let now = self.clock.now().since_boot_ms;
        self.write(Call::Deregister, |i| {
            *i.deregistered.entry(t.id.to_string()).or_default() += 1;
            let p = &mut i.places(&t.id)[Fake::group_of(t)];
            if matches!(p, Place::Healthy | Place::Initial(_) | Place::Failing) {
                *p = Place::Draining(now);
            }
            i.fewest = i.fewest.min(i.serving());
        })
    }

    async fn group(&self, _: &GroupArn) -> Result<GroupFacts, Fault> {
        self.call(Call::Group)?;
        Ok(GroupFacts {
            target_type: TargetType::Instance,
            balancer: BalancerKind::Application,
            port: Some(9200),
            deregistration_delay_ms: DRAIN_MS,
            interval_ms: 10_000,
            healthy_threshold: 2,
        })
    }

    async fn may_register(&self, _: &GroupArn, _: TargetType, _: u16) -> MayRegister {
        if self.inner().takes_anything { MayRegister::TookIt } else { MayRegister::Yes }
    }
}

impl NodeCheck for Fake {
    async fn check(&self, _: &CheckSettings) -> Result<CheckPass, Fault> {
        self.call(Call::Check)?;
        let node_name = self.node_name().as_str().into();
        let identity = NodeIdentity { node_name, node_id: None, cluster_uuid: "uuid".into() };
        Ok(CheckPass { identity, colour: None })
    }
}

impl FleetStore for Fake {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.call(Call::ReadRecord)?;
        if let Some(meeting) = &self.meeting {
            return meeting.read().await;
        }
        Ok(self.inner().record.clone().map(|b| (b.clone(), Version(b.into()))))
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        if let Some(meeting) = &self.meeting {
            return meeting.compare_and_set(expected, bytes).await;
        }
        let mut fits = false;
        let outcome = self.write(Call::WriteRecord, |i| {
            fits = i.record.as_deref() == Some(&*expected.0);
            if fits {
                i.record = Some(bytes.clone());
            }
        });
        match outcome {
            Ok(()) if fits => Ok(Version(bytes.into())),
            Ok(()) => Err(CasFault::Conflict),
            Err(fault) => Err(CasFault::Fault(fault)),
        }
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        self.inner().record = Some(bytes.clone());
        Ok(Version(bytes.into()))
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        self.call(Call::Members)?;
        self.settle();
        // Hearts beat of themselves, but for those that a test has in its hand.
        let beat = self.clock.now().since_boot_ms / 5_000;
        let inner = self.inner();
        let alive = |(instance, bytes): (&String, &Vec<u8>)| {
            let mut m: Member = serde_json::from_slice(bytes).unwrap();
            let of_itself = m.boot.0.as_ref() == "other" && !inner.in_hand.contains(instance);
            if of_itself {
                m.beat = beat;
                inner.say(&mut m);
            }
            if of_itself { serde_json::to_vec(&m).unwrap() } else { bytes.clone() }
        };
        Ok(inner.members.iter().map(alive).collect())
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        self.call(Call::Beat)?;
        self.inner().members.insert(instance.to_owned(), bytes);
        Ok(())
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        self.inner().members.remove(instance);
        Ok(())
    }
}

impl Jobs for Fake {
    async fn ready(&self, _: &JobSpec) -> Result<(), Fault> {
        self.inner().no_job.clone().map_or(Ok(()), Err)
    }

    async fn ask(&self, _: &str) -> Result<JobStatus, Fault> {
        self.activity.fetch_add(1, Ordering::SeqCst);
        Ok(self.inner().job.clone())
    }

    async fn start(&self, _: &str, _: &JobSpec, _: u64) -> Result<(), Fault> {
        let mut i = self.inner();
        let gone = i.places(&self.instance()).iter().all(|p| *p == Place::Out);
        assert!(gone, "a job starts only where every group says gone");
        i.job = match i.next_verdict.clone() {
            Some(v) => JobStatus::Ended(v),
            None => JobStatus::Running,
        };
        Ok(())
    }

    async fn running(&self) -> Result<Vec<String>, Fault> {
        Ok(self.inner().orphan.iter().cloned().collect())
    }

    async fn kill(&self, cycle: &str) -> Result<(), Fault> {
        self.write(Call::KillJob, |i| {
            i.orphan = i.orphan.take().filter(|orphan| orphan != cycle);
            if i.job == JobStatus::Running {
                i.job = JobStatus::Ended(Verdict { result: JobResult::Killed, ..good() });
            }
        })
    }
}

impl ClusterNodes for Fake {
    async fn client_nodes(&self, _: &CheckSettings) -> Result<Vec<ClientNode>, Fault> {
        self.call(Call::Nodes)?;
        let inner = self.inner();
        let running = |n: usize| ClientNode {
            id: format!("node-{n}").as_str().into(),
            name: name(inner.renamed.get(&n).copied().unwrap_or(n)).as_str().into(),
            address: format!("10.0.0.{n}").as_str().into(),
            port: Some(9200),
        };
        let members = (1..=inner.scale.nodes).filter(|n| !inner.stopped.contains(n));
        Ok(members.chain(inner.strangers.iter().copied()).map(running).collect())
    }
}

impl Host for Fake {
    fn connections(&self, _: u16, _: &[IpAddr]) -> Result<u32, Fault> {
        Ok(0)
    }

    async fn reboot(&self) -> Result<(), Fault> {
        self.inner().reboots += 1;
        Ok(())
    }

    async fn shutting_down(&self) -> bool {
        false
    }

    async fn lifecycle(&self) -> Result<Option<Arc<str>>, Fault> {
        self.call(Call::Lifecycle)?;
        Ok(self.inner().lifecycle.get(&self.n).copied().map(Arc::from))
    }

    fn package_manager(&self) -> Result<Option<String>, Fault> {
        Ok(self.inner().package_manager.clone())
    }

    fn unfinished_packages(&self) -> Result<Option<String>, Fault> {
        Ok(None)
    }
}

impl PageSink for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            self.call(Call::Page)?;
            self.inner().told.push(page.clone());
            Ok(())
        })
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }
}

impl World for Fake {
    type Balancer = Fake;
    type Check = Fake;
    type Store = Fake;
    type Jobs = Fake;
    type Host = Fake;
    type Clock = ManualClock;
    type Disk = FaultDisk;
}
