//! The jobs port as plain processes, for where there is no systemd: a container, the rehearsal.

use super::processes::{self, Process};
use super::supervise::{SAY_FAILED, SAY_TAKEN, SAY_TAKEN_BEFORE, push};
use super::verdict::{CYCLE_VARIABLE, DIR_VARIABLE, JobDir, Order, Started, check_cycle};
use crate::core::error::{Class, Fault};
use crate::core::job::{JobResult, JobSpec, JobStatus, Verdict};
use crate::ports::Jobs;
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

/// How long the supervisor has to take the job, in milliseconds. Only a stalled disk needs more.
const START_TIMEOUT_MS: u64 = 10_000;
/// How long a job has between SIGTERM and SIGKILL, in milliseconds.
pub const GRACE_MS: u64 = 10_000;
/// How long the kernel has to end what got a SIGKILL, in milliseconds.
const GONE_TIMEOUT_MS: u64 = 10_000;
/// How often is looked whether a job is gone, in milliseconds.
const POLL_MS: u64 = 50;
/// The directories of so many jobs are kept.
pub const JOBS_KEPT: usize = 20;

/// How the supervisor is started.
#[derive(Clone, Debug)]
pub struct Launcher {
    /// The program.
    pub program: PathBuf,
    /// What comes before `--dir DIR --starter PID`.
    pub leading_arguments: Vec<String>,
}

impl Default for Launcher {
    /// This very program with the verb `job-exec`. By way of `/proc/self/exe`, which still is this program when a
    /// package manager has put another one in its place.
    fn default() -> Launcher {
        Launcher { program: "/proc/self/exe".into(), leading_arguments: vec!["job-exec".to_owned()] }
    }
}

/// What a job gets and is looked at for.
#[derive(Clone, Debug)]
pub struct JobSettings {
    /// How the supervisor is started.
    pub launcher: Launcher,
    /// Between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// The job's whole environment, but for `BACKSTOP_CYCLE` and `BACKSTOP_JOB_DIR`.
    pub environment: Vec<(String, String)>,
    /// Files whose existence after the job means that the machine wants a restart.
    pub reboot_markers: Vec<PathBuf>,
}

impl Default for JobSettings {
    fn default() -> JobSettings {
        let home = std::env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        JobSettings {
            launcher: Launcher::default(),
            grace_ms: GRACE_MS,
            environment: vec![
                pair("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
                pair("HOME", &home.to_string_lossy()),
                pair("LANG", "C.UTF-8"),
                pair("DEBIAN_FRONTEND", "noninteractive"),
            ],
            reboot_markers: vec!["/run/reboot-required".into(), "/var/run/reboot-needed".into()],
        }
    }
}

/// Runs jobs as processes. Clones run the same jobs.
#[derive(Clone, Debug)]
pub struct ProcessJobs {
    root: Arc<Path>,
    settings: Arc<JobSettings>,
}

impl ProcessJobs {
    /// Jobs below `<state>/jobs/`.
    pub fn new(state: &Path, settings: JobSettings) -> ProcessJobs {
        // The supervisor works elsewhere, so a relative path would mean something else to it.
        let state = std::path::absolute(state).unwrap_or_else(|_| state.to_owned());
        ProcessJobs { root: state.join("jobs").into(), settings: Arc::new(settings) }
    }

    /// The directory of a cycle's job: `output` in it is what the job said.
    pub fn dir(&self, cycle: &str) -> PathBuf {
        self.root.join(cycle)
    }

    fn order(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> Order {
        let mut environment = self.settings.environment.clone();
        environment.push((CYCLE_VARIABLE.to_owned(), cycle.to_owned()));
        environment.push((DIR_VARIABLE.to_owned(), self.dir(cycle).display().to_string()));
        Order {
            cycle: cycle.to_owned(),
            job: job.clone(),
            timeout_ms,
            grace_ms: self.settings.grace_ms,
            environment,
            reboot_markers: self.settings.reboot_markers.clone(),
        }
    }

    /// Starts a supervisor and hears whether the job is taken.
    async fn launch(&self, cycle: &str) -> Result<(), Fault> {
        let dir = self.dir(cycle);
        let mut command = tokio::process::Command::new(&self.settings.launcher.program);
        command.args(&self.settings.launcher.leading_arguments);
        command.arg("--dir").arg(&dir).arg("--starter").arg(std::process::id().to_string());
        // Whatever secrets the agent's environment holds end here.
        command.env_clear().envs(self.settings.environment.iter().map(|(name, value)| (name, value)));
        command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Dropped later, it goes on; the runtime collects it when it ends.
        let mut supervisor = command
            .spawn()
            .map_err(|e| Fault::transport(format!("the supervisor of the job cannot be started: {e}")))?;
        let Some(stdout) = supervisor.stdout.take() else {
            return Err(unknown("the supervisor of the job has no stdout"));
        };
        let mut lines = BufReader::new(stdout).lines();
        let heard = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if line == SAY_TAKEN || line == SAY_TAKEN_BEFORE {
                    return Ok(());
                }
                if let Some(why) = line.strip_prefix(SAY_FAILED) {
                    return Err(Fault::transport(format!("the job was not started: {why}")));
                }
            }
            Err(unknown("the supervisor of the job ended without a word"))
        };
        match tokio::time::timeout(Duration::from_millis(START_TIMEOUT_MS), heard).await {
            Ok(heard) => heard,
            Err(_) => Err(unknown("the supervisor of the job did not take it in time")),
        }
    }
}

impl Jobs for ProcessJobs {
    async fn ask(&self, cycle: &str) -> Result<JobStatus, Fault> {
        let path = self.checked(cycle)?;
        blocking(move || match JobDir::find(&path)? {
            Some(dir) => dir.status(),
            None => Ok(JobStatus::New),
        })
        .await
    }

    async fn start(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> Result<(), Fault> {
        let path = self.checked(cycle)?;
        let order = self.order(cycle, job, timeout_ms);
        let root = Arc::clone(&self.root);
        let new = blocking(move || {
            let dir = JobDir::create(&path)?;
            if dir.status()? != JobStatus::New {
                return Ok(false);
            }
            prune(&root, &path);
            dir.write_order(&order)?;
            Ok(true)
        })
        .await?;
        if new { self.launch(cycle).await } else { Ok(()) }
    }

    async fn running(&self) -> Result<Vec<String>, Fault> {
        let root = Arc::clone(&self.root);
        blocking(move || running(&root)).await
    }

    async fn kill(&self, cycle: &str) -> Result<(), Fault> {
        let path = self.checked(cycle)?;
        let grace_ms = self.settings.grace_ms;
        blocking(move || kill(&path, grace_ms)).await
    }
}

impl ProcessJobs {
    fn checked(&self, cycle: &str) -> Result<PathBuf, Fault> {
        check_cycle(cycle).map_err(|e| Fault::new(Class::Refused, e.to_string()))?;
        Ok(self.dir(cycle))
    }
}

/// Cycles whose jobs run, by their directories.
fn running(root: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut cycles = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(cycle) = entry.file_name().into_string() else { continue };
        if check_cycle(&cycle).is_ok() && JobDir::open(&entry.path())?.status()? == JobStatus::Running {
            cycles.push(cycle);
        }
    }
    cycles.sort();
    Ok(cycles)
}

/// Ends a job, whatever it has come to; blocks until it is gone.
fn kill(path: &Path, grace_ms: u64) -> io::Result<()> {
    let dir = JobDir::create(path)?;
    // Nobody has it yet: from here on nobody will.
    if dir.status()? == JobStatus::New && dir.call_off()? {
        return dir.write_verdict(&Verdict { result: JobResult::Killed, reboot_needed: false, output_tail: "".into() });
    }
    // Where it cannot be read who took it, the environment is the only sign left.
    let started = dir.started()?.unwrap_or(Started { pid: 0, start_ticks: 0, boot: String::new() });
    match dir.status()? {
        // What a job that has ended left running is meant to run.
        JobStatus::Ended(_) => return Ok(()),
        JobStatus::Running if ask_supervisor(&dir, &started, grace_ms)? => return Ok(()),
        JobStatus::New | JobStatus::Running | JobStatus::Lost => {}
    }
    kill_leftovers(&dir, &started, grace_ms)
}

/// The supervisor ends the job and says how; `false`: it cannot be asked, or died of it.
fn ask_supervisor(dir: &JobDir, started: &Started, grace_ms: u64) -> io::Result<bool> {
    if dir.ask_to_kill().is_err() {
        return Ok(false);
    }
    let limit_ms = grace_ms.saturating_add(GONE_TIMEOUT_MS);
    for _ in 0..=limit_ms.checked_div(POLL_MS).unwrap_or(0) {
        let Some(supervisor) = started.alive()? else {
            return Ok(matches!(dir.status()?, JobStatus::Ended(_)));
        };
        processes::signal(&supervisor, Signal::TERM)?;
        pause(POLL_MS);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the job cannot be killed: its supervisor still waits for its end"))
}

/// Ends what belongs to a job that nobody supervises any more.
fn kill_leftovers(dir: &JobDir, started: &Started, grace_ms: u64) -> io::Result<()> {
    let boot = crate::host::machine::boot_id()?;
    if started.pid > 0 && *boot.0 != *started.boot {
        return Ok(());
    }
    let marks = dir.marks(started);
    let mut told = BTreeSet::new();
    let mut left: Vec<Process> = Vec::new();
    let limit_ms = grace_ms.saturating_add(GONE_TIMEOUT_MS);
    for turn in 0..=limit_ms.checked_div(POLL_MS).unwrap_or(0) {
        left = processes::members(&marks)?;
        if left.is_empty() {
            return Ok(());
        }
        let force = turn.saturating_mul(POLL_MS) >= grace_ms;
        for process in &left {
            push(process, force, &mut told);
        }
        pause(POLL_MS);
    }
    let pids: Vec<String> = left.iter().map(|p| p.pid.to_string()).collect();
    Err(io::Error::new(io::ErrorKind::TimedOut, format!("processes {} of the job cannot be killed", pids.join(", "))))
}

/// Removes the directories of the oldest jobs, but none that may still run and not this one.
fn prune(root: &Path, mine: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    let mut dirs: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.path() != mine)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    dirs.sort();
    let surplus = dirs.len().saturating_sub(JOBS_KEPT);
    for (_, path) in dirs.into_iter().take(surplus) {
        let over = JobDir::open(&path).and_then(|dir| dir.status());
        if matches!(over, Ok(JobStatus::Ended(_) | JobStatus::Lost)) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "on a thread for blocking work; what is waited for is the kernel")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn unknown(message: &str) -> Fault {
    Fault::new(Class::OutcomeUnknown, message)
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(Fault::transport(format!("the job's directory: {e}"))),
        Err(e) => Err(Fault::transport(format!("looking after the job failed: {e}"))),
    }
}
