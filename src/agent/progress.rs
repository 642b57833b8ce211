//! What a cycle did, step by step, for whoever waits for it. In memory: after a restart of the agent it begins anew, the
//! audit journal has the rest.

use crate::control::protocol::ProgressStep;
use crate::core::cycle::{Cycle, Durable, Ended, Seen, StageName};
use crate::core::ids::CycleId;
use crate::core::time::Now;

/// Steps kept of one cycle.
const STEPS_MAX: usize = 400;

/// Steps of the present or last cycle.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// Which.
    pub cycle: Option<CycleId>,
    /// Oldest first.
    pub steps: Vec<ProgressStep>,
    /// Number of the last step.
    pub last_n: u64,
    /// It is over.
    pub ended: Option<Ended>,
    /// A way-back deadline has passed.
    pub late: bool,
    /// Failing tries in the present stage, for its closing line.
    fails: u32,
    /// The last fault in the present stage.
    fault: Option<String>,
}

impl Log {
    /// Takes in what a step changed. True where a waiting caller should hear of it.
    pub fn note(&mut self, before: &Durable, after: &Durable, seen: &Seen, now: &Now) -> bool {
        let mut news = false;
        if let Some(c) = &after.cycle
            && self.cycle.as_ref() != Some(&c.plan.id)
        {
            *self = Log { cycle: Some(c.plan.id.clone()), last_n: self.last_n, ..Log::default() };
            news = true;
        }
        match (&before.cycle, &after.cycle) {
            (Some(b), Some(a)) if b.stage.name() != a.stage.name() => {
                self.close(b, a, now);
                news = true;
            }
            (Some(b), None) => {
                self.close(b, b, now);
                self.ended.clone_from(&after.last);
                news = true;
            }
            _ => {}
        }
        if let Some(fault) = &seen.fault
            && seen.tries > 0
        {
            self.fails =
                self.fails.saturating_add(u32::from(self.fault.as_ref() != Some(&fault.message) || seen.tries > 0));
            self.fault = Some(fault.message.clone());
        }
        if let Some(c) = &after.cycle {
            let failed_now = c.failure.is_some() && before.cycle.as_ref().is_none_or(|b| b.failure.is_none());
            if let (true, Some(f)) = (failed_now, &c.failure) {
                self.push(f.stage, format!("FAILED, going home: {}", f.message), None, now);
                news = true;
            }
            if c.awaits_restart() && !before.cycle.as_ref().is_some_and(Cycle::awaits_restart) {
                self.push(StageName::Reboot, "ready; the restart is the SSM agent's".to_owned(), None, now);
                news = true;
            }
            news |= c.late.is_some() && !self.late;
            self.late |= c.late.is_some();
        }
        news
    }

    fn push(&mut self, stage: StageName, text: String, took_ms: Option<u64>, now: &Now) {
        self.last_n = self.last_n.saturating_add(1);
        self.steps.push(ProgressStep { n: self.last_n, at_ms: now.wall_ms, stage, text, took_ms });
        let over = self.steps.len().saturating_sub(STEPS_MAX);
        self.steps.drain(..over);
    }

    /// The closing line of a stage: what it came to, or why the cycle turned round in it. A failure has a line of its own.
    fn close(&mut self, b: &Cycle, a: &Cycle, now: &Now) {
        if a.failure.as_ref().is_some_and(|f| f.stage == b.stage.name()) && b.failure.is_none() {
            (self.fails, self.fault) = (0, None);
            return;
        }
        let targets = || b.plan.targets.iter().map(|t| t.target.to_string()).collect::<Vec<_>>().join(", ");
        let troubled = match (&self.fault, self.fails) {
            (Some(f), n) if n > 0 => format!(" (after {n} failing tries, the last: {f})"),
            _ => String::new(),
        };
        let text = match b.stage.name() {
            StageName::Claim => "all guards pass; slot acknowledged".to_owned(),
            StageName::Deregister | StageName::Register => targets(),
            StageName::Drain => {
                let cut = a.cut.map_or_else(|| "no connection left".to_owned(), |n| format!("{n} connections cut"));
                let delay = crate::words::span(b.plan.delay_ms());
                format!("delay of the groups {delay}; gone in every group; {cut}")
            }
            StageName::Patch => a.verdict.as_ref().map_or_else(|| "no verdict".to_owned(), |v| v.result.to_string()),
            StageName::Reboot => "new boot id".to_owned(),
            StageName::Held => "the hold is over".to_owned(),
            StageName::Check => format!("{} passes in a row", b.plan.check.passes),
            StageName::Settle => format!("healthy in {} of {}", b.plan.targets.len(), b.plan.targets.len()),
            StageName::Release => "slot given back".to_owned(),
        };
        let turned = match (&a.early, b.early.is_none()) {
            (Some(early), true) => format!("turned home: {}", early.message),
            _ => format!("{text}{troubled}"),
        };
        self.push(b.stage.name(), turned, Some(now.roughly_since(&b.entered)), now);
        (self.fails, self.fault) = (0, None);
    }
}
