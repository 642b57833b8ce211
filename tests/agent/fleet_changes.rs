//! A fleet that grows, shrinks, and has its instances replaced, as people and Auto Scaling groups do it: nobody is paged.

use crate::fakes::{Fake, instance, name};
use crate::running::Running;
use crate::together::{at_rest, comes, minutes, triggers};
use backstop::control::backend::{Backend as _, Caller};
use backstop::control::protocol::RetireRequest;
use backstop::core::ids::InstanceId;
use std::collections::BTreeMap;

fn nobody_paged(world: &Fake, when: &str) {
    assert_eq!(triggers(world), BTreeMap::new(), "{when}");
}

/// A new instance: its node starts, it is registered, and only some minutes later its agent runs.
async fn joins(agents: &mut Vec<Running>, fake: Fake, top: &str) {
    let world = agents[0].fake.clone();
    world.starts(fake.n);
    minutes(agents, 2).await;
    world.is_registered(fake.n, true);
    minutes(agents, 3).await;
    agents.push(Running::start_with(&fake, top).await);
    let seen = |a: &Running| a.shared.observed.borrow().members.as_ref().map(|(m, _)| m.len());
    comes(agents, "everybody knows everybody", 5, || agents.iter().all(|a| seen(a) == Some(agents.len()))).await;
    nobody_paged(&world, &fake.instance());
}

/// A person retires a node on itself; then its agent and its node end.
async fn retires(agents: &mut Vec<Running>, n: usize) {
    let world = agents[0].fake.clone();
    let leaver = agents.iter().find(|a| a.fake.n == n).unwrap();
    let ann = Caller { name: "ann".to_owned(), uid: 0, admin: true };
    let request = RetireRequest { node: name(n), reason: "scale-in".to_owned() };
    let handle = leaver.handle();
    let asked = backstop::agent::supervisor::spawn(async move { handle.retire(ann, request).await });
    comes(agents, "it has left the record", 10, || {
        world.record().retired.contains_key(&InstanceId(instance(n).into())) && !world.members().contains(&instance(n))
    })
    .await;
    assert_eq!(asked.join().await.unwrap().exit, 0);
    ends(agents, n);
    minutes(agents, 12).await;
    nobody_paged(&world, &name(n));
}

/// An Auto Scaling group takes an instance: the metadata says so, it is deregistered, and after a while it is gone.
async fn is_terminated(agents: &mut Vec<Running>, n: usize) {
    let world = agents[0].fake.clone();
    agents.iter().find(|a| a.fake.n == n).unwrap().fake.lifecycle(Some("Terminated"));
    world.is_registered(n, false);
    comes(agents, "it has said goodbye", 3, || !world.members().contains(&instance(n))).await;
    minutes(agents, 2).await;
    ends(agents, n);
    minutes(agents, 12).await;
    nobody_paged(&world, &name(n));
}

fn ends(agents: &mut Vec<Running>, n: usize) {
    let at = agents.iter().position(|a| a.fake.n == n).unwrap();
    let gone = agents.remove(at);
    gone.fake.stops(n);
    gone.kill();
}

#[tokio::test]
async fn a_fleet_that_grows_from_three_to_five_and_shrinks_to_two_pages_nobody() {
    let mut agents = at_rest(3, "").await;
    let world = agents[0].fake.clone();
    for n in [4, 5] {
        joins(&mut agents, world.beside(n), "").await;
    }
    minutes(&agents, 30).await;
    nobody_paged(&world, "five of them");
    // The minimum first, one file after another.
    for agent in &agents {
        agent.reload("minimum_healthy = 2\nminimum_during_patch = 1\n");
        minutes(&agents, 1).await;
    }
    is_terminated(&mut agents, 5).await;
    retires(&mut agents, 1).await;
    retires(&mut agents, 3).await;
    minutes(&agents, 30).await;
    nobody_paged(&world, "two of them");
    assert_eq!(world.members(), [instance(2), instance(4)]);
    assert!(agents.iter().all(|a| a.fake.in_service() && a.firing().is_empty()));
    // And that was no deafness.
    world.serves(4, false);
    comes(&agents, "a page", 2, || triggers(&world).contains_key("test/below-minimum/test")).await;
}

#[tokio::test]
async fn an_instance_that_is_replaced_under_the_same_node_name_pages_nobody() {
    let mut agents = at_rest(3, "minimum_healthy = 2\nminimum_during_patch = 1\n").await;
    let world = agents[0].fake.clone();
    is_terminated(&mut agents, 3).await;
    let new = world.in_place_of(7, 3);
    joins(&mut agents, new.clone(), "minimum_healthy = 2\nminimum_during_patch = 1\n").await;
    minutes(&agents, 30).await;
    nobody_paged(&world, "the new one under the old name");
    assert_eq!(world.members(), [instance(1), instance(2), instance(7)]);
    assert!(agents.iter().all(|a| a.fake.in_service() && a.firing().is_empty()));
    world.serves(7, false);
    comes(&agents, "a page", 2, || {
        let told = triggers(&world);
        told.contains_key("test/running-not-registered/es-client-3")
    })
    .await;
}
