//! `run --wait`: which refusals time can heal, and when to ask again.

use crate::core::error::{Jitter, Schedule};
use crate::core::exit::Exit;
use crate::core::guard::{Guard, Said, Verdict, Verdicts};
use crate::core::time::Now;

/// Thirty callers that start in the same second ask at different moments, and none of them more often than this.
const ASK_AGAIN: Schedule = Schedule { base_ms: 15_000, cap_ms: 15_000 };

/// How long a caller queues, over all its tries.
pub(super) struct Queue {
    since: Now,
    for_ms: Option<u64>,
}

impl Queue {
    /// From now on; `for_ms` absent = not at all.
    pub(super) fn new(since: Now, for_ms: Option<u64>) -> Queue {
        Queue { since, for_ms }
    }

    pub(super) fn queues(&self) -> bool {
        self.for_ms.is_some()
    }

    /// What is left of it, in ms; `None` = nothing.
    pub(super) fn left_ms(&self, now: &Now) -> Option<u64> {
        self.for_ms?.checked_sub(now.roughly_since(&self.since)).filter(|left| *left > 0)
    }

    /// How long it was, in ms, where it is used up.
    pub(super) fn over_ms(&self, now: &Now) -> Option<u64> {
        self.for_ms.filter(|_| self.left_ms(now).is_none())
    }
}

/// How long to wait before asking again, in ms: between 1.5 and 15 s.
pub(super) fn wait_ms(jitter: Jitter) -> u64 {
    ASK_AGAIN.wait_ms(0, jitter, None)
}

/// May this refusal pass by itself, or by somebody else's next step? A latch is told at once, whatever else is refused.
pub(super) fn passes(exit: u8, verdicts: Option<&Verdicts>) -> bool {
    let by_code = match Exit::from_code(exit) {
        Some(
            Exit::SlotHeld
            | Exit::BelowMinimum
            | Exit::Paused
            | Exit::Unreachable
            | Exit::Rate
            | Exit::PeersNotSettled
            | Exit::Busy,
        ) => true,
        Some(Exit::Guard) => verdicts.is_some(),
        _ => false,
    };
    by_code && verdicts.is_none_or(|all| all.0.iter().filter(|v| v.blocks()).all(guard_passes))
}

fn guard_passes(v: &Verdict) -> bool {
    match v.guard {
        // A person has to do something on this node, or about the failure.
        Guard::NoLatch | Guard::Mode | Guard::Identity | Guard::DrainFits | Guard::Autoscaling => false,
        // What was refused stays so; what could not be told may be told next time.
        Guard::StateDurable | Guard::RegisterAllowed | Guard::FleetRecord => v.said == Said::Unknown,
        Guard::NoPause
        | Guard::NoHold
        | Guard::SlotFree
        | Guard::SelfInService
        | Guard::MinimumHealthy
        | Guard::PeersSettled
        | Guard::Rate
        | Guard::Budget
        | Guard::ClusterReachable
        | Guard::PagerReachable
        | Guard::PackageManagerFree => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked(guards: &[(Guard, Said)]) -> Verdicts {
        let verdict = |(guard, said): &(Guard, Said)| Verdict {
            guard: *guard,
            said: *said,
            sentence: "why".into(),
            exit: Exit::Guard,
        };
        Verdicts(guards.iter().map(verdict).collect())
    }

    #[test]
    fn a_latch_is_never_waited_for_even_where_another_refusal_is_told() {
        assert!(!passes(Exit::Latched.code(), None));
        let both = blocked(&[(Guard::SlotFree, Said::Refused), (Guard::NoLatch, Said::Refused)]);
        assert!(!passes(Exit::SlotHeld.code(), Some(&both)));
    }

    #[test]
    fn what_others_will_finish_is_waited_for_and_what_a_person_must_change_is_not() {
        for (guard, said, waits) in [
            (Guard::SlotFree, Said::Refused, true),
            (Guard::PackageManagerFree, Said::Refused, true),
            (Guard::RegisterAllowed, Said::Unknown, true),
            (Guard::RegisterAllowed, Said::Refused, false),
            (Guard::Mode, Said::Refused, false),
            (Guard::Autoscaling, Said::Refused, false),
        ] {
            assert_eq!(passes(Exit::Guard.code(), Some(&blocked(&[(guard, said)]))), waits, "{guard} {said:?}");
        }
        assert!(passes(Exit::Busy.code(), None));
        for exit in [Exit::Usage, Exit::Internal, Exit::StateUnreadable, Exit::Guard] {
            assert!(!passes(exit.code(), None), "{exit:?}");
        }
    }

    #[test]
    fn callers_ask_at_different_moments_and_not_too_often() {
        assert_eq!((wait_ms(Jitter(0)), wait_ms(Jitter(1_000))), (15_000, 1_500));
    }
}
