//! Pages: facts that a person has to hear, kept in the durable state until a sink has accepted them.
//!
//! The text is written when a page is delivered (`alerts/`), since traffic and times are only known then.

use super::cycle::{Durable, FailureClass, StageName};
use super::ids::{CycleId, LatchId};
use super::time::Now;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// At most this many wait. Later ones of the same kind and cycle take an older one's place; of more than this the oldest of
/// the lowest severity makes room, and the newest says so.
pub const PAGES_MAX: usize = 32;

/// What a page is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageKind {
    /// A cycle failed; patching is blocked on every node.
    Latched,
    /// The node is out beyond its budget, or its way back is refused.
    OutOfService,
    /// A slot or hold cannot be given back.
    ReleaseStuck,
    /// The configuration cannot be used; no cycle starts.
    ConfigUnusable,
    /// A part of the agent died and was started again.
    AgentFault,
}

impl PageKind {
    /// The stable label: part of the key, and the name of the runbook.
    pub const fn label(self) -> &'static str {
        match self {
            PageKind::Latched => "latched",
            PageKind::OutOfService => "out-of-service",
            PageKind::ReleaseStuck => "release-stuck",
            PageKind::ConfigUnusable => "config-unusable",
            PageKind::AgentFault => "agent-fault",
        }
    }
}

/// How bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Look today.
    Warning,
    /// Look now.
    Critical,
}

/// One page.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Its number on this node.
    pub seq: u64,
    /// What about.
    pub kind: PageKind,
    /// How bad.
    pub severity: Severity,
    /// The cycle.
    pub cycle: Option<CycleId>,
    /// Its latch.
    pub latch: Option<LatchId>,
    /// Its job.
    pub job: Option<Arc<str>>,
    /// Where it failed.
    pub stage: Option<StageName>,
    /// In which class.
    pub class: Option<FailureClass>,
    /// What happened, for people.
    pub message: Arc<str>,
    /// How the job ended, for people, with the tail of its output.
    pub job_result: Option<Arc<str>>,
    /// The node is out of service as this page is raised, since then.
    pub out_since: Option<Now>,
    /// When it was raised.
    pub raised: Now,
}

/// Adds a page; one about the same thing that still waits is replaced: of the same kind and cycle, and where the agent
/// itself is in trouble with the same words, for it may be in several troubles at once.
pub fn raise(d: &mut Durable, mut page: Page) {
    d.page_seq = d.page_seq.saturating_add(1);
    page.seq = d.page_seq;
    let mut more = 0_u64;
    d.pages.retain(|p| {
        let same = p.kind != PageKind::AgentFault || folded(&p.message).0 == folded(&page.message).0;
        let replaced = p.kind == page.kind && p.cycle == page.cycle && same;
        if replaced {
            more = more.saturating_add(folded(&p.message).1);
        }
        !replaced
    });
    d.pages.push(page);
    while d.pages.len() > PAGES_MAX {
        let least = d.pages.iter().map(|p| p.severity).min();
        let Some(i) = d.pages.iter().position(|p| Some(p.severity) == least) else { return };
        let dropped = d.pages.remove(i);
        more = more.saturating_add(folded(&dropped.message).1).saturating_add(1);
    }
    if more > 0
        && let Some(newest) = d.pages.last_mut()
    {
        let (message, before) = folded(&newest.message);
        let more = more.saturating_add(before);
        newest.message = format!("{message}{AND}{more}{MORE}").into();
    }
}

/// Before and after the number of pages that found no room.
const AND: &str = "\nand ";
const MORE: &str = " more on this node, of which only its log tells: too many pages waited";

/// A message without what [`raise`] added to it, and how many pages that stands for.
fn folded(message: &str) -> (&str, u64) {
    let split = message.rsplit_once(AND).and_then(|(own, rest)| Some((own, rest.strip_suffix(MORE)?.parse().ok()?)));
    split.unwrap_or((message, 0))
}

/// A page about the cycle under way.
pub fn about_cycle(d: &Durable, kind: PageKind, severity: Severity, message: Arc<str>, now: &Now) -> Page {
    let c = d.cycle.as_ref();
    let failure = c.and_then(|c| c.failure.as_ref());
    Page {
        seq: 0,
        kind,
        severity,
        cycle: c.map(|c| c.plan.id.clone()),
        latch: c.filter(|c| c.failure.is_some() && c.plan.latches()).map(|c| c.plan.id.latch()),
        job: c.map(|c| c.plan.job_name()),
        stage: failure.map(|f| f.stage).or(c.map(|c| c.stage.name())),
        class: failure.map(|f| f.class),
        message,
        job_result: c.and_then(|c| c.verdict.as_ref()).map(|v| {
            let tail = v.output_tail.trim_end();
            if tail.is_empty() { v.result.to_string() } else { format!("{}\n{tail}", v.result) }.into()
        }),
        out_since: c.and_then(|c| c.out_since.clone()),
        raised: now.clone(),
    }
}

/// The page that every failure raises, in the same commit. An operator's own cancelling does not page.
pub fn raise_failure(d: &mut Durable, now: &Now) {
    let Some(c) = &d.cycle else { return };
    let Some(f) = &c.failure else { return };
    if f.class == FailureClass::Cancelled {
        return;
    }
    let kind = if c.plan.latches() { PageKind::Latched } else { PageKind::OutOfService };
    let page = about_cycle(d, kind, Severity::Critical, f.message.clone(), now);
    raise(d, page);
}

#[cfg(test)]
mod tests {
    use super::super::ids::InstanceId;
    use super::super::time::BootId;
    use super::*;

    fn page(n: usize, severity: Severity) -> Page {
        Page {
            seq: 0,
            kind: PageKind::Latched,
            severity,
            cycle: Some(CycleId(format!("c{n}").into())),
            latch: None,
            job: None,
            stage: None,
            class: None,
            message: format!("message {n}").into(),
            job_result: None,
            out_since: None,
            raised: Now { wall_ms: 0, boot: BootId("b".into()), since_boot_ms: 0 },
        }
    }

    fn raised(pages: impl IntoIterator<Item = Page>) -> Durable {
        let mut d = Durable::new(InstanceId("i-1".into()));
        pages.into_iter().for_each(|p| raise(&mut d, p));
        d
    }

    fn cycles(d: &Durable) -> Vec<&str> {
        d.pages.iter().filter_map(|p| p.cycle.as_ref()).map(CycleId::as_str).collect()
    }

    #[test]
    fn no_critical_page_makes_room_while_there_is_a_lesser_one() {
        let severity = |n: usize| if n == 3 || n == 7 { Severity::Warning } else { Severity::Critical };
        let d = raised((0..=PAGES_MAX).map(|n| page(n, severity(n))));
        assert_eq!(d.pages.len(), PAGES_MAX);
        assert!(!cycles(&d).contains(&"c3") && cycles(&d).contains(&"c7"), "the older warning went");
        // A warning that comes when all others are critical finds no room itself.
        let mut d = raised((0..PAGES_MAX).map(|n| page(n, Severity::Critical)));
        raise(&mut d, page(99, Severity::Warning));
        assert_eq!((d.pages.len(), cycles(&d).contains(&"c99"), cycles(&d).contains(&"c0")), (PAGES_MAX, false, true));
        assert!(d.pages.last().is_some_and(|p| p.message.contains("\nand 1 more on this node")));
    }

    #[test]
    fn two_troubles_of_the_agent_do_not_hide_each_other() {
        let trouble = |n: usize, severity| Page { kind: PageKind::AgentFault, cycle: None, ..page(n, severity) };
        let d = raised([trouble(1, Severity::Critical), trouble(2, Severity::Warning), trouble(2, Severity::Warning)]);
        let said: Vec<_> = d.pages.iter().map(|p| (&*p.message, p.severity)).collect();
        assert_eq!(said, [("message 1", Severity::Critical), ("message 2", Severity::Warning)]);
    }

    #[test]
    fn pages_that_found_no_room_are_counted_in_the_newest_one_whatever_replaces_it() {
        let mut d = raised((0..PAGES_MAX + 3).map(|n| page(n, Severity::Critical)));
        assert_eq!(cycles(&d).first(), Some(&"c3"), "the oldest went");
        let said = |d: &Durable| d.pages.iter().map(|p| folded(&p.message).1).sum::<u64>();
        let newest = |d: &Durable| d.pages.last().map(|p| p.message.to_string()).unwrap_or_default();
        assert_eq!(newest(&d), format!("message {}{AND}1{MORE}", PAGES_MAX + 2));
        assert_eq!(said(&d), 3);
        raise(&mut d, page(PAGES_MAX + 2, Severity::Critical));
        assert_eq!(newest(&d), format!("message {}{AND}1{MORE}", PAGES_MAX + 2), "said once, also by its successor");
        // Those that said so go too, one after another: nothing is forgotten.
        (100..100 + 2 * PAGES_MAX).for_each(|n| raise(&mut d, page(n, Severity::Critical)));
        assert_eq!(said(&d), 3 + 2 * u64::try_from(PAGES_MAX).unwrap_or(0));
    }
}
