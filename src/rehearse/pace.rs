//! Time and tasks of the rehearsal's world: the one file of it that reads a clock or starts a task.
//!
//! The world compresses minutes: `scale` divides every simulated duration, and multiplies real time back into simulated
//! time. Tests and scenarios wait here for a condition, never for a length of time.

use std::future::Future;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The moment, monotonic.
#[expect(clippy::disallowed_methods, reason = "the world has real sockets, so it lives in real time")]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits for a real duration.
#[expect(clippy::disallowed_methods, reason = "the world has real sockets, so it lives in real time")]
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// The result of `future`, or `None` when it takes longer than `bound` (real).
pub async fn within<F: Future>(bound: Duration, future: F) -> Option<F::Output> {
    tokio::time::timeout(bound, future).await.ok()
}

/// Waits until `condition` holds; false when it still does not after `bound` (real). The pause between two looks is short
/// and says nothing about time: only the condition does.
pub async fn until(bound: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = now();
    loop {
        if condition() {
            return true;
        }
        if now().saturating_duration_since(start) >= bound {
            return false;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// The start of the world's clock and its compression. Shared by all parts, so that their times compare.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    start: Instant,
    scale: u32,
}

impl Origin {
    /// A clock that starts now; `scale` 1 is real time, 0 is taken as 1.
    pub fn new(scale: u32) -> Origin {
        Origin { start: now(), scale: scale.max(1) }
    }

    /// How many simulated seconds one real second is.
    pub const fn scale(&self) -> u32 {
        self.scale
    }

    /// Real milliseconds since the start.
    pub fn real_ms(&self) -> u64 {
        u64::try_from(now().saturating_duration_since(self.start).as_millis()).unwrap_or(u64::MAX)
    }

    /// Simulated milliseconds since the start.
    pub fn simulated_ms(&self) -> u64 {
        self.real_ms().saturating_mul(u64::from(self.scale))
    }

    /// The real duration of a simulated one.
    pub fn real(&self, simulated_ms: u64) -> Duration {
        let micros = simulated_ms.saturating_mul(1000).checked_div(u64::from(self.scale)).unwrap_or(0);
        Duration::from_micros(micros)
    }
}

/// A moment later; the same moment if it lies beyond what the clock can say.
pub fn after(moment: Instant, duration: Duration) -> Instant {
    moment.checked_add(duration).unwrap_or(moment)
}

/// A running task that ends with its handle.
#[derive(Debug)]
pub struct Task(JoinHandle<()>);

impl Task {
    /// Starts it on the current runtime.
    #[expect(clippy::disallowed_methods, reason = "the handle is kept and ends the task when it is dropped")]
    pub fn start<F: Future<Output = ()> + Send + 'static>(future: F) -> Task {
        Task(tokio::spawn(future))
    }

    /// Waits for its end, at most for `bound`; then it is ended.
    pub async fn join(mut self, bound: Duration) {
        if within(bound, &mut self.0).await.is_none() {
            self.0.abort();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Locks state of the world. A panic elsewhere must not spread through the lock: the state is plain data.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
