//! Three real agents on the three client nodes of a real cluster, which also keeps their record; and ways to hold it still.

use crate::support::engine::Engine;
use crate::support::relay::{Behind, Deed, Relay, is_write};
use crate::support::{BOUND, PROGRAM};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Durable, StageName};
use backstop::core::job::RebootPolicy;
use backstop::core::record::Record;
use backstop::fleet::elasticsearch::{EsFleet, EsFleetSettings};
use backstop::ports::FleetStore as _;
use backstop::rehearse::elbv2::{Action, Call, Ends, Fault, GroupSpec, Outcome, RowSpec, Scope, Trouble};
use backstop::rehearse::fleet::{Cluster, Fleet, FleetOptions, Machine, RunOutcome, patch_request};
use backstop::rehearse::http::Request;
use backstop::rehearse::pace;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

/// The group's own delay, in (simulated) seconds.
const DELAY_S: u32 = 30;

/// Waits are short; whatever a test holds still has time. `@`: the check's deadline.
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
patch = "2h"
check = "@"
register = "1h"
settle = "2h"
"#;

/// What is to be started.
pub struct Plan {
    /// The manager holds no data: they are on a node of their own.
    pub split: bool,
    /// Simulated seconds in a real one.
    pub scale: u32,
    /// The check's deadline.
    pub check: &'static str,
}

impl Plan {
    /// One node is manager and holds the data.
    pub const ONE: Plan = Plan { split: false, scale: 60, check: "2h" };
}

/// The fleet, and the cluster that it runs on.
pub struct World {
    // Its agents end before their cluster does.
    pub fleet: Fleet,
    pub engine: Engine,
    pub index: String,
    /// Agents ask here for the record first: in front of the second and the third client node.
    relays: [Relay; 2],
}

impl World {
    pub async fn start(flavor: &'static str, plan: Plan) -> World {
        let engine = if plan.split { Engine::split(flavor, 3) } else { Engine::cluster(flavor, 3) };
        let cluster = Cluster::find(&engine.url("c1")).await.unwrap();
        let names: Vec<&str> = cluster.nodes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["c1", "c2", "c3"], "only these are client nodes");
        let relays = [
            Relay::start(Behind::Server(engine.address("c2"))).await,
            Relay::start(Behind::Server(engine.address("c3"))).await,
        ];
        let index = cluster.index.clone();
        let mut options = FleetOptions::new(PROGRAM);
        (options.scale, options.cluster) = (plan.scale, Some(cluster));
        options.groups = vec![GroupSpec { deregistration_delay_s: DELAY_S, ..GroupSpec::new("es-clients") }];
        options.config = format!(
            "{}\n[elasticsearch]\ntimeout = \"2s\"\nrecord_endpoints = [{:?}, {:?}]\n",
            CONFIG.replace('@', plan.check),
            relays[0].url(),
            relays[1].url()
        );
        let fleet = Fleet::start(options).await.unwrap();
        for machine in fleet.machines() {
            let (fifo, mode) = (fifo(machine), rustix::fs::Mode::from_raw_mode(0o600));
            rustix::fs::mknodat(rustix::fs::CWD, fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        }
        fleet.elbv2().clear_calls();
        World { fleet, engine, index, relays }
    }

    pub fn machine(&self, i: usize) -> Machine {
        self.fleet.machine(i).unwrap().clone()
    }

    pub fn others(&self, me: &Machine) -> Vec<Machine> {
        self.fleet.machines().iter().filter(|m| m.name() != me.name()).cloned().collect()
    }

    /// The record as the store of nobody here reads it.
    pub async fn record(&self) -> Record {
        let store = EsFleet::new(EsFleetSettings {
            endpoints: ["c1", "c2", "c3"].map(|name| self.engine.url(name)).to_vec(),
            index: self.index.as_str().into(),
            fleet: "rehearsal".into(),
            timeout_ms: crate::PATIENT_MS,
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
        });
        let (bytes, _) = crate::real::until(|| store.read()).await.expect("a record");
        serde_json::from_slice(&bytes).unwrap()
    }

    /// Runs this in a shell as the job of a cycle, and waits for its end.
    pub async fn patched(&self, machine: &Machine, script: &str) -> RunOutcome {
        let request = patch_request("patch", &["sh", "-c", script], RebootPolicy::Never);
        let outcome = machine.run_to_end(&request, BOUND).await;
        outcome.unwrap_or_else(|e| panic!("{e}\n{}", machine.agent_log()))
    }

    /// The same by the real CLI, as a person or a play types it: its exit code and what it said.
    pub async fn typed(&self, machine: &Machine, script: &str) -> (i32, String) {
        let mut command = tokio::process::Command::new(PROGRAM);
        command
            .arg("--config")
            .arg(machine.config_file())
            .args(["run", "--json", "--reboot", "never", "--name", "patch"]);
        command.args(["--", "sh", "-c", script]).stdin(std::process::Stdio::null()).kill_on_drop(true);
        let output = pace::within(BOUND, command.output()).await;
        let output = output.unwrap_or_else(|| panic!("no end\n{}", machine.agent_log())).unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        (output.status.code().unwrap_or(-1), said.concat())
    }

    /// Asks for a cycle, and takes no for an answer: its exit code and what was said.
    pub async fn refused(&self, machine: &Machine) -> (u8, String) {
        let reply = machine.run(&patch_request("other", &["true"], RebootPolicy::Never)).await.unwrap();
        let RunReply::Refused { exit, message, .. } = reply else { panic!("{}: {reply:?}", machine.name()) };
        (exit, message)
    }

    /// A job that reads its exit code from somebody.
    pub fn held_job(machine: &Machine) -> String {
        format!("echo run >> {}; read code < {}; exit $code", runs_file(machine).display(), fifo(machine).display())
    }

    /// A job that is over at once.
    pub fn plain_job(machine: &Machine) -> String {
        format!("echo run >> {}", runs_file(machine).display())
    }

    pub fn forget_runs(machine: &Machine) {
        std::fs::remove_file(runs_file(machine)).ok();
    }

    /// How often such a job has begun.
    pub fn runs(machine: &Machine) -> usize {
        std::fs::read_to_string(runs_file(machine)).unwrap_or_default().lines().count()
    }

    /// Lets it go, with this exit code.
    pub async fn let_job_end(&self, machine: &Machine, code: u8) {
        let path = fifo(machine);
        // Without a reader it cannot be opened so: the job is not there yet.
        let nonblocking = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap();
        let mut open = None;
        self.until(machine, "the job listens", || {
            open = OpenOptions::new().write(true).custom_flags(nonblocking).open(&path).ok();
            open.is_some()
        })
        .await;
        open.unwrap().write_all(format!("{code}\n").as_bytes()).unwrap();
    }

    pub async fn until(&self, machine: &Machine, what: &str, condition: impl FnMut() -> bool) {
        let came = pace::until(BOUND, condition).await;
        assert!(
            came,
            "{} {}: not in time: {what}; on disk {:?}\n{}",
            self.engine.flavor(),
            machine.name(),
            machine.durable(),
            machine.agent_log()
        );
    }

    pub async fn on_disk(&self, machine: &Machine, what: &str, wanted: impl Fn(&Durable) -> bool) {
        self.until(machine, what, || machine.durable().is_some_and(|d| wanted(&d))).await;
    }

    pub async fn in_stage(&self, machine: &Machine, stage: StageName) {
        self.on_disk(machine, stage.label(), |d| d.stage() == Some(stage)).await;
    }

    /// Calls of this action are read and never answered, until the faults are cleared.
    pub fn hang(&self, action: Action) {
        self.fleet.elbv2().inject(Fault::always(Trouble::Hang).on(action));
    }

    pub fn calls(&self, machine: &Machine, action: Action) -> Vec<Call> {
        let about = |c: &Call| c.action == action && c.targets.iter().any(|(id, _)| id == machine.instance());
        self.fleet.elbv2().calls().into_iter().filter(about).collect()
    }

    /// The agent has made this call, and it hangs.
    pub async fn hangs(&self, machine: &Machine, action: Action) {
        let outcome = Outcome::Trouble(Trouble::Hang.name());
        let hangs = || self.calls(machine, action).iter().any(|c| c.outcome == outcome);
        self.until(machine, action.name(), hangs).await;
    }

    /// Writes of the record that have come by here. An agent also writes to its own node, past this.
    pub fn record_writes(&self) -> usize {
        let seen = self.relays.iter().flat_map(Relay::seen);
        seen.filter(|request| is_write(request) && about_record(request)).count()
    }

    /// An agent that asks here first for the record: a new process asks in the order of its config.
    pub async fn fresh(&self, machine: &Machine) {
        machine.terminate_agent().await;
        machine.start_agent().unwrap();
        machine.wait_sees(3, BOUND).await.unwrap();
    }

    /// Before the next write of the record arrives at a server, this is done, once.
    pub fn before_the_next_write(&self, deed: impl Fn() + Send + Sync + 'static) {
        let (deed, done) = (std::sync::Arc::new(deed), std::sync::Arc::new(std::sync::Once::new()));
        for relay in &self.relays {
            let (deed, done) = (deed.clone(), done.clone());
            relay.rule(move |request| {
                if is_write(request) && about_record(request) {
                    done.call_once(|| deed());
                }
                Deed::Pass
            });
        }
    }

    /// Begins a cycle with this job; once this returns it has a slot, or is about to get one. What it is refused for a moment
    /// after an outage is asked for again.
    pub async fn begun(&self, machine: &Machine, script: &str) -> String {
        let request = || patch_request("patch", &["sh", "-c", script], RebootPolicy::Never);
        let begun = pace::within(BOUND, async {
            loop {
                match machine.run(&request()).await {
                    Ok(RunReply::Started { cycle, .. }) => return cycle,
                    Ok(RunReply::Refused { exit, .. }) if exit < 100 => {}
                    other => panic!("{}: {other:?}\n{}", machine.name(), machine.agent_log()),
                }
                pace::sleep(std::time::Duration::from_millis(100)).await;
            }
        });
        begun.await.unwrap_or_else(|| panic!("{} never begins\n{}", machine.name(), machine.agent_log()))
    }

    /// The load balancer says this of its target, whatever is so; `None`: no longer.
    pub fn show(&self, machine: &Machine, row: Option<(&str, &str)>) {
        let (arn, id, port) = (&self.fleet.groups()[0], machine.instance(), machine.address().port());
        match row {
            Some((state, reason)) => {
                let rows = vec![RowSpec::new(id, port, state, Some(reason))];
                let elbv2 = self.fleet.elbv2();
                assert!(elbv2.override_rows(arn, id, port, rows, Scope::Everywhere, Ends::WhenCleared));
            }
            None => self.fleet.elbv2().clear_override(arn, id, port),
        }
    }

    /// The group's delay does not end, or has its own length again.
    pub fn hold_drain(&self, hold: bool) {
        let delay = if hold { 1_000_000 } else { DELAY_S };
        assert!(self.fleet.elbv2().configure(&self.fleet.groups()[0], |g| g.deregistration_delay_s = delay));
    }

    /// Nobody is out, nothing is claimed, nothing is latched, and everybody knows.
    pub async fn all_is_well(&self, after: &str) {
        for machine in self.fleet.machines() {
            let sees = machine.wait_sees(3, BOUND).await;
            sees.unwrap_or_else(|e| panic!("{} {after}: {e}\n{}", self.engine.flavor(), machine.agent_log()));
        }
        assert_eq!(self.fleet.in_service(), 3, "{after}");
        let record = self.record().await;
        assert!(record.slots.is_empty() && record.open_latches().count() == 0, "{after}: {record:?}");
    }
}

fn about_record(request: &Request) -> bool {
    request.path().contains("record:") || request.path().contains("record%3A")
}

/// What a job reads its exit code from.
fn fifo(machine: &Machine) -> PathBuf {
    machine.dir().join("fifo")
}

/// A line for each job that has begun.
fn runs_file(machine: &Machine) -> PathBuf {
    machine.dir().join("runs")
}
