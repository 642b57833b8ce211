//! `ELBv2` through the real SDK client.

use crate::node_tls::identity;
use crate::support::faults::{Behaviour, Request, Server, Shape, Then};
use aws_config::imds;
use aws_config::imds::credentials::ImdsCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_sdk_elasticloadbalancingv2::config::{Credentials, ProvideCredentials};
use backstop::core::error::{Class, Fault};
use backstop::core::settings::{BalancerKind, GroupFacts, TargetType};
use backstop::core::target::{GroupArn, Named, Own, Target, TargetState};
use backstop::elbv2::{Elb, ElbSettings, ElbTimeouts, http_client};
use backstop::ports::{LoadBalancer, MayRegister};
use std::future::Future;
use std::time::Duration;

/// The longest deadline in here, the adapter's own margin, and the slack of a busy machine.
const WHOLE: Duration = Duration::from_secs(30);
const ARN: &str = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef";

fn target() -> Target {
    Target { group: GroupArn(ARN.into()), id: "i-0a".into(), port: 9200 }
}

const PATIENT: ElbTimeouts =
    ElbTimeouts { connect_ms: 10_000, read_ms: 10_000, attempt_ms: 15_000, operation_ms: 20_000 };
/// For servers that never come to an end.
const IMPATIENT: ElbTimeouts = ElbTimeouts { connect_ms: 500, read_ms: 500, attempt_ms: 800, operation_ms: 1_000 };

async fn elb_with(url: &str, timeouts: ElbTimeouts, credentials: impl ProvideCredentials + 'static) -> Elb {
    let settings = ElbSettings { region: "eu-west-1".into(), endpoint_url: Some(url.into()), timeouts };
    Elb::with_credentials(&settings, credentials).await
}

fn credentials() -> Credentials {
    Credentials::new("AKIDEXAMPLE", "not-a-secret", None, None, "test")
}

async fn elb(url: &str) -> Elb {
    elb_with(url, PATIENT, credentials()).await
}

async fn in_time<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(WHOLE, call).await.expect("the call ends within its deadline")
}

fn error(status: u16, code: &str, message: &str) -> Shape {
    Shape::http(
        status,
        &format!(
            "<ErrorResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\"><Error>\
             <Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>\
             <RequestId>r</RequestId></ErrorResponse>"
        ),
    )
}

fn result(action: &str, inner: &str) -> Shape {
    Shape::http(
        200,
        &format!(
            "<{action}Response xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\">\
             <{action}Result>{inner}</{action}Result>\
             <ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
        ),
    )
}

fn health(rows: &[(&str, &str, &str)]) -> Shape {
    let member = |(id, state, reason): &(&str, &str, &str)| {
        let reason = if reason.is_empty() { String::new() } else { format!("<Reason>{reason}</Reason>") };
        format!(
            "<member><Target><Id>{id}</Id><Port>9200</Port></Target>\
             <TargetHealth><State>{state}</State>{reason}</TargetHealth></member>"
        )
    };
    let members = rows.iter().map(member).collect::<Vec<_>>().concat();
    result("DescribeTargetHealth", &format!("<TargetHealthDescriptions>{members}</TargetHealthDescriptions>"))
}

fn by_name(request: &Request) -> bool {
    request.body.contains("Targets.member.1.Id=")
}

/// Shapes without a usable answer: the class on a read; on a write the outcome is unknown.
fn unusable() -> Vec<(&'static str, Shape, Class)> {
    let whole = String::from_utf8(health(&[]).bytes).expect("text");
    let cut = whole[..whole.len() - 40].to_owned();
    vec![
        ("reset after the request", Shape::raw("", Then::Rst), Class::Transport),
        ("closed after the request", Shape::raw("", Then::Fin), Class::Transport),
        ("never answers", Shape::raw("", Then::Stall), Class::Transport),
        ("stalled body", Shape::raw(cut.clone(), Then::Stall), Class::Transport),
        ("truncated body", Shape::raw(cut, Then::Fin), Class::Transport),
        ("not HTTP", Shape::raw("SSH-2.0-x\r\n", Then::Fin), Class::Transport),
        ("500 page", Shape::http(500, "<html>oops</html>"), Class::Transport),
        ("502 page", Shape::http(502, "<html>oops</html>"), Class::NotReady),
        ("503 page", Shape::http(503, "<html>oops</html>"), Class::NotReady),
        ("200 junk", Shape::http(200, "<html>hello</html>"), Class::Transport),
        ("200 not XML", Shape::http(200, "{}"), Class::Transport),
        ("200 empty", Shape::http(200, ""), Class::Transport),
        (
            "302",
            Shape::raw("HTTP/1.1 302 F\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", Then::Keep),
            Class::Transport,
        ),
        ("400 page", Shape::http(400, "<html>"), Class::Transport),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_none_is_transport_on_reads_and_unknown_on_writes() {
    for (name, shape, want) in unusable() {
        let timeouts = if shape.waits() { IMPATIENT } else { PATIENT };
        let server = Server::start(Behaviour::answering(move |_| shape.clone()));
        let elb = elb_with(&server.url(), timeouts, credentials()).await;
        let read = in_time(elb.poll(&target(), false)).await.expect_err(name);
        assert_eq!(read.class, want, "{name}: {read}");
        let seen = server.requests().len();
        assert_eq!(seen, 1, "{name}: one call, not retried behind the core's back");
        for (what, outcome) in [
            ("register", in_time(elb.register(&target())).await),
            ("deregister", in_time(elb.deregister(&target())).await),
        ] {
            let fault = outcome.expect_err(name);
            assert_eq!(fault.class, Class::OutcomeUnknown, "{name} {what}: {fault}");
            assert!(fault.message.len() < 600, "{fault}");
        }
        assert_eq!(server.requests().len(), 3, "{name}: each write was sent once");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_codes_are_classed_by_the_real_client() {
    use Class::{Auth, NotReady, OutcomeUnknown, Refused, Throttled, Transport};
    let running = "The following targets are not in a running state and cannot be registered: 'i-0a'";
    for (status, code, text, read, register, deregister) in [
        (400, "Throttling", "Rate exceeded", Throttled, Throttled, Throttled),
        (400, "ThrottlingException", "Rate exceeded", Throttled, Throttled, Throttled),
        (503, "RequestLimitExceeded", "x", Throttled, Throttled, Throttled),
        (500, "HealthUnavailable", "x", NotReady, OutcomeUnknown, OutcomeUnknown),
        (503, "ServiceUnavailable", "x", NotReady, OutcomeUnknown, OutcomeUnknown),
        (500, "InternalFailure", "x", NotReady, OutcomeUnknown, OutcomeUnknown),
        (400, "TargetGroupNotFound", "x", Refused, Refused, Refused),
        (400, "TooManyTargets", "x", Refused, Refused, Refused),
        (400, "InvalidTarget", running, NotReady, NotReady, OutcomeUnknown),
        (400, "InvalidTarget", "not in the VPC", Refused, Refused, OutcomeUnknown),
        (400, "ValidationError", "x", Refused, Refused, OutcomeUnknown),
        (403, "AccessDenied", "x", Refused, Refused, Refused),
        (403, "ExpiredToken", "x", Auth, Auth, Auth),
        (403, "SignatureDoesNotMatch", "x", Auth, Auth, Auth),
        (400, "SomethingNew", "x", Transport, Transport, Transport),
    ] {
        let server = Server::start(Behaviour::answering(move |_| error(status, code, text)));
        let elb = elb(&server.url()).await;
        let class = |outcome: Result<(), Fault>| outcome.expect_err(code).class;
        assert_eq!(in_time(elb.poll(&target(), false)).await.expect_err(code).class, read, "{status} {code}");
        assert_eq!(class(in_time(elb.register(&target())).await), register, "{status} {code}");
        assert_eq!(class(in_time(elb.deregister(&target())).await), deregister, "{status} {code}");
        assert_eq!(server.requests().len(), 3, "{code}: nothing is retried in here");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_connection_is_transport_for_writes_too_since_nothing_was_sent() {
    let elb = elb("http://127.0.0.1:1").await;
    assert_eq!(in_time(elb.poll(&target(), true)).await.expect_err("refused").class, Class::Transport);
    let fault = in_time(elb.register(&target())).await.expect_err("refused");
    assert_eq!(fault.class, Class::Transport, "{fault}");
    assert!(fault.message.contains("onnection refused"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_of_nobody_we_know_is_no_answer() {
    let id = identity("127.0.0.1", false, false);
    let server =
        Server::start(Behaviour { tls: Some(id.config), ..Behaviour::answering(|_| result("RegisterTargets", "")) });
    let elb = elb(&format!("https://{}", server.addr)).await;
    let fault = in_time(elb.poll(&target(), false)).await.expect_err("an unknown CA");
    assert_eq!(fault.class, Class::Transport);
    assert!(fault.message.contains("certificate"), "{fault}");
    let fault = in_time(elb.register(&target())).await.expect_err("an unknown CA");
    assert_eq!(fault.class, Class::OutcomeUnknown, "{fault}");
    assert!(server.requests().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn credentials_that_do_not_load_are_auth_and_nothing_is_sent() {
    let metadata_services: Vec<(&str, Shape)> = vec![
        ("hangs", Shape::raw("", Then::Stall)),
        ("500", Shape::http(500, "")),
        ("403", Shape::http(403, "")),
        ("closed", Shape::raw("", Then::Fin)),
    ];
    let api = Server::start(Behaviour::answering(|_| health(&[])));
    for (name, shape) in metadata_services {
        let timeouts = if shape.waits() { IMPATIENT } else { PATIENT };
        let metadata = Server::start(Behaviour::answering(move |_| shape.clone()));
        let config = ProviderConfig::without_region().with_http_client(http_client(Some("http://")));
        let client =
            imds::Client::builder().configure(&config).endpoint(metadata.url()).expect("a URL").max_attempts(1).build();
        let provider = ImdsCredentialsProvider::builder().configure(&config).imds_client(client).build();
        let elb = elb_with(&api.url(), timeouts, provider).await;
        for (what, outcome) in [
            ("read", in_time(elb.poll(&target(), false)).await.map(|_| ())),
            ("register", in_time(elb.register(&target())).await),
        ] {
            let fault = outcome.expect_err(name);
            // A service that hangs longer than the whole call may is cut by the call's deadline instead.
            let hung = name == "hangs" && matches!(fault.class, Class::Transport | Class::OutcomeUnknown);
            assert!(fault.class == Class::Auth || hung, "{name} {what}: {fault}");
        }
    }
    assert!(api.requests().is_empty(), "nothing was sent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_names_exactly_one_target_with_id_and_port() {
    let server = Server::start(Behaviour::answering(|r| {
        let action = if r.body.contains("Action=Register") { "RegisterTargets" } else { "DeregisterTargets" };
        result(action, "")
    }));
    let elb = elb(&server.url()).await;
    in_time(elb.register(&target())).await.expect("accepted");
    in_time(elb.deregister(&target())).await.expect("accepted");
    for request in server.requests() {
        assert!(request.body.contains("Targets.member.1.Id=i-0a"), "{}", request.body);
        assert!(request.body.contains("Targets.member.1.Port=9200"), "{}", request.body);
        assert!(!request.body.contains("member.2"), "{}", request.body);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_reads_the_whole_list_and_the_own_target_by_name() {
    let server = Server::start(Behaviour::answering(|r| {
        if by_name(r) {
            health(&[("i-0a", "unused", "Target.NotRegistered")])
        } else {
            health(&[("i-0b", "healthy", ""), ("i-0c", "levitating", "Target.NewReason")])
        }
    }));
    let elb = elb(&server.url()).await;
    let poll = in_time(elb.poll(&target(), true)).await.expect("an answer");
    assert_eq!(poll.own("i-0a", 9200), Own::Gone);
    assert_eq!((poll.list.len(), poll.list[1].state), (2, TargetState::Unknown));
    let asked = server.requests();
    assert_eq!(asked.iter().filter(|r| by_name(r)).count(), 1);
    assert!(asked.iter().filter(|r| by_name(r)).all(|r| r.body.contains("Targets.member.1.Port=9200")));

    let poll = in_time(elb.poll(&target(), false)).await.expect("an answer");
    assert_eq!((poll.named, server.requests().len()), (None, 3), "by name only where it was asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_target_by_name_is_an_answer_and_an_empty_list_is_unknown() {
    let server = Server::start(Behaviour::answering(|r| {
        if by_name(r) { error(400, "InvalidTarget", "no such instance") } else { health(&[("i-0b", "healthy", "")]) }
    }));
    let poll = in_time(elb(&server.url()).await.poll(&target(), true)).await.expect("an answer");
    assert_eq!((poll.own("i-0a", 9200), poll.named), (Own::NoRow, Some(Named::InvalidTarget)));

    let server = Server::start(Behaviour::answering(|_| health(&[])));
    let poll = in_time(elb(&server.url()).await.poll(&target(), true)).await.expect("an answer");
    assert_eq!(poll.own("i-0a", 9200), Own::Unknown, "an empty 200 is not gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_with_one_bad_half_is_a_fault() {
    for bad_by_name in [true, false] {
        let server = Server::start(Behaviour::answering(move |r| {
            if by_name(r) == bad_by_name { error(400, "Throttling", "x") } else { health(&[("i-0a", "healthy", "")]) }
        }));
        let fault = in_time(elb(&server.url()).await.poll(&target(), true)).await.expect_err("half an answer");
        assert_eq!(fault.class, Class::Throttled);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_settings_come_from_both_calls_and_never_from_another_group() {
    let group = |arn: &str| {
        result(
            "DescribeTargetGroups",
            &format!(
                "<TargetGroups><member><TargetGroupArn>{arn}</TargetGroupArn><Protocol>TCP</Protocol>\
                 <Port>9200</Port><TargetType>instance</TargetType>\
                 <HealthCheckIntervalSeconds>10</HealthCheckIntervalSeconds>\
                 <HealthyThresholdCount>3</HealthyThresholdCount></member></TargetGroups>"
            ),
        )
    };
    let attributes = || {
        result(
            "DescribeTargetGroupAttributes",
            "<Attributes><member><Key>deregistration_delay.timeout_seconds</Key><Value>90</Value></member></Attributes>",
        )
    };
    let server = Server::start(Behaviour::answering(move |r| {
        if r.body.contains("Action=DescribeTargetGroups&") { group(ARN) } else { attributes() }
    }));
    let facts = in_time(elb(&server.url()).await.group(&GroupArn(ARN.into()))).await;
    let want = GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Network,
        port: Some(9200),
        deregistration_delay_ms: 90_000,
        interval_ms: 10_000,
        healthy_threshold: 3,
    };
    assert_eq!(facts, Ok(want));

    let server = Server::start(Behaviour::answering(move |r| {
        if r.body.contains("Action=DescribeTargetGroups&") { group("arn:of:another") } else { attributes() }
    }));
    let facts = in_time(elb(&server.url()).await.group(&GroupArn(ARN.into()))).await;
    assert_eq!(facts.expect_err("another group").class, Class::Transport);
}

async fn asked(target_type: TargetType, register: Shape) -> (MayRegister, Vec<String>) {
    let server = Server::start(Behaviour::answering(move |r| {
        if r.body.contains("Action=RegisterTargets") { register.clone() } else { result("DeregisterTargets", "") }
    }));
    let elb = elb(&server.url()).await;
    let answer = in_time(elb.may_register(&GroupArn(ARN.into()), target_type, 9200)).await;
    let bodies = server.requests().into_iter().map(|r| r.body).collect();
    (answer, bodies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_right_to_register_is_proven_only_by_a_refusal_of_the_id() {
    let not_running = error(400, "InvalidTarget", "The following targets are not in a running state");
    assert_eq!(asked(TargetType::Instance, not_running).await.0, MayRegister::Yes);
    let named = error(400, "ValidationError", "The IP address '192.0.2.1' is not within the VPC");
    assert_eq!(asked(TargetType::Ip, named).await.0, MayRegister::Yes);

    let unnamed = error(400, "ValidationError", "something else is wrong");
    assert!(matches!(asked(TargetType::Ip, unnamed).await.0, MayRegister::Unknown(_)));
    let denied = error(403, "AccessDenied", "not authorized");
    assert!(matches!(asked(TargetType::Ip, denied).await.0, MayRegister::No(f) if f.class == Class::Refused));
    for shape in [error(400, "Throttling", "x"), error(400, "TargetGroupNotFound", "x"), Shape::http(503, "")] {
        assert!(matches!(asked(TargetType::Instance, shape).await.0, MayRegister::Unknown(_)));
    }
    let (answer, bodies) = asked(TargetType::Other, result("RegisterTargets", "")).await;
    assert!(matches!(answer, MayRegister::Unknown(_)) && bodies.is_empty(), "nothing is tried on other types");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_id_that_was_or_may_have_been_taken_is_taken_out_again_and_nothing_else_is() {
    let (answer, bodies) = asked(TargetType::Instance, result("RegisterTargets", "")).await;
    assert_eq!(answer, MayRegister::TookIt);
    assert_eq!(bodies.len(), 2);
    assert!(bodies.iter().all(|b| b.contains("Targets.member.1.Id=i-00000000000000000")), "{bodies:?}");
    assert!(bodies[1].contains("Action=DeregisterTargets") && !bodies[1].contains("member.2"), "{bodies:?}");

    let (answer, bodies) = asked(TargetType::Ip, Shape::http(200, "<html>")).await;
    assert!(matches!(answer, MayRegister::Unknown(f) if f.class == Class::OutcomeUnknown));
    assert!(bodies[1].contains("Action=DeregisterTargets") && bodies[1].contains("Id=192.0.2.1"), "{bodies:?}");

    let (_, bodies) = asked(TargetType::Instance, error(403, "AccessDenied", "x")).await;
    assert_eq!(bodies.len(), 1, "nothing to take out where nothing was taken");
}
