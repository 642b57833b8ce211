//! The end of a job whose supervisor does not do its work any more.

use crate::jobs::{CYCLE, LONG_MS, World, gone, shell};
use crate::processes::wait_for;
use backstop::core::exit_codes::ExitCodes;
use backstop::core::job::{JobResult, JobStatus, Verdict};
use backstop::jobs::kill::KILL_BOUND_MS;
use backstop::jobs::processes::find;
use backstop::jobs::verdict::{JobDir, Started};
use backstop::ports::Jobs;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Command};
use std::time::Duration;

/// Kills the job; more time than the stated bound is a failure.
fn kill(world: &World) {
    world.runtime.block_on(async {
        let bound = Duration::from_millis(KILL_BOUND_MS);
        tokio::time::timeout(bound, world.jobs.kill(CYCLE)).await.expect("within the bound").unwrap();
    });
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Takes the job for this process, as a supervisor would.
fn taken_by(world: &World, process: &Child, start_ticks: impl FnOnce(u64) -> u64) -> JobDir {
    let pid = i32::try_from(process.id()).unwrap();
    let dir = JobDir::create(&world.jobs.dir(CYCLE)).unwrap();
    let boot = backstop::host::machine::boot_id().unwrap().0.to_string();
    let start_ticks = start_ticks(find(pid).unwrap().unwrap().start_ticks);
    assert!(dir.take(&Started { pid, start_ticks, boot }).unwrap());
    dir
}

#[test]
fn a_stopped_supervisor_is_killed_with_all_that_its_job_started_in_whatever_session() {
    let world = World::new();
    let dir = world.temp.path().display();
    let script = format!(
        "trap '' TERM; echo said before; sleep 300 & echo $! > {dir}/child; \
         setsid sh -c 'trap \"\" TERM; echo $$ > {dir}/escaped; sleep 300; sleep 300' & \
         (env -i setsid sh -c 'echo $$ > {dir}/orphan; exec sleep 300' &) ; echo $$ > {dir}/parent; wait; sleep 300"
    );
    world.start(&shell(&script), LONG_MS);
    let pids = ["child", "escaped", "orphan", "parent"].map(|name| world.pid(name));
    let output = world.jobs.dir(CYCLE).join("output");
    wait_for("the output", || std::fs::read(&output).ok().filter(|said| !said.is_empty()));
    let supervisor = world.started().pid;
    signal(supervisor, Signal::STOP);
    wait_for("the supervisor to stop", || find(supervisor).unwrap()?.stopped.then_some(()));
    kill(&world);
    for pid in pids.into_iter().chain([supervisor]) {
        assert!(gone(pid), "{pid} of {pids:?} or the supervisor {supervisor} is alive after the kill");
    }
    let verdict = Verdict {
        result: JobResult::Killed,
        reboot_needed: false,
        output_tail: "said before".into(),
        codes: ExitCodes::Plain,
    };
    assert_eq!(world.ask(), JobStatus::Ended(verdict));
}

#[test]
fn the_job_of_a_stopped_supervisor_gets_its_chance_to_end_on_sigterm() {
    let world = World::with(|s| s.grace_ms = 10_000);
    let tidied = world.path("tidied");
    let script = format!(
        "trap 'touch {}; exit 0' TERM; echo $$ > {}; sleep 300 & wait",
        tidied.display(),
        world.path("pid").display()
    );
    world.start(&shell(&script), LONG_MS);
    let pid = world.pid("pid");
    signal(world.started().pid, Signal::STOP);
    kill(&world);
    assert!(gone(pid) && tidied.exists());
}

#[test]
fn a_supervisor_that_hangs_without_a_sign_is_killed_after_its_grace() {
    let world = World::new();
    let script = format!("trap '' TERM; sleep 300 & echo $! > {}; while :; do wait; done", world.path("job").display());
    let mut hung = Command::new("/bin/sh").args(["-c", &script]).spawn().unwrap();
    let job = world.pid("job");
    taken_by(&world, &hung, |ticks| ticks);
    assert_eq!(world.ask(), JobStatus::Running);
    kill(&world);
    assert!(gone(job));
    assert!(!hung.wait().unwrap().success());
    assert!(matches!(world.ask(), JobStatus::Ended(Verdict { result: JobResult::Killed, .. })));
}

#[test]
fn a_process_that_merely_has_the_supervisors_number_is_not_killed() {
    let world = World::new();
    let mut other = Command::new("/bin/sleep").arg("300").spawn().unwrap();
    taken_by(&world, &other, |ticks| ticks - 1);
    kill(&world);
    let lives = other.try_wait().unwrap().is_none();
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(lives);
    assert_eq!(world.ask(), JobStatus::Lost, "how that job ended nobody knows");
}
