//! What Prometheus and its like are told. `table` names every metric, `readings` turns what the agent knows into values,
//! `counted` counts the calls of every port, `text` is the exposition format, `serve` answers scrapes.
//!
//! Unknown is absent, never 0: a value that is old or was never read has no series, and the rules in config/prometheus
//! take an absent series for bad news. Labels take few values, none of them a node's name or a message.

mod counted;
pub mod readings;
pub mod serve;
pub mod table;
mod text;

pub use counted::Counted;
pub use readings::{Facts, Readings, Sights};
pub use table::{Metric, markdown};

use crate::core::cycle::Durable;
use crate::core::error::Class;
use crate::core::guard::Verdicts;
use crate::core::time::Now;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// A label with its value.
type Label = (&'static str, &'static str);

/// Upper bounds of how long stages take, in seconds: from a claim to the longest job.
const STAGE_BOUNDS_S: [f64; 13] =
    [0.5, 1.0, 2.5, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0];

/// What only counts up. Cheap to clone; all clones are the same.
#[derive(Clone, Debug)]
pub struct Metrics {
    cycles: Family<[Label; 1], Counter>,
    stages: Family<[Label; 1], Histogram, fn() -> Histogram>,
    refusals: Family<[Label; 1], Counter>,
    calls: Family<[Label; 3], Counter>,
    panics: Family<[Label; 1], Counter>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let histogram: fn() -> Histogram = || Histogram::new(STAGE_BOUNDS_S);
        Metrics {
            cycles: Family::default(),
            stages: Family::new_with_constructor(histogram),
            refusals: Family::default(),
            calls: Family::default(),
            panics: Family::default(),
        }
    }
}

impl Metrics {
    /// A step of the loop changed the state from `before` to `after`.
    pub fn stepped(&self, before: &Durable, after: &Durable, now: &Now) {
        if let Some(c) = before.cycle.as_ref().filter(|_| before.stage() != after.stage()) {
            let stage = [("stage", c.stage.name().label())];
            self.stages.get_or_create(&stage).observe(seconds(now.roughly_since(&c.entered)));
        }
        if let Some(ended) = after.last.as_ref().filter(|_| after.last != before.last) {
            self.cycles.get_or_create(&[("result", ended.exit.label())]).inc();
        }
    }

    /// The guards were looked at for a cycle.
    pub fn judged(&self, verdicts: &Verdicts) {
        for v in verdicts.0.iter().filter(|v| v.blocks()) {
            self.refusals.get_or_create(&[("guard", v.guard.label())]).inc();
        }
    }

    /// A part of the agent ended in a panic.
    pub fn panicked(&self, part: &'static str) {
        self.panics.get_or_create(&[("part", part)]).inc();
    }

    /// A call came to this.
    pub(crate) fn called(&self, dependency: &'static str, operation: &'static str, class: &'static str) {
        self.calls.get_or_create(&[("dependency", dependency), ("operation", operation), ("class", class)]).inc();
    }

    /// Everything, as a scrape gets it.
    pub fn expose(&self, fleet: &str, readings: Readings) -> String {
        let mut registry = Registry::with_labels(std::iter::once((table::FLEET.into(), fleet.to_owned().into())));
        counter(&mut registry, &table::CYCLES, &self.cycles);
        registry.register(table::STAGE_DURATION.name, unstopped(&table::STAGE_DURATION), self.stages.clone());
        counter(&mut registry, &table::GUARD_REFUSALS, &self.refusals);
        counter(&mut registry, &table::CALLS, &self.calls);
        counter(&mut registry, &table::PANICS, &self.panics);
        registry.register_collector(Box::new(readings));
        text::encoded(&registry)
    }
}

/// The registry writes the `_total` of a counter's samples itself.
fn counter<const N: usize>(registry: &mut Registry, metric: &Metric, family: &Family<[Label; N], Counter>) {
    let name = metric.name.strip_suffix("_total").unwrap_or(metric.name);
    registry.register(name, unstopped(metric), family.clone());
}

/// The registry ends a help text with a full stop itself.
fn unstopped(metric: &Metric) -> &'static str {
    metric.help.trim_end_matches('.')
}

/// The label of a call that failed so.
fn class(class: Class) -> &'static str {
    class.label()
}

/// The label of a call that was answered as it should be.
const OK: &str = "ok";

#[expect(clippy::cast_precision_loss, reason = "milliseconds since 1970 fit into 53 bits for 285 000 years")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
