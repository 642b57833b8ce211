//! Where scrapes are answered, for as long as the agent runs. A port that somebody else has, or a socket that cannot be
//! made, is told and tried again and again: metrics are for watching, and nothing waits for them.

use super::notices::Notices;
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::control::server::Replace;
use crate::control::socket;
use crate::metrics::serve::{Expose, Limits, Listener, serve};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use tokio::net::{TcpListener, UnixListener};

/// Between two tries, in ms.
const RETRY_MS: u64 = 10_000;

/// One place where scrapes come in.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// A port on loopback.
    Port(SocketAddr),
    /// A socket for this group.
    Socket(PathBuf, Option<u32>),
}

impl Place {
    /// All places of a config.
    pub(super) fn of(config: &Config) -> Vec<Place> {
        let m = &config.metrics;
        let socket = m.socket.clone().map(|path| {
            let readers = crate::control::peer::group_id(&config.roles.read_group);
            Place::Socket(path, readers)
        });
        m.listen.map(Place::Port).into_iter().chain(socket).collect()
    }

    /// For people.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Place::Port(_) => "metrics port",
            Place::Socket(..) => "metrics socket",
        }
    }

    /// Serves for ever.
    pub(super) async fn answer(self, expose: Expose, clock: SystemClock, notices: Notices) {
        loop {
            let bound = self.bind().await;
            let why = bound.as_ref().err().map(|e| format!("{e:#}; nobody can scrape this agent there"));
            // Who scrapes in vain knows, and has an alert for it.
            notices.odd(self.name(), why);
            match bound {
                Ok((listener, _place)) => return serve(listener, Limits::default(), expose).await,
                Err(_) => clock.sleep_ms(RETRY_MS).await,
            }
        }
    }

    async fn bind(&self) -> anyhow::Result<(Listener, Option<socket::Place>)> {
        match self {
            Place::Port(address) => {
                let tcp = TcpListener::bind(address).await;
                let tcp = tcp.with_context(|| format!("cannot listen on {address}: set metrics.listen, or free it"))?;
                Ok((Listener::Tcp(tcp), None))
            }
            Place::Socket(path, readers) => {
                let (unix, place) = socket::bind(path, *readers, Replace::HoldsInstanceLock)?;
                let unix = UnixListener::from_std(unix).with_context(|| format!("cannot watch {}", path.display()))?;
                Ok((Listener::Unix(unix), Some(place)))
            }
        }
    }
}
