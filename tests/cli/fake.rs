//! An agent that says what a test tells it to.

use crate::samples;
use backstop::control::backend::{Backend, Caller};
use backstop::control::protocol::{
    CheckReply, ClearRequest, Done, Explain, History, HoldRequest, InitRequest, Progress, ProgressStep, ReasonRequest,
    RejoinRequest, RetireRequest, RunReply, RunRequest, Status, TestReply, TestRequest, TestResult,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// What the fake says, and what it was asked.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) status: Status,
    /// One after another; the last one again and again. Empty = never answers.
    pub(crate) runs: Vec<RunReply>,
    pub(crate) steps: Vec<ProgressStep>,
    pub(crate) end: Progress,
    /// `None` = never answers.
    pub(crate) done: Option<Done>,
    pub(crate) check: CheckReply,
    pub(crate) explain: Explain,
    pub(crate) history: History,
    /// Everything that would change something, as it arrived.
    pub(crate) asked: Vec<String>,
    /// Requests that arrived, by id.
    pub(crate) request_ids: Vec<String>,
    /// Callers of `progress` that wait now.
    pub(crate) followers: usize,
}

/// Shared with the test.
#[derive(Clone)]
pub(crate) struct Fake(Arc<watch::Sender<Script>>);

impl Fake {
    pub(crate) fn new() -> Fake {
        Fake(Arc::new(watch::Sender::new(Script {
            status: samples::status(),
            runs: vec![samples::started()],
            steps: Vec::new(),
            end: Progress::default(),
            done: Some(Done { exit: 0, message: "done".to_owned(), next: None }),
            check: samples::check(),
            explain: samples::explain(),
            history: samples::history(),
            asked: Vec::new(),
            request_ids: Vec::new(),
            followers: 0,
        })))
    }

    /// Changes what it says, from now on.
    pub(crate) fn tell(&self, change: impl FnOnce(&mut Script)) {
        self.0.send_modify(change);
    }

    pub(crate) fn script(&self) -> Script {
        self.0.borrow().clone()
    }

    /// Until it was asked so.
    pub(crate) async fn until(&self, what: &str, so: impl Fn(&Script) -> bool) {
        let mut rx = self.0.subscribe();
        let waited = tokio::time::timeout(Duration::from_secs(30), rx.wait_for(|s| so(s))).await;
        assert!(waited.is_ok(), "it never came to this: {what}");
    }

    async fn done(&self, what: String) -> Done {
        self.tell(|s| s.asked.push(what));
        match self.script().done {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }
}

/// Counts a waiting caller for as long as it waits.
struct Following(Fake);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.tell(|s| s.followers -= 1);
    }
}

impl Backend for Fake {
    fn status(&self) -> Status {
        self.script().status
    }

    async fn run(&self, by: Caller, r: RunRequest) -> RunReply {
        let mut reply = None;
        self.tell(|s| {
            s.asked.push(format!("run {} {:?} {:?} {:?} admin={}", r.name, r.argv, r.reboot, r.overrides, by.admin));
            s.request_ids.push(r.request_id);
            reply = s.runs.first().cloned();
            if s.runs.len() > 1 {
                s.runs.remove(0);
            }
        });
        match reply {
            Some(reply) => reply,
            None => std::future::pending().await,
        }
    }

    async fn check(&self) -> CheckReply {
        self.script().check
    }

    async fn progress(&self, _: Option<String>, after: u64) -> Progress {
        self.tell(|s| s.followers += 1);
        let _following = Following(self.clone());
        let mut rx = self.0.subscribe();
        let news = |s: &Script| {
            s.steps.iter().any(|step| step.n > after) || s.end.ended.is_some() || s.end.late || s.end.unknown
        };
        let _ = tokio::time::timeout(Duration::from_secs(20), rx.wait_for(news)).await;
        let s = self.script();
        Progress { steps: s.steps.into_iter().filter(|step| step.n > after).collect(), ..s.end }
    }

    async fn rejoin(&self, by: Caller, r: RejoinRequest) -> Done {
        self.done(format!("rejoin {} {} admin={}", r.reason, r.skip_check, by.admin)).await
    }

    async fn hold(&self, _: Caller, r: HoldRequest) -> Done {
        self.done(format!("hold {} {} {}", r.for_s, r.all, r.reason)).await
    }

    async fn pause(&self, _: Caller, r: ReasonRequest) -> Done {
        self.done(format!("pause {}", r.reason)).await
    }

    async fn unpause(&self, _: Caller, r: ReasonRequest) -> Done {
        self.done(format!("unpause {}", r.reason)).await
    }

    async fn clear_latch(&self, _: Caller, r: ClearRequest) -> Done {
        self.done(format!("clear {} {} {}", r.latch, r.reason, r.unresolved)).await
    }

    async fn retire(&self, _: Caller, r: RetireRequest) -> Done {
        self.done(format!("retire {} {}", r.node, r.reason)).await
    }

    async fn init(&self, _: Caller, r: InitRequest) -> Done {
        self.done(format!("init {:?}", r.reason)).await
    }

    async fn explain(&self, node: Option<String>) -> Explain {
        let explain = self.script().explain;
        Explain { node: node.unwrap_or(explain.node), ..explain }
    }

    async fn history(&self, limit: usize) -> History {
        let mut history = self.script().history;
        history.lines.truncate(limit);
        history
    }

    async fn alert_test(&self, _: Caller, r: TestRequest) -> TestReply {
        let done = self.done(format!("alert test {:?}", r.sink)).await;
        let accepted = done.exit == 0;
        let result = TestResult { sink: "webhook".to_owned(), accepted, message: done.message };
        TestReply { v: 1, results: vec![result], exit: done.exit, next: done.next }
    }

    async fn reload(&self) -> Done {
        self.done("reload".to_owned()).await
    }
}
