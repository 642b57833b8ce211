//! What goes over the control socket: JSON bodies of an HTTP API, version 1. `--json` prints these, so they are a stable
//! contract: fields are added, never renamed or removed.

use crate::core::cycle::{Ended, StageName};
use crate::core::finding::Finding;
use crate::core::guard::{Verdict, Verdicts};
use crate::core::job::RebootPolicy;
use crate::core::page::{Page, Severity};
use crate::core::record::Record;
use crate::core::target::Target;
use serde::{Deserialize, Serialize};

/// Version of this contract, in every answer.
pub const VERSION: u32 = 1;

/// An agent whose beat is older than this is called silent, in ms.
pub const SILENT_MS: u64 = 60_000;

/// `GET /v1/status`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// [`VERSION`]
    pub v: u32,
    /// Version of the agent.
    pub agent: String,
    /// Fleet name.
    pub fleet: String,
    /// This node's name.
    pub node: String,
    /// This instance.
    pub instance: String,
    /// `act` or `observe`
    pub mode: String,
    /// Why the config file cannot be used at present; the last good one is in force, and no cycle starts.
    pub config_problem: Option<String>,
    /// The present wall time of the agent, in ms since 1970.
    pub now_ms: u64,
    /// `minimum_healthy`
    pub minimum_healthy: u32,
    /// `max_unavailable`
    pub max_unavailable: u32,
    /// Members in service by the last complete read; absent = unknown.
    pub in_service: Option<u32>,
    /// One line per member.
    pub nodes: Vec<NodeStatus>,
    /// The cycle of this node.
    pub cycle: Option<CycleStatus>,
    /// How the last one on this node ended.
    pub last: Option<Ended>,
    /// The fleet record by the last read; absent = unknown.
    pub record: Option<Record>,
    /// Pages that no sink has accepted yet.
    pub pages_waiting: Vec<Page>,
    /// The last page that a sink accepted: its number and when, in ms since 1970.
    pub last_page_accepted: Option<(u64, u64)>,
    /// What that page was about (its kind), and the sink that accepted it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_page: Option<(String, String)>,
    /// What this agent's looks find wrong, worst first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// Alerts of this agent, those that fire first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alerts: Vec<AlertStatus>,
    /// Alerts that no sink has accepted yet.
    #[serde(default)]
    pub undelivered: u32,
    /// This node is out with no cycle to explain it, and registers itself in so many ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heals_in_ms: Option<u64>,
    /// Age of each source, and its last fault.
    pub sees: Vec<Source>,
    /// The refusal that a run on this node would meet now, by what this agent has read already; absent = none that it knows of
    /// (`check` asks every guard).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would_refuse: Option<Verdict>,
    /// What a person should look at though nothing is wrong yet.
    pub warnings: Vec<String>,
    /// The exact next command.
    pub next: Option<String>,
    /// What the agent waits for before it can tell anything else: it has just been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starting: Option<String>,
}

/// One alert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertStatus {
    /// Fleet, kind, subject: what a pager knows it by.
    pub key: String,
    /// Kind label.
    pub kind: String,
    /// What it is about.
    pub subject: String,
    /// How bad.
    pub severity: Severity,
    /// `firing`, `folded` (told in the page of a larger one), `held` (waits for its minute) or `resolved`
    pub state: String,
    /// Firing since, in ms since 1970.
    pub since_ms: u64,
    /// Over since, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_ms: Option<u64>,
    /// The key of the alert in whose page it is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told_in: Option<String>,
    /// What is so.
    pub sentence: String,
    /// Somebody has been told.
    pub told: bool,
    /// By pager.
    pub sinks: Vec<SinkStatus>,
}

/// What one pager has of an alert.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkStatus {
    /// Which.
    pub sink: String,
    /// It accepted something last, in ms since 1970.
    pub accepted_ms: Option<u64>,
    /// Why the last try failed.
    pub fault: Option<String>,
    /// It refuses for good.
    pub refused: bool,
    /// The instance whose agent has had it accepted there.
    pub covered_by: Option<String>,
}

/// `POST /v1/alert/test`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestRequest {
    /// Only this pager; absent = all.
    pub sink: Option<String>,
}

/// Answer to `alert test`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestReply {
    /// [`VERSION`]
    pub v: u32,
    /// By pager.
    pub results: Vec<TestResult>,
    /// 0 where all have accepted both messages.
    pub exit: u8,
    /// The exact next command.
    pub next: Option<String>,
}

/// What came of a test of one pager.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestResult {
    /// Which.
    pub sink: String,
    /// It accepted the page and its end.
    pub accepted: bool,
    /// How it went.
    pub message: String,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Node name.
    pub node: String,
    /// Instance.
    pub instance: String,
    /// This agent's own node.
    pub own: bool,
    /// `in`, `OUT` or `unknown`
    pub service: String,
    /// What each group says of its target.
    pub targets: Vec<(String, String)>,
    /// In or out of service since, by this agent's own looks, in ms since 1970; absent = since before it looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since_ms: Option<u64>,
    /// Its targets: what would be registered by hand where its agent is dead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub registers_as: Vec<Target>,
    /// What it is doing, by its member document and the record.
    pub doing: String,
    /// Version of its agent.
    pub agent: String,
    /// Age of its last beat by this agent's own clock since it saw it change, in ms.
    pub beat_age_ms: Option<u64>,
}

/// One source of what an agent knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// `load balancer`, `cluster`, `fleet record`, `members`
    pub source: String,
    /// Age of the last complete answer, in ms; absent = never.
    pub age_ms: Option<u64>,
    /// The last fault, where the last try failed.
    pub fault: Option<String>,
}

/// The cycle under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CycleStatus {
    /// Its id.
    pub cycle: String,
    /// `patch`, `hold`, `return` or `recovery`
    pub kind: String,
    /// Its job's name.
    pub job: String,
    /// Present stage.
    pub stage: StageName,
    /// Since when, in ms since 1970.
    pub stage_since_ms: u64,
    /// Out of service since, in ms since 1970.
    pub out_since_ms: Option<u64>,
    /// What it waits for, in words (the `STATUS=` line).
    pub waiting_for: String,
    /// Failing tries in a row.
    pub tries: u32,
    /// The last fault.
    pub fault: Option<String>,
    /// Failed: stage, class, message.
    pub failure: Option<(StageName, String, String)>,
    /// Ended early: why.
    pub early: Option<String>,
    /// A deadline of the way back has passed.
    pub late: bool,
    /// Ms left of the stage's deadline; 0 = passed.
    pub deadline_left_ms: u64,
}

/// `POST /v1/run`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunRequest {
    /// What a person calls it; default: the program's file name.
    pub name: String,
    /// Program and arguments; empty with a unit that the administrator has defined.
    pub argv: Vec<String>,
    /// Instance name of the unit `backstop-job@….service` that does it: the job's name, or that of this run alone, which
    /// root has defined before it asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// `--reboot`
    pub reboot: RebootPolicy,
    /// `--job-reboots`: the job restarts the machine by itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub job_reboots: bool,
    /// Only to be told a verdict that is owed for this job (`--reboot=ssm`): where none is, the answer is a refusal with
    /// exit code 0, and nothing has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub only_owed: bool,
    /// Guards overridden for this run.
    pub overrides: Vec<String>,
    /// Why; required with overrides.
    pub reason: Option<String>,
    /// Idempotency key: the same request sent twice starts one cycle.
    pub request_id: String,
}

/// Answer to `run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum RunReply {
    /// A cycle began.
    Started {
        /// Its id.
        cycle: String,
        /// Node name.
        node: String,
        /// Fleet name.
        fleet: String,
    },
    /// The same job is under way already, or its verdict is what was asked for.
    Attached {
        /// Its id.
        cycle: String,
        /// Node name.
        node: String,
        /// Fleet name.
        fleet: String,
        /// The unit of the job that is under way.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unit: Option<String>,
    },
    /// Nothing was changed.
    Refused {
        /// Exit code.
        exit: u8,
        /// Why.
        message: String,
        /// All guards, where they were looked at.
        verdicts: Option<Verdicts>,
        /// The exact next command.
        next: Option<String>,
    },
}

/// `POST /v1/check`: may this node leave now?
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReply {
    /// [`VERSION`]
    pub v: u32,
    /// Node name.
    pub node: String,
    /// All guards.
    pub verdicts: Verdicts,
    /// What `run` would exit with now.
    pub exit: u8,
    /// What a person should look at though nothing is wrong yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// How long a cycle would take without its job, in ms, with its parts.
    pub would_take: Vec<(String, u64)>,
    /// The exact next command.
    pub next: Option<String>,
}

/// `GET /v1/progress?cycle=ID&after=N`: waits up to 20 s for something new.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Steps after N, oldest first.
    pub steps: Vec<ProgressStep>,
    /// The cycle is over.
    pub ended: Option<Ended>,
    /// A way-back deadline has passed: the node is OUT, the agent goes on.
    pub late: bool,
    /// The restart of the machine is the caller's, who asked for `--reboot=ssm`, and everything is ready for it.
    #[serde(default)]
    pub awaits_restart: bool,
    /// The agent knows no such cycle.
    pub unknown: bool,
}

/// One line of progress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgressStep {
    /// Its number.
    pub n: u64,
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// Which stage it is about.
    pub stage: StageName,
    /// What happened.
    pub text: String,
    /// How long that stage took, where it ended, in ms.
    pub took_ms: Option<u64>,
}

/// `POST /v1/rejoin`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RejoinRequest {
    /// Why.
    pub reason: String,
    /// Register without the node check (admin).
    pub skip_check: bool,
}

/// `POST /v1/hold`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HoldRequest {
    /// For how long, in seconds, at most 7 days.
    pub for_s: u64,
    /// No self-heal anywhere until it ends, instead of taking this node out.
    pub all: bool,
    /// Why.
    pub reason: String,
}

/// `POST /v1/pause`, `/v1/unpause`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReasonRequest {
    /// Why.
    pub reason: String,
}

/// `POST /v1/latch/clear`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClearRequest {
    /// The latch, `L-…`.
    pub latch: String,
    /// Why.
    pub reason: String,
    /// Although that node is out.
    pub unresolved: bool,
}

/// `POST /v1/retire`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetireRequest {
    /// Which node, by name or instance id.
    pub node: String,
    /// Why.
    pub reason: String,
}

/// `POST /v1/init`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitRequest {
    /// Needed where there is a record already, or was one.
    pub reason: Option<String>,
}

/// Answer of every verb that changes something.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Done {
    /// 0, or the exit code.
    pub exit: u8,
    /// What was done, or why not.
    pub message: String,
    /// The exact next command.
    pub next: Option<String>,
}

/// `GET /v1/explain?node=NAME`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Explain {
    /// [`VERSION`]
    pub v: u32,
    /// About which node.
    pub node: String,
    /// There is no such node, as far as this agent knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unknown: bool,
    /// What is so, and why each thing is not happening; each line is a sentence.
    pub lines: Vec<String>,
    /// The exact next commands.
    pub next: Vec<String>,
}

/// `GET /v1/history`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// [`VERSION`]
    pub v: u32,
    /// Lines of the audit journal of this node, oldest first.
    pub lines: Vec<serde_json::Value>,
}

/// Answer where there is no other: the request was not carried out, nothing was changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ApiError {
    /// [`VERSION`]
    pub v: u32,
    /// What is wrong.
    pub error: String,
    /// What would be right.
    pub expected: String,
    /// What to do now.
    pub next: String,
    /// What else helps: where nobody answers, who can be asked instead.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// The exit code for it.
    pub exit: u8,
}

/// `run --json` and `wait --json`: how it ended, whatever happened. Made by the CLI.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`VERSION`]
    pub v: u32,
    /// Node name, where known.
    pub node: Option<String>,
    /// Fleet name, where known.
    pub fleet: Option<String>,
    /// The cycle, where there is one.
    pub cycle: Option<String>,
    /// It was under way already.
    pub attached: bool,
    /// The node left, or its job ran. `None` = not known (yet).
    pub changed: Option<bool>,
    /// The exit code of this command.
    pub exit: u8,
    /// What happened, for people.
    pub message: String,
    /// How the cycle ended, where it has.
    pub ended: Option<Ended>,
    /// All guards, where the run was refused and they were looked at.
    pub verdicts: Option<Verdicts>,
    /// The exact next command.
    pub next: Option<String>,
}

/// `latch list --json`. Made by the CLI from the status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latches {
    /// [`VERSION`]
    pub v: u32,
    /// Age of the record that they were read from, in ms.
    pub record_age_ms: Option<u64>,
    /// Open ones.
    pub latches: Vec<LatchStatus>,
}

/// One open latch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatchStatus {
    /// `L-…`
    pub id: String,
    /// The cycle that failed.
    pub cycle: String,
    /// What is said of it.
    pub latch: crate::core::record::Latch,
}
