//! `ELBv2` through the real SDK client.

use crate::support::wire::{Wire, body, reply};
use aws_sdk_elasticloadbalancingv2::config::{Credentials, ProvideCredentials};
use backstop::core::error::Class;
use backstop::core::settings::{BalancerKind, GroupFacts, TargetType};
use backstop::core::target::{GroupArn, Named, Own, Target, TargetState};
use backstop::elbv2::{Elb, ElbSettings, ElbTimeouts};
use backstop::ports::{LoadBalancer, MayRegister};
use backstop::rehearse::http::{Answer, Request};
use std::future::Future;
use std::time::Duration;

/// The longest deadline in here, the adapter's own margin, and the slack of a busy machine.
const WHOLE: Duration = Duration::from_secs(30);
pub(crate) const ARN: &str =
    "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef";

pub(crate) fn target() -> Target {
    Target { group: GroupArn(ARN.into()), id: "i-0a".into(), port: 9200 }
}

pub(crate) const PATIENT: ElbTimeouts =
    ElbTimeouts { connect_ms: 10_000, read_ms: 10_000, attempt_ms: 15_000, operation_ms: 20_000 };
/// For servers that never come to an end.
pub(crate) const IMPATIENT: ElbTimeouts =
    ElbTimeouts { connect_ms: 500, read_ms: 500, attempt_ms: 800, operation_ms: 1_000 };

pub(crate) async fn elb_with(url: &str, timeouts: ElbTimeouts, credentials: impl ProvideCredentials + 'static) -> Elb {
    let settings = ElbSettings { region: "eu-west-1".into(), endpoint_url: Some(url.into()), timeouts };
    Elb::with_credentials(&settings, credentials).await
}

pub(crate) fn credentials() -> Credentials {
    Credentials::new("AKIDEXAMPLE", "not-a-secret", None, None, "test")
}

pub(crate) async fn elb(url: &str) -> Elb {
    elb_with(url, PATIENT, credentials()).await
}

pub(crate) async fn in_time<T>(call: impl Future<Output = T>) -> T {
    tokio::time::timeout(WHOLE, call).await.expect("the call ends within its deadline")
}

pub(crate) fn error(status: u16, code: &str, message: &str) -> Answer {
    reply(
        status,
        &format!(
            "<ErrorResponse xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\"><Error>\
             <Type>Sender</Type><Code>{code}</Code><Message>{message}</Message></Error>\
             <RequestId>r</RequestId></ErrorResponse>"
        ),
    )
}

pub(crate) fn result(action: &str, inner: &str) -> Answer {
    reply(
        200,
        &format!(
            "<{action}Response xmlns=\"http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/\">\
             <{action}Result>{inner}</{action}Result>\
             <ResponseMetadata><RequestId>r</RequestId></ResponseMetadata></{action}Response>"
        ),
    )
}

pub(crate) fn health(rows: &[(&str, &str, &str)]) -> Answer {
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
    body(request).contains("Targets.member.1.Id=")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_write_names_exactly_one_target_with_id_and_port() {
    let server = Wire::answering(|r| {
        let action = if body(r).contains("Action=Register") { "RegisterTargets" } else { "DeregisterTargets" };
        result(action, "")
    })
    .await;
    let elb = elb(&server.url()).await;
    in_time(elb.register(&target())).await.expect("accepted");
    in_time(elb.deregister(&target())).await.expect("accepted");
    for request in server.requests() {
        let sent = body(&request);
        assert!(sent.contains("Targets.member.1.Id=i-0a"), "{sent}");
        assert!(sent.contains("Targets.member.1.Port=9200"), "{sent}");
        assert!(!sent.contains("member.2"), "{sent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_reads_the_whole_list_and_the_own_target_by_name() {
    let server = Wire::answering(|r| {
        if by_name(r) {
            health(&[("i-0a", "unused", "Target.NotRegistered")])
        } else {
            health(&[("i-0b", "healthy", ""), ("i-0c", "levitating", "Target.NewReason")])
        }
    })
    .await;
    let elb = elb(&server.url()).await;
    let poll = in_time(elb.poll(&target(), true)).await.expect("an answer");
    assert_eq!(poll.own("i-0a", 9200), Own::Gone);
    assert_eq!((poll.list.len(), poll.list[1].state), (2, TargetState::Unknown));
    let asked = server.requests();
    assert_eq!(asked.iter().filter(|r| by_name(r)).count(), 1);
    assert!(asked.iter().filter(|r| by_name(r)).all(|r| body(r).contains("Targets.member.1.Port=9200")));

    let poll = in_time(elb.poll(&target(), false)).await.expect("an answer");
    assert_eq!((poll.named, server.requests().len()), (None, 3), "by name only where it was asked for");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_target_by_name_is_an_answer_and_an_empty_list_is_unknown() {
    let server = Wire::answering(|r| {
        if by_name(r) { error(400, "InvalidTarget", "no such instance") } else { health(&[("i-0b", "healthy", "")]) }
    })
    .await;
    let poll = in_time(elb(&server.url()).await.poll(&target(), true)).await.expect("an answer");
    assert_eq!((poll.own("i-0a", 9200), poll.named), (Own::NoRow, Some(Named::InvalidTarget)));

    let server = Wire::answering(|_| health(&[])).await;
    let poll = in_time(elb(&server.url()).await.poll(&target(), true)).await.expect("an answer");
    assert_eq!(poll.own("i-0a", 9200), Own::Unknown, "an empty 200 is not gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_with_one_bad_half_is_a_fault() {
    for bad_by_name in [true, false] {
        let server = Wire::answering(move |r| {
            if by_name(r) == bad_by_name { error(400, "Throttling", "x") } else { health(&[("i-0a", "healthy", "")]) }
        })
        .await;
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
    let server =
        Wire::answering(
            move |r| {
                if body(r).contains("Action=DescribeTargetGroups&") { group(ARN) } else { attributes() }
            },
        )
        .await;
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

    let server = Wire::answering(move |r| {
        if body(r).contains("Action=DescribeTargetGroups&") { group("arn:of:another") } else { attributes() }
    })
    .await;
    let facts = in_time(elb(&server.url()).await.group(&GroupArn(ARN.into()))).await;
    assert_eq!(facts.expect_err("another group").class, Class::Transport);
}

async fn asked(target_type: TargetType, register: Answer) -> (MayRegister, Vec<String>) {
    let server = Wire::answering(move |r| {
        if body(r).contains("Action=RegisterTargets") { register.clone() } else { result("DeregisterTargets", "") }
    })
    .await;
    let elb = elb(&server.url()).await;
    let answer = in_time(elb.may_register(&GroupArn(ARN.into()), target_type, 9200)).await;
    let bodies = server.requests().iter().map(body).collect();
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
    for shape in [error(400, "Throttling", "x"), error(400, "TargetGroupNotFound", "x"), reply(503, "")] {
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

    let (answer, bodies) = asked(TargetType::Ip, reply(200, "<html>")).await;
    assert!(matches!(answer, MayRegister::Unknown(f) if f.class == Class::OutcomeUnknown));
    assert!(bodies[1].contains("Action=DeregisterTargets") && bodies[1].contains("Id=192.0.2.1"), "{bodies:?}");

    let (_, bodies) = asked(TargetType::Instance, error(403, "AccessDenied", "x")).await;
    assert_eq!(bodies.len(), 1, "nothing to take out where nothing was taken");
}
