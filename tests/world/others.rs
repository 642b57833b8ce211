//! Traffic and the webhook's receiving end.

use super::{BOUND, eventually, loopback};
use backstop::rehearse::http::{self, Request};
use backstop::rehearse::node::{Node, NodeFacts, NodeOptions};
use backstop::rehearse::pace::{self, Origin};
use backstop::rehearse::receiver::{Receiver, Reply};
use backstop::rehearse::shapes::Shape;
use backstop::rehearse::traffic::{Traffic, TrafficOptions};
use std::time::Duration;

#[tokio::test]
async fn each_failed_request_is_named_and_dated() {
    let node = Node::start(NodeOptions::joined(loopback(), NodeFacts::new("es-client-1"))).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let mut options = TrafficOptions::new(node.address());
    options.rate_per_s = 300;
    options.timeout_ms = 300;
    let traffic = Traffic::start(options, Origin::new(60));
    let control = traffic.control();
    let count = |what: &str| control.totals().by_failure().get(what).copied().unwrap_or(0);
    eventually(|| control.totals().ok > 20).await;
    assert_eq!(control.totals().failures, []);
    node.control().set_shape(Some(Shape::Empty503));
    eventually(|| count("status 503") > 5).await;
    node.control().set_shape(Some(Shape::NeverAnswers));
    eventually(|| count("timeout") > 5).await;
    node.stop().await;
    eventually(|| count("connection refused") > 5).await;
    let totals = traffic.stop().await;
    assert_eq!(totals.ended, totals.ok + u64::try_from(totals.failed()).unwrap());
    let in_buckets: u64 = totals.buckets.values().map(|b| b.ok + b.failed).sum();
    assert_eq!(in_buckets, totals.ended);
    assert!(totals.failures.iter().any(|f| f.fresh) && totals.failures.iter().any(|f| !f.fresh));
}

fn post(body: &str) -> Request {
    let headers = vec![("x-page".to_owned(), "1".to_owned())];
    Request { method: "POST".to_owned(), target: "/pages".to_owned(), headers, body: body.into(), keep_alive: true }
}

#[tokio::test]
async fn pages_are_kept_in_order_with_headers_and_answered_as_told() {
    let receiver = Receiver::start(loopback(), Origin::new(1)).await.unwrap();
    let (address, control) = (receiver.address(), receiver.control());
    control.answer_next([Reply::RetryAfter(429, 7), Reply::StoreAndClose, Reply::Reset, Reply::Hang]);
    let limited = http::once(address, &post(r#"{"n":1}"#)).await.unwrap();
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("7")));
    assert!(http::once(address, &post(r#"{"n":2}"#)).await.is_err(), "stored, and closed");
    assert!(http::once(address, &post(r#"{"n":3}"#)).await.is_err(), "reset, and not stored");
    let request = post(r#"{"n":4}"#);
    assert!(pace::within(Duration::from_millis(200), http::once(address, &request)).await.is_none());
    assert_eq!(http::once(address, &post("no json")).await.unwrap().status, 202);
    assert!(control.wait_for(4, BOUND).await);
    let stored = control.received();
    let bodies: Vec<String> = stored.iter().map(|r| r.body.to_string()).collect();
    assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":4}"#, r#""no json""#]);
    assert_eq!(stored.iter().filter(|r| r.accepted).count(), 1);
    assert!(stored[0].headers.contains(&("x-page".to_owned(), "1".to_owned())));
    assert!(!control.wait_for(5, Duration::from_millis(10)).await);
    receiver.stop().await;
    assert!(http::once(address, &post("{}")).await.is_err());
    let again = Receiver::start_with(address, control.clone()).await.unwrap();
    assert_eq!(http::once(address, &post("{}")).await.unwrap().status, 202);
    assert_eq!(control.received().len(), 5, "an outage loses nothing that was stored");
    again.stop().await;
}
