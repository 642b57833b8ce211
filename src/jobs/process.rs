//! The jobs port as plain processes, for where there is no systemd: a container, the rehearsal.

use super::kill::{KILL_BOUND_MS, kill};
use super::supervise::{SAY_FAILED, SAY_TAKEN, SAY_TAKEN_BEFORE};
use super::verdict::{CYCLE_VARIABLE, DIR_VARIABLE, JobDir, Order, check_cycle};
use crate::core::error::{Class, Fault};
use crate::core::job::{JobSpec, JobStatus};
use crate::ports::Jobs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};

/// How long the disk has for looking at, or writing, a job's files.
pub(super) const DISK_WAIT: Duration = Duration::from_secs(10);
/// How long the supervisor has to take the job, in milliseconds. Only a stalled disk needs more.
const START_TIMEOUT_MS: u64 = 10_000;
/// How long a job has between SIGTERM and SIGKILL, in milliseconds.
pub const GRACE_MS: u64 = 10_000;
/// Of its output is kept so much, in bytes.
const OUTPUT_BYTES_MAX: u64 = 1024 * 1024;
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
    /// Of its output is kept so much, in bytes.
    pub output_bytes_max: u64,
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
            output_bytes_max: OUTPUT_BYTES_MAX,
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
            output_bytes_max: self.settings.output_bytes_max,
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
        blocking(DISK_WAIT, move || match JobDir::find(&path)? {
            Some(dir) => dir.status(),
            None => Ok(JobStatus::New),
        })
        .await
    }

    async fn start(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> Result<(), Fault> {
        let path = self.checked(cycle)?;
        let order = self.order(cycle, job, timeout_ms);
        let root = Arc::clone(&self.root);
        let new = blocking(DISK_WAIT, move || {
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
        blocking(DISK_WAIT, move || running(&root)).await
    }

    async fn kill(&self, cycle: &str) -> Result<(), Fault> {
        let path = self.checked(cycle)?;
        let grace_ms = self.settings.grace_ms;
        blocking(DISK_WAIT.saturating_add(Duration::from_millis(KILL_BOUND_MS)), move || kill(&path, grace_ms)).await
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
        // One that cannot be read does not hide the others.
        let status = || JobDir::open(&entry.path()).and_then(|dir| dir.status());
        if check_cycle(&cycle).is_ok() && matches!(status(), Ok(JobStatus::Running)) {
            cycles.push(cycle);
        }
    }
    cycles.sort();
    Ok(cycles)
}

/// Removes the directories of the oldest jobs, but none that may still run and not this one.
pub(super) fn prune(root: &Path, mine: &Path) {
    let Ok(entries) = std::fs::read_dir(root) else { return };
    let mut dirs: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.path() != mine)
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    dirs.sort();
    let surplus = dirs.len().saturating_sub(JOBS_KEPT);
    for (_, path) in dirs.into_iter().take(surplus) {
        let over = JobDir::open(&path).and_then(|dir| Ok((dir.status()?, dir.note()?.is_some())));
        // A unit without a verdict was lost; of its end nobody wrote.
        if matches!(over, Ok((JobStatus::Ended(_) | JobStatus::Lost, _) | (JobStatus::New, true))) {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

fn unknown(message: &str) -> Fault {
    Fault::new(Class::OutcomeUnknown, message)
}

/// A disk that hangs must not keep the agent: nothing here waits without an end.
async fn blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Fault> {
    match crate::bounded::blocking(limit, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(Fault::transport(format!("the job's directory: {e}"))),
        Err(why) => Err(Fault::transport(format!("the job's directory: {why}"))),
    }
}
