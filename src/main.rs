//! The program.

use backstop::core::exit::Exit;
use std::process::ExitCode;

/// Parses, runs, exit code.
fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let verb = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    if verb == "job-exec" {
        return backstop::jobs::supervise::job_exec_args(rest);
    }
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return ExitCode::FAILURE;
    };
    let outcome: anyhow::Result<Exit> = runtime.block_on(async {
        match verb.as_str() {
            "agent" => {
                let value = |name: &str| rest.iter().skip_while(|a| *a != name).nth(1).map(Into::into).unwrap_or_default();
                let args = backstop::cli::agent::AgentArgs { config: value("--config"), state_dir: value("--state-dir") };
                backstop::cli::agent::run(args).await
            }
            "rehearse-node" => Ok(backstop::rehearse::node::run_node_args(rest).await.map(|()| Exit::Done)?),
            _ => Ok(Exit::Usage),
        }
    });
    match outcome {
        Ok(exit) => ExitCode::from(exit.code()),
        Err(e) => {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "backstop: {e:#}");
            ExitCode::FAILURE
        }
    }
}
