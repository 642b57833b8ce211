//! An agent in the world of `fakes`, as one process would be, and time for it.

use crate::fakes::{Fake, GROUPS};
use backstop::agent::alerts::deliver;
use backstop::agent::facts::Asked;
use backstop::agent::handle::{Handle, Reload};
use backstop::agent::observe;
use backstop::agent::shared::{NodeView, Parts, Shared};
use backstop::agent::supervisor::{Task, keep, spawn};
use backstop::agent::turn::{Agent, Request};
use backstop::clock::Clock;
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Seen, StageName};
use backstop::core::exit::Exit;
use backstop::core::ids::InstanceId;
use backstop::core::job::{JobSpec, RebootPolicy};
use backstop::core::page::{PageKind, Severity};
use backstop::core::plan::Kind;
use backstop::core::record::{Extra, Hold, Pause};
use backstop::fleet::Fleet;
use backstop::host::identity::InstanceIdentity;
use backstop::ports::PageSink;
use backstop::state::fault::FaultDisk;
use backstop::state::journal::Journal;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// What one pump moves the clock by.
pub const STEP_MS: u64 = 1_000;
/// Before a task that died is started again.
const PAUSE_MS: u64 = 1_000;

/// How many may be out, and how many must be there: the defaults of the product, unless a test says otherwise.
pub const FLOOR: &str = "";

const CONFIG: &str = r#"
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

/// The config of a node; `top` stands before all sections.
pub fn config(fake: &Fake, top: &str) -> String {
    let groups: String = GROUPS[..fake.groups()].iter().map(|g| format!("[[target_group]]\narn = {g:?}\n")).collect();
    let (instance, name) = (fake.instance(), fake.node_name());
    let node = format!("[node]\ninstance_id = {instance:?}\nname = {name:?}\n");
    let watch = if top.contains("outside_watch") { "" } else { "outside_watch = \"none\"\n" };
    format!("fleet = \"test\"\n{watch}{top}{groups}{node}{CONFIG}")
}

fn parts(fake: &Fake, top: &str) -> Parts<Fake> {
    let (config, _) = backstop::config::parse("test.toml", config(fake, top).as_bytes(), "host")
        .unwrap_or_else(|problems| panic!("{problems}"));
    Parts {
        config,
        problem: None,
        warnings: Vec::new(),
        balancer: fake.clone(),
        check: fake.clone(),
        fleet: Fleet::new(fake.clone(), "test".into()),
        jobs: fake.clone(),
        host: fake.clone(),
        sinks: vec![Box::new(fake.clone())],
    }
}

/// One agent in this world, as one process would be.
pub struct Running {
    pub fake: Fake,
    pub shared: Arc<Shared<Fake>>,
    pub queue: mpsc::Sender<Request>,
    stop: watch::Sender<bool>,
    tasks: Vec<Task<()>>,
}

impl Running {
    /// Starts an agent over what the disk holds, and keeps its tasks running as the product does.
    pub async fn start(fake: &Fake) -> Running {
        Running::start_with(fake, FLOOR).await
    }

    /// The same, where `top` stands before all sections of its config.
    pub async fn start_with(fake: &Fake, top: &str) -> Running {
        Running::keep(Running::loop_alone(fake, top).await)
    }

    /// The same, with these pagers.
    pub async fn start_paging(fake: &Fake, sinks: Vec<Box<dyn PageSink>>) -> Running {
        let parts = Parts { sinks, ..parts(fake, FLOOR) };
        Running::keep(Running::of(fake, parts).await)
    }

    fn keep(mut running: Running) -> Running {
        let fake = running.fake.clone();
        let (queue, clock) = (running.queue.clone(), fake.clock.clone());
        let report = move |task, why| {
            let message = format!("the task `{task}` of the agent died ({why}) and was started again");
            let _ = queue.try_send(Request::Fault(PageKind::AgentFault, Severity::Warning, message.into()));
        };
        let pause = move || {
            let clock = clock.clone();
            async move { clock.sleep_ms(PAUSE_MS).await }
        };
        let looking = running.shared.clone();
        running.tasks.push(keep("observer", move || observe::observe(looking.clone()), report.clone(), pause.clone()));
        let (delivering, pages) = (running.shared.clone(), running.queue.clone());
        running.tasks.push(keep("pages", move || deliver(delivering.clone(), pages.clone()), report, pause));
        running
    }

    /// Only its loop: it sees what it asks for, and nothing by itself.
    pub async fn loop_alone(fake: &Fake, top: &str) -> Running {
        Running::of(fake, parts(fake, top)).await
    }

    async fn of(fake: &Fake, parts: Parts<Fake>) -> Running {
        let disk = Arc::new(FaultDisk::new(&fake.files));
        let (journal, found) = Journal::open(&disk, &InstanceId(fake.instance().into()));
        let journal = match fake.patience {
            Some(patience) => journal.patient(patience),
            None => journal,
        };
        let view = NodeView { durable: journal.now().clone(), seen: Seen::default(), unstored: None };
        let identity = InstanceIdentity { instance_id: fake.instance().into(), local_ipv4: None };
        let shared = Arc::new(Shared::new(parts, identity, fake.clock.clone(), disk, view));
        let (queue, requests) = mpsc::channel(16);
        let (stop, stopped) = watch::channel(false);
        let mut agent = Agent::new(shared.clone(), journal, requests, Box::new(|_| {}));
        agent.recover(found).await;
        let tasks = vec![spawn(agent.run(stopped))];
        Running { fake: fake.clone(), shared, queue, stop, tasks }
    }

    /// Its config file is another one and was read again.
    pub fn reload(&self, top: &str) {
        let old = self.shared.parts();
        let new = parts(&self.fake, top);
        let fleet = new.fleet.after(&old.fleet);
        self.shared.replace_parts(Parts { fleet, ..new });
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
        let job = JobSpec {
            name: "patch".into(),
            argv: vec!["patch".into()],
            reboots: false,
            reboot: RebootPolicy::Never,
            unit: None,
        };
        self.begin(Kind::Patch(job)).await
    }

    /// The agent as the control socket sees it.
    pub fn handle(&self) -> Handle<Fake> {
        let reload: Reload = Arc::new(|| Box::pin(async { panic!("nobody reloads here") }));
        Handle::new(self.shared.clone(), self.queue.clone(), reload)
    }

    /// As `until`, beside real sockets: each step of the clock gives them a moment. At most for the usual bound.
    pub async fn beside_sockets(&self, what: &str, step_ms: u64, mut done: impl FnMut(&Running) -> bool) {
        let came = backstop::rehearse::pace::until(crate::scene::BOUND, || {
            let come = done(self);
            if !come {
                self.fake.clock.advance(step_ms);
            }
            come
        });
        assert!(came.await, "it never comes: {what}; {:?}", self.firing());
    }

    /// As `until`, where something hangs and the world does not come to rest: time moves on by itself.
    pub async fn comes(&self, what: &str, done: impl Fn(&Running) -> bool) {
        let came = backstop::rehearse::pace::until(crate::scene::BOUND, || {
            self.fake.clock.advance(STEP_MS / 10);
            done(self)
        });
        let node = || self.shared.node.borrow().clone();
        assert!(came.await, "it never comes: {what}; {:?}", node().durable.cycle);
    }

    pub async fn begin(&self, kind: Kind) -> RunReply {
        self.begin_as(kind, Asked { by: "test".into(), ..Asked::default() }).await
    }

    pub async fn begin_as(&self, kind: Kind, asked: Asked) -> RunReply {
        let (reply, answer) = oneshot::channel();
        let begin = Request::Begin { kind, asked, reply };
        self.queue.send(begin).await.unwrap();
        answer.await.unwrap()
    }

    pub async fn hold(&self, for_s: u64) -> Result<String, (Exit, String)> {
        let order = Pause { by: "ann".into(), reason: "a look".into(), since_ms: 0, extra: Extra::new() };
        let hold = Hold { node: "es-client-1".into(), order, for_s, extra: Extra::new() };
        let (reply, mut answer) = oneshot::channel();
        self.queue.send(Request::Hold { hold, reply }).await.unwrap();
        // It may wait for its turn at the store.
        for _ in 0..300 {
            if let Ok(outcome) = answer.try_recv() {
                return outcome;
            }
            self.pass(1).await;
        }
        panic!("a hold is answered");
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

    /// Minutes in which little happens: as `pass`, in steps of five seconds.
    pub async fn minutes(&self, minutes: u64) {
        self.seconds(minutes * 60).await;
    }

    /// As `minutes`, in seconds: a multiple of five.
    pub async fn seconds(&self, seconds: u64) {
        for _ in 0..seconds / 5 {
            self.quiesce().await;
            self.fake.clock.advance(5_000);
        }
        self.quiesce().await;
    }

    /// As `until`, in steps of five seconds. How many seconds it took.
    pub async fn comes_within(&self, what: &str, seconds: u64, done: impl Fn(&Running) -> bool) -> u64 {
        for step in 0..=seconds / 5 {
            self.quiesce().await;
            if done(self) {
                return step * 5;
            }
            self.fake.clock.advance(5_000);
        }
        let report = self.shared.report.borrow().0.clone();
        panic!("not within {seconds} s: {what}; {:?}\n{:?}\n{:?}", report.findings, report.unjudged, self.firing());
    }

    /// Keys of what fires, by the agent's own book.
    pub fn firing(&self) -> std::collections::BTreeSet<String> {
        let book = self.shared.book();
        book.alerts().iter().filter(|a| a.fires()).map(|a| book.key(&a.about()).to_string()).collect()
    }

    /// Nobody can go on but by the clock: while the runtime's own time stands still it wakes a sleeper only where every task
    /// waits and no thread works for one (the disk's). Twice, for what waits for no clock yet.
    async fn quiesce(&self) {
        let _frozen = Frozen::new();
        let mut calm = 0;
        let mut last = (0, 0);
        for _ in 0..20_000 {
            tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
            let now = (self.fake.activity(), self.fake.files.operations());
            calm = if now == last && self.fake.clock.sleepers() > 0 { calm + 1 } else { 0 };
            last = now;
            if calm >= 2 {
                return;
            }
        }
        panic!("the world never comes to rest");
    }
}

/// The runtime's own time stands still.
struct Frozen;

impl Frozen {
    fn new() -> Frozen {
        tokio::time::pause();
        Frozen
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        tokio::time::resume();
    }
}
