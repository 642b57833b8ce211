//! What every verb has: the agent's socket, a clock, and somewhere to print.

use super::SOCKET;
use super::out::Out;
use super::text::{commands, labelled};
use crate::clock::{Clock, Scale, SystemClock};
use crate::config::{self, Config, Problems};
use crate::control::ask::{Ask, Trouble};
use crate::control::client::{Client, ClientError};
use crate::control::protocol::{ApiError, Done, VERSION};
use crate::core::error::Jitter;
use crate::core::exit::Exit;
use crate::core::time::BootId;
use serde::Serialize;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Handed to every verb that asks the agent.
pub(super) struct Ctx<'a> {
    pub(super) client: Client,
    pub(super) clock: SystemClock,
    pub(super) out: &'a mut Out,
    /// The config, where it can be read and used; a verb that asks the agent does not need it.
    pub(super) config: Option<Config>,
}

/// This host's name, for `{hostname}` in the config.
pub(super) fn hostname() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// A config that cannot be used is no reason not to ask, but the agent may listen elsewhere.
fn guessed(problems: &Problems) -> String {
    let list = problems.list();
    let first = list.first().map_or_else(String::new, ToString::to_string);
    let more = list.len().saturating_sub(1);
    let more = if more == 0 { String::new() } else { format!(" (and {more} more: backstop config check)") };
    format!("backstop: the config cannot be used, so the socket is a guess: {SOCKET}\n{first}{more}")
}

/// How the verb is called that this was to be.
fn help(ask: &Ask) -> String {
    let verb = match ask {
        Ask::Status | Ask::Progress { .. } | Ask::Reload => "status",
        Ask::Check => "check",
        Ask::Explain { .. } => "explain",
        Ask::History { .. } => "history",
        Ask::Run(r) if !r.overrides.is_empty() => return "backstop check -v   # lists the guards".to_owned(),
        Ask::Run(_) => "run",
        Ask::Rejoin(_) => return "backstop rejoin --reason \"why it may go back now\"".to_owned(),
        Ask::Hold(_) => return "backstop hold --for 4h --reason \"why it stays out\"".to_owned(),
        Ask::Pause(_) => return "backstop pause --reason \"why nothing may be patched\"".to_owned(),
        Ask::Unpause(_) => return "backstop unpause --reason \"why it may go on\"".to_owned(),
        Ask::LatchClear(_) => return "backstop latch list".to_owned(),
        Ask::Retire(_) => return "backstop retire NODE --reason \"why it does not come back\"".to_owned(),
        Ask::AlertTest(_) => "alert test",
        Ask::Init(_) => return "backstop init --fleet --reason \"why a new record\"".to_owned(),
    };
    format!("backstop {verb} --help")
}

impl<'a> Ctx<'a> {
    pub(super) fn new(socket: Option<PathBuf>, config: &Path, out: &'a mut Out) -> Ctx<'a> {
        let loaded = config::load(config, &hostname());
        if let (Err(problems), None) = (&loaded, &socket) {
            out.complain(guessed(problems));
        }
        let config = loaded.ok().map(|(config, _)| config);
        let of_config = || config.as_ref().map(|c| c.paths.socket.clone());
        let socket = socket.or_else(of_config).unwrap_or_else(|| SOCKET.into());
        // Without a boot id only stored times would be in doubt, and the CLI stores none.
        let clock = SystemClock::new().unwrap_or_else(|_| SystemClock::with_boot(BootId("unknown".into())));
        let clock = match config.as_ref().map(|c| &c.rehearsal) {
            Some(r) if r.time_scale > 1 => {
                clock.scaled(Scale { factor: r.time_scale, epoch_wall_ms: r.time_epoch_ms.unwrap_or_default() })
            }
            _ => clock,
        };
        Ctx { client: Client::new(socket), clock, out, config }
    }

    /// The agent's own checks, before it is asked: the same words, and nothing has left this process.
    pub(super) fn checked(&mut self, ask: &Ask, json: bool) -> Result<(), Exit> {
        ask.check().map_err(|trouble| self.wrong(trouble, &help(ask), json))
    }

    /// What was asked cannot be; `next` is how it is asked, or where to look.
    pub(super) fn wrong(&mut self, (error, expected): Trouble, next: &str, json: bool) -> Exit {
        let next = next.to_owned();
        let exit = Exit::Usage;
        self.error(&ApiError { v: VERSION, error, expected, next, also: Vec::new(), exit: exit.code() }, json);
        exit
    }

    /// There is no answer.
    pub(super) fn no_answer(&mut self, e: &ClientError, changes: bool, json: bool) -> Exit {
        self.unanswered(e, changes, Vec::new(), json)
    }

    /// There is no answer to somebody who wants to know what is so, of `node` or this one: others can tell.
    pub(super) fn nobody_tells(&mut self, e: &ClientError, node: Option<&str>, json: bool) -> Exit {
        let mut also = Vec::new();
        if matches!(e, ClientError::NoAgent { .. } | ClientError::Lost { .. }) {
            let own = || self.config.as_ref().map_or_else(hostname, |c| c.node.name.to_string());
            let node = node.map_or_else(own, str::to_owned);
            also.push("backstop reconcile --once   # compares nodes and load balancer, and needs no agent".to_owned());
            also.push(format!("backstop explain {node}   # on another node of the fleet, where an agent answers"));
        }
        self.unanswered(e, false, also, json)
    }

    fn unanswered(&mut self, e: &ClientError, changes: bool, also: Vec<String>, json: bool) -> Exit {
        let exit = e.exit(changes);
        let fate = if exit == Exit::ContactLost { "; it may have been done: look at backstop status" } else { "" };
        let (error, expected) = match e {
            ClientError::Refused { error, .. } => (error.error.clone(), error.expected.clone()),
            ClientError::NoAgent { .. }
            | ClientError::NoPermission { .. }
            | ClientError::Lost { .. }
            | ClientError::Strange { .. } => (format!("{e}{fate}"), String::new()),
        };
        self.error(&ApiError { v: VERSION, error, expected, next: e.next(), also, exit: exit.code() }, json);
        exit
    }

    /// An answer that is a refusal.
    pub(super) fn error(&mut self, e: &ApiError, json: bool) {
        if json {
            return self.out.json(e);
        }
        self.out.complain(format!("backstop: {} (exit {})", e.error, e.exit));
        if !e.expected.is_empty() {
            self.out.complain(labelled("Expected", &e.expected));
        }
        for line in commands(std::iter::once(&e.next).chain(&e.also)) {
            self.out.complain(line);
        }
    }

    /// An object for `--json`, lines otherwise.
    pub(super) fn show<T: Serialize>(&mut self, json: bool, value: &T, lines: impl FnOnce(&T) -> Vec<String>) {
        if json {
            self.out.json(value);
        } else {
            let lines = lines(value);
            self.out.line(lines.join("\n"));
        }
    }

    /// The answer of a verb that changes something.
    pub(super) fn done(&mut self, answer: Result<Done, ClientError>, json: bool) -> Exit {
        let done = match answer {
            Ok(done) => done,
            Err(e) => return self.no_answer(&e, true, json),
        };
        self.show(json, &done, |d| {
            let mut lines = match d.exit {
                0 => vec![d.message.clone()],
                exit => vec![format!("NOT DONE (exit {exit}): {}", d.message)],
            };
            lines.extend(commands(&d.next));
            lines
        });
        Exit::from_code(done.exit).unwrap_or(Exit::Internal)
    }
}

/// Ctrl-C, or being told to end: both detach.
pub(super) struct Interrupts {
    int: Signal,
    term: Signal,
}

impl Interrupts {
    /// From now on neither ends the process by itself.
    pub(super) fn listen() -> std::io::Result<Interrupts> {
        Ok(Interrupts { int: signal(SignalKind::interrupt())?, term: signal(SignalKind::terminate())? })
    }

    /// Returns at the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.int.recv() => {}
            _ = self.term.recv() => {}
        }
    }

    /// Waits; `true` = interrupted.
    pub(super) async fn sleep(&mut self, clock: &SystemClock, ms: u64) -> bool {
        tokio::select! {
            () = self.next() => true,
            () = clock.sleep_ms(ms) => false,
        }
    }
}

/// Spreads callers that were all started at the same moment.
pub(super) fn jitter() -> Jitter {
    let random = uuid::Uuid::new_v4().as_u128().checked_rem(1_001).unwrap_or(0);
    Jitter(u16::try_from(random).unwrap_or(0))
}
