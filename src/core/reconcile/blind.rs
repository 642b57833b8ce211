//! What an agent cannot see. Unknown is not well: it resolves nothing, and after five minutes it is a finding of its own.

use super::super::finding::Kind;
use super::super::time::Now;
use super::memory::{Candidate, Draft, Memory};
use super::sight::{Seen, Source};
use super::text;
use super::world::World;
use std::collections::{BTreeMap, BTreeSet};

/// Why a source fails; `None` = it does not, or is not asked by this agent.
fn why<T: ?Sized>(seen: &Seen<'_, T>, now: &Now, stale_ms: u64) -> Option<String> {
    let every = seen.every_ms?;
    if let Some(fault) = seen.fault {
        return Some(fault.to_string());
    }
    match seen.answer {
        None => Some("no answer yet".to_owned()),
        Some((_, at)) => {
            let due = stale_ms.saturating_add(every.saturating_mul(2));
            let late = now.since(at).is_none_or(|ms| ms > due);
            late.then(|| "its last answer is too old".to_owned())
        }
    }
}

/// Judges the own sight, source by source.
pub(super) fn judge(w: &World<'_>, memory: &mut Memory, draft: &mut Draft) {
    let (sight, now, stale) = (w.sight, w.now, w.settings.stale_after_ms);
    let mut failing: BTreeMap<Source, String> = BTreeMap::new();
    let mut note = |source: Source, why: Option<String>| {
        let why = why.or_else(|| w.contradicted.get(&source).cloned());
        if let Some(why) = why {
            failing.insert(source, why);
        }
    };
    for g in sight.groups {
        note(Source::LoadBalancer(g.group.clone()), why(&g.list, now, stale));
    }
    note(Source::OwnTarget, sight.groups.iter().find_map(|g| why(&g.named, now, stale)));
    note(Source::Members, why(&sight.members, now, stale));
    note(Source::ClusterNodes, why(&sight.nodes, now, stale));
    note(Source::FleetRecord, why(&sight.record, now, stale));
    let unproven = unproven(w);
    memory.blind.retain(|source, _| failing.contains_key(source) || unproven.contains(source));
    for source in unproven.into_iter().filter(|s| !failing.contains_key(s)) {
        draft.leave(Kind::Blind, &format!("{}: {}", sight.node, source.label()));
    }
    for (source, why) in failing {
        let subject = format!("{}: {}", sight.node, source.label());
        let since = memory.blind.entry(source.clone()).or_insert_with(|| now.clone());
        if now.since(since).is_none_or(|ms| ms < w.settings.blind_after_ms) {
            draft.leave(Kind::Blind, &subject);
            continue;
        }
        let (me, label, long) = (sight.node, source.label(), text::span(w.settings.blind_after_ms));
        let what = match w.settings.blind_after_ms {
            0 => format!("{me} cannot see its source \"{label}\": {why}"),
            _ => format!("{me} has not seen its source \"{label}\" for more than {long}: {why}"),
        };
        let mut found = Candidate::new(Kind::Blind, &subject, what, now);
        found.read = None;
        draft.find(found);
    }
}

/// Sources that answer, while what could contradict them is not known: they are not shown to be well.
fn unproven(w: &World<'_>) -> BTreeSet<Source> {
    let mut sources = BTreeSet::new();
    let fresh =
        |named: &Seen<'_, _>| named.every_ms.is_none() || named.fresh(w.now, w.settings.stale_after_ms).is_some();
    for (i, g) in w.sight.groups.iter().enumerate().filter(|(_, g)| g.list.every_ms.is_some()) {
        if w.members.is_none() || w.just_missing.contains(&i) || !fresh(&g.named) {
            sources.insert(Source::LoadBalancer(g.group.clone()));
        }
    }
    if w.sight.nodes.every_ms.is_some() && (w.members.is_none() || w.groups_read().is_none()) {
        sources.insert(Source::ClusterNodes);
    }
    sources
}
