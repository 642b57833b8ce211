//! Tables over every stage and every event. What many steps and many nodes do together is the model's part
//! (`tests/core_alone`).
#![allow(clippy::pedantic, clippy::arithmetic_side_effects, reason = "tests of small numbers")]

#[cfg(not(feature = "mutants"))] // of the product, with its own development dependencies
mod histories;
mod home;
mod out;
mod ssm;
mod world;

use super::super::cycle::{Cycle, Doubt, Durable, Ended, FailureClass, Seen, Stage, StageName, advance};
use super::super::error::{Class, Fault, Jitter};
use super::super::event::Event;
use super::super::exit::Exit;
use super::super::exit_codes::ExitCodes;
use super::super::guard::{Guard, Said, Verdict as GuardVerdict, Verdicts};
use super::super::invariant;
use super::super::job::{JobResult, JobStatus, Verdict};
use super::super::member::FleetView;
use super::super::plan::Kind;
use super::super::record::{RecordSeen, Refusal};
use super::super::settings::{CheckPass, NodeIdentity};
use super::super::target::{Own, Reason, TargetState};
use super::super::time::{Deadline, Dwell, Now};
use super::{Step, decide, settle_commit};
use world::{at, cycle_in, hold, patch_plan, plan};

const EVENTS: usize = 25;

/// A total match: a new event has to be put into the table.
fn kind_of(e: &Event) -> &'static str {
    match e {
        Event::Recovered => "recovered",
        Event::Tick => "tick",
        Event::Start(_) => "start",
        Event::Acked { .. } => "acked",
        Event::CasRefused(_) => "cas-refused",
        Event::Unanswered(_) => "unanswered",
        Event::Guards(_) => "guards",
        Event::Fleet(_) => "fleet",
        Event::Own(..) => "own",
        Event::Called(..) => "called",
        Event::Connections(_) => "connections",
        Event::Job(_) => "job",
        Event::Started(_) => "started",
        Event::Killed(_) => "killed",
        Event::Checked(_) => "checked",
        Event::Rejoin { .. } => "rejoin",
        Event::Hold(_) => "hold",
        Event::StoodStill => "stood-still",
        Event::StateLost(..) => "state-lost",
        Event::Adopt(_) => "adopt",
        Event::Doubt(_) => "doubt",
        Event::RecordSeen(_) => "record-seen",
        Event::OwnLatch(_) => "own-latch",
        Event::Healed => "healed",
        Event::PageAccepted(_) => "page-accepted",
    }
}

fn fault(class: Class) -> Fault {
    Fault::new(class, "a fault")
}

fn verdicts(guard: Guard, said: Said) -> Verdicts {
    Verdicts(vec![GuardVerdict { guard, said, sentence: "a sentence".into(), exit: Exit::Guard }])
}

fn pass() -> CheckPass {
    CheckPass {
        identity: NodeIdentity { node_name: "n".into(), node_id: None, cluster_uuid: "u".into() },
        colour: None,
    }
}

fn ended(code: i32, reboot_needed: bool) -> JobStatus {
    JobStatus::Ended(Verdict {
        result: JobResult::Exited(code),
        reboot_needed,
        output_tail: "tail".into(),
        codes: ExitCodes::Plain,
    })
}

/// Every kind of event with every shape of answer. The first of each pair is the kind.
fn events(now: &Now) -> Vec<(&'static str, Event)> {
    let some = |ids: &[&str]| ids.iter().map(|i| (*i).into()).collect();
    let view = FleetView { members: some(&["i-0", "i-1"]), in_service: some(&["i-0", "i-1"]), begun: now.clone() };
    let alone = FleetView { in_service: some(&["i-0"]), ..view.clone() };
    let mut all = vec![
        ("recovered", Event::Recovered),
        ("tick", Event::Tick),
        ("start", Event::Start(patch_plan())),
        ("acked", Event::Acked { leavers: some(&["i-0"]) }),
        ("cas-refused", Event::CasRefused(Box::new(Refusal::SlotGone))),
        ("guards", Event::Guards(verdicts(Guard::Mode, Said::Pass))),
        ("guards", Event::Guards(verdicts(Guard::NoLatch, Said::Refused))),
        ("guards", Event::Guards(verdicts(Guard::FleetRecord, Said::Unknown))),
        ("fleet", Event::Fleet(Ok(view))),
        ("fleet", Event::Fleet(Ok(alone))),
        ("called", Event::Called(0, Ok(()))),
        ("called", Event::Called(1, Ok(()))),
        ("called", Event::Called(usize::MAX, Ok(()))),
        ("connections", Event::Connections(Ok(0))),
        ("connections", Event::Connections(Ok(3))),
        ("job", Event::Job(Ok(JobStatus::New))),
        ("job", Event::Job(Ok(JobStatus::Running))),
        ("job", Event::Job(Ok(JobStatus::Lost))),
        ("job", Event::Job(Ok(ended(0, false)))),
        ("job", Event::Job(Ok(ended(0, true)))),
        ("job", Event::Job(Ok(ended(1, true)))),
        ("started", Event::Started(Ok(()))),
        ("killed", Event::Killed(Ok(()))),
        ("checked", Event::Checked(Ok(pass()))),
        ("rejoin", Event::Rejoin { by: "a".into(), reason: "b".into(), skip_check: false }),
        ("rejoin", Event::Rejoin { by: "a".into(), reason: "b".into(), skip_check: true }),
        ("hold", Event::Hold(hold())),
        ("stood-still", Event::StoodStill),
        ("state-lost", Event::StateLost(plan(Kind::Recovery), "unreadable".into())),
        ("adopt", Event::Adopt(plan(Kind::Hold(hold())))),
        ("adopt", Event::Adopt(patch_plan())),
        ("doubt", Event::Doubt(Some(Doubt::Unproven))),
        ("record-seen", Event::RecordSeen(RecordSeen { fleet: "blue".into(), counter: 7 })),
        ("own-latch", Event::OwnLatch("failed before".into())),
        ("healed", Event::Healed),
        ("page-accepted", Event::PageAccepted(1)),
    ];
    for class in Class::ALL {
        let f = || fault(class);
        all.extend([
            ("unanswered", Event::Unanswered(f())),
            ("fleet", Event::Fleet(Err(f()))),
            ("own", Event::Own(vec![Own::Unknown, Own::Unknown], Some(f()))),
            ("called", Event::Called(0, Err(f()))),
            ("connections", Event::Connections(Err(f()))),
            ("job", Event::Job(Err(f()))),
            ("started", Event::Started(Err(f()))),
            ("killed", Event::Killed(Err(f()))),
            ("checked", Event::Checked(Err(f()))),
        ]);
    }
    for a in own_values() {
        all.extend(own_values().into_iter().map(|b| ("own", Event::Own(vec![a, b], None))));
    }
    all.push(("own", Event::Own(Vec::new(), None)));
    all.into_iter().inspect(|(kind, e)| assert_eq!(*kind, kind_of(e))).collect()
}

fn own_values() -> Vec<Own> {
    let mut all = vec![Own::InService, Own::Draining, Own::Gone, Own::NoRow, Own::Unknown];
    all.extend(TargetState::ALL.map(|s| Own::NotYet(s, None)));
    all.push(Own::NotYet(TargetState::Unused, Some(Reason::NotInUse)));
    all
}

/// What a process may know in a stage, from nothing to everything.
fn knowledge(now: &Now) -> Vec<Seen> {
    let much = Seen {
        acked_at: Some(now.clone()),
        leavers: ["i-0".into()].into(),
        floor: true,
        called: 3,
        own: vec![Own::Gone, Own::Gone],
        no_row: vec![1, 2],
        again: 1,
        gone: true,
        job_new: true,
        started: true,
        unread: true,
        passes: 2,
        first_pass: Some(now.clone()),
        bake: Some(Dwell::start(now, 30_000)),
        quiet: Some(Dwell::start(now, 30_000)),
        unknown: 2,
        tries: 9,
        fault: Some(fault(Class::Refused)),
        auth_since: Some(now.clone()),
        tried: true,
        latched: true,
        doubt: true,
        ..Seen::default()
    };
    vec![Seen::default(), Seen::recovered(), much]
}

/// Every stage of every kind of cycle that can be in it, well and failed where that is allowed.
fn states() -> Vec<Durable> {
    let mut all = Vec::new();
    for name in StageName::ALL {
        for kind in world::kinds() {
            let d = cycle_in(name, &kind, &at(0));
            if invariant::durable(&d).is_err() {
                continue;
            }
            if name.homeward() || name == StageName::Release {
                all.push(world::failed(d.clone(), FailureClass::Deadline, &at(0)));
                all.push(world::changed(d.clone(), |c| c.kill_job = true));
            }
            if name == StageName::Deregister {
                all.push(world::changed(d.clone(), |c| c.out_since = None));
            }
            if name.homeward() {
                all.push(world::changed(d.clone(), |c| c.hold = Some(hold())));
            }
            all.push(d);
        }
    }
    all
}

/// Where each stage may lead; `None` = idle.
fn next_stages(from: StageName) -> &'static [Option<StageName>] {
    use StageName as S;
    match from {
        S::Claim => &[Some(S::Claim), Some(S::Deregister), Some(S::Release), None],
        S::Deregister => &[Some(S::Deregister), Some(S::Drain), Some(S::Check), Some(S::Release)],
        S::Drain => &[Some(S::Drain), Some(S::Patch), Some(S::Held), Some(S::Check)],
        S::Patch => &[Some(S::Patch), Some(S::Reboot), Some(S::Check)],
        S::Reboot => &[Some(S::Reboot), Some(S::Check)],
        S::Held => &[Some(S::Held), Some(S::Check)],
        S::Check => &[Some(S::Check), Some(S::Register), Some(S::Held)],
        S::Register => &[Some(S::Register), Some(S::Settle), Some(S::Held)],
        S::Settle => &[Some(S::Settle), Some(S::Register), Some(S::Release), Some(S::Held)],
        S::Release => &[Some(S::Release), None],
    }
}

/// Now, long after every deadline, in another boot, and with clocks that went backwards.
fn times() -> Vec<Now> {
    let other = Now { boot: super::super::time::BootId("boot-2".into()), since_boot_ms: 5, ..at(60_000) };
    vec![at(1), at(1_000_000_000), other.clone(), Now { wall_ms: 0, ..other }, Now { since_boot_ms: 0, ..at(0) }]
}

#[test]
fn every_stage_takes_every_event_and_stays_on_its_road() {
    let mut n = 0_u32;
    for d in states() {
        let from = d.stage().unwrap();
        for now in times() {
            for v in knowledge(&now) {
                for (_, e) in events(&now) {
                    let step = decide(&d, &v, &e, &now, Jitter(500));
                    let to = step.durable.stage();
                    assert!(next_stages(from).contains(&to), "{from} led to {to:?} by {e:?} {v:?}");
                    assert_eq!(invariant::durable(&step.durable), Ok(()), "{from} {e:?}");
                    let refused = settle_commit(&d, &v, step.clone(), false, &now);
                    assert_eq!(invariant::durable(&refused.durable), Ok(()), "{from} {e:?} on a full disk");
                    keeps_failure(&d, &step);
                    n += 1;
                }
            }
        }
    }
    assert!(n > 50_000, "the table has shrunk: {n}");
}

/// A failure is never taken back while its cycle goes on.
fn keeps_failure(d: &Durable, step: &Step) {
    let Some(c) = &d.cycle else { return };
    let Some(next) = &step.durable.cycle else { return };
    if next.stage.name() != StageName::Held && c.failure.is_some() {
        assert_eq!(next.failure, c.failure);
    }
}

/// Which events each stage listens to, besides those that any stage may hear.
fn listens(stage: StageName, d: &Durable, kind: &str) -> bool {
    use StageName as S;
    let written = ["acked", "cas-refused", "unanswered"].contains(&kind);
    let holds = d.cycle.as_ref().is_some_and(|c| c.hold.is_some());
    match stage {
        S::Claim => written || kind == "guards",
        S::Deregister => written || ["fleet", "called", "own"].contains(&kind),
        S::Drain => ["own", "connections"].contains(&kind),
        S::Patch => written || ["own", "started", "job"].contains(&kind),
        S::Reboot => written || ["own", "started"].contains(&kind),
        S::Held => written,
        S::Release => written || kind == "own-latch",
        S::Check => written || ["hold", "killed", "checked", "own-latch"].contains(&kind) || (holds && kind == "own"),
        S::Register => written || ["hold", "killed", "own", "called", "own-latch"].contains(&kind),
        S::Settle => written || ["killed", "own", "own-latch"].contains(&kind),
    }
}

#[test]
fn an_impossible_pair_changes_nothing() {
    let mut kinds = std::collections::BTreeSet::new();
    for d in states() {
        let stage = d.stage().unwrap();
        for v in knowledge(&at(1)) {
            for (kind, e) in events(&at(1)) {
                kinds.insert(kind_of(&e));
                let any =
                    ["recovered", "tick", "rejoin", "page-accepted", "stood-still", "doubt", "record-seen", "healed"]
                        .contains(&kind);
                if any || listens(stage, &d, kind) {
                    continue;
                }
                let step = decide(&d, &v, &e, &at(1), Jitter(0));
                assert_eq!(step, Step { durable: d.clone(), seen: v.clone() }, "{stage} does not listen to {e:?}");
            }
        }
    }
    assert_eq!(kinds.len(), EVENTS, "an event is missing from the table: {kinds:?}");
}

#[test]
fn an_idle_node_begins_a_cycle_or_takes_a_note() {
    let d = Durable::new("i-0".into());
    for (kind, e) in events(&at(1)) {
        let step = decide(&d, &Seen::recovered(), &e, &at(1), Jitter(0));
        match kind {
            "start" => assert_eq!(step.durable.stage(), Some(StageName::Claim)),
            "state-lost" => assert_eq!(step.durable.stage(), Some(StageName::Check)),
            "adopt" if e == Event::Adopt(patch_plan()) => assert_eq!(step.durable, d),
            "adopt" => assert_eq!(step.durable.stage(), Some(StageName::Held)),
            "doubt" | "record-seen" | "healed" => assert_ne!(step.durable, d),
            _ => assert_eq!(step, Step { durable: d.clone(), seen: Seen::recovered() }, "{kind}"),
        }
    }
}

#[test]
fn an_accepted_page_leaves_the_outbox_and_nothing_else_changes() {
    let d = world::failed(cycle_in(StageName::Check, &world::kinds()[0], &at(0)), FailureClass::Job, &at(0));
    let seq = d.pages[0].seq;
    let other = decide(&d, &Seen::default(), &Event::PageAccepted(seq + 1), &at(1), Jitter(0));
    assert_eq!(other.durable, d);
    let gone = decide(&d, &Seen::default(), &Event::PageAccepted(seq), &at(1), Jitter(0)).durable;
    assert_eq!(gone, Durable { pages: Vec::new(), ..d });
}

/// A commit that the disk refuses, for every pair of stages.
#[test]
fn without_a_disk_it_goes_home_or_stays() {
    use StageName as S;
    let now = at(10);
    for from in StageName::ALL {
        for to in StageName::ALL {
            let kind = |s| world::kinds()[usize::from(s == S::Held)].clone();
            let (present, next) = (cycle_in(from, &kind(from), &at(0)), cycle_in(to, &kind(to), &at(5)));
            let got = advance(&present, next.clone(), false, &now);
            let c = got.cycle.as_ref().unwrap();
            let failed = |c: &Cycle| c.failure.as_ref().map(|f| f.class);
            match (from, to) {
                (_, S::Check | S::Register | S::Settle) => assert_eq!(got, next, "{from} {to}: home in memory"),
                (S::Claim, S::Claim | S::Deregister | S::Release) => {
                    assert_eq!((c.stage.name(), failed(c)), (S::Check, None), "{from} {to}: home, no latch");
                    assert!(c.early.is_some() && got.pages.is_empty());
                }
                (a, b) if a == b => assert_eq!(got, next, "{from}: notes go on in memory"),
                (S::Deregister | S::Drain, S::Drain | S::Patch | S::Held) | (S::Patch, S::Reboot) => {
                    assert_eq!((c.stage.name(), failed(c)), (S::Check, Some(FailureClass::Disk)), "{from} {to}");
                    assert_eq!(got.pages.len(), 1, "{from} {to}: it pages");
                    assert_eq!(c.kill_job, from == S::Patch, "{from} {to}");
                }
                _ => assert_eq!(got, present, "{from} {to}: it stays"),
            }
            assert_eq!(advance(&present, next.clone(), true, &now), next, "a good disk");
            if to == S::Reboot && from == to {
                let asked = Stage::Reboot { from: now.boot.clone(), asked: 1 };
                let asked = world::changed(next, |c| c.stage = asked);
                let got = advance(&present, asked, false, &now).cycle.unwrap();
                assert_eq!(
                    (got.stage.name(), failed(&got)),
                    (S::Check, Some(FailureClass::Disk)),
                    "asked for, not stored"
                );
            }
        }
    }
}

#[test]
fn on_a_full_disk_nothing_starts_and_a_claim_that_took_nothing_ends() {
    let idle = Durable::new("i-0".into());
    let step = decide(&idle, &Seen::default(), &Event::Start(patch_plan()), &at(1), Jitter(0));
    assert_eq!(settle_commit(&idle, &Seen::default(), step, false, &at(1)).durable, idle);
    let claim = cycle_in(StageName::Claim, &world::kinds()[0], &at(0));
    let late = at(1_000_000_000);
    let step = decide(&claim, &Seen::default(), &Event::Tick, &late, Jitter(0));
    assert_eq!(settle_commit(&claim, &Seen::default(), step, false, &late).durable.stage(), None);
}

#[test]
fn a_refused_commit_is_not_followed_by_a_busy_loop() {
    let d = cycle_in(StageName::Settle, &world::kinds()[0], &at(0));
    let v = Seen { bake: Some(Dwell::start(&at(0), 0)), ..Seen::default() };
    let good = Event::Own(vec![Own::InService, Own::InService], None);
    let step = decide(&d, &v, &good, &at(10), Jitter(0));
    assert_eq!(step.durable.stage(), Some(StageName::Release));
    let stays = settle_commit(&d, &v, step, false, &at(10));
    assert_eq!(stays.durable, d);
    assert_eq!(super::super::want::want(&d, &stays.seen, &at(10)), super::super::effect::Want::Wait(at(1_010)));
}

#[test]
fn the_end_of_a_cycle_tells_what_happened() {
    let release = |change: fn(&mut Cycle)| {
        let d = world::changed(cycle_in(StageName::Release, &world::kinds()[0], &at(0)), change);
        let acked = Event::Acked { leavers: Default::default() };
        decide(&d, &Seen::default(), &acked, &at(9), Jitter(0)).durable.last.unwrap()
    };
    let done: Ended = release(|_| ());
    assert_eq!((done.exit, done.latch, done.out_ms), (Exit::Done, None, 9));
    for (class, exit) in [
        (FailureClass::Job, Exit::FailedBack),
        (FailureClass::NotRebooted, Exit::NotRebooted),
        (FailureClass::State, Exit::StateUnreadable),
        (FailureClass::Cancelled, Exit::EndedEarly),
    ] {
        let d = world::failed(cycle_in(StageName::Release, &world::kinds()[0], &at(0)), class, &at(0));
        let acked = Event::Acked { leavers: Default::default() };
        let last = decide(&d, &Seen::default(), &acked, &at(9), Jitter(0)).durable.last.unwrap();
        assert_eq!((last.exit, last.latch.is_some()), (exit, true), "{class:?}");
    }
}

#[test]
fn a_read_that_leaves_a_group_out_proves_nothing_in_any_stage() {
    for d in states() {
        let stage = d.stage().unwrap();
        for own in own_values() {
            for read in [vec![], vec![own], vec![own; 3]] {
                let v = Seen { accepted: 3, called: 3, no_row: vec![1, 1], ..Seen::default() };
                let step = decide(&d, &v, &Event::Own(read.clone(), None), &at(1), Jitter(0));
                assert_eq!(step.durable.stage(), Some(stage), "{read:?}");
                assert!(!step.seen.gone && step.seen.bake.is_none(), "{stage} {read:?}");
            }
        }
    }
}

#[test]
fn a_hold_that_is_late_home_pages_and_leaves_no_latch() {
    let d = cycle_in(StageName::Check, &Kind::Hold(hold()), &at(0));
    let late = decide(&d, &Seen::default(), &Event::Tick, &at(1_000_000_000), Jitter(0)).durable;
    let c = late.cycle.as_ref().unwrap();
    assert!(c.failure.is_some() && c.latch().is_none());
    assert_eq!(late.pages.len(), 1);
}

#[test]
fn the_quotas_of_the_table_are_real() {
    // A stage that no state of the table is in would be tested by nothing.
    let stages: std::collections::BTreeSet<_> = states().iter().filter_map(Durable::stage).collect();
    assert_eq!(stages.len(), StageName::ALL.len());
    let held = Stage::Held { until: Deadline::start(&at(0), 1) };
    assert_eq!(held.name(), StageName::Held);
    assert_eq!(plan(Kind::Return).job_name().as_ref(), "rejoin");
}
