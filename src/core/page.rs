//! Pages: facts that a person has to hear, kept in the durable state until a sink has accepted them.
//!
//! The text is written when a page is delivered (`alerts/`), since traffic and times are only known then.

use super::cycle::{Durable, FailureClass, StageName};
use super::ids::{CycleId, LatchId};
use super::time::Now;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// At most this many wait. Later ones of the same kind take an older one's place; nothing else is dropped.
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

/// Adds a page; one of the same kind and cycle that still waits is replaced.
pub fn raise(d: &mut Durable, mut page: Page) {
    d.page_seq = d.page_seq.saturating_add(1);
    page.seq = d.page_seq;
    d.pages.retain(|p| !(p.kind == page.kind && p.cycle == page.cycle));
    d.pages.push(page);
    if d.pages.len() > PAGES_MAX
        && let Some(i) = d.pages.iter().position(|p| p.severity == Severity::Warning).or(Some(0))
    {
        d.pages.remove(i);
    }
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
