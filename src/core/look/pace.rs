//! How often one agent does what, at present.

use super::super::finding::Kind;
use super::super::heart::Hearts;
use super::super::ids::{InstanceId, NodeName};
use super::super::member::Member;
use super::super::time::Now;
use super::throttle::Throttle;

/// Members that read whole groups.
pub const READERS: usize = 3;
/// Members in line: the readers, and who takes over.
pub const WATCHED: usize = 6;
/// The own-target reads of all others are at most this part of the readers' calls.
pub const OWN_SHARE: u64 = 16;
/// Own-target reads of a whole fleet below its floor, per second and group.
pub const FLEET_OWN_PER_S: u64 = 5;
/// Beats of those that are not in line, per second.
pub const BEATS_PER_S: u64 = 4;
/// Reads of the documents in line, per second.
pub const WATCHES_PER_S: u64 = 20;
/// Documents that those not in line read per second when they read all.
pub const DOCUMENTS_PER_S: u64 = 200;
/// Who does not know the others reads whole groups this much more seldom.
const UNKNOWN_STRETCH: u64 = 2;
/// The cluster's list of client nodes, beside each look at whole groups.
const NODES_STRETCH: u64 = 2;

/// What an agent knows as it plans.
#[derive(Clone, Copy, Debug)]
pub struct Looker<'a> {
    /// This instance.
    pub me: &'a InstanceId,
    /// This node.
    pub node: &'a NodeName,
    /// Fleet.
    pub fleet: &'a str,
    /// Members as they are known, whatever the age of that, in the order of their instance ids; empty = never read.
    pub members: &'a [Member],
    /// How many members there are, as last known.
    pub size: usize,
    /// Their hearts.
    pub hearts: &'a Hearts,
    /// Something is going on here: a cycle, a hold.
    pub busy: bool,
    /// Out of service at its last read of its own targets.
    pub out: bool,
    /// Of the load balancer.
    pub balancer: Throttle,
    /// Of the store of record and members.
    pub store: Throttle,
    /// Between two looks at whole groups.
    pub every_ms: u64,
    /// As in `reconcile::Settings`.
    pub silent_after_ms: u64,
}

/// What an agent reads of the load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Whole groups, and its own target by name where the list does not show it.
    Whole,
    /// Its own target by name.
    OwnOnly,
}

/// How often, in ms; `None` = not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    /// What is read of the load balancer.
    pub role: Role,
    /// Whole groups.
    pub groups_ms: Option<u64>,
    /// Own target by name, as a read of its own.
    pub own_ms: Option<u64>,
    /// The cluster's list of client nodes.
    pub nodes_ms: Option<u64>,
    /// Its beat; also what the beat promises.
    pub beat_ms: u64,
    /// The documents of these members, by id; a store that cannot do that reads all.
    pub watched: Vec<InstanceId>,
    /// How often those.
    pub watch_ms: u64,
    /// All member documents.
    pub members_ms: u64,
    /// The fleet record.
    pub record_ms: u64,
}

/// The members in line, without this one, and this one's place among the live ones (no lower place is told apart from the
/// first that is not in line).
fn in_line<'a>(l: &Looker<'a>) -> (Vec<&'a Member>, usize) {
    let silent = |m: &Member| l.hearts.get(&m.instance).is_some_and(|h| h.silent(l.silent_after_ms));
    let others = l.members.iter().filter(|m| m.instance != *l.me && !silent(m));
    let mut line: Vec<&Member> = others.take(WATCHED).collect();
    let rank = line.iter().filter(|m| m.instance < *l.me).count();
    if rank < WATCHED {
        line.truncate(WATCHED.saturating_sub(1));
    }
    (line, rank)
}

/// What live members in line tell of this node: about itself, and about the whole fleet.
fn told(l: &Looker<'_>, line: &[&Member]) -> (bool, bool) {
    let (mut own, mut fleet) = (false, false);
    for find in line.iter().flat_map(|m| &m.says.finds) {
        let Some((kind, subject)) = find.split_once('/') else { continue };
        let about_targets = || Kind::ALL.iter().any(|k| k.about_a_target() && k.label() == kind);
        own |= subject == l.node.as_str() && about_targets();
        fleet |= kind == Kind::BelowFloor.label() && subject == l.fleet;
    }
    (own, fleet)
}

/// The pace of this agent at present.
pub fn pace(l: &Looker<'_>) -> Pace {
    let (line, rank) = in_line(l);
    let n = u64::try_from(l.size.max(1)).unwrap_or(u64::MAX);
    let watched: Vec<InstanceId> = line.iter().map(|m| m.instance.clone()).collect();
    let (own_told, fleet_told) = told(l, &line);
    let unknown = l.members.is_empty();
    let role = if rank < READERS { Role::Whole } else { Role::OwnOnly };
    let in_line = rank < WATCHED;
    // At most so many a second from all of them together, and never more often than the usual pace.
    let shared = |per_s: u64| n.saturating_mul(1_000).div_ceil(per_s).max(l.every_ms);
    let nudged = own_told || l.out;
    let groups = if unknown { l.every_ms.saturating_mul(UNKNOWN_STRETCH) } else { l.every_ms };
    let own = match (fleet_told, nudged) {
        (true, _) => shared(FLEET_OWN_PER_S),
        (false, true) => l.every_ms,
        (false, false) => own_at_rest(l.every_ms, n),
    };
    let awake = in_line || l.busy || nudged;
    let whole = role == Role::Whole;
    let store = |ms: u64| l.store.stretch(ms);
    let (watch, all) = (shared(WATCHES_PER_S), n.saturating_mul(n).saturating_mul(1_000).div_ceil(DOCUMENTS_PER_S));
    Pace {
        role,
        groups_ms: whole.then(|| l.balancer.stretch(groups)),
        own_ms: (!whole).then(|| l.balancer.stretch(own)),
        nodes_ms: whole.then(|| groups.saturating_mul(NODES_STRETCH)),
        beat_ms: store(if awake { l.every_ms } else { shared(BEATS_PER_S) }),
        watched,
        watch_ms: store(if in_line { l.every_ms } else { watch }),
        members_ms: store(if whole { l.every_ms } else { all.max(l.every_ms) }),
        record_ms: store(if in_line { l.every_ms } else { watch }),
    }
}

/// So seldom that all others together stay within their share of the readers' calls.
fn own_at_rest(every_ms: u64, size: u64) -> u64 {
    let readers = u64::try_from(READERS).unwrap_or(1).max(1);
    let share = every_ms.saturating_mul(OWN_SHARE).saturating_mul(size.saturating_sub(readers)).div_ceil(readers);
    share.max(every_ms)
}

/// Spreads `ms` by a tenth either way, by a random number.
pub(super) fn jittered(ms: u64, jitter: u64) -> u64 {
    let spread = ms.checked_div(5).unwrap_or(0).max(1);
    let least = ms.saturating_sub(spread.checked_div(2).unwrap_or(0));
    least.saturating_add(jitter.checked_rem(spread).unwrap_or(0))
}

/// Whether `at` is still within `ms`.
pub(super) fn within(at: &Now, ms: u64, now: &Now) -> bool {
    now.since(at).is_some_and(|passed| passed < ms)
}

#[cfg(test)]
mod tests;
