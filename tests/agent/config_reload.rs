//! A config file that cannot be used: what the real agent does with it at its first start, at a later start, and when it
//! is asked to read it again.

use crate::scene::{After, BOUND, PROGRAM, Scene, options};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::rehearse::fleet::patch_request;
use rustix::process::Signal;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// A misspelled key, and a number that is none of the allowed ones.
fn bad() -> String {
    format!("minimum_helthy = 2\nmax_unavailable = 0\n{}", options().config)
}

#[test]
fn an_agent_that_never_had_a_good_config_tells_all_problems_and_exits_2() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("backstop.toml");
    let texts: [(&[u8], &[&str]); 4] = [
        (
            b"fleet = \"f\"\nminimum_helthy = 3\n[[target_group]]\narn = \"arn:aws:nothing\"\n[check]\nover = \"15 parsecs\"\n\
              [deadlines]\npatch = \"0s\"\n[pager.webhook]\nurl = \"http://127.0.0.1:9/\"\n",
            &[":2: minimum_helthy", "minimum_healthy", ":4: ", "arn", ":6: ", "check.over", ":8: ", "deadlines.patch"],
        ),
        (b"", &["fleet", "target_group", "pager"]),
        (b"fleet = [", &[":1:"]),
        (b"\xff\xfe\x00", &["backstop.toml"]),
    ];
    for (text, says) in texts {
        std::fs::File::create(&file).unwrap().write_all(text).unwrap();
        let state = dir.path().join("state");
        let ended = Command::new(PROGRAM)
            .args(["agent", "--config"])
            .arg(&file)
            .arg("--state-dir")
            .arg(&state)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        for part in says {
            assert!(said.contains(part), "{part} is missing in:\n{said}");
        }
        assert!(!state.exists(), "nothing was made");
    }
}

/// The whole of it: `status`, page, refusal; and a good file puts an end to it without a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_at_a_later_start_starts_no_cycle_and_says_why() {
    let mut s = Scene::start().await;
    s.terminate().await;
    s.me.configure(&bad());
    s.restart();
    let status = s.me.wait_status(BOUND, |s| s.config_problem.is_some()).await.unwrap();
    let problem = status.config_problem.unwrap();
    assert!(problem.contains("minimum_helthy") && problem.contains("max_unavailable"), "{problem}");
    assert_eq!(status.next.as_deref(), Some("backstop config check"));
    assert_eq!(status.minimum_healthy, 2, "the last good config is in force");
    s.me.wait_sees(2, BOUND).await.unwrap();

    assert!(s.fleet.receiver().wait_for_accepted(1, BOUND).await);
    let page = &s.fleet.receiver().accepted()[0].body;
    assert_eq!(
        (page["kind"].as_str(), page["severity"].as_str()),
        (Some("config-unusable"), Some("critical")),
        "{page}"
    );
    assert!(page["text"].as_str().unwrap().contains("minimum_helthy"), "{page}");

    let reply = s.me.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap();
    let RunReply::Refused { exit, message, next, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, Exit::Paused.code(), "{message}");
    assert!(message.contains("config") && message.contains("max_unavailable"), "{message}");
    assert_eq!(next.as_deref(), Some("backstop config check"));
    s.never_left();

    s.me.configure(&options().config);
    s.me.write_config().unwrap();
    s.me.signal_agent(Signal::HUP);
    s.me.wait_status(BOUND, |s| s.config_problem.is_none()).await.unwrap();
    s.run(RebootPolicy::Never).await;
    s.let_job_end(0).await;
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_at_a_later_start_does_not_end_a_way_back() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s.me.kill_node().await;
    s.let_job_end(0).await;
    s.tries_in_vain(StageName::Check, "").await;
    s.kill().await;
    s.me.configure(&bad());
    s.me.start_node().unwrap();
    s.restart();
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
    assert_eq!(s.fleet.receiver().accepted()[0].body["kind"], "config-unusable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_a_bad_file_keeps_the_old_config_and_says_so_and_a_good_one_takes_effect() {
    let mut s = Scene::start().await;
    s.me.configure(&bad());
    s.me.write_config().unwrap();
    s.me.signal_agent(Signal::HUP);
    let told = |warnings: &[String]| warnings.iter().any(|w| w.contains("reload") && w.contains("minimum_helthy"));
    let status = s.me.wait_status(BOUND, |s| told(&s.warnings)).await.unwrap();
    assert_eq!((status.minimum_healthy, status.config_problem), (2, None), "the old one is in force");
    assert!(s.fleet.receiver().wait_for_accepted(1, BOUND).await);
    let page = &s.fleet.receiver().accepted()[0].body;
    assert_eq!(
        (page["kind"].as_str(), page["severity"].as_str()),
        (Some("config-unusable"), Some("warning")),
        "{page}"
    );

    // And with the old one cycles go on.
    s.run(RebootPolicy::Never).await;
    s.let_job_end(0).await;
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;

    s.me.configure(&format!("minimum_healthy = 1\n{}", options().config));
    s.me.write_config().unwrap();
    s.me.signal_agent(Signal::HUP);
    let status = s.me.wait_status(BOUND, |s| s.minimum_healthy == 1).await.unwrap();
    assert!(!told(&status.warnings), "{:?}", status.warnings);

    // What needs a restart says so and changes nothing.
    s.me.configure(&format!("fleet = \"another\"\nminimum_healthy = 2\n{}", options().config));
    s.me.write_config().unwrap();
    s.me.signal_agent(Signal::HUP);
    let restart = |warnings: &[String]| warnings.iter().any(|w| w.contains("restart it"));
    let status = s.me.wait_status(BOUND, |s| restart(&s.warnings)).await.unwrap();
    assert_eq!((status.fleet.as_str(), status.minimum_healthy), ("rehearsal", 1));
}
