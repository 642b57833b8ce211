//! What is known, as values; and what is not known, as nothing.

use crate::exposition::{Exposition, read};
use backstop::core::cycle::{Durable, StageName};
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::finding::{Finding, Kind, Report};
use backstop::core::guard::{Guard, Said, Verdict, Verdicts};
use backstop::core::ids::InstanceId;
use backstop::core::member::FleetView;
use backstop::core::page::Severity;
use backstop::core::record::{Extra, Hold, Pause, Record};
use backstop::core::target::{GroupArn, Own, Poll, Reason, Row, TargetState};
use backstop::core::time::{BootId, Now};
use backstop::metrics::readings::FRESH_MS;
use backstop::metrics::table::{self, Type};
use backstop::metrics::{Facts, Metrics, Readings, Sights};
use backstop::state::disk::Disk;
use backstop::state::fault::{FaultDisk, FaultFiles};
use backstop::state::journal::{Journal, STATE_NAME};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const ME: &str = "i-0123456789abcdef0";
const PEER: &str = "i-0123456789abcdef1";

fn now() -> Now {
    Now { wall_ms: 1_790_000_100_500, boot: BootId("b".into()), since_boot_ms: 100_000_000 }
}

fn ago(ms: u64) -> Now {
    let n = now();
    Now { wall_ms: n.wall_ms - ms, since_boot_ms: n.since_boot_ms - ms, ..n }
}

fn group(name: &str, id: u64) -> GroupArn {
    GroupArn(format!("arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/{name}/{id:016x}").into())
}

fn fixture(path: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)).unwrap()
}

/// A state as a stage stores it.
fn durable(stage: &str) -> Durable {
    let disk = Arc::new(FaultDisk::new(&FaultFiles::default()));
    disk.replace(STATE_NAME, &fixture(&format!("state/v1/{stage}.json"))).unwrap();
    Journal::open(&disk, &InstanceId(ME.into())).0.now().clone()
}

fn row(id: &str, state: TargetState) -> Row {
    Row { id: id.into(), port: Some(9_200), state, reason: None, shifted: false }
}

/// All that an agent may know.
struct Known {
    now: Now,
    groups: Vec<GroupArn>,
    durable: Durable,
    polls: BTreeMap<GroupArn, Poll>,
    own: Vec<Own>,
    read_at: Option<Now>,
    fleet: Option<FleetView>,
    record: Option<Record>,
    sights: Sights,
    report: Option<Report>,
    undelivered: u32,
    turns: Vec<(&'static str, u64)>,
}

impl Known {
    /// Nothing but the own state.
    fn nothing() -> Known {
        Known {
            now: now(),
            groups: vec![group("es-clients", 1), group("es-internal", 2)],
            durable: Durable::new(InstanceId(ME.into())),
            polls: BTreeMap::new(),
            own: Vec::new(),
            read_at: None,
            fleet: None,
            record: None,
            sights: Sights::default(),
            report: None,
            undelivered: 0,
            turns: Vec::new(),
        }
    }

    /// Two members in service, nobody out.
    fn usual() -> Known {
        let mut known = Known::nothing();
        let poll = Poll { list: vec![row(ME, TargetState::Healthy), row(PEER, TargetState::Healthy)], named: None };
        known.polls = known.groups.iter().map(|g| (g.clone(), poll.clone())).collect();
        known.own = vec![Own::InService, Own::InService];
        known.read_at = Some(ago(4_000));
        known.fleet = Some(view(&[ME, PEER], &[ME, PEER]));
        let mut record: Record = serde_json::from_slice(&fixture("record/v1.json")).unwrap();
        record.slots.clear();
        record.holds.clear();
        record.latches.clear();
        known.record = Some(record);
        known.report = Some(Report::complete("es-client-1", Vec::new()));
        known.turns = vec![("agent", 1_790_000_100_000), ("observer", 1_790_000_090_000)];
        known
    }

    fn exposed(&self, metrics: &Metrics) -> Exposition {
        let text = metrics.expose(
            "au-search",
            Readings::of(&Facts {
                now: &self.now,
                started_ms: 1_790_000_000_000,
                mode: "act",
                groups: &self.groups,
                minimum_healthy: 3,
                minimum_during_patch: 2,
                durable: &self.durable,
                polls: &self.polls,
                own: &self.own,
                own_at: self.read_at.as_ref(),
                fleet: self.fleet.as_ref(),
                record: self.record.as_ref().zip(self.read_at.as_ref()),
                members: self.read_at.as_ref().map(|at| (2, at)),
                sights: &self.sights,
                report: self.report.as_ref(),
                undelivered: self.undelivered,
                turns: &self.turns,
            }),
        );
        read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
    }

    fn read(&self) -> Exposition {
        self.exposed(&Metrics::default())
    }
}

fn view(members: &[&str], in_service: &[&str]) -> FleetView {
    let set = |ids: &[&str]| ids.iter().map(|i| InstanceId((*i).into())).collect();
    FleetView { members: set(members), in_service: set(in_service), begun: ago(4_000) }
}

fn with_slot(known: &mut Known, budget_s: u64, seen: &Now) {
    let record: Record = serde_json::from_slice(&fixture("record/v1.json")).unwrap();
    let mine = known.record.as_mut().unwrap();
    mine.slots = record.slots;
    mine.slots.values_mut().for_each(|s| s.budget_s = budget_s);
    known.sights.look(mine, seen);
}

#[test]
fn a_settled_fleet_has_every_metric_with_the_labels_of_the_table() {
    let metrics = Metrics::default();
    metrics.stepped(&durable("settle"), &durable("idle"), &now());
    metrics.stepped(&Durable::new(InstanceId(ME.into())), &durable("idle"), &now());
    metrics.judged(&Verdicts(vec![verdict(Guard::NoLatch, Said::Refused)]));
    metrics.panicked("reconcile");
    let mut known = Known::usual();
    with_slot(&mut known, 60, &now());
    let counted = backstop::metrics::Counted::new(crate::ports::Answers(None), &metrics);
    crate::ports::ask_all(&counted);
    let all = known.exposed(&metrics);
    for m in table::ALL {
        let family = all.0.get(m.name).unwrap_or_else(|| panic!("{} is not there", m.name));
        assert_eq!((family.kind.as_str(), family.help.as_str()), (m.kind.label(), m.help));
        for s in &family.samples {
            let mut labels: Vec<_> = s.labels.keys().map(String::as_str).filter(|l| *l != "le").collect();
            let mut wanted: Vec<_> = m.labels.iter().copied().chain([table::FLEET]).collect();
            labels.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(labels, wanted, "{}", s.name);
            assert_eq!(s.labels[table::FLEET], "au-search");
        }
    }
    assert_eq!(all.0.len(), table::ALL.len(), "nothing is told that the table does not have");
}

#[test]
fn a_settled_fleet_is_told_as_it_is() {
    let all = Known::usual().read();
    assert_eq!(all.value("backstop_in_service"), Some(1.0));
    assert_eq!(all.value("backstop_members"), Some(2.0));
    assert_eq!(all.value("backstop_members_in_service"), Some(2.0));
    assert_eq!(all.value("backstop_planned_absence"), Some(0.0));
    assert_eq!(all.value("backstop_latched"), Some(0.0));
    assert_eq!(all.value("backstop_slots_held"), Some(0.0));
    assert_eq!(all.value("backstop_slot_held_since_timestamp_seconds"), None, "no slot is taken");
    assert_eq!(
        (all.value("backstop_minimum_healthy"), all.value("backstop_minimum_during_patch")),
        (Some(3.0), Some(2.0))
    );
    assert_eq!(all.with("backstop_healthy_targets", &[("group", "es-clients")]), Some(2.0));
    assert_eq!(all.with("backstop_target_state", &[("group", "es-clients"), ("state", "healthy")]), Some(1.0));
    assert_eq!(all.with("backstop_target_state", &[("group", "es-clients"), ("state", "draining")]), Some(0.0));
    assert_eq!(all.with("backstop_findings", &[("kind", "unhealthy")]), Some(0.0));
    let last = all.with("backstop_reconcile_last_success_timestamp_seconds", &[("source", "load-balancer")]);
    assert_eq!(last, Some(1_790_000_096.5), "seconds, of the moment at which the read began");
    assert_eq!(all.with("backstop_loop_last_turn_timestamp_seconds", &[("loop", "agent")]), Some(1_790_000_100.0));
    assert_eq!(all.value("backstop_started_timestamp_seconds"), Some(1_790_000_000.0));
    assert_eq!(all.with("backstop_build_info", &[("mode", "act")]), Some(1.0));
}

/// Everything that comes from a read.
const FROM_READS: [&str; 11] = [
    "backstop_in_service",
    "backstop_target_state",
    "backstop_healthy_targets",
    "backstop_members",
    "backstop_members_in_service",
    "backstop_planned_absence",
    "backstop_latched",
    "backstop_slots_held",
    "backstop_slots_overdue",
    "backstop_slot_held_since_timestamp_seconds",
    "backstop_running_not_registered",
];

#[test]
fn what_was_never_read_has_no_series() {
    let all = Known::nothing().read();
    for name in FROM_READS.into_iter().chain(["backstop_findings", "backstop_reconcile_last_success_timestamp_seconds"])
    {
        assert!(!all.0.contains_key(name), "{name}: {:?}", all.0.get(name));
    }
    assert_eq!(all.value("backstop_alerts_undelivered"), Some(0.0), "the own state is known");
}

#[test]
fn what_was_read_too_long_ago_has_no_series_but_when_that_was() {
    let mut known = Known::usual();
    with_slot(&mut known, 60, &now());
    known.report = None;
    known.read_at = Some(ago(FRESH_MS));
    known.fleet = Some(FleetView { begun: ago(FRESH_MS), ..view(&[ME, PEER], &[ME, PEER]) });
    let still = known.read();
    known.read_at = Some(ago(FRESH_MS + 1));
    known.fleet = Some(FleetView { begun: ago(FRESH_MS + 1), ..view(&[ME, PEER], &[ME, PEER]) });
    let old = known.read();
    for name in FROM_READS.iter().filter(|n| **n != "backstop_running_not_registered") {
        assert!(still.0.contains_key(*name), "{name}");
        assert!(!old.0.contains_key(*name), "{name}: {:?}", old.0.get(*name));
    }
    let last = old.with("backstop_reconcile_last_success_timestamp_seconds", &[("source", "members")]);
    assert_eq!(last, Some((now().wall_ms - FRESH_MS - 1) as f64 / 1_000.0));
    known.now.boot = BootId("another".into());
    assert!(known.read().value("backstop_in_service").is_none(), "a read of another boot is none");
}

#[test]
fn out_of_one_group_is_out_and_not_known_in_one_is_not_known() {
    let in_service = |own: [Own; 2]| {
        let mut known = Known::usual();
        known.own = own.to_vec();
        known.read().value("backstop_in_service")
    };
    let unwell = Own::NotYet(TargetState::Unhealthy, Some(Reason::Timeout));
    assert_eq!(in_service([Own::InService, Own::InService]), Some(1.0));
    assert_eq!(in_service([Own::InService, Own::Unknown]), None, "unknown is never good news");
    assert_eq!(in_service([Own::Unknown, Own::Unknown]), None);
    for out in [unwell, Own::Draining, Own::Gone, Own::NoRow] {
        assert_eq!(in_service([Own::InService, out]), Some(0.0));
        assert_eq!(in_service([out, Own::Unknown]), Some(0.0), "{out:?}: that it is out is known");
    }
}

#[test]
fn a_targets_state_is_told_by_group_and_an_unknown_one_is_not() {
    let mut known = Known::usual();
    known.own = vec![Own::Gone, Own::Unknown];
    let all = known.read();
    assert_eq!(all.with("backstop_target_state", &[("group", "es-clients"), ("state", "unused")]), Some(1.0));
    assert_eq!(all.sum("backstop_target_state", &[("group", "es-clients")]), 1.0, "one state at a time");
    assert_eq!(all.with("backstop_target_state", &[("group", "es-internal"), ("state", "unused")]), None);
    known.own = vec![Own::NotYet(TargetState::Healthy, None), Own::InService];
    let shifted = known.read();
    assert_eq!(shifted.with("backstop_target_state", &[("group", "es-clients"), ("state", "healthy")]), Some(0.0));
}

#[test]
fn no_registered_target_is_a_zero_and_no_gap() {
    let mut known = Known::usual();
    for poll in known.polls.values_mut() {
        poll.list.clear();
    }
    known.fleet = Some(view(&[ME, PEER], &[]));
    let all = known.read();
    assert_eq!(all.with("backstop_healthy_targets", &[("group", "es-clients")]), Some(0.0));
    assert_eq!(all.value("backstop_members_in_service"), Some(0.0));
}

#[test]
fn two_groups_of_one_name_are_two_series() {
    let mut known = Known::usual();
    known.groups = vec![group("es-clients", 1), group("es-clients", 2)];
    let poll = Poll { list: vec![row(ME, TargetState::Healthy)], named: None };
    known.polls = known.groups.iter().map(|g| (g.clone(), poll.clone())).collect();
    let all = known.read();
    assert_eq!(all.with("backstop_healthy_targets", &[("group", &known.groups[1].0)]), Some(1.0));
}

#[test]
fn an_absence_is_planned_while_a_slot_explains_it_and_only_within_its_budget() {
    let mut known = Known::usual();
    with_slot(&mut known, 60, &ago(60_000));
    assert_eq!(known.read().value("backstop_planned_absence"), Some(0.0), "who has a slot and serves is not out");
    known.fleet = Some(view(&[ME, PEER], &[PEER]));
    let all = known.read();
    assert_eq!(all.value("backstop_planned_absence"), Some(1.0));
    assert_eq!((all.value("backstop_slots_held"), all.value("backstop_slots_overdue")), (Some(1.0), Some(0.0)));
    assert_eq!(all.value("backstop_slot_held_since_timestamp_seconds"), Some(1_790_000_000.0));
    known.now = now().plus(1);
    let all = known.read();
    assert_eq!((all.value("backstop_planned_absence"), all.value("backstop_slots_overdue")), (Some(0.0), Some(1.0)));
    known.fleet = Some(view(&[PEER], &[PEER]));
    known.now = now();
    assert_eq!(known.read().value("backstop_planned_absence"), Some(0.0), "who is no member is not missed");
    known.record = None;
    assert_eq!(known.read().value("backstop_planned_absence"), None, "without the record nothing is known of plans");
}

#[test]
fn a_hold_explains_too_and_one_ordered_anew_begins_anew() {
    let mut known = Known::usual();
    known.fleet = Some(view(&[ME, PEER], &[ME]));
    let order = |since_ms| Pause { by: "ann".into(), reason: "a look".into(), since_ms, extra: Extra::new() };
    let hold = |since_ms| Hold { node: "es-client-2".into(), order: order(since_ms), for_s: 60, extra: Extra::new() };
    let at = InstanceId(PEER.into());
    known.record.as_mut().unwrap().holds.insert(at.clone(), hold(1));
    known.sights.look(known.record.as_ref().unwrap(), &ago(61_000));
    assert_eq!(known.read().value("backstop_planned_absence"), Some(0.0));
    known.record.as_mut().unwrap().holds.insert(at, hold(2));
    known.sights.look(known.record.as_ref().unwrap(), &now());
    let all = known.read();
    assert_eq!(all.value("backstop_planned_absence"), Some(1.0));
    assert_eq!(all.value("backstop_slots_overdue"), Some(0.0), "a hold is no slot");
}

#[test]
fn the_own_absence_is_planned_until_a_deadline_of_the_way_back_has_passed() {
    let mut known = Known::usual();
    let planned = |known: &Known| known.read().value("backstop_own_absence_planned");
    assert_eq!(planned(&known), Some(0.0), "idle");
    known.durable = durable("check");
    known.durable.cycle.as_mut().unwrap().late = None;
    assert_eq!(planned(&known), Some(1.0));
    let all = known.read();
    assert_eq!(all.with("backstop_cycle_stage", &[("stage", "check")]), Some(1.0));
    assert_eq!(all.sum("backstop_cycle_stage", &[]), 1.0);
    known.durable.cycle.as_mut().unwrap().late = Some(StageName::Check);
    assert_eq!(planned(&known), Some(0.0), "late");
}

#[test]
fn latches_count_until_they_are_cleared() {
    let mut known = Known::usual();
    let record: Record = serde_json::from_slice(&fixture("record/v1.json")).unwrap();
    let open = record.open_latches().count();
    assert!(open > 0 && open < record.latches.len(), "the fixture has one of each kind");
    known.record.as_mut().unwrap().latches = record.latches;
    assert_eq!(known.read().value("backstop_latched"), Some(open as f64));
}

#[test]
fn no_finding_is_a_zero_only_where_the_look_could_judge() {
    let finding = |kind, subject: &str| Finding {
        kind,
        subject: subject.into(),
        severity: Severity::Warning,
        sentence: "so".into(),
    };
    let mut known = Known::usual();
    let report = known.report.as_mut().unwrap();
    report.findings = vec![
        finding(Kind::RunningNotRegistered, "es-client-1"),
        finding(Kind::RunningNotRegistered, "es-client-2"),
        finding(Kind::Unhealthy, "es-client-3"),
    ];
    report.unjudged.extend([Kind::StuckInitial, Kind::Unhealthy]);
    report.unjudged_about.insert((Kind::WrongPort, "es-client-1".into()));
    let all = known.read();
    let of = |kind| all.with("backstop_findings", &[("kind", kind)]);
    assert_eq!(all.value("backstop_running_not_registered"), Some(2.0));
    assert_eq!(of("running-not-registered"), Some(2.0));
    assert_eq!(of("unhealthy"), Some(1.0), "what was found is known");
    assert_eq!(of("stuck-initial"), None);
    assert_eq!(of("wrong-port"), None, "of one subject it is not known");
    assert_eq!(of("stuck-draining"), Some(0.0));
    assert_eq!(of("test"), None, "nothing is wrong");
    known.report.as_mut().unwrap().findings.clear();
    known.report.as_mut().unwrap().unjudged.insert(Kind::RunningNotRegistered);
    assert_eq!(known.read().value("backstop_running_not_registered"), None);
}

#[test]
fn a_step_is_counted_once_by_what_changed() {
    let metrics = Metrics::default();
    let mut before = durable("settle");
    let entered = before.cycle.as_ref().unwrap().entered.clone();
    before.last = None;
    metrics.stepped(&before, &before, &entered.plus(5));
    let mut after = before.clone();
    after.pages.clear();
    metrics.stepped(&before, &after, &entered.plus(6));
    let all = Known::usual().exposed(&metrics);
    assert!(!all.0.contains_key("backstop_stage_duration_seconds"), "the stage is the same");
    assert!(!all.0.contains_key("backstop_cycles_total"), "no cycle has ended");

    after.cycle = None;
    after.last = durable("settle").last; // of an earlier cycle in the fixture; here the one that ends
    metrics.stepped(&before, &after, &entered.plus(7_500));
    let all = Known::usual().exposed(&metrics);
    let settle = [("stage", "settle")];
    assert_eq!(all.with("backstop_stage_duration_seconds_sum", &settle), Some(7.5));
    assert_eq!(all.with("backstop_stage_duration_seconds_bucket", &[("stage", "settle"), ("le", "5.0")]), Some(0.0));
    assert_eq!(all.with("backstop_stage_duration_seconds_bucket", &[("stage", "settle"), ("le", "15.0")]), Some(1.0));
    assert_eq!(all.with("backstop_cycles_total", &[("result", "failed-back")]), Some(1.0));
    metrics.stepped(&after, &after, &entered.plus(8_000));
    assert_eq!(Known::usual().exposed(&metrics).sum("backstop_cycles_total", &[]), 1.0, "told once");
}

fn verdict(guard: Guard, said: Said) -> Verdict {
    Verdict { guard, said, sentence: "so".into(), exit: Exit::Guard }
}

#[test]
fn guards_that_refuse_or_do_not_know_are_counted_and_those_that_pass_or_do_not_count_are_not() {
    let metrics = Metrics::default();
    let verdicts = Verdicts(vec![
        verdict(Guard::NoLatch, Said::Refused),
        verdict(Guard::FleetRecord, Said::Unknown),
        verdict(Guard::Rate, Said::Overridden),
        verdict(Guard::Identity, Said::Pass),
    ]);
    metrics.judged(&verdicts);
    metrics.judged(&verdicts);
    let all = Known::usual().exposed(&metrics);
    assert_eq!(all.with("backstop_guard_refusals_total", &[("guard", "no-latch")]), Some(2.0));
    assert_eq!(all.with("backstop_guard_refusals_total", &[("guard", "fleet-record")]), Some(2.0));
    assert_eq!(all.sum("backstop_guard_refusals_total", &[]), 4.0);
}

/// Each label has few values, and none is a name or a message: the most that there can ever be.
#[test]
fn the_number_of_series_is_bounded_by_enums_and_configured_groups() {
    let per = |label: &str| match label {
        "group" => 50,
        "state" => TargetState::ALL.len(),
        "stage" => StageName::ALL.len(),
        "kind" => Kind::ALL.len(),
        "guard" => Guard::ALL.len(),
        "class" => Class::ALL.len() + 2,
        "operation" => 8,
        "dependency" => 6,
        "result" => Exit::ALL.len(),
        "loop" => backstop::agent::turns::Loop::ALL.len(),
        "source" => 4,
        // What a look is made of (agent/observe.rs).
        "part" => 8,
        "version" | "mode" => 1,
        other => panic!("what values has the label {other}?"),
    };
    let series: usize = table::ALL
        .iter()
        .map(|m| {
            let all: usize = m.labels.iter().map(|l| per(l)).product();
            if m.kind == Type::Histogram { all * 16 } else { all }
        })
        .sum();
    assert!(series < 1_500, "{series}");
}
