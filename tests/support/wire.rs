//! A server whose every answer a test decides on, down to cut bytes and resets: the rehearsal's own server, with what was
//! asked of it written down. `tls` puts a certificate in front of it.

use super::BOUND;
use backstop::rehearse::http::{self, Answer, End, Request, Response, Server, Service};
use backstop::rehearse::pace;
use backstop::rehearse::shapes::{Moment, Shape};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// What a test answers a request with.
type Answering = Arc<dyn Fn(&Request) -> Answer + Send + Sync>;

/// A complete answer.
pub(crate) fn reply(status: u16, body: &str) -> Answer {
    Answer::Reply(Response { status, headers: Vec::new(), body: body.as_bytes().to_vec() })
}

/// These bytes, and then that.
pub(crate) fn raw(bytes: impl Into<Vec<u8>>, end: End) -> Answer {
    Answer::Raw(bytes.into(), end)
}

/// It ends only when the client gives up: give the client little patience. With every other answer patience costs nothing,
/// and keeps a busy machine from turning one failure into another.
pub(crate) fn waits(answer: &Answer) -> bool {
    matches!(answer, Answer::Drip(..) | Answer::Raw(_, End::Stall))
}

/// What a request carried.
pub(crate) fn body(request: &Request) -> String {
    String::from_utf8_lossy(&request.body).into_owned()
}

#[derive(Default)]
struct Log {
    requests: Vec<Request>,
    connections: usize,
    ended: usize,
}

#[derive(Clone)]
struct Script {
    /// What happens before a request is read, and when.
    early: Option<(Moment, Answer)>,
    answering: Answering,
    log: Arc<Mutex<Log>>,
}

/// The running server, on a free port of the loopback. Ends with its value.
pub(crate) struct Wire {
    server: Server,
    log: Arc<Mutex<Log>>,
}

impl Wire {
    /// Answers requests so.
    pub(crate) async fn answering(answering: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Wire {
        Wire::start(None, Arc::new(answering)).await
    }

    /// Does this to each connection, before a request is read.
    pub(crate) async fn early(moment: Moment, answer: Answer) -> Wire {
        Wire::start(Some((moment, answer)), Arc::new(|_| raw("", End::Fin))).await
    }

    /// Spoils what would be right in one way; `at` says which requests, where the shape waits for one.
    pub(crate) async fn spoiling(
        shape: Shape,
        right: impl Fn(&Request) -> Response + Send + Sync + 'static,
        at: impl Fn(&Request) -> bool + Send + Sync + 'static,
    ) -> Wire {
        if shape.moment() != Moment::Request {
            return Wire::early(shape.moment(), shape.spoil(&Response::default(), "/")).await;
        }
        Wire::answering(move |request| {
            let right = right(request);
            if at(request) { shape.spoil(&right, &request.target) } else { Answer::Reply(right) }
        })
        .await
    }

    async fn start(early: Option<(Moment, Answer)>, answering: Answering) -> Wire {
        let log = Arc::new(Mutex::new(Log::default()));
        let script = Script { early, answering, log: Arc::clone(&log) };
        let server = Server::start(super::loopback(), script).await.expect("a loopback port");
        Wire { server, log }
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// `http://127.0.0.1:port`
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// All requests so far.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.log.lock().expect("not poisoned").requests.clone()
    }

    /// All connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.log.lock().expect("not poisoned").connections
    }

    /// Waits until that many connections are over on both sides.
    pub(crate) async fn wait_ended(&self, connections: usize) {
        let over = || self.log.lock().expect("not poisoned").ended >= connections;
        assert!(pace::until(BOUND, over).await, "{connections} connections are over");
    }
}

impl Script {
    fn note(&self, change: impl FnOnce(&mut Log)) {
        change(&mut self.log.lock().expect("not poisoned"));
    }
}

impl Service for Script {
    async fn serve(&self, mut stream: TcpStream, mut stop: watch::Receiver<bool>) {
        self.note(|log| log.connections += 1);
        if let Some((moment, answer)) = &self.early {
            if *moment == Moment::FirstBytes {
                let mut first = [0; 1024];
                tokio::select! {
                    _ = stream.read(&mut first) => {}
                    () = http::stopping(&mut stop) => return,
                }
            }
            http::end_with(stream, answer.clone(), stop).await;
        } else {
            let answer = |request: Request| {
                self.note(|log| log.requests.push(request.clone()));
                std::future::ready((self.answering)(&request))
            };
            http::converse(stream, stop, answer).await;
        }
        self.note(|log| log.ended += 1);
    }
}
