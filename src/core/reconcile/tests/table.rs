//! Every target state, reason, kind of running and plan; written down in `docs/findings.md`.
//! `BACKSTOP_BLESS=1 cargo test --lib findings` writes it anew.

use super::super::super::finding::{Kind, Report};
use super::super::super::page::Severity;
use super::super::super::target::{Reason, TargetState};
use super::kit::*;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const REASONS: [Reason; 13] = [
    Reason::RegistrationInProgress,
    Reason::InitialHealthChecking,
    Reason::ResponseCodeMismatch,
    Reason::Timeout,
    Reason::FailedHealthChecks,
    Reason::NotRegistered,
    Reason::NotInUse,
    Reason::DeregistrationInProgress,
    Reason::InvalidState,
    Reason::IpUnusable,
    Reason::HealthCheckDisabled,
    Reason::InternalError,
    Reason::Unknown,
];
const RUNNING: [&str; 3] = ["running", "not running", "not known"];
const PLANS: [&str; 3] = ["none", "a cycle", "a hold"];

fn reason_label(reason: Option<Reason>) -> &'static str {
    reason.map_or("none", Reason::label)
}

/// A fleet of three, of which es-client-1 stands so; `None` = the list does not have it.
fn put(state: Option<(TargetState, Option<Reason>)>, shifted: bool, running: usize, plan: usize) -> Kit {
    let mut kit = Kit::new(3, 1);
    kit.minimum(2, 1);
    kit.drop(1);
    if let Some((state, reason)) = state {
        let mut r = row(1, state, reason);
        r.shifted = shifted;
        kit.rows().push(r);
    }
    match running {
        0 => {}
        1 => kit.nodes.value.retain(|n| *n.name != *name(1)),
        _ => kit.nodes.every_ms = None,
    }
    match plan {
        0 => {}
        1 => drop(kit.record.value.slots.insert(instance(1), slot(1, 7_200))),
        _ => drop(kit.record.value.holds.insert(instance(1), hold(1, 7_200))),
    }
    kit
}

/// What is told of the node, and where nothing is, whether that is evidence.
fn told(report: &Report) -> String {
    let about = |f: &&super::super::super::finding::Finding| &*f.subject == "es-client-1" || f.kind == Kind::Blind;
    let found: Vec<String> = report
        .findings
        .iter()
        .filter(about)
        .map(|f| {
            format!(
                "**{}**{}: {}",
                f.kind.label(),
                if f.severity == Severity::Critical { " (critical)" } else { "" },
                f.sentence
            )
        })
        .collect();
    if !found.is_empty() {
        return found.join("<br>");
    }
    let out = (Kind::OutOfService, "es-client-1".into());
    if report.shows_absent(&out) { "well" } else { "nothing is told or resolved" }.to_owned()
}

/// At the second read, and an hour later where that differs.
fn outcome(mut kit: Kit, reason: Option<Reason>) -> String {
    let first = told(&kit.two());
    let later = told(&kit.later(60 * MINUTE));
    let both = if first == later { first } else { format!("{first}<br>later: {later}") };
    match reason {
        Some(r) => both.replace(&format!("({})", r.label()), "(*reason*)"),
        None => both,
    }
}

/// Cells of one state, by outcome; those of several plans or kinds of running with the same outcomes are one.
fn rows_of(
    state: &str,
    cell: impl Fn(Option<Reason>, usize, usize) -> String,
    reasons: &[Option<Reason>],
) -> Vec<String> {
    type Outcomes = BTreeMap<String, Vec<&'static str>>;
    let mut by: Vec<(Outcomes, BTreeSet<(usize, usize)>)> = Vec::new();
    for plan in 0..PLANS.len() {
        for running in 0..RUNNING.len() {
            let mut outcomes = Outcomes::new();
            for reason in reasons {
                outcomes.entry(cell(*reason, running, plan)).or_default().push(reason_label(*reason));
            }
            match by.iter_mut().find(|(o, _)| *o == outcomes) {
                Some((_, cells)) => drop(cells.insert((running, plan))),
                None => by.push((outcomes, BTreeSet::from([(running, plan)]))),
            }
        }
    }
    let mut rows = Vec::new();
    for (outcomes, cells) in by {
        let runs: BTreeSet<usize> = cells.iter().map(|(r, _)| *r).collect();
        let plans: BTreeSet<usize> = cells.iter().map(|(_, p)| *p).collect();
        assert_eq!(cells.len(), runs.len() * plans.len(), "{state}: cells that are alike make a rectangle");
        let words = |of: &BTreeSet<usize>, names: [&str; 3]| match of.len() {
            3 => "any".to_owned(),
            _ => of.iter().map(|i| names[*i]).collect::<Vec<_>>().join(", "),
        };
        for (outcome, reasons) in outcomes {
            let reasons = match reasons.len().checked_sub(REASONS.len()) {
                Some(1) => "any".to_owned(),
                Some(_) if !reasons.contains(&"none") => "any given".to_owned(),
                _ => reasons.join(", "),
            };
            rows.push(format!(
                "| {state} | {reasons} | {} | {} | {outcome} |",
                words(&runs, RUNNING),
                words(&plans, PLANS)
            ));
        }
    }
    rows
}

fn document() -> String {
    let mut text = String::from(
        "# Findings\n\nWhat `reconcile` compares and what it tells (generated: `BACKSTOP_BLESS=1 cargo test --lib findings`). \
         A finding is told after two reads in a row. What is planned is neither told nor resolved, nor is what cannot be \
         judged.\n\n## Kinds\n\n| kind | severity | meaning |\n|---|---|---|\n",
    );
    for kind in Kind::ALL {
        let severity = if kind.severity() == Severity::Critical { "critical" } else { "warning" };
        writeln!(text, "| `{}` | {severity} | {} |", kind.label(), kind.meaning()).unwrap();
    }
    text.push_str(
        "\n## One member's target\n\nOf three members es-client-1 stands so in the one group; the others are well. *Runs*: \
         the cluster lists it as a client node. *Planned*: a slot or a hold whose time is not over. The last column is what \
         is told at the second read, and an hour later where that differs (the plan's time is two hours).\n\n\
         | state | reason | runs | planned | told |\n|---|---|---|---|---|\n",
    );
    let reasons: Vec<Option<Reason>> = std::iter::once(None).chain(REASONS.map(Some)).collect();
    for state in TargetState::ALL {
        let cell = |reason, running, plan| outcome(put(Some((state, reason)), false, running, plan), reason);
        for row in rows_of(state.label(), cell, &reasons) {
            writeln!(text, "{row}").unwrap();
        }
    }
    let shifted = |_, running, plan| outcome(put(Some((TargetState::Healthy, None)), true, running, plan), None);
    let absent = |_, running, plan| outcome(put(None, false, running, plan), None);
    for row in
        rows_of("healthy, zonal shift", shifted, &[None]).into_iter().chain(rows_of("not listed", absent, &[None]))
    {
        writeln!(text, "{row}").unwrap();
    }
    text
}

#[test]
fn the_findings_of_every_target_state_reason_running_and_plan_are_as_documented() {
    let made = document();
    for must in ["`below-floor`", "`config-differs`", "the same check fails against a peer too"] {
        assert!(made.contains(must), "{must}");
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/findings.md");
    if std::env::var_os("BACKSTOP_BLESS").is_some() {
        #[expect(clippy::disallowed_methods, reason = "a document, not state")]
        std::fs::write(path, made).expect("written");
        return;
    }
    let present = std::fs::read_to_string(path).expect("docs/findings.md");
    for (i, (made, present)) in made.lines().zip(present.lines()).enumerate() {
        assert_eq!(made, present, "line {}; BACKSTOP_BLESS=1 cargo test --lib findings writes it anew", i + 1);
    }
    assert_eq!(made.lines().count(), present.lines().count());
}

/// What follows from the words of the API, whatever the document says.
#[test]
fn only_a_healthy_target_that_is_given_traffic_is_well_and_only_a_plan_is_silent() {
    for state in TargetState::ALL {
        for reason in std::iter::once(None).chain(REASONS.map(Some)) {
            for (running, runs) in RUNNING.iter().enumerate() {
                for (plan, planned) in PLANS.iter().enumerate() {
                    let of = format!("{state:?} {reason:?} {runs} {planned}");
                    let report = put(Some((state, reason)), false, running, plan).two();
                    let resolves = report.shows_absent(&(Kind::OutOfService, "es-client-1".into()));
                    assert_eq!(resolves, state == TargetState::Healthy && (plan == 0 || running != 1), "{of}");
                    let found = report.findings.iter().any(|f| &*f.subject == "es-client-1");
                    assert!(!(found && plan > 0), "{of}");
                }
            }
        }
    }
}
