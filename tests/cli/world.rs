//! A real server in a directory of its own, and the real program as a process.

use crate::fake::Fake;
use backstop::control::roles::Roles;
use backstop::control::server::{Audit, AuditLine, Limits, Replace, Server};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// No single wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct World {
    dir: TempDir,
    pub(crate) fake: Fake,
    pub(crate) audit: Arc<Mutex<Vec<AuditLine>>>,
    server: JoinSet<()>,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) exit: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    /// `text` stands somewhere in stdout, then the next one after it, and so on.
    #[track_caller]
    pub(crate) fn says(&self, texts: &[&str]) -> &Ran {
        in_order("stdout", &self.out, texts);
        self
    }

    /// The same for stderr.
    #[track_caller]
    pub(crate) fn complains(&self, texts: &[&str]) -> &Ran {
        in_order("stderr", &self.err, texts);
        self
    }

    #[track_caller]
    pub(crate) fn exits(&self, exit: u8) -> &Ran {
        assert_eq!(self.exit, i32::from(exit), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("one object on stdout: {e}: {self:?}"))
    }
}

#[track_caller]
fn in_order(what: &str, text: &str, wanted: &[&str]) {
    let mut rest = text;
    for want in wanted {
        let Some(at) = rest.find(want) else { panic!("{want:?} is not (in this order) in {what}:\n{text}") };
        rest = &rest[at + want.len()..];
    }
}

impl World {
    /// A server with its defaults; the own user is admin.
    pub(crate) fn new() -> World {
        let mut world = World::without_server();
        world.start();
        world
    }

    pub(crate) fn with(roles: Roles, limits: Limits) -> World {
        let mut world = World::without_server();
        world.start_with(None, roles, limits);
        world
    }

    pub(crate) fn without_server() -> World {
        let mode = std::fs::Permissions::from_mode(0o755);
        let dir = tempfile::Builder::new().permissions(mode).tempdir().unwrap();
        World { dir, fake: Fake::new(), audit: Arc::default(), server: JoinSet::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("agent.sock")
    }

    pub(crate) fn start(&mut self) {
        self.start_with(None, Roles::root_only(), Limits::default());
    }

    pub(crate) fn start_with(&mut self, gid: Option<u32>, roles: Roles, limits: Limits) {
        let server = Server::bind(&self.socket(), gid, Replace::HoldsInstanceLock).unwrap();
        let lines = self.audit.clone();
        let audit: Audit = Arc::new(move |line| lines.lock().unwrap().push(line));
        let backend = self.fake.clone();
        self.server.spawn(async move { server.serve(backend, roles, limits, audit).await });
    }

    /// The server goes, with every connection.
    pub(crate) async fn stop(&mut self) {
        self.server.shutdown().await;
    }

    /// A config that makes the program's own waits 60 times shorter.
    fn config(&self) -> PathBuf {
        let path = self.path("backstop.toml");
        let text = format!(
            "fleet = \"au-search\"\nminimum_healthy = 3\n[[target_group]]\n\
             arn = \"arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef\"\n\
             [pager.webhook]\nurl = \"http://127.0.0.1:9/page\"\n\
             [elbv2]\nendpoint_url = \"http://127.0.0.1:9\"\n[record]\nstore = \"file\"\nsingle_host = true\n\
             [paths]\nstate_dir = \"{0}/state\"\nruntime_dir = \"{0}\"\nsocket = \"{0}/agent.sock\"\n\
             [rehearsal]\ntime_scale = 60\n",
            self.dir.path().display()
        );
        std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes()).unwrap();
        path
    }

    pub(crate) fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        // A test that is about the config file names its own.
        if !args.contains(&"--config") {
            command.arg("--config").arg(self.config());
        }
        command.args(args);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Starts the program.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        self.command(Path::new(env!("CARGO_BIN_EXE_backstop")), args).spawn().unwrap()
    }

    /// Runs the program to its end.
    pub(crate) async fn backstop(&self, args: &[&str]) -> Ran {
        finish(self.spawn(args)).await
    }

    pub(crate) fn audited(&self) -> Vec<AuditLine> {
        self.audit.lock().unwrap().clone()
    }
}

pub(crate) async fn finish(child: Child) -> Ran {
    let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    Ran {
        exit: output.status.code().unwrap_or(-1),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub(crate) fn interrupt(child: &Child) {
    let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}
