//! The handle on the load balancer's world: what tests and scenarios declare, change and read; what the data plane asks.

use super::fault::{Action, ApiError, Fault, Trouble};
use super::state::{
    Bucket, Checks, Ends, Group, GroupSpec, Instance, Key, NamedUnknown, Override, Phase, ReadLag, RowSpec, Scope,
    World,
};
use crate::rehearse::pace::{self, Origin};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// One call to the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Simulated milliseconds since the world's start.
    pub at_ms: u64,
    /// The action.
    pub action: Action,
    /// The group's ARN, where one was named.
    pub group: Option<String>,
    /// The targets that were named.
    pub targets: Vec<(String, Option<u16>)>,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The right answer.
    Ok,
    /// An error with this code.
    Error(String),
    /// An injected trouble that is no plain error, by its name.
    Trouble(String),
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pick {
    /// The chosen target.
    pub target: Key,
    /// Where it listens; `None`: nobody declared it, which is like a host that is gone.
    pub address: Option<SocketAddr>,
    /// Chosen although no target is healthy.
    pub fail_open: bool,
}

/// A health check that is due.
#[derive(Clone, Debug)]
pub struct CheckJob {
    /// The group.
    pub group: String,
    /// The target.
    pub target: Key,
    /// Where to ask.
    pub address: Option<SocketAddr>,
    /// HTTP with this path, or a TCP connect.
    pub http_path: Option<String>,
    /// Codes that pass.
    pub matcher: String,
    /// Real time it may take.
    pub timeout: Duration,
    pub(super) registration: u64,
}

/// What a health check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheckResult {
    /// Well.
    Pass,
    /// Another status code.
    CodeMismatch,
    /// No answer in time.
    Timeout,
    /// Refused, reset, no HTTP.
    Failed,
}

/// A health check gets at least this much real time, however compressed the world is: the machine is not.
const LEAST_CHECK_TIME: Duration = Duration::from_secs(1);

/// The handle. Clones share the world.
#[derive(Clone, Debug)]
pub struct Control(Arc<Mutex<World>>);

impl Control {
    /// An empty world in which simulated time runs `scale` times as fast.
    pub fn new(scale: u32) -> Control {
        Control(Arc::new(Mutex::new(World::new(scale))))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, World> {
        pace::lock(&self.0)
    }

    /// The world's clock.
    pub fn origin(&self) -> Origin {
        self.lock().origin
    }

    /// Creates (or replaces) a group and returns its ARN.
    pub fn add_group(&self, spec: GroupSpec) -> String {
        let arn = spec.arn();
        self.lock().groups.insert(arn.clone(), Group::new(spec));
        arn
    }

    /// Removes a group: calls that name it are answered `TargetGroupNotFound`.
    pub fn remove_group(&self, arn: &str) {
        self.lock().groups.remove(arn);
    }

    /// Changes a group's settings and knobs at any moment. False: no such group.
    pub fn configure(&self, arn: &str, change: impl FnOnce(&mut GroupSpec)) -> bool {
        // `group` first lets the time until now pass under the old settings.
        self.lock().group(arn).map(|g| change(&mut g.spec)).is_ok()
    }

    /// Declares an instance, or its new state.
    pub fn declare(&self, id: &str, state: Instance) {
        self.lock().instances.insert(id.to_owned(), state);
    }

    /// Says where a target listens; unnecessary where its id is an IP address.
    pub fn locate(&self, id: &str, port: u16, address: SocketAddr) {
        self.lock().addresses.insert((id.to_owned(), port), address);
    }

    /// A running instance with one port: [`Self::declare`] and [`Self::locate`].
    pub fn declare_running(&self, id: &str, port: u16, address: SocketAddr) {
        self.declare(id, Instance::Running);
        self.locate(id, port, address);
    }

    /// Registers without a call to the API: somebody else did. False: no such group.
    pub fn register_behind_back(&self, arn: &str, id: &str, port: u16) -> bool {
        let mut world = self.lock();
        let (origin, number) = (world.origin, world.next());
        world.group(arn).is_ok_and(|g| g.register(&origin, number, id, Some(port)).is_ok())
    }

    /// Deregisters without a call to the API: somebody else did. False: no such group.
    pub fn deregister_behind_back(&self, arn: &str, id: &str, port: u16) -> bool {
        let mut world = self.lock();
        let origin = world.origin;
        world.group(arn).map(|g| g.deregister(&origin, id, Some(port))).is_ok()
    }

    /// Takes every target out at once, without any drain. False: no such group.
    pub fn empty_group(&self, arn: &str) -> bool {
        self.lock().group(arn).map(|g| g.targets.clear()).is_ok()
    }

    /// Shows these rows instead of the target's own (none: it is left out; two: twice).
    pub fn override_rows(&self, arn: &str, id: &str, port: u16, rows: Vec<RowSpec>, scope: Scope, ends: Ends) -> bool {
        let mut world = self.lock();
        let Ok(group) = world.group(arn) else { return false };
        group.overrides.insert((id.to_owned(), port), Override { rows, scope, ends });
        true
    }

    /// Ends an override.
    pub fn clear_override(&self, arn: &str, id: &str, port: u16) {
        if let Ok(group) = self.lock().group(arn) {
            group.overrides.remove(&(id.to_owned(), port));
        }
    }

    /// Reads of this group lag behind each later write; `None`: they do not.
    pub fn read_lag(&self, arn: &str, lag: Option<ReadLag>) {
        if let Ok(group) = self.lock().group(arn) {
            group.read_lag = lag;
            group.stale = None;
        }
    }

    /// What a question by name says about a target that is not registered.
    pub fn named_unknown(&self, answer: NamedUnknown) {
        self.lock().named_unknown = answer;
    }

    /// Registrations beyond so many targets in a group are `TooManyTargets`.
    pub fn target_limit(&self, targets: usize) {
        self.lock().target_limit = targets;
    }

    /// Throttles like AWS: reads 40 and 10 a (simulated) second, writes 20 and 4.
    pub fn throttle_like_aws(&self, on: bool) {
        let mut world = self.lock();
        let at_ms = world.origin.simulated_ms();
        world.buckets = on.then(|| (Bucket::new(40, 10, at_ms), Bucket::new(20, 4, at_ms)));
    }

    /// Adds a fault; the oldest that strikes a call decides. The number clears it.
    pub fn inject(&self, fault: Fault) -> u64 {
        let mut world = self.lock();
        let number = world.next();
        world.faults.push((number, fault));
        number
    }

    /// Ends one fault.
    pub fn clear(&self, number: u64) {
        self.lock().faults.retain(|(n, _)| *n != number);
    }

    /// Ends all faults.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// All calls so far, in order.
    pub fn calls(&self) -> Vec<Call> {
        self.lock().calls.clone()
    }

    /// How many calls of an action so far.
    pub fn count(&self, action: Action) -> usize {
        self.lock().calls.iter().filter(|c| c.action == action).count()
    }

    /// How many writes so far.
    pub fn writes(&self) -> usize {
        self.lock().calls.iter().filter(|c| c.action.is_write()).count()
    }

    /// Forgets the calls so far.
    pub fn clear_calls(&self) {
        self.lock().calls.clear();
    }

    /// The rows of a group as the whole list shows them now, without faults and read lag.
    pub fn rows(&self, arn: &str) -> Vec<RowSpec> {
        let mut world = self.lock();
        let stale = world.group(arn).ok().and_then(|g| g.stale.take());
        let rows = world.list(arn).unwrap_or_default();
        if let Ok(group) = world.group(arn) {
            group.stale = stale;
        }
        rows
    }

    /// State and reason of one target, as [`Self::rows`]; `unused`/`Target.NotRegistered` where there is no row.
    pub fn state_of(&self, arn: &str, id: &str, port: u16) -> (String, Option<String>) {
        let row = self.rows(arn).into_iter().find(|r| r.id == id && r.port == Some(port));
        row.map_or_else(|| ("unused".to_owned(), Some("Target.NotRegistered".to_owned())), |r| (r.state, r.reason))
    }

    /// Distinct ids that are healthy in every one of these groups.
    pub fn in_service(&self, arns: &[String]) -> BTreeSet<String> {
        let mut sets = arns.iter().map(|arn| {
            let rows = self.rows(arn).into_iter();
            rows.filter(|r| r.state == "healthy" && !r.shifted).map(|r| r.id).collect::<BTreeSet<_>>()
        });
        let first = sets.next().unwrap_or_default();
        sets.fold(first, |a, b| a.intersection(&b).cloned().collect())
    }

    /// Where the next request to a group goes: round robin over the healthy targets (and those that traffic still
    /// reaches); if none is healthy, over all that are registered; `None`: there is no target.
    pub fn pick(&self, arn: &str) -> Option<Pick> {
        let mut world = self.lock();
        let group = world.group(arn).ok()?;
        let registered = group.targets.iter().filter(|(_, e)| e.draining_since.is_none());
        let mut healthy: Vec<Key> =
            registered.clone().filter(|(_, e)| e.phase == Phase::Healthy).map(|(k, _)| k.clone()).collect();
        healthy.extend(group.lingering.keys().cloned());
        let fail_open = healthy.is_empty();
        let candidates = if fail_open { registered.map(|(k, _)| k.clone()).collect() } else { healthy };
        let turn = group.round_robin;
        group.round_robin = turn.wrapping_add(1);
        let target = candidates.get(turn.checked_rem(candidates.len())?)?.clone();
        Some(Pick { address: world.address_of(&target), target, fail_open })
    }

    /// The health checks of a group that are due; each is then running until [`Self::checked`].
    pub fn due_checks(&self, arn: &str) -> Vec<CheckJob> {
        let mut world = self.lock();
        let origin = world.origin;
        let Ok(group) = world.group(arn) else { return Vec::new() };
        let spec = group.spec.clone();
        if spec.checks != Checks::Real || !spec.health.enabled {
            return Vec::new();
        }
        let now = pace::now();
        let interval = origin.real(u64::from(spec.health.interval_s).saturating_mul(1000));
        let timeout = origin.real(u64::from(spec.health.timeout_s).saturating_mul(1000)).max(LEAST_CHECK_TIME);
        let mut due = Vec::new();
        for (key, entry) in &mut group.targets {
            if entry.phase == Phase::Registering || entry.check_runs || entry.next_check > now {
                continue;
            }
            entry.check_runs = true;
            entry.next_check = pace::after(now, interval);
            due.push((key.clone(), entry.registration));
        }
        due.into_iter()
            .map(|(target, registration)| {
                let asked = spec.health.port.map_or_else(|| target.clone(), |port| (target.0.clone(), port));
                CheckJob {
                    group: arn.to_owned(),
                    address: world.address_of(&asked),
                    target,
                    http_path: spec.health.protocol.starts_with("HTTP").then(|| spec.health.path.clone()),
                    matcher: spec.health.matcher.clone(),
                    timeout,
                    registration,
                }
            })
            .collect()
    }

    /// The result of a due check.
    pub fn checked(&self, job: &CheckJob, result: CheckResult) {
        let mut world = self.lock();
        let Ok(group) = world.group(&job.group) else { return };
        let (healthy, unhealthy) = (group.spec.health.healthy_threshold, group.spec.health.unhealthy_threshold);
        let Some(entry) = group.targets.get_mut(&job.target).filter(|e| e.registration == job.registration) else {
            return;
        };
        entry.check_runs = false;
        let reason = match result {
            CheckResult::Pass => {
                entry.failures = 0;
                entry.passes = entry.passes.saturating_add(1);
                let unwell = matches!(entry.phase, Phase::Unhealthy(_));
                // One pass is enough for a new target; the threshold is for those that were unhealthy.
                if entry.phase == Phase::Checking || (unwell && entry.passes >= healthy) {
                    entry.phase = Phase::Healthy;
                }
                return;
            }
            CheckResult::CodeMismatch => "Target.ResponseCodeMismatch",
            CheckResult::Timeout => "Target.Timeout",
            CheckResult::Failed => "Target.FailedHealthChecks",
        };
        entry.passes = 0;
        entry.failures = entry.failures.saturating_add(1);
        if entry.failures >= unhealthy || matches!(entry.phase, Phase::Unhealthy(_)) {
            entry.phase = Phase::Unhealthy(reason);
        }
    }
}

impl World {
    /// The first fault that strikes this call.
    pub(super) fn trouble_for(&mut self, action: Action, group: Option<&str>) -> Option<Trouble> {
        let struck = self.faults.iter_mut().find_map(|(_, f)| f.strikes(action, group).then(|| f.trouble.clone()));
        self.faults.retain(|(_, f)| f.times != Some(0));
        struck
    }

    pub(super) fn note(
        &mut self,
        action: Action,
        group: Option<String>,
        targets: Vec<(String, Option<u16>)>,
        outcome: Outcome,
    ) {
        let at_ms = self.origin.simulated_ms();
        self.calls.push(Call { at_ms, action, group, targets, outcome });
    }

    pub(super) fn throttle(&mut self, action: Action) -> Result<(), ApiError> {
        let at_ms = self.origin.simulated_ms();
        let Some((reads, writes)) = &mut self.buckets else { return Ok(()) };
        let bucket = if action.is_write() { writes } else { reads };
        if bucket.take(at_ms) { Ok(()) } else { Err(ApiError::throttling_exception()) }
    }

    /// The whole list: registered (and draining) targets only.
    pub(super) fn list(&mut self, arn: &str) -> Result<Vec<RowSpec>, ApiError> {
        let instances = self.instances.clone();
        let group = self.group(arn)?;
        let seen = group.seen();
        let overridden = |key: &Key| group.overrides.get(key).filter(|o| o.scope != Scope::ByName);
        let mut rows = Vec::new();
        for (key, entry) in &seen {
            match overridden(key) {
                Some(o) => rows.extend(o.rows.iter().cloned()),
                None => rows.push(group.row(key, Some(entry), instances.get(&key.0).copied())),
            }
        }
        // An override may also show what is not there.
        let absent = group.overrides.iter().filter(|(k, o)| !seen.contains_key(*k) && o.scope != Scope::ByName);
        rows.extend(absent.flat_map(|(_, o)| o.rows.iter().cloned()));
        Ok(rows)
    }

    /// Questions by name: a row for each, registered or not.
    pub(super) fn by_name(&mut self, arn: &str, asked: &[(String, Option<u16>)]) -> Result<Vec<RowSpec>, ApiError> {
        let (instances, unknown) = (self.instances.clone(), self.named_unknown);
        let group = self.group(arn)?;
        let seen = group.seen();
        let mut rows = Vec::new();
        for (id, port) in asked {
            let key = (id.clone(), port.unwrap_or(group.spec.port));
            if let Some(o) = group.overrides.get(&key).filter(|o| o.scope != Scope::List) {
                rows.extend(o.rows.iter().cloned());
                continue;
            }
            match (seen.get(&key), unknown) {
                (None, NamedUnknown::Omitted) => {}
                (None, NamedUnknown::InvalidTarget) => {
                    return Err(ApiError::invalid_target(format!("The following targets are not valid: '{id}'")));
                }
                (entry, _) => rows.push(group.row(&key, entry, instances.get(id).copied())),
            }
        }
        Ok(rows)
    }
}
