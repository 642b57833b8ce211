//! The patch job: what was asked for, and the verdict that outlives every process that waits for it.

use super::cycle::Ended;
use super::exit_codes::ExitCodes;
use super::ids::CycleId;
use super::time::Now;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// One job of one cycle. The id is the cycle's, so asking twice means the same job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobSpec {
    /// What a person calls it, for pages and for "same job?".
    pub name: Arc<str>,
    /// Program and arguments; never a shell line. Empty: the unit knows.
    pub argv: Vec<Arc<str>>,
    /// The job restarts the machine by itself: a changed boot id while it runs is not a failure.
    pub reboots: bool,
    /// When the machine is restarted after a good job.
    pub reboot: RebootPolicy,
    /// Instance name of the systemd unit that does it; without one a process does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Arc<str>>,
}

/// Instance names of units that `backstop run -- COMMAND` defines begin so, and no others.
pub const RUN_PREFIX: &str = "run-";

impl JobSpec {
    /// The same work: asked for again, a run attaches instead of being refused. Each `backstop run -- COMMAND` defines a
    /// unit of its own for the same command.
    pub fn same_as(&self, other: &JobSpec) -> bool {
        self.work() == other.work()
    }

    /// A number for the work, the same in every version: to know it again without keeping it.
    pub fn fingerprint(&self) -> u64 {
        let (name, argv, reboots, reboot, unit) = self.work();
        let policy = match reboot {
            RebootPolicy::Never => "never",
            RebootPolicy::WhenNeeded => "when-needed",
            RebootPolicy::Always => "always",
            RebootPolicy::Ssm => "ssm",
        };
        let fixed = [name, policy, if reboots { "reboots" } else { "" }, unit.unwrap_or_default()];
        let words = fixed.into_iter().chain(argv.iter().map(|a| &**a));
        // FNV-1a; a zero stands between words, which no argument can have in it.
        let bytes = words.flat_map(|word| word.bytes().chain([0]));
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
    }

    fn work(&self) -> (&str, &[Arc<str>], bool, RebootPolicy, Option<&str>) {
        let named = self.unit.as_deref().filter(|unit| !unit.starts_with(RUN_PREFIX));
        (&self.name, &self.argv, self.reboots, self.reboot, named)
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
    /// When the verdict says so, by the SSM agent: it restarts the machine where the script that it runs ends with 194, and
    /// runs that script again afterwards.
    Ssm,
}

/// A verdict that is owed to whoever asks for its job next: that caller was told to restart the machine, and to come back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Owed {
    /// Whose.
    pub cycle: CycleId,
    /// The fingerprint of its job.
    pub job: u64,
    /// Since when, in ms since 1970.
    pub since_ms: u64,
    /// The verdict, as soon as there is one: another cycle may end before it is asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Ended>,
    /// The request that has got it. Its answer may have been lost: the same request gets it again, and no other one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_by: Option<Arc<str>>,
}

/// A verdict is owed for so long, in ms: whoever asks for the same job later wants it done again.
pub const OWED_MS: u64 = 24 * 3_600_000;

impl Owed {
    /// It is what this request for this job is owed now.
    pub fn counts(&self, job: &JobSpec, request: &str, now: &Now) -> bool {
        self.taken_by.as_deref().is_none_or(|by| by == request)
            && self.job == job.fingerprint()
            && now.wall_ms.saturating_sub(self.since_ms) < OWED_MS
    }
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
    /// What its exit codes mean.
    #[serde(default, skip_serializing_if = "ExitCodes::is_plain")]
    pub codes: ExitCodes,
}

impl Verdict {
    /// Only this is success: an exit with a code that stands for it.
    pub fn good(&self) -> bool {
        match self.result {
            JobResult::Exited(code) => self.codes.good(code),
            JobResult::Signalled(_) | JobResult::TimedOut | JobResult::Killed | JobResult::NotStarted(_) => false,
        }
    }

    /// The machine is to be restarted: a marker file says so, or a code of this table.
    pub fn wants_reboot(&self) -> bool {
        let by_code = matches!(self.result, JobResult::Exited(code) if self.codes.wants_reboot(code));
        self.reboot_needed || by_code
    }

    /// How it ended, with what its code means where that is known.
    pub fn said(&self) -> String {
        match self.result {
            JobResult::Exited(code) => match self.codes.said(code) {
                Some(means) => format!("exit {code} ({}: {means})", self.codes.label()),
                None => self.result.to_string(),
            },
            JobResult::Signalled(_) | JobResult::TimedOut | JobResult::Killed | JobResult::NotStarted(_) => {
                self.result.to_string()
            }
        }
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

/// An instance name that needs no escaping in a unit's name, a file's name or the rule of polkit.
///
/// # Errors
/// What is expected.
pub fn check_instance(instance: &str) -> Result<(), &'static str> {
    let fine = !instance.is_empty()
        && instance.len() <= 128
        && !instance.starts_with(['.', '-'])
        && instance.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if fine { Ok(()) } else { Err("letters, digits, '.', '_' and '-', at most 128, the first a letter, digit or '_'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_a_plain_name() {
        for bad in ["", ".", "..", "-x", "a/b", "a b", "a@b", "a\\x2d", "ä", "a\0", &"a".repeat(129)] {
            assert!(check_instance(bad).is_err(), "{bad:?}");
        }
        for good in ["apt-security", "run-0198d5c0-7a3e-7cc1-b0d0-3f2b1a6e9c11", "a.b_c", "_"] {
            assert!(check_instance(good).is_ok(), "{good}");
        }
    }

    fn job(unit: Option<&str>, argv: &[&str]) -> JobSpec {
        JobSpec {
            name: "patch".into(),
            argv: argv.iter().map(|a| (*a).into()).collect(),
            reboots: false,
            reboot: RebootPolicy::WhenNeeded,
            unit: unit.map(Arc::from),
        }
    }

    #[test]
    fn the_same_command_is_the_same_job_whatever_unit_was_defined_for_it() {
        let first = job(Some("run-1"), &["apt-get", "upgrade"]);
        assert!(first.same_as(&job(Some("run-2"), &["apt-get", "upgrade"])));
        assert!(first.same_as(&job(None, &["apt-get", "upgrade"])));
        assert!(!first.same_as(&job(Some("run-2"), &["apt-get", "dist-upgrade"])));
        assert!(!job(Some("security"), &[]).same_as(&job(Some("kernel"), &[])));
        let numbers = [
            first.fingerprint(),
            job(Some("run-2"), &["apt-get", "dist-upgrade"]).fingerprint(),
            job(Some("run-2"), &["apt-getupgrade"]).fingerprint(),
            JobSpec { reboot: RebootPolicy::Ssm, ..first.clone() }.fingerprint(),
            job(Some("kernel"), &["apt-get", "upgrade"]).fingerprint(),
        ];
        assert_eq!(numbers.into_iter().collect::<std::collections::BTreeSet<_>>().len(), 5);
        assert_eq!(numbers[0], job(None, &["apt-get", "upgrade"]).fingerprint());
        assert_eq!(job(None, &[]).fingerprint(), 0x1d8b_6e75_bff1_dfd5, "kept on disks: it may never change");
    }
}
