//! A real client node that is patched, and one that its patch has killed.

use crate::support::BOUND;
use crate::support::engine::{flavors, preferred};
use crate::world::{Plan, World};
use backstop::control::protocol::{ClearRequest, Status};
use backstop::core::exit::Exit;
use backstop::rehearse::pace;
use std::collections::BTreeSet;

/// The search server itself is stopped and started by each job; all three are asked for at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn every_node_of_a_real_cluster_is_patched_with_a_restart_and_comes_back() {
    for flavor in flavors() {
        let mut w = World::start(flavor, Plan::ONE).await;
        let traffic = w.fleet.start_traffic(50, 1_000);
        let pids = |w: &World| ["c1", "c2", "c3"].map(|name| w.engine.pid(name));
        let before = pids(&w);
        let [one, two, three] = [0, 1, 2].map(|i| w.machine(i));
        let [first, second, third] = ["c1", "c2", "c3"].map(|name| w.engine.restart_command(name));
        let outcomes = tokio::join!(w.patched(&one, &first), w.patched(&two, &second), w.patched(&three, &third));
        for (outcome, machine) in [(outcomes.0, &one), (outcomes.1, &two), (outcomes.2, &three)] {
            let (name, log) = (machine.name(), machine.agent_log());
            assert_eq!(outcome.exit, 0, "{flavor} {name}: {}\n{log}", outcome.message);
        }
        let after = pids(&w);
        assert!(before.iter().all(|pid| !after.contains(pid)), "{flavor}: {before:?} {after:?}");
        w.all_is_well("patched").await;
        let totals = traffic.totals();
        assert!(totals.ok > 0 && totals.failed() == 0, "{flavor}: {totals:?}");
        // In compressed time a beat that a busy machine writes late is a silent agent.
        let mut told = w.fleet.receiver().accepted();
        told.retain(|page| page.body["kind"] != "agent-silent");
        assert_eq!(told, [], "{flavor}: nobody was paged about the patching");
    }
}

/// Its own endpoint of the record is gone with it: the latch, the page and the refusals do not need it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_node_that_stays_dead_is_latched_through_the_others_and_they_refuse_to_run() {
    let plan = Plan { check: "5m", ..Plan::ONE };
    let w = World::start(preferred("elasticsearch8"), plan).await;
    let [one, two, three] = [0, 1, 2].map(|i| w.machine(i));
    let (exit, said) = w.typed(&one, &w.engine.deed("kill", "c1")).await;
    assert_eq!(exit, i32::from(Exit::FailedOut.code()), "{said}\n{}", one.agent_log());

    // It is still dead: what is written now is written through the others. Until then its slot blocks them.
    let latched = |s: &Status| s.record.as_ref().is_some_and(|r| r.open_latches().count() == 1);
    two.wait_status(BOUND, latched).await.unwrap_or_else(|e| panic!("{e}\n{}", one.agent_log()));
    let record = w.record().await;
    let latches: Vec<_> = record.open_latches().map(|(id, l)| (id.to_string(), l.clone())).collect();
    let [(id, latch)] = &latches[..] else { panic!("{record:?}") };
    assert_eq!((latch.node.as_str(), &*latch.stage), ("c1", "check"));
    assert!(!w.fleet.serves(&one));
    for machine in [&two, &three] {
        let (exit, said) = w.typed(machine, "true").await;
        assert_eq!(exit, i32::from(Exit::Latched.code()), "{}: {said}", machine.name());
        assert!(said.contains(&format!("latch clear {id}")) && said.contains("c1") && said.contains("check"), "{said}");
        assert!(w.fleet.serves(machine));
    }
    let key = |p: &backstop::rehearse::receiver::Received| p.body["key"].to_string();
    let latched = || {
        let told = w.fleet.receiver().accepted();
        told.iter().filter(|p| p.body["kind"] == "latched").map(key).collect::<BTreeSet<_>>()
    };
    assert!(pace::until(BOUND, || !latched().is_empty()).await, "{:?}", w.fleet.receiver().received());

    // It lives again: it comes back by itself, and the latch stays until a person clears it.
    w.engine.start_client("c1");
    w.until(&one, "it comes back by itself", || w.fleet.serves(&one)).await;
    one.wait_idle(BOUND).await.unwrap();
    assert_eq!(w.refused(&two).await.0, Exit::Latched.code());
    assert_eq!(latched().len(), 1, "one page, whoever told of it");
    let clear = ClearRequest { latch: id.clone(), reason: "the node was started".to_owned(), unresolved: false };
    one.wait_sees(3, BOUND).await.unwrap();
    let cleared = one.client().latch_clear(&clear).await.unwrap();
    assert_eq!(cleared.exit, 0, "{}", cleared.message);
    w.all_is_well("cleared").await;
    assert_eq!(w.patched(&two, "true").await.exit, 0);
}
