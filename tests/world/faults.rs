//! Every fault of the API, as the real SDK sees it.

use super::{Seen, api, sdk_with};
use backstop::rehearse::elbv2::{Action, ApiError, Fault, Trouble};
use std::time::Duration;

const READ: Action = Action::DescribeTargetHealth;

/// (fault, kind, code, status)
fn errors() -> Vec<(Trouble, &'static str, Option<&'static str>, Option<u16>)> {
    let e = Trouble::Error;
    let service = "service";
    vec![
        (e(ApiError::throttling()), service, Some("Throttling"), Some(400)),
        (e(ApiError::throttling_exception()), service, Some("ThrottlingException"), Some(400)),
        (e(ApiError::request_limit_exceeded()), service, Some("RequestLimitExceeded"), Some(503)),
        (e(ApiError::access_denied(READ)), service, Some("AccessDenied"), Some(403)),
        (e(ApiError::expired_token()), service, Some("ExpiredToken"), Some(403)),
        (e(ApiError::signature_does_not_match()), service, Some("SignatureDoesNotMatch"), Some(403)),
        (e(ApiError::target_group_not_found()), service, Some("TargetGroupNotFound"), Some(400)),
        (e(ApiError::too_many_targets()), service, Some("TooManyTargets"), Some(400)),
        (e(ApiError::invalid_target("anything <at> all")), service, Some("InvalidTarget"), Some(400)),
        (e(ApiError::validation("bad")), service, Some("ValidationError"), Some(400)),
        (e(ApiError::health_unavailable()), service, Some("HealthUnavailable"), Some(500)),
        (Trouble::Html(500), service, None, Some(500)),
        (Trouble::Html(503), service, None, Some(503)),
        (Trouble::Junk, service, None, Some(200)),
        (Trouble::EmptyBody, service, None, Some(200)),
        (Trouble::TruncatedBody, "response", None, Some(200)),
        (Trouble::Reset, "dispatch", None, None),
        (Trouble::AppliedButLost, "dispatch", None, None),
    ]
}

#[tokio::test]
async fn every_error_arrives_at_the_sdk_as_what_it_is() {
    let a = api(60, |_| {}).await;
    a.world.register_behind_back(&a.arn, "i-1", 9200);
    for (trouble, kind, code, status) in errors() {
        a.world.inject(Fault::always(trouble.clone()).on(READ).in_group(&a.arn).times(1));
        let Seen { kind: k, code: c, status: s, .. } = a.health(None).await.expect_err(&trouble.name());
        assert_eq!((k, c.as_deref()), (kind, code), "{trouble:?}");
        if trouble != Trouble::TruncatedBody {
            assert_eq!(s, status, "{trouble:?}");
        }
        assert_eq!(a.health(None).await.unwrap().len(), 1, "after {trouble:?}");
    }
    a.server.stop().await;
}

#[tokio::test]
async fn what_never_ends_is_ended_by_the_clients_patience_alone() {
    let a = api(60, |_| {}).await;
    let client = sdk_with(&a.server.endpoint(), Duration::from_millis(700));
    for trouble in [Trouble::Hang, Trouble::StallMidBody] {
        a.world.inject(Fault::always(trouble.clone()).times(1));
        let call = client.describe_target_health().target_group_arn(&a.arn).send().await;
        assert_eq!(super::seen(call.expect_err("no answer")).kind, "timeout", "{trouble:?}");
    }
    a.server.stop().await;
}

#[tokio::test]
async fn lists_may_be_empty_or_partial_and_are_still_200() {
    let a = api(60, |_| {}).await;
    for id in ["i-1", "i-2", "i-3"] {
        a.world.register_behind_back(&a.arn, id, 9200);
    }
    a.world.inject(Fault::always(Trouble::EmptyList).times(1));
    a.world.inject(Fault::always(Trouble::PartialList(1)).times(1));
    let counts = [a.health(None).await, a.health(None).await, a.health(None).await].map(|r| r.unwrap().len());
    assert_eq!(counts, [0, 1, 3]);
    a.server.stop().await;
}

#[tokio::test]
async fn a_write_is_applied_or_not_as_the_fault_says() {
    for (trouble, answered, applied) in [
        (Trouble::AppliedButLost, false, true),
        (Trouble::TruncatedBody, false, true),
        (Trouble::Ignored, true, false),
        (Trouble::Reset, false, false),
        // The SDK does not read the body of an answer that has no fields: a yes of a write proves nothing.
        (Trouble::Junk, true, false),
        (Trouble::EmptyBody, true, false),
        (Trouble::Error(ApiError::throttling()), false, false),
        (Trouble::Late(1), true, true),
    ] {
        let a = api(60, |_| {}).await;
        a.world.inject(Fault::always(trouble.clone()).on(Action::RegisterTargets).times(1));
        assert_eq!(a.register("i-1", Some(9200)).await.is_ok(), answered, "{trouble:?}");
        assert_eq!(a.named("i-1").await.0 == "healthy", applied, "{trouble:?}");
        a.server.stop().await;
    }
}

#[tokio::test]
async fn a_fault_strikes_only_where_and_as_often_as_it_is_told() {
    let a = api(60, |_| {}).await;
    let fault = Fault::always(Trouble::Error(ApiError::throttling()));
    a.world.inject(fault.clone().on(Action::RegisterTargets).after(1).times(2));
    assert!(a.health(None).await.is_ok(), "another action");
    let mut answers = Vec::new();
    for _ in 0..4 {
        answers.push(a.register("i-1", Some(9200)).await.is_ok());
    }
    assert_eq!(answers, [true, false, false, true]);
    let number = a.world.inject(fault.clone());
    assert!(a.health(None).await.is_err());
    a.world.clear(number);
    assert!(a.health(None).await.is_ok());
    a.world.inject(fault.in_group("arn:aws:another"));
    assert!(a.health(None).await.is_ok(), "another group");
    a.server.stop().await;
}
