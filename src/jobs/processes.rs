//! The process table as far as jobs need it: who is alive, who belongs to a job, and signals that cannot hit a
//! process that merely has the same number.

use super::verdict::DIR_VARIABLE;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::BTreeSet;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// One line of `/proc/<pid>/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, which is used again one day.
    pub pid: i32,
    /// When it started, in clock ticks since boot: with the number it names one process of this boot.
    pub start_ticks: u64,
    /// Its parent.
    pub parent: i32,
    /// Its session.
    pub session: i32,
    /// It has ended and only waits to be collected.
    pub dead: bool,
    /// A signal stopped it: it does nothing until somebody lets it go on.
    pub stopped: bool,
}

/// Reads one line of `/proc/<pid>/stat`. The name in it may contain anything, also blanks and brackets.
pub fn parse_stat(text: &str) -> Option<Process> {
    let (front, back) = text.rsplit_once(')')?;
    let pid = front.split_once(' ')?.0.parse().ok()?;
    let mut fields = back.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let _group = fields.next()?;
    let session = fields.next()?.parse().ok()?;
    // Fields 7 to 21 are of no interest; the start time is field 22.
    let start_ticks = fields.nth(15)?.parse().ok()?;
    let dead = matches!(state, "Z" | "X" | "x");
    Some(Process { pid, start_ticks, parent, session, dead, stopped: state == "T" })
}

/// One process; `None` = there is none of this number. An error means that it cannot be told.
pub fn find(pid: i32) -> io::Result<Option<Process>> {
    match std::fs::read(format!("/proc/{pid}/stat")) {
        Ok(bytes) => match parse_stat(&String::from_utf8_lossy(&bytes)) {
            Some(process) => Ok(Some(process)),
            None => Err(io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat has another form"))),
        },
        // ESRCH: it ended between open and read.
        Err(e) if e.kind() == io::ErrorKind::NotFound || e.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// This process.
pub fn myself() -> io::Result<Process> {
    let pid = i32::try_from(std::process::id()).map_err(io::Error::other)?;
    find(pid)?.ok_or_else(|| io::Error::other("/proc does not show this process; is it mounted?"))
}

/// All processes that can be seen.
pub fn table() -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        all.extend(find(pid)?);
    }
    Ok(all)
}

/// What marks the processes of one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marks {
    /// The supervisor, alive or not. It is no part of the job. 0 = not known.
    pub supervisor: i32,
    /// When the supervisor started.
    pub supervisor_start_ticks: u64,
    /// `NAME=value` in the environment that the command was given.
    pub environment: String,
}

/// The processes of a job that are alive, by three signs of which one suffices, since each can be lost: session (a
/// package manager may open one of its own), descent (lost when the supervisor, who adopts all orphans, is dead) and
/// environment (sudo takes it away).
pub fn members(marks: &Marks) -> io::Result<Vec<Process>> {
    let all = table()?;
    let me = std::process::id();
    // The number of a dead supervisor may belong to somebody else by now; then its session and children are no sign.
    let reused = all.iter().any(|p| p.pid == marks.supervisor && p.start_ticks != marks.supervisor_start_ticks);
    let mut family = BTreeSet::new();
    if marks.supervisor > 0 && !reused {
        family.insert(marks.supervisor);
        family.extend(all.iter().filter(|p| p.session == marks.supervisor).map(|p| p.pid));
    }
    let marked = |p: &&Process| u32::try_from(p.pid) != Ok(me) && carries(p.pid, &marks.environment);
    family.extend(all.iter().filter(marked).map(|p| p.pid));
    add_descendants(&all, &mut family);
    // Started before the supervisor = no part of its job, whatever the signs say.
    let belongs = |p: &Process| {
        family.contains(&p.pid)
            && p.pid != marks.supervisor
            && u32::try_from(p.pid) != Ok(me)
            && p.start_ticks >= marks.supervisor_start_ticks
            && !p.dead
    };
    Ok(all.into_iter().filter(belongs).collect())
}

/// All that is alive and works in this directory: an argument is a path below it, or the environment names a job there;
/// and whatever these started. For a rehearsal, whose agents and jobs must not outlive it.
pub fn working_in(dir: &Path) -> io::Result<Vec<Process>> {
    let all = table()?;
    let me = std::process::id();
    let below = [dir.as_os_str().as_bytes(), b"/"].concat();
    let mark = [DIR_VARIABLE.as_bytes(), b"=", &below].concat();
    let has = |pid: i32, file: &str, start: &[u8]| {
        let text = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        text.split(|b| *b == 0).any(|entry| entry.starts_with(start))
    };
    let works = |p: &&Process| {
        u32::try_from(p.pid) != Ok(me) && (has(p.pid, "cmdline", &below) || has(p.pid, "environ", &mark))
    };
    let mut family: BTreeSet<i32> = all.iter().filter(works).map(|p| p.pid).collect();
    add_descendants(&all, &mut family);
    Ok(all.into_iter().filter(|p| family.contains(&p.pid) && u32::try_from(p.pid) != Ok(me) && !p.dead).collect())
}

/// Adds children, grandchildren and so on.
fn add_descendants(all: &[Process], family: &mut BTreeSet<i32>) {
    loop {
        let children: Vec<i32> = all.iter().filter(|p| family.contains(&p.parent)).map(|p| p.pid).collect();
        let before = family.len();
        family.extend(children);
        if family.len() == before {
            return;
        }
    }
}

/// The process has this assignment in the environment it was started with. What cannot be read does not.
fn carries(pid: i32, assignment: &str) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environ.split(|b| *b == 0).any(|entry| entry == assignment.as_bytes())
}

/// Sends a signal to this very process and no other of its number. One that is gone is no error.
pub fn signal(process: &Process, signal: Signal) -> io::Result<()> {
    let Some(pid) = Pid::from_raw(process.pid) else { return Ok(()) };
    let handle = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(handle) => handle,
        Err(Errno::SRCH) => return Ok(()),
        Err(e) => return Err(e.into()),
    };
    // The handle is fixed now: if the number still means the same start, so does the handle.
    if find(process.pid)?.is_none_or(|now| now.start_ticks != process.start_ticks) {
        return Ok(());
    }
    match pidfd_send_signal(&handle, signal) {
        Ok(()) | Err(Errno::SRCH) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let line = "4242 (a) S 1 (b) R 17 18 19 0 -1 4194304 104 0 0 0 0 0 0 0 20 0 1 0 79026 3133440 390";
        let p = parse_stat(line).unwrap();
        assert_eq!(p, Process { pid: 4242, start_ticks: 79026, parent: 17, session: 19, dead: false, stopped: false });
        assert!(parse_stat(&line.replace(" R ", " Z ")).unwrap().dead);
        assert!(parse_stat(&line.replace(" R ", " T ")).unwrap().stopped);
        assert_eq!(parse_stat("4242 (a) R 17"), None);
    }

    #[test]
    fn this_process_is_found_with_the_parent_the_kernel_names() {
        let me = myself().unwrap();
        assert_eq!(Pid::from_raw(me.parent), rustix::process::getppid());
        assert!(table().unwrap().contains(&me));
    }

    #[test]
    fn a_signal_for_a_number_that_was_used_again_hits_nobody() {
        let mut me = myself().unwrap();
        me.start_ticks = me.start_ticks.saturating_sub(1);
        signal(&me, Signal::KILL).unwrap();
    }
}
