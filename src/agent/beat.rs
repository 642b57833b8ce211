//! This member's own document: its heart beats in it, and it says what this node is doing and what it sees.

use super::shared::{Parts, Shared, World};
use crate::clock::Clock;
use crate::core::error::Fault;
use crate::core::exit::Exit;
use crate::core::member::{FINDS_MAX, Member, Says};
use crate::core::time::Now;
use crate::words::span;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Schema of the member document.
const MEMBER_SCHEMA: u32 = 1;

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

/// This member's own document, with the promise that the next one comes within `every_ms`. What it is doing is for people
/// on other nodes.
pub(super) async fn write<W: World>(
    shared: &Shared<W>,
    parts: &Parts<W>,
    beat: &mut u64,
    every_ms: u64,
    terminating: bool,
) -> Result<(), Fault> {
    let now = shared.clock.now();
    let node = shared.node.borrow().clone();
    if node.durable.retired || terminating {
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
        .map_or_else(|| idle(shared, &now), |c| super::status::waiting_for(c, &node.seen, &now));
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
        says: says(shared, parts, &now, every_ms),
        told: shared.book().told(),
        extra: BTreeMap::default(),
    };
    parts.fleet.put_member(&member).await
}

/// What it says of itself to the others' reconcile. What it said before a restart goes on.
fn says<W: World>(shared: &Shared<W>, parts: &Parts<W>, now: &Now, every_ms: u64) -> Says {
    let own_at = shared.observed.borrow().own_at.clone();
    let last = shared.node.borrow().durable.last.clone();
    let patched = last.filter(|e| e.exit == Exit::Done && e.verdict.is_some()).map(|e| e.at.wall_ms);
    let mut cache = shared.cache();
    let rules = parts.rules();
    let says = Says {
        beat_every_ms: every_ms,
        own_age_ms: own_at.and_then(|at| now.since(&at)),
        minimum_healthy: Some(rules.minimum_healthy),
        minimum_during_patch: Some(rules.minimum_during_patch),
        max_unavailable: Some(rules.max_unavailable),
        finds: finds(shared),
        joined_ms: cache.said.joined_ms.or(Some(now.wall_ms)),
        patched_ms: cache.said.patched_ms.max(patched),
        refused_since_ms: cache.refused_since_ms,
    };
    cache.said = says.clone();
    says
}

/// What it finds, worst first, so that a node that reads its own target only hears of it.
fn finds<W: World>(shared: &Shared<W>) -> Vec<Arc<str>> {
    let report = shared.report.borrow();
    let key = |f: &crate::core::finding::Finding| format!("{}/{}", f.kind.label(), f.subject).into();
    report.0.findings.iter().take(FINDS_MAX).map(key).collect()
}

/// Without a cycle it does nothing, or is about to put itself back.
fn idle<W: World>(shared: &Shared<W>, now: &Now) -> String {
    match shared.cache().heals_at.clone() {
        Some(at) => format!("idle, registers itself in {}", span(at.since(now).unwrap_or(0))),
        None => "idle".to_owned(),
    }
}
