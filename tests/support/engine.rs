//! Real search nodes on this host, by `tests/engine/engine`. `.ci/run` builds them and names their directory in
//! `BACKSTOP_ENGINE`; tests that need them are ignored where nobody did.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/engine/engine");
const HTTP_PORT: u16 = 9200;
/// A client node opens its port after so long, where there is no manager.
const LATE: [&str; 2] = ["--set", "discovery.initial_state_timeout=5s"];

/// The one of these that is built, or else another.
pub(crate) fn preferred(flavor: &str) -> &'static str {
    let all = flavors();
    all.iter().copied().find(|f| *f == flavor).unwrap_or(all[0])
}

/// So many clusters of this binary at a time: two start so slowly on two cores that calls meet their deadlines.
const AT_A_TIME: u8 = 1;
static RUNNING: Mutex<u8> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
static NETS: AtomicU8 = AtomicU8::new(0);

/// The servers that were built.
pub(crate) fn flavors() -> Vec<&'static str> {
    let built = built();
    let all = ["opensearch", "elasticsearch7", "elasticsearch8"];
    let found: Vec<_> = all.into_iter().filter(|f| built.join(f).join("built").exists()).collect();
    assert!(!found.is_empty(), "nothing is built in {}", built.display());
    found
}

fn built() -> PathBuf {
    PathBuf::from(std::env::var_os("BACKSTOP_ENGINE").expect("BACKSTOP_ENGINE names the directory of `engine build`"))
}

/// A cluster, each node on a loopback address of its own. Ends with its value.
pub(crate) struct Engine {
    flavor: &'static str,
    /// The first three bytes of its addresses.
    net: [u8; 3],
    addresses: BTreeMap<String, SocketAddr>,
    dir: tempfile::TempDir,
    // Last: its nodes are gone by then.
    _turn: Turn,
}

/// The right to run a cluster. Waits for one.
struct Turn;

impl Turn {
    fn get() -> Turn {
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = ENDED.wait_while(running, |n| *n >= AT_A_TIME);
        *waited.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ENDED.notify_one();
    }
}

impl Engine {
    /// `m1` manages and holds the data, `c1` and on are client nodes.
    pub(crate) fn cluster(flavor: &'static str, clients: u8) -> Engine {
        let mut engine = Engine::empty(flavor);
        engine.start("m1", "manager,data", &["--bootstrap", "m1"]);
        engine.clients(clients);
        engine
    }

    /// As `cluster`, but the data is on `d1`, so that it outlives the manager.
    pub(crate) fn split(flavor: &'static str, clients: u8) -> Engine {
        let mut engine = Engine::empty(flavor);
        engine.start("m1", "manager", &["--bootstrap", "m1"]);
        engine.start("d1", "data", &[]);
        engine.clients(clients);
        engine
    }

    pub(crate) fn flavor(&self) -> &'static str {
        self.flavor
    }

    /// Nobody yet.
    pub(crate) fn empty(flavor: &'static str) -> Engine {
        let turn = Turn::get();
        // Other runs on this host have other process ids.
        let [low, high, ..] = std::process::id().to_le_bytes();
        let net = [127, 64 | (high & 63), low.wrapping_add(NETS.fetch_add(1, Ordering::SeqCst).wrapping_mul(97))];
        let dir = tempfile::tempdir().expect("a directory");
        Engine { flavor, net, addresses: BTreeMap::new(), dir, _turn: turn }
    }

    /// Starts a node and waits until its HTTP port is bound. A known one starts again as it was: without `--bootstrap`.
    pub(crate) fn start(&mut self, name: &str, roles: &str, more: &[&str]) {
        let address = self.place(name);
        let seeds = format!("{}:9300", self.place("m1").ip());
        let mut args = vec!["start", name, "--roles", roles, "--seeds", &seeds];
        let http = address.to_string();
        args.extend(["--http", &http]);
        args.extend(more);
        self.run(&args);
    }

    fn clients(&mut self, clients: u8) {
        for n in 1..=clients {
            self.start(&format!("c{n}"), "client", &LATE);
        }
        self.wait_joined();
    }

    /// A client node, as `cluster` and `split` start it: the arguments of the script.
    fn client(&self, name: &str) -> Vec<String> {
        let (seeds, http) = (format!("{}:9300", self.address("m1").ip()), self.address(name).to_string());
        let args = ["start", name, "--roles", "client", "--seeds", &seeds, "--http", &http];
        args.into_iter().chain(LATE).map(str::to_owned).collect()
    }

    /// A command line that does this to a node: `stop`, `kill`, `pause` or `resume`.
    pub(crate) fn deed(&self, what: &str, name: &str) -> String {
        self.command_line(&[what.to_owned(), name.to_owned()])
    }

    /// A command line that restarts this client node, and waits until its port is bound.
    pub(crate) fn restart_command(&self, name: &str) -> String {
        format!("{} && {}", self.deed("stop", name), self.command_line(&self.client(name)))
    }

    /// For a shell that knows nothing of the environment here.
    fn command_line(&self, args: &[String]) -> String {
        let command = script(self.flavor, self.dir.path(), self.net, args);
        let path = std::env::var("PATH").expect("a PATH");
        let mut words = vec!["env".to_owned(), format!("PATH={path}")];
        words.extend(
            command.get_envs().filter_map(|(key, value)| Some(format!("{}={}", key.to_str()?, value?.to_str()?))),
        );
        words.push(SCRIPT.to_owned());
        words.extend(args.iter().cloned());
        words.iter().map(|w| format!("'{w}'")).collect::<Vec<_>>().join(" ")
    }

    /// Starts a client node again.
    pub(crate) fn start_client(&self, name: &str) {
        self.run(&self.client(name));
    }

    /// The process that a node is, or was last.
    pub(crate) fn pid(&self, name: &str) -> u32 {
        let file = self.dir.path().join(self.flavor).join("nodes").join(name).join("pid");
        let text = std::fs::read_to_string(file).expect("a node that was started");
        text.split_whitespace().next().and_then(|pid| pid.parse().ok()).expect("a pid")
    }

    /// Waits until every node sees all others.
    pub(crate) fn wait_joined(&self) {
        let count = self.addresses.len().to_string();
        for address in self.addresses.values() {
            self.run(&["joined", &address.to_string(), &count, "120"]);
        }
    }

    fn place(&mut self, name: &str) -> SocketAddr {
        let [a, b, c] = self.net;
        let next = u8::try_from(self.addresses.len() + 10).expect("a few nodes");
        let new = || SocketAddr::from((Ipv4Addr::new(a, b, c, next), HTTP_PORT));
        *self.addresses.entry(name.to_owned()).or_insert_with(new)
    }

    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        self.addresses[name]
    }

    pub(crate) fn url(&self, name: &str) -> Arc<str> {
        format!("http://{}", self.address(name)).into()
    }

    /// SIGTERM, and waits until it is gone.
    pub(crate) fn stop(&self, name: &str) {
        self.run(&["stop", name]);
    }

    /// SIGKILL.
    pub(crate) fn kill(&self, name: &str) {
        self.run(&["kill", name]);
    }

    /// SIGSTOP: connections are accepted, nothing answers.
    pub(crate) fn pause(&self, name: &str) {
        self.run(&["pause", name]);
    }

    /// SIGCONT.
    pub(crate) fn resume(&self, name: &str) {
        self.run(&["resume", name]);
    }

    fn run<A: AsRef<std::ffi::OsStr> + std::fmt::Debug>(&self, args: &[A]) {
        let output = script(self.flavor, self.dir.path(), self.net, args).output().expect("the engine's script runs");
        let said = || String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "engine {args:?}: {}", said());
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Not `run`: a panic in here would hide the test's own.
        let _ = script(self.flavor, self.dir.path(), self.net, &["cluster", "down"]).output();
    }
}

fn script<A: AsRef<std::ffi::OsStr>>(flavor: &str, dir: &Path, net: [u8; 3], args: &[A]) -> Command {
    let mut command = Command::new(SCRIPT);
    command
        .env("ENGINE_BUILD", built())
        .env("ENGINE_DIR", dir)
        .env("ENGINE_FLAVOR", flavor)
        .env("ENGINE_CLUSTER", format!("backstop-{}-{}", net[1], net[2]))
        .env("ENGINE_MAX_SECONDS", "1800")
        .args(args)
        .stdin(Stdio::null());
    command
}
