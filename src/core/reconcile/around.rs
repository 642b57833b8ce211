//! Findings about who is there at all: silent agents, nodes without one, targets of nobody, two of one identity; and about
//! patches that do not happen.

use super::super::finding::Kind;
use super::super::time::Now;
use super::memory::{Candidate, Draft};
use super::standing::{Standing, of_row};
use super::text;
use super::world::{Person, World};
use std::collections::BTreeMap;

/// Judges what members' documents, the cluster's list and strange rows say.
pub(super) fn judge(w: &World<'_>, draft: &mut Draft) {
    match w.members {
        None => draft.cannot(&[Kind::AgentSilent, Kind::TwoWithOneIdentity, Kind::PatchOverdue, Kind::PatchRefused]),
        Some(begun) => {
            for p in &w.people {
                silent(w, p, begun, draft);
                identity(w, p, begun, draft);
            }
            patches(w, begun, draft);
        }
    }
    strangers(w, draft);
    foreign(w, draft);
}

fn silent(w: &World<'_>, p: &Person<'_>, begun: &Now, draft: &mut Draft) {
    let Some(heart) = p.heart else {
        draft.leave(Kind::AgentSilent, p.node());
        return;
    };
    if w.is_me(p) || !heart.silent(w.settings.silent_after_ms) {
        return;
    }
    // A holder of a slot restarts its machine, a held node may be off.
    let record = w.sight.record.answer.map(|(r, _)| r);
    let instance = &p.member.instance;
    let planned = record.is_some_and(|r| {
        let slot = r.slots.get(instance);
        let slot = slot.is_some_and(|s| w.sight.slot_ms(s, w.settings, w.now) < s.budget_s.saturating_mul(1_000));
        let hold = r.holds.get(instance);
        slot || hold.is_some_and(|h| w.sight.hold_ms(instance, h, w.settings, w.now) < h.for_s.saturating_mul(1_000))
    });
    if planned {
        draft.leave(Kind::AgentSilent, p.node());
        return;
    }
    let due = text::span(heart.silent_after_ms(w.settings.silent_after_ms));
    let what = format!("the agent of {} has not written its beat for more than {due}", p.node());
    let unknown = w.record.is_none();
    let found = Candidate::new(Kind::AgentSilent, p.node(), what, begun);
    draft.find(found.after(if unknown { w.settings.unknown_plan_after_ms } else { 0 }));
}

fn identity(w: &World<'_>, p: &Person<'_>, begun: &Now, draft: &mut Draft) {
    let m = p.member;
    let not_mine = w.sight.wrote.filter(|_| w.is_me(p)).is_some_and(|wrote| {
        let after = begun.since(&wrote.since).is_some();
        after && (m.boot != wrote.boot || m.beat > wrote.beat)
    });
    let within = w.settings.blind_after_ms.max(w.settings.silent_after_ms);
    let turns = p.heart.is_some_and(|h| h.two(w.now, within));
    if not_mine || turns {
        let (node, instance) = (p.node(), &m.instance);
        let what = if not_mine {
            format!("another agent writes the document of {node}: it, too, says that it is {instance}")
        } else {
            format!("two agents take turns as {node}: both say that they are {instance}")
        };
        // By the instance: each of them may call its node as it likes, and neither has the finding to itself.
        draft.find(Candidate::new(Kind::TwoWithOneIdentity, instance.as_str(), what, begun));
    }
}

fn patches(w: &World<'_>, begun: &Now, draft: &mut Draft) {
    if let Some(limit) = w.settings.refused_after_ms {
        for p in &w.people {
            let since = p.member.says.refused_since_ms.filter(|at| w.now.wall_ms.saturating_sub(*at) >= limit);
            if since.is_some() {
                let what = format!("every patch of {} was refused for more than {}", p.node(), text::span(limit));
                draft.find(Candidate::new(Kind::PatchRefused, p.node(), what, begun));
            }
        }
    }
    let Some(limit) = w.settings.patch_overdue_after_ms else { return };
    let Some((record, _)) = w.record else {
        draft.cannot(&[Kind::PatchOverdue]);
        return;
    };
    let old = |at: Option<u64>| at.is_some_and(|at| w.now.wall_ms.saturating_sub(at) >= limit);
    let mut good: Option<BTreeMap<&str, u64>> = None;
    for p in &w.people {
        let says = &p.member.says;
        let known = says.patched_ms.max(says.joined_ms);
        if known.is_some() && !old(known) {
            continue;
        }
        let good = good.get_or_insert_with(|| {
            let ended = record.finished.iter().filter(|f| f.good).map(|f| (f.node.as_str(), f.at_ms));
            let mut last = BTreeMap::new();
            ended.for_each(|(node, at)| {
                let newest: &mut u64 = last.entry(node).or_insert(at);
                *newest = at.max(*newest);
            });
            last
        });
        match known.max(good.get(p.node()).copied()) {
            None => draft.leave(Kind::PatchOverdue, p.node()),
            at if old(at) => {
                let what = format!("{} had no successful cycle for more than {}", p.node(), text::span(limit));
                draft.find(Candidate::new(Kind::PatchOverdue, p.node(), what, begun));
            }
            Some(_) => {}
        }
    }
}

/// Client nodes of the cluster that are no members.
fn strangers(w: &World<'_>, draft: &mut Draft) {
    let (Some((nodes, begun)), Some(_)) = (w.nodes, w.members) else {
        draft.cannot(&[Kind::NodeWithoutAgent]);
        return;
    };
    // Whose instance was retired is not known.
    if w.record.is_none() {
        draft.cannot(&[Kind::NodeWithoutAgent]);
    }
    for (node, _) in nodes.iter().zip(&w.matched).filter(|(n, matched)| !**matched && !w.settings.other(&n.name)) {
        let what =
            format!("the cluster lists the client node {} at {}, which has no backstop agent", node.name, node.address);
        draft.find(Candidate::new(Kind::NodeWithoutAgent, &node.name, what, begun).after(w.settings.grace_ms));
    }
}

/// Targets that belong to nobody. A new node may be registered before its agent has said who it is, and one that said
/// goodbye may be listed for a while.
fn foreign(w: &World<'_>, draft: &mut Draft) {
    let Some(begun) = w.groups_read().filter(|_| w.members.is_some()) else {
        draft.cannot(&[Kind::ForeignTarget]);
        return;
    };
    if w.record.is_none() {
        draft.cannot(&[Kind::ForeignTarget]);
    }
    for s in w.strays.iter().filter(|s| s.person.is_none()) {
        let standing = of_row(s.row);
        if matches!(standing, Standing::Draining | Standing::Absent) {
            continue;
        }
        let port = s.row.port.map_or("?".to_owned(), |p| p.to_string());
        let subject = format!("{} {}:{port}", w.group_name(s.group), s.row.id);
        let what = format!("{subject} ({}) belongs to no member; it is not counted and not removed", standing.words());
        draft.find(Candidate::new(Kind::ForeignTarget, &subject, what, begun).after(w.settings.grace_ms));
    }
}
