//! What people read: what a status knows, and when; what a page says, and how often.

use crate::fakes::{Fake, Scale, name};
use crate::running::Running;
use crate::scene::{Scene, options};
use backstop::alerts::Rendered;
use backstop::control::backend::Backend;
use backstop::control::protocol::ReasonRequest;
use backstop::core::guard::Guard;
use backstop::rehearse::fleet::FleetOptions;

#[tokio::test(flavor = "multi_thread")]
async fn what_an_agent_has_written_itself_is_in_its_status_before_it_looks_again() {
    // So seldom that no look comes between: every two real seconds.
    let config = format!("{}\n[reconcile]\nevery = \"2m\"\n", options().config);
    let s = Scene::with(FleetOptions { config, ..options() }).await;
    let client = s.me.client();
    let reason = || ReasonRequest { reason: "freeze".to_owned() };
    let paused = async || client.status().await.unwrap().record.unwrap().pause.is_some();
    assert_eq!(client.pause(&reason()).await.unwrap().exit, 0);
    assert!(paused().await, "the pause is there");
    assert_eq!(client.unpause(&reason()).await.unwrap().exit, 0);
    assert!(!paused().await, "and gone again");
    let status = client.status().await.unwrap();
    let own = status.nodes.iter().find(|n| n.own).unwrap();
    assert_eq!((own.registers_as.len(), own.service.as_str()), (1, "in"), "what would be registered by hand is there");
}

#[tokio::test]
async fn status_says_what_a_run_would_meet_as_check_does_without_asking_anybody() {
    let fake = Fake::new();
    fake.talk();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    let handle = r.handle();
    let refuses = || handle.status().would_refuse.map(|v| v.guard);
    assert_eq!(refuses(), None, "a fleet at rest");
    fake.serves(2, false);
    r.seconds(20).await;
    let calls = fake.activity();
    let refused = handle.status().would_refuse.unwrap();
    assert_eq!((refused.guard, refused.exit.code()), (Guard::MinimumHealthy, 11), "{}", refused.sentence);
    assert_eq!(fake.activity(), calls, "from memory");
    let check = handle.check().await;
    assert_eq!(
        check.verdicts.first_refusal().map(|v| (v.guard, v.sentence.clone())),
        Some((refused.guard, refused.sentence))
    );
    let settled = check.verdicts.0.iter().find(|v| v.guard == Guard::PeersSettled).unwrap();
    assert!(settled.sentence.starts_with("es-client-2 (i-00000000000000002) is out"), "{}", settled.sentence);
}

/// Five nodes, all of them needed, and an agent on the first.
async fn of_five() -> Running {
    let fake = Fake::first_of(Scale { nodes: 5, groups: 1, drains_end: true });
    fake.talk();
    // So many looks that none of what is meant to come within a minute comes late.
    let top = "minimum_healthy = 5\nminimum_during_patch = 2\n[reconcile]\nevery = \"5s\"\n";
    let r = Running::start_with(&fake, top).await;
    r.minutes(11).await;
    assert_eq!(r.fake.told(), []);
    r
}

fn of_the_fleet(r: &Running) -> Vec<Rendered> {
    r.fake.told().into_iter().filter(|p| p.kind == "below-minimum").collect()
}

fn events(r: &Running) -> Vec<String> {
    of_the_fleet(r).into_iter().map(|p| p.event).collect()
}

#[tokio::test]
async fn a_node_that_falls_after_the_page_about_the_fleet_is_an_update_of_it_and_wakes_nobody_again() {
    let r = of_five().await;
    r.fake.serves(2, false);
    r.comes_within("a page", 60, |r| !events(r).is_empty()).await;
    let first = of_the_fleet(&r).remove(0);
    for line in ["- es-client-2 ", "Next     backstop explain es-client-2   # from any node"] {
        assert!(first.text.contains(line), "{line} in\n{}", first.text);
    }
    r.fake.serves(4, false);
    r.comes_within("an update", 120, |r| events(r) == ["trigger", "update"]).await;
    let update = of_the_fleet(&r).remove(1);
    assert_eq!((update.key.as_str(), update.severity.as_str()), ("test/below-minimum/test", "critical"));
    assert_ne!(update.id, first.id, "a receiver that drops repeats takes it");
    assert!(update.text.starts_with("[UPDATE, CRITICAL] ") && update.text.contains("3 of 5"), "{}", update.text);
    assert!(update.text.contains(&format!("- {} ", name(4))), "{}", update.text);
    r.minutes(10).await;
    assert_eq!(events(&r), ["trigger", "update"], "once");
}

#[tokio::test]
async fn an_update_that_has_nothing_to_say_any_more_is_not_sent() {
    let r = of_five().await;
    r.fake.serves(2, false);
    r.comes_within("a page", 60, |r| !events(r).is_empty()).await;
    r.fake.serves(4, false);
    r.comes_within("it is found", 60, |r| r.firing().iter().any(|key| key.ends_with(&name(4)))).await;
    r.fake.serves(2, true);
    r.fake.serves(4, true);
    r.comes_within("the end", 300, |r| events(r).iter().any(|event| event == "resolve")).await;
    assert_eq!(events(&r), ["trigger", "resolve"], "{:#?}", of_the_fleet(&r));
}

#[tokio::test]
async fn a_name_that_nobody_has_is_unknown_and_the_members_are_told() {
    let r = of_five().await;
    let explain = |name| backstop::agent::status::explain(&*r.shared, name);
    let typo = explain(Some("es-clinet-2"));
    assert!(typo.unknown && typo.lines[0].contains("es-client-2"), "{typo:?}");
    assert!(!explain(Some("es-client-2")).unknown && !explain(None).unknown);
}
