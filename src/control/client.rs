//! The CLI's side of the control socket: one connection per request, bounded in time and size.

use super::ask::encode;
use super::protocol::{
    ApiError, CheckReply, ClearRequest, Done, Explain, History, HoldRequest, InitRequest, Progress, ReasonRequest,
    RejoinRequest, RetireRequest, RunReply, RunRequest, Status, TestReply, TestRequest,
};
use crate::core::exit::Exit;
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;

/// Longest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Time for what is answered from memory.
const QUICK: Duration = Duration::from_secs(10);
/// Time for what asks the world first.
const LONG: Duration = Duration::from_secs(90);
/// Time for two messages to every pager, one after the other.
const TEST: Duration = Duration::from_mins(5);
/// Time for what waits up to 20 s for news.
const POLL: Duration = Duration::from_secs(35);

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("the agent is not running: {}: {why}", .socket.display())]
    NoAgent {
        /// Where.
        socket: PathBuf,
        /// What the system says.
        why: String,
    },
    /// This user may not connect.
    #[error("no permission to use {}: only root and members of {group} may", .socket.display())]
    NoPermission {
        /// Where.
        socket: PathBuf,
        /// The socket's group.
        group: String,
    },
    /// Connected, and then no whole answer: what was asked may have been done.
    #[error("the agent did not answer: {why}")]
    Lost {
        /// What happened.
        why: String,
    },
    /// An answer that is none.
    #[error(
        "the answer is not one this version understands: {why} (backstop --version; is the agent another version?)"
    )]
    Strange {
        /// What is odd about it.
        why: String,
    },
    /// The agent says no.
    #[error("{}; expected: {}", .error.error, .error.expected)]
    Refused {
        /// HTTP status.
        status: u16,
        /// What it says.
        error: Box<ApiError>,
    },
}

impl ClientError {
    /// An agent that starts again explains it: worth another try.
    pub const fn passes(&self) -> bool {
        matches!(
            self,
            ClientError::NoAgent { .. } | ClientError::Lost { .. } | ClientError::Refused { status: 503, .. }
        )
    }

    /// What the CLI exits with. `changes`: the request would have changed something, so its fate may be unknown.
    pub fn exit(&self, changes: bool) -> Exit {
        match self {
            ClientError::Lost { .. } | ClientError::Strange { .. } if changes => Exit::ContactLost,
            ClientError::NoAgent { .. } | ClientError::Lost { .. } => Exit::NoAgent,
            ClientError::NoPermission { .. } => Exit::Usage,
            ClientError::Strange { .. } => Exit::Internal,
            ClientError::Refused { error, .. } => Exit::from_code(error.exit).unwrap_or(Exit::Internal),
        }
    }

    /// The exact next command.
    pub fn next(&self) -> String {
        match self {
            ClientError::NoAgent { .. } | ClientError::Lost { .. } => "systemctl status backstop".to_owned(),
            ClientError::NoPermission { group, .. } => {
                format!("join {group} (sudo usermod -aG) and log in again, or use sudo")
            }
            ClientError::Strange { .. } => "systemctl restart backstop (a restart never takes a node out)".to_owned(),
            ClientError::Refused { error, .. } => error.next.clone(),
        }
    }
}

/// Talks to the agent at one socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// For this socket; nothing is opened yet.
    pub fn new(socket: impl Into<PathBuf>) -> Client {
        Client { socket: socket.into() }
    }

    /// Where the agent is looked for.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// `GET /v1/status`
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.get("/v1/status", QUICK).await
    }

    /// `POST /v1/check`
    pub async fn check(&self) -> Result<CheckReply, ClientError> {
        self.call("POST", "/v1/check", Vec::new(), LONG).await
    }

    /// `POST /v1/run`. The same request may be sent again: it starts one cycle.
    pub async fn run(&self, r: &RunRequest) -> Result<RunReply, ClientError> {
        self.post("/v1/run", r).await
    }

    /// `GET /v1/progress`
    pub async fn progress(&self, cycle: Option<&str>, after: u64) -> Result<Progress, ClientError> {
        let cycle = cycle.map_or(String::new(), |c| format!("cycle={}&", encode(c)));
        self.get(&format!("/v1/progress?{cycle}after={after}"), POLL).await
    }

    /// `GET /v1/explain`
    pub async fn explain(&self, node: Option<&str>) -> Result<Explain, ClientError> {
        let node = node.map_or(String::new(), |n| format!("?node={}", encode(n)));
        self.get(&format!("/v1/explain{node}"), LONG).await
    }

    /// `GET /v1/history`
    pub async fn history(&self, limit: usize) -> Result<History, ClientError> {
        self.get(&format!("/v1/history?limit={limit}"), QUICK).await
    }

    /// `POST /v1/rejoin`
    pub async fn rejoin(&self, r: &RejoinRequest) -> Result<Done, ClientError> {
        self.post("/v1/rejoin", r).await
    }

    /// `POST /v1/hold`
    pub async fn hold(&self, r: &HoldRequest) -> Result<Done, ClientError> {
        self.post("/v1/hold", r).await
    }

    /// `POST /v1/pause`
    pub async fn pause(&self, r: &ReasonRequest) -> Result<Done, ClientError> {
        self.post("/v1/pause", r).await
    }

    /// `POST /v1/unpause`
    pub async fn unpause(&self, r: &ReasonRequest) -> Result<Done, ClientError> {
        self.post("/v1/unpause", r).await
    }

    /// `POST /v1/latch/clear`
    pub async fn latch_clear(&self, r: &ClearRequest) -> Result<Done, ClientError> {
        self.post("/v1/latch/clear", r).await
    }

    /// `POST /v1/retire`
    pub async fn retire(&self, r: &RetireRequest) -> Result<Done, ClientError> {
        self.post("/v1/retire", r).await
    }

    /// `POST /v1/init`
    pub async fn init(&self, r: &InitRequest) -> Result<Done, ClientError> {
        self.post("/v1/init", r).await
    }

    /// `POST /v1/alert/test`
    pub async fn alert_test(&self, r: &TestRequest) -> Result<TestReply, ClientError> {
        let body = serde_json::to_vec(r).map_err(|e| ClientError::Strange { why: e.to_string() })?;
        self.call("POST", "/v1/alert/test", body, TEST).await
    }

    /// `POST /v1/reload`
    pub async fn reload(&self) -> Result<Done, ClientError> {
        self.call("POST", "/v1/reload", Vec::new(), LONG).await
    }

    async fn get<T: DeserializeOwned>(&self, target: &str, within: Duration) -> Result<T, ClientError> {
        self.call("GET", target, Vec::new(), within).await
    }

    async fn post<T: DeserializeOwned>(&self, target: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| ClientError::Strange { why: e.to_string() })?;
        self.call("POST", target, body, LONG).await
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        target: &str,
        body: Vec<u8>,
        within: Duration,
    ) -> Result<T, ClientError> {
        // Connecting waits where the agent's backlog is full.
        let stream = match tokio::time::timeout(QUICK, UnixStream::connect(&self.socket)).await {
            Ok(connected) => connected.map_err(|e| self.no_connection(&e))?,
            Err(_) => return Err(self.no_agent("it does not accept connections".to_owned())),
        };
        let (status, bytes) = match tokio::time::timeout(within, exchange(stream, method, target, body)).await {
            Ok(answer) => answer.map_err(|why| ClientError::Lost { why })?,
            Err(_) => return Err(ClientError::Lost { why: format!("nothing within {} s", within.as_secs()) }),
        };
        let strange = |e: serde_json::Error| ClientError::Strange { why: format!("HTTP {status}: {e}") };
        if status == 200 {
            return serde_json::from_slice(&bytes).map_err(strange);
        }
        let error = Box::new(serde_json::from_slice(&bytes).map_err(strange)?);
        Err(ClientError::Refused { status, error })
    }

    fn no_agent(&self, why: String) -> ClientError {
        ClientError::NoAgent { socket: self.socket.clone(), why }
    }

    fn no_connection(&self, e: &io::Error) -> ClientError {
        let kind = e.kind();
        if kind == io::ErrorKind::PermissionDenied {
            ClientError::NoPermission { socket: self.socket.clone(), group: socket_group(&self.socket) }
        } else if kind == io::ErrorKind::NotFound {
            self.no_agent("there is no such socket".to_owned())
        } else if kind == io::ErrorKind::ConnectionRefused {
            self.no_agent("nobody listens there".to_owned())
        } else if kind == io::ErrorKind::WouldBlock {
            // Somebody listens: only too many wait already.
            ClientError::Lost { why: "it is too busy to take another caller; try again".to_owned() }
        } else {
            self.no_agent(e.to_string())
        }
    }
}

/// The group that the socket belongs to, by name.
fn socket_group(socket: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let gid = std::fs::metadata(socket).ok().map(|m| m.gid());
    gid.and_then(super::peer::group_name).unwrap_or_else(|| "group backstop".to_owned())
}

/// One request on its own connection.
async fn exchange(stream: UnixStream, method: &str, target: &str, body: Vec<u8>) -> Result<(u16, Bytes), String> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| chain(&e))?;
    let request = Request::builder()
        .method(method)
        .uri(target)
        .header(HOST, "backstop")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| chain(&e))?;
    let talk = async {
        let answer = sender.send_request(request).await.map_err(|e| chain(&e))?;
        let status = answer.status().as_u16();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await.map_err(|e| chain(&*e))?;
        Ok((status, body.to_bytes()))
    };
    let (mut talk, mut connection) = (std::pin::pin!(talk), std::pin::pin!(connection));
    tokio::select! {
        answer = &mut talk => answer,
        // The connection's end says nothing that the exchange does not say better.
        _ = &mut connection => talk.await,
    }
}

/// An error with its causes.
fn chain(e: &(dyn Error + 'static)) -> String {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
