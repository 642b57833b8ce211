//! `drift`: somebody else's hand. One node is deregistered behind everybody's back, and later the whole group.

use super::{Play, Played, Promise};
use crate::core::ids::InstanceId;
use crate::rehearse::fleet::{FleetOptions, Machine};
use crate::rehearse::pace;
use crate::rehearse::receiver::Received;
use crate::rehearse::timeline::EventKind;
use anyhow::bail;
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::Duration;

/// Longest wait (real) for anything.
const BOUND: Duration = Duration::from_mins(2);
/// A person hears of it within this, simulated.
const HEARD_MS: u64 = 60_000;
/// A fit node registers itself after this, simulated: the default of the product.
const HEALS_MS: u64 = 300_000;
/// Members that are new are given this time, simulated: nobody is paged about them before.
const GRACE_MS: u64 = 660_000;
/// An emptied fleet does not wait that long, simulated.
const REFILLS_MS: u64 = 180_000;

fn text<'a>(page: &'a Received, key: &str) -> &'a str {
    page.body.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// What the pager's receiving end knows.
struct Pager<'a>(&'a Play<'a>);

impl Pager<'_> {
    /// Pages and their ends.
    fn since(&self, at_ms: u64) -> Vec<Received> {
        self.0.fleet.receiver().received().into_iter().filter(|p| p.accepted && p.at_ms >= at_ms).collect()
    }

    /// Keys that were raised since then, each once.
    fn raised(&self, at_ms: u64) -> BTreeSet<String> {
        let raised = self.since(at_ms).into_iter().filter(|p| text(p, "event") == "trigger");
        raised.map(|p| text(&p, "key").to_owned()).collect()
    }

    /// Keys that were raised since then and are not resolved.
    fn open(&self, at_ms: u64) -> BTreeSet<String> {
        let mut open = BTreeSet::new();
        for page in self.since(at_ms) {
            match text(&page, "event") {
                "trigger" => open.insert(text(&page, "key").to_owned()),
                "resolve" => open.remove(text(&page, "key")),
                _ => false,
            };
        }
        open
    }

    fn first(&self, at_ms: u64) -> Option<Received> {
        self.since(at_ms).into_iter().find(|p| text(p, "event") == "trigger")
    }
}

/// Simulated ms from one moment to another, for people.
fn after(from_ms: u64, to_ms: Option<u64>) -> String {
    to_ms.map_or_else(|| "never".to_owned(), |to| format!("after {}", crate::words::span(to.saturating_sub(from_ms))))
}

async fn until(play: &Play<'_>, what: &str, done: impl Fn() -> bool) -> anyhow::Result<u64> {
    if pace::until(BOUND, done).await {
        return Ok(play.fleet.origin().simulated_ms());
    }
    let logs: Vec<String> = play.fleet.machines().iter().map(Machine::agent_log).collect();
    let told = |p: &Received| format!("{} {} {} at {}", text(p, "event"), text(p, "key"), p.accepted, p.at_ms);
    let pages: Vec<String> = play.fleet.receiver().received().iter().map(told).collect();
    bail!("it never came: {what}\n{}\n{}", pages.join("\n"), logs.join("\n"))
}

fn by_another_hand(play: &Play<'_>, machine: &Machine) {
    let fleet = play.fleet;
    for arn in fleet.groups() {
        fleet.elbv2().deregister_behind_back(arn, machine.instance(), machine.address().port());
    }
    let at = fleet.origin().simulated_ms();
    play.watch.note(at, machine.name(), EventKind::World, "deregistered by another hand");
}

/// Looks as often as on a real fleet: a minute holds two of them.
pub(super) fn prepare(fleet: &mut FleetOptions) {
    "[reconcile]\nevery = \"15s\"\n".clone_into(&mut fleet.config);
}

pub(super) async fn play(play: &mut Play<'_>) -> anyhow::Result<Played> {
    pace::sleep(play.fleet.origin().real(GRACE_MS)).await;
    let mut promises = one_node(play).await?;
    promises.extend(whole_group(play).await?);
    let slots = play.fleet.record().map_or(0, |r| r.slots.len());
    promises.push(Promise::of("no cycle was begun for it", slots == 0 && play.watch.most_slots() == 0, ""));
    Ok(Played { promises, drift: true, ..Played::default() })
}

async fn one_node(play: &Play<'_>) -> anyhow::Result<Vec<Promise>> {
    let machine = play.fleet.machine(1)?;
    let pager = Pager(play);
    let out = play.fleet.origin().simulated_ms();
    by_another_hand(play, machine);
    let noticed = until(play, "a page", || pager.first(out).is_some()).await?;
    let page = pager.first(out);
    let names = page.as_ref().is_some_and(|p| text(p, "text").contains(machine.name()));
    let registered = || matches!(play.fleet.target_state(machine).0.as_str(), "initial" | "healthy");
    let healed = until(play, "the node registers itself", registered).await?;
    until(play, "the node is in service", || play.fleet.serves(machine)).await?;
    let resolved = until(play, "the page is resolved", || pager.open(out).is_empty()).await?;
    let raised = pager.raised(out);
    let heard = page.map_or(noticed, |p| p.at_ms);
    let waited = healed.saturating_sub(out);
    Ok(vec![
        Promise::of(
            "one node: a person hears within a minute, by name",
            heard.saturating_sub(out) <= HEARD_MS && names,
            after(out, Some(heard)),
        ),
        Promise::of("one node: one page", raised.len() == 1, list(&raised)),
        Promise::of(
            "one node: it registers itself at its time",
            (HEALS_MS..HEALS_MS.saturating_mul(2)).contains(&waited),
            after(out, Some(healed)),
        ),
        Promise::of("one node: the page is resolved", true, after(out, Some(resolved))),
    ])
}

async fn whole_group(play: &Play<'_>) -> anyhow::Result<Vec<Promise>> {
    let pager = Pager(play);
    let empty = play.fleet.origin().simulated_ms();
    for machine in play.fleet.machines() {
        by_another_hand(play, machine);
    }
    until(play, "a page", || pager.first(empty).is_some()).await?;
    let all = play.fleet.machines().len();
    let back = until(play, "every node is back", || play.fleet.in_service() == all).await?;
    let resolved = until(play, "the page is resolved", || pager.open(empty).is_empty()).await?;
    let raised = pager.raised(empty);
    let page = pager.first(empty);
    let worst = page.as_ref().is_some_and(|p| text(p, "kind") == "below-floor" && text(p, "severity") == "critical");
    let heard = page.as_ref().map(|p| p.at_ms);
    let settled = play.fleet.machines().iter().all(|m| {
        let id = InstanceId(m.instance().into());
        play.fleet.record().is_some_and(|r| !r.slots.contains_key(&id) && !r.holds.contains_key(&id))
    });
    Ok(vec![
        Promise::of(
            "emptied: a person hears within a minute",
            heard.is_some_and(|at| at.saturating_sub(empty) <= HEARD_MS),
            after(empty, heard),
        ),
        Promise::of("emptied: one page for the fleet, the most severe", raised.len() == 1 && worst, list(&raised)),
        Promise::of(
            "emptied: every node comes back without a human",
            settled && back.saturating_sub(empty) <= REFILLS_MS,
            after(empty, Some(back)),
        ),
        Promise::of("emptied: the page is resolved", true, after(empty, Some(resolved))),
    ])
}

fn list(keys: &BTreeSet<String>) -> String {
    keys.iter().cloned().collect::<Vec<_>>().join(", ")
}
