//! Durable before visible, by type: nothing runs but a [`Ready`] effect, and there are two ways to make one.

use super::disk::Disk;
use super::snapshot::{Loaded, SaveError, SnapshotFile};
use crate::core::cycle::{Durable, SCHEMA, Seen};
use crate::core::decide::{Step, settle_commit};
use crate::core::effect::Effect;
use crate::core::ids::InstanceId;
use crate::core::invariant;
use crate::core::time::Now;
use std::sync::Arc;

/// The state file.
pub const STATE_NAME: &str = "state.json";

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
    /// Whole, and of another instance: an image, or a copied disk. Set aside, never resumed.
    Foreign(String),
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
    file: Arc<SnapshotFile<D>>,
    generation: u64,
    stored: Option<Durable>,
    now: Durable,
    /// Unreadable bytes could not be set aside: they are evidence, and nothing is written over them.
    blocked: bool,
}

impl<D: Disk> Journal<D> {
    /// Reads the state file. Blocks; called once, at start. Whatever cannot be resumed is set aside, bytes and all.
    pub fn open(disk: &Arc<D>, instance: &InstanceId) -> (Journal<D>, Found) {
        let file = Arc::new(SnapshotFile::new(disk.clone(), STATE_NAME, SCHEMA));
        let fresh = Durable::new(instance.clone());
        let blocked = std::cell::Cell::new(false);
        let journal = |generation, stored: Option<Durable>| Journal {
            blocked: blocked.get(),
            file: file.clone(),
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
                (journal(generation, None), Found::Foreign(why))
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
            Err(e) => Commit::Refused(e),
        };
        (step.seen, commit)
    }

    /// Tries again to store what is only in memory. True where nothing is owed any more.
    pub async fn retry(&mut self) -> Result<(), SaveError> {
        if self.committed().is_some() {
            return Ok(());
        }
        let now = self.now.clone();
        self.save(&now).await?;
        self.stored = Some(now);
        Ok(())
    }

    async fn save(&mut self, next: &Durable) -> Result<(), SaveError> {
        if self.blocked {
            // The disk may be back.
            self.file.set_aside("unreadable").map_err(SaveError::Disk)?;
            self.blocked = false;
        }
        invariant::durable(next).map_err(|broken| SaveError::Unwritable(broken.to_string()))?;
        let (file, body) = (self.file.clone(), next.clone());
        let generation = self.generation.saturating_add(1);
        let saved = tokio::task::spawn_blocking(move || file.save(generation, &body)).await;
        match saved {
            Ok(result) => {
                // A refused write may still have reached the disk: never use its number for other content.
                self.generation = generation;
                result
            }
            Err(panic) => Err(SaveError::Disk(std::io::Error::other(panic.to_string()))),
        }
    }
}
