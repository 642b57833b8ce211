//! Keeps looking: whole groups, the own target, the record, the members; and writes this member's beat.

use super::shared::{Observed, Parts, Shared, World, entropy};
use super::turn::EFFECT_MS;
use super::turns::Loop;
use crate::clock::Clock;
use crate::config::Config;
use crate::core::error::Fault;
use crate::core::member::{Member, in_service};
use crate::core::target::Own;
use crate::ports::LoadBalancer;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Schema of the member document.
const MEMBER_SCHEMA: u32 = 1;

/// Looks for ever, jittered.
pub async fn observe<W: World>(shared: Arc<Shared<W>>) {
    let mut beat = 0;
    loop {
        let parts = shared.parts();
        look(&shared, &parts, &mut beat).await;
        let every = parts.config.reconcile.every_ms;
        let spread = every.checked_div(5).unwrap_or(0).max(1);
        let wait = every
            .saturating_sub(spread.checked_div(2).unwrap_or(0))
            .saturating_add(entropy().checked_rem(spread).unwrap_or(0));
        shared.turns.turned(Loop::Observer, &shared.clock.now(), wait.saturating_add(look_ms(&parts.config)));
        shared.clock.sleep_ms(wait).await;
    }
}

/// No look takes longer, in ms: every call in it has a total timeout. Two polls a group, its settings, and the store's few
/// reads and writes, which take no longer than an effect of the loop.
pub fn look_ms(config: &Config) -> u64 {
    let groups = u64::try_from(config.target_groups.len()).unwrap_or(u64::MAX);
    EFFECT_MS.saturating_add(config.elbv2.operation_timeout_ms.saturating_mul(3).saturating_mul(groups))
}

/// What this member wrote before a restart goes on: its beat, since to others only a change is one, and the record as it
/// last saw it, from which a lost one is made again. Nothing is written over it before it was read.
async fn read_last<W: World>(shared: &Shared<W>, parts: &Parts<W>) -> Result<u64, Fault> {
    let me = shared.instance();
    let members = parts.fleet.members().await?;
    let last = members.into_iter().find(|m| m.instance == me);
    let beat = last.as_ref().map_or(0, |m| m.beat);
    shared.cache().last_record = last.and_then(|m| m.record);
    Ok(beat)
}

/// One look at everything. Each source that fails keeps its last answer, with its age, and its fault.
pub async fn look<W: World>(shared: &Arc<Shared<W>>, parts: &Arc<Parts<W>>, beat: &mut u64) {
    let mut next: Observed = (**shared.observed.borrow()).clone();
    next.faults = BTreeMap::new();
    if let Err(f) = write_beat(shared, parts, beat).await {
        next.faults.insert("members", f);
    }
    let begun = shared.clock.now();
    match parts.fleet.members().await {
        Ok(members) => {
            for m in &members {
                let known = next.beats.get(&m.instance).is_some_and(|(b, _)| *b == m.beat);
                if !known {
                    next.beats.insert(m.instance.clone(), (m.beat, begun.clone()));
                }
            }
            next.beats.retain(|i, _| members.iter().any(|m| m.instance == *i));
            next.members = Some((members, begun.clone()));
        }
        Err(f) => {
            next.faults.insert("members", f);
        }
    }
    match parts.fleet.read().await {
        Ok(record) => next.record = Some((record, begun.clone())),
        Err(f) => {
            next.faults.insert("fleet record", f);
        }
    }
    if let Err(f) = look_at_groups(shared, parts, &mut next).await {
        next.faults.insert("load balancer", f);
    }
    next.since = super::status::since(&next, &shared.instance(), shared.clock.now().wall_ms);
    next.looks = next.looks.saturating_add(1);
    shared.observed.send_replace(Arc::new(next));
}

async fn look_at_groups<W: World>(shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) -> Result<(), Fault> {
    let begun = shared.clock.now();
    let targets = shared.own_targets(parts, u64::MAX).await?;
    let mut polls = BTreeMap::new();
    for t in &targets {
        let mut poll = parts.balancer.poll(&t.target, false).await?;
        // By name only where the list does not show it: positive evidence that it is not registered.
        if !poll.list.iter().any(|r| r.id == t.target.id && r.port == Some(t.target.port)) {
            poll = parts.balancer.poll(&t.target, true).await?;
        }
        polls.insert(t.target.group.clone(), poll);
    }
    let own =
        targets.iter().map(|t| polls.get(&t.target.group).map_or(Own::Unknown, |p| p.own(&t.target.id, t.target.port)));
    next.own = own.collect();
    next.own_at = Some(begun.clone());
    if let Some((members, _)) = &next.members {
        next.fleet = Some(in_service(members, &parts.groups(), &polls, begun));
    }
    next.polls = polls;
    Ok(())
}

/// This member's own document. What it is doing is for people on other nodes.
pub async fn write_beat<W: World>(shared: &Shared<W>, parts: &Parts<W>, beat: &mut u64) -> Result<(), Fault> {
    let now = shared.clock.now();
    let node = shared.node.borrow().clone();
    let seen = shared.observed.borrow().clone();
    if *beat == 0 {
        *beat = read_last(shared, parts).await?;
    }
    *beat = beat.saturating_add(1);
    let targets = shared.own_targets(parts, u64::MAX).await?;
    let port = targets.first().map_or(9_200, |t| t.target.port);
    let doing = node
        .durable
        .cycle
        .as_ref()
        .map_or_else(|| "idle".to_owned(), |c| super::status::waiting_for(c, &node.seen, &now));
    // One lock at a time: a guard inside the literal below would live to its end.
    let (node_id, last_record) = {
        let cache = shared.cache();
        (cache.node_id.clone(), cache.last_record.clone())
    };
    let member = Member {
        schema: MEMBER_SCHEMA,
        instance: shared.instance(),
        node: shared.node_name(),
        targets: targets.into_iter().map(|t| t.target).collect(),
        agent: env!("CARGO_PKG_VERSION").into(),
        reads_schema: crate::core::record::SCHEMA,
        boot: now.boot.clone(),
        beat: *beat,
        doing: doing.into(),
        at_ms: now.wall_ms,
        node_id,
        address: shared.identity.local_ipv4.map(|ip| std::net::SocketAddr::from((ip, port)).to_string().into()),
        sees: seen.own.iter().map(|own| own.sentence().into()).collect(),
        record: match &seen.record {
            Some((r, _)) => serde_json::to_value(r.without_history()).ok(),
            None => last_record,
        },
        extra: BTreeMap::default(),
    };
    parts.fleet.put_member(&member).await
}
