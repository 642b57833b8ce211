//! Is the quotient sound? Long random histories with whole values (running clocks, texts, pages) beside the same histories
//! with quotient values: after each step the first, reduced, must be the second. And node numbers must carry no meaning.
use super::*;

/// A small generator of its own: the same walks on every machine.
pub struct Dice(pub u64);
impl Dice {
    pub fn roll(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

impl Fleet {
    /// What a world of whole values is in this fleet's quotient.
    fn reduced(&self, w: &World) -> World {
        let mut r = *w;
        for n in r.node.iter_mut().take(self.f.n) {
            let now = self.t.names.now(n.clock);
            n.ram = n.ram.map(|ram| self.t.ram(&ram.disk.d, &ram.v, &ram.now));
            n.disk = self.t.reduced_disk(&n.disk.d, &now);
            n.clock = Clock::ZERO;
        }
        r.rec = self.t.sheet_record(&w.rec.sheet);
        r.late = None; // it carries clock readings; where it lands its effect is compared
        r
    }
}

impl Fleet {
    /// With running clocks the deadline of what is stored may have passed by itself.
    fn boots_late(&self, w: &World, i: usize) -> bool {
        let n = &w.node[i];
        let now = self.t.names.now(n.clock);
        n.disk.d.cycle.as_ref().is_some_and(|c| c.deadline.due(&now))
    }
}

/// Three times out of four something ordinary, so that histories get somewhere.
fn pick(acts: &[Act], dice: &mut Dice) -> Act {
    use Act::*;
    let ordinary = |a: &&Act| {
        matches!(
            a,
            Run(_) | Turn(_, How::Clean) | Progress(..) | JobEnds(_, Job::Good) | Boot(_) | Restarts(_) | Reconcile(_)
        )
    };
    let some: Vec<Act> = acts.iter().filter(ordinary).copied().collect();
    if some.is_empty() || dice.roll(4) == 0 { acts[dice.roll(acts.len())] } else { some[dice.roll(some.len())] }
}

fn without_late(w: &World) -> World {
    World { late: None, ..*w }
}

/// Returns how many steps were compared.
pub fn side_by_side(f: Config, seed: u64, steps: usize) -> usize {
    let f = Config { symmetric: false, ..f };
    let (small, whole) = (Fleet::new(f), Fleet::whole(f));
    let (mut a, mut b) = (small.init(), whole.init());
    for i in f.n..NODES {
        b.node[i] = a.node[i]; // not part of it
    }
    let mut dice = Dice(seed);
    let mut history = Vec::new();
    for step in 0..steps {
        let mut acts = Vec::new();
        small.possible(&a, &mut acts);
        acts.retain(|act| small.step(&a, *act).is_some_and(|next| next != a));
        if acts.is_empty() {
            return step;
        }
        let mut act = pick(&acts, &mut dice);
        if let Act::Boot(i) = act
            && whole.boots_late(&b, i)
        {
            act = Act::BootLate(i);
        }
        history.push(act);
        a = small.step(&a, act).expect("it was possible");
        b = whole.step(&b, act).unwrap_or_else(|| panic!("not possible with whole values: {history:?}"));
        for i in 0..f.n {
            // Whole values change in pages too, which a full disk refuses.
            let holds = |w: &World| w.node[i].ram.is_some_and(|r| r.disk.holds());
            if holds(&a) && !holds(&b) {
                a = small.step(&a, Act::PageNotStored(i)).expect("it is possible");
            }
        }
        let r = small.reduced(&b);
        let rest = |w: &World| (w.rec.sheet, w.store, w.faults, w.verbs, w.outside, w.bad);
        assert_eq!(rest(&r), rest(&a), "after {history:?}");
        for i in 0..f.n {
            let (x, y) = (&r.node[i], &a.node[i]);
            assert_eq!(x.disk.d, y.disk.d, "stored by node {i} after {history:?}");
            assert_eq!(x.ram.map(|r| &r.value().v), y.ram.map(|r| &r.value().v), "node {i} after {history:?}");
            assert!(
                x == y,
                "node {i} after {history:?}: {:?} {:?}\n{:?} {:?}",
                x.disk.d.cycle,
                x.ram,
                y.disk.d.cycle,
                y.ram
            );
        }
        assert_eq!(without_late(&r), without_late(&a), "after {history:?}");
        assert_eq!(a.late.map(|l| l.0), b.late.map(|l| l.0), "after {history:?}");
    }
    steps
}

fn other_name(act: Act, to: &[usize; NODES]) -> Act {
    use Act::*;
    match act {
        Run(i) => Run(to[i]),
        Turn(i, how) => Turn(to[i], how),
        Reconcile(i) => Reconcile(to[i]),
        Deadline(i) => Deadline(to[i]),
        HoldEnds(i) => HoldEnds(to[i]),
        Crash(i) => Crash(to[i]),
        Boot(i) => Boot(to[i]),
        BootLate(i) => BootLate(to[i]),
        Persist(i) => Persist(to[i]),
        PageNotStored(i) => PageNotStored(to[i]),
        Progress(i, g) => Progress(to[i], g),
        JobEnds(i, j) => JobEnds(to[i], j),
        JobLeavesSick(i) => JobLeavesSick(to[i]),
        Heal(i) => Heal(to[i]),
        Restarts(i) => Restarts(to[i]),
        PowerFails(i) => PowerFails(to[i]),
        Stall(i) => Stall(to[i]),
        DiskFull(i) => DiskFull(to[i]),
        DiskFree(i) => DiskFree(to[i]),
        Deregistered(i, g) => Deregistered(to[i], g),
        Registered(i, g) => Registered(to[i], g),
        Dies(i) => Dies(to[i]),
        PeerLatches(i) => PeerLatches(to[i]),
        Expire(i, c) => Expire(to[i], c),
        HoldVanishes(i) => HoldVanishes(to[i]),
        Retire(i) => Retire(to[i]),
        Clear(i, c) => Clear(to[i], c),
        Hold(i) => Hold(to[i]),
        Rejoin(i) => Rejoin(to[i]),
        StoreDown | StoreUp | Land | Lose => act,
    }
}

/// The same history under other names is the same history.
pub fn names_carry_no_meaning(f: Config, seed: u64, steps: usize) {
    let m = Fleet::new(Config { symmetric: false, ..f });
    let (mut w, mut dice) = (m.init(), Dice(seed));
    for _ in 0..steps {
        let mut acts = Vec::new();
        m.possible(&w, &mut acts);
        acts.retain(|act| m.step(&w, *act).is_some_and(|next| next != w));
        if acts.is_empty() {
            return;
        }
        let act = pick(&acts, &mut dice);
        let next = m.step(&w, act).expect("it was possible");
        for p in 0..if f.n == 3 { 6 } else { 2 } {
            let to = &PERMUTED[usize::from(p)];
            let other = m.step(&m.renamed(&w, p), other_name(act, to));
            assert_eq!(other, Some(m.renamed(&next, p)), "{act:?} under {to:?}");
        }
        w = next;
    }
}
