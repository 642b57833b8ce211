//! What is due now, and when the next thing will be.

use super::super::time::Now;
use super::pace::{Pace, jittered, within};
use std::collections::{BTreeMap, BTreeSet};

/// One thing that an agent does regularly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Task {
    /// Write the own member document.
    Beat,
    /// Read all member documents.
    Members,
    /// Read the documents of [`Pace::watched`].
    Watch,
    /// Read the fleet record.
    Record,
    /// Read the cluster's list of client nodes.
    Nodes,
    /// Read whole groups.
    Groups,
    /// Read the own target by name.
    Own,
}

impl Task {
    /// All of them, in the order in which they are done.
    pub const ALL: [Task; 7] =
        [Task::Beat, Task::Members, Task::Watch, Task::Record, Task::Nodes, Task::Groups, Task::Own];

    fn every_ms(self, pace: &Pace) -> Option<u64> {
        match self {
            Task::Beat => Some(pace.beat_ms),
            Task::Members => Some(pace.members_ms),
            Task::Watch => (!pace.watched.is_empty() && pace.watch_ms < pace.members_ms).then_some(pace.watch_ms),
            Task::Record => Some(pace.record_ms),
            Task::Nodes => pace.nodes_ms,
            Task::Groups => pace.groups_ms,
            Task::Own => pace.own_ms,
        }
    }
}

/// When each task was last begun, and the jitter of its next turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agenda {
    begun: BTreeMap<Task, (Now, u64)>,
    /// What the last beat promised: a slower pace begins with a beat that says so.
    promised: Option<u64>,
    met: bool,
}

/// Between two looks at the agenda, at most: a changed pace is noticed by then.
const WAIT_MAX_MS: u64 = 60_000;
/// And at least.
const WAIT_MIN_MS: u64 = 10;

impl Agenda {
    /// What is due, and how long until something else is, in ms. A task that was never begun is due; but the first turn only
    /// learns who the others are, so that a whole fleet that starts at once does not begin with everybody a reader. `jitter` is random and spreads
    /// the next turns; a changed pace counts at once.
    pub fn due(&mut self, pace: &Pace, now: &Now, jitter: u64) -> (BTreeSet<Task>, u64) {
        let mut due = BTreeSet::new();
        let mut wait = WAIT_MAX_MS;
        let meets = |task: Task| matches!(task, Task::Beat | Task::Members | Task::Record);
        let met = std::mem::replace(&mut self.met, true);
        for (place, task) in (0_u32..).zip(Task::ALL) {
            if !met && !meets(task) {
                wait = WAIT_MIN_MS;
                continue;
            }
            let Some(mut every) = task.every_ms(pace) else {
                self.begun.remove(&task);
                continue;
            };
            if task == Task::Beat {
                every = every.min(self.promised.unwrap_or(every));
            }
            let fresh = self.begun.get(&task).filter(|(at, j)| within(at, jittered(every, *j), now));
            let left = if let Some((at, j)) = fresh {
                jittered(every, *j).saturating_sub(now.since(at).unwrap_or(0))
            } else {
                due.insert(task);
                let own = jitter.rotate_left(place.saturating_mul(9));
                self.begun.insert(task, (now.clone(), own));
                if task == Task::Beat {
                    self.promised = Some(pace.beat_ms);
                }
                jittered(every, own)
            };
            wait = wait.min(left);
        }
        (due, wait.max(WAIT_MIN_MS))
    }

    /// This is due at once, whatever its pace: something has happened.
    pub fn hurry(&mut self, task: Task) {
        self.begun.remove(&task);
    }
}
