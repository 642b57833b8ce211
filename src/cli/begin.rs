//! Getting a cycle: ask, queue where that was wished for, and never call a lost answer a no.

use super::context::{Ctx, Interrupts, jitter};
use super::follow::{AGAIN_MS, CONTACT_MS, Steps};
use super::queue::{self, Queue};
use super::run::result;

use crate::clock::Clock;
use crate::control::client::ClientError;
use crate::control::protocol::{RunReply, RunRequest, RunResult};
use crate::core::exit::Exit;
use crate::core::job::RebootPolicy;
use crate::core::time::Now;
use crate::words::span;

/// There is a cycle.
pub(super) struct Started {
    pub(super) cycle: String,
    pub(super) node: String,
    pub(super) fleet: String,
    pub(super) attached: bool,
    /// The unit of the job that is under way.
    pub(super) unit: Option<String>,
}

/// What asking led to.
pub(super) enum Begun<C = Started> {
    /// A cycle.
    Cycle(C),
    /// None, and why.
    Not(Box<RunResult>),
}

/// What has been learnt by asking.
struct Asking<'q> {
    queue: &'q Queue,
    /// The last reason that was printed.
    told: String,
    /// Why there is no cycle yet: exit code and words.
    last: (u8, String),
    /// Without an answer since.
    lost: Option<Now>,
    /// A request may have arrived, and its answer did not.
    sent: bool,
    /// It may be the one that is run again right after a restart of the machine, before the agent is there.
    comes_back: bool,
}

/// What to do next.
enum Then {
    Over(Begun),
    AskAgainIn(u64),
}

/// Asks until there is a cycle, a refusal that stands, or no time left.
///
/// # Errors
/// No answer, and nothing can have been done.
pub(super) async fn begin(
    ctx: &mut Ctx<'_>,
    queue: &Queue,
    request: &RunRequest,
    steps: &Steps,
    interrupts: &mut Interrupts,
) -> Result<Begun, ClientError> {
    let comes_back = request.reboot == RebootPolicy::Ssm;
    let mut asking =
        Asking { queue, told: String::new(), last: (0, String::new()), lost: None, sent: false, comes_back };
    loop {
        let answer = tokio::select! {
            biased;
            () = interrupts.next() => return Ok(in_doubt("interrupted while asking")),
            answer = ctx.client.run(request) => answer,
        };
        let then = match answer {
            Ok(reply) => asking.answered(ctx, reply, steps),
            Err(e) => asking.unanswered(ctx, e, steps)?,
        };
        match then {
            Then::Over(begun) => return Ok(begun),
            Then::AskAgainIn(ms) if interrupts.sleep(&ctx.clock, ms).await => return Ok(asking.interrupted()),
            Then::AskAgainIn(_) => {}
        }
    }
}

/// A request may have arrived, and no answer came.
fn in_doubt(why: &str) -> Begun {
    let next = Some("backstop wait".to_owned());
    let text = format!("{why}; a cycle may have begun before that");
    Begun::Not(Box::new(RunResult { next, ..result(Exit::ContactLost, text) }))
}

fn not(exit: u8, message: String) -> RunResult {
    RunResult { exit, changed: Some(false), ..result(Exit::Internal, message) }
}

impl Asking<'_> {
    fn answered(&mut self, ctx: &mut Ctx<'_>, reply: RunReply, steps: &Steps) -> Then {
        // The agent knows every request that it took: this answer is about all that were sent.
        (self.lost, self.sent) = (None, false);
        let (exit, message, verdicts, next) = match reply {
            RunReply::Started { cycle, node, fleet } => {
                return Then::Over(Begun::Cycle(Started { cycle, node, fleet, attached: false, unit: None }));
            }
            RunReply::Attached { cycle, node, fleet, unit } => {
                return Then::Over(Begun::Cycle(Started { cycle, node, fleet, attached: true, unit }));
            }
            RunReply::Refused { exit, message, verdicts, next } => (exit, message, verdicts, next),
        };
        let now = ctx.clock.now();
        let left = self.queue.left_ms(&now).filter(|_| queue::passes(exit, verdicts.as_ref()));
        let Some(left) = left else {
            let waited = self.queue.over_ms(&now);
            let waited = waited.map_or(String::new(), |ms| format!(" (waited {} for it)", span(ms)));
            let refused = RunResult { verdicts, next, ..not(exit, format!("{message}{waited}")) };
            return Then::Over(Begun::Not(Box::new(refused)));
        };
        if self.told != message {
            steps.note(ctx, "waiting", &format!("{message}; for up to {}", span(left)));
            self.told.clone_from(&message);
        }
        self.last = (exit, message);
        Then::AskAgainIn(queue::wait_ms(jitter()).min(left))
    }

    /// The request may have arrived, or would be welcome in a moment: it starts one cycle however often it is sent.
    fn unanswered(&mut self, ctx: &mut Ctx<'_>, e: ClientError, steps: &Steps) -> Result<Then, ClientError> {
        self.sent |= matches!(e, ClientError::Lost { .. } | ClientError::Strange { .. });
        let patient = self.queue.queues() || self.comes_back;
        let at_once = matches!(e, ClientError::NoAgent { .. }) && self.lost.is_none() && !patient;
        let now = ctx.clock.now();
        let since = self.lost.get_or_insert_with(|| now.clone());
        if at_once || !e.passes() || now.roughly_since(since) >= CONTACT_MS {
            return if self.sent { Ok(Then::Over(in_doubt(&e.to_string()))) } else { Err(e) };
        }
        let text = format!("{e}; trying again for {}", span(CONTACT_MS));
        if self.told != text {
            steps.note(ctx, "contact", &text);
            self.told = text;
        }
        self.last = (Exit::NoAgent.code(), e.to_string());
        Ok(Then::AskAgainIn(AGAIN_MS))
    }

    fn interrupted(self) -> Begun {
        if self.sent {
            return in_doubt("interrupted while the agent did not answer");
        }
        let (exit, why) = self.last;
        Begun::Not(Box::new(not(exit, format!("interrupted while waiting; nothing was started ({why})"))))
    }
}
