//! The verbs that steer this node and the fleet: `rejoin`, `hold`, `pause`, `unpause`.

use super::context::Ctx;
use super::text::parse_span;
use crate::control::ask::Ask;
use crate::control::protocol::{HoldRequest, ReasonRequest, RejoinRequest};
use crate::core::exit::Exit;

/// `backstop rejoin --reason TEXT [--skip-check]`
#[derive(clap::Args, Debug)]
pub(super) struct RejoinArgs {
    /// Why; goes on the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Register without the node check (admin); the load balancer checks too
    #[arg(long)]
    skip_check: bool,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// `backstop hold --for TIME --reason TEXT [--all]`
#[derive(clap::Args, Debug)]
pub(super) struct HoldArgs {
    /// For how long (4h; at most 7d); then the node goes back by itself
    #[arg(long = "for", value_name = "TIME", value_parser = parse_span)]
    for_ms: u64,
    /// Why; goes on the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// No self-heal on any node until it ends, instead of taking this node out
    #[arg(long)]
    all: bool,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// `backstop pause --reason TEXT`, `backstop unpause --reason TEXT`
#[derive(clap::Args, Debug)]
pub(super) struct ReasonArgs {
    /// Why; goes on the record
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

pub(super) async fn rejoin(ctx: &mut Ctx<'_>, args: RejoinArgs) -> Exit {
    let r = RejoinRequest { reason: args.reason, skip_check: args.skip_check };
    if let Err(exit) = ctx.checked(&Ask::Rejoin(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.rejoin(&r).await;
    ctx.done(answer, args.json)
}

pub(super) async fn hold(ctx: &mut Ctx<'_>, args: HoldArgs) -> Exit {
    let r = HoldRequest { for_s: args.for_ms.div_ceil(1_000), all: args.all, reason: args.reason };
    if let Err(exit) = ctx.checked(&Ask::Hold(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.hold(&r).await;
    ctx.done(answer, args.json)
}

pub(super) async fn pause(ctx: &mut Ctx<'_>, args: ReasonArgs) -> Exit {
    let r = ReasonRequest { reason: args.reason };
    if let Err(exit) = ctx.checked(&Ask::Pause(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.pause(&r).await;
    ctx.done(answer, args.json)
}

pub(super) async fn unpause(ctx: &mut Ctx<'_>, args: ReasonArgs) -> Exit {
    let r = ReasonRequest { reason: args.reason };
    if let Err(exit) = ctx.checked(&Ask::Unpause(r.clone()), args.json) {
        return exit;
    }
    let answer = ctx.client.unpause(&r).await;
    ctx.done(answer, args.json)
}
