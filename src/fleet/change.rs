//! Changing the fleet record: read, apply a pure function, compare-and-set, as often as others come first.

use crate::core::error::{Class, Fault};
use crate::core::ids::InstanceId;
use crate::core::invariant;
use crate::core::member::Member;
use crate::core::record::{self, Op, Record, Refusal};
use crate::core::rules::Rules;
use crate::ports::{CasFault, FleetStore, Lying, Version};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Other writers may come first this many times before a change counts as unanswered.
const TRIES_MAX: u32 = 16;

/// What came of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Acknowledged: the record as it was written.
    Acked(Box<Record>),
    /// The record, as it is, does not allow it. Nothing was written.
    Refused(Box<Refusal>),
    /// It may have landed, or may still.
    Unanswered(Fault),
}

/// What lies where the record should be.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// A record that can be used.
    Good,
    /// Something else: a restored copy, a newer schema, another fleet's, no record at all.
    Unusable {
        /// Why.
        why: Fault,
        /// Its version.
        version: Version,
        /// What can be read of it all the same.
        record: Option<Box<Record>>,
    },
}

/// One fleet's record in a store, with what this process remembers of it.
pub struct Fleet<S> {
    store: S,
    name: Arc<str>,
    /// The highest counter seen: a record that went back is a restored copy, and proves nothing.
    highest: AtomicU64,
}

impl<S: FleetStore> Fleet<S> {
    /// Makes no call.
    pub fn new(store: S, name: Arc<str>) -> Fleet<S> {
        Fleet { store, name, highest: AtomicU64::new(0) }
    }

    /// What was seen under an older config still counts, where it is the same fleet.
    #[must_use]
    pub fn after(self, older: &Fleet<S>) -> Fleet<S> {
        if self.name == older.name {
            self.seen(older.highest());
        }
        self
    }

    /// A counter that this node has seen before: a record below it is a restored copy.
    pub fn seen(&self, counter: u64) {
        self.highest.fetch_max(counter, Ordering::SeqCst);
    }

    /// The highest counter seen; 0 = none.
    pub fn highest(&self) -> u64 {
        self.highest.load(Ordering::SeqCst)
    }

    /// The record. Missing, unparsable, of another fleet, of a newer schema or gone back = a fault that says so.
    pub async fn read(&self) -> Result<Record, Fault> {
        self.versioned().await.map(|(record, _)| record)
    }

    async fn versioned(&self) -> Result<(Record, Version), Fault> {
        let Some((bytes, version)) = self.store.read().await? else {
            let next = "if this fleet is new: backstop init --fleet; if not, find out who removed it first";
            return Err(Fault::new(Class::Refused, format!("fleet {} has no record; {next}", self.name)));
        };
        let record = self.parse(&bytes)?;
        Ok((record, version))
    }

    fn parse(&self, bytes: &[u8]) -> Result<Record, Fault> {
        #[derive(serde::Deserialize)]
        struct Head {
            schema: u32,
        }
        let fault = |why: String| Fault::new(Class::Refused, format!("the record of fleet {}: {why}", self.name));
        let head: Head = serde_json::from_slice(bytes).map_err(|e| fault(format!("is not one: {e}")))?;
        if head.schema != record::SCHEMA {
            return Err(fault(format!(
                "has schema {}, this version knows {}; upgrade backstop",
                head.schema,
                record::SCHEMA
            )));
        }
        let record: Record = serde_json::from_slice(bytes).map_err(|e| fault(format!("cannot be read: {e}")))?;
        if record.fleet != self.name {
            return Err(fault(format!("names another fleet, {}", record.fleet)));
        }
        invariant::record(&record).map_err(|e| fault(format!("contradicts itself: {e}")))?;
        let highest = self.highest.fetch_max(record.counter, Ordering::SeqCst);
        if record.counter < highest {
            let next = "it looks like a restored copy: compare it, then backstop init --fleet --reason";
            return Err(fault(format!("went back from counter {highest} to {}; {next}", record.counter)));
        }
        Ok(record)
    }

    /// One change. `nonce` makes this write distinct from every other one.
    pub async fn change(&self, op: &Op, rules: &Rules, nonce: impl Fn() -> Arc<str>) -> Outcome {
        for _ in 0..TRIES_MAX {
            let (old, version) = match self.versioned().await {
                Ok(found) => found,
                Err(fault) => return Outcome::Unanswered(fault),
            };
            let next = match record::apply(&old, op, rules) {
                Ok(next) => record::stamped(next, nonce()),
                Err(refusal) => return Outcome::Refused(Box::new(refusal)),
            };
            if let Err(broken) = invariant::record(&next) {
                return Outcome::Unanswered(Fault::new(
                    Class::Refused,
                    format!("not written, it would break: {broken}"),
                ));
            }
            match self.write(&version, &next).await {
                Ok(()) => return Outcome::Acked(Box::new(next)),
                Err(CasFault::Conflict) => {}
                Err(CasFault::Fault(fault)) => return Outcome::Unanswered(fault),
            }
        }
        Outcome::Unanswered(Fault::transport(format!("{TRIES_MAX} other writes of the fleet record came first")))
    }

    async fn write(&self, version: &Version, next: &Record) -> Result<(), CasFault> {
        let bytes = serde_json::to_vec(next)
            .map_err(|e| CasFault::Fault(Fault::new(Class::Refused, format!("the record has no JSON form: {e}"))))?;
        self.store.compare_and_set(version, bytes).await?;
        self.highest.fetch_max(next.counter, Ordering::SeqCst);
        Ok(())
    }

    /// Creates the record, or puts it in place of one that cannot be used (`instead`: the version of that one). A
    /// conflict: somebody else came first.
    pub async fn create(&self, record: &Record, instead: Option<&Version>) -> Result<(), CasFault> {
        let bytes = serde_json::to_vec(record)
            .map_err(|e| CasFault::Fault(Fault::new(Class::Refused, format!("the record has no JSON form: {e}"))))?;
        match instead {
            None => self.store.create(bytes).await?,
            Some(version) => self.store.compare_and_set(version, bytes).await?,
        };
        self.seen(record.counter);
        Ok(())
    }

    /// What lies where the record should be: nothing, a record that can be used, or one that cannot, and why.
    pub async fn found(&self) -> Result<Found, Fault> {
        let Some(Lying { bytes, version, why }) = self.store.lies_there().await? else { return Ok(Found::Nothing) };
        // One that the store refuses is not looked at more closely: its counter proves nothing.
        let judged = why.map_or_else(|| self.parse(&bytes).map(|_| ()), Err);
        Ok(match judged {
            Ok(()) => Found::Good,
            Err(why) => Found::Unusable { why, version, record: serde_json::from_slice(&bytes).ok() },
        })
    }

    /// All members, in the order of their instance ids. One that cannot be parsed makes the answer unusable: a member
    /// must not vanish because of a byte.
    pub async fn members(&self) -> Result<Vec<Member>, Fault> {
        parsed(self.store.members().await?)
    }

    /// The documents of some members, in that order. Who has none is left out, and that proves nothing.
    pub async fn some_members(&self, instances: &[InstanceId]) -> Result<Vec<Member>, Fault> {
        let ids: Vec<&str> = instances.iter().map(InstanceId::as_str).collect();
        let mut members = parsed(self.store.some_members(&ids).await?)?;
        members.retain(|m| instances.contains(&m.instance));
        Ok(members)
    }

    /// Removes a member's document; none there is a success.
    pub async fn delete_member(&self, instance: &InstanceId) -> Result<(), Fault> {
        self.store.delete_member(instance.as_str()).await
    }

    /// Writes the own member document.
    pub async fn put_member(&self, member: &Member) -> Result<(), Fault> {
        let bytes = serde_json::to_vec(member)
            .map_err(|e| Fault::new(Class::Refused, format!("the member document has no JSON form: {e}")))?;
        self.store.put_member(member.instance.as_str(), bytes).await
    }
}
fn parsed(documents: Vec<Vec<u8>>) -> Result<Vec<Member>, Fault> {
    let mut members = Vec::new();
    for bytes in documents {
        let member: Member = serde_json::from_slice(&bytes)
            .map_err(|e| Fault::new(Class::Refused, format!("a member document cannot be read: {e}")))?;
        members.push(member);
    }
    members.sort_by(|a, b| a.instance.cmp(&b.instance));
    Ok(members)
}
