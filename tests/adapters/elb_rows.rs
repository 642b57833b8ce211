//! Every way in which a call of `ELBv2` was ever seen to fail, through the real SDK: a table, and the walk over it.
//! A read and both writes are asked; each is sent once, ends within its deadline and has its class.

use crate::elb::{ARN, IMPATIENT, PATIENT, credentials, elb_with, error, health, in_time, result, target};
use crate::made::FullQueue;
use crate::support::tls::{Front, Terms};
use crate::support::wire::{Wire, body, raw, reply, waits};
use Class::{Auth, NotReady, OutcomeUnknown, Refused, Throttled, Transport};
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use backstop::core::error::{Class, Fault};
use backstop::core::target::GroupArn;
use backstop::elbv2::{Elb, ElbTimeouts, http_client};
use backstop::ports::LoadBalancer;
use backstop::rehearse::http::{Answer, End, Request, Response};
use backstop::rehearse::shapes::{Moment, Shape};

struct Row {
    number: u8,
    says: &'static str,
    served: &'static [Served],
}

/// What three calls come to: a read, `RegisterTargets`, `DeregisterTargets`. `None`: an answer.
type Want = [Option<Class>; 3];

#[derive(Clone, Copy, Debug)]
enum Served {
    /// A shape in the place of the right answer: the class of a read; a write may have been applied.
    Spoilt(Shape, Class),
    /// A complete error.
    Code(u16, &'static str, &'static str, [Class; 3]),
    /// Something else.
    Made(Made, Want),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    NothingListens,
    SynDropped,
    UnknownAuthority,
    Page500,
    Page503,
    EmptyList,
    MetadataRefused,
    MetadataHangs,
    Metadata500,
    Metadata403,
    MetadataClosed,
    AttemptTooLong,
    CallTooLong,
    ReadTooLong,
}

use Served::{Code, Made as M, Spoilt};

const fn all(class: Class) -> Want {
    [Some(class); 3]
}

/// A write of which nothing is known.
const fn lost(read: Class) -> Want {
    [Some(read), Some(OutcomeUnknown), Some(OutcomeUnknown)]
}

const NOT_RUNNING: &str = "The following targets are not in a running state and cannot be registered: 'i-0a'";

macro_rules! rows {
    ($($number:literal $says:literal: $($served:expr),+;)*) => {
        &[$(Row { number: $number, says: $says, served: &[$($served),+] },)*]
    };
}

const ROWS: &[Row] = rows! {
    1 "refused: nothing was sent; or reset": M(Made::NothingListens, all(Transport)),
        Spoilt(Shape::RstOnAccept, Transport), Spoilt(Shape::RstAfterRequest, Transport);
    2 "no answer to the connection attempt": M(Made::SynDropped, lost(Transport));
    3 "nobody we know signed the certificate": M(Made::UnknownAuthority, lost(Transport));
    4 "accepts and never answers": Spoilt(Shape::NeverAnswers, Transport);
    5 "a head, and then nothing": Spoilt(Shape::BodyStalls, Transport);
    6 "the body is cut": Spoilt(Shape::ShortBody, Transport), Spoilt(Shape::ChunkedCut, Transport),
        Spoilt(Shape::RstInBody, Transport), Spoilt(Shape::CloseDelimitedCut, Transport),
        Spoilt(Shape::CutJson, Transport);
    7 "500 or 503 with a page": M(Made::Page500, lost(Transport)), M(Made::Page503, lost(NotReady)),
        Spoilt(Shape::BadGatewayHtml, NotReady), Spoilt(Shape::Empty503, NotReady);
    8 "200 with junk or nothing": Spoilt(Shape::Html200, Transport), Spoilt(Shape::OtherService, Transport),
        Spoilt(Shape::Empty200, Transport), Spoilt(Shape::Status204, Transport);
    9 "200 with an empty list": M(Made::EmptyList, [None; 3]);
    10 "throttled, whatever the status": Code(400, "Throttling", "Rate exceeded", [Throttled; 3]),
        Code(400, "ThrottlingException", "Rate exceeded", [Throttled; 3]),
        Code(400, "RequestLimitExceeded", "x", [Throttled; 3]), Code(503, "RequestLimitExceeded", "x", [Throttled; 3]);
    11 "the service is not there": Code(500, "HealthUnavailable", "x", [NotReady, OutcomeUnknown, OutcomeUnknown]),
        Code(503, "ServiceUnavailable", "x", [NotReady, OutcomeUnknown, OutcomeUnknown]),
        Code(500, "InternalFailure", "x", [NotReady, OutcomeUnknown, OutcomeUnknown]);
    12 "no such group, no such target": Code(400, "TargetGroupNotFound", "x", [Refused; 3]),
        Code(400, "InvalidTarget", NOT_RUNNING, [NotReady, NotReady, OutcomeUnknown]),
        Code(400, "InvalidTarget", "not in the VPC", [Refused, Refused, OutcomeUnknown]),
        Code(400, "ValidationError", "x", [Refused, Refused, OutcomeUnknown]),
        Code(400, "TooManyTargets", "x", [Refused; 3]);
    13 "denied, expired, not our signature": Code(403, "AccessDenied", "x", [Refused; 3]),
        Code(403, "ExpiredToken", "x", [Auth; 3]), Code(403, "SignatureDoesNotMatch", "x", [Auth; 3]);
    14 "no credentials: the metadata service refuses": M(Made::MetadataRefused, all(Auth)),
        M(Made::MetadataClosed, all(Auth));
    15 "the metadata service hangs": M(Made::MetadataHangs, all(Auth));
    16 "the metadata service answers 500 or 403": M(Made::Metadata500, all(Auth)), M(Made::Metadata403, all(Auth));
    17 "one attempt takes too long": M(Made::AttemptTooLong, lost(Transport));
    18 "the call takes too long": M(Made::CallTooLong, lost(Transport));
    19 "nothing is read for too long": M(Made::ReadTooLong, lost(Transport));
    0 "a code that nobody knows": Code(400, "SomethingNew", "x", [Transport; 3]);
    0 "redirected": Spoilt(Shape::RedirectLoop, Transport), Spoilt(Shape::Moved, Transport);
    0 "not HTTP": Spoilt(Shape::SshBanner, Transport), Spoilt(Shape::NoHead, Transport),
        Spoilt(Shape::TlsOnPlainPort, Transport), Spoilt(Shape::Http2Goaway, Transport);
    0 "refused by a stranger": Spoilt(Shape::Gone, Transport), Spoilt(Shape::TooLarge, Transport);
};

/// What would be right.
fn right(request: &Request) -> Response {
    let text = body(request);
    let answer = if text.contains("Action=RegisterTargets") {
        result("RegisterTargets", "")
    } else if text.contains("Action=DeregisterTargets") {
        result("DeregisterTargets", "")
    } else {
        health(&[("i-0a", "healthy", "")])
    };
    match answer {
        Answer::Reply(response) => response,
        other => panic!("{other:?}"),
    }
}

struct Outcomes {
    came: [Result<(), Fault>; 3],
    /// Requests that the server read, where there is one that reads them.
    requests: Option<usize>,
}

async fn three(elb: &Elb) -> [Result<(), Fault>; 3] {
    [
        in_time(elb.poll(&target(), false)).await.map(drop),
        in_time(elb.register(&target())).await,
        in_time(elb.deregister(&target())).await,
    ]
}

async fn at(server: &Wire, timeouts: ElbTimeouts) -> Outcomes {
    let came = three(&elb_with(&server.url(), timeouts, credentials()).await).await;
    Outcomes { came, requests: Some(server.requests().len()) }
}

async fn spoilt(shape: Shape) -> Outcomes {
    let patient = !waits(&shape.spoil(&Response::default(), "/"));
    let server = Wire::spoiling(shape, right, |_| true).await;
    let mut outcomes = at(&server, if patient { PATIENT } else { IMPATIENT }).await;
    if shape.moment() != Moment::Request {
        assert_eq!(server.connections(), 3, "{shape}: one connection for each call");
        outcomes.requests = None;
    }
    outcomes
}

async fn answered(answer: Answer, timeouts: ElbTimeouts) -> Outcomes {
    let server = Wire::answering(move |_| answer.clone()).await;
    at(&server, timeouts).await
}

async fn make(made: Made) -> Outcomes {
    let unread = |came| Outcomes { came, requests: None };
    // One limit is small, and all others are far away.
    let far = ElbTimeouts { connect_ms: 10_000, read_ms: 10_000, attempt_ms: 10_000, operation_ms: 10_000 };
    let stalls = || raw("", End::Stall);
    match made {
        Made::NothingListens => unread(three(&elb_with("http://127.0.0.1:1", PATIENT, credentials()).await).await),
        Made::SynDropped => {
            let full = FullQueue::new();
            let timeouts = ElbTimeouts { connect_ms: 300, ..far };
            unread(three(&elb_with(&full.url(), timeouts, credentials()).await).await)
        }
        Made::UnknownAuthority => {
            let plain = Wire::answering(|r| Answer::Reply(right(r))).await;
            let front = Front::start(&Terms::GOOD, plain.address(), true).await;
            let came = three(&elb_with(&front.url(), PATIENT, credentials()).await).await;
            assert!(came[0].as_ref().is_err_and(|f| f.message.contains("certificate")), "{came:?}");
            assert!(plain.requests().is_empty());
            unread(came)
        }
        Made::Page500 => answered(reply(500, "<html>oops</html>"), PATIENT).await,
        Made::Page503 => answered(reply(503, "<html>oops</html>"), PATIENT).await,
        Made::EmptyList => {
            let server = Wire::answering(|r| {
                let reads = body(r).contains("Action=Describe");
                if reads { health(&[]) } else { Answer::Reply(right(r)) }
            })
            .await;
            at(&server, PATIENT).await
        }
        Made::MetadataRefused => without_credentials(None).await,
        Made::MetadataHangs => without_credentials(Some(stalls())).await,
        Made::Metadata500 => without_credentials(Some(reply(500, ""))).await,
        Made::Metadata403 => without_credentials(Some(reply(403, ""))).await,
        Made::MetadataClosed => without_credentials(Some(raw("", End::Fin))).await,
        Made::AttemptTooLong => answered(stalls(), ElbTimeouts { attempt_ms: 300, ..far }).await,
        Made::CallTooLong => answered(stalls(), ElbTimeouts { operation_ms: 300, ..far }).await,
        Made::ReadTooLong => answered(stalls(), ElbTimeouts { read_ms: 300, ..far }).await,
    }
}

/// Credentials come from a metadata service that answers so (`None`: nothing listens there).
async fn without_credentials(answer: Option<Answer>) -> Outcomes {
    let api = Wire::answering(|r| Answer::Reply(right(r))).await;
    let service = match answer {
        Some(answer) => Some(Wire::answering(move |_| answer.clone()).await),
        None => None,
    };
    let url = service.as_ref().map_or("http://127.0.0.1:1".to_owned(), Wire::url);
    let config = ProviderConfig::without_region().with_http_client(http_client(Some("http://")));
    let client = imds::Client::builder()
        .configure(&config)
        .endpoint(url)
        .expect("a URL")
        .max_attempts(1)
        .connect_timeout(std::time::Duration::from_millis(300))
        .read_timeout(std::time::Duration::from_millis(300))
        .build();
    let provider = ImdsCredentialsProvider::builder().configure(&config).imds_client(client).build();
    let came = three(&elb_with(&api.url(), PATIENT, provider).await).await;
    assert!(api.requests().is_empty(), "nothing was sent");
    Outcomes { came, requests: None }
}

#[test]
fn every_row_is_here_once() {
    let numbers: Vec<u8> = ROWS.iter().map(|r| r.number).filter(|n| *n != 0).collect();
    assert_eq!(numbers, (1..=19).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_is_classed_by_the_real_client_on_a_read_and_on_both_writes() {
    for row in ROWS {
        for served in row.served {
            let (outcomes, want) = match *served {
                Spoilt(shape, read) => (spoilt(shape).await, lost(read)),
                Code(status, code, text, classes) => {
                    (answered(error(status, code, text), PATIENT).await, classes.map(Some))
                }
                M(made, want) => (make(made).await, want),
            };
            let what = format!("row {} ({}): {served:?}", row.number, row.says);
            for (came, want) in outcomes.came.iter().zip(want) {
                assert_eq!(came.as_ref().err().map(|f| f.class), want, "{what}: {came:?}");
                assert!(came.as_ref().err().is_none_or(|f| f.message.len() < 600), "{what}: {came:?}");
            }
            if let Some(requests) = outcomes.requests {
                assert_eq!(requests, 3, "{what}: each call was sent once");
            }
        }
    }
}

/// Whatever a server sends, even what was made for somebody else's client: it is never taken for an answer, and a write
/// that may have been applied is never taken for one that was not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_shape_at_all_is_an_answer_and_no_write_of_it_is_known() {
    for shape in Shape::ALL {
        let request = Request::get("/");
        let harmless = matches!(shape.spoil(&right(&request), "/"), Answer::Reply(r) if r == right(&request));
        if harmless || *shape == Shape::CloseDelimited {
            continue; // it changes JSON only, and this is none; or it is a right answer in another form
        }
        let [read, register, deregister] = spoilt(*shape).await.came;
        read.expect_err(shape.name());
        for write in [register, deregister] {
            let fault = write.expect_err(shape.name());
            assert!(matches!(fault.class, OutcomeUnknown | Throttled | Auth), "{shape}: {fault}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_without_end_is_cut_at_a_limit_and_not_read_until_the_deadline() {
    let fault = spoilt(Shape::EndlessBody).await.came.into_iter().next().expect("a read").expect_err("no answer");
    assert_eq!(fault.class, Transport, "{fault}");
    assert!(fault.message.contains("limit"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_was_closed_while_idle_costs_no_call_and_one_closed_under_a_write_is_unknown() {
    let server = Wire::answering(|r| raw(right(r).encode(true), End::Fin)).await;
    let elb = elb_with(&server.url(), PATIENT, credentials()).await;
    for calls in 1..=3 {
        in_time(elb.register(&target())).await.expect("on a fresh connection");
        server.wait_ended(calls).await;
    }
    let server =
        Wire::answering(
            |r| {
                if body(r).contains("Action=Describe") { Answer::Reply(right(r)) } else { raw("", End::Fin) }
            },
        )
        .await;
    let elb = elb_with(&server.url(), PATIENT, credentials()).await;
    in_time(elb.poll(&target(), false)).await.expect("an answer");
    let fault = in_time(elb.deregister(&target())).await.expect_err("closed under it");
    assert_eq!(fault.class, OutcomeUnknown, "{fault}");
    assert_eq!((server.connections(), server.requests().len()), (1, 2), "on the kept connection, and not again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_settings_of_a_group_are_a_read_like_any_other() {
    for (shape, class) in [(Shape::NeverAnswers, Transport), (Shape::BadGatewayHtml, NotReady)] {
        let patient = shape != Shape::NeverAnswers;
        let server = Wire::spoiling(shape, right, |_| true).await;
        let elb = elb_with(&server.url(), if patient { PATIENT } else { IMPATIENT }, credentials()).await;
        let fault = in_time(elb.group(&GroupArn(ARN.into()))).await.expect_err("no answer");
        assert_eq!(fault.class, class, "{shape}: {fault}");
    }
}
