//! Owns every task of the agent. A task that dies is an event: it is logged, told to the loop, and started again.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;
use tokio::task::{JoinError, JoinHandle};

/// A task that ends with its owner.
pub struct Task<T>(JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Starts a task that ends with the returned owner.
#[expect(clippy::disallowed_methods, reason = "this is the owner of all tasks")]
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Task<T> {
    Task(tokio::spawn(work))
}

impl<T> Task<T> {
    /// Waits for its end. `Err` = it panicked (or the runtime ends), in words.
    pub async fn join(mut self) -> Result<T, String> {
        (&mut self.0).await.map_err(|e| words(&e))
    }
}

const PANIC: &str = "a panic";

fn words(e: &JoinError) -> String {
    if e.is_panic() { PANIC.to_owned() } else { "cancelled".to_owned() }
}

/// Runs one step behind a fence: a panic in it is an answer, not the end of the agent.
pub async fn fenced<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> Result<T, String> {
    spawn(work).join().await
}

/// As [`fenced`], for a step that borrows. What it leaves half done is its own affair: the loop's state changes only in a
/// commit, after everything that could panic.
pub async fn caught<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Ready(done)) => Poll::Ready(Ok(done)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(Err(PANIC.to_owned())),
    })
    .await
}

/// Keeps a task running: whenever it ends or panics, `report` hears of it and it is started again after `pause`.
pub fn keep<F, P>(
    name: &'static str,
    make: impl Fn() -> F + Send + 'static,
    report: impl Fn(&'static str, String) + Send + 'static,
    pause: impl Fn() -> P + Send + 'static,
) -> Task<()>
where
    F: Future<Output = ()> + Send + 'static,
    P: Future<Output = ()> + Send,
{
    spawn(async move {
        loop {
            let end = fenced(make()).await;
            let why = end.err().unwrap_or_else(|| "ended without being asked to".to_owned());
            tracing::error!(task = name, why, "a task of the agent died and is started again");
            report(name, why);
            pause().await;
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_after_a_wait_is_an_answer_and_what_was_borrowed_is_still_there() {
        let mut steps = vec!["before"];
        let end = caught(async {
            steps.push("begun");
            tokio::task::yield_now().await;
            assert!(steps.is_empty(), "told to panic");
        });
        assert_eq!(end.await, Err("a panic".to_owned()));
        assert_eq!(steps, ["before", "begun"]);
        assert_eq!(caught(async { 7 }).await, Ok(7));
    }
}
