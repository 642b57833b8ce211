//! The server of scrapes: what it answers, and what it does not put up with.

use crate::support::BOUND;
use backstop::agent::supervisor::{Task, spawn};
use backstop::metrics::serve::{Limits, Listener, serve};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// A whole connection: what it answers until it closes.
pub async fn talk(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, request: &str) -> String {
    let mut answer = Vec::new();
    let talked = async {
        stream.write_all(request.as_bytes()).await.unwrap();
        // A reset after the answer is an end, too.
        let _ = stream.read_to_end(&mut answer).await;
    };
    tokio::time::timeout(BOUND, talked).await.expect("the server closes the connection");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A scrape over a Unix socket, without its head.
pub async fn scraped(socket: &Path) -> Option<String> {
    let stream = UnixStream::connect(socket).await.ok()?;
    let answer = talk(stream, "GET /metrics HTTP/1.1\r\nHost: backstop\r\n\r\n").await;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(head.contains("content-type: text/plain; version=0.0.4; charset=utf-8"), "{head}");
    Some(body.to_owned())
}

async fn served(limits: Limits) -> (Task<()>, SocketAddr, Arc<AtomicUsize>) {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, scrapes) = (tcp.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counting = scrapes.clone();
    let expose = Arc::new(move || {
        counting.fetch_add(1, Ordering::SeqCst);
        "a 1\n".to_owned()
    });
    (spawn(serve(Listener::Tcp(tcp), limits, expose)), at, scrapes)
}

async fn ask(at: SocketAddr, request: &str) -> String {
    talk(TcpStream::connect(at).await.unwrap(), request).await
}

#[tokio::test]
async fn a_scrape_is_answered_and_anything_else_is_told_where_the_metrics_are() {
    let (_server, at, scrapes) = served(Limits::default()).await;
    let good = ask(at, "GET /metrics?x=y HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(good.starts_with("HTTP/1.1 200 OK") && good.ends_with("\r\n\r\na 1\n"), "{good}");
    let head = ask(at, "HEAD /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    assert_eq!(scrapes.load(Ordering::SeqCst), 2);
    for (request, says) in [
        ("GET / HTTP/1.1\r\nHost: h\r\n\r\n", "HTTP/1.1 404"),
        ("POST /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n", "HTTP/1.1 405"),
        ("nonsense\r\n\r\n", "HTTP/1.1 400"),
    ] {
        let answer = ask(at, request).await;
        assert!(answer.starts_with(says), "{request}: {answer}");
    }
    let long = format!("GET /metrics HTTP/1.1\r\nHost: h\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    let answer = ask(at, &long).await;
    assert!(!answer.contains(" 200 "), "a head that is too long: {answer}");
    assert_eq!(scrapes.load(Ordering::SeqCst), 2, "none of these costs a scrape");
}

#[tokio::test]
async fn who_says_nothing_is_cut_off_and_keeps_others_out_no_longer_than_that() {
    let limits = Limits { connections_max: 1, read_ms: 50, connection_ms: 60_000 };
    let (_server, at, _) = served(limits).await;
    let mut silent = TcpStream::connect(at).await.unwrap();
    silent.write_all(b"GET /met").await.unwrap();
    let other = ask(at, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(other.contains(" 200 "), "{other}");
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(BOUND, silent.read_to_end(&mut rest)).await;
    assert!(cut.is_ok(), "the silent one was cut off");
}

#[tokio::test]
async fn a_scrape_that_panics_ends_alone() {
    let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, asked) = (tcp.local_addr().unwrap(), AtomicUsize::new(0));
    let expose = Arc::new(move || {
        assert!(asked.fetch_add(1, Ordering::SeqCst) > 0, "told to panic");
        "a 1\n".to_owned()
    });
    let _server = spawn(serve(Listener::Tcp(tcp), Limits::default(), expose));
    let scrape = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";
    assert_eq!(ask(at, scrape).await, "", "no answer");
    assert!(ask(at, scrape).await.ends_with("a 1\n"));
}
