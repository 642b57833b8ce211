//! The fair continuation: faults have ended, everybody takes turns, deadlines pass where nothing moves.
//!
//! It is a function of the world, so a world that came home once is not followed again.
use super::intern::Quickly;
use super::*;
use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::RwLock;

const ROUNDS: usize = 150;
const SHARDS: usize = 32;

/// Fingerprints of worlds that are known to come home.
pub struct Homes {
    known: Vec<RwLock<HashSet<u64, Quickly>>>,
}
impl Default for Homes {
    fn default() -> Self {
        Homes { known: (0..SHARDS).map(|_| RwLock::default()).collect() }
    }
}
impl Homes {
    fn key(&self, w: &World, alone: Option<usize>) -> u64 {
        Quickly::default().hash_one((w, alone))
    }
    fn knows(&self, key: u64) -> bool {
        self.known[key as usize % SHARDS].read().unwrap().contains(&key)
    }
    fn learn(&self, key: u64) {
        self.known[key as usize % SHARDS].write().unwrap().insert(key);
    }
}

impl Fleet {
    /// Everything that the continuation does not depend on, taken out.
    fn stripped(&self, w: &World, alone: Option<usize>) -> World {
        let mut w = *w;
        (w.faults, w.verbs, w.outside, w.bad, w.late, w.store) = (0, 0, false, None, None, alone.is_none());
        let nobody = &self.start;
        for (i, n) in w.node.iter_mut().enumerate() {
            (n.sick, n.full, n.before, n.started) = (false, alone.is_some(), n.target, 0);
            (n.left, n.away, n.excused, n.foreign, n.restarted, n.looked) = Default::default();
            (n.failed, n.cleared) = (0, 0);
            if alone.is_some_and(|a| a != i) {
                let target = if self.f.silent { n.target } else { [Lb::Out; GROUPS] };
                *n = Node { target, before: target, ..nobody.node[i] };
            }
        }
        if alone.is_some() {
            w.rec = nobody.rec;
        }
        w
    }

    /// Does everybody come home, and is every slot and hold given back?
    pub fn comes_home(&self, w: &World, land: bool) -> bool {
        let mut start = *w;
        match (land, w.late) {
            (true, None) => return true,
            (true, Some((i, op))) => _ = self.write(&mut start, usize::from(i), op),
            (false, _) => {}
        }
        self.follow(&self.canonical(self.stripped(&start, None)), None, |e| {
            let s = &e.rec.sheet;
            let home = |n: &Node| {
                (!n.alive || self.serves(n)) && n.ram.is_none_or(|r| r.disk.stage.is_none() && r.disk == n.disk)
            };
            s.slot == [0; NODES] && s.hold == [false; NODES] && e.node.iter().take(self.f.n).all(home)
        })
    }

    /// Does this node come home though neither store nor disk ever come back, and nobody else moves?
    pub fn comes_home_alone(&self, w: &World, i: usize) -> bool {
        self.follow(&self.stripped(w, Some(i)), Some(i), |e| self.serves(&e.node[i]))
    }

    fn follow(&self, start: &World, alone: Option<usize>, home: impl Fn(&World) -> bool) -> bool {
        let mut passed = Vec::new();
        let mut w = *start;
        for _ in 0..ROUNDS {
            let key = self.homes.key(&w, alone);
            if self.homes.knows(key) {
                break;
            }
            passed.push(key);
            let before = w;
            self.round(&mut w, alone);
            w = self.stripped(&w, alone);
            if w == before {
                if !home(&w) {
                    return false;
                }
                break;
            }
        }
        if passed.len() == ROUNDS && !home(&w) {
            return false;
        }
        passed.into_iter().for_each(|key| self.homes.learn(key));
        true
    }

    fn round(&self, w: &mut World, alone: Option<usize>) {
        for i in (0..self.f.n).filter(|&i| alone.is_none_or(|a| a == i)) {
            if !w.node[i].alive {
                if w.store && w.rec.sheet.member[i] {
                    self.retire(w, i);
                }
                continue;
            }
            let was = (w.node[i], w.rec);
            self.takes_turn(w, i);
            let moved = |w: &World| {
                let (a, b) = (w.node[i], was.0);
                (a.disk, a.ram, a.target, a.job, a.asked) != (b.disk, b.ram, b.target, b.job, b.asked) || w.rec != was.1
            };
            if !moved(w) {
                let held = w.node[i].ram.is_some_and(|r| r.disk.stage == Some(StageName::Held));
                self.learn(w, i, if held { Answer::HoldTime } else { Answer::Deadline });
            }
        }
    }

    fn takes_turn(&self, w: &mut World, i: usize) {
        let n = &mut w.node[i];
        if n.asked {
            *w = self.step(w, Act::Restarts(i)).expect("an asked machine restarts");
        }
        if w.node[i].ram.is_none() {
            w.node[i].ram = Some(self.t.boot(w.node[i].disk, w.node[i].clock));
            self.learn(w, i, Answer::Recovered);
        }
        let n = &mut w.node[i];
        if !n.full {
            n.disk = n.ram.expect("it is up").disk;
        }
        if n.job == Job::Running {
            n.job = Job::Good;
        }
        for g in 0..self.f.groups {
            if let Some(next) = self.step(w, Act::Progress(i, g)) {
                *w = next;
            }
        }
        self.reconcile(w, i);
        if let Some(a) = self.perform(w, i, How::Clean) {
            self.learn(w, i, a);
        }
    }
}
