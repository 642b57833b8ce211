//! The way back with controlled time: every class of fault in every call of it, ending before or after the deadline.

use super::super::super::cycle::{Durable, FailureClass, Seen, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::error::{Class, Fault, Jitter, RETRY_AFTER_MAX_MS};
use super::super::super::event::Event;
use super::super::super::exit::Exit;
use super::super::super::page::{PageKind, Severity};
use super::super::super::plan::Kind;
use super::super::super::record::{Op, RecordSeen};
use super::super::super::target::{Own, Reason, TargetState};
use super::super::super::time::Now;
use super::super::super::want::want;
use super::super::decide;
use super::world::{Driver, at, bad, changed, cycle_in, failed, good, hold, kinds};
use super::{fault, pass};

const HOUR_MS: u64 = 3_600_000;

/// The calls of the way back: in which stage, and which effect.
type Call = (StageName, &'static str);
const CALLS: [Call; 6] = [
    (StageName::Check, "check"),
    (StageName::Check, "set-latch"),
    (StageName::Register, "register"),
    (StageName::Register, "read-own"),
    (StageName::Settle, "read-own"),
    (StageName::Release, "free-slot"),
];

struct Ride {
    driver: Driver,
    /// Failing calls.
    faults: usize,
    /// When the node was in service, by the load balancer.
    served_at: Option<Now>,
}

/// From the start of a cycle's way back until idle; `call` fails with `f` until `until`.
fn ride(d: Durable, call: Call, f: &Fault, until: &Now) -> Ride {
    let mut driver = Driver::new(d, at(0));
    let (mut serving, mut faults, mut served_at) = (false, 0, None);
    let mut stage = driver.stage();
    for _ in 0..60_000 {
        if stage.is_none() {
            return Ride { driver, faults, served_at };
        }
        let here = stage;
        driver.run_one(&mut |effect, now| {
            if effect.label() == call.1 && here == Some(call.0) && now < until {
                faults += 1;
                return bad(effect, f);
            }
            good(effect, &mut serving)
        });
        if serving && served_at.is_none() {
            served_at = Some(driver.now.clone());
        }
        stage = driver.stage();
    }
    panic!("not home: {:?} {:?}", driver.d.cycle, driver.v);
}

impl Driver {
    fn run_one(&mut self, answer: &mut dyn FnMut(&Effect, &Now) -> Event) {
        match want(&self.d, &self.v, &self.now) {
            Want::Idle => {}
            Want::Wait(until) => {
                self.now = until;
                self.feed(&Event::Tick);
            }
            Want::Do(effect) => {
                self.effects.push((effect.clone(), self.now.clone()));
                let e = answer(&effect, &self.now);
                self.now = self.now.plus(1);
                self.feed(&e);
            }
        }
    }

    fn paged(&self, kind: PageKind) -> Vec<u64> {
        let of_kind = self.pages.iter().filter(|(p, _)| p.kind == kind);
        of_kind.map(|(_, when)| when.since(&at(0)).unwrap()).collect()
    }
}

fn deadline_ms(stage: StageName) -> u64 {
    cycle_in(stage, &kinds()[0], &at(0)).cycle.unwrap().deadline.budget_ms()
}

fn start(call: Call) -> Durable {
    let d = cycle_in(StageName::Check, &kinds()[0], &at(0));
    if call.1 == "set-latch" { failed(d, FailureClass::Job, &at(0)) } else { d }
}

#[test]
fn every_fault_of_every_call_ends_at_home_and_a_short_one_of_a_quiet_class_pages_nobody() {
    for call in CALLS {
        for class in Class::ALL {
            let ride = ride(start(call), call, &fault(class), &at(40_000));
            let what = format!("{class} in {call:?}");
            assert!(ride.served_at.is_some() && ride.driver.stage().is_none(), "{what}");
            assert!(ride.driver.paged(PageKind::Latched).is_empty(), "{what}: {:?}", ride.driver.pages);
            let early = ride.driver.paged(PageKind::OutOfService).len();
            let paced = matches!(call, (StageName::Check, "check") | (StageName::Register, "register"));
            let loud = usize::from(class == Class::Refused && paced);
            assert_eq!(early, loud, "{what}: {:?}", ride.driver.pages);
            assert_eq!(ride.driver.d.last.as_ref().unwrap().latch.is_some(), call.1 == "set-latch", "{what}");
        }
    }
}

#[test]
fn a_fault_that_outlasts_the_deadline_pages_at_the_deadline_once_and_the_node_is_back_once_it_ends() {
    for call in CALLS.into_iter().filter(|c| c.1 != "set-latch" && c.0 != StageName::Release) {
        for class in Class::ALL {
            let end = at(3 * HOUR_MS);
            let ride = ride(start(call), call, &fault(class), &end);
            let what = format!("{class} in {call:?}");
            let latched = ride.driver.paged(PageKind::Latched);
            assert_eq!(latched.len(), 1, "{what}: {latched:?}");
            let entered = ride.driver.entered(call.0);
            let due = entered + deadline_ms(call.0);
            assert!((due..due + 61_000).contains(&latched[0]), "{what}: due {due}, paged {latched:?}");
            let failure = &ride.driver.pages.iter().find(|(p, _)| p.kind == PageKind::Latched).unwrap().0;
            assert!(failure.latch.is_some() && failure.out_since.is_some() && !failure.message.is_empty());
            assert!(ride.driver.now.since(&end).unwrap() < 200_000, "{what}: home long after the fault");
            assert!(ride.driver.d.last.as_ref().unwrap().latch.is_some(), "{what}: it failed, and that stays");
            // Not a busy loop either: the quickest schedule waits a second at first and five in the end.
            assert!(ride.faults < 20_000, "{what}: {} calls", ride.faults);
        }
    }
}

impl Driver {
    /// When this stage was first entered, by the first effect that only it wants.
    fn entered(&self, stage: StageName) -> u64 {
        let first = |label: &str| {
            let found = self.effects.iter().find(|(e, _)| e.label() == label);
            found.map_or(0, |(_, when)| when.since(&at(0)).unwrap())
        };
        match stage {
            StageName::Register => first("register"),
            StageName::Settle => {
                let mut own = self.effects.iter().filter(|(e, _)| e.label() == "read-own");
                own.next().map_or(0, |(_, when)| when.since(&at(0)).unwrap())
            }
            _ => 0,
        }
    }
}

#[test]
fn a_refusal_pages_now_and_credentials_after_a_minute_each_once() {
    for call in [(StageName::Check, "check"), (StageName::Register, "register")] {
        for (class, from, to) in [(Class::Refused, 0, 60_000), (Class::Auth, 60_000, 200_000)] {
            let ride = ride(start(call), call, &fault(class), &at(20 * 60_000));
            let paged = ride.driver.paged(PageKind::OutOfService);
            assert_eq!(paged.len(), 1, "{class} {call:?}: {paged:?}");
            assert!(paged[0] >= from && paged[0] <= to, "{class} {call:?}: {paged:?}");
        }
    }
}

#[test]
fn release_pages_at_its_deadline_once_and_never_ends_unacknowledged() {
    let call = (StageName::Release, "free-slot");
    for class in Class::ALL {
        let ride = ride(start(call), call, &fault(class), &at(2 * HOUR_MS));
        assert_eq!(ride.driver.paged(PageKind::ReleaseStuck).len(), 1, "{class}");
        assert!(ride.driver.paged(PageKind::Latched).is_empty(), "{class}: a cycle in release cannot fail");
        assert!(ride.driver.now.since(&at(2 * HOUR_MS)).is_some(), "{class}: it ended without an acknowledgement");
    }
}

#[test]
fn a_panic_that_was_caught_is_a_transport_fault_like_any_other() {
    let f = Fault::transport("the step panicked: index out of bounds");
    let ride = ride(start(CALLS[0]), CALLS[0], &f, &at(60_000));
    assert!(ride.served_at.is_some() && ride.driver.pages.is_empty());
}

#[test]
fn retry_after_is_honoured_up_to_a_bound() {
    for (asked, waits) in [(30_000, 30_000), (u64::MAX, RETRY_AFTER_MAX_MS), (1, 5_000)] {
        let f = Fault { retry_after_ms: Some(asked), ..fault(Class::Throttled) };
        for (stage, label) in
            [(StageName::Check, "check"), (StageName::Register, "register"), (StageName::Settle, "own")]
        {
            let d = cycle_in(stage, &kinds()[0], &at(0));
            let e = match label {
                "check" => Event::Checked(Err(f.clone())),
                "register" => Event::Called(0, Err(f.clone())),
                _ => Event::Own(vec![Own::Unknown; 2], Some(f.clone())),
            };
            let step = decide(&d, &Seen::default(), &e, &at(0), Jitter(0));
            let waits = waits.min(deadline_ms(stage));
            assert_eq!(want(&step.durable, &step.seen, &at(0)), Want::Wait(at(waits)), "{label} {asked}");
        }
    }
}

#[test]
fn the_check_needs_its_passes_in_a_row_over_its_time() {
    let mut driver = Driver::new(cycle_in(StageName::Check, &kinds()[0], &at(0)), at(0));
    for _ in 0..2 {
        driver.feed(&Event::Checked(Ok(pass())));
    }
    driver.feed(&Event::Checked(Err(fault(Class::NotReady))));
    for ms in [20_000, 27_500, 35_000] {
        assert_eq!(driver.stage(), Some(StageName::Check), "three in a row over 15 s, not three in all");
        driver.now = at(ms);
        driver.feed(&Event::Checked(Ok(pass())));
    }
    assert_eq!(driver.stage(), Some(StageName::Register));
}

#[test]
fn the_check_window_is_counted_from_entering_check_in_the_present_boot() {
    let d = cycle_in(StageName::Check, &kinds()[0], &at(0));
    let mut driver = Driver::new(d, at(0));
    driver.now = Now { boot: super::super::super::time::BootId("boot-2".into()), ..at(880_000) };
    driver.restart();
    driver.now = driver.now.plus(800_000);
    driver.feed(&Event::Tick);
    assert!(driver.d.cycle.as_ref().unwrap().failure.is_none(), "a quarter of an hour from here");
    driver.now = driver.now.plus(100_000);
    driver.feed(&Event::Checked(Err(fault(Class::Transport))));
    driver.feed(&Event::Tick);
    assert!(driver.d.cycle.as_ref().unwrap().failure.is_some());
}

#[test]
fn the_bake_time_starts_again_when_health_is_lost() {
    let mut driver = Driver::new(cycle_in(StageName::Settle, &kinds()[0], &at(0)), at(0));
    let own = |a, b| Event::Own(vec![a, b], None);
    let unhealthy = Own::NotYet(TargetState::Unhealthy, Some(Reason::Timeout));
    driver.feed(&own(Own::InService, Own::InService));
    driver.now = at(29_000);
    driver.feed(&own(Own::InService, unhealthy));
    driver.now = at(31_000);
    driver.feed(&own(Own::InService, Own::InService));
    driver.now = at(60_000);
    driver.feed(&own(Own::InService, Own::InService));
    assert_eq!(driver.stage(), Some(StageName::Settle));
    driver.now = at(61_000);
    driver.feed(&own(Own::InService, Own::InService));
    assert_eq!(driver.stage(), Some(StageName::Release));
}

#[test]
fn a_disk_that_refuses_the_last_step_of_a_node_in_service_is_no_failure() {
    let mut driver = Driver::new(cycle_in(StageName::Settle, &kinds()[0], &at(0)), at(0));
    driver.stores = false;
    let (mut serving, mut pages) = (true, Vec::new());
    for _ in 0..2_000 {
        driver.run_one(&mut |effect, _| good(effect, &mut serving));
    }
    pages.append(&mut driver.pages);
    let c = driver.d.cycle.as_ref().unwrap();
    assert_eq!((c.stage.name(), &c.failure), (StageName::Settle, &None), "at {:?}", driver.now);
    assert!(driver.now.since(&at(0)).unwrap() > 330_000, "past its deadline");
    let kinds: Vec<_> = pages.iter().map(|(p, _)| (p.kind, p.severity)).collect();
    assert_eq!(kinds, [(PageKind::ReleaseStuck, Severity::Warning)], "said once, and nothing of a node that is out");
    driver.stores = true;
    driver.run(50, &mut |effect, _| good(effect, &mut serving));
    assert_eq!(driver.d.last.as_ref().unwrap().exit, Exit::Done);
}

#[test]
fn lost_state_is_latched_paged_and_its_job_killed_at_once() {
    let lost = Event::StateLost(super::plan(Kind::Recovery), "it cannot be read".into());
    let mut driver = Driver::new(Durable::new("i-0".into()), at(0));
    driver.feed(&lost);
    let c = driver.d.cycle.as_ref().unwrap();
    assert_eq!((c.stage.name(), c.kill_job), (StageName::Check, true));
    assert!(c.latch().is_some() && driver.pages.len() == 1);
    assert!(matches!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Record(Op::AddLatch { .. }))));
}

#[test]
fn the_highest_counter_of_its_fleets_record_is_kept() {
    let seen = |fleet: &str, counter| Event::RecordSeen(RecordSeen { fleet: fleet.into(), counter });
    let mut driver = Driver::new(Durable::new("i-0".into()), at(0));
    let mut kept = |e: &Event| {
        driver.feed(e);
        driver.d.record.as_ref().map(|r| (r.fleet.to_string(), r.counter))
    };
    assert_eq!(kept(&seen("blue", 7)), Some(("blue".to_owned(), 7)));
    assert_eq!(kept(&seen("blue", 5)), Some(("blue".to_owned(), 7)));
    assert_eq!(kept(&seen("green", 2)), Some(("green".to_owned(), 2)), "another fleet's record counts for itself");
}

#[test]
fn a_target_that_is_lost_in_settle_is_registered_again() {
    for lost in [Own::Draining, Own::Gone, Own::NoRow] {
        let d = cycle_in(StageName::Settle, &kinds()[0], &at(0));
        let step = decide(&d, &Seen::default(), &Event::Own(vec![Own::InService, lost], None), &at(1), Jitter(0));
        assert_eq!(step.durable.stage(), Some(StageName::Register), "{lost:?}");
    }
}

#[test]
fn a_reason_that_waiting_does_not_heal_is_said_at_once_and_once() {
    for reason in [Reason::NotInUse, Reason::InvalidState, Reason::IpUnusable, Reason::HealthCheckDisabled] {
        let mut driver = Driver::new(cycle_in(StageName::Settle, &kinds()[0], &at(0)), at(0));
        for _ in 0..5 {
            let own = vec![Own::InService, Own::NotYet(TargetState::Unused, Some(reason))];
            driver.feed(&Event::Own(own, None));
        }
        assert_eq!(driver.paged(PageKind::OutOfService).len(), 1, "{reason:?}");
        assert_eq!(driver.stage(), Some(StageName::Settle), "it waits all the same");
    }
}

/// The call comes before the read: a read that lags may still show the target as it was before it left.
#[test]
fn register_calls_in_every_group_before_it_believes_a_read() {
    let d = cycle_in(StageName::Register, &kinds()[0], &at(0));
    let mut v = Seen::default();
    assert_eq!(want(&d, &v, &at(0)), Want::Do(Effect::Register(0)));
    v = decide(&d, &v, &Event::Called(0, Ok(())), &at(0), Jitter(0)).seen;
    assert_eq!(want(&d, &v, &at(0)), Want::Do(Effect::Register(1)));
    v = decide(&d, &v, &Event::Called(1, Ok(())), &at(0), Jitter(0)).seen;
    assert_eq!(want(&d, &v, &at(0)), Want::Do(Effect::ReadOwn));
    let half = Event::Own(vec![Own::InService, Own::Gone], None);
    let step = decide(&d, &v, &half, &at(0), Jitter(0));
    assert_eq!(step.durable.stage(), Some(StageName::Register), "one group is not home");
    let later = at(10_000);
    let v = decide(&d, &step.seen, &Event::Tick, &later, Jitter(0)).seen;
    assert_eq!(want(&d, &v, &later), Want::Do(Effect::Register(1)));
}

#[test]
fn a_register_call_that_failed_is_made_again_whatever_a_read_shows_and_keeps_no_other_group_waiting() {
    let mut driver = Driver::new(cycle_in(StageName::Register, &kinds()[0], &at(0)), at(0));
    driver.feed(&Event::Called(0, Err(fault(Class::Transport))));
    driver.now = at(5_000);
    driver.feed(&Event::Tick);
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Register(1)));
    driver.feed(&Event::Called(1, Ok(())));
    driver.feed(&Event::Own(vec![Own::InService; 2], None));
    assert_eq!(driver.stage(), Some(StageName::Register), "that read may lag");
    driver.now = at(10_000);
    driver.feed(&Event::Tick);
    assert_eq!(want(&driver.d, &driver.v, &driver.now), Want::Do(Effect::Register(0)));
    driver.feed(&Event::Called(0, Ok(())));
    driver.feed(&Event::Own(vec![Own::InService; 2], None));
    assert_eq!(driver.stage(), Some(StageName::Settle));
}

#[test]
fn the_reason_of_a_failing_registration_is_in_its_page_though_reads_succeed() {
    let call = (StageName::Register, "register");
    let f = Fault::new(Class::Refused, "AccessDenied");
    let mut driver = ride(start(call), call, &f, &at(HOUR_MS)).driver;
    let page = driver.pages.iter().find(|(p, _)| p.kind == PageKind::Latched).map(|(p, _)| p.clone()).unwrap();
    assert_eq!(page.class, Some(FailureClass::Call(Class::Refused)));
    assert!(page.message.contains("AccessDenied"), "{}", page.message);
    driver.pages.clear();
}

#[test]
fn the_latch_is_tried_before_anything_else_and_again_after_every_failed_check() {
    let d = failed(cycle_in(StageName::Check, &kinds()[0], &at(0)), FailureClass::Job, &at(0));
    let latch = |w: Want| matches!(w, Want::Do(Effect::Record(Op::AddLatch { .. })));
    assert!(latch(want(&d, &Seen::default(), &at(0))));
    let v = decide(&d, &Seen::default(), &Event::Unanswered(fault(Class::Transport)), &at(0), Jitter(0)).seen;
    assert_eq!(want(&d, &v, &at(0)), Want::Do(Effect::Check), "the way back does not wait for the store");
    let v = decide(&d, &v, &Event::Checked(Err(fault(Class::NotReady))), &at(0), Jitter(0)).seen;
    assert!(latch(want(&d, &v, &at(0))), "not even for the pace of the check");
    let v = decide(&d, &v, &Event::Acked { leavers: Default::default() }, &at(0), Jitter(0)).seen;
    assert!(v.latched);
    let v = decide(&d, &v, &Event::Checked(Err(fault(Class::NotReady))), &at(0), Jitter(0)).seen;
    assert!(!latch(want(&d, &v, &at(9_000))), "acknowledged once is enough");
}

#[test]
fn a_job_that_cannot_be_killed_keeps_no_node_out() {
    let d = changed(cycle_in(StageName::Check, &kinds()[0], &at(0)), |c| c.kill_job = true);
    let mut driver = Driver::new(d, at(0));
    let mut serving = false;
    driver.run(500, &mut |effect, _| match effect {
        Effect::KillJob => bad(effect, &fault(Class::Transport)),
        _ => good(effect, &mut serving),
    });
    assert!(serving);
    assert_eq!(driver.paged(PageKind::AgentFault).len(), 1);
}

// ---- an operator's hold on the way back ----

fn acked() -> Event {
    Event::Acked { leavers: Default::default() }
}

/// The hold is stored; a read shows the node out; its entry is written; only then does the slot go.
#[test]
fn a_hold_on_the_way_back_is_stored_then_looked_at_then_written_and_then_the_slot_goes() {
    let mut driver = Driver::new(cycle_in(StageName::Check, &kinds()[0], &at(0)), at(0));
    driver.feed(&Event::Hold(hold()));
    assert_eq!(driver.d.cycle.as_ref().unwrap().hold, Some(hold()), "a decision, not a memory");
    assert_eq!(want(&driver.d, &driver.v, &at(0)), Want::Do(Effect::ReadOwn));
    driver.feed(&Event::Own(vec![Own::Gone, Own::Draining], None));
    let entry = want(&driver.d, &driver.v, &at(0));
    assert!(matches!(entry, Want::Do(Effect::Record(Op::Hold { instead_of: Some(_), .. }))), "{entry:?}");
    driver.feed(&acked());
    assert_eq!(driver.stage(), Some(StageName::Held));
    let free = want(&driver.d, &driver.v, &at(0));
    assert!(matches!(free, Want::Do(Effect::Record(Op::Free { latch: None, .. }))), "{free:?}");
    driver.feed(&acked());
    assert!(matches!(want(&driver.d, &driver.v, &at(0)), Want::Wait(_)));
    driver.now = at(3_600_000);
    driver.feed(&Event::Tick);
    assert_eq!(driver.stage(), Some(StageName::Check), "its time is over: the way back");
}

#[test]
fn a_node_that_serves_or_of_which_that_is_unknown_is_not_held_on_its_way_back() {
    for own in [Own::InService, Own::NotYet(TargetState::Initial, None), Own::Unknown] {
        let mut driver = Driver::new(cycle_in(StageName::Check, &kinds()[0], &at(0)), at(0));
        driver.feed(&Event::Hold(hold()));
        driver.feed(&Event::Own(vec![Own::Gone, own], None));
        assert_eq!(driver.d.cycle.as_ref().unwrap().hold, None, "{own:?}");
        assert_eq!(want(&driver.d, &driver.v, &at(0)), Want::Do(Effect::Check));
    }
}

#[test]
fn a_hold_that_is_not_answered_not_stored_or_called_off_does_not_keep_the_node_out() {
    let pending = || {
        let mut driver = Driver::new(cycle_in(StageName::Check, &kinds()[0], &at(0)), at(0));
        driver.feed(&Event::Hold(hold()));
        driver.feed(&Event::Own(vec![Own::Gone; 2], None));
        driver
    };
    let mut silent = pending();
    silent.feed(&Event::Unanswered(fault(Class::Transport)));
    assert_eq!(silent.d.cycle.as_ref().unwrap().hold, None);
    let mut called_off = pending();
    called_off.feed(&Event::Rejoin { by: "ann".into(), reason: "no".into(), skip_check: false });
    assert_eq!(called_off.d.cycle.as_ref().unwrap().hold, None);
    let mut full = Driver::new(cycle_in(StageName::Check, &kinds()[0], &at(0)), at(0));
    full.stores = false;
    full.feed(&Event::Hold(hold()));
    assert_eq!(full.d.cycle.as_ref().unwrap().hold, None, "its write would be outward: not without the disk");
    let mut fills_up = pending();
    fills_up.stores = false;
    fills_up.now = at(1_000_000);
    fills_up.feed(&Event::Tick); // the deadline: a failure that is known in memory only
    assert_eq!(fills_up.d.cycle.as_ref().unwrap().hold, None);
}

#[test]
fn a_latch_that_is_not_answered_drops_no_hold() {
    let d = failed(cycle_in(StageName::Check, &kinds()[0], &at(0)), FailureClass::Job, &at(0));
    let mut driver = Driver::new(d, at(0));
    driver.feed(&Event::Hold(hold()));
    driver.feed(&Event::Unanswered(fault(Class::Transport)));
    assert!(driver.d.cycle.as_ref().unwrap().hold.is_some() && driver.v.tried);
}

#[test]
fn a_node_on_its_way_into_service_is_not_held() {
    let d = cycle_in(StageName::Register, &kinds()[0], &at(0));
    let v = Seen { called: 1, ..Seen::default() };
    assert_eq!(decide(&d, &v, &Event::Hold(hold()), &at(0), Jitter(0)).durable, d);
    let d = cycle_in(StageName::Settle, &kinds()[0], &at(0));
    assert_eq!(decide(&d, &Seen::default(), &Event::Hold(hold()), &at(0), Jitter(0)).durable, d);
}
