//! `patch-all` behind another ELBv2 endpoint than the embedded one: an emulator on this machine. What only the embedded one
//! has is left out: traffic, health checks, drain, and with them the promises about requests and about nodes in service
//! as clients see them. The agents' own view takes their place.

use super::watch::Watch;
use super::{MINIMUM, Options, Play, Played, Promise, Report, fleet_options, patch};
use crate::core::settings::TargetType;
use crate::core::target::{GroupArn, Target};
use crate::elbv2::{Elb, ElbSettings, ElbTimeouts};
use crate::ports::LoadBalancer as _;
use crate::rehearse::fleet::Fleet;
use crate::rehearse::live::Audience;
use crate::rehearse::pace;
use anyhow::{Context as _, bail};
use aws_sdk_elasticloadbalancingv2::config::Credentials;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait (real) until all agents see the fleet behind the other endpoint.
const READY: Duration = Duration::from_mins(1);

/// Where the load balancer is instead.
#[derive(Clone, Debug)]
pub struct Elsewhere {
    /// Its API: `http://` on loopback.
    pub endpoint: String,
    /// A target group of addresses (type `ip`, port 9200) in it. The three nodes' loopback addresses are registered there.
    pub group: String,
}

/// Plays `patch-all` there.
///
/// # Errors
/// The endpoint does not answer as ELBv2, the group is not one of addresses, or something takes impossibly long.
pub(super) async fn play(options: &Options, there: &Elsewhere, audience: &mut dyn Audience) -> anyhow::Result<Report> {
    let begun = pace::now();
    let fleet = Fleet::start(fleet_options(options)).await?;
    let title = format!("backstop rehearse {} behind {}", options.name(), there.endpoint);
    audience.line(&format!("{title}: no traffic, health checks or drain there, so nothing is said about requests"));
    move_to(&fleet, there).await?;
    let watch = Watch::start(&fleet, &title, MINIMUM);
    let random = super::random::Random::new(options.seed);
    let mut play = Play { options, fleet: &fleet, watch: watch.control(), random };
    let played = patch::play(&mut play, None).await?;
    watch.settle().await;
    let mut promises = played.promises.clone();
    promises.extend(common(&fleet, &played).await);
    let timeline = watch.control().timeline();
    drop(watch);
    drop(fleet);
    Ok(Report {
        name: options.name(),
        title,
        seed: options.seed,
        scale: options.scale,
        wall_ms: u64::try_from(pace::now().saturating_duration_since(begun).as_millis()).unwrap_or(u64::MAX),
        faithful: false,
        notes: played.notes,
        promises,
        runs: played.runs,
        kills: Vec::new(),
        failures: std::collections::BTreeMap::new(),
        timeline,
        told: false,
    })
}

/// The three nodes are registered there, and all agents look there from now on.
async fn move_to(fleet: &Fleet, there: &Elsewhere) -> anyhow::Result<()> {
    let region: Arc<str> = there.group.split(':').nth(3).context("--group is no ARN of a target group")?.into();
    let settings =
        ElbSettings { region, endpoint_url: Some(there.endpoint.as_str().into()), timeouts: ElbTimeouts::default() };
    let keys = Credentials::new("rehearsal", "rehearsal", None, None, "rehearsal");
    let elb = Elb::with_credentials(&settings, keys).await;
    let group = GroupArn(there.group.as_str().into());
    let facts = elb.group(&group).await.map_err(|f| anyhow::anyhow!("{}: {f}", there.endpoint))?;
    if facts.target_type != TargetType::Ip {
        bail!("{} is no group of addresses: the nodes of a rehearsal have nothing but loopback addresses", there.group);
    }
    for machine in fleet.machines() {
        machine.terminate_agent().await;
        let id = machine.address().ip().to_string();
        let target = Target { group: group.clone(), id: id.as_str().into(), port: machine.address().port() };
        elb.register(&target).await.map_err(|f| anyhow::anyhow!("registering {target}: {f}"))?;
        machine.configure(&format!(
            "[elbv2]\nendpoint_url = {:?}\nregister_probe = false\n[[target_group]]\narn = {:?}\nid = {id:?}\nport = {}\n",
            there.endpoint,
            there.group,
            target.port
        ));
        machine.start_agent()?;
    }
    for machine in fleet.machines() {
        machine.wait_sees(fleet.machines().len(), READY).await?;
    }
    Ok(())
}

async fn common(fleet: &Fleet, played: &Played) -> Vec<Promise> {
    let all = fleet.machines().len();
    let mut seen = Vec::new();
    for machine in fleet.machines() {
        seen.push(machine.wait_sees(all, READY).await.is_ok());
    }
    let agree = seen.iter().filter(|s| **s).count();
    let slots = fleet.record().map(|r| r.slots.len());
    let pages = fleet.receiver().accepted().len();
    vec![
        Promise::of(
            "every agent sees every node in service at the end",
            agree == all,
            format!("{agree} of {all} agents"),
        ),
        Promise::of("no slot is left", slots == Some(0), slots.map_or("no record".to_owned(), |n| format!("{n} left"))),
        Promise::of("nobody was paged", Some(pages) == played.pages, format!("{pages} delivered")),
    ]
}
