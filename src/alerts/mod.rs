//! Pages on their way out: their text, and the sinks. Which alert goes where and when is the book's affair (`core/alert`).

mod advice;
pub mod alertmanager;
pub mod pagerduty;
mod post;
pub mod test;
pub mod text;
pub mod watch;
pub mod webhook;

pub use advice::next;

use crate::config::Pager;
use crate::core::error::Fault;
use crate::ports::PageSink;

/// A page as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Rendered {
    /// One of [`text::EVENTS`]: `trigger` (it fires, or got worse: wake somebody), `update` (more about what fires: wake
    /// nobody again), `reminder` (it still fires), `resolve` (it is over), `test`.
    pub event: String,
    /// Stable across agents and restarts: fleet, kind, subject; of a reminder with its number.
    pub key: String,
    /// The same for every try of this very message: a receiver that has stored it may drop a repeat.
    pub id: String,
    /// Fleet name.
    pub fleet: String,
    /// The node whose agent says it.
    pub node: String,
    /// Kind label.
    pub kind: String,
    /// What it is about: a node, a target, a group, the fleet.
    pub subject: String,
    /// `warning` or `critical`
    pub severity: String,
    /// One line.
    pub summary: String,
    /// The whole text.
    pub text: String,
    /// Where it is told what to do: a path on every node.
    pub runbook: String,
    /// Which reminder it is.
    pub reminder: Option<u32>,
    /// When it was raised, RFC 3339.
    pub raised: String,
    /// When this delivery was written, RFC 3339: part of what is signed.
    pub sent_at: String,
    /// The cycle, the latch, the stage, the class, where there are any.
    pub cycle: Option<String>,
    /// See `cycle`.
    pub latch: Option<String>,
    /// See `cycle`.
    pub stage: Option<String>,
    /// See `cycle`.
    pub class: Option<String>,
    /// `raised` in ms since 1970.
    #[serde(skip)]
    pub raised_ms: u64,
    /// `sent_at` in ms since 1970.
    #[serde(skip)]
    pub sent_ms: u64,
}

fn boxed<S: PageSink>(sink: S) -> Box<dyn PageSink> {
    Box::new(sink)
}

/// The sinks of a config, and what keeps one from being used, with its place in the config.
pub fn sinks(pager: &Pager) -> (Vec<Box<dyn PageSink>>, Vec<String>) {
    let (mut sinks, mut wrong): (Vec<Box<dyn PageSink>>, Vec<String>) = (Vec::new(), Vec::new());
    let mut add = |key: &str, sink: Result<Box<dyn PageSink>, Fault>| match sink {
        Ok(sink) => sinks.push(sink),
        Err(fault) => wrong.push(format!("{key}: {fault}")),
    };
    if let Some(p) = &pager.pagerduty {
        let sink = pagerduty::PagerDuty::new(p.url.expose(), p.timeout_ms, p.routing_key_file.clone());
        add("pager.pagerduty", sink.map(boxed));
    }
    for url in pager.alertmanager.iter().flat_map(|a| &a.urls) {
        let Some(a) = &pager.alertmanager else { continue };
        let sink = alertmanager::Alertmanager::new(url, a.timeout_ms, a.basic_auth_file.clone());
        add("pager.alertmanager", sink.map(boxed));
    }
    if let Some(w) = &pager.webhook {
        add("pager.webhook", webhook::Webhook::new(w.url.expose(), w.timeout_ms, w.secret_file.clone()).map(boxed));
    }
    (sinks, wrong)
}

/// At most so many bytes of a text; what was cut is said.
fn cut(text: &str, bytes_max: usize) -> String {
    match text.get(..text.floor_char_boundary(bytes_max)) {
        Some(head) if head.len() < text.len() => format!("{head}\n... (cut; the agent's log has all of it)"),
        _ => text.to_owned(),
    }
}

/// A text as a header takes it, still distinct.
fn ascii(text: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() && c != '%';
    let coded = |c: char| if plain(c) { c.to_string() } else { format!("%{:x};", u32::from(c)) };
    text.chars().map(coded).collect()
}
