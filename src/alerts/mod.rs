//! Pages on their way out: text, sinks, and the task that delivers what waits in the durable state.

pub mod text;
pub mod webhook;

/// A page as it is sent.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Rendered {
    /// Stable across agents and restarts: fleet, kind, subject.
    pub key: String,
    /// Distinct for each page: a receiver that has stored it may drop a repeat.
    pub id: String,
    /// Fleet name.
    pub fleet: String,
    /// Node name.
    pub node: String,
    /// Kind label.
    pub kind: String,
    /// `warning` or `critical`
    pub severity: String,
    /// One line.
    pub summary: String,
    /// The whole text.
    pub text: String,
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
}
