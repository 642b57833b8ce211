//! The patch job: what was asked for, and the verdict that outlives every process that waits for it.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One job of one cycle. The id is the cycle's, so asking twice means the same job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobSpec {
    /// What a person calls it, for pages and for "same job?".
    pub name: Arc<str>,
    /// Program and arguments; never a shell line.
    pub argv: Vec<Arc<str>>,
    /// The job restarts the machine by itself: a changed boot id while it runs is not a failure.
    pub reboots: bool,
    /// When the machine is restarted after a good job.
    pub reboot: RebootPolicy,
}

impl JobSpec {
    /// The same work: asked for again, a run attaches instead of being refused.
    pub fn same_as(&self, other: &JobSpec) -> bool {
        self == other
    }
}

/// `--reboot`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebootPolicy {
    /// Never.
    Never,
    /// When the verdict says so.
    #[default]
    WhenNeeded,
    /// After every good job.
    Always,
}

/// How a job ended: written durably by whoever waited for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Verdict {
    /// How it ended.
    pub result: JobResult,
    /// The machine asks for a restart (marker files, or the job's exit code).
    pub reboot_needed: bool,
    /// Last lines of its output, bounded, for the page.
    pub output_tail: Arc<str>,
}

impl Verdict {
    /// Only this is success.
    pub fn good(&self) -> bool {
        self.result == JobResult::Exited(0)
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobResult {
    /// Its direct child ended with this code.
    Exited(i32),
    /// Ended by this signal.
    Signalled(i32),
    /// Ran longer than it may; its whole group was killed.
    TimedOut,
    /// Killed because the cycle asked for it.
    Killed,
    /// Could not be started at all.
    NotStarted(Arc<str>),
}

impl fmt::Display for JobResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobResult::Exited(code) => write!(f, "exit {code}"),
            JobResult::Signalled(signal) => write!(f, "ended by signal {signal}"),
            JobResult::TimedOut => f.write_str("ran out of time and was killed"),
            JobResult::Killed => f.write_str("killed"),
            JobResult::NotStarted(why) => write!(f, "could not be started: {why}"),
        }
    }
}

/// What the runner knows about a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum JobStatus {
    /// Never started.
    New,
    /// Running now.
    Running,
    /// Ended, and this is the durable verdict.
    Ended(Verdict),
    /// Started, not running, and no verdict: what it did is not known.
    Lost,
}
