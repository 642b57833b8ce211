//! Puts the sources together: who the members are, and where each of them stands in each group.

use super::super::client_node::ClientNode;
use super::super::heart::Heart;
use super::super::ids::InstanceId;
use super::super::member::Member;
use super::super::record::Record;
use super::super::target::{GroupArn, Named, Row, Target};
use super::super::time::Now;
use super::index::Index;
use super::memory::{Memory, Missed, REMEMBERED_MAX};
use super::sight::{GroupSight, Settings, Sight, Source};
use super::standing::{Running, Standing, of_row};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

/// So many looks may pass until what a member reads of itself next is known here: its look, its beat, the read of that, and
/// the list that is compared.
const CLAIM_LOOKS: u64 = 4;

/// Why a member may be out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Absence {
    /// Nothing explains it.
    Unexplained,
    /// Planned, and in time; or told by another finding.
    Within(String),
    /// It was planned, and its time is over.
    Over(String),
    /// The record is not known.
    Unknown,
}

/// One member with all that is known of it.
#[derive(Debug)]
pub(super) struct Person<'a> {
    pub(super) member: &'a Member,
    pub(super) heart: Option<&'a Heart>,
    /// By group, in the config's order.
    pub(super) at: Vec<Standing>,
    pub(super) running: Running,
    pub(super) absence: Absence,
}

impl Person<'_> {
    pub(super) fn node(&self) -> &str {
        self.member.node.as_str()
    }

    /// Healthy in every group.
    pub(super) fn in_service(&self) -> bool {
        !self.at.is_empty() && self.at.iter().all(|s| *s == Standing::InService)
    }

    /// Not in service, for certain.
    pub(super) fn out(&self) -> bool {
        self.at.iter().any(|s| !matches!(s, Standing::InService | Standing::Unknown | Standing::NoTarget))
    }
}

/// A row that belongs to no member under its port.
#[derive(Debug)]
pub(super) struct Stray<'a> {
    pub(super) group: usize,
    pub(super) row: &'a Row,
    /// The member whose id it has.
    pub(super) person: Option<usize>,
}

/// Everything, read together.
pub(super) struct World<'a> {
    pub(super) sight: &'a Sight<'a>,
    pub(super) settings: &'a Settings,
    pub(super) now: &'a Now,
    /// Known members that are not retired: also by an answer that is too old to prove that there are no others.
    pub(super) people: Vec<Person<'a>>,
    /// When the read of the members began, where that answer may be believed.
    pub(super) members: Option<&'a Now>,
    /// The same of the cluster's list.
    pub(super) nodes: Option<(&'a [ClientNode], &'a Now)>,
    /// Client nodes that are members, by place in that list.
    pub(super) matched: Vec<bool>,
    /// The same of the record.
    pub(super) record: Option<(&'a Record, &'a Now)>,
    /// Lists that may be believed, by group.
    pub(super) lists: Vec<Option<(&'a [Row], &'a Now)>>,
    pub(super) strays: Vec<Stray<'a>>,
    /// Groups in whose list somebody is missing for the first time: nothing could contradict that yet.
    pub(super) just_missing: BTreeSet<usize>,
    /// There never were as many members as the minimum asks for, as far as this process remembers.
    pub(super) set_up: bool,
    /// Answers that other facts contradict, and which.
    pub(super) contradicted: BTreeMap<Source, String>,
}

impl<'a> World<'a> {
    pub(super) fn read(sight: &'a Sight<'a>, settings: &'a Settings, memory: &mut Memory, now: &'a Now) -> World<'a> {
        let max = settings.stale_after_ms;
        let mut w = World {
            sight,
            settings,
            now,
            people: Vec::new(),
            members: sight.members.fresh(now, max).map(|(_, at)| at),
            nodes: sight.nodes.fresh(now, max),
            matched: Vec::new(),
            record: sight.record.fresh(now, max),
            lists: sight.groups.iter().map(|g| g.list.fresh(now, max)).collect(),
            strays: Vec::new(),
            set_up: false,
            just_missing: BTreeSet::new(),
            contradicted: BTreeMap::new(),
        };
        w.meet();
        let enough = usize::try_from(settings.minimum_healthy).unwrap_or(usize::MAX);
        memory.full |= w.members.is_some() && w.people.len() >= enough;
        w.set_up = !memory.full;
        w.stand();
        w.disbelieve(memory);
        w.not_told();
        w.run();
        w.explain(memory);
        w
    }

    /// All groups were read, and may be believed. When the oldest of these reads began.
    pub(super) fn groups_read(&self) -> Option<&'a Now> {
        let begun = |l: &Option<(&'a [Row], &'a Now)>| l.map(|(_, at)| at);
        let all: Option<Vec<&Now>> = self.lists.iter().map(begun).collect();
        all?.into_iter().min_by_key(|at| at.since_boot_ms)
    }

    /// The read that a finding about this member's targets rests on.
    pub(super) fn read_of(&self, p: &Person<'_>) -> &'a Now {
        let lists = self.lists.iter().filter_map(|l| l.map(|(_, at)| at));
        let named = self.sight.groups.iter().filter(|_| p.member.instance == *self.sight.me);
        let named = named.filter_map(|g| g.named.fresh(self.now, self.settings.stale_after_ms)).map(|(_, at)| at);
        lists.min_by_key(|at| at.since_boot_ms).or(named.min_by_key(|at| at.since_boot_ms)).unwrap_or(self.now)
    }

    /// This agent itself.
    pub(super) fn is_me(&self, p: &Person<'_>) -> bool {
        p.member.instance == *self.sight.me
    }

    /// Short name of a configured group.
    pub(super) fn group_name(&self, group: usize) -> &'a str {
        self.sight.groups.get(group).map_or("?", |g| g.group.name())
    }

    fn meet(&mut self) {
        let known = self.sight.members.answer.map(|(m, _)| m).unwrap_or_default();
        let retired = self.sight.record.answer.map(|(r, _)| &r.retired);
        for member in known {
            if retired.is_some_and(|r| r.contains_key(&member.instance)) {
                continue;
            }
            let heart = self.sight.hearts.get(&member.instance);
            self.people.push(Person {
                member,
                heart,
                at: Vec::with_capacity(self.lists.len()),
                running: Running::Unknown,
                absence: Absence::Unknown,
            });
        }
        // What this agent wrote itself is missing: the answer is not whole.
        let lost = |begun: &Now| {
            let after = self.sight.wrote.is_some_and(|w| begun.since(&w.since).is_some());
            after && !known.iter().any(|m| m.instance == *self.sight.me)
        };
        let why = if self.members.is_some_and(lost) {
            "the answer does not have this agent's own document"
        } else if self.members.is_some() && known.is_empty() {
            // A fleet has members: whoever asks is one, or was pointed at an empty place.
            "no member has said who it is"
        } else {
            return;
        };
        self.members = None;
        self.contradicted.insert(Source::Members, why.to_owned());
    }

    fn stand(&mut self) {
        for g in 0..self.sight.groups.len() {
            self.stand_in(g);
        }
    }

    fn stand_in(&mut self, g: usize) {
        let Some(sight) = self.sight.groups.get(g) else { return };
        let rows = self.lists.get(g).copied().flatten().map(|(rows, _)| rows);
        let index = Index::new(rows.unwrap_or_default().iter().map(|r| &*r.id));
        let mut owned = vec![false; rows.map_or(0, <[Row]>::len)];
        for p in &mut self.people {
            let target = target_in(p.member, g, sight);
            let standing = match (target, rows) {
                (None, _) => Standing::NoTarget,
                (Some(_), None) => Standing::Unknown,
                (Some(t), Some(rows)) => listed(t, rows, &index, &mut owned),
            };
            p.at.push(standing);
        }
        let Some(rows) = rows else { return };
        let strays: Vec<&Row> = rows.iter().zip(&owned).filter(|(_, owned)| !**owned).map(|(row, _)| row).collect();
        if strays.is_empty() {
            return;
        }
        let ids = Index::new(self.people.iter().map(|p| target_in(p.member, g, sight).map_or("", |t| &*t.id)));
        for row in strays {
            let person = ids.first(&row.id);
            if let Some(standing) = person.and_then(|i| self.people.get_mut(i)).and_then(|p| p.at.get_mut(g)) {
                match (row.port, *standing) {
                    // A row without a port may be anybody's under this id.
                    (None, _) => *standing = Standing::Unknown,
                    (Some(port), Standing::Absent) if of_row(row).registered() => *standing = Standing::OtherPort(port),
                    (Some(_), _) => {}
                }
            }
            self.strays.push(Stray { group: g, row, person });
        }
    }

    /// An answer that leaves somebody out is compared with what that member says of itself; and what this agent asked about
    /// its own target by name is put beside the list.
    fn disbelieve(&mut self, memory: &mut Memory) {
        let mut absent = BTreeMap::new();
        for g in 0..self.sight.groups.len() {
            let Some(sight) = self.sight.groups.get(g) else { continue };
            let begun = self.lists.get(g).copied().flatten().map(|(_, begun)| begun);
            let against = self.contradictions(g, sight, begun, memory, &mut absent);
            if let Some(what) = against {
                self.doubt(g, sight, &what);
            }
        }
        // What this look does not know of stays as it was.
        let unknown = |group: &GroupArn| {
            let known = self.sight.groups.iter().zip(&self.lists).find(|(s, _)| *s.group == *group);
            known.is_some_and(|(_, list)| list.is_none())
        };
        memory.absent.retain(|(group, _), _| unknown(group));
        memory.absent.extend(absent);
    }

    fn contradictions(
        &mut self,
        g: usize,
        sight: &GroupSight<'a>,
        begun: Option<&Now>,
        memory: &Memory,
        absent: &mut BTreeMap<(GroupArn, InstanceId), Missed>,
    ) -> Option<String> {
        let (me, now, max) = (self.sight.me, self.now, self.settings.stale_after_ms);
        let mut against = None;
        for p in &mut self.people {
            let named = if p.member.instance == *me { named(p.member, g, sight, now, max) } else { None };
            let Some(standing) = p.at.get_mut(g) else { continue };
            let Some(begun) = begun else {
                *standing = named.map_or(*standing, |(s, _)| s);
                continue;
            };
            let missing = *standing == Standing::Absent;
            if let Some((by_name, at)) = named
                && at.since(begun).is_some()
            {
                if missing && by_name.registered() {
                    against = Some(format!("asked by name, {} is {}", p.member.node, by_name.words()));
                }
                *standing = if missing && by_name.gone() { by_name } else { standing.and(by_name) };
            }
            if !missing {
                continue;
            }
            let key = (sight.group.clone(), p.member.instance.clone());
            let read = begun.since_boot_ms;
            let last = memory.absent.get(&key);
            let before = match last {
                Some(missed) if missed.read == read => missed.before,
                Some(missed) => missed.since,
                None => read,
            };
            if before == read {
                self.just_missing.insert(g);
            }
            let claim = says_healthy(p.member, g, sight, p.heart);
            let says = claim.filter(|at| *at > before && *at <= read);
            // What contradicted this very read still does, though the member has read itself again since. And what
            // contradicted the last one does for a few looks: the member has to look, beat and be read before it can say
            // anything newer, and none of that is in step with the lists.
            let recent = self.settings.every_ms.saturating_mul(CLAIM_LOOKS);
            let stands = |said: u64| last.is_some_and(|m| m.read == read) || read.saturating_sub(said) <= recent;
            let says = says.or(last.and_then(|missed| missed.said).filter(|said| stands(*said)));
            if says.is_some() {
                against = Some(format!("{} says that it is healthy in it, as read since", p.member.node));
            }
            if absent.len() < REMEMBERED_MAX {
                absent.insert(key, Missed { since: says.unwrap_or(before), read, before, said: says });
            }
        }
        against
    }

    /// A list that may be believed but does not tell of everybody: for them its source fails.
    fn not_told(&mut self) {
        for (g, sight) in self.sight.groups.iter().enumerate() {
            let unknown = |p: &&Person<'_>| p.at.get(g) == Some(&Standing::Unknown);
            let listed = self.lists.get(g).is_some_and(Option::is_some);
            if let Some(p) = self.people.iter().find(unknown).filter(|_| listed) {
                let what = format!("its list does not tell where {} stands", p.member.node);
                self.contradicted.insert(Source::LoadBalancer(sight.group.clone()), what);
            }
        }
    }

    /// The list of this group proves nothing.
    fn doubt(&mut self, g: usize, sight: &GroupSight<'_>, what: &str) {
        let rows = self.lists.get(g).copied().flatten().map_or(0, |(rows, _)| rows.len());
        let what = format!("its list of {rows} targets leaves somebody out: {what}");
        self.contradicted.insert(Source::LoadBalancer(sight.group.clone()), what);
        if let Some(list) = self.lists.get_mut(g) {
            *list = None;
        }
        for p in &mut self.people {
            if let Some(s) = p.at.get_mut(g) {
                *s = Standing::Unknown;
            }
        }
        self.strays.retain(|s| s.group != g);
    }

    fn run(&mut self) {
        let Some((nodes, _)) = self.nodes else { return };
        let ids = Index::new(nodes.iter().map(|n| &*n.id));
        // Seldom needed.
        let names = LazyCell::new(|| Index::new(nodes.iter().map(|n| &*n.name)));
        let addresses = LazyCell::new(|| Index::new(nodes.iter().map(|n| &*n.address)));
        self.matched = vec![false; nodes.len()];
        let mut healthy = (0_usize, 0_usize);
        for p in &mut self.people {
            let ip = p.member.address.as_deref().map(|a| a.rsplit_once(':').map_or(a, |(ip, _)| ip));
            let found = p.member.node_id.as_deref().and_then(|id| ids.first(id));
            let found = found.or_else(|| names.first(p.node()));
            let found = found.or_else(|| ip.and_then(|ip| addresses.first(ip.trim_matches(['[', ']']))));
            p.running = if found.is_some() { Running::Yes } else { Running::No };
            if let Some(seen) = found.and_then(|i| self.matched.get_mut(i)) {
                *seen = true;
            }
            if p.in_service() {
                healthy.0 = healthy.0.saturating_add(1);
                healthy.1 = healthy.1.saturating_add(usize::from(found.is_some()));
            }
        }
        // Nobody whom the load balancer finds healthy: it is the list that is wrong.
        if healthy.0 > 1 && healthy.1 == 0 {
            self.nodes = None;
            self.people.iter_mut().for_each(|p| p.running = Running::Unknown);
            let what = format!("it lists none of the {} members that are healthy in every group", healthy.0);
            self.contradicted.insert(Source::ClusterNodes, what);
        }
    }

    fn explain(&mut self, memory: &mut Memory) {
        let record = self.sight.record.answer.map(|(r, _)| r);
        let latched: BTreeMap<_, _> = record
            .into_iter()
            .flat_map(Record::open_latches)
            .map(|(id, latch)| (&latch.instance, format!("latch {id}")))
            .collect();
        let (sight, settings, now, begun) = (self.sight, self.settings, self.now, self.record.map(|(_, at)| at));
        let reads: Vec<&Now> = self.people.iter().map(|p| self.read_of(p)).collect();
        let mut before = std::mem::take(&mut memory.planned);
        if self.members.is_some() {
            memory.served.retain(|i| self.people.iter().any(|p| p.member.instance == *i));
        }
        for p in self.people.iter().filter(|p| p.in_service()) {
            if memory.served.len() < REMEMBERED_MAX && !memory.served.contains(&p.member.instance) {
                memory.served.insert(p.member.instance.clone());
            }
        }
        for (p, read) in self.people.iter_mut().zip(reads) {
            let me = p.member.instance == *sight.me;
            let absence = record.map(|r| planned(r, p.member, sight, settings, now));
            p.absence = match (latched.get(&p.member.instance), absence) {
                (Some(latch), _) => Absence::Within(latch.clone()),
                (None, Some(Absence::Within(what))) => Absence::Within(what),
                _ if me && sight.own_cycle => Absence::Within("its agent brings it back".to_owned()),
                _ if !memory.served.contains(&p.member.instance)
                    && p.heart.is_some_and(|h| h.young(now, settings.grace_ms)) =>
                {
                    Absence::Within("it is new".to_owned())
                }
                (None, Some(Absence::Over(what))) => Absence::Over(what),
                _ if begun.is_some() => Absence::Unexplained,
                _ => Absence::Unknown,
            };
            let known = before.remove(&p.member.instance);
            let known = match (&p.absence, known) {
                (Absence::Within(_), _) => Some(None),
                // Its plan is over since this read of the record: what was read of the load balancer before that shows the
                // plan, and nothing else.
                (Absence::Unexplained, Some(over)) => {
                    let over = over.or_else(|| begun.cloned());
                    let old = over.as_ref().is_some_and(|at| read.since(at).is_none());
                    if old {
                        p.absence = Absence::Within("its planned absence has just ended".to_owned());
                    }
                    old.then_some(over)
                }
                (Absence::Unknown, known) => known,
                (Absence::Unexplained | Absence::Over(_), _) => None,
            };
            if let Some(known) = known.filter(|_| memory.planned.len() < REMEMBERED_MAX) {
                memory.planned.insert(p.member.instance.clone(), known);
            }
        }
    }
}

/// What the question by name says, where its answer may be believed and is one.
fn named<'a>(me: &Member, g: usize, sight: &GroupSight<'a>, now: &Now, max_ms: u64) -> Option<(Standing, &'a Now)> {
    let (named, at) = sight.named.fresh(now, max_ms)?;
    let t = target_in(me, g, sight)?;
    let Named::Rows(rows) = named else { return None };
    let own = rows.iter().filter(|r| r.id == t.id && r.port == Some(t.port)).map(of_row);
    own.reduce(Standing::and).map(|s| (s, at))
}

/// What slots and holds say of one member.
fn planned(r: &Record, m: &Member, sight: &Sight<'_>, settings: &Settings, now: &Now) -> Absence {
    let slot = r.slots.get(&m.instance).map(|slot| {
        let within = sight.slot_ms(slot, settings, now) < slot.budget_s.saturating_mul(1_000);
        let what = format!("cycle {} (job {})", slot.cycle, slot.job);
        if within { Absence::Within(what) } else { Absence::Over(format!("the time of its {what} is over")) }
    });
    let hold = r.holds.get(&m.instance).map(|hold| {
        let budget = hold.for_s.saturating_mul(1_000).saturating_add(settings.held_grace_ms);
        let within = sight.hold_ms(&m.instance, hold, settings, now) < budget;
        let by = &hold.order.by;
        if within {
            Absence::Within(format!("held by {by}"))
        } else {
            Absence::Over(format!("its hold by {by} is over"))
        }
    });
    match (slot, hold) {
        (Some(Absence::Within(what)), _) | (_, Some(Absence::Within(what))) => Absence::Within(what),
        (Some(over), _) | (None, Some(over)) => over,
        (None, None) => Absence::Unexplained,
    }
}

/// A member's target in a configured group: usually at the group's own place.
pub(super) fn target_in<'m>(m: &'m Member, g: usize, sight: &GroupSight<'_>) -> Option<&'m Target> {
    let there = m.targets.get(g).filter(|t| t.group == *sight.group);
    there.or_else(|| m.targets.iter().find(|t| t.group == *sight.group))
}

/// What the list says of a target; its rows are noted as owned.
fn listed(t: &Target, rows: &[Row], index: &Index<'_>, owned: &mut [bool]) -> Standing {
    let mut standing: Option<Standing> = None;
    for i in index.all(&t.id) {
        let Some(row) = rows.get(i).filter(|r| r.port == Some(t.port)) else { continue };
        if let Some(o) = owned.get_mut(i) {
            *o = true;
        }
        standing = Some(standing.map_or(of_row(row), |s| s.and(of_row(row))));
    }
    standing.unwrap_or(Standing::Absent)
}

/// When a member read itself healthy in this group, at the latest, in milliseconds of this boot: as its document says, and
/// by when this agent saw that.
fn says_healthy(m: &Member, g: usize, sight: &GroupSight<'_>, heart: Option<&Heart>) -> Option<u64> {
    let place = m.targets.iter().position(|t| t.group == *sight.group).filter(|_| target_in(m, g, sight).is_some())?;
    let healthy = m.sees.get(place).is_some_and(|s| &**s == "healthy");
    let age = m.says.own_age_ms.filter(|_| healthy)?;
    heart.map(|h| h.changed.since_boot_ms.saturating_sub(age))
}
