//! A small fleet of real processes, and ways to hold the world still, so that a process is ended at a known moment.

pub(crate) use crate::support::{BOUND, PROGRAM};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Cycle, Durable, Stage, StageName};
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::core::record::{self, Op, Record};
use backstop::fleet::file::FileStore;
use backstop::rehearse::elbv2::{Action, Call, Ends, Fault, GroupSpec, Outcome, RowSpec, Scope, Trouble};
use backstop::rehearse::fleet::{Fleet, FleetOptions, Machine, NodeStart, patch_request};
use backstop::rehearse::pace;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// Port of every node.
const PORT: u16 = 9_200;
/// The group's own delay, in (simulated) seconds.
const DELAY_S: u32 = 30;

/// Waits are short; the deadlines of what is held still are long.
const CONFIG: &str = r#"
[limits]
cycles_per_hour = 1000000
cycles_per_day = 1000000
[drain]
quiet = "2s"
margin_application = "1h"
[check]
over = "4s"
every = "1s"
[settle]
bake = "5s"
[deadlines]
register = "1h"
settle = "1h"
check = "1h"
"#;

pub fn options() -> FleetOptions {
    let group = GroupSpec { deregistration_delay_s: DELAY_S, ..GroupSpec::new("es-clients") };
    FleetOptions {
        nodes: 2,
        groups: vec![group],
        config: CONFIG.to_owned(),
        restart: NodeStart::AT_ONCE,
        off_ms: 1_000,
        ..FleetOptions::new(PROGRAM)
    }
}

/// How a cycle is to end.
pub struct After {
    pub exit: Exit,
    pub latch: bool,
    pub pages: usize,
    /// How often its job ran.
    pub runs: usize,
}

impl After {
    /// Goes on: no latch, no page.
    pub const GOES_ON: After = After { exit: Exit::Done, latch: false, pages: 0, runs: 1 };
}

/// Two nodes with agents; it is about the first one.
pub struct Scene {
    pub fleet: Fleet,
    pub me: Machine,
    pub arn: String,
    cycle: String,
}

impl Scene {
    pub async fn start() -> Scene {
        Scene::with(options()).await
    }

    pub async fn with(options: FleetOptions) -> Scene {
        let fleet = Fleet::start(options).await.unwrap();
        let me = fleet.machine(0).unwrap().clone();
        let arn = fleet.groups()[0].clone();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            me.dir().join("fifo"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        fleet.elbv2().clear_calls();
        Scene { fleet, me, arn, cycle: String::new() }
    }

    /// A line for each job that has begun.
    pub fn runs_file(&self) -> PathBuf {
        self.me.dir().join("runs")
    }

    /// What a job reads its exit code from.
    pub fn fifo(&self) -> PathBuf {
        self.me.dir().join("fifo")
    }

    /// How often a job has begun.
    pub fn runs(&self) -> usize {
        std::fs::read_to_string(self.runs_file()).unwrap_or_default().lines().count()
    }

    /// Begins a cycle whose job waits until it is let go. Once this returns its claim is on the disk.
    pub async fn run(&mut self, reboot: RebootPolicy) -> &str {
        let script =
            format!("echo run >> {}; read code < {}; exit $code", self.runs_file().display(), self.fifo().display());
        match self.me.run(&patch_request("patch", &["sh", "-c", &script], reboot)).await.unwrap() {
            RunReply::Started { cycle, .. } => self.cycle = cycle,
            other => panic!("{other:?}\n{}", self.me.agent_log()),
        }
        &self.cycle
    }

    pub fn cycle(&self) -> &str {
        &self.cycle
    }

    /// The job has begun, and waits.
    pub async fn job_waits(&self) {
        self.until("the job has begun", || self.runs() > 0).await;
    }

    /// Lets the job go, with this exit code.
    pub async fn let_job_end(&self, code: u8) {
        let path = self.fifo();
        // Without a reader it cannot be opened so: the job is not there yet.
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
        let mut fifo = None;
        self.until("the job listens", || {
            fifo = OpenOptions::new().write(true).custom_flags(nonblocking).open(&path).ok();
            fifo.is_some()
        })
        .await;
        fifo.unwrap().write_all(format!("{code}\n").as_bytes()).unwrap();
    }

    pub async fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        let came = pace::until(BOUND, condition).await;
        assert!(came, "not in time: {what}; on disk {:?}\n{}", self.me.durable(), self.me.agent_log());
    }

    /// The state on the disk is so.
    pub async fn on_disk(&self, what: &str, wanted: impl Fn(&Durable) -> bool) {
        self.until(what, || self.me.durable().is_some_and(|d| wanted(&d))).await;
    }

    pub async fn stage_on_disk(&self, stage: StageName) {
        self.on_disk(stage.label(), |d| d.stage() == Some(stage)).await;
    }

    /// Nobody changes the fleet record (or a member document) until this is dropped.
    pub fn hold_record(&self) -> File {
        let lock = OpenOptions::new().read(true).write(true).open(self.fleet.record_dir().join("lock")).unwrap();
        lock.lock().unwrap();
        lock
    }

    /// Calls of this action are read and never answered, until the faults are cleared.
    pub fn hang(&self, action: Action) {
        self.fleet.elbv2().inject(Fault::always(Trouble::Hang).on(action));
    }

    /// Calls of this action about the own target.
    fn own_calls(&self, action: Action) -> Vec<Call> {
        let own = |c: &Call| c.action == action && c.targets.iter().any(|(id, _)| id == self.me.instance());
        self.fleet.elbv2().calls().into_iter().filter(own).collect()
    }

    /// The agent has made this call about its own target, and it came to that.
    pub async fn called(&self, action: Action, trouble: &Trouble) {
        let outcome = Outcome::Trouble(trouble.name());
        self.until(action.name(), || self.own_calls(action).iter().any(|c| c.outcome == outcome)).await;
    }

    /// The load balancer says this of the own target, whatever is so; `None`: no longer.
    pub fn show(&self, row: Option<(&str, Option<&str>)>) {
        let id = self.me.instance();
        match row {
            Some((state, reason)) => {
                let rows = vec![RowSpec::new(id, PORT, state, reason)];
                let set =
                    self.fleet.elbv2().override_rows(&self.arn, id, PORT, rows, Scope::Everywhere, Ends::WhenCleared);
                assert!(set);
            }
            None => self.fleet.elbv2().clear_override(&self.arn, id, PORT),
        }
    }

    /// The group's delay does not end, or has its own length again.
    pub fn hold_drain(&self, hold: bool) {
        let delay = if hold { 1_000_000 } else { DELAY_S };
        assert!(self.fleet.elbv2().configure(&self.arn, |g| g.deregistration_delay_s = delay));
    }

    /// The agent is in this stage and its last try failed.
    pub async fn tries_in_vain(&self, stage: StageName, says: &str) {
        let vain = |s: &backstop::control::protocol::Status| {
            s.cycle.as_ref().is_some_and(|c| {
                c.stage == stage && c.tries > 0 && c.fault.as_ref().is_some_and(|fault| fault.contains(says))
            })
        };
        self.me.wait_status(BOUND, vain).await.unwrap();
    }

    /// SIGKILL, and what must be true at that very moment.
    pub async fn kill(&self) -> Durable {
        let before = self.me.durable().unwrap();
        assert!(self.me.agent_pid().is_some(), "the agent has ended by itself\n{}", self.me.agent_log());
        let ended = self.me.kill_agent().await.unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "{ended:?}");
        self.judge(&before)
    }

    /// SIGTERM: a clean end, and what must be true at that very moment.
    pub async fn terminate(&self) -> Durable {
        let before = self.me.durable().unwrap();
        let ended = self.me.terminate_agent().await.unwrap();
        assert!(ended.success(), "no clean stop in {:?}: {ended:?}\n{}", before.stage(), self.me.agent_log());
        self.judge(&before)
    }

    /// The agent is dead: its state is whole, it is what was committed last or the next one, and nothing has happened
    /// outside that is not meant by it.
    fn judge(&self, before: &Durable) -> Durable {
        let d = self.me.durable().unwrap_or_else(|| panic!("the state file is whole"));
        let (was, is) = (before.stage(), d.stage());
        assert!(was == is || follows(was, is), "{was:?}, then {is:?}");
        let own: Option<&Cycle> = d.cycle.as_ref().filter(|c| c.plan.id.as_str() == self.cycle);
        let over = d.last.as_ref().is_some_and(|e| e.cycle.as_str() == self.cycle);
        let meant = |what: &str, holds: &dyn Fn(&Cycle) -> bool| {
            assert!(over || own.is_some_and(holds), "{what}, and the disk says {d:?}");
        };
        if !self.own_calls(Action::DeregisterTargets).is_empty() {
            meant("deregistered", &|c| c.out_since.is_some() && !c.plan.targets.is_empty());
        }
        if self.me.state_dir().join("jobs").join(&self.cycle).join("started").exists() {
            meant("the job was started", &|c| c.stage.name() >= StageName::Patch);
        }
        if self.me.reboots() > 0 {
            assert!(!d.reboots_ms.is_empty(), "a reboot was asked for, and the disk says {d:?}");
        }
        let record = self.fleet.record().unwrap();
        if let Some(slot) = record.slots.get(&d.instance) {
            meant("a slot is taken", &|c| c.plan.id == slot.cycle);
        } else {
            // It was taken when the claim was acknowledged, and only `release` gives it back.
            let keeps = own.is_some_and(|c| !matches!(c.stage, Stage::Claim { acked: false } | Stage::Release));
            assert!(!keeps, "the slot was freed, and the disk says {d:?}");
        }
        d
    }

    /// Changes the record as the write of the killed agent would have, had it landed without its answer.
    pub fn write_lands(&self, op: &Op, d: &Durable) {
        let store = FileStore::open(self.fleet.record_dir()).unwrap();
        let (bytes, version) = store.read().unwrap().unwrap();
        let old: Record = serde_json::from_slice(&bytes).unwrap();
        let rules = d.cycle.as_ref().unwrap().plan.rules;
        let next = record::stamped(record::apply(&old, op, &rules).unwrap(), "its own".into());
        store.compare_and_set(&version, &serde_json::to_vec(&next).unwrap()).unwrap();
    }

    /// The agent starts again, as systemd would start it.
    pub fn restart(&self) {
        self.me.start_agent().unwrap();
    }

    /// The cycle ends so, with the node in service and its slot free.
    pub async fn ends(&self, after: &After) {
        let outcome = self.me.wait_ended(&self.cycle, BOUND).await;
        let outcome = outcome.unwrap_or_else(|e| panic!("{e}\n{:?}\n{}", self.me.durable(), self.me.agent_log()));
        assert_eq!(outcome.exit, after.exit.code(), "{}\n{}", outcome.message, self.me.agent_log());
        assert!(self.fleet.serves(&self.me), "{:?}", self.fleet.target_state(&self.me));
        let record = self.fleet.record().unwrap();
        assert!(record.slots.is_empty(), "{record:?}");
        let latches: Vec<_> = record.latches.iter().map(|(c, l)| (c.as_str(), l.cleared.is_some())).collect();
        let wanted = if after.latch { vec![(self.cycle.as_str(), false)] } else { Vec::new() };
        assert_eq!(latches, wanted);
        let pages = self.fleet.receiver();
        assert!(pages.wait_for_accepted(after.pages, BOUND).await, "{:?}", pages.received());
        self.on_disk("no page waits", |d| d.pages.is_empty()).await;
        // What is over is no page; and what reconcile finds beside the cycle is not what this is about.
        let own = ["latched", "out-of-service", "release-stuck", "config-unusable", "agent-fault"];
        let of_the_cycle = |p: &backstop::rehearse::receiver::Received| {
            p.body["event"] == "trigger" && own.iter().any(|kind| p.body["kind"] == *kind)
        };
        let told: Vec<_> = pages.accepted().into_iter().filter(of_the_cycle).collect();
        // A peer tells of the latch of an agent that is dead, under the very same key.
        let keys: std::collections::BTreeSet<_> = told.iter().map(|p| p.body["key"].to_string()).collect();
        assert_eq!(keys.len(), after.pages, "{told:?}");
        assert_eq!(self.runs(), after.runs, "the job runs once at most");
        self.peer_stayed();
    }

    /// Nobody but this node was ever taken out.
    pub fn peer_stayed(&self) {
        let calls = self.fleet.elbv2().calls();
        let others = calls.iter().filter(|c| c.action == Action::DeregisterTargets);
        let others: Vec<_> = others.filter(|c| c.targets.iter().any(|(id, _)| id != self.me.instance())).collect();
        assert!(others.is_empty(), "{others:?}");
    }

    /// The agent has never asked to leave.
    pub fn never_left(&self) {
        assert!(self.own_calls(Action::DeregisterTargets).is_empty());
    }
}

/// The stages that may come next, failed or not.
fn follows(was: Option<StageName>, is: Option<StageName>) -> bool {
    use StageName as S;
    matches!(
        (was, is),
        (None, Some(S::Claim))
            | (Some(S::Claim), Some(S::Deregister | S::Release) | None)
            | (Some(S::Deregister), Some(S::Drain | S::Check))
            | (Some(S::Drain), Some(S::Patch | S::Check))
            | (Some(S::Patch), Some(S::Reboot | S::Check))
            | (Some(S::Reboot), Some(S::Check))
            | (Some(S::Check), Some(S::Register))
            | (Some(S::Register), Some(S::Settle))
            | (Some(S::Settle), Some(S::Register | S::Release))
            | (Some(S::Release), None)
    )
}
