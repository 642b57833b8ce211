//! What must hold whatever happens in whatever order.

use super::super::{Alert, Book, Delivered, Delivery, REFUSED_MS};
use super::{
    About, Finding, Jitter, Kind, Now, Page, PageKind, Report, Severity, book, fault, finding, page, refused, sink,
    start, warn,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What may happen to a book.
#[derive(Clone, Debug)]
enum Step {
    /// Which of the subjects are found, which are unjudged.
    Look(u8, u8),
    Page(u8),
    Over,
    /// For the nth of what is due.
    Send(u8, u8),
    Restart,
    Pass(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (any::<u8>(), any::<u8>()).prop_map(|(found, unjudged)| Step::Look(found, unjudged)),
        1 => (0..3_u8).prop_map(Step::Page),
        1 => Just(Step::Over),
        5 => (any::<u8>(), 0..4_u8).prop_map(|(n, outcome)| Step::Send(n, outcome)),
        1 => Just(Step::Restart),
        3 => (0..200_000_u32).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..120)
}

fn subjects() -> Vec<Finding> {
    vec![
        finding(Kind::BelowFloor, "f", Severity::Critical),
        warn(Kind::OutOfService, "n-2"),
        warn(Kind::Unhealthy, "n-3"),
        warn(Kind::AgentSilent, "n-2"),
        warn(Kind::ForeignTarget, "x"),
        warn(Kind::Blind, "n-1: members"),
        warn(Kind::ConfigDiffers, "f"),
        warn(Kind::NodeWithoutAgent, "y"),
    ]
}

/// A book, what its sinks have been told in fact, and what the world has shown.
struct Model {
    book: Book,
    now: Now,
    under_way: Vec<Delivery>,
    /// Deliveries at the end.
    sent: u32,
    /// Open at a sink, as the sink sees it.
    open: BTreeMap<(Arc<str>, Arc<str>), bool>,
    seq: u64,
    pages: Vec<Page>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Look(found, unjudged) => {
                let all = subjects();
                let has = |bits: u8, i: usize| bits >> i & 1 == 1;
                let findings = all.iter().enumerate().filter(|(i, _)| has(*found, *i)).map(|(_, f)| f.clone());
                let unjudged = all.iter().enumerate().filter(|(i, _)| has(*unjudged, *i) && !has(*found, *i));
                let unjudged_about = unjudged.map(|(_, f)| f.about()).collect();
                let firing = self.firing();
                let report = Report { unjudged_about, ..Report::complete("n-1", findings.collect()) };
                self.book.look(&report, &self.now);
                for about in firing.iter().filter(|a| report.unjudged_about.contains(*a)) {
                    assert!(self.firing().contains(about), "unknown has resolved {about:?}");
                }
                for finding in &report.findings {
                    assert!(self.firing().contains(&finding.about()), "found, and not firing: {finding:?}");
                }
            }
            Step::Page(n) => {
                self.seq += 1;
                let raised = self.now.clone();
                let kind = [PageKind::Latched, PageKind::OutOfService, PageKind::AgentFault][usize::from(*n)];
                self.pages.push(Page { raised, ..page(self.seq, kind, "c-1", "it happened") });
                self.book.pages(&self.pages, &self.now);
            }
            Step::Over => self.book.over(&(Kind::Latched, "n-1".into()), &self.now),
            Step::Send(n, outcome) => self.send(*n, *outcome),
            Step::Restart => {
                let text = serde_json::to_string(&self.book.at_rest()).unwrap();
                let read: Book = serde_json::from_str(&text).unwrap();
                assert_eq!(read, self.book.at_rest(), "nothing is lost on the way");
                let sinks = vec![sink("pd", true), sink("hook", false)];
                self.book = read;
                self.book.started(&self.now);
                self.book.sinks(sinks);
                self.under_way.clear();
                self.book.pages(&self.pages, &self.now);
            }
            Step::Pass(ms) => {
                self.now = self.now.plus(u64::from(*ms));
                self.book.tick(&self.now);
            }
        }
        let acknowledged = self.book.acknowledged();
        self.pages.retain(|p| !acknowledged.contains(&p.seq));
        let keys: BTreeSet<_> = self.book.alerts().iter().map(Alert::about).collect();
        assert_eq!(keys.len(), self.book.alerts().len(), "one alert for a kind and subject");
        for p in &self.pages {
            assert!(
                self.book.alerts().iter().any(|a| a.waiting.iter().any(|w| w.seq == p.seq)),
                "page {} is lost",
                p.seq
            );
        }
    }

    fn firing(&self) -> Vec<About> {
        self.book.alerts().iter().filter(|a| a.fires()).map(Alert::about).collect()
    }

    /// What reaches the sink, and what the book hears of it: an answer may be lost either way.
    fn send(&mut self, n: u8, outcome: u8) {
        let due = self.book.due(&self.now);
        let Some(d) = due.get(usize::from(n) % due.len().max(1)).cloned() else { return };
        assert_eq!(d.key.strip_prefix("f/").and_then(|k| k.split('/').next()), Some(d.about.0.label()));
        self.book.begin(&d, &self.now);
        let (arrives, told) = match outcome {
            0 => (true, Delivered::Accepted),
            1 => (true, fault()),
            2 => (false, fault()),
            _ => (false, refused()),
        };
        if arrives {
            self.open.insert((d.sink.clone(), d.key.clone()), d.fires());
        }
        self.book.result(&d, &told, &self.now, Jitter(0));
    }

    /// Sinks that accept again: in the end each has exactly what fires.
    fn settle(&mut self) {
        for _ in 0..400 {
            self.book.tick(&self.now);
            for d in self.book.due(&self.now) {
                self.sent += 1;
                self.book.begin(&d, &self.now);
                self.open.insert((d.sink.clone(), d.key.clone()), d.fires());
                self.book.result(&d, &Delivered::Accepted, &self.now, Jitter(0));
            }
            let acknowledged = self.book.acknowledged();
            self.pages.retain(|p| !acknowledged.contains(&p.seq));
            self.book.pages(&self.pages, &self.now);
            if self.book.due(&self.now).is_empty() {
                match self.book.next_due(&self.now) {
                    Some(next) if next.since(&self.now).is_some_and(|ms| ms <= 2 * REFUSED_MS) => self.now = next,
                    _ => break,
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_every_sink_ends_with_the_last_state(steps in steps()) {
        let open = BTreeMap::new();
        let mut m = Model { book: book(), now: start(), under_way: vec![], sent: 0, open, seq: 0, pages: vec![] };
        for step in &steps {
            m.step(step);
        }
        m.settle();
        prop_assert!(m.sent < 150, "{} deliveries for eight alerts and two sinks", m.sent);
        prop_assert!(m.pages.is_empty(), "every page was accepted: {:?}", m.pages);
        for sink in ["pd", "hook"] {
            let has: BTreeSet<String> = m
                .open
                .iter()
                .filter(|((s, key), open)| **s == *sink && **open && !key.contains("/reminder-"))
                .map(|((_, key), _)| key.to_string())
                .collect();
            let due: BTreeSet<String> = m
                .book
                .alerts()
                .iter()
                .filter(|a| a.fires() && a.folded.is_none() && !(a.kind == Kind::SinkRefuses && a.subject.ends_with(sink)))
                .map(|a| m.book.key(&a.about()).to_string())
                .collect();
            let folded = |key: &String| {
                m.book.alerts().iter().any(|a| a.folded.is_some() && a.fires() && *m.book.key(&a.about()) == **key)
            };
            prop_assert!(due.is_subset(&has), "{sink} lacks {:?}", due.difference(&has).collect::<Vec<_>>());
            let over: Vec<_> = has.difference(&due).filter(|key| !folded(key)).collect();
            prop_assert!(over.is_empty(), "{sink} has {over:?}, which is over");
        }
    }
}
