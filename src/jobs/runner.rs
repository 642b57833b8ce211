//! Which runner: units where there is systemd, processes elsewhere. A job that one of them has begun stays with it, whatever
//! the config says by then.

use super::process::ProcessJobs;
use super::systemd::SystemdJobs;
use super::units::SystemdUnits;
use super::verdict::JobDir;
use crate::core::error::{Class, Fault};
use crate::core::job::{JobSpec, JobStatus};
use crate::ports::Jobs;
use std::path::Path;

/// Who runs new jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// Units of systemd.
    Systemd,
    /// Processes with a supervisor of their own.
    Process,
}

/// systemd is this machine's service manager.
pub fn systemd_runs() -> bool {
    // sd_booted(3)
    Path::new("/run/systemd/system").is_dir()
}

/// In a sandbox without exec a process of the agent is no way to run a job.
fn executes() -> Result<(), Fault> {
    match rustix::fs::access("/bin/sh", rustix::fs::Access::EXEC_OK) {
        Err(rustix::io::Errno::ACCESS) => Err(Fault::new(
            Class::Refused,
            "jobs are processes here (job.runner = \"process\"), and the agent may execute nothing (NoExecPaths= of its unit): \
             use \"auto\" or \"systemd\"",
        )),
        // Not there at all: then the job's own program tells.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Both runners.
#[derive(Clone, Debug)]
pub struct Runner {
    which: Which,
    process: ProcessJobs,
    systemd: SystemdJobs<SystemdUnits>,
}

impl Runner {
    /// New jobs go to `which`.
    pub fn new(which: Which, process: ProcessJobs, systemd: SystemdJobs<SystemdUnits>) -> Runner {
        Runner { which, process, systemd }
    }

    /// Who has this cycle's job, or would get it.
    fn of(&self, cycle: &str) -> Result<Which, Fault> {
        let fault = |e: std::io::Error| Fault::transport(format!("the job's directory: {e}"));
        let Some(dir) = JobDir::find(&self.process.dir(cycle)).map_err(fault)? else { return Ok(self.which) };
        if dir.note().map_err(fault)?.is_some() {
            return Ok(Which::Systemd);
        }
        Ok(if dir.started().map_err(fault)?.is_some() { Which::Process } else { self.which })
    }

    async fn found(&self, cycle: &str) -> Result<Which, Fault> {
        super::verdict::check_cycle(cycle).map_err(|e| Fault::new(Class::Refused, e.to_string()))?;
        let (runner, cycle) = (self.clone(), cycle.to_owned());
        let looked = crate::bounded::blocking(super::process::DISK_WAIT, move || runner.of(&cycle)).await;
        looked.map_err(|why| Fault::transport(format!("the job's directory: {why}")))?
    }
}

impl Jobs for Runner {
    async fn ready(&self, job: &JobSpec) -> Result<(), Fault> {
        match self.which {
            Which::Systemd => self.systemd.ready(job).await,
            Which::Process if job.argv.is_empty() => Err(Fault::new(
                Class::Refused,
                "jobs are processes here (job.runner), so only a command can be run: backstop run -- COMMAND",
            )),
            Which::Process => executes(),
        }
    }

    async fn ask(&self, cycle: &str) -> Result<JobStatus, Fault> {
        match self.found(cycle).await? {
            Which::Systemd => self.systemd.ask(cycle).await,
            Which::Process => self.process.ask(cycle).await,
        }
    }

    async fn start(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> Result<(), Fault> {
        match self.found(cycle).await? {
            Which::Systemd => self.systemd.start(cycle, job, timeout_ms).await,
            Which::Process => self.process.start(cycle, job, timeout_ms).await,
        }
    }

    async fn running(&self) -> Result<Vec<String>, Fault> {
        let mut running = self.process.running().await?;
        if self.which == Which::Systemd {
            running.extend(self.systemd.running().await?);
            running.sort();
            running.dedup();
        }
        Ok(running)
    }

    async fn kill(&self, cycle: &str) -> Result<(), Fault> {
        match self.found(cycle).await? {
            Which::Systemd => self.systemd.kill(cycle).await,
            Which::Process => self.process.kill(cycle).await,
        }
    }
}
