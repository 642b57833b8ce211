//! `backstop wait`: the verdict, whenever one comes back to ask for it.

use crate::samples::{AT, MIN, cycle, ended, hold_ended, step};
use crate::world::{World, finish, interrupt};
use backstop::control::protocol::CycleStatus;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;

#[tokio::test(flavor = "multi_thread")]
async fn the_cycle_under_way_is_followed_to_its_end() {
    let world = World::new();
    world.fake.tell(|s| {
        s.status.cycle = Some(cycle());
        s.steps = vec![step(1, StageName::Reboot, "new boot id", Some(51_000))];
    });
    let child = world.spawn(&["wait"]);
    world.fake.until("it follows", |s| s.followers == 1).await;
    world.fake.tell(|s| s.end.ended = Some(ended(Exit::Done)));
    finish(child).await.exits(0).says(&["cycle c-91d2", "new boot id", "51 s", "DONE", "exit 0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_verdict_is_told_again_with_when_it_was() {
    let world = World::new();
    world.fake.tell(|s| s.status.last = Some(ended(Exit::FailedBack)));
    world.backstop(&["wait"]).await.exits(101).says(&["ended 03:10", "FAILED, back in service.", "latch clear L-91d2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_cycle_there_is_no_verdict() {
    let world = World::new();
    world.fake.tell(|s| s.status.last = None);
    world.backstop(&["wait"]).await.exits(2).says(&["no cycle has run on this node"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_still_starting_is_waited_for() {
    let mut world = World::without_server();
    let mut child = world.spawn(&["wait"]);
    let mut first = [0_u8; 64];
    tokio::io::AsyncReadExt::read(child.stdout.as_mut().unwrap(), &mut first).await.unwrap();
    assert!(String::from_utf8_lossy(&first).contains("contact"), "it said that it waits");
    world.start();
    finish(child).await.exits(0).says(&["DONE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_never_starts_is_not_waited_for_for_ever() {
    let world = World::without_server();
    world.backstop(&["wait", "--timeout", "5s"]).await.exits(16).complains(&["systemctl status backstop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_times_out_says_that_the_cycle_goes_on() {
    let world = World::new();
    world.fake.tell(|s| s.status.cycle = Some(cycle()));
    world.backstop(&["wait", "--timeout", "30s"]).await.exits(106).says(&["NO VERDICT.", "the cycle goes on"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_interrupted_before_any_contact_has_lost_none() {
    let world = World::without_server();
    let mut child = world.spawn(&["wait"]);
    let mut first = [0_u8; 64];
    tokio::io::AsyncReadExt::read(child.stdout.as_mut().unwrap(), &mut first).await.unwrap();
    interrupt(&child);
    finish(child).await.exits(16).says(&["not running", "systemctl status backstop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_starting_has_not_forgotten_the_cycle() {
    let world = World::new();
    world.fake.tell(|s| {
        s.status.starting = Some("instance metadata".to_owned());
        (s.status.last, s.status.cycle) = (None, None);
    });
    let mut child = world.spawn(&["wait"]);
    let mut first = [0_u8; 64];
    tokio::io::AsyncReadExt::read(child.stdout.as_mut().unwrap(), &mut first).await.unwrap();
    assert!(String::from_utf8_lossy(&first).contains("contact"), "it said that it waits");
    world.fake.tell(|s| {
        s.status.starting = None;
        s.status.last = Some(ended(Exit::Done));
    });
    finish(child).await.exits(0).says(&["DONE"]);
    world.fake.tell(|s| s.status.starting = Some("instance metadata".to_owned()));
    world.backstop(&["wait", "--timeout", "5s"]).await.exits(16).complains(&["still starting: instance metadata"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hold_reads_as_a_hold_and_not_as_a_patch() {
    let world = World::new();
    world.fake.tell(|s| {
        let (stage, deadline_left_ms) = (StageName::Held, 120 * MIN);
        s.status.cycle =
            Some(CycleStatus { kind: "hold".into(), job: "hold".into(), stage, deadline_left_ms, ..cycle() });
        let mut record = serde_json::to_value(s.status.record.take().unwrap()).unwrap();
        record["holds"] = serde_json::json!({"i-1": {"node": "es-client-1", "for_s": 14_400,
            "order": {"by": "anna(1000)", "reason": "disk", "since_ms": AT}}});
        s.status.record = Some(serde_json::from_value(record).unwrap());
    });
    let child = world.spawn(&["wait"]);
    world.fake.until("it follows", |s| s.followers == 1).await;
    world.fake.tell(|s| s.end.ended = Some(hold_ended(Exit::Done, 3_600_000)));
    finish(child).await.exits(0).says(&[
        "hold of es-client-1",
        "held until 05:27 by anna(1000): disk",
        "HOLD OVER, back in service.  1h00m out of service",
    ]);
    for (exit, out_ms, says) in [
        (Exit::FailedBack, 60_000, "HOLD OVER, late: back in service.  1m00s out of service"),
        (Exit::EndedEarly, 60_000, "HOLD ENDED EARLY, back in service.  1m00s out of service"),
        (Exit::EndedEarly, 0, "NOT HELD, nothing was changed."),
    ] {
        world.fake.tell(|s| (s.status.cycle, s.status.last) = (None, Some(hold_ended(exit, out_ms))));
        world.backstop(&["wait"]).await.exits(exit.code()).says(&["hold, ended 03:10", says]);
    }
    // A job that somebody called so is none.
    world.fake.tell(|s| s.status.last = Some(backstop::core::cycle::Ended { job: "hold".into(), ..ended(Exit::Done) }));
    world.backstop(&["wait"]).await.says(&["DONE, back in service."]);
}
