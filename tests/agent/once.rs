//! `reconcile --once`, as cron and monitoring systems run it: a process of its own beside a fleet of real ones.

use crate::scene::{BOUND, PROGRAM, Scene, options};
use backstop::core::job::RebootPolicy;
use backstop::rehearse::elbv2::{Fault, Trouble};
use backstop::rehearse::fleet::{Fleet, FleetOptions, Machine};
use serde_json::Value;

struct Said {
    exit: i32,
    text: String,
}

/// One tick with this machine's config, whose looks are so far apart as usual.
async fn tick(machine: &Machine, more: &[&str]) -> Said {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.arg("--config").arg(machine.config_file()).args(["reconcile", "--once"]).args(more).kill_on_drop(true);
    command
        .env("AWS_ACCESS_KEY_ID", "any")
        .env("AWS_SECRET_ACCESS_KEY", "any")
        .env("AWS_EC2_METADATA_DISABLED", "true");
    let output = tokio::time::timeout(BOUND, command.output()).await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exit = output.status.code().unwrap();
    assert!(exit < 2 || !text.is_empty() || exit == 2, "{}", String::from_utf8_lossy(&output.stderr));
    Said { exit, text }
}

/// Exit code and `kind/subject` of each finding.
async fn found(machine: &Machine) -> (i32, Vec<String>) {
    let said = tick(machine, &["--json"]).await;
    let json: Value = serde_json::from_str(&said.text).unwrap();
    assert_eq!(json["exit"], said.exit, "{json:#}");
    let about = |f: &Value| format!("{}/{}", f["kind"].as_str().unwrap(), f["subject"].as_str().unwrap());
    (said.exit, json["findings"].as_array().unwrap().iter().map(about).collect())
}

fn kinds(found: &[String]) -> Vec<&str> {
    found.iter().map(|about| about.split('/').next().unwrap()).collect()
}

/// Three nodes in service, whose agents have said who they are and have ended.
async fn without_agents() -> Fleet {
    let fleet = Fleet::start(FleetOptions { nodes: 3, ..options() }).await.unwrap();
    for machine in fleet.machines() {
        machine.wait_sees(3, BOUND).await.unwrap();
    }
    for machine in fleet.machines() {
        machine.terminate_agent().await;
    }
    fleet.elbv2().clear_calls();
    fleet
}

#[tokio::test]
async fn one_tick_without_any_agent_tells_what_is_wrong_and_changes_nothing() {
    let fleet = without_agents().await;
    let (me, other) = (fleet.machine(0).unwrap(), fleet.machine(1).unwrap());
    let arn = &fleet.groups()[0];
    let settled = tick(me, &[]).await;
    assert_eq!(settled.exit, 0, "{}", settled.text);
    assert!(
        settled.text.contains("3 of 3 in service") && settled.text.contains("nothing is wrong"),
        "{}",
        settled.text
    );

    assert!(fleet.elbv2().register_behind_back(arn, "i-00000000000000fff", 9_200));
    assert_eq!(found(me).await, (15, vec![format!("foreign-target/es-clients i-00000000000000fff:9200")]));
    assert!(fleet.elbv2().deregister_behind_back(arn, "i-00000000000000fff", 9_200));

    assert!(fleet.elbv2().deregister_behind_back(arn, other.instance(), other.address().port()));
    let (exit, one_out) = found(me).await;
    assert_eq!((exit, kinds(&one_out)), (11, vec!["below-minimum", "running-not-registered"]), "{one_out:?}");
    assert!(one_out[1].ends_with(other.name()), "{one_out:?}");
    let plugin = tick(me, &["--nagios"]).await;
    assert_eq!(plugin.exit, 2, "{}", plugin.text);
    let first = plugin.text.lines().next().unwrap();
    assert!(
        first.starts_with("BACKSTOP CRITICAL - ") && first.contains(" | in_service=2;3:;2:;0 findings=2"),
        "{first}"
    );

    assert!(fleet.elbv2().empty_group(arn));
    let (exit, emptied) = found(me).await;
    assert_eq!((exit, kinds(&emptied)[0]), (11, "below-floor"), "{emptied:?}");
    assert_eq!(fleet.elbv2().writes(), 0, "{:?}", fleet.elbv2().calls());
}

#[tokio::test]
async fn one_tick_that_cannot_see_says_so_and_never_that_all_is_well() {
    let fleet = without_agents().await;
    let me = fleet.machine(0).unwrap();
    fleet.elbv2().inject(Fault::always(Trouble::Html(503)));
    let (exit, blind) = found(me).await;
    assert_eq!((exit, kinds(&blind)), (13, vec!["blind"]), "{blind:?}");
    assert!(blind[0].ends_with(": load balancer es-clients"), "{blind:?}");
    let plugin = tick(me, &["--nagios"]).await;
    assert_eq!((plugin.exit, plugin.text.starts_with("BACKSTOP UNKNOWN - ")), (3, true), "{}", plugin.text);
    fleet.elbv2().clear_faults();
    assert_eq!(found(me).await.0, 0);

    // The own node's word on the cluster is one of four sources.
    me.kill_node().await;
    let (exit, unseen) = found(me).await;
    assert!(exit != 0 && kinds(&unseen).contains(&"blind"), "{unseen:?}");
    assert!(unseen.iter().any(|about| about.ends_with(": cluster nodes")), "{unseen:?}");

    let mut broken = std::fs::File::create(me.config_file()).unwrap();
    std::io::Write::write_all(&mut broken, b"fleet = 7\n").unwrap();
    assert_eq!(tick(me, &[]).await.exit, 2);
    let plugin = tick(me, &["--nagios"]).await;
    assert_eq!((plugin.exit, plugin.text.starts_with("BACKSTOP UNKNOWN - the config")), (3, true), "{}", plugin.text);
}

#[tokio::test]
async fn one_tick_takes_a_cycle_for_planned_and_a_latch_for_the_first_thing_to_know() {
    let mut scene = Scene::with(FleetOptions { nodes: 3, ..options() }).await;
    for machine in scene.fleet.machines() {
        machine.wait_sees(3, BOUND).await.unwrap();
    }
    scene.run(RebootPolicy::Never).await;
    scene.job_waits().await;
    let planned = tick(&scene.me, &[]).await;
    assert_eq!(planned.exit, 0, "{}", planned.text);
    let says = format!("Planned   {} is in cycle {}", scene.me.name(), scene.cycle());
    assert!(planned.text.contains("2 of 3 in service") && planned.text.contains(&says), "{}", planned.text);

    scene.let_job_end(1).await;
    scene.me.wait_ended(scene.cycle(), BOUND).await.unwrap();
    let (exit, latched) = found(&scene.me).await;
    assert_eq!((exit, latched), (100, vec![format!("latched/{}", scene.me.name())]));
}
