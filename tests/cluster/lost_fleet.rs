//! The record of a real fleet is lost behind its agents' backs: they are held, somebody is paged, and what is made in its
//! place carries the latch.

use crate::support::engine::preferred;
use crate::support::relay::Behind;
use crate::support::{BOUND, PROGRAM};
use crate::world::{Plan, World};
use backstop::control::protocol::{ClearRequest, Status};
use backstop::core::exit::Exit;
use backstop::rehearse::elbv2::Action;
use backstop::rehearse::fleet::Machine;
use backstop::rehearse::pace;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Output;

async fn init(machine: &Machine, more: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(PROGRAM);
    command.arg("--config").arg(machine.config_file()).args(["init", "--fleet"]).args(more).kill_on_drop(true);
    pace::within(BOUND, command.output()).await.expect("in time").unwrap()
}

/// What pages have said that an agent cannot see the record, and none that it can again.
fn blind(w: &World) -> BTreeSet<String> {
    let mut open = BTreeSet::new();
    for page in w.fleet.receiver().received().iter().filter(|p| p.accepted && p.body["kind"] == "blind") {
        let key = page.body["key"].as_str().unwrap_or_default().to_owned();
        match page.body["event"].as_str() {
            Some("trigger") if key.contains("fleet record") => open.insert(key),
            Some("resolve") => open.remove(&key),
            _ => false,
        };
    }
    open
}

async fn all_see_the_latch(w: &World) {
    let latched = |s: &Status| s.record.as_ref().is_some_and(|r| r.open_latches().count() == 1);
    for machine in w.fleet.machines() {
        machine.wait_status(BOUND, latched).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_fleet_whose_record_is_lost_is_held_and_paged_until_it_is_made_again_with_its_latch() {
    let w = World::start(preferred("opensearch"), Plan::ONE).await;
    let server = Behind::Server(w.engine.address("m1"));
    let doc = format!("/{}/_doc/record:rehearsal", w.index);
    let older: Value = serde_json::from_slice(&server.ask("GET", &doc, None).await.body).unwrap();
    let older = older["_source"].clone();
    let mut emptied = older.clone();
    emptied["document"] = json!("{}");
    let me = w.machine(0);
    assert_eq!(w.patched(&me, "exit 1").await.exit, Exit::FailedBack.code());
    let latch = w.record().await.open_latches().map(|(id, _)| id.to_string()).next().expect("a latch");
    all_see_the_latch(&w).await;
    w.fleet.elbv2().clear_calls();

    let index = format!("/{}", w.index);
    for (what, method, path, body) in [
        ("deleted", "DELETE", &doc, None),
        ("an old copy", "PUT", &doc, Some(older)),
        ("emptied", "PUT", &doc, Some(emptied)),
        ("deleted with its index", "DELETE", &index, None),
    ] {
        assert_eq!(server.ask(method, path, body.as_ref()).await.status, 200, "{what}");
        let [one, two, three] = [0, 1, 2].map(|i| w.machine(i));
        let said = tokio::join!(w.refused(&one), w.refused(&two), w.refused(&three));
        for (exit, message) in [said.0, said.1, said.2] {
            assert_eq!(exit, Exit::Unreachable.code(), "{what}: {message}");
            assert!(message.contains("fleet-record"), "{what}: {message}");
        }
        w.until(&me, &format!("a page: {what}"), || !blind(&w).is_empty()).await;

        let without = init(&me, &[]).await;
        assert!(!without.status.success(), "{what}: without a reason");
        let made = init(&me, &["--reason", "the record was lost"]).await;
        assert!(made.status.success(), "{what}: {}", String::from_utf8_lossy(&made.stderr));
        let again = w.record().await;
        let latches: Vec<String> = again.open_latches().map(|(id, _)| id.to_string()).collect();
        assert_eq!(latches, [latch.as_str()], "{what}: the latch is back");
        all_see_the_latch(&w).await;
        for machine in w.fleet.machines() {
            assert_eq!(w.refused(machine).await.0, Exit::Latched.code(), "{what}");
        }
        w.until(&me, &format!("the pages are over: {what}"), || blind(&w).is_empty()).await;
    }
    assert_eq!(w.fleet.elbv2().count(Action::DeregisterTargets), 0, "nobody has left");

    let clear = ClearRequest { latch, reason: "the job was mended".to_owned(), unresolved: false };
    me.wait_sees(3, BOUND).await.unwrap();
    assert_eq!(me.client().latch_clear(&clear).await.unwrap().exit, 0);
    assert_eq!(w.patched(&me, "true").await.exit, 0);
    w.all_is_well("made again").await;
}
