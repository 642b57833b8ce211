//! What the control server asks of the agent. Every answer is bounded in time.

use super::protocol::{
    CheckReply, ClearRequest, Done, Explain, History, HoldRequest, InitRequest, Progress, ReasonRequest, RejoinRequest,
    RetireRequest, RunReply, RunRequest, Status, TestReply, TestRequest,
};
use std::future::Future;

/// Who asks, for the record and the audit journal: `name(uid)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// For people.
    pub name: String,
    /// By peer credentials.
    pub uid: u32,
    /// Admin role.
    pub admin: bool,
}

/// The agent, as the control server sees it.
pub trait Backend: Clone + Send + Sync + 'static {
    /// From memory; never waits.
    fn status(&self) -> Status;
    /// Begin a cycle, or attach to the same one.
    fn run(&self, by: Caller, r: RunRequest) -> impl Future<Output = RunReply> + Send;
    /// May this node leave now?
    fn check(&self) -> impl Future<Output = CheckReply> + Send;
    /// Steps of a cycle (the current or last one where `cycle` is `None`) after number `after`; waits a while for news.
    fn progress(&self, cycle: Option<String>, after: u64) -> impl Future<Output = Progress> + Send;
    /// Put this node back.
    fn rejoin(&self, by: Caller, r: RejoinRequest) -> impl Future<Output = Done> + Send;
    /// Keep it out.
    fn hold(&self, by: Caller, r: HoldRequest) -> impl Future<Output = Done> + Send;
    /// Stop new cycles.
    fn pause(&self, by: Caller, r: ReasonRequest) -> impl Future<Output = Done> + Send;
    /// Allow them again.
    fn unpause(&self, by: Caller, r: ReasonRequest) -> impl Future<Output = Done> + Send;
    /// A person has looked.
    fn clear_latch(&self, by: Caller, r: ClearRequest) -> impl Future<Output = Done> + Send;
    /// An instance is gone for good.
    fn retire(&self, by: Caller, r: RetireRequest) -> impl Future<Output = Done> + Send;
    /// Create the fleet record.
    fn init(&self, by: Caller, r: InitRequest) -> impl Future<Output = Done> + Send;
    /// Why is that node where it is?
    fn explain(&self, node: Option<String>) -> impl Future<Output = Explain> + Send;
    /// What happened on this node.
    fn history(&self, limit: usize) -> impl Future<Output = History> + Send;
    /// A test page, and its end, through the pagers.
    fn alert_test(&self, by: Caller, r: TestRequest) -> impl Future<Output = TestReply> + Send;
    /// Read the config file again.
    fn reload(&self) -> impl Future<Output = Done> + Send;
}
