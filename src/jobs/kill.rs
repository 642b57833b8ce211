//! The end of a job, whatever has become of it and of its supervisor. Blocks until it is gone, and never longer than
//! [`KILL_BOUND_MS`].
//!
//! The supervisor is asked first: it knows the job best. One that does not answer (stopped, hung, on a disk that stalls)
//! is not waited for longer than its grace: the job's processes are ended over its head, and it last. It goes last because
//! it adopts every orphan of the job: while it lives, also what left the session and lost its environment is found by
//! descent.

use super::processes::{self, Process};
use super::supervise::push;
use super::verdict::{JobDir, Started};
use crate::clock::{Clock as _, SystemClock};
use crate::core::exit_codes::ExitCodes;
use crate::core::job::{JobResult, JobStatus, Verdict};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A kill takes at most so long, in milliseconds.
pub const KILL_BOUND_MS: u64 = 20_000;
/// Longer than its grace the supervisor has to write down the verdict, in milliseconds.
const ANSWER_MS: u64 = 2_000;
/// How long the kernel has to end what got a SIGKILL, in milliseconds: the last part of the bound.
const GONE_MS: u64 = 5_000;
/// How often is looked, in milliseconds.
const POLL_MS: u64 = 50;

/// What came of asking the supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It wrote the verdict.
    Ended,
    /// It is gone without one.
    Gone,
    /// It lives and does nothing.
    Silent,
}

/// Milliseconds since the kill began.
struct Elapsed {
    clock: SystemClock,
    begun_ms: u64,
}

impl Elapsed {
    fn begin() -> io::Result<Elapsed> {
        let clock = SystemClock::new().map_err(io::Error::other)?;
        let begun_ms = clock.now().since_boot_ms;
        Ok(Elapsed { clock, begun_ms })
    }

    fn ms(&self) -> u64 {
        self.clock.now().since_boot_ms.saturating_sub(self.begun_ms)
    }
}

/// Ends a job; `Ok`: nothing of it is left.
pub(super) fn kill(path: &Path, grace_ms: u64) -> io::Result<()> {
    let elapsed = Elapsed::begin()?;
    let dir = JobDir::create(path)?;
    // Nobody has it yet: from here on nobody will.
    if dir.status()? == JobStatus::New && dir.call_off()? {
        return dir.write_verdict(&killed(""));
    }
    // Where it cannot be read who took it, the environment is the only sign left.
    let started = dir.started()?.unwrap_or(Started { pid: 0, start_ticks: 0, boot: String::new() });
    let asked = match dir.status()? {
        // What a job that has ended left running is meant to run.
        JobStatus::Ended(_) => return Ok(()),
        JobStatus::Running => ask_supervisor(&dir, &started, grace_ms, &elapsed)?,
        JobStatus::New | JobStatus::Lost => Asked::Gone,
    };
    if asked == Asked::Ended {
        return Ok(());
    }
    end_all(&dir, &started, grace_ms, &elapsed)?;
    // How a job ended whose supervisor was gone before nobody knows. Here it is known.
    if asked == Asked::Silent && !matches!(dir.status()?, JobStatus::Ended(_)) {
        write_killed(&dir);
    }
    Ok(())
}

fn killed(output_tail: &str) -> Verdict {
    Verdict {
        result: JobResult::Killed,
        reboot_needed: false,
        output_tail: output_tail.into(),
        codes: ExitCodes::Plain,
    }
}

/// A disk that does not take it, also without the output, brings no process back: the job counts as lost then.
fn write_killed(dir: &JobDir) {
    let verdict = killed(&dir.output_tail());
    if dir.write_verdict(&verdict).is_err() {
        dir.drop_output();
        let _ = dir.write_verdict(&verdict);
    }
}

/// The supervisor ends the job and says how, or does nothing for too long.
fn ask_supervisor(dir: &JobDir, started: &Started, grace_ms: u64, elapsed: &Elapsed) -> io::Result<Asked> {
    if dir.ask_to_kill().is_err() {
        return Ok(Asked::Silent);
    }
    let limit_ms = grace_ms.saturating_add(ANSWER_MS).min(KILL_BOUND_MS.saturating_sub(GONE_MS));
    loop {
        let alive = started.alive()?;
        match (dir.status()?, alive) {
            (JobStatus::Ended(_), _) => return Ok(Asked::Ended),
            (_, None) => return Ok(Asked::Gone),
            (_, Some(supervisor)) if supervisor.stopped || elapsed.ms() >= limit_ms => return Ok(Asked::Silent),
            (_, Some(supervisor)) => processes::signal(&supervisor, Signal::TERM)?,
        }
        pause(POLL_MS);
    }
}

/// SIGTERM, grace, SIGKILL to all that belongs to the job, and SIGKILL to its supervisor when nothing else is left.
fn end_all(dir: &JobDir, started: &Started, grace_ms: u64, elapsed: &Elapsed) -> io::Result<()> {
    // Of another boot nothing is left.
    if started.pid > 0 && *crate::host::machine::boot_id()?.0 != *started.boot {
        return Ok(());
    }
    let marks = dir.marks(started);
    let force_ms = elapsed.ms().saturating_add(grace_ms).min(KILL_BOUND_MS.saturating_sub(GONE_MS));
    let mut told = BTreeSet::new();
    loop {
        let left = processes::members(&marks)?;
        let supervisor = started.alive()?;
        match (left.is_empty(), supervisor) {
            (true, None) => return Ok(()),
            (true, Some(supervisor)) => processes::signal(&supervisor, Signal::KILL)?,
            (false, _) => {
                let force = elapsed.ms() >= force_ms;
                for process in &left {
                    push(process, force, &mut told);
                }
            }
        }
        if elapsed.ms() >= KILL_BOUND_MS {
            return Err(survivors(&left, supervisor.as_ref()));
        }
        pause(POLL_MS);
    }
}

fn survivors(left: &[Process], supervisor: Option<&Process>) -> io::Error {
    let pids: Vec<String> = left.iter().chain(supervisor).map(|p| p.pid.to_string()).collect();
    io::Error::new(io::ErrorKind::TimedOut, format!("processes {} of the job cannot be killed", pids.join(", ")))
}

#[expect(clippy::disallowed_methods, reason = "on a thread for blocking work; what is waited for is the kernel")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}
