//! `backstop status` and `backstop history`: what is so.

use super::context::{Ctx, Interrupts};
use super::text::{age, date, labelled, moment, span, table, time};
use crate::control::client::ClientError;
use crate::control::protocol::{CycleStatus, History, NodeStatus, Status};
use crate::core::exit::Exit;
use crate::core::record::{Pause, Record};
use anyhow::Context;
use serde_json::Value;

/// Between two looks of `--watch`, in ms.
const WATCH_MS: u64 = 2_000;
/// A beat older than this is worth a word, in ms.
const BEAT_OLD_MS: u64 = 60_000;

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

/// `backstop history [-n N] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct HistoryArgs {
    /// How many lines
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    lines: usize,
    /// One object on stdout
    #[arg(long)]
    json: bool,
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
            ctx.no_answer(&e, false, json)
        }
    }
}

/// What can be said without an agent: enough to act on.
fn without_agent(ctx: &Ctx<'_>, e: &ClientError) -> Vec<String> {
    let mut lines = vec![format!("NO AGENT  on this node: {e}")];
    lines.push(labelled("Means", "no cycle starts here; a cycle under way waits, and goes on when the agent starts"));
    let Some(config) = &ctx.config else {
        lines.push(labelled("Look", "aws elbv2 describe-target-health --target-group-arn ARN"));
        return lines;
    };
    lines.push(labelled("Fleet", format!("{}, node {}", config.fleet, config.node.name)));
    for group in &config.target_groups {
        let arn = &group.arn;
        lines.push(labelled("Look", format!("aws elbv2 describe-target-health --target-group-arn {arn}")));
    }
    lines
}

/// The whole page.
pub(super) fn lines(s: &Status) -> Vec<String> {
    let mut lines = vec![head(s)];
    lines.extend(nodes(s));
    lines.push(labelled("Patching", patching(s)));
    lines.extend(cycle(s));
    lines.extend(s.record.as_ref().map(|r| record(r, s.now_ms)).unwrap_or_default());
    lines.push(labelled("Pages", pages(s)));
    lines.push(labelled("Sees", sees(s)));
    lines.extend(
        s.config_problem
            .iter()
            .map(|p| labelled("Config", format!("CANNOT BE USED, the last good one is in force: {p}"))),
    );
    lines.extend(s.warnings.iter().map(|w| labelled("Warning", w)));
    lines.extend(s.next.iter().map(|next| labelled("Next", next)));
    lines
}

fn head(s: &Status) -> String {
    let of = s.nodes.len();
    let (count, word) = match s.in_service {
        None => (format!("? of {of} in service"), "UNKNOWN"),
        Some(0) => (format!("0 of {of} in service"), "NOTHING IN SERVICE"),
        Some(n) if n < s.minimum_healthy => (format!("{n} of {of} in service"), "DEGRADED"),
        Some(n) => (format!("{n} of {of} in service"), "OK"),
    };
    let read = s.sees.iter().find(|source| source.source == "load balancer").and_then(|source| source.age_ms);
    let read = read.map_or("load balancer never read".to_owned(), |ms| format!("load balancer read {} ago", age(ms)));
    let observe = if s.mode == "act" { String::new() } else { format!("   mode {}", s.mode) };
    format!("{}   {count} (minimum {})   {word}   {read}{observe}", s.fleet, s.minimum_healthy)
}

fn nodes(s: &Status) -> Vec<String> {
    let head = ["NODE", "SERVICE", "SINCE", "DOING", "AGENT"].map(str::to_owned).to_vec();
    let mut rows = vec![head];
    for n in &s.nodes {
        let own = if n.own { "*" } else { "" };
        let since = since(s, n)
            .map_or("-".to_owned(), |ms| format!("{} ({})", moment(ms, s.now_ms), age(s.now_ms.saturating_sub(ms))));
        let beat = match n.beat_age_ms {
            None => format!("{}, no beat seen", n.agent),
            Some(ms) if ms > BEAT_OLD_MS => format!("{}, SILENT {}", n.agent, age(ms)),
            Some(ms) => format!("{}, {}", n.agent, age(ms)),
        };
        rows.push(vec![format!("{}{own}", n.node), n.service.clone(), since, doing(n), beat]);
    }
    table(&rows)
}

/// What each group says belongs to the row of a node that is not in service.
fn doing(n: &NodeStatus) -> String {
    if n.service == "in" || n.targets.is_empty() {
        return n.doing.clone();
    }
    let targets = n.targets.iter().map(|(group, state)| format!("{group} {state}")).collect::<Vec<_>>().join(", ");
    format!("{} [{targets}]", n.doing)
}

/// Since when a node is out, as far as it is known: its own cycle, its slot, its hold.
fn since(s: &Status, n: &NodeStatus) -> Option<u64> {
    if n.service == "in" {
        return None;
    }
    let own = s.cycle.as_ref().filter(|_| n.own).and_then(|c| c.out_since_ms);
    let record = s.record.as_ref();
    let slot = || record.and_then(|r| r.slots.iter().find(|(i, _)| i.as_str() == n.instance)).map(|(_, s)| s.since_ms);
    let hold = || record.and_then(|r| r.holds.iter().find(|(i, _)| i.as_str() == n.instance));
    own.or_else(slot).or_else(|| hold().map(|(_, h)| h.order.since_ms))
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
    let taken = r.slots.len();
    let free = usize::try_from(s.max_unavailable).unwrap_or(usize::MAX).saturating_sub(taken);
    if free == 0 { "allowed, one after another: every slot is taken".to_owned() } else { "allowed".to_owned() }
}

fn order(p: &Pause, now_ms: u64) -> String {
    format!("{} since {}: {}", p.by, moment(p.since_ms, now_ms), p.reason)
}

fn record(r: &Record, now_ms: u64) -> Vec<String> {
    let slots = r.slots.values().map(|s| {
        let since = moment(s.since_ms, now_ms);
        labelled("Slot", format!("held by {}, cycle {}, job {}, since {since}", s.node, s.cycle, s.job))
    });
    let holds = r.holds.values().map(|h| {
        let time = span(h.for_s.saturating_mul(1_000));
        labelled("Held", format!("{} for {time} by {}", h.node, order(&h.order, now_ms)))
    });
    let all = r.hold_all.iter().map(|p| labelled("Heal", format!("OFF on every node by {}", order(&p.order, now_ms))));
    slots.chain(holds).chain(all).collect()
}

fn cycle(s: &Status) -> Vec<String> {
    let Some(c) = &s.cycle else {
        let last = s.last.iter().map(|l| {
            let at = moment(l.at.wall_ms, s.now_ms);
            labelled("Last", format!("{}, job {}, {at}: {} (exit {})", l.cycle, l.job, l.message, l.exit.code()))
        });
        return last.collect();
    };
    let stage = format!("{}, {} {}, {} since {}", c.cycle, c.kind, c.job, c.stage, time(c.stage_since_ms));
    let mut lines = vec![labelled("Cycle", format!("{stage}; {}", deadline(c)))];
    lines.push(labelled("Waits for", &c.waiting_for));
    if let Some(fault) = c.fault.as_ref().filter(|_| c.tries > 0) {
        lines.push(labelled("Trouble", format!("try {}, {fault}", c.tries)));
    }
    if let Some((stage, class, message)) = &c.failure {
        lines.push(labelled("FAILED", format!("in {stage} ({class}): {message}")));
    }
    lines.extend(c.early.iter().map(|why| labelled("Ends early", why)));
    lines
}

fn deadline(c: &CycleStatus) -> String {
    match (c.late, c.deadline_left_ms) {
        (true, _) => "LATE: its deadline has passed, it goes on trying".to_owned(),
        (false, 0) => "its deadline is over".to_owned(),
        (false, ms) => format!("deadline in {}", span(ms)),
    }
}

fn pages(s: &Status) -> String {
    let accepted = s.last_page_accepted.map(|(seq, ms)| format!("last one ({seq}) accepted {}", date(ms)));
    let waiting = s.pages_waiting.first().map(|first| {
        let (n, since) = (s.pages_waiting.len(), moment(first.raised.wall_ms, s.now_ms));
        format!("{n} WAIT for a sink to accept them, the oldest ({}) since {since}", first.kind.label())
    });
    match (waiting, accepted) {
        (None, None) => "none yet".to_owned(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(waiting), Some(accepted)) => format!("{waiting}; {accepted}"),
    }
}

fn sees(s: &Status) -> String {
    let one = |source: &crate::control::protocol::Source| {
        let seen = source.age_ms.map_or("NEVER".to_owned(), age);
        let fault = source.fault.as_ref().map_or(String::new(), |f| format!(" ({f})"));
        format!("{} {seen}{fault}", source.source)
    };
    s.sees.iter().map(one).collect::<Vec<_>>().join(" | ")
}

/// Prints the audit journal.
pub(super) async fn history(ctx: &mut Ctx<'_>, args: &HistoryArgs) -> Exit {
    match ctx.client.history(args.lines).await {
        Ok(history) => {
            ctx.show(args.json, &history, history_lines);
            Exit::Done
        }
        Err(e) => ctx.no_answer(&e, false, args.json),
    }
}

fn history_lines(h: &History) -> Vec<String> {
    if h.lines.is_empty() {
        return vec!["nothing has happened on this node yet".to_owned()];
    }
    h.lines.iter().map(entry).collect()
}

/// When, what, then everything else as `key=value`: the entries are the agent's, and a new kind is shown as well.
fn entry(line: &Value) -> String {
    let Value::Object(fields) = line else { return line.to_string() };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let when = match (fields.get("at"), fields.get("at_ms").and_then(Value::as_u64)) {
        (_, Some(ms)) => date(ms),
        (Some(at), None) => at.get("wall_ms").and_then(Value::as_u64).map_or_else(|| plain(at), date),
        (None, None) => "-".to_owned(),
    };
    let event = fields.get("event").map(&plain).unwrap_or_default();
    let first = !event.is_empty();
    let rest =
        fields.iter().filter(|(key, value)| !["at", "at_ms", "event"].contains(&key.as_str()) && !value.is_null());
    let rest = rest.map(|(key, value)| format!("{key}={}", plain(value)));
    let words = std::iter::once(event).filter(|_| first).chain(rest).collect::<Vec<_>>().join("  ");
    format!("{when}  {words}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn history_shows_when_and_what_whatever_the_entry_looks_like() {
        let lines = vec![
            json!({"at": "2026-09-02T03:02:11Z", "event": "pause", "by": "anna(1000)", "exit": 0, "fault": null}),
            json!({"at_ms": 1_788_318_131_000_u64, "exit": 0, "verb": "pause"}),
            json!({"at": {"wall_ms": 1_788_318_131_000_u64}, "stage": "check"}),
            json!("torn"),
        ];
        assert_eq!(
            history_lines(&History { v: 1, lines }),
            [
                "2026-09-02T03:02:11Z  pause  by=anna(1000)  exit=0",
                "02 Sep 03:02:11  exit=0  verb=pause",
                "02 Sep 03:02:11  stage=check",
                "\"torn\""
            ]
        );
    }
}
