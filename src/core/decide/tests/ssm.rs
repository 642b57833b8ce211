//! `--reboot=ssm`: somebody else restarts the machine, as soon as it is told.

use super::super::super::cycle::{Cycle, Durable, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::event::Event;
use super::super::super::job::{JobSpec, RebootPolicy};
use super::super::super::plan::Kind;
use super::super::super::target::Own;
use super::super::super::want::want;
use super::out::acked;
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
    assert!(awaits(&driver) && driver.d.owes(&job, "r", &driver.now).is_some());
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
