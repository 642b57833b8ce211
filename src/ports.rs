//! What the agent needs from the world, as traits. Adapters implement them; only `core` types cross.
//!
//! Every method has a total timeout of its own: a call that never returns would stop the way back. Errors come as
//! [`Fault`]s, already classified; "transport" is the default of every adapter.

use crate::core::error::Fault;
use crate::core::job::{JobSpec, JobStatus};
use crate::core::settings::{CheckPass, CheckSettings, GroupFacts, TargetType};
use crate::core::target::{GroupArn, Poll, Target};
use std::future::Future;

/// ELBv2. All writes name exactly one target, id and port.
pub trait LoadBalancer: Send + Sync + 'static {
    /// The whole list of a group, and with `by_name` also the own target by name (id and port).
    fn poll(&self, target: &Target, by_name: bool) -> impl Future<Output = Result<Poll, Fault>> + Send;
    /// RegisterTargets. A yes proves nothing until a read confirms it.
    fn register(&self, target: &Target) -> impl Future<Output = Result<(), Fault>> + Send;
    /// DeregisterTargets. A yes proves nothing until a read confirms it.
    fn deregister(&self, target: &Target) -> impl Future<Output = Result<(), Fault>> + Send;
    /// The group's own settings.
    fn group(&self, group: &GroupArn) -> impl Future<Output = Result<GroupFacts, Fault>> + Send;
    /// May this node register? Asked with one well-formed, non-existing id of the group's type.
    fn may_register(
        &self,
        group: &GroupArn,
        target_type: TargetType,
        port: u16,
    ) -> impl Future<Output = MayRegister> + Send;
}

/// Answer to the question "may I come back?" before leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MayRegister {
    /// Refused for the id alone: the right is there.
    Yes,
    /// The right is missing.
    No(Fault),
    /// The server took the non-existing id; it was deregistered again, and this endpoint proves nothing.
    TookIt,
    /// No usable answer.
    Unknown(Fault),
}

/// The own node, on its own port, each try on a fresh connection.
pub trait NodeCheck: Send + Sync + 'static {
    /// One whole check: identity, cluster health (not local), optional canary.
    fn check(&self, settings: &CheckSettings) -> impl Future<Output = Result<CheckPass, Fault>> + Send;
}

/// The patch job. Survives the agent: a job that was started goes on when the agent is killed.
pub trait Jobs: Send + Sync + 'static {
    /// What is known of this cycle's job. A read; never starts anything.
    fn ask(&self, cycle: &str) -> impl Future<Output = Result<JobStatus, Fault>> + Send;
    /// Starts it, once: a second call for the same cycle changes nothing.
    fn start(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Kills the job's whole group. Returns when it is gone, or with a fault that says that it is not.
    fn kill(&self, cycle: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}
