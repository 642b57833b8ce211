//! `backstop wait`: the verdict, whenever one comes back to ask for it.

use crate::samples::{cycle, ended, step};
use crate::world::{World, finish};
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
