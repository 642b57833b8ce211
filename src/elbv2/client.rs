//! The SDK client: one call each way, every one with a deadline.

use super::classify::{Facts, Operation, fault};
use super::genuine::AnswerElement;
use super::rows::{group_facts, rows};
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::core::settings::{GroupFacts, TargetType};
use crate::core::target::{GroupArn, Named, Poll, Row, Target};
use crate::ports::{LoadBalancer, MayRegister};
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::config::{
    BehaviorVersion, ProvideCredentials, Region, SharedCredentialsProvider, SharedHttpClient,
};
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types::TargetDescription;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use std::error::Error;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// Where and how the API is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElbSettings {
    /// From the target group's ARN.
    pub region: Arc<str>,
    /// Instead of the region's own endpoint: emulators, the rehearsal, a private endpoint.
    pub endpoint_url: Option<Arc<str>>,
    /// Deadlines of one call.
    pub timeouts: ElbTimeouts,
}

/// Deadlines of one call, in milliseconds. The SDK has almost none of its own: without them a server that accepts and
/// never answers stops the caller for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElbTimeouts {
    /// TCP and TLS.
    pub connect_ms: u64,
    /// From the request to the first byte of the answer.
    pub read_ms: u64,
    /// One try, answer included.
    pub attempt_ms: u64,
    /// The whole call, loading credentials included.
    pub operation_ms: u64,
}

impl Default for ElbTimeouts {
    fn default() -> ElbTimeouts {
        ElbTimeouts { connect_ms: 3_000, read_ms: 5_000, attempt_ms: 8_000, operation_ms: 12_000 }
    }
}

/// How long after the SDK's own deadline a call is given up from outside, should the SDK fail to.
const BACKSTOP_MS: u64 = 2_000;

/// How often a non-existing id that a server took is asked to go again.
const CLEAN_UP_TRIES: u32 = 3;

/// The HTTP stack for AWS: hyper 1 and rustls with ring, and no proxy from the environment, which could answer for AWS.
///
/// A plain-text endpoint is given no certificate store at all: loading the system's takes time, and some machines have
/// none.
pub fn http_client(endpoint_url: Option<&str>) -> SharedHttpClient {
    let plain = endpoint_url.is_some_and(|url| url.to_ascii_lowercase().starts_with("http://"));
    let tls = Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
    if !plain {
        return tls.build_https();
    }
    match TlsContext::builder().with_trust_store(TrustStore::empty()).build() {
        Ok(context) => tls.tls_context(context).build_https(),
        Err(_) => tls.build_https(),
    }
}

/// The load balancer.
#[derive(Clone, Debug)]
pub struct Elb {
    client: Client,
    call_ms: u64,
}

impl Elb {
    /// Credentials from the usual chain (environment, profile, web identity, container, instance role). Makes no call.
    pub async fn connect(settings: &ElbSettings) -> Elb {
        let loader = aws_config::defaults(BehaviorVersion::v2026_01_12());
        Elb::load(settings, loader).await
    }

    /// Given credentials: the rehearsal and tests, which must never find a real role.
    pub async fn with_credentials(settings: &ElbSettings, credentials: impl ProvideCredentials + 'static) -> Elb {
        let loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .credentials_provider(SharedCredentialsProvider::new(credentials));
        Elb::load(settings, loader).await
    }

    async fn load(settings: &ElbSettings, loader: aws_config::ConfigLoader) -> Elb {
        let t = settings.timeouts;
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(Duration::from_millis(t.connect_ms))
            .read_timeout(Duration::from_millis(t.read_ms))
            .operation_attempt_timeout(Duration::from_millis(t.attempt_ms))
            .operation_timeout(Duration::from_millis(t.operation_ms))
            .build();
        let mut loader = loader
            .region(Region::new(settings.region.to_string()))
            .http_client(http_client(settings.endpoint_url.as_deref()))
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().build());
        if let Some(url) = &settings.endpoint_url {
            loader = loader.endpoint_url(url.to_string());
        }
        let client = Client::new(&loader.load().await);
        Elb { client, call_ms: t.operation_ms.saturating_add(BACKSTOP_MS) }
    }

    /// Runs one SDK call to its end or to the outer deadline. Callers box it: such a future is some 20 KB.
    async fn call<T, E>(
        &self,
        operation: Operation,
        what: &str,
        call: impl Future<Output = Result<T, SdkError<E>>> + Send,
    ) -> Result<T, Failure>
    where
        E: Error + ProvideErrorMetadata + Send + Sync + 'static,
    {
        match tokio::time::timeout(Duration::from_millis(self.call_ms), call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => {
                let facts = facts_of(&error);
                Err(Failure { fault: fault(operation, what, &facts), code: facts.code, text: facts.text })
            }
            Err(_) => {
                let class = match operation {
                    Operation::Read => Class::Transport,
                    Operation::Register | Operation::Deregister => Class::OutcomeUnknown,
                };
                let message = format!("{what}: no answer within {} ms", self.call_ms);
                Err(Failure::uncoded(Fault::new(class, message)))
            }
        }
    }

    async fn describe(&self, group: &GroupArn, by_name: Option<TargetDescription>) -> Result<Vec<Row>, Failure> {
        let call = self.client.describe_target_health().target_group_arn(group.to_string());
        let call = call.set_targets(by_name.map(|t| vec![t])).customize();
        let call = call.interceptor(AnswerElement("DescribeTargetHealthResponse"));
        let what = format!("DescribeTargetHealth of {}", group.name());
        let answer = self.call(Operation::Read, &what, Box::pin(call.send())).await?;
        rows(answer.target_health_descriptions()).map_err(Failure::uncoded)
    }

    async fn register_once(&self, target: &Target) -> Result<(), Failure> {
        let call = self
            .client
            .register_targets()
            .target_group_arn(target.group.to_string())
            .targets(description(target))
            .customize()
            .interceptor(AnswerElement("RegisterTargetsResponse"))
            .send();
        let what = format!("RegisterTargets {target}");
        self.call(Operation::Register, &what, Box::pin(call)).await.map(|_| ())
    }

    /// Takes exactly the non-existing id out again, whatever the register call answered.
    async fn clean_up(&self, probe: &Target) -> Result<(), Fault> {
        let mut outcome = Ok(());
        for _ in 0..CLEAN_UP_TRIES {
            outcome = self.deregister(probe).await;
            if outcome.is_ok() {
                break;
            }
        }
        if let Err(fault) = &outcome {
            tracing::error!(target_id = %probe, %fault, "a non-existing target may be left in the group: deregister it by hand");
        }
        outcome
    }
}

impl LoadBalancer for Elb {
    async fn poll(&self, target: &Target, by_name: bool) -> Result<Poll, Fault> {
        let list = async { self.describe(&target.group, None).await.map_err(|f| f.fault) };
        if !by_name {
            return Ok(Poll { list: list.await?, named: None });
        }
        let (list, named) = tokio::join!(list, self.named(target));
        Ok(Poll { list: list?, named: Some(named?) })
    }

    async fn named(&self, target: &Target) -> Result<Named, Fault> {
        match self.describe(&target.group, Some(description(target))).await {
            Ok(rows) => Ok(Named::Rows(rows)),
            Err(failure) if failure.is_invalid_target() => Ok(Named::InvalidTarget),
            Err(failure) => Err(failure.fault),
        }
    }

    async fn register(&self, target: &Target) -> Result<(), Fault> {
        self.register_once(target).await.map_err(|f| f.fault)
    }

    async fn deregister(&self, target: &Target) -> Result<(), Fault> {
        let call = self
            .client
            .deregister_targets()
            .target_group_arn(target.group.to_string())
            .targets(description(target))
            .customize()
            .interceptor(AnswerElement("DeregisterTargetsResponse"))
            .send();
        let outcome = self.call(Operation::Deregister, &format!("DeregisterTargets {target}"), Box::pin(call)).await;
        outcome.map(|_| ()).map_err(|f| f.fault)
    }

    async fn group(&self, group: &GroupArn) -> Result<GroupFacts, Fault> {
        let what = format!("DescribeTargetGroups {}", group.name());
        let call = self.client.describe_target_groups().target_group_arns(group.to_string()).customize();
        let call = call.interceptor(AnswerElement("DescribeTargetGroupsResponse"));
        let groups = self.call(Operation::Read, &what, Box::pin(call.send())).await.map_err(|f| f.fault)?;
        let found = groups.target_groups().iter().find(|g| g.target_group_arn() == Some(&*group.0));
        let Some(found) = found else {
            return Err(Fault::transport(format!("{what}: the answer does not contain that group")));
        };
        let what = format!("DescribeTargetGroupAttributes {}", group.name());
        let call = self.client.describe_target_group_attributes().target_group_arn(group.to_string()).customize();
        let call = call.interceptor(AnswerElement("DescribeTargetGroupAttributesResponse"));
        let attributes = self.call(Operation::Read, &what, Box::pin(call.send())).await.map_err(|f| f.fault)?;
        group_facts(found, attributes.attributes())
    }

    async fn may_register(&self, group: &GroupArn, target_type: TargetType, port: u16) -> MayRegister {
        let id = match target_type {
            TargetType::Instance => PROBE_INSTANCE,
            TargetType::Ip => PROBE_IP,
            TargetType::Other => {
                let message = format!("{}: its targets are neither instances nor addresses", group.name());
                return MayRegister::Unknown(Fault::new(Class::Refused, message));
            }
        };
        let probe = Target { group: group.clone(), id: id.into(), port };
        match self.register_once(&probe).await {
            Ok(()) => {
                // Logged where it fails: the answer to the question does not change.
                let _ = self.clean_up(&probe).await;
                MayRegister::TookIt
            }
            Err(failure) if failure.refuses_only(id) => MayRegister::Yes,
            Err(failure) if failure.is("AccessDenied") => MayRegister::No(failure.fault),
            Err(failure) => {
                if failure.fault.class == Class::OutcomeUnknown {
                    let _ = self.clean_up(&probe).await;
                }
                MayRegister::Unknown(failure.fault)
            }
        }
    }
}

/// Well-formed, and no instance: ids are random, and this one is all zeros.
const PROBE_INSTANCE: &str = "i-00000000000000000";
/// Well-formed, and no address of a network: reserved for documentation (RFC 5737), refused by `ELBv2` for its range.
const PROBE_IP: &str = "192.0.2.1";

/// A fault with the error code and text that the port's callers do not see.
#[derive(Debug)]
struct Failure {
    fault: Fault,
    code: Option<String>,
    text: Option<String>,
}

impl Failure {
    fn uncoded(fault: Fault) -> Failure {
        Failure { fault, code: None, text: None }
    }

    fn is(&self, code: &str) -> bool {
        self.code.as_deref().is_some_and(|c| c.strip_suffix("Exception").unwrap_or(c) == code)
    }

    fn is_invalid_target(&self) -> bool {
        self.is("InvalidTarget")
    }

    /// The right is there: the server got as far as looking at the target, and refused that.
    fn refuses_only(&self, id: &str) -> bool {
        let names_it = self.text.as_deref().is_some_and(|t| t.contains(id));
        self.is_invalid_target() || (self.is("ValidationError") && names_it)
    }
}

fn description(target: &Target) -> TargetDescription {
    TargetDescription::builder().id(&*target.id).port(i32::from(target.port)).build()
}

fn facts_of<E>(error: &SdkError<E>) -> Facts
where
    E: Error + ProvideErrorMetadata + Send + Sync + 'static,
{
    let raw = error.raw_response();
    let retry_after = raw.and_then(|r| r.headers().get("retry-after")).and_then(|v| v.trim().parse::<u64>().ok());
    Facts {
        status: raw.map(|r| r.status().as_u16()),
        code: error.code().map(str::to_owned),
        text: error.message().map(str::to_owned),
        retry_after_ms: retry_after.map(|s| s.saturating_mul(1_000)),
        causes: Causes::of(error),
    }
}
