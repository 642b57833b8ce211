//! Which server is asked, and when another one. The last good one comes first; a call goes on to the next one only where
//! that cannot do twice what was asked once.

use super::call::{Call, Endpoint, Files, Unanswered};
use crate::core::error::{Class, Fault};
use crate::elasticsearch::classify::Answer;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// One call is made to at most so many servers.
pub(super) const TRIES_MAX: usize = 3;

/// The servers, in the order of the config.
#[derive(Debug)]
pub(super) struct Endpoints {
    all: Vec<Arc<Endpoint>>,
    /// The last good one, or the one after the last bad one.
    first: AtomicUsize,
    timeout: Duration,
}

impl Endpoints {
    /// Makes no call.
    pub(super) fn new(urls: &[Arc<str>], files: &Files, timeout: Duration) -> Endpoints {
        let all = urls.iter().map(|url| Arc::new(Endpoint::new(url.clone(), files.clone()))).collect();
        Endpoints { all, first: AtomicUsize::new(0), timeout }
    }

    /// As long as all tries together may take.
    pub(super) fn whole(&self) -> Duration {
        self.timeout.saturating_mul(u32::try_from(TRIES_MAX).unwrap_or(u32::MAX))
    }

    /// A call that changes nothing: asked of the next server too, unless an answer says that waiting is in vain. `judge`
    /// makes of a complete answer what was asked for.
    pub(super) async fn read<T>(&self, call: &Call, judge: impl Fn(&Answer) -> Result<T, Fault>) -> Result<T, Fault> {
        let mut faults = Vec::new();
        for (at, endpoint) in self.turn() {
            let judged = match endpoint.ask(call.clone(), self.timeout).await {
                Ok(answer) => judge(&answer),
                Err(lost) => Err(Fault::from(lost)),
            };
            match judged {
                Ok(found) => {
                    self.good(at);
                    return Ok(found);
                }
                Err(fault) if fault.class == Class::Refused => {
                    // Perhaps it is not the cluster that answers there: the next question goes to another one.
                    self.bad(at);
                    return Err(fault);
                }
                Err(fault) => {
                    self.bad(at);
                    faults.push(fault);
                }
            }
        }
        Err(together(faults))
    }

    /// A call that changes something: asked of the next server only where it provably never left. `Err` = the fault of a
    /// write without a complete answer.
    pub(super) async fn write(&self, call: &Call) -> Result<Answer, Fault> {
        let mut faults = Vec::new();
        for (at, endpoint) in self.turn() {
            match endpoint.ask(call.clone(), self.timeout).await {
                Ok(answer) => {
                    // A server that cannot do it, or will not, is not asked first the next time.
                    if sound(answer.status) {
                        self.good(at);
                    } else {
                        self.bad(at);
                    }
                    return Ok(answer);
                }
                Err(Unanswered { fault, unsent: true }) => {
                    self.bad(at);
                    faults.push(fault);
                }
                Err(lost) => {
                    self.bad(at);
                    return Err(lost.of_a_write());
                }
            }
        }
        Err(together(faults))
    }

    fn turn(&self) -> impl Iterator<Item = (usize, &Arc<Endpoint>)> {
        let first = self.first.load(Ordering::SeqCst);
        self.all.iter().enumerate().cycle().skip(first).take(self.all.len().min(TRIES_MAX))
    }

    fn good(&self, at: usize) {
        self.first.store(at, Ordering::SeqCst);
    }

    fn bad(&self, at: usize) {
        let next = at.saturating_add(1).checked_rem(self.all.len()).unwrap_or(0);
        self.first.store(next, Ordering::SeqCst);
    }
}

/// The answer of a server that keeps documents: done, not there, or somebody else was first.
fn sound(status: u16) -> bool {
    status < 400 || matches!(status, 404 | 409)
}

/// One fault for all tries: of the class of the first that got an answer, and with every sentence.
fn together(faults: Vec<Fault>) -> Fault {
    let class = faults.iter().map(|f| f.class).find(|c| *c != Class::Transport).unwrap_or(Class::Transport);
    let retry_after_ms = faults.iter().filter_map(|f| f.retry_after_ms).max();
    let said: Vec<String> = faults.into_iter().map(|f| f.message).collect();
    let message =
        if said.is_empty() { "no server is configured for the fleet record".to_owned() } else { said.join("; ") };
    Fault { class, message, retry_after_ms }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(n: usize) -> Endpoints {
        let urls: Vec<Arc<str>> = (0..n).map(|i| format!("http://es-{i}:9200").into()).collect();
        Endpoints::new(&urls, &Files::default(), Duration::from_secs(1))
    }

    fn order(endpoints: &Endpoints) -> Vec<usize> {
        endpoints.turn().map(|(at, _)| at).collect()
    }

    #[test]
    fn the_last_good_server_is_asked_first_and_the_last_bad_one_last() {
        let e = endpoints(3);
        assert_eq!(order(&e), [0, 1, 2]);
        e.bad(0);
        assert_eq!(order(&e), [1, 2, 0]);
        e.good(2);
        assert_eq!(order(&e), [2, 0, 1]);
        e.bad(2);
        assert_eq!(order(&e), [0, 1, 2]);
        assert_eq!(order(&endpoints(9)).len(), TRIES_MAX);
        assert!(order(&endpoints(0)).is_empty());
    }

    #[test]
    fn an_answer_says_more_than_a_lost_call_and_no_sentence_is_dropped() {
        let mut throttled = Fault::new(Class::Throttled, "b");
        throttled.retry_after_ms = Some(7);
        let all = together(vec![Fault::transport("a"), throttled, Fault::new(Class::NotReady, "c")]);
        assert_eq!((all.class, all.message.as_str(), all.retry_after_ms), (Class::Throttled, "a; b; c", Some(7)));
        assert_eq!(together(vec![Fault::transport("a")]).class, Class::Transport);
        assert_eq!(together(Vec::new()).class, Class::Transport);
    }
}
