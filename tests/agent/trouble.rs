//! What must not stop the agent: a disk that hangs, a panic in an adapter, a state that grows too large.

use crate::fakes::{Call, Fake, Trouble, good};
use crate::running::Running;
use backstop::agent::supervisor::spawn;
use backstop::agent::turn::Request;
use backstop::control::backend::{Backend as _, Caller};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::guard::{Guard, Said};
use backstop::core::job::{JobSpec, RebootPolicy};
use backstop::core::page::{PageKind, Severity};
use backstop::core::plan::Kind;
use backstop::rehearse::fleet::patch_request;
use backstop::state::disk::Disk as _;
use backstop::state::fault::{FaultDisk, Survival};
use backstop::state::journal::{START_BYTES_MAX, STATE_NAME};
use std::time::Duration;

/// Short, since it is really waited for; what hangs here hangs for ever.
const PATIENCE: Duration = Duration::from_millis(300);

/// The stored generation.
fn generation(fake: &Fake) -> u64 {
    let bytes = FaultDisk::new(&fake.files).read(STATE_NAME).unwrap().unwrap();
    serde_json::from_slice::<serde_json::Value>(&bytes).unwrap()["generation"].as_u64().unwrap()
}

#[tokio::test]
async fn a_disk_that_hangs_in_mid_cycle_does_not_keep_the_node_out_and_what_lands_late_is_in_order() {
    let fake = Fake::patient(PATIENCE);
    fake.job_ends(None);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("patch", 100, |r| r.stage() == Some(StageName::Patch)).await;
    let before = generation(&fake);
    fake.files.hang(true);
    fake.job_ends(Some(good()));
    r.comes("in service on a disk that hangs", |r| r.fake.in_service()).await;
    r.comes("it waits with what it frees", |r| matches!(r.stage(), Some(StageName::Settle | StageName::Release))).await;
    assert_eq!(fake.record().slots.len(), 1, "nothing is freed before the disk has said yes");
    assert!(r.shared.node.borrow().unstored.is_some());
    fake.files.hang(false);
    r.until("released once the disk answers", 300, |r| r.stage().is_none()).await;
    assert!(fake.record().slots.is_empty() && fake.in_service());
    assert!(generation(&fake) > before);
    fake.files.power_on(Survival::Nothing);
    r.kill();
    let r = Running::start(&fake).await;
    assert_eq!(
        (r.stage(), fake.pages().len()),
        (None, 0),
        "what is on the disk is the last of all, not what landed late"
    );
}

#[tokio::test]
async fn no_cycle_starts_on_a_disk_that_hangs() {
    let fake = Fake::patient(PATIENCE);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("over", 300, |r| r.stage().is_none()).await;
    fake.files.hang(true);
    let reply = r.run_job().await;
    fake.files.hang(false);
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, Exit::Guard.code(), "{message}");
    assert!(message.starts_with("state-durable") && message.contains("no answer within"), "{message}");
    r.pass(20).await;
    assert!(fake.in_service() && fake.record().slots.is_empty());
    assert!(matches!(r.run_job().await, RunReply::Started { .. }), "and once it answers it does");
}

#[tokio::test]
async fn a_panic_behind_the_guards_refuses_a_run_and_is_paged_about_once() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    fake.trouble(Call::Check, Some(Trouble::Panic));
    for _ in 0..2 {
        let reply = r.run_job().await;
        let RunReply::Refused { message, verdicts: Some(verdicts), .. } = &reply else { panic!("{reply:?}") };
        assert!(message.contains("a panic"), "{message}");
        for guard in [Guard::StateDurable, Guard::ClusterReachable, Guard::RegisterAllowed] {
            let said = verdicts.0.iter().find(|v| v.guard == guard).map(|v| v.said);
            assert_eq!(said, Some(Said::Unknown), "{guard}");
        }
    }
    r.pass(5).await;
    let pages: Vec<_> =
        fake.pages().iter().map(|p| (p.kind.clone(), p.text.contains("looking at the guards"))).collect();
    assert_eq!(pages, [("agent-fault".to_owned(), true)]);
    fake.trouble(Call::Check, None);
    assert!(matches!(r.run_job().await, RunReply::Started { .. }), "the loop lives");
}

#[tokio::test]
async fn a_panic_while_a_cycle_is_planned_is_a_fault_and_is_paged_about() {
    let fake = Fake::new();
    fake.take_out();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    fake.trouble(Call::Check, Some(Trouble::Panic));
    let reply = r.begin(Kind::Return).await;
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, Exit::Unreachable.code());
    assert!(message.contains("planning a cycle: a panic"), "{message}");
    r.until("its page", 20, |r| r.fake.pages().iter().any(|p| p.text.contains("planning a cycle"))).await;
    fake.trouble(Call::Check, None);
    assert!(matches!(r.begin(Kind::Return).await, RunReply::Started { .. }));
    r.until("home", 300, |r| r.stage().is_none() && r.fake.in_service()).await;
}

#[tokio::test]
async fn a_panic_in_self_heal_is_paged_about_once_and_it_heals_once_that_is_over() {
    let fake = Fake::new();
    fake.take_out();
    fake.trouble(Call::Check, Some(Trouble::Panic));
    let r = Running::start(&fake).await;
    r.until("its page", 500, |r| r.fake.pages().iter().any(|p| p.text.contains("looking at the own node"))).await;
    r.pass(100).await;
    assert_eq!(fake.pages().len(), 1, "{:?}", fake.pages());
    assert!(!fake.in_service());
    fake.trouble(Call::Check, None);
    r.until("healed", 100, |r| r.fake.in_service()).await;
}

#[tokio::test]
async fn a_job_that_would_fill_the_state_file_is_refused_before_anything_leaves() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let job = |arg: String| {
        let argv = vec!["sh".into(), "-c".into(), arg.as_str().into()];
        Kind::Patch(JobSpec { name: "patch".into(), argv, reboots: false, reboot: RebootPolicy::Never, unit: None })
    };
    // Each of them takes two bytes in the file.
    let reply = r.begin(job("\"".repeat(16_000))).await;
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, Exit::Usage.code());
    assert!(message.contains(&START_BYTES_MAX.to_string()) && message.contains("script"), "{message}");
    assert!(fake.in_service() && fake.record().slots.is_empty());
    let reply = r.begin(job("x".repeat(16_000))).await;
    assert!(matches!(reply, RunReply::Started { .. }), "the longest command that is taken: {reply:?}");
    r.until("over", 300, |r| r.stage().is_none()).await;
    assert!(fake.in_service() && fake.record().slots.is_empty());
}

/// Every problem of a config file is in one page; with a pager that takes nothing it waits in the state file.
#[tokio::test]
async fn a_page_that_says_too_much_does_not_keep_the_state_from_being_stored() {
    let fake = Fake::new();
    fake.trouble(Call::Page, Some(Trouble::NeverHeardOf));
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let message = "ä".repeat(100_000).as_str().into();
    r.queue.send(Request::Fault(PageKind::ConfigUnusable, Severity::Warning, message)).await.unwrap();
    r.pass(2).await;
    let view = r.shared.node.borrow().clone();
    assert_eq!((view.durable.pages.len(), &view.unstored), (1, &None));
    assert!(view.durable.pages[0].message.ends_with("(cut; the log has all of it)"));
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("over", 300, |r| r.stage().is_none()).await;
    assert!(fake.in_service() && fake.record().slots.is_empty());
}

#[tokio::test]
async fn a_guard_that_nobody_can_answer_for_a_moment_refuses_no_run_and_one_that_stays_so_does() {
    for passes in [true, false] {
        let fake = Fake::new();
        let r = Running::start(&fake).await;
        r.pass(20).await;
        fake.trouble(Call::Check, Some(Trouble::NeverHeardOf));
        let (before, handle) = (fake.calls(Call::Check), r.handle());
        let caller = Caller { name: "ann".to_owned(), uid: 0, admin: true };
        let answer =
            spawn(async move { handle.run(caller, patch_request("patch", &["true"], RebootPolicy::Never)).await });
        r.until("it has been asked once", 20, |r| r.fake.calls(Call::Check) > before).await;
        if passes {
            fake.trouble(Call::Check, None);
            r.until("its cycle begins", 30, |r| r.stage().is_some()).await;
            assert!(matches!(answer.join().await, Ok(RunReply::Started { .. })));
        } else {
            r.until("it has been asked again", 30, |r| r.fake.calls(Call::Check) >= before + 3).await;
            let Ok(RunReply::Refused { exit, .. }) = answer.join().await else { panic!("refused") };
            assert_eq!(exit, Exit::Unreachable.code());
        }
    }
}
