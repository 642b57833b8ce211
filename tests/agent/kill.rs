//! Real agents, killed at a known moment: one test per row of the table of what must be true after the restart. The world
//! is held still where the agent is wanted (a call that is never answered, a lock that is not given, a job that waits), so
//! no test waits for a length of time. At each kill: the stage on the disk is the last committed one or its successor, and
//! nothing has happened outside whose intent is not on the disk ([`Scene::kill`]).

use crate::scene::{After, BOUND, Scene};
use backstop::core::cycle::{Stage, StageName};
use backstop::core::exit::Exit;
use backstop::core::job::{JobStatus, RebootPolicy};
use backstop::core::record::Op;
use backstop::rehearse::elbv2::{Action, Fault, Trouble};
use backstop::rehearse::receiver::Reply;

const IDLE: After = After { exit: Exit::EndedEarly, latch: false, pages: 0, runs: 0 };
const FAILED: After = After { exit: Exit::FailedBack, latch: true, pages: 1, runs: 1 };

/// Killed with its claim under way, unanswered.
async fn killed_before_the_answer() -> (Scene, backstop::core::cycle::Durable) {
    let mut s = Scene::start().await;
    let lock = s.hold_record();
    s.run(RebootPolicy::Never).await;
    let d = s.kill().await;
    assert_eq!(d.cycle.as_ref().map(|c| c.stage.clone()), Some(Stage::Claim { acked: false }));
    drop(lock);
    (s, d)
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_before_the_answer_and_the_write_never_landed() {
    let (s, _) = killed_before_the_answer().await;
    assert!(s.fleet.record().unwrap().slots.is_empty());
    s.restart();
    s.ends(&IDLE).await;
    s.never_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_before_the_answer_and_the_write_landed() {
    let (s, d) = killed_before_the_answer().await;
    let plan = &d.cycle.as_ref().unwrap().plan;
    s.write_lands(&Op::Claim { instance: d.instance.clone(), slot: plan.slot(0) }, &d);
    assert_eq!(s.fleet.record().unwrap().slots.len(), 1);
    s.restart();
    s.ends(&IDLE).await;
    s.never_left();
}

/// In `claim` with its slot, and reading what its guards want to know.
async fn claimed(s: &mut Scene) {
    let lock = s.hold_record();
    s.run(RebootPolicy::Never).await;
    s.hang(Action::DescribeTargetHealth);
    drop(lock);
    s.on_disk("the slot's acknowledgement", |d| {
        d.cycle.as_ref().is_some_and(|c| c.stage == Stage::Claim { acked: true })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claim_after_the_answer() {
    let mut s = Scene::start().await;
    claimed(&mut s).await;
    let d = s.kill().await;
    assert_eq!(d.stage(), Some(StageName::Claim));
    assert_eq!(s.fleet.record().unwrap().slots.len(), 1);
    s.never_left();
    s.fleet.elbv2().clear_faults();
    s.restart();
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

/// `trouble` hangs the call before or after it was applied.
async fn deregister(trouble: Trouble, out: bool) {
    let mut s = Scene::start().await;
    s.fleet.elbv2().inject(Fault::always(trouble.clone()).on(Action::DeregisterTargets));
    s.run(RebootPolicy::Never).await;
    s.called(Action::DeregisterTargets, &trouble).await;
    let d = s.kill().await;
    assert_eq!(d.stage(), Some(StageName::Deregister));
    assert_eq!(s.fleet.serves(&s.me), !out);
    s.fleet.elbv2().clear_faults();
    s.restart();
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deregister_before_the_call_is_applied() {
    deregister(Trouble::Hang, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deregister_after_the_call_is_applied() {
    deregister(Trouble::StallMidBody, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.hold_drain(true);
    s.stage_on_disk(StageName::Drain).await;
    s.kill().await;
    assert_eq!(s.fleet.target_state(&s.me).0, "draining");
    s.hold_drain(false);
    s.restart();
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_before_the_job_is_started() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.hold_drain(true);
    s.stage_on_disk(StageName::Drain).await;
    // Without its slot confirmed it starts no job.
    let lock = s.hold_record();
    s.hold_drain(false);
    s.stage_on_disk(StageName::Patch).await;
    s.kill().await;
    assert_eq!(s.runs(), 0);
    drop(lock);
    s.restart();
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

/// In `patch`, with its job at work.
async fn patching() -> Scene {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_and_the_job_goes_on_across_the_restart() {
    let s = patching().await;
    let d = s.kill().await;
    assert_eq!(d.stage(), Some(StageName::Patch));
    s.restart();
    s.me.wait_ready(BOUND).await.unwrap();
    assert_eq!(job_status(&s), JobStatus::Running);
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

fn job_status(s: &Scene) -> JobStatus {
    let dir = s.me.state_dir().join("jobs").join(s.cycle());
    backstop::jobs::verdict::JobDir::open(&dir).unwrap().status().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_and_the_verdict_is_durable() {
    let s = patching().await;
    s.kill().await;
    s.let_job_end(0).await;
    s.until("a verdict without an agent", || matches!(job_status(&s), JobStatus::Ended(_))).await;
    s.restart();
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_and_a_bad_verdict_is_durable() {
    let s = patching().await;
    s.kill().await;
    s.let_job_end(100).await;
    s.until("a verdict without an agent", || matches!(job_status(&s), JobStatus::Ended(_))).await;
    s.restart();
    s.ends(&FAILED).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patch_and_the_verdict_is_lost() {
    let s = patching().await;
    s.kill().await;
    s.me.end_jobs();
    s.until("nothing is left of the job", || job_status(&s) == JobStatus::Lost).await;
    s.restart();
    s.ends(&FAILED).await;
    let page = &s.fleet.receiver().accepted()[0].body;
    assert_eq!((page["kind"].as_str(), page["class"].as_str()), (Some("latched"), Some("job-lost")), "{page}");
    assert_eq!(page["stage"], "patch");
}

#[tokio::test(flavor = "multi_thread")]
async fn reboot() {
    let mut s = Scene::start().await;
    s.fleet.stand_in().refuse(true);
    s.run(RebootPolicy::Always).await;
    s.let_job_end(0).await;
    s.tries_in_vain(StageName::Reboot, "stand-in").await;
    let d = s.kill().await;
    assert!(matches!(d.cycle.as_ref().unwrap().stage, Stage::Reboot { asked: 1, .. }));
    s.fleet.stand_in().refuse(false);
    s.restart();
    s.ends(&After::GOES_ON).await;
    assert_eq!(s.me.reboots(), 1);
}

/// In `check`, with a node that is not there.
async fn checking(s: &Scene, code: u8) {
    s.job_waits().await;
    s.me.kill_node().await;
    s.let_job_end(code).await;
    s.tries_in_vain(StageName::Check, "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn check() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    checking(&s, 0).await;
    s.kill().await;
    s.me.start_node().unwrap();
    s.restart();
    s.ends(&After::GOES_ON).await;
}

/// `trouble` hangs the call before or after it was applied.
async fn register(trouble: Trouble, back: bool) {
    let s = patching().await;
    s.fleet.elbv2().inject(Fault::always(trouble.clone()).on(Action::RegisterTargets));
    s.let_job_end(0).await;
    s.called(Action::RegisterTargets, &trouble).await;
    let d = s.kill().await;
    assert_eq!(d.stage(), Some(StageName::Register));
    assert_eq!(s.fleet.target_state(&s.me).0 != "unused", back);
    s.fleet.elbv2().clear_faults();
    s.restart();
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn register_before_the_call_is_applied() {
    register(Trouble::Hang, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn register_after_the_call_is_applied() {
    register(Trouble::StallMidBody, true).await;
}

/// In `settle`, with a target that stays `initial`.
async fn settling(s: &Scene) {
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.stage_on_disk(StageName::Settle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settle() {
    let s = patching().await;
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.let_job_end(0).await;
    settling(&s).await;
    s.kill().await;
    s.show(None);
    s.restart();
    s.ends(&After::GOES_ON).await;
}

/// In `release`, with a record that nobody can write.
async fn releasing(s: &Scene) -> std::fs::File {
    settling(s).await;
    let lock = s.hold_record();
    s.show(None);
    s.stage_on_disk(StageName::Release).await;
    lock
}

#[tokio::test(flavor = "multi_thread")]
async fn release_before_the_write_lands() {
    let s = patching().await;
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.let_job_end(0).await;
    let lock = releasing(&s).await;
    s.kill().await;
    assert_eq!(s.fleet.record().unwrap().slots.len(), 1);
    drop(lock);
    s.restart();
    s.ends(&After::GOES_ON).await;
    assert_eq!(s.fleet.record().unwrap().finished.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn release_after_the_write_landed() {
    let s = patching().await;
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.let_job_end(0).await;
    let lock = releasing(&s).await;
    let d = s.kill().await;
    drop(lock);
    let c = d.cycle.as_ref().unwrap();
    let finished = c.finished(&c.entered);
    assert!(finished.is_some());
    let (instance, cycle) = (d.instance.clone(), c.plan.id.clone());
    s.write_lands(&Op::Free { instance, cycle, latch: None, finished }, &d);
    s.restart();
    s.ends(&After::GOES_ON).await;
    assert_eq!(s.fleet.record().unwrap().finished.len(), 1, "counted once");
}

/// The way back of a failed cycle, with a kill in each of its stages: the latch and the page of the failure outlive them.
#[tokio::test(flavor = "multi_thread")]
async fn the_way_back_of_a_failed_cycle() {
    let mut s = Scene::start().await;
    // Neither the latch nor the page gets out before the first kill.
    s.fleet.receiver().answer_always(Reply::Status(503));
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    let lock = s.hold_record();
    checking(&s, 1).await;
    let d = s.kill().await;
    assert_eq!((d.stage(), d.pages.len()), (Some(StageName::Check), 1));
    assert!(d.cycle.as_ref().unwrap().failure.is_some());
    drop(lock);

    s.restart();
    s.until("the latch, before the node is back", || s.fleet.record().unwrap().latches.len() == 1).await;
    assert!(!s.fleet.serves(&s.me));
    s.hang(Action::RegisterTargets);
    s.me.start_node().unwrap();
    s.called(Action::RegisterTargets, &Trouble::Hang).await;
    assert_eq!(s.kill().await.stage(), Some(StageName::Register));

    s.fleet.elbv2().clear_faults();
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.restart();
    settling(&s).await;
    assert_eq!(s.kill().await.stage(), Some(StageName::Settle));

    s.restart();
    let lock = releasing(&s).await;
    assert_eq!(s.kill().await.stage(), Some(StageName::Release));
    drop(lock);

    assert!(s.fleet.receiver().accepted().is_empty());
    s.fleet.receiver().answer_always(Reply::Status(202));
    s.restart();
    s.ends(&FAILED).await;
    // Of the agent itself, which knows more than a peer that spoke up for it.
    let pages = s.fleet.receiver().accepted();
    let own = pages.iter().map(|p| &p.body).find(|p| p["class"] == "job");
    assert_eq!(own.map(|p| p["kind"].as_str()), Some(Some("latched")), "{pages:?}");
}

/// SIGTERM in each stage of one cycle: each time a clean stop, and the next process goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_in_each_stage_of_one_cycle() {
    let mut s = Scene::start().await;
    claimed(&mut s).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Claim));

    s.fleet.elbv2().clear_faults();
    s.hang(Action::DeregisterTargets);
    s.restart();
    s.called(Action::DeregisterTargets, &Trouble::Hang).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Deregister));

    s.fleet.elbv2().clear_faults();
    s.hold_drain(true);
    s.restart();
    s.stage_on_disk(StageName::Drain).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Drain));

    s.hold_drain(false);
    s.restart();
    s.job_waits().await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Patch));
    assert_eq!(job_status(&s), JobStatus::Running, "the job outlives its agent");

    s.restart();
    checking(&s, 0).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Check));

    s.hang(Action::RegisterTargets);
    s.me.start_node().unwrap();
    s.restart();
    s.called(Action::RegisterTargets, &Trouble::Hang).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Register));

    s.fleet.elbv2().clear_faults();
    s.show(Some(("initial", Some("Elb.InitialHealthChecking"))));
    s.restart();
    settling(&s).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Settle));

    s.restart();
    let lock = releasing(&s).await;
    assert_eq!(s.terminate().await.stage(), Some(StageName::Release));
    drop(lock);

    s.restart();
    s.ends(&After::GOES_ON).await;
    assert_eq!(s.terminate().await.stage(), None, "and idle");
}
