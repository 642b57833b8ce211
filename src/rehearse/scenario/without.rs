//! The same faults without backstop: three runs of the automation of the incident, one after another.

use super::{Play, Played, Promise, Run, Scenario, patch};
use crate::rehearse::pace;
use crate::rehearse::timeline::EventKind;
use crate::rehearse::unguarded::Automation;
use anyhow::Context as _;

/// Between two runs, simulated. In the incident it was hours; nothing but time passed.
const BETWEEN_MS: u64 = 60_000;
/// What follows the last run, simulated: nobody comes.
const AFTER_MS: u64 = 180_000;

pub(super) async fn play(play: &mut Play<'_>) -> anyhow::Result<Played> {
    let stuck = play.options.scenario == Scenario::Incident { stuck: true };
    let starts = patch::faults(play, stuck);
    let mut runs = Vec::new();
    let group = play.fleet.groups().first().context("no target group")?.clone();
    for (machine, start) in play.fleet.machines().iter().zip(starts) {
        machine.next_starts([start]);
        let (watch, origin) = (play.watch.clone(), play.fleet.origin());
        let name = machine.name();
        let say = |kind: EventKind, text: &str| watch.note(origin.simulated_ms(), name, kind, text);
        let automation = Automation { api: play.fleet.api(), group: &group, machine, origin };
        let ended = automation.run(&|text| say(EventKind::Cycle, text)).await;
        let (exit, message) = match ended {
            Ok(()) => (0, "done".to_owned()),
            Err(error) => {
                say(EventKind::Failure, &format!("the run dies after deregister, before register: {error}"));
                (1, error)
            }
        };
        runs.push(Run { node: name.to_owned(), exit: Some(exit), message, next: None, cycle: None });
        pace::sleep(origin.real(BETWEEN_MS)).await;
    }
    let failed_before = play.fleet.data_plane().counters().no_target;
    pace::sleep(play.fleet.origin().real(AFTER_MS)).await;
    let failed = play.fleet.data_plane().counters().no_target;
    let running = play.fleet.machines().iter().filter(|m| m.node_pid().is_some()).count();
    let registered: usize = play.fleet.groups().iter().map(|arn| play.fleet.elbv2().rows(arn).len()).sum();
    let deaths = runs.iter().map(|r| r.message.as_str()).collect::<Vec<_>>().join("; ");
    let promises = vec![
        Promise::of("each run dies between deregister and register", runs.iter().all(|r| r.exit == Some(1)), deaths),
        Promise::of("all three nodes run", running == runs.len(), format!("{running} of {}", runs.len())),
        Promise::of("the load balancer ends empty", registered == 0, format!("{registered} registered")),
        Promise::of("requests fail with 503", failed > failed_before, format!("{failed} of them")),
        Promise::of("nobody was paged", play.fleet.receiver().received().is_empty(), ""),
    ];
    let notes = vec![
        "This is NOT backstop: it re-creates the automation of the incident, which deregisters a node, patches it, waits with a"
            .to_owned(),
        "retry that knows refused connections and timeouts, and registers it. \"kept\" means: it ended as the incident did."
            .to_owned(),
    ];
    Ok(Played { runs, promises, notes, ..Played::default() })
}
