//! What an agent costs at rest: resident memory, CPU, binary size, time to READY. Prints one JSON object.
//!
//! `bench/footprint [SECONDS]` (default 60). Three real agents in a rehearsal's world in real time; the first is measured.
#![allow(
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, not the product"
)]

mod common;

use anyhow::Context as _;
use backstop::rehearse::fleet::{Fleet, FleetOptions};
use common::cpu_s;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{Duration, Instant};

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}

async fn measure() -> anyhow::Result<()> {
    let seconds: u64 = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(60);
    let program = &common::program()?;
    let ready_ms = time_to_ready(program).await?;
    let mut options = FleetOptions::new(program);
    options.scale = 1;
    options.config = "[log]\nlevel = \"info\"\n[reconcile]\nevery = \"15s\"\n".to_owned();
    let fleet = Fleet::start(options).await?;
    let pid = fleet.machine(0)?.agent_pid().context("the agent runs")?;
    let calls_before = fleet.elbv2().calls().len();
    let before = cpu_s(pid)?;
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let cpu = cpu_s(pid)? - before;
    let calls = fleet.elbv2().calls().len().saturating_sub(calls_before);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let mib = |key: &str| kib(&status, key).map(|k| k / 1024.0);
    let binary = std::fs::metadata(program)?.len();
    println!(
        "{}",
        serde_json::json!({
            "seconds": seconds,
            "rss_mib": mib("VmRSS:")?,
            "rss_anonymous_mib": mib("RssAnon:")?,
            "threads": kib(&status, "Threads:")?,
            "cpu_s_per_minute": cpu * 60.0 / seconds as f64,
            "aws_calls_per_agent_and_minute": calls as f64 / 3.0 * 60.0 / seconds as f64,
            "binary_mib": binary as f64 / 1024.0 / 1024.0,
            "ready_ms": ready_ms,
        })
    );
    Ok(())
}

/// Starts one agent and waits for its `READY=1`, five times; the median.
async fn time_to_ready(program: &Path) -> anyhow::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let mut options = FleetOptions::new(program);
        options.scale = 1;
        options.nodes = 1;
        options.agents = true;
        let fleet = Fleet::start(options).await?;
        let machine = fleet.machine(0)?.clone();
        machine.terminate_agent().await;
        let path = fleet.dir().join("notify");
        let socket = UnixDatagram::bind(&path)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        machine.agent_env(&[("NOTIFY_SOCKET", &path.to_string_lossy())]);
        let started = Instant::now();
        machine.start_agent()?;
        let waited = tokio::task::spawn_blocking(move || -> anyhow::Result<Duration> {
            let mut buffer = [0_u8; 4096];
            loop {
                let n = socket.recv(&mut buffer)?;
                if String::from_utf8_lossy(&buffer[..n]).lines().any(|l| l == "READY=1") {
                    return Ok(started.elapsed());
                }
            }
        });
        times.push(waited.await??.as_secs_f64() * 1_000.0);
    }
    times.sort_by(f64::total_cmp);
    times.get(2).copied().context("five times")
}

fn kib(status: &str, key: &str) -> anyhow::Result<f64> {
    let line = status.lines().find(|l| l.starts_with(key)).with_context(|| format!("no {key}"))?;
    line.split_whitespace().nth(1).context("a number")?.parse().context("a number")
}
