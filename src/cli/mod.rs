//! The command line: what can be typed. Each verb has its own file; all they know comes over the control socket.

mod agent;
mod alert;
mod begin;
mod check;
mod context;
mod exit;
mod fleet;
mod follow;
mod history;
mod manual;
mod operate;
mod out;
mod queue;
mod reconcile;
mod rehearse;
mod run;
mod setup;
mod status;
mod text;
mod unit;
mod wait;

pub use exit::help as exit_help;
pub use out::Out;

use crate::core::exit::Exit;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use context::Ctx;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

const CONFIG: &str = "/etc/backstop/backstop.toml";
const SOCKET: &str = "/run/backstop/agent.sock";

#[derive(Parser, Debug)]
#[command(
    name = "backstop",
    version,
    about = "A node that leaves its load balancer to be patched comes back, or a person is paged",
    after_help = exit::help(),
    propagate_version = true,
    disable_help_subcommand = true
)]
struct Cli {
    /// The agent's control socket [default: that of the config, else /run/backstop/agent.sock]
    #[arg(long, global = true, value_name = "PATH", help_heading = "Where")]
    socket: Option<PathBuf>,
    /// The config file
    #[arg(long, global = true, value_name = "FILE", default_value = CONFIG, help_heading = "Where")]
    config: PathBuf,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    /// Run the agent (what the service does)
    Agent(agent::Args),
    #[command(flatten)]
    Ask(Ask),
    /// The config file
    #[command(subcommand)]
    Config(setup::ConfigVerb),
    /// Compare what should be with what is, once: for cron and monitoring systems. Needs no agent
    Reconcile(reconcile::Args),
    /// A whole fleet on this machine: patch it, replay the incident
    Rehearse(rehearse::Args),
    /// What a shell needs to complete commands of backstop
    Completions(manual::CompletionsArgs),
    /// This manual as man pages
    Man(manual::ManArgs),
    #[command(hide = true, disable_help_flag = true)]
    RehearseNode(rehearse::NodeArgs),
    #[command(hide = true, disable_help_flag = true)]
    JobExec(Trailing),
    #[command(hide = true, disable_help_flag = true)]
    JobEnded(Trailing),
}

/// Verbs that ask the agent.
#[derive(Subcommand, Debug)]
enum Ask {
    /// Take this node out, run a command, put the node back
    #[command(after_help = exit::help())]
    Run(run::Args),
    /// Wait for the verdict of this node's current or last cycle, after a reboot too
    #[command(after_help = exit::help())]
    Wait(wait::Args),
    /// The fleet, this node, and what stands in the way
    #[command(after_help = exit::help())]
    Status(status::Args),
    /// May this node leave now? Changes nothing
    Check(check::CheckArgs),
    /// Why is a node where it is, and why is nothing happening?
    Explain(check::ExplainArgs),
    /// Put this node back: ends a hold or a cycle, or registers a healthy node
    Rejoin(operate::RejoinArgs),
    /// Keep this node out on purpose, or stop self-heal everywhere
    Hold(operate::HoldArgs),
    /// Stop new cycles in the whole fleet
    Pause(operate::ReasonArgs),
    /// Allow new cycles again
    Unpause(operate::ReasonArgs),
    /// Failures that block patching until a person has looked
    #[command(subcommand)]
    Latch(fleet::LatchVerb),
    /// Do pages arrive?
    #[command(subcommand)]
    Alert(alert::AlertVerb),
    /// What happened on this node
    History(history::HistoryArgs),
    /// Say that a node is gone for good; on that node itself: leave for good
    Retire(fleet::RetireArgs),
    /// Create the fleet record, once per fleet
    Init(fleet::InitArgs),
}

/// Of a hidden verb: read elsewhere.
#[derive(Args, Debug)]
struct Trailing {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

/// Parses, runs, and says how it went.
///
/// # Errors
/// Faults of backstop itself.
pub fn run(args: impl IntoIterator<Item = OsString>, out: &mut Out) -> anyhow::Result<ExitCode> {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && (reconcile::as_plugin(&args) || reconcile::as_json(&args)) => {
            let said = error.render().to_string();
            let first = said.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
            let told = if reconcile::as_plugin(&args) { reconcile::unknown } else { reconcile::usage };
            return Ok(told(first, out));
        }
        Err(error) => return Ok(exit::of_clap(out, &error, &args)),
    };
    let exit = match cli.verb {
        // Before any runtime and any thread: it makes a session of its own.
        Verb::JobExec(job) => return Ok(crate::jobs::supervise::job_exec_args(job.args)),
        Verb::JobEnded(job) => return Ok(crate::jobs::ended::job_ended_args(&job.args)),
        Verb::Agent(args) => {
            let exit = agent::start(&cli.config, args)?;
            if exit == Exit::Usage {
                out.complain(setup::no_config(&cli.config));
            }
            exit
        }
        Verb::Rehearse(args) => rehearse::run(&args, out)?,
        Verb::Reconcile(args) => return reconcile::reconcile(&args, &cli.config, out),
        Verb::RehearseNode(args) => rehearse::node(&args)?,
        Verb::Config(verb) => setup::config(&verb, &cli.config, out),
        Verb::Completions(args) => manual::completions(&args, &Cli::command(), out),
        Verb::Man(args) => manual::man(&args, Cli::command(), out)?,
        Verb::Ask(verb) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(ask(verb, Ctx::new(cli.socket, &cli.config, out)))?
        }
    };
    Ok(exit::code(exit))
}

/// The verbs that ask the agent.
async fn ask(verb: Ask, mut ctx: Ctx<'_>) -> anyhow::Result<Exit> {
    let ctx = &mut ctx;
    let exit = match verb {
        Ask::Run(args) => return run::run(ctx, &args).await,
        Ask::Wait(args) => return wait::wait(ctx, &args).await,
        Ask::Status(args) => status::status(ctx, &args).await?,
        Ask::Check(args) => check::check(ctx, &args).await,
        Ask::Explain(args) => check::explain(ctx, &args).await,
        Ask::Rejoin(args) => operate::rejoin(ctx, args).await,
        Ask::Hold(args) => operate::hold(ctx, args).await,
        Ask::Pause(args) => operate::pause(ctx, args).await,
        Ask::Unpause(args) => operate::unpause(ctx, args).await,
        Ask::Latch(verb) => fleet::latch(ctx, verb).await,
        Ask::Alert(verb) => alert::alert(ctx, verb).await,
        Ask::History(args) => history::history(ctx, &args).await,
        Ask::Retire(args) => fleet::retire(ctx, args).await,
        Ask::Init(args) => fleet::init(ctx, args).await,
    };
    // An answer that could not be written is none. (A verdict of `run` and `wait` stands nevertheless.)
    match ctx.out.take_failure() {
        Some(error) if exit == Exit::Done => Err(anyhow::Error::new(error).context("cannot write the answer")),
        _ => Ok(exit),
    }
}
