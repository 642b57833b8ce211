//! Many alerts at once are one event for whoever is woken. What a fleet-level alert explains is told in its page; of what is
//! left only so many go out within a minute.

use super::super::finding::{About, Kind};
use super::super::page::Severity;
use super::super::time::Now;
use super::{Alert, Book, NEXT, WINDOW_MAX, WINDOW_MS, Window};
use std::cmp::Reverse;
use std::sync::Arc;

/// About the fleet as a whole: it explains what happens to its nodes.
pub(super) fn of_the_fleet(kind: Kind, subject: &str, fleet: &str) -> bool {
    matches!(kind, Kind::BelowFloor | Kind::BelowMinimum) || (kind == Kind::Unhealthy && subject == fleet)
}

/// Nodes that are not in service, in whatever way: one, or more than anything explains.
fn of_a_node(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::OutOfService
            | Kind::RunningNotRegistered
            | Kind::RegisteredNotRunning
            | Kind::Unhealthy
            | Kind::StuckInitial
            | Kind::StuckDraining
            | Kind::MissingFromGroup
            | Kind::NotInUse
            | Kind::MoreOutThanSlots
    )
}

/// The worst first.
fn weight(kind: Kind) -> u8 {
    u8::from(kind != Kind::BelowFloor).saturating_add(u8::from(kind == Kind::BelowMinimum))
}

impl Book {
    /// The fleet-level alert that explains the rest: one of this book, or one that another agent has had accepted.
    fn parent(&self) -> Option<About> {
        let own = self.alerts.iter().filter(|a| a.fires() && of_the_fleet(a.kind, &a.subject, &self.fleet));
        if let Some(worst) = own.min_by_key(|a| weight(a.kind)) {
            return Some(worst.about());
        }
        let of_peers = [Kind::BelowFloor, Kind::Unhealthy, Kind::BelowMinimum].map(|kind| (kind, self.fleet.clone()));
        of_peers.into_iter().find(|about| self.told_by(&self.key(about)).is_some())
    }

    /// Puts what happens to nodes below what happens to the fleet, and takes out again what is left when that is over. What
    /// was sent by itself stays by itself, and so does what the cycle machine raised: its page says what to do.
    pub(super) fn fold(&mut self, now: &Now) {
        let parent = self.parent();
        let elsewhere = parent.as_ref().is_some_and(|parent| self.get(parent).is_none());
        let fleet = self.fleet.clone();
        let is_out = parent.as_ref().and_then(|parent| self.get(parent)).is_some_and(Alert::attempted);
        let late = if is_out { NEXT } else { 0 };
        for alert in &mut self.alerts {
            let child = of_a_node(alert.kind) && !of_the_fleet(alert.kind, &alert.subject, &fleet);
            if !child || !alert.fires() || alert.page.is_some() {
                continue;
            }
            match (&alert.folded, &parent) {
                (None, Some(parent)) if !alert.attempted() => {
                    (alert.folded, alert.late) = (Some(parent.clone()), late);
                }
                (Some(had), Some(parent)) if had != parent => {
                    (alert.folded, alert.late) = (Some(parent.clone()), late);
                }
                // What the last look no longer shows has no page of its own to come: it ends, or is found again.
                (Some(_), None) if !alert.fades() => {
                    (alert.folded, alert.named, alert.late) = (None, false, 0);
                    alert.held = !alert.own;
                    alert.released = alert.own.then(|| now.clone());
                }
                _ => {}
            }
            // The agent that sends the page about the fleet sees its nodes too.
            alert.named = alert.named || (elsewhere && alert.folded.is_some());
        }
        // At most once a minute, since a fleet falls node by node.
        let minute = |a: &&Alert| a.fires() && now.roughly_since(&a.changed) >= WINDOW_MS;
        let grown: Vec<About> =
            self.alerts.iter().filter(minute).filter(|a| self.has_grown(a)).map(Alert::about).collect();
        for about in grown {
            let Some(parent) = self.get_mut(&about) else { continue };
            parent.change(now);
            let version = parent.version;
            let new = |a: &&mut Alert| a.late == NEXT && a.folded.as_ref() == Some(&about);
            self.alerts.iter_mut().filter(new).for_each(|a| a.late = version);
        }
    }

    /// More is so by now than its page says.
    pub(super) fn has_grown(&self, alert: &Alert) -> bool {
        self.folded_into(&alert.about()).any(|a| a.late == NEXT && a.counts())
    }

    /// Something that still is so came to its page after this version of it. What was gone again before anybody could be told
    /// is not worth a word, and neither is more about something that the last look no longer shows.
    pub(super) fn has_news(&self, alert: &Alert, version: u32) -> bool {
        // Of the page as it is: a version that it has not reached is of an earlier episode.
        let new = |a: &Alert| a.late > version && a.late <= alert.version && a.counts();
        !alert.fades() && self.folded_into(&alert.about()).any(new)
    }

    /// Alerts that wait for their window, the worst first and then the oldest.
    fn waiting(&self) -> Vec<About> {
        let waits = |a: &&Alert| a.held && a.folded.is_none() && (a.fires() || !a.told());
        let mut waiting: Vec<&Alert> = self.alerts.iter().filter(waits).collect();
        waiting.sort_by_key(|a| (Reverse(a.severity), a.episode));
        waiting.into_iter().map(Alert::about).collect()
    }

    pub(super) fn release(&mut self, now: &Now) {
        let over = |w: &Window| now.since(&w.since).is_none_or(|ms| ms >= WINDOW_MS);
        if self.window.as_ref().is_some_and(over) {
            self.window = None;
        }
        let waiting = self.waiting();
        if waiting.is_empty() {
            return;
        }
        let mut window = self.window.take().unwrap_or_else(|| Window { since: now.clone(), sent: 0 });
        let count = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
        if window.sent.saturating_add(count) <= WINDOW_MAX {
            window.sent = window.sent.saturating_add(count);
            for about in &waiting {
                self.let_go(about, Vec::new(), now);
            }
        } else if window.sent <= WINDOW_MAX
            && let Some((worst, others)) = waiting.split_first()
        {
            window.sent = WINDOW_MAX.saturating_add(1);
            self.let_go(worst, others.to_vec(), now);
        }
        self.window = Some(window);
    }

    fn let_go(&mut self, about: &About, also: Vec<About>, now: &Now) {
        if let Some(alert) = self.get_mut(about) {
            (alert.held, alert.also, alert.released) = (false, also, Some(now.clone()));
        }
    }

    /// Whatever a page names that was accepted has been told of.
    pub(super) fn name_all(&mut self) {
        let told = self.alerts.iter().filter(|a| a.told());
        let stands = told.filter(|a| !a.also.is_empty() || of_the_fleet(a.kind, &a.subject, &self.fleet));
        let stands: Vec<(About, Vec<About>)> = stands.map(|a| (a.about(), a.also.clone())).collect();
        for (about, also) in stands {
            for alert in &mut self.alerts {
                let named = alert.folded.as_ref() == Some(&about) || (alert.held && also.contains(&alert.about()));
                alert.named = alert.named || named;
            }
        }
    }

    /// When the next of those that wait may go.
    pub(super) fn window_ends(&self) -> Option<Now> {
        let window = self.window.as_ref().filter(|_| !self.waiting().is_empty())?;
        Some(window.since.plus(WINDOW_MS))
    }

    /// Sentences of what is told in this one's page, the worst first.
    pub fn listed(&self, about: &About) -> Vec<(Severity, Arc<str>)> {
        let also = self.get(about).map(|a| a.also.as_slice()).unwrap_or_default();
        let with = |a: &&Alert| a.folded.as_ref() == Some(about) || also.contains(&a.about());
        let mut listed: Vec<&Alert> = self.alerts.iter().filter(with).filter(|a| a.fires() || !a.told()).collect();
        listed.sort_by_key(|a| (!a.fires(), Reverse(a.severity), a.episode));
        let says = |a: &Alert| match (a.fires(), a.fades()) {
            (true, false) => a.sentence.clone(),
            (true, true) => format!("{} (no longer so by the last look)", a.sentence).into(),
            (false, _) => format!("{} (over)", a.sentence).into(),
        };
        listed.into_iter().map(|a| (a.severity, says(a))).collect()
    }
}
