//! Exit codes: from the core's enum to the shell, and into every `--help` that ends with one.

use super::out::Out;
use super::text::command;
use crate::core::exit::Exit;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::fmt::Write;
use std::process::ExitCode;

/// For the shell.
pub(super) fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit.code())
}

/// The list for `--help`, from the one enum.
pub fn help() -> String {
    let mut text = String::from("Exit codes (below 100 nothing was changed; from 100 somebody should look):\n");
    for exit in Exit::ALL {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {:>3}  {}", exit.code(), exit.sentence());
    }
    text
}

/// What clap says about the command line: help goes to stdout with 0, everything else to stderr with 2. `args` is the whole
/// command line.
pub(super) fn of_clap(out: &mut Out, error: &clap::Error, args: &[OsString]) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        out.complain(text.trim_end());
        if let Some(right) = with_dashes(error, args) {
            out.complain(format!("\n{}", command("Next", &right)));
        }
        code(Exit::Usage)
    } else {
        out.line(text.trim_end());
        code(Exit::Done)
    }
}

/// `backstop run apt-get upgrade` lacks the `--` before its command: the right form of it.
fn with_dashes(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let words: Vec<String> = args.iter().skip(1).map(|a| quoted(&a.to_string_lossy())).collect();
    if !words.iter().any(|w| w == "run") || words.iter().any(|w| w == "--") {
        return None;
    }
    if error.kind() == ErrorKind::MissingRequiredArgument {
        return Some("backstop run -- apt-get -y dist-upgrade   # the command stands behind --".to_owned());
    }
    let Some(ContextValue::String(first)) = error.get(ContextKind::InvalidArg) else { return None };
    let at = words.iter().position(|w| *w == quoted(first)).filter(|_| !first.starts_with('-'))?;
    let (own, job) = words.split_at_checked(at)?;
    Some(format!("backstop {} -- {}", own.join(" "), job.join(" ")))
}

/// As a shell takes it for one word.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
