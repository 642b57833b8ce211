//! `--reboot=ssm`: somebody else restarts the machine, as soon as it is told.

use super::super::super::cycle::{Cycle, Durable, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::event::Event;
use super::super::super::job::{JobSpec, RebootPolicy};
use super::super::super::plan::Kind;
use super::super::super::target::Own;
use super::super::super::want::want;
use super::out::{acked, boot_2};
use super::world::{Driver, at, cycle_in};

#[test]
fn ssm_is_told_to_restart_only_after_a_fresh_look_and_owed_the_verdict_only_if_it_was_told() {
    let job = JobSpec { name: "p".into(), argv: vec![], reboots: false, reboot: RebootPolicy::Ssm, unit: None };
    let kind = Kind::Patch(job.clone());
    let gone = || Event::Own(vec![Own::Gone, Own::Gone], None);
    let awaits = |driver: &Driver| driver.d.cycle.as_ref().is_some_and(Cycle::awaits_restart);
    let mut driver = Driver::new(cycle_in(StageName::Reboot, &kind, &at(0)), at(0));
    driver.feed(&acked());
    assert_eq!((want(&driver.d, &driver.v, &driver.now), awaits(&driver)), (Want::Do(Effect::ReadOwn), false));
    driver.feed(&gone());
    assert!(awaits(&driver) && driver.d.owed.as_ref().is_some_and(|owed| owed.counts(&job, "r", &driver.now)));
    // Whom another hand has registered meanwhile is serving.
    let mut driver = Driver::new(cycle_in(StageName::Reboot, &kind, &at(0)), at(0));
    driver.feed(&acked());
    for _ in 0..3 {
        driver.feed(&Event::Own(vec![Own::InService, Own::Gone], None));
    }
    assert_eq!((driver.stage(), driver.d.owed.clone()), (Some(StageName::Check), None));
    // No restart is left for today.
    let full = vec![at(0).wall_ms - 1, at(0).wall_ms - 2];
    let d = Durable { reboots_ms: full, ..cycle_in(StageName::Reboot, &kind, &at(0)) };
    let mut driver = Driver::new(d, at(0));
    driver.feed(&acked());
    driver.feed(&gone());
    assert_eq!((driver.stage(), driver.d.owed.clone()), (Some(StageName::Check), None));
}

#[test]
fn a_command_whose_unit_went_with_a_restart_of_the_machine_ends_early_and_a_job_of_the_administrators_goes_on() {
    for (unit, goes_on) in [(Some("run-1"), false), (Some("nightly"), true), (None, true)] {
        let job = JobSpec {
            name: "p".into(),
            argv: vec![],
            reboots: false,
            reboot: RebootPolicy::Never,
            unit: unit.map(Into::into),
        };
        for stage in [StageName::Deregister, StageName::Drain] {
            let mut driver = Driver::new(cycle_in(stage, &Kind::Patch(job.clone()), &at(0)), at(0));
            driver.now = boot_2(10_000);
            driver.restart();
            let c = driver.d.cycle.clone().unwrap();
            let expected = if goes_on { stage } else { StageName::Check };
            assert_eq!((c.stage.name(), c.failure, c.early.is_some()), (expected, None, !goes_on), "{unit:?}");
        }
    }
}
