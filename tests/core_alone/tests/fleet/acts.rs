//! What may be tried in a world, and what each step does.
use super::*;

fn may(yes: bool) -> Option<()> {
    yes.then_some(())
}
fn spend(w: &mut World) -> Option<()> {
    w.faults = w.faults.checked_sub(1)?;
    Some(())
}

impl Fleet {
    /// `step` says `None` to what does not fit.
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
    pub(super) fn note_failure(&self, w: &mut World, i: usize) {
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
}
