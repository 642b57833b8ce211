//! The book by its life cycle, its storms, its outbox; and what must hold whatever happens, as properties.

mod properties;

use super::super::cycle::StageName;
use super::super::error::Jitter;
use super::super::finding::{About, Finding, Kind, Report};
use super::super::ids::InstanceId;
use super::super::page::{Page, PageKind, Severity};
use super::super::time::{BootId, Now};
use super::{
    ALERTS_MAX, Book, Delivered, Delivery, Event, FAULT_AFTER_RESTART_MS, FAULT_QUIET_MS, HAND_OVER_MS,
    HOLD_BACK_LOOKS, Peer, Peers, REFUSED_MS, REMIND_MS, Sink,
};
use std::collections::BTreeSet;
use std::sync::Arc;

const S: u64 = 1_000;
const LOOK: u64 = 15 * S;

mod tellers;

fn start() -> Now {
    Now { wall_ms: 1_700_000_000_000, boot: BootId("b".into()), since_boot_ms: 1_000_000 }
}

fn at(ms: u64) -> Now {
    start().plus(ms)
}

fn sink(name: &str, dedups: bool) -> Sink {
    Sink { name: name.into(), dedups, renew_ms: None }
}

fn book() -> Book {
    let mut book = Book::new("f".into(), InstanceId("i-1".into()), "n-1".into());
    book.started(&start());
    book.sinks(vec![sink("pd", true), sink("hook", false)]);
    book
}

fn finding(kind: Kind, subject: &str, severity: Severity) -> Finding {
    Finding { kind, subject: subject.into(), severity, sentence: format!("{} {subject}", kind.label()).into() }
}

fn warn(kind: Kind, subject: &str) -> Finding {
    finding(kind, subject, Severity::Warning)
}

fn report(findings: Vec<Finding>) -> Report {
    Report::complete("n-1", findings)
}

fn page(seq: u64, kind: PageKind, cycle: &str, message: &str) -> Page {
    Page {
        seq,
        kind,
        severity: Severity::Critical,
        cycle: Some(cycle.into()),
        latch: None,
        job: None,
        stage: Some(StageName::Check),
        class: None,
        message: message.into(),
        job_result: None,
        out_since: None,
        raised: at(seq),
    }
}

/// All that is due now, each accepted at once, until nothing is. In order.
fn accept_all(book: &mut Book, now: &Now) -> Vec<Delivery> {
    let mut sent = Vec::new();
    for _ in 0..2_000 {
        book.tick(now);
        let due = book.due(now);
        let Some(d) = due.first() else { return sent };
        book.begin(d, now);
        book.result(d, &Delivered::Accepted, now, Jitter(0));
        sent.push(d.clone());
    }
    panic!("it never ends: {sent:?}");
}

fn told(sent: &[Delivery], sink: &str) -> Vec<(String, Event)> {
    sent.iter().filter(|d| *d.sink == *sink).map(|d| (d.key.to_string(), d.event)).collect()
}

fn fault() -> Delivered {
    Delivered::Fault { why: "no answer".into(), retry_after_ms: None }
}

fn refused() -> Delivered {
    Delivered::Refused { why: "400".into() }
}

/// Looks that find nothing, from `from` on.
fn clear(book: &mut Book, from: u64, looks: u64) -> u64 {
    (0..looks).for_each(|n| book.look(&report(vec![]), &at(from + n * LOOK)));
    from + looks * LOOK
}

#[test]
fn it_fires_at_once_gets_worse_under_its_key_and_ends_after_looks_that_span_a_minute() {
    let mut b = book();
    b.look(&report(vec![warn(Kind::Unhealthy, "n-2")]), &at(0));
    let key = "f/unhealthy/n-2".to_owned();
    let sent = accept_all(&mut b, &at(0));
    assert_eq!(told(&sent, "pd"), [(key.clone(), Event::Trigger)]);
    b.look(&report(vec![finding(Kind::Unhealthy, "n-2", Severity::Critical)]), &at(LOOK));
    b.look(&report(vec![warn(Kind::Unhealthy, "n-2")]), &at(2 * LOOK));
    let sent = accept_all(&mut b, &at(2 * LOOK));
    assert_eq!(told(&sent, "hook"), [(key.clone(), Event::Trigger)], "worse, and not better again within the episode");
    for n in 0..4 {
        b.look(&report(vec![]), &at(100 * S + n * LOOK));
        assert!(b.due(&at(100 * S + n * LOOK)).is_empty(), "look {n}");
    }
    b.look(&report(vec![]), &at(100 * S + 4 * LOOK));
    let sent = accept_all(&mut b, &at(100 * S + 4 * LOOK));
    assert_eq!(told(&sent, "pd"), [(key, Event::Resolve(0))]);
    assert!(b.told().is_empty());
}

#[test]
fn looks_that_could_not_judge_count_for_nothing_and_break_a_row() {
    let mut b = book();
    let about: About = (Kind::BelowMinimum, "f".into());
    b.look(&report(vec![warn(about.0, "f")]), &at(0));
    accept_all(&mut b, &at(0));
    for n in 1..400 {
        // Three good ones, never four that span a minute, and then one that knows nothing.
        let unjudged = if n % 4 == 0 { BTreeSet::from([about.0]) } else { BTreeSet::new() };
        b.look(&Report { unjudged, ..report(Vec::new()) }, &at(n * LOOK));
        assert!(b.get(&about).unwrap().fires(), "look {n}");
    }
    let single = BTreeSet::from([about.clone()]);
    for n in 400..500 {
        b.look(&Report { unjudged_about: single.clone(), ..report(Vec::new()) }, &at(n * LOOK));
    }
    assert!(b.get(&about).unwrap().fires(), "a subject that could not be judged");
}

#[test]
fn one_that_comes_and_goes_is_kept_up_until_it_was_quiet_for_a_quarter_of_an_hour() {
    let mut b = book();
    let flap = || report(vec![warn(Kind::Unhealthy, "n-2")]);
    let mut now = 0;
    for round in 0..4 {
        b.look(&flap(), &at(now));
        accept_all(&mut b, &at(now));
        now = clear(&mut b, now + LOOK, 6);
        let about = (Kind::Unhealthy, "n-2".into());
        assert_eq!(b.get(&about).unwrap().fires(), round == 3, "round {round}");
    }
    assert!(b.alerts()[0].flaps());
    let sent: Vec<_> = (0..70)
        .flat_map(|_| {
            now = clear(&mut b, now, 1);
            accept_all(&mut b, &at(now))
        })
        .collect();
    assert_eq!(told(&sent, "pd"), [("f/unhealthy/n-2".to_owned(), Event::Resolve(0))]);
}

#[test]
fn reminders_have_keys_of_their_own_and_end_with_their_alert() {
    let mut b = book();
    let day = 24 * 3_600 * S;
    b.look(&report(vec![warn(Kind::ConfigDiffers, "f")]), &at(0));
    accept_all(&mut b, &at(0));
    assert_eq!(b.next_due(&at(0)), Some(at(day)));
    let sent = accept_all(&mut b, &at(day));
    assert_eq!(told(&sent, "pd"), [("f/config-differs/f/reminder-1".to_owned(), Event::Reminder(1))]);
    let sent = accept_all(&mut b, &at(2 * day));
    let keys = |n: u32, event| (format!("f/config-differs/f/reminder-{n}"), event);
    assert_eq!(told(&sent, "pd"), [keys(2, Event::Reminder(2)), keys(1, Event::Resolve(1))], "one open at a time");
    clear(&mut b, 2 * day + LOOK, 6);
    let sent = accept_all(&mut b, &at(2 * day + 10 * LOOK));
    let alone = ("f/config-differs/f".to_owned(), Event::Resolve(0));
    assert_eq!(told(&sent, "hook"), [alone, keys(2, Event::Resolve(2))]);
}

#[test]
fn what_happens_to_nodes_is_told_in_the_page_about_the_fleet_and_by_itself_once_that_is_over() {
    let mut b = book();
    let floor = || finding(Kind::BelowFloor, "f", Severity::Critical);
    b.look(&report(vec![warn(Kind::Unhealthy, "n-3")]), &at(0));
    accept_all(&mut b, &at(0));
    let all = || {
        vec![floor(), warn(Kind::OutOfService, "n-2"), warn(Kind::Unhealthy, "n-3"), warn(Kind::OutOfService, "n-4")]
    };
    b.look(&report(all()), &at(LOOK));
    let sent = accept_all(&mut b, &at(LOOK));
    assert_eq!(told(&sent, "pd"), [("f/below-floor/f".to_owned(), Event::Trigger)], "n-3 has its own already");
    let parent: About = (Kind::BelowFloor, "f".into());
    let listed: Vec<_> = b.listed(&parent).into_iter().map(|(_, says)| says.to_string()).collect();
    assert_eq!(listed, ["out-of-service n-2", "out-of-service n-4"]);
    // One more falls: told as a change of the same page, at most once a minute.
    let more = || [all(), vec![warn(Kind::StuckInitial, "n-5")]].concat();
    b.look(&report(more()), &at(2 * LOOK));
    assert_eq!(accept_all(&mut b, &at(2 * LOOK)), []);
    let sent = accept_all(&mut b, &at(LOOK + 60 * S));
    assert_eq!(told(&sent, "pd"), [("f/below-floor/f".to_owned(), Event::Update)]);
    // The fleet is back above its floor, n-2 is not.
    for n in 10..20 {
        b.look(&report(vec![warn(Kind::OutOfService, "n-2")]), &at(n * LOOK));
    }
    let sent = told(&accept_all(&mut b, &at(20 * LOOK)), "pd");
    assert!(sent.contains(&("f/out-of-service/n-2".to_owned(), Event::Trigger)), "{sent:?}");
    assert!(!sent.iter().any(|(key, _)| key.ends_with("n-4") || key.ends_with("n-5")), "told of, and over: {sent:?}");
}

/// Below its floor since 0, with one node in the page, and one more that fell since.
fn grown() -> (Book, impl Fn(&[&str]) -> Report) {
    let look = |nodes: &[&str]| {
        let out = nodes.iter().map(|n| warn(Kind::OutOfService, n));
        report([finding(Kind::BelowFloor, "f", Severity::Critical)].into_iter().chain(out).collect())
    };
    let mut b = book();
    b.look(&look(&["n-2"]), &at(0));
    accept_all(&mut b, &at(0));
    b.look(&look(&["n-2", "n-3"]), &at(LOOK));
    assert_eq!(accept_all(&mut b, &at(LOOK)), []);
    (b, look)
}

#[test]
fn what_is_folded_into_a_page_that_is_out_is_an_update_and_wakes_nobody_again() {
    let (mut b, look) = grown();
    b.look(&look(&["n-2", "n-3"]), &at(60 * S));
    let update = |b: &mut Book, at: &Now| told(&accept_all(b, at), "hook");
    let key = || "f/below-floor/f".to_owned();
    assert_eq!(update(&mut b, &at(60 * S)), [(key(), Event::Update)]);
    assert_eq!(update(&mut b, &at(300 * S)), [], "once");
    // One more, and it is sent under another id, for the receiver that drops repeats.
    b.look(&look(&["n-2", "n-3", "n-4"]), &at(301 * S));
    assert_eq!(update(&mut b, &at(301 * S)), [(key(), Event::Update)]);
}

#[test]
fn an_update_is_dropped_when_what_it_would_say_is_over_before_it_is_sent() {
    // What came to the page has gone again, within its minute.
    let (mut b, look) = grown();
    b.look(&look(&["n-2"]), &at(2 * LOOK));
    (4..40).for_each(|n| {
        b.look(&look(&["n-2"]), &at(n * LOOK));
        assert_eq!(accept_all(&mut b, &at(n * LOOK)), [], "look {n}");
    });
    assert!(b.told_in(b.get(&(Kind::OutOfService, "n-2".into())).unwrap()).is_some());
    assert_eq!(b.told_in(b.get(&(Kind::OutOfService, "n-3".into())).unwrap()), None, "no page has it");
    // All is back by then, though not for long enough to be over.
    let (mut b, look) = grown();
    b.look(&report(vec![]), &at(60 * S));
    assert_eq!(accept_all(&mut b, &at(60 * S)), []);
    // And it was not: now it is told.
    b.look(&look(&["n-2", "n-3"]), &at(75 * S));
    assert_eq!(told(&accept_all(&mut b, &at(75 * S)), "hook"), [("f/below-floor/f".to_owned(), Event::Update)]);
    // The pager was away when it was due, and by now the node is back.
    let (mut b, look) = grown();
    b.look(&look(&["n-2", "n-3"]), &at(60 * S));
    for d in b.due(&at(60 * S)) {
        b.begin(&d, &at(60 * S));
        b.result(&d, &fault(), &at(60 * S), Jitter(0));
    }
    b.look(&look(&["n-2"]), &at(75 * S));
    assert_eq!(accept_all(&mut b, &at(75 * S)), []);
}

#[test]
fn what_the_last_look_no_longer_shows_is_listed_as_that() {
    let (mut b, look) = grown();
    let parent: About = (Kind::BelowFloor, "f".into());
    b.look(&look(&["n-2"]), &at(60 * S));
    let says: Vec<String> = b.listed(&parent).into_iter().map(|(_, says)| says.to_string()).collect();
    assert_eq!(says, ["out-of-service n-2", "out-of-service n-3 (no longer so by the last look)"]);
    (5..12).for_each(|n| b.look(&look(&["n-2"]), &at(n * LOOK)));
    assert_eq!(b.listed(&parent).len(), 1, "and not at all once it is over");
}

#[test]
fn a_node_that_is_back_a_little_later_than_the_fleet_gets_no_page_of_its_own() {
    let (mut b, _) = grown();
    let only = |nodes: &[&str]| report(nodes.iter().map(|n| warn(Kind::OutOfService, n)).collect());
    b.look(&only(&["n-3"]), &at(2 * LOOK));
    // The fleet is over first; n-3 was found once more than that, and then no more.
    (3..12).for_each(|n| {
        b.look(&only(&[]), &at(n * LOOK));
        let sent = told(&accept_all(&mut b, &at(n * LOOK)), "hook");
        assert!(
            sent.iter().all(|(key, event)| key == "f/below-floor/f" && *event == Event::Resolve(0)),
            "{n}: {sent:?}"
        );
    });
    assert!(b.alerts().iter().all(|a| !a.fires()));
    // One that is found again while it is about to be over is told after all.
    let (mut b, _) = grown();
    b.look(&only(&["n-3"]), &at(2 * LOOK));
    (3..7).for_each(|n| b.look(&only(&[]), &at(n * LOOK)));
    assert!(!b.get(&(Kind::BelowFloor, "f".into())).unwrap().fires());
    assert_eq!(told(&accept_all(&mut b, &at(6 * LOOK)), "hook").len(), 1, "the end of the fleet's");
    b.look(&only(&["n-3"]), &at(7 * LOOK));
    let sent = told(&accept_all(&mut b, &at(7 * LOOK)), "hook");
    assert_eq!(sent, [("f/out-of-service/n-3".to_owned(), Event::Trigger)]);
}

#[test]
fn nobody_is_reminded_of_what_the_last_look_no_longer_shows() {
    let mut b = book();
    let day = 24 * 3_600 * S;
    b.look(&report(vec![warn(Kind::ConfigDiffers, "f")]), &at(0));
    accept_all(&mut b, &at(0));
    b.look(&report(vec![]), &at(day));
    assert_eq!(accept_all(&mut b, &at(day)), []);
    b.look(&report(vec![warn(Kind::ConfigDiffers, "f")]), &at(day + LOOK));
    assert_eq!(told(&accept_all(&mut b, &at(day + LOOK)), "hook").len(), 1);
}

#[test]
fn a_page_of_the_cycle_machine_wakes_each_time_also_out_of_a_book_that_did_not_tell_news_apart() {
    let mut b = book();
    let out = page(2, PageKind::Latched, "c-1", "still OUT");
    b.pages(&[page(1, PageKind::Latched, "c-1", "failed")], &at(0));
    accept_all(&mut b, &at(0));
    b.pages(std::slice::from_ref(&out), &at(S));
    let mut old = serde_json::to_value(b.at_rest()).unwrap();
    old["alerts"][0].as_object_mut().unwrap().retain(|key, _| key != "wakes" && key != "late");
    let mut read: Book = serde_json::from_value(old).unwrap();
    read.started(&at(S));
    read.sinks(vec![sink("pd", true), sink("hook", false)]);
    for b in [&mut b, &mut read] {
        let sent = told(&accept_all(b, &at(2 * S)), "hook");
        assert_eq!(sent, [("f/latched/n-1".to_owned(), Event::Trigger)]);
        assert_eq!(b.acknowledged(), [2]);
    }
}

#[test]
fn of_many_at_once_the_worst_is_sent_and_names_the_others_and_none_is_lost() {
    let mut b = book();
    let mut many: Vec<Finding> = (0..12).map(|n| warn(Kind::AgentSilent, &format!("a-{n:02}"))).collect();
    many[7].severity = Severity::Critical;
    b.look(&report(many.clone()), &at(0));
    let first = accept_all(&mut b, &at(0));
    assert_eq!(told(&first, "pd"), [("f/agent-silent/a-07".to_owned(), Event::Trigger)]);
    assert_eq!(b.listed(&(Kind::AgentSilent, "a-07".into())).len(), 11);
    assert_eq!(b.undelivered(), 0, "whatever is named has been told of");
    let mut keys = BTreeSet::from(["f/agent-silent/a-07".to_owned()]);
    let mut now = 0;
    while let Some(next) = b.next_due(&at(now)).filter(|next| next.since_boot_ms < at(3_600 * S).since_boot_ms) {
        now = next.since(&at(0)).unwrap();
        keys.extend(told(&accept_all(&mut b, &at(now)), "pd").into_iter().map(|(key, _)| key));
    }
    assert_eq!(keys.len(), 12, "{keys:?}");
    assert!(now <= 12 * 60 * S, "{now}");
    // Few are sent each by itself.
    let mut b = book();
    b.look(&report(many.into_iter().take(5).collect()), &at(0));
    assert_eq!(told(&accept_all(&mut b, &at(0)), "pd").len(), 5);
}

#[test]
fn a_sink_without_a_memory_gets_it_from_the_lowest_ranked_and_from_another_one_only_if_that_fails() {
    let peer = |n: u32, told: &[&str]| Peer {
        instance: InstanceId(format!("i-{n}").into()),
        node: format!("n-{n}").as_str().into(),
        told: told.iter().map(|key| Arc::from(*key)).collect(),
    };
    let key = "f/foreign-target/x";
    let ranked = |rank: u32, said: &[&str]| Peers { rank, live: vec![peer(0, said)], every_ms: LOOK };
    for rank in 0..4_u32 {
        let mut b = book();
        b.peers(ranked(rank, &[]));
        b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(0));
        let sent = accept_all(&mut b, &at(0));
        assert_eq!(told(&sent, "pd").len(), 1, "a sink that knows repeats gets it from everybody");
        assert_eq!(told(&sent, "hook").len(), usize::from(rank == 0), "{rank}");
        let turn = HOLD_BACK_LOOKS * LOOK * u64::from(rank);
        if rank > 0 {
            assert_eq!(accept_all(&mut b, &at(turn - 1)), []);
            let mut heard = b.clone();
            heard.peers(ranked(rank, &[key]));
            assert_eq!(accept_all(&mut heard, &at(turn)), [], "somebody else has");
            assert_eq!(told(&accept_all(&mut b, &at(turn)), "hook").len(), 1, "nobody did");
            // It is over while the one that sent it is dead: it has to be closed by another one.
            heard.peers(Peers { rank, live: vec![], every_ms: LOOK });
            clear(&mut heard, turn + LOOK, 6);
            let sent = accept_all(&mut heard, &at(turn + 10 * LOOK));
            assert_eq!(told(&sent, "hook"), [(key.to_owned(), Event::Resolve(0))]);
        }
        assert_eq!(b.told(), [Arc::from(key)]);
    }
    // What is about this very agent waits for nobody.
    let mut b = book();
    b.peers(ranked(3, &[]));
    b.look(&report(vec![warn(Kind::Blind, "n-1: load balancer")]), &at(0));
    b.pages(&[page(1, PageKind::Latched, "c-1", "failed")], &at(0));
    assert_eq!(told(&accept_all(&mut b, &at(0)), "hook").len(), 2);
}

#[test]
fn a_page_is_acknowledged_by_one_sink_and_owed_to_all() {
    let mut b = book();
    let pages = [page(1, PageKind::Latched, "c-1", "failed")];
    b.pages(&pages, &at(0));
    let due = b.due(&at(0));
    assert_eq!(due.len(), 2);
    for d in &due {
        b.begin(d, &at(0));
    }
    assert!(b.due(&at(0)).is_empty(), "each once");
    b.result(&due[0], &fault(), &at(0), Jitter(0));
    assert!(b.acknowledged().is_empty());
    b.result(&due[1], &Delivered::Accepted, &at(0), Jitter(0));
    assert_eq!(b.acknowledged(), [1]);
    b.pages(&[], &at(S));
    assert!(b.acknowledged().is_empty() && b.due(&at(S)).is_empty());
    let again = b.next_due(&at(S)).unwrap();
    assert_eq!(
        b.due(&again).iter().map(|d| (&*d.sink, d.event)).collect::<Vec<_>>(),
        [(&*due[0].sink, Event::Trigger)]
    );
    assert_eq!(b.due(&again)[0].id, due[0].id, "every try has the same id");
}

#[test]
fn a_page_that_was_over_before_anybody_heard_of_it_is_still_told_and_then_its_end() {
    let mut b = book();
    b.pages(&[page(1, PageKind::ConfigUnusable, "c-1", "bad")], &at(0));
    let due = b.due(&at(0));
    for d in &due {
        b.begin(d, &at(0));
    }
    for d in &due {
        b.result(d, &refused(), &at(0), Jitter(0));
    }
    b.over(&(Kind::ConfigUnusable, "n-1".into()), &at(S));
    let sent = accept_all(&mut b, &at(100 * S));
    let of_config =
        |sink: &str| told(&sent, sink).into_iter().filter(|(key, _)| key.contains("config")).collect::<Vec<_>>();
    let key = || "f/config-unusable/n-1".to_owned();
    let first = if *sent[0].sink == *"hook" { "hook" } else { "pd" };
    assert_eq!(of_config(first), [(key(), Event::Trigger), (key(), Event::Resolve(0))]);
}

#[test]
fn a_sink_that_refuses_is_an_alert_through_the_others_until_it_accepts() {
    let mut b = book();
    b.look(&report(vec![warn(Kind::ForeignTarget, "x")]), &at(0));
    let outcome = |d: &Delivery| if *d.sink == *"pd" { refused() } else { Delivered::Accepted };
    let refuses = |b: &mut Book, now: &Now| {
        for _ in 0..10 {
            for d in b.due(now) {
                b.begin(&d, now);
                b.result(&d, &outcome(&d), now, Jitter(0));
            }
        }
    };
    // The first refusal comes before anybody has it, so the next try is soon; that one is the last for long.
    (0..5).for_each(|n| refuses(&mut b, &at(n * 60 * S)));
    let about: About = (Kind::SinkRefuses, "n-1: pd".into());
    let alert = b.get(&about).unwrap();
    assert!(alert.fires() && alert.sent["hook"].accepted.is_some() && !alert.sent.contains_key("pd"));
    // Somebody has the page: the sink that refuses it is not asked again for an hour, or after a reload.
    assert!(b.due(&at(REFUSED_MS / 2)).is_empty());
    let mut reloaded = b.clone();
    reloaded.reloaded();
    assert_eq!(reloaded.due(&at(S)).len(), 1);
    let sent = accept_all(&mut b, &at(2 * REFUSED_MS));
    assert!(told(&sent, "pd").contains(&("f/foreign-target/x".to_owned(), Event::Trigger)));
    assert!(told(&sent, "hook").contains(&("f/sink-refuses/n-1: pd".to_owned(), Event::Resolve(0))), "{sent:?}");
}

#[test]
fn a_page_that_nobody_has_is_tried_again_soon_also_where_it_was_refused() {
    let mut b = book();
    b.pages(&[page(1, PageKind::Latched, "c-1", "failed")], &at(0));
    let due = b.due(&at(0));
    for d in &due {
        b.begin(d, &at(0));
    }
    for d in &due {
        b.result(d, &refused(), &at(0), Jitter(0));
    }
    assert!(b.next_due(&at(0)).unwrap().since(&at(0)).unwrap() <= 60 * S);
    assert_eq!(b.undelivered(), 3, "the page, and that both pagers refuse");
}

#[test]
fn the_failure_of_another_cycle_is_a_new_page_though_the_first_is_open() {
    let mut b = book();
    let (one, two) = (page(1, PageKind::Latched, "c-1", "a"), page(2, PageKind::Latched, "c-2", "b"));
    b.pages(std::slice::from_ref(&one), &at(0));
    accept_all(&mut b, &at(0));
    b.pages(&[one, two], &at(S));
    let key = || "f/latched/n-1".to_owned();
    assert_eq!(told(&accept_all(&mut b, &at(S)), "pd"), [(key(), Event::Resolve(0)), (key(), Event::Trigger)]);
    assert_eq!(b.acknowledged(), [1, 2]);
}

#[test]
fn troubles_of_the_agent_do_not_hide_each_other_and_end_by_a_quiet_hour_after_a_restart() {
    let mut b = book();
    let pages = [page(1, PageKind::AgentFault, "c-1", "disk"), page(2, PageKind::AgentFault, "c-1", "socket")];
    b.pages(&pages, &at(0));
    let sent = told(&accept_all(&mut b, &at(0)), "pd");
    assert_eq!(sent.len(), 2);
    assert_ne!(sent[0].0, sent[1].0);
    b.pages(&[], &at(40 * FAULT_AFTER_RESTART_MS));
    assert_eq!(b.alerts().iter().filter(|a| a.fires()).count(), 2, "quiet alone proves nothing");
    let restart = 41 * FAULT_AFTER_RESTART_MS;
    b.started(&at(restart));
    b.tick(&at(restart + FAULT_AFTER_RESTART_MS - 1));
    assert_eq!(b.alerts().iter().filter(|a| a.fires()).count(), 2);
    b.tick(&at(restart + FAULT_AFTER_RESTART_MS));
    assert_eq!(b.alerts().iter().filter(|a| a.fires()).count(), 0);
}

#[test]
fn a_report_does_not_end_what_the_cycle_machine_raised() {
    let mut b = book();
    b.pages(&[page(1, PageKind::Latched, "c-1", "failed")], &at(0));
    accept_all(&mut b, &at(0));
    clear(&mut b, 0, 50);
    let about: About = (Kind::Latched, "n-1".into());
    assert!(b.get(&about).unwrap().fires(), "the latch may not have been written yet");
    b.look(&report(vec![warn(Kind::Latched, "n-1")]), &at(51 * LOOK));
    b.over(&about, &at(51 * LOOK));
    assert!(b.get(&about).unwrap().fires(), "what the last look found is not over");
    b.look(&report(vec![]), &at(52 * LOOK));
    b.over(&about, &at(52 * LOOK));
    assert!(!b.get(&about).unwrap().fires());
}

#[test]
fn a_full_book_never_drops_the_worst_for_a_lesser_one_and_says_how_many() {
    let mut b = book();
    let worst = (0..ALERTS_MAX).map(|n| finding(Kind::ForeignTarget, &format!("c-{n}"), Severity::Critical));
    let mut all: Vec<Finding> = worst.collect();
    all[5].severity = Severity::Warning;
    b.look(&report(all.clone()), &at(0));
    all.push(finding(Kind::AgentSilent, "late", Severity::Critical));
    b.look(&report(all), &at(LOOK));
    assert_eq!(b.alerts().len(), ALERTS_MAX);
    assert!(b.get(&(Kind::ForeignTarget, "c-5".into())).is_none_or(|a| a.more > 0), "the one warning went first");
    assert!(
        b.get(&(Kind::AgentSilent, "late".into())).is_some_and(|a| a.more > 0) || b.alerts().iter().any(|a| a.more > 0)
    );
}

#[test]
fn an_agent_that_no_longer_looks_leaves_what_it_has_told_to_those_that_do() {
    let mut b = book();
    b.look(&report(vec![warn(Kind::AgentSilent, "n-2")]), &at(0));
    accept_all(&mut b, &at(0));
    let nothing = Report { unjudged: Kind::ALL.into_iter().collect(), ..Report::default() };
    for (rank, kept) in [(2, true), (3, false)] {
        let mut b = b.clone();
        b.peers(Peers { rank, live: vec![], every_ms: LOOK });
        (1..60).for_each(|n| b.look(&nothing, &at(n * LOOK)));
        assert_eq!(b.alerts().len(), usize::from(kept), "rank {rank}");
    }
}

#[test]
fn an_emptied_group_is_one_page_though_more_are_out_than_anything_explains() {
    let mut b = book();
    let floor = finding(Kind::BelowFloor, "f", Severity::Critical);
    let out = finding(Kind::MoreOutThanSlots, "f", Severity::Critical);
    b.look(&report(vec![floor, out, warn(Kind::RunningNotRegistered, "n-2")]), &at(0));
    let sent = accept_all(&mut b, &at(0));
    assert_eq!(told(&sent, "pd"), [("f/below-floor/f".to_owned(), Event::Trigger)]);
    assert_eq!(b.listed(&(Kind::BelowFloor, "f".into())).len(), 2);
}

#[test]
fn an_agent_without_its_config_forgets_nothing_that_its_pagers_have() {
    let mut b = book();
    b.look(&report(vec![warn(Kind::Unhealthy, "n-2")]), &at(0));
    accept_all(&mut b, &at(0));
    b.sinks(vec![]);
    b.started(&at(S));
    assert!(b.due(&at(S)).is_empty());
    b.sinks(vec![sink("pd", true), sink("hook", false)]);
    assert_eq!(accept_all(&mut b, &at(2 * S)), vec![], "they have it");
    let t = clear(&mut b, 20 * S, 6);
    let ends = accept_all(&mut b, &at(t));
    assert_eq!(told(&ends, "pd"), [("f/unhealthy/n-2".to_owned(), Event::Resolve(0))], "and hear that it is over");
}

#[test]
fn a_trouble_of_the_agent_that_is_said_again_is_nothing_new_but_that_it_lasts() {
    let mut b = book();
    let again = |seq, message: &str| Page { cycle: None, ..page(seq, PageKind::AgentFault, "c", message) };
    b.pages(&[again(1, "it stumbles")], &at(0));
    assert_eq!(told(&accept_all(&mut b, &at(0)), "hook").len(), 1);
    b.pages(&[again(2, "it stumbles")], &at(FAULT_QUIET_MS - 1));
    b.tick(&at(FAULT_QUIET_MS + 1));
    assert_eq!(b.acknowledged(), [2], "it waits for nobody");
    let events: Vec<Event> = accept_all(&mut b, &at(FAULT_QUIET_MS + 1)).iter().map(|d| d.event).collect();
    assert!(events.iter().all(|e| matches!(e, Event::Reminder(1))), "{events:?}");
}
