//! What a test does to the world behind the agents' backs, and what it asks the world about them.

use super::{Call, Fake, Inner, Place, Trouble, instance, member};
use backstop::alerts::Rendered;
use backstop::clock::{Clock, ManualClock};
use backstop::core::member::Member;
use backstop::core::record::{Latch, Record};
use backstop::core::time::{BootId, Now};
use backstop::state::fault::FaultFiles;
use std::collections::BTreeSet;

impl Inner {
    /// A member in nobody's hand says where it stands, as it has just read that.
    pub(super) fn say(&self, m: &mut Member) {
        let Some(places) = self.places.get(m.instance.as_str()).filter(|_| self.talkative) else { return };
        let word = |p: &Place| if *p == Place::Healthy { "healthy" } else { "not registered" };
        m.sees = places.iter().map(|p| word(p).into()).collect();
        m.says.own_age_ms = Some(0);
    }
}

impl Fake {
    /// Another node of this world, with a disk of its own; its agent shares record and pager with the others.
    pub fn beside(&self, n: usize) -> Fake {
        Fake { n, named: n, files: FaultFiles::default(), ..self.clone() }
    }

    /// The same, under the name of another number, whose instance it replaces.
    pub fn in_place_of(&self, n: usize, replaced: usize) -> Fake {
        self.inner().renamed.insert(n, replaced);
        Fake { named: replaced, ..self.beside(n) }
    }

    /// The same on a machine of its own: another boot, and a clock that has to be moved for itself.
    pub fn elsewhere(&self, n: usize, boot: &str) -> Fake {
        let now = Now { boot: BootId(boot.into()), ..self.clock.now() };
        Fake { clock: ManualClock::new(now), ..self.beside(n) }
    }

    /// Its node has the name of another number.
    pub fn called(self, n: usize) -> Fake {
        Fake { named: n, ..self }
    }

    /// Reads of the load balancer hang, as no adapter of the product lets them, or go on.
    pub fn hang(&self, hangs: bool) {
        self.inner().hangs.send_replace(hangs);
    }

    pub(super) async fn goes_on(&self) {
        let mut hangs = self.inner().hangs.subscribe();
        let _ = hangs.wait_for(|hangs| !hangs).await;
    }

    /// Everything that the pager has accepted, in order: pages, changes, reminders, ends.
    pub fn told(&self) -> Vec<Rendered> {
        self.inner().told.clone()
    }

    /// Keys of what the pager was told is over.
    pub fn resolved(&self) -> BTreeSet<String> {
        self.told().into_iter().filter(|p| p.event == "resolve").map(|p| p.key).collect()
    }

    /// Calls that change the load balancer.
    pub fn balancer_writes(&self) -> usize {
        self.calls(Call::Register) + self.calls(Call::Deregister)
    }

    /// This target is healthy in every group, or in none.
    fn place(&self, id: &str, place: Place) {
        let mut i = self.inner();
        let groups = i.scale.groups;
        i.places.insert(id.to_owned(), vec![place; groups]);
    }

    /// A node is out of every group, or in service again.
    pub fn serves(&self, n: usize, serves: bool) {
        self.place(&instance(n), if serves { Place::Healthy } else { Place::Out });
    }

    /// A target of nobody is in every group, or gone.
    pub fn foreign_target(&self, there: bool) {
        match there {
            true => self.place("i-foreign", Place::Healthy),
            false => drop(self.inner().places.remove("i-foreign")),
        }
    }

    /// Every registered target fails the load balancer's checks, or passes them again.
    pub fn all_fail(&self, fail: bool) {
        let (was, is) = if fail { (Place::Healthy, Place::Failing) } else { (Place::Failing, Place::Healthy) };
        for place in self.inner().places.values_mut().flatten().filter(|p| **p == was) {
            *place = is;
        }
    }

    /// The cluster lists a client node that no agent is on, or none.
    pub fn stranger(&self, n: Option<usize>) {
        self.inner().strangers = n.into_iter().collect();
    }

    /// Whole lists leave this node out, or show it again; asked by name it is what it is.
    pub fn hide(&self, n: usize, hidden: bool) {
        let mut i = self.inner();
        match hidden {
            true => i.hidden.insert(instance(n)),
            false => i.hidden.remove(&instance(n)),
        };
    }

    /// Members in nobody's hand say in their documents where they stand.
    pub fn talk(&self) {
        self.inner().talkative = true;
    }

    /// Another member's heart beats of itself again.
    pub fn beats_of_itself(&self, n: usize) {
        let mut i = self.inner();
        let groups = i.scale.groups;
        i.in_hand.remove(&instance(n));
        i.members.insert(instance(n), serde_json::to_vec(&member(n, groups)).unwrap());
    }

    /// A node that was not there runs: the cluster lists it.
    pub fn starts(&self, n: usize) {
        let mut i = self.inner();
        let between = i.scale.nodes + 1..n;
        i.stopped.extend(between);
        i.scale.nodes = i.scale.nodes.max(n);
        i.stopped.remove(&n);
    }

    /// It does not run any more.
    pub fn stops(&self, n: usize) {
        self.inner().stopped.insert(n);
    }

    /// Somebody registers a target that was not there, or deregisters it with a drain.
    pub fn is_registered(&self, n: usize, there: bool) {
        let now = self.clock.now().since_boot_ms;
        self.place(&instance(n), if there { Place::Initial(now) } else { Place::Draining(now) });
    }

    /// There is a record, and it can be read.
    pub fn has_record(&self) -> bool {
        self.inner().record.as_ref().is_some_and(|bytes| serde_json::from_slice::<Record>(bytes).is_ok())
    }

    /// Latches of the record that nobody has cleared yet are cleared, by somebody.
    pub fn clear_latches(&self) {
        let mut record: Record = self.record();
        record.counter += 1;
        record.latches.clear();
        self.put_record(Some(&record));
    }

    /// A cycle of this node has failed.
    pub fn latched(&self, n: usize, latch: impl FnOnce() -> Latch) {
        let mut record: Record = self.record();
        record.counter += 1;
        record.latches.insert(format!("c-of-{n}").as_str().into(), latch());
        self.put_record(Some(&record));
    }

    /// All of these calls fail so, or none any more.
    pub fn troubles(&self, calls: &[Call], trouble: Option<Trouble>) {
        calls.iter().for_each(|call| self.trouble(*call, trouble));
    }
}
