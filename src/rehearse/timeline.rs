//! What happened in a run, and its picture: as text, as JSON and as SVG. Times are simulated milliseconds since the start.

mod svg;

use super::traffic::Totals;
use serde::Serialize;
use std::fmt::Write as _;

/// What an event is about; it decides how it is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// A cycle's stage, or its end.
    Cycle,
    /// Something failed.
    Failure,
    /// A latch was set or cleared.
    Latch,
    /// The world did something: a node started, an agent was killed.
    World,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// When.
    pub at_ms: u64,
    /// To which node; empty: to the fleet.
    pub node: String,
    /// About what.
    pub kind: EventKind,
    /// One line.
    pub text: String,
}

/// How many nodes are in service from this moment on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct InService {
    /// When.
    pub at_ms: u64,
    /// How many.
    pub nodes: usize,
}

/// Requests in a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Requests {
    /// Start of the slice.
    pub at_ms: u64,
    /// Answered.
    pub ok: u64,
    /// Not.
    pub failed: u64,
}

/// A page that was delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// When.
    pub at_ms: u64,
    /// Its first line.
    pub title: String,
}

/// A run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timeline {
    /// What was played.
    pub title: String,
    /// Nodes in the fleet.
    pub fleet: usize,
    /// Never fewer than so many may be in service.
    pub minimum: usize,
    /// Events, in order of time.
    pub events: Vec<Event>,
    /// Nodes in service, only where it changes, in order of time.
    pub in_service: Vec<InService>,
    /// Width of a slice of requests.
    pub slice_ms: u64,
    /// Requests over time, in order of time.
    pub requests: Vec<Requests>,
    /// Delivered pages, in order of time.
    pub pages: Vec<Page>,
    /// When the run ended.
    pub end_ms: u64,
}

impl Timeline {
    /// Nothing yet.
    pub fn new(title: &str, fleet: usize, minimum: usize) -> Timeline {
        Timeline { title: title.to_owned(), fleet, minimum, slice_ms: 1_000, ..Timeline::default() }
    }

    /// Adds an event.
    pub fn event(&mut self, at_ms: u64, node: &str, kind: EventKind, text: impl Into<String>) {
        self.events.push(Event { at_ms, node: node.to_owned(), kind, text: text.into() });
        self.events.sort_by_key(|e| e.at_ms);
        self.end_ms = self.end_ms.max(at_ms);
    }

    /// Adds a sample; kept only where the number changes.
    pub fn sample(&mut self, at_ms: u64, nodes: usize) {
        if self.in_service.last().is_none_or(|s| s.nodes != nodes) {
            self.in_service.push(InService { at_ms, nodes });
        }
        self.end_ms = self.end_ms.max(at_ms);
    }

    /// Adds a delivered page.
    pub fn page(&mut self, at_ms: u64, title: &str) {
        self.pages.push(Page { at_ms, title: title.to_owned() });
        self.end_ms = self.end_ms.max(at_ms);
    }

    /// Takes over the traffic's slices.
    pub fn traffic(&mut self, totals: &Totals, slice_ms: u64) {
        self.slice_ms = slice_ms.max(1);
        let slices = totals.buckets.iter();
        self.requests = slices.map(|(at_ms, b)| Requests { at_ms: *at_ms, ok: b.ok, failed: b.failed }).collect();
        if let Some(last) = self.requests.last() {
            self.end_ms = self.end_ms.max(last.at_ms.saturating_add(self.slice_ms));
        }
    }

    /// The lowest number in service. `None`: nobody looked.
    pub fn lowest(&self) -> Option<InService> {
        self.in_service.iter().copied().min_by_key(|s| s.nodes)
    }

    /// Requests that were answered, and that failed.
    pub fn request_totals(&self) -> (u64, u64) {
        self.requests.iter().fold((0, 0), |(ok, failed), r| (ok.saturating_add(r.ok), failed.saturating_add(r.failed)))
    }

    /// Its events for a terminal, a line each.
    pub fn render_events(&self) -> String {
        let mut text = format!("{}\n", self.title);
        let width = self.events.iter().map(|e| e.node.len()).max().unwrap_or(0);
        let mut lines: Vec<(u64, String)> = Vec::new();
        for e in &self.events {
            lines.push((e.at_ms, format!("{:width$}  {}", e.node, e.text)));
        }
        for p in &self.pages {
            lines.push((p.at_ms, format!("{:width$}  PAGE  {}", "", p.title)));
        }
        for s in &self.in_service {
            lines.push((s.at_ms, format!("{:width$}  {} of {} in service", "", s.nodes, self.fleet)));
        }
        lines.sort_by_key(|(at_ms, _)| *at_ms);
        for (at_ms, line) in lines {
            writeln!(text, "{}  {line}", clock(at_ms)).ok();
        }
        text
    }

    /// Its sums, in one line.
    pub fn summary(&self) -> String {
        let (ok, failed) = self.request_totals();
        let lowest = self.lowest().map_or_else(|| "unknown".to_owned(), |s| s.nodes.to_string());
        let (minimum, pages) = (self.minimum, self.pages.len());
        format!(
            "Requests {ok} answered, {failed} failed   Lowest in service {lowest} (minimum {minimum})   Pages {pages}"
        )
    }

    /// For programs.
    pub fn to_json(&self) -> serde_json::Value {
        let (ok, failed) = self.request_totals();
        serde_json::json!({
            "title": self.title,
            "fleet": self.fleet,
            "minimum": self.minimum,
            "end_ms": self.end_ms,
            "summary": {
                "lowest_in_service": self.lowest().map(|s| s.nodes),
                "requests_ok": ok,
                "requests_failed": failed,
                "pages": self.pages.len(),
            },
            "events": self.events,
            "in_service": self.in_service,
            "slice_ms": self.slice_ms,
            "requests": self.requests,
            "pages": self.pages,
        })
    }

    /// As a picture that stands alone.
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }
}

/// `mm:ss` of simulated time, with hours where there are any.
pub(super) fn clock(at_ms: u64) -> String {
    let seconds = at_ms.div_euclid(1000);
    let (hours, minutes) = (seconds.div_euclid(3600), seconds.div_euclid(60).rem_euclid(60));
    let seconds = seconds.rem_euclid(60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes:02}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearse::traffic::Bucket;

    fn sample() -> Timeline {
        let mut t = Timeline::new("incident & <without> backstop", 3, 2);
        t.sample(0, 3);
        t.sample(30_000, 3);
        t.sample(60_000, 2);
        t.sample(120_000, 1);
        t.sample(180_000, 0);
        t.event(60_500, "es-client-1", EventKind::Cycle, "deregistered");
        t.event(61_000, "es-client-1", EventKind::Failure, "run died: base transport error, after its deregister call");
        t.page(200_000, "au-search: es-client-1 OUT");
        let mut totals = Totals::default();
        for s in 0..240_u64 {
            let failed = if s >= 180 { 50 } else { 0 };
            totals.buckets.insert(s.saturating_mul(1000), Bucket { ok: 50_u64.saturating_sub(failed), failed });
        }
        t.traffic(&totals, 1_000);
        t
    }

    #[test]
    fn the_lowest_and_the_totals_are_what_was_sampled() {
        let t = sample();
        assert_eq!(t.lowest().map(|s| s.nodes), Some(0));
        assert_eq!(t.in_service.len(), 4, "a repeated number is no change");
        assert_eq!(t.request_totals(), (9_000, 3_000));
        assert_eq!(t.end_ms, 240_000);
        let json = t.to_json();
        assert_eq!(json["summary"]["lowest_in_service"], 0);
        assert_eq!(json["summary"]["requests_failed"], 3_000);
    }

    #[test]
    fn the_text_tells_events_pages_and_counts_in_order() {
        let text = format!("{}{}", sample().render_events(), sample().summary());
        let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what} is missing in\n{text}"));
        assert!(at("2 of 3 in service") < at("deregistered"));
        assert!(at("deregistered") < at("0 of 3 in service"));
        assert!(at("0 of 3 in service") < at("PAGE"));
        assert!(at("3000 failed") > at("PAGE"));
    }

    #[test]
    fn the_picture_is_well_formed_and_marks_what_went_wrong() {
        let svg = sample().to_svg();
        assert!(svg.contains("incident &amp; &lt;without&gt; backstop"), "text is escaped");
        assert!(svg.contains("minimum 2"));
        assert_eq!(svg.matches("class=\"fail\"").count(), 60, "one bar for each slice with a failure");
        assert_eq!(svg.matches("class=\"below\"").count(), 2, "below the minimum is marked");
        for element in ["text", "svg", "title", "tspan", "rect"] {
            let opened = svg.matches(&format!("<{element} ")).count() + svg.matches(&format!("<{element}>")).count();
            assert_eq!(opened, svg.matches(&format!("</{element}>")).count(), "{element}");
        }
        for foreign in ["href", "<script", "url(", "@import"] {
            assert!(!svg.contains(foreign), "{foreign}");
        }
    }

    #[test]
    fn an_empty_run_has_a_picture() {
        let svg = Timeline::new("nothing", 0, 0).to_svg();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }
}
