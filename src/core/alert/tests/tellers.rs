//! Who tells a sink without a memory, and what becomes of it when that one is gone.

use super::super::WINDOW_MS;
use super::*;

#[test]
fn who_shares_its_identity_tells_of_it_after_the_others_and_they_minutes_apart() {
    let peer = |i: &str| Peer { instance: i.into(), node: i.into(), told: std::collections::BTreeSet::default() };
    let turn = |live: &[&str], twin: &str| {
        let mut b = book();
        b.peers(Peers { rank: 0, live: live.iter().map(|i| peer(i)).collect(), every_ms: LOOK });
        b.look(&report(vec![warn(Kind::TwoWithOneIdentity, twin)]), &at(0));
        let tells = |ms: &u64| !told(&accept_all(&mut b.clone(), &at(*ms)), "hook").is_empty();
        [0, HAND_OVER_MS, 2 * HAND_OVER_MS, 3 * HAND_OVER_MS].into_iter().find(tells)
    };
    assert_eq!(turn(&["i-2", "i-3"], "i-2"), Some(0), "the first that is not one of the two");
    assert_eq!(turn(&["i-0", "i-2"], "i-0"), Some(0), "one of the two is nobody to wait for");
    assert_eq!(turn(&["i-0", "i-2"], "i-2"), Some(HAND_OVER_MS));
    assert_eq!(turn(&["i-2", "i-3"], "i-1"), Some(2 * HAND_OVER_MS), "one of the two");
    assert_eq!(turn(&[], "i-1"), Some(0), "nobody else would");
}

/// An agent of rank 1 that another one told of this, and what it sends by then.
fn covered(kind: Kind) -> Book {
    let mut b = book();
    b.peers(Peers { rank: 1, live: vec![teller(&["f/foreign-target/x"])], every_ms: LOOK });
    b.look(&report(vec![warn(kind, "x")]), &at(0));
    assert_eq!(told(&accept_all(&mut b, &at(0)), "hook"), [], "another one has");
    b
}

fn teller(keys: &[&str]) -> Peer {
    Peer { instance: "i-0".into(), node: "n-0".into(), told: keys.iter().map(|key| Arc::from(*key)).collect() }
}

#[test]
fn what_its_teller_can_no_longer_answer_for_is_taken_over_without_a_word_and_closed() {
    let wait = HOLD_BACK_LOOKS * LOOK * 2;
    // It died; or it lives, and has left it to those that look.
    for live in [vec![], vec![teller(&[])]] {
        let mut b = covered(Kind::ForeignTarget);
        b.peers(Peers { rank: 1, live, every_ms: LOOK });
        for ms in [0, wait - 1] {
            b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(LOOK + ms));
            assert_eq!(told(&accept_all(&mut b, &at(LOOK + ms)), "hook"), []);
        }
        assert_eq!(b.told(), Vec::<Arc<str>>::new());
        b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(LOOK + wait));
        assert_eq!(told(&accept_all(&mut b, &at(LOOK + wait)), "hook"), [], "it is open there");
        assert_eq!(b.told(), [Arc::from("f/foreign-target/x")], "for the others: this one answers for it now");
        // It gets worse, lasts for a day, and ends.
        b.look(&report(vec![finding(Kind::ForeignTarget, "x", Severity::Critical)]), &at(wait + 3 * LOOK));
        let key = "f/foreign-target/x".to_owned();
        assert_eq!(told(&accept_all(&mut b, &at(wait + 3 * LOOK)), "hook"), [(key.clone(), Event::Trigger)]);
        let end = clear(&mut b, wait + 4 * LOOK, 8);
        assert_eq!(told(&accept_all(&mut b, &at(end)), "hook"), [(key, Event::Resolve(0))]);
    }
}

#[test]
fn another_teller_takes_the_place_of_the_first_one() {
    let mut b = covered(Kind::ForeignTarget);
    let other = Peer { instance: "i-9".into(), ..teller(&["f/foreign-target/x"]) };
    for n in 1..100 {
        b.peers(Peers { rank: 1, live: vec![other.clone()], every_ms: LOOK });
        b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(n * LOOK));
        assert_eq!(told(&accept_all(&mut b, &at(n * LOOK)), "hook"), []);
    }
}

#[test]
fn what_a_plan_explains_by_now_stays_open_and_reminds_nobody() {
    let mut b = book();
    b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(0));
    assert_eq!(told(&accept_all(&mut b, &at(0)), "hook").len(), 1);
    let about = (Kind::ForeignTarget, Arc::from("x"));
    let mut planned = report(vec![]);
    planned.unjudged_about.insert(about.clone());
    planned.planned.insert(about);
    b.look(&planned, &at(REMIND_MS + LOOK));
    assert_eq!(accept_all(&mut b, &at(REMIND_MS + LOOK)), [], "neither a reminder nor an end");
    b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(REMIND_MS + 2 * LOOK));
    let events: Vec<Event> = accept_all(&mut b, &at(REMIND_MS + 2 * LOOK)).iter().map(|d| d.event).collect();
    assert_eq!(events, [Event::Reminder(1), Event::Reminder(1)], "the plan is over, and it still is so");
}

/// A node joins a page that is out, which ends and comes back: the new page had it from the start.
#[test]
fn a_page_that_comes_back_is_sent_once_and_not_updated_for_ever() {
    let floor = || finding(Kind::BelowFloor, "f", Severity::Critical);
    let mut b = book();
    b.look(&report(vec![floor()]), &at(0));
    accept_all(&mut b, &at(0));
    // It joins, and is listed by an update a minute later.
    b.look(&report(vec![floor(), warn(Kind::Unhealthy, "n-3")]), &at(LOOK));
    b.look(&report(vec![floor(), warn(Kind::Unhealthy, "n-3")]), &at(LOOK + WINDOW_MS));
    let updates: Vec<Event> = accept_all(&mut b, &at(LOOK + WINDOW_MS)).iter().map(|d| d.event).collect();
    assert_eq!(updates, [Event::Update, Event::Update], "one to each sink");
    // The page ends, the node a moment after it; and before that one is over, too, both are back.
    let over = LOOK + WINDOW_MS;
    (1..=3).for_each(|n| b.look(&report(vec![warn(Kind::Unhealthy, "n-3")]), &at(over + n * LOOK)));
    (4..=5).for_each(|n| b.look(&report(vec![]), &at(over + n * LOOK)));
    assert_eq!(b.alerts().iter().filter(|a| a.fires()).count(), 1, "the page about the fleet is over");
    b.look(&report(vec![floor(), warn(Kind::Unhealthy, "n-3")]), &at(over + 6 * LOOK));
    let sent = accept_all(&mut b, &at(over + 6 * LOOK));
    assert!(sent.len() < 10, "{:?}", sent.iter().map(|d| (&*d.key, d.event)).collect::<Vec<_>>());
}

#[test]
fn a_page_that_was_sent_right_before_a_kill_is_sent_again_under_the_same_id() {
    let page = page(1, PageKind::Latched, "c-1", "failed");
    let ids = |ms: u64| {
        let mut b = book();
        b.pages(std::slice::from_ref(&page), &at(ms));
        b.due(&at(ms)).into_iter().map(|d| d.id).collect::<Vec<_>>()
    };
    assert!(!ids(0).is_empty());
    assert_eq!(ids(0), ids(90 * S), "the book was not stored yet; the page was");
}
