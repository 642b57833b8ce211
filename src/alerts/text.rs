//! What a page says: what, which node, since when, is traffic at risk, what backstop is doing, is a human needed, the exact
//! next command, and the raw AWS command in case the agent is dead.

use super::{Rendered, advice};
use crate::core::alert::{Alert, Book, Delivery, Event, Sink, State};
use crate::core::cycle::StageName;
use crate::core::finding::Kind;
use crate::core::ids::InstanceId;
use crate::core::page::{Page, PageKind, Severity};
use crate::core::target::Target;
use crate::words::{age, span};
use std::sync::Arc;

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
    /// The targets of the node that it is about.
    pub targets: Vec<Target>,
    /// The present wall time in ms since 1970.
    pub now_ms: u64,
    /// The node's present stage, where a cycle is under way.
    pub doing: Option<String>,
    /// What is told in the same page.
    pub listed: Vec<(Severity, Arc<str>)>,
    /// Members that are not in service, for a page about the fleet: first those that nothing explains.
    pub missing: Vec<Missing>,
}

/// A member that is not in service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its name.
    pub node: String,
    /// It is out on purpose.
    pub planned: bool,
    /// What brings it back and when, or why nothing does.
    pub says: String,
}

/// What `event` of a delivery may be.
pub const EVENTS: [&str; 5] = ["trigger", "update", "reminder", "resolve", "test"];

/// No more of what is told in the same page is written out.
const LISTED_MAX: usize = 40;
/// Nor more commands that explain a node.
const EXPLAIN_MAX: usize = 3;

/// Milliseconds since 1970 as RFC 3339 to the second.
pub fn rfc3339(ms: u64) -> String {
    let seconds = i64::try_from(ms.checked_div(1_000).unwrap_or(0)).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| format!("{ms} ms since 1970"), |t| t.to_string())
}

/// Where the package puts the runbooks; each is named after its kind of page.
pub const RUNBOOKS: &str = "/usr/share/doc/backstop/runbooks";

/// The file that says what to do about pages of this kind.
pub fn runbook(kind: Kind) -> String {
    format!("{RUNBOOKS}/{}.md", kind.label())
}

/// The command that registers a target without any agent. Registering twice does no harm.
pub fn by_hand(t: &Target) -> String {
    let region = region_of(&t.group.0);
    format!("aws elbv2 register-targets {region}--target-group-arn {} --targets Id={},Port={}", t.group, t.id, t.port)
}

/// The command that shows what a group says of its targets, without any agent.
pub fn look_at(group: &str) -> String {
    format!("aws elbv2 describe-target-health {}--target-group-arn {group}", region_of(group))
}

/// The region is the ARN's: a shell on a node mostly has another one, or none. Ends in a space, where there is one.
fn region_of(group: &str) -> String {
    let region = group.split(':').nth(3).filter(|r| !r.is_empty());
    region.map_or_else(String::new, |r| format!("--region {r} "))
}

/// The page as it is sent.
pub fn render(alert: &Alert, d: &Delivery, c: &Context) -> Rendered {
    let (event, reminder) = match d.event {
        Event::Trigger | Event::Update if alert.kind == Kind::Test => ("test", None),
        Event::Trigger => ("trigger", None),
        Event::Update => ("update", None),
        Event::Reminder(n) => ("reminder", Some(n)),
        Event::Resolve(0) => ("resolve", None),
        Event::Resolve(n) => ("resolve", Some(n)),
    };
    let page = alert.page.as_ref();
    let raised = page.map_or(alert.since.wall_ms, |p| p.raised.wall_ms);
    let line = format!("{}: {}", c.fleet, page.map_or_else(|| plain(alert, c), |page| summary(page, c)));
    Rendered {
        event: event.to_owned(),
        key: d.key.to_string(),
        id: d.id.to_string(),
        fleet: c.fleet.clone(),
        node: c.node.clone(),
        kind: alert.kind.label().to_owned(),
        subject: alert.subject.to_string(),
        severity: word(alert.severity).to_owned(),
        summary: match (d.fires(), alert.kind) {
            (true, _) => line.clone(),
            (false, Kind::Test) => format!("end of the test: {line}"),
            (false, _) => format!("resolved: {line}"),
        },
        text: match (d.fires(), alert.kind) {
            (fires, Kind::Test) => test(alert, c, &line, fires),
            (true, _) => text(alert, d, c, &line),
            (false, _) => over(alert, c, &line),
        },
        runbook: runbook(alert.kind),
        reminder,
        raised: rfc3339(raised),
        sent_at: rfc3339(c.now_ms),
        cycle: page.and_then(|p| p.cycle.as_ref()).map(ToString::to_string),
        latch: page.and_then(|p| p.latch.as_ref()).map(ToString::to_string),
        stage: page.and_then(|p| p.stage).map(|s| s.to_string()),
        class: page.and_then(|p| p.class).map(|class| class.label().to_owned()),
        raised_ms: raised,
        sent_ms: c.now_ms,
    }
}

/// A page without a book: before there is one.
pub fn render_page(page: &Page, c: &Context) -> Option<Rendered> {
    let mut book = Book::new(c.fleet.as_str().into(), InstanceId("unknown".into()), c.node.as_str().into());
    book.sinks(vec![Sink { name: "any".into(), dedups: true, renew_ms: None }]);
    book.pages(std::slice::from_ref(page), &page.raised);
    let due = book.due(&page.raised);
    let first = due.first()?;
    Some(render(first.of(&book)?, first, c))
}

const fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Critical => "critical",
    }
}

fn plain(alert: &Alert, c: &Context) -> String {
    advice::headline(alert.kind, &alert.subject, &c.fleet)
}

fn summary(page: &Page, c: &Context) -> String {
    let job = page.job.as_deref().unwrap_or("none");
    let stage = page.stage.map_or_else(String::new, |s| s.to_string());
    match page.kind {
        PageKind::Latched if page.out_since.is_some() => {
            format!("{} OUT of the load balancer, its patch failed in {stage} (job {job})", c.node)
        }
        PageKind::Latched => format!("the patch of {} failed in {stage} (job {job})", c.node),
        PageKind::OutOfService => format!("{} OUT of the load balancer ({stage})", c.node),
        PageKind::ReleaseStuck => format!("{} is back, but its slot cannot be given back", c.node),
        PageKind::ConfigUnusable => {
            format!("the config of {} cannot be used; no cycle starts there", c.node)
        }
        PageKind::AgentFault => format!("a part of the agent on {} failed", c.node),
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

fn text(alert: &Alert, d: &Delivery, c: &Context, summary: &str) -> String {
    let page = alert.page.as_ref();
    let again = match d.event {
        Event::Reminder(n) => format!("REMINDER {n}, "),
        Event::Update => "UPDATE, ".to_owned(),
        Event::Trigger | Event::Resolve(_) => String::new(),
    };
    let mut lines = vec![format!("[{again}{}] {summary}", word(alert.severity).to_uppercase())];
    let mut line = |label: &str, value: String| lines.push(format!("{label:<9}{value}"));
    line("Traffic", traffic(c));
    line("Since", since(alert, c));
    line("Why", page.map_or(&alert.sentence, |p| &p.message).to_string());
    // Nobody reads an old sight as the present one.
    if let State::Resolved(at) = &alert.state {
        line("Now", format!("OVER since {}; nobody could be told before. Its end follows", rfc3339(at.wall_ms)));
    } else if alert.fades() && page.is_none() {
        let seen = age(c.now_ms.saturating_sub(alert.seen.wall_ms));
        line(
            "Now",
            format!("the last look no longer shows it (last seen {seen} ago); it ends when more of them agree"),
        );
    }
    if let Some(result) = page.and_then(|p| p.job_result.as_ref()) {
        line("Job", result.replace('\n', "\n         "));
    }
    if alert.flaps() {
        line("Flaps", "it came back again and again; it stays open until it was quiet for 15 min".to_owned());
    }
    if let Some(blind) = alert.unjudged() {
        let since = rfc3339(blind.wall_ms);
        line("Unsure", format!("not judged since {since}: a source does not answer, or a plan may explain it"));
    }
    if let Some(listed) = listed(alert, c) {
        line("With it", listed);
    }
    let (doing, human, next, after) = match page {
        Some(page) => advice(page, c),
        None => (
            doing(alert, c),
            format!("{}.", advice::human(alert.kind)),
            next(alert, c),
            advice::after(alert.kind).map(str::to_owned),
        ),
    };
    // Written for what fires: of what is over nobody has to do anything by tonight.
    let quiet = page.is_none() && (alert.fades() || !alert.fires());
    line("Doing", doing);
    line("Human", if quiet { "no, unless it comes back: it is over, or seems to be.".to_owned() } else { human });
    line("Next", next);
    if let Some(after) = after {
        line("After", after);
    }
    let out = page.map_or(!c.targets.is_empty(), |p| p.out_since.is_some());
    if out && !c.targets.is_empty() {
        lines.push("If the agent is dead:".to_owned());
        lines.extend(c.targets.iter().map(|t| format!("  {}", by_hand(t))));
    }
    lines.push(format!("Runbook  {}", runbook(alert.kind)));
    lines.join("\n")
}

/// A test says so in every line: whoever reads it at night must not look for a fault.
fn test(alert: &Alert, c: &Context, summary: &str, fires: bool) -> String {
    let (head, what, human) = if fires {
        ("TEST", "this page is a test", "no. Its end follows by itself")
    } else {
        ("END OF THE TEST", "this is the end of a test page", "no. Nothing was wrong, so nothing has got better")
    };
    [
        format!("[{head}] {summary}"),
        format!("Test     {what}: {}", alert.sentence),
        format!("Sent     {}, by {}", rfc3339(c.now_ms), c.node),
        format!("Human    {human}."),
        format!("Runbook  {}", runbook(alert.kind)),
    ]
    .join("\n")
}

/// Of a fleet that lacks nodes also what brings each of them back.
fn doing(alert: &Alert, c: &Context) -> String {
    let general = advice::doing(alert.kind).to_owned();
    let missing = c.missing.iter().take(LISTED_MAX).map(|m| format!("- {} {}", m.node, m.says));
    let more = c.missing.len().saturating_sub(LISTED_MAX);
    let more = (more > 0).then(|| format!("- and {more} more: backstop status"));
    std::iter::once(general).chain(missing).chain(more).collect::<Vec<_>>().join("\n         ")
}

fn next(alert: &Alert, c: &Context) -> String {
    let general = advice::next(alert.kind, &alert.subject);
    let explain = c.missing.iter().filter(|m| !m.planned).take(EXPLAIN_MAX);
    let explain = explain.map(|m| advice::explain(&m.node));
    explain.chain(std::iter::once(general)).collect::<Vec<_>>().join("\n         ")
}

fn since(alert: &Alert, c: &Context) -> String {
    let page = alert.page.as_ref();
    let out = page.and_then(|p| p.out_since.as_ref()).map(|s| s.wall_ms);
    let since = out.or(page.map(|p| p.raised.wall_ms)).unwrap_or(alert.since.wall_ms);
    let mut parts = vec![format!("{} (for {})", rfc3339(since), span(c.now_ms.saturating_sub(since)))];
    parts.extend(page.and_then(|p| p.stage).map(|s| format!("stage {s}")));
    parts.extend(page.and_then(|p| p.cycle.as_ref()).map(|x| format!("cycle {x}")));
    parts.extend(page.and_then(|p| p.job.as_ref()).map(|j| format!("job {j}")));
    parts.join(", ")
}

/// What this page stands for besides.
fn listed(alert: &Alert, c: &Context) -> Option<String> {
    let mut lines: Vec<String> = Vec::new();
    if !c.listed.is_empty() {
        let (n, later) = (c.listed.len(), if alert.also.is_empty() { "" } else { ", whose own pages come later" });
        lines.push(format!("{n} more{later}:"));
    }
    lines.extend(c.listed.iter().take(LISTED_MAX).map(|(severity, says)| format!("- {}: {says}", word(*severity))));
    let over = c.listed.len().saturating_sub(LISTED_MAX);
    if over > 0 {
        lines.push(format!("- and {over} more: backstop status"));
    }
    if alert.more > 0 {
        lines.push(format!("{} more that found no room in the agent's book; only its log tells of them", alert.more));
    }
    (!lines.is_empty()).then(|| lines.join("\n         "))
}

fn over(alert: &Alert, c: &Context, summary: &str) -> String {
    let took = span(c.now_ms.saturating_sub(alert.since.wall_ms));
    [
        format!("[RESOLVED] {summary}"),
        format!("Traffic  {}", traffic(c)),
        format!("Since    {}, over after {took}", rfc3339(alert.since.wall_ms)),
        format!("Was      {}", alert.page.as_ref().map_or(&alert.sentence, |p| &p.message)),
        "Human    no: backstop has seen that it is over.".to_owned(),
        format!("Runbook  {}", runbook(alert.kind)),
    ]
    .join("\n")
}

/// What backstop is doing, whether a human is needed, the next command, and the one after it.
fn advice(page: &Page, c: &Context) -> (String, String, String, Option<String>) {
    let explain = advice::explain(&c.node);
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
    use crate::core::finding::{Finding, Report};
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

    fn told(page: &Page, c: &Context) -> Rendered {
        render_page(page, c).expect("every page is told")
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
            listed: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// What is told first of an alert about the fleet, after so many looks that do not show it any more.
    fn of_the_fleet(looks_without: u64, c: &Context) -> String {
        let start = Now { wall_ms: 1_788_319_300_000, boot: BootId("b".into()), since_boot_ms: 5 };
        let at = |look: u64| start.plus(look.saturating_mul(20_000));
        let mut book = Book::new("au-search".into(), InstanceId("i-1".into()), "es-client-1".into());
        book.sinks(vec![Sink { name: "any".into(), dedups: true, renew_ms: None }]);
        let (kind, subject, severity) = (Kind::BelowMinimum, "au-search".into(), Severity::Critical);
        let found = Finding { kind, subject, severity, sentence: "1 of 3 in service".into() };
        book.look(&Report::complete("es-client-1", vec![found]), &at(0));
        (1..=looks_without).for_each(|n| book.look(&Report::complete("es-client-1", vec![]), &at(n)));
        let due = book.due(&at(looks_without));
        let d = due.first().expect("it is due");
        render(d.of(&book).expect("it is there"), d, c).text
    }

    #[test]
    fn the_page_about_a_fleet_says_what_brings_each_node_back_and_explains_those_that_nothing_explains() {
        let missing = |node: &str, planned, says: &str| Missing { node: node.into(), planned, says: says.into() };
        let c = Context {
            missing: vec![
                missing("es-client-2", false, "registers itself in 4m30s if its check passes"),
                missing("es-client-3", true, "is held out by ann: a disk"),
            ],
            ..context()
        };
        let told = of_the_fleet(0, &c);
        for line in [
            "         - es-client-2 registers itself in 4m30s if its check passes\n",
            "         - es-client-3 is held out by ann: a disk\n",
            "Next     backstop explain es-client-2   # from any node\n         backstop status\n",
        ] {
            assert!(told.contains(line), "{line} in\n{told}");
        }
        assert!(!told.contains("explain es-client-3"), "{told}");
    }

    #[test]
    fn an_old_sight_is_not_told_as_the_present_one() {
        assert!(!of_the_fleet(0, &context()).contains("Now  "));
        let told = of_the_fleet(1, &context());
        assert!(told.contains("Now      the last look no longer shows it"), "{told}");
        let told = of_the_fleet(5, &context());
        assert!(told.contains("Now      OVER since "), "{told}");
    }

    #[test]
    fn a_page_says_what_is_so_what_happens_and_what_to_do() {
        let page = told(&page(PageKind::Latched), &context());
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
        assert_eq!(page.text.lines().collect::<Vec<_>>(), lines);
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
            let told = told(&page(kind), &Context { in_service: None, ..context() }).text;
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
        assert!(told(&back, &context()).text.contains("Human    Soon. es-client-2 serves"));
        let few = Context { in_service: Some((1, 0)), ..context() };
        assert!(told(&back, &few).text.contains("AT RISK: 1 of 3 in service"));
    }
}
