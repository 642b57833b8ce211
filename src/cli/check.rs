//! `backstop check` and `backstop explain`: why not?

use super::context::Ctx;
use super::text::{WIDTH, commands, labelled, table, with_tail, wrap};
use crate::control::ask::Ask;
use crate::control::protocol::{CheckReply, Explain};
use crate::core::exit::Exit;
use crate::core::guard::{Said, Verdict, Verdicts};
use crate::words::span;

/// `backstop check [-v] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct CheckArgs {
    /// List the guards that pass too
    #[arg(short, long)]
    verbose: bool,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// `backstop explain [NODE] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct ExplainArgs {
    /// About which node [default: this one]
    node: Option<String>,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// Exits as `run` would now.
pub(super) async fn check(ctx: &mut Ctx<'_>, args: &CheckArgs) -> Exit {
    match ctx.client.check().await {
        Ok(reply) => {
            ctx.show(args.json, &reply, |reply| check_lines(reply, args.verbose));
            Exit::from_code(reply.exit).unwrap_or(Exit::Internal)
        }
        Err(e) => ctx.nobody_tells(&e, None, args.json),
    }
}

fn check_lines(reply: &CheckReply, verbose: bool) -> Vec<String> {
    let answer = if reply.exit == 0 { "YES".to_owned() } else { format!("NO (exit {})", reply.exit) };
    let mut lines = vec![with_tail(&format!("May {} leave now?  {answer}", reply.node), "nothing was changed", 52)];
    lines.extend(guard_lines(&reply.verdicts, verbose));
    if !reply.would_take.is_empty() {
        lines.extend(wrap(&format!("Would take {}", would_take(&reply.would_take)), WIDTH));
    }
    lines.extend(reply.warnings.iter().map(|w| labelled("Warning", w)));
    lines.extend(commands(&reply.next));
    lines
}

/// The parts in the order of the road, the job among them. Groups drain side by side: the longest counts.
fn would_take(parts: &[(String, u64)]) -> String {
    let (drains, others): (Vec<_>, Vec<_>) = parts.iter().partition(|(what, _)| what.starts_with("drain"));
    let longest = drains.into_iter().max_by_key(|(_, ms)| *ms);
    let before = |what: &str| what == "quiet period";
    let (out, back): (Vec<_>, Vec<_>) = others.into_iter().partition(|(what, _)| before(what));
    let order = |what: &str| match what {
        "check" => 0,
        "first health check" => 1,
        _ => 2,
    };
    let mut back = back;
    back.sort_by_key(|(what, _)| order(what));
    let out: Vec<&(String, u64)> = longest.into_iter().chain(out).collect();
    let total = out.iter().chain(&back).fold(0_u64, |sum, (_, ms)| sum.saturating_add(*ms));
    let told = |part: &&(String, u64)| match part.0.split_once(" (") {
        Some((what, detail)) => format!("{what} {} ({detail}", span(part.1)),
        None => format!("{} {}", part.0, span(part.1)),
    };
    let all: Vec<String> = out.iter().map(told).chain(["the job".to_owned()]).chain(back.iter().map(told)).collect();
    format!("about {} and the job: {}", span(total), all.join(", "))
}

fn mark(v: &Verdict) -> &'static str {
    match v.said {
        Said::Pass => "ok",
        Said::Warn => "!",
        Said::Overridden => "over",
        Said::Refused => "x",
        Said::Unknown => "?",
    }
}

/// What stands in the way first; what passes only where asked for.
pub(super) fn guard_lines(verdicts: &Verdicts, verbose: bool) -> Vec<String> {
    let blocking = verdicts.0.iter().filter(|v| v.blocks());
    let odd = verdicts.0.iter().filter(|v| matches!(v.said, Said::Warn | Said::Overridden));
    let pass: Vec<&Verdict> = verdicts.0.iter().filter(|v| v.said == Said::Pass).collect();
    let shown = blocking.chain(odd).chain(pass.iter().copied().filter(|_| verbose));
    let row = |v: &Verdict| vec![format!("  {:<2}", mark(v)), v.guard.label().to_owned(), v.sentence.to_string()];
    let rows: Vec<Vec<String>> = shown.map(row).collect();
    let mut lines = table(&rows);
    if !verbose && !pass.is_empty() {
        let others = if rows.is_empty() { "" } else { " others" };
        lines.push(format!("  ok  {}{others} (backstop check -v lists them)", pass.len()));
    }
    lines
}

/// Prints what the agent says.
pub(super) async fn explain(ctx: &mut Ctx<'_>, args: &ExplainArgs) -> Exit {
    if let Err(exit) = ctx.checked(&Ask::Explain { node: args.node.clone() }, args.json) {
        return exit;
    }
    match ctx.client.explain(args.node.as_deref()).await {
        Ok(explain) => {
            ctx.show(args.json, &explain, explain_lines);
            // A typing error must not read as "all is well" to whoever looks at the code alone.
            if explain.unknown && args.node.is_some() { Exit::Usage } else { Exit::Done }
        }
        Err(e) => ctx.nobody_tells(&e, args.node.as_deref(), args.json),
    }
}

fn explain_lines(e: &Explain) -> Vec<String> {
    let named = e.lines.first().is_some_and(|line| line.contains(&e.node));
    let head = std::iter::once(e.node.clone()).filter(|_| !named);
    let lines = e.lines.iter().flat_map(|line| wrap(line, WIDTH));
    head.chain(lines).chain(commands(&e.next)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_cycle_takes_is_told_in_the_order_of_the_road_and_groups_drain_side_by_side() {
        let part = |what: &str, ms: u64| (what.to_owned(), ms);
        let parts = [
            part("drain (group es-clients)", 300_000),
            part("first health check", 10_000),
            part("drain (group es-internal)", 60_000),
            part("quiet period", 10_000),
            part("check", 15_000),
            part("bake", 30_000),
        ];
        assert_eq!(
            would_take(&parts),
            "about 6m05s and the job: drain 5m00s (group es-clients), quiet period 10 s, the job, check 15 s, \
             first health check 10 s, bake 30 s"
        );
    }
}
