//! Durable before visible, by type: nothing runs but a [`Ready`] effect, and there are two ways to make one.

use super::disk::Disk;
use super::snapshot::{Loaded, SaveError, SnapshotFile, encode};
use super::writer::Writer;
use crate::core::cycle::{Cycle, Durable, SCHEMA, Seen};
use crate::core::decide::{Step, settle_commit};
use crate::core::effect::Effect;
use crate::core::ids::InstanceId;
use crate::core::invariant;
use crate::core::plan::Plan;
use crate::core::time::{BootId, Now};
use std::sync::Arc;
use std::time::Duration;

/// The state file.
pub const STATE_NAME: &str = "state.json";
/// No cycle starts with a larger state, in bytes: what it comes to know on its way must find room too.
pub const START_BYTES_MAX: usize = 32 * 1024;

/// An effect that may run now. The field is private: only the two constructors build one.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub struct Ready(Effect);

impl Ready {
    /// Towards service: needs no commit. A full disk never strands a node.
    pub fn homeward(effect: Effect) -> Option<Ready> {
        (!effect.outward()).then_some(Ready(effect))
    }

    /// Anything, but only under a decision that is on stable storage.
    pub fn committed(_proof: &Committed, effect: Effect) -> Ready {
        Ready(effect)
    }

    /// What is to be done.
    pub fn effect(&self) -> &Effect {
        &self.0
    }
}

/// Proof that the decision in memory is the one on the disk. Only [`Journal::committed`] hands it out.
pub struct Committed(());

/// How the state file was found at start.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// No file and no trace of one.
    Fresh,
    /// Whole, understood, and of this instance.
    Resumed,
    /// Whole, and of another instance: an image, or a copied disk. Set aside, never resumed. With the boot in which its
    /// unfinished cycle was written.
    Foreign(String, Option<BootId>),
    /// Anything else: set aside. What this node was doing is not known.
    Unreadable(String),
}

/// What came of a commit.
#[derive(Debug)]
pub enum Commit {
    /// Nothing had changed.
    Unchanged,
    /// On stable storage.
    Stored,
    /// The disk refused: the state went on in memory towards home, or stayed.
    Refused(SaveError),
}

/// The stored state, the present one, and the file between them.
pub struct Journal<D> {
    writer: Writer<D>,
    /// Of the last state that was given to the writer, whatever came of it.
    generation: u64,
    /// What is on the disk; `None` = not known, or nothing.
    stored: Option<Durable>,
    now: Durable,
}

impl<D: Disk> Journal<D> {
    /// Reads the state file. Blocks; called once, at start. Whatever cannot be resumed is set aside, bytes and all.
    pub fn open(disk: &Arc<D>, instance: &InstanceId) -> (Journal<D>, Found) {
        let snapshot = || SnapshotFile::new(disk.clone(), STATE_NAME, SCHEMA);
        let file = snapshot();
        let fresh = Durable::new(instance.clone());
        let blocked = std::cell::Cell::new(false);
        let journal = |generation, stored: Option<Durable>| Journal {
            writer: Writer::new(snapshot(), blocked.get()),
            generation,
            now: stored.clone().unwrap_or_else(|| fresh.clone()),
            stored,
        };
        let aside = |reason: &str| match file.set_aside(reason) {
            Ok(path) => format!("set aside as {}", path.display()),
            Err(e) => {
                blocked.set(true);
                format!("it could not be set aside, so nothing is written over it: {e}")
            }
        };
        match file.load::<Durable>() {
            Loaded::Missing => (journal(0, None), Found::Fresh),
            Loaded::Good { generation, body } if body.instance != *instance => {
                let why =
                    format!("the state is of instance {}, this is {instance}; {}", body.instance, aside("foreign"));
                let boot = body.cycle.as_ref().map(|c| c.entered.boot.clone());
                (journal(generation, None), Found::Foreign(why, boot))
            }
            Loaded::Good { generation, body } => match invariant::durable(&body) {
                Ok(()) => (journal(generation, Some(body)), Found::Resumed),
                Err(broken) => {
                    let why = format!("the state contradicts itself ({broken}); {}", aside("broken"));
                    (journal(generation, None), Found::Unreadable(why))
                }
            },
            Loaded::Newer { schema } => {
                let why = format!("the state has schema {schema}, this version knows {SCHEMA}; {}", aside("newer"));
                (journal(0, None), Found::Unreadable(why))
            }
            Loaded::Unreadable { why } => {
                let why = format!("the state cannot be read: {why}; {}", aside("unreadable"));
                (journal(0, None), Found::Unreadable(why))
            }
        }
    }

    /// A save that takes longer than this counts as refused.
    #[must_use]
    pub fn patient(mut self, patience: Duration) -> Journal<D> {
        self.writer = self.writer.patient(patience);
        self
    }

    /// Is there room for a cycle with this plan? The whole state goes into one small file.
    ///
    /// # Errors
    /// There is not, in words.
    pub fn has_room_for(&self, plan: &Arc<Plan>, now: &Now) -> Result<(), String> {
        let begun = Durable { cycle: Some(Cycle::start(plan.clone(), now)), ..self.now.clone() };
        let bytes = encode(SCHEMA, self.generation, &begun).map_or(usize::MAX, |bytes| bytes.len());
        if bytes <= START_BYTES_MAX {
            return Ok(());
        }
        let pages = match self.now.pages.len() {
            0 => String::new(),
            n => format!(" ({n} pages that nobody has accepted are in it too)"),
        };
        Err(format!(
            "the state with this job would be larger than {START_BYTES_MAX} bytes, which is as much as a cycle may start \
             with{pages}; put the command into a script"
        ))
    }

    /// The present state.
    pub fn now(&self) -> &Durable {
        &self.now
    }

    /// The decision in memory is the one on the disk.
    pub fn committed(&self) -> Option<Committed> {
        (self.stored.as_ref() == Some(&self.now)).then_some(Committed(()))
    }

    /// The effect, if it may run now.
    pub fn ready(&self, effect: Effect) -> Option<Ready> {
        match self.committed() {
            Some(proof) => Some(Ready::committed(&proof, effect)),
            None => Ready::homeward(effect),
        }
    }

    /// Commits a step before anything acts on it. Once this returns `Stored`, the state is on stable storage.
    pub async fn advance(&mut self, seen: &Seen, step: Step, now: &Now) -> (Seen, Commit) {
        if step.durable == self.now {
            return (step.seen, Commit::Unchanged);
        }
        let saved = self.save(&step.durable).await;
        let stored = saved.is_ok();
        let step = settle_commit(&self.now, seen, step, stored, now);
        self.now = step.durable;
        let commit = match saved {
            Ok(()) => {
                self.stored = Some(self.now.clone());
                Commit::Stored
            }
            Err(e) => {
                self.refused(&e);
                Commit::Refused(e)
            }
        };
        (step.seen, commit)
    }

    /// Tries again to store what is only in memory. True where nothing is owed any more.
    pub async fn retry(&mut self) -> Result<(), SaveError> {
        if self.committed().is_some() {
            return Ok(());
        }
        let now = self.now.clone();
        let saved = self.save(&now).await;
        match &saved {
            Ok(()) => self.stored = Some(now),
            Err(e) => self.refused(e),
        }
        saved
    }

    /// A refused write may have reached the disk, or (one that was given up) may still: what is there is not known until a
    /// later one is acknowledged, and until then nothing counts as committed.
    fn refused(&mut self, e: &SaveError) {
        if matches!(e, SaveError::Disk(_)) {
            self.stored = None;
        }
    }

    async fn save(&mut self, next: &Durable) -> Result<(), SaveError> {
        invariant::durable(next).map_err(|broken| SaveError::Unwritable(broken.to_string()))?;
        // Taken before the write is tried: its number is never used for other content.
        self.generation = self.generation.saturating_add(1);
        self.writer.save(self.generation, next.clone()).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::time::BootId;
    use crate::state::fault::{FaultDisk, FaultFiles, Trouble};

    /// The disk has what was refused last, and memory is back at what was stored before: the two only look alike.
    #[tokio::test]
    async fn after_a_refusal_nothing_counts_as_committed_until_a_later_save_is_acknowledged() {
        let files = FaultFiles::default();
        let now = Now { wall_ms: 1, boot: BootId("b".into()), since_boot_ms: 1 };
        let (mut journal, _) = Journal::open(&Arc::new(FaultDisk::new(&files)), &InstanceId("i-1".into()));
        journal.retry().await.unwrap();
        let first = journal.now().clone();
        let step =
            |reboots_ms: Vec<u64>| Step { durable: Durable { reboots_ms, ..first.clone() }, seen: Seen::default() };
        let before = files.operations();
        let _ = journal.advance(&Seen::default(), step(vec![1]), &now).await;
        let save = files.operations() - before;
        let _ = journal.advance(&Seen::default(), step(vec![]), &now).await;
        assert!(journal.committed().is_some());
        // The directory is not synced, and the new name is there all the same.
        files.trouble_at(files.operations() + save - 1, Trouble::Broken);
        let (_, refused) = journal.advance(&Seen::default(), step(vec![2]), &now).await;
        assert!(matches!(refused, Commit::Refused(_)), "{refused:?}");
        files.trouble_always(Some(Trouble::Full));
        let _ = journal.advance(&Seen::default(), step(vec![]), &now).await;
        assert_eq!(*journal.now(), first);
        assert!(journal.committed().is_none(), "the disk says something else");
        files.trouble_always(None);
        journal.retry().await.unwrap();
        assert!(journal.committed().is_some());
    }
}
