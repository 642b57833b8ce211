//! The program: parse, run, exit code.

use backstop::cli::{self, Out};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut out = Out::process();
    match cli::run(std::env::args_os(), &mut out) {
        Ok(code) => code,
        Err(error) => {
            out.complain(format!("backstop: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
