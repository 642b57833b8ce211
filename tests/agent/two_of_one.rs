//! Two agents that say that they are the same instance: a machine was copied with its state, or its config was.

use crate::fakes::{Fake, Scale};
use crate::running::Running;
use std::collections::BTreeSet;

/// Time for all of them, each by the clock of its machine.
async fn seconds(agents: &[Running], clocks: &[&Fake], seconds: u64) {
    for _ in 0..seconds / 5 {
        for agent in agents {
            agent.seconds(0).await;
        }
        clocks.iter().for_each(|f| f.clock.advance(5_000));
    }
}

fn told(world: &Fake, event: &str) -> Vec<String> {
    let of = |p: &backstop::alerts::Rendered| p.kind == "two-with-one-identity" && p.event == event;
    world.told().into_iter().filter(of).map(|p| p.key).collect()
}

/// A copy under the same node name, and one that says its own host's.
#[tokio::test]
async fn two_agents_with_one_identity_are_one_page_whatever_they_call_their_node_and_its_end_once_one_is_gone() {
    for called in [3, 4] {
        let world = Fake::first_of(Scale { nodes: 3, groups: 1, drains_end: true });
        let copy = world.elsewhere(3, "boot-of-the-copy").called(called);
        let mut agents = Vec::new();
        for n in 1..=3 {
            agents.push(Running::start(&world.beside(n)).await);
        }
        let clocks = [&world, &copy];
        seconds(&agents, &clocks, 720).await;
        assert_eq!(told(&world, "trigger"), Vec::<String>::new());
        agents.push(Running::start(&copy).await);
        seconds(&agents, &clocks, 900).await;
        let keys: BTreeSet<String> = told(&world, "trigger").into_iter().collect();
        assert_eq!(keys.len(), 1, "one alert: {keys:?}");
        let by: Vec<_> = world.told().into_iter().filter(|p| p.kind == "two-with-one-identity").map(|p| p.id).collect();
        assert_eq!(told(&world, "trigger").len(), 1, "and one page: {by:#?}");
        assert_eq!(told(&world, "resolve"), Vec::<String>::new(), "it does not come and go");
        agents.pop().unwrap().kill();
        seconds(&agents, &clocks, 1_200).await;
        assert_eq!(told(&world, "trigger").len(), 1);
        // Who sees it end some minutes after its teller has closed it, and had gone on with it, closes it too: an end that
        // is told twice harms nobody, one that nobody tells does.
        let ends = told(&world, "resolve");
        assert!((1..=agents.len()).contains(&ends.len()), "each that lives tells its end once at most: {ends:?}");
        assert_eq!(ends.into_iter().collect::<BTreeSet<_>>(), keys, "under the key of its beginning");
        assert_eq!(world.balancer_writes(), 0);
    }
}
