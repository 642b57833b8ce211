//! Every fault on the wire, over the server in memory.

use crate::support::index::{Little, error};
use crate::support::relay::{Behind, Deed, Relay, is_write};
use crate::support::tls::{Front, Terms};
use crate::support::wire::{Wire, raw, reply, waits};
use crate::{EsFleet, EsFleetSettings, impatient, settings, store};
use backstop::core::error::{Class, Fault};
use backstop::core::ids::{CycleId, InstanceId};
use backstop::core::record::{Extra, Op, Record, Slot};
use backstop::core::rules::Rules;
use backstop::fleet::{Fleet, Outcome};
use backstop::ports::{CasFault, FleetStore};
use backstop::rehearse::http::{Answer, End, Request, Response};
use backstop::rehearse::shapes::Shape;
use serde_json::json;
use std::io::Write as _;
use std::sync::Arc;

/// A relay in front of a server that has a record.
pub async fn begun() -> (Little, Relay, EsFleet) {
    let little = Little::default();
    let relay = Relay::start(Behind::Little(little.clone())).await;
    let store = store(&[relay.url()]);
    store.create(serde_json::to_vec(&Record::new("test".into())).unwrap()).await.unwrap();
    (little, relay, store)
}

fn class<T: std::fmt::Debug>(done: Result<T, CasFault>) -> Class {
    match done {
        Err(CasFault::Fault(fault)) => fault.class,
        other => panic!("{other:?}"),
    }
}

fn claim(cycle: &str) -> Op {
    let slot = Slot {
        cycle: CycleId(cycle.into()),
        node: "es-client-1".into(),
        job: "patch".into(),
        budget_s: 60,
        since_ms: 1,
        extra: Extra::new(),
    };
    Op::Claim { instance: InstanceId("i-1".into()), slot }
}

fn free(cycle: &str) -> Op {
    Op::Free { instance: InstanceId("i-1".into()), cycle: CycleId(cycle.into()), latch: None, finished: None }
}

fn rules() -> Rules {
    Rules { max_unavailable: 1, minimum_healthy: 3, minimum_during_patch: 2 }
}

fn nonce() -> Arc<str> {
    uuid::Uuid::new_v4().to_string().into()
}

/// The claim is applied and its answer lost: no yes; and freeing it ends right, whether it landed or not.
pub async fn a_lost_claim_leaves_no_ghost(relay: &Relay, store: EsFleet) {
    let fleet = Fleet::new(store, "test".into());
    for (n, deed) in [Deed::answer_lost(), Deed::lost()].into_iter().enumerate() {
        let cycle = format!("C-{n}");
        let landed = n == 0;
        let now = deed.clone();
        relay.rule(move |r| if is_write(r) { now.clone() } else { Deed::Pass });
        let writes = relay.writes();
        let Outcome::Unanswered(fault) = fleet.change(&claim(&cycle), &rules(), nonce).await else { panic!("a yes") };
        assert_eq!(fault.class, Class::OutcomeUnknown, "{fault}");
        assert_eq!(relay.writes(), writes + 1, "it is not sent again");
        relay.pass();
        assert_eq!(fleet.read().await.unwrap().slots.len(), usize::from(landed));
        let Outcome::Acked(record) = fleet.change(&free(&cycle), &rules(), nonce).await else { panic!("no yes") };
        assert!(record.slots.is_empty());
        assert!(fleet.read().await.unwrap().slots.is_empty());
    }
}

#[tokio::test]
async fn a_claim_whose_answer_is_lost_is_no_yes_and_leaves_no_ghost() {
    let (_, relay, store) = begun().await;
    a_lost_claim_leaves_no_ghost(&relay, store).await;
}

/// A late answer of an older write changes nothing: its version no longer fits.
#[tokio::test]
async fn a_write_that_lands_late_conflicts_with_an_acknowledged_one() {
    let (little, relay, store) = begun().await;
    let (_, version) = store.read().await.unwrap().unwrap();
    relay.rule(|r| if is_write(r) { Deed::lost() } else { Deed::Pass });
    assert_eq!(class(store.compare_and_set(&version, b"late".to_vec()).await), Class::OutcomeUnknown);
    let late = relay.seen().into_iter().rfind(is_write).unwrap();
    relay.pass();
    store.compare_and_set(&version, b"later".to_vec()).await.unwrap();
    assert_eq!(little.answer(&late).status, 409);
    assert_eq!(store.read().await.unwrap().unwrap().0, b"later");
}

fn strange_answers() -> Vec<(&'static str, Answer, Class, Class)> {
    let es = |status, kind| Answer::Reply(error(status, kind));
    let cut = raw("HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{\"_id\": \"rec", End::Fin);
    let lone = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\n\r\n{\"_id\": \"rec";
    let long = "HTTP/1.1 200 OK\r\ncontent-length: 999999999\r\n\r\n";
    let unknown = Class::OutcomeUnknown;
    vec![
        ("junk", reply(200, "hello"), Class::Transport, unknown),
        ("another service's JSON", reply(200, "{\"ok\":true}"), Class::Transport, unknown),
        ("no content type, cut JSON", raw(lone, End::Fin), Class::Transport, unknown),
        ("cut", cut, Class::Transport, unknown),
        ("longer than any", raw(long, End::Stall), Class::Transport, unknown),
        ("empty", reply(200, ""), Class::Transport, unknown),
        ("HTML 502", reply(502, "<html>"), Class::NotReady, unknown),
        ("HTML 404", reply(404, "<html>"), Class::Transport, unknown),
        ("HTML 409", reply(409, "<html>"), Class::Transport, unknown),
        ("no master", es(503, "master_not_discovered_exception"), Class::NotReady, Class::NotReady),
        ("blocked", es(503, "cluster_block_exception"), Class::NotReady, Class::NotReady),
        ("node gone", es(502, "node_disconnected_exception"), Class::NotReady, unknown),
        ("401", es(401, "security_exception"), Class::Auth, Class::Auth),
        ("403", es(403, "security_exception"), Class::Auth, Class::Auth),
        ("429", es(429, "es_rejected_execution_exception"), Class::Throttled, Class::Throttled),
        ("reset", raw("", End::Rst), Class::Transport, unknown),
        ("redirect", redirect(), Class::Transport, unknown),
    ]
}

fn redirect() -> Answer {
    Answer::Reply(Response::new(307, "text/plain", "").with("location", "http://127.0.0.1:9/login"))
}

#[tokio::test]
async fn an_answer_that_is_not_the_one_asked_for_is_a_fault_of_its_class_on_every_call() {
    let (_, relay, store) = begun().await;
    let (_, version) = store.read().await.unwrap().unwrap();
    for (name, answer, read, write) in strange_answers() {
        relay.rule(move |_| Deed::Instead(answer.clone()));
        assert_eq!(store.read().await.unwrap_err().class, read, "{name}: read");
        assert_eq!(store.members().await.unwrap_err().class, read, "{name}: members");
        assert_eq!(class(store.compare_and_set(&version, b"x".to_vec()).await), write, "{name}: compare and set");
        assert_eq!(store.delete_member("i-1").await.unwrap_err().class, write, "{name}: delete");
        relay.pass();
        let at = store.read().await.unwrap().unwrap().1;
        assert_eq!(at, version, "{name}: nothing was written");
    }
}

/// The fault is in the first server, the second one is well.
#[tokio::test]
async fn a_read_goes_on_to_the_next_server_and_a_write_does_not() {
    for (name, answer, ..) in strange_answers() {
        let little = Little::default();
        let (sick, well) =
            (Relay::start(Behind::Little(little.clone())).await, Relay::start(Behind::Little(little)).await);
        let store = store(&[sick.url(), well.url()]);
        let version = store.create(b"1".to_vec()).await.unwrap();
        assert!(well.seen().is_empty(), "the first one does");
        sick.rule(move |r| if is_write(r) { Deed::Pass } else { Deed::Instead(answer.clone()) });
        assert_eq!(store.read().await.unwrap().unwrap().0, b"1", "{name}");
        let (asked_sick, asked_well) = (sick.seen().len(), well.seen().len());
        assert!(asked_well > 0);
        assert!(store.members().await.unwrap().is_empty());
        assert_eq!(sick.seen().len(), asked_sick, "{name}: the last good one is asked first");
        assert!(well.seen().len() > asked_well);

        // Now the second one loses answers, and is the last good one.
        well.rule(|r| if is_write(r) { Deed::answer_lost() } else { Deed::Pass });
        let (to_sick, to_well) = (sick.writes(), well.writes());
        assert_eq!(class(store.compare_and_set(&version, b"2".to_vec()).await), Class::OutcomeUnknown, "{name}");
        assert_eq!((sick.writes(), well.writes()), (to_sick, to_well + 1), "{name}: sent once, to one of them");
    }
}

/// What answers there may be no server of the cluster at all.
#[tokio::test]
async fn a_server_that_refuses_what_another_one_does_is_not_asked_for_ever() {
    let little = Little::default();
    let (other, well) =
        (Relay::start(Behind::Little(little.clone())).await, Relay::start(Behind::Little(little)).await);
    let store = store(&[other.url(), well.url()]);
    store.create(b"1".to_vec()).await.unwrap();
    let refusal = json!({"error": "no handler found for uri", "status": 400});
    other.rule(move |_| Deed::Instead(Answer::Reply(Response::json(400, &refusal))));
    assert_eq!(store.read().await.unwrap_err().class, Class::Refused);
    assert_eq!(store.read().await.unwrap().unwrap().0, b"1", "the next question goes to the other one");
    assert_eq!(store.read().await.unwrap().unwrap().0, b"1", "and so do those after it");
}

#[tokio::test]
async fn a_server_that_refuses_the_connection_is_passed_over_by_writes_too() {
    // Not a port that was free a moment ago: another test may have it by now.
    let gone: Arc<str> = "http://127.0.0.1:1".into();
    let relay = Relay::start(Behind::Little(Little::default())).await;
    let version = store(&[gone.clone(), relay.url()]).create(b"1".to_vec()).await.unwrap();
    // A store that has learnt nothing, so that the write itself meets the dead one.
    let fresh = store(&[gone.clone(), relay.url()]);
    fresh.compare_and_set(&version, b"2".to_vec()).await.unwrap();
    fresh.put_member("i-1", b"m".to_vec()).await.unwrap();
    let alone = store(&[gone]);
    let fault = alone.read().await.unwrap_err();
    assert_eq!(fault.class, Class::Transport);
    assert!(fault.message.contains("connection refused"), "{fault}");
    assert_eq!(class(alone.compare_and_set(&version, b"3".to_vec()).await), Class::Transport, "nothing was sent");
}

#[tokio::test]
async fn a_server_that_never_answers_ends_by_our_own_deadline_and_a_write_to_it_is_in_doubt() {
    let (little, relay, patient) = begun().await;
    let (_, version) = patient.read().await.unwrap().unwrap();
    let well = Relay::start(Behind::Little(little)).await;
    for stall in [raw("", End::Stall), raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", End::Stall)] {
        relay.rule(move |_| Deed::Instead(stall.clone()));
        let store = impatient(&[relay.url()]);
        let fault = store.read().await.unwrap_err();
        assert_eq!(fault.class, Class::Transport, "{fault}");
        assert_eq!(class(store.compare_and_set(&version, b"x".to_vec()).await), Class::OutcomeUnknown);
        assert_eq!(store.delete_member("i-1").await.unwrap_err().class, Class::OutcomeUnknown);
    }
    // Patient enough for the well one on a busy machine; the sick one costs one deadline.
    let both = EsFleet::new(EsFleetSettings { timeout_ms: 2_000, ..settings(&[relay.url(), well.url()]) });
    assert!(both.read().await.unwrap().is_some(), "the next server is asked within the same call");
}

#[tokio::test]
async fn a_partial_search_is_a_fault_and_no_smaller_fleet() {
    let (_, relay, store) = begun().await;
    store.put_member("i-1", b"m".to_vec()).await.unwrap();
    for part in [
        json!({"timed_out": false, "_shards": {"total": 2, "successful": 1, "failed": 1}, "hits": {"hits": []}}),
        json!({"timed_out": true, "_shards": {"total": 1, "successful": 1, "failed": 0}, "hits": {"hits": []}}),
        json!({"timed_out": false, "_shards": {"total": 0, "successful": 0, "failed": 0}, "hits": {"hits": []}}),
    ] {
        relay.rule(move |r| {
            if r.path().ends_with("_search") { Deed::Instead(reply(200, &part.to_string())) } else { Deed::Pass }
        });
        assert_eq!(store.members().await.unwrap_err().class, Class::NotReady);
    }
    relay.pass();
    assert_eq!(store.members().await.unwrap(), [b"m".to_vec()]);
    assert!(relay.seen().iter().any(|r| r.query_is("allow_partial_search_results", "false")));
}

#[tokio::test]
async fn a_server_that_asks_for_fewer_calls_is_left_alone_as_long_as_it_says() {
    let (_, relay, store) = begun().await;
    relay.rule(|_| Deed::Instead(Answer::Reply(error(429, "circuit_breaking_exception").with("retry-after", "7"))));
    let fault = store.read().await.unwrap_err();
    assert_eq!((fault.class, fault.retry_after_ms), (Class::Throttled, Some(7_000)));
}

/// The whole matrix of shapes that were ever seen: whatever comes back, what is not the record is no record, and what is no
/// yes is no yes.
#[tokio::test]
async fn no_shape_of_answer_is_taken_for_a_record_or_for_a_yes() {
    for shape in Shape::ALL.iter().copied() {
        let little = Little::default();
        let relay = Relay::start(Behind::Little(little.clone())).await;
        let version = store(&[relay.url()]).create(b"1".to_vec()).await.unwrap();
        let answering = little.clone();
        let wire = Wire::spoiling(shape, move |r: &Request| answering.answer(r), |_| true).await;
        let url: Arc<str> = wire.url().into();
        let sample = shape.spoil(&Response::json(200, &json!({})), "/x");
        let endless = matches!(sample, Answer::Endless(..));
        let store = if endless || waits(&sample) || shape.moment() != backstop::rehearse::shapes::Moment::Request {
            impatient(&[url])
        } else {
            store(&[url])
        };
        match store.read().await {
            Ok(found) => assert_eq!(found, Some((b"1".to_vec(), version.clone())), "{shape}"),
            Err(fault) => assert_ne!(fault.class, Class::OutcomeUnknown, "{shape}: {fault}"),
        }
        match store.compare_and_set(&version, b"2".to_vec()).await {
            Ok(next) => assert_eq!(relayed(&relay).await, (b"2".to_vec(), next), "{shape}"),
            // A server's own word that another write came first.
            Err(CasFault::Conflict) => assert_eq!(shape.name(), "status-409"),
            Err(CasFault::Fault(_)) => {}
        }
        match store.members().await {
            Ok(members) => assert!(members.is_empty(), "{shape}"),
            Err(fault) => assert_ne!(fault.class, Class::OutcomeUnknown, "{shape}: {fault}"),
        }
    }
}

async fn relayed(relay: &Relay) -> (Vec<u8>, backstop::ports::Version) {
    store(&[relay.url()]).read().await.unwrap().unwrap()
}

#[tokio::test]
async fn credentials_are_read_again_at_each_call_and_never_shown() {
    let (_, relay, _) = begun().await;
    let mut key = tempfile::NamedTempFile::new().unwrap();
    key.write_all(b"Zmlyc3Q=\n").unwrap();
    let path: Arc<str> = key.path().to_str().unwrap().into();
    let store = EsFleet::new(EsFleetSettings { api_key_file: Some(path), ..settings(&[relay.url()]) });
    store.read().await.unwrap();
    key.as_file().set_len(0).unwrap();
    std::io::Seek::rewind(&mut key).unwrap();
    key.write_all(b"c2Vjb25k").unwrap();
    store.read().await.unwrap();
    let sent: Vec<String> = relay.seen().iter().filter_map(|r| r.header("authorization").map(str::to_owned)).collect();
    assert_eq!(sent, ["ApiKey Zmlyc3Q=", "ApiKey Zmlyc3Q=", "ApiKey c2Vjb25k", "ApiKey c2Vjb25k"]);
    relay.rule(|_| Deed::Instead(reply(401, "c2Vjb25k is not known here")));
    let fault = store.read().await.unwrap_err();
    let shown = format!("{fault:?} {fault} {store:?}");
    assert!(fault.class == Class::Auth && !shown.contains("c2Vjb25k") && !shown.contains("Zmlyc3Q"), "{shown}");
    key.as_file().set_len(0).unwrap();
    let fault = store.read().await.unwrap_err();
    assert!(fault.class == Class::Auth && fault.message.contains("it is empty"), "{fault}");
}

#[tokio::test]
async fn over_tls_only_a_server_of_the_stated_authority_is_believed() {
    let (_, relay, plain) = begun().await;
    let (_, version) = plain.read().await.unwrap().unwrap();
    let front = Front::start(&Terms::GOOD, relay.address(), true).await;
    let url: Arc<str> = front.url().into();
    let ca: Arc<str> = front.identity.pem().into();
    let trusting = EsFleet::new(EsFleetSettings { ca_file: Some(ca.clone()), ..settings(std::slice::from_ref(&url)) });
    assert_eq!(trusting.read().await.unwrap().unwrap().1, version);
    let seen = relay.seen().len();
    let wary = store(std::slice::from_ref(&url));
    assert_eq!(wary.read().await.unwrap_err().class, Class::Transport);
    assert!(matches!(wary.compare_and_set(&version, b"x".to_vec()).await, Err(CasFault::Fault(_))));
    assert_eq!(relay.seen().len(), seen, "nothing came through");
    // The record is read and written with the client certificate, by both clients that the store has.
    let mutual = Front::start(&Terms { mutual: true, ..Terms::GOOD }, relay.address(), true).await;
    let pem = mutual.identity.with_key();
    let known = EsFleet::new(EsFleetSettings {
        ca_file: Some(mutual.identity.pem().into()),
        client_cert_file: Some(pem.path().to_str().unwrap().into()),
        ..settings(&[mutual.url().into()])
    });
    let version = known.compare_and_set(&version, b"{}".to_vec()).await.unwrap();
    assert_eq!(known.read().await.unwrap().unwrap().1, version);
    known.members().await.unwrap();
    assert!(!format!("{known:?}").contains("PRIVATE"), "{known:?}");
    let other = Front::start(&Terms { name: "es-9.example", ..Terms::GOOD }, relay.address(), true).await;
    let ca: Arc<str> = other.identity.pem().into();
    let elsewhere = EsFleet::new(EsFleetSettings { ca_file: Some(ca), ..settings(&[other.url().into()]) });
    let fault: Fault = elsewhere.read().await.unwrap_err();
    assert_eq!(fault.class, Class::Transport, "another name: {fault}");
}
