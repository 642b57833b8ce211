//! The walk over the table: each row, through the real client.

use crate::made::make;
use crate::node::{check, good, impatient, settings, with_canary};
use crate::rows::{Made, ROWS, Served};
use crate::support::wire::{Wire, waits};
use backstop::core::error::{Class, Fault};
use backstop::core::settings::CheckPass;
use backstop::rehearse::http::{Answer, Request, Response};
use backstop::rehearse::node::{NodeFacts, View};
use backstop::rehearse::shapes::{Moment, Shape};

/// The calls of a check.
const CALLS: [&str; 3] = ["/", "/_cluster/health", "/canary/_search"];

/// The shape's answer to a call, and the right one.
fn answers(shape: Shape, call: &str) -> (Answer, Response) {
    let request = Request::get(call);
    let right = good(&request);
    let spoilt = match shape {
        // The one shape that is a view of the cluster, and not a spoilt answer.
        Shape::NotJoined => {
            Answer::Reply(NodeFacts::new("es-client-1").answer(View::NotJoined, &request).expect("it answers"))
        }
        _ => shape.spoil(&right, call),
    };
    (spoilt, right)
}

/// A check against a node that answers one call in this shape; `None`: the shape has nothing to spoil there.
async fn asked(shape: Shape, call: &'static str) -> Option<Result<CheckPass, Fault>> {
    let (spoilt, right) = answers(shape, call);
    if matches!(&spoilt, Answer::Reply(r) if *r == right) {
        return None;
    }
    let tls =
        matches!(shape.moment(), Moment::FirstBytes) && shape.name().contains("tls-") && shape != Shape::TlsOnPlainPort;
    let server = match shape.moment() {
        // Before a request is read no call is told from another.
        moment @ (Moment::Accept | Moment::FirstBytes) if call == "/" => Wire::early(moment, spoilt.clone()).await,
        Moment::Accept | Moment::FirstBytes => return None,
        Moment::Request => {
            let spoilt = spoilt.clone();
            Wire::answering(move |r| match r.path() {
                path if path == call => spoilt.clone(),
                // Who else somebody is who answers the first call is asked here.
                path @ "/_nodes/_local/http" => answers(shape, path).0,
                _ => Answer::Reply(good(r)),
            })
            .await
        }
    };
    let url = if tls { server.url().replace("http:", "https:") } else { server.url() };
    let outcome = check(&with_canary(if waits(&spoilt) { impatient(&url) } else { settings(&url) })).await;
    if shape.moment() == Moment::Request {
        let asked = server.requests().iter().filter(|r| r.path() == call).count();
        assert_eq!(asked, 1, "{shape} at {call}: one call, not retried behind the core's back");
    }
    Some(outcome)
}

fn judge(what: &str, outcome: Result<CheckPass, Fault>, want: Option<Class>) {
    match (outcome, want) {
        (Ok(_), None) => {}
        (Err(fault), Some(class)) => {
            assert_eq!(fault.class, class, "{what}: {fault}");
            assert!(!fault.message.is_empty() && fault.message.len() < 600, "{what}: {fault}");
        }
        (outcome, want) => panic!("{what}: wanted {want:?}, came {outcome:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_that_is_an_answer_is_classed_at_each_call_of_a_check() {
    for row in ROWS {
        for served in row.served {
            let (shape, want) = match served {
                Served::Fails(shape, class) => (*shape, Some(*class)),
                Served::Passes(shape) => (*shape, None),
                Served::Made(..) | Served::By(..) | Served::Not(_) => continue,
            };
            let mut struck = 0;
            for call in CALLS {
                if let Some(outcome) = asked(shape, call).await {
                    struck += 1;
                    judge(&format!("row {} ({}): {shape} at {call}", row.number, row.says), outcome, want);
                }
            }
            assert!(struck > 0, "row {}: {shape} spoils nothing", row.number);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_that_is_no_answer_is_made_and_classed() {
    for row in ROWS {
        for served in row.served {
            let Served::Made(made, want) = served else { continue };
            let what = format!("row {} ({}): {made:?}", row.number, row.says);
            judge(&what, make(*made).await, *want);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wrong_protocol_on_either_side_says_so() {
    let tls_to_plain = asked(Shape::PlainOnTlsPort, "/").await.expect("it strikes");
    for outcome in [tls_to_plain, make(Made::PlainToATlsPort).await] {
        let fault = outcome.expect_err("the wrong protocol");
        assert!(fault.message.contains("protocol/TLS mismatch?"), "{fault}");
    }
    for (made, says) in [
        (Made::CertificateExpired, "xpired"),
        (Made::CertificateNotYetValid, "not valid yet"),
        (Made::UnknownAuthority, "certificate"),
        (Made::WrongHost, "not valid for name"),
        (Made::SynDroppedLonger, "no connection in time"),
    ] {
        let fault = make(made).await.expect_err("it fails");
        assert!(fault.message.contains(says), "{made:?}: {fault}");
        assert!(!fault.message.contains("mismatch"), "{made:?}: {fault}");
    }
}
