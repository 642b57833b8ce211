//! Jobs with real processes: the agent's part, the supervisor's part, and what is left when either is killed.

use crate::processes::{start_holder, supervisor_launcher, wait_for};
use backstop::core::job::{JobResult, JobSpec, JobStatus, RebootPolicy, Verdict};
use backstop::jobs::output::TAIL_BYTES_MAX;
use backstop::jobs::process::{JobSettings, Launcher, ProcessJobs};
use backstop::jobs::processes::find;
use backstop::jobs::verdict::{JobDir, Started};
use backstop::ports::Jobs;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};

pub(crate) const CYCLE: &str = "cycle-1";
pub(crate) const LONG_MS: u64 = 60_000;

pub(crate) fn shell(script: &str) -> JobSpec {
    command(&["/bin/sh", "-c", script])
}

fn command(argv: &[&str]) -> JobSpec {
    let argv = argv.iter().map(|a| (*a).into()).collect();
    JobSpec { name: "test".into(), argv, reboots: false, reboot: RebootPolicy::Never, unit: None }
}

pub(crate) struct World {
    pub(crate) temp: tempfile::TempDir,
    pub(crate) jobs: ProcessJobs,
    pub(crate) runtime: tokio::runtime::Runtime,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut JobSettings)) -> World {
        let temp = tempfile::tempdir().unwrap();
        let mut settings = settings();
        settings.reboot_markers = vec![temp.path().join("reboot-required")];
        change(&mut settings);
        let jobs = ProcessJobs::new(temp.path(), settings);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        World { temp, jobs, runtime }
    }

    pub(crate) fn start(&self, job: &JobSpec, timeout_ms: u64) {
        self.runtime.block_on(self.jobs.start(CYCLE, job, timeout_ms)).unwrap();
    }

    pub(crate) fn ask(&self) -> JobStatus {
        self.runtime.block_on(self.jobs.ask(CYCLE)).unwrap()
    }

    fn end(&self) -> Verdict {
        wait_for("a verdict", || match self.ask() {
            JobStatus::Ended(verdict) => Some(verdict),
            JobStatus::Running => None,
            other => panic!("{other:?}"),
        })
    }

    fn run(&self, script: &str) -> Verdict {
        self.start(&shell(script), LONG_MS);
        self.end()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.temp.path().join(name)
    }

    /// The number that a script wrote into this file.
    pub(crate) fn pid(&self, name: &str) -> i32 {
        let read = || std::fs::read_to_string(self.path(name)).ok()?.strip_suffix('\n')?.parse().ok();
        wait_for(name, read)
    }

    pub(crate) fn started(&self) -> Started {
        JobDir::open(&self.jobs.dir(CYCLE)).unwrap().started().unwrap().unwrap()
    }
}

fn settings() -> JobSettings {
    JobSettings { launcher: supervisor_launcher(), grace_ms: 200, ..JobSettings::default() }
}

pub(crate) fn gone(pid: i32) -> bool {
    find(pid).unwrap().is_none_or(|p| p.dead)
}

pub(crate) fn sigkill(pid: i32) {
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// For a starter that is killed: see `processes`.
pub(crate) fn start_a_job(state: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let wait = format!("echo $$ > {0}/pid; while [ ! -e {0}/go ]; do sleep 0.02; done; exit 7", state.display());
    runtime.block_on(ProcessJobs::new(state, settings()).start(CYCLE, &shell(&wait), LONG_MS)).unwrap();
}

#[test]
fn exit_codes_and_signals_come_out_as_they_are() {
    for (script, result) in [
        ("exit 0", JobResult::Exited(0)),
        ("exit 3", JobResult::Exited(3)),
        ("exit 127", JobResult::Exited(127)),
        ("kill -9 $$", JobResult::Signalled(9)),
        ("kill -15 $$", JobResult::Signalled(15)),
    ] {
        let world = World::new();
        assert_eq!(world.ask(), JobStatus::New);
        assert_eq!(world.run(script).result, result, "{script}");
        assert_eq!(world.run("exit 99").result, result, "a second start changes nothing");
    }
}

#[test]
fn a_command_that_is_not_there_is_a_verdict_and_not_a_lost_job() {
    for argv in [&["/nonexistent/patch"][..], &["no-such-command"], &["/etc/hostname"], &["/"], &[]] {
        let world = World::new();
        world.start(&command(argv), LONG_MS);
        assert!(matches!(world.end().result, JobResult::NotStarted(_)), "{argv:?}");
    }
}

#[test]
fn a_job_that_hangs_is_killed_with_whatever_it_started_in_whatever_session() {
    let world = World::new();
    let dir = world.temp.path().display();
    let script = format!(
        "trap '' TERM; sleep 300 & echo $! > {dir}/child; \
         setsid sh -c 'trap \"\" TERM; echo $$ > {dir}/escaped; sleep 300; sleep 300' & \
         (env -i setsid sh -c 'echo $$ > {dir}/orphan; exec sleep 300' &) ; echo $$ > {dir}/parent; wait; sleep 300"
    );
    world.start(&shell(&script), 1_000);
    let pids = ["child", "escaped", "orphan", "parent"].map(|name| world.pid(name));
    assert_eq!(world.end().result, JobResult::TimedOut);
    for pid in pids {
        assert!(gone(pid), "{pid} of {pids:?} is alive after the verdict");
    }
}

#[test]
fn a_job_that_can_end_on_sigterm_gets_the_chance() {
    let world = World::with(|s| s.grace_ms = 20_000);
    world.start(&shell("trap 'echo tidied up; exit 0' TERM; sleep 300 & wait"), 300);
    let verdict = world.end();
    assert_eq!((verdict.result, &*verdict.output_tail), (JobResult::TimedOut, "tidied up"));
}

#[test]
fn a_daemon_that_keeps_the_pipe_neither_holds_the_verdict_nor_dies_of_it() {
    let world = World::new();
    let script = format!("echo before; sleep 300 & echo $! > {}; exit 0", world.path("daemon").display());
    let verdict = world.run(&script);
    let daemon = world.pid("daemon");
    let after_the_job = gone(daemon);
    world.runtime.block_on(world.jobs.kill(CYCLE)).unwrap();
    let after_the_kill = gone(daemon);
    if !after_the_kill {
        sigkill(daemon);
    }
    assert_eq!((verdict.result, &*verdict.output_tail), (JobResult::Exited(0), "before"));
    assert!(!after_the_job, "what a good job leaves running is not killed");
    assert!(!after_the_kill, "nor by a kill that comes too late");
}

#[test]
fn the_last_words_of_a_job_that_ends_at_once_are_in_the_verdict() {
    for n in 0..20 {
        let verdict = World::new().run(&format!("echo {n}"));
        assert_eq!(&*verdict.output_tail, n.to_string());
    }
}

#[test]
fn a_script_that_waits_for_an_orphan_to_disappear_does_not_wait_for_ever() {
    let world = World::new();
    let script =
        "(sleep 0.05 & echo $! > \"$0\"); pid=$(cat \"$0\"); while kill -0 $pid 2>/dev/null; do sleep 0.02; done";
    let file = world.path("orphan");
    world.start(&command(&["/bin/sh", "-c", script, file.to_str().unwrap()]), 20_000);
    assert_eq!(world.end().result, JobResult::Exited(0));
}

#[test]
fn a_killed_supervisor_is_a_lost_job_and_the_job_never_runs_again() {
    let world = World::new();
    let ran = world.path("ran");
    let script = format!("echo x >> {}; echo $$ > {}; sleep 300", ran.display(), world.path("pid").display());
    world.start(&shell(&script), LONG_MS);
    let pid = world.pid("pid");
    assert_eq!(world.ask(), JobStatus::Running);
    sigkill(world.started().pid);
    wait_for("the job to be lost", || (world.ask() == JobStatus::Lost).then_some(()));
    world.start(&shell(&script), LONG_MS);
    assert_eq!(world.ask(), JobStatus::Lost);
    world.runtime.block_on(world.jobs.kill(CYCLE)).unwrap();
    assert!(gone(pid), "what a lost job left is found and killed");
    assert_eq!(world.ask(), JobStatus::Lost, "and still nobody knows what it did");
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "x\n");
}

#[test]
fn the_verdict_arrives_although_the_starter_was_killed() {
    let world = World::new();
    let (mut starter, _lines) = start_holder("starter", world.temp.path());
    let pid = world.pid("pid");
    starter.kill().unwrap();
    starter.wait().unwrap();
    assert_eq!(world.ask(), JobStatus::Running);
    assert!(!gone(pid));
    File::create(world.path("go")).unwrap();
    assert_eq!(world.end().result, JobResult::Exited(7));
}

#[test]
fn a_sigterm_to_the_supervisor_alone_ends_nothing() {
    let world = World::new();
    let go = world.path("go");
    world.start(&shell(&format!("while [ ! -e {} ]; do sleep 0.02; done", go.display())), LONG_MS);
    kill_process(Pid::from_raw(world.started().pid).unwrap(), Signal::TERM).unwrap();
    File::create(go).unwrap();
    assert_eq!(world.end().result, JobResult::Exited(0));
}

#[test]
fn a_kill_returns_when_the_job_is_gone_and_the_verdict_says_killed() {
    let world = World::new();
    let file = world.path("pid");
    world.start(&shell(&format!("trap '' TERM; echo $$ > {}; while :; do sleep 1; done", file.display())), LONG_MS);
    let pid = world.pid("pid");
    world.runtime.block_on(world.jobs.kill(CYCLE)).unwrap();
    assert!(gone(pid));
    assert!(matches!(world.ask(), JobStatus::Ended(Verdict { result: JobResult::Killed, .. })));
    world.runtime.block_on(world.jobs.kill(CYCLE)).unwrap();
}

#[test]
fn a_job_that_was_called_off_before_it_started_never_starts() {
    let world = World::new();
    world.runtime.block_on(world.jobs.kill(CYCLE)).unwrap();
    let ran = world.path("ran");
    world.start(&shell(&format!("touch {}", ran.display())), LONG_MS);
    assert_eq!(world.end().result, JobResult::Killed);
    assert!(!ran.exists());
}

#[test]
fn of_many_starts_at_once_one_runs_the_job() {
    let world = World::new();
    let ran = world.path("ran");
    let job = shell(&format!("echo x >> {}", ran.display()));
    let start = || world.jobs.start(CYCLE, &job, LONG_MS);
    let all = world.runtime.block_on(async { tokio::join!(start(), start(), start(), start()) });
    assert!(all.0.is_ok() && all.1.is_ok() && all.2.is_ok() && all.3.is_ok(), "{all:?}");
    assert_eq!(world.end().result, JobResult::Exited(0));
    assert_eq!(std::fs::read_to_string(ran).unwrap(), "x\n");
}

#[test]
fn a_supervisor_whose_starter_is_gone_takes_no_job() {
    let world = World::new();
    let dir = JobDir::create(&world.jobs.dir(CYCLE)).unwrap();
    // A supervisor that was started by somebody else than it was told.
    let mut launcher = supervisor_launcher();
    launcher.leading_arguments.extend(["--starter".to_owned(), "1".to_owned()]);
    let mut command = std::process::Command::new(&launcher.program);
    command.args(&launcher.leading_arguments).arg("--dir").arg(dir.path());
    // The order of a job that would leave a trace.
    let ran = world.path("ran");
    let order = backstop::jobs::verdict::Order {
        cycle: CYCLE.to_owned(),
        job: shell(&format!("touch {}", ran.display())),
        timeout_ms: LONG_MS,
        grace_ms: 0,
        output_bytes_max: 4096,
        environment: Vec::new(),
        reboot_markers: Vec::new(),
    };
    dir.write_order(&order).unwrap();
    let output = command.output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("is gone"), "{output:?}");
    assert_eq!(world.ask(), JobStatus::New, "a later start is safe");
    assert!(!ran.exists());
}

#[test]
fn a_supervisor_that_cannot_be_started_is_a_fault_and_the_job_stays_new() {
    let nowhere = Launcher { program: "/nonexistent/backstop".into(), leading_arguments: Vec::new() };
    let silent = Launcher { program: "/bin/true".into(), leading_arguments: Vec::new() };
    for launcher in [nowhere, silent] {
        let world = World::with(|s| s.launcher = launcher);
        let started = world.runtime.block_on(world.jobs.start(CYCLE, &shell("exit 0"), LONG_MS));
        assert!(started.is_err());
        assert_eq!(world.ask(), JobStatus::New);
    }
}

#[test]
fn fifty_mebibytes_of_output_neither_block_nor_end_a_job_and_the_file_says_what_is_missing() {
    let world = World::with(|s| s.output_bytes_max = 256 * 1024);
    let verdict =
        world.run("echo the first line; yes 'a line of output' | head -c 52428800; echo; echo the last line >&2");
    assert_eq!(verdict.result, JobResult::Exited(0));
    assert!(verdict.output_tail.ends_with("\nthe last line"), "{}", verdict.output_tail);
    assert!(verdict.output_tail.len() <= TAIL_BYTES_MAX && verdict.output_tail.len() > TAIL_BYTES_MAX / 2);
    let kept = std::fs::read_to_string(world.jobs.dir(CYCLE).join("output")).unwrap();
    assert!(kept.len() <= 256 * 1024, "{}", kept.len());
    assert!(kept.starts_with("the first line\na line of output\n") && kept.ends_with("\nthe last line\n"));
    assert_eq!(kept.matches("bytes of output were left out here: job.output_max_kib").count(), 1);
}

#[test]
fn a_job_has_no_stdin_no_terminal_and_nothing_of_the_agents_environment() {
    let world = World::new();
    let verdict =
        world.run("read line && echo read; (echo x > /dev/tty) 2>/dev/null && echo terminal; env | sort; umask");
    let said: Vec<&str> = verdict.output_tail.lines().collect();
    let names: Vec<&str> = said.iter().filter_map(|l| l.split_once('=')).map(|(n, _)| n).collect();
    let shells_own = ["OLDPWD", "PWD", "SHLVL", "_"];
    let given: Vec<&str> = names.into_iter().filter(|n| !shells_own.contains(n)).collect();
    assert_eq!(given, ["BACKSTOP_CYCLE", "BACKSTOP_JOB_DIR", "DEBIAN_FRONTEND", "HOME", "LANG", "PATH"], "{said:?}");
    assert!(!said.contains(&"read") && !said.contains(&"terminal"), "{said:?}");
    assert_eq!(said.last(), Some(&"0022"));
}

#[test]
fn a_verdict_that_the_disk_does_not_take_at_first_is_tried_again() {
    let world = World::new();
    let script = format!("mkdir \"$BACKSTOP_JOB_DIR/.verdict.tmp\"; echo $$ > {}; exit 5", world.path("pid").display());
    world.start(&shell(&script), LONG_MS);
    let pid = world.pid("pid");
    wait_for("the command to end", || gone(pid).then_some(()));
    assert_eq!(world.ask(), JobStatus::Running, "its end is not told before it is written down");
    std::fs::remove_dir(world.jobs.dir(CYCLE).join(".verdict.tmp")).unwrap();
    assert_eq!(world.end().result, JobResult::Exited(5));
}

#[test]
fn a_marker_file_after_the_job_means_that_a_reboot_is_needed() {
    let world = World::new();
    assert!(world.run(&format!("touch {}", world.path("reboot-required").display())).reboot_needed);
    assert!(!World::new().run("exit 0").reboot_needed);
}

#[test]
fn a_cycle_id_that_is_no_name_is_refused() {
    let world = World::new();
    let refused = world.runtime.block_on(world.jobs.start("../x", &shell("exit 0"), LONG_MS)).unwrap_err();
    assert_eq!(refused.class, backstop::core::error::Class::Refused);
}

#[test]
fn the_directories_of_old_jobs_are_removed_but_not_of_one_that_runs() {
    let world = World::new();
    world.start(&shell(&format!("while [ ! -e {} ]; do sleep 0.02; done", world.path("go").display())), LONG_MS);
    for n in 0..backstop::jobs::process::JOBS_KEPT + 2 {
        world.runtime.block_on(world.jobs.kill(&format!("old-{n:02}"))).unwrap();
    }
    world.runtime.block_on(world.jobs.start("new", &shell("exit 0"), LONG_MS)).unwrap();
    let left = std::fs::read_dir(world.path("jobs")).unwrap().count();
    assert!(left <= backstop::jobs::process::JOBS_KEPT + 2, "{left}");
    assert_eq!(world.ask(), JobStatus::Running);
    File::create(world.path("go")).unwrap();
    assert_eq!(world.end().result, JobResult::Exited(0));
}
