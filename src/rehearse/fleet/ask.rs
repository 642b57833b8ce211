//! Talking to the agent of a machine, through its socket, as the CLI does.

use super::machine::Machine;
use crate::control::client::ClientError;
use crate::control::protocol::{Done, InitRequest, RunReply, RunRequest, Status};
use crate::core::cycle::{Durable, Ended};
use crate::core::exit::Exit;
use crate::core::job::RebootPolicy;
use crate::rehearse::pace;
use crate::state::journal::STATE_NAME;
use anyhow::{Context as _, bail};
use std::time::Duration;

/// Between two looks (real).
const LOOK: Duration = Duration::from_millis(20);
/// Between two tries of a waiting run (real).
const TRY_AGAIN: Duration = Duration::from_millis(150);

/// Tries to make the record.
const INIT_TRIES: usize = 5;

/// How a run ended, as the CLI's exit code and words say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// The exit code.
    pub exit: u8,
    /// Why.
    pub message: String,
    /// The exact next command, where one was given.
    pub next: Option<String>,
    /// How the cycle ended, where there was one.
    pub ended: Option<Ended>,
}

/// A request to patch with this command.
pub fn patch_request(name: &str, argv: &[&str], reboot: RebootPolicy) -> RunRequest {
    RunRequest {
        unit: None,
        name: name.to_owned(),
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        reboot,
        job_reboots: false,
        only_owed: false,
        overrides: Vec::new(),
        reason: None,
        request_id: uuid::Uuid::new_v4().to_string(),
    }
}

/// Waiting may change it: another node's cycle, or what it leaves for a moment.
const fn passes(exit: u8) -> bool {
    exit == Exit::SlotHeld.code()
        || exit == Exit::BelowMinimum.code()
        || exit == Exit::PeersNotSettled.code()
        || exit == Exit::Unreachable.code()
        || exit == Exit::NoAgent.code()
}

impl Machine {
    /// The agent's status.
    ///
    /// # Errors
    /// As the client.
    pub async fn status(&self) -> Result<Status, ClientError> {
        self.client().status().await
    }

    /// The agent's state file; `None`: there is none, or it cannot be read.
    pub fn durable(&self) -> Option<Durable> {
        #[derive(serde::Deserialize)]
        struct File {
            body: Durable,
        }
        let bytes = std::fs::read(self.state_dir().join(STATE_NAME)).ok()?;
        serde_json::from_slice::<File>(&bytes).ok().map(|f| f.body)
    }

    /// Waits until the agent's status is as wanted; the status. `bound` is real time.
    ///
    /// # Errors
    /// It is not by then; with the last status or error.
    pub async fn wait_status(
        &self,
        bound: Duration,
        mut wanted: impl FnMut(&Status) -> bool,
    ) -> anyhow::Result<Status> {
        let start = pace::now();
        loop {
            let status = self.status().await;
            match status {
                Ok(status) if wanted(&status) => return Ok(status),
                last if pace::now().saturating_duration_since(start) >= bound => {
                    bail!("{}: not within {} s: {last:?}", self.name(), bound.as_secs());
                }
                _ => pace::sleep(LOOK).await,
            }
        }
    }

    /// Waits until the agent answers.
    ///
    /// # Errors
    /// It does not within `bound` (real).
    pub async fn wait_ready(&self, bound: Duration) -> anyhow::Result<Status> {
        self.wait_status(bound, |_| true).await
    }

    /// Waits until the agent sees so many members in service, and the record.
    ///
    /// # Errors
    /// It does not within `bound` (real).
    pub async fn wait_sees(&self, members: usize, bound: Duration) -> anyhow::Result<Status> {
        let all = u32::try_from(members).ok();
        self.wait_status(bound, |s| s.in_service == all && s.nodes.len() == members && s.record.is_some()).await
    }

    /// Waits until the agent has no cycle.
    ///
    /// # Errors
    /// It still has one after `bound` (real).
    pub async fn wait_idle(&self, bound: Duration) -> anyhow::Result<Status> {
        self.wait_status(bound, |s| s.cycle.is_none()).await
    }

    /// Creates the fleet record. A store that does not answer in time is asked again, as a person would; a record that
    /// is there by then was made by the try whose answer was lost.
    ///
    /// # Errors
    /// The agent cannot, or says no.
    pub async fn init(&self) -> anyhow::Result<Done> {
        let mut lost = false;
        for _ in 0..INIT_TRIES {
            let done = self.client().init(&InitRequest { reason: None }).await?;
            match Exit::from_code(done.exit) {
                Some(Exit::Done) => return Ok(done),
                Some(Exit::Unreachable) => lost = true,
                Some(Exit::Usage) if lost && done.message.contains("has a record already") => return Ok(done),
                _ => bail!("init: {}", done.message),
            }
        }
        bail!("init: the store of the record did not answer {INIT_TRIES} times")
    }

    /// `backstop run`: begins a cycle, and does not wait for its end.
    ///
    /// # Errors
    /// As the client.
    pub async fn run(&self, request: &RunRequest) -> Result<RunReply, ClientError> {
        self.client().run(request).await
    }

    /// `backstop run --wait`: queues until the cycle begins, and waits for its end, also across restarts of the agent.
    /// `bound` is real time for all of it.
    ///
    /// # Errors
    /// It takes longer than `bound`.
    pub async fn run_to_end(&self, request: &RunRequest, bound: Duration) -> anyhow::Result<RunOutcome> {
        pace::within(bound, async {
            loop {
                // As the CLI does: under its old id it would be told again how the last try ended.
                let request = RunRequest { request_id: uuid::Uuid::new_v4().to_string(), ..request.clone() };
                match self.run(&request).await {
                    Ok(RunReply::Started { cycle, .. } | RunReply::Attached { cycle, .. }) => {
                        let outcome = self.ended(&cycle).await;
                        // Another node was faster: nothing has changed, so it queues again.
                        if !passes(outcome.exit) {
                            return outcome;
                        }
                        pace::sleep(TRY_AGAIN).await;
                    }
                    Ok(RunReply::Refused { exit, message, next, .. }) if !passes(exit) => {
                        return RunOutcome { exit, message, next, ended: None };
                    }
                    _ => pace::sleep(TRY_AGAIN).await,
                }
            }
        })
        .await
        .with_context(|| format!("{}: the run did not end within {} s", self.name(), bound.as_secs()))
    }

    async fn ended(&self, cycle: &str) -> RunOutcome {
        loop {
            if let Ok(status) = self.status().await
                && status.cycle.as_ref().is_none_or(|c| c.cycle != cycle)
            {
                let Some(ended) = status.last.filter(|e| e.cycle.as_str() == cycle) else {
                    let message = format!("the agent knows nothing of cycle {cycle} any more");
                    return RunOutcome { exit: Exit::Internal.code(), message, next: None, ended: None };
                };
                let message = ended.message.to_string();
                return RunOutcome { exit: ended.exit.code(), message, next: None, ended: Some(ended) };
            }
            pace::sleep(LOOK).await;
        }
    }

    /// Waits for the end of the cycle of that id.
    ///
    /// # Errors
    /// It takes longer than `bound` (real).
    pub async fn wait_ended(&self, cycle: &str, bound: Duration) -> anyhow::Result<RunOutcome> {
        pace::within(bound, self.ended(cycle))
            .await
            .with_context(|| format!("{}: cycle {cycle} did not end within {} s", self.name(), bound.as_secs()))
    }
}
