//! What an agent's effect does, and what it learns.
use super::*;
use backstop_core_alone::heal::{Heal as HealStep, out};
use backstop_core_alone::ids::{CycleId, InstanceId};

impl Node {
    pub fn becomes(&mut self, g: usize, t: Lb) {
        if t != self.target[g] {
            self.before = self.target;
            self.target[g] = t;
        }
    }
    fn read(&self, how: How) -> Targets {
        if how == How::Stale { self.before } else { self.target }
    }
    pub fn up(&self) -> bool {
        self.alive && !self.sick && self.job != Job::Running
    }
    fn register(&mut self, g: usize) {
        if matches!(self.target[g], Lb::Out | Lb::Draining) {
            self.becomes(g, Lb::Initial);
        }
    }
    pub fn stage(&self) -> Option<StageName> {
        self.disk.stage
    }
}

impl World {
    fn broke(&mut self, rule: Bad, broken: bool) {
        if broken {
            self.bad.get_or_insert(rule);
        }
    }
    pub fn latch(&self, i: usize, cycle: u8) -> LatchState {
        self.rec.sheet.latch[i][usize::from(cycle) - 1]
    }
}

impl Fleet {
    pub fn members(&self, w: &World, f: impl Fn(&Node) -> bool) -> u8 {
        (0..self.f.n).filter(|&i| w.rec.sheet.member[i] && f(&w.node[i])).fold(0, |m, i| m | bit(i))
    }
    /// Really healthy in each group.
    pub fn serves(&self, n: &Node) -> bool {
        n.target[..self.f.groups].iter().all(|t| *t == Lb::Healthy)
    }
    pub fn healthy(&self, w: &World) -> u8 {
        self.members(w, |n| self.serves(n))
    }
    fn every_member(&self, w: &World) -> u8 {
        self.members(w, |_| true)
    }
    fn excuse_others(&self, w: &mut World, i: usize) {
        (0..self.f.n).filter(|&j| j != i).for_each(|j| w.node[j].excused = true);
    }
    pub fn leaves_outside(&self, w: &mut World, i: usize) {
        w.outside = true;
        self.excuse_others(w, i);
    }
    pub fn progress(&self, n: &mut Node, g: usize) -> bool {
        match n.target[g] {
            Lb::Draining => n.becomes(g, Lb::Out),
            Lb::Initial if n.up() => n.becomes(g, Lb::Healthy),
            _ => return false,
        }
        if self.serves(n) {
            n.away = false;
        }
        true
    }

    /// A write that the store takes: every older one whose answer was lost is void from here on.
    pub(super) fn write(&self, w: &mut World, i: usize, op: Write) -> Option<()> {
        let next = self.t.apply(w.rec, op)?;
        if op.claims && w.rec.sheet.slot[i] == 0 && self.f.rules.max_unavailable == 1 {
            // With one slot no failure can be on its way to the record while another node starts.
            let over = |w: &World, j: usize, c: u8| {
                let n = &w.node[j];
                (n.left || c < n.started) && n.failed & cycle_bit(c) != 0 && w.latch(j, c) != LatchState::Cleared
            };
            let broken = (0..self.f.n).any(|j| (1..=2).any(|c| over(w, j, c)));
            w.broke(Bad::StartOverFailure, broken);
        }
        (w.rec, w.late) = (next, None);
        Some(())
    }
    pub(super) fn operator(&self, w: &mut World, i: usize, op: Op) -> Option<()> {
        let op = self.t.op(op);
        self.write(w, i, op)
    }
    fn compare_and_set(&self, w: &mut World, i: usize, op: Write, how: How) -> Answer {
        if !w.store {
            return Answer::Unanswered;
        }
        if self.t.apply(w.rec, op).is_none() {
            return Answer::Refused;
        }
        if how == How::Late {
            w.late = Some((u8::try_from(i).unwrap(), op));
            return Answer::Unanswered;
        }
        self.write(w, i, op);
        if how == How::Lost {
            return Answer::Unanswered;
        }
        if let Some((j, c)) = op.fails {
            w.node[j].failed |= cycle_bit(c);
        }
        Answer::Acked { leavers: w.rec.leavers }
    }

    pub fn fits(&self, w: &World, todo: Todo, how: How) -> bool {
        let writes = matches!(todo, Todo::Write(_)) && w.store;
        let reads = matches!(todo, Todo::ReadOwn | Todo::ReadFleet | Todo::ReadGuards);
        let calls =
            matches!(todo, Todo::Deregister(_) | Todo::Register(_) | Todo::StartJob | Todo::Reboot | Todo::KillJob);
        match how {
            How::Clean => true,
            How::CrashAfter => todo != Todo::Tick,
            How::Lost => writes,
            How::Late => writes && w.late.is_none(),
            How::Stale | How::Unknown => reads,
            How::DoneButError => calls,
            How::Error => calls || matches!(todo, Todo::AskJob),
        }
    }

    /// Before the effect: what must be true of it.
    fn judge(&self, w: &mut World, i: usize, ram: Ram) {
        let (s, todo, v) = (ram.disk, ram.todo, &ram.v);
        let n = w.node[i];
        let committed = self.t.same(n.disk, s, &ram.now) || self.is(Mutant::EffectBeforePersist);
        w.broke(Bad::OutwardUncommitted, ram.outward && !committed);
        let owes = s.failed && s.cycle != 0 && !v.tried && !v.latched && w.store;
        let owes = owes && w.latch(i, s.cycle) == LatchState::None;
        w.broke(Bad::HomeBeforeLatch, owes && matches!(todo, Todo::Check | Todo::Register(_)));
        if matches!(todo, Todo::Deregister(_) | Todo::StartJob | Todo::Reboot) {
            let held = s.cycle == 0; // a hold: its entry is its right
            let right = if held { w.rec.sheet.hold[i] } else { w.rec.sheet.slot[i] == s.cycle };
            w.broke(Bad::StepWithoutSlot, !right);
            w.broke(Bad::StepAfterFailure, !held && n.failed & cycle_bit(s.cycle) != 0);
        }
        if matches!(todo, Todo::StartJob | Todo::Reboot) {
            let in_service = n.target[..self.f.groups].iter().any(|t| *t != Lb::Out);
            w.broke(Bad::JobInService, in_service && !n.foreign);
        }
    }

    /// Carry out the one effect the agent asks for, and say what came back.
    pub(super) fn perform(&self, w: &mut World, i: usize, how: How) -> Option<Answer> {
        let ram = w.node[i].ram?;
        if !self.fits(w, ram.todo, how) {
            return None;
        }
        self.judge(w, i, ram);
        let (done, ok) = (how != How::Error, !matches!(how, How::Error | How::DoneButError));
        Some(match ram.todo {
            Todo::Nothing | Todo::Wait => return None,
            Todo::Tick => Answer::Tick,
            Todo::Write(op) => self.compare_and_set(w, i, op, how),
            Todo::ReadRecord => self.read_record(w, i, ram),
            Todo::ReadGuards => {
                let record = self.dirty(w, i, how);
                let leavers = record.map_or(0, |r| r.leavers);
                Answer::Guards(record, self.read_fleet(w, i, how, leavers), self.every_member(w))
            }
            Todo::ReadFleet => {
                let leavers = ram.v.leavers.iter().fold(0, |b, l| b | bit(self.t.names.node(l)));
                Answer::Fleet(self.read_fleet(w, i, how, leavers), self.every_member(w))
            }
            Todo::ReadOwn => {
                let n = &mut w.node[i];
                n.looked = self.f.kinds.foreign;
                n.foreign = n.looked && how == How::Stale && n.before != n.target;
                Answer::Own(self.read_own(w, i, how))
            }
            Todo::Deregister(g) => {
                if done {
                    self.deregister(w, i, usize::from(g));
                }
                Answer::Called(g, ok)
            }
            Todo::Register(g) => {
                if done {
                    w.node[i].register(usize::from(g));
                }
                Answer::Called(g, ok)
            }
            Todo::Count => Answer::Counted,
            Todo::AskJob => Answer::Job(ok.then_some(w.node[i].job)),
            Todo::StartJob => {
                if done && w.node[i].job == Job::New {
                    w.node[i].job = Job::Running;
                }
                Answer::Started(ok)
            }
            Todo::KillJob => {
                // One that was never started is called off for good.
                if done && matches!(w.node[i].job, Job::Running | Job::New) {
                    w.node[i].job = Job::Bad;
                }
                Answer::Killed(ok)
            }
            Todo::Reboot => {
                w.node[i].asked |= done;
                Answer::Started(ok)
            }
            Todo::Check => Answer::Checked(w.node[i].up()),
        })
    }

    /// Dirty: an isolated primary shows a write that may never be acknowledged.
    fn dirty(&self, w: &World, i: usize, how: How) -> Option<Rec> {
        let own = w.late.filter(|l| usize::from(l.0) == i && how != How::Clean);
        let seen = own.and_then(|(_, op)| self.t.apply(w.rec, op)).unwrap_or(w.rec);
        w.store.then_some(seen)
    }
    fn read_record(&self, w: &World, i: usize, ram: Ram) -> Answer {
        match self.dirty(w, i, How::Stale) {
            None => Answer::Unanswered,
            Some(r) if r.sheet.slot[i] == ram.disk.cycle => Answer::Acked { leavers: r.leavers },
            Some(_) => Answer::Refused,
        }
    }
    fn read_fleet(&self, w: &mut World, i: usize, how: How, leavers: u8) -> Option<u8> {
        let read = w.node.map(|n| n.read(how));
        let seen = (how != How::Unknown).then(|| self.t.in_service(read, self.every_member(w)));
        // A lagging answer cannot be told from a fresh one: excused, unless the record explains the absence.
        w.node[i].excused = seen.is_some_and(|b| b & !self.healthy(w) & !leavers & !bit(i) != 0);
        seen
    }
    pub fn read_own(&self, w: &World, i: usize, how: How) -> [Own; GROUPS] {
        let read = w.node[i].read(how);
        std::array::from_fn(|g| match how {
            How::Unknown => Own::Unknown,
            _ => self.t.own(read[g], (0..self.f.n).any(|j| j != i && w.node[j].target[g] != Lb::Out)),
        })
    }
    fn deregister(&self, w: &mut World, i: usize, g: usize) {
        let others = (self.healthy(w) & !bit(i)).count_ones();
        w.broke(Bad::LeftBelowFloor, others < self.f.rules.minimum_during_patch && !w.node[i].excused);
        if w.node[i].excused {
            self.excuse_others(w, i); // it may leave on an older read; others cannot know
        }
        let n = &mut w.node[i];
        (n.away, n.left) = (true, true);
        if matches!(n.target[g], Lb::Healthy | Lb::Initial) {
            n.becomes(g, Lb::Draining);
        }
    }

    pub(super) fn reconcile(&self, w: &mut World, i: usize) -> Option<()> {
        let n = w.node[i];
        let own = self.read_own(w, i, How::Clean);
        let record = w.store.then_some(w.rec);
        let instance = || self.t.names.instance[i].clone();
        match self.t.heal(n.ram?, &own[..self.f.groups], record)? {
            // One call at a time: a crash may come between two.
            HealStep::Register if n.up() => {
                let first = own[..self.f.groups].iter().position(out)?;
                w.node[i].register(first);
            }
            HealStep::Register => {}
            HealStep::FreeSlot(cycle) => self.heals(w, i, free(instance(), cycle)),
            HealStep::EndHold => self.heals(w, i, Op::EndHold { instance: instance() }),
        }
        Some(())
    }
    fn heals(&self, w: &mut World, i: usize, op: Op) {
        let op = self.t.op(op);
        self.compare_and_set(w, i, op, How::Clean);
    }

    /// `decide`, then the commit.
    pub(super) fn learn(&self, w: &mut World, i: usize, answer: Answer) {
        let n = &mut w.node[i];
        let Some(ram) = n.ram else { return };
        let late = self.is(Mutant::EffectBeforePersist);
        let next = self.t.learn(ram, answer, !n.full || late);
        let (was, is) = (ram.disk.stage, next.ram.disk.stage);
        if was == Some(StageName::Reboot) && is == Some(StageName::Check) {
            let broken = !n.restarted && !next.ram.disk.failed;
            w.broke(Bad::NotRestarted, broken);
        }
        let n = &mut w.node[i];
        if was != Some(StageName::Reboot) && is == Some(StageName::Reboot) {
            n.restarted = false;
        }
        if was != is {
            (n.looked, n.foreign) = (false, false);
        }
        (n.ram, n.clock) = (Some(next.ram), next.clock);
        if let (Some(disk), false) = (next.stored, late) {
            n.disk = disk; // under `EffectBeforePersist` the commit is a later step, `Persist`
        }
        self.note_failure(w, i);
        match next.broke {
            None => {}
            Some(Broke::Invariant) => w.broke(Bad::Invariant, true),
            Some(Broke::FailedInSilence) => w.broke(Bad::FailedInSilence, true),
        }
        let home = was == Some(StageName::Settle) && is == Some(StageName::Release);
        let partly = (0..self.f.groups)
            .any(|g| !matches!(w.node[i].target[g], Lb::Healthy) && w.node[i].before[g] != Lb::Healthy);
        w.broke(Bad::PartlyHome, home && partly);
    }
}

fn free(instance: InstanceId, cycle: CycleId) -> Op {
    Op::Free { instance, cycle, latch: None, finished: None }
}
