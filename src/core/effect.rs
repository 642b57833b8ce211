//! What a state asks for. Every effect is idempotent: recovery asks for it again.

use super::record::Op;

/// One thing to do in the world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::large_enum_variant, reason = "one at a time, never in bulk")]
pub enum Effect {
    /// A compare-and-set of the fleet record. Asked again it is written again: only its acknowledgement counts.
    Record(Op),
    /// Only the mutant asks a read whether it owns its slot.
    #[cfg(feature = "mutants")]
    ReadRecord,
    /// All guards, by fresh reads.
    ReadGuards,
    /// The whole groups: who is in service?
    ReadFleet,
    /// The own target, in every group: by name and in the whole list.
    ReadOwn,
    /// Out of the group with this index. Deregistering what is gone succeeds.
    Deregister(usize),
    /// Into the group with this index. Registering what is registered changes nothing.
    Register(usize),
    /// Connections on the HTTP port.
    CountConnections,
    /// How is the job?
    AskJob,
    /// Start the job, once per cycle id.
    StartJob,
    /// Kill the job's whole group; nothing to kill is a success.
    KillJob,
    /// Ask the machine to restart.
    Reboot,
    /// One node check.
    Check,
}

impl Effect {
    /// Leads away from service, or frees something: only from a committed decision.
    pub const fn outward(&self) -> bool {
        match self {
            Effect::Deregister(_) | Effect::StartJob | Effect::Reboot => true,
            Effect::Record(op) => op.outward(),
            #[cfg(feature = "mutants")]
            Effect::ReadRecord => false,
            Effect::ReadGuards
            | Effect::ReadFleet
            | Effect::ReadOwn
            | Effect::Register(_)
            | Effect::CountConnections
            | Effect::AskJob
            | Effect::KillJob
            | Effect::Check => false,
        }
    }

    /// The stable label, for logs and metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            Effect::Record(Op::Claim { .. }) => "claim-slot",
            Effect::Record(Op::Confirm { .. }) => "confirm-slot",
            Effect::Record(Op::AddLatch { .. }) => "set-latch",
            Effect::Record(Op::Free { .. }) => "free-slot",
            Effect::Record(Op::Hold { .. }) => "enter-hold",
            Effect::Record(Op::EndHold { .. }) => "end-hold",
            Effect::Record(
                Op::ClearLatch { .. }
                | Op::Pause(_)
                | Op::Unpause
                | Op::HoldAll(_)
                | Op::EndHoldAll(_)
                | Op::Unretire { .. },
            ) => "operator-write",
            Effect::Record(Op::Retire { .. }) => "retire",
            Effect::Record(Op::Goodbye { .. }) => "goodbye",
            #[cfg(feature = "mutants")]
            Effect::ReadRecord => "read-record",
            Effect::ReadGuards => "read-guards",
            Effect::ReadFleet => "read-fleet",
            Effect::ReadOwn => "read-own",
            Effect::Deregister(_) => "deregister",
            Effect::Register(_) => "register",
            Effect::CountConnections => "count-connections",
            Effect::AskJob => "ask-job",
            Effect::StartJob => "start-job",
            Effect::KillJob => "kill-job",
            Effect::Reboot => "reboot",
            Effect::Check => "check",
        }
    }
}

/// What a state wants next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, never in bulk")]
pub enum Want {
    /// Nothing: idle.
    Idle,
    /// Nothing before then; then ask again (with [`super::event::Event::Tick`] first).
    Wait(super::time::Now),
    /// This.
    Do(Effect),
}
