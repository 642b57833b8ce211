//! The jobs port as systemd units: the agent starts and stops `backstop-job@INSTANCE.service`, and nothing more. What it
//! started is noted before it is asked for; how it ended is the verdict line that the unit itself has written ([`super::line`]).

use super::line::{ENDED_BYTES_MAX, ENDED_DIR, Line};
use super::process::prune;
use super::unit_file::unit_name;
use super::units::{NoStart, UnitState, Units};
use super::verdict::{JobDir, check_cycle};
use crate::core::error::{Class, Fault};
use crate::core::exit_codes::ExitCodes;
use crate::core::job::{JobResult, JobSpec, JobStatus, RUN_PREFIX, Verdict, check_instance};
use crate::host::machine;
use crate::ports::Jobs;
use crate::state::disk::{Disk as _, LinuxDisk};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long the disk has.
const DISK_WAIT: Duration = Duration::from_secs(10);
/// How often is looked while a unit is being stopped.
const POLL: Duration = Duration::from_millis(200);
/// After so many looks what is left of it gets SIGKILL.
const FORCE_POLLS: u32 = 50;
/// A kill takes at most this long: more than the unit's `TimeoutStopSec=`, twice.
const KILL_WAIT: Duration = Duration::from_mins(1);

/// What is known of a unit that was started, or was about to be: written before systemd is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Note {
    /// Which instance.
    instance: String,
    /// In which boot.
    boot: String,
    /// Invocations of the unit from before: none of these is this job.
    before: Vec<String>,
    /// systemd has said that the start is queued.
    accepted: bool,
    /// The invocation that is this job, as soon as it was seen.
    invocation: Option<String>,
}

/// What the note, the unit and its verdict line come to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judged {
    New,
    /// As this invocation, where it has one already.
    Running(Option<String>),
    Ended(Verdict),
    Lost,
}

/// Pure: every answer is one of the four.
fn judge(note: &Note, boot: &str, unit: Option<&UnitState>, line: Option<&Line>) -> Judged {
    let ours = |invocation: &str| match &note.invocation {
        Some(noted) => noted == invocation,
        None => !invocation.is_empty() && !note.before.iter().any(|b| b == invocation),
    };
    let unit = unit.filter(|_| boot == note.boot);
    if let Some(unit) = unit.filter(|unit| unit.busy()) {
        if ours(&unit.invocation) {
            return Judged::Running(Some(unit.invocation.clone()));
        }
        // Queued, and not yet begun; not where it has begun before, then this is somebody else's start.
        if unit.queued && note.invocation.is_none() && line.is_none_or(|line| !ours(&line.invocation)) {
            return Judged::Running(None);
        }
    }
    if let Some(line) =
        line.filter(|line| ours(&line.invocation) && (note.invocation.is_some() || line.boot == note.boot))
    {
        return Judged::Ended(line.verdict());
    }
    let began = note.invocation.is_some() || unit.is_some_and(|unit| ours(&unit.invocation));
    match unit {
        Some(unit) if note.accepted && !began && unit.unmet => {
            Judged::Ended(not_started("a condition or assertion of its unit is not met: systemctl status shows which"))
        }
        _ if note.accepted || began || boot != note.boot => Judged::Lost,
        // systemd was never heard to take it, and has no trace of it.
        _ => Judged::New,
    }
}

fn not_started(why: &str) -> Verdict {
    let result = JobResult::NotStarted(why.into());
    Verdict { result, reboot_needed: false, output_tail: "".into(), codes: ExitCodes::Plain }
}

/// Runs jobs as units. Clones run the same jobs.
#[derive(Clone, Debug)]
pub struct SystemdJobs<U> {
    root: Arc<Path>,
    ended: Arc<Path>,
    units: U,
}

/// What lies in a job's directory.
enum Stored {
    /// Nothing: never asked for.
    Nothing,
    /// It is over, or was called off.
    Settled(JobStatus),
    /// A start was noted.
    Noted(Note),
}

impl<U: Units> SystemdJobs<U> {
    /// Notes below `<state>/jobs/`.
    pub fn new(state: &Path, units: U) -> SystemdJobs<U> {
        SystemdJobs { root: state.join("jobs").into(), ended: Path::new(ENDED_DIR).into(), units }
    }

    /// With the verdict lines in another directory.
    #[must_use]
    pub fn with_lines_in(mut self, dir: &Path) -> SystemdJobs<U> {
        self.ended = dir.into();
        self
    }

    /// The manager of its units.
    pub fn units(&self) -> &U {
        &self.units
    }

    /// Could this job be started, and may this agent? Asked before a node leaves for it.
    ///
    /// # Errors
    /// What is missing, and what to do. Class `not-ready`: its unit runs already.
    pub async fn ready(&self, job: &JobSpec) -> Result<(), Fault> {
        let (unit, state) = self.loaded(job).await?;
        if state.busy() {
            let text = format!("{unit} runs already, and not for a cycle: systemctl status {unit}");
            return Err(Fault::new(Class::NotReady, text));
        }
        if state.remains {
            let why = "RemainAfterExit=yes: its end would never be told; take that out of its drop-in";
            return Err(Fault::new(Class::Refused, format!("{unit} has {why}")));
        }
        // Where its verdict could not be read the node would wait for it until the deadline.
        self.line(job.unit.as_deref().unwrap_or_default()).await?;
        self.units.allowed(&unit).await
    }

    /// The job's unit, which has a command.
    async fn loaded(&self, job: &JobSpec) -> Result<(String, UnitState), Fault> {
        let refused = |why: String| Fault::new(Class::Refused, why);
        let Some(instance) = job.unit.as_deref() else {
            return Err(refused(
                "jobs are systemd units here, and this command has none: root defines one by `backstop run -- COMMAND`, \
                 others run a job that an administrator has defined: backstop run --job NAME"
                    .to_owned(),
            ));
        };
        check_instance(instance).map_err(|expected| refused(format!("{instance:?} is no job: expected {expected}")))?;
        let unit = unit_name(instance);
        let state = self.units.load(&unit).await?;
        if state.load != "loaded" {
            let why = if state.load_error.is_empty() { state.load.clone() } else { state.load_error };
            return Err(refused(format!(
                "{unit} cannot be started ({}: {why}): give it an ExecStart= in /etc/systemd/system/{unit}.d/job.conf, then \
                 systemctl daemon-reload",
                state.load
            )));
        }
        Ok((unit, state))
    }

    fn path(&self, cycle: &str) -> Result<PathBuf, Fault> {
        check_cycle(cycle).map_err(|e| Fault::new(Class::Refused, e.to_string()))?;
        Ok(self.root.join(cycle))
    }

    async fn stored(&self, cycle: &str) -> Result<Stored, Fault> {
        let path = self.path(cycle)?;
        blocking(move || {
            let Some(dir) = JobDir::find(&path)? else { return Ok(Stored::Nothing) };
            match dir.status()? {
                JobStatus::New => Ok(dir.note()?.map_or(Stored::Nothing, Stored::Noted)),
                settled @ (JobStatus::Running | JobStatus::Ended(_) | JobStatus::Lost) => Ok(Stored::Settled(settled)),
            }
        })
        .await
    }

    /// The verdict line of an instance, where there is one that root has written whole.
    async fn line(&self, instance: &str) -> Result<Option<Line>, Fault> {
        let (dir, instance) = (Arc::clone(&self.ended), instance.to_owned());
        blocking(move || read_line(&dir, &instance)).await
    }

    async fn write_note(&self, cycle: &str, note: Note) -> Result<(), Fault> {
        let path = self.path(cycle)?;
        blocking(move || JobDir::create(&path)?.write_note(&note)).await
    }

    async fn write_verdict(&self, cycle: &str, verdict: Verdict) -> Result<(), Fault> {
        let path = self.path(cycle)?;
        blocking(move || JobDir::create(&path)?.write_verdict(&verdict)).await
    }

    async fn judged(&self, note: &Note) -> Result<Judged, Fault> {
        let boot = blocking(|| machine::boot_id().map(|boot| boot.0.to_string())).await?;
        // The unit first: one that has ended has written its line before.
        let shown = self.units.show(&unit_name(&note.instance)).await;
        let line = self.line(&note.instance).await;
        match (shown, line) {
            (Ok(unit), Ok(line)) => Ok(judge(note, &boot, unit.as_ref(), line.as_ref())),
            // Nobody to ask, but it is written down.
            (Err(fault), Ok(line)) => match judge(note, &boot, None, line.as_ref()) {
                ended @ Judged::Ended(_) => Ok(ended),
                Judged::New | Judged::Running(_) | Judged::Lost => Err(fault),
            },
            // What it still does need no line to be told.
            (Ok(unit), Err(fault)) => match judge(note, &boot, unit.as_ref(), None) {
                running @ Judged::Running(_) => Ok(running),
                Judged::New | Judged::Ended(_) | Judged::Lost => Err(fault),
            },
            (Err(fault), Err(_)) => Err(fault),
        }
    }

    /// Has a unit stopped, with more force after a while, and waits for its end.
    async fn stop_unit(&self, instance: &str) -> Result<(), Fault> {
        let unit = unit_name(instance);
        let left = Fault::transport(format!(
            "{unit} was told to stop, and something of it still runs: systemctl status {unit}"
        ));
        tokio::time::timeout(KILL_WAIT, self.stopped(&unit)).await.unwrap_or(Err(left))
    }

    async fn stopped(&self, unit: &str) -> Result<(), Fault> {
        self.units.stop(unit).await?;
        for polls in 0_u32.. {
            if !self.units.show(unit).await?.is_some_and(|state| state.busy()) {
                break;
            }
            if polls == FORCE_POLLS {
                // What cannot be signalled is still there at the next look; that look decides.
                let _ = self.units.kill(unit).await;
            }
            pause().await;
        }
        Ok(())
    }
}

impl<U: Units> Jobs for SystemdJobs<U> {
    async fn ask(&self, cycle: &str) -> Result<JobStatus, Fault> {
        let note = match self.stored(cycle).await? {
            Stored::Nothing => return Ok(JobStatus::New),
            Stored::Settled(status) => return Ok(status),
            Stored::Noted(note) => note,
        };
        match self.judged(&note).await? {
            Judged::New => Ok(JobStatus::New),
            Judged::Running(invocation) => {
                if invocation.is_some() && invocation != note.invocation {
                    self.write_note(cycle, Note { invocation, accepted: true, ..note }).await?;
                }
                Ok(JobStatus::Running)
            }
            Judged::Ended(verdict) => {
                // The unit's line gives way to that of its next run. Where the disk does not take it, the line stands.
                let _ = self.write_verdict(cycle, verdict.clone()).await;
                Ok(JobStatus::Ended(verdict))
            }
            Judged::Lost => Ok(JobStatus::Lost),
        }
    }

    async fn start(&self, cycle: &str, job: &JobSpec, _timeout_ms: u64) -> Result<(), Fault> {
        if self.ask(cycle).await? != JobStatus::New {
            return Ok(());
        }
        let noted = match self.stored(cycle).await? {
            Stored::Settled(_) => return Ok(()),
            Stored::Noted(note) => Some(note),
            Stored::Nothing => None,
        };
        let (unit, state) = match self.loaded(job).await {
            Ok(loaded) => loaded,
            Err(fault) if fault.class != Class::Refused => return Err(fault),
            Err(fault) => return self.write_verdict(cycle, not_started(&fault.message)).await,
        };
        if state.busy() && noted.is_some() {
            // The start before this one has arrived after all; the next question finds it.
            return Ok(());
        }
        if state.busy() {
            let why = format!("{unit} runs already, and not for this cycle: systemctl status {unit}");
            return self.write_verdict(cycle, not_started(&why)).await;
        }
        let note = if let Some(note) = noted {
            // As the first start has left it: what came since may be its own.
            note
        } else {
            let instance = job.unit.as_deref().unwrap_or_default().to_owned();
            let line = self.line(&instance).await?.map(|line| line.invocation);
            let before = std::iter::once(state.invocation).chain(line).filter(|invocation| !invocation.is_empty());
            let boot = blocking(|| machine::boot_id().map(|boot| boot.0.to_string())).await?;
            Note { instance, boot, before: before.collect(), accepted: false, invocation: None }
        };
        self.write_note(cycle, note.clone()).await?;
        let (root, path) = (Arc::clone(&self.root), self.path(cycle)?);
        blocking(move || {
            prune(&root, &path);
            Ok(())
        })
        .await?;
        match self.units.start(&unit).await {
            Ok(()) => self.write_note(cycle, Note { accepted: true, ..note }).await,
            Err(NoStart::Refused(why)) => self.write_verdict(cycle, not_started(&why)).await,
            Err(NoStart::Doubt(fault)) => Err(fault),
        }
    }

    async fn running(&self) -> Result<Vec<String>, Fault> {
        let root = Arc::clone(&self.root);
        let noted = blocking(move || notes(&root)).await?;
        let mut running = Vec::new();
        for unit in self.units.busy().await? {
            let instance = unit.strip_prefix("backstop-job@").and_then(|rest| rest.strip_suffix(".service"));
            let Some(instance) = instance.filter(|instance| check_instance(instance).is_ok()) else { continue };
            let cycle = noted.iter().rev().find(|(_, note)| note.instance == instance).map(|(cycle, _)| cycle.clone());
            // A unit that no note knows of has its own name.
            running.push(cycle.unwrap_or_else(|| instance.to_owned()));
        }
        running.sort();
        Ok(running)
    }

    async fn kill(&self, cycle: &str) -> Result<(), Fault> {
        let note = match self.stored(cycle).await? {
            Stored::Nothing => {
                // Called off for good, also where a unit of this name runs that no state knows of.
                let path = self.path(cycle)?;
                blocking(move || JobDir::create(&path)?.call_off().map(|_| ())).await?;
                if check_instance(cycle).is_ok() && self.units.show(&unit_name(cycle)).await?.is_some_and(|u| u.busy())
                {
                    self.stop_unit(cycle).await?;
                }
                return self.write_verdict(cycle, killed(None)).await;
            }
            Stored::Settled(_) => return Ok(()),
            Stored::Noted(note) => note,
        };
        match self.judged(&note).await? {
            // What a job that has ended left to others is meant to run.
            Judged::Ended(_) => Ok(()),
            // The unit of one run alone: what runs under its name is this job, whatever is known of it.
            Judged::Lost if note.instance.starts_with(RUN_PREFIX) => self.stop_unit(&note.instance).await,
            // Whether it ran is not known, and it does not run.
            Judged::Lost => Ok(()),
            Judged::New => {
                // A start without an answer may still be on its way: this comes behind it.
                self.stop_unit(&note.instance).await?;
                self.write_verdict(cycle, killed(None)).await
            }
            Judged::Running(_) => {
                self.stop_unit(&note.instance).await?;
                let line = self.line(&note.instance).await.ok().flatten();
                self.write_verdict(cycle, killed(line.as_ref())).await
            }
        }
    }
}

fn killed(line: Option<&Line>) -> Verdict {
    let said = line.map(Line::verdict);
    Verdict {
        result: JobResult::Killed,
        reboot_needed: false,
        output_tail: said.map_or_else(|| "".into(), |verdict| verdict.output_tail),
        codes: ExitCodes::Plain,
    }
}

/// Every cycle with a note, the oldest first.
fn notes(root: &Path) -> io::Result<Vec<(String, Note)>> {
    let entries = match std::fs::read_dir(root) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Ok(cycle) = entry.file_name().into_string() else { continue };
        // One that cannot be read does not hide the others.
        if let Ok(Some(note)) = JobDir::open(&entry.path()).and_then(|dir| dir.note()) {
            found.push((entry.metadata()?.modified()?, cycle, note));
        }
    }
    found.sort_by_key(|(modified, ..)| *modified);
    Ok(found.into_iter().map(|(_, cycle, note)| (cycle, note)).collect())
}

/// `None` = no line. What cannot be understood is none either: then the job counts as lost.
fn read_line(dir: &Path, instance: &str) -> io::Result<Option<Line>> {
    use std::os::unix::fs::MetadataExt as _;
    let disk = match LinuxDisk::open_existing(dir, ENDED_BYTES_MAX) {
        Ok(disk) => disk,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let meta = std::fs::metadata(dir)?;
    let owner = meta.uid();
    if (owner != 0 && owner != rustix::process::geteuid().as_raw()) || meta.mode() & 0o022 != 0 {
        let why = format!("{} may be written to by others than root: chown root, chmod g-w,o-w", dir.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    match disk.read(instance) {
        Ok(bytes) => Ok(bytes.and_then(|bytes| Line::parse(&bytes))),
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(e) => Err(e),
    }
}

#[expect(clippy::disallowed_methods, reason = "what is waited for is systemd, in real time")]
async fn pause() {
    tokio::time::sleep(POLL).await;
}

/// A disk that hangs must not keep the agent.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> Result<T, Fault> {
    match crate::bounded::blocking(DISK_WAIT, work).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) => Err(Fault::transport(format!("the job's files: {e}"))),
        Err(why) => Err(Fault::transport(format!("the job's files: {why}"))),
    }
}

#[cfg(test)]
mod contract;
#[cfg(test)]
mod tests;
