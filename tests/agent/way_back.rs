//! Nothing ends the way back: every class of fault, an unknown error and a panic, in every call that it makes.

use crate::fakes::{Call, Fake, Trouble};
use crate::running::Running;
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::exit_codes::ExitCodes;
use backstop::core::job::{JobResult, Verdict};

async fn started(fake: &Fake) -> Running {
    let r = Running::start(fake).await;
    r.pass(2).await;
    let reply = r.run_job().await;
    assert!(matches!(reply, RunReply::Started { .. }), "{reply:?}");
    r
}

#[tokio::test]
async fn a_cycle_goes_round() {
    let fake = Fake::new();
    let r = started(&fake).await;
    r.until("the cycle ends", 300, |r| r.stage().is_none()).await;
    let last = r.shared.node.borrow().durable.last.clone().unwrap();
    assert_eq!(last.exit, Exit::Done, "{last:?}");
    assert!(fake.in_service());
    assert!(fake.record().slots.is_empty());
    assert!(fake.pages().is_empty());
    assert_eq!((fake.calls(Call::Deregister), fake.calls(Call::Register)), (2, 2), "one call per group each way");
}

/// The stage at which the fault begins, and the call that fails.
const CALLS: [(Call, StageName); 5] = [
    (Call::Check, StageName::Check),
    (Call::Poll, StageName::Register),
    (Call::Register, StageName::Register),
    (Call::Poll, StageName::Settle),
    (Call::WriteRecord, StageName::Release),
];

async fn survives(call: Call, at: StageName, trouble: Trouble) {
    let fake = Fake::new();
    let r = started(&fake).await;
    r.until("the stage before the fault", 300, |r| r.stage() == Some(StageName::Check)).await;
    if at != StageName::Check {
        // From `check` on: the fault is there before its stage is entered.
        r.until("a pass", 300, |r| r.shared.node.borrow().seen.passes > 0).await;
    }
    fake.trouble(call, Some(trouble));
    r.pass(200).await; // longer than every deadline of the way back
    let when = format!("{call:?} in {at} with {trouble:?}");
    assert!(r.stage().is_some(), "{when}: the cycle waits");
    // A part of the agent that dies of the same panic is told of, too: not what this is about.
    let late: Vec<_> = fake.pages().into_iter().filter(|p| p.kind != "agent-fault").collect();
    let pages: Vec<_> = late.iter().map(|p| (p.kind.as_str(), p.summary.as_str())).collect();
    assert!(!late.is_empty(), "{when}: a late node is paged about");
    let triggers = late.iter().filter(|p| p.kind == "latched").count();
    assert!(triggers <= 1, "{when}: one page about one failure, got {pages:?}");
    assert!(late.len() <= 2, "{when}: at most an early page and the failure, got {pages:?}");
    fake.trouble(call, None);
    r.until("home once the fault ends", 300, |r| r.stage().is_none()).await;
    assert!(fake.in_service(), "{when}: back in service");
    assert!(fake.record().slots.is_empty(), "{when}: its slot is free");
    let latched = fake.record().open_latches().count();
    let releasing = at == StageName::Release;
    assert_eq!(latched, usize::from(!releasing), "{when}: a failure stays latched, a late release is none");
}

macro_rules! each {
    ($($name:ident: $row:expr;)*) => {$(
        #[tokio::test]
        async fn $name() {
            let (call, at) = CALLS[$row];
            for trouble in Trouble::all() {
                survives(call, at, trouble).await;
            }
        }
    )*};
}

each! {
    the_node_check_may_fail_in_any_way: 0;
    reading_the_own_target_before_registering_may_fail_in_any_way: 1;
    registering_may_fail_in_any_way: 2;
    reading_the_own_target_while_settling_may_fail_in_any_way: 3;
    freeing_the_slot_may_fail_in_any_way: 4;
}

#[tokio::test]
async fn the_way_back_never_waits_for_the_fleet_record() {
    for trouble in Trouble::all() {
        let fake = Fake::new();
        let r = started(&fake).await;
        r.until("check", 300, |r| r.stage() == Some(StageName::Check)).await;
        fake.trouble(Call::ReadRecord, Some(trouble));
        fake.trouble(Call::WriteRecord, Some(trouble));
        r.until("in service without the record", 300, |r| r.stage() == Some(StageName::Release) && r.fake.in_service())
            .await;
        fake.trouble(Call::ReadRecord, None);
        fake.trouble(Call::WriteRecord, None);
        r.until("released once the record is back", 300, |r| r.stage().is_none()).await;
        assert!(fake.record().slots.is_empty());
    }
}

fn failed_job() -> Verdict {
    Verdict {
        result: JobResult::Exited(100),
        reboot_needed: true,
        output_tail: "E: broken".into(),
        codes: ExitCodes::Plain,
    }
}

/// The latch of a failure, from the failure on: the node goes home without it, a page says what the record does not yet,
/// and the slot is freed only together with it.
#[tokio::test]
async fn setting_the_latch_may_fail_in_any_way() {
    for call in [Call::ReadRecord, Call::WriteRecord] {
        for trouble in Trouble::all() {
            let when = format!("{call:?} with {trouble:?}");
            let fake = Fake::new();
            fake.job_ends(None);
            let r = started(&fake).await;
            r.until("the job runs", 300, |r| r.fake.job_runs()).await;
            fake.trouble(call, Some(trouble));
            fake.job_ends(Some(failed_job()));
            r.until("in service", 300, |r| r.stage() == Some(StageName::Release) && r.fake.in_service()).await;
            let kinds: Vec<_> = fake.pages().iter().map(|p| p.kind.clone()).collect();
            assert!(kinds.iter().any(|k| k == "latched"), "{when}: {kinds:?}");
            r.pass(200).await;
            assert_eq!(r.stage(), Some(StageName::Release), "{when}: nothing is freed without an acknowledgement");
            fake.trouble(call, None);
            r.until("released", 300, |r| r.stage().is_none()).await;
            assert_eq!(fake.record().open_latches().count(), 1, "{when}");
            assert!(fake.record().slots.is_empty(), "{when}");
        }
    }
}

/// A job that does not end and cannot be killed: the node goes home all the same, and both are said.
#[tokio::test]
async fn killing_the_job_may_fail_in_any_way() {
    for trouble in Trouble::all() {
        let when = format!("{trouble:?}");
        let fake = Fake::new();
        fake.job_ends(None);
        let r = started(&fake).await;
        r.until("the job runs", 300, |r| r.fake.job_runs()).await;
        fake.trouble(Call::KillJob, Some(trouble));
        r.until("home", 600, |r| r.stage().is_none()).await;
        assert!(fake.in_service() && fake.calls(Call::KillJob) > 0, "{when}");
        let kinds: Vec<_> = fake.pages().iter().map(|p| p.kind.clone()).collect();
        assert_eq!(kinds, ["latched", "agent-fault"], "{when}: each once");
        assert_eq!(fake.record().open_latches().count(), 1, "{when}");
    }
}

/// A pager that fails keeps nothing waiting, and the page waits for it.
#[tokio::test]
async fn delivering_a_page_may_fail_in_any_way() {
    for trouble in Trouble::all() {
        let when = format!("{trouble:?}");
        let fake = Fake::new();
        fake.trouble(Call::Page, Some(trouble));
        fake.job_ends(Some(failed_job()));
        let r = started(&fake).await;
        r.until("home", 300, |r| r.stage().is_none()).await;
        assert!(fake.in_service(), "{when}");
        assert!(fake.calls(Call::Page) > 1 && fake.pages().is_empty(), "{when}: tried, and not accepted");
        fake.trouble(Call::Page, None);
        r.until("delivered", 400, |r| !r.fake.pages().is_empty()).await;
        r.pass(100).await;
        let latched = fake.pages().iter().filter(|p| p.kind == "latched").count();
        assert_eq!(latched, 1, "{when}: once");
    }
}

#[tokio::test]
async fn a_failing_job_latches_at_once_and_the_node_goes_home() {
    let fake = Fake::new();
    fake.job_ends(Some(failed_job()));
    let r = started(&fake).await;
    r.until("check", 300, |r| r.stage() == Some(StageName::Check)).await;
    r.pass(1).await;
    assert_eq!(fake.record().open_latches().count(), 1, "the latch is set before the way back goes on");
    r.until("home", 300, |r| r.stage().is_none()).await;
    let pages = fake.pages();
    assert_eq!(pages.len(), 1, "{pages:?}");
    assert!(pages[0].text.contains("E: broken") && pages[0].text.contains("exit 100"), "{}", pages[0].text);
    assert!(pages[0].text.contains("aws elbv2 register-targets"), "{}", pages[0].text);
    assert_eq!(r.shared.node.borrow().durable.last.as_ref().map(|e| e.exit), Some(Exit::FailedBack));
    let again = r.run_job().await;
    assert!(matches!(again, RunReply::Refused { exit: 100, .. }), "{again:?}");
}

#[tokio::test]
async fn a_page_waits_until_a_sink_accepts_it_across_a_restart() {
    let fake = Fake::new();
    fake.trouble(Call::Page, Some(Trouble::NeverHeardOf));
    fake.job_ends(Some(failed_job()));
    let r = started(&fake).await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    assert!(fake.calls(Call::Page) > 1 && fake.pages().is_empty(), "it was tried, and not accepted");
    r.kill();
    let r = Running::start(&fake).await;
    r.pass(5).await;
    assert!(fake.pages().is_empty());
    fake.trouble(Call::Page, None);
    r.until("delivered by the next process", 300, |r| !r.fake.pages().is_empty()).await;
    r.pass(100).await;
    assert_eq!(fake.pages().len(), 1, "and once only");
    assert!(r.shared.node.borrow().durable.pages.is_empty());
}
