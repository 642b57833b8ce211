//! Answers scrapes, on loopback or on a Unix socket: one request a connection, each bounded in size and time.

use super::text::CONTENT_TYPE;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

/// What a scrape is answered with. Called within the request; must not block.
pub type Expose = Arc<dyn Fn() -> String + Send + Sync>;

/// Where scrapes come in.
#[derive(Debug)]
pub enum Listener {
    /// On loopback.
    Tcp(TcpListener),
    /// On a socket in the file system.
    Unix(UnixListener),
}

/// Bounds of the server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at one time; more wait to be accepted.
    pub connections_max: usize,
    /// Time for the head of a request, in ms.
    pub read_ms: u64,
    /// Time for a whole connection, in ms.
    pub connection_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { connections_max: 8, read_ms: 5_000, connection_ms: 15_000 }
    }
}

/// A stream of either kind.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

impl Listener {
    async fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            Listener::Tcp(tcp) => Box::new(tcp.accept().await?.0),
            Listener::Unix(unix) => Box::new(unix.accept().await?.0),
        })
    }
}

/// Serves until dropped; whatever is under way then ends with it.
pub async fn serve(listener: Listener, limits: Limits, expose: Expose) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = open.join_next(), if !open.is_empty() => {
                if ended.is_err_and(|e: tokio::task::JoinError| e.is_panic()) {
                    tracing::error!("metrics: a scrape ended in a panic, and got no answer");
                }
            }
            accepted = listener.accept(), if open.len() < limits.connections_max => match accepted {
                Ok(stream) => drop(open.spawn(connection(stream, limits, expose.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "metrics: cannot accept");
                    pause().await;
                }
            },
        }
    }
}

/// Out of descriptors, mostly: a moment later some may be free.
async fn pause() {
    let _ = tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await;
}

async fn connection(stream: Box<dyn Stream>, limits: Limits, expose: Expose) {
    let service = hyper::service::service_fn(move |request| {
        let expose = expose.clone();
        async move { Ok::<_, Infallible>(answer(&request, &expose)) }
    });
    let serving = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_millis(limits.read_ms))
        .keep_alive(false)
        .max_headers(32)
        .max_buf_size(16 * 1024)
        .serve_connection(TokioIo::new(stream), service);
    // A scraper that goes away, or sends what is no HTTP, is no news.
    let _ = tokio::time::timeout(Duration::from_millis(limits.connection_ms), serving).await;
}

fn answer(request: &Request<Incoming>, expose: &Expose) -> Response<Full<Bytes>> {
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    let (status, kind, text) = if request.uri().path() != "/metrics" {
        (StatusCode::NOT_FOUND, plain, "backstop: the metrics are at /metrics\n".to_owned())
    } else if request.method() == Method::GET || request.method() == Method::HEAD {
        (StatusCode::OK, HeaderValue::from_static(CONTENT_TYPE), expose())
    } else {
        (StatusCode::METHOD_NOT_ALLOWED, plain, "backstop: GET /metrics\n".to_owned())
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(hyper::header::CONTENT_TYPE, kind);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}
