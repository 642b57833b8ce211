//! Looks on and writes the timeline: the load balancer's own state, the agents' audit journals, the fleet record, the
//! pager. It takes no part.

use crate::rehearse::elbv2::Control;
use crate::rehearse::fleet::{Fleet, Machine, Sight};
use crate::rehearse::pace::{self, Task};
use crate::rehearse::receiver::ReceiverControl;
use crate::rehearse::timeline::{EventKind, Timeline, clock};
use crate::state::audit::AUDIT_NAME;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two looks at the load balancer (real).
const LOOK: Duration = Duration::from_millis(10);
/// Every so many looks the files are read too.
const FILES_EVERY: u32 = 5;

#[derive(Debug)]
struct Shared {
    timeline: Timeline,
    lines: Lines,
    most_slots: usize,
    pages: usize,
    latches: BTreeSet<String>,
}

/// What is noticed, by different looks at different paces: a stage of a cycle is read from a file well after the load
/// balancer has shown what came of it.
#[derive(Debug, Default)]
struct Lines {
    /// In order of time.
    all: Vec<(u64, String)>,
    /// Those of `all` that nobody has taken.
    left: Vec<(u64, String)>,
    /// All that happened before this has been noticed.
    complete_ms: u64,
}

impl Lines {
    fn add(&mut self, at_ms: u64, line: &str) {
        for lines in [&mut self.all, &mut self.left] {
            let at = lines.partition_point(|(other, _)| *other <= at_ms);
            lines.insert(at, (at_ms, line.to_owned()));
        }
    }

    fn all(&self) -> Vec<String> {
        self.all.iter().map(|(_, line)| line.clone()).collect()
    }

    fn take(&mut self, over: bool) -> Vec<String> {
        let n = if over { self.left.len() } else { self.left.partition_point(|(at, _)| *at < self.complete_ms) };
        self.left.drain(..n).map(|(_, line)| line).collect()
    }
}

/// The handle.
#[derive(Clone, Debug)]
pub struct WatchControl(Arc<Mutex<Shared>>);

impl WatchControl {
    /// What happened so far.
    pub fn timeline(&self) -> Timeline {
        pace::lock(&self.0).timeline.clone()
    }

    /// The same, a line for each event, in order of time.
    pub fn lines(&self) -> Vec<String> {
        pace::lock(&self.0).lines.all()
    }

    /// Lines that were not taken yet and that nothing comes before any more; all of them where it is over.
    pub fn take_lines(&self, over: bool) -> Vec<String> {
        pace::lock(&self.0).lines.take(over)
    }

    /// The most slots that were taken at one time.
    pub fn most_slots(&self) -> usize {
        pace::lock(&self.0).most_slots
    }

    /// Adds an event.
    pub fn note(&self, at_ms: u64, node: &str, kind: EventKind, text: &str) {
        let mut shared = pace::lock(&self.0);
        shared.lines.add(at_ms, &format!("{}  {node:<12}  {text}", clock(at_ms)));
        shared.timeline.event(at_ms, node, kind, text);
    }
}

/// A machine as it was at the last look.
struct Seen {
    machine: Machine,
    audit: PathBuf,
    read: usize,
    node_starts: u32,
}

/// Looks on until it is dropped.
#[derive(Debug)]
pub struct Watch {
    control: WatchControl,
    _task: Task,
}

impl Watch {
    /// From now on.
    pub fn start(fleet: &Fleet, title: &str, minimum: usize) -> Watch {
        let shared = Shared {
            timeline: Timeline::new(title, fleet.machines().len(), minimum),
            lines: Lines::default(),
            most_slots: 0,
            pages: 0,
            latches: BTreeSet::new(),
        };
        let control = WatchControl(Arc::new(Mutex::new(shared)));
        let seen = |machine: &Machine| Seen {
            audit: machine.state_dir().join(AUDIT_NAME),
            read: 0,
            node_starts: machine.node_starts().0,
            machine: machine.clone(),
        };
        let look = Look {
            control: control.clone(),
            elbv2: fleet.elbv2(),
            groups: fleet.groups().to_vec(),
            receiver: fleet.receiver(),
            record: fleet.sight(),
            epoch_ms: fleet.epoch_ms(),
            machines: fleet.machines().iter().map(seen).collect(),
        };
        Watch { control, _task: Task::start(look.forever()) }
    }

    /// The handle.
    pub fn control(&self) -> WatchControl {
        self.control.clone()
    }

    /// Waits until what has happened until now has been seen.
    pub async fn settle(&self) {
        // Two rounds of files: the first may be half-way through.
        pace::sleep(LOOK.saturating_mul(FILES_EVERY.saturating_mul(3))).await;
    }
}

struct Look {
    control: WatchControl,
    elbv2: Control,
    groups: Vec<String>,
    receiver: ReceiverControl,
    record: Sight,
    epoch_ms: u64,
    machines: Vec<Seen>,
}

impl Look {
    async fn forever(mut self) {
        let (mut turn, mut last_ms) = (0_u32, 0);
        loop {
            let at_ms = self.elbv2.origin().simulated_ms();
            let nodes = self.elbv2.in_service(&self.groups).len();
            {
                let mut shared = pace::lock(&self.control.0);
                let before = shared.timeline.in_service.len();
                shared.timeline.sample(at_ms, nodes);
                if shared.timeline.in_service.len() != before {
                    let all = self.machines.len();
                    let line = format!("{}  {:<12}  {nodes} of {all} in service", clock(at_ms), "");
                    shared.lines.add(at_ms, &line);
                }
            }
            if turn.checked_rem(FILES_EVERY) == Some(0) {
                self.files(at_ms);
                // An agent writes a moment after the time that it writes down: the look before this one saw the rest.
                pace::lock(&self.control.0).lines.complete_ms = std::mem::replace(&mut last_ms, at_ms);
            }
            turn = turn.wrapping_add(1);
            pace::sleep(LOOK).await;
        }
    }

    fn files(&mut self, at_ms: u64) {
        let (control, epoch_ms) = (self.control.clone(), self.epoch_ms);
        for seen in &mut self.machines {
            let (starts, how) = seen.machine.node_starts();
            if starts != seen.node_starts {
                seen.node_starts = starts;
                let then = match how.shape {
                    None => String::new(),
                    Some((shape, None)) => format!("; every connection then fails as {shape}"),
                    Some((shape, Some(ms))) => {
                        let span = crate::words::span(ms);
                        format!("; every connection then fails as {shape} for {span}")
                    }
                };
                control.note(at_ms, seen.machine.name(), EventKind::World, &format!("the node starts{then}"));
            }
            for entry in seen.new_entries() {
                if let Some((kind, text)) = told(&entry) {
                    let at = entry.get("at").and_then(Value::as_str).and_then(|t| t.parse::<jiff::Timestamp>().ok());
                    let at = at.and_then(|t| u64::try_from(t.as_millisecond()).ok()).unwrap_or(0);
                    control.note(at.saturating_sub(epoch_ms).min(at_ms), seen.machine.name(), kind, &text);
                }
            }
        }
        self.look_at_record(at_ms);
        self.look_at_pages();
    }

    fn look_at_record(&self, at_ms: u64) {
        let Some(record) = self.record.record() else { return };
        let mut new = Vec::new();
        {
            let mut shared = pace::lock(&self.control.0);
            shared.most_slots = shared.most_slots.max(record.slots.len());
            for (id, latch) in record.open_latches() {
                if shared.latches.insert(id.to_string()) {
                    new.push((latch.node.to_string(), format!("latch {id}: patching is blocked on every node")));
                }
            }
        }
        for (node, text) in new {
            self.control.note(at_ms, &node, EventKind::Latch, &text);
        }
    }

    fn look_at_pages(&self) {
        let accepted = self.receiver.accepted();
        let mut shared = pace::lock(&self.control.0);
        for page in accepted.iter().skip(shared.pages) {
            let title = page.body.get("summary").and_then(Value::as_str).unwrap_or("a page without a summary");
            shared.timeline.page(page.at_ms, title);
            let line = format!("{}  {:<12}  PAGE {title}", clock(page.at_ms), "");
            shared.lines.add(page.at_ms, &line);
        }
        shared.pages = accepted.len();
    }
}

impl Seen {
    /// Whole lines that were not there at the last look.
    fn new_entries(&mut self) -> Vec<Value> {
        let text = std::fs::read(&self.audit).unwrap_or_default();
        if text.len() < self.read {
            self.read = 0; // it was rotated
        }
        let new = text.get(self.read..).unwrap_or_default();
        let whole = new.iter().rposition(|b| *b == b'\n').map_or(0, |at| at.saturating_add(1));
        self.read = self.read.saturating_add(whole);
        let lines = new.get(..whole).unwrap_or_default().split(|b| *b == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
    }
}

/// An entry of the audit journal as an event; `None`: it is none for this story.
fn told(entry: &Value) -> Option<(EventKind, String)> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    match text("event")? {
        "stage" => stage(entry, text("from"), text("to")),
        "self-heal" => Some((EventKind::Cycle, "registers itself: nothing explains why it is out".to_owned())),
        "page" => Some((EventKind::Failure, format!("FAILED: {}", text("message")?))),
        _ => None,
    }
}

fn stage(entry: &Value, from: Option<&str>, to: Option<&str>) -> Option<(EventKind, String)> {
    let words = match (from, to) {
        (_, Some("deregister")) => "leaves the load balancer",
        (_, Some("drain")) => "out; drains",
        (_, Some("patch")) => "drained; its job starts",
        (_, Some("reboot")) => "job ended well; the machine restarts",
        (Some("reboot"), Some("check")) => "up under a new boot id; node check",
        (_, Some("check")) => "way back: node check",
        (_, Some("register")) => "check passed; registers",
        (_, Some("settle")) => "registered",
        (Some("claim"), Some("release")) => return None,
        (_, Some("release")) => "healthy long enough; frees its slot",
        (Some("release"), None) => {
            let ended = entry.get("ended")?;
            let kind = if ended.get("exit")?.as_str()? == "done" { EventKind::Cycle } else { EventKind::Failure };
            let message = ended.get("message")?.as_str()?;
            let out = ended.get("out_ms").and_then(Value::as_u64).filter(|ms| *ms > 0)?;
            let out = crate::words::span(out);
            return Some((kind, format!("was out for {out}: {message}")));
        }
        _ => return None,
    };
    Some((EventKind::Cycle, words.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::Lines;

    #[test]
    fn what_is_noticed_late_is_told_at_its_place_and_each_line_once() {
        let mut lines = Lines::default();
        lines.add(20, "2 of 3 in service");
        lines.add(30, "PAGE");
        lines.add(10, "leaves the load balancer");
        lines.add(20, "drains");
        lines.complete_ms = 21;
        assert_eq!(lines.take(false), ["leaves the load balancer", "2 of 3 in service", "drains"]);
        assert_eq!(lines.take(false), [""; 0]);
        lines.add(25, "3 of 3 in service");
        assert_eq!(lines.take(true), ["3 of 3 in service", "PAGE"]);
        assert_eq!(lines.all().len(), 5);
    }
}
