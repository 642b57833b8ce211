//! The rehearsal's world, part by part, through real sockets: what the agent's tests and the scenarios stand on.
#![expect(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a helper of a test fails it; clippy lets only test functions themselves do so"
)]

mod api;
mod balancer;
mod faults;
mod nodes;
mod others;
#[path = "../support/mod.rs"]
mod support;

use aws_sdk_elasticloadbalancingv2 as elb;
use backstop::rehearse::elbv2::{Checks, Control, Elbv2, GroupSpec, Instance};
use backstop::rehearse::pace;
use elb::error::{ProvideErrorMetadata, SdkError};
use elb::types::TargetDescription;
use std::net::SocketAddr;
use std::time::Duration;
pub(crate) use support::BOUND;

pub(crate) fn loopback() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The real SDK against an endpoint: no retries, static credentials, a short patience.
pub(crate) fn sdk(endpoint: &str) -> elb::Client {
    sdk_with(endpoint, Duration::from_secs(20))
}

pub(crate) fn sdk_with(endpoint: &str, patience: Duration) -> elb::Client {
    let timeouts = elb::config::timeout::TimeoutConfig::builder().operation_timeout(patience).build();
    let config = elb::Config::builder()
        .behavior_version(elb::config::BehaviorVersion::v2026_01_12())
        .http_client(aws_smithy_http_client::Builder::new().build_http())
        .credentials_provider(elb::config::Credentials::new("id", "secret", None, None, "test"))
        .region(elb::config::Region::new("eu-west-1"))
        .retry_config(elb::config::retry::RetryConfig::disabled())
        .timeout_config(timeouts)
        .endpoint_url(endpoint)
        .build();
    elb::Client::from_conf(config)
}

pub(crate) fn target(id: &str, port: Option<i32>) -> TargetDescription {
    TargetDescription::builder().id(id).set_port(port).build()
}

/// A load balancer with one group, whose targets are well without anybody asking them.
pub(crate) struct Api {
    pub(crate) server: Elbv2,
    pub(crate) world: Control,
    pub(crate) client: elb::Client,
    pub(crate) arn: String,
}

pub(crate) async fn api(scale: u32, change: impl FnOnce(&mut GroupSpec)) -> Api {
    let server = Elbv2::start(loopback(), scale).await.unwrap();
    let world = server.control();
    let mut spec = GroupSpec::new("es-clients");
    spec.checks = Checks::Pass;
    spec.registration_lag_ms = 0;
    change(&mut spec);
    let arn = world.add_group(spec);
    for id in ["i-1", "i-2", "i-3"] {
        world.declare(id, Instance::Running);
    }
    let client = sdk(&server.endpoint());
    Api { server, world, client, arn }
}

impl Api {
    pub(crate) async fn register(&self, id: &str, port: Option<i32>) -> Result<(), Seen> {
        let call = self.client.register_targets().target_group_arn(&self.arn).targets(target(id, port));
        call.send().await.map(|_| ()).map_err(seen)
    }

    pub(crate) async fn deregister(&self, id: &str, port: Option<i32>) -> Result<(), Seen> {
        let call = self.client.deregister_targets().target_group_arn(&self.arn).targets(target(id, port));
        call.send().await.map(|_| ()).map_err(seen)
    }

    /// Rows as (id, port, state, reason); the whole list, or by name.
    pub(crate) async fn health(&self, name: Option<(&str, i32)>) -> Result<Vec<Row>, Seen> {
        let by_name = name.map(|(id, port)| vec![target(id, Some(port))]);
        let call = self.client.describe_target_health().target_group_arn(&self.arn).set_targets(by_name);
        let rows = call.send().await.map_err(seen)?;
        Ok(rows.target_health_descriptions().iter().map(row).collect())
    }

    pub(crate) async fn named(&self, id: &str) -> (String, Option<String>) {
        let rows = self.health(Some((id, 9200))).await.unwrap();
        assert_eq!(rows.len(), 1, "{rows:?}");
        (rows[0].2.clone(), rows[0].3.clone())
    }
}

pub(crate) type Row = (String, Option<i32>, String, Option<String>);

fn row(d: &elb::types::TargetHealthDescription) -> Row {
    let (t, h) = (d.target().unwrap(), d.target_health().unwrap());
    (
        t.id().unwrap().to_owned(),
        t.port(),
        h.state().unwrap().as_str().to_owned(),
        h.reason().map(|r| r.as_str().to_owned()),
    )
}

/// What the SDK made of an error.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: &'static str,
    pub(crate) code: Option<String>,
    pub(crate) status: Option<u16>,
    pub(crate) message: String,
}

#[expect(clippy::needless_pass_by_value, reason = "for `map_err`")]
pub(crate) fn seen<E: ProvideErrorMetadata + std::fmt::Debug>(
    error: SdkError<E, elb::config::http::HttpResponse>,
) -> Seen {
    let kind = match &error {
        SdkError::ConstructionFailure(_) => "construction",
        SdkError::TimeoutError(_) => "timeout",
        SdkError::DispatchFailure(_) => "dispatch",
        SdkError::ResponseError(_) => "response",
        SdkError::ServiceError(_) => "service",
        _ => "another",
    };
    let status = error.raw_response().map(|r| r.status().as_u16());
    Seen {
        kind,
        status,
        code: error.code().map(ToOwned::to_owned),
        message: error.message().unwrap_or_default().to_owned(),
    }
}

pub(crate) async fn eventually(condition: impl FnMut() -> bool) {
    assert!(pace::until(BOUND, condition).await, "did not happen in time");
}
