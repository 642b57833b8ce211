//! `backstop rehearse` and its hidden part, the client node.

use super::context::Interrupts;
use super::out::Out;
use crate::control::protocol::RunResult;
use crate::core::exit::Exit;
use crate::rehearse::fleet::local_http;
use crate::rehearse::live::Audience;
use crate::rehearse::scenario::{self, Elsewhere, Options, RUN_JSON, RUN_LOG, Report, Scenario};
use anyhow::Context as _;
use std::path::{Path, PathBuf};

/// What a run said, in the directory of its node.
const RUN_TXT: &str = "run.txt";

/// What to play.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Name {
    /// Patch the three nodes, asked for at the same moment
    PatchAll,
    /// The same, while each node fails in a way nobody was told about after its restart
    Incident,
    /// Another hand deregisters a node, and later the whole group
    Drift,
    /// Kill the agent at a random moment of every cycle
    Crash,
}

/// A whole fleet on this machine: real agents and nodes as processes, a load balancer with traffic, compressed time.
/// Exit code 0 = the scenario's promises held, 1 = one was broken.
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// What to play
    #[arg(value_enum, default_value_t = Name::PatchAll)]
    scenario: Name,
    /// incident: the first node's fault outlasts the check's deadline
    #[arg(long)]
    stuck: bool,
    /// incident: the automation of the incident instead of backstop
    #[arg(long)]
    without_backstop: bool,
    /// crash: so many cycles
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    cycles: u32,
    /// Plays the same faults and kills again [default: a new one, printed]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Seconds of the rehearsal in a real one
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=120))]
    scale: u32,
    /// patch-all: another ELBv2 endpoint on this machine instead of the embedded one (an emulator)
    #[arg(long, value_name = "URL", requires = "group")]
    endpoint: Option<String>,
    /// With --endpoint: ARN of a target group of addresses there; the nodes are registered in it
    #[arg(long, value_name = "ARN", requires = "endpoint")]
    group: Option<String>,
    /// patch-all: a real cluster on this machine, by the HTTP address of one of its nodes. Its coordinating-only nodes (at
    /// least three) are the client nodes, patched without a restart; the fleet record is in it, in an index of its own
    /// that is removed at the end
    #[arg(long, value_name = "URL", conflicts_with = "endpoint")]
    cluster: Option<String>,
    /// One object on stdout instead of the story
    #[arg(long)]
    json: bool,
    /// Draw nodes in service and failed requests over time
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Keep configs, states, logs, pages and what each run said in this new directory
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Where the rehearsal is watched.
struct Stage<'a> {
    out: &'a mut Out,
    terminal: bool,
    quiet: bool,
}

impl Audience for Stage<'_> {
    fn wants_screens(&self) -> bool {
        self.terminal && !self.quiet
    }

    fn screen(&mut self, text: &str) {
        self.out.clear();
        self.out.line(text);
    }

    fn line(&mut self, text: &str) {
        if !self.quiet && !self.terminal {
            self.out.line(text);
        }
    }
}

/// Plays, tells, and says whether the promises held.
///
/// # Errors
/// A fault of the rehearsal itself.
pub(super) fn run(args: &Args, out: &mut Out) -> anyhow::Result<Exit> {
    let scenario = match args.scenario {
        Name::PatchAll => Scenario::PatchAll,
        Name::Incident => Scenario::Incident { stuck: args.stuck },
        Name::Drift => Scenario::Drift,
        Name::Crash => Scenario::Crash { cycles: args.cycles },
    };
    if let Some(why) = contradiction(args) {
        out.complain(why);
        return Ok(Exit::Usage);
    }
    let elsewhere = match (&args.endpoint, &args.group) {
        (Some(endpoint), Some(group)) => {
            Some(Elsewhere { endpoint: endpoint.trim_end_matches('/').to_owned(), group: group.clone() })
        }
        _ => None,
    };
    // By way of its real path: a relative one means something else to the processes that are started.
    let program = std::env::current_exe().context("where this program is")?;
    let options = Options {
        program,
        scenario,
        without_backstop: args.without_backstop,
        seed: args.seed.unwrap_or_else(scenario::new_seed),
        scale: args.scale,
        elsewhere,
        cluster: args.cluster.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
        keep: args.keep.clone(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let played = runtime.block_on(async {
        let mut interrupts = Interrupts::listen().context("cannot listen for Ctrl-C")?;
        let mut stage = Stage { terminal: out.terminal(), quiet: args.json, out };
        tokio::select! {
            report = scenario::play(&options, &mut stage) => report.map(Some),
            // Whatever was started ends with the play.
            () = interrupts.next() => Ok(None),
        }
    });
    if let (Err(_), Some(dir)) = (&played, &args.keep) {
        out.complain(kept(dir));
    }
    let Some(report) = played? else {
        out.complain("interrupted: everything that was started is ended");
        return Ok(Exit::Internal);
    };
    if let Some(file) = &args.svg {
        draw(file, &report.timeline.to_svg())?;
    }
    if let Some(dir) = &args.keep {
        keep_runs(dir, &report).context("the runs cannot be kept")?;
    }
    if args.json {
        out.json(&report.to_json());
    } else {
        // The last screen shows the last events: the story takes its place.
        out.clear();
        out.line(report.to_text());
        if let Some(dir) = &args.keep {
            out.line(kept(dir));
        }
        if let Some(file) = &args.svg {
            out.line(format!("Picture in {}", file.display()));
        }
    }
    Ok(if report.kept() { Exit::Done } else { Exit::Internal })
}

/// What is asked for does not go together, or goes off this machine.
fn contradiction(args: &Args) -> Option<String> {
    let belongs = |option: &str, scenario: &str| Some(format!("{option} to: backstop rehearse {scenario}"));
    if (args.stuck || args.without_backstop) && !matches!(args.scenario, Name::Incident) {
        return belongs("--stuck and --without-backstop belong", "incident");
    }
    for (option, url) in [("--endpoint", &args.endpoint), ("--cluster", &args.cluster)] {
        let Some(url) = url else { continue };
        if !matches!(args.scenario, Name::PatchAll) {
            return belongs(&format!("{option} belongs"), "patch-all");
        }
        if let Err(why) = local_http(url) {
            return Some(format!("{option}: {why}"));
        }
    }
    None
}

/// What there is to read. Not every scenario has runs, and a load balancer elsewhere has pages of its own.
fn kept(dir: &Path) -> String {
    let run = |entry: std::fs::DirEntry| entry.path().join(RUN_TXT).exists();
    let runs = std::fs::read_dir(dir).is_ok_and(|entries| entries.flatten().any(run));
    let pages = if dir.join("pages").exists() { "pages/, and " } else { "" };
    let of_each =
        if runs { format!("config, state, agent.log and {RUN_TXT}") } else { "config, state and agent.log".to_owned() };
    format!("Kept in {}: {pages}of each node its {of_each}", dir.display())
}

/// Of each run what a person would have seen: `NODE/run.txt`.
fn keep_runs(dir: &Path, report: &Report) -> std::io::Result<()> {
    use std::io::Write as _;
    for run in &report.runs {
        let dir = dir.join(&run.node);
        let Ok(said) = std::fs::read(dir.join(RUN_JSON)) else { continue };
        let mut text = std::fs::read_to_string(dir.join(RUN_LOG)).unwrap_or_default();
        match serde_json::from_slice::<RunResult>(&said) {
            Ok(result) => text.push_str(&super::run::lines(&result).join("\n")),
            Err(_) => text.push_str(&String::from_utf8_lossy(&said)),
        }
        std::fs::File::create(dir.join(RUN_TXT)).and_then(|mut file| writeln!(file, "{text}"))?;
    }
    Ok(())
}

fn draw(file: &Path, picture: &str) -> anyhow::Result<()> {
    use std::io::Write as _;
    let written = std::fs::File::create(file).and_then(|mut f| f.write_all(picture.as_bytes()));
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// Arguments of the client node, read by the node itself.
#[derive(clap::Args, Debug)]
pub(super) struct NodeArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// A client node of a rehearsal, as a process of its own.
///
/// # Errors
/// Wrong arguments, or the system refuses.
pub(super) fn node(args: &NodeArgs) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(crate::rehearse::node::run_node_args(args.args.clone()))?;
    // What reads stdin is a thread of its own and ends with the process.
    runtime.shutdown_background();
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_to_be_kept_is_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let make = |name: &str| std::fs::DirBuilder::new().recursive(true).create(dir.path().join(name)).expect("made");
        make("es-client-1");
        let at = dir.path().display();
        assert_eq!(kept(dir.path()), format!("Kept in {at}: of each node its config, state and agent.log"));
        make("pages");
        std::fs::File::create(dir.path().join("es-client-1/run.txt")).expect("made");
        assert!(kept(dir.path()).ends_with(": pages/, and of each node its config, state, agent.log and run.txt"));
    }
}
