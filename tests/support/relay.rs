//! A fault between client and server: each request is passed on, lost, or answered with something else, as a test says.

use super::index::Little;
use backstop::rehearse::http::{self, Answer, End, Request, Response, Server, Service};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// What is behind it.
#[derive(Clone)]
pub(crate) enum Behind {
    /// In memory.
    Little(Little),
    /// A real server.
    Server(SocketAddr),
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// Nothing unusual.
    Pass,
    /// It is not passed on, and this is the answer.
    Instead(Answer),
    /// It is passed on and done, and this is the answer.
    Done(Answer),
}

impl Deed {
    /// Never arrives; the connection ends.
    pub(crate) fn lost() -> Deed {
        Deed::Instead(Answer::Raw(Vec::new(), End::Fin))
    }

    /// Is done, and the answer is lost.
    pub(crate) fn answer_lost() -> Deed {
        Deed::Done(Answer::Raw(Vec::new(), End::Fin))
    }
}

type Rule = Arc<dyn Fn(&Request) -> Deed + Send + Sync>;

#[derive(Clone)]
struct Inside {
    behind: Behind,
    rule: Arc<Mutex<Rule>>,
    seen: Arc<Mutex<Vec<Request>>>,
}

/// The running relay, on a free port of the loopback. Ends with its value.
pub(crate) struct Relay {
    server: Server,
    inside: Inside,
}

impl Relay {
    /// Passes everything on, until told otherwise.
    pub(crate) async fn start(behind: Behind) -> Relay {
        let pass: Rule = Arc::new(|_| Deed::Pass);
        let inside = Inside { behind, rule: Arc::new(Mutex::new(pass)), seen: Arc::default() };
        let server = Server::start(super::loopback(), inside.clone()).await.expect("a loopback port");
        Relay { server, inside }
    }

    pub(crate) fn url(&self) -> Arc<str> {
        format!("http://{}", self.server.address()).into()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// From now on.
    pub(crate) fn rule(&self, rule: impl Fn(&Request) -> Deed + Send + Sync + 'static) {
        *self.inside.rule.lock().expect("not poisoned") = Arc::new(rule);
    }

    /// Everything is passed on again.
    pub(crate) fn pass(&self) {
        self.rule(|_| Deed::Pass);
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.inside.seen.lock().expect("not poisoned").clone()
    }

    /// How many writes have come so far.
    pub(crate) fn writes(&self) -> usize {
        self.seen().iter().filter(|r| is_write(r)).count()
    }
}

/// It changes something.
pub(crate) fn is_write(request: &Request) -> bool {
    matches!(request.method.as_str(), "PUT" | "DELETE")
}

impl Behind {
    /// A person's own call, past every store.
    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<&serde_json::Value>) -> Response {
        let body = body.map(|b| b.to_string().into_bytes()).unwrap_or_default();
        let headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        let request = Request { method: method.to_owned(), target: path.to_owned(), headers, body, keep_alive: false };
        match self {
            Behind::Little(little) => little.answer(&request),
            Behind::Server(address) => http::once(*address, &request).await.expect("an answer"),
        }
    }
}

impl Inside {
    async fn answer(&self, request: Request) -> Answer {
        self.seen.lock().expect("not poisoned").push(request.clone());
        let rule = self.rule.lock().expect("not poisoned").clone();
        match rule(&request) {
            Deed::Pass => self.pass_on(&request).await,
            Deed::Instead(answer) => answer,
            Deed::Done(answer) => {
                self.pass_on(&request).await;
                answer
            }
        }
    }

    async fn pass_on(&self, request: &Request) -> Answer {
        match &self.behind {
            Behind::Little(little) => Answer::Reply(little.answer(request)),
            Behind::Server(address) => match http::once(*address, request).await {
                Ok(mut response) => {
                    // It was put together again from its chunks.
                    response.headers.retain(|(name, _)| name != "transfer-encoding" && name != "content-length");
                    Answer::Reply(response)
                }
                Err(_) => Answer::Raw(Vec::new(), End::Fin),
            },
        }
    }
}

impl Service for Inside {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| {
            let inside = self.clone();
            async move { inside.answer(request).await }
        })
        .await;
    }
}
