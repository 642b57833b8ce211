//! The hidden verb `job-ended`: `ExecStopPost=` of `backstop-job@.service`. Runs as root in the job's unit, after its command,
//! whatever became of that; finds out what only root can, and writes the verdict line.
//!
//! Another version of this program than the agent's may run it, since the job may have replaced the package: neither the verb
//! nor the words of the line change their meaning.

use super::line::{ENDED_DIR, Line};
use super::output::TAIL_BYTES_MAX;
use super::verdict::readable_tail;
use crate::core::exit_codes::ExitCodes;
use crate::core::job::{RUN_PREFIX, check_instance};
use crate::host::machine;
use crate::state::files::{create_dir_durably, replace_durably};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

/// Files whose existence after the job means that the machine wants a restart.
pub const REBOOT_MARKERS: [&str; 2] = ["/run/reboot-required", "/run/reboot-needed"];
/// What a command of the distribution may take, in steps of [`POLL`]: the unit's `TimeoutStopSec=` is longer.
const COMMAND_POLLS_MAX: u32 = 40;
/// How often is looked whether it has ended.
const POLL: Duration = Duration::from_millis(100);
/// Lines of the journal that are asked for.
const JOURNAL_LINES: &str = "60";
/// Of a command's output is read so much, in bytes.
const OUTPUT_BYTES_MAX: u64 = 256 * 1024;

/// Writes the verdict line of the instance that the arguments name.
pub fn job_ended_args(args: &[String]) -> ExitCode {
    let [instance] = args else {
        eprint_line("usage: backstop job-ended INSTANCE (ExecStopPost= of backstop-job@.service; not for people)");
        return ExitCode::from(2);
    };
    match ended(instance) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprint_line(&format!(
                "backstop: the verdict of job {instance} cannot be written, so it counts as failed: {e}"
            ));
            ExitCode::FAILURE
        }
    }
}

/// For the unit's journal.
fn eprint_line(line: &str) {
    use std::io::Write as _;
    let _ = writeln!(io::stderr(), "{line}");
}

fn ended(instance: &str) -> io::Result<()> {
    let wrong =
        |expected| io::Error::new(io::ErrorKind::InvalidInput, format!("{instance:?} is no instance: {expected}"));
    check_instance(instance).map_err(wrong)?;
    let var = |name| std::env::var(name).unwrap_or_default();
    let dir = Path::new(ENDED_DIR);
    create_dir_durably(dir, 0o755)?;
    let label = var("BACKSTOP_EXIT_CODES");
    let codes = ExitCodes::TABLES.into_iter().find(|codes| codes.label() == label).unwrap_or_default();
    if !label.is_empty() && codes.label() != label {
        let known: Vec<&str> = ExitCodes::TABLES.iter().map(|codes| codes.label()).collect();
        eprint_line(&format!("backstop: BACKSTOP_EXIT_CODES={label} is unknown; expected one of {}", known.join(", ")));
    }
    let invocation = var("INVOCATION_ID");
    // Others may read a directory that is not the agent's group's: then nothing of the output goes there.
    let private = !rustix::fs::Mode::from_raw_mode(std::fs::metadata(dir)?.mode()).intersects(rustix::fs::Mode::RWXO);
    let line = Line {
        result: var("SERVICE_RESULT"),
        code: var("EXIT_CODE"),
        status: var("EXIT_STATUS"),
        boot: machine::boot_id()?.0.to_string(),
        codes,
        reboot: REBOOT_MARKERS.iter().any(|marker| Path::new(marker).exists()) || asked_for(codes),
        tail: if private { journal(&invocation) } else { String::new() },
        invocation,
    };
    replace_durably(&dir.join(instance), line.text().as_bytes(), if private { 0o640 } else { 0o644 })?;
    if instance.starts_with(RUN_PREFIX) {
        // It served this one run.
        let _ = std::fs::remove_dir_all(drop_in_dir(instance));
    }
    Ok(())
}

/// Where the drop-in of a run lies.
pub fn drop_in_dir(instance: &str) -> PathBuf {
    Path::new("/run/systemd/system").join(format!("{}.d", super::unit_file::unit_name(instance)))
}

/// The package manager's own command says that the machine wants a restart. Only the documented code counts, and of a
/// program that has no code of its own for it its documented words too.
fn asked_for(codes: ExitCodes) -> bool {
    let (program, args, yes): (&str, &[&str], i32) = match codes {
        ExitCodes::Dnf => ("/usr/bin/needs-restarting", &["-r"], 1),
        ExitCodes::Zypper => ("/usr/bin/zypper", &["--non-interactive", "needs-rebooting"], 102),
        ExitCodes::Plain | ExitCodes::Apt | ExitCodes::Unit => return false,
    };
    if !Path::new(program).exists() {
        return false;
    }
    let Some((code, said)) = output_of(program, args) else {
        eprint_line(&format!(
            "backstop: {program} did not end in time: whether it wants a restart is not known, and none is made for it"
        ));
        return false;
    };
    // needs-restarting ends with 1 for every error too.
    let says_so = codes != ExitCodes::Dnf || String::from_utf8_lossy(&said).contains("Reboot is required");
    code == Some(yes) && says_so
}

/// The end of what this run of the unit said.
fn journal(invocation: &str) -> String {
    if invocation.is_empty() {
        return String::new();
    }
    // What was said last may still be on its way.
    let _ = output_of("journalctl", &["--sync"]);
    let matched = format!("_SYSTEMD_INVOCATION_ID={invocation}");
    let args = ["--quiet", "--no-pager", "--output=cat", "--lines", JOURNAL_LINES, matched.as_str()];
    let said = output_of("journalctl", &args).map(|(_, said)| said).unwrap_or_default();
    readable_tail(&said, TAIL_BYTES_MAX)
}

/// Exit code and stdout of a command that ends in time; `None` = there is no such command, or it did not end.
fn output_of(program: &str, args: &[&str]) -> Option<(Option<i32>, Vec<u8>)> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let stdout = child.stdout.take()?;
    // Read while it runs: a full pipe would keep it from ending.
    let reading = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = stdout.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        bytes
    });
    for _ in 0..COMMAND_POLLS_MAX {
        if let Some(status) = child.try_wait().ok()? {
            return Some((status.code(), reading.join().unwrap_or_default()));
        }
        pause();
    }
    let _ = child.kill();
    let _ = child.wait();
    None
}

#[expect(clippy::disallowed_methods, reason = "a process of its own that waits for another one")]
fn pause() {
    std::thread::sleep(POLL);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_is_missing_says_nothing_and_one_that_ends_says_its_code() {
        assert_eq!(output_of("/nonexistent/needs-restarting", &[]), None);
        assert_eq!(output_of("/bin/sh", &["-c", "echo said; exit 102"]), Some((Some(102), b"said\n".to_vec())));
    }
}
