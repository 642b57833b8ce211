//! The audit journal: one JSON object per line, for people and for `history`. Nothing is ever decided by it, so a disk
//! that does not take it stops nothing.

use super::disk::Disk;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the journal; one older file `audit.jsonl.1` is kept.
pub const AUDIT_NAME: &str = "audit.jsonl";

/// No line is longer than this, in bytes.
pub const LINE_BYTES_MAX: usize = 8 * 1024;

/// The most that is read back of one file, in bytes.
const READ_BYTES_MAX: u64 = 2 * super::disk::AUDIT_BYTES_MAX;

/// Writes audit lines; counts those that were lost.
#[derive(Debug)]
pub struct Audit<D> {
    disk: Arc<D>,
    lost: AtomicU64,
}

impl<D: Disk> Audit<D> {
    /// The journal of a state directory.
    pub fn new(disk: Arc<D>) -> Audit<D> {
        Audit { disk, lost: AtomicU64::new(0) }
    }

    /// Adds an entry. Never fails for the caller: a line that is not taken is counted in [`Audit::lost`].
    pub fn record<T: Serialize>(&self, entry: &T) {
        let written = match serde_json::to_string(entry) {
            Ok(line) if line.len() <= LINE_BYTES_MAX => self.disk.append(AUDIT_NAME, &line),
            Ok(line) => self.disk.append(AUDIT_NAME, &cut(&line)),
            Err(e) => Err(e.into()),
        };
        if written.is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many entries this process could not write.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// All entries that can be read, oldest first. What cannot be read is left out: a torn line hides no other.
    pub fn entries(&self) -> Vec<serde_json::Value> {
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
