//! Which instance this is: from the config, or from the instance metadata service (`IMDSv2`).
//!
//! The answer does not change while the instance lives, so callers keep it: on the way back the metadata service may be
//! unreachable (a patch may have firewalled it), and is not asked again.

use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::elbv2::http_client;
use aws_config::imds;
use aws_config::imds::client::error::ImdsError;
use aws_config::provider_config::ProviderConfig;
use aws_sdk_elasticloadbalancingv2::config::BehaviorVersion;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

/// How the metadata service is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetadataSettings {
    /// Instead of the link-local address (or `AWS_EC2_METADATA_SERVICE_ENDPOINT`): tests, emulators.
    pub endpoint_url: Option<Arc<str>>,
    /// Connecting, and waiting for the answer's first byte, in milliseconds.
    pub io_timeout_ms: u64,
    /// One question, with the token that it needs, in milliseconds.
    pub total_timeout_ms: u64,
}

impl Default for MetadataSettings {
    fn default() -> MetadataSettings {
        MetadataSettings { endpoint_url: None, io_timeout_ms: 1_000, total_timeout_ms: 5_000 }
    }
}

/// Who this instance is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceIdentity {
    /// EC2 instance id, or what the config states in its place.
    pub instance_id: Arc<str>,
    /// Its private address, the target's id in groups of type `ip`.
    pub local_ipv4: Option<Ipv4Addr>,
}

/// The instance metadata service.
#[derive(Clone, Debug)]
pub struct Metadata {
    client: imds::Client,
    total: Duration,
}

impl Metadata {
    /// Makes no call. Errors: an endpoint URL that is none.
    pub fn new(settings: &MetadataSettings) -> Result<Metadata, Fault> {
        let io = Duration::from_millis(settings.io_timeout_ms);
        let total = Duration::from_millis(settings.total_timeout_ms);
        // A client without this configuration has no HTTP stack in our feature set, and panics at its first call. The
        // metadata service is plain HTTP, hence no certificate store.
        let config = ProviderConfig::without_region()
            .with_behavior_version(Some(BehaviorVersion::v2026_01_12()))
            .with_http_client(http_client(Some("http://169.254.169.254")));
        let mut builder = imds::Client::builder()
            .configure(&config)
            .max_attempts(2)
            .connect_timeout(io)
            .read_timeout(io)
            .operation_attempt_timeout(total)
            .operation_timeout(total);
        if let Some(url) = &settings.endpoint_url {
            builder = builder.endpoint(&**url).map_err(|e| {
                Fault::new(Class::Refused, format!("metadata endpoint {url}: {}", Causes::of(&*e).innermost()))
            })?;
        }
        Ok(Metadata { client: builder.build(), total: total.saturating_add(Duration::from_secs(1)) })
    }

    /// Who this instance is. `stated` (from the config) is believed without a question.
    pub async fn identity(&self, stated: Option<&InstanceIdentity>) -> Result<InstanceIdentity, Fault> {
        if let Some(identity) = stated {
            return Ok(identity.clone());
        }
        let id = self.required("instance-id").await?;
        if !looks_like_instance_id(&id) {
            return Err(Fault::transport("instance metadata: the answer is no instance id"));
        }
        let address = self.optional("local-ipv4").await?;
        let local_ipv4 = match address {
            None => None,
            Some(text) => match text.parse() {
                Ok(address) => Some(address),
                Err(_) => return Err(Fault::transport("instance metadata: local-ipv4 is no address")),
            },
        };
        Ok(InstanceIdentity { instance_id: id.into(), local_ipv4 })
    }

    /// Target lifecycle state in an Auto Scaling group (`InService`, `Terminated`, `Standby`, ...); `None` = the instance
    /// is in none.
    pub async fn lifecycle(&self) -> Result<Option<Arc<str>>, Fault> {
        let text = self.optional("autoscaling/target-lifecycle-state").await?;
        match text {
            None => Ok(None),
            Some(state) if looks_like_word(&state) => Ok(Some(state.into())),
            Some(_) => Err(Fault::transport("instance metadata: the answer is no lifecycle state")),
        }
    }

    /// Notice that this instance is about to be ended: by its Auto Scaling group, or as a spot instance.
    pub async fn termination_notice(&self) -> Result<bool, Fault> {
        if self.lifecycle().await?.is_some_and(|s| s.contains("Terminat")) {
            return Ok(true);
        }
        let action = self.optional("spot/instance-action").await?;
        Ok(action.is_some_and(|a| a.contains("\"terminate\"") || a.contains("\"stop\"")))
    }

    async fn required(&self, path: &str) -> Result<String, Fault> {
        let answer = self.optional(path).await?;
        answer.ok_or_else(|| Fault::new(Class::NotReady, format!("instance metadata has no {path} (HTTP 404)")))
    }

    /// `None` = the service answered 404: there is no such thing here.
    async fn optional(&self, path: &str) -> Result<Option<String>, Fault> {
        let question = self.client.get(format!("/latest/meta-data/{path}"));
        match tokio::time::timeout(self.total, question).await {
            Ok(Ok(answer)) => Ok(Some(answer.as_ref().trim().to_owned())),
            Ok(Err(error)) if status_of(&error) == Some(404) => Ok(None),
            Ok(Err(error)) => Err(fault(path, &error)),
            Err(_) => Err(Fault::transport(format!("instance metadata {path}: no answer"))),
        }
    }
}

fn status_of(error: &ImdsError) -> Option<u16> {
    if let ImdsError::ErrorResponse(e) = error { Some(e.response().status().as_u16()) } else { None }
}

fn fault(path: &str, error: &ImdsError) -> Fault {
    // The Display of an error response holds the whole response.
    match status_of(error) {
        Some(status @ (401 | 403)) => {
            Fault::new(Class::Auth, format!("instance metadata {path}: HTTP {status}: switched off or not allowed?"))
        }
        Some(429) => Fault::new(Class::Throttled, format!("instance metadata {path}: HTTP 429")),
        Some(status @ 500..) => Fault::new(Class::NotReady, format!("instance metadata {path}: HTTP {status}")),
        Some(status) => Fault::transport(format!("instance metadata {path}: HTTP {status}")),
        None => {
            let causes = Causes::of(error);
            Fault::transport(format!(
                "instance metadata {path}: {} (not an EC2 instance, firewalled, or a hop limit of 1 in a container?)",
                causes.innermost()
            ))
        }
    }
}

fn looks_like_instance_id(text: &str) -> bool {
    text.strip_prefix("i-")
        .is_some_and(|hex| (8..=32).contains(&hex.len()) && hex.chars().all(|c| c.is_ascii_hexdigit()))
}

fn looks_like_word(text: &str) -> bool {
    (1..=40).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || c == ':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_somebody_else_is_no_instance_id() {
        for good in ["i-0123456789abcdef0", "i-1234abcd"] {
            assert!(looks_like_instance_id(good), "{good}");
        }
        for bad in ["", "i-", "i-xyz", "<html>", "localhost", "i-0123456789abcdef0 x"] {
            assert!(!looks_like_instance_id(bad), "{bad}");
        }
    }
}
