//! What can happen to a cycle: answers to its effects, time, and people.

use super::cycle::Doubt;
use super::error::Fault;
use super::guard::Verdicts;
use super::ids::InstanceId;
use super::job::JobStatus;
use super::member::FleetView;
use super::plan::Plan;
use super::record::{Hold, RecordSeen, Refusal};
use super::settings::CheckPass;
use super::target::Own;
use std::collections::BTreeSet;
use std::sync::Arc;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// This process has just started and has read what was stored.
    Recovered,
    /// Time has passed.
    Tick,
    /// A cycle is to begin; its guards were read before and pass.
    Start(Arc<Plan>),
    /// This process stood still (a frozen machine, a stopped process): what it knows may be old.
    StoodStill,
    /// The state of this node is lost, and here is why; its way back is to begin.
    StateLost(Arc<Plan>, Arc<str>),
    /// This node has no state, is out, and the record has this hold of it.
    Adopt(Arc<Plan>),
    /// What is not known of the time before the stored state.
    Doubt(Option<Doubt>),
    /// The fleet record, as it was just seen.
    RecordSeen(RecordSeen),
    /// The record has an open latch of this very cycle, which knows of no failure: its state went back to an earlier time.
    OwnLatch(Arc<str>),
    /// This node registers itself though no cycle is on its way home.
    Healed,
    /// The compare-and-set was acknowledged; the record's leavers in that version.
    Acked {
        /// Holders of slots and holds.
        leavers: BTreeSet<InstanceId>,
    },
    /// The record, as it is, does not allow it. Nothing was written.
    CasRefused(Box<Refusal>),
    /// The store is away or unreadable, or the answer was lost: it may have landed, or may still.
    Unanswered(Fault),
    /// All guards.
    Guards(Verdicts),
    /// Who is in service.
    Fleet(Result<FleetView, Fault>),
    /// The own target, by group in the plan's order. A group that could not be read is [`Own::Unknown`]; the fault is the
    /// first one.
    Own(Vec<Own>, Option<Fault>),
    /// A deregister or register call came back.
    Called(usize, Result<(), Fault>),
    /// Connections on the HTTP port.
    Connections(Result<u32, Fault>),
    /// How the job is.
    Job(Result<JobStatus, Fault>),
    /// The job was started, the reboot asked for.
    Started(Result<(), Fault>),
    /// The job was killed.
    Killed(Result<(), Fault>),
    /// One node check.
    Checked(Result<CheckPass, Fault>),
    /// An operator: put this node back.
    Rejoin {
        /// Who.
        by: Arc<str>,
        /// Why.
        reason: Arc<str>,
        /// Without the node check.
        skip_check: bool,
    },
    /// An operator: keep this node out (only on the way back; a node in service starts a cycle of kind hold).
    Hold(Hold),
    /// A sink has accepted the page with this number.
    PageAccepted(u64),
}
