//! Scenarios: what is played on a rehearsed fleet, and what it promises.

mod crash;
mod drift;
mod elsewhere;
mod keep;
mod patch;
mod random;
mod report;
pub mod watch;
mod without;

pub use elsewhere::Elsewhere;
#[cfg(test)]
pub(crate) use patch::UNKNOWN_TO_AUTOMATION;
pub(crate) use patch::{RUN_JSON, RUN_LOG};
pub use report::{Kill, Promise, Report, Run};

use super::fleet::{Cluster, Fleet, FleetOptions};
use super::live::{Audience, Live};
use super::pace;
use super::receiver::Received;
use super::traffic::Totals;
use anyhow::Context as _;
use random::Random;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use watch::{Watch, WatchControl};

/// Requests per real second.
const RATE_PER_S: u32 = 100;
/// Width of a slice of requests, simulated.
const SLICE_MS: u64 = 5_000;
/// Traffic before and after what is played, simulated.
const AROUND_MS: u64 = 30_000;
/// The record is waited for so long at the end (real).
const RECORD: Duration = Duration::from_secs(5);
/// Nodes of the fleet.
const NODES: usize = 3;
/// Never fewer than so many of them may be in service.
const MINIMUM: usize = NODES - 1;

/// What is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// Three nodes are patched, asked for at the same moment.
    PatchAll,
    /// The same, while connections to each restarted node fail in a way that nobody was told about.
    Incident {
        /// On the first node it outlasts the check's deadline.
        stuck: bool,
    },
    /// Another hand deregisters a node, and later the whole group.
    Drift,
    /// The agent is killed at a random moment of each cycle.
    Crash {
        /// So many.
        cycles: u32,
    },
}

/// How it is played.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `backstop` program.
    pub program: PathBuf,
    /// What.
    pub scenario: Scenario,
    /// With the automation of the incident instead.
    pub without_backstop: bool,
    /// Decides on faults and kills.
    pub seed: u64,
    /// Simulated seconds in a real one.
    pub scale: u32,
    /// Behind another load balancer than the embedded one: `patch-all` only.
    pub elsewhere: Option<Elsewhere>,
    /// With the nodes of a real cluster, and the record in it: one of its HTTP addresses. `patch-all` only.
    pub cluster: Option<String>,
    /// Where configs, states and logs are kept.
    pub keep: Option<PathBuf>,
}

impl Options {
    /// As the command line says it.
    pub fn name(&self) -> String {
        let name = match self.scenario {
            Scenario::PatchAll => "patch-all",
            Scenario::Incident { stuck: false } => "incident",
            Scenario::Incident { stuck: true } => "incident --stuck",
            Scenario::Drift => "drift",
            Scenario::Crash { .. } => "crash",
        };
        if self.without_backstop { format!("{name} --without-backstop") } else { name.to_owned() }
    }
}

/// A seed that was not there before; small, so that it can be typed.
pub fn new_seed() -> u64 {
    let (high, _) = uuid::Uuid::new_v4().as_u64_pair();
    high >> 44
}

/// What a scenario leaves to tell.
#[derive(Debug, Default)]
struct Played {
    runs: Vec<Run>,
    kills: Vec<Kill>,
    /// Pages that belong to the story.
    pages: Option<usize>,
    /// About the scenario itself; the common ones are added.
    promises: Vec<Promise>,
    notes: Vec<String>,
    /// The nodes are taken out by another hand: what requests see of it is not backstop's promise.
    drift: bool,
}

/// What a scenario works with.
struct Play<'a> {
    options: &'a Options,
    fleet: &'a Fleet,
    watch: WatchControl,
    random: Random,
}

/// Plays it.
///
/// # Errors
/// The world cannot be set up, or something in it takes impossibly long. A broken promise is no error.
pub async fn play(options: &Options, audience: &mut dyn Audience) -> anyhow::Result<Report> {
    if let Some(there) = &options.elsewhere {
        return elsewhere::play(options, there, audience).await;
    }
    let begun = pace::now();
    let mut set_up = fleet_options(options);
    if let Some(url) = &options.cluster {
        set_up.cluster = Some(Cluster::find(url).await?);
    }
    let mut fleet = Fleet::start(set_up).await?;
    let traffic = fleet.start_traffic(RATE_PER_S, SLICE_MS);
    let at = options.cluster.as_ref().map_or_else(|| format!("(seed {})", options.seed), |url| format!("with {url}"));
    let title = format!("backstop rehearse {} {at}", options.name());
    let minimum = fleet.machines().len().saturating_sub(1);
    let watch = Watch::start(&fleet, &title, minimum);
    let live = Live { title: title.clone(), fleet: &fleet, traffic, watch: watch.control() };
    audience.line(&title);
    let played = live
        .during(audience, async {
            pace::sleep(fleet.origin().real(AROUND_MS)).await;
            let random = Random::new(options.seed);
            let mut play = Play { options, fleet: &fleet, watch: watch.control(), random };
            let played = match options.scenario {
                _ if options.without_backstop => without::play(&mut play).await,
                Scenario::PatchAll => patch::play(&mut play, None).await,
                Scenario::Incident { stuck } => patch::play(&mut play, Some(stuck)).await,
                Scenario::Drift => drift::play(&mut play).await,
                Scenario::Crash { cycles } => crash::play(&mut play, cycles).await,
            };
            pace::sleep(fleet.origin().real(AROUND_MS)).await;
            watch.settle().await;
            played
        })
        .await;
    if played.is_err() {
        keep_pages(options, &fleet)?;
    }
    let played = played?;
    let totals = fleet.stop_traffic().await.unwrap_or_default();
    // Of a cluster it is what the last read said, and one read may have failed.
    if options.cluster.is_some() {
        pace::until(RECORD, || fleet.record().is_some()).await;
    }
    let mut about_fleet =
        if options.without_backstop { Vec::new() } else { common(&fleet, &watch.control(), &totals, &played) };
    if options.cluster.is_some() {
        about_fleet.push(left(&mut fleet).await);
    }
    let mut report = Report {
        name: options.name(),
        title,
        seed: options.seed,
        scale: options.scale,
        wall_ms: 0,
        faithful: options.without_backstop,
        notes: played.notes.clone(),
        promises: played.promises.clone(),
        runs: played.runs.clone(),
        kills: played.kills.clone(),
        failures: totals.by_failure().into_iter().map(|(what, n)| (what.to_owned(), n)).collect(),
        timeline: watch.control().timeline(),
        told: !audience.wants_screens(),
    };
    report.timeline.traffic(&totals, SLICE_MS);
    report.promises.extend(about_fleet);
    drop(watch);
    keep_pages(options, &fleet)?;
    drop(fleet);
    report.wall_ms = u64::try_from(pace::now().saturating_duration_since(begun).as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

/// Also of a play that came to nothing: they tell why.
fn keep_pages(options: &Options, fleet: &Fleet) -> anyhow::Result<()> {
    if options.keep.is_some() {
        keep::pages(fleet.dir(), &fleet.receiver().received()).context("the pages cannot be kept")?;
    }
    Ok(())
}

/// The agents are ended, and with them goes what they have put into a real cluster.
async fn left(fleet: &mut Fleet) -> Promise {
    let left = fleet.leave().await;
    let seen = left.as_ref().map_or_else(ToString::to_string, |_| "removed".to_owned());
    Promise::of("the cluster is left without the rehearsal's index", left.is_ok(), seen)
}

fn fleet_options(options: &Options) -> FleetOptions {
    let mut fleet = FleetOptions::new(&options.program);
    (fleet.scale, fleet.nodes, fleet.agents) = (options.scale, NODES, !options.without_backstop);
    fleet.keep.clone_from(&options.keep);
    match options.scenario {
        Scenario::Crash { .. } => crash::prepare(&mut fleet),
        Scenario::Drift => drift::prepare(&mut fleet),
        Scenario::PatchAll | Scenario::Incident { .. } => {}
    }
    fleet
}

/// What backstop promises in every scenario.
fn common(fleet: &Fleet, watch: &WatchControl, totals: &Totals, played: &Played) -> Vec<Promise> {
    let lowest = watch.timeline().lowest().map_or(0, |s| s.nodes);
    let minimum = fleet.machines().len().saturating_sub(1);
    let record = fleet.record();
    let slots = record.as_ref().map(|r| r.slots.len());
    // A page that was accepted right before a kill is sent again, under the same id.
    let accepted = fleet.receiver().accepted();
    let id = |page: &Received| page.body.get("id").and_then(|id| id.as_str()).map(str::to_owned);
    let pages = accepted.iter().map(id).collect::<BTreeSet<_>>().len();
    let mut promises = vec![
        Promise::of(
            "no request failed",
            totals.failed() == 0 && totals.ok > 0 && totals.not_sent == 0,
            format!("{} answered, {} failed, {} not sent", totals.ok, totals.failed(), totals.not_sent),
        ),
        Promise::of(&format!("never fewer than {minimum} in service"), lowest >= minimum, format!("lowest {lowest}")),
        Promise::of("one node out at a time", watch.most_slots() <= 1, format!("{} slots at most", watch.most_slots())),
        Promise::of(
            "every node is in service at the end",
            fleet.in_service() == fleet.machines().len(),
            format!("{} of {}", fleet.in_service(), fleet.machines().len()),
        ),
        Promise::of("no slot is left", slots == Some(0), slots.map_or("no record".to_owned(), |n| format!("{n} left"))),
    ];
    if played.drift {
        promises.drain(..2);
    }
    if let Some(expected) = played.pages {
        let promise = match expected {
            0 => "nobody was paged".to_owned(),
            1 => "exactly one page".to_owned(),
            n => format!("exactly {n} pages"),
        };
        promises.push(Promise::of(&promise, pages == expected, format!("{pages} delivered")));
    }
    promises
}
