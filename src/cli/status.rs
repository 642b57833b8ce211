//! `backstop status`: what is so.

use super::context::{Ctx, Interrupts};
use super::queue;
use super::text::{WIDTH, command, commands, labelled, table_within, wrap};
use crate::alerts::text::look_at;
use crate::control::client::ClientError;
use crate::control::protocol::{AlertStatus, CycleStatus, NodeStatus, SILENT_MS, SinkStatus, Source, Status};
use crate::core::exit::Exit;
use crate::core::guard::Verdicts;
use crate::core::page::Severity;
use crate::core::record::{Pause, Record};
use crate::words::{age, date, moment, short, span, time};
use anyhow::Context;

/// Between two looks of `--watch`, in ms.
const WATCH_MS: u64 = 2_000;
/// A longer node name is cut in the table.
const NODE_MAX: usize = 32;
/// The column that gives way where the table is too wide.
const DOING: usize = 3;

/// `backstop status [--json|--watch]`
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// One object on stdout
    #[arg(long, conflicts_with = "watch")]
    json: bool,
    /// Look again every 2 s, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

/// Prints the status, once or again and again.
///
/// # Errors
/// Faults of this process.
pub(super) async fn status(ctx: &mut Ctx<'_>, args: &Args) -> anyhow::Result<Exit> {
    if !args.watch {
        return Ok(once(ctx, args.json).await);
    }
    let mut interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
    loop {
        ctx.out.clear();
        once(ctx, false).await;
        if ctx.out.closed() || interrupts.sleep(&ctx.clock, WATCH_MS).await {
            return Ok(Exit::Done);
        }
    }
}

async fn once(ctx: &mut Ctx<'_>, json: bool) -> Exit {
    match ctx.client.status().await {
        Ok(status) => {
            ctx.show(json, &status, lines);
            Exit::Done
        }
        Err(e) => {
            if !json && e.passes() {
                let lines = without_agent(ctx, &e);
                ctx.out.line(lines.join("\n"));
            }
            ctx.nobody_tells(&e, None, json)
        }
    }
}

/// What can be said without an agent: enough to act on.
fn without_agent(ctx: &Ctx<'_>, e: &ClientError) -> Vec<String> {
    let mut lines = vec![labelled("NO AGENT", format!("on this node: {e}"))];
    lines.push(labelled("Means", "no cycle starts here; a cycle under way waits, and goes on when the agent starts"));
    let Some(config) = &ctx.config else {
        lines.push(command("Look", "aws elbv2 describe-target-health --region REGION --target-group-arn ARN"));
        return lines;
    };
    lines.push(labelled("Fleet", format!("{}, node {}", config.fleet, config.node.name)));
    lines.extend(config.target_groups.iter().map(|group| command("Look", &look_at(&group.arn.0))));
    lines
}

/// The whole page.
pub(super) fn lines(s: &Status) -> Vec<String> {
    if let Some(waits) = &s.starting {
        return starting(s, waits);
    }
    let mut lines = head(s);
    lines.extend(nodes(s));
    lines.extend(findings(s));
    lines.push(labelled("Patching", patching(s)));
    lines.extend(cycle(s));
    lines.extend(s.record.as_ref().map(|r| record(s, r)).unwrap_or_default());
    lines.extend(alerts(s));
    lines.push(labelled("Pages", pages(s)));
    lines.push(labelled("Sees", sees(s)));
    lines.extend(faults(s));
    let bad = s.config_problem.as_ref();
    lines.extend(bad.map(|p| labelled("Config", format!("CANNOT BE USED, the last good one is in force: {p}"))));
    // The same trouble reaches the warnings by way of the last reload.
    let new = s.warnings.iter().filter(|w| !bad.is_some_and(|p| w.contains(p.as_str())));
    lines.extend(new.map(|w| labelled("Warning", w)));
    lines.extend(commands(&s.next));
    lines
}

/// An agent that has just been started knows nothing yet, and says what it waits for.
fn starting(s: &Status, waits: &str) -> Vec<String> {
    let mut lines = vec![format!("{}   STARTING   {}, agent {}", s.fleet, s.node, s.agent)];
    lines.push(labelled("Waits for", waits));
    lines.push(labelled(
        "Means",
        "nothing is known here yet, and no cycle starts; one under way goes on once the agent has started",
    ));
    lines.extend(s.warnings.iter().map(|w| labelled("Warning", w)));
    let next = s.next.clone().unwrap_or_else(|| "journalctl -u backstop -n 50".to_owned());
    lines.push(command("Next", &next));
    lines
}

fn head(s: &Status) -> Vec<String> {
    let of = s.nodes.len();
    let (count, word) = match s.in_service {
        None => (format!("? of {of} in service"), "UNKNOWN"),
        Some(0) => (format!("0 of {of} in service"), "NOTHING IN SERVICE"),
        Some(n) if n < s.minimum_healthy && as_planned(s) => (format!("{n} of {of} in service"), "OUT AS PLANNED"),
        Some(n) if n < s.minimum_healthy => (format!("{n} of {of} in service"), "DEGRADED"),
        Some(n) => (format!("{n} of {of} in service"), "OK"),
    };
    let read = s.sees.iter().find(|source| source.source == "load balancer").and_then(|source| source.age_ms);
    let read = read.map_or("load balancer never read".to_owned(), |ms| format!("load balancer read {} ago", age(ms)));
    let observe = if s.mode == "act" { String::new() } else { format!("   mode {}", s.mode) };
    let fleet = &s.fleet;
    wrap(&format!("{fleet}   {count} (minimum {})   {word}   {read}{observe}", s.minimum_healthy), WIDTH)
}

/// A cycle or a hold explains every node that is not in service, and nothing has failed.
fn as_planned(s: &Status) -> bool {
    let Some(r) = &s.record else { return false };
    let failed = s.cycle.as_ref().is_some_and(|c| c.late || c.failure.is_some());
    let explained = |n: &NodeStatus| {
        let named = r.slots.keys().chain(r.holds.keys()).any(|i| i.as_str() == n.instance);
        let silent = n.beat_age_ms.is_some_and(|ms| ms > SILENT_MS);
        n.service == "in" || (n.service == "OUT" && named && !silent)
    };
    let wrong = s.findings.iter().any(|f| f.severity == Severity::Critical);
    !failed && !wrong && r.open_latches().next().is_none() && s.nodes.iter().all(explained)
}

fn nodes(s: &Status) -> Vec<String> {
    let head = ["NODE", "SERVICE", "SINCE", "DOING", "AGENT"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for n in &s.nodes {
        let own = if n.own { "*" } else { "" };
        let beat = match n.beat_age_ms {
            None => format!("{}, never heard", n.agent),
            Some(ms) if ms > SILENT_MS => format!("{}, SILENT {}", n.agent, age(ms)),
            Some(ms) => format!("{}, {}", n.agent, age(ms)),
        };
        let since = n.since_ms.map_or("-".to_owned(), |ms| since_text(ms, s.now_ms, n.service != "in"));
        rows.push(vec![format!("{}{own}", short(&n.node, NODE_MAX)), n.service.clone(), since, doing(n), beat]);
    }
    table_within(rows, DOING)
}

/// How long matters for a node that is out; of the others the moment suffices.
fn since_text(ms: u64, now_ms: u64, out: bool) -> String {
    let at = moment(ms, now_ms);
    if out { format!("{at} ({})", age(now_ms.saturating_sub(ms))) } else { at }
}

/// Where nothing of its own explains that a node is out, what each group says of it does.
fn doing(n: &NodeStatus) -> String {
    if n.service == "in" || n.targets.is_empty() || n.doing != "idle" {
        return n.doing.clone();
    }
    let targets = n.targets.iter().map(|(group, state)| format!("{group} {state}")).collect::<Vec<_>>().join(", ");
    format!("{}; {targets}", n.doing)
}

fn patching(s: &Status) -> String {
    let Some(r) = &s.record else {
        return "BLOCKED: the fleet record is unknown".to_owned();
    };
    let latches: Vec<_> = r.latches.iter().filter(|(_, l)| l.cleared.is_none()).collect();
    if let Some((cycle, l)) = latches.first() {
        let more = latches.len().saturating_sub(1);
        let more = if more == 0 { String::new() } else { format!(", and {more} more") };
        let at = moment(l.since_ms, s.now_ms);
        return format!("BLOCKED on every node by latch {} ({}, {}, {at}){more}", cycle.latch(), l.node, l.stage);
    }
    if let Some(pause) = &r.pause {
        return format!("PAUSED on every node by {}", order(pause, s.now_ms));
    }
    if s.config_problem.is_some() {
        return "BLOCKED on this node: its config cannot be used".to_owned();
    }
    if s.mode != "act" {
        return format!("off on this node: mode is {}", s.mode);
    }
    if let Some(c) = &s.cycle {
        return format!("under way on this node ({}); other nodes wait for its slot", c.cycle);
    }
    match &s.would_refuse {
        Some(v) => {
            let queues = queue::passes(v.exit.code(), Some(&Verdicts(vec![v.clone()])));
            let queues = if queues { "; run --wait queues" } else { "" };
            format!("would be refused: {} ({}, exit {}){queues}", v.sentence, v.guard, v.exit.code())
        }
        None => "allowed, as far as this agent has looked (backstop check asks every guard)".to_owned(),
    }
}

fn order(p: &Pause, now_ms: u64) -> String {
    format!("{} since {}: {}", p.by, moment(p.since_ms, now_ms), p.reason)
}

fn free(s: &Status, r: &Record) -> usize {
    usize::try_from(s.max_unavailable).unwrap_or(usize::MAX).saturating_sub(r.slots.len())
}

fn record(s: &Status, r: &Record) -> Vec<String> {
    let (now_ms, all) = (s.now_ms, s.max_unavailable);
    let mut lines: Vec<String> = r
        .slots
        .values()
        .enumerate()
        .map(|(i, slot)| {
            let (n, since) = (i.saturating_add(1), moment(slot.since_ms, now_ms));
            let (node, cycle, job) = (&slot.node, &slot.cycle, &slot.job);
            labelled("Slot", format!("{n} of {all} held by {node}, cycle {cycle}, job {job}, since {since}"))
        })
        .collect();
    if r.slots.is_empty() {
        lines.push(labelled("Slot", format!("{} of {all} free", free(s, r))));
    }
    lines.extend(r.holds.values().map(|h| {
        let time = span(h.for_s.saturating_mul(1_000));
        labelled("Held", format!("{} for {time} by {}", h.node, order(&h.order, now_ms)))
    }));
    let all = r.hold_all.iter();
    lines.extend(all.map(|p| labelled("Heal", format!("OFF on every node by {}", order(&p.order, now_ms)))));
    lines
}

/// The own cycle. Its row has what it waits for in short; a fault is told in full here, and once.
fn cycle(s: &Status) -> Vec<String> {
    let Some(c) = &s.cycle else {
        let last = s.last.iter().map(|l| {
            let at = moment(l.at.wall_ms, s.now_ms);
            labelled("Last", format!("{}, job {}, {at}: {} (exit {})", l.cycle, l.job, l.message, l.exit.code()))
        });
        return last.collect();
    };
    let what = if c.kind == "patch" { format!("job {}", c.job) } else { c.kind.clone() };
    let stage = format!("{}, {what}, {} since {}", c.cycle, c.stage, time(c.stage_since_ms));
    let mut lines = vec![labelled("Cycle", format!("{stage}; {}", deadline(c)))];
    let (fault, tries) = (c.fault.as_ref().filter(|_| c.tries > 0), c.tries);
    match (fault, &c.failure) {
        (Some(fault), Some((_, _, message))) if message.contains(fault.as_str()) => {
            lines.push(labelled("Trouble", format!("try {tries}, as below")));
        }
        (Some(fault), _) => lines.push(labelled("Trouble", format!("try {tries}, {fault}"))),
        // Mostly its row says it.
        (None, _) if s.nodes.iter().any(|n| n.own && n.doing == c.waiting_for) => {}
        (None, _) => lines.push(labelled("Waits for", &c.waiting_for)),
    }
    if let Some((stage, class, message)) = &c.failure {
        lines.push(labelled("FAILED", format!("in {stage} ({class}): {message}")));
    }
    lines.extend(c.early.iter().map(|why| labelled("Ends", format!("early: {why}"))));
    lines
}

fn deadline(c: &CycleStatus) -> String {
    match (c.late, c.deadline_left_ms) {
        (true, _) => "LATE, goes on trying".to_owned(),
        (false, 0) => "its deadline is over".to_owned(),
        (false, ms) => format!("deadline in {}", span(ms)),
    }
}

/// Findings and alerts are told up to so many; the JSON has all of them.
const TOLD_MAX: usize = 12;

/// What is wrong, worst first. A node that puts itself back says when.
fn findings(s: &Status) -> Vec<String> {
    let mut lines: Vec<String> = s
        .findings
        .iter()
        .take(TOLD_MAX)
        .map(|f| {
            let label = if f.severity == Severity::Critical { "CRITICAL" } else { "Wrong" };
            labelled(label, format!("{}, {}: {}", f.kind.label(), f.subject, f.sentence))
        })
        .collect();
    lines.extend(more("Wrong", s.findings.len()));
    lines.extend(
        s.heals_in_ms
            .map(|ms| labelled("Heals", format!("{} registers itself in {} if its check passes", s.node, span(ms)))),
    );
    lines
}

/// Who was told of what, or why not yet. Those with a page of their own come first.
fn alerts(s: &Status) -> Vec<String> {
    let (folded, own): (Vec<&AlertStatus>, Vec<&AlertStatus>) = s.alerts.iter().partition(|a| a.told_in.is_some());
    let told = own.into_iter().chain(folded).take(TOLD_MAX).map(|a| {
        let (since, now) = (moment(a.since_ms, s.now_ms), s.now_ms);
        let state = match a.over_ms {
            Some(over) => format!("over since {} after {}", moment(over, now), age(over.saturating_sub(a.since_ms))),
            None => format!("{} since {since}", a.state),
        };
        labelled("Alert", format!("{} {}, {state}: {}", a.kind, a.subject, who_was_told(a, s)))
    });
    let mut lines: Vec<String> = told.collect();
    lines.extend(more("Alert", s.alerts.len()));
    lines
}

fn who_was_told(a: &AlertStatus, s: &Status) -> String {
    if let Some(key) = &a.told_in {
        let page = s.alerts.iter().find(|other| other.key == *key);
        return format!("in the page {}", page.map_or_else(|| key.clone(), |p| format!("{} {}", p.kind, p.subject)));
    }
    let touched = |k: &SinkStatus| k.accepted_ms.is_some() || k.fault.is_some() || k.covered_by.is_some();
    if a.over_ms.is_some() && a.told && !a.sinks.iter().any(touched) {
        return "nobody told, it was over".to_owned();
    }
    if a.sinks.is_empty() {
        return "nobody told yet".to_owned();
    }
    a.sinks.iter().map(|sink| sink_line(sink, s)).collect::<Vec<_>>().join("; ")
}

fn sink_line(sink: &SinkStatus, s: &Status) -> String {
    let (name, now_ms) = (&sink.sink, s.now_ms);
    let node = |id: &String| s.nodes.iter().find(|n| n.instance == *id).map_or_else(|| id.clone(), |n| n.node.clone());
    match (&sink.fault, sink.accepted_ms, &sink.covered_by) {
        (Some(fault), ..) if sink.refused => format!("{name} REFUSES it: {fault}"),
        (Some(fault), ..) => format!("{name} NOT DELIVERED: {fault}"),
        (None, Some(ms), _) => format!("accepted by {name} {}", moment(ms, now_ms)),
        (None, None, Some(by)) => format!("{name}: by the agent of {}", node(by)),
        (None, None, None) => format!("{name}: not sent yet"),
    }
}

fn more(label: &str, all: usize) -> Option<String> {
    let left = all.saturating_sub(TOLD_MAX);
    (left > 0).then(|| labelled(label, format!("and {left} more: backstop status --json")))
}

/// Pages of this node: each agent sends its own.
fn pages(s: &Status) -> String {
    let accepted = s.last_page_accepted.map(|(_, ms)| match &s.last_page {
        Some((kind, sink)) => format!("{kind}: accepted by {sink} {}", date(ms)),
        None => format!("the last one was accepted {}", date(ms)),
    });
    let waiting = s.pages_waiting.first().map(|first| {
        let (n, since) = (s.pages_waiting.len(), moment(first.raised.wall_ms, s.now_ms));
        format!("{n} NOT DELIVERED yet, the oldest ({}) since {since}", first.kind.label())
    });
    match (waiting, accepted) {
        (None, None) => "none from this node since its agent started".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(waiting), Some(accepted)) => format!("{waiting}; {accepted}"),
    }
}

fn sees(s: &Status) -> String {
    let one = |source: &Source| format!("{} {}", source.source, source.age_ms.map_or("NEVER".to_owned(), age));
    let sources = s.sees.iter().map(one).collect::<Vec<_>>().join(" | ");
    let heard = s.nodes.iter().filter(|n| n.beat_age_ms.is_some_and(|ms| ms <= SILENT_MS)).count();
    format!("{sources} | agents {heard} of {}", s.nodes.len())
}

/// Faults of the last looks, each once: one cause mostly reaches several sources.
fn faults(s: &Status) -> Vec<String> {
    let mut told: Vec<(&str, Vec<&str>)> = Vec::new();
    for source in &s.sees {
        let Some(fault) = &source.fault else { continue };
        match told.iter_mut().find(|(said, _)| *said == fault.as_str()) {
            Some((_, sources)) => sources.push(&source.source),
            None => told.push((fault, vec![&source.source])),
        }
    }
    told.iter().map(|(fault, sources)| labelled("Fault", format!("{}: {fault}", sources.join(", ")))).collect()
}
