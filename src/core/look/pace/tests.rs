#![allow(clippy::pedantic, clippy::arithmetic_side_effects, reason = "tests of small numbers")]
use super::super::super::error::{Class, Fault};
use super::super::super::member::Says;
use super::super::super::record::Extra;
use super::super::super::time::BootId;
use super::super::agenda::{Agenda, Task};
use super::*;
use std::collections::BTreeMap;

fn at(ms: u64) -> Now {
    Now { wall_ms: 0, boot: BootId("b".into()), since_boot_ms: ms }
}

fn instance(n: usize) -> InstanceId {
    InstanceId(format!("i-{n:017x}").into())
}

fn member(n: usize) -> Member {
    Member {
        schema: 1,
        instance: instance(n),
        node: format!("node-{n}").as_str().into(),
        targets: Vec::new(),
        agent: "1".into(),
        reads_schema: 1,
        boot: BootId("m".into()),
        beat: 1,
        doing: "".into(),
        at_ms: 0,
        node_id: None,
        address: None,
        sees: Vec::new(),
        record: None,
        says: Says { beat_every_ms: 15_000, ..Says::default() },
        told: Vec::new(),
        extra: Extra::new(),
    }
}

struct Case {
    members: Vec<Member>,
    hearts: Hearts,
    out: bool,
    balancer: Throttle,
}

impl Case {
    fn new(n: usize) -> Case {
        let members: Vec<Member> = (0..n).map(member).collect();
        let mut hearts = Hearts::default();
        hearts.see_all(&members, &at(0), 15_000);
        Case { members, hearts, out: false, balancer: Throttle::default() }
    }

    /// These are read again later, and have not beaten.
    fn silent(&mut self, who: std::ops::Range<usize>) {
        let mut members = self.members.clone();
        for (n, m) in members.iter_mut().enumerate() {
            m.beat += u64::from(!who.contains(&n));
        }
        self.hearts.see_all(&members, &at(120_000), 15_000);
    }

    fn pace(&self, n: usize) -> Pace {
        let (me, node) = (instance(n), NodeName(format!("node-{n}").into()));
        pace(&Looker {
            me: &me,
            node: &node,
            fleet: "blue",
            members: &self.members,
            size: self.members.len(),
            hearts: &self.hearts,
            busy: false,
            out: self.out,
            balancer: self.balancer,
            store: Throttle::default(),
            every_ms: 15_000,
            silent_after_ms: 60_000,
        })
    }

    fn readers(&self) -> Vec<usize> {
        let all = 0..self.members.len();
        all.filter(|n| !self.hearts.get(&instance(*n)).is_some_and(|h| h.silent(60_000)))
            .filter(|n| self.pace(*n).role == Role::Whole)
            .collect()
    }
}

#[test]
fn the_three_lowest_live_members_read_whole_groups_and_the_next_take_over_when_they_fall_silent() {
    for n in [1, 2, 3, 4, 7, 40] {
        let mut case = Case::new(n);
        assert_eq!(case.readers(), (0..n.min(3)).collect::<Vec<_>>());
        case.silent(0..2);
        assert_eq!(case.readers(), (2.min(n)..n.min(5)).collect::<Vec<_>>());
        let mut case = Case::new(n);
        case.silent(0..n.min(20));
        assert_eq!(case.readers(), (20.min(n)..n.min(23)).collect::<Vec<_>>());
    }
}

#[test]
fn who_knows_nobody_reads_whole_groups_but_more_seldom() {
    let pace = Case::new(0).pace(7);
    assert_eq!((pace.role, pace.groups_ms, pace.own_ms), (Role::Whole, Some(30_000), None));
}

#[test]
fn the_fleets_calls_do_not_grow_with_its_size() {
    for n in [3, 4, 5, 10, 30, 100, 300, 1_000] {
        let case = Case::new(n);
        let per_hour = |ms: Option<u64>| ms.map_or(0.0, |ms| 3_600_000.0 / ms as f64);
        let whole: f64 = (0..n).map(|m| per_hour(case.pace(m).groups_ms)).sum();
        let own: f64 = (0..n).map(|m| per_hour(case.pace(m).own_ms)).sum();
        assert_eq!(whole, 720.0, "{n}");
        assert!(own <= whole / 10.0, "{n}: {own}");
        let beats: f64 = (0..n).map(|m| per_hour(Some(case.pace(m).beat_ms))).sum();
        assert!(beats <= (BEATS_PER_S as f64 + 0.5) * 3_600.0, "{n}: {beats}");
        let docs: f64 = (3..n).map(|m| per_hour(Some(case.pace(m).members_ms)) * n as f64).sum();
        assert!(docs <= DOCUMENTS_PER_S as f64 * 3_600.0 + 1.0, "{n}: {docs}");
        let watches: f64 = (0..n).map(|m| per_hour(Some(case.pace(m).watch_ms))).sum();
        assert!(watches <= (WATCHES_PER_S as f64 + 0.5) * 3_600.0, "{n}: {watches}");
    }
}

#[test]
fn a_node_that_a_reader_names_or_that_was_out_looks_at_itself_at_the_usual_pace() {
    let mut case = Case::new(40);
    let rest = case.pace(20).own_ms.unwrap();
    assert!(rest > 600_000, "{rest}");
    case.members[1].says.finds = vec!["unhealthy/node-20".into()];
    assert_eq!((case.pace(20).own_ms, case.pace(20).beat_ms), (Some(15_000), 15_000));
    assert_eq!(case.pace(21).own_ms, Some(rest));
    case.members[1].says.finds = vec!["agent-silent/node-20".into()];
    assert_eq!(case.pace(20).own_ms, Some(rest), "its target is not concerned");
    // One that is not in line is not listened to, nor is a silent one.
    case.members[1].says.finds.clear();
    case.members[30].says.finds = vec!["unhealthy/node-20".into()];
    assert_eq!(case.pace(20).own_ms, Some(rest));
    case.out = true;
    assert_eq!(case.pace(20).own_ms, Some(15_000));
}

#[test]
fn a_fleet_below_its_floor_looks_at_itself_together_so_often_and_no_more() {
    let mut case = Case::new(1_000);
    case.members[0].says.finds = vec!["below-floor/blue".into()];
    case.out = true;
    let total: f64 = (3..1_000).map(|n| 1_000.0 / case.pace(n).own_ms.unwrap() as f64).sum();
    assert!(total > 4.0 && total <= FLEET_OWN_PER_S as f64, "{total}");
    let mut small = Case::new(10);
    small.members[0].says.finds = vec!["below-floor/blue".into()];
    assert_eq!(small.pace(9).own_ms, Some(15_000));
}

#[test]
fn throttling_stretches_whole_groups_and_own_targets_and_no_beat() {
    let mut case = Case::new(40);
    let before = (case.pace(0), case.pace(20));
    case.balancer.saw(Err(&Fault::new(Class::Throttled, "Rate exceeded")));
    let after = (case.pace(0), case.pace(20));
    assert_eq!(after.0.groups_ms, before.0.groups_ms.map(|ms| ms * 2));
    assert_eq!(after.1.own_ms, before.1.own_ms.map(|ms| ms * 2));
    assert_eq!((after.0.beat_ms, after.1.record_ms), (before.0.beat_ms, before.1.record_ms));
}

#[test]
fn the_first_turn_only_meets_the_others_and_each_task_keeps_its_own_pace() {
    let case = Case::new(40);
    let (whole, own) = (case.pace(0), case.pace(20));
    let mut agenda = Agenda::default();
    let (first, wait) = agenda.due(&whole, &at(0), 7);
    assert_eq!(first, [Task::Beat, Task::Members, Task::Record].into());
    assert_eq!(agenda.due(&whole, &at(wait), 7).0, [Task::Nodes, Task::Groups].into());
    let mut count: BTreeMap<Task, u32> = BTreeMap::new();
    let mut now = 0;
    let mut seed = 1_u64;
    while now < 3_600_000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (tasks, wait) = agenda.due(&whole, &at(now), seed >> 11);
        tasks.into_iter().for_each(|t| *count.entry(t).or_default() += 1);
        now += wait;
    }
    assert!((228..=252).contains(&count[&Task::Groups]) && (114..=126).contains(&count[&Task::Nodes]), "{count:?}");
    assert!(!count.contains_key(&Task::Own) && !count.contains_key(&Task::Watch), "{count:?}");
    // Another role: what it does not do any more is not due, what it does now is due at once.
    let (tasks, _) = agenda.due(&own, &at(now), 3);
    assert!(tasks.contains(&Task::Own) && !tasks.contains(&Task::Groups), "{tasks:?}");
    let quick = Pace { own_ms: Some(15_000), ..own.clone() };
    assert!(!agenda.due(&own, &at(now + 60_000), 3).0.contains(&Task::Own));
    assert!(agenda.due(&quick, &at(now + 60_000), 3).0.contains(&Task::Own), "a nudge counts at once");
    let (_, wait) = agenda.due(&own, &at(now + 60_000), 3);
    assert!(wait > 0);
    agenda.hurry(Task::Beat);
    assert!(agenda.due(&own, &at(now + 60_010), 3).0.contains(&Task::Beat));
}

#[test]
fn a_slower_beat_is_announced_in_the_time_that_the_last_one_promised() {
    let case = Case::new(1_000);
    let (quick, slow) = (case.pace(0), case.pace(500));
    assert_eq!((quick.beat_ms, slow.beat_ms), (15_000, 250_000));
    let mut agenda = Agenda::default();
    let mut beats = Vec::new();
    let mut now = 0;
    while now < 600_000 {
        let pace = if now < 20_000 { &quick } else { &slow };
        let (tasks, wait) = agenda.due(pace, &at(now), 0);
        if tasks.contains(&Task::Beat) {
            beats.push((now, pace.beat_ms));
        }
        now += wait;
    }
    let kept = beats.windows(2).all(|w| w[1].0 - w[0].0 <= w[0].1 * 11 / 10);
    assert!(kept && beats.len() < 8, "{beats:?}");
    assert_eq!(beats.last().unwrap().1, 250_000);
}
