//! The node check over plain HTTP.

use crate::support::faults::{Behaviour, Request, Server, Shape, Then};
use backstop::core::error::{Class, Fault};
use backstop::core::settings::{CheckPass, CheckSettings, Colour, NodeIdentity};
use backstop::elasticsearch::NodeChecker;
use backstop::ports::NodeCheck;
use std::io::Write;
use std::time::Duration;

const PATIENT_MS: u64 = 10_000;
const IMPATIENT_MS: u64 = 300;

const ROOT: &str =
    r#"{"name":"es-client-1","cluster_name":"search","cluster_uuid":"u-1","version":{"number":"8.19.0"}}"#;
const HEALTH: &str = r#"{"cluster_name":"search","status":"green","timed_out":false,"number_of_nodes":4}"#;
const SEARCH: &str =
    r#"{"took":1,"timed_out":false,"_shards":{"total":1,"successful":1,"skipped":0,"failed":0},"hits":{}}"#;
const NODES: &str = r#"{"_nodes":{"total":1,"successful":1,"failed":0},"nodes":{"id-1":{"name":"es-client-1"}}}"#;

pub(crate) fn settings(url: &str) -> CheckSettings {
    CheckSettings {
        node_name: "es-client-1".into(),
        url: url.into(),
        timeout_ms: PATIENT_MS,
        ca_file: None,
        api_key_file: None,
        basic_auth_file: None,
        canary_index: None,
        expect: Some(expected()),
        passes: 1,
        over_ms: 0,
        every_ms: 1,
    }
}

pub(crate) fn expected() -> NodeIdentity {
    NodeIdentity { node_name: "es-client-1".into(), node_id: Some("id-1".into()), cluster_uuid: "u-1".into() }
}

/// For servers that never come to an end.
pub(crate) fn impatient(url: &str) -> CheckSettings {
    CheckSettings { timeout_ms: IMPATIENT_MS, ..settings(url) }
}

/// A whole check: reading files and four calls, each with its deadline, and the slack of a busy machine.
pub(crate) async fn check(settings: &CheckSettings) -> Result<CheckPass, Fault> {
    let whole = Duration::from_millis(settings.timeout_ms * 5 + 3_000);
    tokio::time::timeout(whole, NodeChecker::new().check(settings)).await.expect("the check ends within its deadline")
}

/// A good node.
pub(crate) fn good(request: &Request) -> Shape {
    match request.path.split('?').next().unwrap_or_default() {
        "/" => Shape::http(200, ROOT),
        "/_cluster/health" => Shape::http(200, HEALTH),
        "/_nodes/_local/http" => Shape::http(200, NODES),
        "/canary/_search" => Shape::http(200, SEARCH),
        _ => Shape::http(404, "{}"),
    }
}

/// Good but for one path.
fn good_but(path: &'static str, shape: Shape) -> Server {
    Server::start(Behaviour::answering(
        move |r| {
            if r.path.split('?').next() == Some(path) { shape.clone() } else { good(r) }
        },
    ))
}

fn cut(body: &str, then: Then) -> Shape {
    let half = &body[..body.len() / 2];
    Shape::raw(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{half}", body.len()), then)
}

/// Shapes that are no complete answer: always `transport`. The numbers are those of the catalogue of failure shapes.
fn broken_off() -> Vec<(&'static str, Shape)> {
    let head = "HTTP/1.1 200 OK\r\n";
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    let many = "x-y: z\r\n".repeat(200);
    vec![
        ("9 reset after the request", Shape::raw("", Then::Rst)),
        ("10 closed before the head", Shape::raw("", Then::Fin)),
        ("11 closed in the head", Shape::raw("HTTP/1.1 200 OK\r\nconte", Then::Fin)),
        ("12 reset in the head", Shape::raw("HTTP/1.1 200 OK\r\nconte", Then::Rst)),
        ("13 no head", Shape::raw("", Then::Stall)),
        ("14 body stalls", cut(ROOT, Then::Stall)),
        ("15 body too short", cut(ROOT, Then::Fin)),
        ("16 body cut by a reset", cut(ROOT, Then::Rst)),
        ("17 chunks cut", Shape::raw(format!("{chunked}5\r\n{{\"nam"), Then::Fin)),
        ("18 junk chunk size", Shape::raw(format!("{chunked}zz\r\n{{}}\r\n"), Then::Fin)),
        ("19 close-delimited, cut", Shape::raw(format!("{head}\r\n{}", &ROOT[..40]), Then::Fin)),
        (
            "20 not asked for: gzip",
            Shape::raw(format!("{head}content-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd"), Then::Fin),
        ),
        ("21 an SSH banner", Shape::raw("SSH-2.0-OpenSSH_9.6\r\n", Then::Fin)),
        ("22 a TLS alert", Shape::raw([0x15, 3, 3, 0, 2, 2, 0x46], Then::Fin)),
        ("23 two lengths", Shape::raw(format!("{head}content-length: 2\r\ncontent-length: 3\r\n\r\n{{}}x"), Then::Fin)),
        ("23 status 1000", Shape::raw("HTTP/1.1 1000 X\r\ncontent-length: 0\r\n\r\n", Then::Fin)),
        ("24 200 headers", Shape::raw(format!("{head}{many}content-length: 2\r\n\r\n{{}}"), Then::Fin)),
        ("25 100-continue, closed", Shape::raw("HTTP/1.1 100 Continue\r\n\r\n", Then::Fin)),
        ("47 a proxy's page", Shape::http(200, "<html>Please log in</html>")),
        ("48 empty 200", Shape::http(200, "")),
        ("48 204", Shape::raw("HTTP/1.1 204 No Content\r\n\r\n", Then::Keep)),
        ("200, a list", Shape::http(200, "[]")),
        ("200, null", Shape::http(200, "null")),
        ("200, an empty object", Shape::http(200, "{}")),
        ("49 another service", Shape::http(200, r#"{"status":"ok"}"#)),
        ("49 of other types", Shape::http(200, r#"{"name":1,"cluster_uuid":[],"timed_out":"false","_shards":1}"#)),
        ("a slow drip", Shape { drip: true, ..Shape::http(200, ROOT) }),
        ("a body without end", Shape::raw(format!("{head}\r\n{}", " ".repeat(600 * 1024)), Then::Stall)),
        (
            "45 a redirect",
            Shape::raw("HTTP/1.1 301 Moved\r\nlocation: /elsewhere\r\ncontent-length: 0\r\n\r\n", Then::Keep),
        ),
        ("26 status 999", Shape::http(999, "{}")),
        ("404 of a proxy", Shape::http(404, "<html>")),
    ]
}

/// Complete answers that say no.
fn answers() -> Vec<(&'static str, Shape, Class)> {
    let es = |kind: &str| format!(r#"{{"error":{{"type":"{kind}","reason":null}},"status":0}}"#);
    vec![
        ("51 bad media type", Shape::http(400, &es("media_type_header_exception")), Class::Refused),
        ("52 401", Shape::http(401, &es("security_exception")), Class::Auth),
        ("53 403", Shape::http(403, &es("security_exception")), Class::Auth),
        ("54 read-only block", Shape::http(403, &es("cluster_block_exception")), Class::Refused),
        ("55 404", Shape::http(404, &es("index_not_found_exception")), Class::Refused),
        ("57 408", Shape::http(408, r#"{"status":"green","timed_out":true}"#), Class::NotReady),
        ("59 breaker", Shape::http(429, &es("circuit_breaking_exception")), Class::Throttled),
        ("60 500", Shape::http(500, &es("node_not_connected_exception")), Class::NotReady),
        ("61 502 of a proxy", Shape::http(502, "<html>"), Class::NotReady),
        ("62 no master", Shape::http(503, &es("master_not_discovered_exception")), Class::NotReady),
        ("63 bare string", Shape::http(503, r#"{"error":"ClusterBlockException[x]","status":503}"#), Class::NotReady),
        ("65 empty 503", Shape::http(503, ""), Class::NotReady),
    ]
}

const STEPS: [&str; 3] = ["/", "/_cluster/health", "/canary/_search"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_shape_of_failure_passes_hangs_or_panics_at_any_step() {
    for path in STEPS {
        let broken = broken_off().into_iter().map(|(name, shape)| (name, shape, Class::Transport));
        for (name, shape, want) in broken.chain(answers()) {
            let waits = shape.waits();
            let server = good_but(path, shape);
            let base = if waits { impatient(&server.url()) } else { settings(&server.url()) };
            let with_canary = CheckSettings { canary_index: Some("canary".into()), ..base };
            let fault = check(&with_canary).await.expect_err(&format!("{name} at {path} must not pass"));
            assert_eq!(fault.class, want, "{name} at {path}: {fault}");
            assert!(!fault.message.is_empty() && fault.message.len() < 600, "{name} at {path}: {fault}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_listening_and_closed_connections_are_told_apart_from_silence() {
    let fault = check(&settings("http://127.0.0.1:1")).await.expect_err("nothing listens");
    assert_eq!(fault.class, Class::Transport);
    assert!(fault.message.contains("nothing listens"), "{fault}");

    for then in [Then::Fin, Then::Rst] {
        let server = Server::start(Behaviour::on_accept(Shape::raw("", then)));
        let fault = check(&settings(&server.url())).await.expect_err("closed");
        assert_eq!(fault.class, Class::Transport);
        assert!(fault.message.contains("connected but closed"), "{then:?}: {fault}");
        assert!(fault.message.contains("protocol/TLS mismatch?"), "{then:?}: {fault}");
    }
    let server = Server::start(Behaviour::on_accept(Shape::raw("", Then::Stall)));
    let fault = check(&impatient(&server.url())).await.expect_err("silent");
    assert!(fault.message.contains("in time"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_colour_never_fails_a_node() {
    for (status, colour) in
        [("green", Some(Colour::Green)), ("yellow", Some(Colour::Yellow)), ("red", Some(Colour::Red)), ("mauve", None)]
    {
        let health = Shape::http(200, &HEALTH.replace("green", status));
        let server = good_but("/_cluster/health", health);
        let pass = check(&settings(&server.url())).await.expect("a good node");
        assert_eq!(pass.colour, colour);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_answer_of_somebody_else_never_passes() {
    let root = |name: &str, uuid: &str| Shape::http(200, &ROOT.replace("es-client-1", name).replace("u-1", uuid));
    for (name, uuid, class) in [
        ("es-client-1", "_na_", Class::NotReady),
        ("es-client-1", "u-2", Class::Refused),
        ("es-client-1", "", Class::Transport),
        ("", "u-1", Class::Transport),
    ] {
        let server = good_but("/", root(name, uuid));
        let fault = check(&settings(&server.url())).await.expect_err("not this node");
        assert_eq!(fault.class, class, "{name} {uuid}: {fault}");
    }
    let renamed = good_but("/", root("es-client-9", "u-1"));
    check(&settings(&renamed.url())).await.expect("renamed, and its id is the expected one");

    let mut other = settings(&renamed.url());
    other.expect = Some(NodeIdentity { node_id: Some("id-2".into()), ..expected() });
    assert_eq!(check(&other).await.expect_err("name and id differ").class, Class::Refused);
    other.expect = Some(NodeIdentity { node_id: None, ..expected() });
    assert_eq!(check(&other).await.expect_err("the name differs").class, Class::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_learnt_with_its_id_and_without_it_where_it_cannot_be_read() {
    let server = Server::start(Behaviour::answering(good));
    let unknown = CheckSettings { expect: None, ..settings(&server.url()) };
    assert_eq!(check(&unknown).await.expect("a good node").identity, expected());

    let server = good_but("/_nodes/_local/http", Shape::http(403, "{}"));
    let unknown = CheckSettings { expect: None, ..settings(&server.url()) };
    let identity = check(&unknown).await.expect("a good node").identity;
    assert_eq!(identity, NodeIdentity { node_id: None, ..expected() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_with_failures_inside_is_not_ready() {
    for (path, body) in [
        ("/_cluster/health", HEALTH.replace("false", "true")),
        ("/canary/_search", SEARCH.replace("\"timed_out\":false", "\"timed_out\":true")),
        ("/canary/_search", SEARCH.replace("\"failed\":0", "\"failed\":1")),
        ("/canary/_search", SEARCH.replace("\"successful\":1", "\"successful\":0")),
    ] {
        let server = good_but(path, Shape::http(200, &body));
        let with_canary = CheckSettings { canary_index: Some("canary".into()), ..settings(&server.url()) };
        let fault = check(&with_canary).await.expect_err("failures inside");
        assert_eq!(fault.class, Class::NotReady, "{body}: {fault}");
        assert_eq!(fault.message.contains("canary"), path.contains("canary"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_check_asks_exactly_the_needed_questions_on_a_connection_of_its_own() {
    let server = Server::start(Behaviour::answering(good));
    let with_canary = CheckSettings { canary_index: Some("canary".into()), ..settings(&server.url()) };
    for _ in 0..2 {
        check(&with_canary).await.expect("a good node");
    }
    let paths: Vec<String> = server.requests().into_iter().map(|r| format!("{} {}", r.method, r.path)).collect();
    let one = [
        "GET /",
        "GET /_cluster/health?timeout=0s",
        "GET /canary/_search?size=0&allow_partial_search_results=false&timeout=2s",
    ];
    assert_eq!(paths, [one, one].concat());
    assert_eq!(server.connections(), 2, "no connection outlives its check");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_carried() {
    let busy = "HTTP/1.1 429 Busy\r\nretry-after: 7\r\ncontent-length: 0\r\n\r\n";
    let server = good_but("/", Shape::raw(busy, Then::Keep));
    let fault = check(&settings(&server.url())).await.expect_err("busy");
    assert_eq!((fault.class, fault.retry_after_ms), (Class::Throttled, Some(7_000)));
}

fn file_with(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    file
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_are_read_at_each_check_and_sent() {
    let key = file_with("c2VjcmV0\n");
    let basic = file_with("elastic:pass:word\n");
    let server = Server::start(Behaviour::answering(good));
    let path = |f: &tempfile::NamedTempFile| Some(f.path().to_str().expect("text").into());
    check(&CheckSettings { api_key_file: path(&key), ..settings(&server.url()) }).await.expect("a good node");
    check(&CheckSettings { basic_auth_file: path(&basic), ..settings(&server.url()) }).await.expect("a good node");
    let heads: Vec<String> = server.requests().into_iter().map(|r| r.head).collect();
    assert!(heads[0].contains("authorization: ApiKey c2VjcmV0\r\n"), "{}", heads[0]);
    assert!(heads[2].contains("authorization: Basic ZWxhc3RpYzpwYXNzOndvcmQ=\r\n"), "{}", heads[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_used_is_named_and_never_quoted() {
    let junk = file_with("hunter2\u{7}secret");
    let empty = file_with("\n");
    let junk = junk.path().to_str().expect("text");
    let empty = empty.path().to_str().expect("text");
    let server = Server::start(Behaviour::answering(good));
    let base = settings(&server.url());
    let cases = [
        ("/nonexistent/key", CheckSettings { api_key_file: Some("/nonexistent/key".into()), ..base.clone() }),
        ("/proc", CheckSettings { api_key_file: Some("/proc".into()), ..base.clone() }),
        (empty, CheckSettings { api_key_file: Some(empty.into()), ..base.clone() }),
        (junk, CheckSettings { basic_auth_file: Some(junk.into()), ..base.clone() }),
        (junk, CheckSettings { ca_file: Some(junk.into()), ..base.clone() }),
        ("", CheckSettings { api_key_file: Some(junk.into()), ..base.clone() }),
    ];
    for (file, settings) in cases {
        let fault = check(&settings).await.expect_err("unusable");
        assert_eq!(fault.class, Class::Auth, "{fault}");
        assert!(fault.message.contains(file) && !fault.message.contains("hunter2"), "{fault}");
    }
    assert!(server.requests().is_empty(), "nothing was asked without the credentials");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_url_is_a_fault_like_every_other() {
    for url in ["", "es-1:9200", "http://", "http://user:hunter2@127.0.0.1:1"] {
        let fault = check(&settings(url)).await.expect_err("no URL");
        assert_eq!(fault.class, Class::Refused, "{url}");
        assert!(!fault.message.contains("hunter2"));
    }
}
