//! The road out: claims, the floor, drain, job, reboot; and what a restart of the agent finds.

use super::super::super::cycle::{Durable, FailureClass, Seen, Stage, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::error::{Class, Jitter};
use super::super::super::event::Event;
use super::super::super::exit::Exit;
use super::super::super::guard::{Guard, Said};
use super::super::super::job::{JobResult, JobSpec, JobStatus, RebootPolicy, Verdict};
use super::super::super::member::FleetView;
use super::super::super::page::PageKind;
use super::super::super::plan::Kind;
use super::super::super::record::{Op, Refusal};
use super::super::super::target::{Own, TargetState};
use super::super::super::time::{BootId, Now};
use super::super::super::want::want;
use super::super::decide;
use super::world::{Driver, at, changed, cycle_in, good, hold, kinds};
use super::{ended, fault, verdicts};

fn patch_in(stage: StageName) -> Durable {
    cycle_in(stage, &kinds()[0], &at(0))
}

pub(super) fn acked() -> Event {
    Event::Acked { leavers: ["i-0".into()].into() }
}

pub(super) fn fleet(healthy: &[&str], begun: Now) -> Event {
    let set = |ids: &[&str]| ids.iter().map(|i| (*i).into()).collect();
    Event::Fleet(Ok(FleetView { members: set(&["i-0", "i-1", "i-2"]), in_service: set(healthy), begun }))
}

/// A whole cycle in a good world, from any state, to idle.
fn to_the_end(driver: &mut Driver) {
    let mut serving = false;
    driver.run(2_000, &mut |effect, now| match effect {
        Effect::ReadFleet => fleet(&["i-0", "i-1", "i-2"], now.clone()),
        _ => good(effect, &mut serving),
    });
}

#[test]
fn a_good_cycle_makes_these_calls_in_this_order() {
    let mut driver = Driver::new(Durable::new("i-0".into()), at(0));
    driver.feed(&Event::Start(super::patch_plan()));
    let (mut serving, mut asked) = (true, 0);
    driver.run(2_000, &mut |effect, now| match effect {
        Effect::ReadFleet => fleet(&["i-0", "i-1", "i-2"], now.clone()),
        Effect::AskJob => {
            asked += 1;
            Event::Job(Ok(if asked == 1 { JobStatus::New } else { ended(0, false) }))
        }
        _ => good(effect, &mut serving),
    });
    let mut labels: Vec<_> = driver.effects.iter().map(|(e, _)| e.label()).collect();
    labels.dedup();
    let expected = "claim-slot read-guards confirm-slot read-fleet deregister read-own count-connections ask-job \
                    confirm-slot read-own start-job ask-job check register read-own free-slot";
    assert_eq!(labels.join(" "), expected);
    assert_eq!(driver.d.last.as_ref().unwrap().exit, Exit::Done);
    assert!(driver.pages.is_empty());
}

/// SIGKILL in each stage, then to the end: which row of the table it is.
#[test]
fn a_killed_agent_goes_on_where_it_was_and_ends_without_a_latch() {
    for name in StageName::ALL {
        let kind = if name == StageName::Held { Kind::Hold(hold()) } else { kinds()[0].clone() };
        let mut driver = Driver::new(cycle_in(name, &kind, &at(0)), at(0));
        driver.restart();
        let stage = driver.stage();
        if name == StageName::Claim {
            assert_eq!(stage, Some(StageName::Release), "before the answer: freed by itself");
        } else {
            assert_eq!(stage, Some(name), "an agent restart is not a failure");
        }
        to_the_end(&mut driver);
        let last = driver.d.last.clone().unwrap();
        let expected = if name == StageName::Reboot { Exit::NotRebooted } else { Exit::Done };
        if name == StageName::Claim {
            assert_eq!(last.exit, Exit::EndedEarly);
        } else {
            assert_eq!(last.exit, expected, "{name}");
        }
        assert_eq!(last.latch.is_some(), name == StageName::Reboot, "{name}: the machine never restarts here");
    }
}

#[test]
fn a_claim_that_was_acknowledged_on_the_disk_goes_on_with_a_fresh_acknowledgement() {
    let d = changed(patch_in(StageName::Claim), |c| c.stage = Stage::Claim { acked: true });
    let mut driver = Driver::new(d, at(0));
    driver.restart();
    assert_eq!(driver.stage(), Some(StageName::Claim));
    assert!(matches!(want(&driver.d, &driver.v, &at(0)), Want::Do(Effect::Record(Op::Claim { .. }))));
}

#[test]
fn recovery_asks_the_slot_and_the_floor_again_before_it_leaves() {
    let mut driver = Driver::new(patch_in(StageName::Deregister), at(0));
    driver.restart();
    let confirm = want(&driver.d, &driver.v, &driver.now);
    assert!(matches!(confirm, Want::Do(Effect::Record(Op::Confirm { leaving: true, .. }))));
    driver.feed(&acked());
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadFleet));
    driver.feed(&fleet(&["i-0"], at(0)));
    assert_eq!(driver.stage(), Some(StageName::Check), "nobody would stay");
    assert!(driver.d.cycle.as_ref().unwrap().failure.is_none(), "a late guard leaves no latch");
}

#[test]
fn a_read_of_the_fleet_that_began_before_the_acknowledgement_does_not_count() {
    let mut driver = Driver::new(patch_in(StageName::Deregister), at(100));
    driver.feed(&acked());
    driver.feed(&fleet(&["i-0", "i-1", "i-2"], at(99)));
    assert!(!driver.v.floor);
    driver.feed(&fleet(&["i-0", "i-1", "i-2"], at(100)));
    assert!(driver.v.floor);
}

#[test]
fn an_acknowledgement_that_is_too_old_is_asked_for_again_with_the_floor() {
    let mut driver = Driver::new(patch_in(StageName::Deregister), at(0));
    driver.feed(&acked());
    driver.feed(&fleet(&["i-0", "i-1", "i-2"], at(0)));
    assert_eq!(want(&driver.d, &driver.v, &at(10_000)), Want::Do(Effect::Deregister(0)));
    let old = want(&driver.d, &driver.v, &at(10_001));
    assert!(matches!(old, Want::Do(Effect::Record(Op::Confirm { .. }))), "{old:?}");
    driver.now = at(10_001);
    driver.feed(&acked());
    assert_eq!(want(&driver.d, &driver.v, &at(10_001)), Want::Do(Effect::ReadFleet));
}

#[test]
fn unknown_is_asked_three_times_and_then_refused() {
    let mut driver = Driver::new(patch_in(StageName::Deregister), at(0));
    driver.feed(&acked());
    for left in [2, 1, 0] {
        driver.feed(&Event::Fleet(Err(fault(Class::Throttled))));
        assert_eq!(driver.stage() == Some(StageName::Deregister), left > 0);
    }
    let mut driver = Driver::new(patch_in(StageName::Claim), at(0));
    driver.feed(&acked());
    for _ in 0..3 {
        driver.feed(&Event::Guards(verdicts(Guard::FleetRecord, Said::Unknown)));
    }
    assert_eq!(driver.stage(), Some(StageName::Release));
}

#[test]
fn a_hold_is_not_refused_by_its_own_entry_nor_by_a_latch() {
    let claim = changed(cycle_in(StageName::Claim, &Kind::Hold(hold()), &at(0)), |_| ());
    for guard in Guard::ALL {
        let mut driver = Driver::new(claim.clone(), at(0));
        driver.feed(&acked());
        driver.feed(&Event::Guards(verdicts(guard, Said::Refused)));
        let expected = if guard.counts_for_hold() { StageName::Release } else { StageName::Deregister };
        assert_eq!(driver.stage(), Some(expected), "{guard}");
    }
    let patching = [Guard::NoHold, Guard::NoLatch, Guard::NoPause, Guard::SlotFree, Guard::Rate, Guard::Budget];
    assert!(patching.iter().all(|g| !g.counts_for_hold()));
}

#[test]
fn a_call_that_fails_is_observed_and_made_again_where_the_group_still_serves() {
    let mut driver = Driver::new(patch_in(StageName::Deregister), at(0));
    driver.feed(&acked());
    driver.feed(&fleet(&["i-0", "i-1", "i-2"], at(0)));
    driver.feed(&Event::Called(0, Err(fault(Class::OutcomeUnknown))));
    driver.feed(&Event::Called(1, Ok(())));
    driver.feed(&Event::Own(vec![Own::InService, Own::Draining], None));
    assert_eq!(driver.stage(), Some(StageName::Deregister), "out of one group is not out");
    driver.now = at(2_000);
    driver.feed(&Event::Tick);
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Deregister(0)));
}

#[test]
fn a_cycle_that_turns_round_before_any_call_gives_its_slot_back_and_registers_nothing() {
    let mut driver = Driver::new(changed(patch_in(StageName::Deregister), |c| c.out_since = None), at(0));
    driver.feed(&acked());
    driver.now = at(1);
    driver.feed(&fleet(&["i-0"], at(1)));
    assert_eq!(driver.stage(), Some(StageName::Release), "nobody else would stay");
    to_the_end(&mut driver);
    let last = driver.d.last.as_ref().unwrap();
    assert_eq!((last.exit, last.latch.is_some(), last.out_ms), (Exit::EndedEarly, false, 0));
    assert!(driver.effects.iter().all(|(e, _)| matches!(e, Effect::Record(_))), "{:?}", driver.effects);
}

#[test]
fn a_store_that_goes_away_before_any_call_is_a_refusal_and_no_failure() {
    let mut driver = Driver::new(changed(patch_in(StageName::Deregister), |c| c.out_since = None), at(0));
    driver.feed(&Event::Unanswered(fault(Class::Transport)));
    driver.now = at(60_000);
    driver.feed(&Event::Tick);
    let c = driver.d.cycle.as_ref().unwrap();
    assert_eq!((c.stage.name(), c.latch()), (StageName::Release, None));
    assert_eq!(c.early.as_ref().unwrap().exit, Exit::Unreachable);
}

#[test]
fn nothing_is_called_before_it_is_on_the_disk_that_the_node_may_be_out() {
    let mut driver = Driver::new(changed(patch_in(StageName::Deregister), |c| c.out_since = None), at(0));
    driver.feed(&acked());
    driver.now = at(1);
    driver.feed(&fleet(&["i-0", "i-1", "i-2"], at(1)));
    assert!(driver.d.cycle.as_ref().unwrap().out_since.is_some());
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Deregister(0)));
}

#[test]
fn a_hold_of_a_node_that_is_out_asks_no_floor_and_calls_nothing() {
    let d = changed(cycle_in(StageName::Deregister, &Kind::Hold(hold()), &at(0)), |c| c.out_since = None);
    for (own, leaves) in [(Own::Gone, false), (Own::InService, true), (Own::NotYet(TargetState::Unhealthy, None), true)]
    {
        let mut driver = Driver::new(d.clone(), at(0));
        assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadOwn));
        driver.feed(&Event::Own(vec![own; 2], None));
        assert_eq!(driver.stage() == Some(StageName::Deregister), leaves, "{own:?}");
        let asks = matches!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Record(Op::Hold { .. })));
        assert_eq!(asks, leaves, "{own:?}: its entry again, then the floor, then the calls");
    }
}

#[test]
fn a_late_deadline_after_a_restart_or_a_freeze_waits_for_one_look() {
    for woken in [Event::Recovered, Event::StoodStill] {
        let late = |driver: &mut Driver| {
            if woken == Event::Recovered {
                driver.v = Seen::recovered();
            }
            driver.now = at(600_000);
            driver.feed(&woken);
            driver.feed(&Event::Tick);
            assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadOwn), "{woken:?}");
        };
        let mut gone = Driver::new(patch_in(StageName::Drain), at(0));
        late(&mut gone);
        to_the_end(&mut gone);
        assert_eq!(gone.d.last.as_ref().unwrap().exit, Exit::Done, "it was gone long since: {woken:?}");
        let mut drains = Driver::new(patch_in(StageName::Drain), at(0));
        late(&mut drains);
        drains.feed(&Event::Own(vec![Own::Gone, Own::Draining], None));
        drains.feed(&Event::Tick);
        assert!(drains.d.cycle.as_ref().unwrap().failure.is_some(), "{woken:?}");
        let mut settles = Driver::new(patch_in(StageName::Settle), at(0));
        late(&mut settles);
        to_the_end_serving(&mut settles);
        assert_eq!((settles.d.last.as_ref().unwrap().exit, settles.pages.len()), (Exit::Done, 0), "{woken:?}");
    }
}

#[test]
fn a_late_deadline_after_a_restart_passes_where_the_look_comes_to_nothing() {
    for stage in [StageName::Drain, StageName::Check, StageName::Register, StageName::Settle] {
        let mut driver = Driver::new(patch_in(stage), at(0));
        driver.restart();
        driver.now = at(2_000_000);
        for _ in 0..10 {
            match want(&driver.d, &driver.v, &driver.now) {
                Want::Do(Effect::ReadOwn) => driver.feed(&Event::Own(Vec::new(), Some(fault(Class::Transport)))),
                Want::Do(Effect::Check) => driver.feed(&Event::Checked(Err(fault(Class::Transport)))),
                Want::Do(Effect::Register(g)) => driver.feed(&Event::Called(g, Err(fault(Class::Transport)))),
                Want::Wait(until) => {
                    driver.now = until;
                    driver.feed(&Event::Tick);
                }
                other => panic!("{stage}: {other:?}"),
            }
            if driver.d.cycle.as_ref().unwrap().failure.is_some() {
                break;
            }
        }
        assert!(driver.d.cycle.as_ref().unwrap().failure.is_some(), "{stage}");
    }
}

fn to_the_end_serving(driver: &mut Driver) {
    let mut serving = true;
    driver.run(2_000, &mut |effect, _| good(effect, &mut serving));
}

#[test]
fn a_job_that_its_runner_forgets_is_lost_and_never_started_again() {
    for seen in [Event::Started(Ok(())), Event::Job(Ok(JobStatus::Running))] {
        let mut driver = Driver::new(patch_in(StageName::Patch), at(0));
        driver.feed(&seen);
        driver.restart();
        driver.feed(&Event::Job(Ok(JobStatus::New)));
        let c = driver.d.cycle.as_ref().unwrap();
        let class = c.failure.as_ref().map(|f| f.class);
        assert_eq!((c.stage.name(), class), (StageName::Check, Some(FailureClass::JobLost)), "{seen:?}");
    }
}

#[test]
fn drain_ends_only_when_every_group_says_gone() {
    let not_yet = Own::NotYet(TargetState::Unused, None);
    for (own, gone) in [
        (vec![Own::Gone, Own::Gone], true),
        (vec![Own::Gone, Own::Draining], false),
        (vec![Own::Gone, Own::Unknown], false),
        (vec![Own::Gone, not_yet], false),
        (vec![], false),
    ] {
        let mut driver = Driver::new(patch_in(StageName::Drain), at(0));
        driver.feed(&Event::Own(own.clone(), None));
        assert_eq!(driver.v.gone, gone, "{own:?}");
    }
    let mut driver = Driver::new(patch_in(StageName::Drain), at(0));
    driver.feed(&Event::Own(vec![Own::NoRow, Own::Gone], None));
    assert!(!driver.v.gone, "a missing row counts twice in a row");
    driver.feed(&Event::Own(vec![Own::Unknown, Own::Gone], None));
    driver.feed(&Event::Own(vec![Own::NoRow, Own::Gone], None));
    assert!(!driver.v.gone);
    driver.feed(&Event::Own(vec![Own::NoRow, Own::Gone], None));
    assert!(driver.v.gone);
}

#[test]
fn connections_left_at_the_end_of_the_drain_are_cut_or_fail_as_configured() {
    for fails in [false, true] {
        let d = changed(patch_in(StageName::Drain), |c| {
            let mut plan = (*c.plan).clone();
            plan.limits.connections_left_fail = fails;
            c.plan = plan.into();
        });
        let mut driver = Driver::new(d, at(0));
        driver.feed(&Event::Own(vec![Own::Gone; 2], None));
        driver.feed(&Event::Connections(Ok(7)));
        driver.now = at(80_000);
        driver.feed(&Event::Tick);
        assert_eq!(driver.stage(), Some(if fails { StageName::Check } else { StageName::Patch }));
        assert_eq!(driver.pages.len(), usize::from(fails));
    }
}

#[test]
fn a_target_that_another_hand_registers_fails_the_cycle_before_a_job_or_a_reboot() {
    for stage in [StageName::Drain, StageName::Patch, StageName::Reboot] {
        let mut driver = Driver::new(patch_in(stage), at(0));
        for _ in 0..2 {
            driver.feed(&Event::Own(vec![Own::Gone, Own::InService], None));
        }
        let failure = driver.d.cycle.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!((driver.stage(), failure.class), (Some(StageName::Check), FailureClass::RegisteredAgain), "{stage}");
    }
}

#[test]
fn each_try_of_a_job_or_a_reboot_has_a_fresh_acknowledgement_and_a_fresh_look() {
    let mut driver = Driver::new(patch_in(StageName::Patch), at(0));
    driver.feed(&Event::Job(Ok(JobStatus::New)));
    driver.feed(&acked());
    driver.feed(&Event::Own(vec![Own::Gone; 2], None));
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::StartJob));
    driver.feed(&Event::Started(Err(fault(Class::Transport))));
    driver.now = at(2_000);
    driver.feed(&Event::Job(Ok(JobStatus::New)));
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadOwn), "the look was of the first try");
    driver.feed(&Event::Own(vec![Own::Gone; 2], None));
    driver.now = at(20_000);
    driver.feed(&Event::Tick);
    driver.feed(&acked());
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadOwn), "and so it is of an older yes");

    let mut driver = Driver::new(patch_in(StageName::Reboot), at(0));
    driver.feed(&acked());
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::ReadOwn));
    driver.feed(&Event::Own(vec![Own::Gone; 2], None));
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Reboot));
}

#[test]
fn only_exit_zero_is_success_and_a_lost_verdict_is_a_failure() {
    for (status, class) in [
        (ended(1, false), Some(FailureClass::Job)),
        (ended(100, true), Some(FailureClass::Job)),
        (JobStatus::Lost, Some(FailureClass::JobLost)),
        (ended(0, false), None),
    ] {
        let mut driver = Driver::new(patch_in(StageName::Patch), at(0));
        driver.feed(&Event::Job(Ok(status.clone())));
        let c = driver.d.cycle.clone().unwrap();
        assert_eq!((c.stage.name(), c.failure.map(|f| f.class)), (StageName::Check, class), "{status:?}");
    }
}

// ---- reboot ----

pub(super) fn boot_2(ms: u64) -> Now {
    Now { boot: BootId("boot-2".into()), since_boot_ms: 1_000, ..at(ms) }
}

#[test]
fn when_the_machine_restarts_is_the_jobs_word_or_the_policy() {
    use RebootPolicy::{Always, Never, WhenNeeded};
    for (policy, needed, expected) in
        [(Never, true, false), (WhenNeeded, false, false), (WhenNeeded, true, true), (Always, false, true)]
    {
        let job = JobSpec { name: "p".into(), argv: vec![], reboots: false, reboot: policy, unit: None };
        let mut driver = Driver::new(cycle_in(StageName::Patch, &Kind::Patch(job), &at(0)), at(0));
        driver.feed(&Event::Job(Ok(ended(0, needed))));
        assert_eq!(driver.stage() == Some(StageName::Reboot), expected, "{policy:?} {needed}");
    }
}

#[test]
fn a_failed_job_is_never_followed_by_a_reboot() {
    let job = JobSpec { name: "p".into(), argv: vec![], reboots: false, reboot: RebootPolicy::Always, unit: None };
    let mut driver = Driver::new(cycle_in(StageName::Patch, &Kind::Patch(job), &at(0)), at(0));
    driver.feed(&Event::Job(Ok(ended(2, true))));
    assert_eq!(driver.stage(), Some(StageName::Check));
}

#[test]
fn another_boot_id_ends_the_reboot_even_long_after_its_deadline() {
    for wall in [60_000, 900_001, 90_000_000] {
        let mut driver = Driver::new(patch_in(StageName::Reboot), at(0));
        driver.now = boot_2(wall);
        driver.restart();
        let c = driver.d.cycle.as_ref().unwrap();
        assert_eq!((c.stage.name(), c.failure.is_none()), (StageName::Check, true), "after {wall} ms");
    }
}

#[test]
fn the_old_boot_id_is_asked_again_once_and_then_the_cycle_fails() {
    let mut driver = Driver::new(patch_in(StageName::Reboot), at(0));
    let mut asked = Vec::new();
    let mut serving = false;
    driver.run(2_000, &mut |effect, now| {
        if *effect == Effect::Reboot {
            asked.push(now.since(&at(0)).unwrap());
        }
        good(effect, &mut serving)
    });
    assert_eq!(asked.len(), 2, "{asked:?}");
    assert!(asked[1] >= 900_000, "{asked:?}");
    let last = driver.d.last.clone().unwrap();
    assert_eq!((last.exit, last.latch.is_some()), (Exit::NotRebooted, true));
    assert!(serving, "a machine that did not restart keeps no node out");
    assert_eq!(driver.pages.iter().filter(|(p, _)| p.kind == PageKind::Latched).count(), 1);
}

#[test]
fn a_restart_of_the_agent_alone_is_not_a_reboot() {
    let mut driver = Driver::new(patch_in(StageName::Reboot), at(0));
    driver.restart();
    assert_eq!(driver.stage(), Some(StageName::Reboot));
}

#[test]
fn a_machine_that_hides_its_new_boot_is_not_restarted_for_ever() {
    let mut driver = Driver::new(patch_in(StageName::Reboot), at(0));
    let mut serving = false;
    let mut asked = 0;
    for start in 1..=10 {
        // Until it asks: then the machine is off, and comes back with the boot id that it had.
        let before = asked;
        for _ in 0..20 {
            let Want::Do(effect) = want(&driver.d, &driver.v, &driver.now) else { break };
            driver.now = driver.now.plus(1_000);
            asked += usize::from(effect == Effect::Reboot);
            if asked > before {
                break;
            }
            let e = good(&effect, &mut serving);
            driver.feed(&e);
        }
        assert_eq!(asked, start.min(3), "start {start}");
        driver.restart();
    }
    driver.run(2_000, &mut |effect, _| {
        assert_ne!(*effect, Effect::Reboot);
        good(effect, &mut serving)
    });
    let last = driver.d.last.clone().unwrap();
    assert_eq!((last.exit, serving), (Exit::NotRebooted, true));
}

#[test]
fn reboots_are_capped_by_the_day() {
    let recent = vec![at(0).wall_ms - 1_000, at(0).wall_ms - 2_000];
    for (before, reboots) in [(recent.clone(), false), (recent[..1].to_vec(), true), (vec![1, 2], true)] {
        let d = Durable { reboots_ms: before.clone(), ..patch_in(StageName::Reboot) };
        let mut driver = Driver::new(d, at(0));
        driver.feed(&acked());
        assert_eq!(driver.stage() == Some(StageName::Reboot), reboots, "{before:?}");
        if reboots {
            assert!(driver.d.reboots_ms.contains(&at(0).wall_ms), "counted before it is asked for");
        }
    }
}

#[test]
fn a_slot_that_is_gone_before_job_or_reboot_fails_the_cycle() {
    for stage in [StageName::Patch, StageName::Reboot] {
        let mut driver = Driver::new(patch_in(stage), at(0));
        driver.feed(&Event::CasRefused(Box::new(Refusal::SlotGone)));
        let failure = driver.d.cycle.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!((driver.stage(), failure.class), (Some(StageName::Check), FailureClass::SlotLost));
    }
}

#[test]
fn a_boot_that_changes_under_a_job_fails_it_unless_the_job_says_that_it_reboots() {
    for reboots in [false, true] {
        let job = JobSpec { name: "p".into(), argv: vec![], reboots, reboot: RebootPolicy::Never, unit: None };
        let mut driver = Driver::new(cycle_in(StageName::Patch, &Kind::Patch(job), &at(0)), at(0));
        driver.now = boot_2(60_000);
        driver.restart();
        let c = driver.d.cycle.clone().unwrap();
        if reboots {
            assert_eq!((c.stage.name(), c.failure), (StageName::Patch, None));
        } else {
            assert_eq!(c.failure.map(|f| f.class), Some(FailureClass::BootChanged));
        }
    }
}

#[test]
fn a_job_that_says_so_ends_by_restarting_the_machine_and_by_nothing_less() {
    let verdict = |code| match ended(code, false) {
        JobStatus::Ended(verdict) => verdict,
        other => panic!("{other:?}"),
    };
    let killed = |signal| Verdict { result: JobResult::Signalled(signal), ..verdict(0) };
    let rebooted = [
        (JobStatus::Lost, true),
        (JobStatus::Ended(killed(15)), true),
        (JobStatus::Ended(killed(11)), false),
        (JobStatus::Ended(verdict(0)), true),
        (JobStatus::Ended(verdict(1)), false),
        (JobStatus::Ended(Verdict { result: JobResult::TimedOut, ..verdict(0) }), false),
    ];
    for (reboots, restarts) in [(true, true), (true, false), (false, false)] {
        for (status, good) in &rebooted {
            let job = JobSpec { name: "p".into(), argv: vec![], reboots, reboot: RebootPolicy::Never, unit: None };
            let mut driver = Driver::new(cycle_in(StageName::Patch, &Kind::Patch(job), &at(0)), at(0));
            if restarts {
                driver.now = boot_2(60_000);
                driver.restart();
            }
            driver.feed(&Event::Job(Ok(status.clone())));
            let c = driver.d.cycle.clone().unwrap();
            let by_itself = matches!(status, JobStatus::Ended(v) if v.good());
            assert_eq!(
                (c.stage.name(), c.failure.is_none()),
                (StageName::Check, (restarts && *good) || by_itself),
                "{status:?} {reboots} {restarts}"
            );
        }
    }
}

// ---- operators ----

#[test]
fn rejoin_before_the_job_leaves_no_latch_and_later_it_latches_without_a_page() {
    let rejoin = Event::Rejoin { by: "ann".into(), reason: "enough".into(), skip_check: false };
    for (stage, latches) in
        [(StageName::Deregister, false), (StageName::Drain, false), (StageName::Patch, true), (StageName::Reboot, true)]
    {
        let mut driver = Driver::new(patch_in(stage), at(0));
        driver.feed(&rejoin);
        let c = driver.d.cycle.as_ref().unwrap();
        assert_eq!((c.stage.name(), c.latch().is_some()), (StageName::Check, latches), "{stage}");
        assert_eq!(c.kill_job, stage == StageName::Patch);
        assert!(driver.pages.is_empty(), "{stage}");
    }
}

#[test]
fn rejoin_in_patch_before_the_job_was_started_leaves_no_latch_and_calls_the_job_off() {
    let rejoin = Event::Rejoin { by: "ann".into(), reason: "enough".into(), skip_check: false };
    let gone = Event::CasRefused(Box::new(Refusal::SlotGone));
    let after = |events: &[Event], last: &Event| {
        let mut driver = Driver::new(patch_in(StageName::Patch), at(0));
        events.iter().for_each(|e| driver.feed(e));
        driver.feed(last);
        let c = driver.d.cycle.unwrap();
        assert_eq!((c.stage.name(), c.kill_job), (StageName::Check, true));
        (c.latch().is_some(), driver.pages.len())
    };
    let (new, started) = (Event::Job(Ok(JobStatus::New)), Event::Started(Ok(())));
    assert_eq!(after(&[new.clone(), acked()], &rejoin), (false, 0));
    assert_eq!(after(&[new.clone(), acked()], &gone), (false, 0), "a late guard's word is no failure either");
    assert_eq!(after(&[new.clone(), acked(), started], &rejoin), (true, 0));
    let failed = Event::Started(Err(fault(Class::Transport)));
    assert_eq!(after(&[new.clone(), acked(), failed, new.clone()], &rejoin), (true, 0), "it may have been started");
}

#[test]
fn rejoin_without_the_check_registers_at_once() {
    let rejoin = Event::Rejoin { by: "ann".into(), reason: "I looked".into(), skip_check: true };
    let mut driver = Driver::new(patch_in(StageName::Check), at(0));
    driver.feed(&rejoin);
    driver.feed(&Event::Tick);
    assert_eq!(driver.stage(), Some(StageName::Register));
    let step = decide(&patch_in(StageName::Patch), &Seen::default(), &rejoin, &at(0), Jitter(0));
    assert!(step.durable.cycle.unwrap().skip_check.is_some());
}
