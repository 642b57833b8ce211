//! `backstop rehearse` and its hidden parts.

use super::out::Out;
use crate::core::exit::Exit;

/// Arguments, read by the rehearsal itself.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Scenario and its options
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    pub(super) args: Vec<String>,
}

#[expect(clippy::unnecessary_wraps, reason = "a placeholder")]
/// Runs a rehearsal.
///
/// # Errors
/// A fault of the rehearsal itself.
pub(super) fn run(_args: &Args, out: &mut Out) -> anyhow::Result<Exit> {
    out.complain("the rehearsal is not built yet");
    Ok(Exit::Internal)
}

/// A client node of a rehearsal, as a process of its own.
///
/// # Errors
/// A fault of the rehearsal itself.
pub(super) fn node(args: &Args, _out: &mut Out) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(crate::rehearse::node::run_node_args(args.args.clone()))?;
    Ok(Exit::Done)
}
