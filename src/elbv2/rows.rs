//! What `DescribeTargetHealth` and its neighbours say, read strictly into the core's words.

use crate::core::error::Fault;
use crate::core::settings::{BalancerKind, GroupFacts, TargetType};
use crate::core::target::{Reason, Row, TargetState};
use aws_sdk_elasticloadbalancingv2::types::{
    ProtocolEnum, TargetDescription, TargetGroup, TargetGroupAttribute, TargetHealthDescription, TargetTypeEnum,
};

/// What AWS documents for a group that does not say otherwise (emulators leave attributes out).
const DELAY_DEFAULT_SECONDS: u64 = 300;
const INTERVAL_DEFAULT_SECONDS: u64 = 30;
const THRESHOLD_DEFAULT: u32 = 5;

/// All rows of an answer. A row that names no target makes the whole answer unusable: it cannot be told whose it is.
pub(super) fn rows(descriptions: &[TargetHealthDescription]) -> Result<Vec<Row>, Fault> {
    descriptions.iter().map(row).collect()
}

fn row(description: &TargetHealthDescription) -> Result<Row, Fault> {
    let target = description.target();
    let Some(id) = target.and_then(|t| t.id()).filter(|id| !id.is_empty()) else {
        return Err(Fault::transport("DescribeTargetHealth: a row without a target id"));
    };
    let health = description.target_health();
    let shift = description.administrative_override().and_then(|o| o.state());
    Ok(Row {
        id: id.into(),
        port: target.and_then(TargetDescription::port).and_then(|p| u16::try_from(p).ok()),
        state: health.and_then(|h| h.state()).map_or(TargetState::Unknown, |s| state(s.as_str())),
        reason: health.and_then(|h| h.reason()).map(|r| reason(r.as_str())),
        shifted: shift.is_some_and(|s| s.as_str() == "zonal_shift_active"),
    })
}

/// By the wire's text, so that a value the SDK does not know yet is treated like one that we do not know.
fn state(text: &str) -> TargetState {
    TargetState::ALL
        .into_iter()
        .find(|s| *s != TargetState::Unknown && s.label() == text)
        .unwrap_or(TargetState::Unknown)
}

const REASONS: [Reason; 12] = [
    Reason::RegistrationInProgress,
    Reason::InitialHealthChecking,
    Reason::ResponseCodeMismatch,
    Reason::Timeout,
    Reason::FailedHealthChecks,
    Reason::NotRegistered,
    Reason::NotInUse,
    Reason::DeregistrationInProgress,
    Reason::InvalidState,
    Reason::IpUnusable,
    Reason::HealthCheckDisabled,
    Reason::InternalError,
];

fn reason(text: &str) -> Reason {
    REASONS.into_iter().find(|r| r.label() == text).unwrap_or(Reason::Unknown)
}

/// The group's own settings, from both calls.
pub(super) fn group_facts(group: &TargetGroup, attributes: &[TargetGroupAttribute]) -> Result<GroupFacts, Fault> {
    let balancer = match group.protocol().map(ProtocolEnum::as_str) {
        Some("HTTP" | "HTTPS") => BalancerKind::Application,
        // What we do not know gets the longer waits.
        _ => BalancerKind::Network,
    };
    let target_type = match group.target_type().map(TargetTypeEnum::as_str) {
        // `instance` is what AWS documents for a group that does not say.
        Some("instance") | None => TargetType::Instance,
        Some("ip") => TargetType::Ip,
        Some(_) => TargetType::Other,
    };
    let delay_seconds = match attribute(attributes, "deregistration_delay.timeout_seconds") {
        None => DELAY_DEFAULT_SECONDS,
        Some(text) => text
            .trim()
            .parse::<u64>()
            .map_err(|_| Fault::transport("DescribeTargetGroupAttributes: the deregistration delay is not a number"))?,
    };
    let interval_seconds =
        group.health_check_interval_seconds().and_then(|s| u64::try_from(s).ok()).unwrap_or(INTERVAL_DEFAULT_SECONDS);
    Ok(GroupFacts {
        target_type,
        balancer,
        port: group.port().and_then(|p| u16::try_from(p).ok()),
        deregistration_delay_ms: delay_seconds.saturating_mul(1_000),
        interval_ms: interval_seconds.saturating_mul(1_000),
        healthy_threshold: group
            .healthy_threshold_count()
            .and_then(|n| u32::try_from(n).ok())
            .unwrap_or(THRESHOLD_DEFAULT),
    })
}

fn attribute<'a>(attributes: &'a [TargetGroupAttribute], key: &str) -> Option<&'a str> {
    attributes.iter().find(|a| a.key() == Some(key)).and_then(|a| a.value())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error::Class;
    use aws_sdk_elasticloadbalancingv2::types::{
        AdministrativeOverride, TargetHealth, TargetHealthReasonEnum, TargetHealthStateEnum,
    };

    fn described(state: &str, reason: Option<&str>, port: Option<i32>) -> TargetHealthDescription {
        let health = TargetHealth::builder()
            .state(TargetHealthStateEnum::from(state))
            .set_reason(reason.map(TargetHealthReasonEnum::from))
            .build();
        TargetHealthDescription::builder()
            .target(TargetDescription::builder().id("i-1").set_port(port).build())
            .target_health(health)
            .build()
    }

    #[test]
    fn every_state_and_reason_of_the_api_is_read_and_new_ones_are_unknown() {
        for s in TargetState::ALL {
            assert_eq!(row(&described(s.label(), None, Some(9200))).expect("a row").state, s);
        }
        assert_eq!(row(&described("hibernating", None, None)).expect("a row").state, TargetState::Unknown);
        for r in REASONS {
            assert_eq!(row(&described("unused", Some(r.label()), None)).expect("a row").reason, Some(r));
        }
        let new = row(&described("unused", Some("Target.Abducted"), None)).expect("a row");
        assert_eq!(new.reason, Some(Reason::Unknown), "an unknown reason is not an absent one");
        assert_eq!(row(&described("healthy", None, None)).expect("a row").reason, None);
    }

    #[test]
    fn a_port_that_is_missing_or_impossible_matches_no_target() {
        for port in [None, Some(-1), Some(70_000)] {
            assert_eq!(row(&described("healthy", None, port)).expect("a row").port, None);
        }
    }

    #[test]
    fn a_row_without_health_is_unknown_and_one_without_a_target_spoils_the_answer() {
        let bare = TargetHealthDescription::builder().target(TargetDescription::builder().id("i-1").build()).build();
        assert_eq!(row(&bare).expect("a row").state, TargetState::Unknown);
        let nobody = TargetHealthDescription::builder().build();
        assert_eq!(rows(&[bare, nobody]).expect_err("unusable").class, Class::Transport);
    }

    #[test]
    fn only_an_active_zonal_shift_counts_as_shifted() {
        for (text, want) in [
            ("zonal_shift_active", true),
            ("no_override", false),
            ("zonal_shift_delegated_to_dns", false),
            ("unknown", false),
        ] {
            let d = TargetHealthDescription::builder()
                .target(TargetDescription::builder().id("i-1").build())
                .administrative_override(AdministrativeOverride::builder().state(text.into()).build())
                .build();
            assert_eq!(row(&d).expect("a row").shifted, want, "{text}");
        }
    }

    #[test]
    fn group_facts_come_from_the_group_and_default_to_what_aws_documents() {
        let group = TargetGroup::builder()
            .protocol("HTTP".into())
            .target_type(TargetTypeEnum::Ip)
            .port(9200)
            .health_check_interval_seconds(10)
            .healthy_threshold_count(3)
            .build();
        let delay = TargetGroupAttribute::builder().key("deregistration_delay.timeout_seconds").value("120").build();
        let facts = group_facts(&group, std::slice::from_ref(&delay)).expect("facts");
        assert_eq!(
            facts,
            GroupFacts {
                target_type: TargetType::Ip,
                balancer: BalancerKind::Application,
                port: Some(9200),
                deregistration_delay_ms: 120_000,
                interval_ms: 10_000,
                healthy_threshold: 3,
            }
        );
        let bare = group_facts(&TargetGroup::builder().protocol("TCP".into()).build(), &[]).expect("facts");
        assert_eq!((bare.balancer, bare.deregistration_delay_ms), (BalancerKind::Network, 300_000));
        let junk = TargetGroupAttribute::builder().key("deregistration_delay.timeout_seconds").value("soon").build();
        assert!(group_facts(&group, &[junk]).is_err(), "a wait is never guessed from junk");
    }
}
