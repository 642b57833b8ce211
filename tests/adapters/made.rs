//! What no answer on a socket makes: names, routes, full queues, certificates, a process without descriptors.

use crate::node::{check, good, settings};
use crate::rows::Made;
use crate::support::BOUND;
use crate::support::tls::{Front, Identity, Terms, Valid};
use crate::support::wire::{Wire, raw};
use backstop::core::error::Fault;
use backstop::core::settings::{CheckPass, CheckSettings};
use backstop::rehearse::http::{Answer, End, Request, Response};
use backstop::rehearse::shapes::Shape;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// In the environment of a child of this binary: what it is to make.
const CHILD: &str = "BACKSTOP_TEST_CHILD";

/// Makes it, and checks the node there.
pub(crate) async fn make(made: Made) -> Result<CheckPass, Fault> {
    match made {
        // A label of 64 characters is no name: the resolver says so without asking anybody.
        Made::NoSuchName => check(&settings(&format!("http://{}.invalid:9200", "n".repeat(64)))).await,
        Made::NothingListens => check(&settings("http://127.0.0.1:1")).await,
        // The loopback's own broadcast address: no TCP goes there, and no packet leaves.
        Made::NetworkUnreachable => check(&settings("http://127.255.255.255:9200")).await,
        // Link-local without an interface.
        Made::AddressWithoutScope => check(&settings("http://[fe80::1]:9200")).await,
        Made::NoFileDescriptors | Made::DeadProxy => in_a_child(made),
        Made::SynDropped => {
            let full = FullQueue::new();
            check(&settings(&full.url())).await
        }
        Made::SynDroppedLonger => {
            let full = FullQueue::new();
            // Less than the client's own patience with a connection.
            check(&CheckSettings { timeout_ms: 300, ..settings(&full.url()) }).await
        }
        Made::KeptAliveClosed => kept_alive(Shape::FinBeforeHeaders).await,
        Made::KeptAliveReset => kept_alive(Shape::RstAfterRequest).await,
        Made::IdleClosed => idle_closed().await,
        Made::BadUrl => check(&settings("es-client-1:9200")).await,
        Made::SlowAndInTime => {
            let server = Wire::answering(|r| {
                let right = good(r);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", right.body.len());
                Answer::Drip([head.as_bytes(), &right.body[..right.body.len() - 2]].concat(), tail(&right), PAUSE)
            })
            .await;
            check(&settings(&server.url())).await
        }
        _ => with_tls(made).await,
    }
}

const PAUSE: Duration = Duration::from_millis(5);

fn tail(right: &Response) -> Vec<u8> {
    right.body[right.body.len() - 2..].to_vec()
}

/// The first answer is right and keeps the connection; the second request on it meets the shape.
async fn kept_alive(shape: Shape) -> Result<CheckPass, Fault> {
    let before = AtomicUsize::new(0);
    let server = Wire::answering(move |r| {
        let first = before.fetch_add(1, Ordering::SeqCst) == 0;
        if first { Answer::Reply(good(r)) } else { shape.spoil(&good(r), &r.target) }
    })
    .await;
    let outcome = check(&settings(&server.url())).await;
    assert_eq!((server.connections(), server.requests().len()), (1, 2), "{shape}: on the same connection, once");
    outcome
}

/// Each connection is closed after its answer, though it was said to be kept. Who asks again later finds it closed.
async fn idle_closed() -> Result<CheckPass, Fault> {
    let server = Wire::answering(|r| {
        if r.path() == "/_cluster/health" { raw(good(r).encode(true), End::Fin) } else { Answer::Reply(good(r)) }
    })
    .await;
    check(&settings(&server.url())).await?;
    server.wait_ended(1).await;
    check(&settings(&server.url())).await
}

/// A listener that accepts nobody, with its queue full: the kernel drops each further connection attempt.
pub(crate) struct FullQueue {
    _listener: OwnedFd,
    _waiting: Vec<TcpStream>,
    address: SocketAddr,
}

impl FullQueue {
    pub(crate) fn new() -> FullQueue {
        let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        listen(&listener, 0).expect("listening");
        let address = SocketAddr::try_from(getsockname(&listener).expect("its address")).expect("of IP");
        let mut waiting = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
            waiting.push(stream);
            assert!(waiting.len() < 64, "the queue never fills");
        }
        FullQueue { _listener: listener, _waiting: waiting, address }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

const ONLY_12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
const ONLY_13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

async fn with_tls(made: Made) -> Result<CheckPass, Fault> {
    let good = Terms::GOOD;
    let terms = match made {
        Made::CertificateExpired => Terms { valid: Valid::NoLonger, ..good },
        Made::CertificateNotYetValid => Terms { valid: Valid::NotYet, ..good },
        Made::WrongHost => Terms { name: "elsewhere.example", ..good },
        Made::ClientCertificate12 => Terms { mutual: true, versions: ONLY_12, ..good },
        Made::ClientCertificate13 => Terms { mutual: true, versions: ONLY_13, ..good },
        Made::Http2Only => Terms { http2_only: true, ..good },
        _ => good,
    };
    let shape = match made {
        Made::CutWithoutGoodbye => Some(Shape::ShortBody),
        Made::UntilCloseWithoutGoodbye | Made::UntilCloseWithGoodbye => Some(Shape::CloseDelimited),
        _ => None,
    };
    let goodbye = !matches!(made, Made::CutWithoutGoodbye | Made::WholeWithoutGoodbye | Made::UntilCloseWithoutGoodbye);
    let plain = Wire::answering(move |r| respond(r, shape, made == Made::WholeWithoutGoodbye)).await;
    let front = Front::start(&terms, plain.address(), goodbye).await;
    let stranger = Identity::new(&Terms::GOOD);
    let (url, pem) = match made {
        Made::PlainToATlsPort => (front.plain_url(), front.identity.pem()),
        Made::UnknownAuthority => (front.url(), stranger.pem()),
        _ => (front.url(), front.identity.pem()),
    };
    let outcome = check(&CheckSettings { ca_file: Some(pem.into()), ..settings(&url) }).await;
    let handshake_fails = !matches!(
        made,
        Made::CutWithoutGoodbye
            | Made::WholeWithoutGoodbye
            | Made::UntilCloseWithoutGoodbye
            | Made::UntilCloseWithGoodbye
    );
    assert_eq!(plain.requests().is_empty(), handshake_fails, "{made:?}: a request came behind the handshake");
    outcome
}

fn respond(request: &Request, shape: Option<Shape>, closes: bool) -> Answer {
    let right = good(request);
    match shape {
        Some(shape) => shape.spoil(&right, &request.target),
        None if closes => raw(right.encode(false), End::Fin),
        None => Answer::Reply(right),
    }
}

/// What would disturb every other test of this process: a process of its own makes it, and says by its exit what it saw.
fn in_a_child(made: Made) -> Result<CheckPass, Fault> {
    let mut command = Command::new(std::env::current_exe().expect("this binary"));
    command.args(["--exact", "made::the_node_itself_is_asked", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, format!("{made:?}"));
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env(name, "http://127.0.0.1:1");
    }
    command.env_remove("NO_PROXY").env_remove("no_proxy");
    let output = command.output().expect("a child");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{made:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    let line = said.lines().find_map(|l| l.split_once(MARK)).unwrap_or_else(|| panic!("{made:?} says nothing: {said}"));
    match serde_json::from_str::<Option<Fault>>(line.1).expect("JSON") {
        Some(fault) => Err(fault),
        None => Ok(CheckPass { identity: crate::node::expected(), colour: None }),
    }
}

const MARK: &str = "outcome of the child: ";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_itself_is_asked() {
    // Also what a child of this binary runs, in an environment that its parent has prepared.
    let made = std::env::var(CHILD).unwrap_or_default();
    let outcome = if made == format!("{:?}", Made::NoFileDescriptors) {
        without_descriptors().await
    } else {
        let server = Wire::answering(|r| Answer::Reply(good(r))).await;
        let outcome = tokio::time::timeout(BOUND, check(&settings(&server.url()))).await.expect("in time");
        assert!(outcome.is_ok() && server.requests().len() == 2, "the node itself was asked: {outcome:?}");
        outcome
    };
    println!("{MARK}{}", serde_json::to_string(&outcome.err()).expect("JSON"));
}

/// The next descriptor would be beyond the limit.
async fn without_descriptors() -> Result<CheckPass, Fault> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let server = Wire::answering(|r| Answer::Reply(good(r))).await;
    check(&settings(&server.url())).await.expect("with descriptors it passes");
    server.wait_ended(1).await;
    // Free descriptors below are filled up.
    let files: Vec<_> = (0..64).map(|_| std::fs::File::open("/dev/null").expect("a descriptor")).collect();
    let next = files.iter().map(AsRawFd::as_raw_fd).max().expect("some") + 1;
    let limit = Rlimit { current: Some(u64::try_from(next).expect("a number")), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).expect("a lower limit");
    let outcome = check(&settings(&server.url())).await;
    let fault = outcome.as_ref().expect_err("no descriptor is left");
    assert!(fault.message.contains("os error 24"), "{fault}");
    outcome
}
