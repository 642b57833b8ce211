//! The picture of a run: nodes in service as a step line, failed requests as bars, events below. One file, no fonts or
//! scripts from elsewhere; it reads on light and on dark ground.

use super::{EventKind, InService, Timeline, clock};
use std::fmt::Write as _;

const WIDTH: u64 = 880;
const LEFT: u64 = 64;
const PLOT: u64 = 792;
const RIGHT: u64 = 856; // LEFT + PLOT
const SERVICE_TOP: u64 = 68;
const SERVICE_HEIGHT: u64 = 120;
const SERVICE_BOTTOM: u64 = 188;
const FAILED_TOP: u64 = 216;
const FAILED_HEIGHT: u64 = 70;
const FAILED_BOTTOM: u64 = 286;
const EVENTS_TOP: u64 = 326;
const ROW: u64 = 16;
/// Width of one character of a label, on average.
const LETTER: u64 = 6;
const LONGEST_LABEL: usize = 72;

const STYLE: &str = "\
text{font:11px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#57606a}\
.title{font-size:15px;font-weight:600}.sum{font-size:12px}.axis{stroke:#8c959f;stroke-width:1}\
.grid{stroke:#8c959f;stroke-width:1;opacity:.25}.line{stroke:#1a7f37;stroke-width:2.5;fill:none}\
.area{fill:#1a7f37;opacity:.12}.below{stroke:#cf222e;stroke-width:3}.min{stroke:#bf8700;stroke-width:1.2;stroke-dasharray:5 4}\
.mint{fill:#9a6700}.fail{fill:#cf222e}.cycle{fill:#0969da}.failure{fill:#cf222e}.latch{fill:#bf8700}.world{fill:#8c959f}\
.page{fill:#8250df}.drop{stroke:#8c959f;stroke-width:1;opacity:.35}.bad{fill:#cf222e;font-weight:600}.good{fill:#1a7f37;font-weight:600}\
@media (prefers-color-scheme:dark){text{fill:#adbac7}.mint{fill:#d4a72c}.good{fill:#57ab5a}.bad{fill:#f47067}.line{stroke:#57ab5a}}";

/// `value` of `from` as a part of `to`.
fn part(value: u64, from: u64, to: u64) -> u64 {
    value.saturating_mul(to).checked_div(from).unwrap_or(0).min(to)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

struct Picture<'a> {
    timeline: &'a Timeline,
    end_ms: u64,
    out: String,
}

pub(super) fn draw(timeline: &Timeline) -> String {
    let mut picture = Picture { timeline, end_ms: timeline.end_ms.max(1), out: String::new() };
    picture.time_axis();
    picture.service();
    picture.failures();
    let bottom = picture.events();
    let height = bottom.saturating_add(14);
    let label = format!("{}: nodes in service and failed requests over time", timeline.title);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\"><style>{STYLE}</style>{}{}</svg>\n",
        escape(&label),
        heading(timeline),
        picture.out
    )
}

fn heading(timeline: &Timeline) -> String {
    let (ok, failed) = timeline.request_totals();
    let lowest = timeline.lowest().map_or(0, |s| s.nodes);
    let class = |bad: bool| if bad { "bad" } else { "good" };
    format!(
        "<text class=\"title\" x=\"{LEFT}\" y=\"22\">{}</text><text class=\"sum\" x=\"{LEFT}\" y=\"42\">\
         <tspan class=\"{}\">{failed} failed</tspan> of {} requests  ·  \
         <tspan class=\"{}\">lowest in service {lowest}</tspan> of {}  ·  {} {}</text>",
        escape(&timeline.title),
        class(failed > 0),
        ok.saturating_add(failed),
        class(lowest < timeline.minimum),
        timeline.fleet,
        timeline.pages.len(),
        if timeline.pages.len() == 1 { "page" } else { "pages" }
    )
}

impl Picture<'_> {
    fn x(&self, at_ms: u64) -> u64 {
        LEFT.saturating_add(part(at_ms, self.end_ms, PLOT))
    }

    fn y(&self, nodes: usize) -> u64 {
        let nodes = u64::try_from(nodes).unwrap_or(u64::MAX);
        let fleet = u64::try_from(self.timeline.fleet.max(1)).unwrap_or(u64::MAX);
        SERVICE_BOTTOM.saturating_sub(part(nodes, fleet, SERVICE_HEIGHT.saturating_sub(8)))
    }

    fn line(&mut self, class: &str, from: (u64, u64), to: (u64, u64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        write!(self.out, "<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>").ok();
    }

    fn text(&mut self, class: &str, anchor: &str, at: (u64, u64), text: &str) {
        let (x, y) = at;
        let text = escape(text);
        write!(self.out, "<text class=\"{class}\" text-anchor=\"{anchor}\" x=\"{x}\" y=\"{y}\">{text}</text>").ok();
    }

    /// Simulated time under both plots, at about six round places.
    fn time_axis(&mut self) {
        const STEPS_MS: [u64; 11] =
            [1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 14_400_000];
        let wanted = self.end_ms.div_euclid(7);
        let step = STEPS_MS.into_iter().find(|s| *s >= wanted).unwrap_or(86_400_000);
        let mut at_ms = 0;
        while at_ms <= self.end_ms {
            let x = self.x(at_ms);
            self.line("grid", (x, SERVICE_TOP), (x, FAILED_BOTTOM));
            self.text("", "middle", (x, FAILED_BOTTOM.saturating_add(15)), &clock(at_ms));
            at_ms = at_ms.saturating_add(step);
        }
    }

    fn service(&mut self) {
        for nodes in 0..=self.timeline.fleet {
            let y = self.y(nodes);
            self.line(if nodes == 0 { "axis" } else { "grid" }, (LEFT, y), (RIGHT, y));
            self.text("", "end", (LEFT.saturating_sub(8), y.saturating_add(4)), &nodes.to_string());
        }
        self.text("", "start", (LEFT, SERVICE_TOP.saturating_sub(2)), "nodes in service");
        let samples = self.timeline.in_service.clone();
        let ends = samples.iter().skip(1).map(|s| s.at_ms).chain([self.end_ms]);
        let steps: Vec<(InService, u64)> = samples.iter().copied().zip(ends).collect();
        self.step_line(&steps);
        let (y, minimum) = (self.y(self.timeline.minimum), self.timeline.minimum);
        self.line("min", (LEFT, y), (RIGHT, y));
        self.text("mint", "end", (RIGHT, y.saturating_sub(4)), &format!("minimum {minimum}"));
    }

    fn step_line(&mut self, steps: &[(InService, u64)]) {
        let mut path = String::new();
        for (sample, end_ms) in steps {
            let (x1, x2, y) = (self.x(sample.at_ms), self.x(*end_ms), self.y(sample.nodes));
            write!(path, "{} {x1} {y} H {x2} ", if path.is_empty() { "M" } else { "L" }).ok();
        }
        let (Some((first, _)), Some((_, last_ms))) = (steps.first(), steps.last()) else { return };
        let (x1, x2) = (self.x(first.at_ms), self.x(*last_ms));
        write!(self.out, "<path class=\"area\" d=\"{path}L {x2} {SERVICE_BOTTOM} L {x1} {SERVICE_BOTTOM} Z\"/>").ok();
        write!(self.out, "<path class=\"line\" d=\"{path}\"/>").ok();
        for (sample, end_ms) in steps.iter().filter(|(s, _)| s.nodes < self.timeline.minimum) {
            let y = self.y(sample.nodes);
            self.line("below", (self.x(sample.at_ms), y), (self.x(*end_ms), y));
        }
    }

    /// Bars: which part of the slice's requests failed. So two pictures compare whatever their traffic.
    fn failures(&mut self) {
        self.text("", "start", (LEFT, FAILED_TOP.saturating_sub(4)), "failed requests");
        self.text("", "end", (LEFT.saturating_sub(8), FAILED_BOTTOM.saturating_add(4)), "0 %");
        self.text("", "end", (LEFT.saturating_sub(8), FAILED_TOP.saturating_add(8)), "100 %");
        self.line("axis", (LEFT, FAILED_BOTTOM), (RIGHT, FAILED_BOTTOM));
        let width = part(self.timeline.slice_ms, self.end_ms, PLOT).max(2);
        for slice in self.timeline.requests.iter().filter(|r| r.failed > 0) {
            let all = slice.ok.saturating_add(slice.failed);
            let height = part(slice.failed, all, FAILED_HEIGHT).max(2);
            let (x, y) = (self.x(slice.at_ms), FAILED_BOTTOM.saturating_sub(height));
            let note = format!("{} {} of {all} failed", clock(slice.at_ms), slice.failed);
            write!(
                self.out,
                "<rect class=\"fail\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"><title>{note}</title></rect>"
            )
            .ok();
        }
    }

    /// Marks with their words, each in the first row that has room. Returns the lowest edge.
    fn events(&mut self) -> u64 {
        let timeline = self.timeline;
        let mut marks: Vec<(u64, &str, String)> = timeline
            .events
            .iter()
            .map(|e| {
                let text = if e.node.is_empty() { e.text.clone() } else { format!("{}: {}", e.node, e.text) };
                (e.at_ms, class_of(e.kind), text)
            })
            .chain(timeline.pages.iter().map(|p| (p.at_ms, "page", format!("page: {}", p.title))))
            .collect();
        marks.sort_by_key(|(at_ms, _, _)| *at_ms);
        let mut rows: Vec<u64> = Vec::new();
        for (at_ms, class, text) in marks {
            let text = shortened(&text);
            let x = self.x(at_ms);
            let length = u64::try_from(text.chars().count()).unwrap_or(0).saturating_mul(LETTER).saturating_add(18);
            // A label that would leave the picture stands to the left of its mark.
            let leftwards = x.saturating_add(length) > WIDTH;
            let start = if leftwards { x.saturating_sub(length) } else { x };
            let row = rows.iter().position(|end| *end <= start).unwrap_or(rows.len());
            let end = if leftwards { x.saturating_add(6) } else { x.saturating_add(length) };
            match rows.get_mut(row) {
                Some(taken) => *taken = end,
                None => rows.push(end),
            }
            let y = EVENTS_TOP.saturating_add(u64::try_from(row).unwrap_or(0).saturating_mul(ROW));
            self.line("drop", (x, FAILED_BOTTOM), (x, y));
            write!(self.out, "<circle class=\"{class}\" cx=\"{x}\" cy=\"{y}\" r=\"3.5\"/>").ok();
            let (anchor, at) = if leftwards { ("end", x.saturating_sub(7)) } else { ("start", x.saturating_add(7)) };
            self.text("", anchor, (at, y.saturating_add(4)), &text);
        }
        EVENTS_TOP.saturating_add(u64::try_from(rows.len()).unwrap_or(0).saturating_mul(ROW))
    }
}

const fn class_of(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Cycle => "cycle",
        EventKind::Failure => "failure",
        EventKind::Latch => "latch",
        EventKind::World => "world",
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_LABEL {
        return text.to_owned();
    }
    let start: String = text.chars().take(LONGEST_LABEL).collect();
    format!("{}…", start.trim_end())
}
