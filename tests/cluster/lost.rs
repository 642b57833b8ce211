//! What people and restores do to a record behind everybody's back: it is never taken for good, and what is made in its
//! place carries what the members last saw.

use crate::store;
use crate::support::index::Little;
use crate::support::relay::{Behind, Relay};
use backstop::core::error::{Class, Fault};
use backstop::core::ids::{CycleId, InstanceId};
use backstop::core::record::{Extra, Latch, Op, Pause, Record};
use backstop::core::rules::Rules;
use backstop::fleet::elasticsearch::EsFleet;
use backstop::fleet::{Fleet, Found, Outcome};
use backstop::ports::{CasFault, FleetStore};
use serde_json::{Value, json};
use std::sync::Arc;

const DOC: &str = "/backstop-fleet/_doc/record:test";
const INDEX: &str = "/backstop-fleet";

fn rules() -> Rules {
    Rules { max_unavailable: 1, minimum_healthy: 3, minimum_during_patch: 2 }
}

fn nonce() -> Arc<str> {
    uuid::Uuid::new_v4().to_string().into()
}

fn latch() -> Op {
    let latch = Latch {
        instance: InstanceId("i-1".into()),
        node: "es-client-1".into(),
        stage: "patch".into(),
        class: "job".into(),
        message: "exit 1".into(),
        job: "patch".into(),
        since_ms: 1,
        cleared: None,
        extra: Extra::new(),
    };
    Op::AddLatch { cycle: CycleId("C-1".into()), latch }
}

fn pause() -> Op {
    Op::Pause(Pause { by: "ann".into(), reason: "a look".into(), since_ms: 1, extra: Extra::new() })
}

async fn acked(fleet: &Fleet<EsFleet>, op: Op) -> Record {
    match fleet.change(&op, &rules(), nonce).await {
        Outcome::Acked(record) => *record,
        other => panic!("{other:?}"),
    }
}

/// What `init --fleet --reason` does, once it knows what was seen.
async fn make_again(fleet: &Fleet<EsFleet>, seen: &Record) -> Result<(), CasFault> {
    let instead = match fleet.found().await.map_err(CasFault::Fault)? {
        Found::Good => panic!("it is good"),
        Found::Nothing => None,
        Found::Unusable { version, .. } => Some(version),
    };
    let highest = fleet.highest().max(seen.counter);
    let record = Record { nonce: nonce(), ..Record::restored(&"test".into(), std::slice::from_ref(seen), highest) };
    fleet.create(&record, instead.as_ref()).await
}

async fn made_again(fleet: &Fleet<EsFleet>, seen: &Record) {
    make_again(fleet, seen).await.unwrap();
    let record = fleet.read().await.unwrap();
    assert_eq!(record.open_latches().count(), 1, "the latch is back");
    assert!(record.counter > seen.counter);
}

async fn refused(fleet: &Fleet<EsFleet>, says: &str) {
    let fault: Fault = fleet.read().await.unwrap_err();
    assert!(fault.class == Class::Refused && fault.message.contains(says), "{says}: {fault}");
    let Outcome::Unanswered(_) = fleet.change(&pause(), &rules(), nonce).await else { panic!("{says}: written") };
}

async fn source(behind: &Behind) -> Value {
    let body: Value = serde_json::from_slice(&behind.ask("GET", DOC, None).await.body).unwrap();
    body["_source"].clone()
}

async fn put(behind: &Behind, source: &Value) {
    let status = behind.ask("PUT", DOC, Some(source)).await.status;
    assert!(matches!(status, 200 | 201), "{status}");
}

/// On a cluster without an index. `fleet`: through whatever is in front of it.
pub async fn is_never_good(behind: &Behind, store: EsFleet) {
    let fleet = Fleet::new(store.clone(), "test".into());
    fleet.create(&Record::new("test".into()), None).await.unwrap();
    acked(&fleet, latch()).await;
    let older = source(behind).await;
    let seen = acked(&fleet, pause()).await;

    // A restored copy of this very index keeps its uuid; its counter tells.
    put(behind, &older).await;
    refused(&fleet, "went back").await;
    made_again(&fleet, &seen).await;

    let status = behind.ask("DELETE", DOC, None).await.status;
    assert_eq!(status, 200);
    refused(&fleet, "has no record").await;
    assert!(matches!(fleet.found().await.unwrap(), Found::Nothing));
    made_again(&fleet, &fleet_seen(&fleet, &seen)).await;

    for emptied in [json!({}), json!({"document": "{}"}), with_document(source(behind).await, "")] {
        put(behind, &emptied).await;
        assert!(fleet.read().await.unwrap_err().class == Class::Refused, "{emptied}");
        let Found::Unusable { .. } = fleet.found().await.unwrap() else { panic!("{emptied}") };
        made_again(&fleet, &fleet_seen(&fleet, &seen)).await;
    }

    // The index is gone: there is nothing, no member can be written, and nothing comes into being by itself.
    let last = source(behind).await;
    assert_eq!(behind.ask("DELETE", INDEX, None).await.status, 200);
    refused(&fleet, "has no record").await;
    let fault = store.put_member("i-1", b"m".to_vec()).await.unwrap_err();
    assert!(fault.class == Class::Refused && fault.message.contains("backstop init --fleet"), "{fault}");
    assert!(store.members().await.unwrap().is_empty());
    assert_eq!(behind.ask("GET", INDEX, None).await.status, 404);
    made_again(&fleet, &fleet_seen(&fleet, &seen)).await;

    // A copy from another index, though its counter is not behind.
    put(behind, &ahead(last)).await;
    let fresh = Fleet::new(store.clone(), "test".into());
    refused(&fresh, "held by unknown").await;
    refused(&fresh, "backstop init --fleet --reason").await;
    let Found::Unusable { record: Some(_), .. } = fresh.found().await.unwrap() else { panic!("it can be looked into") };
    fresh.seen(fleet.highest());
    made_again(&fresh, &fleet_seen(&fleet, &seen)).await;

    // An index that a server made by itself would find members by words: it is not used.
    assert_eq!(behind.ask("DELETE", INDEX, None).await.status, 200);
    put(behind, &source_like(&seen)).await;
    refused(&fresh, "was not made by backstop init").await;
    assert_eq!(store.members().await.unwrap_err().class, Class::Refused);
    assert_eq!(store.put_member("i-1", b"m".to_vec()).await.unwrap_err().class, Class::Refused);
    assert!(matches!(make_again(&fresh, &seen).await, Err(CasFault::Fault(f)) if f.class == Class::Refused));
    assert_eq!(behind.ask("DELETE", INDEX, None).await.status, 200);
    made_again(&fresh, &fleet_seen(&fresh, &seen)).await;
}

/// What somebody saw whose counter is the highest that is known.
fn fleet_seen(fleet: &Fleet<EsFleet>, seen: &Record) -> Record {
    Record { counter: fleet.highest().max(seen.counter), ..seen.clone() }
}

fn with_document(source: Value, document: &str) -> Value {
    let mut source = source;
    source["document"] = json!(document);
    source
}

fn ahead(source: Value) -> Value {
    let mut record: Record = serde_json::from_str(source["document"].as_str().unwrap()).unwrap();
    record.counter += 1_000;
    record.latches.clear();
    with_document(source, &serde_json::to_string(&record).unwrap())
}

fn source_like(record: &Record) -> Value {
    let document = serde_json::to_string(record).unwrap();
    json!({"fleet": "test", "kind": "record", "index_uuid": "x", "document": document})
}

#[tokio::test]
async fn a_record_that_was_tampered_with_is_never_good_and_is_made_again_with_its_latches() {
    let behind = Behind::Little(Little::default());
    let relay = Relay::start(behind.clone()).await;
    is_never_good(&behind, store(&[relay.url()])).await;
}
