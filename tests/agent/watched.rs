//! Who hears that this agent lives, and whether a page of it arrives at all.

use crate::fakes::Fake;
use crate::pagers::receiver;
use crate::running::Running;
use crate::scene::{BOUND, PROGRAM, Scene, options};
use backstop::agent::supervisor::spawn;
use backstop::agent::watch::beat;
use backstop::clock::Clock;
use backstop::core::exit::Exit;
use backstop::rehearse::receiver::Reply;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

const STEP_MS: u64 = 1_000;

#[tokio::test]
async fn the_outside_watch_hears_every_minute_of_an_agent_that_works_and_nothing_of_one_that_is_stuck() {
    let (fake, outside) = (Fake::new(), receiver().await);
    let control = outside.control();
    let r = Running::start_with(&fake, &format!("outside_watch = {:?}\n", outside.url())).await;
    let _heart = spawn(beat(r.shared.clone()));
    let heard = || control.received().len();
    r.beside_sockets("five heartbeats", STEP_MS, |_| heard() >= 5).await;
    fake.hang(true);
    let problem = |r: &Running| r.shared.cache().watch_fault.clone();
    r.beside_sockets("it says that it is stuck", STEP_MS, |r| problem(r).is_some_and(|p| p.contains("`observer`")))
        .await;
    let stuck = (heard(), fake.clock.now());
    r.beside_sockets("an hour", 5_000, |r| r.fake.clock.now().since(&stuck.1).unwrap() > 3_600_000).await;
    assert_eq!(heard(), stuck.0, "an agent that only looks alive is worse than none");
    fake.hang(false);
    r.beside_sockets("it beats again", STEP_MS, |r| heard() > stuck.0 && problem(r).is_none()).await;
    // An outside that does not take it is told in `status`.
    control.answer_always(Reply::Status(500));
    r.beside_sockets("not taken", STEP_MS, |r| problem(r).is_some_and(|p| p.contains("500"))).await;
}

#[tokio::test]
async fn an_observer_that_stumbles_at_every_look_is_not_taken_for_one_that_works() {
    let (fake, outside) = (Fake::new(), receiver().await);
    let control = outside.control();
    let r = Running::start_with(&fake, &format!("outside_watch = {:?}\n", outside.url())).await;
    let _heart = spawn(beat(r.shared.clone()));
    r.beside_sockets("a heartbeat", STEP_MS, |_| !control.received().is_empty()).await;
    // It stands still, but whoever keeps it says that it was started again, as the program does after each panic.
    fake.hang(true);
    let turns = r.shared.turns.clone();
    let stumbles = |r: &Running| turns.stumbled(backstop::agent::turns::Loop::Observer, &r.fake.clock.now(), 1_000);
    let problem = |r: &Running| r.shared.cache().watch_fault.clone();
    r.beside_sockets("nobody outside hears it", STEP_MS, |r| {
        stumbles(r);
        problem(r).is_some_and(|p| p.contains("`observer`"))
    })
    .await;
    assert_eq!(r.shared.turns.fresh(&fake.clock.now()), Ok(()), "and systemd does not end it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_agent_feeds_the_outside_watch_of_its_config() {
    let outside = receiver().await;
    let config = format!("outside_watch = {:?}\n{}", outside.url(), options().config);
    let s = Scene::with(backstop::rehearse::fleet::FleetOptions { config, ..options() }).await;
    let two = 2 * s.fleet.machines().len();
    assert!(outside.control().wait_for(two, BOUND).await, "{}", s.me.agent_log());
}

/// `backstop alert test` of whoever has no agent.
fn alert_test(config: &std::path::Path) -> (Option<i32>, Output) {
    let ended = Command::new(PROGRAM)
        .arg("--config")
        .arg(config)
        .args(["alert", "test"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    (ended.status.code(), ended)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_test_without_an_agent_is_sent_from_the_config_itself_and_says_so() {
    let (dir, hook) = (tempfile::tempdir().unwrap(), receiver().await);
    let file = dir.path().join("backstop.toml");
    let text = format!(
        "fleet = \"f\"\noutside_watch = \"none\"\n[[target_group]]\narn = {:?}\n[pager.webhook]\nurl = {:?}\n\
         [record]\nstore = \"file\"\nsingle_host = true\npath = \"/nowhere\"\n[paths]\nruntime_dir = {:?}\n",
        crate::fakes::GROUPS[0],
        hook.url(),
        dir.path().display().to_string(),
    );
    std::fs::File::create(&file).unwrap().write_all(text.as_bytes()).unwrap();
    let control = hook.control();
    let ask = |file: std::path::PathBuf| tokio::task::spawn_blocking(move || alert_test(&file));

    let (code, said) = ask(file.clone()).await.unwrap();
    let (out, err) = (String::from_utf8_lossy(&said.stdout), String::from_utf8_lossy(&said.stderr));
    assert_eq!(code, Some(i32::from(Exit::Done.code())), "{out}{err}");
    assert!(err.contains("the agent is not running") && out.contains("webhook") && out.contains("ok"), "{out}{err}");
    let events: Vec<_> = control.received().iter().map(|r| r.body["event"].clone()).collect();
    assert_eq!(events, ["test", "resolve"]);

    control.answer_always(Reply::Status(403));
    let (code, said) = ask(file.clone()).await.unwrap();
    let out = String::from_utf8_lossy(&said.stdout);
    assert_eq!(code, Some(i32::from(Exit::Unreachable.code())), "{out}");
    assert!(out.contains("FAILED") && out.contains("403"), "{out}");

    // Without a config that can be used nobody knows whom to ask.
    std::fs::File::create(&file).unwrap().write_all(b"fleet = [").unwrap();
    let (code, said) = ask(file).await.unwrap();
    let err = String::from_utf8_lossy(&said.stderr);
    assert_eq!(code, Some(i32::from(Exit::NoAgent.code())), "{err}");
}
