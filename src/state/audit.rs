//! The audit journal: one JSON object per line, for people and for `history`. Nothing is ever decided by it, so a disk
//! that does not take it stops nothing.

use super::disk::Disk;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// The name of the journal; one older file `audit.jsonl.1` is kept.
pub const AUDIT_NAME: &str = "audit.jsonl";

/// No line is longer than this, in bytes.
pub const LINE_BYTES_MAX: usize = 8 * 1024;

/// The most that is read back of one file, in bytes.
const READ_BYTES_MAX: u64 = 2 * super::disk::AUDIT_BYTES_MAX;
/// Lines that may wait for a slow disk; more are lost, and counted.
const WAITING_MAX: usize = 256;
/// Reading waits so long for lines that are not written yet.
const FLUSH_WAIT: Duration = Duration::from_secs(2);

/// Writes audit lines on a thread of its own, since a disk may hang; counts those that were lost.
#[derive(Debug)]
pub struct Audit<D> {
    disk: Arc<D>,
    lost: Arc<AtomicU64>,
    pen: SyncSender<Stroke>,
}

/// What the writing thread is told.
#[derive(Debug)]
enum Stroke {
    Line(String),
    /// Everything before it is written, or lost.
    Flushed(SyncSender<()>),
}

fn write<D: Disk>(disk: &D, lost: &AtomicU64, strokes: &Receiver<Stroke>) {
    // Ends when the journal that owns the other end does.
    while let Ok(stroke) = strokes.recv() {
        match stroke {
            Stroke::Line(line) => {
                if disk.append(AUDIT_NAME, &line).is_err() {
                    lost.fetch_add(1, Ordering::Relaxed);
                }
            }
            // Whoever asked may have given up.
            Stroke::Flushed(told) => drop(told.try_send(())),
        }
    }
}

impl<D: Disk> Audit<D> {
    /// The journal of a state directory.
    pub fn new(disk: Arc<D>) -> Audit<D> {
        let (pen, strokes) = sync_channel(WAITING_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let (on, counted) = (disk.clone(), lost.clone());
        let thread = std::thread::Builder::new().name("audit".to_owned());
        if let Err(error) = thread.spawn(move || write(&*on, &counted, &strokes)) {
            // Every line counts as lost then.
            tracing::error!(%error, "no thread for the audit journal");
        }
        Audit { disk, lost, pen }
    }

    /// Adds an entry. Never fails and never waits: a line that is not taken is counted in [`Audit::lost`].
    pub fn record<T: Serialize>(&self, entry: &T) {
        let line = match serde_json::to_string(entry) {
            Ok(line) if line.len() <= LINE_BYTES_MAX => Ok(line),
            Ok(line) => Ok(cut(&line)),
            Err(e) => Err(e),
        };
        if line.map_or(true, |line| self.pen.try_send(Stroke::Line(line)).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until what was recorded is written or lost, at most this long. True where it is.
    pub fn flush(&self, bound: Duration) -> bool {
        let (told, flushed) = sync_channel(1);
        self.pen.try_send(Stroke::Flushed(told)).is_ok() && flushed.recv_timeout(bound).is_ok()
    }

    /// How many entries this process could not write.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// All entries that can be read, oldest first. What cannot be read is left out: a torn line hides no other. Blocks.
    pub fn entries(&self) -> Vec<serde_json::Value> {
        let _ = self.flush(FLUSH_WAIT);
        let mut entries = Vec::new();
        for name in [format!("{AUDIT_NAME}.1"), AUDIT_NAME.to_owned()] {
            let bytes = self.disk.read_up_to(&name, READ_BYTES_MAX).ok().flatten().unwrap_or_default();
            let lines = bytes.split(|b| *b == b'\n').filter(|line| !line.is_empty());
            entries.extend(lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok()));
        }
        entries
    }
}

/// An entry that is too long, as one that is not, with its beginning as text.
fn cut(line: &str) -> String {
    let mut end = LINE_BYTES_MAX / 4;
    while !line.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    serde_json::json!({ "cut": line.get(..end).unwrap_or_default(), "bytes": line.len() }).to_string()
}
