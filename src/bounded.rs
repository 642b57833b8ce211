//! Blocking work with a deadline. A disk that hangs keeps its thread, and nobody else: whoever asked goes on without an
//! answer. The work itself is never taken back, so it may still be done later; callers see to it that no two do the same.

use std::time::Duration;

/// Runs it on a thread of its own. `Err`: it panicked, or is not done within `limit` (and goes on), in words.
pub async fn blocking<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    match tokio::time::timeout(limit, tokio::task::spawn_blocking(work)).await {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(e)) if e.is_panic() => Err("a panic".to_owned()),
        Ok(Err(_)) => Err("this process ends".to_owned()),
        Err(_) => Err(late(limit)),
    }
}

/// The sentence about work that is not done in time.
pub fn late(limit: Duration) -> String {
    format!("no answer within {} s; it may still be done", limit.as_secs_f32())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn work_that_hangs_or_panics_is_an_error_for_whoever_waits_and_goes_on() {
        let (go, gone) = mpsc::channel::<()>();
        let (done, end) = mpsc::channel::<()>();
        let hanging = blocking(Duration::from_millis(20), move || {
            let _ = gone.recv();
            let _ = done.send(());
        });
        assert!(hanging.await.unwrap_err().contains("no answer within 0.02 s"));
        go.send(()).unwrap();
        end.recv().expect("it was never taken back");
        let panics = blocking(Duration::from_mins(1), || panic!("told to"));
        assert_eq!(panics.await, Err::<(), _>("a panic".to_owned()));
    }
}
