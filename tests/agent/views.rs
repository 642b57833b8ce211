//! Every view of the agent is taken away in turn. Unknown is neither well nor ill: after five minutes it is a page of its
//! own, meanwhile no open alert ends and nothing is written to the load balancer, and with sight the page ends.

use crate::fakes::{Call, Fake, Shown, Trouble, instance};
use crate::running::Running;
use backstop::clock::Clock;
use backstop::core::error::Class;
use backstop::core::record::{Extra, Latch, Record};
use backstop::core::target::{Named, Own};
use std::collections::BTreeSet;

/// Looks are seconds apart: this much beyond the stated time. (A throttled view is looked at more seldom.)
const SLACK_S: u64 = 60;
const BLIND_S: u64 = 300;
/// Sight is back, and three looks over a minute have shown what is so; a throttled view is asked again after two minutes.
const CLEAR_S: u64 = 600;

const BALANCER: [&str; 2] = ["load balancer es-clients", "load balancer es-internal"];

fn blind(source: &str) -> String {
    format!("test/blind/es-client-1: {source}")
}

fn set(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|k| (*k).to_owned()).collect()
}

/// Each of these rests on another view.
const OUT: &str = "test/below-minimum/test";
const FOREIGN: [&str; 2] =
    ["test/foreign-target/es-clients i-foreign:9200", "test/foreign-target/es-internal i-foreign:9200"];
const STRANGER: &str = "test/node-without-agent/es-client-9";
const SILENT: &str = "test/agent-silent/es-client-3";
const LATCHED: &str = "test/latched/es-client-3";

fn latch() -> Latch {
    Latch {
        instance: instance(3).as_str().into(),
        node: "es-client-3".into(),
        stage: "patch".into(),
        class: "job".into(),
        message: "exit 1".into(),
        job: "kernel".into(),
        since_ms: 0,
        cleared: None,
        extra: Extra::new(),
    }
}

/// One agent in a fleet of which everybody knows everything, and in which nothing is well.
async fn in_alarm() -> Running {
    let fake = Fake::new();
    fake.talk();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    assert_eq!(r.firing(), BTreeSet::new(), "a fleet at rest");
    fake.serves(2, false);
    fake.foreign_target(true);
    fake.stranger(Some(9));
    fake.beats(3, Some(7));
    fake.latched(3, latch);
    let all = |r: &Running| {
        let wanted = [OUT, FOREIGN[0], FOREIGN[1], STRANGER, SILENT, LATCHED];
        let told: BTreeSet<String> = r.fake.all_pages().into_iter().map(|p| p.key).collect();
        wanted.iter().all(|key| told.contains(*key))
    };
    r.comes_within("everything is told", 900, all).await;
    r
}

/// Everything is well again, seen or not.
fn heal(fake: &Fake) {
    fake.serves(2, true);
    fake.foreign_target(false);
    fake.stranger(None);
    fake.beats_of_itself(3);
    if fake.has_record() {
        fake.clear_latches();
    }
}

/// What is taken away, and what follows from that.
struct Loss<'a> {
    what: String,
    /// Takes it away and gives it back.
    take: Box<dyn Fn(&Fake) + 'a>,
    give: Box<dyn Fn(&Fake) + 'a>,
    /// Sources that are not seen then.
    sources: &'a [&'a str],
    /// What rests on them.
    rests: &'a [&'a str],
}

impl Loss<'_> {
    async fn proves(&self) {
        let r = in_alarm().await;
        let (fake, what) = (r.fake.clone(), &self.what);
        let writes = fake.balancer_writes();
        let ended_before = fake.told().len();
        (self.take)(&fake);
        let rests = set(self.rests);
        // Before a look was lost what is healed could be seen to be.
        r.seconds(20).await;
        heal(&fake);
        let wanted: BTreeSet<String> = self.sources.iter().map(|s| blind(s)).collect();
        let told = |r: &Running| {
            let pages = r.fake.all_pages().into_iter().map(|p| p.key);
            pages.filter(|key| key.starts_with("test/blind/")).collect::<BTreeSet<String>>()
        };
        r.seconds(BLIND_S - 40).await;
        assert_eq!(told(&r), BTreeSet::new(), "{what}: not before its time");
        r.comes_within("it says that it is blind", 40 + SLACK_S, |r| told(r) == wanted).await;
        r.minutes(15).await;
        let ended: BTreeSet<String> =
            fake.told()[ended_before..].iter().filter(|p| p.event == "resolve").map(|p| p.key.clone()).collect();
        assert_eq!(
            ended.intersection(&rests).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{what}: unknown ends nothing"
        );
        assert!(rests.is_subset(&r.firing()), "{what}: {:?}", r.firing());
        assert_eq!(told(&r), wanted, "{what}");
        for key in &wanted {
            assert_eq!(fake.all_pages().iter().filter(|p| p.key == *key).count(), 1, "{what}: {key} once");
        }

        (self.give)(&fake);
        r.comes_within("all is well, and told to be", CLEAR_S, |r| {
            let ended = r.fake.resolved();
            r.firing().is_empty() && wanted.iter().chain(&rests).all(|key| ended.contains(key))
        })
        .await;
        assert_eq!(fake.balancer_writes(), writes, "{what}: nothing was written to the load balancer");
        r.kill();
    }
}

fn calls_fail<'a>(
    what: &str,
    calls: &'a [Call],
    trouble: Trouble,
    sources: &'a [&'a str],
    rests: &'a [&'a str],
) -> Loss<'a> {
    Loss {
        what: format!("{what}: {trouble:?}"),
        take: Box::new(move |fake| fake.troubles(calls, Some(trouble))),
        give: Box::new(move |fake| fake.troubles(calls, None)),
        sources,
        rests,
    }
}

const RESTS_ON_BALANCER: [&str; 3] = [OUT, FOREIGN[0], FOREIGN[1]];

#[tokio::test]
async fn a_load_balancer_that_hangs_or_is_not_understood_is_a_page_and_ends_nothing() {
    // What hangs, and what is junk under a 200, is `transport` once it has come through the adapter (tests/adapters).
    for class in [Class::Transport, Class::NotReady] {
        calls_fail("ELBv2", &[Call::Poll], Trouble::Class(class), &BALANCER, &RESTS_ON_BALANCER).proves().await;
    }
}

#[tokio::test]
async fn a_load_balancer_that_refuses_or_throttles_is_a_page_and_ends_nothing() {
    for class in [Class::Throttled, Class::Auth, Class::Refused] {
        calls_fail("ELBv2", &[Call::Poll], Trouble::Class(class), &BALANCER, &RESTS_ON_BALANCER).proves().await;
    }
}

#[tokio::test]
async fn an_empty_or_partial_list_that_members_contradict_is_a_page_and_ends_nothing() {
    // All targets are hidden from whole lists; asked by name each is there.
    let empty = Loss {
        what: "an empty 200".to_owned(),
        take: Box::new(|fake| (1..=3).for_each(|n| fake.hide(n, true))),
        give: Box::new(|fake| (1..=3).for_each(|n| fake.hide(n, false))),
        sources: &BALANCER,
        rests: &[OUT],
    };
    empty.proves().await;
    let own = Loss {
        what: "a list without the own target".to_owned(),
        take: Box::new(|fake| fake.hide(1, true)),
        give: Box::new(|fake| fake.hide(1, false)),
        sources: &BALANCER,
        rests: &RESTS_ON_BALANCER,
    };
    own.proves().await;
    let other = Loss {
        what: "a list without another member, who reads itself healthy".to_owned(),
        take: Box::new(|fake| fake.hide(2, true)),
        give: Box::new(|fake| fake.hide(2, false)),
        sources: &BALANCER,
        rests: &RESTS_ON_BALANCER,
    };
    other.proves().await;
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_is_a_page_and_ends_nothing() {
    for trouble in [Trouble::Class(Class::Transport), Trouble::Class(Class::Auth)] {
        calls_fail("Elasticsearch", &[Call::Nodes, Call::Check], trouble, &["cluster nodes"], &[STRANGER])
            .proves()
            .await;
    }
}

#[tokio::test]
async fn a_store_that_is_gone_is_a_page_for_members_and_record_and_ends_nothing() {
    let calls = [Call::ReadRecord, Call::WriteRecord, Call::Members, Call::Beat];
    let rests = [OUT, FOREIGN[0], FOREIGN[1], STRANGER, SILENT, LATCHED];
    let trouble = Trouble::Class(Class::Transport);
    calls_fail("the store", &calls, trouble, &["members", "fleet record"], &rests).proves().await;
}

#[tokio::test]
async fn a_record_that_was_deleted_or_is_none_is_a_page_and_ends_no_latch() {
    for bytes in [None, Some(b"{\"schema\":1".to_vec())] {
        let kept = std::cell::RefCell::new(None::<Record>);
        let what = bytes.as_ref().map_or("the record was deleted", |_| "the record is none").to_owned();
        let loss = Loss {
            what,
            take: Box::new(|fake| {
                *kept.borrow_mut() = Some(fake.record());
                fake.put_bytes(bytes.clone());
            }),
            give: Box::new(|fake| {
                fake.put_record(kept.borrow().as_ref());
                fake.clear_latches();
            }),
            sources: &["fleet record"],
            rests: &[LATCHED],
        };
        loss.proves().await;
    }
}

#[tokio::test]
async fn an_answer_that_is_empty_and_that_nothing_contradicts_is_an_emptied_fleet_and_nothing_is_written_on_it() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    let nothing = Shown { list: Vec::new(), named: Named::Rows(Vec::new()), others: false };
    (0..2).for_each(|group| fake.show(group, Some(nothing.clone())));
    let paged = |r: &Running| r.fake.all_pages().iter().any(|p| p.key == "test/below-floor/test");
    r.comes_within("a page", 60, paged).await;
    r.minutes(15).await;
    assert_eq!(fake.balancer_writes(), 0, "that the own target is gone was said by nobody");
    (0..2).for_each(|group| fake.show(group, None));
    r.comes_within("its end", CLEAR_S, |r| r.firing().is_empty()).await;
    assert_eq!(fake.balancer_writes(), 0);
}

#[tokio::test]
async fn a_node_that_is_out_is_not_registered_blindly_and_is_registered_once_it_is_seen_to_be_out() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    fake.take_out();
    r.comes_within("a page", 60, |r| !r.fake.all_pages().is_empty()).await;
    fake.trouble(Call::Poll, Some(Trouble::Class(Class::Throttled)));
    r.minutes(30).await;
    assert_eq!(fake.balancer_writes(), 0, "whoever cannot see writes nothing");
    fake.trouble(Call::Poll, None);
    r.comes_within("in service", 900, |r| r.fake.in_service()).await;
    r.comes_within("all pages end", 900, |r| r.firing().is_empty()).await;
}

#[tokio::test]
async fn a_question_by_name_that_failed_counts_no_more_once_the_list_shows_the_own_target() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    fake.trouble(Call::Named, Some(Trouble::Class(Class::Transport)));
    fake.hide(1, true);
    let fault = |r: &Running| r.shared.observed.borrow().faults.contains_key("load balancer");
    r.comes_within("it is not seen", 60, fault).await;
    fake.hide(1, false);
    // By name nothing is answered still, and nothing has to be asked.
    r.comes_within("it is seen again", 60, |r| !fault(r)).await;
    assert!(r.shared.observed.borrow().own.iter().all(|own| *own == Own::InService));
    fake.take_out();
    fake.trouble(Call::Named, None);
    r.comes_within("it heals itself", 900, |r| r.fake.in_service()).await;
}

/// A machine that stood still for an hour, and clocks that are set.
#[tokio::test]
async fn a_clock_that_jumps_by_an_hour_raises_nothing_ends_nothing_and_writes_nothing() {
    for wall in [None, Some(3_600_000_i64), Some(-3_600_000)] {
        let r = in_alarm().await;
        let fake = r.fake.clone();
        // Whoever jumps has not seen more than one look since: an end takes three.
        let (told, firing, writes) = (fake.told().len(), r.firing(), fake.balancer_writes());
        let now = fake.clock.now();
        match wall {
            None => fake.clock.advance(3_600_000),
            Some(by) => fake.clock.set_wall(now.wall_ms.saturating_add_signed(by)),
        }
        r.minutes(10).await;
        assert_eq!(r.firing(), firing, "{wall:?}");
        let since: Vec<_> = fake.told()[told..].iter().map(|p| (p.event.clone(), p.key.clone())).collect();
        assert_eq!(since, [], "{wall:?}");
        heal(&fake);
        r.comes_within("all is well", CLEAR_S, |r| r.firing().is_empty()).await;
        assert_eq!(fake.balancer_writes(), writes, "{wall:?}");
        r.kill();
    }
}
