//! Reads what guards look at, and writes down what a cycle will be about.

use super::executor::read_fleet;
use super::shared::{Parts, Shared, World, entropy};
use crate::bounded::blocking;
use crate::clock::Clock;
use crate::config::ConnectionsLeft;
use crate::core::error::Fault;
use crate::core::guard::{Fact, Facts};
use crate::core::ids::{CycleId, InstanceId, NodeName};
use crate::core::member::Member;
use crate::core::page::{PageKind, Severity};
use crate::core::plan::{Kind, Limits, Plan};
use crate::core::settings::{BalancerKind, CheckPass, CheckSettings, NodeIdentity};
use crate::ports::{Host, LoadBalancer, MayRegister, NodeCheck};
use crate::state::disk::Disk;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A proven right to register counts for this long, in ms.
const REGISTER_PROOF_MS: u64 = 24 * 3_600_000;
/// Group settings are read again for a claim when older than this, in ms.
const GROUP_AGE_MS: u64 = 300_000;
/// An accepted page proves the pager for this long, in ms.
const PAGER_PROOF_MS: u64 = 3_600_000;
/// A try of the state directory that takes longer tells nothing.
const PROBE_WAIT: Duration = Duration::from_secs(10);
/// A drain longer than this does not fit into any cycle, in ms.
const DRAIN_MAX_MS: u64 = 2 * 3_600_000;

/// Reads everything anew.
pub async fn gather<W: World>(shared: &Arc<Shared<W>>, parts: &Arc<Parts<W>>, plan: Option<&Plan>) -> Facts {
    let fleet = read_fleet(shared, parts, plan.is_some()).await;
    let members = parts.fleet.members().await;
    let cluster = cluster(parts, plan).await;
    if let Ok(pass) = &cluster {
        shared.cache().node_id.clone_from(&pass.identity.node_id);
    }
    Facts {
        instance: shared.instance(),
        cycle: plan.map(|p| p.id.clone()),
        wall_ms: shared.clock.now().wall_ms,
        record: parts.fleet.read().await.map_err(|f| f.to_string()),
        fleet: fleet.map_err(|f| format!("who is in service is unknown: {f}")),
        names: names(members.as_deref().unwrap_or_default()),
        cycles_per_hour: parts.config.limits.cycles_per_hour,
        cycles_per_day: parts.config.limits.cycles_per_day,
        acts: acts(parts),
        identity: match &members {
            Ok(members) => identity(shared, parts, members),
            Err(f) => Fact::Unknown(format!("the members cannot be read: {f}")),
        },
        state_durable: state_durable(shared, parts).await,
        register_allowed: register_allowed(shared, parts, plan.is_some()).await,
        cluster_reachable: match cluster {
            Ok(pass) => {
                Fact::Yes(format!("{} answers, cluster {}", pass.identity.node_name, pass.identity.cluster_uuid))
            }
            Err(f) => Fact::Unknown(f.to_string()),
        },
        drain_fits: drain_fits(shared, parts).await,
        pager_reachable: pager(shared, parts).await,
        package_manager_free: package_manager_free(&parts.host),
        autoscaling: autoscaling(parts).await,
    }
}

/// How people call the members.
pub(super) fn names(members: &[Member]) -> BTreeMap<InstanceId, NodeName> {
    members.iter().map(|m| (m.instance.clone(), m.node.clone())).collect()
}

pub(super) fn package_manager_free(host: &impl Host) -> Fact {
    match host.package_manager() {
        Ok(None) => match host.unfinished_packages() {
            Ok(None) => Fact::Yes("no package manager is at work, and every package is whole".to_owned()),
            Ok(Some(what)) => Fact::No(what),
            Err(f) => Fact::Unknown(f.to_string()),
        },
        Ok(Some(name)) => Fact::No(format!("{name} is at work")),
        Err(f) => Fact::Unknown(f.to_string()),
    }
}

/// What there is to look at where looking itself has failed: nothing is known, so everything refuses.
pub fn unknown<W: World>(shared: &Shared<W>, why: &str) -> Facts {
    let unknown = || Fact::Unknown(format!("could not be looked at: {why}"));
    Facts {
        instance: shared.instance(),
        cycle: None,
        wall_ms: shared.clock.now().wall_ms,
        record: Err(format!("could not be looked at: {why}")),
        fleet: Err(format!("could not be looked at: {why}")),
        names: BTreeMap::new(),
        cycles_per_hour: None,
        cycles_per_day: None,
        acts: unknown(),
        identity: unknown(),
        state_durable: unknown(),
        register_allowed: unknown(),
        cluster_reachable: unknown(),
        drain_fits: unknown(),
        pager_reachable: unknown(),
        package_manager_free: unknown(),
        autoscaling: unknown(),
    }
}

/// A group with ELB health checks would terminate a node that left.
async fn autoscaling<W: World>(parts: &Parts<W>) -> Fact {
    match parts.host.lifecycle().await {
        Ok(None) => Fact::Yes("in no Auto Scaling group, as far as instance metadata was asked".to_owned()),
        Ok(Some(state)) if &*state != "InService" => Fact::No(format!("lifecycle state {state}, need InService")),
        Ok(Some(_)) if parts.config.asg_health_check_ec2 => Fact::Yes("EC2 health checks are stated".to_owned()),
        Ok(Some(_)) => Fact::No(
            "in an Auto Scaling group: state asg_health_check = \"EC2\", for ELB health checks would terminate a node that left"
                .to_owned(),
        ),
        Err(f) => Fact::Unknown(f.to_string()),
    }
}

/// This agent may act at all. A config or an identity that cannot be used is told apart from an agent that was told to
/// observe.
pub(super) fn acts<W: World>(parts: &Parts<W>) -> Fact {
    match &parts.problem {
        Some(problem) => {
            let first = problem.lines().next().unwrap_or_default();
            Fact::No(format!("no cycle starts while config or identity are not what they should be: {first}"))
        }
        None if parts.acts() => Fact::Yes("mode is act".to_owned()),
        None => Fact::No("mode = \"observe\": this agent looks and pages, it never acts".to_owned()),
    }
}

/// The own node reaches its cluster, and is who the config says.
async fn cluster<W: World>(parts: &Parts<W>, plan: Option<&Plan>) -> Result<CheckPass, Fault> {
    let settings = plan.map_or_else(|| parts.config.check_settings(), |p| p.check.clone());
    parts.check.check(&settings).await
}

pub(super) fn identity<W: World>(shared: &Shared<W>, parts: &Parts<W>, members: &[Member]) -> Fact {
    let me = shared.instance();
    let boot = shared.clock.now().boot;
    // This agent has written its document in this boot: whoever wrote it since is another one.
    let written = {
        let seen = shared.observed.borrow();
        seen.looks > 0 && !seen.faults.contains_key("members")
    };
    match members.iter().find(|m| m.instance == me) {
        Some(m) if m.boot != boot && (written || m.node.as_str() != &*parts.config.node.name) => {
            Fact::No(format!("another node, {} (boot {}), says that it is {me} too", m.node, m.boot))
        }
        _ => Fact::Yes(format!("{me}")),
    }
}

async fn state_durable<W: World>(shared: &Arc<Shared<W>>, parts: &Parts<W>) -> Fact {
    let Ok(one_at_a_time) = tokio::time::timeout(PROBE_WAIT, shared.probing.clone().lock_owned()).await else {
        return Fact::Unknown("the state directory hangs: an earlier try has not come back".to_owned());
    };
    let disk = shared.disk.clone();
    let probe = blocking(PROBE_WAIT, move || {
        let _until_it_comes_back = one_at_a_time;
        disk.probe().and_then(|()| disk.free_bytes())
    });
    let need = u64::from(parts.config.limits.free_disk_mib).saturating_mul(1024 * 1024);
    match probe.await {
        Ok(Ok(free)) if free >= need => Fact::Yes(format!("{} MiB free", free.checked_div(1024 * 1024).unwrap_or(0))),
        Ok(Ok(free)) => Fact::No(format!(
            "only {} MiB free in the state directory, need {} (limits.free_disk_mib)",
            free.checked_div(1024 * 1024).unwrap_or(0),
            parts.config.limits.free_disk_mib
        )),
        Ok(Err(e)) => Fact::No(format!("the state directory does not take a durable write: {e}")),
        Err(why) => Fact::Unknown(format!("the state directory could not be tried: {why}")),
    }
}

async fn register_allowed<W: World>(shared: &Shared<W>, parts: &Parts<W>, _claiming: bool) -> Fact {
    if !parts.config.elbv2.register_probe {
        return Fact::Yes("not asked (elbv2.register_probe = false)".to_owned());
    }
    if !parts.acts() {
        return Fact::Unknown("never asked in observe mode".to_owned());
    }
    let now = shared.clock.now();
    let proved = shared.cache().register_proved.clone();
    if proved.is_some_and(|at| now.since(&at).is_some_and(|ms| ms <= REGISTER_PROOF_MS)) {
        return Fact::Yes("proven within 24 h".to_owned());
    }
    let own = match shared.own_targets(parts, u64::MAX).await {
        Ok(own) => own,
        Err(f) => return Fact::Unknown(f.to_string()),
    };
    for t in &own {
        let group = &t.target.group;
        match parts.balancer.may_register(group, t.facts.target_type, t.target.port).await {
            MayRegister::Yes => {}
            MayRegister::No(f) => return Fact::No(format!("{}: this node could not come back: {f}", group.name())),
            MayRegister::TookIt => {
                let what = "took a target that does not exist, so this proves nothing; it was deregistered again";
                let sentence = format!("register-allowed: {} {what}", group.name());
                shared.cache().to_page.push((PageKind::AgentFault, Severity::Warning, sentence.into()));
                return Fact::No(format!("{} {what}", group.name()));
            }
            MayRegister::Unknown(f) => return Fact::Unknown(format!("{}: {f}", group.name())),
        }
    }
    shared.cache().register_proved = Some(now);
    Fact::Yes("proven just now".to_owned())
}

async fn drain_fits<W: World>(shared: &Shared<W>, parts: &Parts<W>) -> Fact {
    match shared.own_targets(parts, GROUP_AGE_MS).await {
        Err(f) => Fact::Unknown(f.to_string()),
        Ok(own) => {
            let longest = own.iter().map(|t| t.facts.deregistration_delay_ms).max().unwrap_or(0);
            let sentence = format!("drain {} s", longest.div_ceil(1_000));
            if longest <= DRAIN_MAX_MS {
                Fact::Yes(sentence)
            } else {
                Fact::No(format!("{sentence}: longer than a cycle"))
            }
        }
    }
}

async fn pager<W: World>(shared: &Shared<W>, parts: &Parts<W>) -> Fact {
    let now = shared.clock.now();
    let accepted = shared.cache().page_accepted.clone();
    if accepted.is_some_and(|(_, at)| now.since(&at).is_some_and(|ms| ms <= PAGER_PROOF_MS)) {
        return Fact::Yes("a page was accepted within the hour".to_owned());
    }
    let mut last = None;
    for sink in &parts.sinks {
        match sink.reachable().await {
            Ok(()) => return Fact::Yes(format!("{} answers", sink.name())),
            Err(f) => last = Some(f),
        }
    }
    Fact::Unknown(last.map_or_else(|| "no pager is configured".to_owned(), |f| f.to_string()))
}

/// Who asked for a cycle, and how.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Who.
    pub by: Arc<str>,
    /// The caller's own name for its request; empty = none.
    pub request: Arc<str>,
    /// Guards overridden, with reasons.
    pub overrides: Vec<(Arc<str>, Arc<str>)>,
    /// Only for a verdict that is owed for it; nothing begins.
    pub only_owed: bool,
}

/// Everything that this cycle needs on both roads.
pub async fn plan<W: World>(shared: &Shared<W>, parts: &Parts<W>, kind: Kind, asked: Asked) -> Result<Plan, Fault> {
    let targets = shared.own_targets(parts, GROUP_AGE_MS).await?;
    let c = &parts.config;
    let mut check = c.check_settings();
    check.expect = match (learn(parts, &check).await, &kind) {
        (Ok(identity), _) => Some(identity),
        // Only a way back may begin while nobody answers.
        // and a hold, which may be meant for a node that nobody can reach.
        (Err(_), Kind::Return | Kind::Recovery | Kind::Hold(_)) => None,
        (Err(fault), Kind::Patch(_)) => return Err(fault),
    };
    let network = targets.iter().any(|t| t.facts.balancer == BalancerKind::Network);
    let limits = Limits {
        claim_ms: c.deadlines.claim_ms,
        deregister_ms: c.deadlines.deregister_ms,
        drain_margin_ms: if network { c.drain.margin_network_ms } else { c.drain.margin_application_ms },
        quiet_ms: c.drain.quiet_ms,
        connections_left_fail: c.drain.connections_left == ConnectionsLeft::Fail,
        patch_ms: c.deadlines.patch_ms,
        reboot_ms: c.deadlines.reboot_ms,
        check_ms: c.deadlines.check_ms,
        register_ms: c.deadlines.register_ms,
        settle_ms: if network { c.deadlines.settle_network_ms } else { c.deadlines.settle_ms },
        bake_ms: c.settle_bake_ms,
        release_ms: c.deadlines.register_ms,
        ack_max_age_ms: ACK_MAX_AGE_MS.saturating_mul(u64::from(c.rehearsal.time_scale.max(1))),
        reboots_per_day: c.limits.reboots_per_day,
        poll_ms: POLL_MS,
    };
    Ok(Plan {
        id: new_cycle_id(),
        kind,
        instance: shared.instance(),
        node: shared.node_name(),
        by: asked.by,
        request: asked.request,
        port: targets.first().map_or(9_200, |t| t.target.port),
        targets,
        check,
        limits,
        rules: parts.rules(),
        overrides: asked.overrides,
    })
}

/// A name that no other cycle has.
pub fn new_cycle_id() -> CycleId {
    CycleId(format!("c-{:012x}", entropy() >> 16).into())
}

/// A destructive call is not begun when its acknowledgement is older than this, in ms of real time.
pub(super) const ACK_MAX_AGE_MS: u64 = 10_000;
/// Between two looks at the load balancer while something is awaited, in ms.
const POLL_MS: u64 = 5_000;

/// Who answers on the own node now.
async fn learn<W: World>(parts: &Parts<W>, settings: &CheckSettings) -> Result<NodeIdentity, Fault> {
    parts.check.check(settings).await.map(|pass| pass.identity)
}
