//! The client nodes as the cluster lists them.

use crate::PATIENT_MS;
use crate::support::engine::{Engine, flavors};
use crate::support::index::error;
use crate::support::wire::{Wire, reply};
use backstop::core::client_node::ClientNode;
use backstop::core::error::{Class, Fault};
use backstop::core::settings::CheckSettings;
use backstop::elasticsearch::NodeChecker;
use backstop::ports::ClusterNodes;
use backstop::rehearse::http::{Answer, Request};
use serde_json::json;

pub fn asked(url: &str, timeout_ms: u64) -> CheckSettings {
    CheckSettings {
        node_name: "c1".into(),
        url: url.into(),
        timeout_ms,
        ca_file: None,
        api_key_file: None,
        basic_auth_file: None,
        client_cert_file: None,
        canary_index: None,
        expect: None,
        passes: 1,
        over_ms: 0,
        every_ms: 1,
    }
}

async fn listed(wire: &Wire) -> Result<Vec<ClientNode>, Fault> {
    NodeChecker::new().client_nodes(&asked(&wire.url(), PATIENT_MS)).await
}

fn is_health(request: &Request) -> bool {
    request.path() == "/_cluster/health"
}

#[tokio::test]
async fn without_a_master_there_is_no_list_though_the_node_gives_one() {
    let one = json!({"_nodes": {"total": 1, "successful": 1, "failed": 0},
        "nodes": {"a": {"name": "c1", "ip": "127.0.0.1", "http": {"publish_address": "127.0.0.1:9200"}}}});
    let (alone, joined) = (one.clone(), one.to_string());
    let never = Wire::answering(move |r| {
        if is_health(r) {
            Answer::Reply(error(503, "master_not_discovered_exception"))
        } else {
            reply(200, &alone.to_string())
        }
    });
    let never = never.await;
    assert_eq!(listed(&never).await.unwrap_err().class, Class::NotReady);
    let good = Wire::answering(move |r| {
        if is_health(r) { reply(200, "{\"status\":\"red\",\"timed_out\":false}") } else { reply(200, &joined) }
    });
    let good = good.await;
    let all = listed(&good).await.unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!((&*all[0].name, &*all[0].address, all[0].port), ("c1", "127.0.0.1", Some(9200)));
    assert!(good.requests().iter().any(|r| r.query_is("timeout", "2s")), "one stuck node does not hold it up for long");
}

#[tokio::test]
async fn half_a_list_or_none_is_a_fault_of_its_class() {
    for (answer, want) in [
        (reply(200, "{\"_nodes\":{\"total\":3,\"successful\":2,\"failed\":1},\"nodes\":{}}"), Class::NotReady),
        (reply(200, "<html>"), Class::Transport),
        (reply(200, "{}"), Class::Transport),
        (reply(403, "{\"error\":{\"type\":\"security_exception\"}}"), Class::Auth),
        (reply(502, ""), Class::NotReady),
    ] {
        let wire = Wire::answering(move |r| {
            if is_health(r) { reply(200, "{\"status\":\"green\",\"timed_out\":false}") } else { answer.clone() }
        });
        assert_eq!(listed(&wire.await).await.unwrap_err().class, want);
    }
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn real_servers_list_their_client_nodes_and_nothing_while_one_is_frozen_or_there_is_no_master() {
    for flavor in flavors() {
        let mut engine = Engine::cluster(flavor, 2);
        let settings = asked(&engine.url("c1"), PATIENT_MS);
        let checker = NodeChecker::new();
        let all = checker.client_nodes(&settings).await.unwrap();
        let mut seen: Vec<_> = all.iter().map(|n| (n.name.to_string(), n.address.to_string(), n.port)).collect();
        seen.sort();
        let want = |name: &str| (name.to_owned(), engine.address(name).ip().to_string(), Some(9200));
        assert_eq!(seen, [want("c1"), want("c2")], "{flavor}: the manager is no client node");

        engine.pause("c2");
        let fault = checker.client_nodes(&settings).await.unwrap_err();
        assert_eq!(fault.class, Class::NotReady, "{flavor}: {fault}");
        engine.resume("c2");
        let again = crate::real::until(|| checker.client_nodes(&settings)).await;
        assert_eq!(again, all, "{flavor}");

        engine.stop("m1");
        engine.start("c3", "client", &["--set", "discovery.initial_state_timeout=1s"]);
        let alone = asked(&engine.url("c3"), PATIENT_MS);
        let fault = checker.client_nodes(&alone).await.unwrap_err();
        assert_eq!(fault.class, Class::NotReady, "{flavor}: it never joined: {fault}");
        let fault = checker.client_nodes(&settings).await.unwrap_err();
        assert_eq!(fault.class, Class::NotReady, "{flavor}: an old list: {fault}");
    }
}
