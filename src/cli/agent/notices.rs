//! What is wrong with the agent itself, told everywhere at once: the log, `STATUS=`, the warnings of `status`, a page.

use crate::agent::turn::Request;
use crate::core::page::{PageKind, Severity};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// systemd cuts no line, but people read it.
const STATUS_CHARS_MAX: usize = 400;

/// Cheap to clone; all are the same.
#[derive(Clone)]
pub(super) struct Notices {
    inner: Arc<Mutex<Inner>>,
    /// The loop, which pages; what is said before it runs waits here.
    queue: mpsc::Sender<Request>,
}

#[derive(Default)]
struct Inner {
    doing: String,
    wrong: BTreeMap<&'static str, String>,
    /// Troubles that nobody has to be paged about.
    odd: BTreeMap<&'static str, String>,
    died: BTreeSet<&'static str>,
    told: String,
}

impl Notices {
    pub(super) fn new(queue: mpsc::Sender<Request>) -> Notices {
        Notices { inner: Arc::default(), queue }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the agent is doing, or waits for.
    pub(super) fn doing(&self, text: &str) {
        let mut inner = self.inner();
        text.clone_into(&mut inner.doing);
        inner.tell();
    }

    /// This part has this trouble now, or none any more. What has not changed is not said again.
    pub(super) fn wrong(&self, part: &'static str, severity: Severity, why: Option<String>) {
        let page = {
            let mut inner = self.inner();
            if inner.wrong.get(part) == why.as_ref() {
                return;
            }
            if let Some(why) = why {
                tracing::error!(part, why, "a part of the agent has trouble; it goes on without");
                inner.wrong.insert(part, why);
            } else {
                tracing::info!(part, "the trouble is over");
                inner.wrong.remove(part);
            }
            inner.tell();
            sentences(&inner.wrong).collect::<Vec<_>>().join("; ")
        };
        if !page.is_empty() {
            // All of them: of two pages of one kind that wait, only the later one is kept.
            self.page(severity, format!("the agent goes on, with trouble: {page}"));
        }
    }

    /// As `wrong`, where log, `STATUS=` and `status` are enough: nothing that a node or its pages need is missing.
    pub(super) fn odd(&self, part: &'static str, why: Option<String>) {
        let mut inner = self.inner();
        if inner.odd.get(part) == why.as_ref() {
            return;
        }
        if let Some(why) = why {
            tracing::warn!(part, why, "a part of the agent has trouble; it goes on without");
            inner.odd.insert(part, why);
        } else {
            tracing::info!(part, "the trouble is over");
            inner.odd.remove(part);
        }
        inner.tell();
    }

    /// A task has died and is started again. Paged about once.
    pub(super) fn died(&self, task: &'static str, why: &str) {
        if self.inner().died.insert(task) {
            let message = format!("the task `{task}` of the agent died ({why}) and was started again");
            self.page(Severity::Warning, message);
        }
    }

    fn page(&self, severity: Severity, message: String) {
        let _ = self.queue.try_send(Request::Fault(PageKind::AgentFault, severity, message.into()));
    }

    /// A sentence each.
    pub(super) fn all(&self) -> Vec<String> {
        self.inner().all()
    }
}

impl Inner {
    fn all(&self) -> Vec<String> {
        sentences(&self.wrong).chain(sentences(&self.odd)).collect()
    }

    fn tell(&mut self) {
        let parts = std::iter::once(self.doing.clone()).chain(self.all()).filter(|part| !part.is_empty());
        let line = parts.collect::<Vec<_>>().join("; ");
        let text: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(STATUS_CHARS_MAX).collect();
        if text != self.told {
            let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(&text)]);
            tracing::debug!(status = text);
            self.told = text;
        }
    }
}

fn sentences(parts: &BTreeMap<&'static str, String>) -> impl Iterator<Item = String> {
    parts.iter().map(|(part, why)| format!("{part}: {why}"))
}
