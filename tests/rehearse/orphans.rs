//! A rehearsal that is killed leaves no process behind.

use super::{BOUND, PROGRAM};
use backstop::jobs::processes::working_in;
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

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_way_ends_with_a_killed_rehearsal_and_so_does_what_left_its_session() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("kept");
    let mut rehearsal = rehearsal(&dir).await;
    let pid = |name: &str| std::fs::read_to_string(temp.path().join(name)).ok()?.trim().parse::<u32>().ok();
    let at = temp.path().display();
    let script = format!(
        "setsid sh -c 'echo $$ > {at}/escaped; exec sleep 600' & \
         (env -i setsid sh -c 'echo $$ > {at}/orphan; exec sleep 600' &) ; echo $$ > {at}/job; exec sleep 600"
    );
    let started = || ["escaped", "orphan", "job"].into_iter().filter_map(pid).count() == 3;
    let ask = async {
        // The node may be busy with the rehearsal's own job, which is over soon.
        loop {
            let mut run = Command::new(PROGRAM);
            run.arg("--config").arg(dir.join("es-client-1/backstop.toml")).args(["run", "--wait", "4h", "--"]);
            run.args(["sh", "-c", &script]).kill_on_drop(true);
            run.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().await.unwrap();
        }
    };
    tokio::select! {
        () = ask => unreachable!("it asks for ever"),
        begun = pace::until(BOUND, started) => assert!(begun, "the job did not start"),
    }
    let pids: Vec<u32> = ["escaped", "orphan", "job"].into_iter().filter_map(pid).collect();
    end(&mut rehearsal, Signal::KILL).await;
    let left = || pids.iter().copied().filter(|pid| runs(*pid)).collect::<Vec<_>>();
    let gone = pace::until(BOUND, || of(&dir).is_empty() && left().is_empty()).await;
    // Whatever this test shows, nothing of it stays.
    for pid in left() {
        let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL);
    }
    assert!(gone, "{:?} {:?}", of(&dir), left());
    assert_eq!(working_in(&dir).unwrap(), []);
}
