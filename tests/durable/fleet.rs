//! The fleet store under several writers at once.

use crate::processes::start_holder;
use backstop::fleet::file::{CasError, FileStore};
use std::sync::atomic::{AtomicBool, Ordering};

/// A record that shows when it is torn: a number, and as many letters.
fn record(n: usize) -> Vec<u8> {
    format!("{n} {}", "x".repeat(n)).into_bytes()
}

fn number(bytes: &[u8]) -> usize {
    let text = std::str::from_utf8(bytes).unwrap();
    let (n, letters) = text.split_once(' ').unwrap();
    assert_eq!(n.parse(), Ok(letters.len()), "a torn record");
    letters.len()
}

fn increment(store: &FileStore) {
    loop {
        let (bytes, version) = store.read().unwrap().unwrap();
        match store.compare_and_set(&version, &record(number(&bytes) + 1)) {
            Ok(_) => return,
            Err(CasError::Conflict | CasError::NotTried { .. }) => {}
            Err(e) => panic!("{e}"),
        }
    }
}

#[test]
fn eight_writers_lose_no_update_and_no_reader_sees_a_torn_record() {
    let temp = tempfile::tempdir().unwrap();
    FileStore::open(temp.path()).unwrap().create(&record(0)).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let store = FileStore::open(temp.path()).unwrap();
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let now = number(&store.read().unwrap().unwrap().0);
                assert!(now >= last, "the record went back");
                last = now;
            }
        });
        let writers: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let store = FileStore::open(temp.path()).unwrap();
                    (0..200).for_each(|_| increment(&store));
                })
            })
            .collect();
        let written: Vec<_> = writers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(written.iter().all(Result::is_ok));
    });
    let store = FileStore::open(temp.path()).unwrap();
    assert_eq!(number(&store.read().unwrap().unwrap().0), 1_600);
}

#[test]
fn of_many_that_create_the_record_at_once_one_does() {
    let temp = tempfile::tempdir().unwrap();
    FileStore::open(temp.path()).unwrap();
    let barrier = std::sync::Barrier::new(8);
    let created = std::thread::scope(|scope| {
        let creators: Vec<_> = (0..8)
            .map(|n| {
                let (barrier, path) = (&barrier, temp.path());
                scope.spawn(move || {
                    let store = FileStore::open(path).unwrap();
                    barrier.wait();
                    store.create(&record(n)).is_ok()
                })
            })
            .collect();
        creators.into_iter().map(|c| c.join().unwrap()).filter(|won| *won).count()
    });
    assert_eq!(created, 1);
}

#[test]
fn a_process_that_is_killed_while_it_holds_the_lock_frees_it() {
    let temp = tempfile::tempdir().unwrap();
    let (mut child, _lines) = start_holder("store-lock", temp.path());
    let store = FileStore::open(temp.path()).unwrap();
    let (bytes, version) = store.read().unwrap().unwrap();
    assert_eq!(bytes, b"0", "a reader does not wait for the lock");
    child.kill().unwrap();
    child.wait().unwrap();
    store.compare_and_set(&version, b"1").unwrap();
}
