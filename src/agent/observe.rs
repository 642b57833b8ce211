//! Keeps looking: whole groups or the own target, the record, the members, the cluster's nodes; writes this member's beat;
//! and after each look puts together what it comes to (`sight`). Who looks at what, and when, is in `core/look.rs`.

use super::shared::{Observed, Parts, Shared, World, entropy};
use super::supervisor::caught;
use super::turn::EFFECT_MS;
use super::turns::Loop;
use super::{beat, sight};
use crate::clock::Clock;
use crate::config::Config;
use crate::core::alert::FAULT_QUIET_MS;
use crate::core::client_node::ClientNode;
use crate::core::error::Fault;
use crate::core::finding::{About, Finding, Report};
use crate::core::heal;
use crate::core::ids::InstanceId;
use crate::core::look::{Agenda, Budget, Looker, Pace, Role, Task, Throttle, pace};
use crate::core::member::{Member, in_service};
use crate::core::page::{PageKind, Severity};
use crate::core::reconcile::{Memory, Wrote};
use crate::core::record::Record;
use crate::core::settings::OwnTarget;
use crate::core::target::{GroupArn, Own, Poll};
use crate::core::time::Now;
use crate::ports::{ClusterNodes, Host, LoadBalancer};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A source that has one answer for each group.
const BALANCER: &str = "load balancer";
/// The few documents of those in line.
const WATCHED_MEMBERS: &str = "watched members";
/// Metadata is asked this often, in ms: well within two looks of the others.
const LIFECYCLE_MS: u64 = 5_000;
/// Lifecycle states of an instance that does not come back.
const LEAVING: [&str; 1] = ["Terminated"];

/// Who was told of a panic that lasts is told again after this time, in ms: well before the alert would be taken for over
/// (`FAULT_QUIET_MS`), so that one that lasts for days is one alert.
const TOLD_AGAIN_MS: u64 = FAULT_QUIET_MS / 2;
/// The part of a look that compares, as `status` and the log call it: without it nothing is found any more.
const COMPARING: &str = "reconcile";
/// After so many comparisons in a row that ended in a panic a person is called.
const STUMBLES_MAX: u32 = 3;

/// What a part of a look is about, as `status` and the log call it.
const fn source(task: Task) -> &'static str {
    match task {
        Task::Beat => "own document",
        Task::Members => "members",
        Task::Watch => WATCHED_MEMBERS,
        Task::Record => "fleet record",
        Task::Nodes => "cluster nodes",
        Task::Groups | Task::Own => BALANCER,
    }
}

/// Looks for ever.
pub async fn observe<W: World>(shared: Arc<Shared<W>>) {
    let mut looking = Looking::default();
    loop {
        let parts = shared.parts();
        let (wait_ms, compared) = looking.turn(&shared, &parts).await;
        let within_ms = wait_ms.saturating_add(look_ms(&parts.config));
        let now = shared.clock.now();
        if compared {
            shared.turns.turned(Loop::Observer, &now, within_ms);
        } else {
            shared.turns.stumbled(Loop::Observer, &now, within_ms);
        }
        shared.clock.sleep_ms(wait_ms).await;
    }
}

/// No look takes longer, in ms: every call in it has a total timeout. Two polls a group, its settings, and the store's few
/// reads and writes, which take no longer than an effect of the loop.
pub fn look_ms(config: &Config) -> u64 {
    let groups = u64::try_from(config.target_groups.len()).unwrap_or(u64::MAX);
    EFFECT_MS.saturating_add(config.elbv2.operation_timeout_ms.saturating_mul(3).saturating_mul(groups))
}

/// What is remembered from look to look.
#[derive(Default)]
struct Looking {
    beat: u64,
    agenda: Agenda,
    memory: Memory,
    balancer: Throttle,
    store: Throttle,
    budget: Option<(usize, u64, Budget)>,
    wrote: Option<Wrote>,
    /// Parts of a look that ended in a panic, and when a person was told of it.
    panics: BTreeMap<&'static str, Now>,
    /// So many comparisons in a row ended in one.
    stumbles: u32,
}

impl Looking {
    /// Does what is due. How long until something else is, in ms; and whether what was seen could be compared.
    async fn turn<W: World>(&mut self, shared: &Arc<Shared<W>>, parts: &Arc<Parts<W>>) -> (u64, bool) {
        let mut next: Observed = (**shared.observed.borrow()).clone();
        let now = shared.clock.now();
        let pace = self.pace(shared, parts, &next);
        let (mut due, wait_ms) = self.agenda.due(&pace, &now, entropy());
        let wait_ms = wait_ms.min(LIFECYCLE_MS);
        let terminating = self.terminating(shared, parts, next.terminating).await;
        if std::mem::replace(&mut next.terminating, terminating) != terminating {
            // Its goodbye waits for nothing: the load balancer loses it at the same time.
            due.insert(Task::Beat);
        }
        if due.is_empty() {
            return (wait_ms, self.stumbles == 0);
        }
        for task in due {
            if let Err(why) = caught(self.see(task, shared, parts, &pace, &mut next)).await {
                let source = source(task);
                next.not_seen(source, &parts.groups(), &why);
                self.stumbled(shared, source, &why);
            }
        }
        next.since = super::status::since(&next, &shared.instance(), shared.clock.now().wall_ms);
        next.looks = next.looks.saturating_add(1);
        next.pace = Some(pace);
        // What a write of this agent has put into the record while it was being read here is newer, and stays.
        shared.observed.borrow().newer_record(&mut next);
        let next = Arc::new(next);
        self.reconcile(shared, parts, &next).await;
        shared.observed.send_modify(|seen| {
            let mut next = next.clone();
            if seen.is_newer_than(&next) {
                seen.newer_record(Arc::make_mut(&mut next));
            }
            *seen = next;
        });
        (wait_ms, self.stumbles == 0)
    }

    /// By the word of instance metadata; what it said before, where it says nothing.
    async fn terminating<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, before: bool) -> bool {
        match caught(parts.host.lifecycle()).await {
            Ok(Ok(state)) => state.is_some_and(|state| LEAVING.contains(&&*state)),
            Ok(Err(_)) => before,
            Err(why) => {
                self.stumbled(shared, "lifecycle", &why);
                before
            }
        }
    }

    async fn see<W: World>(
        &mut self,
        task: Task,
        shared: &Shared<W>,
        parts: &Parts<W>,
        pace: &Pace,
        next: &mut Observed,
    ) {
        match task {
            Task::Beat => self.write_beat(shared, parts, pace, next).await,
            Task::Members => self.members(shared, parts, next).await,
            Task::Watch => self.watch(shared, parts, &pace.watched, next).await,
            Task::Record => self.record(shared, parts, next).await,
            Task::Nodes => self.nodes(shared, parts, next).await,
            Task::Groups => self.groups(shared, parts, next).await,
            Task::Own => self.own(shared, parts, next).await,
        }
    }

    /// A part of a look ended in a panic: the rest of it goes on, and the part is tried again by the next one. Logged and
    /// counted each time; the pager hears of it once, and again where it still does so half a day later.
    fn stumbled<W: World>(&mut self, shared: &Shared<W>, part: &'static str, why: &str) {
        tracing::error!(part, why, "a part of a look came to nothing");
        shared.metrics.panicked(part);
        let now = shared.clock.now();
        if self.panics.get(part).and_then(|told| now.since(told)).is_none_or(|ms| ms >= TOLD_AGAIN_MS) {
            self.panics.insert(part, now);
            let message = format!(
                "a part of this agent's look came to nothing ({part}: {why}); it tries again with each look, and the rest \
                 goes on. What it found by that part before stands"
            );
            shared.cache().to_page.push((PageKind::AgentFault, Severity::Warning, message.into()));
        }
    }

    fn pace<W: World>(&self, shared: &Shared<W>, parts: &Parts<W>, seen: &Observed) -> Pace {
        let (me, node) = (shared.instance(), shared.node_name());
        let durable = shared.node.borrow().durable.clone();
        pace(&Looker {
            me: &me,
            node: &node,
            fleet: parts.config.fleet.as_str(),
            members: seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default(),
            size: seen.members.as_ref().map_or(0, |(m, _)| m.len()),
            hearts: &seen.hearts,
            busy: durable.cycle.is_some(),
            out: seen.own.iter().any(|own| heal::out(own) || matches!(own, Own::NotYet(..))),
            balancer: self.balancer,
            store: self.store,
            every_ms: parts.config.reconcile.every_ms,
            silent_after_ms: sight::settings(&parts.config).silent_after_ms,
        })
    }

    /// What one look came to. A panic in it changes nothing that was found before: it is told, and is no work done, so that
    /// the watch outside hears no more of an agent that finds nothing any more.
    async fn reconcile<W: World>(&mut self, shared: &Arc<Shared<W>>, parts: &Arc<Parts<W>>, seen: &Arc<Observed>) {
        let now = shared.clock.now();
        let work = async { sight::report(shared, parts, seen, self.wrote.as_ref(), &mut self.memory, &now) };
        match caught(work).await {
            Ok(report) => {
                tell(&shared.report.borrow().0, &report);
                drop(shared.report.send_replace(Arc::new((report, now))));
                self.stumbles = 0;
            }
            Err(why) => {
                self.memory = Memory::default();
                self.stumbled(shared, COMPARING, &why);
                self.stumbles = self.stumbles.saturating_add(1);
                if self.stumbles == STUMBLES_MAX {
                    let message = format!(
                        "this agent compares nothing any more ({why}): nothing is found by it until it is restarted, \
                         upgraded or what it reads has changed"
                    );
                    shared.cache().to_page.push((PageKind::AgentFault, Severity::Critical, message.into()));
                }
            }
        }
    }

    async fn write_beat<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, pace: &Pace, next: &mut Observed) {
        let written = beat::write(shared, parts, &mut self.beat, pace.beat_ms, next.terminating).await;
        self.store.saw(written.as_ref().copied());
        let now = shared.clock.now();
        if let Some(wrote) = &mut self.wrote {
            wrote.beat = self.beat;
        } else if written.is_ok() {
            self.wrote = Some(Wrote { boot: now.boot.clone(), beat: self.beat, since: now });
        }
        next.note("own document", written.err());
    }

    async fn members<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) {
        let begun = shared.clock.now();
        let answer = parts.fleet.members().await;
        self.store.saw(answer.as_ref().map(drop));
        next.saw_members(answer, begun, parts.config.reconcile.every_ms);
    }

    /// The few that stand in line: how a node that does not read all hears of what a reader finds, and of its silence.
    async fn watch<W: World>(
        &mut self,
        shared: &Shared<W>,
        parts: &Parts<W>,
        watched: &[InstanceId],
        next: &mut Observed,
    ) {
        let begun = shared.clock.now();
        let answer = parts.fleet.some_members(watched).await;
        self.store.saw(answer.as_ref().map(drop));
        // Somebody in line has gone: who takes that place is told by all documents alone.
        if answer.as_ref().is_ok_and(|some| some.len() < watched.len()) {
            self.agenda.hurry(Task::Members);
        }
        next.saw_some_members(answer, &begun, parts.config.reconcile.every_ms);
    }

    async fn record<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) {
        let begun = shared.clock.now();
        let answer = parts.fleet.read().await;
        self.store.saw(answer.as_ref().map(drop));
        next.saw_record(answer, begun);
    }

    /// The cluster's own list, by the own node's word: while that is out in a cycle nobody asks it.
    async fn nodes<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) {
        if shared.node.borrow().durable.cycle.is_some() {
            return;
        }
        let begun = shared.clock.now();
        next.saw_nodes(parts.check.client_nodes(&parts.config.check_settings()).await, begun);
    }

    /// What looking may cost has a bound of its own; what it does not get is looked at a turn later.
    fn may_look(&mut self, groups: usize, every_ms: u64, now: &Now) -> bool {
        let fits = self.budget.as_ref().is_some_and(|(g, e, _)| (*g, *e) == (groups, every_ms));
        if !fits {
            self.budget = Some((groups, every_ms, Budget::new(groups, every_ms)));
        }
        let calls = u32::try_from(groups).unwrap_or(u32::MAX);
        self.budget.as_mut().is_some_and(|(_, _, budget)| budget.looking.take(calls, now).is_ok())
    }

    async fn own_targets<W: World>(
        &mut self,
        shared: &Shared<W>,
        parts: &Parts<W>,
        next: &mut Observed,
    ) -> Option<Vec<OwnTarget>> {
        if !self.may_look(parts.config.target_groups.len(), parts.config.reconcile.every_ms, &shared.clock.now()) {
            return None;
        }
        match shared.own_targets(parts, u64::MAX).await {
            Ok(targets) => Some(targets),
            Err(fault) => {
                self.balancer.saw(Err(&fault));
                next.note(BALANCER, Some(fault));
                None
            }
        }
    }

    /// Whole lists; by name only where a list does not show the own target: positive evidence that it is not registered.
    async fn groups<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) {
        let begun = shared.clock.now();
        let Some(targets) = self.own_targets(shared, parts, next).await else { return };
        let mut polls = BTreeMap::new();
        for t in &targets {
            let target = &t.target;
            let answer = parts.balancer.poll(target, false).await;
            self.balancer.saw(answer.as_ref().map(drop));
            match answer {
                Ok(mut poll) => {
                    if poll.list.iter().any(|r| r.id == target.id && r.port == Some(target.port)) {
                        // Nothing is to be asked: what came of the last question no longer counts.
                        next.named_faults.remove(&target.group);
                    } else {
                        poll.named = self.named(shared, parts, t, next).await;
                    }
                    next.lists.insert(target.group.clone(), (poll.list.clone(), begun.clone()));
                    next.list_faults.remove(&target.group);
                    polls.insert(target.group.clone(), poll);
                }
                Err(fault) => {
                    next.list_faults.insert(target.group.clone(), fault);
                }
            }
        }
        let own = |t: &OwnTarget| match polls.get(&t.target.group) {
            // Where it was to be asked by name and no answer came, nothing is known of it.
            Some(p) if p.named.is_none() && next.named_faults.contains_key(&t.target.group) => Own::Unknown,
            Some(p) => p.own(&t.target.id, t.target.port),
            None => Own::Unknown,
        };
        next.own = targets.iter().map(own).collect();
        next.own_at = Some(begun.clone());
        let complete = polls.len() == targets.len();
        next.fleet = next
            .members
            .as_ref()
            .filter(|_| complete)
            .map(|(members, _)| in_service(members, &parts.groups(), &polls, begun));
        next.polls = polls;
        let fault = targets.iter().find_map(|t| {
            let group = &t.target.group;
            next.list_faults.get(group).or_else(|| next.named_faults.get(group)).cloned()
        });
        next.note(BALANCER, fault);
    }

    /// Of an agent that does not read whole groups.
    async fn own<W: World>(&mut self, shared: &Shared<W>, parts: &Parts<W>, next: &mut Observed) {
        let begun = shared.clock.now();
        let Some(targets) = self.own_targets(shared, parts, next).await else { return };
        let (mut own, mut polls) = (Vec::new(), BTreeMap::new());
        for t in &targets {
            let named = self.named(shared, parts, t, next).await;
            own.push(named.as_ref().map_or(Own::Unknown, |n| n.own(&t.target.id, t.target.port)));
            polls.insert(t.target.group.clone(), Poll { list: Vec::new(), named });
        }
        (next.own, next.own_at, next.fleet, next.polls) = (own, Some(begun), None, polls);
        let fault = targets.iter().find_map(|t| next.named_faults.get(&t.target.group).cloned());
        next.note(BALANCER, fault);
    }

    async fn named<W: World>(
        &mut self,
        shared: &Shared<W>,
        parts: &Parts<W>,
        t: &OwnTarget,
        next: &mut Observed,
    ) -> Option<crate::core::target::Named> {
        let begun = shared.clock.now();
        let answer = parts.balancer.named(&t.target).await;
        self.balancer.saw(answer.as_ref().map(drop));
        let group = &t.target.group;
        match answer {
            Ok(named) => {
                next.named.insert(group.clone(), (named.clone(), begun));
                next.named_faults.remove(group);
                Some(named)
            }
            Err(fault) => {
                next.named_faults.insert(group.clone(), fault);
                None
            }
        }
    }
}

/// Into the log, once: what is found, and what is not any more.
fn tell(before: &Report, now: &Report) {
    let (was, is): (BTreeSet<About>, BTreeSet<About>) =
        (before.findings.iter().map(Finding::about).collect(), now.findings.iter().map(Finding::about).collect());
    for f in now.findings.iter().filter(|f| !was.contains(&f.about())) {
        tracing::warn!(kind = f.kind.label(), subject = %f.subject, sentence = %f.sentence, "found");
    }
    for f in before.findings.iter().filter(|f| !is.contains(&f.about())) {
        tracing::info!(kind = f.kind.label(), subject = %f.subject, "no longer found");
    }
}

impl Observed {
    /// Member documents, all of them; beats are expected every `usual_ms` where a member does not say.
    pub(super) fn saw_members(&mut self, answer: Result<Vec<Member>, Fault>, begun: Now, usual_ms: u64) {
        match answer {
            Ok(members) => {
                self.hearts.see_all(&members, &begun, usual_ms);
                self.members = Some((members, begun));
                self.note("members", None);
            }
            Err(fault) => self.note("members", Some(fault)),
        }
    }

    /// Documents of some members: newer than in the last read of all, whose age stays what it is.
    fn saw_some_members(&mut self, answer: Result<Vec<Member>, Fault>, begun: &Now, usual_ms: u64) {
        match answer {
            Ok(some) => {
                self.hearts.see_some(&some, begun, usual_ms);
                let known = self.members.iter_mut().flat_map(|(all, _)| all);
                for member in known {
                    if let Some(newer) = some.iter().find(|m| m.instance == member.instance) {
                        member.clone_from(newer);
                    }
                }
                self.note(WATCHED_MEMBERS, None);
            }
            Err(fault) => self.note(WATCHED_MEMBERS, Some(fault)),
        }
    }

    /// The fleet record.
    pub(super) fn saw_record(&mut self, answer: Result<Record, Fault>, begun: Now) {
        match answer {
            Ok(record) => {
                self.first.see(&record, &begun);
                self.record = Some((record, begun));
                self.note("fleet record", None);
            }
            Err(fault) => self.note("fleet record", Some(fault)),
        }
    }

    /// The cluster's list of its client nodes.
    pub(super) fn saw_nodes(&mut self, answer: Result<Vec<ClientNode>, Fault>, begun: Now) {
        match answer {
            Ok(nodes) => {
                self.nodes = Some((nodes, begun));
                self.note("cluster nodes", None);
            }
            Err(fault) => self.note("cluster nodes", Some(fault)),
        }
    }

    /// Its record is a later one than that of `other`: a higher counter, or the same as known later.
    fn is_newer_than(&self, other: &Observed) -> bool {
        let at = |o: &Observed| o.record.as_ref().map(|(r, at)| (r.counter, at.since_boot_ms));
        at(self) > at(other)
    }

    /// Puts the newer record into `next`.
    fn newer_record(&self, next: &mut Observed) {
        if let Some((record, at)) = self.record.as_ref().filter(|_| self.is_newer_than(next)) {
            next.first.see(record, at);
            next.record = Some((record.clone(), at.clone()));
            next.note("fleet record", None);
        }
    }

    /// How the last try of a source ended.
    fn note(&mut self, source: &'static str, fault: Option<Fault>) {
        match fault {
            Some(fault) => self.faults.insert(source, fault),
            None => self.faults.remove(source),
        };
    }

    /// Asking a source ended in a panic: for all who go by it that is a fault like any other.
    fn not_seen(&mut self, source: &'static str, groups: &[GroupArn], why: &str) {
        let fault = Fault::transport(format!("looking at it ended in {why}"));
        if source == BALANCER {
            // Which group it was is not known.
            self.list_faults.extend(groups.iter().map(|g| (g.clone(), fault.clone())));
            self.named_faults.extend(groups.iter().map(|g| (g.clone(), fault.clone())));
        }
        self.note(source, Some(fault));
    }

    /// What the load balancer is read for at present.
    pub fn role(&self) -> Role {
        self.pace.as_ref().map_or(Role::Whole, |p| p.role)
    }
}
