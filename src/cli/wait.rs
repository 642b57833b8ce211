//! `backstop wait`: the verdict of this node's current or last cycle. After a reboot the agent may still be starting.

use super::context::{Ctx, Interrupts};
use super::follow::{AGAIN_MS, CONTACT_MS, Steps, Until, follow};
use super::run::{conclude, of_ended, result, unanswered, verdict};
use super::text::{moment, parse_span, span};
use crate::clock::Clock;
use crate::control::client::ClientError;
use crate::control::protocol::{RunResult, Status};
use crate::core::exit::Exit;
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
        Ok(Some(status)) => status,
        Ok(None) => return Ok(conclude(ctx, args.json, &result(Exit::ContactLost, "interrupted"))),
        Err(e) => return Ok(unanswered(ctx, &e, false, args.json)),
    };
    let known = |r: RunResult| RunResult { node: Some(status.node.clone()), fleet: Some(status.fleet.clone()), ..r };
    let Some(cycle) = &status.cycle else {
        let end = match &status.last {
            Some(last) => {
                let text =
                    format!("cycle {}, job {}, ended {}", last.cycle, last.job, moment(last.at.wall_ms, status.now_ms));
                steps.say(ctx, &text);
                of_ended(last, &status.node)
            }
            None => RunResult { changed: Some(false), ..result(Exit::Usage, "no cycle has run on this node") },
        };
        return Ok(conclude(ctx, args.json, &known(end)));
    };
    steps.say(ctx, &format!("cycle {}, {}, fleet {}, job {}", cycle.cycle, status.node, status.fleet, cycle.job));
    let end = match follow(ctx, &cycle.cycle, until, &mut steps, &mut interrupts).await {
        Ok(end) => verdict(end, &status.node),
        Err(e) => result(Exit::ContactLost, e.to_string()),
    };
    Ok(conclude(ctx, args.json, &RunResult { cycle: Some(cycle.cycle.clone()), ..known(end) }))
}

/// The first answer of an agent that may still be starting; `None` = interrupted.
async fn first_status(
    ctx: &mut Ctx<'_>,
    patience_ms: u64,
    steps: &Steps,
    interrupts: &mut Interrupts,
) -> Result<Option<Status>, ClientError> {
    let give_up = ctx.clock.now().plus(patience_ms);
    let mut told = false;
    loop {
        match ctx.client.status().await {
            Ok(status) => return Ok(Some(status)),
            Err(e) if !e.passes() || ctx.clock.now() >= give_up => return Err(e),
            Err(e) if !told => {
                steps.note(ctx, "contact", &format!("{e}; trying again for {}", span(patience_ms)));
                told = true;
            }
            Err(_) => {}
        }
        if interrupts.sleep(&ctx.clock, AGAIN_MS).await {
            return Ok(None);
        }
    }
}
