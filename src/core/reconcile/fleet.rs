//! Findings about the fleet as a whole: how many are in service, who is out beside the record, whose config differs.

use super::super::finding::Kind;
use super::super::ids::InstanceId;
use super::super::time::Now;
use super::memory::{Candidate, Draft};
use super::standing::Standing;
use super::text;
use super::world::{Absence, Person, World};
use std::collections::{BTreeMap, BTreeSet};

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Members in service: at least, and at most.
fn in_service(w: &World<'_>) -> (u32, u32) {
    let sure = w.people.iter().filter(|p| p.in_service()).count();
    // Who was retired counts no more, and only the record tells.
    let all = w.groups_read().is_some() && w.record.is_some();
    if w.members.is_some() {
        let most = w.people.iter().filter(|p| !p.out()).count();
        return (if all { number(sure) } else { 0 }, number(most));
    }
    // Whoever the members are: no more than each group has targets that may serve.
    let serving = |rows: &[super::super::target::Row]| {
        let may = |s: Standing| matches!(s, Standing::InService | Standing::Unknown);
        let ids: BTreeSet<&str> = rows.iter().filter(|r| may(super::standing::of_row(r))).map(|r| &*r.id).collect();
        ids.len()
    };
    let most = w.lists.iter().flatten().map(|(rows, _)| serving(rows)).min();
    (0, most.map_or(u32::MAX, number))
}

/// The read that the count rests on: of groups where there is one, else of the members.
fn count_read<'a>(w: &World<'a>) -> &'a Now {
    let lists = w.lists.iter().filter_map(|l| l.map(|(_, at)| at));
    lists.min_by_key(|at| at.since_boot_ms).or(w.members).unwrap_or(w.now)
}

/// Who is missing and why, for people.
fn missing(w: &World<'_>) -> String {
    let one = |p: &Person<'_>| {
        let at = p.at.iter().enumerate().filter(|(_, s)| **s != Standing::InService);
        let words: Vec<String> = at.map(|(g, s)| format!("{} in {}", s.words(), w.group_name(g))).collect();
        let why = match &p.absence {
            Absence::Within(what) | Absence::Over(what) => format!(" ({what})"),
            Absence::Unexplained | Absence::Unknown => String::new(),
        };
        format!("{} is {}{why}", p.node(), text::list(&words, ", "))
    };
    let named: Vec<String> = w.people.iter().filter(|p| !p.in_service()).map(one).collect();
    if named.is_empty() { "no other member is known".to_owned() } else { text::list(&named, "; ") }
}

/// `below-minimum` and `below-floor`, by one read.
pub(super) fn count(w: &World<'_>, draft: &mut Draft) {
    let (least, most) = in_service(w);
    let (minimum, floor) = (w.settings.minimum_healthy, w.settings.minimum_during_patch);
    let read = count_read(w);
    let of = match w.members {
        Some(_) => format!("of {} members", w.people.len()),
        None => "of targets that may be members (members cannot be read)".to_owned(),
    };
    let most_words = if least == most { format!("{most}") } else { format!("at most {most}") };
    let counted = |what: &str, n: u32| format!("{most_words} {of} in service, {what} {n}: {}", missing(w));
    // Nobody is out, and there never were enough members: a fleet that is being set up.
    let nobody_out = w.members.is_some() && w.people.iter().all(Person::in_service);
    let set_up = if nobody_out && w.set_up { w.settings.grace_ms } else { 0 };
    if most < floor {
        let found = Candidate::new(Kind::BelowFloor, w.sight.fleet, counted("floor", floor), read);
        draft.find(found.after(set_up));
        // The worse of the two is told; the other one is neither raised nor resolved.
        draft.leave(Kind::BelowMinimum, w.sight.fleet);
        return;
    }
    if least < floor {
        draft.cannot(&[Kind::BelowFloor]);
    }
    if most >= minimum {
        if least < minimum {
            draft.cannot(&[Kind::BelowMinimum]);
        }
        return;
    }
    let explained = w.people.iter().filter(|p| !p.in_service() && matches!(p.absence, Absence::Within(_))).count();
    if most.saturating_add(number(explained)) >= minimum {
        draft.plan(Kind::BelowMinimum, w.sight.fleet);
        return;
    }
    let found = Candidate::new(Kind::BelowMinimum, w.sight.fleet, counted("minimum", minimum), read);
    let unknown = w.record.is_none();
    draft.find(found.after(set_up).after(if unknown { w.settings.unknown_plan_after_ms } else { 0 }));
}

/// More members deregistered than the record explains.
pub(super) fn beside_the_record(w: &World<'_>, draft: &mut Draft) {
    let kind = Kind::MoreOutThanSlots;
    let (Some((record, begun)), Some(_), Some(_)) = (w.record, w.members, w.groups_read()) else {
        draft.cannot(&[kind]);
        return;
    };
    let max = w.settings.max_unavailable;
    let slots = number(record.slots.len());
    if slots > max {
        let nodes: Vec<&str> = record.slots.values().map(|s| s.node.as_str()).collect();
        let what = format!("{slots} slots are taken, max_unavailable is {max}: {}", text::list(&nodes, ", "));
        draft.find(Candidate::new(kind, w.sight.fleet, what, begun));
        return;
    }
    let gone = |p: &&Person<'_>| p.at.iter().any(|s| s.gone() && *s != Standing::NoTarget);
    let planned = |i: &InstanceId| record.slots.contains_key(i) || record.holds.contains_key(i);
    let explained =
        |p: &Person<'_>| matches!(p.absence, Absence::Within(_)) && !record.slots.contains_key(&p.member.instance);
    let counted: Vec<&Person<'_>> = w.people.iter().filter(gone).filter(|p| !explained(p)).collect();
    let beside: Vec<&str> = counted.iter().filter(|p| !planned(&p.member.instance)).map(|p| p.node()).collect();
    if number(counted.len()) > max && !beside.is_empty() {
        let what = format!(
            "{} members are deregistered, max_unavailable is {max}; no slot, hold or latch explains {}: something else \
             takes nodes out",
            counted.len(),
            text::list(&beside, ", ")
        );
        draft.find(Candidate::new(kind, w.sight.fleet, what, count_read(w)));
    } else if w.people.iter().any(|p| p.at.contains(&Standing::Unknown)) {
        draft.leave(kind, w.sight.fleet);
    }
}

/// Agents that run with other numbers or groups than the others. One finding about the fleet, alike in the eyes of all.
pub(super) fn config(w: &World<'_>, draft: &mut Draft) {
    let Some(begun) = w.members else {
        draft.cannot(&[Kind::ConfigDiffers]);
        return;
    };
    let s = w.settings;
    let own_numbers = (Some(s.minimum_healthy), Some(s.minimum_during_patch), Some(s.max_unavailable));
    let says = |p: &Person<'_>| {
        let says = &p.member.says;
        (says.minimum_healthy, says.minimum_during_patch, says.max_unavailable)
    };
    let groups = w.sight.groups;
    let alike = |p: &&Person<'_>| {
        let numbers = says(p) == own_numbers || says(p).0.is_none();
        numbers && p.member.targets.len() == groups.len() && !p.at.contains(&Standing::NoTarget)
    };
    let beats = |p: &&Person<'_>| !p.heart.is_some_and(|h| h.silent(s.silent_after_ms));
    if w.people.iter().filter(beats).all(|p| alike(&p)) {
        return;
    }
    let mut by: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for p in w.people.iter().filter(beats) {
        let told = |n: Option<u32>| n.map_or("not said".to_owned(), |n| n.to_string());
        let (healthy, during, out) = says(p);
        let mut names: Vec<&str> = p.member.targets.iter().map(|t| t.group.name()).collect();
        names.sort_unstable();
        let config = format!(
            "minimum_healthy {}, minimum_during_patch {}, max_unavailable {}, groups {}",
            told(healthy),
            told(during),
            told(out),
            text::list(&names, ", ")
        );
        by.entry(config).or_default().push(p.node());
    }
    let told: Vec<String> =
        by.iter().map(|(config, nodes)| format!("{} with {config}", text::list(nodes, ", "))).collect();
    let what = format!("agents of this fleet run with different configs: {}", text::list(&told, "; "));
    draft.find(Candidate::new(Kind::ConfigDiffers, w.sight.fleet, what, begun).after(s.grace_ms));
}
