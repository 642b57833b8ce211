//! One machine of the fleet: a client node and an agent, each a process, and a boot that both live in.

use super::config::ConfigFacts;
use crate::control::client::Client;
use crate::core::job::JobStatus;
use crate::jobs::processes;
use crate::jobs::verdict::JobDir;
use crate::rehearse::node::{MACHINE, NodeFacts, NodeOptions, keeper, to_args};
use crate::rehearse::pace::{self, Origin};
use crate::rehearse::shapes::Shape;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::process::{Child, Command};

/// A clean end may take so long (real); then it is SIGKILL.
const CLEAN_END: Duration = Duration::from_secs(3);
/// Two looks at a process that is to end lie so far apart (real).
const LOOK: Duration = Duration::from_millis(5);

/// How the node of a machine comes up. Times are simulated milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStart {
    /// Connections are refused for so long.
    pub refused_ms: u64,
    /// Then every connection fails in this way, for so long (`None`: for ever).
    pub shape: Option<(Shape, Option<u64>)>,
    /// Then it is open, but has not joined, for so long.
    pub not_joined_ms: u64,
    /// A search takes so long.
    pub search_ms: u64,
}

impl NodeStart {
    /// Joined at once.
    pub const AT_ONCE: NodeStart = NodeStart { refused_ms: 0, shape: None, not_joined_ms: 0, search_ms: 0 };
    /// As a search node starts: 20 s refused, 15 s until it has joined.
    pub const USUAL: NodeStart = NodeStart { refused_ms: 20_000, shape: None, not_joined_ms: 15_000, search_ms: 0 };

    /// The usual start, with this shape between open and joined.
    #[must_use]
    pub const fn failing(shape: Shape, for_ms: Option<u64>) -> NodeStart {
        NodeStart { shape: Some((shape, for_ms)), ..NodeStart::USUAL }
    }
}

/// What is fixed about a machine.
#[derive(Debug)]
pub(super) struct Spec {
    pub(super) program: PathBuf,
    pub(super) facts: ConfigFacts,
    pub(super) node: NodeFacts,
    pub(super) origin: Origin,
    /// A restart of the machine takes so long before anything runs again (simulated).
    pub(super) off_ms: u64,
    pub(super) has_agent: bool,
    /// The node belongs to a cluster that somebody else runs: it is neither started nor ended here.
    pub(super) theirs: bool,
}

#[derive(Debug)]
struct State {
    agent: Option<Child>,
    node: Option<Child>,
    boot: u32,
    /// How the next starts of the node go; then as `usual`.
    starts: VecDeque<NodeStart>,
    usual: NodeStart,
    overrides: String,
    agent_env: Vec<(String, String)>,
    agent_starts: u32,
    reboots: u32,
    node_starts: u32,
    last_start: NodeStart,
}

#[derive(Debug)]
struct Inner {
    spec: Spec,
    state: Mutex<State>,
}

/// The handle on a machine. Clones mean the same one; its processes end with the last clone.
#[derive(Clone, Debug)]
pub struct Machine(Arc<Inner>);

/// How an agent's process ended.
pub type Ended = Option<ExitStatus>;

impl Machine {
    pub(super) fn new(spec: Spec, usual: NodeStart, overrides: String, agent_env: Vec<(String, String)>) -> Machine {
        let state = State {
            agent: None,
            node: None,
            boot: 1,
            starts: VecDeque::new(),
            usual,
            overrides,
            agent_env,
            agent_starts: 0,
            reboots: 0,
            node_starts: 0,
            last_start: usual,
        };
        Machine(Arc::new(Inner { spec, state: Mutex::new(state) }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        pace::lock(&self.0.state)
    }

    /// `i-…`
    pub fn instance(&self) -> &str {
        &self.0.spec.facts.instance
    }

    /// Node name.
    pub fn name(&self) -> &str {
        &self.0.spec.facts.name
    }

    /// Where its node listens.
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.spec.node.address
    }

    /// The agent's state directory.
    pub fn state_dir(&self) -> PathBuf {
        self.0.spec.facts.state_dir()
    }

    /// The agent's config file.
    pub fn config_file(&self) -> PathBuf {
        self.0.spec.facts.dir.join("backstop.toml")
    }

    /// The agent's control socket.
    pub fn socket(&self) -> PathBuf {
        self.0.spec.facts.socket()
    }

    /// Where the agent answers scrapes.
    pub fn metrics_socket(&self) -> PathBuf {
        self.0.spec.facts.metrics_socket()
    }

    /// A client of the agent's socket.
    pub fn client(&self) -> Client {
        Client::new(self.socket())
    }

    /// The agent's log so far.
    pub fn agent_log(&self) -> String {
        std::fs::read_to_string(self.0.spec.facts.dir.join("agent.log")).unwrap_or_default()
    }

    /// The present boot id.
    pub fn boot_id(&self) -> String {
        boot_id(self.name(), self.state().boot)
    }

    /// How often the machine was restarted.
    pub fn reboots(&self) -> u32 {
        self.state().reboots
    }

    /// How often its node was started, and how the last time.
    pub fn node_starts(&self) -> (u32, NodeStart) {
        let state = self.state();
        (state.node_starts, state.last_start)
    }

    /// How often its agent was started.
    pub fn agent_starts(&self) -> u32 {
        self.state().agent_starts
    }

    /// The program that agent and node are processes of.
    pub fn program(&self) -> &Path {
        &self.0.spec.program
    }

    /// Its own directory in the rehearsal's.
    pub fn dir(&self) -> &Path {
        &self.0.spec.facts.dir
    }

    /// Pid of the running agent; `None`: none runs.
    pub fn agent_pid(&self) -> Option<u32> {
        running(&mut self.state().agent)
    }

    /// Pid of the running node; `None`: none runs.
    pub fn node_pid(&self) -> Option<u32> {
        running(&mut self.state().node)
    }

    /// The next starts of the node go so, one each; then as usual.
    pub fn next_starts(&self, starts: impl IntoIterator<Item = NodeStart>) {
        self.state().starts.extend(starts);
    }

    /// The usual start of the node from now on.
    pub fn usual_start(&self, start: NodeStart) {
        self.state().usual = start;
    }

    /// TOML text merged over the generated config, from the agent's next start on.
    pub fn configure(&self, overrides: &str) {
        overrides.clone_into(&mut self.state().overrides);
    }

    /// Environment of the agent beside the usual, from its next start on: `BACKSTOP_CRASH_AT`.
    pub fn agent_env(&self, env: &[(&str, &str)]) {
        self.state().agent_env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    }

    /// Writes the config file as the next start of the agent would, for a reload.
    ///
    /// # Errors
    /// The file cannot be written, or the overrides are no TOML.
    pub fn write_config(&self) -> io::Result<()> {
        let (boot, overrides) = {
            let state = self.state();
            (boot_id(self.name(), state.boot), state.overrides.clone())
        };
        self.0.spec.facts.write(&self.config_file(), &boot, &overrides)
    }

    /// Starts the agent; one that runs stays.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_agent(&self) -> io::Result<()> {
        if !self.0.spec.has_agent {
            return Ok(());
        }
        self.write_config()?;
        let log =
            std::fs::OpenOptions::new().create(true).append(true).open(self.0.spec.facts.dir.join("agent.log"))?;
        let mut state = self.state();
        if running(&mut state.agent).is_some() {
            return Ok(());
        }
        let mut command = Command::new(&self.0.spec.program);
        command.arg("agent").arg("--config").arg(self.config_file()).arg("--state-dir").arg(self.state_dir());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("AWS_ACCESS_KEY_ID", "rehearsal").env("AWS_SECRET_ACCESS_KEY", "rehearsal");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command.envs(state.agent_env.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
        state.agent = Some(command.spawn()?);
        state.agent_starts = state.agent_starts.saturating_add(1);
        Ok(())
    }

    /// Starts the node; one that runs stays. Of a node that is somebody else's only the keeper of this directory is
    /// started, which ends what works in it when the rehearsal dies.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start_node(&self) -> io::Result<()> {
        let mut state = self.state();
        if running(&mut state.node).is_some() {
            return Ok(());
        }
        let start = state.starts.pop_front().unwrap_or(state.usual);
        let real = |ms: u64| u64::try_from(self.0.spec.origin.real(ms).as_millis()).unwrap_or(u64::MAX);
        let options = NodeOptions {
            address: self.address(),
            facts: self.0.spec.node.clone(),
            refused_ms: real(start.refused_ms),
            shape: start.shape.map(|(shape, _)| shape),
            shape_ms: start.shape.and_then(|(_, ms)| ms).map(real),
            not_joined_ms: real(start.not_joined_ms),
            search_ms: real(start.search_ms),
        };
        let args = if self.0.spec.theirs { keeper() } else { to_args(&options) };
        let mut command = Command::new(&self.0.spec.program);
        command.args(args).arg(MACHINE).arg(self.dir()).env_clear();
        // The other end of its stdin is ours: it ends when we do.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        state.node = Some(command.spawn()?);
        (state.node_starts, state.last_start) = (state.node_starts.saturating_add(1), start);
        Ok(())
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill_agent(&self) -> Ended {
        self.signal_agent(Signal::KILL);
        self.agent_ended(CLEAN_END).await
    }

    /// SIGKILL, and waits for the end where nothing can be awaited.
    pub(super) fn kill_agent_at_once(&self) {
        let pid = self.agent_pid().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|pid| kill_process(*pid, Signal::KILL).is_ok()) {
            // It is left to be collected by its handle.
            let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        }
    }

    /// SIGTERM, and waits for the end; SIGKILL where that takes too long.
    pub async fn terminate_agent(&self) -> Ended {
        let child = self.state().agent.take();
        end(child, Signal::TERM).await
    }

    /// Sends the agent a signal and waits for nothing.
    pub fn signal_agent(&self, signal: Signal) {
        if let Some(pid) = self.agent_pid() {
            send(pid, signal);
        }
    }

    /// Waits until the agent has ended by itself (or by a signal), at most for `bound` (real). `None` = it still runs, or
    /// none did.
    pub async fn agent_ended(&self, bound: Duration) -> Ended {
        let start = pace::now();
        loop {
            {
                let mut state = self.state();
                let status = state.agent.as_mut().and_then(|c| c.try_wait().ok().flatten());
                if status.is_some() || state.agent.is_none() {
                    state.agent = None;
                    return status;
                }
            }
            if pace::now().saturating_duration_since(start) >= bound {
                return None;
            }
            pace::sleep(LOOK).await;
        }
    }

    /// SIGKILL, and waits for the end.
    pub async fn kill_node(&self) {
        let child = self.state().node.take();
        end(child, Signal::KILL).await;
    }

    /// As on SIGTERM; waits for the end.
    pub async fn stop_node(&self) {
        let child = self.state().node.take();
        end(child, Signal::TERM).await;
    }

    /// Ends the node and starts it again.
    ///
    /// # Errors
    /// The process cannot be started.
    pub async fn restart_node(&self) -> io::Result<()> {
        self.stop_node().await;
        self.start_node()
    }

    /// A restart of the machine: agent, jobs and node end, and agent and node start again under another boot id.
    pub async fn reboot(&self) {
        let (agent, node) = {
            let mut state = self.state();
            (state.agent.take(), state.node.take())
        };
        let agent_ran = agent.is_some();
        end(agent, Signal::TERM).await;
        self.end_jobs();
        end(node, Signal::TERM).await;
        {
            let mut state = self.state();
            state.boot = state.boot.saturating_add(1);
            state.reboots = state.reboots.saturating_add(1);
        }
        pace::sleep(self.0.spec.origin.real(self.0.spec.off_ms)).await;
        let started = self.start_node().and_then(|()| if agent_ran { self.start_agent() } else { Ok(()) });
        if let Err(error) = started {
            tracing::error!(%error, "a rehearsed machine does not come up again");
        }
    }

    /// Ends every process of a job that was started here.
    pub fn end_jobs(&self) {
        end_jobs(&self.state_dir());
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // The agent first, so that it starts nothing more; both are also killed by their handles.
        let state = pace::lock(&self.state);
        if let Some(pid) = state.agent.as_ref().and_then(Child::id) {
            send(pid, Signal::KILL);
        }
        drop(state);
        end_jobs(&self.spec.facts.state_dir());
    }
}

fn boot_id(name: &str, boot: u32) -> String {
    format!("{name}-boot-{boot}")
}

fn running(child: &mut Option<Child>) -> Option<u32> {
    let alive = child.as_mut().is_some_and(|c| matches!(c.try_wait(), Ok(None)));
    child.as_ref().filter(|_| alive).and_then(Child::id)
}

fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // A process that is gone is no error.
        let _ = kill_process(pid, signal);
    }
}

async fn end(child: Option<Child>, signal: Signal) -> Ended {
    let mut child = child?;
    // Waiting would close it, which is the sign of an orphaned node.
    let _stdin = child.stdin.take();
    if let Some(pid) = child.id() {
        send(pid, signal);
    }
    if let Some(status) = pace::within(CLEAN_END, child.wait()).await {
        return status.ok();
    }
    child.start_kill().ok();
    child.wait().await.ok()
}

fn end_jobs(state_dir: &Path) {
    let Ok(entries) = std::fs::read_dir(state_dir.join("jobs")) else { return };
    for dir in entries.flatten() {
        let Ok(dir) = JobDir::open(&dir.path()) else { continue };
        // What a job that has ended left running is meant to run.
        if matches!(dir.status(), Ok(JobStatus::Ended(_) | JobStatus::New)) {
            continue;
        }
        let Ok(Some(started)) = dir.started() else { continue };
        let supervisor = started.alive().ok().flatten();
        let left = processes::members(&dir.marks(&started)).unwrap_or_default();
        for process in supervisor.iter().chain(&left) {
            let _ = processes::signal(process, Signal::KILL);
        }
    }
}
