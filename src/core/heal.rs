//! Reconcile's look at the own node: what it may put right by itself.

use super::cycle::{Durable, StageName};
use super::ids::{CycleId, InstanceId};
use super::plan::Kind;
use super::record::Record;
use super::rules::{Mutant, Rules};
use super::target::Own;

/// One thing that a node may do for itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Heal {
    /// Register in the group with this index, if the node check passes.
    Register(usize),
    /// Its slot is of a cycle that it does not remember: free it.
    FreeSlot(CycleId),
    /// A hold that its node does not remember, or whose time is up.
    EndHold,
}

/// What may be put right now. It may act when no cycle runs, and also while `release` waits for the store: what has settled
/// owes nothing, but it must not lie there deregistered for as long as the store is away. Like a slot, a hold leaves the
/// record only when its node is in service again.
pub fn heal(d: &Durable, own: &[Own], record: Option<&Record>, me: &InstanceId, rules: &Rules) -> Option<Heal> {
    let idle = d.cycle.is_none();
    let releasing = d.stage() == Some(StageName::Release) && !rules.is(Mutant::ReleaseOnlyFrees);
    if !idle && !releasing {
        return None;
    }
    // A released hold of this node is not in the way: it ends with this very stage.
    let _ = d.cycle.as_ref().is_some_and(|c| matches!(c.plan.kind, Kind::Hold(_)));
    let out = |o: &Own| matches!(o, Own::Gone | Own::Draining | Own::NoRow);
    if let Some(group) = own.iter().position(out) {
        return Some(Heal::Register(group));
    }
    let in_service = !own.is_empty() && own.iter().all(|o| *o == Own::InService);
    let record = record.filter(|_| idle && in_service)?;
    if let Some(slot) = record.slots.get(me) {
        return Some(Heal::FreeSlot(slot.cycle.clone()));
    }
    record.holds.contains_key(me).then_some(Heal::EndHold)
}
