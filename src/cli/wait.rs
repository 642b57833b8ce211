//! `backstop wait`: the verdict of this node's current or last cycle. After a reboot the agent may still be starting.

use super::context::{Ctx, Interrupts};
use super::follow::{AGAIN_MS, CONTACT_MS, Steps, Until, follow};
use super::run::{conclude, is_hold, of_ended, result, unanswered, verdict};
use super::text::{WIDTH, parse_span, wrap};
use crate::clock::Clock;
use crate::control::client::ClientError;
use crate::control::protocol::{CycleStatus, RunResult, Status};
use crate::core::cycle::StageName;
use crate::core::exit::Exit;
use crate::words::{moment, span};
use anyhow::Context;

/// `backstop wait [--timeout TIME] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Give up after so long (exit 106; the cycle goes on) [default: never]
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    timeout: Option<u64>,
    /// One object at the end on stdout; progress goes to stderr
    #[arg(long)]
    json: bool,
}

/// Waits and tells.
///
/// # Errors
/// Faults of this process.
pub(super) async fn wait(ctx: &mut Ctx<'_>, args: &Args) -> anyhow::Result<Exit> {
    let mut interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
    let mut steps = Steps::new(args.json);
    let until = args.timeout.map_or(Until::Ended, |ms| Until::EndedOr(ctx.clock.now().plus(ms)));
    let patience_ms = args.timeout.map_or(CONTACT_MS, |ms| ms.min(CONTACT_MS));
    let status = match first_status(ctx, patience_ms, &steps, &mut interrupts).await {
        Ok(First::Status(status)) => *status,
        Ok(First::Interrupted(why)) => {
            // There never was contact that could be lost, and nothing was asked for.
            let text = format!("interrupted while waiting for the agent: {why}");
            let next = Some("systemctl status backstop".to_owned());
            return Ok(conclude(ctx, args.json, &RunResult { next, ..result(Exit::NoAgent, text) }));
        }
        Err(e) => return Ok(unanswered(ctx, &e, false, args.json)),
    };
    let known = |r: RunResult| RunResult { node: Some(status.node.clone()), fleet: Some(status.fleet.clone()), ..r };
    let Some(cycle) = &status.cycle else {
        let end = match &status.last {
            Some(last) => {
                let at = moment(last.at.wall_ms, status.now_ms);
                let what = if is_hold(last) { "hold".to_owned() } else { format!("job {}", last.job) };
                steps.say(ctx, &format!("cycle {}, {what}, ended {at}", last.cycle));
                of_ended(last, &status.node)
            }
            None => RunResult { changed: Some(false), ..result(Exit::Usage, "no cycle has run on this node") },
        };
        return Ok(conclude(ctx, args.json, &known(end)));
    };
    let (id, node, fleet) = (&cycle.cycle, &status.node, &status.fleet);
    let head = match cycle.kind.as_str() {
        "patch" => format!("cycle {id}, {node}, fleet {fleet}, job {}", cycle.job),
        "hold" => format!("hold of {node}, fleet {fleet}, cycle {id}: {}", held(&status, cycle)),
        kind => format!("cycle {id}, {node}, fleet {fleet}, {kind}"),
    };
    steps.say(ctx, &wrap(&head, WIDTH).join("\n"));
    let end = match follow(ctx, &cycle.cycle, until, &mut steps, &mut interrupts).await {
        Ok(end) => verdict(end, &status.node),
        Err(e) => result(Exit::ContactLost, e.to_string()),
    };
    Ok(conclude(ctx, args.json, &RunResult { cycle: Some(cycle.cycle.clone()), ..known(end) }))
}

/// Until when, by whom and why, as far as it is known.
fn held(s: &Status, c: &CycleStatus) -> String {
    let by = s.record.as_ref().and_then(|r| r.holds.iter().find(|(i, _)| i.as_str() == s.instance)).map(|(_, h)| h);
    let why = by.map_or_else(String::new, |h| format!(" by {}: {}", h.order.by, h.order.reason));
    let until = match (c.stage, by) {
        (StageName::Held, _) => format!("held until {}", moment(s.now_ms.saturating_add(c.deadline_left_ms), s.now_ms)),
        (stage, _) if stage.homeward() || stage == StageName::Release => "its time is over, on the way back".to_owned(),
        (_, Some(h)) => format!("leaving, to be held for {}", span(h.for_s.saturating_mul(1_000))),
        (_, None) => "leaving".to_owned(),
    };
    format!("{until}{why}.  It comes back by itself; sooner with: backstop rejoin --reason \"...\"")
}

/// What came of asking for the first time.
enum First {
    /// An answer.
    Status(Box<Status>),
    /// None so far, and why.
    Interrupted(String),
}

/// The first answer of an agent that may still be starting.
async fn first_status(
    ctx: &mut Ctx<'_>,
    patience_ms: u64,
    steps: &Steps,
    interrupts: &mut Interrupts,
) -> Result<First, ClientError> {
    let give_up = ctx.clock.now().plus(patience_ms);
    let mut told = false;
    loop {
        let why = match ctx.client.status().await {
            Ok(Status { starting: Some(waits), .. }) => {
                if ctx.clock.now() >= give_up {
                    return Err(ClientError::Lost { why: format!("it is still starting: {waits}") });
                }
                format!("the agent is starting: {waits}")
            }
            Ok(status) => return Ok(First::Status(Box::new(status))),
            Err(e) if !e.passes() || ctx.clock.now() >= give_up => return Err(e),
            Err(e) => e.to_string(),
        };
        if !std::mem::replace(&mut told, true) {
            steps.note(ctx, "contact", &format!("{why}; trying again for {}", span(patience_ms)));
        }
        if interrupts.sleep(&ctx.clock, AGAIN_MS).await {
            return Ok(First::Interrupted(why));
        }
    }
}
