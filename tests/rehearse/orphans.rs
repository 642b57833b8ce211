//! A rehearsal that is killed leaves no process behind.

use super::{BOUND, PROGRAM};
use backstop::core::job::RebootPolicy;
use backstop::jobs::processes::working_in;
use backstop::rehearse::fleet::{Fleet, FleetOptions, patch_request};
use backstop::rehearse::pace;
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::Stdio;
use tokio::process::{Child, Command};

/// Alive, and not merely waiting to be collected.
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

/// Processes whose command line names this directory.
fn of(dir: &Path) -> Vec<u32> {
    let name = dir.to_string_lossy().into_owned();
    let pid = |entry: std::fs::DirEntry| entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok());
    let all = std::fs::read_dir("/proc").unwrap().flatten().filter_map(pid);
    let names = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(&name) && runs(*pid)
    };
    all.filter(names).collect()
}

/// A rehearsal of three agents and their nodes, which are told where their machine's directory is.
async fn rehearsal(dir: &Path) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["rehearse", "patch-all", "--keep"]).arg(dir).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let rehearsal = command.spawn().unwrap();
    let enough = || others(dir, &rehearsal).len() >= 6;
    assert!(pace::until(BOUND, enough).await, "{:?}", of(dir));
    rehearsal
}

fn others(dir: &Path, rehearsal: &Child) -> Vec<u32> {
    of(dir).into_iter().filter(|pid| Some(*pid) != rehearsal.id()).collect()
}

async fn end(rehearsal: &mut Child, signal: Signal) {
    let pid = i32::try_from(rehearsal.id().unwrap()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(pid, signal).unwrap();
    rehearsal.wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn neither_ctrl_c_nor_sigkill_of_a_rehearsal_leaves_a_process() {
    for signal in [Signal::INT, Signal::KILL] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("kept");
        let mut rehearsal = rehearsal(&dir).await;
        end(&mut rehearsal, signal).await;
        assert!(pace::until(BOUND, || of(&dir).is_empty()).await, "{signal:?}: {:?}", of(&dir));
    }
}

/// Names the directory of the fleet that this binary is to start, as a process of its own; without it there is nothing to do.
const FLEET_DIR: &str = "BACKSTOP_TEST_FLEET_DIR";
/// The job's script.
const SCRIPT: &str = "BACKSTOP_TEST_SCRIPT";

#[tokio::test(flavor = "multi_thread")]
async fn as_a_fleet_with_a_job_under_way() {
    let (Some(dir), Ok(script)) = (std::env::var_os(FLEET_DIR), std::env::var(SCRIPT)) else { return };
    let mut options = FleetOptions::new(PROGRAM);
    options.groups.iter_mut().for_each(|g| g.deregistration_delay_s = 5);
    options.keep = Some(dir.into());
    let fleet = Fleet::start(options).await.unwrap();
    let machine = fleet.machine(0).unwrap();
    machine.run(&patch_request("patch", &["sh", "-c", &script], RebootPolicy::Never)).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_way_ends_with_a_killed_rehearsal_and_so_does_what_left_its_session() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("kept");
    let at = temp.path().display();
    let script = format!(
        "setsid sh -c 'echo $$ > {at}/escaped; exec sleep 600' & \
         (env -i setsid sh -c 'echo $$ > {at}/orphan; exec sleep 600' &) ; echo $$ > {at}/job; exec sleep 600"
    );
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "orphans::as_a_fleet_with_a_job_under_way", "--nocapture"]).kill_on_drop(true);
    command.env(FLEET_DIR, &dir).env(SCRIPT, &script);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut fleet = command.spawn().unwrap();
    let pids = || {
        let read = |name: &str| std::fs::read_to_string(temp.path().join(name)).ok()?.trim().parse::<u32>().ok();
        ["escaped", "orphan", "job"].into_iter().filter_map(read).collect::<Vec<u32>>()
    };
    assert!(pace::until(BOUND, || pids().len() == 3).await, "the job did not start");
    end(&mut fleet, Signal::KILL).await;
    let left = || pids().into_iter().filter(|pid| runs(*pid)).collect::<Vec<_>>();
    let gone = pace::until(BOUND, || of(&dir).is_empty() && left().is_empty()).await;
    let survivors = left();
    // Whatever this test shows, nothing of it stays.
    for pid in &survivors {
        let _ = kill_process(Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap(), Signal::KILL);
    }
    assert!(gone, "{:?} {survivors:?}", of(&dir));
    assert_eq!(working_in(&dir).unwrap(), []);
}
