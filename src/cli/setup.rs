//! `backstop config`: what the file says, and what is wrong with it. Needs no agent.

use super::context::hostname;
use super::out::Out;
use super::text::{command, labelled};
use crate::config::{self, Effective, FOUR_SUFFICE, Problems, Warning};
use crate::core::exit::Exit;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// `backstop config check|show [FILE]`
#[derive(clap::Subcommand, Debug)]
pub(super) enum ConfigVerb {
    /// All problems of the file at once, each with its line and the next step
    Check(FileArgs),
    /// Every key with the value in force and where it comes from
    Show(FileArgs),
}

/// Which file.
#[derive(clap::Args, Debug)]
pub(super) struct FileArgs {
    /// The file [default: that of --config]
    file: Option<PathBuf>,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// `config check --json`
#[derive(Serialize)]
struct Checked<'a> {
    v: u32,
    ok: bool,
    problems: &'a [config::Problem],
    warnings: &'a [Warning],
}

/// `config show --json`
#[derive(Serialize)]
struct Shown<'a> {
    v: u32,
    keys: &'a [Effective],
}

pub(super) fn config(verb: &ConfigVerb, default: &Path, out: &mut Out) -> Exit {
    match verb {
        ConfigVerb::Check(args) => {
            let file = args.file.as_deref().unwrap_or(default);
            match config::load(file, &hostname()) {
                Ok((config, mut warnings)) => {
                    // What it names has to be there as well, and readable by whoever asks.
                    let files = config::check_files(&config);
                    if let Some(problems) = Problems::new(files.problems) {
                        return bad(&problems, args.json, out);
                    }
                    warnings.extend(files.warnings);
                    if let Some(user) = agents_user() {
                        warnings.extend(config::unreadable_for(&user, file, &config));
                    }
                    if args.json {
                        out.json(&Checked {
                            v: crate::control::protocol::VERSION,
                            ok: true,
                            problems: &[],
                            warnings: &warnings,
                        });
                    } else {
                        for warning in &warnings {
                            out.line(warning);
                        }
                        out.line(format!("{}: fleet {}: this file can be used", file.display(), config.fleet));
                    }
                    Exit::Done
                }
                Err(problems) => bad(&problems, args.json, out),
            }
        }
        ConfigVerb::Show(args) => match config::show(args.file.as_deref().unwrap_or(default), &hostname()) {
            Ok(keys) => {
                if args.json {
                    out.json(&Shown { v: crate::control::protocol::VERSION, keys: &keys });
                } else {
                    for key in &keys {
                        out.line(key);
                    }
                }
                Exit::Done
            }
            Err(problems) => bad(&problems, args.json, out),
        },
    }
}

/// Whoever asks as root may read everything; the agent of the package is this user.
fn agents_user() -> Option<config::User> {
    const NAME: &str = "backstop";
    let asked_by_root = rustix::process::geteuid().is_root();
    let (uid, gids) = crate::control::peer::account(NAME).filter(|_| asked_by_root)?;
    Some(config::User { name: NAME.to_owned(), uid, gids })
}

/// What an agent says that has no config it could run with, behind what is wrong with the file.
pub(super) fn no_config(file: &Path) -> String {
    let expected =
        format!("a config file at {}: {FOUR_SUFFICE} (the shortest is in the README, Install)", file.display());
    let check = format!("backstop config check {}   # every problem at once", file.display());
    [labelled("Expected", expected), command("Next", &check)].join("\n")
}

pub(super) fn bad(problems: &Problems, json: bool, out: &mut Out) -> Exit {
    if json {
        let problems = problems.list();
        out.json(&Checked { v: crate::control::protocol::VERSION, ok: false, problems, warnings: &[] });
    } else {
        out.complain(problems);
    }
    Exit::Usage
}
