//! Time as the core sees it: values that the shell hands in, never a clock.
//!
//! Two opposite types, so that they cannot be swapped: in doubt a [`Deadline`] has expired (page, restore),
//! in doubt a [`Dwell`] starts again (wait longer before something is given up).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The kernel's boot id (`/proc/sys/kernel/random/boot_id`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BootId(pub Arc<str>);

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One reading of the clocks: within a boot only `since_boot_ms` counts, across boots only the wall clock is left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Now {
    /// Milliseconds since 1970 by `CLOCK_REALTIME`. May step; never trusted inside one boot.
    pub wall_ms: u64,
    /// Which boot `since_boot_ms` belongs to.
    pub boot: BootId,
    /// Milliseconds by `CLOCK_BOOTTIME`: goes on during suspend, never steps.
    pub since_boot_ms: u64,
}

impl Now {
    /// The same boot, `ms` later. For wake-up times.
    #[must_use]
    pub fn plus(&self, ms: u64) -> Now {
        Now {
            wall_ms: self.wall_ms.saturating_add(ms),
            boot: self.boot.clone(),
            since_boot_ms: self.since_boot_ms.saturating_add(ms),
        }
    }

    /// Milliseconds from `earlier` to here, exact inside one boot; `None` = cannot be told (another boot, or a clock
    /// that went backwards).
    pub fn since(&self, earlier: &Now) -> Option<u64> {
        if self.boot != earlier.boot {
            return None;
        }
        self.since_boot_ms.checked_sub(earlier.since_boot_ms)
    }

    /// Best estimate of the milliseconds since `earlier`, across boots too. For display and for budgets, never for
    /// a decision that a wrong clock could turn round.
    pub fn roughly_since(&self, earlier: &Now) -> u64 {
        self.since(earlier).unwrap_or_else(|| self.wall_ms.saturating_sub(earlier.wall_ms))
    }
}

/// More wall time than this between two boots is not believed: the clock was wrong before or is now.
const WALL_SANITY_MS: u64 = 366 * 24 * 3_600 * 1_000;

/// By when something must have happened. In doubt it has expired.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Deadline {
    started: Now,
    budget_ms: u64,
    /// The most that was ever seen to have passed; a clock that is set back cannot take it away.
    elapsed_seen_ms: u64,
    /// Its end was acted on: it fires once.
    fired: bool,
}

impl Deadline {
    /// Starts now.
    #[must_use]
    pub fn start(now: &Now, budget_ms: u64) -> Deadline {
        Deadline { started: now.clone(), budget_ms, elapsed_seen_ms: 0, fired: false }
    }

    /// Milliseconds that have passed by this deadline's own counting.
    pub fn elapsed_ms(&self, now: &Now) -> u64 {
        let elapsed = match now.since(&self.started) {
            Some(ms) => ms,
            // The same boot and an earlier time cannot be: doubt.
            None if now.boot == self.started.boot => self.budget_ms,
            None => match now.wall_ms.checked_sub(self.started.wall_ms) {
                Some(ms) if ms <= WALL_SANITY_MS => ms,
                _ => self.budget_ms,
            },
        };
        elapsed.max(self.elapsed_seen_ms)
    }

    /// The budget is used up.
    pub fn expired(&self, now: &Now) -> bool {
        self.elapsed_ms(now) >= self.budget_ms
    }

    /// Expired and not yet acted on.
    pub fn due(&self, now: &Now) -> bool {
        !self.fired && self.expired(now)
    }

    /// Its end has been acted on.
    #[must_use]
    pub fn spent(mut self, now: &Now) -> Deadline {
        self.elapsed_seen_ms = self.elapsed_ms(now);
        self.fired = true;
        self
    }

    /// Whether its end was already acted on.
    pub fn fired(&self) -> bool {
        self.fired
    }

    /// When it will be due, as a wake-up time in the present boot.
    #[must_use]
    pub fn due_at(&self, now: &Now) -> Now {
        now.plus(self.budget_ms.saturating_sub(self.elapsed_ms(now)))
    }

    /// What the budget was.
    pub fn budget_ms(&self) -> u64 {
        self.budget_ms
    }

    /// When it started.
    pub fn started(&self) -> &Now {
        &self.started
    }

    /// Counted in another boot: what is to be measured within one boot starts again.
    pub fn other_boot(&self, now: &Now) -> bool {
        self.started.boot != now.boot
    }
}

/// How long something must have been so without interruption. In doubt, or in another boot, it starts again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Dwell {
    started: Now,
    need_ms: u64,
}

impl Dwell {
    /// Starts now.
    #[must_use]
    pub fn start(now: &Now, need_ms: u64) -> Dwell {
        Dwell { started: now.clone(), need_ms }
    }

    /// It lasted long enough, for certain.
    pub fn over(&self, now: &Now) -> bool {
        now.since(&self.started).is_some_and(|ms| ms >= self.need_ms)
    }

    /// When it will be over.
    #[must_use]
    pub fn over_at(&self, now: &Now) -> Now {
        let passed = now.since(&self.started).unwrap_or(0);
        now.plus(self.need_ms.saturating_sub(passed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(boot: &str, since_boot_ms: u64, wall_ms: u64) -> Now {
        Now { wall_ms, boot: BootId(boot.into()), since_boot_ms }
    }

    #[test]
    fn a_wall_clock_step_does_not_move_a_deadline_inside_one_boot() {
        let d = Deadline::start(&at("a", 1_000, 5_000_000), 60_000);
        assert!(!d.due(&at("a", 60_000, 5_000_000 + 3_600_000)));
        assert!(d.due(&at("a", 61_000, 0)));
    }

    #[test]
    fn a_deadline_is_expired_wherever_its_age_is_in_doubt() {
        let d = Deadline::start(&at("a", 1_000, 5_000_000), 60_000);
        assert!(d.due(&at("b", 10, 4_000_000)), "the wall clock went backwards over a reboot");
        assert!(d.due(&at("b", 10, 5_000_000 + WALL_SANITY_MS + 1)), "it jumped by more than a year");
        assert!(d.due(&at("a", 999, 5_000_000)), "CLOCK_BOOTTIME went backwards");
        assert!(!d.due(&at("b", 10, 5_030_000)), "half a minute of reboot is believed");
    }

    #[test]
    fn a_dwell_starts_again_in_another_boot_and_is_never_over_in_doubt() {
        let d = Dwell::start(&at("a", 1_000, 5_000_000), 30_000);
        assert!(d.over(&at("a", 31_000, 0)));
        assert!(!d.over(&at("b", 90_000, 9_000_000)));
        assert!(!d.over(&at("a", 10, 9_000_000)));
    }

    #[test]
    fn a_deadline_fires_once() {
        let now = at("a", 90_000, 0);
        let d = Deadline::start(&at("a", 0, 0), 60_000);
        assert!(d.due(&now));
        let d = d.spent(&now);
        assert!(!d.due(&now) && d.expired(&now) && d.fired());
    }
}
