//! The verbs about the fleet's record: `latch`, `retire`, `init`.

use super::context::Ctx;
use super::text::{command, labelled};
use crate::control::ask::Ask;
use crate::control::protocol::{
    ApiError, ClearRequest, InitRequest, LatchStatus, Latches, RetireRequest, Status, VERSION,
};
use crate::core::exit::Exit;
use crate::words::moment;

/// `backstop latch list|clear`
#[derive(clap::Subcommand, Debug)]
pub(super) enum LatchVerb {
    /// Open latches, and how to clear them
    List {
        /// One object on stdout
        #[arg(long)]
        json: bool,
    },
    /// Say that a failure is understood: patching may go on (admin)
    Clear {
        /// The latch, as `latch list` shows it: L-…
        id: String,
        /// Why; goes on the record
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Although that node is still out of service
        #[arg(long)]
        unresolved: bool,
        /// One object on stdout
        #[arg(long)]
        json: bool,
    },
}

/// `backstop init --fleet [--reason TEXT]`
#[derive(clap::Args, Debug)]
pub(super) struct InitArgs {
    /// Create the fleet record
    #[arg(long, required = true)]
    fleet: bool,
    /// Needed where there is a record already, or was one
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// `backstop retire NODE --reason TEXT`
#[derive(clap::Args, Debug)]
pub(super) struct RetireArgs {
    /// Its name or instance id; this node itself leaves through floor check and drain first
    node: String,
    /// Why; goes on the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

pub(super) async fn retire(ctx: &mut Ctx<'_>, args: RetireArgs) -> Exit {
    let r = RetireRequest { node: args.node, reason: args.reason };
    if let Err(exit) = ctx.checked(&Ask::Retire(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.retire(&r).await;
    ctx.done(answer, args.json)
}

pub(super) async fn latch(ctx: &mut Ctx<'_>, verb: LatchVerb) -> Exit {
    match verb {
        LatchVerb::List { json } => list(ctx, json).await,
        LatchVerb::Clear { id, reason, unresolved, json } => {
            let r = ClearRequest { latch: id, reason, unresolved };
            if let Err(exit) = ctx.checked(&Ask::LatchClear(r.clone()), json) {
                return exit;
            }
            let answer = ctx.client.latch_clear(&r).await;
            ctx.done(answer, json)
        }
    }
}

async fn list(ctx: &mut Ctx<'_>, json: bool) -> Exit {
    let status = match ctx.client.status().await {
        Ok(status) => status,
        Err(e) => return ctx.nobody_tells(&e, None, json),
    };
    let Some(latches) = open(&status) else {
        let (error, expected) = ("the fleet record is unknown, and so are its latches", "a record that can be read");
        let next = "backstop explain";
        ctx.error(
            &ApiError {
                v: VERSION,
                error: error.to_owned(),
                expected: expected.to_owned(),
                next: next.to_owned(),
                also: Vec::new(),
                exit: Exit::Unreachable.code(),
            },
            json,
        );
        return Exit::Unreachable;
    };
    ctx.show(json, &latches, |latches| lines(latches, status.now_ms));
    Exit::Done
}

fn open(status: &Status) -> Option<Latches> {
    let record = status.record.as_ref()?;
    let record_age_ms = status.sees.iter().find(|s| s.source == "fleet record").and_then(|s| s.age_ms);
    let open = record.latches.iter().filter(|(_, l)| l.cleared.is_none());
    let latches = open.map(|(cycle, latch)| LatchStatus {
        id: cycle.latch().to_string(),
        cycle: cycle.to_string(),
        latch: latch.clone(),
    });
    Some(Latches { v: VERSION, record_age_ms, latches: latches.collect() })
}

fn lines(latches: &Latches, now_ms: u64) -> Vec<String> {
    if latches.latches.is_empty() {
        return vec!["no latch: nothing blocks patching".to_owned()];
    }
    let mut lines = Vec::new();
    for LatchStatus { id, cycle, latch } in &latches.latches {
        let at = moment(latch.since_ms, now_ms);
        lines.push(format!("{id}  {} failed in {} at {at} ({})", latch.node, latch.stage, latch.class));
        lines.push(labelled("  Why", &latch.message));
        lines.push(labelled("  Job", format!("{}, cycle {cycle}", latch.job)));
        lines.push(command("  Next", &format!("backstop explain {}", latch.node)));
        lines.push(command("  After", &format!("backstop latch clear {id} --reason \"...\"")));
    }
    lines
}

pub(super) async fn init(ctx: &mut Ctx<'_>, args: InitArgs) -> Exit {
    let r = InitRequest { reason: args.reason };
    if let Err(exit) = ctx.checked(&Ask::Init(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.init(&r).await;
    ctx.done(answer, args.json)
}
