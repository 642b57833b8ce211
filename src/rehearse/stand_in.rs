//! The stand-in for machines: what `systemctl reboot` is on a real one. It ends the agent and the node of an instance, and
//! starts both again under another boot id.

use super::fleet::Machine;
use super::http::{self, Answer, Response, Server, Service};
use super::pace::{self, Task};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;
use tokio::sync::watch;

#[derive(Debug, Default)]
struct Shared {
    machines: BTreeMap<String, Machine>,
    /// Reboots under way.
    running: BTreeMap<String, Task>,
    refuse: bool,
}

/// The handle.
#[derive(Clone, Debug, Default)]
pub struct StandInControl(Arc<Mutex<Shared>>);

impl StandInControl {
    /// From now on it answers for this machine too.
    pub fn add(&self, machine: Machine) {
        pace::lock(&self.0).machines.insert(machine.instance().to_owned(), machine);
    }

    /// Machines refuse to restart (503), or no longer.
    pub fn refuse(&self, refuse: bool) {
        pace::lock(&self.0).refuse = refuse;
    }

    /// Lets go of machines and reboots under way.
    pub fn clear(&self) {
        let mut shared = pace::lock(&self.0);
        shared.running.clear();
        shared.machines.clear();
    }

    fn reboot(&self, instance: &str) -> u16 {
        let mut shared = pace::lock(&self.0);
        if shared.refuse {
            return 503;
        }
        let Some(machine) = shared.machines.get(instance).cloned() else { return 404 };
        // Answered before it goes down, as the real command comes back before the machine does.
        let task = Task::start(async move { machine.reboot().await });
        shared.running.insert(instance.to_owned(), task);
        202
    }
}

impl Service for StandInControl {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| async move {
            let status = match (request.method.as_str(), request.path().strip_prefix("/reboot/")) {
                ("POST", Some(instance)) => self.reboot(instance),
                _ => 404,
            };
            Answer::Reply(Response::new(status, "text/plain", http::reason(status)))
        })
        .await;
    }
}

/// A running stand-in.
#[derive(Debug)]
pub struct StandIn {
    server: Server,
    control: StandInControl,
}

impl StandIn {
    /// Listens on `address` (port 0: a free one).
    ///
    /// # Errors
    /// The address cannot be bound.
    pub async fn start(address: SocketAddr) -> io::Result<StandIn> {
        let control = StandInControl::default();
        Ok(StandIn { server: Server::start(address, control.clone()).await?, control })
    }

    /// Base URL, as `rehearsal.host` wants it.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// The handle.
    pub fn control(&self) -> StandInControl {
        self.control.clone()
    }
}
