//! The control socket, for as long as the agent runs. One that cannot be made (or not safely) is tried again and again: a
//! node must come home whether or not anybody can ask about it.

use super::front::Front;
use super::notices::Notices;
use crate::agent::turns::{Loop, Turns};
use crate::clock::{Clock, SystemClock};
use crate::config::Config;
use crate::control::backend::Backend;
use crate::control::roles::{Roles, Verb};
use crate::control::server::{Audit as Lines, Limits, Outcome, Replace, Server};
use crate::core::page::Severity;
use crate::state::audit::Audit;
use crate::state::disk::LinuxDisk;
use anyhow::Context as _;
use std::path::PathBuf;
use std::sync::Arc;

/// Between two tries to make the socket, in ms.
const RETRY_MS: u64 = 10_000;

/// What the socket is made from.
#[derive(Clone)]
pub(super) struct Door<B> {
    pub(super) front: Front<B>,
    path: PathBuf,
    readers: Option<u32>,
    roles: Roles,
    lines: Lines,
    clock: SystemClock,
    notices: Notices,
    turns: Turns,
}

impl<B: Backend> Door<B> {
    pub(super) fn new(
        config: &Config,
        disk: &Arc<LinuxDisk>,
        clock: SystemClock,
        notices: Notices,
        turns: Turns,
    ) -> Door<B> {
        let r = &config.roles;
        Door {
            front: Front::new(config, clock.clone(), notices.clone()),
            path: config.paths.socket.clone(),
            readers: crate::control::peer::group_id(&r.read_group),
            roles: Roles::named(&r.read_group, r.act_group.as_deref(), r.admin_group.as_deref()),
            lines: denied(Audit::new(disk.clone()), clock.clone()),
            clock,
            notices,
            turns,
        }
    }

    /// Serves for ever. A socket that somebody has removed is made again.
    pub(super) async fn serve(self) {
        let (turns, clock) = (self.turns.clone(), self.clock.clone());
        let served = async move {
            loop {
                let server = self.server().await;
                let (front, roles, lines) = (self.front.clone(), self.roles.clone(), self.lines.clone());
                tokio::select! {
                    () = server.serve(front, roles, Limits::default(), lines) => {}
                    () = self.removed(&server) => {
                        tracing::warn!(path = %self.path.display(), "the control socket was removed; it is made again");
                    }
                }
            }
        };
        turns.serving(Loop::Socket, &clock, served).await;
    }

    async fn removed(&self, server: &Server) {
        while server.stands() {
            self.clock.sleep_ms(RETRY_MS).await;
        }
    }

    async fn server(&self) -> Server {
        loop {
            let bound = self.bind();
            let why = bound.as_ref().err().map(|e| format!("{e:#}; nobody can ask this agent anything"));
            self.notices.wrong("control socket", Severity::Warning, why);
            match bound {
                Ok(server) => return server,
                Err(_) => self.clock.sleep_ms(RETRY_MS).await,
            }
        }
    }

    fn bind(&self) -> anyhow::Result<Server> {
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("runtime directory {}", dir.display()))?;
        }
        Ok(Server::bind(&self.path, self.readers, Replace::HoldsInstanceLock)?)
    }
}

/// What a caller was not allowed, in the audit journal; what was allowed writes its own line.
fn denied(audit: Audit<LinuxDisk>, clock: SystemClock) -> Lines {
    Arc::new(move |line| {
        if let Outcome::Refused(status, why) = &line.outcome {
            let at = crate::alerts::text::rfc3339(clock.now().wall_ms);
            audit.record(&serde_json::json!({
                "at": at, "event": "denied", "by": line.caller.name, "uid": line.caller.uid, "pid": line.pid,
                "verb": line.verb.map(Verb::label), "about": line.about, "status": status, "outcome": why,
            }));
        }
        tracing::info!(?line, "control");
    })
}
