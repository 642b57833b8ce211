//! `backstop agent`: the one place that puts adapters into ports.

use super::out::Out;
use crate::core::exit::Exit;
use std::path::Path;

#[expect(clippy::unnecessary_wraps, reason = "a placeholder")]
/// Runs until it is told to stop.
///
/// # Errors
/// What keeps it from starting at all.
pub(super) fn run(_config: &Path, out: &mut Out) -> anyhow::Result<Exit> {
    out.complain("the agent is not built yet");
    Ok(Exit::Internal)
}
