//! Exit codes of the CLI, stable. Below 100 nothing was changed; from 100 somebody should look.

use serde::{Deserialize, Serialize};

/// One per outcome that automation can act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exit {
    /// Done.
    Done,
    /// A fault of backstop itself.
    Internal,
    /// Usage or config.
    Usage,
    /// The slot is held by another node.
    SlotHeld,
    /// Fewer members in service than the minimum.
    BelowMinimum,
    /// Paused, held or observing.
    Paused,
    /// A dependency cannot be reached.
    Unreachable,
    /// Rate or budget is used up.
    Rate,
    /// A peer is out without an explanation.
    PeersNotSettled,
    /// The agent is not running.
    NoAgent,
    /// Another guard refused.
    Guard,
    /// Busy with another job.
    Busy,
    /// Latched: a cycle failed and nobody has looked yet.
    Latched,
    /// Failed; the node is back in service.
    FailedBack,
    /// Failed; the node is OUT.
    FailedOut,
    /// The machine did not really reboot.
    NotRebooted,
    /// Ended early by an operator or a late guard; the node is back.
    EndedEarly,
    /// The agent's state could not be read.
    StateUnreadable,
    /// Contact lost or Ctrl-C; the cycle goes on.
    ContactLost,
    /// The SSM agent is to restart the machine and to run the same script again: only after `--reboot=ssm`.
    RestartBySsm,
}

impl Exit {
    /// All of them, for `--help` and the docs.
    pub const ALL: [Exit; 20] = [
        Exit::Done,
        Exit::Internal,
        Exit::Usage,
        Exit::SlotHeld,
        Exit::BelowMinimum,
        Exit::Paused,
        Exit::Unreachable,
        Exit::Rate,
        Exit::PeersNotSettled,
        Exit::NoAgent,
        Exit::Guard,
        Exit::Busy,
        Exit::Latched,
        Exit::FailedBack,
        Exit::FailedOut,
        Exit::NotRebooted,
        Exit::EndedEarly,
        Exit::StateUnreadable,
        Exit::ContactLost,
        Exit::RestartBySsm,
    ];

    /// The number.
    pub const fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Internal => 1,
            Exit::Usage => 2,
            Exit::SlotHeld => 10,
            Exit::BelowMinimum => 11,
            Exit::Paused => 12,
            Exit::Unreachable => 13,
            Exit::Rate => 14,
            Exit::PeersNotSettled => 15,
            Exit::NoAgent => 16,
            Exit::Guard => 17,
            Exit::Busy => 18,
            Exit::Latched => 100,
            Exit::FailedBack => 101,
            Exit::FailedOut => 102,
            Exit::NotRebooted => 103,
            Exit::EndedEarly => 104,
            Exit::StateUnreadable => 105,
            Exit::ContactLost => 106,
            // What the SSM agent takes for this, and nothing else may end with.
            Exit::RestartBySsm => 194,
        }
    }

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Internal => "internal",
            Exit::Usage => "usage",
            Exit::SlotHeld => "slot-held",
            Exit::BelowMinimum => "below-minimum",
            Exit::Paused => "paused",
            Exit::Unreachable => "unreachable",
            Exit::Rate => "rate",
            Exit::PeersNotSettled => "peers-not-settled",
            Exit::NoAgent => "no-agent",
            Exit::Guard => "guard",
            Exit::Busy => "busy",
            Exit::Latched => "latched",
            Exit::FailedBack => "failed-back",
            Exit::FailedOut => "failed-out",
            Exit::NotRebooted => "not-rebooted",
            Exit::EndedEarly => "ended-early",
            Exit::StateUnreadable => "state-unreadable",
            Exit::ContactLost => "contact-lost",
            Exit::RestartBySsm => "restart-by-ssm",
        }
    }

    /// What it says to a person.
    pub const fn sentence(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Internal => "a fault of backstop itself; please report it",
            Exit::Usage => "wrong usage or config",
            Exit::SlotHeld => "the slot is held by another node",
            Exit::BelowMinimum => "fewer members in service than the minimum",
            Exit::Paused => "paused, held or observing",
            Exit::Unreachable => "a dependency cannot be reached",
            Exit::Rate => "the rate or the daily budget of cycles is used up",
            Exit::PeersNotSettled => "another member is out of service and the record does not explain it",
            Exit::NoAgent => "the agent is not running",
            Exit::Guard => "another guard refused",
            Exit::Busy => "busy with another job",
            Exit::Latched => "latched: a cycle failed and nobody has cleared it yet",
            Exit::FailedBack => "failed; the node is back in service",
            Exit::FailedOut => "failed; the node is OUT of service (the agent goes on trying)",
            Exit::NotRebooted => "the machine did not really reboot",
            Exit::EndedEarly => "ended early by an operator or a late guard; the node is back",
            Exit::StateUnreadable => "the agent's state could not be read",
            Exit::ContactLost => "contact lost or Ctrl-C; the cycle goes on",
            Exit::RestartBySsm => "only with --reboot ssm: the SSM agent restarts the machine and runs this again",
        }
    }

    /// The enum for a number, for the CLI's side of the socket.
    pub fn from_code(code: u8) -> Option<Exit> {
        Exit::ALL.into_iter().find(|e| e.code() == code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn codes_are_distinct_and_keep_clear_of_those_that_mean_something_else() {
        let codes: BTreeSet<u8> = Exit::ALL.iter().map(|e| e.code()).collect();
        assert_eq!(codes.len(), Exit::ALL.len());
        for taken in (124..=137).chain([255]) {
            assert!(!codes.contains(&taken), "{taken} means something else to SSM, timeout(1) or the shell");
        }
        let to_ssm: Vec<Exit> = Exit::ALL.into_iter().filter(|e| e.code() == 194).collect();
        assert_eq!(to_ssm, [Exit::RestartBySsm], "a restart of the machine for nothing else");
        for e in Exit::ALL {
            assert_eq!(Exit::from_code(e.code()), Some(e));
        }
    }
}
