//! `backstop reconcile --once`: one tick of what every agent does all the time, anywhere, without an agent. For cron, a
//! deployment's last step, or a monitoring system's check. Reads only.

use super::agent::adapters;
use super::context::hostname;
use super::out::Out;
use super::text::{WIDTH, command, labelled, parse_span, wrap};
use crate::agent::once::{Eyes, Tick, tick};
use crate::alerts::{next, text::runbook};
use crate::clock::{Clock, SystemClock};
use crate::config::{self, Config};
use crate::control::protocol::VERSION;
use crate::core::exit::Exit;
use crate::core::finding::{Finding, Kind};
use crate::core::page::Severity;
use crate::core::reconcile::once::{NEEDS_TIME, verdict};
use crate::elasticsearch::NodeChecker;
use crate::fleet::Fleet;
use crate::words::span;
use serde::Serialize;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// `backstop reconcile --once [--json|--nagios] [--apart 5s]`
#[derive(clap::Args, Debug)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// One tick, and the end; agents do it all the time
    #[arg(long, required = true)]
    once: bool,
    /// One object on stdout
    #[arg(long, conflicts_with = "nagios")]
    json: bool,
    /// As a plugin of Nagios, Icinga or Sensu: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN, and performance data
    #[arg(long)]
    nagios: bool,
    /// Between the two looks that a finding needs, 1s to 1m. Members that beat in between can contradict an answer that
    /// leaves them out
    #[arg(long, value_name = "TIME", value_parser = apart, default_value = "5s")]
    apart: u64,
}

const HELP: &str = "Needs the config file and the rights to read (elasticloadbalancing:DescribeTargetHealth, and the
fleet's index); no agent. Writes nothing anywhere.

Exit codes: 0 nothing is wrong, or planned   11 fewer in service than the minimum or the floor
  13 a source cannot be seen, and what can be is not critical   15 something else is wrong
  100 latched (told before any other)   2 usage or config   With --nagios: 0 to 3 instead.";

/// The states of a Nagios plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plugin {
    Ok,
    Warning,
    Critical,
    Unknown,
}

impl Plugin {
    const fn code(self) -> u8 {
        match self {
            Plugin::Ok => 0,
            Plugin::Warning => 1,
            Plugin::Critical => 2,
            Plugin::Unknown => 3,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Plugin::Ok => "OK",
            Plugin::Warning => "WARNING",
            Plugin::Critical => "CRITICAL",
            Plugin::Unknown => "UNKNOWN",
        }
    }

    /// What is critical first; then what cannot be seen, since that may hide something critical.
    fn of(findings: &[Finding]) -> Plugin {
        if findings.iter().any(|f| f.severity == Severity::Critical) {
            Plugin::Critical
        } else if findings.iter().any(|f| f.kind == Kind::Blind) {
            Plugin::Unknown
        } else if findings.is_empty() {
            Plugin::Ok
        } else {
            Plugin::Warning
        }
    }
}

fn apart(text: &str) -> Result<u64, String> {
    let ms = parse_span(text)?;
    if (1_000..=60_000).contains(&ms) { Ok(ms) } else { Err("two looks are 1s to 1m apart".to_owned()) }
}

/// One finding, as `--json` shows it.
#[derive(Serialize)]
struct Row<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    runbook: String,
}

/// `--json`
#[derive(Serialize)]
struct Ticked<'a> {
    v: u32,
    fleet: &'a str,
    exit: u8,
    /// `None` = not known.
    in_service: Option<u32>,
    members: Option<usize>,
    minimum_healthy: u32,
    minimum_during_patch: u32,
    findings: Vec<Row<'a>>,
    /// What slots, holds, pauses and latches of the record explain or say.
    planned: Vec<String>,
    /// Sources that could not be read, and why.
    unseen: std::collections::BTreeMap<String, String>,
    /// Kinds that one tick cannot judge.
    not_judged: Vec<Kind>,
}

/// Looks, says, and ends with what it came to.
///
/// # Errors
/// Faults of backstop itself, but for a plugin, whose answer they are.
pub(super) fn reconcile(args: &Args, file: &Path, out: &mut Out) -> anyhow::Result<ExitCode> {
    match once(args, file, out) {
        Err(error) if args.nagios => Ok(unknown(&format!("backstop failed: {error:#}"), out)),
        ended => ended,
    }
}

fn once(args: &Args, file: &Path, out: &mut Out) -> anyhow::Result<ExitCode> {
    let Args { once: _, .. } = args; // the command line requires it
    let host = hostname();
    let config = match config::load(file, &host) {
        Ok((config, _)) => config,
        Err(problems) => return Ok(no_config(args, file, &problems, out)),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let clock = clock(&config);
    let tick = runtime.block_on(async {
        let eyes = Eyes {
            balancer: adapters::balancer(&config).await,
            nodes: NodeChecker::new(),
            fleet: Fleet::new(adapters::store_to_read(&config), config.fleet.as_str().into()),
        };
        tick(&eyes, &config, &config.node.name, args.apart, &clock).await
    });
    // A read that never returns must not keep the process.
    runtime.shutdown_background();
    let ticked = ticked(&config, &tick);
    let code = if args.nagios {
        let plugin = Plugin::of(&tick.report.findings);
        out.line(nagios(plugin, &ticked).join("\n"));
        plugin.code()
    } else {
        if args.json {
            out.json(&ticked);
        } else {
            out.line(lines(&ticked).join("\n"));
        }
        ticked.exit
    };
    match out.take_failure() {
        Some(error) if code == 0 => Err(anyhow::Error::new(error).context("cannot write the answer")),
        _ => Ok(ExitCode::from(code)),
    }
}

/// `--json` of a config that cannot be used: it has `v` and `exit` as every answer.
#[derive(Serialize)]
struct NoConfig<'a> {
    v: u32,
    exit: u8,
    problems: &'a [config::Problem],
}

fn no_config(args: &Args, file: &Path, problems: &config::Problems, out: &mut Out) -> ExitCode {
    if args.nagios {
        let first = problems.list().first().map_or_else(String::new, ToString::to_string);
        return unknown(&format!("the config {} cannot be used: {first}", file.display()), out);
    }
    if args.json {
        out.json(&NoConfig { v: VERSION, exit: Exit::Usage.code(), problems: problems.list() });
    } else {
        super::setup::bad(problems, false, out);
    }
    super::exit::code(Exit::Usage)
}

/// The command line asks for a plugin's answer: whatever is wrong with it, the answer is one, too.
pub(super) fn as_plugin(args: &[OsString]) -> bool {
    let asks = |a: &OsString| a.to_string_lossy().split('=').next() == Some("--nagios");
    args.iter().any(|a| a == "reconcile") && args.iter().any(asks)
}

/// The command line asks for one object: a wrong one is told as such.
pub(super) fn as_json(args: &[OsString]) -> bool {
    args.iter().any(|a| a == "reconcile") && args.iter().any(|a| a == "--json")
}

/// `--json` of a command line that cannot be used.
#[derive(Serialize)]
struct BadUsage<'a> {
    v: u32,
    exit: u8,
    error: &'a str,
}

/// What is wrong with it, as one object.
pub(super) fn usage(why: &str, out: &mut Out) -> ExitCode {
    out.json(&BadUsage { v: VERSION, exit: Exit::Usage.code(), error: why.trim() });
    super::exit::code(Exit::Usage)
}

/// A plugin that cannot do its work: a monitoring system takes 1 and 2 for what it watches.
pub(super) fn unknown(why: &str, out: &mut Out) -> ExitCode {
    out.line(format!("BACKSTOP {} - {}", Plugin::Unknown.word(), plain(why.trim())));
    ExitCode::from(Plugin::Unknown.code())
}

/// On one line, and without the bar that separates performance data.
fn plain(text: &str) -> String {
    text.replace('|', "/").replace('\n', " ")
}

/// In a rehearsal time is compressed here too.
fn clock(config: &Config) -> SystemClock {
    let boot = || SystemClock::with_boot(crate::core::time::BootId("once".into()));
    let clock = SystemClock::new().unwrap_or_else(|_| boot());
    match (config.rehearsal.time_scale, config.rehearsal.time_epoch_ms) {
        (0 | 1, _) => clock,
        (factor, epoch) => {
            let epoch_wall_ms = epoch.unwrap_or_else(|| clock.now().wall_ms);
            clock.scaled(crate::clock::Scale { factor, epoch_wall_ms })
        }
    }
}

fn ticked<'a>(config: &'a Config, tick: &'a Tick) -> Ticked<'a> {
    let seen = &tick.seen;
    let row = |finding: &'a Finding| Row { finding, runbook: runbook(finding.kind) };
    let unseen = seen.faults.iter().map(|(source, fault)| ((*source).to_owned(), fault.to_string()));
    let lists = seen.list_faults.iter().map(|(g, fault)| (format!("load balancer {}", g.name()), fault.to_string()));
    Ticked {
        v: VERSION,
        fleet: config.fleet.as_str(),
        exit: verdict(&tick.report).code(),
        in_service: tick.view.as_ref().map(crate::core::member::FleetView::in_service_count),
        members: seen.members.as_ref().filter(|_| !seen.faults.contains_key("members")).map(|(m, _)| m.len()),
        minimum_healthy: config.minimum_healthy,
        minimum_during_patch: config.minimum_during_patch,
        findings: tick.report.findings.iter().map(row).collect(),
        planned: seen.record.as_ref().map(|(r, at)| planned(r, at.wall_ms)).unwrap_or_default(),
        unseen: unseen.chain(lists).collect(),
        not_judged: NEEDS_TIME.to_vec(),
    }
}

/// What the record knows of, for people; how old it is, by the clock of who wrote it.
fn planned(record: &crate::core::record::Record, wall_ms: u64) -> Vec<String> {
    let age = |since: u64| format!("for {}", span(wall_ms.saturating_sub(since)));
    let order = |o: &crate::core::record::Pause| format!("by {} ({}), {}", o.by, o.reason, age(o.since_ms));
    let slots = record
        .slots
        .values()
        .map(|s| format!("{} is in cycle {} (job {}), {}", s.node, s.cycle, s.job, age(s.since_ms)));
    let holds = record.holds.values().map(|h| format!("{} is held {}", h.node, order(&h.order)));
    let all = record.hold_all.iter().map(|h| format!("self-heal is off {}", order(&h.order)));
    let pause = record.pause.iter().map(|p| format!("patching is paused {}", order(p)));
    slots.chain(holds).chain(all).chain(pause).collect()
}

fn known(n: Option<impl ToString>) -> String {
    n.map_or_else(|| "?".to_owned(), |n| n.to_string())
}

fn count(t: &Ticked<'_>) -> String {
    let (in_service, members) = (known(t.in_service), known(t.members));
    format!("{in_service} of {members} in service (minimum {}, floor {})", t.minimum_healthy, t.minimum_during_patch)
}

fn lines(t: &Ticked<'_>) -> Vec<String> {
    let word = match t.exit {
        0 => "nothing is wrong".to_owned(),
        exit => format!("{} finding{} (exit {exit})", t.findings.len(), if t.findings.len() == 1 { "" } else { "s" }),
    };
    let mut lines = wrap(&format!("{}   {}   {word}", t.fleet, count(t)), WIDTH);
    for Row { finding: f, .. } in &t.findings {
        let label = if f.severity == Severity::Critical { "CRITICAL" } else { "Wrong" };
        lines.push(labelled(label, format!("{}, {}: {}", f.kind.label(), f.subject, f.sentence)));
    }
    lines.extend(t.planned.iter().map(|p| labelled("Planned", p)));
    let kinds: Vec<&str> = t.not_judged.iter().map(|k| k.label()).collect();
    lines.push(labelled("Not told", format!("what only time can show: {}", kinds.join(", "))));
    if let Some(worst) = t.findings.first() {
        let (kind, subject) = worst.finding.about();
        lines.push(labelled("Runbook", &worst.runbook));
        lines.push(command("Next", &next(kind, &subject)));
    }
    lines
}

/// The first line is what most monitoring systems show; performance data stand behind its bar.
fn nagios(plugin: Plugin, t: &Ticked<'_>) -> Vec<String> {
    let worst = t.findings.first().map(|w| format!("; {}: {}", w.finding.kind.label(), plain(&w.finding.sentence)));
    let in_service = t.in_service.map_or_else(|| "U".to_owned(), |n| n.to_string());
    let perf = format!(
        "in_service={in_service};{}:;{}:;0 findings={}",
        t.minimum_healthy,
        t.minimum_during_patch,
        t.findings.len()
    );
    let head = format!("BACKSTOP {} - {}: {}{}", plugin.word(), t.fleet, count(t), worst.unwrap_or_default());
    let mut lines = vec![format!("{head} | {perf}")];
    for Row { finding: f, .. } in &t.findings {
        lines.push(plain(&format!("{}, {}: {}", f.kind.label(), f.subject, f.sentence)));
    }
    lines.extend(t.planned.iter().map(|p| plain(&format!("planned: {p}"))));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(kind: Kind, severity: Severity) -> Finding {
        Finding { kind, subject: "es-client-1".into(), severity, sentence: "a | b\nc".into() }
    }

    fn ticked(findings: &[Finding]) -> Ticked<'_> {
        Ticked {
            v: VERSION,
            fleet: "au-search",
            exit: 15,
            in_service: Some(2),
            members: None,
            minimum_healthy: 3,
            minimum_during_patch: 2,
            findings: findings.iter().map(|finding| Row { finding, runbook: String::new() }).collect(),
            planned: Vec::new(),
            unseen: std::collections::BTreeMap::default(),
            not_judged: Vec::new(),
        }
    }

    #[test]
    fn a_plugin_tells_the_worst_and_what_cannot_be_seen_before_what_is_merely_odd() {
        let warning = finding(Kind::ForeignTarget, Severity::Warning);
        let blind = finding(Kind::Blind, Severity::Warning);
        let critical = finding(Kind::BelowFloor, Severity::Critical);
        assert_eq!(Plugin::of(&[]).code(), 0);
        assert_eq!(Plugin::of(std::slice::from_ref(&warning)).code(), 1);
        assert_eq!(Plugin::of(&[warning.clone(), blind.clone()]).code(), 3);
        assert_eq!(Plugin::of(&[blind, critical, warning]).code(), 2);
    }

    #[test]
    fn no_text_of_a_finding_breaks_a_plugins_line_or_its_performance_data() {
        let findings = [finding(Kind::ForeignTarget, Severity::Warning)];
        let lines = nagios(Plugin::Warning, &ticked(&findings));
        assert_eq!(
            lines[0],
            "BACKSTOP WARNING - au-search: 2 of ? in service (minimum 3, floor 2); foreign-target: a / b c | \
             in_service=2;3:;2:;0 findings=1"
        );
        assert!(lines.iter().skip(1).all(|l| !l.contains('|') && !l.contains('\n')), "{lines:?}");
    }

    #[test]
    fn two_looks_are_a_second_to_a_minute_apart() {
        assert_eq!(apart("5s"), Ok(5_000));
        for text in ["0s", "500ms", "2m", ""] {
            assert!(apart(text).is_err(), "{text}");
        }
    }
}
