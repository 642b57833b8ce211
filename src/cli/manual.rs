//! `backstop man` and `backstop completions`: both are made from the definition of the command line, so that neither can tell
//! of an option that is not there. A package ships them; neither needs an agent or a config.

use super::out::Out;
use super::{CONFIG, SOCKET};
use crate::core::exit::Exit;
use anyhow::Context as _;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// `backstop completions SHELL`
#[derive(clap::Args, Debug)]
pub(super) struct CompletionsArgs {
    /// Which shell reads it
    #[arg(value_enum)]
    shell: Shell,
}

/// `backstop man [DIR]`
#[derive(clap::Args, Debug)]
pub(super) struct ManArgs {
    /// Write one page per verb into this directory, which is made if need be [default: the main page, to stdout]
    dir: Option<PathBuf>,
}

/// Files that belong to it, for the main page.
const FILES: [(&str, &str); 5] = [
    (CONFIG, "the config: the same on every node; backstop config check"),
    (SOCKET, "where the agent is asked"),
    ("/var/lib/backstop", "what must survive a reboot: state, pages that wait, output of jobs, history"),
    ("/usr/share/doc/backstop/runbooks", "what to do about each page"),
    ("/usr/share/backstop", "rules for Prometheus, a dashboard, policies for AWS"),
];

/// As `--help` shows it: without the verbs that processes of backstop start each other with.
fn shown(command: &Command) -> Command {
    let own = Command::new(command.get_name().to_owned())
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .args(command.get_arguments().filter(|a| !a.is_hide_set()).cloned())
        .subcommands(command.get_subcommands().filter(|c| !c.is_hide_set()).map(shown));
    match command.get_about() {
        Some(about) => own.about(about.clone()),
        None => own,
    }
}

/// A script for the shell, to stdout.
pub(super) fn completions(args: &CompletionsArgs, command: &Command, out: &mut Out) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut shown(command), "backstop", &mut script);
    out.raw(&script);
    Exit::Done
}

/// Pages into a directory, or the main one to stdout.
///
/// # Errors
/// The directory or a page cannot be written.
pub(super) fn man(args: &ManArgs, command: Command, out: &mut Out) -> anyhow::Result<Exit> {
    let mut command = command;
    // Gives each verb its options from above, and its full name.
    command.build();
    let Some(dir) = &args.dir else {
        out.raw(&page(&command)?);
        return Ok(Exit::Done);
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    pages(&command, dir)?;
    Ok(Exit::Done)
}

fn pages(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let file = dir.join(format!("{}.1", name(command)));
    std::fs::File::create(&file)
        .and_then(|mut f| f.write_all(&page(command)?))
        .with_context(|| format!("cannot write {}", file.display()))?;
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|verb| pages(verb, dir))
}

/// `backstop-latch-clear`
fn name(command: &Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let name = name(command);
    let codes = command.get_after_help().is_some();
    let man = Man::new(command.clone()).title(name.to_uppercase()).manual("backstop");
    let man = man.source(format!("backstop {}", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let first = name == "backstop";
    if codes {
        let mut roff = Roff::new();
        roff.control("SH", ["EXIT STATUS"]);
        roff.text([roman("Below 100 nothing was changed; from 100 somebody should look.")]);
        for exit in Exit::ALL {
            listed(&mut roff, bold(exit.code().to_string()), exit.sentence());
        }
        roff.to_writer(&mut page)?;
    }
    let mut roff = Roff::new();
    if first {
        roff.control("SH", ["FILES"]);
        for (path, what) in FILES {
            listed(&mut roff, bold(path), what);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    let beside = if first { "systemctl(1), journalctl(1)" } else { "backstop(1)" };
    roff.text([roman(format!("{beside}, /usr/share/doc/backstop/README.md"))]);
    roff.to_writer(&mut page)?;
    Ok(page)
}

fn listed(roff: &mut Roff, what: Inline, text: &str) {
    roff.control("TP", []);
    roff.text([what]);
    roff.text([roman(text)]);
}
