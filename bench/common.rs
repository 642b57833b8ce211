//! What both measurements need.

use anyhow::{Context as _, bail};
use std::path::PathBuf;

/// Kernel ticks in a second, as `/proc/PID/stat` counts (`USER_HZ`): the resolution of all CPU times here is 0.01 s.
const TICKS: f64 = 100.0;

/// The program that is measured: the scripts build it with the release profile and name it.
pub(crate) fn program() -> anyhow::Result<PathBuf> {
    let program =
        std::env::var_os("BACKSTOP_PROGRAM").context("BACKSTOP_PROGRAM is not set: use the scripts in bench/")?;
    Ok(std::path::absolute(program)?)
}

/// CPU seconds, user and system, of a process since its start.
pub(crate) fn cpu_s(pid: u32) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let Some((_, rest)) = stat.rsplit_once(')') else { bail!("/proc/{pid}/stat is not one") };
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let tick = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok());
    let (user, system) = tick(11).zip(tick(12)).context("/proc/PID/stat has another form")?;
    Ok((user + system) / TICKS)
}
