//! What makes an alert begin, get worse, and end. It begins at once; it ends slowly, and only by positive evidence.

use super::super::finding::{About, Finding, Kind, Report};
use super::super::page::{Page, PageKind, Severity};
use super::super::time::Now;
use super::{
    ALERTS_MAX, Absent, Alert, Book, CLEAR_MS, FAULT_AFTER_RESTART_MS, FAULT_QUIET_MS, FLAP_MS, FLAPS, HAND_OVER_MS,
    LOOKERS, LOOKS, QUIET_MS, State, Waiting, cut,
};
use std::sync::Arc;

/// Where a new episode comes from.
struct Raised {
    kind: Kind,
    subject: Arc<str>,
    severity: Severity,
    sentence: Arc<str>,
    own: bool,
    page: Option<Page>,
}

/// What a page of the cycle machine is about. The agent may be in several troubles at once, and one must not hide another.
pub(super) fn about_page(page: &Page, node: &str) -> About {
    let subject = match page.kind {
        PageKind::AgentFault => format!("{node}: trouble {:08x}", fnv(page.message.as_bytes())).into(),
        PageKind::Latched | PageKind::OutOfService | PageKind::ReleaseStuck | PageKind::ConfigUnusable => node.into(),
    };
    (Kind::from(page.kind), subject)
}

/// A name for a text, the same in every version.
pub(super) fn fnv(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash: u32, b| (hash ^ u32::from(*b)).wrapping_mul(0x0100_0193))
}

impl Book {
    /// One look of reconcile.
    pub fn look(&mut self, report: &Report, now: &Now) {
        for alert in &mut self.alerts {
            alert.found = false;
        }
        for finding in &report.findings {
            self.find(finding, now);
        }
        for alert in &mut self.alerts {
            alert.planned = report.planned.contains(&alert.about());
        }
        for alert in self.alerts.iter_mut().filter(|a| a.fires() && !a.found) {
            if report.shows_absent(&alert.about()) {
                alert.unjudged = None;
                // What the cycle machine or the book itself raised ends by evidence of its own.
                if alert.page.is_none() && alert.kind != Kind::SinkRefuses {
                    alert.not_there(now);
                }
            } else {
                alert.absent = None;
                if alert.unjudged.is_none() {
                    alert.unjudged = Some(now.clone());
                }
            }
        }
        self.tick(now);
    }

    fn find(&mut self, finding: &Finding, now: &Now) {
        let about = finding.about();
        let sentence = cut(&finding.sentence);
        match self.get_mut(&about) {
            Some(alert) if alert.fires() => {
                (alert.found, alert.absent, alert.unjudged) = (true, None, None);
                alert.seen = now.clone();
                alert.sentence = sentence;
                alert.worse(finding.severity, now);
            }
            Some(_) | None => {
                let own = self.is_own(&finding.subject);
                let (kind, subject, severity) = (finding.kind, finding.subject.clone(), finding.severity);
                self.fire(Raised { kind, subject, severity, sentence, own, page: None }, now);
                if let Some(alert) = self.get_mut(&about) {
                    alert.found = true;
                }
            }
        }
    }

    fn is_own(&self, subject: &str) -> bool {
        let rest = subject.strip_prefix(self.node.as_str());
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
    }

    /// All pages that wait in the durable state. Each becomes an alert once; those that are gone have been acknowledged.
    pub fn pages(&mut self, pages: &[Page], now: &Now) {
        let listed = |w: &Waiting| pages.iter().any(|p| p.seq == w.seq && p.raised.wall_ms == w.raised_ms);
        for alert in &mut self.alerts {
            alert.waiting.retain(listed);
        }
        for page in pages {
            let known = |w: &Waiting| w.seq == page.seq && w.raised_ms == page.raised.wall_ms;
            if !self.alerts.iter().any(|a| a.waiting.iter().any(known)) {
                self.page(page, now);
            }
        }
        self.tick(now);
    }

    fn page(&mut self, page: &Page, now: &Now) {
        let about = about_page(page, self.node.as_str());
        // Another cycle is another failure: whoever closed the first one in their head must hear of it anew.
        let same = |a: &Alert| a.page.as_ref().is_none_or(|had| had.cycle == page.cycle);
        match self.get_mut(&about) {
            Some(alert) if alert.fires() && same(alert) => {
                // A trouble of the agent is its words: said again they are nothing new, but that it lasts.
                let repeats = page.kind == PageKind::AgentFault && alert.page.is_some();
                alert.page = Some(page.clone());
                alert.sentence = cut(&page.message);
                (alert.own, alert.held, alert.folded) = (true, false, None);
                alert.seen = now.clone();
                if !alert.worse(page.severity, now) && !repeats {
                    alert.change(now);
                    alert.wakes = alert.version;
                }
            }
            Some(_) | None => {
                let (kind, subject) = about.clone();
                let (severity, sentence) = (page.severity, cut(&page.message));
                self.fire(Raised { kind, subject, severity, sentence, own: true, page: Some(page.clone()) }, now);
            }
        }
        if let Some(alert) = self.get_mut(&about) {
            let at = (alert.episode, alert.version);
            alert.waiting.push(Waiting { seq: page.seq, raised_ms: page.raised.wall_ms, at });
        }
    }

    /// Positive evidence that it is over. What the last look still found is not.
    pub fn over(&mut self, about: &About, now: &Now) {
        if let Some(alert) = self.get_mut(about).filter(|a| a.fires() && !a.found) {
            alert.state = State::Resolved(now.clone());
        }
        self.tick(now);
    }

    /// One more look that shows that it is not so, for what is not judged by a report.
    pub fn seems_over(&mut self, about: &About, now: &Now) {
        if let Some(alert) = self.get_mut(about).filter(|a| a.fires() && !a.found) {
            alert.not_there(now);
        }
        self.tick(now);
    }

    /// A look that does not show that it is over.
    pub fn not_over(&mut self, about: &About) {
        if let Some(alert) = self.get_mut(about) {
            alert.absent = None;
        }
    }

    /// A sink refuses for good: an alert of its own, through the others.
    pub(super) fn sink_refuses(&mut self, sink: &Arc<str>, why: &Arc<str>, now: &Now) {
        self.refusals.insert(sink.clone(), why.clone());
        let subject: Arc<str> = format!("{}: {sink}", self.node).into();
        let about = (Kind::SinkRefuses, subject.clone());
        let sentence = cut(&format!("{sink} refuses pages of {}: {why}", self.node));
        if let Some(alert) = self.get_mut(&about).filter(|a| a.fires()) {
            alert.seen = now.clone();
            alert.sentence = sentence;
            return;
        }
        let (kind, severity) = (Kind::SinkRefuses, Severity::Critical);
        self.fire(Raised { kind, subject, severity, sentence, own: true, page: None }, now);
    }

    fn fire(&mut self, raised: Raised, now: &Now) {
        let about = (raised.kind, raised.subject.clone());
        let more = if self.get(&about).is_none() { self.make_room(raised.severity) } else { 0 };
        self.episodes = self.episodes.saturating_add(1);
        let Raised { kind, subject, severity, sentence, own, page } = raised;
        let old = self.alerts.iter().position(|a| a.kind == kind && a.subject == subject);
        let old = old.map(|i| self.alerts.swap_remove(i));
        let mut firings = old.as_ref().map_or_else(Vec::new, |a| a.firings.clone());
        firings.push(now.clone());
        let over = firings.len().saturating_sub(FLAPS.saturating_add(1));
        firings.drain(..over);
        let (sent, waiting, heard) = old.map_or_else(Default::default, |a| (a.sent, a.waiting, a.heard));
        let mut sent = sent;
        for s in sent.values_mut() {
            // A new episode is owed anew, at once.
            (s.covered, s.tries, s.not_before, s.refused) = (None, 0, None, false);
        }
        let since = page.as_ref().map(|page| page.raised.clone());
        let held = !own && !super::storm::of_the_fleet(kind, &subject, &self.fleet);
        // Its new page lists from the start what is part of it.
        self.alerts.iter_mut().filter(|a| a.folded.as_ref() == Some(&about)).for_each(|a| a.late = 0);
        self.alerts.push(Alert {
            kind,
            subject,
            severity,
            sentence,
            state: State::Firing,
            episode: self.episodes,
            version: 1,
            // Of a page by the page: a book that was lost with its process names the same message again.
            since: since.unwrap_or_else(|| now.clone()),
            seen: now.clone(),
            own,
            page,
            folded: None,
            held,
            also: Vec::new(),
            more,
            sent,
            found: false,
            waiting,
            absent: None,
            firings,
            released: (!held).then(|| now.clone()),
            heard,
            named: false,
            unjudged: None,
            planned: false,
            wakes: 1,
            late: 0,
            changed: now.clone(),
        });
    }

    /// The most severe never makes room for a lesser one; what is over goes first. Returns how many were dropped so far that
    /// the newest has to tell of.
    fn make_room(&mut self, for_one: Severity) -> u64 {
        let mut more = 0_u64;
        while self.alerts.len() >= ALERTS_MAX {
            let over = self.alerts.iter().position(|a| !a.fires() && a.told());
            let least = self.alerts.iter().map(|a| a.severity).min().filter(|least| *least <= for_one);
            let lesser = || self.alerts.iter().position(|a| Some(a.severity) == least);
            let Some(i) = over.or_else(lesser).or(Some(0)) else { break };
            let dropped = self.alerts.remove(i);
            let lost = u64::from(dropped.fires() || !dropped.told());
            more = more.saturating_add(dropped.more).saturating_add(lost);
        }
        more
    }

    /// What time alone changes: called after every input, and when [`Book::next_due`] has come.
    pub fn tick(&mut self, now: &Now) {
        self.end_faults(now);
        self.end_refusals(now);
        self.hand_over(now);
        for alert in &mut self.alerts {
            alert.firings.retain(|at| now.roughly_since(at) <= FLAP_MS);
        }
        self.fold(now);
        self.release(now);
        self.cover(now);
        self.name_all();
        self.forget();
    }

    /// A fault of the agent is over when it did not come again for an hour after a restart, or, where it was a lesser one, for
    /// a day. (A trouble that lasts is told again by every start of the agent.)
    fn end_faults(&mut self, now: &Now) {
        let started = self.run.started.clone();
        let restarted = |a: &Alert| {
            let Some(started) = &started else { return false };
            let before = a.seen.boot != started.boot || started.since(&a.seen).is_some_and(|ms| ms > 0);
            before && now.since(started).is_some_and(|ms| ms >= FAULT_AFTER_RESTART_MS)
        };
        let faults = self.alerts.iter_mut().filter(|a| a.kind == Kind::AgentFault && a.fires() && !a.found);
        for alert in faults {
            let quiet = alert.severity == Severity::Warning && now.roughly_since(&alert.seen) >= FAULT_QUIET_MS;
            if alert.page.is_some() && (quiet || restarted(alert)) {
                alert.state = State::Resolved(now.clone());
            }
        }
    }

    /// A sink that has accepted again what it refused.
    fn end_refusals(&mut self, now: &Now) {
        let refused: Vec<Arc<str>> =
            self.alerts.iter().flat_map(|a| a.sent.iter().filter(|(_, s)| s.refused)).map(|(n, _)| n.clone()).collect();
        self.refusals.retain(|sink, _| refused.contains(sink));
        let prefix = format!("{}: ", self.node);
        let refusals = &self.refusals;
        let own = self.alerts.iter_mut().filter(|a| a.kind == Kind::SinkRefuses && a.fires());
        for alert in own.filter(|a| !refusals.contains_key(a.subject.strip_prefix(&prefix).unwrap_or_default())) {
            alert.state = State::Resolved(now.clone());
        }
    }

    /// An agent that no longer looks at whole groups cannot tell when what it found there is over. Those that look can, and
    /// they have it in their own books: it is left to them.
    fn hand_over(&mut self, now: &Now) {
        if self.run.peers.rank < LOOKERS {
            return;
        }
        let left = |a: &Alert| {
            let blind = a.unjudged.as_ref().is_some_and(|since| now.since(since).is_some_and(|ms| ms >= HAND_OVER_MS));
            blind && a.fires() && !a.own && a.page.is_none() && a.told()
        };
        self.alerts.retain(|a| !left(a));
    }

    /// What is over, told everywhere, and too old to count for flapping.
    fn forget(&mut self) {
        let owed = |a: &Alert| !a.told() || a.sent.values().any(|s| !s.open.is_empty()) || !a.waiting.is_empty();
        self.alerts.retain(|a| a.fires() || owed(a) || !a.firings.is_empty());
    }
}

impl Alert {
    /// True where it is worse than before.
    fn worse(&mut self, severity: Severity, now: &Now) -> bool {
        if severity <= self.severity {
            return false;
        }
        self.severity = severity;
        self.change(now);
        self.wakes = self.version;
        true
    }

    pub(super) fn change(&mut self, now: &Now) {
        self.version = self.version.saturating_add(1);
        self.changed = now.clone();
    }

    /// One look shows that it is not so.
    fn not_there(&mut self, now: &Now) {
        let absent = self.absent.take();
        // A time of another boot tells nothing: counted anew.
        let absent = absent.filter(|a| now.since(&a.since).is_some());
        let mut absent = absent.unwrap_or_else(|| Absent { looks: 0, since: now.clone() });
        absent.looks = absent.looks.saturating_add(1);
        let needed = if self.flaps() { QUIET_MS } else { CLEAR_MS };
        if absent.looks >= LOOKS && now.since(&absent.since).is_some_and(|ms| ms >= needed) {
            self.state = State::Resolved(now.clone());
        } else {
            self.absent = Some(absent);
        }
    }
}
