//! Several agents claim at the same moment.
//!
//! In process, 200 rounds each: real agents (loop, journal, guards, core) over one real file store. A barrier in front of
//! the store lets nobody write before everybody has read the same record, so every round is the race that a
//! read-then-write would lose. Proven there: what the compare-and-set lets through, and that the floor holds at each
//! deregister call, whatever the order of the rest. Between real processes, a few rounds: the same through the binary, its
//! socket, the lock file and the AWS SDK, asked at the same moment, without a barrier.

use crate::fakes::instance;
use crate::race::{Claimed, Limits, ROUNDS, Round, begin, clean, one_of_two_goes, round};
use crate::scene::{BOUND, Scene, options};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::fleet::Store;
use backstop::fleet::file::{FileFleet, FileStore};
use backstop::rehearse::fleet::patch_request;
use backstop::rehearse::pace;
use std::path::Path;
use tokio::sync::mpsc;

/// The store in this directory, opened anew.
fn files(dir: &Path) -> impl Fn() -> Store {
    move || Store::File(FileFleet::new(FileStore::open(dir).unwrap()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_two_that_have_read_before_either_writes_one_goes_and_the_other_says_who() {
    let temp = tempfile::tempdir().unwrap();
    one_of_two_goes(files(temp.path()), ROUNDS).await;
}

/// Two slots, and a floor that leaves room for both: two go, never three.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_three_with_two_slots_two_go_and_the_floor_holds() {
    let l = Limits { members: 3, claimants: 3, max_unavailable: 2, minimum_healthy: 2, minimum_during_patch: 1 };
    let temp = tempfile::tempdir().unwrap();
    let open = files(temp.path());
    let store = open();
    begin(&store).await;
    for _ in 0..ROUNDS {
        clean(&store).await;
        let Round { claimed, record, out: gone, fewest, .. } = round(&open, l).await;
        assert!(fewest >= 1, "{claimed:?}");
        let out: Vec<&Claimed> = claimed.iter().filter(|c| c.stage == Some(StageName::Drain)).collect();
        assert_eq!((out.len(), gone.len(), record.slots.len()), (2, 2, 2), "{claimed:?}");
        let loser = claimed.iter().find(|c| c.stage != Some(StageName::Drain)).unwrap();
        let last = loser.last.as_ref().unwrap();
        assert_eq!((loser.stage, last.exit, loser.writes), (None, Exit::SlotHeld, 0), "{last:?}");
        let holders: Vec<String> = record.slots.values().map(|s| s.node.to_string()).collect();
        assert!(holders.iter().any(|h| last.message.contains(h)), "{}", last.message);
    }
}

/// Two slots, and a floor that leaves room for one: two slots are given, and yet one goes at most.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn of_three_with_two_slots_one_goes_where_the_floor_allows_no_more() {
    let l = Limits { members: 3, claimants: 3, max_unavailable: 2, minimum_healthy: 3, minimum_during_patch: 2 };
    let temp = tempfile::tempdir().unwrap();
    let open = files(temp.path());
    let store = open();
    begin(&store).await;
    let (mut went, mut floored) = (0_usize, 0_usize);
    for _ in 0..ROUNDS {
        clean(&store).await;
        let Round { claimed, record, deregistered, out: gone, fewest } = round(&open, l).await;
        assert!(fewest >= 2 && gone.len() <= 1, "{claimed:?}");
        for (i, c) in claimed.iter().enumerate() {
            let mine = instance(i + 1);
            let has_slot = record.slots.keys().any(|id| id.as_str() == mine);
            match c.stage {
                Some(StageName::Drain) => {
                    went += 1;
                    assert!(gone.contains(&mine) && has_slot, "{c:?}");
                }
                // The floor was gone right before the call: it turned round without having left, and may not have given
                // its slot back yet.
                Some(_) => {
                    floored += 1;
                    assert!(!deregistered.contains_key(&mine) && has_slot, "{c:?}");
                }
                None => {
                    let exit = c.last.as_ref().unwrap().exit;
                    floored += usize::from(matches!(exit, Exit::BelowMinimum | Exit::EndedEarly));
                    assert!(matches!(exit, Exit::SlotHeld | Exit::BelowMinimum | Exit::EndedEarly), "{c:?}");
                    assert!(!deregistered.contains_key(&mine) && !has_slot, "{c:?}");
                }
            }
        }
    }
    eprintln!("{went} went, {floored} were held back by the floor");
    assert!(floored > 0, "the floor was what held somebody back");
}

/// Real processes, asked at the same moment.
#[tokio::test(flavor = "multi_thread")]
async fn of_three_processes_asked_at_once_one_goes() {
    let mut o = options();
    o.nodes = 3;
    let s = Scene::with(o).await;
    for round in 1..=4 {
        let (send, mut replies) = mpsc::channel(3);
        let mut tasks = Vec::new();
        for machine in s.fleet.machines() {
            let (machine, send) = (machine.clone(), send.clone());
            let script =
                format!("echo {} >> {}; read code < {}", machine.name(), s.runs_file().display(), s.fifo().display());
            tasks.push(pace::Task::start(async move {
                let request = patch_request("patch", &["sh", "-c", &script], RebootPolicy::Never);
                let reply = machine.run(&request).await.unwrap();
                let _ = send.send((machine, reply)).await;
            }));
        }
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(replies.recv().await.unwrap());
        }
        s.until("one job", || s.runs() >= round).await;
        let winner = std::fs::read_to_string(s.runs_file()).unwrap().lines().last().unwrap().to_owned();
        for (machine, reply) in &all {
            let (exit, message) = match reply {
                RunReply::Started { .. } if machine.name() == winner => continue,
                RunReply::Started { cycle, .. } => {
                    let outcome = machine.wait_ended(cycle, BOUND).await.unwrap();
                    (outcome.exit, outcome.message)
                }
                RunReply::Refused { exit, message, .. } => (*exit, message.clone()),
                RunReply::Attached { .. } => panic!("{reply:?}"),
            };
            assert_eq!(exit, Exit::SlotHeld.code(), "{}: {message}", machine.name());
            assert!(message.contains(&winner), "the loser says who: {message}");
        }
        // The winner waits in its job: this is what everybody else sees of it.
        assert_eq!((s.runs(), s.fleet.in_service()), (round, 2));
        let record = s.fleet.record().unwrap();
        assert_eq!(
            record.slots.values().map(|s| s.node.to_string()).collect::<Vec<_>>(),
            std::slice::from_ref(&winner)
        );
        s.let_job_end(0).await;
        let (machine, reply) = all.into_iter().find(|(m, _)| m.name() == winner).unwrap();
        let RunReply::Started { cycle, .. } = reply else { panic!("{reply:?}") };
        let outcome = machine.wait_ended(&cycle, BOUND).await.unwrap();
        assert_eq!((outcome.exit, s.fleet.in_service()), (0, 3), "{}", outcome.message);
    }
    let record = s.fleet.record().unwrap();
    assert!(record.slots.is_empty() && record.latches.is_empty());
    assert_eq!(record.finished.len(), 4, "losers leave no trace: {record:?}");
    assert_eq!(s.fleet.receiver().received(), []);
}
