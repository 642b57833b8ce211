//! The invariants of the design, numbered as there, and what must be reachable.
use super::*;

type P = Property<Fleet>;

fn nodes<'a>(m: &Fleet, w: &'a World) -> impl Iterator<Item = (usize, &'a Node)> {
    w.node.iter().enumerate().take(m.f.n)
}
fn some(m: &Fleet, w: &World, is: impl Fn(&Node) -> bool) -> bool {
    nodes(m, w).any(|(_, n)| is(n))
}
fn cycles() -> impl Iterator<Item = (usize, u8)> {
    (0..CYCLES).map(|c| (c, 1 << c))
}

pub fn properties(f: &Config) -> Vec<P> {
    let mut p = always();
    if f.recovery {
        p.retain(|p| !p.name.starts_with("ghost slot")); // a state that was lost remembers nothing
        p.push(P::always("recovery: the old slot stays until a latch is in the record", |_, w| {
            let s = &w.rec.sheet;
            s.slot[0] == 1 || s.latch[0].iter().any(|l| *l != LatchState::None)
        }));
        p.push(P::sometimes("recovery: home, latched, the old slot free", |m, w| {
            let n = &w.node[0];
            w.rec.sheet.slot[0] == 0 && m.serves(n) && n.alive && n.stage().is_none()
        }));
        return p;
    }
    p.push(P::sometimes("a cycle ends well", |m, w| {
        some(m, w, |n| n.started == 1 && n.stage().is_none() && n.job == Job::Good && n.failed == 0)
    }));
    sometimes(f, &mut p);
    p
}

fn always() -> Vec<P> {
    vec![
        P::always("1 floor: never too few in service without an outside cause", |m, w| {
            w.outside || m.healthy(w).count_ones() >= m.f.rules.minimum_during_patch
        }),
        P::always("1 floor: enough others in service at each deregister", |_, w| w.bad != Some(Bad::LeftBelowFloor)),
        P::always("2 way back: who is away knows it on its disk", |m, w| {
            nodes(m, w).all(|(_, n)| !n.away || !matches!(n.stage(), None | Some(StageName::Claim)))
        }),
        P::always("2 way back: home in one group is not home", |_, w| w.bad != Some(Bad::PartlyHome)),
        P::always("3 one at a time: away at once", |m, w| {
            let away = nodes(m, w).filter(|(i, n)| n.away && !w.rec.sheet.hold[*i]).count();
            u32::try_from(away).unwrap() <= m.f.rules.max_unavailable
        }),
        P::always("3 one at a time: who is away has its slot, or a hold instead", |m, w| {
            let s = &w.rec.sheet;
            let lost = |i: usize| m.f.recovery && i == 0;
            let right = |i: usize, n: &Node| s.hold[i] || (s.slot[i] == n.started && s.slot[i] != 0);
            nodes(m, w).all(|(i, n)| !n.away || !s.member[i] || lost(i) || right(i, n))
        }),
        P::always("3 one at a time: a slot in hand at each destructive step", |_, w| {
            w.bad != Some(Bad::StepWithoutSlot)
        }),
        P::always("4 latch: tried before any step home", |_, w| w.bad != Some(Bad::HomeBeforeLatch)),
        P::always("4 latch: a failure whose slot is free left its latch", |m, w| {
            let never_left = |n: &Node, c| !n.left && c + 1 == usize::from(n.started);
            let s = &w.rec.sheet;
            nodes(m, w).all(|(i, n)| {
                cycles().all(|(c, bit)| {
                    let slot = usize::from(s.slot[i]) == c + 1;
                    n.failed & bit == 0 || slot || never_left(n, c) || s.latch[i][c] != LatchState::None
                })
            })
        }),
        P::always("4 latch: no start over a failure that nobody cleared", |_, w| w.bad != Some(Bad::StartOverFailure)),
        P::always("4 latch: a failed cycle takes no destructive step", |_, w| w.bad != Some(Bad::StepAfterFailure)),
        P::always("4 latch: cleared stays cleared", |m, w| {
            let cleared = |i: usize, c: usize| w.rec.sheet.latch[i][c] == LatchState::Cleared;
            nodes(m, w).all(|(i, n)| cycles().all(|(c, bit)| n.cleared & bit == 0 || cleared(i, c)))
        }),
        P::always("job and reboot only out of service", |_, w| w.bad != Some(Bad::JobInService)),
        P::always("reboot: the machine really restarted before check, or the cycle failed", |_, w| {
            w.bad != Some(Bad::NotRestarted)
        }),
        P::always("outward effects only from a committed decision", |_, w| w.bad != Some(Bad::OutwardUncommitted)),
        P::always("6 somebody hears: no failure without its page", |_, w| w.bad != Some(Bad::FailedInSilence)),
        P::always("stored states keep their invariants", |_, w| w.bad != Some(Bad::Invariant)),
        P::always("ghost slot: a live holder remembers its cycle", |m, w| {
            nodes(m, w).all(|(i, n)| {
                let slot = w.rec.sheet.slot[i];
                slot == 0 || !n.alive || n.disk.remembers == slot
            })
        }),
        P::always("2 way back: once faults end all are home, slots and holds free", |m, w| {
            [false, true].iter().all(|&land| m.comes_home(w, land))
        }),
        P::always("2 way back: needs neither store nor disk", |m, w| {
            nodes(m, w).all(|(i, n)| {
                // A server that leaves rows out and lists nobody else proves nothing: no idle node acts on that.
                let others = nodes(m, w).any(|(j, o)| j != i && o.target[0] != Lb::Out);
                !n.alive || m.serves(n) || (m.f.silent && !others) || m.comes_home_alone(w, i)
            })
        }),
    ]
}

/// Against vacuity: what the faults of this run must have made happen somewhere.
fn sometimes(f: &Config, p: &mut Vec<P>) {
    let k = f.kinds;
    let mut reach = |on: bool, name, when: fn(&Fleet, &World) -> bool| {
        if on {
            p.push(P::sometimes(name, when));
        }
    };
    reach(f.faults > 0 && k.job, "a failed cycle ends latched and in service", |m, w| {
        nodes(m, w).any(|(i, n)| {
            let s = &w.rec.sheet;
            n.failed & 1 != 0 && s.slot[i] == 0 && s.latch[i][0] == LatchState::Set && m.serves(n)
        })
    });
    reach(f.faults > 0 && k.disk, "a node comes home on a full disk", |m, w| {
        some(m, w, |n| n.full && n.job == Job::Good && n.stage() == Some(StageName::Patch) && m.serves(n))
    });
    reach(f.faults > 0 && k.crash, "a crash while out", |m, w| {
        some(m, w, |n| n.ram.is_none() && n.alive && n.target[0] == Lb::Out)
    });
    reach(f.faults > 0 && k.death && f.n > 1, "a dead holder is latched and retired", |m, w| {
        nodes(m, w).any(|(i, _)| !w.rec.sheet.member[i] && w.rec.sheet.latch[i][0] == LatchState::Set)
    });
    reach(f.faults > 1 && k.lost && k.crash, "a claim that may still land is fenced", |m, w| {
        w.late.is_some() && some(m, w, |n| n.stage() == Some(StageName::Release) && n.job == Job::New)
    });
    let two = f.n > 1 && f.rules.max_unavailable == 2;
    reach(two, "two hold a slot", |_, w| w.rec.sheet.slot.iter().filter(|s| **s != 0).count() == 2);
    reach(two && f.n > 2, "two are away", |m, w| nodes(m, w).filter(|(_, n)| n.away).count() == 2);
    let verbs = f.verbs > 0 && f.retire == RetireOf::Dead;
    reach(verbs && f.n > 1, "a held node is out", |m, w| {
        nodes(m, w).any(|(i, n)| w.rec.sheet.hold[i] && n.target[0] == Lb::Out)
    });
    reach(verbs, "a node in service is held through the road out", |m, w| {
        some(m, w, |n| {
            n.stage() == Some(StageName::Held) && n.disk.remembers == HOLD && n.left && n.target[0] == Lb::Out
        })
    });
    reach(verbs, "a hold takes the place of a slot", |m, w| {
        nodes(m, w).any(|(i, n)| w.rec.sheet.hold[i] && n.away && w.rec.sheet.slot[i] == 0 && n.started == 1)
    });
    reach(verbs, "a cancelled cycle is home without a latch", |m, w| {
        some(m, w, |n| n.left && n.stage().is_none() && n.job == Job::New && m.serves(n) && n.failed == 0)
    });
    reach(f.verbs > 1 && f.cycles > 1, "a second cycle after a cleared failure", |m, w| {
        some(m, w, |n| n.started == 2 && n.cleared & 1 != 0 && n.away)
    });
    reach(f.reboot, "a machine restarts and the cycle ends well", |m, w| {
        some(m, w, |n| n.restarted && n.started == 1 && n.stage().is_none() && n.failed == 0)
    });
    reach(f.groups > 1, "home in one group only", |m, w| {
        some(m, w, |n| n.away && n.target[0] == Lb::Healthy && n.target[1] != Lb::Healthy && n.job == Job::Good)
    });
}
