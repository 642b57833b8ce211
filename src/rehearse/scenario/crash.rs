//! `crash`: SIGKILL of the agent at a random moment of every cycle; it is started again as systemd would.

use super::{Kill, Play, Played, Promise};
use crate::control::protocol::{ClearRequest, RunReply};
use crate::core::cycle::StageName;
use crate::core::ids::InstanceId;
use crate::core::job::RebootPolicy;
use crate::rehearse::fleet::{FleetOptions, Machine, NodeStart, patch_request};
use crate::rehearse::pace;
use crate::rehearse::timeline::EventKind;
use anyhow::{Context as _, bail};
use std::time::Duration;

/// Stages that a kill is aimed at.
const STAGES: [StageName; 9] = [
    StageName::Claim,
    StageName::Deregister,
    StageName::Drain,
    StageName::Patch,
    StageName::Reboot,
    StageName::Check,
    StageName::Register,
    StageName::Settle,
    StageName::Release,
];
/// The kill comes fewer than so many looks after the stage was seen: some stages are over in a few milliseconds.
const LOOKS: [u64; 3] = [2, 8, 40];
/// One of so many jobs fails: its cycle is killed on the way back of a failure.
const FAILS_ONE_OF: u64 = 5;
/// Between two looks at the state on disk (real).
const LOOK: Duration = Duration::from_millis(1);
/// systemd's `RestartSec=`, simulated.
const RESTART_MS: u64 = 5_000;
/// Longest wait (real) for anything.
const BOUND: Duration = Duration::from_mins(1);

/// Rate and budget are lifted, and waits are short: it is the stages that matter.
pub(super) fn prepare(fleet: &mut FleetOptions) {
    for group in &mut fleet.groups {
        group.deregistration_delay_s = 30;
    }
    fleet.restart = NodeStart { refused_ms: 4_000, not_joined_ms: 4_000, ..NodeStart::AT_ONCE };
    fleet.off_ms = 2_000;
    "[limits]\ncycles_per_hour = 1000000\ncycles_per_day = 1000000\n\
                    [drain]\nquiet = \"2s\"\n[check]\nover = \"4s\"\nevery = \"1s\"\n[settle]\nbake = \"5s\"\n"
        .clone_into(&mut fleet.config);
}

pub(super) async fn play(play: &mut Play<'_>, cycles: u32) -> anyhow::Result<Played> {
    let mut kills = Vec::new();
    let mut cleared = 0_usize;
    for number in 1..=cycles {
        let at = play.random.below(u64::try_from(play.fleet.machines().len()).unwrap_or(0));
        let machine = play.fleet.machine(usize::try_from(at).unwrap_or(0))?.clone();
        let aimed = *play.random.of(&STAGES).unwrap_or(&StageName::Claim);
        let spread = *play.random.of(&LOOKS).unwrap_or(&1);
        let aim = Aim { stage: aimed, looks: play.random.below(spread), fails: play.random.below(FAILS_ONE_OF) == 0 };
        let kill = one(play, number, &machine, aim).await?;
        kills.push(kill);
        cleared = cleared.saturating_add(clear_latches(play, &machine).await?);
        all_idle(play).await?;
    }
    let lost = kills.iter().filter(|k| !k.back).count();
    let promises = vec![Promise::of(
        "every node is back after every kill, its slot freed",
        lost == 0 && u32::try_from(kills.len()) == Ok(cycles),
        format!("{} kills, {lost} not back", kills.len()),
    )];
    let notes =
        vec![format!("{cleared} cycles failed, latched and were cleared by the rehearsal; a failed cycle pages.")];
    Ok(Played { kills, promises, notes, pages: Some(cleared), ..Played::default() })
}

/// When the kill comes, and what for a job it meets.
#[derive(Clone, Copy, Debug)]
struct Aim {
    stage: StageName,
    looks: u64,
    fails: bool,
}

/// One cycle with its kill.
async fn one(play: &Play<'_>, number: u32, machine: &Machine, aim: Aim) -> anyhow::Result<Kill> {
    // Where a restart is aimed at, there must be one; elsewhere a third goes without.
    let never = number.checked_rem(3) == Some(0) && aim.stage != StageName::Reboot;
    let reboot = if never { RebootPolicy::Never } else { RebootPolicy::Always };
    let command = if aim.fails { "sleep 0.05; echo no; exit 1" } else { "sleep 0.05; echo patched" };
    let request = patch_request(&format!("patch-{number}"), &["sh", "-c", command], reboot);
    let Aim { stage: aimed, looks, .. } = aim;
    let asking = machine.clone();
    // The answer may be lost with the agent: the record and the state tell what became of it.
    let asked = pace::Task::start(async move {
        let _: Result<RunReply, _> = asking.run(&request).await;
    });
    let before = machine.durable().and_then(|d| d.last).map(|e| e.cycle);
    let reached = |d: &crate::core::cycle::Durable| match &d.cycle {
        Some(c) => c.stage.name() >= aimed,
        None => d.last.as_ref().map(|e| &e.cycle) != before.as_ref(),
    };
    let start = pace::now();
    while !machine.durable().is_some_and(|d| reached(&d)) {
        if pace::now().saturating_duration_since(start) >= BOUND {
            bail!("cycle {number} on {} did not reach {aimed}:\n{}", machine.name(), machine.agent_log());
        }
        pace::sleep(LOOK).await;
    }
    for _ in 0..looks {
        pace::sleep(LOOK).await;
    }
    machine.kill_agent().await;
    drop(asked);
    let stage = machine.durable().and_then(|d| d.stage()).map_or("idle", StageName::label);
    let text = format!("agent killed in {stage} (aimed at {aimed} + {looks})");
    play.watch.note(play.fleet.origin().simulated_ms(), machine.name(), EventKind::World, &text);
    pace::sleep(play.fleet.origin().real(RESTART_MS)).await;
    machine.start_agent()?;
    let instance = InstanceId(machine.instance().into());
    let free = || play.fleet.record().is_some_and(|r| !r.slots.contains_key(&instance));
    let idle = || machine.durable().is_none_or(|d| d.cycle.is_none());
    let back = pace::until(BOUND, || play.fleet.serves(machine) && free() && idle()).await;
    let exit = machine.durable().and_then(|d| d.last).filter(|e| Some(&e.cycle) != before.as_ref());
    Ok(Kill {
        number,
        node: machine.name().to_owned(),
        aimed: aimed.label().to_owned(),
        looks,
        stage: stage.to_owned(),
        exit: exit.map(|e| e.exit.code()),
        back,
    })
}

/// A failed cycle is looked at, as a person would; how many there were.
async fn clear_latches(play: &Play<'_>, machine: &Machine) -> anyhow::Result<usize> {
    let Some(record) = play.fleet.record() else { return Ok(0) };
    let mut cleared = 0_usize;
    for (id, _) in record.open_latches() {
        machine.wait_sees(play.fleet.machines().len(), BOUND).await?;
        let request =
            ClearRequest { latch: id.to_string(), reason: "the rehearsal has looked".to_owned(), unresolved: false };
        let done = machine.client().latch_clear(&request).await.context("latch clear")?;
        if done.exit != 0 {
            bail!("latch clear {id}: {}", done.message);
        }
        cleared = cleared.saturating_add(1);
    }
    Ok(cleared)
}

/// Every agent answers, has no cycle, and sees the whole fleet in service: the next cycle may start.
async fn all_idle(play: &Play<'_>) -> anyhow::Result<()> {
    for machine in play.fleet.machines() {
        machine.wait_idle(BOUND).await?;
        machine.wait_sees(play.fleet.machines().len(), BOUND).await?;
    }
    Ok(())
}
