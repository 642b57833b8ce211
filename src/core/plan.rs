//! What one cycle is about: decided at its start, written down before anything leaves, never changed afterwards.

use super::ids::{CycleId, InstanceId, NodeName};
use super::job::JobSpec;
use super::record::{Extra, Hold, Slot};
use super::rules::Rules;
use super::settings::{BalancerKind, CheckSettings, OwnTarget};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Everything that the road out and the way back need; the config file is not asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name, for ever.
    pub id: CycleId,
    /// What for.
    pub kind: Kind,
    /// Which instance.
    pub instance: InstanceId,
    /// Which node.
    pub node: NodeName,
    /// Who asked.
    pub by: Arc<str>,
    /// The caller's own name for its request: sent again after a lost answer, it finds this cycle.
    pub request: Arc<str>,
    /// What "back" means: every one of these.
    pub targets: Vec<OwnTarget>,
    /// How the node is checked.
    pub check: CheckSettings,
    /// Port whose connections the quiet period looks at.
    pub port: u16,
    /// Time limits.
    pub limits: Limits,
    /// The floor.
    pub rules: Rules,
    /// Guards that do not count for this cycle, by name, each with the reason given.
    pub overrides: Vec<(Arc<str>, Arc<str>)>,
}

impl std::hash::Hash for Plan {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// What a cycle is for. All share one road out and one way back.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Out, job, back.
    Patch(JobSpec),
    /// Out, kept out for a stated time, back.
    Hold(Hold),
    /// Only the way back: an operator's `rejoin`.
    Return,
    /// Only the way back: this agent's state could not be read.
    Recovery,
}

impl Kind {
    /// The job's name, or what the cycle is for.
    pub fn name(&self) -> Arc<str> {
        match self {
            Kind::Patch(job) => job.name.clone(),
            Kind::Hold(_) => "hold".into(),
            Kind::Return => "rejoin".into(),
            Kind::Recovery => "recovery".into(),
        }
    }
}

/// Time limits of one cycle, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// `claim`
    pub claim_ms: u64,
    /// `deregister`
    pub deregister_ms: u64,
    /// Beyond the longest deregistration delay of the groups.
    pub drain_margin_ms: u64,
    /// No connections on the HTTP port for this long before the job starts.
    pub quiet_ms: u64,
    /// Connections that are left when the drain's time is over: go on (and count them), or fail.
    pub connections_left_fail: bool,
    /// The job.
    pub patch_ms: u64,
    /// Each of two tries to reboot.
    pub reboot_ms: u64,
    /// `check`, in one boot.
    pub check_ms: u64,
    /// `register`
    pub register_ms: u64,
    /// `settle`, at least; longer where a group's own checks take longer.
    pub settle_ms: u64,
    /// Healthy without interruption before the slot is given back.
    pub bake_ms: u64,
    /// `release`, before it pages.
    pub release_ms: u64,
    /// A destructive call is not begun when its acknowledgement is older than this.
    pub ack_max_age_ms: u64,
    /// Reboots per node and day.
    pub reboots_per_day: u32,
    /// Between two looks at the load balancer while something is awaited.
    pub poll_ms: u64,
}

impl Plan {
    /// The longest deregistration delay of the groups.
    pub fn delay_ms(&self) -> u64 {
        self.targets.iter().map(|t| t.facts.deregistration_delay_ms).max().unwrap_or(0)
    }

    /// The settle deadline: the configured one, or what the groups' own checks need, whichever is longer.
    pub fn settle_ms(&self) -> u64 {
        let checks = |t: &OwnTarget| {
            let margin = match t.facts.balancer {
                BalancerKind::Application => 60_000,
                BalancerKind::Network => 300_000,
            };
            t.facts.interval_ms.saturating_mul(u64::from(t.facts.healthy_threshold)).saturating_add(margin)
        };
        let longest = self.targets.iter().map(checks).max().unwrap_or(0);
        self.limits.settle_ms.max(longest).saturating_add(self.limits.bake_ms)
    }

    /// Seconds that the whole cycle may take, for peers that watch the slot.
    pub fn budget_s(&self) -> u64 {
        let l = &self.limits;
        [
            l.claim_ms,
            l.deregister_ms,
            self.delay_ms(),
            l.drain_margin_ms,
            l.patch_ms,
            l.reboot_ms,
            l.reboot_ms,
            l.check_ms,
            l.register_ms,
            self.settle_ms(),
            l.release_ms,
        ]
        .iter()
        .fold(0_u64, |sum, ms| sum.saturating_add(*ms))
        .div_ceil(1_000)
    }

    /// The job's name, or what this cycle is for.
    pub fn job_name(&self) -> Arc<str> {
        self.kind.name()
    }

    /// The job, where there is one.
    pub fn job(&self) -> Option<&JobSpec> {
        match &self.kind {
            Kind::Patch(job) => Some(job),
            Kind::Hold(_) | Kind::Return | Kind::Recovery => None,
        }
    }

    /// A failure of this cycle locks the fleet. An operator's hold that is late home only pages.
    pub fn latches(&self) -> bool {
        matches!(self.kind, Kind::Patch(_) | Kind::Recovery)
    }

    /// Its slot, as the claim writes it.
    pub fn slot(&self, since_ms: u64) -> Slot {
        Slot {
            cycle: self.id.clone(),
            node: self.node.clone(),
            job: self.job_name(),
            budget_s: self.budget_s(),
            since_ms,
            extra: Extra::new(),
        }
    }
}
