//! `patch-all` and `incident`: three nodes are patched through the real CLI, asked for at the same moment.

use super::{Play, Played, Promise, Run};
use crate::core::exit::Exit;
use crate::rehearse::fleet::{Machine, NodeStart};
use crate::rehearse::pace;
use crate::rehearse::shapes::Shape;
use crate::rehearse::timeline::EventKind;
use anyhow::{Context as _, bail};
use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinSet;

/// The faults of the incident. Only such as the old automation does not know: it would come through the others (a refused
/// connection, a timeout, a 503), and the incident would not happen. A test of `unguarded` holds every one against it.
pub(crate) const UNKNOWN_TO_AUTOMATION: [Shape; 13] = [
    Shape::RstMidHeader,
    Shape::RstAfterRequest,
    Shape::FinMidHeader,
    Shape::ShortBody,
    Shape::BadChunkSize,
    Shape::ChunkedCut,
    Shape::CloseDelimitedCut,
    Shape::SshBanner,
    Shape::TlsOnPlainPort,
    Shape::Http2Goaway,
    Shape::NoHead,
    Shape::ContinueThenFin,
    Shape::Html200,
];
/// The default deadline of the check, simulated.
const CHECK_MS: u64 = 900_000;
/// Longest wait (real) of all that is awaited here.
const BOUND: Duration = Duration::from_secs(200);
/// What a run said while it went on, in its machine's directory ...
pub(crate) const RUN_LOG: &str = "run.log";
/// ... and at its end.
pub(crate) const RUN_JSON: &str = "run.json";
/// What is left out with a real cluster, and what is real there.
const NOT_RESTARTED: &str = "The nodes and the fleet record are the real cluster's; load balancer, pager and patch are the rehearsal's. \
                             Its nodes are not the rehearsal's to restart: they served on while they were patched.";
/// Name of the job.
const JOB: &str = "patch";

/// Each machine's next start: another of these shapes for some minutes, inside the window but for the first where it is stuck.
pub(super) fn faults(play: &mut Play<'_>, stuck: bool) -> Vec<NodeStart> {
    let mut left = UNKNOWN_TO_AUTOMATION.to_vec();
    let mut starts = Vec::new();
    for i in 0..play.fleet.machines().len() {
        let at = usize::try_from(play.random.below(u64::try_from(left.len()).unwrap_or(0))).unwrap_or(0);
        if at >= left.len() {
            break;
        }
        let shape = left.swap_remove(at);
        let minutes = play.random.below(4).saturating_add(2);
        let for_ms = if stuck && i == 0 { CHECK_MS.saturating_add(120_000) } else { minutes.saturating_mul(60_000) };
        starts.push(NodeStart::failing(shape, Some(for_ms)));
    }
    starts
}

/// `incident`: `None` = none; else whether it is stuck on the first node.
pub(super) async fn play(play: &mut Play<'_>, incident: Option<bool>) -> anyhow::Result<Played> {
    let stuck = incident == Some(true);
    let mut notes = Vec::new();
    if incident.is_some() {
        let starts = faults(play, stuck);
        for (machine, start) in play.fleet.machines().iter().zip(&starts) {
            machine.next_starts([*start]);
        }
        let names: Vec<String> = starts.iter().filter_map(|s| s.shape.map(|(shape, _)| shape.to_string())).collect();
        notes.push(format!("After its restart every connection to a node fails, as: {}.", names.join(", ")));
    }
    let theirs = play.options.cluster.is_some();
    if theirs {
        let at_ms = play.fleet.origin().simulated_ms();
        for machine in play.fleet.machines() {
            let text = format!("a node of the real cluster, at {}: it is patched without a restart", machine.address());
            play.watch.note(at_ms, machine.name(), EventKind::World, &text);
        }
        notes.push(NOT_RESTARTED.to_owned());
    }
    let mut asked = JoinSet::new();
    let machines = play.fleet.machines().to_vec();
    for (i, machine) in machines.iter().enumerate() {
        asked.spawn(ask(i, machine.clone(), !theirs));
        if stuck && i == 0 {
            let holds = || play.fleet.record().is_some_and(|r| r.slots.contains_key(&instance(machine)));
            if !pace::until(BOUND, holds).await {
                bail!("the first run did not begin");
            }
        }
    }
    let mut runs = Vec::new();
    let all = pace::within(BOUND, async {
        while let Some(run) = asked.join_next().await {
            runs.push(run.context("a run's caller died")??);
        }
        anyhow::Ok(())
    });
    all.await.context("the runs did not end in time")??;
    runs.sort_by_key(|(i, _)| *i);
    let runs: Vec<Run> = runs.into_iter().map(|(_, run)| run).collect();
    // A run that ends before its node is back says so; the node is waited for.
    let back = || play.fleet.in_service() == machines.len() && play.fleet.record().is_some_and(|r| r.slots.is_empty());
    pace::until(BOUND, back).await;
    let promises = match (stuck, theirs) {
        (true, _) => stuck_promises(play, &runs),
        (false, true) => patched_promises(&runs, &machines),
        (false, false) => patched_promises(&runs, &machines).into_iter().chain([restarted(&machines)]).collect(),
    };
    Ok(Played { runs, promises, notes, pages: Some(usize::from(stuck)), ..Played::default() })
}

fn instance(machine: &Machine) -> crate::core::ids::InstanceId {
    crate::core::ids::InstanceId(machine.instance().into())
}

fn marker(machine: &Machine) -> std::path::PathBuf {
    machine.dir().join("patched")
}

/// How often its job ran.
fn patched(machine: &Machine) -> usize {
    std::fs::read_to_string(marker(machine)).unwrap_or_default().lines().count()
}

/// `backstop run --wait`, as a person or a play types it.
async fn ask(i: usize, machine: Machine, reboots: bool) -> anyhow::Result<(usize, Run)> {
    let mut command = Command::new(machine.program());
    command.arg("--config").arg(machine.config_file()).args(["run", "--wait", "4h", "--json"]);
    command.args(["--reboot", if reboots { "always" } else { "never" }]);
    command.args(["--name", JOB, "--", "sh", "-c", "echo patched >> \"$1\"", "sh"]).arg(marker(&machine));
    command.stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await.context("backstop run")?;
    for (name, said) in [(RUN_JSON, &output.stdout), (RUN_LOG, &output.stderr)] {
        std::fs::File::create(machine.dir().join(name)).and_then(|mut file| file.write_all(said))?;
    }
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let text = |key: &str| said.get(key).and_then(serde_json::Value::as_str).map(str::to_owned);
    let run = Run {
        node: machine.name().to_owned(),
        exit: output.status.code().and_then(|c| u8::try_from(c).ok()),
        message: text("message").unwrap_or_else(|| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        next: text("next"),
        cycle: text("cycle"),
    };
    Ok((i, run))
}

fn exits(runs: &[Run]) -> String {
    let all: Vec<String> = runs.iter().map(|r| r.exit.map_or_else(|| "none".to_owned(), |e| e.to_string())).collect();
    all.join(", ")
}

fn patched_promises(runs: &[Run], machines: &[Machine]) -> Vec<Promise> {
    let jobs: Vec<usize> = machines.iter().map(patched).collect();
    vec![
        Promise::of(
            if machines.len() == 3 { "all three runs succeed" } else { "all runs succeed" },
            runs.len() == machines.len() && runs.iter().all(|r| r.exit == Some(0)),
            format!("exit {}", exits(runs)),
        ),
        Promise::of("each job ran exactly once", jobs.iter().all(|n| *n == 1), format!("{jobs:?} times")),
    ]
}

fn restarted(machines: &[Machine]) -> Promise {
    let reboots: Vec<u32> = machines.iter().map(Machine::reboots).collect();
    Promise::of("each machine restarted once", reboots.iter().all(|n| *n == 1), format!("{reboots:?} times"))
}

fn stuck_promises(play: &Play<'_>, runs: &[Run]) -> Vec<Promise> {
    let machines = play.fleet.machines();
    let latches: Vec<_> =
        play.fleet.record().map_or_else(Vec::new, |r| r.open_latches().map(|(id, l)| (id, l.clone())).collect());
    let first = runs.first();
    let name = first.map_or("", |r| r.node.as_str());
    let failed = [Some(Exit::FailedOut.code()), Some(Exit::FailedBack.code())];
    let refused = |r: &Run| {
        let clear = latches.first().is_some_and(|(id, _)| {
            let how = format!("latch clear {id}");
            r.message.contains(id.as_str()) && r.next.as_deref().is_some_and(|n| n.contains(&how))
        });
        r.exit == Some(Exit::Latched.code()) && r.message.contains(name) && r.message.contains("check") && clear
    };
    let others = runs.get(1..).unwrap_or_default();
    let untouched = machines.iter().skip(1).all(|m| m.reboots() == 0 && patched(m) == 0);
    vec![
        Promise::of(
            "run one fails, and is told that its node is out",
            first.is_some_and(|r| failed.contains(&r.exit)),
            format!("exit {}", exits(runs)),
        ),
        Promise::of(
            "its failure latches",
            latches.len() == 1 && latches.iter().all(|(_, l)| l.node.as_str() == name),
            latches.iter().map(|(id, l)| format!("{id} {} {}", l.node, l.stage)).collect::<Vec<_>>().join(", "),
        ),
        Promise::of(
            "its node comes back by itself when the fault ends",
            machines.first().is_some_and(|m| play.fleet.serves(m)),
            machines.first().map_or_else(String::new, |m| play.fleet.target_state(m).0),
        ),
        Promise::of(
            "runs two and three are refused: by whom, why, how to clear",
            others.len() == 2 && others.iter().all(refused),
            others.first().map_or_else(String::new, |r| r.message.clone()),
        ),
        Promise::of("the other two were not touched", untouched, String::new()),
    ]
}
