//! What a page says: what, which node, since when, is traffic at risk, what backstop is doing, is a human needed, the exact
//! next command, and the raw AWS command in case the agent is dead.

use super::Rendered;
use crate::core::cycle::StageName;
use crate::core::page::{Page, PageKind, Severity};
use crate::core::target::Target;
use crate::words::{age, span};

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

/// Where the package puts the runbooks; each is named after its kind of page.
pub const RUNBOOKS: &str = "/usr/share/doc/backstop/runbooks";

/// The file that says what to do about pages of this kind.
pub fn runbook(kind: PageKind) -> String {
    format!("{RUNBOOKS}/{}.md", kind.label())
}

/// The command that registers a target without any agent. Registering twice does no harm.
pub fn by_hand(t: &Target) -> String {
    let region = t.group.0.split(':').nth(3).filter(|r| !r.is_empty());
    let region = region.map_or_else(String::new, |r| format!("--region {r} "));
    format!("aws elbv2 register-targets {region}--target-group-arn {} --targets Id={},Port={}", t.group, t.id, t.port)
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
    let age = age(age_ms);
    let (floor, left) = (c.floor, n.saturating_sub(1));
    match n.checked_sub(floor) {
        None => format!("AT RISK: {n}{of} in service, {floor} are needed while a node is out (read {age} ago)."),
        Some(0) => format!("OK now: {n}{of} in service (read {age} ago). The next loss leaves {left}: too few."),
        Some(_) => format!("OK: {n}{of} in service (read {age} ago)."),
    }
}

fn text(page: &Page, c: &Context, summary: &str) -> String {
    let mut lines =
        vec![format!("[{}] {summary}", if page.severity == Severity::Critical { "CRITICAL" } else { "WARNING" })];
    let mut line = |label: &str, value: String| lines.push(format!("{label:<9}{value}"));
    line("Traffic", traffic(c));
    let since = page.out_since.as_ref().map_or(page.raised.wall_ms, |s| s.wall_ms);
    let ago = span(c.now_ms.saturating_sub(since));
    let mut where_ = vec![format!("{} (for {ago})", rfc3339(since))];
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
        lines.extend(c.targets.iter().map(|t| format!("  {}", by_hand(t))));
    }
    lines.push(format!("Runbook  {}", runbook(page.kind)));
    lines.join("\n")
}

/// What backstop is doing, whether a human is needed, the next command, and the one after it.
fn advice(page: &Page, c: &Context) -> (String, String, String, Option<String>) {
    let explain = format!("backstop explain {}   # from any node", c.node);
    let doing = c.doing.clone().unwrap_or_else(|| "nothing: no cycle is under way on this node".to_owned());
    match page.kind {
        PageKind::Latched => {
            let latch = page.latch.as_ref().map_or_else(|| "L-…".to_owned(), ToString::to_string);
            (
                format!("{doing}\n         Patching is BLOCKED on all nodes (latch {latch})."),
                latched_human(page, c),
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

/// A node that is out comes first: it needs somebody now. A failed patch on a node that is back can wait for the morning.
fn latched_human(page: &Page, c: &Context) -> String {
    let node = &c.node;
    match (page.out_since.is_some(), page.stage) {
        (true, Some(StageName::Check)) => {
            format!("YES. Get Elasticsearch on {node} to answer; nothing else is needed for the node to return.")
        }
        (true, _) => format!("YES. Find out why it failed; {node} registers itself the moment its check passes."),
        (false, _) => format!("Soon. {node} serves; find out why its patch failed before anything else is patched."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cycle::FailureClass;
    use crate::core::error::Class;
    use crate::core::target::GroupArn;
    use crate::core::time::{BootId, Now};

    const ARN: &str =
        "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef";

    fn page(kind: PageKind) -> Page {
        let at = |wall_ms| Now { wall_ms, boot: BootId("b".into()), since_boot_ms: 5 };
        Page {
            seq: 1,
            kind,
            severity: Severity::Critical,
            cycle: Some("c-91d2".into()),
            latch: Some("L-91d2".into()),
            job: Some("apt-security".into()),
            stage: Some(StageName::Check),
            class: Some(FailureClass::Call(Class::Transport)),
            message: "connection refused".into(),
            job_result: None,
            out_since: Some(at(1_788_318_131_000)),
            raised: at(1_788_319_391_000),
        }
    }

    fn context() -> Context {
        Context {
            fleet: "au-search".to_owned(),
            node: "es-client-2".to_owned(),
            in_service: Some((2, 4_200)),
            members: Some(3),
            floor: 2,
            targets: vec![Target { group: GroupArn(ARN.into()), id: "i-0b1c".into(), port: 9200 }],
            now_ms: 1_788_319_391_000,
            doing: Some("check: try 168, connection refused (transport)".to_owned()),
        }
    }

    #[test]
    fn a_page_says_what_is_so_what_happens_and_what_to_do() {
        let told = render(&page(PageKind::Latched), &context());
        let aws = format!(
            "  aws elbv2 register-targets --region ap-southeast-2 --target-group-arn {ARN} --targets Id=i-0b1c,Port=9200"
        );
        let lines = [
            "[CRITICAL] au-search: es-client-2 OUT of the load balancer, its patch failed in check (job apt-security)",
            "Traffic  OK now: 2 of 3 in service (read 4 s ago). The next loss leaves 1: too few.",
            "Since    2026-09-02T03:02:11Z (for 21m00s), stage check, cycle c-91d2, job apt-security",
            "Why      connection refused",
            "Doing    check: try 168, connection refused (transport)",
            "         Patching is BLOCKED on all nodes (latch L-91d2).",
            "Human    YES. Get Elasticsearch on es-client-2 to answer; nothing else is needed for the node to return.",
            "Next     backstop explain es-client-2   # from any node",
            "After    backstop latch clear L-91d2 --reason \"...\"",
            "If the agent is dead:",
            &aws,
            "Runbook  /usr/share/doc/backstop/runbooks/latched.md",
        ];
        assert_eq!(told.text.lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn every_page_names_an_absolute_runbook_and_traffic_is_never_guessed() {
        for kind in [
            PageKind::Latched,
            PageKind::OutOfService,
            PageKind::ReleaseStuck,
            PageKind::ConfigUnusable,
            PageKind::AgentFault,
        ] {
            let told = render(&page(kind), &Context { in_service: None, ..context() }).text;
            assert!(
                told.ends_with(&format!("Runbook  /usr/share/doc/backstop/runbooks/{}.md", kind.label())),
                "{told}"
            );
            assert!(told.contains("Traffic  unknown"), "{told}");
        }
    }

    #[test]
    fn a_node_that_is_back_wakes_nobody_twice_and_too_few_in_service_is_said_aloud() {
        let back = Page { out_since: None, stage: Some(StageName::Patch), ..page(PageKind::Latched) };
        assert!(render(&back, &context()).text.contains("Human    Soon. es-client-2 serves"));
        let few = Context { in_service: Some((1, 0)), ..context() };
        assert!(render(&back, &few).text.contains("AT RISK: 1 of 3 in service"));
    }
}
