//! From what one look shows to what is told: two reads in a row, some time where time is due, and nothing without bounds.

use super::super::finding::{About, Finding, Kind, Report};
use super::super::ids::InstanceId;
use super::super::page::Severity;
use super::super::target::GroupArn;
use super::super::time::{BootId, Now};
use super::sight::Source;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Findings in one report, at most.
pub const FINDINGS_MAX: usize = 256;
/// Things remembered of each sort, at most.
pub(super) const REMEMBERED_MAX: usize = 4_096;
/// Single subjects of one report that are not judged, at most; of more than this the whole kinds are not.
const UNJUDGED_MAX: usize = 4_096;

/// What a look shows, before it is known whether it may be told yet.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) kind: Kind,
    pub(super) subject: Arc<str>,
    pub(super) severity: Severity,
    pub(super) sentence: String,
    /// It must have been so for this long.
    pub(super) after_ms: u64,
    /// When the read that it rests on began; `None` = it is a matter of time alone, and is told at once.
    pub(super) read: Option<Now>,
    /// When the last read of something else began that may explain it: it is told only where that came after the second read
    /// that shows it.
    pub(super) beside: Option<Now>,
}

impl Candidate {
    pub(super) fn new(kind: Kind, subject: &str, sentence: String, read: &Now) -> Candidate {
        let severity = kind.severity();
        let (subject, read) = (subject.into(), Some(read.clone()));
        Candidate { kind, subject, severity, sentence, after_ms: 0, read, beside: None }
    }

    #[must_use]
    pub(super) fn after(self, after_ms: u64) -> Candidate {
        Candidate { after_ms: self.after_ms.max(after_ms), ..self }
    }
}

/// What one look shows.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) found: Vec<Candidate>,
    pub(super) unjudged: BTreeSet<Kind>,
    pub(super) unjudged_about: BTreeSet<About>,
    /// Of these, what a plan explains: whoever comes back from it is looked at anew.
    planned: BTreeSet<About>,
    looker: Arc<str>,
}

impl Draft {
    pub(super) fn new(looker: &str) -> Draft {
        let unjudged = Kind::ALL.into_iter().filter(|k| k.made_elsewhere()).collect();
        Draft { unjudged, looker: looker.into(), ..Draft::default() }
    }

    pub(super) fn find(&mut self, candidate: Candidate) {
        self.found.push(candidate);
    }

    /// These kinds are not judged at all.
    pub(super) fn cannot(&mut self, kinds: &[Kind]) {
        self.unjudged.extend(kinds);
    }

    /// This is neither raised nor resolved by this look.
    pub(super) fn leave(&mut self, kind: Kind, subject: &str) {
        if self.unjudged.contains(&kind) {
            return;
        }
        self.unjudged_about.insert((kind, subject.into()));
        if self.unjudged_about.len() > UNJUDGED_MAX {
            self.unjudged.extend(self.unjudged_about.iter().map(|(k, _)| *k));
            self.unjudged_about.clear();
        }
    }

    /// A plan explains it: neither raised nor resolved, and what was seen before the plan was known counts no more.
    pub(super) fn plan(&mut self, kind: Kind, subject: &str) {
        self.leave(kind, subject);
        if self.planned.len() < UNJUDGED_MAX {
            self.planned.insert((kind, subject.into()));
        }
    }

    fn leaves(&self, about: &About) -> bool {
        self.unjudged.contains(&about.0) || self.unjudged_about.contains(about)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Waiting {
    /// The first read in a row that showed it.
    first: Now,
    /// Another read showed it, too: when that began.
    again: Option<Now>,
    told: bool,
}

/// What is remembered from look to look. Of one boot: in another one it is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    boot: Option<BootId>,
    waiting: BTreeMap<About, Waiting>,
    /// There were as many members as the minimum asks for, once.
    pub(super) full: bool,
    /// Since when each source fails.
    pub(super) blind: BTreeMap<Source, Now>,
    /// Members without a row in a group.
    pub(super) absent: BTreeMap<(GroupArn, InstanceId), Missed>,
    /// Members whose absence the record explains, or explained until a read that began then.
    pub(super) planned: BTreeMap<InstanceId, Option<Now>>,
    /// Members that were seen in service: their start is over, however young they are.
    pub(super) served: BTreeSet<InstanceId>,
}

/// Since when somebody is missed in a list. All in milliseconds of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missed {
    /// The first read without it, or when it last said that it is there all the same.
    pub(super) since: u64,
    /// The read that changed this last; looked at once more, it is compared with what was so before.
    pub(super) read: u64,
    pub(super) before: u64,
    /// What contradicted that read: when the member says that it read itself healthy.
    pub(super) said: Option<u64>,
}

impl Memory {
    /// Entries, all in all: never more than five times [`REMEMBERED_MAX`].
    pub fn len(&self) -> usize {
        let sizes = [self.waiting.len(), self.blind.len(), self.absent.len(), self.planned.len(), self.served.len()];
        sizes.into_iter().fold(0, usize::saturating_add)
    }

    /// Nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn begin(&mut self, now: &Now) {
        if self.boot.as_ref() != Some(&now.boot) {
            *self = Memory { boot: Some(now.boot.clone()), ..Memory::default() };
        }
    }

    /// Takes in one look, and says what of it may be told.
    pub(super) fn settle(&mut self, mut draft: Draft, now: &Now) -> Report {
        let found = std::mem::take(&mut draft.found);
        let mut told: BTreeMap<About, Finding> = BTreeMap::new();
        let mut seen: BTreeSet<About> = BTreeSet::new();
        for c in found {
            let about = (c.kind, c.subject.clone());
            if self.may_tell(&about, &c, now) {
                // Of two sentences about one thing both are told.
                let finding = told.entry(about.clone()).or_insert_with(|| Finding {
                    kind: c.kind,
                    subject: c.subject.clone(),
                    severity: c.severity,
                    sentence: "".into(),
                });
                finding.severity = finding.severity.max(c.severity);
                let both = if finding.sentence.is_empty() { "" } else { "; " };
                finding.sentence = format!("{}{both}{}", finding.sentence, c.sentence).into();
            } else {
                draft.leave(c.kind, &c.subject);
            }
            seen.insert(about);
        }
        let waits = |about: &About, w: &Waiting| w.told || !draft.planned.contains(about);
        self.waiting.retain(|about, w| seen.contains(about) || (draft.leaves(about) && waits(about, w)));
        let mut findings: Vec<Finding> = told.into_values().collect();
        findings.sort_by_cached_key(|f| (Reverse(f.severity), rank(f.kind), f.subject.clone()));
        bound(&mut findings, &mut draft);
        let Draft { unjudged, unjudged_about, planned, looker, .. } = draft;
        Report { findings, unjudged, unjudged_about, planned, looker }
    }

    fn may_tell(&mut self, about: &About, c: &Candidate, now: &Now) -> bool {
        let Some(read) = &c.read else { return true };
        if !self.waiting.contains_key(about) && self.waiting.len() >= REMEMBERED_MAX {
            return false;
        }
        let w = self.waiting.entry(about.clone()).or_insert_with(|| Waiting {
            first: read.clone(),
            again: None,
            told: false,
        });
        if w.again.is_none() && w.first != *read {
            w.again = Some(read.clone());
        }
        let long = c.after_ms == 0 || now.since(&w.first).is_some_and(|ms| ms >= c.after_ms);
        let sure = |again: &Now| c.beside.as_ref().is_none_or(|at| at.since(again).is_some());
        w.told |= long && w.again.as_ref().is_some_and(sure);
        w.told
    }
}

/// The order of kinds of one severity: what counts for traffic first.
const fn rank(kind: Kind) -> (u8, Kind) {
    let place = if matches!(kind, Kind::BelowFloor) {
        0
    } else if matches!(kind, Kind::BelowMinimum) {
        1
    } else {
        2
    };
    (place, kind)
}

/// What finds no room is counted in the last one's sentence; not told, it is not absent either.
fn bound(findings: &mut Vec<Finding>, draft: &mut Draft) {
    if findings.len() <= FINDINGS_MAX {
        return;
    }
    let rest = findings.split_off(FINDINGS_MAX);
    for f in &rest {
        draft.leave(f.kind, &f.subject);
    }
    if let Some(last) = findings.last_mut() {
        last.sentence =
            format!("{}; and {} more findings that no report has room for", last.sentence, rest.len()).into();
    }
}
