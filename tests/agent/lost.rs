//! What was lost: a node's state, the fleet record, a job's directory, time.

use crate::fakes::{Call, Fake, ME, Shown, Trouble, good, row};
use crate::running::Running;
use backstop::control::backend::{Backend, Caller};
use backstop::control::protocol::{Done, HoldRequest, InitRequest, RunReply};
use backstop::core::cycle::StageName;
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::job::{JobResult, JobSpec, RebootPolicy, Verdict};
use backstop::core::plan::Kind;
use backstop::core::record::{Extra, Hold, Pause, Record};
use backstop::core::target::{Named, Reason, TargetState};

fn order() -> Pause {
    Pause { by: "ann".into(), reason: "a move".into(), since_ms: 0, extra: Extra::new() }
}

fn hold() -> Hold {
    Hold { node: "es-client-1".into(), order: order(), for_s: 300, extra: Extra::new() }
}

fn ann() -> Caller {
    Caller { name: "ann".to_owned(), uid: 0, admin: true }
}

async fn init(r: &Running, reason: Option<&str>) -> Done {
    r.handle().init(ann(), InitRequest { reason: reason.map(str::to_owned) }).await
}

// ---- the record ----

#[tokio::test]
async fn an_older_copy_of_the_record_proves_nothing_after_a_restart_of_the_agent_either() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let copy = fake.record();
    fake.put_record(Some(&Record { counter: copy.counter + 5, ..copy.clone() }));
    r.pass(40).await;
    r.kill();
    fake.put_record(Some(&copy));
    let r = Running::start(&fake).await;
    let reply = r.run_job().await;
    let RunReply::Refused { exit, message, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(exit, Exit::Unreachable.code());
    assert!(message.contains("went back from counter"), "{message}");
}

#[tokio::test]
async fn a_record_is_made_once_and_made_again_only_for_a_reason_from_what_members_last_saw() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let mut record = fake.record();
    record.counter = 40;
    record.pause = Some(order());
    fake.put_record(Some(&record));
    r.pass(40).await;
    assert_eq!(init(&r, Some("to be safe")).await.exit, Exit::Usage.code(), "it has one");
    for lost in ["gone", "an older copy", "not a record"] {
        match lost {
            "gone" => fake.put_record(None),
            "an older copy" => fake.put_record(Some(&Record { counter: 2, pause: None, ..record.clone() })),
            _ => fake.put_bytes(Some(b"{\"schema\":1".to_vec())),
        }
        let refused = init(&r, None).await;
        assert_eq!(refused.exit, Exit::Usage.code(), "{lost}: {refused:?}");
        assert!(refused.next.unwrap().contains("--reason"), "{lost}");
        assert_eq!(
            r.handle().init(ann(), InitRequest { reason: Some("  ".to_owned()) }).await.exit,
            Exit::Usage.code()
        );
        let made = init(&r, Some("the index was deleted")).await;
        assert_eq!(made.exit, 0, "{lost}: {made:?}");
        let again = fake.record();
        assert_eq!(again.pause, Some(order()), "{lost}: what was seen last is in it");
        assert!(again.counter > record.counter, "{lost}: and it is above every copy of the old one");
        record = again;
        r.pass(40).await;
        assert!(matches!(r.run_job().await, RunReply::Refused { exit: 12, .. }), "{lost}: it can be used");
    }
}

#[tokio::test]
async fn a_latch_survives_a_lost_record_though_every_agent_was_restarted_without_one() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    fake.job_ends(Some(Verdict { result: JobResult::Exited(7), ..good() }));
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("home, latched", 300, |r| r.stage().is_none() && r.fake.record().open_latches().count() == 1).await;
    r.pass(40).await;
    r.kill();
    fake.put_record(None);
    let r = Running::start(&fake).await;
    r.pass(60).await;
    assert_eq!(init(&r, Some("it was deleted")).await.exit, 0);
    assert_eq!(fake.record().open_latches().count(), 1);
    assert!(matches!(r.run_job().await, RunReply::Refused { exit: 100, .. }));
}

#[tokio::test]
async fn another_fleets_or_a_newer_record_is_never_replaced() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let record = fake.record();
    for other in [Record { fleet: "green".into(), ..record.clone() }, Record { schema: 99, ..record.clone() }] {
        fake.put_record(Some(&other));
        let refused = init(&r, Some("it is in the way")).await;
        assert_eq!((refused.exit, fake.record()), (Exit::Usage.code(), other), "{refused:?}");
    }
}

// ---- the node's own state ----

#[tokio::test]
async fn a_held_node_that_lost_its_state_stays_out_for_the_holds_time_and_then_comes_back() {
    let fake = Fake::new();
    let mut record = fake.record();
    record.holds.insert(ME.into(), hold());
    fake.put_record(Some(&record));
    fake.take_out();
    let r = Running::start(&fake).await;
    r.until("held on", 60, |r| r.stage() == Some(StageName::Held)).await;
    r.pass(200).await;
    assert_eq!((r.stage(), fake.calls(Call::Register)), (Some(StageName::Held), 0));
    r.until("back when its time is over", 300, |r| r.stage().is_none() && r.fake.in_service()).await;
    assert!(fake.record().holds.is_empty() && fake.pages().is_empty());
}

#[tokio::test]
async fn a_held_node_that_lost_its_state_is_not_put_back_because_a_look_told_nothing() {
    let fake = Fake::new();
    let mut record = fake.record();
    record.holds.insert(ME.into(), hold());
    fake.put_record(Some(&record));
    fake.take_out();
    fake.trouble(Call::Poll, Some(Trouble::Class(Class::Throttled)));
    let r = Running::start(&fake).await;
    r.pass(30).await;
    assert!(matches!(r.run_job().await, RunReply::Refused { .. }));
    fake.trouble(Call::Poll, None);
    r.until("held on", 120, |r| r.stage() == Some(StageName::Held)).await;
    assert_eq!(fake.calls(Call::Register), 0);
}

#[tokio::test]
async fn lost_state_is_latched_before_its_way_back_can_be_planned_and_a_restart_does_not_forget_it() {
    let fake = Fake::new();
    fake.files.plant("state.json", b"");
    fake.trouble(Call::Group, Some(Trouble::Class(Class::Transport)));
    fake.orphan(Some("c-000000000007"));
    let r = Running::start(&fake).await;
    r.until("its page", 60, |r| !r.fake.pages().is_empty()).await;
    let latches: Vec<_> = fake.record().open_latches().map(|(id, l)| (id.to_string(), l.class.to_string())).collect();
    let id = backstop::core::ids::CycleId("c-000000000007".into()).latch().to_string();
    assert_eq!(latches, [(id, "state".to_owned())], "the job that still runs names the lost cycle");
    r.kill();
    let r = Running::start(&fake).await;
    r.pass(20).await;
    assert!(matches!(r.run_job().await, RunReply::Refused { exit: 105 | 100, .. }));
    fake.trouble(Call::Group, None);
    r.until("home", 200, |r| r.stage().is_none() && r.shared.node.borrow().durable.last.is_some()).await;
    assert!(!fake.orphan_runs(), "its job is killed on the way back");
    assert_eq!(r.shared.node.borrow().durable.last.as_ref().unwrap().exit, Exit::StateUnreadable);
    assert_eq!(fake.record().open_latches().count(), 1);
}

// ---- time ----

#[tokio::test]
async fn a_machine_that_was_frozen_in_settle_looks_before_it_calls_itself_late() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("settle", 300, |r| r.stage() == Some(StageName::Settle)).await;
    fake.clock.advance(3_600_000);
    r.until("home", 60, |r| r.stage().is_none()).await;
    assert_eq!(r.shared.node.borrow().durable.last.as_ref().unwrap().exit, Exit::Done);
    assert!(fake.pages().is_empty() && fake.record().open_latches().count() == 0);
}

// ---- other hands ----

#[tokio::test]
async fn a_load_balancer_that_takes_targets_that_do_not_exist_is_refused_and_paged() {
    let fake = Fake::new();
    fake.takes_anything();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Refused { exit: 17, .. }));
    r.until("its page", 30, |r| r.fake.pages().iter().any(|p| p.text.contains("register-allowed"))).await;
}

#[tokio::test]
async fn no_reboot_while_a_package_manager_is_at_work() {
    let fake = Fake::new();
    fake.job_ends(None);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let job = JobSpec {
        name: "patch".into(),
        argv: vec!["patch".into()],
        reboots: false,
        reboot: RebootPolicy::Always,
        unit: None,
    };
    assert!(matches!(r.begin(Kind::Patch(job)).await, RunReply::Started { .. }));
    r.until("patch", 100, |r| r.stage() == Some(StageName::Patch)).await;
    fake.package_manager(Some("apt"));
    fake.job_ends(Some(Verdict { reboot_needed: true, ..good() }));
    r.until("reboot", 100, |r| r.stage() == Some(StageName::Reboot)).await;
    r.pass(10).await;
    assert_eq!(fake.reboots(), 0);
    fake.package_manager(None);
    r.until("asked for", 30, |r| r.fake.reboots() == 1).await;
}

#[tokio::test]
async fn while_a_failed_cycle_goes_home_its_job_attaches_and_another_one_hears_of_the_latch() {
    let fake = Fake::new();
    fake.trouble(Call::Check, None);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let RunReply::Started { cycle, .. } = r.run_job().await else { panic!("it starts") };
    r.until("drain", 100, |r| r.stage() == Some(StageName::Drain)).await;
    fake.trouble(Call::Check, Some(Trouble::Class(Class::Transport)));
    r.until("failed", 300, |r| r.shared.node.borrow().durable.cycle.as_ref().is_some_and(|c| c.failure.is_some()))
        .await;
    let same = r.run_job().await;
    assert!(matches!(&same, RunReply::Attached { cycle: c, .. } if *c == cycle), "{same:?}");
    let other =
        JobSpec { name: "b".into(), argv: vec!["b".into()], reboots: false, reboot: RebootPolicy::Never, unit: None };
    let other = r.begin(Kind::Patch(other)).await;
    assert!(matches!(other, RunReply::Refused { exit: 100, .. }), "{other:?}");
}

#[tokio::test]
async fn a_hold_of_a_node_that_is_out_already_only_keeps_it_there() {
    let fake = Fake::new();
    fake.take_out();
    fake.trouble(Call::Check, Some(Trouble::Class(Class::Transport))); // it is being mended
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let request = HoldRequest { for_s: 60, all: false, reason: "a look".to_owned() };
    let begun = r.handle().hold(ann(), request).await;
    assert_eq!(begun.exit, 0, "{begun:?}");
    r.until("held", 60, |r| r.stage() == Some(StageName::Held)).await;
    assert_eq!(fake.calls(Call::Deregister), 0, "nothing to take out");
    fake.trouble(Call::Check, None);
    r.until("back", 200, |r| r.stage().is_none() && r.fake.in_service()).await;
}

#[tokio::test]
async fn a_list_that_calls_the_own_target_healthy_and_a_name_that_does_not_refuse_the_claim() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let healthy = row(ME, TargetState::Healthy, None);
    let gone = row(ME, TargetState::Unused, Some(Reason::NotRegistered));
    fake.show(1, Some(Shown { list: vec![healthy], named: Named::Rows(vec![gone]), others: true }));
    assert!(matches!(r.run_job().await, RunReply::Started { .. }), "its first look is at the list alone");
    r.until("over", 100, |r| r.stage().is_none()).await;
    let last = r.shared.node.borrow().durable.last.clone().unwrap();
    assert!(last.exit == Exit::Guard && last.message.contains("contradict"), "{last:?}");
    assert_eq!(fake.calls(Call::Deregister), 0);
}
