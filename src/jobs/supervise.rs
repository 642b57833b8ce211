//! The supervisor of one job: a process of its own, in a session of its own, that waits for the command, bounds it and
//! writes the verdict. The agent may die, be upgraded or restarted meanwhile.

use super::output::{Output, TAIL_BYTES_MAX};
use super::processes::{self, Marks, Process};
use super::verdict::{JobDir, OUTPUT, Order, Started, readable_tail};
use crate::core::exit_codes::ExitCodes;
use crate::core::job::{JobResult, Verdict};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus};
use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;
use tokio::net::unix::pipe;
use tokio::signal::unix::{Signal as SignalStream, SignalKind, signal};

/// What the supervisor tells its starter, as one line on its stdout.
pub(super) const SAY_TAKEN: &str = "backstop-job: taken";
/// Another supervisor has this job.
pub(super) const SAY_TAKEN_BEFORE: &str = "backstop-job: taken before";
/// It could not take the job; the cause follows.
pub(super) const SAY_FAILED: &str = "backstop-job: failed: ";

/// Read from the pipe at once, in bytes.
const READ_BYTES: usize = 8 * 1024;
/// How often is read after the command has ended: a daemon may go on writing to the pipe for ever.
const LATE_READS_MAX: u32 = 128;
/// How often the process table is looked at while a job is being killed, in milliseconds.
const KILL_POLL_MS: u64 = 50;
/// How often a verdict that the disk does not take is tried again, once a second.
const VERDICT_TRIES: u32 = 60;

/// The hidden verb `job-exec`: supervises the job in `dir`, which the process `starter` asks for. Ends when the verdict is
/// durable. To be called first in `main`, before any runtime and any thread.
pub fn job_exec(dir: &Path, starter: u32) -> ExitCode {
    match run(dir, starter) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            say(&format!("{SAY_FAILED}{e}"));
            ExitCode::FAILURE
        }
    }
}

/// As [`job_exec`], from the arguments that [`super::process::Launcher`] adds: `--dir DIR --starter PID`.
pub fn job_exec_args(args: impl IntoIterator<Item = String>) -> ExitCode {
    let (mut dir, mut starter) = (None, None);
    let mut args = args.into_iter();
    while let Some(name) = args.next() {
        match (name.as_str(), args.next()) {
            ("--dir", Some(value)) => dir = Some(value),
            ("--starter", Some(value)) => starter = value.parse().ok(),
            _ => {}
        }
    }
    match (dir, starter) {
        (Some(dir), Some(starter)) => job_exec(Path::new(&dir), starter),
        _ => ExitCode::from(2),
    }
}

fn run(dir: &Path, starter: u32) -> io::Result<()> {
    // From here on no signal to the agent's group, no terminal and no end of the agent's session reaches the job.
    rustix::process::setsid()?;
    // What a package manager creates is not for this user alone.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    // Orphans of the job become our children: so they can be found, and waited for, whatever session they are in.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let dir = JobDir::open(dir)?;
    let order = dir.order()?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(supervise(&dir, &order, starter))
}

/// Signals are watched before the job is taken: from then on SIGTERM wakes this process instead of ending it.
struct Signals {
    child: SignalStream,
    wake: SignalStream,
    _hangup: SignalStream,
    _interrupt: SignalStream,
}

async fn supervise(dir: &JobDir, order: &Order, starter: u32) -> io::Result<()> {
    let mut signals = Signals {
        child: signal(SignalKind::child())?,
        wake: signal(SignalKind::terminate())?,
        _hangup: signal(SignalKind::hangup())?,
        _interrupt: signal(SignalKind::interrupt())?,
    };
    let me = Started::by_myself()?;
    // A starter that is gone may have been followed by one that decided otherwise.
    let parent = rustix::process::getppid().map(Pid::as_raw_nonzero);
    if parent.and_then(|p| u32::try_from(p.get()).ok()) != Some(starter) {
        return Err(io::Error::other("the process that asked for this job is gone"));
    }
    if !dir.take(&me)? {
        say(SAY_TAKEN_BEFORE);
        return Ok(());
    }
    say(SAY_TAKEN);
    let mut output = Output::create(&dir.path().join(OUTPUT), order.output_bytes_max);
    let result = match spawn(order) {
        Err(e) => JobResult::NotStarted(e.to_string().into()),
        Ok((child, pipe)) => {
            let marks = dir.marks(&me);
            let mut watch = Watch { dir, order, marks, child, pipe: Some(pipe), status: None, output: &mut output };
            watch.outcome(&mut signals).await
        }
    };
    let codes = order.job.argv.first().map_or(ExitCodes::Plain, |program| ExitCodes::of_program(program));
    let reboot_needed = order.reboot_markers.iter().any(|marker| marker.exists());
    let output_tail = readable_tail(output.end(), TAIL_BYTES_MAX).into();
    output.finish();
    write_down(dir, &Verdict { result, reboot_needed, output_tail, codes }).await
}

/// A full disk may well be what the job did: the output gives its space back, and the verdict is tried for a while.
/// Meanwhile the job counts as running.
async fn write_down(dir: &JobDir, verdict: &Verdict) -> io::Result<()> {
    let mut tries = 0_u32;
    loop {
        let Err(e) = dir.write_verdict(verdict) else { return Ok(()) };
        tries = tries.saturating_add(1);
        if tries >= VERDICT_TRIES {
            return Err(e);
        }
        dir.drop_output();
        pause(1_000).await;
    }
}

/// Starts the command in a process group of its own, with no stdin, one pipe for all it says, and nothing of our
/// environment.
fn spawn(order: &Order) -> io::Result<(Pid, pipe::Receiver)> {
    let (program, arguments) =
        order.job.argv.split_first().ok_or_else(|| io::Error::other("the job names no command"))?;
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(program.as_ref());
    command.args(arguments.iter().map(AsRef::as_ref));
    command.env_clear().envs(order.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    let child = command.spawn()?;
    // Only the command may hold the pipe's other end.
    drop(command);
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::other("a process without a number"))?;
    Ok((pid, pipe::Receiver::from_owned_fd(reader.into())?))
}

/// How a job comes to its end.
enum End {
    ByItself(WaitStatus),
    Asked,
}

struct Watch<'a> {
    dir: &'a JobDir,
    order: &'a Order,
    marks: Marks,
    child: Pid,
    pipe: Option<pipe::Receiver>,
    status: Option<WaitStatus>,
    output: &'a mut Output,
}

impl Watch<'_> {
    async fn outcome(&mut self, signals: &mut Signals) -> JobResult {
        let limit = Duration::from_millis(self.order.timeout_ms);
        let end = tokio::time::timeout(limit, self.until_end(signals)).await;
        let result = match end {
            Ok(End::ByItself(status)) => {
                self.read_rest();
                // What the job left running, a daemon that it restarted perhaps, is none of our business.
                return result_of(status);
            }
            Ok(End::Asked) => JobResult::Killed,
            Err(_) => JobResult::TimedOut,
        };
        self.kill_all().await;
        result
    }

    /// The end of the direct child, and not of whoever else holds its pipe.
    async fn until_end(&mut self, signals: &mut Signals) -> End {
        // It may have been asked for before anybody listened.
        let mut asked = self.dir.kill_asked();
        loop {
            self.collect();
            if let Some(status) = self.status {
                return End::ByItself(status);
            }
            if asked {
                return End::Asked;
            }
            tokio::select! {
                _ = signals.child.recv() => {}
                // A SIGTERM without the wish in writing, at a shutdown for instance, ends nothing here.
                _ = signals.wake.recv() => asked = self.dir.kill_asked(),
                () = readable(self.pipe.as_ref()) => self.read_output(),
            }
        }
    }

    /// Collects every child that has ended: the command, and orphans of the job, for whose disappearance a script of the
    /// job may be waiting.
    fn collect(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.child => self.status = Some(status),
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// What has been announced as readable.
    fn read_output(&mut self) {
        let mut buffer = [0_u8; READ_BYTES];
        let read = self.pipe.as_ref().map(|pipe| pipe.try_read(&mut buffer));
        self.took(read, &buffer);
    }

    /// All that is in the pipe, announced or not: the end of the command may be seen before its last words are. Bounded.
    fn read_rest(&mut self) {
        let mut buffer = [0_u8; READ_BYTES];
        for _ in 0..LATE_READS_MAX {
            let read = self.pipe.as_ref().map(|pipe| rustix::io::read(pipe, &mut buffer).map_err(io::Error::from));
            if !self.took(read, &buffer) {
                return;
            }
        }
    }

    /// `true`: there was something, and there may be more.
    fn took(&mut self, read: Option<io::Result<usize>>, buffer: &[u8]) -> bool {
        match read {
            Some(Ok(n)) if n > 0 => {
                self.output.take(buffer.get(..n).unwrap_or_default());
                true
            }
            Some(Err(e)) if e.kind() == io::ErrorKind::Interrupted => true,
            Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock => false,
            // Nobody holds the other end any more, or it broke.
            Some(Ok(_) | Err(_)) | None => {
                self.pipe = None;
                false
            }
        }
    }

    /// SIGTERM to all there is, SIGKILL after the grace time, and no end before everything is gone: while something
    /// cannot be killed, the job is not said to be.
    async fn kill_all(&mut self) {
        let mut told = BTreeSet::new();
        let mut waited_ms = 0_u64;
        loop {
            self.collect();
            self.read_rest();
            if processes::members(&self.marks).is_ok_and(|left| left.is_empty()) {
                return;
            }
            let force = waited_ms >= self.order.grace_ms;
            for process in processes::members(&self.marks).unwrap_or_default() {
                push(&process, force, &mut told);
            }
            pause(KILL_POLL_MS).await;
            waited_ms = waited_ms.saturating_add(KILL_POLL_MS);
        }
    }
}

/// SIGTERM once, or SIGKILL.
pub(super) fn push(process: &Process, force: bool, told: &mut BTreeSet<(i32, u64)>) {
    // A process that cannot be signalled is still there at the next look; that look decides.
    if force {
        let _ = processes::signal(process, Signal::KILL);
    } else if told.insert((process.pid, process.start_ticks)) {
        let _ = processes::signal(process, Signal::TERM);
    }
}

async fn readable(pipe: Option<&pipe::Receiver>) {
    let ready = match pipe {
        Some(pipe) => pipe.readable().await,
        None => std::future::pending().await,
    };
    // An error shows again, and is dealt with, when it is read from.
    drop(ready);
}

fn result_of(status: WaitStatus) -> JobResult {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => JobResult::Exited(code),
        (None, Some(signal)) => JobResult::Signalled(signal),
        // waitpid without WUNTRACED and WCONTINUED knows no third way.
        (None, None) => JobResult::Signalled(0),
    }
}

#[expect(clippy::disallowed_methods, reason = "a process of its own, which real time passes for; nothing to compress")]
async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// One line to the starter, who may be gone.
fn say(line: &str) {
    let mut out = io::stdout();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}
