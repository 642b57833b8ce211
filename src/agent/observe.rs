//! Keeps looking: whole groups, the own target, the record, the members; and writes this member's beat.

use super::shared::{Observed, Parts, Shared, World, entropy};
use crate::clock::Clock;
use crate::core::error::Fault;
use crate::core::exit::Exit;
use crate::core::member::{Member, Says, in_service};
use crate::core::target::Own;
use crate::core::time::Now;
use crate::ports::{Host, LoadBalancer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Schema of the member document.
const MEMBER_SCHEMA: u32 = 1;

/// Lifecycle states of an instance that does not come back.
const LEAVING: [&str; 1] = ["Terminated"];

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
        shared.clock.sleep_ms(wait).await;
    }
}

/// What this member wrote before a restart goes on: its beat, since to others only a change is one, and the record as it
/// last saw it, from which a lost one is made again. Nothing is written over it before it was read.
async fn read_last<W: World>(shared: &Shared<W>, parts: &Parts<W>) -> Result<u64, Fault> {
    let me = shared.instance();
    let members = parts.fleet.members().await?;
    let last = members.into_iter().find(|m| m.instance == me);
    let beat = last.as_ref().map_or(0, |m| m.beat);
    let (record, says) = last.map(|m| (m.record, m.says)).unwrap_or_default();
    let mut cache = shared.cache();
    cache.last_record = record;
    cache.refused_since_ms = cache.refused_since_ms.or(says.refused_since_ms);
    cache.said = says;
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
        Ok(record) => {
            next.slots_since.retain(|cycle, _| record.slots.values().any(|s| s.cycle == *cycle));
            for slot in record.slots.values() {
                next.slots_since.entry(slot.cycle.clone()).or_insert_with(|| begun.clone());
            }
            next.record = Some((record, begun.clone()));
        }
        Err(f) => {
            next.faults.insert("fleet record", f);
        }
    }
    if let Err(f) = look_at_groups(shared, parts, &mut next).await {
        next.faults.insert("load balancer", f);
    }
    if let Ok(state) = parts.host.lifecycle().await {
        next.terminating = state.is_some_and(|state| LEAVING.contains(&&*state));
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
    if node.durable.retired || shared.observed.borrow().terminating {
        return parts.fleet.delete_member(&shared.instance()).await; // no member any more
    }
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
        says: says(shared, parts, &now),
        told: shared.book().told(),
        extra: BTreeMap::default(),
    };
    parts.fleet.put_member(&member).await
}

/// What it says of itself to the others' reconcile. What it said before a restart goes on.
fn says<W: World>(shared: &Shared<W>, parts: &Parts<W>, now: &Now) -> Says {
    let own_at = shared.observed.borrow().own_at.clone();
    let last = shared.node.borrow().durable.last.clone();
    let patched = last.filter(|e| e.exit == Exit::Done && e.verdict.is_some()).map(|e| e.at.wall_ms);
    let mut cache = shared.cache();
    let rules = parts.rules();
    let says = Says {
        beat_every_ms: parts.config.reconcile.every_ms,
        own_age_ms: own_at.and_then(|at| now.since(&at)),
        minimum_healthy: Some(rules.minimum_healthy),
        minimum_during_patch: Some(rules.minimum_during_patch),
        max_unavailable: Some(rules.max_unavailable),
        finds: Vec::new(),
        joined_ms: cache.said.joined_ms.or(Some(now.wall_ms)),
        patched_ms: cache.said.patched_ms.max(patched),
        refused_since_ms: cache.refused_since_ms,
    };
    cache.said = says.clone();
    says
}
