//! The agent as the control server sees it from its first moment on: while it does not know yet who it is, it says so.

use super::notices::Notices;
use crate::clock::{Clock, SystemClock};
use crate::config::{Config, Mode};
use crate::control::backend::{Backend, Caller};
use crate::control::protocol::{
    CheckReply, ClearRequest, Done, Explain, History, HoldRequest, InitRequest, Progress, ReasonRequest, RejoinRequest,
    RetireRequest, RunReply, RunRequest, Status, TestReply, TestRequest, VERSION,
};
use crate::core::exit::Exit;
use crate::core::guard::Verdicts;
use std::sync::{Arc, PoisonError, RwLock};

/// Cheap to clone; all are the same.
pub(super) struct Front<B> {
    inner: Arc<Inner<B>>,
}

struct Inner<B> {
    phase: RwLock<Phase<B>>,
    notices: Notices,
    clock: SystemClock,
    fleet: String,
    node: String,
    mode: Mode,
    minimum_healthy: u32,
    max_unavailable: u32,
}

enum Phase<B> {
    /// What it waits for.
    Starting(String),
    Ready(B),
}

impl<B> Clone for Front<B> {
    fn clone(&self) -> Self {
        Front { inner: self.inner.clone() }
    }
}

impl<B: Backend> Front<B> {
    pub(super) fn new(config: &Config, clock: SystemClock, notices: Notices) -> Front<B> {
        let inner = Inner {
            phase: RwLock::new(Phase::Starting("starting".to_owned())),
            notices,
            clock,
            fleet: config.fleet.to_string(),
            node: config.node.name.to_string(),
            mode: config.mode,
            minimum_healthy: config.minimum_healthy,
            max_unavailable: config.max_unavailable,
        };
        Front { inner: Arc::new(inner) }
    }

    /// What it waits for, in words that begin with "starting".
    pub(super) fn starting(&self, text: String) {
        self.inner.notices.doing(&text);
        *self.inner.phase.write().unwrap_or_else(PoisonError::into_inner) = Phase::Starting(text);
    }

    /// From now on this one answers.
    pub(super) fn ready(&self, backend: B) {
        *self.inner.phase.write().unwrap_or_else(PoisonError::into_inner) = Phase::Ready(backend);
    }

    /// Whoever answers; `Err` = nobody yet: what is waited for.
    fn behind(&self) -> Result<B, String> {
        match &*self.inner.phase.read().unwrap_or_else(PoisonError::into_inner) {
            Phase::Starting(text) => Err(text.clone()),
            Phase::Ready(backend) => Ok(backend.clone()),
        }
    }

    fn early(&self, starting: String) -> Status {
        let i = &self.inner;
        Status {
            v: VERSION,
            agent: env!("CARGO_PKG_VERSION").to_owned(),
            fleet: i.fleet.clone(),
            node: i.node.clone(),
            instance: "unknown".to_owned(),
            mode: if i.mode == Mode::Act { "act" } else { "observe" }.to_owned(),
            config_problem: None,
            now_ms: i.clock.now().wall_ms,
            minimum_healthy: i.minimum_healthy,
            max_unavailable: i.max_unavailable,
            in_service: None,
            nodes: Vec::new(),
            cycle: None,
            last: None,
            record: None,
            findings: Vec::new(),
            alerts: Vec::new(),
            heals_in_ms: None,
            pages_waiting: Vec::new(),
            last_page_accepted: None,
            last_page: None,
            undelivered: 0,
            sees: Vec::new(),
            would_refuse: None,
            warnings: Vec::new(),
            next: None,
            starting: Some(starting),
        }
    }
}

fn not_yet(starting: String) -> Done {
    Done { exit: Exit::Unreachable.code(), message: starting, next: Some("backstop status".to_owned()) }
}

/// One verb that changes something: passed on, or not yet.
macro_rules! passed_on {
    ($($verb:ident: $request:ty;)*) => {$(
        async fn $verb(&self, by: Caller, r: $request) -> Done {
            match self.behind() {
                Ok(backend) => backend.$verb(by, r).await,
                Err(starting) => not_yet(starting),
            }
        }
    )*};
}

impl<B: Backend> Backend for Front<B> {
    fn status(&self) -> Status {
        let mut status = match self.behind() {
            Ok(backend) => backend.status(),
            Err(starting) => self.early(starting),
        };
        status.warnings.extend(self.inner.notices.all());
        status
    }

    async fn run(&self, by: Caller, r: RunRequest) -> RunReply {
        match self.behind() {
            Ok(backend) => backend.run(by, r).await,
            Err(starting) => {
                let next = Some("backstop status".to_owned());
                RunReply::Refused { exit: Exit::Unreachable.code(), message: starting, verdicts: None, next }
            }
        }
    }

    async fn check(&self) -> CheckReply {
        match self.behind() {
            Ok(backend) => backend.check().await,
            Err(starting) => CheckReply {
                v: VERSION,
                node: self.inner.node.clone(),
                verdicts: Verdicts(Vec::new()),
                exit: Exit::Unreachable.code(),
                warnings: Vec::new(),
                would_take: Vec::new(),
                next: Some(format!("backstop status   ({starting})")),
            },
        }
    }

    async fn progress(&self, cycle: Option<String>, after: u64) -> Progress {
        match self.behind() {
            Ok(backend) => backend.progress(cycle, after).await,
            // Not "unknown": whether there is such a cycle is not known yet.
            Err(_) => Progress::default(),
        }
    }

    async fn explain(&self, node: Option<String>) -> Explain {
        match self.behind() {
            Ok(backend) => backend.explain(node).await,
            Err(starting) => Explain {
                v: VERSION,
                node: node.unwrap_or_else(|| self.inner.node.clone()),
                unknown: false,
                lines: std::iter::once(format!("The agent is {starting}.")).chain(self.inner.notices.all()).collect(),
                next: vec!["backstop status".to_owned()],
            },
        }
    }

    async fn history(&self, limit: usize) -> History {
        match self.behind() {
            Ok(backend) => backend.history(limit).await,
            Err(_) => History { v: VERSION, lines: Vec::new() },
        }
    }

    async fn alert_test(&self, by: Caller, r: TestRequest) -> TestReply {
        match self.behind() {
            Ok(backend) => backend.alert_test(by, r).await,
            Err(starting) => {
                let next = Some(format!("backstop status   ({starting})"));
                TestReply { v: VERSION, results: Vec::new(), exit: Exit::Unreachable.code(), next }
            }
        }
    }

    async fn reload(&self) -> Done {
        match self.behind() {
            Ok(backend) => backend.reload().await,
            Err(starting) => not_yet(starting),
        }
    }

    passed_on! {
        rejoin: RejoinRequest;
        hold: HoldRequest;
        pause: ReasonRequest;
        unpause: ReasonRequest;
        clear_latch: ClearRequest;
        retire: RetireRequest;
        init: InitRequest;
    }
}
