//! A manager or a data node that stops or freezes.

use crate::real::{clients, until};
use crate::support::engine::{Engine, flavors};
use crate::{EsFleet, EsFleetSettings, settings, store};
use backstop::core::error::Class;
use backstop::elasticsearch::NodeChecker;
use backstop::ports::{CasFault, ClusterNodes, FleetStore, Version};

/// Reads and writes until a write is a yes, as a caller would.
async fn written(store: &EsFleet, text: &str) -> Version {
    let write = || async {
        let (_, at) = store.read().await?.expect("a record");
        match store.compare_and_set(&at, text.as_bytes().to_vec()).await {
            Ok(version) => Ok(version),
            Err(CasFault::Fault(fault)) => Err(fault),
            Err(CasFault::Conflict) => panic!("nobody else writes"),
        }
    };
    let version = until(write).await;
    assert_eq!(store.read().await.unwrap().unwrap(), (text.as_bytes().to_vec(), version.clone()));
    version
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn without_a_manager_nothing_is_taken_for_a_yes_that_is_none_and_afterwards_all_works_again() {
    for flavor in flavors() {
        let mut engine = Engine::split(flavor, 2);
        let store = store(&clients(&engine));
        store.create(b"1".to_vec()).await.unwrap();
        let at = written(&store, "2").await;

        engine.stop("m1");
        // Both kinds of server still read; one still writes, and then it is true.
        assert_eq!(store.read().await.unwrap().unwrap(), (b"2".to_vec(), at.clone()), "{flavor}");
        match store.compare_and_set(&at, b"3".to_vec()).await {
            Ok(version) => assert_eq!(store.read().await.unwrap().unwrap(), (b"3".to_vec(), version), "{flavor}"),
            Err(CasFault::Fault(fault)) => {
                assert_eq!(fault.class, Class::NotReady, "{flavor}: {fault}");
                assert_eq!(store.read().await.unwrap().unwrap().0, b"2", "{flavor}");
            }
            Err(CasFault::Conflict) => panic!("{flavor}: nobody else writes"),
        }
        engine.start("m1", "manager", &[]);
        engine.wait_joined();
        written(&store, "4").await;
    }
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_frozen_manager_stops_neither_reads_nor_writes_and_what_asks_it_ends_by_our_deadline() {
    for flavor in flavors() {
        let engine = Engine::split(flavor, 2);
        let store = store(&clients(&engine));
        store.create(b"1".to_vec()).await.unwrap();
        engine.pause("m1");
        written(&store, "2").await;
        assert!(store.members().await.unwrap().is_empty());
        let asked = crate::nodes::asked(&engine.url("c1"), 1_000);
        let checker = NodeChecker::new();
        let fault = checker.client_nodes(&asked).await.unwrap_err();
        assert!(matches!(fault.class, Class::Transport | Class::NotReady), "{flavor}: {fault}");
        engine.resume("m1");
        until(|| checker.client_nodes(&asked)).await;
        written(&store, "3").await;
    }
}

/// Such a write lands after its caller has given up: only a later acknowledged one tells.
#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_frozen_data_node_ends_calls_by_our_deadline_and_a_write_to_it_is_in_doubt() {
    for flavor in flavors() {
        let engine = Engine::split(flavor, 2);
        let patient = store(&clients(&engine));
        let at = patient.create(b"1".to_vec()).await.unwrap();
        let hasty = EsFleet::new(EsFleetSettings { timeout_ms: 1_000, ..settings(&clients(&engine)) });
        engine.pause("d1");
        let Err(CasFault::Fault(fault)) = hasty.compare_and_set(&at, b"late".to_vec()).await else {
            panic!("{flavor}")
        };
        assert_eq!(fault.class, Class::OutcomeUnknown, "{flavor}: {fault}");
        let fault = hasty.read().await.unwrap_err();
        assert_eq!(fault.class, Class::Transport, "{flavor}: {fault}");
        engine.resume("d1");
        let (bytes, now) = until(|| patient.read()).await.unwrap();
        assert!(bytes == b"late" || bytes == b"1", "{flavor}: {bytes:?}");
        // Whatever became of it: from the next yes on it can change nothing any more.
        let mut at = now;
        let yes = loop {
            match patient.compare_and_set(&at, b"later".to_vec()).await {
                Ok(version) => break version,
                Err(CasFault::Conflict) => at = patient.read().await.unwrap().unwrap().1,
                Err(CasFault::Fault(fault)) => panic!("{flavor}: {fault}"),
            }
        };
        assert_eq!(patient.read().await.unwrap().unwrap(), (b"later".to_vec(), yes), "{flavor}");
    }
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn an_endpoint_that_is_killed_or_frozen_is_passed_over() {
    for flavor in flavors() {
        let engine = Engine::cluster(flavor, 2);
        let store = EsFleet::new(EsFleetSettings { timeout_ms: 3_000, ..settings(&clients(&engine)) });
        store.create(b"1".to_vec()).await.unwrap();
        engine.pause("c1");
        written(&store, "2").await;
        engine.resume("c1");
        engine.kill("c1");
        written(&store, "3").await;
        let fresh = EsFleet::new(EsFleetSettings { timeout_ms: 3_000, ..settings(&clients(&engine)) });
        written(&fresh, "4").await;
    }
}
