//! Target groups and targets over time: who is registering, healthy, failing, draining, gone.

use super::fault::{ApiError, Fault};
use crate::rehearse::pace::{self, Origin};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use tokio::time::Instant;

/// What the targets of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// EC2 instance ids, which must be declared to the world.
    Instance,
    /// IP addresses (loopback or private).
    Ip,
}

/// The health check of a group, as its attributes say it (full size; only the waits are compressed).
#[derive(Clone, Debug)]
pub struct HealthSpec {
    /// False: targets are `unavailable`, `Target.HealthCheckDisabled`.
    pub enabled: bool,
    /// `HTTP` or `TCP`.
    pub protocol: String,
    /// `None`: the target's own port (`traffic-port`).
    pub port: Option<u16>,
    /// For HTTP.
    pub path: String,
    /// `HttpCode`: single codes and ranges, `200,202-204`.
    pub matcher: String,
    /// Simulated seconds between checks.
    pub interval_s: u32,
    /// Simulated seconds for one check; at least one real second is given.
    pub timeout_s: u32,
    /// Passes in a row that bring an unhealthy target back. A new target needs one.
    pub healthy_threshold: u32,
    /// Failures in a row that make a target unhealthy.
    pub unhealthy_threshold: u32,
}

impl Default for HealthSpec {
    fn default() -> Self {
        HealthSpec {
            enabled: true,
            protocol: "HTTP".to_owned(),
            port: None,
            path: "/_cluster/health?local=true".to_owned(),
            matcher: "200".to_owned(),
            interval_s: 10,
            timeout_s: 5,
            healthy_threshold: 5,
            unhealthy_threshold: 2,
        }
    }
}

/// Who decides whether a target is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checks {
    /// The data plane asks the target.
    Real,
    /// Every check passes; no data plane is needed.
    Pass,
    /// Every check fails with this reason's text, for example `Target.FailedHealthChecks`.
    Fail(&'static str),
}

/// What a registration does while the target drains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileDraining {
    /// Straight back to what it was (instance targets).
    StraightBack,
    /// Back through `initial`.
    ThroughInitial,
    /// `InvalidTarget`: wait for the end of the delay (IP targets, one reading of the documentation).
    Refused,
    /// 200, and it drains on (the other reading).
    IgnoredSilently,
}

/// A target group to create.
#[derive(Clone, Debug)]
pub struct GroupSpec {
    /// Its name.
    pub name: String,
    /// What its targets are.
    pub target_kind: TargetKind,
    /// `HTTP` (an application load balancer) or `TCP` (a network load balancer).
    pub protocol: String,
    /// The group's default port.
    pub port: u16,
    /// Its checks.
    pub health: HealthSpec,
    /// `deregistration_delay.timeout_seconds`, simulated.
    pub deregistration_delay_s: u32,
    /// Further attributes, reported as they are.
    pub attributes: BTreeMap<String, String>,
    /// Who decides on health.
    pub checks: Checks,
    /// Registering while draining.
    pub while_draining: WhileDraining,
    /// Simulated time in `Elb.RegistrationInProgress`.
    pub registration_lag_ms: u64,
    /// Simulated time in `Elb.InitialHealthChecking` before the first check.
    pub first_check_lag_ms: u64,
    /// Simulated time in which new requests still reach a deregistered target.
    pub deregistration_traffic_lag_ms: u64,
    /// False: every target is `unused`, `Target.NotInUse`.
    pub in_use: bool,
}

impl GroupSpec {
    /// An HTTP group of instances on port 9200 with the defaults of an application load balancer.
    pub fn new(name: &str) -> GroupSpec {
        GroupSpec {
            name: name.to_owned(),
            target_kind: TargetKind::Instance,
            protocol: "HTTP".to_owned(),
            port: 9200,
            health: HealthSpec::default(),
            deregistration_delay_s: 300,
            attributes: BTreeMap::new(),
            checks: Checks::Real,
            while_draining: WhileDraining::StraightBack,
            registration_lag_ms: 1_000,
            first_check_lag_ms: 0,
            deregistration_traffic_lag_ms: 0,
            in_use: true,
        }
    }

    /// The ARN that a group of this name has in this world.
    pub fn arn(&self) -> String {
        // Any stable 16 hex digits will do: FNV-1a of the name.
        let hash =
            self.name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/{}/{hash:016x}", self.name)
    }
}

/// State of a declared instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instance {
    /// May be registered.
    Running,
    /// Booting after a stop: may not be registered yet.
    Pending,
    /// Registered rows become `unused`, `Target.InvalidState`.
    Stopped,
    /// The same, for good.
    Terminated,
}

/// What a question by name says about a target that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedUnknown {
    /// A row `unused`, `Target.NotRegistered`, as AWS does.
    NotRegistered,
    /// No row.
    Omitted,
    /// 400 `InvalidTarget`.
    InvalidTarget,
}

/// (id, port)
pub type Key = (String, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Registering,
    Checking,
    Healthy,
    Unhealthy(&'static str),
}

/// A registered (or draining) target.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    pub(super) since: Instant,
    /// Deregistered at that moment.
    pub(super) draining_since: Option<Instant>,
    /// Was it registered with a port of its own? Then a deregistration without one does not mean it.
    pub(super) port_given: bool,
    pub(super) passes: u32,
    pub(super) failures: u32,
    pub(super) next_check: Instant,
    pub(super) check_runs: bool,
    /// Tells a late check result of an earlier registration apart.
    pub(super) registration: u64,
}

/// A row of `DescribeTargetHealth`, as it goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowSpec {
    /// Target id.
    pub id: String,
    /// `None`: the element is left out.
    pub port: Option<u16>,
    /// `State`, any text.
    pub state: String,
    /// `Reason`, any text.
    pub reason: Option<String>,
    /// `Description`
    pub description: Option<String>,
    /// An `AdministrativeOverride` with `zonal_shift_active`.
    pub shifted: bool,
}

impl RowSpec {
    /// A row with its usual description.
    pub fn new(id: &str, port: u16, state: &str, reason: Option<&str>) -> RowSpec {
        RowSpec {
            id: id.to_owned(),
            port: Some(port),
            state: state.to_owned(),
            reason: reason.map(ToOwned::to_owned),
            description: reason.map(|r| describe(r).to_owned()),
            shifted: false,
        }
    }
}

fn describe(reason: &str) -> &'static str {
    match reason {
        "Elb.RegistrationInProgress" => "Target registration is in progress",
        "Elb.InitialHealthChecking" => "Initial health checks in progress",
        "Target.ResponseCodeMismatch" => "Health checks failed with these codes: [503]",
        "Target.Timeout" => "Request timed out",
        "Target.FailedHealthChecks" => "Health checks failed",
        "Target.NotRegistered" => "Target is not registered to the target group",
        "Target.NotInUse" => "Target group is not configured to receive traffic from the load balancer",
        "Target.DeregistrationInProgress" => "Target deregistration is in progress",
        "Target.InvalidState" => "Target is in the stopped state",
        "Target.IpUnusable" => "The IP address is in use by a load balancer",
        "Target.HealthCheckDisabled" => "Health checks are not enabled for this target group",
        _ => "Load balancer internal error",
    }
}

/// Which questions an override answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole list and questions by name.
    Everywhere,
    /// Only the whole list.
    List,
    /// Only questions by name.
    ByName,
}

/// What ends an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Only the handle.
    WhenCleared,
    /// An accepted registration of the target, too.
    OnRegister,
    /// An accepted deregistration of the target, too.
    OnDeregister,
}

#[derive(Clone, Debug)]
pub(super) struct Override {
    pub(super) rows: Vec<RowSpec>,
    pub(super) scope: Scope,
    pub(super) ends: Ends,
}

/// How long reads lag behind a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLag {
    /// So many reads of the group.
    Reads(u32),
    /// Simulated milliseconds.
    For(u64),
}

#[derive(Clone, Debug)]
pub(super) struct Stale {
    pub(super) targets: BTreeMap<Key, Entry>,
    pub(super) reads_left: Option<u32>,
    pub(super) until: Option<Instant>,
}

/// A group with its targets.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) spec: GroupSpec,
    pub(super) targets: BTreeMap<Key, Entry>,
    /// Targets whose delay is over and that requests still reach, and until when.
    pub(super) lingering: BTreeMap<Key, Instant>,
    pub(super) overrides: BTreeMap<Key, Override>,
    pub(super) read_lag: Option<ReadLag>,
    pub(super) stale: Option<Stale>,
    pub(super) round_robin: usize,
}

/// A token bucket: size and refill per simulated second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bucket {
    pub(super) size: u32,
    pub(super) per_second: u32,
    tokens_milli: u64,
    filled_at_ms: u64,
}

impl Bucket {
    pub(super) fn new(size: u32, per_second: u32, at_ms: u64) -> Bucket {
        Bucket { size, per_second, tokens_milli: u64::from(size).saturating_mul(1000), filled_at_ms: at_ms }
    }

    pub(super) fn take(&mut self, at_ms: u64) -> bool {
        let gained = at_ms.saturating_sub(self.filled_at_ms).saturating_mul(u64::from(self.per_second));
        self.filled_at_ms = at_ms;
        let full = u64::from(self.size).saturating_mul(1000);
        self.tokens_milli = self.tokens_milli.saturating_add(gained).min(full);
        match self.tokens_milli.checked_sub(1000) {
            Some(rest) => {
                self.tokens_milli = rest;
                true
            }
            None => false,
        }
    }
}

/// Everything that the load balancer knows.
#[derive(Debug)]
pub(super) struct World {
    pub(super) origin: Origin,
    pub(super) groups: BTreeMap<String, Group>,
    pub(super) instances: BTreeMap<String, Instance>,
    pub(super) addresses: BTreeMap<Key, SocketAddr>,
    pub(super) faults: Vec<(u64, Fault)>,
    pub(super) calls: Vec<super::Call>,
    pub(super) named_unknown: NamedUnknown,
    pub(super) buckets: Option<(Bucket, Bucket)>,
    pub(super) counter: u64,
    pub(super) target_limit: usize,
}

impl World {
    pub(super) fn new(scale: u32) -> World {
        World {
            origin: Origin::new(scale),
            groups: BTreeMap::new(),
            instances: BTreeMap::new(),
            addresses: BTreeMap::new(),
            faults: Vec::new(),
            calls: Vec::new(),
            named_unknown: NamedUnknown::NotRegistered,
            buckets: None,
            counter: 0,
            target_limit: 1_000,
        }
    }

    pub(super) fn next(&mut self) -> u64 {
        self.counter = self.counter.saturating_add(1);
        self.counter
    }

    /// The group with everything that time alone has done to it.
    pub(super) fn group(&mut self, arn: &str) -> Result<&mut Group, ApiError> {
        if !arn.starts_with("arn:aws") || !arn.contains(":targetgroup/") {
            return Err(ApiError::validation(format!("'{arn}' is not a valid target group ARN")));
        }
        let origin = self.origin;
        let group = self.groups.get_mut(arn).ok_or_else(ApiError::target_group_not_found)?;
        group.pass_time(&origin);
        Ok(group)
    }

    /// Where a target listens: as declared, or its id where that is an IP address.
    pub(super) fn address_of(&self, key: &Key) -> Option<SocketAddr> {
        let by_id = || key.0.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, key.1));
        self.addresses.get(key).copied().or_else(by_id)
    }

    pub(super) fn may_be_registered(&self, kind: TargetKind, id: &str) -> Result<(), ApiError> {
        match (kind, id.parse::<IpAddr>()) {
            (TargetKind::Ip, Err(_)) => {
                Err(ApiError::validation(format!("The IP address '{id}' is not a valid IPv4 or IPv6 address")))
            }
            (TargetKind::Ip, Ok(IpAddr::V4(ip))) if !(ip.is_loopback() || ip.is_private()) => {
                Err(ApiError::validation(format!("The IP address '{id}' is not within a CIDR block of the VPC")))
            }
            (TargetKind::Ip, Ok(_)) => Ok(()),
            (TargetKind::Instance, _) if !id.starts_with("i-") => {
                Err(ApiError::validation(format!("Instance ID '{id}' is not valid")))
            }
            (TargetKind::Instance, _) => match self.instances.get(id) {
                Some(Instance::Running) => Ok(()),
                Some(Instance::Pending | Instance::Stopped | Instance::Terminated) => Err(ApiError::not_running(id)),
                None => Err(ApiError::invalid_target(format!("The following targets do not exist: '{id}'"))),
            },
        }
    }
}

impl Group {
    pub(super) fn new(spec: GroupSpec) -> Group {
        Group {
            spec,
            targets: BTreeMap::new(),
            lingering: BTreeMap::new(),
            overrides: BTreeMap::new(),
            read_lag: None,
            stale: None,
            round_robin: 0,
        }
    }

    fn pass_time(&mut self, origin: &Origin) {
        let now = pace::now();
        let delay = origin.real(u64::from(self.spec.deregistration_delay_s).saturating_mul(1000));
        self.targets.retain(|_, e| e.draining_since.is_none_or(|s| pace::after(s, delay) > now));
        self.lingering.retain(|_, until| *until > now);
        let registration = origin.real(self.spec.registration_lag_ms);
        let lag = origin.real(self.spec.first_check_lag_ms);
        for entry in self.targets.values_mut() {
            if entry.phase == Phase::Registering && pace::after(entry.since, registration) <= now {
                entry.phase = Phase::Checking;
                entry.since = pace::after(entry.since, registration);
                entry.next_check = pace::after(entry.since, lag);
            }
            if entry.phase == Phase::Checking && entry.next_check <= now {
                match self.spec.checks {
                    Checks::Real => {}
                    Checks::Pass => entry.phase = Phase::Healthy,
                    Checks::Fail(reason) => entry.phase = Phase::Unhealthy(reason),
                }
            }
        }
        if self.stale.as_ref().is_some_and(|s| s.reads_left == Some(0) || s.until.is_some_and(|u| u <= now)) {
            self.stale = None;
        }
    }

    /// Keeps what reads are to see for a while, before a write changes it.
    fn remember(&mut self, origin: &Origin) {
        let Some(lag) = self.read_lag else { return };
        let targets = self.stale.take().map_or_else(|| self.targets.clone(), |s| s.targets);
        let (reads_left, until) = match lag {
            ReadLag::Reads(n) => (Some(n), None),
            ReadLag::For(ms) => (None, Some(pace::after(pace::now(), origin.real(ms)))),
        };
        self.stale = Some(Stale { targets, reads_left, until });
    }

    /// The targets as a read sees them now.
    pub(super) fn seen(&mut self) -> BTreeMap<Key, Entry> {
        match &mut self.stale {
            Some(stale) => {
                stale.reads_left = stale.reads_left.map(|n| n.saturating_sub(1));
                stale.targets.clone()
            }
            None => self.targets.clone(),
        }
    }

    /// Registers; the caller has checked the id.
    pub(super) fn register(
        &mut self,
        origin: &Origin,
        number: u64,
        id: &str,
        port: Option<u16>,
    ) -> Result<(), ApiError> {
        let key = (id.to_owned(), port.unwrap_or(self.spec.port));
        self.remember(origin);
        let while_draining = self.spec.while_draining;
        if self.overrides.get(&key).is_some_and(|o| o.ends == Ends::OnRegister) {
            self.overrides.remove(&key);
        }
        if let Some(entry) = self.targets.get_mut(&key) {
            match (entry.draining_since, while_draining) {
                (None, _) | (Some(_), WhileDraining::IgnoredSilently) => return Ok(()),
                (Some(_), WhileDraining::StraightBack) => {
                    entry.draining_since = None;
                    entry.port_given = port.is_some();
                    self.lingering.remove(&key);
                    return Ok(());
                }
                (Some(_), WhileDraining::Refused) => {
                    return Err(ApiError::invalid_target(format!(
                        "The following targets are being deregistered and cannot be registered: '{id}'"
                    )));
                }
                (Some(_), WhileDraining::ThroughInitial) => {}
            }
        }
        let now = pace::now();
        let entry = Entry {
            phase: Phase::Registering,
            since: now,
            draining_since: None,
            port_given: port.is_some(),
            passes: 0,
            failures: 0,
            next_check: now,
            check_runs: false,
            registration: number,
        };
        self.lingering.remove(&key);
        self.targets.insert(key, entry);
        Ok(())
    }

    /// Deregisters. What it does not find it leaves alone, without a word.
    pub(super) fn deregister(&mut self, origin: &Origin, id: &str, port: Option<u16>) {
        let key = (id.to_owned(), port.unwrap_or(self.spec.port));
        self.remember(origin);
        let lag = origin.real(self.spec.deregistration_traffic_lag_ms);
        if self.overrides.get(&key).is_some_and(|o| o.ends == Ends::OnDeregister) {
            self.overrides.remove(&key);
        }
        let Some(entry) = self.targets.get_mut(&key) else { return };
        if entry.draining_since.is_some() || (entry.port_given && port.is_none()) {
            return;
        }
        let now = pace::now();
        entry.draining_since = Some(now);
        if !lag.is_zero() && entry.phase == Phase::Healthy {
            self.lingering.insert(key, pace::after(now, lag));
        }
    }

    /// The row that the state machine alone would show.
    pub(super) fn row(&self, key: &Key, entry: Option<&Entry>, instance: Option<Instance>) -> RowSpec {
        let stopped = matches!(instance, Some(Instance::Stopped | Instance::Terminated));
        let (state, reason) = match entry {
            None => ("unused", Some("Target.NotRegistered")),
            Some(e) if e.draining_since.is_some() => ("draining", Some("Target.DeregistrationInProgress")),
            Some(_) if stopped => ("unused", Some("Target.InvalidState")),
            Some(_) if !self.spec.in_use => ("unused", Some("Target.NotInUse")),
            Some(e) => match e.phase {
                Phase::Registering => ("initial", Some("Elb.RegistrationInProgress")),
                _ if !self.spec.health.enabled => ("unavailable", Some("Target.HealthCheckDisabled")),
                Phase::Checking => ("initial", Some("Elb.InitialHealthChecking")),
                Phase::Healthy => ("healthy", None),
                Phase::Unhealthy(reason) => ("unhealthy", Some(reason)),
            },
        };
        RowSpec::new(&key.0, key.1, state, reason)
    }
}
