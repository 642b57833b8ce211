//! Reconcile's look at the own node: what it may put right by itself.

use super::cycle::{Durable, StageName};
use super::ids::{CycleId, InstanceId};
use super::record::{Pause, Record};
use super::rules::{Mutant, Rules};
use super::target::Own;
use super::time::{Dwell, Now};

/// One thing that a node may do for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Heal {
    /// Register in the group with this index, if the node check passes.
    Register(usize),
    /// Its slot is of a cycle that it does not remember: free it.
    FreeSlot(CycleId),
    /// A hold that its node does not remember, or whose time is up.
    EndHold,
}

/// `hold --all` as this process first saw it. Its time is counted from there: no two clocks are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Off(Option<(Pause, Dwell)>);

impl Off {
    /// Takes in what the record says now; `None` = unknown, and what was last seen stays in force for its time.
    pub fn see(&mut self, record: Option<&Record>, now: &Now) {
        let Some(record) = record else { return };
        let Some(hold) = &record.hold_all else {
            self.0 = None;
            return;
        };
        if self.0.as_ref().is_none_or(|(order, _)| *order != hold.order) {
            self.0 = Some((hold.order.clone(), Dwell::start(now, hold.for_s.saturating_mul(1_000))));
        }
    }

    /// The order whose time is over, while it still stands in the record.
    pub fn over(&self, now: &Now) -> Option<&Pause> {
        self.0.as_ref().filter(|(_, time)| time.over(now)).map(|(order, _)| order)
    }

    /// Self-heal is off.
    pub fn is_on(&self, now: &Now) -> bool {
        self.0.as_ref().is_some_and(|(_, time)| !time.over(now))
    }
}

/// What may be put right now. It may act when no cycle runs, and also while `release` waits for the store: what has settled
/// owes nothing, but it must not lie there deregistered for as long as the store is away. Like a slot, a hold leaves the
/// record only when its node is in service again.
pub fn heal(
    d: &Durable,
    own: &[Own],
    record: Option<&Record>,
    off: bool,
    me: &InstanceId,
    rules: &Rules,
) -> Option<Heal> {
    let idle = d.cycle.is_none();
    let releasing = d.stage() == Some(StageName::Release) && !rules.is(Mutant::ReleaseOnlyFrees);
    if !idle && !releasing {
        return None;
    }
    let out = |o: &Own| matches!(o, Own::Gone | Own::Draining | Own::NoRow);
    if let Some(group) = own.iter().position(out) {
        return (!off).then_some(Heal::Register(group));
    }
    let in_service = !own.is_empty() && own.iter().all(|o| *o == Own::InService);
    let record = record.filter(|_| idle && in_service)?;
    if let Some(slot) = record.slots.get(me) {
        return Some(Heal::FreeSlot(slot.cycle.clone()));
    }
    record.holds.contains_key(me).then_some(Heal::EndHold)
}

#[cfg(test)]
mod tests {
    use super::super::record::{Extra, Hold, Op, Pause, Slot, apply};
    use super::super::time::BootId;
    use super::*;

    fn rules() -> Rules {
        Rules {
            max_unavailable: 1,
            minimum_healthy: 2,
            minimum_during_patch: 1,
            #[cfg(feature = "mutants")]
            mutant: Mutant::None,
        }
    }
    fn order() -> Pause {
        Pause { by: "ann".into(), reason: "a move".into(), since_ms: 0, extra: Extra::new() }
    }
    fn idle(own: &[Own], record: Option<&Record>) -> Option<Heal> {
        heal(&Durable::new("i-0".into()), own, record, false, &"i-0".into(), &rules())
    }

    #[test]
    fn an_idle_node_that_is_out_registers_whether_the_store_is_there_or_not() {
        let r = Record::new("blue".into());
        for out in [Own::Gone, Own::Draining, Own::NoRow] {
            for record in [None, Some(&r)] {
                assert_eq!(idle(&[Own::InService, out], record), Some(Heal::Register(1)), "{out:?}");
            }
        }
        assert_eq!(idle(&[Own::InService, Own::Unknown], Some(&r)), None);
        assert_eq!(idle(&[Own::InService; 2], Some(&r)), None, "zero writes at rest");
    }

    fn at(ms: u64) -> Now {
        Now { wall_ms: 7, boot: BootId("a".into()), since_boot_ms: ms }
    }

    #[test]
    fn hold_all_switches_it_off_for_its_time_also_while_the_record_is_unknown() {
        let all = Hold { node: "node-0".into(), order: order(), for_s: 60, extra: Extra::new() };
        let r = apply(&Record::new("blue".into()), &Op::HoldAll(all), &rules()).unwrap();
        let mut off = Off::default();
        off.see(Some(&r), &at(0));
        off.see(None, &at(10_000));
        off.see(Some(&r), &at(20_000));
        assert!(off.is_on(&at(59_999)) && !off.is_on(&at(60_000)), "counted from the first sight");
        let own = [Own::Gone];
        assert_eq!(heal(&Durable::new("i-0".into()), &own, Some(&r), true, &"i-0".into(), &rules()), None);
        off.see(Some(&Record::new("blue".into())), &at(30_000));
        assert!(!off.is_on(&at(30_000)), "taken back");
        off.see(Some(&r), &at(40_000));
        assert_eq!((off.over(&at(99_999)), off.over(&at(100_000))), (None, r.hold_all.as_ref().map(|h| &h.order)));
        let end = Op::EndHoldAll(off.over(&at(100_000)).unwrap().clone());
        assert_eq!(apply(&r, &end, &rules()).unwrap().hold_all, None);
        let newer = Hold { order: Pause { since_ms: 9, ..order() }, ..r.hold_all.clone().unwrap() };
        let newer = apply(&r, &Op::HoldAll(newer), &rules()).unwrap();
        assert!(apply(&newer, &end, &rules()).unwrap().hold_all.is_some(), "another order goes on");
    }

    #[test]
    fn what_the_node_does_not_remember_leaves_the_record_only_when_it_is_in_service() {
        let slot = Slot {
            cycle: "c-1".into(),
            node: "node-0".into(),
            job: "kernel".into(),
            budget_s: 1,
            since_ms: 0,
            extra: Extra::new(),
        };
        let mut r = Record::new("blue".into());
        r.holds.insert("i-0".into(), Hold { node: "node-0".into(), order: order(), for_s: 1, extra: Extra::new() });
        assert_eq!(idle(&[Own::InService], Some(&r)), Some(Heal::EndHold));
        assert_eq!(idle(&[Own::Gone], Some(&r)), Some(Heal::Register(0)));
        r.slots.insert("i-0".into(), slot);
        assert_eq!(idle(&[Own::InService], Some(&r)), Some(Heal::FreeSlot("c-1".into())));
        assert_eq!(idle(&[Own::Unknown], Some(&r)), None);
    }
}
