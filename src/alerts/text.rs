//! What a page says: what, which node, since when, is traffic at risk, what backstop is doing, is a human needed, the exact
//! next command, and the raw AWS command in case the agent is dead.

use super::Rendered;
use crate::core::page::{Page, PageKind, Severity};
use crate::core::target::Target;

/// What is known as a page is written.
#[derive(Clone, Debug)]
pub struct Context {
    /// Fleet name.
    pub fleet: String,
    /// This node.
    pub node: String,
    /// Members in service, with the age of that read in ms; absent = unknown.
    pub in_service: Option<(u32, u64)>,
    /// All members, where known.
    pub members: Option<u32>,
    /// `minimum_during_patch`
    pub floor: u32,
    /// This node's targets.
    pub targets: Vec<Target>,
    /// The present wall time in ms since 1970.
    pub now_ms: u64,
    /// The node's present stage, where a cycle is under way.
    pub doing: Option<String>,
}

/// Milliseconds since 1970 as RFC 3339 to the second.
pub fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms.checked_div(1_000).unwrap_or(0)).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| format!("{ms} ms since 1970"), |t| t.to_string())
}

/// A duration for people.
pub fn span(ms: u64) -> String {
    let s = ms.checked_div(1_000).unwrap_or(0);
    let (m, rest) = (s.checked_div(60).unwrap_or(0), s.checked_rem(60).unwrap_or(0));
    let (h, minutes) = (m.checked_div(60).unwrap_or(0), m.checked_rem(60).unwrap_or(0));
    match (h, m, s) {
        (0, 0, 0) => format!("{ms} ms"),
        (0, 0, _) => format!("{s} s"),
        (0, _, _) => format!("{m} min {rest:02} s"),
        _ => format!("{h} h {minutes:02} min"),
    }
}

/// The page as it is sent.
pub fn render(page: &Page, c: &Context) -> Rendered {
    let kind = page.kind.label();
    let severity = match page.severity {
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    };
    let summary = summary(page, c);
    let text = text(page, c, &summary);
    Rendered {
        key: format!("{}/{kind}/{}", c.fleet, c.node),
        // The number alone begins anew where a state was lost; with the time it is never used twice.
        id: format!("{}/{}/{}-{}", c.fleet, c.node, page.seq, page.raised.wall_ms),
        fleet: c.fleet.clone(),
        node: c.node.clone(),
        kind: kind.to_owned(),
        severity: severity.to_owned(),
        summary,
        text,
        raised: rfc3339(page.raised.wall_ms),
        sent_at: rfc3339(c.now_ms),
        cycle: page.cycle.as_ref().map(ToString::to_string),
        latch: page.latch.as_ref().map(ToString::to_string),
        stage: page.stage.map(|s| s.to_string()),
        class: page.class.map(|class| class.label().to_owned()),
    }
}

fn summary(page: &Page, c: &Context) -> String {
    let job = page.job.as_deref().unwrap_or("none");
    let stage = page.stage.map_or_else(String::new, |s| s.to_string());
    match page.kind {
        PageKind::Latched if page.out_since.is_some() => {
            format!("{}: {} OUT of the load balancer, its patch failed in {stage} (job {job})", c.fleet, c.node)
        }
        PageKind::Latched => format!("{}: the patch of {} failed in {stage} (job {job})", c.fleet, c.node),
        PageKind::OutOfService => format!("{}: {} OUT of the load balancer ({stage})", c.fleet, c.node),
        PageKind::ReleaseStuck => format!("{}: {} is back, but its slot cannot be given back", c.fleet, c.node),
        PageKind::ConfigUnusable => {
            format!("{}: the config of {} cannot be used; no cycle starts there", c.fleet, c.node)
        }
        PageKind::AgentFault => format!("{}: a part of the agent on {} failed", c.fleet, c.node),
    }
}

fn traffic(c: &Context) -> String {
    let Some((n, age_ms)) = c.in_service else {
        return "unknown: the load balancer could not be read".to_owned();
    };
    let of = c.members.map_or_else(String::new, |m| format!(" of {m}"));
    let age = span(age_ms);
    match n.checked_sub(c.floor) {
        None => format!("AT RISK: {n}{of} in service, the floor is {} (read {age} ago)", c.floor),
        Some(0) => format!("OK now: {n}{of} in service (read {age} ago). The next loss is below the floor."),
        Some(_) => format!("OK: {n}{of} in service (read {age} ago)"),
    }
}

fn text(page: &Page, c: &Context, summary: &str) -> String {
    let mut lines =
        vec![format!("[{}] {summary}", if page.severity == Severity::Critical { "CRITICAL" } else { "WARNING" })];
    let mut line = |label: &str, value: String| lines.push(format!("{label:<9}{value}"));
    line("Traffic", traffic(c));
    let since = page.out_since.as_ref().map_or(page.raised.wall_ms, |s| s.wall_ms);
    let ago = span(c.now_ms.saturating_sub(since));
    let mut where_ = vec![format!("{} ({ago})", rfc3339(since))];
    where_.extend(page.stage.map(|s| format!("stage {s}")));
    where_.extend(page.cycle.as_ref().map(|x| format!("cycle {x}")));
    where_.extend(page.job.as_ref().map(|j| format!("job {j}")));
    line("Since", where_.join(", "));
    line("Why", page.message.to_string());
    if let Some(result) = &page.job_result {
        line("Job", result.replace('\n', "\n         "));
    }
    let (doing, human, next, after) = advice(page, c);
    line("Doing", doing);
    line("Human", human);
    line("Next", next);
    if let Some(after) = after {
        line("After", after);
    }
    if page.out_since.is_some() && !c.targets.is_empty() {
        lines.push("If the agent is dead:".to_owned());
        for t in &c.targets {
            lines.push(format!(
                "  aws elbv2 register-targets --target-group-arn {} --targets Id={},Port={}",
                t.group, t.id, t.port
            ));
        }
    }
    lines.push(format!("Runbook  docs/runbooks/{}.md", page.kind.label()));
    lines.join("\n")
}

/// What backstop is doing, whether a human is needed, the next command, and the one after it.
fn advice(page: &Page, c: &Context) -> (String, String, String, Option<String>) {
    let explain = format!("backstop explain {}                 (from any node)", c.node);
    let doing = c.doing.clone().unwrap_or_else(|| "nothing: no cycle is under way on this node".to_owned());
    match page.kind {
        PageKind::Latched => {
            let latch = page.latch.as_ref().map_or_else(|| "L-…".to_owned(), ToString::to_string);
            (
                format!("{doing}\n         Patching is BLOCKED on all nodes (latch {latch})."),
                format!(
                    "YES. Find out why it failed; the node returns by itself the moment {} passes its check.",
                    c.node
                ),
                explain,
                Some(format!("backstop latch clear {latch} --reason \"...\"")),
            )
        }
        PageKind::OutOfService => (
            doing,
            "YES. What is refused does not heal by waiting; the agent keeps trying meanwhile.".to_owned(),
            explain,
            None,
        ),
        PageKind::ReleaseStuck => (
            format!("{doing}\n         The node is in service; no other node can be patched until this is over."),
            "Soon. Get the fleet record's store to answer; nothing else is needed.".to_owned(),
            "backstop status".to_owned(),
            None,
        ),
        PageKind::ConfigUnusable => (
            "runs with the last good config; an unfinished way back goes on".to_owned(),
            "YES. Mend the file; the agent reads it again on reload.".to_owned(),
            "backstop config check".to_owned(),
            Some("systemctl reload backstop".to_owned()),
        ),
        PageKind::AgentFault => {
            (doing, "Soon. Please report it.".to_owned(), "journalctl -u backstop -n 100".to_owned(), None)
        }
    }
}
