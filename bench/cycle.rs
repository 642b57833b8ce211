//! What one cycle costs with everything instant and all dwells at zero: wall time, CPU, AWS calls by kind. One JSON object.
//!
//! Arguments: URL and ARN of a foreign ELBv2, which `bench/cycle` (the script) starts; without them the embedded one of the
//! rehearsal is used. The second object is a cycle whose drain and first check take their time: what backstop
//! adds to them.
#![allow(
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement, not the product"
)]

mod common;

use anyhow::{Context as _, bail};
use backstop::control::protocol::RunReply;
use backstop::core::job::RebootPolicy;
use backstop::rehearse::elbv2::{Checks, GroupSpec};
use backstop::rehearse::fleet::{Fleet, FleetOptions, patch_request};
use backstop::rehearse::http::{self, Answer, Response, Server, Service};
use common::{cpu_s, program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Between two looks at the world and at the state file.
const LOOK: Duration = Duration::from_millis(2);
const LONG: Duration = Duration::from_secs(120);
const ZERO: &str = r#"
[log]
level = "info"
[check]
over = "0s"
[drain]
quiet = "0s"
[settle]
bake = "0s"
[limits]
cycles_per_hour = 1000
cycles_per_day = 1000
free_disk_mib = 1
"#;
/// The looks of the observer are not the cycle's: there is none in the middle of it.
const SELDOM: &str = "[reconcile]\nevery = \"5m\"\nself_heal_after = \"10m\"\n";

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
        let instant = instant(args.next().zip(args.next())).await?;
        let slow = slow().await?;
        println!("{}", serde_json::json!({ "instant": instant, "drain_20_s_first_check_5_s": slow }));
        Ok(())
    })
}

/// Passes requests on and counts them by action.
#[derive(Clone)]
struct Counter {
    to: String,
    calls: Arc<Mutex<BTreeMap<String, u32>>>,
    client: reqwest::Client,
}

impl Service for Counter {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| async move {
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let action = body.split('&').find_map(|p| p.strip_prefix("Action=")).unwrap_or("?").to_owned();
            if let Ok(mut calls) = self.calls.lock() {
                *calls.entry(action).or_default() += 1;
            }
            let mut sent = self.client.post(format!("{}/", self.to)).body(body);
            for (name, value) in &request.headers {
                if !matches!(name.to_ascii_lowercase().as_str(), "host" | "content-length" | "connection") {
                    sent = sent.header(name, value);
                }
            }
            match sent.send().await {
                Ok(answer) => {
                    let status = answer.status().as_u16();
                    let bytes = answer.bytes().await.unwrap_or_default();
                    Answer::Reply(Response::new(status, "text/xml", bytes.to_vec()))
                }
                Err(e) => Answer::Reply(Response::new(502, "text/plain", e.to_string())),
            }
        })
        .await;
    }
}

/// `foreign`: URL and ARN.
async fn instant(foreign: Option<(String, String)>) -> anyhow::Result<serde_json::Value> {
    let mut options = FleetOptions::new(program()?);
    options.scale = 1;
    options.config = ZERO.to_owned();
    options.groups = vec![GroupSpec {
        checks: Checks::Pass,
        deregistration_delay_s: 0,
        registration_lag_ms: 0,
        first_check_lag_ms: 0,
        deregistration_traffic_lag_ms: 0,
        ..GroupSpec::new("es-clients")
    }];
    let fleet = Fleet::start(options).await?;
    let (url, arn) = match foreign {
        Some((url, arn)) => (url, Some(arn)),
        None => (fleet.endpoint(), None),
    };
    let base = reqwest::Url::parse(&url)?;
    let client = backstop::http_client::builder(&base, LONG).no_proxy().build()?;
    let counter = Counter { to: url, calls: Arc::default(), client };
    let proxy = Server::start("127.0.0.1:0".parse()?, counter.clone()).await?;
    let group = |i: usize| {
        arn.as_ref()
            .map_or(String::new(), |arn| format!("[[target_group]]\narn = {arn:?}\nid = \"127.0.0.{}\"\n", i + 1))
    };
    let restart = async |i: usize, endpoint: &str, reconcile: &str| {
        let machine = fleet.machine(i)?;
        machine.terminate_agent().await;
        let elbv2 = format!("[elbv2]\nendpoint_url = {endpoint:?}\nregister_probe = false\n");
        machine.configure(&format!("{ZERO}{reconcile}{elbv2}{}", group(i)));
        machine.start_agent()?;
        anyhow::Ok(())
    };
    for i in 0..3 {
        restart(i, &counter.to, "[reconcile]\nevery = \"2s\"\n").await?;
    }
    fleet.machine(0)?.wait_sees(3, LONG).await?;
    // The one that is measured, once it can see the others at its first look: its calls alone are counted.
    restart(0, &format!("http://{}", proxy.address()), SELDOM).await?;
    fleet.machine(0)?.wait_sees(3, LONG).await?;
    let machine = fleet.machine(0)?;
    let pid = machine.agent_pid().context("the agent runs")?;
    let mut runs = Vec::new();
    for _ in 0..5 {
        if let Ok(mut calls) = counter.calls.lock() {
            calls.clear();
        }
        let (wall, cpu) = cycle(machine, pid).await?;
        let calls = counter.calls.lock().map(|c| c.clone()).unwrap_or_default();
        runs.push((wall, cpu, calls));
    }
    // Their sum: a single cycle takes less than the clock can tell.
    let cpu = runs.iter().map(|r| r.1).sum::<f64>() / 5.0;
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (wall, _, calls) = runs.get(2).context("five runs")?;
    Ok(serde_json::json!({
        "against": if arn.is_some() { "moto" } else { "embedded" },
        "wall_s": wall, "agent_cpu_s": cpu, "aws_calls": calls.values().sum::<u32>(), "by_kind": calls,
    }))
}

/// One cycle: seconds of wall time, and of the agent's CPU.
async fn cycle(machine: &backstop::rehearse::fleet::Machine, pid: u32) -> anyhow::Result<(f64, f64)> {
    let (before, started) = (cpu_s(pid)?, Instant::now());
    let request = patch_request("true", &["true"], RebootPolicy::Never);
    let RunReply::Started { cycle, .. } = machine.run(&request).await? else { bail!("the cycle did not start") };
    // From the file, and not from the agent, which would have to answer at the expense of what is measured.
    let last = loop {
        let durable = machine.durable().context("a state file")?;
        if let Some(last) = durable.last.filter(|e| durable.cycle.is_none() && e.cycle.as_str() == cycle) {
            break last;
        }
        if started.elapsed() > LONG {
            bail!("the cycle did not end");
        }
        tokio::time::sleep(LOOK).await;
    };
    let wall = started.elapsed().as_secs_f64();
    if last.exit.code() != 0 {
        bail!("the cycle ended with {}: {}", last.exit.code(), last.message);
    }
    Ok((wall, cpu_s(pid)? - before))
}

/// The world takes its time: 20 s of drain, 5 s until the first health check. What the load balancer itself needed is
/// measured from its side, and the rest is what backstop added.
async fn slow() -> anyhow::Result<serde_json::Value> {
    let mut options = FleetOptions::new(program()?);
    options.scale = 1;
    options.config = format!("{ZERO}[elbv2]\nregister_probe = false\n");
    options.groups = vec![GroupSpec {
        deregistration_delay_s: 20,
        registration_lag_ms: 0,
        first_check_lag_ms: 5_000,
        deregistration_traffic_lag_ms: 0,
        ..GroupSpec::new("es-clients")
    }];
    let fleet = Fleet::start(options).await?;
    let machine = fleet.machine(0)?;
    let pid = machine.agent_pid().context("the agent runs")?;
    let calls_before = fleet.elbv2().calls().len();
    let (mut drain_s, mut health_s) = (0.0, 0.0);
    let measured = async {
        loop {
            let from = Instant::now();
            let (state, _) = fleet.target_state(machine);
            tokio::time::sleep(LOOK).await;
            match state.as_str() {
                "draining" => drain_s += from.elapsed().as_secs_f64(),
                "initial" | "unhealthy" => health_s += from.elapsed().as_secs_f64(),
                _ => {}
            }
        }
    };
    let (wall, cpu) = tokio::select! {
        done = cycle(machine, pid) => done?,
        () = measured => bail!("it looks for ever"),
    };
    let calls = fleet.elbv2().calls().len().saturating_sub(calls_before);
    Ok(serde_json::json!({
        "wall_s": wall, "agent_cpu_s": cpu, "drain_s": drain_s, "first_check_s": health_s,
        "added_s": wall - drain_s - health_s, "aws_calls_of_all_three_agents": calls,
    }))
}
