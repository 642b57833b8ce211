//! What each step does.
use super::*;
use backstop_core_alone::heal::Heal as HealStep;
use backstop_core_alone::ids::{CycleId, InstanceId};

fn may(yes: bool) -> Option<()> {
    yes.then_some(())
}
fn spend(w: &mut World) -> Option<()> {
    w.faults = w.faults.checked_sub(1)?;
    Some(())
}

impl Node {
    fn becomes(&mut self, g: usize, t: Lb) {
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
    fn leaves_outside(&self, w: &mut World, i: usize) {
        w.outside = true;
        self.excuse_others(w, i);
    }
    fn progress(&self, n: &mut Node, g: usize) -> bool {
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

    fn fits(&self, w: &World, todo: Todo, how: How) -> bool {
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
                if done && w.node[i].job == Job::Running {
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
    fn read_own(&self, w: &World, i: usize, how: How) -> [Own; GROUPS] {
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
            HealStep::Register(g) if n.up() => w.node[i].register(g),
            HealStep::Register(_) => {}
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

    // ---- what may be tried; `step` says `None` to what does not fit ----

    pub(super) fn possible(&self, w: &World, out: &mut Vec<Act>) {
        use Act::*;
        let (k, f, verbs) = (self.f.kinds, w.faults > 0, w.verbs > 0);
        for (i, n) in w.node.iter().enumerate().take(self.f.n) {
            match n.ram {
                Some(ram) => self.agent_acts(w, i, ram, out),
                None => {
                    out.push(Boot(i));
                    if n.disk.stage.is_some() {
                        out.push(BootLate(i));
                    }
                }
            }
            out.extend((0..self.f.groups).map(|g| Progress(i, g)));
            if n.sick {
                out.push(Heal(i));
            }
            if n.full {
                out.push(DiskFree(i));
            }
            if n.asked {
                out.push(Restarts(i));
            }
            if n.job == Job::Running {
                out.push(JobEnds(i, Job::Good));
                if f && k.job {
                    out.extend([JobEnds(i, Job::Bad), JobEnds(i, Job::Lost), JobLeavesSick(i)]);
                }
            }
            if self.is(Mutant::EffectBeforePersist) || n.ram.is_some_and(|r| r.disk != n.disk && !n.full) {
                out.push(Persist(i));
            }
            if f && k.disk {
                out.push(DiskFull(i));
            }
            for g in 0..self.f.groups {
                if f && k.outside {
                    out.push(Deregistered(i, g));
                }
                if f && k.foreign {
                    out.push(Registered(i, g));
                }
            }
            if f && k.death {
                out.push(Dies(i));
            }
            if f && k.power {
                out.push(PowerFails(i));
            }
            if !w.store {
                continue;
            }
            out.extend([PeerLatches(i), Retire(i)]);
            if w.rec.sheet.hold[i] && self.is(Mutant::HoldEndsAtOnce) {
                out.push(HoldVanishes(i));
            }
            for c in (1..=2).filter(|&c| w.latch(i, c) == LatchState::Set) {
                if verbs {
                    out.push(Clear(i, c));
                }
                if self.is(Mutant::LatchExpires) {
                    out.push(Expire(i, c));
                }
            }
        }
        if !w.store {
            out.push(StoreUp);
        } else if f && k.store {
            out.push(StoreDown);
        }
        if w.late.is_some() {
            out.extend([Land, Lose]);
        }
    }

    fn agent_acts(&self, w: &World, i: usize, ram: Ram, out: &mut Vec<Act>) {
        use Act::*;
        let (k, f) = (self.f.kinds, w.faults > 0);
        let stage = ram.disk.stage;
        if !matches!(ram.todo, Todo::Nothing | Todo::Wait) {
            out.push(Turn(i, How::Clean));
            if f && k.crash {
                out.push(Turn(i, How::CrashAfter));
            }
            for (on, hows) in [
                (k.lost, [How::Lost, How::Late]),
                (k.reads, [How::Stale, How::Unknown]),
                (k.calls, [How::DoneButError, How::Error]),
            ] {
                out.extend(hows.into_iter().filter(|h| f && on && self.fits(w, ram.todo, *h)).map(|h| Turn(i, h)));
            }
        }
        if f && k.crash {
            out.push(Crash(i));
        }
        if f && k.power && ram.v.acked_at.is_some() {
            out.push(Stall(i));
        }
        if stage.is_none() {
            out.push(Run(i));
        } else {
            out.push(Deadline(i));
        }
        if w.node[i].full && ram.disk.holds() {
            out.push(PageNotStored(i));
        }
        if stage == Some(StageName::Held) {
            out.push(HoldEnds(i));
        }
        if matches!(stage, None | Some(StageName::Release)) {
            out.push(Reconcile(i));
        }
        if w.verbs > 0 {
            out.extend([Rejoin(i), Hold(i)]);
        }
    }

    pub fn step(&self, last: &World, act: Act) -> Option<World> {
        use Act::*;
        let mut w = *last;
        match act {
            Run(_) | Turn(..) | Reconcile(_) | Deadline(_) | HoldEnds(_) | Crash(_) | Boot(_) | BootLate(_)
            | Persist(_) | Stall(_) | PageNotStored(_) => {
                self.agent_step(&mut w, act)?;
            }
            Retire(_) | Clear(..) | Hold(_) | Rejoin(_) | PeerLatches(_) | Expire(..) | HoldVanishes(_) => {
                self.person_step(&mut w, act)?;
            }
            _ => self.world_step(&mut w, act)?,
        }
        Some(w)
    }

    fn agent_step(&self, w: &mut World, act: Act) -> Option<()> {
        use Act::*;
        match act {
            Run(i) => {
                let c = w.node[i].started + 1;
                may(c <= self.f.cycles && w.rec.sheet.member[i] && w.node[i].ram?.disk.stage.is_none())?;
                self.learn(w, i, Answer::Start(c, What::Patch));
                let n = &mut w.node[i];
                may(n.ram?.disk.stage == Some(StageName::Claim))?;
                (n.started, n.job, n.left) = (c, Job::New, false);
            }
            Turn(i, how) => {
                let a = self.perform(w, i, how)?;
                if how != How::Clean {
                    spend(w)?;
                }
                if how == How::CrashAfter { self.down(w, i) } else { self.learn(w, i, a) }
            }
            Reconcile(i) => self.reconcile(w, i)?,
            Deadline(i) => {
                let (n, s) = (w.node[i], w.node[i].ram?.disk);
                may(!matches!(s.stage, None | Some(StageName::Release | StageName::Held)) && !s.failed)?;
                let waits = s.stage == Some(StageName::Reboot); // a machine may take its time
                if w.store && !n.full && !n.sick && !waits {
                    may(self.f.kinds.deadline)?;
                    spend(w)?; // else something is slow for a reason
                }
                self.learn(w, i, Answer::Deadline);
            }
            PageNotStored(i) => {
                may(w.node[i].full && w.node[i].ram?.disk.holds())?;
                self.learn(w, i, Answer::NotStored);
            }
            HoldEnds(i) => {
                may(w.node[i].ram?.disk.stage == Some(StageName::Held))?;
                self.learn(w, i, Answer::HoldTime);
            }
            Crash(i) => {
                spend(w)?;
                self.down(w, i);
            }
            Boot(i) | BootLate(i) => {
                let n = &mut w.node[i];
                may(n.ram.is_none() && n.alive)?;
                n.ram = Some(self.t.boot(n.disk, n.clock));
                let late = act == BootLate(i);
                self.learn(w, i, if late { Answer::RecoveredLate } else { Answer::Recovered });
            }
            Stall(i) => {
                spend(w)?;
                self.learn(w, i, Answer::Stall);
            }
            _ => {
                // A page was accepted, or anything else that is stored: what is in memory goes with it.
                let Persist(i) = act else { return None };
                let n = &mut w.node[i];
                n.disk = n.ram?.disk;
                self.note_failure(w, i);
            }
        }
        Some(())
    }

    /// A failure counts as soon as it is stored; one that is known only in memory from its acknowledged latch on.
    fn note_failure(&self, w: &mut World, i: usize) {
        let disk = w.node[i].disk;
        let recovers = self.f.recovery && i == 0 && disk.cycle == 2;
        if disk.failed && disk.cycle != 0 && !recovers {
            w.node[i].failed |= cycle_bit(disk.cycle);
        }
    }

    fn down(&self, w: &mut World, i: usize) {
        let n = &mut w.node[i];
        (n.ram, n.excused, n.looked, n.foreign) = (None, false, false, false);
    }

    fn restart(&self, w: &mut World, i: usize) {
        self.down(w, i);
        let n = &mut w.node[i];
        (n.disk, n.clock) = self.t.reboots(n.disk, n.clock);
        (n.asked, n.restarted) = (false, true);
        if n.job == Job::Running {
            n.job = Job::Lost;
        }
    }

    fn world_step(&self, w: &mut World, act: Act) -> Option<()> {
        use Act::*;
        match act {
            Progress(i, g) => may(self.progress(&mut w.node[i], g))?,
            JobEnds(i, j) => {
                may(w.node[i].job == Job::Running)?;
                if j != Job::Good {
                    spend(w)?;
                }
                w.node[i].job = j;
            }
            JobLeavesSick(i) => {
                may(w.node[i].job == Job::Running)?;
                spend(w)?;
                (w.node[i].job, w.node[i].sick) = (Job::Bad, true);
            }
            Heal(i) => w.node[i].sick = false,
            Restarts(i) => {
                may(w.node[i].asked && w.node[i].alive)?;
                self.restart(w, i);
            }
            PowerFails(i) => {
                may(w.node[i].alive)?;
                spend(w)?;
                self.restart(w, i);
                for g in 0..self.f.groups {
                    if w.node[i].target[g] == Lb::Healthy {
                        w.node[i].becomes(g, Lb::Initial);
                        self.leaves_outside(w, i);
                    }
                }
            }
            DiskFull(i) => {
                may(!w.node[i].full)?;
                spend(w)?;
                w.node[i].full = true;
            }
            DiskFree(i) => w.node[i].full = false,
            StoreDown => {
                spend(w)?;
                w.store = false;
            }
            StoreUp => w.store = true,
            Land => {
                let (i, op) = w.late?;
                self.write(w, usize::from(i), op)?;
            }
            Lose => w.late = None,
            Deregistered(i, g) => {
                may(w.rec.sheet.member[i] && matches!(w.node[i].target[g], Lb::Healthy | Lb::Initial))?;
                spend(w)?;
                w.node[i].becomes(g, Lb::Draining);
                self.leaves_outside(w, i);
            }
            Registered(i, g) => {
                may(matches!(w.node[i].target[g], Lb::Out | Lb::Draining) && w.node[i].alive)?;
                spend(w)?;
                w.node[i].becomes(g, Lb::Initial);
                w.node[i].foreign = w.node[i].looked;
            }
            _ => {
                let Dies(i) = act else { return None };
                may(w.node[i].alive)?;
                spend(w)?;
                (w.node[i].ram, w.node[i].alive, w.node[i].asked) = (None, false, false);
                (0..self.f.groups).for_each(|g| w.node[i].becomes(g, Lb::Out));
                self.leaves_outside(w, i);
            }
        }
        Some(())
    }

    fn person_step(&self, w: &mut World, act: Act) -> Option<()> {
        use Act::*;
        let names = &self.t.names;
        match act {
            PeerLatches(i) => {
                // The holder is gone or silent; or it runs over its budget, which is a fault like any deadline.
                let c = w.rec.sheet.slot[i];
                let peer = (0..self.f.n).any(|j| j != i && w.node[j].ram.is_some());
                may(c != 0 && w.latch(i, c) == LatchState::None && peer)?;
                if w.node[i].ram.is_some() {
                    may(self.f.kinds.deadline)?;
                    spend(w)?;
                }
                self.operator(w, i, Op::AddLatch { cycle: names.cycle(i, c), latch: names.latch(i, false) })?;
            }
            Expire(i, c) => {
                let mut s = w.rec.sheet;
                s.latch[i][usize::from(c) - 1] = LatchState::None;
                w.rec = self.t.sheet_record(&s);
            }
            HoldVanishes(i) => self.operator(w, i, Op::EndHold { instance: names.instance[i].clone() })?,
            Retire(i) => {
                let n = w.node[i];
                let gone = match self.f.retire {
                    RetireOf::Dead => !n.alive,
                    RetireOf::Silent => n.ram.is_none(),
                    RetireOf::Frozen => true,
                };
                may(gone && w.rec.sheet.member[i])?;
                if n.alive {
                    w.verbs = w.verbs.checked_sub(1)?;
                }
                self.retire(w, i)?;
                w.node[i].away = false;
                self.leaves_outside(w, i);
            }
            Clear(i, c) => {
                w.verbs -= 1;
                let latch = names.cycle(i, c).latch();
                self.operator(w, i, Op::ClearLatch { latch, order: names.order.clone() })?;
                w.node[i].cleared |= cycle_bit(c);
            }
            Hold(i) => {
                let n = w.node[i];
                may(n.ram?.disk == n.disk && !n.full && w.rec.sheet.member[i] && !w.rec.sheet.hold[i])?;
                w.verbs -= 1;
                match n.disk.stage {
                    None => {
                        self.learn(w, i, Answer::Start(names::HOLD, What::Hold));
                        w.node[i].left = false;
                    }
                    Some(s) if s.homeward() => self.learn(w, i, Answer::Hold),
                    Some(_) => return None,
                }
            }
            _ => {
                let Rejoin(i) = act else { return None };
                let s = w.node[i].ram?.disk;
                w.verbs -= 1;
                match s.stage {
                    None => {
                        may(!self.serves(&w.node[i]))?;
                        self.learn(w, i, Answer::Start(names::RETURN, What::Return));
                    }
                    Some(StageName::Release) => return None,
                    Some(_) => self.learn(w, i, Answer::Rejoin),
                }
            }
        }
        Some(())
    }

    pub(super) fn retire(&self, w: &mut World, i: usize) -> Option<()> {
        let names = &self.t.names;
        let op = Op::Retire {
            instance: names.instance[i].clone(),
            order: names.order.clone(),
            latch: names.latch(i, false),
        };
        self.operator(w, i, op)
    }

    /// Node numbers carry no meaning: keep one world of each set of renamed ones.
    pub fn canonical(&self, w: World) -> World {
        let n: u8 = match self.f.n {
            _ if !self.f.symmetric || self.f.recovery => return w,
            2 => 2,
            3 => 6,
            _ => return w,
        };
        (0..n).map(|p| self.renamed(&w, p)).min().unwrap()
    }

    pub fn renamed(&self, w: &World, p: u8) -> World {
        if p == 0 {
            return *w;
        }
        let to = &PERMUTED[usize::from(p)];
        let mut r = *w;
        for i in 0..self.f.n {
            let mut n = w.node[i];
            n.disk = self.t.rename_disk(n.disk, p);
            n.ram = n.ram.map(|ram| self.t.rename_ram(ram, p));
            r.node[to[i]] = n;
        }
        r.rec = self.t.rename_record(w.rec, p);
        r.late = w.late.map(|(i, op)| (u8::try_from(to[usize::from(i)]).unwrap(), self.t.rename_write(op, p)));
        r
    }
}

fn free(instance: InstanceId, cycle: CycleId) -> Op {
    Op::Free { instance, cycle, latch: None, finished: None }
}
