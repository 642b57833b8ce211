//! The outbox: what each sink has of each alert, what it is owed, and when the next try is due.
//!
//! For every sink there is a set of incidents that should be open there and one of those that are, or may be. A delivery is
//! one step from the second to the first, and one at a time: so every sink ends with exactly the last state.

use super::super::error::{Jitter, Schedule};
use super::super::finding::{About, Kind};
use super::super::ids::InstanceId;
use super::super::time::Now;
use super::{
    Alert, Book, Delivered, Delivery, Event, FAULT_AFTER_RESTART_MS, FAULT_QUIET_MS, FLAP_MS, HAND_OVER_MS,
    HOLD_BACK_LOOKS, LOOKERS, Open, REFUSED_MS, REMIND_MS, Sent, Sink, WINDOW_MS, come,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Between two tries to deliver one alert to one sink. `Retry-After` is honoured up to the schedule's own limit.
const PACE: Schedule = Schedule { base_ms: 2_000, cap_ms: 60_000 };

impl Book {
    /// Who else has had this key accepted.
    pub(super) fn told_by(&self, key: &Arc<str>) -> Option<InstanceId> {
        self.run.peers.live.iter().find(|p| p.told.contains(key)).map(|p| p.instance.clone())
    }

    fn live(&self, instance: &InstanceId) -> bool {
        self.run.peers.live.iter().any(|p| p.instance == *instance)
    }

    /// For how long this agent leaves an alert to others, in ms: the lowest-ranked sends at once. What a live agent says of
    /// itself is left to it first.
    fn holds_back(&self, alert: &Alert) -> u64 {
        let of_a_peer = |kind: Kind| {
            matches!(
                kind,
                Kind::Latched
                    | Kind::OutOfService
                    | Kind::ReleaseStuck
                    | Kind::ConfigUnusable
                    | Kind::AgentFault
                    | Kind::Blind
                    | Kind::SinkRefuses
            )
        };
        let about =
            |node: &str| alert.subject.strip_prefix(node).is_some_and(|rest| rest.is_empty() || rest.starts_with(':'));
        let its_own = of_a_peer(alert.kind) && self.run.peers.live.iter().any(|p| about(p.node.as_str()));
        if alert.own {
            return 0;
        }
        if alert.kind == Kind::TwoWithOneIdentity {
            return HAND_OVER_MS.saturating_mul(self.place_beside_twins(&alert.subject));
        }
        let place = self.run.peers.rank.saturating_add(u32::from(its_own));
        self.run.peers.every_ms.saturating_mul(HOLD_BACK_LOOKS).saturating_mul(u64::from(place))
    }

    /// Who shares a document with another agent cannot see what that one has told, and comes last. When each of the others
    /// notices is a matter of whose beat it happens to read: minutes lie between them.
    fn place_beside_twins(&self, subject: &str) -> u64 {
        let me = self.instance.as_str();
        let others = self.run.peers.live.iter().map(|p| p.instance.as_str()).filter(|i| *i != subject);
        let before = others.filter(|i| subject == me || *i < me).count();
        u64::try_from(before).unwrap_or(u64::MAX).min(u64::from(LOOKERS))
    }

    /// It is this agent's turn to send it to that sink.
    fn turn(&self, alert: &Alert, sink: &Sink, now: &Now) -> bool {
        if alert.sent.get(&sink.name).is_some_and(|s| s.covered.is_some()) {
            return false;
        }
        let Some(released) = &alert.released else { return false };
        sink.dedups || come(&released.plus(self.holds_back(alert)), now)
    }

    /// A sink without a memory gets from one agent what another one has not sent already.
    pub(super) fn cover(&mut self, now: &Now) {
        let plain: Vec<Arc<str>> = self.run.sinks.iter().filter(|s| !s.dedups).map(|s| s.name.clone()).collect();
        for i in 0..self.alerts.len() {
            let Some(alert) = self.alerts.get(i).filter(|a| !a.own) else { continue };
            let by = self.told_by(&self.key(&alert.about()));
            let gone: Vec<Arc<str>> = alert
                .sent
                .iter()
                .filter(|(_, s)| s.covered.as_ref().is_some_and(|by| !self.live(by)))
                .map(|(name, _)| name.clone())
                .collect();
            let takes_over_ms = self.run.peers.every_ms.saturating_mul(HOLD_BACK_LOOKS);
            let takes_over_ms = takes_over_ms.saturating_mul(u64::from(self.run.peers.rank).saturating_add(1));
            let Some(alert) = self.alerts.get_mut(i) else { continue };
            let (episode, version, fires, at) = (alert.episode, alert.version, alert.fires(), alert.seen.clone());
            for name in &plain {
                let sent = alert.sent.entry(name.clone()).or_default();
                if fires && sent.covered.is_some() {
                    // Gone on with as with its own, without a word: there it is open.
                    if sent.nobody_answers(by.as_ref(), takes_over_ms, now) {
                        sent.covered = None;
                        let open = Open { episode, version, sure: true, maybe: true, at: at.clone() };
                        sent.open.insert(0, open);
                        alert.heard = alert.heard.max(Some((episode, version)));
                    }
                } else if fires && !sent.open.values().any(|o| o.sure) {
                    sent.covered.clone_from(&by);
                } else if !fires && gone.contains(name) {
                    // Whoever opened it there cannot close it.
                    sent.covered = None;
                    sent.open.entry(0).or_insert(Open { episode, version, sure: true, maybe: true, at: at.clone() });
                    alert.named = true;
                }
            }
        }
    }

    /// What should be open at that sink.
    fn wanted(&self, alert: &Alert, sink: &Sink, now: &Now) -> BTreeSet<u32> {
        let open = alert.sent.get(&sink.name).map(|s| &s.open);
        let has = open.is_some_and(|open| open.get(&0).is_some_and(|o| o.sure && o.episode == alert.episode));
        let refuses = alert.kind == Kind::SinkRefuses && alert.subject.ends_with(&format!(": {}", sink.name));
        let hidden = alert.folded.is_some() || alert.held || refuses;
        let mut wanted = BTreeSet::new();
        if !alert.fires() {
            // A person hears of it though it is over by now.
            if alert.owed() && !hidden && self.turn(alert, sink, now) {
                wanted.insert(0);
            }
            return wanted;
        }
        if has || (!hidden && self.turn(alert, sink, now)) {
            wanted.insert(0);
        }
        let reminder = alert.reminders(now);
        if has && reminder > 0 {
            wanted.insert(reminder);
        }
        wanted
    }

    /// The next step for this sink: what is in the way of the present episode goes first, then what is owed, then what is
    /// to be closed.
    fn step(&self, alert: &Alert, sink: &Sink, now: &Now) -> Option<Event> {
        let none = Sent::default();
        let sent = alert.sent.get(&sink.name).unwrap_or(&none);
        let wanted = self.wanted(alert, sink, now);
        if let Some((n, _)) = sent.open.iter().find(|(_, o)| o.episode != alert.episode) {
            return Some(Event::Resolve(*n));
        }
        for n in &wanted {
            let open = sent.open.get(n).filter(|o| o.sure);
            match (n, open) {
                (0, None) => return Some(Event::Trigger),
                // What the last look no longer shows comes back, and is told then, or is over.
                (n, None) if !alert.fades() && !alert.planned => return Some(Event::Reminder(*n)),
                (0, Some(o)) if o.version < alert.wakes => return Some(Event::Trigger),
                (0, Some(o)) if self.has_news(alert, o.version) => return Some(Event::Update),
                (0, Some(o)) if renewal(sink, o).is_some_and(|at| come(&at, now)) => return Some(Event::Update),
                _ => {}
            }
        }
        // A doubtful try of what still fires is closed when that is over.
        let closes = |n: &&u32| !(wanted.contains(n) || (alert.fires() && **n == 0));
        sent.open.keys().find(closes).map(|n| Event::Resolve(*n))
    }

    /// What is to be sent now. Each goes through [`Book::begin`] and ends in [`Book::result`].
    pub fn due(&self, now: &Now) -> Vec<Delivery> {
        let mut due = Vec::new();
        for alert in &self.alerts {
            for sink in &self.run.sinks {
                let waits = alert.sent.get(&sink.name).and_then(|s| s.not_before.as_ref());
                let busy = self.run.under_way.contains(&(alert.about(), sink.name.clone()));
                if busy || waits.is_some_and(|at| !come(at, now)) {
                    continue;
                }
                due.extend(self.step(alert, sink, now).map(|event| self.delivery(alert, sink, event)));
            }
        }
        due
    }

    fn delivery(&self, alert: &Alert, sink: &Sink, event: Event) -> Delivery {
        let base = self.key(&alert.about());
        let (n, word) = match event {
            Event::Trigger | Event::Update => (0, "fires"),
            Event::Reminder(n) => (n, "fires"),
            Event::Resolve(n) => (n, "over"),
        };
        let key: Arc<str> = if n == 0 { base } else { format!("{base}/reminder-{n}").into() };
        // What is closed may be an earlier episode.
        let open = alert.sent.get(&sink.name).and_then(|s| s.open.get(&n));
        let (episode, version) = match (event, open) {
            (Event::Resolve(_), Some(o)) => (o.episode, 0),
            _ => (alert.episode, alert.version),
        };
        let since = alert.since.wall_ms;
        let id = format!("{key}/{}-{since}-{episode}-{version}-{word}", self.instance).into();
        Delivery { sink: sink.name.clone(), about: alert.about(), event, key, id, episode, version }
    }

    /// It is being sent: from now on the sink may have it.
    pub fn begin(&mut self, d: &Delivery, now: &Now) {
        self.run.under_way.insert((d.about.clone(), d.sink.clone()));
        let n = match d.event {
            Event::Trigger | Event::Update => 0,
            Event::Reminder(n) => n,
            Event::Resolve(_) => return,
        };
        let (episode, at) = (d.episode, now.clone());
        if let Some(alert) = self.get_mut(&d.about) {
            let sent = alert.sent.entry(d.sink.clone()).or_default();
            sent.open.entry(n).or_insert(Open { episode, version: 0, sure: false, maybe: false, at });
        }
    }

    /// What came of it.
    pub fn result(&mut self, d: &Delivery, outcome: &Delivered, now: &Now, jitter: Jitter) {
        self.run.under_way.remove(&(d.about.clone(), d.sink.clone()));
        if !self.run.sinks.iter().any(|s| s.name == d.sink) {
            return;
        }
        let Some(alert) = self.get_mut(&d.about) else { return };
        let (told, present) = (alert.told(), alert.episode);
        let sent = alert.sent.entry(d.sink.clone()).or_default();
        match outcome {
            Delivered::Accepted => {
                if sent.accept(d, now) {
                    alert.heard = alert.heard.max(Some((d.episode, d.version)));
                }
            }
            Delivered::Fault { why, retry_after_ms } => {
                sent.fault = Some(why.clone());
                sent.open.values_mut().for_each(|o| o.maybe = true);
                sent.not_before = Some(now.plus(PACE.wait_ms(sent.tries, jitter, *retry_after_ms)));
                sent.tries = sent.tries.saturating_add(1);
            }
            Delivered::Refused { why } => {
                sent.refuse(d, why, present);
                let pace = PACE.wait_ms(sent.tries, jitter, None);
                sent.not_before = Some(now.plus(if told { REFUSED_MS } else { pace }));
                sent.tries = sent.tries.saturating_add(1);
            }
        }
        match outcome {
            Delivered::Accepted => self.takes_again(&d.sink),
            Delivered::Refused { why } => self.sink_refuses(&d.sink, why, now),
            Delivered::Fault { .. } => {}
        }
        self.tick(now);
    }

    /// A sink that refused accepts again: what it refused is sent at once.
    fn takes_again(&mut self, sink: &Arc<str>) {
        if self.refusals.contains_key(sink) {
            self.try_again(|name| name == sink);
        }
    }

    /// The config was read again: what was refused is tried again at once.
    pub fn reloaded(&mut self) {
        self.try_again(|_| true);
    }

    fn try_again(&mut self, of: impl Fn(&Arc<str>) -> bool) {
        for alert in &mut self.alerts {
            for (_, sent) in alert.sent.iter_mut().filter(|(name, s)| s.refused && of(name)) {
                sent.not_before = None;
            }
        }
    }

    /// When something will be due that is not now, or time alone changes something.
    pub fn next_due(&self, now: &Now) -> Option<Now> {
        let mut times: Vec<Now> = self.window_ends().into_iter().collect();
        for alert in &self.alerts {
            self.times(alert, now, &mut times);
        }
        times.into_iter().filter(|at| !come(at, now)).min_by_key(|at| at.since_boot_ms)
    }

    fn times(&self, alert: &Alert, now: &Now, times: &mut Vec<Now>) {
        // Of a time of an earlier boot only the wall clock tells how long it is ago.
        let after = |since: &Now, ms: u64| now.plus(ms.saturating_sub(now.roughly_since(since)));
        for sink in &self.run.sinks {
            let sent = alert.sent.get(&sink.name);
            times.extend(sent.and_then(|s| s.not_before.clone()));
            times.extend(sent.and_then(|s| s.open.get(&0)).and_then(|o| renewal(sink, o)));
        }
        times.extend(alert.released.as_ref().map(|at| after(at, self.holds_back(alert))));
        if alert.fires() {
            let next = REMIND_MS.saturating_mul(u64::from(alert.reminders(now).saturating_add(1)));
            times.push(after(&alert.since, next));
            if alert.kind == Kind::AgentFault {
                times.push(after(&alert.seen, FAULT_QUIET_MS));
                times.extend(self.run.started.as_ref().map(|at| after(at, FAULT_AFTER_RESTART_MS)));
            }
            if self.has_grown(alert) {
                times.push(after(&alert.changed, WINDOW_MS));
            }
            if let Some(since) = alert.unjudged().filter(|_| self.run.peers.rank >= LOOKERS) {
                times.push(after(since, HAND_OVER_MS));
            }
        } else if let Some(first) = alert.firings.first() {
            times.push(after(first, FLAP_MS.saturating_add(1)));
        }
    }
}

/// When it has to be sent again since the sink forgets.
fn renewal(sink: &Sink, open: &Open) -> Option<Now> {
    sink.renew_ms.filter(|_| open.sure).map(|ms| open.at.plus(ms))
}

impl Sent {
    /// It is open there by another agent's word. True where no live one has answered for it for this long: who opened it is
    /// gone, or cannot judge it any more and has left it to others.
    fn nobody_answers(&mut self, by: Option<&InstanceId>, for_ms: u64, now: &Now) -> bool {
        if let Some(by) = by {
            (self.covered, self.uncovered) = (Some(by.clone()), None);
            return false;
        }
        let since = self.uncovered.get_or_insert_with(|| now.clone());
        let long = now.since(since).is_none_or(|ms| ms >= for_ms);
        self.uncovered.take_if(|_| long);
        long
    }

    /// True where what was accepted says that the alert fires.
    fn accept(&mut self, d: &Delivery, now: &Now) -> bool {
        (self.tries, self.fault, self.refused, self.not_before) = (0, None, false, None);
        self.accepted = Some(now.clone());
        let n = match d.event {
            Event::Trigger | Event::Update => 0,
            Event::Reminder(n) => n,
            Event::Resolve(n) => {
                self.open.remove(&n);
                return false;
            }
        };
        let open = Open { episode: d.episode, version: d.version, sure: true, maybe: true, at: now.clone() };
        self.open.insert(n, open);
        true
    }

    fn refuse(&mut self, d: &Delivery, why: &Arc<str>, present: u64) {
        self.fault = Some(why.clone());
        self.refused = true;
        match d.event {
            // Not even a doubt is left, unless an earlier try of it had no answer.
            Event::Trigger | Event::Update => self.open.retain(|n, o| *n != 0 || o.sure || o.maybe),
            Event::Reminder(r) => self.open.retain(|n, o| *n != r || o.sure || o.maybe),
            // It must not stand in the way of what fires now; but it is still open there, under the same key.
            Event::Resolve(r) => {
                for o in self.open.iter_mut().filter(|(n, o)| **n == r && o.episode != present).map(|(_, o)| o) {
                    (o.episode, o.version, o.sure, o.maybe) = (present, 0, false, true);
                }
            }
        }
    }
}

/// Kind and subject of a delivery's incident, for whoever renders it.
impl Delivery {
    /// It fires.
    pub fn fires(&self) -> bool {
        !matches!(self.event, Event::Resolve(_))
    }

    /// The alert that it is about.
    pub fn of<'a>(&self, book: &'a Book) -> Option<&'a Alert> {
        let about: &About = &self.about;
        book.get(about)
    }
}
