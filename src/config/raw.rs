//! The document as the file is laid out: every value is of its type, none is held against another yet. The defaults are
//! not here but in the table of keys, which has filled them in.

use super::duration;
use serde::{Deserialize, Deserializer};

/// Milliseconds, written as a duration in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ms(pub(super) u64);

impl<'de> Deserialize<'de> for Ms {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ms, D::Error> {
        let text = String::deserialize(deserializer)?;
        duration::parse(&text).map(Ms).map_err(|refusal| serde::de::Error::custom(refusal.expected))
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    pub(super) fleet: Option<String>,
    pub(super) mode: String,
    pub(super) minimum_healthy: u32,
    pub(super) minimum_during_patch: Option<u32>,
    pub(super) max_unavailable: u32,
    pub(super) asg_health_check: Option<String>,
    pub(super) outside_watch: Option<String>,
    #[serde(default)]
    pub(super) target_group: Vec<Group>,
    pub(super) pager: Pager,
    pub(super) elasticsearch: Elasticsearch,
    pub(super) record: Record,
    pub(super) node: Node,
    pub(super) elbv2: Elbv2,
    pub(super) check: Check,
    pub(super) drain: Drain,
    pub(super) settle: Settle,
    pub(super) deadlines: Deadlines,
    pub(super) limits: Limits,
    pub(super) reconcile: Reconcile,
    pub(super) job: Job,
    pub(super) paths: Paths,
    pub(super) roles: Roles,
    pub(super) log: Log,
    pub(super) metrics: Option<Metrics>,
    pub(super) rehearsal: Option<Rehearsal>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) arn: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) id: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pager {
    pub(super) pagerduty: PagerDuty,
    pub(super) alertmanager: Alertmanager,
    pub(super) webhook: Webhook,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PagerDuty {
    pub(super) routing_key_file: Option<String>,
    pub(super) url: String,
    pub(super) timeout: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Alertmanager {
    #[serde(default)]
    pub(super) urls: Vec<String>,
    pub(super) basic_auth_file: Option<String>,
    pub(super) timeout: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Webhook {
    pub(super) url: Option<String>,
    pub(super) secret_file: Option<String>,
    pub(super) timeout: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Elasticsearch {
    pub(super) url: String,
    #[serde(default)]
    pub(super) record_endpoints: Vec<String>,
    pub(super) ca_file: Option<String>,
    pub(super) api_key_file: Option<String>,
    pub(super) basic_auth_file: Option<String>,
    pub(super) client_cert_file: Option<String>,
    pub(super) node_name: Option<String>,
    pub(super) canary_index: Option<String>,
    pub(super) timeout: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    pub(super) store: String,
    pub(super) index: String,
    pub(super) path: Option<String>,
    pub(super) single_host: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Node {
    pub(super) instance_id: Option<String>,
    pub(super) name: String,
    pub(super) imds_endpoint: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Elbv2 {
    pub(super) endpoint_url: Option<String>,
    pub(super) connect_timeout: Ms,
    pub(super) attempt_timeout: Ms,
    pub(super) operation_timeout: Ms,
    pub(super) register_probe: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub(super) passes: u32,
    pub(super) over: Ms,
    pub(super) every: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    pub(super) quiet: Ms,
    pub(super) margin_application: Ms,
    pub(super) margin_network: Ms,
    pub(super) connections_left: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settle {
    pub(super) bake: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deadlines {
    pub(super) claim: Ms,
    pub(super) deregister: Ms,
    pub(super) patch: Ms,
    pub(super) reboot: Ms,
    pub(super) check: Ms,
    pub(super) register: Ms,
    pub(super) settle: Ms,
    pub(super) settle_network: Ms,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) cycles_per_hour: Option<u32>,
    pub(super) cycles_per_day: Option<u32>,
    pub(super) reboots_per_day: u32,
    pub(super) free_disk_mib: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reconcile {
    pub(super) every: Ms,
    pub(super) self_heal_after: Ms,
    #[serde(default)]
    pub(super) other_nodes: Vec<String>,
    pub(super) patch_overdue_after: Option<Ms>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Job {
    pub(super) runner: String,
    pub(super) output_max_kib: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Paths {
    pub(super) state_dir: String,
    pub(super) runtime_dir: String,
    pub(super) socket: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_field_names, reason = "the names of the keys")]
pub(super) struct Roles {
    pub(super) read_group: String,
    pub(super) act_group: Option<String>,
    pub(super) admin_group: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Log {
    pub(super) format: String,
    pub(super) level: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Metrics {
    pub(super) listen: Option<String>,
    pub(super) socket: Option<String>,
    pub(super) textfile: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rehearsal {
    pub(super) time_scale: Option<u32>,
    pub(super) time_epoch_ms: Option<u64>,
    pub(super) host: Option<String>,
    pub(super) boot_id: Option<String>,
}
