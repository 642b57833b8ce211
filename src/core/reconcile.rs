//! Compares what should be with what is: observations, each with its age, become findings. Pure; `docs/findings.md` has the
//! table that it follows.
//!
//! What was decided here:
//!
//! - **Unknown is neither well nor ill.** A source that was not read, whose last try failed, whose answer is older than
//!   `stale_after_ms`, or which other facts contradict, raises and resolves nothing: its kinds are unjudged. After five
//!   minutes it is `blind`.
//! - **An empty list** (any list that leaves members out) is believed unless it is contradicted: the own target asked by
//!   name in the same look is registered, or another member's document says that it read itself healthy *after* this
//!   agent first missed it and before the present read. Then the group is unknown and its source fails. A list that
//!   nobody contradicts is genuine: an emptied group is `below-floor` at the second read.
//! - **One cause per node.** What is wrong with a member has the closest name (`standing.rs`); `out-of-service` is what no
//!   other kind names. A start or drain that takes too long is told beside it. `out-of-service` is absent only where its
//!   member is in service in every group.
//! - **What is planned is silent**, by this agent's own first sight and clock: neither raised nor resolved. Its time over,
//!   everything is told. A latch's node is told by `latched`. Nothing silences `below-floor`.
//! - **A count has two ends.** At most so many are in service, at least so many: `below-…` needs the first to be too low, its
//!   absence the second to suffice. Where members are unknown, no group can have more of them in service than it has
//!   healthy ids.
//! - **While the record is unknown** a plan may explain an absence: it is told after `unknown_plan_after_ms`.

mod around;
mod blind;
pub mod by_hand;
mod first;
mod fleet;
mod index;
mod members;
mod memory;
pub mod once;
mod record_findings;
mod sight;
mod standing;
mod text;
mod world;

pub use first::FirstSeen;
pub use memory::{FINDINGS_MAX, Memory};
pub use sight::{GroupSight, Seen, Settings, Sight, Source, Wrote};

use super::finding::Report;
use super::time::Now;
use memory::Draft;
use world::World;

/// One look, put beside the earlier ones.
pub fn reconcile(sight: &Sight<'_>, settings: &Settings, memory: &mut Memory, now: &Now) -> Report {
    memory.begin(now);
    let mut draft = Draft::new(sight.node.as_str());
    let world = World::read(sight, settings, memory, now);
    members::judge(&world, &mut draft);
    fleet::count(&world, &mut draft);
    fleet::beside_the_record(&world, &mut draft);
    fleet::config(&world, &mut draft);
    record_findings::judge(&world, &mut draft);
    around::judge(&world, &mut draft);
    blind::judge(&world, memory, &mut draft);
    memory.settle(draft, now)
}

#[cfg(test)]
mod tests;
