//! The control server: one request per connection, each bounded in size and time, each caller known by the kernel's word.

use super::ask::{self, Ask, Wrong};
use super::backend::{Backend, Caller};
use super::peer::Peer;
use super::protocol::{Done, RunReply, TestReply};
use super::roles::{Roles, Verb, allowed};
use super::socket::{self, Place};
pub use super::socket::{BindError, Replace};
use crate::core::exit::Exit;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; more wait to be accepted.
    pub connections_max: usize,
    /// Of them, how many may wait for progress: others must still get through.
    pub followers_max: usize,
    /// Time for the head of a request, and for its body, each, in ms.
    pub read_ms: u64,
    /// Time for a whole connection, in ms: more than any answer takes.
    pub connection_ms: u64,
    /// Longest body, in bytes.
    pub body_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 64,
            followers_max: 32,
            read_ms: 5_000,
            connection_ms: 120_000,
            body_bytes_max: 64 * 1024,
        }
    }
}

/// One line about a request that would change something, or that was refused.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditLine {
    /// Who.
    pub caller: Caller,
    /// Their process.
    pub pid: Option<i32>,
    /// What; absent = it could not be told.
    pub verb: Option<Verb>,
    /// About what, and why: job, reason.
    pub about: String,
    /// How it went.
    pub outcome: Outcome,
}

/// How a request went.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The agent answered: exit code and message.
    Answered(u8, String),
    /// Not with this role, or not well-formed: HTTP status and error.
    Refused(u16, String),
    /// The caller was gone before the answer: it may have been carried out.
    CallerGone,
}

/// Where audit lines go. Called within the request; must not block.
pub type Audit = Arc<dyn Fn(AuditLine) + Send + Sync>;

/// A socket that listens. Connections wait until [`Server::serve`].
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    place: Place,
}

struct Shared<B> {
    backend: B,
    roles: Roles,
    limits: Limits,
    audit: Audit,
    followers: Semaphore,
}

impl Server {
    /// Makes the socket, mode 0660, for the group `gid`. Within a runtime.
    ///
    /// # Errors
    /// The directory is not safe, something is there that may not be replaced, or the system refuses.
    pub fn bind(path: &Path, gid: Option<u32>, replace: Replace) -> Result<Server, BindError> {
        let (listener, place) = socket::bind(path, gid, replace)?;
        let listener = UnixListener::from_std(listener).map_err(|source| BindError::Io {
            path: path.to_owned(),
            doing: "watch it",
            source,
        })?;
        Ok(Server { listener, place })
    }

    /// What stands at the path is still this socket: nobody else can come in.
    pub fn stands(&self) -> bool {
        self.place.stands()
    }

    /// Serves until dropped; whatever is under way then ends with it.
    pub async fn serve<B: Backend>(&self, backend: B, roles: Roles, limits: Limits, audit: Audit) {
        let followers = Semaphore::new(limits.followers_max);
        let shared = Arc::new(Shared { backend, roles, limits, audit, followers });
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = open.join_next(), if !open.is_empty() => panicked(ended),
                accepted = self.listener.accept(), if open.len() < limits.connections_max => match accepted {
                    Ok((stream, _)) => drop(open.spawn(connection(stream, shared.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "control socket: cannot accept");
                        pause().await;
                    }
                },
            }
        }
    }
}

/// Out of descriptors, mostly: a moment later some may be free.
async fn pause() {
    let _ = tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await;
}

fn panicked(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "control socket: a request ended in a panic; its caller got no answer");
    }
}

async fn connection<B: Backend>(stream: UnixStream, shared: Arc<Shared<B>>) {
    let Ok(cred) = stream.peer_cred() else { return };
    let peer = Peer::of(cred.uid(), cred.gid(), cred.pid());
    let limits = shared.limits;
    let service = hyper::service::service_fn(move |request| {
        let (shared, peer) = (shared.clone(), peer.clone());
        async move { Ok::<_, Infallible>(answer(&shared, &peer, request).await) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.read_ms))
        .keep_alive(false)
        .max_headers(32)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    // A caller that goes away, or sends what is no HTTP, is no news.
    let _ = tokio::time::timeout(Duration::from_millis(limits.connection_ms), serving).await;
}

type Answer = Response<Full<Bytes>>;

async fn answer<B: Backend>(shared: &Shared<B>, peer: &Peer, request: Request<Incoming>) -> Answer {
    let role = shared.roles.role(peer);
    let caller = peer.caller(role);
    let mut line = Line { audit: shared.audit.clone(), line: None };
    let refused = |wrong: Wrong, verb: Option<Verb>, about: String| {
        let outcome = Outcome::Refused(wrong.status, wrong.error.error.clone());
        (shared.audit)(AuditLine { caller: caller.clone(), pid: peer.pid, verb, about, outcome });
        let status = StatusCode::from_u16(wrong.status).unwrap_or(StatusCode::BAD_REQUEST);
        reply(status, &wrong.error)
    };
    let ask = match read(request, &shared.limits).await {
        Ok(ask) => ask,
        Err(wrong) => return refused(wrong, None, String::new()),
    };
    let verb = ask.verb();
    if !allowed(role, verb) {
        return refused(denied(&shared.roles, &caller, verb), Some(verb), ask.about());
    }
    if verb.changes() {
        let outcome = Outcome::CallerGone;
        line.line =
            Some(AuditLine { caller: caller.clone(), pid: peer.pid, verb: Some(verb), about: ask.about(), outcome });
    }
    match perform(shared, caller.clone(), ask).await {
        Ok(Performed { outcome, answer }) => {
            line.end(outcome);
            answer
        }
        Err(wrong) => refused(wrong, Some(verb), String::new()),
    }
}

fn denied(roles: &Roles, caller: &Caller, verb: Verb) -> Wrong {
    let who = roles.who(verb.needs());
    Wrong::new(
        403,
        format!("{} may not {verb}", caller.name),
        format!("the role {}: {who}", verb.needs()),
        format!("ask {who} to do it"),
    )
}

async fn read(request: Request<Incoming>, limits: &Limits) -> Result<Ask, Wrong> {
    let (head, body) = request.into_parts();
    let (method, path) = (head.method.as_str(), head.uri.path());
    ask::route(method, path)?;
    let body = Limited::new(body, limits.body_bytes_max).collect();
    let body = match tokio::time::timeout(Duration::from_millis(limits.read_ms), body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(e)) if e.is::<LengthLimitError>() => {
            let expected = format!("at most {} bytes", limits.body_bytes_max);
            return Err(Wrong::new(413, "the body is too long", expected, "send less"));
        }
        Ok(Err(e)) => return Err(Wrong::new(400, format!("the body ended early: {e}"), "a whole body", "ask again")),
        Err(_) => {
            let expected = format!("all of it within {} ms", limits.read_ms);
            return Err(Wrong::new(408, "the body did not arrive in time", expected, "ask again"));
        }
    };
    ask::parse(method, path, head.uri.query(), &body)
}

struct Performed {
    outcome: Outcome,
    answer: Answer,
}

async fn perform<B: Backend>(shared: &Shared<B>, by: Caller, ask: Ask) -> Result<Performed, Wrong> {
    let backend = &shared.backend;
    Ok(match ask {
        Ask::Status => read_only(&backend.status()),
        Ask::Check => read_only(&backend.check().await),
        Ask::Progress { cycle, after } => {
            let Ok(_permit) = shared.followers.try_acquire() else {
                return Err(Wrong::new(
                    503,
                    "too many callers follow cycles",
                    "fewer of them",
                    "try again in a moment",
                )
                .exits(Exit::Unreachable));
            };
            read_only(&backend.progress(cycle, after).await)
        }
        Ask::Explain { node } => read_only(&backend.explain(node).await),
        Ask::History { limit } => read_only(&backend.history(limit).await),
        Ask::Run(r) => run(&backend.run(by, r).await),
        Ask::Rejoin(r) => done(&backend.rejoin(by, r).await),
        Ask::Hold(r) => done(&backend.hold(by, r).await),
        Ask::Pause(r) => done(&backend.pause(by, r).await),
        Ask::Unpause(r) => done(&backend.unpause(by, r).await),
        Ask::LatchClear(r) => done(&backend.clear_latch(by, r).await),
        Ask::Retire(r) => done(&backend.retire(by, r).await),
        Ask::Init(r) => done(&backend.init(by, r).await),
        Ask::AlertTest(r) => tested(&backend.alert_test(by, r).await),
        Ask::Reload => done(&backend.reload().await),
    })
}

fn read_only<T: Serialize>(body: &T) -> Performed {
    Performed { outcome: Outcome::Answered(0, String::new()), answer: reply(StatusCode::OK, body) }
}

fn done(d: &Done) -> Performed {
    Performed { outcome: Outcome::Answered(d.exit, d.message.clone()), answer: reply(StatusCode::OK, d) }
}

fn tested(r: &TestReply) -> Performed {
    let told: Vec<String> = r.results.iter().map(|r| format!("{}: {}", r.sink, r.message)).collect();
    Performed { outcome: Outcome::Answered(r.exit, told.join("; ")), answer: reply(StatusCode::OK, r) }
}

fn run(r: &RunReply) -> Performed {
    let outcome = match r {
        RunReply::Started { cycle, .. } => Outcome::Answered(0, format!("cycle {cycle} started")),
        RunReply::Attached { cycle, .. } => Outcome::Answered(0, format!("attached to cycle {cycle}")),
        RunReply::Refused { exit, message, .. } => Outcome::Answered(*exit, message.clone()),
    };
    Performed { outcome, answer: reply(StatusCode::OK, r) }
}

fn reply<T: Serialize>(status: StatusCode, body: &T) -> Answer {
    let (status, bytes) = match serde_json::to_vec(body) {
        Ok(bytes) => (status, bytes),
        Err(error) => {
            tracing::error!(%error, "control socket: an answer cannot be written as JSON");
            (StatusCode::INTERNAL_SERVER_ERROR, Vec::new())
        }
    };
    let mut answer = Response::new(Full::new(Bytes::from(bytes)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}

/// The audit line of a request under way. If the caller goes away its future is dropped, and this still tells.
struct Line {
    audit: Audit,
    line: Option<AuditLine>,
}

impl Line {
    fn end(&mut self, outcome: Outcome) {
        if let Some(line) = self.line.take() {
            (self.audit)(AuditLine { outcome, ..line });
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.end(Outcome::CallerGone);
    }
}
