//! The one table of metrics: name, type, labels and meaning. What is exposed, docs/metrics.md and the check of rules
//! and dashboard all come from here, so they cannot disagree.

/// What a metric's values do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Goes up and down.
    Gauge,
    /// Only goes up, from 0 at each start of the agent.
    Counter,
    /// Counts by upper bounds.
    Histogram,
}

impl Type {
    /// As in the exposition.
    pub const fn label(self) -> &'static str {
        match self {
            Type::Gauge => "gauge",
            Type::Counter => "counter",
            Type::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Full name, as rules name it (a histogram's samples add `_bucket`, `_sum` and `_count`).
    pub name: &'static str,
    /// Its type.
    pub kind: Type,
    /// Its own labels, beside [`FLEET`], which all have. Each takes few values: those of an enum, or configured groups.
    pub labels: &'static [&'static str],
    /// What it means. One line, without backslashes, ends in a full stop.
    pub help: &'static str,
}

/// The label that every metric has.
pub const FLEET: &str = "fleet";

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Type::Gauge, labels, help }
}

const fn counter(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: Type::Counter, labels, help }
}

macro_rules! table {
    ($($constant:ident = $make:expr;)*) => {
        $(
            #[doc = "See its `help`."]
            pub const $constant: Metric = $make;
        )*
        /// All of them, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

table! {
    IN_SERVICE = gauge(
        "backstop_in_service",
        &[],
        "1: the own node is healthy in every configured target group; 0: in one of them it is not.",
    );
    TARGET_STATE = gauge(
        "backstop_target_state",
        &["group", "state"],
        "1 for the state that the own target has in this group, 0 for the others.",
    );
    HEALTHY_TARGETS = gauge(
        "backstop_healthy_targets",
        &["group"],
        "Targets of this group that are healthy, members or not.",
    );
    MEMBERS = gauge(
        "backstop_members",
        &[],
        "Members of the fleet: instances with an agent, by their documents.",
    );
    MEMBERS_IN_SERVICE = gauge(
        "backstop_members_in_service",
        &[],
        "Members that are healthy in every configured target group.",
    );
    MINIMUM_HEALTHY = gauge(
        "backstop_minimum_healthy",
        &[],
        "The number in service without which no cycle starts (config).",
    );
    MINIMUM_DURING_PATCH = gauge(
        "backstop_minimum_during_patch",
        &[],
        "The number that must stay in service while a node is out (config).",
    );
    PLANNED_ABSENCE = gauge(
        "backstop_planned_absence",
        &[],
        "Members out of service whose slot or hold explains it, within its time.",
    );
    OWN_ABSENCE_PLANNED = gauge(
        "backstop_own_absence_planned",
        &[],
        "1: a patch or hold of the own node is under way and none of its way back's deadlines has passed.",
    );
    RUNNING_NOT_REGISTERED = gauge(
        "backstop_running_not_registered",
        &[],
        "Client nodes that run and whose target a group does not know, unless that is planned.",
    );
    FINDINGS = gauge(
        "backstop_findings",
        &["kind"],
        "Differences between what should be and what is, by the last look.",
    );
    CYCLE_STAGE = gauge(
        "backstop_cycle_stage",
        &["stage"],
        "1 for the stage that the own cycle is in, 0 for the others; all 0 while idle.",
    );
    CYCLES = counter(
        "backstop_cycles_total",
        &["result"],
        "Cycles of the own node that ended, by how.",
    );
    STAGE_DURATION = Metric {
        name: "backstop_stage_duration_seconds",
        kind: Type::Histogram,
        labels: &["stage"],
        help: "How long the own node's cycles stayed in each stage.",
    };
    LATCHED = gauge(
        "backstop_latched",
        &[],
        "Latches of the fleet that nobody has cleared; any blocks patching everywhere.",
    );
    SLOTS_HELD = gauge(
        "backstop_slots_held",
        &[],
        "Slots of the fleet that are taken.",
    );
    SLOTS_OVERDUE = gauge(
        "backstop_slots_overdue",
        &[],
        "Slots that are held for longer than their budget, counted from this agent's first sight.",
    );
    SLOT_HELD_SINCE = gauge(
        "backstop_slot_held_since_timestamp_seconds",
        &[],
        "Since when the oldest taken slot is held, by its holder's clock.",
    );
    GUARD_REFUSALS = counter(
        "backstop_guard_refusals_total",
        &["guard"],
        "Times that a guard refused a cycle of the own node (unknown counts as refused).",
    );
    CALLS = counter(
        "backstop_calls_total",
        &["dependency", "operation", "class"],
        "Calls to what the agent depends on, by what came of them: ok, or an error class.",
    );
    PANICS = counter(
        "backstop_panics_total",
        &["part"],
        "Panics in a part of the agent, each caught: a part of a look, a step of its loop.",
    );
    RECONCILE_LAST_SUCCESS = gauge(
        "backstop_reconcile_last_success_timestamp_seconds",
        &["source"],
        "When the last good read of this source began.",
    );
    ALERTS_UNDELIVERED = gauge(
        "backstop_alerts_undelivered",
        &[],
        "Pages that no pager has accepted yet.",
    );
    LOOP_LAST_TURN = gauge(
        "backstop_loop_last_turn_timestamp_seconds",
        &["loop"],
        "When this loop of the agent last completed a turn.",
    );
    STARTED = gauge(
        "backstop_started_timestamp_seconds",
        &[],
        "When this agent started.",
    );
    BUILD_INFO = gauge(
        "backstop_build_info",
        &["version", "mode"],
        "Always 1.",
    );
}

/// The table for docs/metrics.md.
pub fn markdown() -> String {
    use std::fmt::Write as _;
    let mut out = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for m in ALL {
        let labels: Vec<_> = m.labels.iter().map(|label| format!("`{label}`")).collect();
        let _ = writeln!(out, "| `{}` | {} | {} | {} |", m.name, m.kind.label(), labels.join(", "), m.help);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_say_their_type_and_unit() {
        let names: BTreeSet<_> = ALL.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), ALL.len());
        for m in ALL {
            assert!(m.name.starts_with("backstop_"), "{}", m.name);
            assert_eq!(m.name.ends_with("_total"), m.kind == Type::Counter, "{}", m.name);
            assert!(!m.labels.contains(&FLEET) && !m.labels.contains(&"le"), "{}", m.name);
            assert!(m.help.ends_with('.') && !m.help.contains(['\n', '\\', '|']), "{}", m.name);
        }
    }
}
