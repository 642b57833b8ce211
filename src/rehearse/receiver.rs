//! The receiving end of a webhook, or of a heartbeat: keeps every page in order, and answers as it is told to.

use super::http::{self, Answer, End, Request, Response, Server, Service};
use super::pace::{self, Origin};
use serde_json::Value;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// A page as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// Simulated milliseconds since the world's start.
    pub at_ms: u64,
    /// Path and query.
    pub path: String,
    /// Names in lower case, in order.
    pub headers: Vec<(String, String)>,
    /// The body; a string where it is no JSON.
    pub body: Value,
    /// Was it answered 2xx? What was not will be sent again.
    pub accepted: bool,
}

impl Received {
    /// It tells that an alert is over.
    pub fn is_over(&self) -> bool {
        self.is("resolve")
    }

    /// More about what fires already: it wakes nobody.
    pub fn is_update(&self) -> bool {
        self.is("update")
    }

    fn is(&self, what: &str) -> bool {
        self.body.get("event").is_some_and(|event| event == what)
    }
}

/// How the next request is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// With this status.
    Status(u16),
    /// With this status and `Retry-After` in seconds.
    RetryAfter(u16, u64),
    /// With this status, so much later (real time).
    Late(u16, Duration),
    /// Never.
    Hang,
    /// The body is stored, and the connection closed without an answer.
    StoreAndClose,
    /// Reset, and not stored.
    Reset,
}

#[derive(Debug)]
struct Shared {
    origin: Origin,
    received: Vec<Received>,
    next: VecDeque<Reply>,
    always: Reply,
}

/// The handle on a receiver.
#[derive(Clone, Debug)]
pub struct ReceiverControl {
    shared: Arc<Mutex<Shared>>,
    arrived: watch::Sender<usize>,
}

impl ReceiverControl {
    /// Everything that was stored, in order.
    pub fn received(&self) -> Vec<Received> {
        pace::lock(&self.shared).received.clone()
    }

    /// Pages: what wakes somebody and was answered 2xx.
    pub fn accepted(&self) -> Vec<Received> {
        self.received().into_iter().filter(|r| r.accepted && !r.is_over() && !r.is_update()).collect()
    }

    /// What is over and was answered 2xx.
    pub fn resolved(&self) -> Vec<Received> {
        self.received().into_iter().filter(|r| r.accepted && r.is_over()).collect()
    }

    /// The next requests are answered so, one each; then as before.
    pub fn answer_next(&self, replies: impl IntoIterator<Item = Reply>) {
        pace::lock(&self.shared).next.extend(replies);
    }

    /// All further requests are answered so. At the start: 202.
    pub fn answer_always(&self, reply: Reply) {
        pace::lock(&self.shared).always = reply;
    }

    /// Waits until so many have been stored; false when it takes longer than `bound` (real).
    pub async fn wait_for(&self, count: usize, bound: Duration) -> bool {
        let mut arrived = self.arrived.subscribe();
        pace::within(bound, arrived.wait_for(|n| *n >= count)).await.is_some_and(|r| r.is_ok())
    }

    /// Waits until so many have been answered 2xx; false when it takes longer than `bound` (real).
    pub async fn wait_for_accepted(&self, count: usize, bound: Duration) -> bool {
        pace::until(bound, || self.accepted().len() >= count).await
    }

    /// The answer, and how long it takes.
    fn handle(&self, request: &Request) -> (Answer, Duration) {
        let mut shared = pace::lock(&self.shared);
        // A heartbeat has no body.
        if !matches!(request.method.as_str(), "POST" | "GET") {
            return (Answer::Reply(Response::new(405, "text/plain", "POST or GET")), Duration::ZERO);
        }
        let reply = shared.next.pop_front().unwrap_or_else(|| shared.always.clone());
        let good = |s: u16| (200..300).contains(&s);
        let accepted = matches!(reply, Reply::Status(s) | Reply::RetryAfter(s, _) | Reply::Late(s, _) if good(s));
        if reply != Reply::Reset {
            let body = serde_json::from_slice(&request.body)
                .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&request.body).into_owned()));
            let (at_ms, path) = (shared.origin.simulated_ms(), request.target.clone());
            shared.received.push(Received { at_ms, path, headers: request.headers.clone(), body, accepted });
            self.arrived.send_replace(shared.received.len());
        }
        let late = if let Reply::Late(_, late) = reply { late } else { Duration::ZERO };
        let answer = match reply {
            Reply::Status(status) | Reply::Late(status, _) => {
                Answer::Reply(Response::new(status, "text/plain", http::reason(status)))
            }
            Reply::RetryAfter(status, seconds) => {
                let response = Response::new(status, "text/plain", http::reason(status));
                Answer::Reply(response.with("retry-after", &seconds.to_string()))
            }
            Reply::Hang => Answer::Raw(Vec::new(), End::Stall),
            Reply::StoreAndClose => Answer::Raw(Vec::new(), End::Fin),
            Reply::Reset => Answer::Raw(Vec::new(), End::Rst),
        };
        (answer, late)
    }
}

impl Service for ReceiverControl {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        let answer = |request: Request| async move {
            let (answer, late) = self.handle(&request);
            if !late.is_zero() {
                pace::sleep(late).await;
            }
            answer
        };
        http::converse(stream, stop, answer).await;
    }
}

/// A running receiver.
#[derive(Debug)]
pub struct Receiver {
    server: Server,
    control: ReceiverControl,
}

impl Receiver {
    /// Listens on `address` (port 0: a free one). `origin` is the world's clock.
    pub async fn start(address: SocketAddr, origin: Origin) -> io::Result<Receiver> {
        let (arrived, _) = watch::channel(0);
        let shared = Shared { origin, received: Vec::new(), next: VecDeque::new(), always: Reply::Status(202) };
        Receiver::start_with(address, ReceiverControl { shared: Arc::new(Mutex::new(shared)), arrived }).await
    }

    /// Listens again with what it had stored, after an outage.
    pub async fn start_with(address: SocketAddr, control: ReceiverControl) -> io::Result<Receiver> {
        let server = Server::start(address, control.clone()).await?;
        Ok(Receiver { server, control })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// As a webhook's URL.
    pub fn url(&self) -> String {
        format!("http://{}/pages", self.address())
    }

    /// The handle.
    pub fn control(&self) -> ReceiverControl {
        self.control.clone()
    }

    /// Is gone; what was stored stays in the handles.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}
