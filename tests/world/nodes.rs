//! The search node and its shapes, seen by a raw socket.

use super::{BOUND, eventually, loopback};
use backstop::rehearse::http::{self, Request};
use backstop::rehearse::node::{Colour, Node, NodeFacts, NodeOptions, View};
use backstop::rehearse::pace;
use backstop::rehearse::shapes::{Moment, Shape};
use serde_json::Value;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn facts() -> NodeFacts {
    let mut facts = NodeFacts::new("es-client-1");
    facts.peers = vec![NodeFacts::new("es-client-2").as_peer(), NodeFacts::new("es-client-3").as_peer()];
    facts
}

async fn get(node: &Node, path: &str) -> (u16, Value) {
    let response = http::once(node.address(), &Request::get(path)).await.unwrap();
    assert_eq!(response.header("x-elastic-product"), Some("Elasticsearch"));
    (response.status, serde_json::from_slice(&response.body).unwrap())
}

#[tokio::test]
async fn a_joined_node_answers_as_real_ones_do() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let (status, root) = get(&node, "/").await;
    assert_eq!((status, root["name"].as_str()), (200, Some("es-client-1")));
    assert_eq!(root["cluster_uuid"].as_str(), Some("R3hearsa1ClusterUuid_A"));
    let (status, health) = get(&node, "/_cluster/health?timeout=0s").await;
    assert_eq!((status, &health["timed_out"], &health["status"]), (200, &Value::Bool(false), &"green".into()));
    let (_, local) = get(&node, "/_nodes/_local/http").await;
    let nodes = local["nodes"].as_object().unwrap();
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes.values().next().unwrap()["http"]["publish_address"], node.address().to_string());
    let (_, all) = get(&node, "/_nodes/coordinating_only:true/http?timeout=2s").await;
    assert_eq!(all["nodes"].as_object().unwrap().len(), 3);
    for search in ["/_search?size=0", "/canary/_search?size=0"] {
        let (status, found) = get(&node, search).await;
        assert_eq!((status, &found["_shards"]["failed"]), (200, &Value::from(0)));
    }
    node.control().change(|f| f.colour = Colour::Red);
    let (status, red) = get(&node, "/_cluster/health?timeout=0s").await;
    assert_eq!((status, &red["status"]), (200, &"red".into()), "a colour is no status");
    node.stop().await;
}

#[tokio::test]
async fn a_starting_node_is_refused_then_not_joined_then_joined() {
    let mut options = NodeOptions::joined(loopback(), facts());
    options.refused_ms = 1_500;
    options.not_joined_ms = 3_600_000;
    let node = Node::start(options).await.unwrap();
    let refused = TcpStream::connect(node.address()).await.expect_err("not bound yet");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    eventually(|| node.control().is_open()).await;
    assert_eq!(get(&node, "/").await.1["cluster_uuid"], "_na_");
    let (status, health) = get(&node, "/_cluster/health?timeout=0s").await;
    assert_eq!((status, &health["error"]["type"]), (503, &"master_not_discovered_exception".into()));
    assert_eq!(health["error"]["reason"], Value::Null);
    let (status, local) = get(&node, "/_cluster/health?local=true&timeout=0s").await;
    assert_eq!((status, &local["status"], &local["number_of_nodes"]), (200, &"red".into(), &Value::from(1)));
    assert_eq!(get(&node, "/_search").await.0, 503);
    assert_eq!(get(&node, "/_nodes/coordinating_only:true/http").await.1["nodes"].as_object().unwrap().len(), 1);
    node.control().set_view(Some(View::Joined));
    assert_eq!(get(&node, "/_cluster/health?timeout=0s").await.0, 200);
    node.stop().await;
}

#[tokio::test]
async fn the_shape_follows_the_refused_phase_and_ends_by_itself() {
    let mut options = NodeOptions::joined(loopback(), facts());
    options.refused_ms = 100;
    options.shape = Some(Shape::FinBeforeHeaders);
    options.shape_ms = Some(1_500);
    let node = Node::start(options).await.unwrap();
    eventually(|| node.control().is_open()).await;
    // It may already be over on a machine that stood still; then nothing is proved, and nothing wrong is said.
    let early = http::once(node.address(), &Request::get("/")).await;
    assert!(early.is_err() || node.control().is_joined());
    eventually(|| node.control().is_joined()).await;
    assert_eq!(get(&node, "/_cluster/health?timeout=0s").await.0, 200);
    node.stop().await;
}

#[tokio::test]
async fn a_frozen_master_keeps_only_the_calls_that_need_it() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    node.control().set_view(Some(View::FrozenMaster));
    for path in ["/", "/_cluster/health?local=true", "/_search", "/_nodes/_local/http"] {
        assert_eq!(get(&node, path).await.0, 200, "{path}");
    }
    let request = Request::get("/_cluster/health?timeout=0s");
    let call = pace::within(Duration::from_millis(300), http::once(node.address(), &request)).await;
    assert!(call.is_none(), "no server-side timeout helps: {call:?}");
    node.stop().await;
}

/// What a raw client got: the bytes, and how it ended.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Ended {
    Closed,
    Reset,
    Open,
}

/// Reads until the end, or until nothing came for `patience`.
async fn raw(address: SocketAddr, send: &[u8], patience: Duration) -> (Vec<u8>, Ended) {
    let mut got = Vec::new();
    let mut stream = match TcpStream::connect(address).await {
        Ok(stream) => stream,
        Err(e) if e.kind() == ErrorKind::ConnectionReset => return (got, Ended::Reset),
        Err(e) => panic!("{e}"),
    };
    stream.write_all(send).await.ok();
    loop {
        let mut chunk = vec![0_u8; 64 * 1024];
        match pace::within(patience, stream.read(&mut chunk)).await {
            None => return (got, Ended::Open),
            Some(Err(_)) => return (got, Ended::Reset),
            Some(Ok(0)) => return (got, Ended::Closed),
            Some(Ok(n)) => got.extend_from_slice(&chunk[..n]),
        }
        if got.len() > 1024 * 1024 {
            return (got, Ended::Open);
        }
    }
}

/// How each shape begins on the wire and ends. `None`: an ordinary, complete HTTP answer with that status.
#[expect(clippy::match_same_arms, reason = "in the order of a connection's life")]
#[expect(clippy::wildcard_enum_match_arm, reason = "the others are complete answers, which the next test reads")]
fn expected(shape: Shape) -> Option<(&'static [u8], Ended)> {
    let head = b"HTTP/1.1 200 OK\r\n".as_slice();
    Some(match shape {
        Shape::RstOnAccept | Shape::RstAfterRequest | Shape::TlsHandshakeRst => (b"", Ended::Reset),
        Shape::FinBeforeHeaders | Shape::TlsHandshakeFin => (b"", Ended::Closed),
        Shape::FinMidHeader => (b"HTTP/1.1 200 OK\r\ncontent-ty", Ended::Closed),
        Shape::RstMidHeader => (b"", Ended::Reset), // bytes on the way may go with the reset
        Shape::NeverAnswers | Shape::TlsHandshakeStall => (b"", Ended::Open),
        Shape::BodyStalls | Shape::EndlessBody | Shape::EndlessHead => (head, Ended::Open),
        Shape::ShortBody | Shape::ChunkedCut | Shape::BadChunkSize => (head, Ended::Closed),
        Shape::CloseDelimited | Shape::CloseDelimitedCut => (head, Ended::Closed),
        Shape::TwoContentLengths | Shape::ManyHeaders | Shape::HugeHead => (head, Ended::Closed),
        Shape::RstInBody => (b"", Ended::Reset),
        Shape::SshBanner => (b"SSH-2.0-", Ended::Closed),
        Shape::NoHead => (b"node es", Ended::Closed),
        Shape::TlsOnPlainPort | Shape::TlsAlertProtocolVersion => (&[21, 3, 3, 0, 2, 2, 70], Ended::Closed),
        Shape::TlsAlertInternalError => (&[21, 3, 3, 0, 2, 2, 80], Ended::Closed),
        Shape::TlsAlertHandshakeFailure => (&[21, 3, 3, 0, 2, 2, 40], Ended::Closed),
        Shape::PlainOnTlsPort => (b"HTTP/1.1 400 ", Ended::Closed),
        Shape::Http2Preface => (&[0, 0, 0, 4], Ended::Closed),
        Shape::Http2Goaway | Shape::Http2EnhanceYourCalm => (&[0, 0, 8, 7], Ended::Closed),
        Shape::Http2RstStream => (&[0, 0, 4, 3], Ended::Closed),
        Shape::Status1000 => (b"HTTP/1.1 1000 ", Ended::Closed),
        Shape::Status999 => (b"HTTP/1.1 999 ", Ended::Closed),
        Shape::ContinueThenFin => (b"HTTP/1.1 100 Continue\r\n\r\n", Ended::Closed),
        Shape::Status204 => (b"HTTP/1.1 204 No Content\r\n\r\n", Ended::Closed),
        _ => return None,
    })
}

#[tokio::test]
async fn every_shape_is_on_the_wire_what_its_name_says() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let request = b"GET /_cluster/health?timeout=0s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for shape in Shape::ALL {
        node.control().set_shape(Some(*shape));
        let Some((start, ended)) = expected(*shape) else { continue };
        let (got, how) = raw(node.address(), request, patience(ended)).await;
        let shown = String::from_utf8_lossy(&got[..got.len().min(80)]).into_owned();
        assert!(got.starts_with(start), "{shape}: {shown}");
        if !matches!(shape, Shape::EndlessBody | Shape::EndlessHead) {
            assert_eq!(how, ended, "{shape}: {shown}");
        }
    }
    node.stop().await;
}

#[tokio::test]
async fn a_tls_hello_meets_the_tls_shapes_too() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let hello = [22, 3, 1, 0, 5, 1, 0, 0, 1, 0];
    for shape in Shape::ALL.iter().filter(|s| s.moment() == Moment::FirstBytes) {
        node.control().set_shape(Some(*shape));
        let (start, ended) = expected(*shape).unwrap();
        let (got, how) = raw(node.address(), &hello, patience(ended)).await;
        assert!(got.starts_with(start) && how == ended, "{shape}: {got:?} {how:?}");
    }
    node.stop().await;
}

/// An end is waited for as long as it takes; that there is none shows after a moment.
fn patience(expected: Ended) -> Duration {
    if expected == Ended::Open { Duration::from_millis(300) } else { BOUND }
}

/// The check of a node as the design has it, in its plainest form.
async fn looks_ready(address: SocketAddr, patience: Duration) -> bool {
    let ask = async |path: &str| -> Option<Value> {
        let request = Request::get(path);
        let response = pace::within(patience, http::once(address, &request)).await?.ok()?;
        (response.status == 200).then(|| serde_json::from_slice(&response.body).ok())?
    };
    let Some(root) = ask("/").await else { return false };
    let Some(health) = ask("/_cluster/health?timeout=0s").await else { return false };
    root["name"] == "es-client-1"
        && root["cluster_uuid"] == "R3hearsa1ClusterUuid_A"
        && health["timed_out"] == false
        && health["status"].is_string()
}

#[tokio::test]
async fn exactly_the_ready_shapes_pass_a_check() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    for shape in Shape::ALL {
        node.control().set_shape(Some(*shape));
        let patience = if shape.is_ready() { BOUND } else { Duration::from_secs(1) };
        assert_eq!(looks_ready(node.address(), patience).await, shape.is_ready(), "{shape}");
    }
    node.control().set_shape(None);
    assert!(looks_ready(node.address(), BOUND).await);
    node.stop().await;
}

#[tokio::test]
async fn shapes_named_after_a_status_have_it() {
    let node = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let mut seen = 0;
    for shape in Shape::ALL.iter().filter(|s| expected(**s).is_none()) {
        let digits = shape.name().strip_prefix("status-").and_then(|n| n.split('-').next());
        let Some(status) = digits.and_then(|d| d.parse::<u16>().ok()) else { continue };
        node.control().set_shape(Some(*shape));
        let response = http::once(node.address(), &Request::get("/_cluster/health?timeout=0s")).await.unwrap();
        assert_eq!(response.status, status, "{shape}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
    node.control().set_shape(Some(Shape::CircuitBreaker));
    let response = http::once(node.address(), &Request::get("/")).await.unwrap();
    assert_eq!(response.header("retry-after"), Some("2"));
    node.stop().await;
}

#[tokio::test]
async fn a_node_can_be_started_where_another_has_just_ended() {
    let first = Node::start(NodeOptions::joined(loopback(), facts())).await.unwrap();
    eventually(|| first.control().is_open()).await;
    let address = first.address();
    let idle = TcpStream::connect(address).await.unwrap();
    assert!(pace::within(BOUND, first.stop()).await.is_some(), "an idle client does not hold up the end");
    drop(idle);
    let second = Node::start(NodeOptions::joined(address, facts())).await.unwrap();
    eventually(|| second.control().is_joined()).await;
    assert_eq!(get(&second, "/").await.0, 200);
    second.stop().await;
}

#[tokio::test]
async fn a_node_process_ends_its_requests_on_sigterm_and_is_gone() {
    let mut options = NodeOptions::joined(SocketAddr::from(([127, 0, 0, 1], 0)), facts());
    options.search_ms = 300;
    // The address must be known here: found and given back.
    options.address = tokio::net::TcpListener::bind(options.address).await.unwrap().local_addr().unwrap();
    let address = options.address;
    let search = async {
        while http::once(address, &Request::get("/")).await.is_err() {
            pace::sleep(Duration::from_millis(5)).await;
        }
        let mut connection = http::Connection::open(address).await.unwrap();
        connection.write_request(&Request::get("/_search"), "x").await.unwrap();
        // Long enough on the way that the node has it; if not, the test only proves less.
        http::once(address, &Request::get("/")).await.unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        connection.read_response("GET").await.unwrap().0.status
    };
    let both = async { tokio::join!(backstop::rehearse::node::run_node(options), search) };
    let (ended, status) = pace::within(BOUND, both).await.unwrap();
    ended.unwrap();
    assert_eq!(status, 200);
    assert!(TcpStream::connect(address).await.is_err());
}
