//! The book of alerts: what fires, since when, who has been told of it and who is still owed it. One value, stored as a
//! whole; everything that happens comes in with its time, and [`Book::due`] says what goes to which sink now.
//!
//! `life` is what makes an alert begin and end, `storm` keeps many at once from becoming many pages, `send` is the outbox.

mod life;
mod send;
mod storm;
#[cfg(test)]
#[allow(clippy::arithmetic_side_effects, reason = "what overflows here fails the test")]
mod tests;

use super::finding::{About, Kind};
use super::ids::{InstanceId, NodeName};
use super::page::{Page, Severity};
use super::time::Now;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The schema of a [`Book`] that this version writes.
pub const SCHEMA: u32 = 1;
/// No more alerts than this; of more the oldest of the lowest severity makes room, and the newest says so.
pub const ALERTS_MAX: usize = 512;
/// So many looks in a row must show that it is not so,
pub const LOOKS: u32 = 3;
/// over at least this time, in ms.
pub const CLEAR_MS: u64 = 60_000;
/// An alert that came again so often within [`FLAP_MS`] stays, until it was quiet for [`QUIET_MS`].
pub const FLAPS: usize = 3;
/// See [`FLAPS`].
pub const FLAP_MS: u64 = 3_600_000;
/// See [`FLAPS`].
pub const QUIET_MS: u64 = 15 * 60_000;
/// Between two reminders of what still fires, in ms.
pub const REMIND_MS: u64 = 24 * 3_600_000;
/// What is being found newly is judged in windows of this length, in ms.
pub const WINDOW_MS: u64 = 60_000;
/// So many alerts go out by themselves within one window.
pub const WINDOW_MAX: u32 = 5;
/// For a sink that does not know repeats, agents hold back by so many looks for each place. One agent may find a thing two
/// looks before another one (the cluster's list is read at every second), which tells of it in its next beat, and that is
/// read a look later; each of them may be late by a tenth.
pub const HOLD_BACK_LOOKS: u64 = 5;
/// So many of the lowest-ranked agents read whole groups; the others cannot judge most kinds.
pub const LOOKERS: u32 = 3;
/// An alert that this agent can no longer judge is left to those that look after this time, in ms.
pub const HAND_OVER_MS: u64 = 10 * 60_000;
/// A refused delivery is tried again after this time, in ms, where another sink has it.
pub const REFUSED_MS: u64 = 3_600_000;
/// A fault of the agent is over when it ran so long since a restart without a repeat, in ms.
pub const FAULT_AFTER_RESTART_MS: u64 = 3_600_000;
/// A lesser fault of the agent is over when it did not repeat for so long, in ms.
pub const FAULT_QUIET_MS: u64 = 24 * 3_600_000;
/// A version that is yet to come.
const NEXT: u32 = u32::MAX;
/// A sentence is cut to so many bytes.
const SENTENCE_BYTES_MAX: usize = 600;

/// A sink, as the book knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sink {
    /// Its name.
    pub name: Arc<str>,
    /// It knows repeats by their key: every agent sends to it.
    pub dedups: bool,
    /// It forgets: what fires is sent again after this time, in ms.
    pub renew_ms: Option<u64>,
}

/// Another member whose heart beats.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Which.
    pub instance: InstanceId,
    /// Its node.
    pub node: NodeName,
    /// Keys that it has had accepted, and that still fire there.
    pub told: BTreeSet<Arc<str>>,
}

/// The live members, as this agent sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// This agent's own place among them, from 0; of an unknown place nobody holds back.
    pub rank: u32,
    /// The others.
    pub live: Vec<Peer>,
    /// Between two looks of each, in ms.
    pub every_ms: u64,
}

impl Peers {
    /// From the members whose hearts beat, this one among them or not.
    pub fn of<'a>(me: &InstanceId, live: impl IntoIterator<Item = &'a super::member::Member>, every_ms: u64) -> Peers {
        let others = live.into_iter().filter(|m| m.instance != *me).map(|m| Peer {
            instance: m.instance.clone(),
            node: m.node.clone(),
            told: m.told.iter().cloned().collect(),
        });
        let live: Vec<Peer> = others.collect();
        let before = live.iter().filter(|p| p.instance < *me).count();
        Peers { rank: u32::try_from(before).unwrap_or(u32::MAX), live, every_ms }
    }
}

/// How an alert stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is so.
    Firing,
    /// It is over, by positive evidence, since then.
    Resolved(Now),
}

/// One alert: fleet, kind and subject are its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that must not be forgotten")]
pub struct Alert {
    /// What.
    pub kind: Kind,
    /// About whom.
    pub subject: Arc<str>,
    /// The worst of this episode.
    pub severity: Severity,
    /// What is so, as it was last found.
    pub sentence: Arc<str>,
    /// How it stands.
    pub state: State,
    /// From firing to firing: numbers them on this node.
    pub episode: u64,
    /// Goes up within an episode whenever those who have been told should hear more.
    pub version: u32,
    /// Firing since.
    pub since: Now,
    /// Last found, or raised.
    pub seen: Now,
    /// It is about this very node or agent.
    pub own: bool,
    /// What the cycle machine said, with all that it knew.
    #[serde(default)]
    pub page: Option<Page>,
    /// It is part of this one, and listed there.
    #[serde(default)]
    pub folded: Option<About>,
    /// It waits for the next window.
    #[serde(default)]
    pub held: bool,
    /// It stands for these too, which wait.
    #[serde(default)]
    pub also: Vec<About>,
    /// So many lesser ones found no room in the book.
    #[serde(default)]
    pub more: u64,
    /// By sink.
    #[serde(default)]
    pub sent: BTreeMap<Arc<str>, Sent>,
    /// The last look found it.
    #[serde(default)]
    found: bool,
    /// Pages of the durable state that wait for it to be accepted.
    #[serde(default)]
    waiting: Vec<Waiting>,
    /// Looks that show that it is not so.
    #[serde(default)]
    absent: Option<Absent>,
    /// Times at which it began to fire, within the hour.
    #[serde(default)]
    firings: Vec<Now>,
    /// Whoever sends it may, from then on.
    #[serde(default)]
    released: Option<Now>,
    /// Accepted by a sink: the highest episode and version.
    #[serde(default)]
    heard: Option<(u64, u32)>,
    /// A page that was accepted names it.
    #[serde(default)]
    named: bool,
    /// No look could judge it since.
    #[serde(default)]
    unjudged: Option<Now>,
    /// A plan explains it by the last look: whoever made the plan knows of it, and is not reminded.
    #[serde(default)]
    planned: bool,
    /// The last version that is news enough to wake somebody: it began, it got worse, or the cycle machine raised it anew.
    #[serde(default)]
    wakes: u32,
    /// It was folded into a page that was out already: the version of that page which lists it first, [`NEXT`] as long as
    /// there is none. 0: the page had it from the start.
    #[serde(default)]
    late: u32,
    /// The version went up last.
    changed: Now,
}

/// A page of the durable state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    seq: u64,
    raised_ms: u64,
    /// The content that has it.
    at: (u64, u32),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Absent {
    looks: u32,
    since: Now,
}

/// What one sink has of one alert.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sent {
    /// Something was accepted last.
    #[serde(default)]
    pub accepted: Option<Now>,
    /// Why the last try failed, where it did.
    #[serde(default)]
    pub fault: Option<Arc<str>>,
    /// Another agent has had it accepted.
    #[serde(default)]
    pub covered: Option<InstanceId>,
    /// Since when no live agent says any more that it has, though it is so.
    #[serde(default)]
    uncovered: Option<Now>,
    /// The sink refuses it for good.
    #[serde(default)]
    pub refused: bool,
    /// What is open there, or may be: 0 = the alert itself, N = its Nth reminder.
    #[serde(default)]
    open: BTreeMap<u32, Open>,
    /// Failing tries in a row.
    #[serde(default)]
    tries: u32,
    /// The next try, not before.
    #[serde(default)]
    not_before: Option<Now>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Open {
    episode: u64,
    version: u32,
    /// It was accepted.
    sure: bool,
    /// It was sent, and what came of it is not known.
    maybe: bool,
    at: Now,
}

/// What a delivery tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Event {
    /// It fires, or got worse: somebody has to know now.
    Trigger,
    /// It fires as before, and there is more to say of it: nobody has to be woken again.
    Update,
    /// It still fires: the Nth reminder, under a key of its own.
    Reminder(u32),
    /// It is over: the alert (0), or its Nth reminder.
    Resolve(u32),
}

/// What is to be sent to one sink now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// To whom.
    pub sink: Arc<str>,
    /// About what.
    pub about: About,
    /// What.
    pub event: Event,
    /// The key that the sink knows it by.
    pub key: Arc<str>,
    /// The same for every try of this very message, and for no other one.
    pub id: Arc<str>,
    episode: u64,
    version: u32,
}

/// What came of a delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// The sink has it.
    Accepted,
    /// No answer, or "later": it may or may not have it.
    Fault {
        /// For people.
        why: Arc<str>,
        /// It asks to be left alone for so long.
        retry_after_ms: Option<u64>,
    },
    /// It says no, and waiting does not change that.
    Refused {
        /// For people.
        why: Arc<str>,
    },
}

/// All alerts of one agent, and what it owes to whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Book {
    /// The fleet.
    pub fleet: Arc<str>,
    /// Whose book this is: another one's is set aside.
    pub instance: InstanceId,
    /// This node.
    pub node: NodeName,
    episodes: u64,
    alerts: Vec<Alert>,
    /// Sinks that refuse for good, and why.
    #[serde(default)]
    refusals: BTreeMap<Arc<str>, Arc<str>>,
    #[serde(default)]
    window: Option<Window>,
    #[serde(skip)]
    run: Run,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Window {
    since: Now,
    sent: u32,
}

/// What only this process knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Run {
    started: Option<Now>,
    sinks: Vec<Sink>,
    peers: Peers,
    under_way: BTreeSet<(About, Arc<str>)>,
}

impl Alert {
    /// Kind and subject.
    pub fn about(&self) -> About {
        (self.kind, self.subject.clone())
    }

    /// It is so.
    pub fn fires(&self) -> bool {
        self.state == State::Firing
    }

    /// It comes and goes, and is kept up until it was quiet for a while.
    pub fn flaps(&self) -> bool {
        self.firings.len() > FLAPS
    }

    /// A sink has accepted this episode of it.
    pub fn heard(&self) -> bool {
        self.heard.is_some_and(|(episode, _)| episode == self.episode)
    }

    /// Somebody has been told of this episode: a sink accepted it, or a page that names it, or another agent's page.
    pub fn told(&self) -> bool {
        self.heard() || self.named || self.sent.values().any(|s| s.covered.is_some())
    }

    /// Somebody should still hear of it, though it may be over by now.
    fn owed(&self) -> bool {
        !self.told() || self.waiting.iter().any(|w| self.heard < Some(w.at))
    }

    /// The last look shows that it is not so; it is over when some more of them do.
    pub fn fades(&self) -> bool {
        self.fires() && self.absent.is_some()
    }

    /// It is so by the last look too, as far as that could tell.
    fn counts(&self) -> bool {
        self.fires() && !self.fades()
    }

    /// Since when no look could judge it.
    pub fn unjudged(&self) -> Option<&Now> {
        self.unjudged.as_ref()
    }

    /// Reminders sent so far are numbered up to this.
    fn reminders(&self, now: &Now) -> u32 {
        let days = now.roughly_since(&self.since).checked_div(REMIND_MS).unwrap_or(0);
        u32::try_from(days).unwrap_or(u32::MAX)
    }

    fn attempted(&self) -> bool {
        self.sent.values().any(|s| !s.open.is_empty())
    }
}

impl Book {
    /// An empty one.
    pub fn new(fleet: Arc<str>, instance: InstanceId, node: NodeName) -> Book {
        let (alerts, refusals) = (Vec::new(), BTreeMap::new());
        Book { fleet, instance, node, episodes: 0, alerts, refusals, window: None, run: Run::default() }
    }

    /// This process begins with it, now.
    pub fn started(&mut self, now: &Now) {
        self.run = Run { started: Some(now.clone()), ..std::mem::take(&mut self.run) };
        self.run.under_way.clear();
        // What was being sent as the last process ended may have arrived.
        let open = self.alerts.iter_mut().flat_map(|a| a.sent.values_mut()).flat_map(|s| s.open.values_mut());
        open.for_each(|o| o.maybe = true);
        // A book of a version that did not tell news from more of the same: in doubt it is news.
        self.alerts.iter_mut().filter(|a| a.wakes == 0).for_each(|a| a.wakes = a.version);
    }

    /// What is worth storing of it.
    #[must_use]
    pub fn at_rest(&self) -> Book {
        Book { run: Run::default(), ..self.clone() }
    }

    /// The sinks of the moment. What was owed to one that is gone is forgotten; a new one is owed all that fires.
    pub fn sinks(&mut self, sinks: Vec<Sink>) {
        if self.run.sinks == sinks {
            return;
        }
        // No config has none: where it is lost nobody can be told, and what was told is still so.
        if sinks.is_empty() {
            self.run.sinks = sinks;
            return;
        }
        let known = |name: &Arc<str>| sinks.iter().any(|s| s.name == *name);
        for alert in &mut self.alerts {
            alert.sent.retain(|name, _| known(name));
        }
        self.refusals.retain(|name, _| known(name));
        self.run.sinks = sinks;
    }

    /// The live members of the moment.
    pub fn peers(&mut self, peers: Peers) {
        self.run.peers = peers;
    }

    /// The key of an alert: the same on every agent and after every restart.
    pub fn key(&self, about: &About) -> Arc<str> {
        format!("{}/{}/{}", self.fleet, about.0.label(), about.1).into()
    }

    /// All alerts, also those that are over and not yet forgotten.
    pub fn alerts(&self) -> &[Alert] {
        &self.alerts
    }

    /// One of them.
    pub fn get(&self, about: &About) -> Option<&Alert> {
        self.alerts.iter().find(|a| a.kind == about.0 && a.subject == about.1)
    }

    fn get_mut(&mut self, about: &About) -> Option<&mut Alert> {
        self.alerts.iter_mut().find(|a| a.kind == about.0 && a.subject == about.1)
    }

    /// In whose page it is told, where it has none of its own: the page that it was folded into, once that lists it, or the
    /// one that stands for many.
    pub fn told_in(&self, alert: &Alert) -> Option<About> {
        let lists = |parent: &About| {
            let heard = self.get(parent).filter(|p| p.heard()).and_then(|p| p.heard).map_or(0, |(_, version)| version);
            alert.counts() || alert.late <= heard
        };
        let about = alert.about();
        let stands = || self.alerts.iter().find(|a| alert.held && a.also.contains(&about)).map(Alert::about);
        alert.folded.clone().filter(lists).or_else(stands)
    }

    /// What is folded into this one.
    pub fn folded_into<'a>(&'a self, about: &'a About) -> impl Iterator<Item = &'a Alert> {
        self.alerts.iter().filter(move |a| a.folded.as_ref() == Some(about))
    }

    /// Keys that still fire and that every sink without a memory of its own has accepted from here: for the member document.
    pub fn told(&self) -> Vec<Arc<str>> {
        let plain: Vec<&Sink> = self.run.sinks.iter().filter(|s| !s.dedups).collect();
        let has = |a: &Alert, sink: &Sink| {
            let open = a.sent.get(&sink.name).and_then(|s| s.open.get(&0));
            open.is_some_and(|o| o.sure && o.episode == a.episode)
        };
        let accepted = |a: &&Alert| a.fires() && a.heard() && plain.iter().all(|sink| has(a, sink));
        self.alerts.iter().filter(accepted).map(|a| self.key(&a.about())).collect()
    }

    /// Alerts that nobody has been told of yet, though somebody should.
    pub fn undelivered(&self) -> u32 {
        let n = self.alerts.iter().filter(|a| a.owed() && a.folded.is_none()).count();
        u32::try_from(n).unwrap_or(u32::MAX)
    }

    /// Pages of the durable state that a sink has accepted.
    pub fn acknowledged(&self) -> Vec<u64> {
        let accepted = |a: &Alert, w: &Waiting| a.heard.is_some_and(|heard| heard >= w.at);
        let of = |a: &Alert| a.waiting.iter().filter(|w| accepted(a, w)).map(|w| w.seq).collect::<Vec<_>>();
        self.alerts.iter().flat_map(of).collect()
    }
}

/// `at` has come. One of another boot has: in doubt one looks.
fn come(at: &Now, now: &Now) -> bool {
    at.boot != now.boot || now.since_boot_ms >= at.since_boot_ms
}

fn cut(text: &str) -> Arc<str> {
    match text.get(..text.floor_char_boundary(SENTENCE_BYTES_MAX)) {
        Some(head) if head.len() < text.len() => format!("{head}…").into(),
        _ => text.into(),
    }
}
