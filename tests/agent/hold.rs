//! An operator's hold, end to end: real agents in processes of their own, and where a moment has to be held still that no
//! process can be stopped at, one agent in a controlled world.

use crate::fakes::{Call, Fake, Trouble};
use crate::running::Running;
use crate::scene::{BOUND, Scene, options};
use backstop::control::protocol::{Done, HoldRequest, RejoinRequest, RunReply};
use backstop::core::cycle::StageName;
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::ids::InstanceId;
use backstop::core::job::RebootPolicy;
use backstop::rehearse::elbv2::{Action, Fault, Trouble as Broken};
use backstop::rehearse::fleet::{Machine, patch_request};

async fn hold(machine: &Machine, for_s: u64) -> Done {
    machine.client().hold(&HoldRequest { for_s, all: false, reason: "a look at it".into() }).await.unwrap()
}

async fn rejoin(machine: &Machine) -> Done {
    machine.client().rejoin(&RejoinRequest { reason: "seen enough".into(), skip_check: false }).await.unwrap()
}

fn me(s: &Scene) -> InstanceId {
    InstanceId(s.me.instance().into())
}

/// The node is held: out, its entry in the record, and no slot.
async fn held(s: &Scene) {
    s.stage_on_disk(StageName::Held).await;
    s.until("its slot is free", || s.fleet.record().is_some_and(|r| r.slots.is_empty())).await;
    assert!(!s.fleet.serves(&s.me));
    assert!(s.fleet.record().unwrap().holds.contains_key(&me(s)));
}

/// It is back, and the record knows of no hold any more.
async fn back(s: &Scene) {
    s.me.wait_idle(BOUND).await.unwrap();
    assert!(s.fleet.serves(&s.me), "{:?}", s.fleet.target_state(&s.me));
    let record = s.fleet.record().unwrap();
    assert!(record.holds.is_empty() && record.slots.is_empty(), "{record:?}");
    s.peer_stayed();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_node_leaves_by_the_road_out_and_the_end_of_its_time_brings_it_back() {
    let s = Scene::start().await;
    let done = hold(&s.me, 300).await;
    assert_eq!(done.exit, 0, "{done:?}");
    // It is asked to leave, and the group's own delay is waited for.
    s.stage_on_disk(StageName::Drain).await;
    held(&s).await;
    assert_eq!(s.fleet.target_state(&s.me).0, "unused");
    back(&s).await;
    let last = s.me.durable().unwrap().last.unwrap();
    assert_eq!((last.exit, last.latch, &*last.job), (Exit::Done, None, "hold"));
    assert!(last.out_ms >= 300_000, "out for the whole of its time: {} ms", last.out_ms);
    assert_eq!(s.fleet.receiver().received(), []);
    assert_eq!(s.runs(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_goes_on_holding_and_rejoin_ends_it() {
    let s = Scene::start().await;
    assert_eq!(hold(&s.me, 7 * 24 * 3_600).await.exit, 0);
    held(&s).await;
    let before = s.me.durable().unwrap();
    s.me.kill_agent().await.unwrap();
    s.restart();
    let status = s.me.wait_status(BOUND, |status| status.cycle.is_some()).await.unwrap();
    assert_eq!(status.cycle.unwrap().stage, StageName::Held);
    // After a whole look at the world it is still out, in the same hold.
    s.me.wait_status(BOUND, |status| status.in_service == Some(1)).await.unwrap();
    let after = s.me.durable().unwrap();
    assert_eq!(after.cycle.as_ref().map(|c| &c.stage), before.cycle.as_ref().map(|c| &c.stage));
    assert!(!s.fleet.serves(&s.me) && s.fleet.record().unwrap().holds.contains_key(&me(&s)));

    let done = rejoin(&s.me).await;
    assert_eq!(done.exit, 0, "{done:?}");
    back(&s).await;
    assert_eq!(s.fleet.receiver().received(), []);
}

/// Its job failed and its node does not answer: somebody wants to look at it before it goes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_failed_node_is_held_on_its_way_back_and_its_latch_stays() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s.me.kill_node().await;
    s.let_job_end(1).await;
    s.stage_on_disk(StageName::Check).await;
    s.until("its latch", || s.fleet.record().is_some_and(|r| r.open_latches().count() == 1)).await;

    let done = hold(&s.me, 7 * 24 * 3_600).await;
    assert_eq!((done.exit, &*done.message), (0, "held"));
    held(&s).await;
    let last = s.me.durable().unwrap().last.unwrap();
    assert!(
        last.exit == Exit::FailedOut && last.latch.is_some(),
        "who waits for the job hears that it failed: {last:?}"
    );

    s.me.start_node().unwrap();
    assert_eq!(rejoin(&s.me).await.exit, 0);
    back(&s).await;
    let last = s.me.durable().unwrap().last.unwrap();
    assert!(last.exit == Exit::FailedBack && last.latch.is_some(), "and after the hold, too: {last:?}");
    let record = s.fleet.record().unwrap();
    let open: Vec<_> = record.open_latches().map(|(_, l)| l.instance.clone()).collect();
    assert_eq!(open, [me(&s)], "it failed, and that stays");
    let reply = s.me.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap();
    assert!(matches!(reply, RunReply::Refused { exit, .. } if exit == Exit::Latched.code()), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_leaves_or_is_patched_is_not_held() {
    let mut s = Scene::start().await;
    s.hold_drain(true);
    s.run(RebootPolicy::Never).await;
    for stage in [StageName::Drain, StageName::Patch] {
        s.stage_on_disk(stage).await;
        let done = hold(&s.me, 60).await;
        assert_eq!(done.exit, Exit::Busy.code(), "{stage}: {done:?}");
        assert!(done.message.contains("rejoin first"), "{stage}: {}", done.message);
        assert!(s.fleet.record().unwrap().holds.is_empty());
        s.hold_drain(false);
    }
    s.let_job_end(0).await;
    s.ends(&crate::scene::After::GOES_ON).await;
}

/// Its entry is in the record, and the load balancer still calls it healthy: for whoever wants to leave it is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_held_peer_never_counts_as_one_that_stays() {
    let mut three = options();
    three.nodes = 3;
    let s = Scene::with(three).await;
    s.fleet.elbv2().inject(Fault::always(Broken::Hang).on(Action::DeregisterTargets));
    assert_eq!(hold(&s.me, 3_600).await.exit, 0);
    s.called(Action::DeregisterTargets, &Broken::Hang).await;
    assert_eq!(s.fleet.in_service(), 3, "it has not left yet");
    assert!(s.fleet.record().unwrap().holds.contains_key(&me(&s)));

    let other = s.fleet.machine(1).unwrap().clone();
    let (exit, message) = match other.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap() {
        RunReply::Refused { exit, message, .. } => (exit, message),
        RunReply::Started { cycle, .. } => {
            let outcome = other.wait_ended(&cycle, BOUND).await.unwrap();
            (outcome.exit, outcome.message)
        }
        attached @ RunReply::Attached { .. } => panic!("{attached:?}"),
    };
    assert!([Exit::BelowMinimum.code(), Exit::EndedEarly.code()].contains(&exit), "{exit}: {message}");
    assert!(message.contains("minimum-healthy"), "{message}");
    let asked = s.fleet.elbv2().calls();
    let left = |c: &backstop::rehearse::elbv2::Call| {
        c.action == Action::DeregisterTargets && c.targets.iter().any(|(id, _)| id == other.instance())
    };
    assert!(!asked.iter().any(left), "it never asked to leave");
}

#[tokio::test]
async fn a_node_that_claims_its_slot_is_not_held() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    fake.trouble(Call::WriteRecord, Some(Trouble::Class(Class::Transport)));
    let reply = r.run_job().await;
    assert!(matches!(reply, RunReply::Started { .. }), "{reply:?}");
    r.pass(1).await;
    assert_eq!(r.stage(), Some(StageName::Claim));
    let (exit, message) = r.hold(60).await.unwrap_err();
    assert_eq!(exit, Exit::Busy);
    assert!(message.contains("rejoin first"), "{message}");
}

#[tokio::test]
async fn a_hold_that_the_record_does_not_acknowledge_does_not_come_about_and_the_node_goes_home() {
    let fake = Fake::new();
    fake.job_ends(None);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    r.run_job().await;
    r.until("the job runs", 300, |r| r.fake.job_runs()).await;
    fake.trouble(Call::Check, Some(Trouble::Class(Class::NotReady)));
    fake.job_ends(Some(crate::fakes::good()));
    r.until("check", 300, |r| r.stage() == Some(StageName::Check)).await;
    fake.trouble(Call::WriteRecord, Some(Trouble::Class(Class::Transport)));
    let (exit, message) = r.hold(60).await.unwrap_err();
    assert_eq!(exit, Exit::Unreachable);
    assert!(message.contains("goes on home"), "{message}");
    fake.trouble(Call::Check, None);
    fake.trouble(Call::WriteRecord, None);
    r.until("home", 300, |r| r.stage().is_none()).await;
    assert!(fake.in_service() && fake.record().holds.is_empty());
}
