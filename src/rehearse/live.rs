//! The rehearsal while it runs: a screen that is drawn again and again on a terminal, a line for each event elsewhere.

use super::fleet::{Fleet, Machine};
use super::pace;
use super::scenario::watch::WatchControl;
use super::timeline::clock;
use super::traffic::TrafficControl;
use std::fmt::Write as _;
use std::time::Duration;

/// Between two screens (real).
const REDRAW: Duration = Duration::from_millis(200);
/// Last events on a screen.
const EVENTS: usize = 12;
/// Longest line of a screen.
const WIDTH: usize = 110;

/// Who watches.
pub trait Audience {
    /// A terminal that is drawn upon; otherwise it gets lines.
    fn wants_screens(&self) -> bool;
    /// A whole screen in the place of the last one.
    fn screen(&mut self, text: &str);
    /// One more line, where screens are not wanted.
    fn line(&mut self, text: &str);
}

/// What a screen shows.
pub(super) struct Live<'a> {
    pub(super) title: String,
    pub(super) fleet: &'a Fleet,
    pub(super) traffic: TrafficControl,
    pub(super) watch: WatchControl,
}

impl Live<'_> {
    /// Shows what happens until `played` is over.
    pub(super) async fn during<F: Future>(&self, audience: &mut dyn Audience, played: F) -> F::Output {
        let mut played = std::pin::pin!(played);
        loop {
            let outcome = pace::within(REDRAW, played.as_mut()).await;
            if audience.wants_screens() {
                audience.screen(&self.screen(&self.watch.lines()).await);
            } else {
                for line in self.watch.take_lines(outcome.is_some()) {
                    audience.line(&line);
                }
            }
            if let Some(outcome) = outcome {
                return outcome;
            }
        }
    }

    async fn screen(&self, lines: &[String]) -> String {
        let totals = self.traffic.totals();
        let all = self.fleet.machines().len();
        let mut text = format!("{}    {}\n\n", self.title, clock(self.fleet.origin().simulated_ms()));
        writeln!(
            text,
            "{} of {all} in service    {} requests answered, {} failed    {} pages\n",
            self.fleet.in_service(),
            totals.ok,
            totals.failed(),
            self.fleet.receiver().accepted().len()
        )
        .ok();
        for machine in self.fleet.machines() {
            let (state, reason) = self.fleet.target_state(machine);
            let state = match reason.as_deref() {
                Some("Target.NotRegistered") => "NOT REGISTERED".to_owned(),
                _ => state,
            };
            let line = format!("{:<12}  {state:<15}  {}", machine.name(), doing(machine).await);
            writeln!(text, "{}", short(&line)).ok();
        }
        text.push('\n');
        for line in lines.iter().skip(lines.len().saturating_sub(EVENTS)) {
            writeln!(text, "{}", short(line)).ok();
        }
        text
    }
}

async fn doing(machine: &Machine) -> String {
    if machine.agent_pid().is_none() {
        return String::new();
    }
    match pace::within(REDRAW, machine.status()).await {
        Some(Ok(status)) => status.cycle.map_or_else(|| "idle".to_owned(), |c| c.waiting_for),
        _ => "(agent starting)".to_owned(),
    }
}

fn short(line: &str) -> String {
    line.chars().take(WIDTH).collect()
}
