//! Whose targets a page names for registering by hand.

use super::super::finding::{About, Kind};
use super::super::heart::Hearts;
use super::super::ids::InstanceId;
use super::super::member::{FleetView, Member};
use super::super::record::Record;
use super::super::target::Target;
use super::super::time::Now;
use super::first::FirstSeen;
use super::sight::Settings;

/// What is known as the page is written.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// The last member documents.
    pub members: &'a [Member],
    /// Who is in service; `None` = not known.
    pub view: Option<&'a FleetView>,
    /// The last record.
    pub record: Option<&'a Record>,
    /// When this agent first saw what it says.
    pub first: &'a FirstSeen,
    /// Whose agents beat.
    pub hearts: &'a Hearts,
    /// The times that a plan has.
    pub settings: &'a Settings,
    /// Now.
    pub now: &'a Now,
}

/// The targets of a member that is out, or of all that are. Never of one whose cycle or hold is in its time: who registers
/// that one puts a node into service that is being patched.
pub fn targets(about: &About, known: &Known<'_>) -> Vec<Target> {
    let (kind, subject) = about;
    let out = |i: &InstanceId| known.view.is_some_and(|v| !v.in_service.contains(i));
    let fleet = matches!(kind, Kind::BelowFloor | Kind::BelowMinimum);
    // Found by where its targets stand.
    let by_targets = matches!(kind, Kind::OutOfService | Kind::RunningNotRegistered | Kind::MissingFromGroup);
    // Found by something else: its node may be in service.
    let node = matches!(kind, Kind::Latched | Kind::CycleOverdue | Kind::SlotHolderGone | Kind::HeldTooLong);
    let of = |m: &&Member| {
        let named = **subject == *m.node.as_str();
        let concerned = fleet || ((node || by_targets) && named);
        concerned && (by_targets || out(&m.instance)) && !known.in_its_time(&m.instance)
    };
    known.members.iter().filter(of).flat_map(|m| m.targets.clone()).collect()
}

impl Known<'_> {
    /// A slot or hold explains where it is: not for longer than it said, by an agent that lives, and without a failure.
    pub fn in_its_time(&self, instance: &InstanceId) -> bool {
        let Some(record) = self.record else { return false };
        let failed = record.open_latches().any(|(_, latch)| latch.instance == *instance);
        let lives = self.hearts.get(instance).is_some_and(|h| h.still_ms() < self.settings.holder_silent_after_ms);
        let in_cycle = record.slots.get(instance).is_some_and(|slot| {
            lives && !failed && self.first.slot_ms(&slot.cycle, self.now) < slot.budget_s.saturating_mul(1_000)
        });
        let held = record.holds.get(instance);
        let hold_ms = |for_s: u64| for_s.saturating_mul(1_000).saturating_add(self.settings.held_grace_ms);
        in_cycle || held.is_some_and(|h| self.first.hold_ms(instance, self.now) < hold_ms(h.for_s))
    }
}
