//! The settings after validation: what the rest of the program may rely on.

use crate::core::settings::CheckSettings;
use crate::core::target::GroupArn;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// A config that was accepted as a whole. Only [`load`](super::load) and [`parse`](super::parse) make one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Config {
    /// Name of the fleet.
    pub fleet: FleetName,
    /// Act, or only look and page.
    pub mode: Mode,
    /// No cycle starts with fewer nodes in service, this one among them.
    pub minimum_healthy: u32,
    /// No node leaves unless so many others stay; at least 1.
    pub minimum_during_patch: u32,
    /// Slots of the fleet.
    pub max_unavailable: u32,
    /// `asg_health_check = "EC2"` is stated.
    pub asg_health_check_ec2: bool,
    /// Who hears the agent's heartbeat.
    pub outside_watch: OutsideWatch,
    /// At least one, no group twice, all of one region.
    pub target_groups: Vec<TargetGroup>,
    /// Region of all groups, from their ARNs.
    pub region: Region,
    /// Calls to the load balancer's API.
    pub elbv2: Elbv2,
    /// Who this node is.
    pub node: Node,
    /// This host's own Elasticsearch node.
    pub elasticsearch: Elasticsearch,
    /// Where the fleet record is.
    pub record: Record,
    /// When the node is fit.
    pub check: Check,
    /// Waiting for traffic to end.
    pub drain: Drain,
    /// Healthy for so long before the slot is freed.
    pub settle_bake_ms: u64,
    /// Budgets of the stages.
    pub deadlines: Deadlines,
    /// How often.
    pub limits: Limits,
    /// Comparing what should be with what is.
    pub reconcile: Reconcile,
    /// Who is told; at least one pager.
    pub pager: Pager,
    /// What jobs are.
    pub job_runner: JobRunner,
    /// KiB of a job's output that are kept.
    pub job_output_max_kib: u32,
    /// Files.
    pub paths: Paths,
    /// Who may do what.
    pub roles: Roles,
    /// The agent's own log.
    pub log: Log,
    /// Where metrics are told.
    pub metrics: Metrics,
    /// Set only when `record.single_host` and every endpoint is on this host.
    pub rehearsal: Rehearsal,
}

impl Config {
    /// Are jobs units of systemd? `systemd_runs`: it is this machine's service manager.
    pub fn jobs_are_units(&self, systemd_runs: bool) -> bool {
        let r = &self.rehearsal;
        let rehearsed = r.time_scale > 1 || r.host.is_some() || r.boot_id.is_some();
        match self.job_runner {
            JobRunner::Systemd => true,
            JobRunner::Process => false,
            JobRunner::Auto => systemd_runs && !rehearsed,
        }
    }

    /// What the node check needs, with `node_name` expected by the caller: who must answer is learnt in the claim.
    pub fn check_settings(&self) -> CheckSettings {
        let text = |path: &PathBuf| Arc::from(path.to_string_lossy());
        CheckSettings {
            url: self.elasticsearch.url.clone(),
            timeout_ms: self.elasticsearch.timeout_ms,
            ca_file: self.elasticsearch.ca_file.as_ref().map(text),
            api_key_file: self.elasticsearch.api_key_file.as_ref().map(text),
            basic_auth_file: self.elasticsearch.basic_auth_file.as_ref().map(text),
            client_cert_file: self.elasticsearch.client_cert_file.as_ref().map(text),
            canary_index: self.elasticsearch.canary_index.clone(),
            node_name: self.elasticsearch.node_name.clone(),
            expect: None,
            passes: self.check.passes,
            over_ms: self.check.over_ms,
            every_ms: self.check.every_ms,
        }
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            pub(super) fn new(text: &str) -> $name {
                $name(text.into())
            }

            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name! {
    /// Name of a fleet: a-z, 0-9 and hyphens, at most 63.
    FleetName
}
name! {
    /// An AWS region, such as `eu-west-1`.
    Region
}

/// A URL that may hold a token: neither `Debug` nor a log line shows more than where it leads.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(Arc<str>);

impl SecretUrl {
    pub(super) fn new(text: &str) -> SecretUrl {
        SecretUrl(text.into())
    }

    /// The whole URL, for the call itself.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Scheme, host and port.
    pub fn origin(&self) -> String {
        origin(&self.0)
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretUrl({}/…)", self.origin())
    }
}

pub(super) fn origin(url: &str) -> String {
    reqwest::Url::parse(url).map_or_else(|_| "?".to_owned(), |url| url.origin().ascii_serialization())
}

/// What the agent may do at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Patch, put back, page.
    Act,
    /// Look and page; never write to AWS.
    Observe,
}

/// What jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRunner {
    /// Units where there is systemd and this is no rehearsal.
    Auto,
    /// Units of systemd.
    Systemd,
    /// Processes.
    Process,
}

/// Who hears the agent's heartbeat and pages when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutsideWatch {
    /// The file does not say; warned about until it does.
    Unset,
    /// Nobody, on purpose.
    None,
    /// This URL.
    Url(SecretUrl),
}

/// One configured target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    /// The group.
    pub arn: GroupArn,
    /// Port of the own target; none = the group's.
    pub port: Option<u16>,
    /// Id of the own target; none = found out.
    pub id: Option<Arc<str>>,
}

/// Calls to the load balancer's API: connect ≤ attempt ≤ operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elbv2 {
    /// Another endpoint than the region's; without a slash at the end.
    pub endpoint_url: Option<Arc<str>>,
    /// Until the connection stands.
    pub connect_timeout_ms: u64,
    /// One try.
    pub attempt_timeout_ms: u64,
    /// One call with all its tries.
    pub operation_timeout_ms: u64,
    /// The guard `register-allowed` is on.
    pub register_probe: bool,
}

/// Who this node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// None = asked from instance metadata.
    pub instance_id: Option<Arc<str>>,
    /// For people.
    pub name: Arc<str>,
    /// Another endpoint than the instance's own; without a slash at the end.
    pub imds_endpoint: Option<Arc<str>>,
}

/// This host's own Elasticsearch node and its cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elasticsearch {
    /// The own node; without a slash at the end.
    pub url: Arc<str>,
    /// Nodes that are asked for the fleet record before the own one; without a slash at the end, none twice.
    pub record_endpoints: Vec<Arc<str>>,
    /// Roots to trust.
    pub ca_file: Option<PathBuf>,
    /// API key; never together with the next.
    pub api_key_file: Option<PathBuf>,
    /// `user:password`
    pub basic_auth_file: Option<PathBuf>,
    /// PEM file with a client certificate and its private key.
    pub client_cert_file: Option<PathBuf>,
    /// The name that the own node must answer with.
    pub node_name: Arc<str>,
    /// Index of the canary search.
    pub canary_index: Option<Arc<str>>,
    /// One call.
    pub timeout_ms: u64,
}

/// Where the fleet record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The store.
    pub store: Store,
    /// The whole fleet runs on this host.
    pub single_host: bool,
}

/// A store of the fleet record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// In the cluster itself.
    Elasticsearch {
        /// The index.
        index: Arc<str>,
    },
    /// In a directory of this host.
    File {
        /// The directory.
        dir: PathBuf,
    },
}

/// When the node is fit to go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Passes in a row.
    pub passes: u32,
    /// Over at least this time.
    pub over_ms: u64,
    /// Between two tries.
    pub every_ms: u64,
}

/// Waiting for traffic to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drain {
    /// No connections from outside for so long.
    pub quiet_ms: u64,
    /// On top of the group's delay, application load balancer.
    pub margin_application_ms: u64,
    /// On top of the group's delay, network load balancer.
    pub margin_network_ms: u64,
    /// Gone, but connections are left at the deadline.
    pub connections_left: ConnectionsLeft,
}

/// What connections that outlast the drain lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionsLeft {
    /// Go on, logging what is cut.
    GoOn,
    /// Fail, and go back.
    Fail,
}

/// Budgets of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the deadline of the stage of its name")]
pub struct Deadlines {
    pub claim_ms: u64,
    pub deregister_ms: u64,
    pub patch_ms: u64,
    pub reboot_ms: u64,
    pub check_ms: u64,
    pub register_ms: u64,
    pub settle_ms: u64,
    /// `settle` behind a network load balancer.
    pub settle_network_ms: u64,
}

/// How often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Cycles of the fleet in an hour; none = 2 for each member.
    pub cycles_per_hour: Option<u32>,
    /// Cycles of the fleet in 24 hours; none = 4 for each member.
    pub cycles_per_day: Option<u32>,
    /// Reboots of this node in 24 hours.
    pub reboots_per_day: u32,
    /// MiB that must be free before a cycle starts.
    pub free_disk_mib: u32,
}

impl Limits {
    /// Cycles of the fleet in an hour, for this many members.
    pub fn cycles_per_hour(&self, members: u32) -> u32 {
        self.cycles_per_hour.unwrap_or_else(|| members.saturating_mul(2))
    }

    /// Cycles of the fleet in 24 hours, for this many members.
    pub fn cycles_per_day(&self, members: u32) -> u32 {
        self.cycles_per_day.unwrap_or_else(|| members.saturating_mul(4))
    }
}

/// Comparing what should be with what is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reconcile {
    /// Between two looks at whole groups.
    pub every_ms: u64,
    /// A fit node that is not registered registers itself after this time.
    pub self_heal_after_ms: u64,
    /// Client nodes of the cluster that are no business of this fleet: names, a `*` at the end stands for any rest.
    pub other_nodes: Vec<Arc<str>>,
    /// No good cycle on a node for this long is told; `None` = nobody is told.
    pub patch_overdue_after_ms: Option<u64>,
}

/// Who is told: at least one of them, and all of them side by side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pager {
    /// Events API v2.
    pub pagerduty: Option<PagerDuty>,
    /// API v2.
    pub alertmanager: Option<Alertmanager>,
    /// JSON to a URL.
    pub webhook: Option<Webhook>,
}

/// PagerDuty's Events API v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagerDuty {
    /// The integration key.
    pub routing_key_file: PathBuf,
    /// Where to.
    pub url: SecretUrl,
    /// One delivery.
    pub timeout_ms: u64,
}

/// The Alertmanagers of one cluster; each gets every alert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alertmanager {
    /// At least one, none twice; without a slash at the end.
    pub urls: Vec<Arc<str>>,
    /// `user:password`
    pub basic_auth_file: Option<PathBuf>,
    /// One delivery to one of them.
    pub timeout_ms: u64,
}

/// Pages as JSON to a URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where to.
    pub url: SecretUrl,
    /// Signs every page.
    pub secret_file: Option<PathBuf>,
    /// One delivery.
    pub timeout_ms: u64,
}

/// Files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    /// Survives a reboot.
    pub state_dir: PathBuf,
    /// Need not.
    pub runtime_dir: PathBuf,
    /// The control socket; short enough for a Unix socket.
    pub socket: PathBuf,
}

/// Unix groups and what they may do; root may do everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// Look.
    pub read_group: Arc<str>,
    /// Run, wait, rejoin, hold, pause.
    pub act_group: Option<Arc<str>>,
    /// Clear latches, retire nodes, override guards.
    pub admin_group: Option<Arc<str>>,
}

/// The agent's own log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// JSON or text.
    pub format: LogFormat,
    /// The least that is written.
    pub level: LogLevel,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One object a line.
    Json,
    /// For people.
    Text,
}

/// The least that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the usual levels")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// As in the file.
    pub const fn label(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// Where metrics are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// On this port of loopback.
    pub listen: Option<SocketAddr>,
    /// On this socket; short enough for one.
    pub socket: Option<PathBuf>,
    /// In this file.
    pub textfile: Option<PathBuf>,
}

/// What a rehearsal sets; nothing on a real fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rehearsal {
    /// So many times faster than real time; 1 on a real fleet.
    pub time_scale: u32,
    /// Common moment from which time runs faster.
    pub time_epoch_ms: Option<u64>,
    /// Stand-in for the machine; without a slash at the end.
    pub host: Option<Arc<str>>,
    /// Stand-in for the kernel's boot id.
    pub boot_id: Option<Arc<str>>,
}
