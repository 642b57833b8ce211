//! `--reboot=ssm`: the caller's exit code has somebody else restart the machine, and its verdict is there when the same
//! command is run again: once, and without a second cycle.

use crate::fakes::{Fake, good};
use crate::running::Running;
use backstop::agent::facts::Asked;
use backstop::clock::Clock;
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{Cycle, StageName};
use backstop::core::exit::Exit;
use backstop::core::job::{JobSpec, OWED_MS, RebootPolicy, Verdict};
use backstop::core::plan::Kind;
use backstop::core::time::BootId;

fn job(command: &str) -> Kind {
    let argv = vec!["sh".into(), "-c".into(), command.into()];
    Kind::Patch(JobSpec { name: "sh".into(), argv, reboots: false, reboot: RebootPolicy::Ssm, unit: None })
}

async fn ask(r: &Running, command: &str) -> RunReply {
    r.begin(job(command)).await
}

/// The cycle that began; or the one that is there already.
fn begun(reply: &RunReply) -> Result<&str, &str> {
    match reply {
        RunReply::Started { cycle, .. } => Ok(cycle),
        RunReply::Attached { cycle, .. } => Err(cycle),
        RunReply::Refused { .. } => panic!("{reply:?}"),
    }
}

fn awaits(r: &Running) -> bool {
    r.shared.node.borrow().durable.cycle.as_ref().is_some_and(Cycle::awaits_restart)
}

/// Until the machine may be restarted. The cycle's id.
async fn ready(r: &Running) -> String {
    r.fake.job_ends(Some(Verdict { reboot_needed: true, ..good() }));
    r.pass(2).await;
    let reply = ask(r, "patch").await;
    let cycle = begun(&reply).unwrap().to_owned();
    r.until("a restart is waited for", 300, awaits).await;
    cycle
}

async fn restarted(r: Running, boot: &str) -> Running {
    let fake = r.fake.clone();
    r.kill();
    fake.clock.reboot(BootId(boot.into()), 40_000);
    Running::start(&fake).await
}

#[tokio::test]
async fn a_verdict_is_given_once_after_the_restart_and_no_second_cycle_begins() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let cycle = ready(&r).await;
    assert_eq!(begun(&ask(&r, "patch").await), Err(&*cycle), "another caller before the restart settles nothing");
    let r = restarted(r, "boot-2").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    assert_eq!(fake.reboots(), 0, "the agent asks nobody for it");
    assert!(fake.in_service());
    assert_eq!(begun(&ask(&r, "patch").await), Err(&*cycle), "it is owed");
    let again = ask(&r, "patch").await;
    assert!(begun(&again).is_ok_and(|new| new != cycle), "and now it is not");
}

#[tokio::test]
async fn who_asks_only_for_what_is_owed_begins_nothing_and_gets_it_once() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let only = || Asked { only_owed: true, ..Asked::default() };
    let nothing = |reply: &RunReply| matches!(reply, RunReply::Refused { exit: 0, .. });
    assert!(nothing(&r.begin_as(job("patch"), only()).await));
    assert_eq!(r.stage(), None);
    let cycle = ready(&r).await;
    assert!(nothing(&r.begin_as(job("something else"), only()).await), "whatever else is under way");
    let r = restarted(r, "boot-2").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    assert_eq!(begun(&r.begin_as(job("patch"), only()).await), Err(&*cycle));
    assert!(nothing(&r.begin_as(job("patch"), only()).await));
    assert_eq!(r.stage(), None);
}

#[tokio::test]
async fn whose_answer_was_lost_gets_the_same_verdict_again_and_another_request_does_not() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let cycle = ready(&r).await;
    let r = restarted(r, "boot-2").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    let by = |request: &str, only_owed| Asked { request: request.into(), only_owed, ..Asked::default() };
    for only_owed in [true, false, true] {
        assert_eq!(begun(&r.begin_as(job("patch"), by("r-1", only_owed)).await), Err(&*cycle));
    }
    assert!(begun(&r.begin_as(job("patch"), by("r-2", false)).await).is_ok());
}

#[tokio::test]
async fn a_caller_that_comes_back_during_the_way_home_is_the_one_that_it_is_owed_to() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let cycle = ready(&r).await;
    fake.serves(1, false);
    let r = restarted(r, "boot-2").await;
    r.until("the way home", 100, |r| r.stage() == Some(StageName::Check)).await;
    assert_eq!(begun(&ask(&r, "patch").await), Err(&*cycle));
    fake.serves(1, true);
    r.until("home", 300, |r| r.stage().is_none()).await;
    // Whether it has lived to see the verdict only it can say: by asking once more for nothing but that.
    let taken = Asked { request: "r-1".into(), only_owed: true, ..Asked::default() };
    assert_eq!(begun(&r.begin_as(job("patch"), taken).await), Err(&*cycle));
    assert!(begun(&ask(&r, "patch").await).is_ok());
}

#[tokio::test]
async fn a_verdict_is_owed_across_another_cycle_and_while_that_is_under_way() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let cycle = ready(&r).await;
    let r = restarted(r, "boot-2").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    fake.job_is(good());
    assert!(begun(&ask(&r, "something else").await).is_ok());
    let by = |request: &str| Asked { request: request.into(), ..Asked::default() };
    assert_eq!(begun(&r.begin_as(job("patch"), by("r-1")).await), Err(&*cycle), "while another one is under way");
    r.until("home again", 300, |r| r.stage().is_none()).await;
    assert_eq!(begun(&r.begin_as(job("patch"), by("r-1")).await), Err(&*cycle));
    let ended = r.shared.node.borrow().durable.ended(|id| id.as_str() == cycle).cloned();
    assert_eq!(ended.map(|e| e.exit), Some(Exit::Done), "whoever follows it is told its end");
    assert!(begun(&r.begin_as(job("patch"), by("r-2")).await).is_ok());
}

#[tokio::test]
async fn another_command_and_a_later_day_are_owed_nothing() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    let cycle = ready(&r).await;
    let r = restarted(r, "boot-2").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    fake.clock.advance(OWED_MS);
    r.pass(20).await;
    let reply = ask(&r, "patch").await;
    assert!(begun(&reply).is_ok_and(|new| new != cycle), "who asks a day later wants it done again");
    r.until("a restart is waited for", 300, awaits).await;
    let r = restarted(r, "boot-3").await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    assert!(begun(&ask(&r, "something else").await).is_ok());
}

#[tokio::test]
async fn a_restart_that_never_comes_fails_the_cycle_and_brings_the_node_back() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    ready(&r).await;
    r.until("home", 300, |r| r.stage().is_none() && r.fake.in_service()).await;
    let last = r.shared.node.borrow().durable.last.clone().unwrap();
    assert_eq!((last.exit, fake.reboots()), (Exit::NotRebooted, 0), "{last:?}");
    assert_eq!(fake.record().open_latches().count(), 1);
    assert!(fake.clock.now().since_boot_ms > 0);
}
