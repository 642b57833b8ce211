//! Findings about single members: where they stand, and whether that is planned.

use super::super::finding::Kind;
use super::super::settings::GroupFacts;
use super::super::time::Now;
use super::memory::{Candidate, Draft};
use super::sight::Settings;
use super::standing::{Cause, Running, Standing, cause};
use super::text;
use super::world::{Absence, Person, World};

/// Kinds that tell where a member's targets stand.
pub(super) const NODE_KINDS: [Kind; 9] = [
    Kind::OutOfService,
    Kind::RunningNotRegistered,
    Kind::RegisteredNotRunning,
    Kind::WrongPort,
    Kind::Unhealthy,
    Kind::StuckInitial,
    Kind::StuckDraining,
    Kind::NotInUse,
    Kind::MissingFromGroup,
];

/// Judges every member.
pub(super) fn judge(w: &World<'_>, draft: &mut Draft) {
    if w.members.is_none() || w.groups_read().is_none() {
        draft.cannot(&NODE_KINDS);
    }
    if w.nodes.is_none() {
        draft.cannot(&[Kind::RegisteredNotRunning]);
    }
    let whole = failing_groups(w, draft);
    for p in &w.people {
        one(w, p, &whole, draft);
    }
    for stray in &w.strays {
        let Some(p) = stray.person.and_then(|i| w.people.get(i)) else { continue };
        let own_is_there = p.at.get(stray.group).is_some_and(|s| s.registered());
        let Some(port) = stray.row.port.filter(|_| own_is_there) else { continue };
        let what = format!("{} is also registered under port {port} in {}", p.node(), w.group_name(stray.group));
        draft.find(Candidate::new(Kind::WrongPort, p.node(), what, w.read_of(p)));
    }
}

fn one(w: &World<'_>, p: &Person<'_>, whole: &[usize], draft: &mut Draft) {
    if p.in_service() && p.running != Running::No {
        return;
    }
    let at: Vec<(&str, Standing)> = p.at.iter().enumerate().map(|(g, s)| (w.group_name(g), *s)).collect();
    let cause = cause(p.node(), &at, p.running);
    // Only a member that is in service is positive evidence that nothing is wrong with it: what it is called may change from
    // look to look, and by who looks.
    let left = |kind: Kind| match &cause {
        Cause::Found(found, _) => kind != *found && !p.in_service(),
        Cause::Starting | Cause::Unknown => true,
        Cause::None => false,
    };
    let planned = matches!(p.absence, Absence::Within(_));
    for kind in NODE_KINDS {
        if planned {
            draft.plan(kind, p.node());
        } else if left(kind) {
            draft.leave(kind, p.node());
        }
    }
    if planned {
        return;
    }
    slow(w, p, draft);
    let Cause::Found(kind, sentence) = cause else { return };
    if matches!(kind, Kind::Unhealthy | Kind::RegisteredNotRunning) && failing_only_in(p, whole) {
        draft.leave(kind, p.node());
        return;
    }
    find(w, p, kind, sentence, 0, draft);
}

/// A finding about a member that no plan covers. While the record is unknown a plan may: then it takes some time.
fn find(w: &World<'_>, p: &Person<'_>, kind: Kind, sentence: String, after_ms: u64, draft: &mut Draft) {
    // Where only the cluster's list says so, it has to say so twice.
    let read = w.nodes.filter(|_| p.in_service()).map_or(w.read_of(p), |(_, at)| at);
    // An instance that is being terminated says goodbye at once, and is deregistered meanwhile: whether another one is still
    // a member is looked at last.
    let beside = w.members.filter(|_| !w.is_me(p)).cloned();
    let candidate = |sentence| Candidate { beside: beside.clone(), ..Candidate::new(kind, p.node(), sentence, read) };
    let candidate = |sentence| candidate(sentence).after(after_ms);
    let found = match &p.absence {
        Absence::Over(what) => candidate(format!("{sentence}; {what}")),
        Absence::Unknown => {
            let unknown = "the fleet record cannot be read: a cycle or a hold may explain it";
            candidate(format!("{sentence}; {unknown}")).after(w.settings.unknown_plan_after_ms)
        }
        Absence::Unexplained | Absence::Within(_) => candidate(sentence),
    };
    draft.find(found);
}

/// Starts and drains that take longer than their group's own settings explain.
fn slow(w: &World<'_>, p: &Person<'_>, draft: &mut Draft) {
    let (initial, draining): (Vec<_>, Vec<_>) =
        p.at.iter()
            .enumerate()
            .filter(|(_, s)| matches!(s, Standing::Initial(_) | Standing::Draining))
            .partition(|(_, s)| **s != Standing::Draining);
    stuck(w, p, Kind::StuckInitial, &initial, Settings::initial_ms, draft);
    stuck(w, p, Kind::StuckDraining, &draining, Settings::draining_ms, draft);
}

fn stuck(
    w: &World<'_>,
    p: &Person<'_>,
    kind: Kind,
    groups: &[(usize, &Standing)],
    limit: fn(&Settings, &GroupFacts) -> u64,
    draft: &mut Draft,
) {
    let Some((_, standing)) = groups.first() else { return };
    let facts = groups.iter().map(|(g, _)| w.sight.groups.get(*g).and_then(|s| s.facts));
    let limits: Option<Vec<u64>> = facts.map(|f| f.map(|f| limit(w.settings, &f))).collect();
    let Some(limit) = limits.and_then(|l| l.into_iter().max()) else {
        // What the group says about itself was never read: nothing tells how long is too long.
        draft.leave(kind, p.node());
        return;
    };
    let names: Vec<&str> = groups.iter().map(|(g, _)| w.group_name(*g)).collect();
    let (node, words, names, long) = (p.node(), standing.words(), text::list(&names, ", "), text::span(limit));
    let what = format!("{node} is {words} in {names} for longer than the {long} that its settings explain");
    find(w, p, kind, what, limit, draft);
}

/// Groups of which all registered targets fail their checks at once: one finding about the fleet, and nothing is changed.
fn failing_groups(w: &World<'_>, draft: &mut Draft) -> Vec<usize> {
    let mut whole: Vec<(usize, usize, &Now)> = Vec::new();
    for (g, list) in w.lists.iter().enumerate() {
        let Some((rows, begun)) = list else { continue };
        let registered: Vec<Standing> =
            rows.iter().map(super::standing::of_row).filter(|s| s.registered() || *s == Standing::Unknown).collect();
        if registered.len() > 1 && registered.iter().all(|s| matches!(s, Standing::Failing(..))) {
            whole.push((g, registered.len(), begun));
        }
    }
    if let Some((_, _, begun)) = whole.first() {
        let told: Vec<String> = whole.iter().map(|(g, n, _)| format!("all {n} in {}", w.group_name(*g))).collect();
        let what = format!(
            "every registered target fails the load balancer's checks at once ({}): the cluster, the check or the \
             network is at fault rather than a node. Nothing is changed",
            text::list(&told, ", ")
        );
        let mut found = Candidate::new(Kind::Unhealthy, w.sight.fleet, what, begun);
        found.severity = super::super::page::Severity::Critical;
        draft.find(found);
    }
    whole.into_iter().map(|(g, _, _)| g).collect()
}

fn failing_only_in(p: &Person<'_>, whole: &[usize]) -> bool {
    let mut failing = p.at.iter().enumerate().filter(|(_, s)| matches!(s, Standing::Failing(..))).peekable();
    failing.peek().is_some() && failing.all(|(g, _)| whole.contains(&g))
}
