//! The only file that reads clocks. Everything else is handed a [`Now`] or waits through a [`Clock`].
//!
//! A rehearsal runs the real agent in compressed time: [`SystemClock::scaled`] multiplies both clocks by one factor and
//! divides every wait by it. `CLOCK_BOOTTIME` is the same for all processes of a machine, so that several agents with
//! the same factor agree about time.

use crate::core::time::{BootId, Now};
use rustix::time::{ClockId, clock_gettime};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::watch;

/// Reads clocks and waits.
pub trait Clock: Clone + Send + Sync + 'static {
    /// One reading.
    fn now(&self) -> Now;
    /// Returns once `at` has come by `CLOCK_BOOTTIME`. An `at` of another boot has come: in doubt one wakes and looks.
    fn sleep_until(&self, at: &Now) -> impl Future<Output = ()> + Send;
    /// Returns after `ms` milliseconds of this clock's time.
    fn sleep_ms(&self, ms: u64) -> impl Future<Output = ()> + Send {
        let at = self.now().plus(ms);
        async move { self.sleep_until(&at).await }
    }
}

/// Where Linux tells the boot id.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// Waits are cut into pieces of at most this real time, since the runtime's timer stands still while the machine is
/// suspended and `CLOCK_BOOTTIME` does not.
const NAP_MAX: Duration = Duration::from_secs(30);

/// How rehearsal time relates to real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// This many simulated milliseconds pass in one real one; 0 counts as 1.
    pub factor: u32,
    /// The wall clock moment (ms since 1970) at which simulated and real wall clock agree.
    pub epoch_wall_ms: u64,
}

/// The real clocks, or a faster copy of them.
#[derive(Clone, Debug)]
pub struct SystemClock {
    boot: BootId,
    scale: Option<Scale>,
}

/// The boot id could not be read: without it no stored time can be trusted, so the agent says so at its start.
#[derive(Debug, thiserror::Error)]
pub enum ClockError {
    /// The file could not be read.
    #[error("cannot read the boot id from {BOOT_ID_FILE}")]
    Unreadable(#[source] std::io::Error),
    /// The file was empty.
    #[error("the boot id in {BOOT_ID_FILE} is empty")]
    Empty,
}

impl SystemClock {
    /// The real clocks, with the boot id of this boot.
    pub fn new() -> Result<SystemClock, ClockError> {
        let text = std::fs::read_to_string(BOOT_ID_FILE).map_err(ClockError::Unreadable)?;
        let id = text.trim();
        if id.is_empty() {
            return Err(ClockError::Empty);
        }
        Ok(SystemClock::with_boot(BootId(id.into())))
    }

    /// The real clocks under a given boot id: rehearsed reboots.
    pub fn with_boot(boot: BootId) -> SystemClock {
        SystemClock { boot, scale: None }
    }

    /// The same clock in compressed time.
    #[must_use]
    pub fn scaled(self, scale: Scale) -> SystemClock {
        SystemClock { scale: Some(scale), ..self }
    }

    fn factor(&self) -> u64 {
        u64::from(self.scale.map_or(1, |s| s.factor).max(1))
    }

    /// Simulated milliseconds since boot that `real_us` real microseconds are.
    fn boot_ms(&self, real_us: u64) -> u64 {
        real_us.saturating_mul(self.factor()).checked_div(1_000).unwrap_or(0)
    }

    /// Simulated wall clock at a real one.
    fn wall_ms(&self, real_us: u64) -> u64 {
        let Some(scale) = self.scale else { return real_us.checked_div(1_000).unwrap_or(0) };
        let epoch_us = scale.epoch_wall_ms.saturating_mul(1_000);
        if real_us >= epoch_us {
            scale.epoch_wall_ms.saturating_add(self.boot_ms(real_us.saturating_sub(epoch_us)))
        } else {
            scale.epoch_wall_ms.saturating_sub(self.boot_ms(epoch_us.saturating_sub(real_us)))
        }
    }

    /// The real time that `ms` of this clock take, rounded up: a wait never ends early.
    fn real(&self, ms: u64) -> Duration {
        Duration::from_micros(ms.saturating_mul(1_000).div_ceil(self.factor()))
    }
}

/// Microseconds since 1970 by the wall clock; by the C library, where a test can step it for one process.
#[expect(clippy::disallowed_methods, reason = "this is where clocks are read")]
fn read_wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Microseconds since boot.
fn read_boot_us() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(t.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(t.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(nanos.checked_div(1_000).unwrap_or(0))
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        Now {
            wall_ms: self.wall_ms(read_wall_us()),
            boot: self.boot.clone(),
            since_boot_ms: self.boot_ms(read_boot_us()),
        }
    }

    #[expect(clippy::disallowed_methods, reason = "this is where waiting is done")]
    async fn sleep_until(&self, at: &Now) {
        loop {
            let now = self.now();
            let left_ms = at.since_boot_ms.saturating_sub(now.since_boot_ms);
            if at.boot != now.boot || left_ms == 0 {
                return;
            }
            tokio::time::sleep(self.real(left_ms).min(NAP_MAX)).await;
        }
    }
}

/// A clock that moves only when it is told to. Advancing it wakes whoever waits.
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: Arc<watch::Sender<Now>>,
}

impl ManualClock {
    /// Stands at `start`.
    pub fn new(start: Now) -> ManualClock {
        ManualClock { now: Arc::new(watch::Sender::new(start)) }
    }

    /// Both clocks go on by `ms`.
    pub fn advance(&self, ms: u64) {
        self.now.send_modify(|now| *now = now.plus(ms));
    }

    /// The wall clock is set; `CLOCK_BOOTTIME` does not notice.
    pub fn set_wall(&self, wall_ms: u64) {
        self.now.send_modify(|now| now.wall_ms = wall_ms);
    }

    /// The machine comes up again with another boot id, `off_ms` of wall time later.
    pub fn reboot(&self, boot: BootId, off_ms: u64) {
        self.now.send_modify(|now| {
            *now = Now { wall_ms: now.wall_ms.saturating_add(off_ms), boot, since_boot_ms: 0 };
        });
    }

    /// How many sleepers wait for it to move. For tests that must not advance too early.
    pub fn sleepers(&self) -> usize {
        self.now.receiver_count()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        self.now.borrow().clone()
    }

    async fn sleep_until(&self, at: &Now) {
        let mut rx = self.now.subscribe();
        let come = |now: &Now| now.boot != at.boot || now.since_boot_ms >= at.since_boot_ms;
        // The sender lives as long as `self`: this can only end by the condition.
        let _ = rx.wait_for(come).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(factor: u32, epoch_wall_ms: u64) -> SystemClock {
        SystemClock::with_boot(BootId("b".into())).scaled(Scale { factor, epoch_wall_ms })
    }

    #[test]
    fn a_scaled_clock_multiplies_both_clocks_and_divides_waits() {
        let c = clock(60, 1_000_000);
        assert_eq!(c.boot_ms(2_000_000), 120_000);
        assert_eq!(c.wall_ms(1_000_000_000), 1_000_000, "they agree at the epoch");
        assert_eq!(c.wall_ms(1_001_000_000), 1_060_000, "a second later a minute has passed");
        assert_eq!(c.wall_ms(999_000_000), 940_000, "and before the epoch the other way round");
        assert_eq!(c.real(60_000), Duration::from_secs(1));
        assert_eq!(c.real(1), Duration::from_micros(17), "rounded up: a wait never ends early");
    }

    #[test]
    fn a_factor_of_zero_is_real_time_and_extremes_do_not_overflow() {
        let c = clock(0, u64::MAX);
        assert_eq!(c.boot_ms(5_000), 5);
        assert_eq!(c.real(7), Duration::from_millis(7));
        let _ = (c.wall_ms(0), clock(u32::MAX, 0).wall_ms(u64::MAX), clock(u32::MAX, 0).boot_ms(u64::MAX));
    }

    #[test]
    fn the_system_clock_reads_this_boot_and_both_clocks() {
        let c = SystemClock::new().expect("Linux tells its boot id");
        let a = c.now();
        let b = c.now();
        assert!(a.boot.0.len() >= 32, "{a:?}");
        assert!(b.since(&a).is_some());
        assert!(a.wall_ms > 1_500_000_000_000, "milliseconds, not seconds");
    }

    #[tokio::test]
    async fn a_scaled_sleep_takes_the_factor_less_real_time() {
        let c = SystemClock::with_boot(BootId("b".into())).scaled(Scale { factor: 1_000, epoch_wall_ms: 0 });
        let started = c.now();
        c.sleep_ms(20_000).await;
        let passed = c.now().since(&started).expect("same boot");
        assert!((20_000..20_000_000).contains(&passed), "{passed} ms of simulated time");
    }

    #[tokio::test]
    async fn a_wake_up_time_of_another_boot_has_come() {
        let c = SystemClock::with_boot(BootId("b".into()));
        let at = Now { boot: BootId("a".into()), ..c.now().plus(3_600_000) };
        c.sleep_until(&at).await;
    }

    #[tokio::test]
    async fn advancing_a_manual_clock_wakes_whoever_is_due_and_nobody_else() {
        let c = ManualClock::new(Now { wall_ms: 5, boot: BootId("b".into()), since_boot_ms: 0 });
        let (early, late) = (c.now().plus(10), c.now().plus(20));
        let mut first = Box::pin(c.sleep_until(&early));
        let mut second = Box::pin(c.sleep_until(&late));
        c.advance(10);
        first.as_mut().await;
        tokio::select! { biased; () = &mut second => panic!("woke early"), () = std::future::ready(()) => {} }
        c.reboot(BootId("c".into()), 1_000);
        second.as_mut().await;
        assert_eq!(c.now(), Now { wall_ms: 1_015, boot: BootId("c".into()), since_boot_ms: 0 });
    }
}
