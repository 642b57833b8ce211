//! The load balancer's API as the real SDK sees it.

use super::{Api, api, eventually, target};
use backstop::rehearse::elbv2::{
    Action, Checks, Ends, GroupSpec, Instance, NamedUnknown, Outcome, ReadLag, RowSpec, Scope, TargetKind,
    WhileDraining,
};

fn gone() -> (String, Option<String>) {
    ("unused".to_owned(), Some("Target.NotRegistered".to_owned()))
}

fn healthy() -> (String, Option<String>) {
    ("healthy".to_owned(), None)
}

async fn draining(a: &Api) {
    a.register("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, healthy());
    a.deregister("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, ("draining".to_owned(), Some("Target.DeregistrationInProgress".to_owned())));
}

#[tokio::test]
async fn groups_and_attributes_tell_what_waits_are_sized_by() {
    let a = api(60, |s| s.deregistration_delay_s = 120).await;
    let groups = a.client.describe_target_groups().target_group_arns(&a.arn).send().await.unwrap();
    let group = &groups.target_groups()[0];
    assert_eq!(group.target_group_name(), Some("es-clients"));
    assert_eq!(group.protocol().unwrap().as_str(), "HTTP");
    assert_eq!(group.port(), Some(9200));
    assert_eq!(group.target_type().unwrap().as_str(), "instance");
    assert_eq!(group.health_check_interval_seconds(), Some(10));
    assert_eq!(group.healthy_threshold_count(), Some(5));
    assert_eq!(group.matcher().unwrap().http_code(), Some("200"));
    let attributes = a.client.describe_target_group_attributes().target_group_arn(&a.arn).send().await.unwrap();
    let delay = attributes.attributes().iter().find(|x| x.key() == Some("deregistration_delay.timeout_seconds"));
    assert_eq!(delay.unwrap().value(), Some("120"), "full size, whatever the scale");
    let by_name = a.client.describe_target_groups().names("es-clients").send().await.unwrap();
    assert_eq!(by_name.target_groups().len(), 1);
    a.server.stop().await;
}

#[tokio::test]
async fn a_target_registers_drains_for_its_delay_and_is_gone() {
    let a = api(60, |s| s.deregistration_delay_s = 120).await;
    a.register("i-2", Some(9200)).await.unwrap();
    draining(&a).await;
    assert_eq!(a.health(None).await.unwrap().len(), 2, "a draining target is listed");
    eventually(|| a.world.state_of(&a.arn, "i-1", 9200) == gone()).await;
    assert_eq!(a.named("i-1").await, gone());
    assert_eq!(a.health(None).await.unwrap().len(), 1, "a list shows registered targets only");
    a.server.stop().await;
}

#[tokio::test]
async fn draining_is_shown_for_the_whole_delay_by_the_worlds_clock() {
    let a = api(1, |s| s.deregistration_delay_s = 3_600).await;
    draining(&a).await;
    a.world.configure(&a.arn, |s| s.deregistration_delay_s = 0);
    assert_eq!(a.named("i-1").await, gone(), "only the clock held it");
    a.server.stop().await;
}

#[tokio::test]
async fn a_new_target_passes_through_both_initial_reasons() {
    let a = api(1, |s| s.registration_lag_ms = 3_600_000).await;
    a.register("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, ("initial".to_owned(), Some("Elb.RegistrationInProgress".to_owned())));
    a.world.configure(&a.arn, |s| {
        s.registration_lag_ms = 0;
        s.checks = Checks::Real;
    });
    assert_eq!(a.named("i-1").await, ("initial".to_owned(), Some("Elb.InitialHealthChecking".to_owned())));
    a.world.configure(&a.arn, |s| s.checks = Checks::Fail("Target.Timeout"));
    assert_eq!(a.named("i-1").await, ("unhealthy".to_owned(), Some("Target.Timeout".to_owned())));
    a.server.stop().await;
}

#[tokio::test]
async fn a_deregistration_of_another_port_or_of_none_is_a_200_that_does_nothing() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    a.deregister("i-1", Some(80)).await.unwrap();
    a.deregister("i-1", None).await.unwrap();
    a.deregister("i-3", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, healthy());
    a.server.stop().await;
}

#[tokio::test]
async fn a_registration_without_a_port_is_a_second_target_on_the_groups_port() {
    let a = api(60, |s| s.port = 80).await;
    a.register("i-1", Some(9200)).await.unwrap();
    a.register("i-1", None).await.unwrap();
    let ports: Vec<_> = a.health(None).await.unwrap().into_iter().map(|r| r.1).collect();
    assert_eq!(ports, [Some(80), Some(9200)]);
    a.server.stop().await;
}

#[tokio::test]
async fn registering_a_healthy_target_again_changes_nothing() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    a.world.configure(&a.arn, |s| s.registration_lag_ms = 3_600_000);
    a.register("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, healthy());
    a.server.stop().await;
}

#[tokio::test]
async fn registering_while_draining_goes_as_the_group_is_told() {
    for (mode, accepted, then) in [
        (WhileDraining::StraightBack, true, "healthy"),
        (WhileDraining::ThroughInitial, true, "initial"),
        (WhileDraining::Refused, false, "draining"),
        (WhileDraining::IgnoredSilently, true, "draining"),
    ] {
        let a = api(1, |s| s.while_draining = mode).await;
        draining(&a).await;
        a.world.configure(&a.arn, |s| s.registration_lag_ms = 3_600_000);
        let answer = a.register("i-1", Some(9200)).await;
        assert_eq!(answer.is_ok(), accepted, "{mode:?}");
        if let Err(e) = answer {
            assert_eq!((e.code.as_deref(), e.status), (Some("InvalidTarget"), Some(400)));
        }
        assert_eq!(a.named("i-1").await.0, then, "{mode:?}");
        a.server.stop().await;
    }
}

#[tokio::test]
async fn only_running_instances_can_be_registered() {
    let a = api(60, |_| {}).await;
    for state in [Instance::Pending, Instance::Stopped, Instance::Terminated] {
        a.world.declare("i-1", state);
        let e = a.register("i-1", Some(9200)).await.unwrap_err();
        assert_eq!((e.code.as_deref(), e.status), (Some("InvalidTarget"), Some(400)));
        assert_eq!(e.message, "The following targets are not in a running state and cannot be registered: 'i-1'");
    }
    let e = a.register("i-0123456789abcdef0", Some(9200)).await.unwrap_err();
    assert_eq!(e.code.as_deref(), Some("InvalidTarget"));
    assert!(!e.message.contains("running state"), "{}", e.message);
    let e = a.register("not-an-id", Some(9200)).await.unwrap_err();
    assert_eq!(e.code.as_deref(), Some("ValidationError"));
    a.server.stop().await;
}

#[tokio::test]
async fn one_bad_target_refuses_the_whole_call() {
    let a = api(60, |_| {}).await;
    let call = a.client.register_targets().target_group_arn(&a.arn);
    let call = call.targets(target("i-1", Some(9200))).targets(target("i-99", Some(9200)));
    assert!(call.send().await.is_err());
    assert_eq!(a.health(None).await.unwrap(), []);
    a.server.stop().await;
}

#[tokio::test]
async fn a_stopped_instance_and_an_unwired_group_are_unused_and_still_registered() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    a.world.declare("i-1", Instance::Stopped);
    assert_eq!(a.named("i-1").await, ("unused".to_owned(), Some("Target.InvalidState".to_owned())));
    a.world.declare("i-1", Instance::Running);
    a.world.configure(&a.arn, |s| s.in_use = false);
    assert_eq!(a.named("i-1").await, ("unused".to_owned(), Some("Target.NotInUse".to_owned())));
    a.world.configure(&a.arn, |s| {
        s.in_use = true;
        s.health.enabled = false;
    });
    assert_eq!(a.named("i-1").await, ("unavailable".to_owned(), Some("Target.HealthCheckDisabled".to_owned())));
    a.server.stop().await;
}

#[tokio::test]
async fn ip_targets_are_addresses_inside() {
    let a = api(60, |s| s.target_kind = TargetKind::Ip).await;
    a.register("127.0.0.9", Some(9200)).await.unwrap();
    a.register("10.2.3.4", Some(9200)).await.unwrap();
    for bad in ["i-1", "192.0.2.1"] {
        assert_eq!(a.register(bad, Some(9200)).await.unwrap_err().code.as_deref(), Some("ValidationError"), "{bad}");
    }
    a.server.stop().await;
}

#[tokio::test]
async fn a_question_by_name_about_a_stranger_is_answered_in_three_ways() {
    let a = api(60, |_| {}).await;
    assert_eq!(a.named("i-2").await, gone());
    a.world.named_unknown(NamedUnknown::Omitted);
    assert_eq!(a.health(Some(("i-2", 9200))).await.unwrap(), []);
    a.world.named_unknown(NamedUnknown::InvalidTarget);
    assert_eq!(a.health(Some(("i-2", 9200))).await.unwrap_err().code.as_deref(), Some("InvalidTarget"));
    a.server.stop().await;
}

#[tokio::test]
async fn an_unknown_group_and_a_malformed_arn_are_different_errors() {
    let mut a = api(60, |_| {}).await;
    a.arn = GroupSpec::new("another").arn();
    for e in [
        a.health(None).await.unwrap_err(),
        a.register("i-1", Some(9200)).await.unwrap_err(),
        a.deregister("i-1", Some(9200)).await.unwrap_err(),
    ] {
        assert_eq!((e.code.as_deref(), e.status), (Some("TargetGroupNotFound"), Some(400)));
    }
    a.arn = "nonsense".to_owned();
    assert_eq!(a.health(None).await.unwrap_err().code.as_deref(), Some("ValidationError"));
    a.server.stop().await;
}

#[tokio::test]
async fn an_action_that_is_not_there_is_an_invalid_action() {
    let a = api(60, |_| {}).await;
    let e = super::seen(a.client.describe_load_balancers().send().await.unwrap_err());
    assert_eq!((e.code.as_deref(), e.status), (Some("InvalidAction"), Some(400)));
    a.server.stop().await;
}

#[tokio::test]
async fn reads_may_lag_behind_a_write() {
    let a = api(60, |_| {}).await;
    a.world.read_lag(&a.arn, Some(ReadLag::Reads(2)));
    a.register("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.named("i-1").await, gone());
    assert_eq!(a.health(None).await.unwrap(), []);
    assert_eq!(a.named("i-1").await, healthy());
    a.server.stop().await;
}

#[tokio::test]
async fn an_override_shows_any_row_until_it_ends() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    let mut odd = RowSpec::new("i-1", 9200, "levitating", Some("Target.Mystery"));
    odd.port = None;
    a.world.override_rows(&a.arn, "i-1", 9200, vec![odd.clone(), odd], Scope::List, Ends::OnRegister);
    let rows = a.health(None).await.unwrap();
    let expected = ("i-1".to_owned(), None, "levitating".to_owned(), Some("Target.Mystery".to_owned()));
    assert_eq!(rows, [expected.clone(), expected]);
    assert_eq!(a.named("i-1").await, healthy(), "by name it is as it was");
    a.register("i-1", Some(9200)).await.unwrap();
    assert_eq!(a.health(None).await.unwrap().len(), 1);
    let mut shifted = RowSpec::new("i-1", 9200, "healthy", None);
    shifted.shifted = true;
    a.world.override_rows(&a.arn, "i-1", 9200, vec![shifted], Scope::Everywhere, Ends::WhenCleared);
    let answer = a.client.describe_target_health().target_group_arn(&a.arn).send().await.unwrap();
    let state = answer.target_health_descriptions()[0].administrative_override().unwrap().state().unwrap().clone();
    assert_eq!(state.as_str(), "zonal_shift_active");
    assert!(a.world.in_service(std::slice::from_ref(&a.arn)).is_empty());
    a.server.stop().await;
}

#[tokio::test]
async fn outside_hands_are_no_calls() {
    let a = api(60, |s| s.deregistration_delay_s = 0).await;
    a.world.register_behind_back(&a.arn, "i-1", 9200);
    a.world.register_behind_back(&a.arn, "i-2", 9200);
    assert_eq!(a.named("i-1").await, healthy());
    a.world.deregister_behind_back(&a.arn, "i-1", 9200);
    assert_eq!(a.named("i-1").await, gone());
    a.world.empty_group(&a.arn);
    assert_eq!(a.health(None).await.unwrap(), []);
    assert_eq!(a.world.writes(), 0);
    assert_eq!(a.world.count(Action::DescribeTargetHealth), 3);
    a.server.stop().await;
}

#[tokio::test]
async fn calls_are_logged_with_their_targets_and_outcome() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    a.register("i-99", Some(9200)).await.unwrap_err();
    let calls = a.world.calls();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0].action, Action::RegisterTargets);
    assert_eq!(calls[0].group.as_deref(), Some(a.arn.as_str()));
    assert_eq!(calls[0].targets, [("i-1".to_owned(), Some(9200))]);
    assert_eq!(calls[0].outcome, Outcome::Ok);
    assert_eq!(calls[1].outcome, Outcome::Error("InvalidTarget".to_owned()));
    assert_eq!(a.world.writes(), 2);
    a.server.stop().await;
}

#[tokio::test]
async fn the_buckets_of_aws_run_dry_for_writes_long_before_reads() {
    let a = api(1, |_| {}).await;
    a.world.throttle_like_aws(true);
    // Refilled at 4 a second: no machine makes these calls so slowly that none of 200 is refused.
    let mut refused = 0;
    for _ in 0..200 {
        if let Err(e) = a.deregister("i-3", Some(9200)).await {
            assert_eq!((e.code.as_deref(), e.status), (Some("ThrottlingException"), Some(400)));
            refused += 1;
        }
    }
    assert!(refused > 0);
    a.health(None).await.unwrap();
    a.server.stop().await;
}

#[tokio::test]
async fn the_world_outlives_its_api() {
    let a = api(60, |_| {}).await;
    a.register("i-1", Some(9200)).await.unwrap();
    let address = a.server.address();
    a.server.stop().await;
    let again = backstop::rehearse::elbv2::Elbv2::start_with(address, a.world.clone()).await.unwrap();
    let rows = a.client.describe_target_health().target_group_arn(&a.arn).send().await.unwrap();
    assert_eq!(rows.target_health_descriptions().len(), 1);
    again.stop().await;
}
