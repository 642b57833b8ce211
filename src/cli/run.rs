//! `backstop run`: ask for a cycle, follow it, and exit with its verdict.

use super::begin::{Begun, Started, begin};
use super::check;
use super::context::{Ctx, Interrupts, jitter};
use super::follow::{CONTACT_MS, Follow, Steps, Until, follow};
use super::queue::{self, Queue};
use super::text::{WIDTH, command, commands, labelled, parse_span, with_tail, wrap};
use super::unit;
use crate::clock::Clock;
use crate::control::ask::Ask;
use crate::control::client::ClientError;
use crate::control::protocol::{RunRequest, RunResult, VERSION};
use crate::core::cycle::Ended;
use crate::core::exit::Exit;
use crate::core::guard::Verdicts;
use crate::core::job::RebootPolicy;
use crate::words::span;
use anyhow::Context;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// Columns of the last line's text; its exit code stands behind it.
const TEXT: usize = 79;

/// The agent is told for so long that its verdict was received.
const TAKEN: Duration = Duration::from_secs(10);

/// `backstop run [OPTIONS] -- COMMAND…`
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Queue for so long (4h, 90m) where others are out, instead of being refused
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    wait: Option<u64>,
    /// First run CMD with sh, as you: 0 = go on, 1 = nothing to do (exit 0), else exit 17
    #[arg(long, value_name = "CMD")]
    only_if: Option<String>,
    /// Return as soon as the slot is acknowledged; `backstop wait` has the verdict
    #[arg(long)]
    detach: bool,
    /// Restart the machine after a good job
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Reboot::WhenNeeded)]
    reboot: Reboot,
    /// The job restarts the machine by itself: then that is how it ends, and no failure
    #[arg(long)]
    job_reboots: bool,
    /// What to call the job [default: the program's name]
    #[arg(long)]
    name: Option<String>,
    /// Go against this guard, for this run only (admin; see backstop check -v)
    #[arg(long = "override", value_name = "GUARD", requires = "reason")]
    overrides: Vec<String>,
    /// Why; goes on the record and into the page
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// One object at the end on stdout; progress goes to stderr
    #[arg(long)]
    json: bool,
    /// Run this job, which an administrator has defined: the unit backstop-job@NAME.service
    #[arg(long, value_name = "NAME", conflicts_with_all = ["name", "command"])]
    job: Option<String>,
    /// Program and arguments, as the job's own process; no shell
    #[arg(last = true, required_unless_present = "job", value_name = "CMD")]
    command: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Reboot {
    Never,
    WhenNeeded,
    Always,
    /// When needed, by the SSM agent: exit 194, and the verdict when it runs the same command again
    Ssm,
}

impl Args {
    fn request(&self) -> RunRequest {
        let program = self.command.first().map(Path::new).and_then(Path::file_name);
        let program = program.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        RunRequest {
            name: self.job.clone().or_else(|| self.name.clone()).unwrap_or(program),
            argv: self.command.clone(),
            unit: self.job.clone(),
            reboot: match self.reboot {
                Reboot::Never => RebootPolicy::Never,
                Reboot::WhenNeeded => RebootPolicy::WhenNeeded,
                Reboot::Always => RebootPolicy::Always,
                Reboot::Ssm => RebootPolicy::Ssm,
            },
            job_reboots: self.job_reboots,
            only_owed: false,
            overrides: self.overrides.clone(),
            reason: self.reason.clone(),
            request_id: request_id(),
        }
    }
}

/// A result without anything in it yet.
pub(super) fn result(exit: Exit, message: impl Into<String>) -> RunResult {
    RunResult {
        v: VERSION,
        node: None,
        fleet: None,
        cycle: None,
        attached: false,
        changed: None,
        exit: exit.code(),
        message: message.into(),
        ended: None,
        verdicts: None,
        next: None,
    }
}

/// Asks, follows, tells.
///
/// # Errors
/// Faults of this process: no signals, no shell.
pub(super) async fn run(ctx: &mut Ctx<'_>, args: &Args) -> anyhow::Result<Exit> {
    let mut request = args.request();
    let ask = Ask::Run(request.clone());
    if args.json {
        if let Err((error, expected)) = ask.check() {
            return Ok(conclude(ctx, true, &result(Exit::Usage, format!("{error}; expected: {expected}"))));
        }
    } else if let Err(exit) = ctx.checked(&ask, false) {
        return Ok(exit);
    }
    if args.detach && args.reboot == Reboot::Ssm {
        let why = "--detach goes back before it is known whether a restart is needed, and --reboot ssm tells it by its exit \
                   code; expected: one of them";
        return Ok(conclude(ctx, args.json, &result(Exit::Usage, why)));
    }
    let mut interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
    let mut steps = Steps::new(args.json);
    if let Some(cmd) = &args.only_if {
        if args.reboot == Reboot::Ssm
            && let Some(exit) = owed(ctx, args, &request, &mut steps, &mut interrupts).await?
        {
            return Ok(exit);
        }
        if let Some(over) = only_if(cmd).await? {
            return Ok(conclude(ctx, args.json, &over));
        }
    }
    let mut defined = match unit::define(ctx, &request.name, &request.argv).await {
        Ok(defined) => defined,
        Err((error, expected)) => {
            return Ok(conclude(ctx, args.json, &result(Exit::Usage, format!("{error}; expected: {expected}"))));
        }
    };
    if let Some(defined) = &defined {
        request.unit = Some(defined.instance().to_owned());
    }
    let over = cycle(ctx, args, request.clone(), &mut steps, &mut interrupts).await;
    taken(ctx, args, &request, &over).await;
    if let Some(defined) = defined.as_mut().filter(|defined| wants(&over, defined.instance())) {
        // The job goes on, or may be about to begin; its unit tidies up.
        defined.keep();
    }
    Ok(match over {
        Ok(Begun::Cycle((begun, end))) => conclude(ctx, args.json, &of_cycle(begun, end)),
        Ok(Begun::Not(over)) => conclude(ctx, args.json, &over),
        Err(e) => unanswered(ctx, &e, true, args.json),
    })
}

/// A cycle that runs this unit is under way, or may be: without the unit its job would fail, with the node out.
fn wants(over: &Result<Begun<(Started, RunResult)>, ClientError>, unit: &str) -> bool {
    match over {
        // This very request may be what began it, when its first answer was lost.
        Ok(Begun::Cycle((begun, end))) => end.ended.is_none() && begun.unit.as_deref().is_none_or(|its| its == unit),
        Ok(Begun::Not(over)) => over.exit == Exit::ContactLost.code(),
        Err(_) => false,
    }
}

fn of_cycle(begun: Started, end: RunResult) -> RunResult {
    let (node, fleet, cycle) = (Some(begun.node), Some(begun.fleet), Some(begun.cycle));
    RunResult { node, fleet, cycle, attached: begun.attached, ..end }
}

/// A caller that followed its restarted machine home has its verdict now, so that it is owed to nobody any more. Where the
/// agent does not hear of this, it is told once more: no second cycle begins for that.
async fn taken(
    ctx: &Ctx<'_>,
    args: &Args,
    request: &RunRequest,
    over: &Result<Begun<(Started, RunResult)>, ClientError>,
) {
    let has = matches!(over, Ok(Begun::Cycle((_, end))) if end.ended.is_some());
    if args.reboot == Reboot::Ssm && has {
        let request = RunRequest { only_owed: true, ..request.clone() };
        let _ = tokio::time::timeout(TAKEN, ctx.client.run(&request)).await;
    }
}

/// What the restarted machine's verdict is, before the caller's own question: after the patch that says "nothing to do",
/// whatever became of the node. `None` = none is owed.
async fn owed(
    ctx: &mut Ctx<'_>,
    args: &Args,
    request: &RunRequest,
    steps: &mut Steps,
    interrupts: &mut Interrupts,
) -> anyhow::Result<Option<Exit>> {
    let request = RunRequest { only_owed: true, request_id: request_id(), ..request.clone() };
    let over = cycle(ctx, args, request.clone(), steps, interrupts).await;
    taken(ctx, args, &request, &over).await;
    Ok(match over {
        Ok(Begun::Cycle((begun, end))) => Some(conclude(ctx, args.json, &of_cycle(begun, end))),
        Ok(Begun::Not(over)) if over.exit == Exit::Done.code() => None,
        Ok(Begun::Not(over)) => Some(conclude(ctx, args.json, &over)),
        Err(e) => Some(unanswered(ctx, &e, true, args.json)),
    })
}

/// One cycle and its end. Where callers on several nodes were all let in, one of them gets the slot, and those that
/// queue go on queueing.
async fn cycle(
    ctx: &mut Ctx<'_>,
    args: &Args,
    mut request: RunRequest,
    steps: &mut Steps,
    interrupts: &mut Interrupts,
) -> Result<Begun<(Started, RunResult)>, ClientError> {
    let queue = Queue::new(ctx.clock.now(), args.wait);
    loop {
        let begun = match begin(ctx, &queue, &request, steps, interrupts).await? {
            Begun::Cycle(begun) => begun,
            Begun::Not(over) => return Ok(Begun::Not(over)),
        };
        let also = if begun.attached { ", which was under way already" } else { "" };
        let (id, node, fleet) = (&begun.cycle, &begun.node, &begun.fleet);
        steps.say(ctx, &wrap(&format!("cycle {id}, {node}, fleet {fleet}{also}.  Times are UTC."), WIDTH).join("\n"));
        steps.say(ctx, "Ctrl-C detaches and stops nothing; to stop it: backstop rejoin --reason \"...\"");
        let until = match (args.detach, args.reboot) {
            (true, _) => Until::PastClaim,
            (false, Reboot::Ssm) => Until::EndedOrRestart,
            (false, Reboot::Never | Reboot::WhenNeeded | Reboot::Always) => Until::Ended,
        };
        let end = match follow(ctx, &begun.cycle, until, steps, interrupts).await {
            Ok(end) => verdict(end, &begun.node),
            Err(e) => RunResult { next: Some("backstop wait".to_owned()), ..result(Exit::ContactLost, e.to_string()) },
        };
        let left = queue.left_ms(&ctx.clock.now()).filter(|_| lost_the_claim(&end));
        let Some(left) = left else { return Ok(Begun::Cycle((begun, end))) };
        steps.note(ctx, "waiting", &format!("{}; for up to {}", end.message, span(left)));
        if interrupts.sleep(&ctx.clock, queue::wait_ms(jitter()).min(left)).await {
            return Ok(Begun::Cycle((begun, end)));
        }
        // The other request was carried out, and is over.
        request.request_id = request_id();
    }
}

/// The cycle ended in its claim, nothing has changed, and time may change the answer.
fn lost_the_claim(end: &RunResult) -> bool {
    let nothing = end.ended.as_ref().is_some_and(|e| e.verdict.is_none() && e.out_ms == 0 && e.latch.is_none());
    nothing && queue::passes(end.exit, None)
}

fn request_id() -> String {
    uuid::Uuid::now_v7().to_string()
}

/// The caller's own question, before anything is asked of the agent. `None` = go on.
async fn only_if(cmd: &str) -> anyhow::Result<Option<RunResult>> {
    let stdout = std::io::stderr().as_fd().try_clone_to_owned().context("cannot duplicate stderr")?;
    let mut shell = tokio::process::Command::new("sh");
    // What it prints is for people: stdout may be promised to --json.
    shell.arg("-c").arg(cmd).stdin(Stdio::null()).stdout(stdout);
    let status = shell.status().await.context("cannot run sh for --only-if")?;
    let not = |exit, message: String| Some(RunResult { changed: Some(false), ..result(exit, message) });
    Ok(match status.code() {
        Some(0) => None,
        Some(1) => not(Exit::Done, "nothing to do: --only-if ended with 1".to_owned()),
        Some(code) => not(Exit::Guard, format!("--only-if ended with {code}: neither 0 (go on) nor 1 (nothing to do)")),
        None => not(Exit::Guard, format!("--only-if did not end by itself: {status}")),
    })
}

/// There is no answer: the same object as for every other end.
pub(super) fn unanswered(ctx: &mut Ctx<'_>, e: &ClientError, changes: bool, json: bool) -> Exit {
    if !json {
        return ctx.no_answer(e, changes, false);
    }
    let exit = e.exit(changes);
    let untouched = exit != Exit::ContactLost;
    let over = result(exit, e.to_string());
    conclude(ctx, true, &RunResult { changed: untouched.then_some(false), next: Some(e.next()), ..over })
}

/// What following says, as a result.
pub(super) fn verdict(end: Follow, node: &str) -> RunResult {
    let explain = Some(format!("backstop explain {node}"));
    let wait = Some("backstop wait".to_owned());
    let goes_on = |next, exit, text: &str| RunResult { next, ..result(exit, text) };
    match end {
        Follow::Ended(ended) => of_ended(&ended, node),
        Follow::Late => goes_on(
            explain,
            Exit::FailedOut,
            "the node is OUT of service beyond its time; the agent goes on trying, and registers it once it passes",
        ),
        Follow::PastClaim => {
            goes_on(wait, Exit::Done, "the slot is acknowledged; the cycle goes on without this command")
        }
        Follow::Restart => goes_on(
            None,
            Exit::RestartBySsm,
            "the machine is to be restarted now, by the SSM agent; the verdict is for whoever runs this command again after that",
        ),
        Follow::TimeOver => goes_on(wait, Exit::ContactLost, "the time of this wait is over; the cycle goes on"),
        Follow::Interrupted => goes_on(wait, Exit::ContactLost, "detached; the cycle goes on"),
        Follow::ContactLost(e) => {
            let text = format!("contact lost for {}; the cycle goes on when the agent does ({e})", span(CONTACT_MS));
            goes_on(Some("systemctl status backstop".to_owned()), Exit::ContactLost, &text)
        }
        Follow::Unknown => goes_on(
            Some("backstop history".to_owned()),
            Exit::ContactLost,
            "the agent does not know this cycle any more: its verdict is not known here",
        ),
    }
}

/// How a cycle ended, as a result.
pub(super) fn of_ended(ended: &Ended, node: &str) -> RunResult {
    let next = (ended.exit != Exit::Done).then(|| format!("backstop explain {node}"));
    RunResult {
        node: Some(node.to_owned()),
        cycle: Some(ended.cycle.to_string()),
        changed: Some(ended.verdict.is_some() || ended.out_ms > 0),
        next,
        ended: Some(ended.clone()),
        ..result(ended.exit, &*ended.message)
    }
}

/// Prints the end and gives its exit code.
pub(super) fn conclude(ctx: &mut Ctx<'_>, json: bool, r: &RunResult) -> Exit {
    ctx.show(json, r, lines);
    Exit::from_code(r.exit).unwrap_or(Exit::Internal)
}

/// An operator's hold, not a job that somebody called so: those have a request, and mostly a verdict.
pub(super) fn is_hold(e: &Ended) -> bool {
    &*e.job == "hold" && e.verdict.is_none() && e.request.is_empty()
}

fn word(r: &RunResult, exit: Exit) -> &'static str {
    let hold = r.ended.as_ref().is_some_and(is_hold);
    match (&r.ended, exit) {
        (Some(_), Exit::Done) if hold => "HOLD OVER, back in service.",
        (Some(_), Exit::Done) => "DONE, back in service.",
        (_, Exit::FailedOut) => "OUT.",
        (Some(_), Exit::FailedBack | Exit::NotRebooted | Exit::StateUnreadable) if hold => {
            "HOLD OVER, late: back in service."
        }
        (Some(_), Exit::FailedBack | Exit::NotRebooted | Exit::StateUnreadable) => "FAILED, back in service.",
        (Some(e), _) if hold && e.out_ms > 0 => "HOLD ENDED EARLY, back in service.",
        (Some(_), _) if hold => "NOT HELD, nothing was changed.",
        (Some(_), Exit::EndedEarly) => "ENDED EARLY, back in service.",
        (Some(e), _) if e.out_ms > 0 => "ENDED EARLY, back in service.",
        (None, Exit::Done) if r.changed == Some(false) => "changed: false.",
        (None, Exit::Done) => "DETACHED.",
        (_, Exit::RestartBySsm) => "RESTART.",
        (_, Exit::ContactLost) => "NO VERDICT.",
        (_, Exit::NoAgent) => "NO AGENT.",
        (_, Exit::Internal) => "FAULT.",
        _ => "REFUSED, nothing was changed.",
    }
}

/// `DONE, back in service.  7m59s out of service                                     exit 0`
pub(super) fn lines(r: &RunResult) -> Vec<String> {
    let exit = Exit::from_code(r.exit).unwrap_or(Exit::Internal);
    let word = word(r, exit);
    let head = match &r.ended {
        Some(e) if e.out_ms > 0 => format!("{word}  {} out of service", span(e.out_ms)),
        _ => word.to_owned(),
    };
    // The guards below have the reason of a refusal in full.
    let in_guards = |v: &Verdicts| v.0.iter().any(|g| r.message.ends_with(&*g.sentence));
    let told = r.verdicts.as_ref().is_some_and(in_guards) || (r.ended.is_some() && exit == Exit::Done);
    let one_line = format!("{head}  {}", r.message);
    let tail = format!("exit {}", r.exit);
    let mut lines = match (told, one_line.chars().count() <= TEXT) {
        (true, _) => vec![with_tail(&head, &tail, TEXT)],
        (false, true) => vec![with_tail(&one_line, &tail, TEXT)],
        (false, false) => vec![with_tail(&head, &tail, TEXT), labelled("Why", &r.message)],
    };
    if let Some(verdicts) = &r.verdicts {
        lines.extend(check::guard_lines(verdicts, false));
    }
    lines.extend(commands(&r.next));
    let latch = r.ended.as_ref().and_then(|e| e.latch.as_ref());
    lines.extend(latch.map(|latch| command("After", &format!("backstop latch clear {latch} --reason \"...\""))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_of_a_run_stays_while_a_cycle_may_want_it() {
        let unit = |its: Option<&str>, attached| Started {
            cycle: "c-1".to_owned(),
            node: "es-client-1".to_owned(),
            fleet: "blue".to_owned(),
            attached,
            unit: its.map(str::to_owned),
        };
        let goes_on = || result(Exit::ContactLost, "Ctrl-C");
        let kept = |over| wants(&over, "run-1");
        assert!(kept(Ok(Begun::Cycle((unit(None, false), goes_on())))), "the caller goes, the cycle goes on");
        assert!(
            kept(Ok(Begun::Cycle((unit(Some("run-1"), true), goes_on())))),
            "asked twice, since an answer was lost"
        );
        assert!(!kept(Ok(Begun::Cycle((unit(Some("run-0"), true), goes_on())))), "the same job of another caller");
        assert!(kept(Ok(Begun::Cycle((unit(None, true), goes_on())))), "whose is not known");
        assert!(kept(Ok(Begun::Not(Box::new(goes_on())))), "whether one began is not known");
        assert!(!kept(Ok(Begun::Not(Box::new(result(Exit::Latched, "refused"))))));
    }
}
