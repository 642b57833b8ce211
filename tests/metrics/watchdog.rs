//! systemd's side of the watchdog, with a real agent.

use crate::agents::options;
use crate::support::BOUND;
use backstop::rehearse::fleet::{Fleet, Machine};
use backstop::rehearse::pace;
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

/// systemd's socket: never blocks.
struct Systemd {
    socket: UnixDatagram,
    pings: usize,
    ready: bool,
}

impl Systemd {
    fn listen(path: &Path) -> Systemd {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Systemd { socket, pings: 0, ready: false }
    }

    /// Takes in all that was said.
    fn hear(&mut self) -> usize {
        let mut bytes = [0; 4096];
        while let Ok(n) = self.socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            self.pings += text.lines().filter(|l| *l == "WATCHDOG=1").count();
            self.ready |= text.lines().any(|l| l == "READY=1");
        }
        self.pings
    }

    /// So many more.
    async fn hears(&mut self, more: usize, who: &Machine) {
        let wanted = self.hear() + more;
        assert!(pace::until(BOUND, || self.hear() >= wanted).await, "{}", who.agent_log());
    }
}

/// Starts the agent anew under a watchdog of this many microseconds.
async fn watched(machine: &Machine, usec: &str) -> Systemd {
    machine.kill_agent().await.unwrap();
    let path = machine.dir().join("notify");
    let systemd = Systemd::listen(&path);
    machine.agent_env(&[("NOTIFY_SOCKET", &path.to_string_lossy()), ("WATCHDOG_USEC", usec)]);
    machine.start_agent().unwrap();
    systemd
}

fn stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[tokio::test]
async fn an_agent_pings_while_it_turns_and_not_while_it_is_stopped() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let (me, other) = (fleet.machine(0).unwrap(), fleet.machine(1).unwrap());
    let mut mine = watched(me, "100000").await;
    let mut others = watched(other, "100000").await;
    mine.hears(5, me).await;
    others.hears(5, other).await;
    assert!(pace::until(BOUND, || (mine.hear(), mine.ready).1).await, "it is ready too");
    let pid = me.agent_pid().unwrap();
    me.signal_agent(Signal::STOP);
    assert!(pace::until(BOUND, || stopped(pid)).await);
    let before = mine.hear();
    // The other agent's pings are the measure of time: as long as ten of its own would have taken.
    others.hears(10, other).await;
    assert_eq!(mine.hear(), before, "a stopped agent is silent");
    me.signal_agent(Signal::CONT);
    mine.hears(3, me).await;
}

#[tokio::test]
async fn an_agent_that_nobody_watches_pings_nobody() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let (me, other) = (fleet.machine(0).unwrap(), fleet.machine(1).unwrap());
    me.kill_agent().await.unwrap();
    let path = me.dir().join("notify");
    let mut mine = Systemd::listen(&path);
    // For another process: systemd means whoever has that id.
    let env = [("NOTIFY_SOCKET", &*path.to_string_lossy()), ("WATCHDOG_USEC", "100000"), ("WATCHDOG_PID", "1")];
    me.agent_env(&env);
    me.start_agent().unwrap();
    let mut others = watched(other, "100000").await;
    assert!(pace::until(BOUND, || (mine.hear(), mine.ready).1).await, "{}", me.agent_log());
    others.hears(10, other).await;
    assert_eq!(mine.hear(), 0);
}
