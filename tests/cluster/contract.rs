//! What every store does, in one body.

use crate::support::BOUND;
use crate::support::index::Little;
use crate::support::relay::{Behind, Relay};
use backstop::core::error::Class;
use backstop::fleet::file::{DOCUMENT_BYTES_MAX, FileFleet, FileStore};
use backstop::ports::{CasFault, FleetStore, Version};
use backstop::rehearse::pace;

/// Text that a careless store would change: other letters, an escape, fields that nobody knows, a number too large for many.
const FIRST: &str = "{ \"b\": \"ä \\u2603 \\\"\", \"a\": 18446744073709551615, \"unknown\": {\"x\": null} }\n";

fn conflict<T: std::fmt::Debug>(done: Result<T, CasFault>) {
    assert!(matches!(done, Err(CasFault::Conflict)), "{done:?}");
}

async fn is(store: &impl FleetStore, bytes: &str, version: &Version) {
    let (now, at) = store.read().await.unwrap().expect("a record");
    assert_eq!((String::from_utf8(now).unwrap().as_str(), &at), (bytes, version));
}

/// Waits until exactly these are listed: a search sees a write a moment later.
async fn members_are(store: &impl FleetStore, want: &[&str]) {
    let mut last = Vec::new();
    let listed = pace::within(BOUND, async {
        loop {
            last = store.members().await.expect("the members");
            last.sort();
            if last.iter().map(Vec::as_slice).eq(want.iter().map(|m| m.as_bytes())) {
                return;
            }
            pace::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    assert!(listed.await.is_some(), "{want:?} are never listed, but {last:?}");
}

/// On an empty store. `other`: the same store, opened by somebody else.
pub async fn holds(store: &impl FleetStore, other: &impl FleetStore) {
    assert!(store.read().await.unwrap().is_none());
    assert!(store.lies_there().await.unwrap().is_none());
    assert_eq!(store.members().await.unwrap(), Vec::<Vec<u8>>::new());

    let first = store.create(FIRST.into()).await.unwrap();
    is(other, FIRST, &first).await;
    conflict(other.create(b"{}".to_vec()).await);
    is(store, FIRST, &first).await;

    let second = other.compare_and_set(&first, b"2".to_vec()).await.unwrap();
    assert_ne!(first, second);
    conflict(store.compare_and_set(&first, b"3".to_vec()).await);
    is(store, "2", &second).await;
    let lying = store.lies_there().await.unwrap().unwrap();
    assert_eq!((lying.bytes.as_slice(), &lying.version, lying.why), (&b"2"[..], &second, None));

    // The same bytes once more are another write, or none: never a way back to an older version.
    let third = store.compare_and_set(&second, FIRST.into()).await.unwrap();
    conflict(other.compare_and_set(&second, b"4".to_vec()).await);
    is(other, FIRST, &third).await;

    let large = vec![b'x'; usize::try_from(DOCUMENT_BYTES_MAX).unwrap() + 1];
    let refused = store.compare_and_set(&third, large).await;
    assert!(matches!(refused, Err(CasFault::Fault(_))), "{refused:?}");
    is(other, FIRST, &third).await;
    members(store, other).await;
    is(store, FIRST, &third).await;
}

async fn members(store: &impl FleetStore, other: &impl FleetStore) {
    store.put_member("i-0b", b"b1".to_vec()).await.unwrap();
    other.put_member("i-0a", b"a1".to_vec()).await.unwrap();
    members_are(other, &["a1", "b1"]).await;
    store.put_member("i-0b", b"b2".to_vec()).await.unwrap();
    members_are(other, &["a1", "b2"]).await;
    let some = store.some_members(&["i-0a", "i-none"]).await.unwrap();
    assert!(some.contains(&b"a1".to_vec()), "{some:?}");
    other.delete_member("i-0a").await.unwrap();
    store.delete_member("i-0a").await.unwrap();
    members_are(store, &["b2"]).await;
    for bad in ["", "..", "../record", "a/b", "a b", "ä", "x?refresh=true"] {
        let fault = store.put_member(bad, b"x".to_vec()).await.unwrap_err();
        assert_ne!(fault.class, Class::OutcomeUnknown, "{bad:?}: nothing was sent");
    }
    members_are(other, &["b2"]).await;
}

/// Only one of many writes from the same version is a yes.
pub async fn one_of_many_writes(store: &(impl FleetStore + Clone), at: &Version) {
    let (send, mut done) = tokio::sync::mpsc::channel(8);
    let mut writers = Vec::new();
    for n in 0..8 {
        let (store, at, send) = (store.clone(), at.clone(), send.clone());
        writers.push(pace::Task::start(async move {
            send.send((n, store.compare_and_set(&at, format!("by {n}").into_bytes()).await)).await.ok();
        }));
    }
    let mut winners = Vec::new();
    for _ in 0..8 {
        match done.recv().await.unwrap() {
            (n, Ok(version)) => winners.push((n, version)),
            (_, outcome) => conflict(outcome),
        }
    }
    let [(n, version)] = &winners[..] else { panic!("one: {winners:?}") };
    is(store, &format!("by {n}"), version).await;
}

#[tokio::test]
async fn the_file_store_keeps_the_contract() {
    let temp = tempfile::tempdir().unwrap();
    let open = || FileFleet::new(FileStore::open(temp.path()).unwrap());
    holds(&open(), &open()).await;
    let at = open().read().await.unwrap().unwrap().1;
    one_of_many_writes(&open(), &at).await;
}

#[tokio::test]
async fn the_store_in_a_cluster_keeps_the_contract_over_a_server_in_memory() {
    let relay = Relay::start(Behind::Little(Little::default())).await;
    let open = || crate::store(&[relay.url()]);
    holds(&open(), &open()).await;
    let at = open().read().await.unwrap().unwrap().1;
    one_of_many_writes(&open(), &at).await;
    for request in relay.seen() {
        assert_eq!(request.header("accept-encoding"), Some("identity"), "an answer is no longer than it says");
        assert!(request.header("authorization").is_none() && request.header("x-elastic-client-meta").is_none());
    }
}

/// More than one page of them, and none of another fleet's.
#[tokio::test]
async fn all_members_are_listed_page_by_page_up_to_a_bound() {
    let relay = Relay::start(Behind::Little(Little::default())).await;
    let store = crate::store(&[relay.url()]);
    store.create(b"{}".to_vec()).await.unwrap();
    let other = backstop::fleet::elasticsearch::EsFleet::new(backstop::fleet::elasticsearch::EsFleetSettings {
        fleet: "other".into(),
        ..crate::settings(&[relay.url()])
    });
    other.put_member("i-other", b"x".to_vec()).await.unwrap();
    for n in 0..250 {
        store.put_member(&format!("i-{n:04}"), format!("{n}").into_bytes()).await.unwrap();
    }
    let all = store.members().await.unwrap();
    let want: Vec<Vec<u8>> = (0..250).map(|n| n.to_string().into_bytes()).collect();
    assert_eq!(all, want);
    let searches = relay.seen().iter().filter(|r| r.path().ends_with("_search")).count();
    assert_eq!(searches, 3);
    // Who watches a few of many asks for these alone.
    assert_eq!(store.some_members(&["i-0007", "i-0249", "i-none"]).await.unwrap(), [b"7".to_vec(), b"249".to_vec()]);
}
