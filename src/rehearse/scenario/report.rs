//! What a scenario has to say for itself.

use crate::rehearse::timeline::Timeline;
use crate::words::short;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Version of the JSON object.
const VERSION: u32 = 1;
/// Characters of what was said or seen, where people read it; the JSON has all of it.
const SEEN_MAX: usize = 90;

/// One promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Promise {
    /// What was promised.
    pub promise: String,
    /// It held.
    pub kept: bool,
    /// What was seen.
    pub seen: String,
}

impl Promise {
    pub(super) fn of(promise: &str, kept: bool, seen: impl Into<String>) -> Promise {
        Promise { promise: promise.to_owned(), kept, seen: seen.into() }
    }
}

/// One run, as its caller saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Run {
    /// On which node.
    pub node: String,
    /// Its exit code; absent: it did not end by itself.
    pub exit: Option<u8>,
    /// What it said.
    pub message: String,
    /// The next command that it gave.
    pub next: Option<String>,
    /// Its cycle, where it began one.
    pub cycle: Option<String>,
}

/// One killing of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Kill {
    /// Number of the cycle, from 1.
    pub number: u32,
    /// Whose agent.
    pub node: String,
    /// The moment that was aimed at: this stage ...
    pub aimed: String,
    /// ... and so many looks later.
    pub looks: u64,
    /// The stage on disk right after the kill; `idle` where the cycle was over.
    pub stage: String,
    /// How the cycle ended: its exit code.
    pub exit: Option<u8>,
    /// The node came back and its slot was freed.
    pub back: bool,
}

/// The whole story.
#[derive(Clone, Debug)]
pub struct Report {
    /// As the command line says it.
    pub name: String,
    /// One line.
    pub title: String,
    /// Plays it again.
    pub seed: u64,
    /// Simulated seconds in a real one.
    pub scale: u32,
    /// Real time of everything, in ms.
    pub wall_ms: u64,
    /// It re-creates the incident: what is promised is that it goes wrong.
    pub faithful: bool,
    /// For people.
    pub notes: Vec<String>,
    /// All promises.
    pub promises: Vec<Promise>,
    /// The runs, in the order in which they were asked for.
    pub runs: Vec<Run>,
    /// The kills, in order.
    pub kills: Vec<Kill>,
    /// How often each failure of a request happened.
    pub failures: BTreeMap<String, u64>,
    /// What happened.
    pub timeline: Timeline,
    /// Its events were told as they happened, one after another: they are not told again at the end.
    pub told: bool,
}

impl Report {
    /// All promises held.
    pub fn kept(&self) -> bool {
        !self.promises.is_empty() && self.promises.iter().all(|p| p.kept)
    }

    /// For people, after the run.
    pub fn to_text(&self) -> String {
        let events = if self.told { String::new() } else { self.timeline.render_events() };
        let mut text = format!("\n{events}{}\n", self.timeline.summary());
        for (what, n) in &self.failures {
            writeln!(text, "  {n} requests: {what}").ok();
        }
        text.push('\n');
        for note in &self.notes {
            writeln!(text, "{note}").ok();
        }
        for run in &self.runs {
            let exit = run.exit.map_or_else(|| "none".to_owned(), |e| e.to_string());
            writeln!(text, "{}  exit {exit:<4}  {}", run.node, short(&run.message, SEEN_MAX)).ok();
            if let Some(next) = &run.next {
                writeln!(text, "{:width$}  Next       {next}", "", width = run.node.len()).ok();
            }
        }
        for k in &self.kills {
            let exit = k.exit.map_or_else(|| "none".to_owned(), |e| e.to_string());
            let back = if k.back { "back" } else { "NOT BACK" };
            writeln!(
                text,
                "kill {:>3}  {}  aimed at {:<10} + {:>2}, was in {:<10}  {back}, cycle's exit {exit}",
                k.number, k.node, k.aimed, k.looks, k.stage
            )
            .ok();
        }
        text.push('\n');
        let width = self.promises.iter().map(|p| p.promise.len()).max().unwrap_or(0);
        for p in &self.promises {
            writeln!(
                text,
                "{}  {:<width$}  {}",
                if p.kept { "kept  " } else { "BROKEN" },
                p.promise,
                short(&p.seen, SEEN_MAX)
            )
            .ok();
        }
        let verdict = match (self.kept(), self.faithful) {
            (true, false) => "All promises held.",
            (false, false) => "A promise was BROKEN.",
            (true, true) => "The re-creation is faithful: this is what backstop is there to prevent.",
            (false, true) => "The re-creation is NOT faithful: it did not end as the incident did.",
        };
        let seconds = self.wall_ms.div_euclid(1000);
        writeln!(text, "\n{verdict}  seed {}, {seconds} s at {} times the speed", self.seed, self.scale).ok();
        text
    }

    /// For programs. Fields are added, never renamed or removed.
    pub fn to_json(&self) -> Value {
        json!({
            "v": VERSION,
            "scenario": self.name,
            "seed": self.seed,
            "scale": self.scale,
            "wall_ms": self.wall_ms,
            "kept": self.kept(),
            "promises": self.promises,
            "notes": self.notes,
            "runs": self.runs,
            "kills": self.kills,
            "failures": self.failures,
            "timeline": self.timeline.to_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearse::timeline::EventKind;

    #[test]
    fn events_that_were_told_as_they_happened_are_not_told_again() {
        let mut timeline = Timeline::new("t", 3, 2);
        timeline.event(1_000, "es-client-1", EventKind::Cycle, "leaves the load balancer");
        let report = |told| Report {
            name: "patch-all".to_owned(),
            title: "t".to_owned(),
            seed: 1,
            scale: 60,
            wall_ms: 0,
            faithful: false,
            notes: Vec::new(),
            promises: Vec::new(),
            runs: Vec::new(),
            kills: Vec::new(),
            failures: BTreeMap::new(),
            timeline: timeline.clone(),
            told,
        };
        let times = |told| report(told).to_text().matches("leaves the load balancer").count();
        assert_eq!((times(false), times(true)), (1, 0));
        assert!(report(true).to_text().contains("Requests 0 answered"), "the sums are always told");
    }
}
