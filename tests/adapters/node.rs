//! The node check over plain HTTP: what it asks, what it believes, and what it says.

use crate::support::tls::{Front, Identity, Terms};
use crate::support::wire::{Wire, raw, reply};
use backstop::core::error::{Class, Fault};
use backstop::core::settings::{CheckPass, CheckSettings, Colour, NodeIdentity};
use backstop::elasticsearch::NodeChecker;
use backstop::ports::NodeCheck;
use backstop::rehearse::http::{Answer, End, Request, Response};
use backstop::rehearse::node::{NodeFacts, View};
use backstop::rehearse::shapes::{Moment, Shape};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

const PATIENT_MS: u64 = 10_000;
const IMPATIENT_MS: u64 = 300;

pub(crate) fn settings(url: &str) -> CheckSettings {
    CheckSettings {
        node_name: "es-client-1".into(),
        url: url.into(),
        timeout_ms: PATIENT_MS,
        ca_file: None,
        api_key_file: None,
        basic_auth_file: None,
        client_cert_file: None,
        canary_index: None,
        expect: Some(expected()),
        passes: 1,
        over_ms: 0,
        every_ms: 1,
    }
}

pub(crate) fn with_canary(settings: CheckSettings) -> CheckSettings {
    CheckSettings { canary_index: Some("canary".into()), ..settings }
}

fn facts() -> NodeFacts {
    NodeFacts::new("es-client-1")
}

pub(crate) fn expected() -> NodeIdentity {
    let f = facts();
    NodeIdentity {
        node_name: f.name.as_str().into(),
        node_id: Some(f.node_id.as_str().into()),
        cluster_uuid: f.cluster_uuid.as_str().into(),
    }
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

/// What a good node answers.
pub(crate) fn good(request: &Request) -> Response {
    facts().answer(View::Joined, request).expect("a joined node answers")
}

/// Good but for one path.
async fn good_but(path: &'static str, answer: Answer) -> Wire {
    Wire::answering(move |r| if r.path() == path { answer.clone() } else { Answer::Reply(good(r)) }).await
}

/// Good, with one field of one answer changed.
async fn good_with(path: &'static str, pointer: &'static str, value: Value) -> Wire {
    let right = good(&Request::get(path));
    let mut body: Value = serde_json::from_slice(&right.body).expect("JSON");
    *body.pointer_mut(pointer).expect("the field") = value;
    good_but(path, Answer::Reply(Response { body: body.to_string().into_bytes(), ..right })).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_listening_and_closed_connections_are_told_apart_from_silence() {
    let fault = check(&settings("http://127.0.0.1:1")).await.expect_err("nothing listens");
    assert!(fault.message.contains("nothing listens"), "{fault}");
    for shape in [Shape::RstOnAccept, Shape::RstAfterRequest, Shape::FinBeforeHeaders] {
        let server = Wire::spoiling(shape, good, |_| true).await;
        let fault = check(&settings(&server.url())).await.expect_err("closed");
        assert!(fault.message.contains("connected but closed"), "{shape}: {fault}");
        assert!(fault.message.contains("protocol/TLS mismatch?"), "{shape}: {fault}");
    }
    let server = Wire::early(Moment::Accept, raw("", End::Stall)).await;
    let fault = check(&impatient(&server.url())).await.expect_err("silent");
    assert!(fault.message.contains("in time"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_colour_never_fails_a_node() {
    for (status, colour) in
        [("green", Some(Colour::Green)), ("yellow", Some(Colour::Yellow)), ("red", Some(Colour::Red)), ("mauve", None)]
    {
        let server = good_with("/_cluster/health", "/status", json!(status)).await;
        let pass = check(&settings(&server.url())).await.expect("a good node");
        assert_eq!(pass.colour, colour);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_answer_of_somebody_else_never_passes() {
    for (pointer, value, class) in [
        ("/cluster_uuid", json!("_na_"), Class::NotReady),
        ("/cluster_uuid", json!("another"), Class::Refused),
        ("/cluster_uuid", json!(""), Class::Transport),
        ("/cluster_uuid", json!([]), Class::Transport),
        ("/name", json!(""), Class::Transport),
        ("/name", json!(1), Class::Transport),
    ] {
        let server = good_with("/", pointer, value.clone()).await;
        let fault = check(&settings(&server.url())).await.expect_err("not this node");
        assert_eq!(fault.class, class, "{pointer} {value}: {fault}");
    }
    let renamed = good_with("/", "/name", json!("es-client-9")).await;
    check(&settings(&renamed.url())).await.expect("renamed, and its id is the expected one");

    let mut other = settings(&renamed.url());
    other.expect = Some(NodeIdentity { node_id: Some("another".into()), ..expected() });
    assert_eq!(check(&other).await.expect_err("name and id differ").class, Class::Refused);
    other.expect = Some(NodeIdentity { node_id: None, ..expected() });
    assert_eq!(check(&other).await.expect_err("the name differs").class, Class::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_is_learnt_with_its_id_and_without_it_where_it_cannot_be_read() {
    let server = Wire::answering(|r| Answer::Reply(good(r))).await;
    let unknown = CheckSettings { expect: None, ..settings(&server.url()) };
    assert_eq!(check(&unknown).await.expect("a good node").identity, expected());

    let server = good_but("/_nodes/_local/http", reply(403, "{}")).await;
    let unknown = CheckSettings { expect: None, ..settings(&server.url()) };
    let identity = check(&unknown).await.expect("a good node").identity;
    assert_eq!(identity, NodeIdentity { node_id: None, ..expected() });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_with_failures_inside_is_not_ready() {
    for (path, pointer, value) in [
        ("/_cluster/health", "/timed_out", json!(true)),
        ("/canary/_search", "/timed_out", json!(true)),
        ("/canary/_search", "/_shards/failed", json!(1)),
        ("/canary/_search", "/_shards/successful", json!(0)),
    ] {
        let server = good_with(path, pointer, value).await;
        let fault = check(&with_canary(settings(&server.url()))).await.expect_err("failures inside");
        assert_eq!(fault.class, Class::NotReady, "{path} {pointer}: {fault}");
        assert_eq!(fault.message.contains("canary"), path.contains("canary"), "{fault}");
    }
    for (path, pointer, value) in [
        ("/_cluster/health", "/timed_out", json!("false")),
        ("/canary/_search", "/timed_out", json!(null)),
        ("/canary/_search", "/_shards", json!(1)),
    ] {
        let server = good_with(path, pointer, value).await;
        let fault = check(&with_canary(settings(&server.url()))).await.expect_err("of another type");
        assert_eq!(fault.class, Class::Transport, "{path} {pointer}: {fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_check_asks_exactly_the_needed_questions_on_a_connection_of_its_own() {
    let server = Wire::answering(|r| Answer::Reply(good(r))).await;
    let mut connections = Vec::new();
    for _ in 0..2 {
        check(&with_canary(settings(&server.url()))).await.expect("a good node");
        connections.push(server.connections());
    }
    let paths: Vec<String> = server.requests().into_iter().map(|r| format!("{} {}", r.method, r.target)).collect();
    let one = [
        "GET /",
        "GET /_cluster/health?timeout=0s",
        "GET /canary/_search?size=0&allow_partial_search_results=false&timeout=2s",
    ];
    assert_eq!(paths, [one, one].concat());
    // Within a check there may be a second one, where the first is not seen to be free in time.
    assert!(connections[1] > connections[0], "no connection outlives its check: {connections:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retry_after_is_carried() {
    let busy = Response { status: 429, ..Response::default() }.with("retry-after", "7");
    let server = good_but("/", Answer::Reply(busy)).await;
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
    let server = Wire::answering(|r| Answer::Reply(good(r))).await;
    let path = |f: &tempfile::NamedTempFile| Some(f.path().to_str().expect("text").into());
    check(&CheckSettings { api_key_file: path(&key), ..settings(&server.url()) }).await.expect("a good node");
    check(&CheckSettings { basic_auth_file: path(&basic), ..settings(&server.url()) }).await.expect("a good node");
    let sent = server.requests();
    assert_eq!(sent[0].header("authorization"), Some("ApiKey c2VjcmV0"));
    assert_eq!(sent[2].header("authorization"), Some("Basic ZWxhc3RpYzpwYXNzOndvcmQ="));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_used_is_named_and_never_quoted() {
    let junk = file_with("hunter2\u{7}secret");
    let empty = file_with("\n");
    let junk = junk.path().to_str().expect("text");
    let empty = empty.path().to_str().expect("text");
    let server = Wire::answering(|r| Answer::Reply(good(r))).await;
    let base = settings(&server.url());
    let cases = [
        ("/nonexistent/key", CheckSettings { api_key_file: Some("/nonexistent/key".into()), ..base.clone() }),
        ("/proc", CheckSettings { api_key_file: Some("/proc".into()), ..base.clone() }),
        (empty, CheckSettings { api_key_file: Some(empty.into()), ..base.clone() }),
        (junk, CheckSettings { basic_auth_file: Some(junk.into()), ..base.clone() }),
        (junk, CheckSettings { ca_file: Some(junk.into()), ..base.clone() }),
        (junk, CheckSettings { client_cert_file: Some(junk.into()), ..base.clone() }),
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
async fn a_server_that_asks_for_a_client_certificate_gets_the_one_of_the_file() {
    let plain = Wire::answering(|r| Answer::Reply(good(r))).await;
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let versions = Box::leak(Box::new([version]));
        let front = Front::start(&Terms { mutual: true, versions, ..Terms::GOOD }, plain.address(), true).await;
        let trusting = CheckSettings { ca_file: Some(front.identity.pem().into()), ..settings(&front.url()) };
        let with = |f: &tempfile::NamedTempFile| CheckSettings {
            client_cert_file: Some(f.path().to_str().expect("text").into()),
            ..trusting.clone()
        };
        check(&with(&front.identity.with_key())).await.expect("a good node");
        let stranger = Identity::new(&Terms::GOOD);
        let fault = check(&with(&stranger.with_key())).await.expect_err("a certificate that nobody here knows");
        assert_eq!(fault.class, Class::Transport, "it is retried like all of its kind: {fault}");
        assert!(!fault.message.contains("PRIVATE"), "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_url_is_a_fault_like_every_other() {
    for url in ["", "es-1:9200", "http://", "http://user:hunter2@127.0.0.1:1"] {
        let fault = check(&settings(url)).await.expect_err("no URL");
        assert_eq!(fault.class, Class::Refused, "{url}");
        assert!(!fault.message.contains("hunter2"));
    }
}
