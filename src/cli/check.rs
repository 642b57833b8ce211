//! `backstop check` and `backstop explain`: why not?

use super::context::Ctx;
use super::text::{labelled, span, table, with_tail};
use crate::control::ask::Ask;
use crate::control::protocol::{CheckReply, Explain};
use crate::core::exit::Exit;
use crate::core::guard::{Said, Verdict, Verdicts};

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
        Err(e) => ctx.no_answer(&e, false, args.json),
    }
}

fn check_lines(reply: &CheckReply, verbose: bool) -> Vec<String> {
    let answer = if reply.exit == 0 { "YES".to_owned() } else { format!("NO (exit {})", reply.exit) };
    let mut lines = vec![with_tail(&format!("May {} leave now?  {answer}", reply.node), "nothing was changed", 52)];
    lines.extend(guard_lines(&reply.verdicts, verbose));
    if !reply.would_take.is_empty() {
        let total = reply.would_take.iter().fold(0_u64, |sum, (_, ms)| sum.saturating_add(*ms));
        let parts = reply.would_take.iter().map(|(what, ms)| format!("{what} {}", span(*ms)));
        let parts = parts.collect::<Vec<_>>().join(", ");
        lines.push(format!("Would take about {} and the job: {parts}", span(total)));
    }
    lines.extend(reply.next.iter().map(|next| labelled("Next", next)));
    lines
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
            Exit::Done
        }
        Err(e) => ctx.no_answer(&e, false, args.json),
    }
}

fn explain_lines(e: &Explain) -> Vec<String> {
    let first = std::iter::once(e.node.clone());
    let lines = e.lines.iter().map(|line| format!("  {line}"));
    first.chain(lines).chain(e.next.iter().map(|next| labelled("Next", next))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::guard::Guard;

    fn reply(said: Said, exit: Exit) -> CheckReply {
        let verdict = |guard, said| Verdict { guard, said, sentence: "why".into(), exit };
        CheckReply {
            v: 1,
            node: "es-client-1".to_owned(),
            verdicts: Verdicts(vec![verdict(Guard::Identity, Said::Pass), verdict(Guard::NoLatch, said)]),
            exit: exit.code(),
            would_take: vec![("drain".to_owned(), 300_000), ("check".to_owned(), 15_000)],
            next: Some("backstop explain es-client-2".to_owned()),
        }
    }

    #[test]
    fn a_no_comes_first_with_its_exit_code_and_what_passes_is_counted() {
        assert_eq!(
            check_lines(&reply(Said::Refused, Exit::Latched), false),
            [
                "May es-client-1 leave now?  NO (exit 100)             nothing was changed",
                "  x   no-latch  why",
                "  ok  1 others (backstop check -v lists them)",
                "Would take about 5m15s and the job: drain 5m00s, check 15 s",
                "Next      backstop explain es-client-2",
            ]
        );
    }

    #[test]
    fn everything_is_listed_where_asked_for() {
        let lines = check_lines(&reply(Said::Warn, Exit::Done), true);
        assert_eq!(
            lines.get(..3).unwrap(),
            [
                "May es-client-1 leave now?  YES                       nothing was changed",
                "  !   no-latch  why",
                "  ok  identity  why"
            ]
        );
    }
}
