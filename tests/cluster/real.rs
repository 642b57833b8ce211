//! The same over real servers.

use crate::support::BOUND;
use crate::support::engine::{Engine, flavors};
use crate::support::relay::{Behind, Relay};
use crate::{contract, faults, lost, race, store};
use backstop::core::error::Fault;
use backstop::core::record::Record;
use backstop::fleet::Store;
use backstop::ports::FleetStore;
use backstop::rehearse::pace;
use std::sync::Arc;
use std::time::Duration;

/// The client nodes of a cluster with two.
pub fn clients(engine: &Engine) -> [Arc<str>; 2] {
    [engine.url("c1"), engine.url("c2")]
}

/// Asks until there is an answer, as every caller does.
pub async fn until<T, F>(ask: impl Fn() -> F) -> T
where
    F: Future<Output = Result<T, Fault>>,
{
    let mut last = None;
    let answered = pace::within(BOUND, async {
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(fault) => last = Some(fault),
            }
            pace::sleep(Duration::from_millis(100)).await;
        }
    });
    answered.await.unwrap_or_else(|| panic!("it never works again: {last:?}"))
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn the_store_in_a_cluster_keeps_the_contract_on_real_servers() {
    for flavor in flavors() {
        let engine = Engine::cluster(flavor, 2);
        let [c1, c2] = clients(&engine);
        contract::holds(&store(&[c1.clone(), c2.clone()]), &store(&[c2.clone(), c1.clone()])).await;
        let (_, at) = store(std::slice::from_ref(&c1)).read().await.unwrap().unwrap();
        contract::one_of_many_writes(&store(&[c1, c2]), &at).await;
    }
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_claim_whose_answer_is_lost_is_no_yes_on_real_servers_either() {
    for flavor in flavors() {
        let engine = Engine::cluster(flavor, 1);
        let relay = Relay::start(Behind::Server(engine.address("c1"))).await;
        let store = store(&[relay.url()]);
        store.create(serde_json::to_vec(&Record::new("test".into())).unwrap()).await.unwrap();
        faults::a_lost_claim_leaves_no_ghost(&relay, store).await;
    }
}

#[tokio::test]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_record_that_was_tampered_with_is_never_good_on_real_servers_either() {
    for flavor in flavors() {
        let engine = Engine::cluster(flavor, 1);
        lost::is_never_good(&Behind::Server(engine.address("c1")), store(&[engine.url("c1")])).await;
    }
}

/// Each agent asks a node of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn of_two_agents_that_have_read_before_either_writes_one_goes() {
    for flavor in flavors() {
        let engine = Engine::cluster(flavor, 2);
        let [c1, c2] = clients(&engine);
        let opened = std::sync::atomic::AtomicUsize::new(0);
        let open = || {
            let even = opened.fetch_add(1, std::sync::atomic::Ordering::SeqCst).is_multiple_of(2);
            let order = if even { [c1.clone(), c2.clone()] } else { [c2.clone(), c1.clone()] };
            Store::Elasticsearch(store(&order))
        };
        race::one_of_two_goes(open, race::ROUNDS).await;
    }
}
