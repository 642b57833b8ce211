//! Error classes, what each one means on either side of *leaving*, and the retry schedule.
//!
//! The question is never "which error type is this?" but "did a complete, well-formed answer arrive, and can waiting
//! change it?". There is no "give up" class and no `Other`: what nobody recognises is [`Class::Transport`].

use serde::{Deserialize, Serialize};
use std::fmt;

/// What went wrong, by layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// No complete, well-formed answer: refused, reset, DNS, TLS, timeout, cut off, not the protocol, **or anything
    /// that nobody recognises**.
    Transport,
    /// The other side asks for fewer calls.
    Throttled,
    /// A complete answer that says "not yet": no master, starting, 502/503/504.
    NotReady,
    /// Credentials are missing, expired or not accepted.
    Auth,
    /// A complete answer that says no, for a reason that waiting is unlikely to change.
    Refused,
    /// A write whose answer was lost: it may have been applied, or may still be.
    OutcomeUnknown,
}

impl Class {
    /// All of them, for tables and metrics.
    pub const ALL: [Class; 6] =
        [Class::Transport, Class::Throttled, Class::NotReady, Class::Auth, Class::Refused, Class::OutcomeUnknown];

    /// The stable label.
    pub const fn label(self) -> &'static str {
        match self {
            Class::Transport => "transport",
            Class::Throttled => "throttled",
            Class::NotReady => "not-ready",
            Class::Auth => "auth",
            Class::Refused => "refused",
            Class::OutcomeUnknown => "outcome-unknown",
        }
    }

    /// What a person should hear on the way back besides the stage's own deadline.
    pub const fn page(self) -> PageWhen {
        match self {
            Class::Refused => PageWhen::Now,
            Class::Auth => PageWhen::Early,
            Class::Transport | Class::Throttled | Class::NotReady | Class::OutcomeUnknown => PageWhen::AtDeadline,
        }
    }

    /// The pace of retries on the way back. Every class is retried; only the pace differs.
    pub const fn schedule(self) -> Schedule {
        match self {
            Class::Transport | Class::NotReady | Class::OutcomeUnknown => Schedule { base_ms: 1_000, cap_ms: 5_000 },
            Class::Throttled => Schedule { base_ms: 5_000, cap_ms: 60_000 },
            Class::Auth | Class::Refused => Schedule { base_ms: 10_000, cap_ms: 60_000 },
        }
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// When a failing call on the way back pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageWhen {
    /// At the first such answer.
    Now,
    /// After a minute of such answers.
    Early,
    /// When the stage's deadline passes.
    AtDeadline,
}

/// One failed call, as the core wants to know it. `message` is for people only: nothing decides on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Fault {
    /// The layer.
    pub class: Class,
    /// For people: what was asked of whom, and the innermost cause. Never a secret.
    pub message: String,
    /// The server asked to be left alone for this long (`Retry-After`).
    pub retry_after_ms: Option<u64>,
}

impl Fault {
    /// A fault without `Retry-After`.
    pub fn new(class: Class, message: impl Into<String>) -> Fault {
        Fault { class, message: message.into(), retry_after_ms: None }
    }

    /// No complete answer.
    pub fn transport(message: impl Into<String>) -> Fault {
        Fault::new(Class::Transport, message)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.class)
    }
}

/// Capped exponential backoff with full jitter, as a pure function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Upper bound of the first wait.
    pub base_ms: u64,
    /// Upper bound of every wait.
    pub cap_ms: u64,
}

/// The longest `Retry-After` that is honoured: a broken server must not silence the way back.
pub const RETRY_AFTER_MAX_MS: u64 = 300_000;

impl Schedule {
    /// The wait before try number `tries + 1`. `jitter` comes in with the event, in thousandths: 0 = no randomness (the
    /// upper bound), 1000 = the full range down to a tenth of it (never a busy loop).
    pub fn wait_ms(self, tries: u32, jitter: Jitter, retry_after_ms: Option<u64>) -> u64 {
        let factor = 1_u64.checked_shl(tries.min(20)).unwrap_or(u64::MAX);
        let bound = self.base_ms.saturating_mul(factor).min(self.cap_ms).max(self.base_ms.min(self.cap_ms));
        let least = bound.checked_div(10).unwrap_or(0);
        let range = bound.saturating_sub(least);
        let cut = range.saturating_mul(u64::from(jitter.0.min(1_000))).checked_div(1_000).unwrap_or(0);
        let wait = bound.saturating_sub(cut);
        wait.max(retry_after_ms.unwrap_or(0).min(RETRY_AFTER_MAX_MS))
    }
}

/// Randomness as an input: 0..=1000 thousandths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Jitter(pub u16);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_is_retried_and_none_in_a_busy_loop() {
        for class in Class::ALL {
            let s = class.schedule();
            for tries in 0..64 {
                for jitter in [0, 1, 500, 1_000, u16::MAX] {
                    let w = s.wait_ms(tries, Jitter(jitter), None);
                    assert!(w >= s.base_ms / 10 && w <= s.cap_ms, "{class} {tries} {jitter} {w}");
                }
            }
        }
    }

    #[test]
    fn waits_grow_to_the_cap_and_retry_after_is_honoured_within_reason() {
        let s = Schedule { base_ms: 1_000, cap_ms: 5_000 };
        assert_eq!([0, 1, 2, 3, 30].map(|t| s.wait_ms(t, Jitter(0), None)), [1_000, 2_000, 4_000, 5_000, 5_000]);
        assert_eq!(s.wait_ms(0, Jitter(1_000), Some(30_000)), 30_000);
        assert_eq!(s.wait_ms(0, Jitter(0), Some(u64::MAX)), RETRY_AFTER_MAX_MS);
    }
}
