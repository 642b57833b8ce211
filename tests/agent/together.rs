//! Several agents in one world: what all of them see is told once, and nobody acts on what one node cannot mend.

use crate::fakes::{Fake, Scale, name};
use crate::running::Running;
use backstop::alerts::Rendered;
use std::collections::BTreeMap;

/// Agents on so many nodes, each with a disk of its own, in a fleet at rest.
pub async fn at_rest(nodes: usize, top: &str) -> Vec<Running> {
    let world = Fake::first_of(Scale { nodes, groups: 1, drains_end: true });
    let mut agents = Vec::new();
    for n in 1..=nodes {
        agents.push(Running::start_with(&world.beside(n), top).await);
    }
    // Beyond the grace that a new member is given.
    minutes(&agents, 12).await;
    assert_eq!(triggers(&world), BTreeMap::new(), "a fleet at rest");
    agents
}

/// Time for all of them.
pub async fn minutes(agents: &[Running], minutes: u64) {
    for _ in 0..minutes * 12 {
        for agent in agents {
            agent.seconds(0).await;
        }
        agents[0].fake.clock.advance(5_000);
    }
    for agent in agents {
        agent.seconds(0).await;
    }
}

/// Time for all of them, until something has come.
pub async fn comes(agents: &[Running], what: &str, at_most: u64, done: impl Fn() -> bool) {
    for _ in 0..at_most * 12 {
        for agent in agents {
            agent.seconds(0).await;
        }
        if done() {
            return;
        }
        agents[0].fake.clock.advance(5_000);
    }
    let told: Vec<_> = agents[0].fake.told().iter().map(|p| format!("{} {} by {}", p.event, p.key, p.node)).collect();
    let firing: Vec<_> = agents.iter().map(Running::firing).collect();
    panic!("not within {at_most} minutes: {what}; told {told:?}, firing {firing:?}");
}

/// Pages that were accepted, by key: who sent them, in order.
pub fn triggers(world: &Fake) -> BTreeMap<String, Vec<String>> {
    of(world, "trigger")
}

fn of(world: &Fake, event: &str) -> BTreeMap<String, Vec<String>> {
    let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for p in world.told().into_iter().filter(|p: &Rendered| p.event == event) {
        by_key.entry(p.key).or_default().push(p.node);
    }
    by_key
}

/// Every agent finds it in its own time: the lists of targets at every look, the cluster's at every second one.
#[tokio::test]
async fn what_three_agents_see_alike_reaches_a_webhook_once_and_ends_there_once() {
    let agents = at_rest(3, "").await;
    let world = agents[0].fake.clone();
    let (foreign, stranger) = ("test/foreign-target/es-clients i-foreign:9200", "test/node-without-agent/es-client-9");
    for round in 1..=3 {
        let before = world.told().len();
        world.foreign_target(true);
        world.stranger(Some(9));
        comes(&agents, "each knows both", 15, || {
            agents.iter().all(|a| a.firing().contains(foreign) && a.firing().contains(stranger))
        })
        .await;
        // Far beyond the time that the others hold back.
        minutes(&agents, 10).await;
        world.foreign_target(false);
        world.stranger(None);
        comes(&agents, "nobody has it any more", 20, || agents.iter().all(|a| a.firing().is_empty())).await;
        minutes(&agents, 10).await;
        let told: Vec<_> =
            world.told()[before..].iter().map(|p| (p.key.clone(), p.event.clone(), p.node.clone())).collect();
        for key in [foreign, stranger] {
            let of_it: Vec<_> =
                told.iter().filter(|(k, ..)| k == key).map(|(_, e, n)| (e.as_str(), n.as_str())).collect();
            assert_eq!(of_it, [("trigger", "es-client-1"), ("resolve", "es-client-1")], "round {round}: {told:?}");
        }
        assert_eq!(told.len(), 4, "round {round}: {told:?}");
    }
}

#[tokio::test]
async fn whoever_should_have_told_it_and_is_gone_is_stood_in_for_by_one() {
    let mut agents = at_rest(3, "").await;
    let world = agents[0].fake.clone();
    let key = "test/foreign-target/es-clients i-foreign:9200";
    world.foreign_target(true);
    minutes(&agents, 9).await;
    assert_eq!(triggers(&world), BTreeMap::new(), "a new target is given ten minutes");
    // Its process ends; its document stays, and for a while the others take it for alive.
    agents.remove(0).kill();
    comes(&agents, "a page", 15, || triggers(&world).contains_key(key)).await;
    minutes(&agents, 15).await;
    assert_eq!(triggers(&world).get(key), Some(&vec![name(2)]), "one of the two that are left, once");
    assert_eq!(triggers(&world).get("test/agent-silent/es-client-1"), Some(&vec![name(2)]));
}

#[tokio::test]
async fn a_fleet_whose_targets_all_fail_at_once_is_one_page_and_nobody_changes_a_registration() {
    let agents = at_rest(3, "").await;
    let world = agents[0].fake.clone();
    world.all_fail(true);
    comes(&agents, "a page", 1, || !triggers(&world).is_empty()).await;
    // Far beyond the time of self-heal.
    minutes(&agents, 30).await;
    let told = triggers(&world);
    assert!(told.keys().all(|k| k == "test/below-floor/test" || k == "test/unhealthy/test"), "{told:?}");
    assert!(told.values().all(|by| *by == [name(1)]), "each once: {told:?}");
    let text = world.all_pages().into_iter().map(|p| p.text).collect::<Vec<_>>().join("\n");
    assert!(text.contains("fails the load balancer's checks at once"), "{text}");
    assert_eq!(world.balancer_writes(), 0);
    assert!(agents.iter().all(|a| a.shared.node.borrow().durable.heals_ms.is_empty() && a.stage().is_none()));
    world.all_fail(false);
    comes(&agents, "its end", 10, || agents.iter().all(|a| a.firing().is_empty())).await;
    assert_eq!(of(&world, "resolve").keys().collect::<Vec<_>>(), told.keys().collect::<Vec<_>>());
    assert_eq!(world.balancer_writes(), 0);
}
