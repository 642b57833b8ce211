//! Exit codes: from the core's enum to the shell, and into every `--help` that ends with one.

use super::out::Out;
use crate::core::exit::Exit;
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

/// What clap says about the command line: help goes to stdout with 0, everything else to stderr with 2.
pub(super) fn of_clap(out: &mut Out, error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if error.use_stderr() {
        out.complain(text.trim_end());
        code(Exit::Usage)
    } else {
        out.line(text.trim_end());
        code(Exit::Done)
    }
}
