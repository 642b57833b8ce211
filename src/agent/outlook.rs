//! What a `run` would meet now, by what this agent has read anyway: for `status`, which asks nobody. The guards are the
//! core's own; what only a question to somebody else could tell is left to `backstop check`.

use super::facts;
use super::shared::{Observed, Parts, Shared, World};
use crate::clock::Clock;
use crate::control::protocol::SILENT_MS;
use crate::core::exit::Exit;
use crate::core::finding::Kind;
use crate::core::guard::{Fact, Facts, Guard, Said, Verdict, evaluate};
use crate::core::ids::InstanceId;
use crate::core::look::Role;
use crate::core::member::{FleetView, Member};
use crate::core::record::Record;
use crate::core::target::Own;
use crate::core::time::Now;
use std::collections::BTreeSet;

/// What is not asked for here: no reason to refuse, and none to let go.
const UNASKED: &str = "not asked";

/// The refusal that a run would be told first. Nothing while a cycle is under way: that attaches or is busy.
pub(super) fn refusal<W: World>(shared: &Shared<W>, parts: &Parts<W>, seen: &Observed) -> Option<Verdict> {
    let (node, now) = (shared.node.borrow().clone(), shared.clock.now());
    if node.durable.cycle.is_some() {
        return None;
    }
    let unasked = || Fact::Yes(UNASKED.to_owned());
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let facts = Facts {
        instance: shared.instance(),
        cycle: None,
        wall_ms: now.wall_ms,
        record: record(seen),
        fleet: fleet(seen, &shared.instance()),
        names: facts::names(members),
        cycles_per_hour: parts.config.limits.cycles_per_hour,
        cycles_per_day: parts.config.limits.cycles_per_day,
        acts: facts::acts(parts),
        identity: match seen.faults.get("members") {
            Some(_) => unasked(),
            None => facts::identity(shared, parts, members),
        },
        state_durable: match &node.unstored {
            Some(why) => Fact::No(format!("the state directory does not take a durable write: {why}")),
            None => unasked(),
        },
        register_allowed: unasked(),
        cluster_reachable: unasked(),
        drain_fits: unasked(),
        pager_reachable: unasked(),
        package_manager_free: facts::package_manager_free(&parts.host),
        autoscaling: unasked(),
    };
    let mut verdicts = evaluate(&facts, &parts.rules(), &[]);
    if seen.role() == Role::OwnOnly {
        // It reads its own target alone, and hears of the others what the readers of the fleet find.
        let heard = heard(seen, parts.config.fleet.as_str(), &now);
        verdicts.0.retain(|v| v.guard != Guard::PeersSettled && (v.guard != Guard::MinimumHealthy || heard.is_some()));
        for v in verdicts.0.iter_mut().filter(|v| v.guard == Guard::MinimumHealthy) {
            (v.said, v.exit) = (Said::Refused, Exit::BelowMinimum);
            v.sentence = heard.clone().unwrap_or_default().into();
        }
    }
    verdicts.first_refusal().cloned()
}

fn record(seen: &Observed) -> Result<Record, String> {
    match (seen.faults.get("fleet record"), &seen.record) {
        (Some(fault), _) => Err(fault.to_string()),
        (None, Some((record, _))) => Ok(record.clone()),
        (None, None) => Err("the fleet record has not been read yet".to_owned()),
    }
}

/// Who is in service by the last look. A node that reads its own target alone answers for that.
fn fleet(seen: &Observed, me: &InstanceId) -> Result<FleetView, String> {
    let unknown = |why: &str| format!("who is in service is unknown: {why}");
    if let Some(fault) = ["load balancer", "members"].iter().find_map(|source| seen.faults.get(source)) {
        return Err(unknown(&fault.to_string()));
    }
    let yet = || unknown("not read yet");
    if seen.role() == Role::Whole {
        return seen.fleet.clone().ok_or_else(yet);
    }
    let (Some((members, _)), Some(begun)) = (&seen.members, &seen.own_at) else { return Err(yet()) };
    if seen.own.is_empty() || seen.own.contains(&Own::Unknown) {
        return Err(unknown("the load balancer's answer about this node is none"));
    }
    let serves = seen.own.iter().all(|own| *own == Own::InService);
    let members: BTreeSet<InstanceId> = members.iter().map(|m| m.instance.clone()).collect();
    let in_service = members.iter().filter(|i| *i != me || serves).cloned().collect();
    Ok(FleetView { members, in_service, begun: begun.clone() })
}

/// A member that beats, and finds that the fleet lacks nodes.
fn heard(seen: &Observed, fleet: &str, now: &Now) -> Option<String> {
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let beats = |m: &Member| {
        seen.hearts.get(&m.instance).is_some_and(|h| now.since(&h.changed).is_some_and(|ms| ms <= SILENT_MS))
    };
    let lacks = |kind: Kind| {
        let key = format!("{}/{fleet}", kind.label());
        let who = members.iter().find(|m| beats(m) && m.says.finds.iter().any(|found| **found == *key))?;
        Some(format!("{} finds {}", who.node, kind.label()))
    };
    [Kind::BelowFloor, Kind::BelowMinimum].into_iter().find_map(lacks)
}
