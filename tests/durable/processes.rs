//! This test binary as another process: it is started again with the name of one of the tests below and, behind `--`,
//! with what it is to be. In an ordinary run they have nothing to do.

use backstop::fleet::file::FileStore;
use backstop::jobs::process::Launcher;
use backstop::jobs::supervise::job_exec_args;
use backstop::state::lock::InstanceLock;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

fn arguments(role: &str) -> Option<Vec<String>> {
    let mut all = std::env::args().skip_while(|a| a != "--").skip(1);
    (all.next()? == role).then(|| all.collect())
}

fn leading(test: &str, role: &str) -> Vec<String> {
    ["--exact", &format!("processes::{test}"), "--nocapture", "--", role].map(str::to_owned).to_vec()
}

/// Starts this binary as the supervisor of a job.
pub(crate) fn supervisor_launcher() -> Launcher {
    Launcher { program: std::env::current_exe().unwrap(), leading_arguments: leading("as_supervisor", "job-exec") }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this process is the supervisor, not the test runner")]
fn as_supervisor() {
    let Some(args) = arguments("job-exec") else { return };
    // ExitCode cannot be asked for its number; the verdict file is what counts.
    let _ = job_exec_args(args);
    std::process::exit(0);
}

/// Holds something until it is killed, after it has said so.
pub(crate) fn start_holder(role: &str, path: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(leading("as_holder", role)).arg(path);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("holding") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "the holder ended");
    }
    (child, lines)
}

#[test]
fn as_holder() {
    let hold = |_held: &dyn std::any::Any| {
        println!("holding");
        std::io::stdout().flush().unwrap();
        loop {
            std::thread::park();
        }
    };
    if let Some(args) = arguments("instance-lock") {
        hold(&InstanceLock::acquire(Path::new(&args[0])).unwrap());
    }
    if let Some(args) = arguments("store-lock") {
        let store = FileStore::open(Path::new(&args[0])).unwrap();
        store.create(b"0").unwrap();
        let file = File::open(Path::new(&args[0]).join("lock")).unwrap();
        file.lock().unwrap();
        hold(&file);
    }
    if let Some(args) = arguments("starter") {
        crate::jobs::start_a_job(Path::new(&args[0]));
        hold(&());
    }
}

/// Waits for a condition, at most half a minute.
#[expect(clippy::disallowed_methods, reason = "real processes take real time; the condition decides, not the time")]
pub(crate) fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
