//! The numbers that safety rests on, and the mutants that prove that the tests would notice a broken rule.

use serde::{Deserialize, Serialize};

/// From the config, stored with each cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rules {
    /// Nodes that may be out through cycles at one time.
    pub max_unavailable: u32,
    /// Members that must be in service for a cycle to start, this node among them.
    pub minimum_healthy: u32,
    /// Others that must stay while this node is out.
    pub minimum_during_patch: u32,
    /// One broken rule, in test builds of the core alone.
    #[cfg(feature = "mutants")]
    #[serde(skip)]
    pub mutant: Mutant,
}

impl Rules {
    /// Is this the broken rule? Always no in a product build.
    #[cfg(not(feature = "mutants"))]
    #[expect(clippy::unused_self, reason = "a test build asks the value")]
    pub(crate) const fn is(&self, _: Mutant) -> bool {
        false
    }

    /// Is this the broken rule?
    #[cfg(feature = "mutants")]
    pub fn is(&self, mutant: Mutant) -> bool {
        self.mutant == mutant
    }
}

/// One broken rule at a time. The model check must catch every one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// The product.
    #[default]
    None,
    /// Ownership of a slot confirmed by a read.
    ClaimByRead,
    /// The floor counted before the slot is taken.
    FloorBeforeSlot,
    /// Holders of a slot or a hold counted as staying.
    FloorCountsLeavers,
    /// The slot freed as soon as the registration was accepted.
    ReleaseBeforeSettle,
    /// The latch tried only after the way back.
    LatchAfterWayBack,
    /// A lost claim forgotten without an acknowledged write.
    NoFence,
    /// Effects towards service need a commit.
    HomewardNeedsCommit,
    /// A latch goes away by itself.
    LatchExpires,
    /// An unknown read counts as healthy.
    UnknownIsHealthy,
    /// Effects before their decision is on the disk.
    EffectBeforePersist,
    /// `settle` never registers again.
    SettleOnlyWaits,
    /// No self-heal while `release` waits for the store.
    ReleaseOnlyFrees,
    /// The floor not read again after recovery.
    FloorOncePerCycle,
    /// The confirming write ignores this cycle's own latch.
    ConfirmIgnoresOwnLatch,
    /// `retire` frees a slot without leaving a latch.
    RetireDropsFailure,
    /// A cleared latch leaves no tombstone.
    NoTombstone,
    /// A hold leaves the record before its node is in service.
    HoldEndsAtOnce,
    /// A reboot counts as done although the boot id is the old one.
    SameBootCounts,
    /// Out of the first group only, and the job starts.
    OneGroupIsEnough,
    /// Back in one group only, and the slot is freed.
    OneGroupIsHome,
}
