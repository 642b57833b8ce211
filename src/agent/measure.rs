//! What the agent knows, as metrics: gathered for each scrape from memory alone, and written to a file for
//! `node_exporter` where config says so.

use super::seldom::Seldom;
use super::shared::{Shared, World};
use crate::bounded::blocking;
use crate::clock::Clock;
use crate::config::Mode;
use crate::core::time::Now;
use crate::metrics::{Facts, Readings, Sights};
use crate::state::files::replace_public;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Between two writes of the file, in ms.
const FILE_EVERY_MS: u64 = 15_000;
/// A report of reconcile is good for so long, or for four looks, in ms.
const REPORT_MAX_MS: u64 = 120_000;
/// One write of it.
const FILE_WAIT: Duration = Duration::from_secs(5);

/// What only the metrics want to remember.
#[derive(Debug)]
pub struct Measure {
    started_ms: u64,
    sights: Mutex<Sights>,
}

impl Measure {
    /// Of an agent that starts now.
    pub fn new(now: &Now) -> Measure {
        Measure { started_ms: now.wall_ms, sights: Mutex::default() }
    }
}

/// The whole exposition. Never waits for anything.
pub fn expose<W: World>(shared: &Shared<W>) -> String {
    let now = shared.clock.now();
    let parts = shared.parts();
    let node = shared.node.borrow().clone();
    let seen = shared.observed.borrow().clone();
    let sights = {
        let mut sights = shared.measure.sights.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((record, _)) = &seen.record {
            sights.look(record, &now);
        }
        sights.clone()
    };
    // Before the first look nothing has been judged, and what was judged long ago tells nothing of now.
    let report = (seen.looks > 0).then(|| shared.report.borrow().clone());
    let limit = REPORT_MAX_MS.max(parts.config.reconcile.every_ms.saturating_mul(4));
    let report = report.filter(|r| now.since(&r.1).is_some_and(|ms| ms <= limit));
    let readings = Readings::of(&Facts {
        now: &now,
        started_ms: shared.measure.started_ms,
        mode: if parts.config.mode == Mode::Act { "act" } else { "observe" },
        groups: &parts.groups(),
        minimum_healthy: parts.config.minimum_healthy,
        minimum_during_patch: parts.config.minimum_during_patch,
        durable: &node.durable,
        polls: &seen.polls,
        own: &seen.own,
        own_at: seen.own_at.as_ref(),
        fleet: seen.fleet.as_ref(),
        record: seen.record.as_ref().map(|(record, at)| (record, at)),
        members: seen.members.as_ref().map(|(members, at)| (members.len(), at)),
        sights: &sights,
        report: report.as_ref().map(|r| &r.0),
        undelivered: shared.book().undelivered(),
        turns: &shared.turns.last(),
    });
    shared.metrics.expose(parts.config.fleet.as_str(), readings)
}

/// Writes the exposition to a file again and again. A directory that refuses is logged now and then, and waited for by
/// nobody else.
pub async fn write_file<W: World>(shared: Arc<Shared<W>>, path: PathBuf) {
    let mut log = Seldom::default();
    loop {
        let (to, text) = (path.clone(), expose(&shared));
        let written = blocking(FILE_WAIT, move || replace_public(&to, text.as_bytes())).await;
        match written.and_then(|done| done.map_err(|e| e.to_string())) {
            Ok(()) => {
                if log.over() {
                    tracing::info!(path = %path.display(), "metrics.textfile is written again");
                }
            }
            Err(why) => {
                if let Some(times) = log.due(&shared.clock.now()) {
                    tracing::warn!(why, times, path = %path.display(), "metrics.textfile cannot be written");
                }
            }
        }
        shared.clock.sleep_ms(FILE_EVERY_MS).await;
    }
}
