//! A rehearsal that is killed leaves no process behind.

use super::{BOUND, PROGRAM};
use backstop::rehearse::pace;
use std::path::Path;
use std::process::Stdio;

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

#[tokio::test(flavor = "multi_thread")]
async fn neither_ctrl_c_nor_sigkill_of_a_rehearsal_leaves_a_process() {
    for signal in [rustix::process::Signal::INT, rustix::process::Signal::KILL] {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("kept");
        let mut command = tokio::process::Command::new(PROGRAM);
        command.args(["rehearse", "patch-all", "--keep"]).arg(&dir).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut rehearsal = command.spawn().unwrap();
        let me = rehearsal.id().unwrap();
        // Three agents, and their nodes, which are told where their machine's directory is.
        let others = || of(&dir).into_iter().filter(|pid| *pid != me).count();
        assert!(pace::until(BOUND, || others() >= 6).await, "{} processes", others());
        let pid = rustix::process::Pid::from_raw(i32::try_from(me).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
        rehearsal.wait().await.unwrap();
        assert!(pace::until(BOUND, || others() == 0).await, "{signal:?}: {:?}", of(&dir));
    }
}
