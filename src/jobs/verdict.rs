//! The directory of one job, and what it says. Whoever reads it needs none of the processes that wrote it.

use super::output::{self, TAIL_BYTES_MAX};
use super::processes::{self, Marks, Process};
use super::systemd::Note;
use crate::core::job::{JobSpec, JobStatus, Verdict};
use crate::host::machine;
use crate::state::disk::{Disk, LinuxDisk};
use crate::state::files::create_dir_durably;
use crate::state::snapshot::{self, Loaded};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

const SPEC: &str = "spec.json";
const STARTED: &str = "started";
const VERDICT: &str = "verdict";
const KILL: &str = "kill";
const NOTE: &str = "unit";
/// The job's output.
pub(super) const OUTPUT: &str = "output";

/// No file of a job but its output is larger, in bytes.
const BYTES_MAX: u64 = 256 * 1024;

/// The form of the verdict file.
const VERDICT_SCHEMA: u32 = 1;

/// The variable that tells a job which cycle it belongs to.
pub const CYCLE_VARIABLE: &str = "BACKSTOP_CYCLE";

/// The variable that marks the processes of a job: its directory, which no other job of this machine has.
pub const DIR_VARIABLE: &str = "BACKSTOP_JOB_DIR";

/// What the supervisor is told to run; written before it is started, so that it can be read afterwards by people too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// The cycle the job belongs to.
    pub cycle: String,
    /// The job itself.
    pub job: JobSpec,
    /// How long the command may run.
    pub timeout_ms: u64,
    /// How long it has between SIGTERM and SIGKILL.
    pub grace_ms: u64,
    /// Of its output is kept so much, in bytes.
    pub output_bytes_max: u64,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// Files whose existence after the job means that the machine wants a restart.
    pub reboot_markers: Vec<PathBuf>,
}

/// Who took the job. Written once, by a link that one process wins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    /// The supervisor, which leads the job's session; 0 = nobody, the job was called off.
    pub pid: i32,
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// In which boot.
    pub boot: String,
}

impl Started {
    /// This process, now.
    pub fn by_myself() -> io::Result<Started> {
        let Process { pid, start_ticks, .. } = processes::myself()?;
        Ok(Started { pid, start_ticks, boot: machine::boot_id()?.0.to_string() })
    }

    /// The supervisor, if it still lives. An error means that it cannot be told.
    pub fn alive(&self) -> io::Result<Option<Process>> {
        if self.pid <= 0 || machine::boot_id()?.0.as_ref() != self.boot {
            return Ok(None);
        }
        let found = processes::find(self.pid)?;
        Ok(found.filter(|p| p.start_ticks == self.start_ticks && !p.dead))
    }
}

/// The directory of one job.
#[derive(Debug)]
pub struct JobDir {
    path: PathBuf,
    disk: LinuxDisk,
}

impl JobDir {
    /// Creates it where it is missing.
    pub fn create(path: &Path) -> io::Result<JobDir> {
        create_dir_durably(path, 0o700)?;
        JobDir::open(path)
    }

    /// One that exists.
    pub fn open(path: &Path) -> io::Result<JobDir> {
        Ok(JobDir { path: path.to_owned(), disk: LinuxDisk::open_existing(path, BYTES_MAX)? })
    }

    /// One that exists; `None` = there is none.
    pub fn find(path: &Path) -> io::Result<Option<JobDir>> {
        match JobDir::open(path) {
            Ok(dir) => Ok(Some(dir)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What is known of the job. An error means that it cannot be told now, which is no answer; bytes that cannot be
    /// understood are an answer: `Lost`.
    pub fn status(&self) -> io::Result<JobStatus> {
        if let Some(ended) = self.ended()? {
            return Ok(ended);
        }
        let Some(bytes) = self.disk.read(STARTED)? else { return Ok(JobStatus::New) };
        let Ok(started) = serde_json::from_slice::<Started>(&bytes) else { return Ok(JobStatus::Lost) };
        if started.alive()?.is_some() {
            return Ok(JobStatus::Running);
        }
        // It may have written the verdict and ended between the two looks.
        Ok(self.ended()?.unwrap_or(JobStatus::Lost))
    }

    fn ended(&self) -> io::Result<Option<JobStatus>> {
        let bytes = match self.disk.read(VERDICT) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(None),
            // Too large, or not a file: nothing that a supervisor wrote.
            Err(e) if e.kind() == io::ErrorKind::InvalidData => return Ok(Some(JobStatus::Lost)),
            Err(e) => return Err(e),
        };
        Ok(Some(match snapshot::decode::<Verdict>(VERDICT_SCHEMA, &bytes) {
            Loaded::Good { body, .. } => JobStatus::Ended(body),
            Loaded::Missing | Loaded::Newer { .. } | Loaded::Unreadable { .. } => JobStatus::Lost,
        }))
    }

    /// Who took the job; `None` = nobody yet, or what is there cannot be understood.
    pub fn started(&self) -> io::Result<Option<Started>> {
        let bytes = self.disk.read(STARTED)?;
        Ok(bytes.and_then(|b| serde_json::from_slice(&b).ok()))
    }

    /// Takes the job. `true`: it is ours alone, durably. `false`: somebody took it before.
    pub fn take(&self, started: &Started) -> io::Result<bool> {
        self.disk.create(STARTED, &serde_json::to_vec(started)?)
    }

    /// Takes the job for nobody, so that it will never run. `false`: somebody took it before.
    pub fn call_off(&self) -> io::Result<bool> {
        self.take(&Started { pid: 0, start_ticks: 0, boot: machine::boot_id()?.0.to_string() })
    }

    /// Writes down what is to be run; what an earlier call wrote stays.
    pub fn write_order(&self, order: &Order) -> io::Result<()> {
        self.disk.create(SPEC, &serde_json::to_vec_pretty(order)?).map(|_| ())
    }

    /// What is to be run.
    pub fn order(&self) -> io::Result<Order> {
        let bytes = self.disk.read(SPEC)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// What was noted of a unit that does the job; `None` = no unit does. One that cannot be understood is an error: it
    /// may have been started.
    pub(super) fn note(&self) -> io::Result<Option<Note>> {
        Ok(self.disk.read(NOTE)?.map(|bytes| serde_json::from_slice(&bytes)).transpose()?)
    }

    /// Notes it. `Ok`: durable.
    pub(super) fn write_note(&self, note: &Note) -> io::Result<()> {
        self.disk.replace(NOTE, &serde_json::to_vec(note)?)
    }

    /// Writes down how it ended. `Ok`: durable.
    pub fn write_verdict(&self, verdict: &Verdict) -> io::Result<()> {
        let bytes = snapshot::encode(VERDICT_SCHEMA, 1, verdict).map_err(io::Error::other)?;
        self.disk.replace(VERDICT, &bytes)
    }

    /// Asks the supervisor to end the job; it looks for this when it is woken by SIGTERM.
    pub fn ask_to_kill(&self) -> io::Result<()> {
        self.disk.replace(KILL, b"{}\n")
    }

    /// Somebody asked for the job's end. What cannot be read is no such wish.
    pub fn kill_asked(&self) -> bool {
        matches!(self.disk.read(KILL), Ok(Some(_)))
    }

    /// Gives the space of the output back.
    pub fn drop_output(&self) {
        let _ = self.disk.remove(OUTPUT);
    }

    /// The end of the output on disk, as a verdict has it.
    pub fn output_tail(&self) -> String {
        // What cannot be read says nothing; a verdict does not wait for it.
        let raw = output::read_end(&self.path.join(OUTPUT)).unwrap_or_default();
        readable_tail(&raw, TAIL_BYTES_MAX)
    }

    /// The signs of this job's processes.
    pub fn marks(&self, started: &Started) -> Marks {
        Marks {
            supervisor: started.pid,
            supervisor_start_ticks: started.start_ticks,
            environment: format!("{DIR_VARIABLE}={}", self.path.display()),
        }
    }
}

/// A cycle's id as the name of a directory, or not at all.
pub fn check_cycle(cycle: &str) -> io::Result<()> {
    let fine = !cycle.is_empty()
        && cycle.len() <= 128
        && !cycle.starts_with('.')
        && cycle.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if fine {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{cycle:?} is no id of a cycle")))
}

/// The last part of a job's output, for a page: at most `bytes_max` bytes, whole characters, nothing that moves a cursor,
/// changes colours or turns text round.
pub fn readable_tail(raw: &[u8], bytes_max: usize) -> String {
    let text = String::from_utf8_lossy(raw);
    let mut clean = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' if chars.peek() == Some(&'[') => {
                // A control sequence: up to its final byte.
                chars.next();
                let _ = chars.find(|c| matches!(c, '\u{40}'..='\u{7e}'));
            }
            // Blank lines, and lines that a progress bar wrote over each other, take no room.
            '\n' | '\r' if clean.ends_with('\n') => {}
            '\n' | '\r' => clean.push('\n'),
            '\t' => clean.push(c),
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c if c.is_control() => {}
            c => clean.push(c),
        }
    }
    let mut from = clean.len().saturating_sub(bytes_max);
    while !clean.is_char_boundary(from) {
        from = from.saturating_add(1);
    }
    let tail = clean.get(from..).unwrap_or_default();
    tail.trim_start_matches('\u{fffd}').trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::exit_codes::ExitCodes;
    use crate::core::job::JobResult;

    fn verdict() -> Verdict {
        Verdict {
            result: JobResult::Exited(0),
            reboot_needed: true,
            output_tail: "done".into(),
            codes: ExitCodes::Plain,
        }
    }

    fn dead_supervisor() -> Started {
        Started { pid: 1, start_ticks: u64::MAX, boot: machine::boot_id().unwrap().0.to_string() }
    }

    #[test]
    fn nothing_but_the_started_file_makes_a_job_more_than_new() {
        let temp = tempfile::tempdir().unwrap();
        let dir = JobDir::create(&temp.path().join("jobs/c1")).unwrap();
        assert_eq!(dir.status().unwrap(), JobStatus::New);
        std::fs::File::create(dir.path().join(SPEC)).unwrap();
        std::fs::File::create(dir.path().join(".started.99.tmp")).unwrap();
        assert_eq!(dir.status().unwrap(), JobStatus::New);
        assert!(dir.take(&dead_supervisor()).unwrap());
        assert!(!dir.take(&Started::by_myself().unwrap()).unwrap(), "a second supervisor gets nothing");
        assert_eq!(dir.status().unwrap(), JobStatus::Lost);
        dir.write_verdict(&verdict()).unwrap();
        assert_eq!(dir.status().unwrap(), JobStatus::Ended(verdict()));
    }

    #[test]
    fn a_supervisor_counts_as_alive_only_with_its_start_time_and_its_boot() {
        let me = Started::by_myself().unwrap();
        assert!(me.alive().unwrap().is_some());
        assert!(Started { start_ticks: 1, ..me.clone() }.alive().unwrap().is_none());
        assert!(Started { boot: "another".to_owned(), ..me.clone() }.alive().unwrap().is_none());
        assert!(Started { pid: 0, ..me }.alive().unwrap().is_none());
    }

    #[test]
    fn a_verdict_that_cannot_be_read_is_a_lost_job_and_never_a_good_one() {
        let temp = tempfile::tempdir().unwrap();
        let dir = JobDir::create(temp.path()).unwrap();
        dir.take(&dead_supervisor()).unwrap();
        dir.write_verdict(&verdict()).unwrap();
        let path = temp.path().join(VERDICT);
        let good = std::fs::read(&path).unwrap();
        let torn: [&[u8]; 4] = [b"", &[0; 64], &good[..good.len() / 2], &vec![b' '; 300_000]];
        for bytes in torn {
            std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), bytes).unwrap();
            assert_eq!(dir.status().unwrap(), JobStatus::Lost);
        }
    }

    #[test]
    fn a_started_file_that_cannot_be_read_never_starts_the_job_again() {
        let temp = tempfile::tempdir().unwrap();
        let dir = JobDir::create(temp.path()).unwrap();
        std::fs::File::create(temp.path().join(STARTED)).unwrap();
        assert_eq!(dir.status().unwrap(), JobStatus::Lost);
        assert!(!dir.take(&Started::by_myself().unwrap()).unwrap());
    }

    #[test]
    fn a_page_gets_text_that_only_says_something() {
        let raw = b"\xe4\xb8 first\r\n\x1b[31mred\x1b[0m\x07 \xff\n\n\nlast\x00\n";
        assert_eq!(readable_tail(raw, 2048), "first\nred \u{fffd}\nlast");
        assert_eq!(readable_tail("aäöü".as_bytes(), 5), "öü");
        assert_eq!(readable_tail("ev\u{202e}il".as_bytes(), 100), "evil");
    }

    #[test]
    fn a_cycle_id_cannot_lead_out_of_the_directory() {
        for bad in ["", ".", "..", "../x", "a/b", ".hidden", "a b", "a\0"] {
            assert!(check_cycle(bad).is_err(), "{bad:?}");
        }
        assert!(check_cycle("0198d5c0-7a3e-7cc1-b0d0-3f2b1a6e9c11").is_ok());
    }
}
