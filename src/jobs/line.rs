//! The verdict line: how a unit ended, written by root in the unit itself (`ExecStopPost=`), read by the agent. systemd
//! forgets a unit that has ended, and one that never ran reads "success".
//!
//! One line of words, the last one `end`, so that half a line is none; below it the end of the job's output.

use super::verdict::readable_tail;
use crate::core::exit_codes::ExitCodes;
use crate::core::job::{JobResult, Verdict};
use std::collections::BTreeMap;

/// Where the lines are, one file for each instance: root's own directory, readable for the agent's group.
pub const ENDED_DIR: &str = "/var/lib/backstop-jobs";
/// No file there is larger, in bytes.
pub const ENDED_BYTES_MAX: u64 = 64 * 1024;
/// The first words.
const HEAD: &str = "backstop-job 1 ";

/// What systemd says about the end of a unit, and what else was found out in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// `$SERVICE_RESULT`
    pub result: String,
    /// `$EXIT_CODE`: `exited`, `killed`, `dumped`; empty where no main process ran.
    pub code: String,
    /// `$EXIT_STATUS`: a number, or the name of a signal.
    pub status: String,
    /// `$INVOCATION_ID`
    pub invocation: String,
    /// The boot it ended in.
    pub boot: String,
    /// Whose exit codes these are.
    pub codes: ExitCodes,
    /// A marker file, or the package manager's own command, asks for a restart.
    pub reboot: bool,
    /// The end of its output.
    pub tail: String,
}

impl Line {
    /// As the file has it.
    pub fn text(&self) -> String {
        let reboot = if self.reboot { "yes" } else { "no" };
        format!(
            "{HEAD}result={} code={} status={} invocation={} boot={} codes={} reboot={reboot} end\n{}",
            word(&self.result),
            word(&self.code),
            word(&self.status),
            word(&self.invocation),
            word(&self.boot),
            self.codes.label(),
            self.tail
        )
    }

    /// From a file; `None` = not one that this program has written whole.
    pub fn parse(bytes: &[u8]) -> Option<Line> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (first, tail) = text.split_once('\n')?;
        let words = first.strip_prefix(HEAD)?.strip_suffix(" end")?;
        // A word that is not known comes from a later version.
        let pairs: BTreeMap<&str, &str> = words.split(' ').filter_map(|word| word.split_once('=')).collect();
        let get = |name: &str| pairs.get(name).map(|value| (*value).to_owned());
        Some(Line {
            result: get("result").filter(|result| !result.is_empty())?,
            code: get("code")?,
            status: get("status")?,
            invocation: get("invocation").filter(|id| !id.is_empty())?,
            boot: get("boot").filter(|id| !id.is_empty())?,
            codes: ExitCodes::from_label(pairs.get("codes")?)?,
            reboot: match *pairs.get("reboot")? {
                "yes" => true,
                "no" => false,
                _ => return None,
            },
            tail: tail.to_owned(),
        })
    }

    /// What it says.
    pub fn verdict(&self) -> Verdict {
        let result = self.result();
        let codes = match result {
            // The unit's own SuccessExitStatus= comes before any table.
            JobResult::Exited(code) if self.result == "success" && !self.codes.good(code) => ExitCodes::Unit,
            JobResult::Exited(_) if self.codes == ExitCodes::Unit => ExitCodes::Plain,
            JobResult::Exited(_)
            | JobResult::Signalled(_)
            | JobResult::TimedOut
            | JobResult::Killed
            | JobResult::NotStarted(_) => self.codes,
        };
        let tail = readable_tail(self.tail.as_bytes(), super::output::TAIL_BYTES_MAX);
        let tail = if self.result == "oom-kill" { format!("the kernel ran out of memory\n{tail}") } else { tail };
        Verdict { result, reboot_needed: self.reboot, output_tail: tail.trim_end().into(), codes }
    }

    fn result(&self) -> JobResult {
        match (self.result.as_str(), self.code.as_str()) {
            ("timeout", _) => JobResult::TimedOut,
            ("exit-code", "exited") if self.status == "203" => {
                JobResult::NotStarted("systemd could not execute its program (203/EXEC)".into())
            }
            ("exit-code", "exited") if self.status == "0" => {
                JobResult::NotStarted("its command ended with 0, and another command of its unit failed (ExecStartPre=, ExecStartPost=, ExecStop=)".into())
            }
            ("success" | "exit-code", "exited") => match self.status.parse() {
                Ok(code) => JobResult::Exited(code),
                Err(_) => JobResult::NotStarted(format!("systemd gives no exit code ({})", self.status).into()),
            },
            (_, "killed" | "dumped") => JobResult::Signalled(signal(&self.status)),
            (result, _) => JobResult::NotStarted(format!("systemd says {result}, and no command of it ran").into()),
        }
    }
}

/// A value without what separates values.
fn word(text: &str) -> String {
    text.chars().filter(|c| c.is_ascii_graphic() && *c != '=').take(64).collect()
}

/// The number of a signal, by the name that systemd gives it; 0 = another one.
fn signal(name: &str) -> i32 {
    const NAMES: [(&str, i32); 15] = [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("ILL", 4),
        ("TRAP", 5),
        ("ABRT", 6),
        ("BUS", 7),
        ("FPE", 8),
        ("KILL", 9),
        ("USR1", 10),
        ("SEGV", 11),
        ("USR2", 12),
        ("PIPE", 13),
        ("ALRM", 14),
        ("TERM", 15),
    ];
    let known = NAMES.iter().find(|(n, _)| *n == name).map(|(_, number)| *number);
    known.or_else(|| name.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(result: &str, code: &str, status: &str) -> Line {
        Line {
            result: result.into(),
            code: code.into(),
            status: status.into(),
            invocation: "0af3".into(),
            boot: "b1".into(),
            ..Line::default()
        }
    }

    #[test]
    fn what_systemd_says_is_one_of_the_ways_in_which_a_job_ends() {
        let cases = [
            (line("success", "exited", "0"), JobResult::Exited(0), true),
            (line("exit-code", "exited", "1"), JobResult::Exited(1), false),
            (line("exit-code", "exited", "100"), JobResult::Exited(100), false),
            (Line { codes: ExitCodes::Zypper, ..line("exit-code", "exited", "102") }, JobResult::Exited(102), true),
            (Line { codes: ExitCodes::Zypper, ..line("exit-code", "exited", "106") }, JobResult::Exited(106), false),
            (Line { codes: ExitCodes::Unit, ..line("exit-code", "exited", "1") }, JobResult::Exited(1), false),
            // SuccessExitStatus=7 in the unit.
            (line("success", "exited", "7"), JobResult::Exited(7), true),
            (line("signal", "killed", "TERM"), JobResult::Signalled(15), false),
            (line("signal", "killed", "KILL"), JobResult::Signalled(9), false),
            (line("core-dump", "dumped", "SEGV"), JobResult::Signalled(11), false),
            (line("oom-kill", "killed", "KILL"), JobResult::Signalled(9), false),
            (line("signal", "killed", "RTMIN+3"), JobResult::Signalled(0), false),
            (line("timeout", "killed", "TERM"), JobResult::TimedOut, false),
            (line("timeout", "", ""), JobResult::TimedOut, false),
        ];
        for (line, result, good) in cases {
            let verdict = line.verdict();
            assert_eq!((&verdict.result, verdict.good()), (&result, good), "{line:?}");
        }
    }

    #[test]
    fn a_unit_of_which_no_command_ran_is_never_a_success() {
        for (result, code, status) in [
            ("success", "", ""),
            ("exit-code", "", ""),
            ("exit-code", "exited", "203"),
            // ExecStartPost= failed.
            ("exit-code", "exited", "0"),
            ("exec-condition", "", ""),
            ("resources", "", ""),
            ("start-limit-hit", "", ""),
            ("success", "exited", ""),
            ("a-later-word", "exited", "0"),
        ] {
            let verdict = line(result, code, status).verdict();
            assert!(matches!(verdict.result, JobResult::NotStarted(_)), "{result} {code} {status}: {verdict:?}");
            assert!(!verdict.good());
        }
    }

    #[test]
    fn half_a_line_and_a_strange_one_are_none() {
        let whole = Line { reboot: true, tail: "said\n".into(), ..line("success", "exited", "0") };
        let text = whole.text();
        let first = text.find('\n').unwrap();
        for cut in 0..=first {
            assert_eq!(Line::parse(&text.as_bytes()[..cut]), None, "{cut}");
        }
        for (from, to) in [
            ("backstop-job 1 ", "backstop-job 2 "),
            ("reboot=yes", "reboot=maybe"),
            ("codes=plain", "codes=pacman"),
            ("invocation=0af3", "invocation="),
            ("result=success", "result="),
        ] {
            assert_eq!(Line::parse(text.replace(from, to).as_bytes()), None, "{to}");
        }
        let later = text.replace(" end\n", " memory=3 end\n");
        assert_eq!(Line::parse(later.as_bytes()), Some(whole), "a later version says more");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(status in "[A-Z0-9+]{0,8}", tail in "[^\0]{0,40}", reboot: bool) {
            let line = Line { status, reboot, tail, ..line("signal", "killed", "") };
            prop_assert_eq!(Line::parse(line.text().as_bytes()), Some(line));
        }

        #[test]
        fn no_value_can_add_a_word(result in ".{1,20}") {
            let line = Line { result, ..line("", "exited", "1") };
            if let Some(read) = Line::parse(line.text().as_bytes()) {
                prop_assert_eq!((read.status.as_str(), read.invocation.as_str()), ("1", "0af3"));
            }
        }
    }
}
