//! One node's cycle: what is stored ([`Durable`]), and what this process has learnt since it entered the present stage
//! ([`Seen`]). Entry and recovery are the same code: what a stage wants depends on these two alone.

use super::error::{Class, Fault};
use super::exit::Exit;
use super::ids::{CycleId, InstanceId, LatchId, NodeName};
use super::job::{Owed, RebootPolicy, Verdict};
use super::page::Page;
use super::plan::{Kind, Plan};
use super::record::{Extra, Finished, Hold, Latch, RecordSeen};
use super::rules::Mutant;
use super::target::Own;
use super::time::{BootId, Deadline, Dwell, Now};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The schema of [`Durable`] that this version writes.
pub const SCHEMA: u32 = 1;

/// What survives `kill -9`, a reboot and a reinstall. One value, written as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Durable {
    /// Whose state this is: that of another instance is set aside, never resumed.
    pub instance: InstanceId,
    /// The cycle under way; `None` = idle.
    pub cycle: Option<Cycle>,
    /// How the last one ended, for `wait` and `status`.
    pub last: Option<Ended>,
    /// Pages that no sink has accepted yet, oldest first.
    pub pages: Vec<Page>,
    /// Numbers pages.
    pub page_seq: u64,
    /// Wall times of reboots that were asked for, in ms: the daily cap.
    pub reboots_ms: Vec<u64>,
    /// The fleet record as this node last saw it: one that went back is a restored copy.
    #[serde(default)]
    pub record: Option<RecordSeen>,
    /// What the node did before this state began is not known (yet).
    #[serde(default)]
    pub doubt: Option<Doubt>,
    /// It has left for good: nothing is healed, and it is no member, until an operator's `rejoin`.
    #[serde(default)]
    pub retired: bool,
    /// A verdict that is owed to whoever asks for its job next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owed: Option<Owed>,
    /// Wall times at which this node registered itself though no cycle was on its way home, in ms: the daily cap.
    #[serde(default)]
    pub heals_ms: Vec<u64>,
}

/// What is not known of the time before the stored state. Kept until it is settled: a crash must not forget it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Doubt {
    /// There was no state. A fresh node only where an acknowledged record knows nothing of this instance.
    Unproven,
    /// The state was there and could not be read, and the way back is not planned yet.
    Lost {
        /// Why.
        why: Arc<str>,
        /// The cycle that is latched for it.
        cycle: CycleId,
    },
}

/// A cycle under way.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that must not be forgotten")]
pub struct Cycle {
    /// What it is about.
    pub plan: Arc<Plan>,
    /// Where it is.
    pub stage: Stage,
    /// Until when this stage may take.
    pub deadline: Deadline,
    /// When the stage was entered.
    pub entered: Now,
    /// When the first call that leads out was decided: from here on the node may be out.
    pub out_since: Option<Now>,
    /// Connections that were left when the drain's time was over, and were cut.
    #[serde(default)]
    pub cut: Option<u32>,
    /// The job runner has the job: from here on one that does not know it has lost it.
    #[serde(default)]
    pub job_started: bool,
    /// How the job ended.
    pub verdict: Option<Verdict>,
    /// The job may still run and has to be killed.
    pub kill_job: bool,
    /// The page that it could not be killed has been raised.
    pub kill_paged: bool,
    /// The first failure. There is no second one: a failure never chooses another road.
    pub failure: Option<Failure>,
    /// Ended early without a failure: by an operator or a guard.
    pub early: Option<Early>,
    /// A deadline of the way back has passed: the node is OUT beyond its budget.
    pub late: Option<StageName>,
    /// It went from settle back to register: the deadline is not given anew.
    pub bounced: bool,
    /// The page about a call that is refused on the way back has been raised.
    pub refused_paged: bool,
    /// The page that only the disk keeps the slot from being given back has been raised.
    #[serde(default)]
    pub disk_paged: bool,
    /// An operator said to register without the node check, and why.
    pub skip_check: Option<Arc<str>>,
    /// An operator's hold on the way back that waits for its acknowledgement. Stored before it is written.
    pub hold: Option<Hold>,
}

impl Cycle {
    /// Its caller's exit code has somebody else restart the machine: here that is only waited for.
    pub fn by_ssm(&self) -> bool {
        self.plan.job().is_some_and(|job| job.reboot == RebootPolicy::Ssm)
    }

    /// The restart is that of its caller, and everything here is ready for it.
    pub fn awaits_restart(&self) -> bool {
        self.by_ssm() && matches!(self.stage, Stage::Reboot { asked, .. } if asked > 0)
    }
}

/// Stages with the data that only they need.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Guards and slot. `acked`: the slot was acknowledged, and that is on the disk.
    Claim {
        /// See above.
        acked: bool,
    },
    /// Out of each group.
    Deregister,
    /// Until every group says gone, and nobody is connected any more.
    Drain,
    /// The job.
    Patch,
    /// The machine restarts.
    Reboot {
        /// The boot that has to end.
        from: BootId,
        /// Times asked for.
        asked: u8,
    },
    /// An operator keeps the node out until then.
    Held {
        /// Its time.
        until: Deadline,
    },
    /// The node check.
    Check,
    /// Back into each group.
    Register,
    /// Healthy in each group, and for a while.
    Settle,
    /// Give back the slot.
    Release,
}

/// A stage without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StageName {
    /// See [`Stage`].
    Claim,
    /// See [`Stage`].
    Deregister,
    /// See [`Stage`].
    Drain,
    /// See [`Stage`].
    Patch,
    /// See [`Stage`].
    Reboot,
    /// See [`Stage`].
    Held,
    /// See [`Stage`].
    Check,
    /// See [`Stage`].
    Register,
    /// See [`Stage`].
    Settle,
    /// See [`Stage`].
    Release,
}

impl StageName {
    /// All of them, in the order of the road.
    pub const ALL: [StageName; 10] = [
        StageName::Claim,
        StageName::Deregister,
        StageName::Drain,
        StageName::Patch,
        StageName::Reboot,
        StageName::Held,
        StageName::Check,
        StageName::Register,
        StageName::Settle,
        StageName::Release,
    ];

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            StageName::Claim => "claim",
            StageName::Deregister => "deregister",
            StageName::Drain => "drain",
            StageName::Patch => "patch",
            StageName::Reboot => "reboot",
            StageName::Held => "held",
            StageName::Check => "check",
            StageName::Register => "register",
            StageName::Settle => "settle",
            StageName::Release => "release",
        }
    }

    /// The way back.
    pub const fn homeward(self) -> bool {
        matches!(self, StageName::Check | StageName::Register | StageName::Settle)
    }
}

impl fmt::Display for StageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

impl Stage {
    /// Its name.
    pub const fn name(&self) -> StageName {
        match self {
            Stage::Claim { .. } => StageName::Claim,
            Stage::Deregister => StageName::Deregister,
            Stage::Drain => StageName::Drain,
            Stage::Patch => StageName::Patch,
            Stage::Reboot { .. } => StageName::Reboot,
            Stage::Held { .. } => StageName::Held,
            Stage::Check => StageName::Check,
            Stage::Register => StageName::Register,
            Stage::Settle => StageName::Settle,
            Stage::Release => StageName::Release,
        }
    }
}

/// Why a cycle failed, by class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FailureClass {
    /// A call kept failing until the stage's deadline, in this class.
    Call(Class),
    /// The stage's deadline passed though calls were answered.
    Deadline,
    /// The job failed.
    Job,
    /// The job was started and left no verdict.
    JobLost,
    /// The machine did not reboot, or too often.
    NotRebooted,
    /// The machine rebooted during a job that did not declare it.
    BootChanged,
    /// Somebody else registered the target while the node was out.
    RegisteredAgain,
    /// Clients were still connected when the drain's time was over, and config says that this is a failure.
    Connections,
    /// The state could not be written.
    Disk,
    /// The state could not be read.
    State,
    /// An operator ended the cycle after the job had started.
    Cancelled,
    /// The slot was gone, or a latch was set, after the job might have started.
    SlotLost,
}

impl FailureClass {
    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            FailureClass::Call(class) => class.label(),
            FailureClass::Deadline => "deadline",
            FailureClass::Job => "job",
            FailureClass::JobLost => "job-lost",
            FailureClass::NotRebooted => "not-rebooted",
            FailureClass::BootChanged => "boot-changed",
            FailureClass::RegisteredAgain => "registered-again",
            FailureClass::Connections => "connections",
            FailureClass::Disk => "disk",
            FailureClass::State => "state",
            FailureClass::Cancelled => "cancelled",
            FailureClass::SlotLost => "slot-lost",
        }
    }
}

/// The first failure of a cycle.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// Where.
    pub stage: StageName,
    /// What kind.
    pub class: FailureClass,
    /// For people.
    pub message: Arc<str>,
    /// When.
    pub at: Now,
}

/// A cycle that ends early without having failed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Early {
    /// What the caller is told.
    pub exit: Exit,
    /// Why, for people.
    pub message: Arc<str>,
}

/// How a cycle ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ended {
    /// Which.
    pub cycle: CycleId,
    /// The request that it answered.
    pub request: Arc<str>,
    /// Its job's name.
    pub job: Arc<str>,
    /// The verdict.
    pub exit: Exit,
    /// For people.
    pub message: Arc<str>,
    /// The latch that it left.
    pub latch: Option<LatchId>,
    /// How its job ended.
    pub verdict: Option<Verdict>,
    /// When.
    pub at: Now,
    /// How long the node was out, in ms.
    pub out_ms: u64,
}

/// What a crash forgets. All but the last three fields are also forgotten on entering a stage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that was learnt")]
pub struct Seen {
    /// When this stage's compare-and-set was acknowledged.
    pub acked_at: Option<Now>,
    /// The record's leavers in that acknowledgement.
    pub leavers: BTreeSet<InstanceId>,
    /// Enough others stay, by a read begun after the acknowledgement.
    pub floor: bool,
    /// All guards passed after the acknowledgement.
    pub guards: bool,
    /// Groups whose call was made, a bit each.
    pub called: u16,
    /// Groups whose register call was accepted, a bit each.
    pub accepted: u16,
    /// What the last read said of the own target, by group; empty = not read in this stage.
    pub own: Vec<Own>,
    /// Reads in a row, by group, that listed others and not the own target.
    pub no_row: Vec<u8>,
    /// Reads in a row that show the target registered though it was taken out.
    pub again: u8,
    /// A fresh read shows gone in every group.
    pub gone: bool,
    /// The job is not running and never was (asked in this stage).
    pub job_new: bool,
    /// Its start, or the reboot, was asked for in this stage.
    pub started: bool,
    /// A start of the job came back with a fault: it may have started all the same.
    pub start_failed: bool,
    /// The left-over job was killed, or that was tried.
    pub killed: bool,
    /// Node checks in a row that passed.
    pub passes: u32,
    /// When the first of them did.
    pub first_pass: Option<Now>,
    /// Healthy in every group since.
    pub bake: Option<Dwell>,
    /// No connection since.
    pub quiet: Option<Dwell>,
    /// Connections at the last look.
    pub connections: Option<u32>,
    /// Reads in a row that said nothing.
    pub unknown: u8,
    /// This process has just started, or stood still: it looks once before it takes a deadline for missed.
    pub unread: bool,
    /// The disk refused what this state came to.
    pub disk_refused: bool,
    /// Not before then.
    pub next_at: Option<Now>,
    /// Failing tries in a row.
    pub tries: u32,
    /// The last fault, for people.
    pub fault: Option<Fault>,
    /// Since when credentials are not accepted.
    pub auth_since: Option<Now>,
    /// The latch was tried in this stage, answered or not.
    pub tried: bool,
    /// The latch of this cycle was acknowledged.
    pub latched: bool,
    /// A write of this cycle may land behind our back.
    pub doubt: bool,
    /// Asked for by the claim, before its answer: a hint for the caller of `run`.
    pub refusal: Option<Early>,
}

impl Seen {
    /// What a process knows that has just started: nothing, and a write may be under way.
    pub fn recovered() -> Seen {
        Seen { doubt: true, unread: true, ..Seen::default() }
    }

    /// What goes on into another stage.
    #[must_use]
    pub fn entering(&self) -> Seen {
        Seen { latched: self.latched, doubt: self.doubt, ..Seen::default() }
    }
}

impl Durable {
    /// A fresh node.
    pub fn new(instance: InstanceId) -> Durable {
        Durable {
            instance,
            cycle: None,
            last: None,
            pages: Vec::new(),
            page_seq: 0,
            owed: None,
            reboots_ms: Vec::new(),
            record: None,
            doubt: None,
            retired: false,
            heals_ms: Vec::new(),
        }
    }

    /// How a cycle ended whose verdict is known still.
    pub fn ended(&self, of: impl Fn(&CycleId) -> bool) -> Option<&Ended> {
        self.last.iter().chain(self.owed.iter().filter_map(|o| o.ended.as_ref())).find(|ended| of(&ended.cycle))
    }

    /// Restarts of the machine in the last 24 hours; older ones are forgotten.
    pub fn restarts(&mut self, now: &Now) -> usize {
        self.reboots_ms.retain(|at| *at >= now.wall_ms.saturating_sub(86_400_000));
        self.reboots_ms.len()
    }

    /// The stage's name; `None` = idle.
    pub fn stage(&self) -> Option<StageName> {
        self.cycle.as_ref().map(|c| c.stage.name())
    }
}

impl Cycle {
    /// A cycle at its first stage.
    pub fn start(plan: Arc<Plan>, now: &Now) -> Cycle {
        let stage = match plan.kind {
            Kind::Patch(_) | Kind::Hold(_) => Stage::Claim { acked: false },
            Kind::Return | Kind::Recovery => Stage::Check,
        };
        let deadline = Deadline::start(now, stage_ms(&plan, &stage));
        let out = matches!(stage, Stage::Check).then(|| now.clone());
        Cycle {
            plan,
            stage,
            deadline,
            entered: now.clone(),
            out_since: out,
            cut: None,
            job_started: false,
            verdict: None,
            kill_job: false,
            kill_paged: false,
            failure: None,
            early: None,
            late: None,
            bounced: false,
            refused_paged: false,
            disk_paged: false,
            skip_check: None,
            hold: None,
        }
    }

    /// The latch that this cycle's failure sets.
    pub fn latch(&self) -> Option<Latch> {
        let failure = self.failure.as_ref().filter(|_| self.plan.latches())?;
        Some(Latch {
            instance: self.plan.instance.clone(),
            node: self.plan.node.clone(),
            stage: failure.stage.label().into(),
            class: failure.class.label().into(),
            message: failure.message.clone(),
            job: self.plan.job_name(),
            since_ms: failure.at.wall_ms,
            cleared: None,
            extra: Extra::new(),
        })
    }

    /// What rate and budget remember of it: only cycles that took their node out.
    pub fn finished(&self, now: &Now) -> Option<Finished> {
        let patch = matches!(self.plan.kind, Kind::Patch(_)) && self.out_since.is_some();
        patch.then(|| Finished {
            cycle: self.plan.id.clone(),
            node: self.plan.node.clone(),
            job: self.plan.job_name(),
            at_ms: now.wall_ms,
            good: self.failure.is_none() && self.early.is_none(),
            extra: Extra::new(),
        })
    }
}

/// The latch for a state that could not be read, before its way back can be planned.
pub fn lost_latch(instance: &InstanceId, node: &NodeName, why: &Arc<str>, now: &Now) -> Latch {
    Latch {
        instance: instance.clone(),
        node: node.clone(),
        stage: StageName::Check.label().into(),
        class: FailureClass::State.label().into(),
        message: why.clone(),
        job: Kind::Recovery.name(),
        since_ms: now.wall_ms,
        cleared: None,
        extra: Extra::new(),
    }
}

/// How long a stage may take.
pub fn stage_ms(plan: &Plan, stage: &Stage) -> u64 {
    let l = &plan.limits;
    match stage {
        Stage::Claim { .. } => l.claim_ms,
        Stage::Deregister => l.deregister_ms,
        Stage::Drain => plan.delay_ms().saturating_add(l.drain_margin_ms),
        Stage::Patch => l.patch_ms,
        Stage::Reboot { .. } => l.reboot_ms,
        Stage::Held { until } => until.budget_ms(),
        Stage::Check => l.check_ms,
        Stage::Register => l.register_ms,
        Stage::Settle => plan.settle_ms(),
        Stage::Release => l.release_ms,
    }
}

/// What the process goes on with once the commit of `next` was tried. `Ok`: `next` is on stable storage. `Err`: the disk
/// refused. Towards home it goes on in memory; anywhere else the cycle turns round here, or stays where it is.
pub fn advance(present: &Durable, next: Durable, stored: bool, now: &Now) -> Durable {
    if stored { next } else { without_disk(present, next, now) }
}

/// A hold that is not stored is none: its write is outward, and the way home must not wait for the disk.
fn without_hold(mut next: Durable) -> Durable {
    if let Some(c) = &mut next.cycle {
        c.hold = None;
    }
    next
}

fn without_disk(present: &Durable, next: Durable, now: &Now) -> Durable {
    use StageName as S;
    let turned = |failed: bool| {
        let mut turned = next.clone();
        if let (Some(c), Some(was)) = (&mut turned.cycle, &present.cycle) {
            (c.stage, c.entered) = (Stage::Check, now.clone());
            c.deadline = Deadline::start(now, stage_ms(&c.plan, &c.stage));
            c.kill_job = was.kill_job || was.stage == Stage::Patch;
            if failed && c.failure.is_none() {
                c.failure = Some(Failure {
                    stage: was.stage.name(),
                    class: FailureClass::Disk,
                    message: "the state directory cannot be written".into(),
                    at: now.clone(),
                });
                super::page::raise_failure(&mut turned, now);
            } else if !failed && c.early.is_none() {
                let message = "the state directory cannot be written; nothing was changed".into();
                c.early = Some(Early { exit: Exit::EndedEarly, message });
            }
        }
        turned
    };
    let out = |d: &Durable| d.cycle.as_ref().is_some_and(|c| c.out_since.is_some());
    let stage = |d: &Durable| d.cycle.as_ref().map(|c| c.stage.clone());
    let mutant = present.cycle.as_ref().is_some_and(|c| c.plan.rules.is(Mutant::HomewardNeedsCommit));
    if mutant {
        return present.clone();
    }
    match (present.stage(), next.stage()) {
        (Some(_), Some(S::Check | S::Register | S::Settle)) => without_hold(next),
        // A way back that begins (state that cannot be read, an operator's `rejoin`) needs no disk.
        (None, Some(S::Check)) => next,
        // Nothing was taken; after a crash the claim that is stored ends the same way.
        (Some(S::Claim), None) => next,
        (Some(S::Claim), Some(S::Claim | S::Deregister | S::Release)) => turned(false),
        // Nothing has left yet: home all the same, since the slot waits for the disk.
        (Some(S::Deregister), Some(S::Release)) if !out(present) => turned(false),
        // That it may be out is on the disk before the first call, or there is none.
        (Some(S::Deregister), Some(S::Deregister)) if !out(present) && out(&next) => present.clone(),
        (Some(S::Reboot), Some(S::Reboot)) if stage(present) != stage(&next) => turned(true),
        // Only pages and notes differ: they go on in memory.
        (a, b) if a == b => next,
        (Some(S::Deregister | S::Drain), Some(S::Drain | S::Patch | S::Held)) | (Some(S::Patch), Some(S::Reboot)) => {
            turned(true)
        }
        // Nothing starts, nothing is freed: the same effect again, until the disk is back.
        _ => present.clone(),
    }
}
