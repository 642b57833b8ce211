//! Reconcile's look at the own node: what it may put right by itself.

use super::cycle::{Durable, StageName};
use super::error::Jitter;
use super::ids::{CycleId, InstanceId};
use super::record::{Pause, Record};
use super::rules::{Mutant, Rules};
use super::target::Own;
use super::time::{Dwell, Now};

/// One thing that a node may do for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Heal {
    /// Register wherever the own target is [`out`], if the node check passes.
    Register,
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

/// A node registers itself at most so often in 24 hours: then a person has to find out who takes it out.
pub const HEALS_PER_DAY: usize = 3;
const DAY_MS: u64 = 86_400_000;

/// Those of the last 24 hours. A wall clock that went back makes them count for longer, never shorter.
pub fn of_today(heals_ms: &[u64], now: &Now) -> Vec<u64> {
    heals_ms.iter().copied().filter(|at| now.wall_ms.saturating_sub(*at) < DAY_MS).collect()
}

/// This node has registered itself as often as it may.
pub fn used_up(d: &Durable, now: &Now) -> bool {
    of_today(&d.heals_ms, now).len() >= HEALS_PER_DAY
}

/// How long the own target is out, as far as this node knows, before it is registered. A fleet below its floor does not wait
/// for that, but for two more looks, so that the node whose turn it is to tell people has read it twice, too (who heals faster
/// than anybody can find it keeps a fault secret); a spread keeps its nodes from coming all at once.
pub fn wait_ms(after_ms: u64, below_floor: bool, every_ms: u64, jitter: Jitter) -> u64 {
    if below_floor {
        let spread = every_ms.saturating_mul(u64::from(jitter.0)).checked_div(1_000).unwrap_or(0);
        after_ms.min(every_ms.saturating_mul(2).saturating_add(spread))
    } else {
        after_ms
    }
}

/// Not registered, or on its way out.
pub fn out(own: &Own) -> bool {
    matches!(own, Own::Gone | Own::Draining | Own::NoRow)
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
    let off = off || d.retired || record.is_some_and(|r| r.retired.contains_key(me));
    if own.iter().any(out) {
        return (!off).then_some(Heal::Register);
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
                assert_eq!(idle(&[Own::InService, out], record), Some(Heal::Register), "{out:?}");
            }
        }
        assert_eq!(idle(&[Own::InService, Own::Unknown], Some(&r)), None);
        assert_eq!(idle(&[Own::InService; 2], Some(&r)), None, "zero writes at rest");
    }

    #[test]
    fn a_node_that_left_for_good_is_not_put_back_by_itself() {
        let mut r = Record::new("blue".into());
        r.retired.insert("i-0".into(), order());
        assert_eq!(idle(&[Own::Gone], Some(&r)), None, "a person said so");
        let left = Durable { retired: true, ..Durable::new("i-0".into()) };
        assert_eq!(heal(&left, &[Own::Gone], None, false, &"i-0".into(), &rules()), None, "its own memory counts too");
    }

    #[test]
    fn three_times_a_day_is_enough_and_a_day_later_there_are_three_more() {
        let day = |ms: u64| Now { wall_ms: 1_000_000_000 + ms, ..at(0) };
        let healed = |times: &[u64]| Durable {
            heals_ms: times.iter().map(|ms| 1_000_000_000 + ms).collect(),
            ..Durable::new("i-0".into())
        };
        assert!(!used_up(&healed(&[0, 1]), &day(2)));
        assert!(used_up(&healed(&[0, 1, 2]), &day(86_399_999)));
        assert!(!used_up(&healed(&[0, 1, 2]), &day(86_400_000)));
        assert!(used_up(&healed(&[500, 501, 502]), &day(0)), "a clock that goes back gives nothing away");
    }

    #[test]
    fn a_fleet_below_its_floor_does_not_wait_and_its_nodes_come_apart() {
        assert_eq!(wait_ms(300_000, false, 15_000, Jitter(500)), 300_000);
        assert_eq!(wait_ms(300_000, true, 15_000, Jitter(0)), 30_000, "two looks");
        assert_eq!(wait_ms(300_000, true, 15_000, Jitter(1_000)), 45_000);
        assert_eq!(wait_ms(5_000, true, 15_000, Jitter(1_000)), 5_000, "never later than without");
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
        assert_eq!(idle(&[Own::Gone], Some(&r)), Some(Heal::Register));
        r.slots.insert("i-0".into(), slot);
        assert_eq!(idle(&[Own::InService], Some(&r)), Some(Heal::FreeSlot("c-1".into())));
        assert_eq!(idle(&[Own::Unknown], Some(&r)), None);
    }
}
