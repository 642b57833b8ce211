//! Random histories: a node is driven by answers, times, crashes, full disks and people in any order, and what must always
//! be true is checked after each step. In the end the world is good again, and the node must come home from wherever it is.
//!
//! `BACKSTOP_HISTORIES` is how many (default: few). A failing history is made as short as it goes and printed.
//!
//! The diagram in ARCHITECTURE.md is made of the steps that some histories with a fixed seed take;
//! `BACKSTOP_BLESS=1 cargo test --lib histories` writes it anew.

use super::super::super::cycle::{Durable, FailureClass, Seen, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::error::{Class, Jitter};
use super::super::super::event::Event;
use super::super::super::invariant;
use super::super::super::page::PAGES_MAX;
use super::super::super::record::Op;
use super::super::super::time::{BootId, Now};
use super::super::super::want::want;
use super::super::{decide, settle_commit};
use super::world::{at, bad, good, hold, kinds, plan};
use super::{events, fault, kind_of};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One thing that happens.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// What the node wants is done and answered well; a wait is waited for.
    Well,
    /// It is answered with a fault of this class.
    Ill(Class),
    /// It is answered with this one of all answers that such an effect can have.
    Somehow(usize),
    /// This one of all events, whether anybody asked or not.
    Anything(usize),
    /// So much time passes, in seconds.
    Later(u64),
    /// SIGKILL.
    Crash,
    /// The machine restarts.
    OtherBoot,
    /// From now on the disk refuses, or takes again.
    Disk(bool),
    Rejoin(bool),
    Hold,
}

fn act() -> impl Strategy<Value = Act> {
    let class = (0..Class::ALL.len()).prop_map(|i| Class::ALL[i]);
    prop_oneof![
        60 => Just(Act::Well),
        8 => class.prop_map(Act::Ill),
        12 => any::<usize>().prop_map(Act::Somehow),
        3 => any::<usize>().prop_map(Act::Anything),
        4 => (1_u64..5_000).prop_map(Act::Later),
        3 => Just(Act::Crash),
        1 => Just(Act::OtherBoot),
        2 => any::<bool>().prop_map(Act::Disk),
        1 => any::<bool>().prop_map(Act::Rejoin),
        2 => Just(Act::Hold),
    ]
}

type History = (usize, Vec<Act>);

fn history() -> impl Strategy<Value = History> {
    (0..kinds().len(), prop::collection::vec(act(), 0..120))
}

/// From a stage to another (`None`: idle), and whether a disk that takes everything leads there, too.
type Steps = BTreeMap<(Option<StageName>, Option<StageName>), bool>;

struct Node {
    d: Durable,
    v: Seen,
    /// What the disk holds.
    disk: Durable,
    takes: bool,
    now: Now,
    boots: u32,
    /// By the load balancer.
    serving: bool,
    steps: Steps,
}

impl Node {
    fn new() -> Node {
        let d = Durable::new("i-0".into());
        Node {
            disk: d.clone(),
            d,
            v: Seen::default(),
            takes: true,
            now: at(0),
            boots: 1,
            serving: true,
            steps: Steps::new(),
        }
    }

    fn feed(&mut self, e: &Event) {
        let before = self.d.clone();
        let step = decide(&before, &self.v, e, &self.now, Jitter(500));
        let step =
            if step.durable == before { step } else { settle_commit(&before, &self.v, step, self.takes, &self.now) };
        (self.d, self.v) = (step.durable, step.seen);
        if self.takes {
            self.disk = self.d.clone();
        }
        // A pager that takes every second page.
        self.d.pages.retain(|p| p.seq % 2 == 0 || self.d.page_seq - p.seq < 4);
        self.judge(&before, e);
    }

    /// What holds of every step.
    fn judge(&mut self, before: &Durable, e: &Event) {
        assert_eq!(invariant::durable(&self.d), Ok(()), "after {e:?}");
        assert!(self.d.pages.len() <= PAGES_MAX);
        let (from, to) = (before.stage(), self.d.stage());
        if from != to {
            *self.steps.entry((from, to)).or_default() |= self.takes;
        }
        let road_out = |s| {
            matches!(
                s,
                Some(
                    StageName::Claim | StageName::Deregister | StageName::Drain | StageName::Patch | StageName::Reboot
                )
            )
        };
        assert!(from.is_none() || road_out(from) || !road_out(to), "back on the road out: {from:?} to {to:?} by {e:?}");
        if to.is_none() && from.is_some() {
            let acknowledged = matches!(e, Event::Acked { .. });
            assert!(
                from == Some(StageName::Claim) || (from == Some(StageName::Release) && acknowledged),
                "it ended in {from:?} by {e:?}"
            );
        }
        let (Some(was), Some(is)) = (&before.cycle, &self.d.cycle) else { return };
        // Its latch, if it has one, goes into the record with the entry of the hold.
        let held_instead = to == Some(StageName::Held) && from.is_some_and(StageName::homeward);
        if was.failure.is_some() && !held_instead {
            assert_eq!(was.failure, is.failure, "a failure is never taken back, nor replaced");
        }
        if let (None, Some(f)) = (&was.failure, &is.failure) {
            // Only who ended it by hand is not told of it.
            let paged = self.d.page_seq > before.page_seq;
            assert_eq!(paged, f.class != FailureClass::Cancelled, "a failure is paged as it is recorded");
        }
        assert!(was.out_since.is_none() || is.out_since.is_some(), "since when it is out is not forgotten");
    }

    /// The effect is about to be done: may it?
    fn may(&self, effect: &Effect) -> bool {
        let stored = self.disk == self.d;
        if effect.outward() && !stored {
            return false; // as the agent does: it waits for the disk
        }
        let Some(c) = &self.d.cycle else { return false };
        if matches!(effect, Effect::Deregister(_) | Effect::StartJob | Effect::Reboot) {
            let age = self.v.acked_at.as_ref().and_then(|a| self.now.since(a));
            assert!(age.is_some_and(|ms| ms <= c.plan.limits.ack_max_age_ms), "{effect:?} by an old yes: {age:?}");
            assert!(c.failure.is_none() && c.early.is_none(), "{effect:?} on the way home");
        }
        match effect {
            Effect::Deregister(_) => assert!(self.v.floor, "left without a look at who stays"),
            Effect::StartJob | Effect::Reboot => assert!(self.v.gone, "{effect:?} without a look at the own target"),
            Effect::Record(Op::Free { latch, .. }) if c.stage.name() == StageName::Release => {
                assert_eq!(latch.is_some(), c.failure.is_some() && c.plan.latches(), "freed without its latch");
            }
            _ => {}
        }
        true
    }

    fn well(&mut self, effect: &Effect) -> Event {
        match effect {
            Effect::ReadFleet => super::out::fleet(&["i-0", "i-1", "i-2"], self.now.clone()),
            _ => good(effect, &mut self.serving),
        }
    }

    /// Does what is wanted next; `answer` says what comes of it.
    fn turn(&mut self, answer: impl FnOnce(&mut Node, &Effect) -> Event) {
        match want(&self.d, &self.v, &self.now) {
            Want::Idle => {}
            Want::Wait(until) => {
                self.now = until.max(self.now.plus(1));
                self.feed(&Event::Tick);
            }
            Want::Do(effect) if self.may(&effect) => {
                let e = answer(self, &effect);
                self.now = self.now.plus(1);
                self.feed(&e);
            }
            Want::Do(_) => {
                self.now = self.now.plus(5_000);
                self.feed(&Event::Tick);
            }
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Well => self.turn(Node::well),
            Act::Ill(class) => self.turn(|_, effect| bad(effect, &fault(class))),
            Act::Somehow(n) => self.turn(|node, effect| {
                let usual = kind_of(&bad(effect, &fault(Class::Transport)));
                let fits = |kind: &str| match effect {
                    Effect::Record(_) => ["acked", "unanswered", "cas-refused"].contains(&kind),
                    _ => kind == usual,
                };
                let all: Vec<Event> =
                    events(&node.now).into_iter().filter(|(kind, _)| fits(kind)).map(|(_, e)| e).collect();
                all[n % all.len()].clone()
            }),
            Act::Anything(n) => {
                let all = events(&self.now);
                let (kind, e) = &all[n % all.len()];
                // Answers that nobody asked for do not come; people and time do.
                if ["tick", "rejoin", "hold", "page-accepted", "start"].contains(kind) {
                    self.feed(e);
                }
            }
            Act::Later(seconds) => {
                self.now = self.now.plus(seconds * 1_000);
                self.feed(&Event::Tick);
            }
            Act::Crash => self.crash(),
            Act::OtherBoot => {
                self.boots += 1;
                let boot = BootId(format!("boot-{}", self.boots).into());
                self.now = Now { boot, since_boot_ms: 20_000, wall_ms: self.now.wall_ms + 90_000 };
                self.crash();
            }
            Act::Disk(takes) => self.takes = takes,
            Act::Rejoin(skip_check) => {
                self.feed(&Event::Rejoin { by: "ann".into(), reason: "now".into(), skip_check });
            }
            Act::Hold => self.feed(&Event::Hold(hold())),
        }
    }

    /// What was only in memory is gone.
    fn crash(&mut self) {
        (self.d, self.v) = (self.disk.clone(), Seen::recovered());
        self.feed(&Event::Recovered);
    }

    /// Whatever was: in a good world it comes home.
    fn comes_home(&mut self) {
        self.takes = true;
        for _ in 0..4_000 {
            if self.d.cycle.is_none() {
                assert!(self.serving, "its cycle is over, and it does not serve");
                return;
            }
            self.turn(Node::well);
        }
        panic!("not home: {:?} {:?}", self.d.cycle, self.v);
    }
}

fn run((kind, acts): &History) -> Steps {
    let mut node = Node::new();
    node.feed(&Event::Start(plan(kinds()[*kind].clone())));
    for act in acts {
        node.act(*act);
    }
    node.comes_home();
    node.steps
}

#[test]
fn what_must_always_be_true_is_true_in_every_history_and_each_ends_at_home() {
    let cases = std::env::var("BACKSTOP_HISTORIES").ok().map_or(2_000, |n| n.parse().expect("a number"));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    let outcome = TestRunner::new(config).run(&history(), |history| {
        run(&history);
        Ok(())
    });
    outcome.unwrap_or_else(|e| panic!("{e}"));
}

/// The steps of so many histories, always the same ones.
fn steps() -> Steps {
    use proptest::strategy::ValueTree;
    let config = Config::default();
    let rng = TestRng::deterministic_rng(config.rng_algorithm);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let mut all = Steps::new();
    for _ in 0..6_000 {
        for (step, stored) in run(&history().new_tree(&mut runner).expect("a history").current()) {
            *all.entry(step).or_default() |= stored;
        }
    }
    all
}

#[test]
fn the_diagram_of_the_cycle_shows_the_steps_that_it_takes() {
    let name = |s: Option<StageName>| s.map_or("[*]", StageName::label);
    let mut text = String::from("```mermaid\nstateDiagram-v2\n");
    for ((from, to), stored) in steps() {
        let why = if stored { "" } else { " : the disk refuses" };
        writeln!(text, "    {} --> {}{why}", name(from), name(to)).expect("text");
    }
    text.push_str("```\n");
    let (begin, end) = ("<!-- steps of a cycle: generated -->\n", "<!-- end of steps of a cycle -->\n");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ARCHITECTURE.md");
    let page = std::fs::read_to_string(path).expect("ARCHITECTURE.md");
    let (head, rest) = page.split_once(begin).expect("its mark");
    let (present, tail) = rest.split_once(end).expect("its other mark");
    if std::env::var_os("BACKSTOP_BLESS").is_some() {
        #[expect(clippy::disallowed_methods, reason = "a document, not state")]
        std::fs::write(path, format!("{head}{begin}{text}{end}{tail}")).expect("written");
    } else {
        assert_eq!(present, text, "BACKSTOP_BLESS=1 cargo test --lib histories");
    }
}
