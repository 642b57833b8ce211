//! `backstop rehearse --cluster`, as a person types it.

use crate::support::BOUND;
use crate::support::PROGRAM;
use crate::support::engine::{Engine, preferred};
use crate::support::relay::Behind;
use backstop::elasticsearch::NodeChecker;
use backstop::ports::ClusterNodes as _;
use backstop::rehearse::pace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::process::{Output, Stdio};
use tokio::process::Command;

fn rehearse(args: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("rehearse").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.kill_on_drop(true);
    command
}

async fn output(args: &[&str]) -> Output {
    pace::within(BOUND, rehearse(args).output()).await.expect("in time").unwrap()
}

/// Settings of the cluster and names of all its indices, hidden ones too.
async fn inside(engine: &Engine) -> (Value, Vec<String>) {
    let server = Behind::Server(engine.address("m1"));
    let settings = server.ask("GET", "/_cluster/settings", None).await;
    let indices = server.ask("GET", "/_settings?expand_wildcards=all", None).await;
    assert_eq!((settings.status, indices.status), (200, 200));
    let indices: serde_json::Map<String, Value> = serde_json::from_slice(&indices.body).unwrap();
    (serde_json::from_slice(&settings.body).unwrap(), indices.keys().cloned().collect())
}

/// Ends a rehearsal once it has an index; no process of it is left.
async fn ended_in_the_middle(engine: &Engine, signal: Signal) {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("kept").to_string_lossy().into_owned();
    let rehearsal = rehearse(&["--cluster", &engine.url("m1"), "--keep", &dir]).spawn().unwrap();
    let pid = i32::try_from(rehearsal.id().unwrap()).ok().and_then(Pid::from_raw).unwrap();
    let begun = pace::within(BOUND, async { while inside(engine).await.1.len() < 2 {} });
    assert!(begun.await.is_some(), "it makes no index");
    assert!(processes_of(&dir) >= 4, "itself and an agent for each node");
    kill_process(pid, signal).unwrap();
    pace::within(BOUND, rehearsal.wait_with_output()).await.expect("in time").unwrap();
    assert!(pace::until(BOUND, || processes_of(&dir) == 0).await, "{signal:?}: {}", processes_of(&dir));
}

/// How many processes have this directory in their command line.
fn processes_of(dir: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|e| std::fs::read(e.path().join("cmdline")).is_ok_and(|l| String::from_utf8_lossy(&l).contains(dir)))
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_rehearsal_on_a_real_cluster_patches_its_client_nodes_and_leaves_nothing_in_it() {
    let engine = Engine::cluster(preferred("elasticsearch8"), 3);
    let server = Behind::Server(engine.address("m1"));
    assert_eq!(server.ask("PUT", "/somebodys", None).await.status, 200);
    let before = inside(&engine).await;
    let url = engine.url("m1");
    let pids = || ["c1", "c2", "c3"].map(|name| engine.pid(name));
    let processes = pids();

    let played = output(&["--cluster", &url, "--json"]).await;
    let said = String::from_utf8_lossy(&played.stdout).into_owned();
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}: {said}"));
    assert!(played.status.success(), "{report:#}");
    let promises = report["promises"].as_array().unwrap();
    let kept = |what: &str| promises.iter().any(|p| p["promise"] == what && p["kept"] == true);
    for promise in ["all three runs succeed", "no request failed", "the cluster is left without the rehearsal's index"]
    {
        assert!(kept(promise), "{promise}: {promises:#?}");
    }
    assert!(!promises.iter().any(|p| p["promise"].as_str().unwrap().contains("restarted")), "nothing was restarted");
    let events = report["timeline"]["events"].as_array().unwrap();
    for name in ["c1", "c2", "c3"] {
        let told = |words: &str| {
            events.iter().any(|e| e["node"] == name && e["text"].as_str().is_some_and(|text| text.contains(words)))
        };
        assert!(told("without a restart") && told("leaves the load balancer") && told("done, back"), "{events:#?}");
    }
    assert_eq!((inside(&engine).await, pids()), (before.clone(), processes));

    for signal in [Signal::INT, Signal::KILL] {
        ended_in_the_middle(&engine, signal).await;
        if signal == Signal::KILL {
            // Nobody was left to remove it.
            let left = inside(&engine).await.1;
            let left = left.iter().find(|name| name.starts_with("backstop-rehearsal-")).expect("its index");
            assert_eq!(server.ask("DELETE", &format!("/{left}"), None).await.status, 200);
        }
        assert_eq!(inside(&engine).await, before, "{signal:?}");
    }

    // Two are no fleet.
    engine.stop("c3");
    let checker = NodeChecker::new();
    let asked = crate::nodes::asked(&url, crate::PATIENT_MS);
    let noticed =
        pace::within(BOUND, async { while checker.client_nodes(&asked).await.map_or(3, |all| all.len()) != 2 {} });
    assert!(noticed.await.is_some(), "the cluster notices");
    let few = output(&["--cluster", &url]).await;
    let why = String::from_utf8_lossy(&few.stderr).into_owned();
    assert!(!few.status.success());
    for words in ["2 coordinating-only", "c1 at ", "c2 at ", "needs 3"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    assert_eq!(inside(&engine).await, before);
}

#[tokio::test]
async fn a_rehearsal_talks_to_no_other_machine_and_only_one_scenario_to_a_cluster() {
    let group = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/x/0123456789abcdef";
    for (args, says) in [
        (&["--cluster", "http://192.0.2.1:9200"][..], "plain http on this machine"),
        (&["--cluster", "https://127.0.0.1:9200"], "plain http on this machine"),
        (&["--endpoint", "http://192.0.2.1:5000", "--group", group], "plain http on this machine"),
        (&["drift", "--cluster", "http://127.0.0.1:9200"], "patch-all"),
    ] {
        let refused = output(args).await;
        let why = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{args:?}: {why}");
        assert!(why.contains(says), "{args:?}: {why}");
    }
}
