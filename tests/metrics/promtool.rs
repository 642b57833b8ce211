//! What Prometheus's own tool says: of the rules, of their tests, and of a scrape of a real agent. Needs `promtool`; `.ci/run`
//! runs this.

use crate::agents::{options, scrape};
use backstop::rehearse::fleet::Fleet;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn said(done: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
}

fn promtool(args: &[&str], input: &str) -> Output {
    let mut tool = Command::new("promtool")
        .args(args)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is in PATH: apt-get install prometheus");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    tool.wait_with_output().unwrap()
}

#[test]
#[ignore = "needs promtool"]
fn the_rules_are_rules_and_their_tests_pass() {
    for args in
        [["check", "rules", "config/prometheus/rules.yml"], ["test", "rules", "config/prometheus/rules_test.yml"]]
    {
        let done = promtool(&args, "");
        assert!(done.status.success() && said(&done).contains("SUCCESS"), "{}", said(&done));
    }
}

#[tokio::test]
#[ignore = "needs promtool"]
async fn a_scrape_of_a_real_agent_has_nothing_to_complain_about() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let ready = |e: &crate::exposition::Exposition| e.value("backstop_members_in_service") == Some(2.0);
    let (text, _) = scrape(fleet.machine(0).unwrap(), "in service", ready).await;
    let done = promtool(&["check", "metrics"], &text);
    assert!(done.status.success() && said(&done).is_empty(), "{}\n{text}", said(&done));
    let wrong = promtool(&["check", "metrics"], &text.replace("# HELP backstop_members Members", "# Members"));
    assert!(!wrong.status.success() || !said(&wrong).is_empty(), "the tool does look");
}
