//! Heartbeats of members, by this agent's clock: only a change that this agent saw itself is one.

use super::ids::InstanceId;
use super::member::Member;
use super::time::{BootId, Now};
use std::collections::BTreeMap;

/// More members than this are not followed; a target group takes a thousand targets.
pub const HEARTS_MAX: usize = 4_096;
/// Boots remembered per member, to tell two agents that take turns from one that was restarted.
const BOOTS_KEPT: usize = 3;
/// What counts as two agents: a return to an earlier boot at once, a beat that goes back (which a lagging read may show
/// once) the second time.
const TWO_AGENTS: u32 = 2;
/// So many beats of those that it promised are missed before a member is silent.
const BEATS_MISSED: u64 = 3;

/// One member's heart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heart {
    /// The last beat that was seen.
    pub beat: u64,
    /// In which boot.
    pub boot: BootId,
    /// When it was last seen to change: when the read that showed the change began.
    pub changed: Now,
    /// When the read before that one began: the beat was written after it.
    pub before: Option<Now>,
    /// When the last read of it began.
    pub read: Now,
    /// Its own promise: the next beat within this time; 0 = not said.
    pub every_ms: u64,
    /// First sight by this agent.
    pub first: Now,
    /// How long it had been a member by then, by its own count of beats.
    pub first_age_ms: u64,
    earlier: Vec<BootId>,
    odd: u32,
    odd_at: Option<Now>,
}

impl Heart {
    fn new(m: &Member, begun: &Now, usual_ms: u64) -> Heart {
        let every = if m.says.beat_every_ms == 0 { usual_ms } else { m.says.beat_every_ms };
        Heart {
            beat: m.beat,
            boot: m.boot.clone(),
            changed: begun.clone(),
            before: None,
            read: begun.clone(),
            every_ms: m.says.beat_every_ms,
            first: begun.clone(),
            first_age_ms: m.beat.saturating_mul(every),
            earlier: Vec::new(),
            odd: 0,
            odd_at: None,
        }
    }

    fn see(&mut self, m: &Member, begun: &Now) {
        let changed = self.beat != m.beat || self.boot != m.boot;
        if self.boot != m.boot {
            if self.earlier.contains(&m.boot) {
                self.note_odd(TWO_AGENTS, begun);
            }
            self.earlier.retain(|b| *b != m.boot && *b != self.boot);
            let over = self.earlier.len().saturating_sub(BOOTS_KEPT.saturating_sub(1));
            self.earlier.drain(..over);
            self.earlier.push(std::mem::replace(&mut self.boot, m.boot.clone()));
        } else if m.beat < self.beat {
            self.note_odd(1, begun);
        }
        if changed {
            self.before = Some(self.read.clone());
            self.changed = begun.clone();
            self.beat = m.beat;
        }
        self.every_ms = m.says.beat_every_ms;
        self.read = begun.clone();
    }

    fn note_odd(&mut self, weight: u32, at: &Now) {
        self.odd = self.odd.saturating_add(weight);
        self.odd_at = Some(at.clone());
    }

    /// How long it must not have beaten to be called silent.
    pub fn silent_after_ms(&self, least_ms: u64) -> u64 {
        self.every_ms.saturating_mul(BEATS_MISSED).max(least_ms)
    }

    /// How long it had not beaten as it was last read. What was not read proves no silence.
    pub fn still_ms(&self) -> u64 {
        self.read.since(&self.changed).unwrap_or(0)
    }

    /// It does not beat.
    pub fn silent(&self, least_ms: u64) -> bool {
        self.still_ms() >= self.silent_after_ms(least_ms)
    }

    /// Two agents write as this member, as seen within the last `within_ms`.
    pub fn two(&self, now: &Now, within_ms: u64) -> bool {
        self.odd >= TWO_AGENTS && self.odd_at.as_ref().and_then(|at| now.since(at)).is_some_and(|ms| ms < within_ms)
    }

    /// Still within its start-up grace.
    pub fn young(&self, now: &Now, grace_ms: u64) -> bool {
        let seen = now.since(&self.first).unwrap_or(u64::MAX);
        self.first_age_ms.saturating_add(seen) < grace_ms
    }
}

/// All members' hearts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hearts(BTreeMap<InstanceId, Heart>);

impl Hearts {
    /// Takes in a complete answer about all members; those that are no members any more are forgotten. `usual_ms` is how
    /// often a member beats that does not say.
    pub fn see_all(&mut self, members: &[Member], begun: &Now, usual_ms: u64) {
        self.see_some(members, begun, usual_ms);
        self.0.retain(|_, h| h.read == *begun);
    }

    /// Takes in the documents of some members.
    pub fn see_some(&mut self, members: &[Member], begun: &Now, usual_ms: u64) {
        for m in members {
            let room = self.0.len() < HEARTS_MAX;
            match self.0.get_mut(&m.instance) {
                Some(heart) => heart.see(m, begun),
                None if room => {
                    self.0.insert(m.instance.clone(), Heart::new(m, begun, usual_ms));
                }
                None => {}
            }
        }
    }

    /// One member's.
    pub fn get(&self, instance: &InstanceId) -> Option<&Heart> {
        self.0.get(instance)
    }

    /// All, in the order of their instance ids.
    pub fn iter(&self) -> impl Iterator<Item = (&InstanceId, &Heart)> {
        self.0.iter()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::member::Says;
    use super::super::record::Extra;
    use super::*;

    fn at(ms: u64) -> Now {
        Now { wall_ms: 0, boot: BootId("me".into()), since_boot_ms: ms }
    }

    fn member(beat: u64, boot: &str, every_ms: u64) -> Member {
        Member {
            schema: 1,
            instance: "i-1".into(),
            node: "node-1".into(),
            targets: Vec::new(),
            agent: "1".into(),
            reads_schema: 1,
            boot: BootId(boot.into()),
            beat,
            doing: "".into(),
            at_ms: 0,
            node_id: None,
            address: None,
            sees: Vec::new(),
            record: None,
            says: Says { beat_every_ms: every_ms, ..Says::default() },
            told: Vec::new(),
            extra: Extra::new(),
        }
    }

    /// Reads of one member, 15 s apart.
    fn seen(documents: &[(u64, &str)]) -> (Heart, Now) {
        let mut hearts = Hearts::default();
        let mut now = at(0);
        for (beat, boot) in documents {
            now = now.plus(15_000);
            hearts.see_all(&[member(*beat, boot, 15_000)], &now, 15_000);
        }
        (hearts.get(&"i-1".into()).unwrap().clone(), now)
    }

    #[test]
    fn only_a_beat_that_was_read_again_and_did_not_change_is_silent() {
        let mut hearts = Hearts::default();
        hearts.see_all(&[member(7, "a", 15_000)], &at(0), 15_000);
        let silent = |h: &Hearts| h.get(&"i-1".into()).unwrap().silent(40_000);
        assert!(!silent(&hearts), "what is not read proves nothing, however long that is");
        hearts.see_all(&[member(7, "a", 15_000)], &at(44_999), 15_000);
        assert!(!silent(&hearts), "three of its own promises");
        hearts.see_all(&[member(7, "a", 15_000)], &at(45_000), 15_000);
        assert!(silent(&hearts));
        hearts.see_some(&[member(8, "a", 250_000)], &at(50_000), 15_000);
        hearts.see_all(&[member(8, "a", 250_000)], &at(799_999), 15_000);
        assert!(!silent(&hearts), "a slower promise");
        hearts.see_all(&[member(8, "a", 250_000)], &at(800_000), 15_000);
        assert!(silent(&hearts));
        hearts.see_all(&[member(1, "b", 15_000)], &at(801_000), 15_000);
        assert!(!silent(&hearts), "another boot is a change, whatever its count");
        hearts.see_all(&[], &at(900_000), 15_000);
        assert!(hearts.is_empty());
    }

    #[test]
    fn two_agents_take_turns_and_one_that_restarts_or_is_read_late_does_not() {
        let two = |documents: &[(u64, &str)]| {
            let (heart, now) = seen(documents);
            heart.two(&now, 60_000)
        };
        assert!(!two(&[(1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "d"), (6, "e")]), "restarts");
        assert!(!two(&[(5, "a"), (4, "a"), (6, "a")]), "a lagging read shows an older beat once");
        assert!(two(&[(5, "a"), (4, "a"), (6, "a"), (5, "a")]));
        assert!(two(&[(5, "a"), (6, "b"), (6, "a")]));
        let (heart, now) = seen(&[(5, "a"), (6, "b"), (6, "a")]);
        assert!(!heart.two(&now.plus(60_000), 60_000), "long ago");
    }

    #[test]
    fn a_member_is_young_by_its_own_count_of_beats_and_then_by_this_agents_clock() {
        let (heart, now) = seen(&[(4, "a")]);
        assert!(heart.young(&now, 61_000) && !heart.young(&now, 60_000));
        assert!(heart.young(&now.plus(30_000), 91_000) && !heart.young(&now.plus(30_000), 90_000));
    }

    #[test]
    fn no_more_hearts_are_followed_than_there_is_room_for() {
        let mut hearts = Hearts::default();
        let many = |n: usize| Member { instance: format!("i-{n}").as_str().into(), ..member(1, "a", 0) };
        let members: Vec<Member> = (0..HEARTS_MAX + 10).map(many).collect();
        hearts.see_all(&members, &at(1), 15_000);
        assert_eq!(hearts.len(), HEARTS_MAX);
    }
}
