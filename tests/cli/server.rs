//! The server against callers that are no CLI: too much, too slow, or no HTTP at all.

use crate::world::{PATIENCE, World};
use backstop::control::client::Client;
use backstop::control::roles::{Roles, Verb};
use backstop::control::server::{Limits, Outcome};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

async fn connect(world: &World) -> UnixStream {
    UnixStream::connect(world.socket()).await.unwrap()
}

/// Sends bytes and reads to the end: status and body.
async fn raw(world: &World, bytes: &[u8]) -> (u16, String) {
    let mut stream = connect(world).await;
    // A server that has heard enough may hang up before it has read everything.
    let _ = stream.write_all(bytes).await;
    answer(stream).await
}

async fn answer(mut stream: UnixStream) -> (u16, String) {
    let mut text = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut text)).await.expect("an end");
    let text = String::from_utf8_lossy(&text).into_owned();
    let _ = read;
    let status = text.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
    (status, text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn still_answers(world: &World) {
    Client::new(world.socket()).status().await.expect("the server goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_are_json_with_what_was_expected_and_what_next() {
    let world = World::new();
    for (bytes, status, says) in [
        (post("/v1/nothing", "{}"), 404, "/v1/nothing"),
        (b"DELETE /v1/status HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), 405, "DELETE"),
        (post("/v1/pause", r#"{"reason":"r","force":true}"#), 400, "unknown field `force`"),
        (post("/v1/pause", r#"["#), 400, "EOF"),
        (post("/v1/pause", ""), 400, "EOF"),
    ] {
        let (got, body) = raw(&world, &bytes).await;
        let error: Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
        assert_eq!(got, status, "{body}");
        assert!(error["error"].as_str().unwrap().contains(says), "{body}");
        for field in ["expected", "next"] {
            assert!(!error[field].as_str().unwrap().is_empty(), "{body}");
        }
    }
    assert!(world.fake.script().asked.is_empty());
    assert!(world.audited().iter().all(|line| line.verb.is_none()), "{:?}", world.audited());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_long_is_refused_with_and_without_a_stated_length() {
    let world = World::new();
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(70_000));
    let (status, body) = raw(&world, &post("/v1/pause", &long)).await;
    assert!(status == 413 && body.contains("at most 65536 bytes"), "{status} {body}");
    let chunk = format!("{:x}\r\n{long}\r\n0\r\n\r\n", long.len());
    let chunked = format!("POST /v1/pause HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
    assert_eq!(raw(&world, chunked.as_bytes()).await.0, 413);
    assert!(world.fake.script().asked.is_empty());
    still_answers(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_is_hung_up_on_and_the_server_goes_on() {
    let world = World::new();
    let endless_head = format!("GET /v1/status HTTP/1.1\r\n{}", "X-Y: z\r\n".repeat(10_000));
    for junk in [&b"\x16\x03\x01\x02\x00\x01\x00"[..], b"hello\r\n\r\n", b"\0\0\0\0\r\n\r\n", endless_head.as_bytes()] {
        let (status, _) = raw(&world, junk).await;
        assert!(status == 0 || (400..500).contains(&status), "{status}");
    }
    drop(connect(&world).await);
    still_answers(&world).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_callers_are_cut_off_and_others_get_through() {
    let limits = Limits { connections_max: 2, read_ms: 300, ..Limits::default() };
    let world = World::with(Roles::root_only(), limits);
    let mut slow_head = connect(&world).await;
    slow_head.write_all(b"GET /v1/st").await.unwrap();
    let mut slow_body = connect(&world).await;
    slow_body.write_all(b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{").await.unwrap();
    still_answers(&world).await;
    assert_eq!(answer(slow_body).await.0, 408);
    assert!([0, 408].contains(&answer(slow_head).await.0));
    assert!(world.fake.script().asked.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_only_follows_does_not_lock_others_out() {
    let limits = Limits { followers_max: 1, ..Limits::default() };
    let world = World::with(Roles::root_only(), limits);
    let follow = || async { raw(&world, b"GET /v1/progress HTTP/1.1\r\nHost: x\r\n\r\n").await };
    let first = connect(&world).await;
    let mut first = first;
    first.write_all(b"GET /v1/progress HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    world.fake.until("the first follows", |s| s.followers == 1).await;
    let (status, body) = follow().await;
    assert!(status == 503 && body.contains("try again"), "{status} {body}");
    still_answers(&world).await;
    drop(first);
    world.fake.until("the first is gone", |s| s.followers == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_caller_went_away_is_written_down_all_the_same() {
    let world = World::new();
    world.fake.tell(|s| s.done = None);
    let mut stream = connect(&world).await;
    stream.write_all(&post("/v1/pause", r#"{"reason":"freeze"}"#)).await.unwrap();
    world.fake.until("it arrived", |s| s.asked.len() == 1).await;
    drop(stream);
    let audit = world.audit.clone();
    let written = async {
        while audit.lock().unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, written).await.expect("an audit line");
    let line = world.audited().remove(0);
    assert_eq!((line.verb, line.outcome, line.about.as_str()), (Some(Verb::Pause), Outcome::CallerGone, "freeze"));
    assert!(line.caller.name.contains(&line.caller.uid.to_string()) && line.pid.is_some(), "{:?}", line.caller);
}

#[tokio::test(flavor = "multi_thread")]
async fn any_http_tool_can_ask() {
    let world = World::new();
    let (status, body) = raw(&world, b"GET /v1/history?limit=1 HTTP/1.0\r\n\r\n").await;
    let json: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, json["lines"].as_array().unwrap().len()), (200, 1));
}
