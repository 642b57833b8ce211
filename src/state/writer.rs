//! The one writer of the state file: a queue of one in front of one thread at a time, so that a disk that hangs stops
//! neither the agent nor the order of what is written.
//!
//! A save that is not answered in time counts as not stored, though it may still land. Whatever is saved after it waits
//! behind it, and of several only the latest is written: on the disk generations only ever grow.

use super::disk::Disk;
use super::snapshot::{SaveError, SnapshotFile};
use crate::bounded::late;
use crate::core::cycle::Durable;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// A save that takes longer counts as refused.
const PATIENCE: Duration = Duration::from_secs(10);

/// What can be written.
pub(super) trait Body: Serialize + DeserializeOwned + Send + 'static {}

impl<T: Serialize + DeserializeOwned + Send + 'static> Body for T {}

/// One state to be written, and who waits for it.
struct Save<B> {
    generation: u64,
    body: B,
    answer: oneshot::Sender<Result<(), SaveError>>,
}

/// What waits, and what is under way.
struct Line<B> {
    next: Option<Save<B>>,
    /// A thread writes, and will look for the next one before it ends.
    busy: bool,
    /// What it writes has been given up: nobody waits behind it.
    overdue: bool,
    /// Bytes that cannot be understood are in the way: they are evidence, and set aside first.
    blocked: bool,
}

struct Inner<D, B> {
    file: SnapshotFile<D>,
    line: Mutex<Line<B>>,
}

/// Writes states in the order in which they are given.
pub(super) struct Writer<D, B = Durable> {
    inner: Arc<Inner<D, B>>,
    patience: Duration,
}

impl<D: Disk, B: Body> Writer<D, B> {
    /// `blocked`: unreadable bytes could not be set aside yet, and nothing is written over them.
    pub(super) fn new(file: SnapshotFile<D>, blocked: bool) -> Writer<D, B> {
        let line = Mutex::new(Line { next: None, busy: false, overdue: false, blocked });
        Writer { inner: Arc::new(Inner { file, line }), patience: PATIENCE }
    }

    pub(super) fn patient(mut self, patience: Duration) -> Writer<D, B> {
        self.patience = patience;
        self
    }

    /// Writes one state. Generations are to grow from call to call.
    pub(super) async fn save(&self, generation: u64, body: B) -> Result<(), SaveError> {
        let (answer, answered) = oneshot::channel();
        let (idle, patience) = {
            let mut line = self.inner.line();
            // One that still waits is dropped: its caller has given up, and this one is newer.
            line.next = Some(Save { generation, body, answer });
            let patience = if line.overdue { Duration::ZERO } else { self.patience };
            (!std::mem::replace(&mut line.busy, true), patience)
        };
        if idle {
            let inner = self.inner.clone();
            // Never joined: its answers come one by one, and a panic in a write is one of them.
            drop(tokio::task::spawn_blocking(move || inner.write_all()));
        }
        match tokio::time::timeout(patience, answered).await {
            Ok(Ok(saved)) => saved,
            Ok(Err(_)) => Err(SaveError::Disk(io::Error::other("the writer of the state ended"))),
            Err(_) => {
                let mut line = self.inner.line();
                line.overdue = line.busy;
                Err(SaveError::Disk(io::Error::new(io::ErrorKind::TimedOut, late(self.patience))))
            }
        }
    }
}

impl<D: Disk, B: Body> Inner<D, B> {
    fn line(&self) -> MutexGuard<'_, Line<B>> {
        // Every change of it is one assignment.
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until nothing waits any more.
    fn write_all(&self) {
        loop {
            let save = {
                let mut line = self.line();
                line.overdue = false;
                let Some(save) = line.next.take() else {
                    line.busy = false;
                    return;
                };
                save
            };
            let written = catch_unwind(AssertUnwindSafe(|| self.write(save.generation, &save.body)));
            let written = written.unwrap_or_else(|_| Err(SaveError::Disk(io::Error::other("a panic"))));
            // Nobody may wait any more.
            let _ = save.answer.send(written);
        }
    }

    fn write(&self, generation: u64, body: &B) -> Result<(), SaveError> {
        let blocked = self.line().blocked;
        if blocked {
            // The disk may be back.
            match self.file.set_aside("unreadable") {
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(SaveError::Disk(e)),
                Ok(_) | Err(_) => {}
            }
            self.line().blocked = false;
        }
        self.file.save(generation, body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cycle::SCHEMA;
    use crate::core::ids::InstanceId;
    use crate::state::fault::{FaultDisk, FaultFiles};
    use crate::state::journal::STATE_NAME;
    use crate::state::snapshot::Loaded;

    /// Only waited for where something hangs.
    const SHORT: Duration = Duration::from_millis(50);

    fn state(number: u64) -> Durable {
        Durable { page_seq: number, ..Durable::new(InstanceId("i-1".into())) }
    }

    fn file(files: &FaultFiles) -> SnapshotFile<FaultDisk> {
        SnapshotFile::new(Arc::new(FaultDisk::new(files)), STATE_NAME, SCHEMA)
    }

    fn stored(files: &FaultFiles) -> (u64, u64) {
        let Loaded::Good { generation, body } = file(files).load::<Durable>() else { panic!("no state") };
        (generation, body.page_seq)
    }

    fn late(saved: &Result<(), SaveError>) -> bool {
        matches!(saved, Err(SaveError::Disk(e)) if e.kind() == io::ErrorKind::TimedOut)
    }

    /// The next save that is answered: by then all before it have landed or were dropped.
    async fn lands(writer: &Writer<FaultDisk>, mut generation: u64) -> u64 {
        while writer.save(generation, state(generation)).await.is_err() {
            generation = generation.saturating_add(1);
        }
        generation
    }

    #[tokio::test]
    async fn a_save_that_hangs_is_late_and_of_those_behind_it_the_latest_lands_after_it() {
        let files = FaultFiles::default();
        let writer = Writer::new(file(&files), false).patient(SHORT);
        let first = lands(&writer, 1).await;
        files.hang(true);
        assert!(late(&writer.save(first + 1, state(first + 1)).await));
        for generation in first + 2..first + 5 {
            assert!(
                late(&writer.save(generation, state(generation)).await),
                "nobody waits behind one that was given up"
            );
        }
        files.hang(false);
        let last = lands(&writer, first + 5).await;
        assert_eq!(stored(&files), (last, last), "content and generation belong together, and the last one is there");
    }

    #[tokio::test]
    async fn what_lands_late_is_on_the_disk_before_what_was_saved_after_it() {
        let files = FaultFiles::default();
        files.hang(true);
        let writer = Writer::new(file(&files), false).patient(SHORT);
        for generation in 1..=3 {
            assert!(late(&writer.save(generation, state(generation)).await));
        }
        files.hang(false);
        let last = lands(&writer, 4).await;
        let previous = FaultDisk::new(&files).read("state.json.prev").unwrap().expect("there was one before it");
        let Loaded::Good { generation, body } = crate::state::snapshot::decode::<Durable>(SCHEMA, &previous) else {
            panic!("no state")
        };
        assert!(generation < last && generation != 2, "the second never left the queue: {generation}");
        assert_eq!(body.page_seq, generation);
        assert_eq!(stored(&files), (last, last));
    }
}
