//! What a status knows, and when.

use crate::scene::{Scene, options};
use backstop::control::protocol::ReasonRequest;
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
