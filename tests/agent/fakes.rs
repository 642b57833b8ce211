//! A world whose time and faults are controlled: three nodes behind two target groups, everything in memory. Only the
//! agent is real: its loop, journal, observer and page delivery.

use backstop::agent::observe;
use backstop::agent::pages::deliver;
use backstop::agent::shared::{NodeView, Parts, Shared, World};
use backstop::agent::supervisor::{Task, spawn};
use backstop::agent::turn::{Agent, Request};
use backstop::alerts::Rendered;
use backstop::clock::{Clock, ManualClock};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::error::{Class, Fault};
use backstop::core::exit::Exit;
use backstop::core::ids::InstanceId;
use backstop::core::job::{JobResult, JobSpec, JobStatus, RebootPolicy, Verdict};
use backstop::core::member::Member;
use backstop::core::plan::Kind;
use backstop::core::record::{Extra, Hold, Pause, Record};
use backstop::core::settings::{BalancerKind, CheckPass, CheckSettings, GroupFacts, NodeIdentity, TargetType};
use backstop::core::target::{GroupArn, Named, Poll, Reason, Row, Target, TargetState};
use backstop::core::time::{BootId, Now};
use backstop::fleet::Fleet;
use backstop::host::identity::InstanceIdentity;
use backstop::ports::{
    BoxFuture, CasFault, FleetStore, Host, Jobs, LoadBalancer, MayRegister, NodeCheck, PageSink, Version,
};
use backstop::state::fault::{FaultDisk, FaultFiles};
use backstop::state::journal::Journal;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

pub const ME: &str = "i-0000000000000001";
pub const GROUPS: [&str; 2] = [
    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef",
    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-internal/fedcba9876543210",
];
const DRAIN_MS: u64 = 20_000;
const INITIAL_MS: u64 = 10_000;
/// What one pump moves the clock by.
pub const STEP_MS: u64 = 1_000;

/// A call that can be made to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Poll,
    Register,
    Deregister,
    Check,
    ReadRecord,
    WriteRecord,
    KillJob,
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
    Draining(u64),
}

struct Inner {
    own: [Place; 2],
    record: Option<Vec<u8>>,
    members: BTreeMap<String, Vec<u8>>,
    job: JobStatus,
    next_verdict: Option<Verdict>,
    trouble: BTreeMap<Call, Trouble>,
    pages: Vec<Rendered>,
    calls: Vec<(Call, u64)>,
    shown: [Option<Shown>; 2],
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

/// The world. Clones are the same one.
#[derive(Clone)]
pub struct Fake {
    pub clock: ManualClock,
    pub files: FaultFiles,
    inner: Arc<Mutex<Inner>>,
    activity: Arc<AtomicU64>,
}

pub fn good() -> Verdict {
    Verdict { result: JobResult::Exited(0), reboot_needed: false, output_tail: "".into() }
}

impl Fake {
    pub fn new() -> Fake {
        let start = Now { wall_ms: 1_700_000_000_000, boot: BootId("boot-1".into()), since_boot_ms: 50_000 };
        let record = serde_json::to_vec(&Record::new("test".into())).unwrap();
        let mut members = BTreeMap::new();
        for n in 1..=3 {
            let instance = format!("i-000000000000000{n}");
            let targets = GROUPS.iter().map(|g| target(g, &instance)).collect();
            let member = Member {
                schema: 1,
                instance: instance.as_str().into(),
                node: format!("es-client-{n}").as_str().into(),
                targets,
                agent: "test".into(),
                reads_schema: 1,
                boot: BootId("other".into()),
                beat: 1,
                doing: "idle".into(),
                at_ms: 0,
                extra: BTreeMap::new(),
            };
            members.insert(instance, serde_json::to_vec(&member).unwrap());
        }
        Fake {
            clock: ManualClock::new(start),
            files: FaultFiles::default(),
            inner: Arc::new(Mutex::new(Inner {
                own: [Place::Healthy; 2],
                record: Some(record),
                members,
                job: JobStatus::New,
                next_verdict: Some(good()),
                trouble: BTreeMap::new(),
                pages: Vec::new(),
                calls: Vec::new(),
                shown: [None, None],
            })),
            activity: Arc::default(),
        }
    }

    /// From now on the group with this index says this; `None`: what is so.
    pub fn show(&self, group: usize, shown: Option<Shown>) {
        self.inner().shown[group] = shown;
    }

    /// Somebody has taken the own target out of every group, without a drain.
    pub fn take_out(&self) {
        self.inner().own = [Place::Out; 2];
    }

    /// The job runs.
    pub fn job_runs(&self) -> bool {
        self.inner().job == JobStatus::Running
    }

    /// The job was asked for.
    pub fn job_began(&self) -> bool {
        self.inner().job != JobStatus::New
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

    pub fn record(&self) -> Record {
        serde_json::from_slice(self.inner().record.as_ref().unwrap()).unwrap()
    }

    pub fn pages(&self) -> Vec<Rendered> {
        self.inner().pages.clone()
    }

    pub fn calls(&self, call: Call) -> usize {
        self.inner().calls.iter().filter(|(c, _)| *c == call).count()
    }

    /// Healthy in both groups.
    pub fn in_service(&self) -> bool {
        self.settle();
        self.inner().own.iter().all(|p| *p == Place::Healthy)
    }

    fn settle(&self) {
        let now = self.clock.now().since_boot_ms;
        for p in &mut self.inner().own {
            *p = match *p {
                Place::Initial(since) if now >= since + INITIAL_MS => Place::Healthy,
                Place::Draining(since) if now >= since + DRAIN_MS => Place::Out,
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

fn target(group: &str, id: &str) -> Target {
    Target { group: GroupArn(group.into()), id: id.into(), port: 9200 }
}

pub fn row(id: &str, state: TargetState, reason: Option<Reason>) -> Row {
    Row { id: id.into(), port: Some(9200), state, reason, shifted: false }
}

impl LoadBalancer for Fake {
    async fn poll(&self, t: &Target, by_name: bool) -> Result<Poll, Fault> {
        self.call(Call::Poll)?;
        self.settle();
        let place = self.inner().own[Fake::group_of(t)];
        let mine = match place {
            Place::Healthy => row(ME, TargetState::Healthy, None),
            Place::Initial(_) => row(ME, TargetState::Initial, Some(Reason::InitialHealthChecking)),
            Place::Draining(_) => row(ME, TargetState::Draining, Some(Reason::DeregistrationInProgress)),
            Place::Out => row(ME, TargetState::Unused, Some(Reason::NotRegistered)),
        };
        let mut list: Vec<Row> =
            (2..=3).map(|n| row(&format!("i-000000000000000{n}"), TargetState::Healthy, None)).collect();
        if let Some(shown) = self.inner().shown[Fake::group_of(t)].clone() {
            if !shown.others {
                list.clear();
            }
            list.extend(shown.list);
            return Ok(Poll { list, named: by_name.then_some(shown.named) });
        }
        if place != Place::Out {
            list.push(mine.clone());
        }
        Ok(Poll { list, named: by_name.then(|| Named::Rows(vec![mine])) })
    }

    async fn register(&self, t: &Target) -> Result<(), Fault> {
        let now = self.clock.now().since_boot_ms;
        self.write(Call::Register, |i| {
            let p = &mut i.own[Fake::group_of(t)];
            if matches!(p, Place::Out | Place::Draining(_)) {
                *p = Place::Initial(now);
            }
        })
    }

    async fn deregister(&self, t: &Target) -> Result<(), Fault> {
        let now = self.clock.now().since_boot_ms;
        self.write(Call::Deregister, |i| {
            let p = &mut i.own[Fake::group_of(t)];
            if matches!(p, Place::Healthy | Place::Initial(_)) {
                *p = Place::Draining(now);
            }
        })
    }

    async fn group(&self, _: &GroupArn) -> Result<GroupFacts, Fault> {
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
        MayRegister::Yes
    }
}

impl NodeCheck for Fake {
    async fn check(&self, _: &CheckSettings) -> Result<CheckPass, Fault> {
        self.call(Call::Check)?;
        let identity = NodeIdentity { node_name: "es-client-1".into(), node_id: None, cluster_uuid: "uuid".into() };
        Ok(CheckPass { identity, colour: None })
    }
}

impl FleetStore for Fake {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.call(Call::ReadRecord)?;
        Ok(self.inner().record.clone().map(|b| (b.clone(), Version(b.into()))))
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
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
        self.activity.fetch_add(1, Ordering::SeqCst);
        Ok(self.inner().members.values().cloned().collect())
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        self.inner().members.insert(instance.to_owned(), bytes);
        Ok(())
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        self.inner().members.remove(instance);
        Ok(())
    }
}

impl Jobs for Fake {
    async fn ask(&self, _: &str) -> Result<JobStatus, Fault> {
        self.activity.fetch_add(1, Ordering::SeqCst);
        Ok(self.inner().job.clone())
    }

    async fn start(&self, _: &str, _: &JobSpec, _: u64) -> Result<(), Fault> {
        let mut i = self.inner();
        assert!(i.own.iter().all(|p| *p == Place::Out), "a job starts only where every group says gone");
        i.job = match i.next_verdict.clone() {
            Some(v) => JobStatus::Ended(v),
            None => JobStatus::Running,
        };
        Ok(())
    }

    async fn kill(&self, _: &str) -> Result<(), Fault> {
        self.write(Call::KillJob, |i| {
            if i.job == JobStatus::Running {
                i.job = JobStatus::Ended(Verdict { result: JobResult::Killed, ..good() });
            }
        })
    }
}

impl Host for Fake {
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

impl PageSink for Fake {
    fn name(&self) -> &'static str {
        "fake"
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async {
            self.call(Call::Page)?;
            self.inner().pages.push(page.clone());
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

const CONFIG: &str = r#"
fleet = "test"
outside_watch = "none"
[[target_group]]
arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef"
[[target_group]]
arn = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-internal/fedcba9876543210"
[node]
instance_id = "i-00000001"
name = "es-client-1"
[record]
store = "file"
single_host = true
path = "/nowhere"
[check]
over = "10s"
every = "5s"
[drain]
quiet = "2s"
margin_application = "30s"
[deadlines]
check = "1m"
register = "1m"
settle = "1m"
deregister = "30s"
patch = "2m"
reboot = "30s"
[settle]
bake = "5s"
[limits]
cycles_per_hour = 100
cycles_per_day = 100
free_disk_mib = 1
[pager.webhook]
url = "http://127.0.0.1:9/"
"#;

/// One agent in this world, as one process would be.
pub struct Running {
    pub fake: Fake,
    pub shared: Arc<Shared<Fake>>,
    pub queue: mpsc::Sender<Request>,
    stop: watch::Sender<bool>,
    tasks: Vec<Task<()>>,
}

impl Running {
    /// Starts an agent over what the disk holds.
    pub async fn start(fake: &Fake) -> Running {
        let (config, _) = backstop::config::parse("test.toml", CONFIG.as_bytes(), "es-client-1")
            .unwrap_or_else(|problems| panic!("{problems}"));
        let disk = Arc::new(FaultDisk::new(&fake.files));
        let instance = InstanceId(ME.into());
        let (journal, found) = Journal::open(&disk, &instance);
        let view =
            NodeView { durable: journal.now().clone(), seen: backstop::core::cycle::Seen::default(), unstored: None };
        let parts = Parts {
            config,
            problem: None,
            warnings: Vec::new(),
            balancer: fake.clone(),
            check: fake.clone(),
            fleet: Fleet::new(fake.clone(), "test".into()),
            jobs: fake.clone(),
            host: fake.clone(),
            sinks: vec![Box::new(fake.clone())],
        };
        let identity = InstanceIdentity { instance_id: ME.into(), local_ipv4: None };
        let shared = Arc::new(Shared::new(parts, identity, fake.clock.clone(), disk, view));
        let (queue, requests) = mpsc::channel(16);
        let (stop, stopped) = watch::channel(false);
        let mut agent = Agent::new(shared.clone(), journal, requests, Box::new(|_| {}));
        agent.recover(found).await;
        let tasks = vec![
            spawn(agent.run(stopped)),
            spawn(observe::observe(shared.clone())),
            spawn(deliver(shared.clone(), queue.clone())),
        ];
        Running { fake: fake.clone(), shared, queue, stop, tasks }
    }

    /// Ends it at once, as SIGKILL would.
    pub fn kill(self) {
        let _ = self.stop.send(true);
        drop(self.tasks);
    }

    pub fn stage(&self) -> Option<StageName> {
        self.shared.node.borrow().durable.stage()
    }

    pub async fn run_job(&self) -> RunReply {
        let job =
            JobSpec { name: "patch".into(), argv: vec!["patch".into()], reboots: false, reboot: RebootPolicy::Never };
        self.begin(Kind::Patch(job)).await
    }

    pub async fn begin(&self, kind: Kind) -> RunReply {
        let (reply, answer) = oneshot::channel();
        let begin = Request::Begin { kind, by: "test".into(), overrides: Vec::new(), request: "".into(), reply };
        self.queue.send(begin).await.unwrap();
        answer.await.unwrap()
    }

    pub async fn hold(&self, for_s: u64) -> Result<String, (Exit, String)> {
        let order = Pause { by: "ann".into(), reason: "a look".into(), since_ms: 0, extra: Extra::new() };
        let hold = Hold { node: "es-client-1".into(), order, for_s, extra: Extra::new() };
        let (reply, answer) = oneshot::channel();
        self.queue.send(Request::Hold { hold, reply }).await.unwrap();
        answer.await.unwrap()
    }

    /// Lets everything happen that can, moving time only when everybody waits for it, until `done`. At most `steps` steps.
    pub async fn until(&self, what: &str, steps: usize, done: impl Fn(&Running) -> bool) {
        for _ in 0..steps {
            self.quiesce().await;
            if done(self) {
                return;
            }
            self.fake.clock.advance(STEP_MS);
        }
        let node = self.shared.node.borrow().clone();
        panic!("not within {steps} s: {what}; {:?} {:?}", node.durable.cycle, node.seen);
    }

    /// Moves time by so many steps.
    pub async fn pass(&self, steps: usize) {
        for _ in 0..steps {
            self.quiesce().await;
            self.fake.clock.advance(STEP_MS);
        }
        self.quiesce().await;
    }

    /// Nothing has happened for a moment and somebody waits for the clock.
    async fn quiesce(&self) {
        let mut calm = 0;
        let mut last = (0, 0);
        for _ in 0..20_000 {
            let now = (self.fake.activity.load(Ordering::SeqCst), self.fake.files.operations());
            calm = if now == last && self.fake.clock.sleepers() > 0 { calm + 1 } else { 0 };
            last = now;
            if calm >= 4 {
                return;
            }
            // Real, and only to let the disk's threads run: the controlled clock stands still meanwhile.
            tokio::time::timeout(Duration::from_micros(200), std::future::pending::<()>()).await.unwrap_err();
        }
        panic!("the world never comes to rest");
    }
}
