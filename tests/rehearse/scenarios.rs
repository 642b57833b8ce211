//! Every scenario through the product's own verb: exit 0, and the figures that matter.

use super::PROGRAM;
use backstop::rehearse::pace;
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Longest real time of one scenario.
const SCENARIO: Duration = Duration::from_secs(120);

async fn rehearse(args: &[&str]) -> Value {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.arg("rehearse").args(args).arg("--json").stdin(Stdio::null()).kill_on_drop(true);
    let output = pace::within(SCENARIO, command.output()).await.expect("in time").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value = serde_json::from_str(&text).unwrap_or_else(|e| {
        panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    });
    let broken: Vec<&Value> =
        report["promises"].as_array().unwrap().iter().filter(|p| p["kept"] != Value::Bool(true)).collect();
    let story = report["timeline"]["events"].as_array().unwrap().iter();
    let story: Vec<String> = story.map(|e| format!("{} {} {}", e["at_ms"], e["node"], e["text"])).collect();
    assert!(broken.is_empty() && output.status.success(), "{broken:#?}\n{}\n{}", report["runs"], story.join("\n"));
    report
}

fn exits(report: &Value) -> Vec<u64> {
    report["runs"].as_array().unwrap().iter().map(|r| r["exit"].as_u64().unwrap()).collect()
}

/// failed requests, lowest number in service, pages
fn figures(report: &Value) -> (u64, u64, u64) {
    let summary = &report["timeline"]["summary"];
    let of = |key: &str| summary[key].as_u64().unwrap();
    assert!(of("requests_ok") > 500, "{summary}");
    (of("requests_failed"), of("lowest_in_service"), of("pages"))
}

#[tokio::test]
async fn three_nodes_are_patched_without_a_failed_request() {
    let temp = tempfile::tempdir().unwrap();
    let svg = temp.path().join("picture.svg");
    let report = rehearse(&["--svg", &svg.to_string_lossy()]).await;
    assert_eq!((exits(&report), figures(&report)), (vec![0, 0, 0], (0, 2, 0)));
    assert!(report["wall_ms"].as_u64().unwrap() < 90_000, "{}", report["wall_ms"]);
    assert!(std::fs::read_to_string(svg).unwrap().starts_with("<svg"));
}

#[tokio::test]
async fn failures_of_an_unknown_shape_keep_no_node_out() {
    let report = rehearse(&["incident", "--seed", "1"]).await;
    assert_eq!((exits(&report), figures(&report)), (vec![0, 0, 0], (0, 2, 0)));
}

#[tokio::test]
async fn a_failure_that_outlasts_the_check_pages_once_latches_and_the_node_comes_back_by_itself() {
    let report = rehearse(&["incident", "--stuck", "--seed", "2"]).await;
    assert_eq!((exits(&report), figures(&report)), (vec![102, 100, 100], (0, 2, 1)));
}

#[tokio::test]
async fn the_automation_of_the_incident_empties_the_load_balancer_with_the_same_faults() {
    let report = rehearse(&["incident", "--without-backstop", "--seed", "1"]).await;
    let (failed, lowest, pages) = figures(&report);
    assert_eq!((exits(&report), lowest, pages), (vec![1, 1, 1], 0, 0));
    assert!(failed > 100, "{failed}");
}

#[tokio::test]
async fn every_node_is_back_after_its_agent_was_killed() {
    let report = rehearse(&["crash", "--cycles", "5", "--seed", "4"]).await;
    let (failed, lowest, _) = figures(&report);
    assert_eq!((failed, lowest), (0, 2));
    assert_eq!(report["kills"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn an_option_of_another_scenario_is_a_usage_error() {
    let mut command = tokio::process::Command::new(PROGRAM);
    let output = command.args(["rehearse", "crash", "--stuck"]).output().await.unwrap();
    assert_eq!(output.status.code(), Some(2));
}
