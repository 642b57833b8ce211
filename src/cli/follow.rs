//! Following a cycle: its steps as they happen, until it ends, is late, or contact stays lost. A restart of the agent is
//! no end.

use super::context::{Ctx, Interrupts};
use super::text::{WIDTH, with_tail, wrap};
use crate::clock::Clock;
use crate::control::client::ClientError;
use crate::control::protocol::{Progress, ProgressStep, Status};
use crate::core::cycle::{Ended, StageName};
use crate::core::time::Now;
use crate::words::{span, time};
use std::collections::BTreeSet;

/// So long the agent may be away before contact counts as lost, in ms.
pub(super) const CONTACT_MS: u64 = 120_000;
/// Between two tries to reach it, in ms.
pub(super) const AGAIN_MS: u64 = 1_000;
/// Between two questions where the agent had no news, in ms.
const NO_NEWS_MS: u64 = 200;

/// Columns of a step's text; how long it took stands behind it.
const TEXT: usize = 80;

/// Until when.
#[derive(Clone, Debug)]
pub(super) enum Until {
    /// The cycle's end.
    Ended,
    /// The cycle's end, or then.
    EndedOr(Now),
    /// The slot is acknowledged and the cycle goes on.
    PastClaim,
    /// The cycle's end, or when the machine is to be restarted by whoever runs this.
    EndedOrRestart,
}

/// Why following ended.
#[derive(Debug)]
pub(super) enum Follow {
    /// The cycle did.
    Ended(Box<Ended>),
    /// The node is OUT beyond its budget; the agent goes on.
    Late,
    /// See [`Until::PastClaim`].
    PastClaim,
    /// See [`Until::EndedOr`].
    TimeOver,
    /// See [`Until::EndedOrRestart`].
    Restart,
    /// Ctrl-C.
    Interrupted,
    /// The agent stayed away.
    ContactLost(ClientError),
    /// The agent answers and does not know this cycle.
    Unknown,
}

/// Prints steps. With `--json` they go to stderr: stdout is one object.
pub(super) struct Steps {
    to_stderr: bool,
    printed: BTreeSet<(u64, StageName, String)>,
}

impl Steps {
    pub(super) fn new(json: bool) -> Steps {
        Steps { to_stderr: json, printed: BTreeSet::new() }
    }

    pub(super) fn say(&self, ctx: &mut Ctx<'_>, text: &str) {
        if self.to_stderr { ctx.out.complain(text) } else { ctx.out.line(text) }
    }

    /// A line of the CLI itself, at the present time.
    pub(super) fn note(&self, ctx: &mut Ctx<'_>, what: &str, text: &str) {
        let line = below(&format!("{}  {what:<10}  ", time(ctx.clock.now().wall_ms)), text, WIDTH);
        self.say(ctx, &line.join("\n"));
    }

    /// A step of the cycle, unless it was printed before: an agent that started again counts from one.
    fn step(&mut self, ctx: &mut Ctx<'_>, s: &ProgressStep) {
        if self.printed.insert((s.at_ms, s.stage, s.text.clone())) {
            let line = line(s);
            self.say(ctx, &line);
        }
    }
}

/// `03:02:11  claim       19 guards pass; slot 1 of 1                               0.4 s`
pub(super) fn line(s: &ProgressStep) -> String {
    let head = format!("{}  {:<10}  ", time(s.at_ms), s.stage.label());
    let Some(ms) = s.took_ms else { return below(&head, &s.text, WIDTH).join("\n") };
    let mut lines = below(&head, &s.text, TEXT);
    if let Some(first) = lines.first_mut() {
        *first = with_tail(first, &format!("{:>7}", span(ms)), TEXT);
    }
    lines.join("\n")
}

/// Text behind a head; what does not fit into `width` goes on below itself.
fn below(head: &str, text: &str, width: usize) -> Vec<String> {
    let indent = head.chars().count();
    let lines = wrap(text, width.saturating_sub(indent)).into_iter().enumerate();
    lines.map(|(i, line)| if i == 0 { format!("{head}{line}") } else { format!("{:indent$}{line}", "") }).collect()
}

struct Following<'c> {
    cycle: &'c str,
    until: Until,
    after: u64,
    lost_since: Option<Now>,
}

/// Follows `cycle` and prints its steps.
///
/// # Errors
/// Answers that no restart of the agent explains.
pub(super) async fn follow(
    ctx: &mut Ctx<'_>,
    cycle: &str,
    until: Until,
    steps: &mut Steps,
    interrupts: &mut Interrupts,
) -> Result<Follow, ClientError> {
    let mut f = Following { cycle, until, after: 0, lost_since: None };
    loop {
        let over = match &f.until {
            Until::EndedOr(at) => Some(at.clone()),
            Until::Ended | Until::EndedOrRestart | Until::PastClaim => None,
        };
        let clock = ctx.clock.clone();
        let over = async move {
            match over {
                Some(at) => clock.sleep_until(&at).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            biased;
            () = interrupts.next() => return Ok(Follow::Interrupted),
            answer = ctx.client.progress(Some(cycle), f.after) => answer,
            () = over => return Ok(Follow::TimeOver),
        };
        let wait_ms = match answer {
            Ok(progress) => match f.take(ctx, progress, steps).await {
                Some(end) => return Ok(end),
                None => NO_NEWS_MS,
            },
            Err(e) if e.passes() => match f.lost(ctx, e, steps) {
                Some(end) => return Ok(end),
                None => AGAIN_MS,
            },
            Err(e) => return Err(e),
        };
        if interrupts.sleep(&ctx.clock, wait_ms).await {
            return Ok(Follow::Interrupted);
        }
    }
}

impl Following<'_> {
    /// An answer; `None` = go on.
    async fn take(&mut self, ctx: &mut Ctx<'_>, p: Progress, steps: &mut Steps) -> Option<Follow> {
        if self.lost_since.take().is_some() {
            steps.note(ctx, "contact", "the agent answers again");
        }
        if p.unknown {
            return self.unknown(ctx).await;
        }
        for step in &p.steps {
            steps.step(ctx, step);
            self.after = self.after.max(step.n);
        }
        if let Some(ended) = p.ended {
            return Some(Follow::Ended(Box::new(ended)));
        }
        if p.late {
            return Some(Follow::Late);
        }
        if p.awaits_restart && matches!(self.until, Until::EndedOrRestart) {
            return Some(Follow::Restart);
        }
        let claimed = |s: &Status| {
            let stage = s.cycle.as_ref().filter(|c| c.cycle == self.cycle).map(|c| c.stage);
            stage.is_some_and(|stage| !matches!(stage, StageName::Claim | StageName::Release))
        };
        let detaching = matches!(self.until, Until::PastClaim);
        (detaching && ctx.client.status().await.is_ok_and(|s| claimed(&s))).then_some(Follow::PastClaim)
    }

    /// No answer; `None` = try again.
    fn lost(&mut self, ctx: &mut Ctx<'_>, e: ClientError, steps: &Steps) -> Option<Follow> {
        let now = ctx.clock.now();
        if self.lost_since.is_none() {
            let text = format!("lost, trying again for {}; the cycle goes on ({e})", span(CONTACT_MS));
            steps.note(ctx, "contact", &text);
        }
        let since = self.lost_since.get_or_insert_with(|| now.clone()).clone();
        // An agent that started again numbers its steps anew.
        self.after = 0;
        (now.roughly_since(&since) >= CONTACT_MS).then_some(Follow::ContactLost(e))
    }

    /// The agent has no steps of it: it may still know it, or how it ended.
    async fn unknown(&mut self, ctx: &mut Ctx<'_>) -> Option<Follow> {
        let Ok(status) = ctx.client.status().await else { return None };
        if status.starting.is_some() {
            return None; // it has not read its state yet
        }
        if status.cycle.is_some_and(|c| c.cycle == self.cycle) {
            self.after = 0;
            return None;
        }
        let ended = status.last.filter(|last| last.cycle.as_str() == self.cycle);
        Some(ended.map_or(Follow::Unknown, |ended| Follow::Ended(Box::new(ended))))
    }
}
