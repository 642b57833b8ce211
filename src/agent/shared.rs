//! What the agent's tasks share: the adapters, and what each task last found out.

use super::measure::Measure;
use super::turns::Turns;
use crate::clock::Clock;
use crate::config::{Config, Mode, TargetGroup};
use crate::core::alert::Book;
use crate::core::client_node::ClientNode;
use crate::core::cycle::{Durable, Seen};
use crate::core::error::{Class, Fault, Jitter};
use crate::core::finding::Report;
use crate::core::heart::Hearts;
use crate::core::ids::{InstanceId, NodeName};
use crate::core::look::Pace;
use crate::core::member::{FleetView, Member, Says};
use crate::core::page::{PageKind, Severity};
use crate::core::reconcile::FirstSeen;
use crate::core::record::Record;
use crate::core::rules::Rules;
use crate::core::settings::{GroupFacts, OwnTarget, TargetType};
use crate::core::target::{GroupArn, Named, Own, Poll, Row, Target};
use crate::core::time::Now;
use crate::fleet::Fleet;
use crate::host::identity::InstanceIdentity;
use crate::metrics::Metrics;
use crate::ports::{ClusterNodes, FleetStore, Host, Jobs, LoadBalancer, NodeCheck, PageSink};
use crate::state::audit::Audit;
use crate::state::disk::Disk;
use crate::state::ledger::Ledger;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use tokio::sync::watch;

/// The kinds of adapter that an agent is built from.
pub trait World: Send + Sync + 'static {
    /// ELBv2.
    type Balancer: LoadBalancer;
    /// The own node, and the cluster by its word.
    type Check: NodeCheck + ClusterNodes;
    /// Record and members.
    type Store: FleetStore;
    /// The job runner.
    type Jobs: Jobs;
    /// The machine.
    type Host: Host;
    /// Clocks.
    type Clock: Clock;
    /// The state directory.
    type Disk: Disk;
}

/// The adapters, made from one config. Replaced as a whole on reload.
pub struct Parts<W: World> {
    /// What they were made from.
    pub config: Config,
    /// The file's problem, where this config is an older one than the file's.
    pub problem: Option<String>,
    /// Warnings about the config.
    pub warnings: Vec<String>,
    /// ELBv2.
    pub balancer: W::Balancer,
    /// The own node.
    pub check: W::Check,
    /// Record and members.
    pub fleet: Fleet<W::Store>,
    /// Jobs.
    pub jobs: W::Jobs,
    /// The machine.
    pub host: W::Host,
    /// Pagers.
    pub sinks: Vec<Box<dyn PageSink>>,
}

impl<W: World> Parts<W> {
    /// The numbers that safety rests on.
    pub fn rules(&self) -> Rules {
        Rules {
            max_unavailable: self.config.max_unavailable,
            minimum_healthy: self.config.minimum_healthy,
            minimum_during_patch: self.config.minimum_during_patch,
            #[cfg(feature = "mutants")]
            mutant: Default::default(),
        }
    }

    /// This agent may act, and nothing is wrong with its config.
    pub fn acts(&self) -> bool {
        self.config.mode == Mode::Act && self.problem.is_none()
    }

    /// All configured groups.
    pub fn groups(&self) -> Vec<GroupArn> {
        self.config.target_groups.iter().map(|g| g.arn.clone()).collect()
    }
}

/// What this node is doing, as the loop last left it.
#[derive(Clone, Debug)]
pub struct NodeView {
    /// Present state.
    pub durable: Durable,
    /// What the process knows.
    pub seen: Seen,
    /// Present in memory only: the disk refuses.
    pub unstored: Option<String>,
}

/// What the observer last found out, each with when that read began.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Whole groups.
    pub polls: BTreeMap<GroupArn, Poll>,
    /// Who is in service.
    pub fleet: Option<FleetView>,
    /// The own target by group, in the config's order; empty = never read.
    pub own: Vec<Own>,
    /// When `own` was read.
    pub own_at: Option<Now>,
    /// The record.
    pub record: Option<(Record, Now)>,
    /// The members.
    pub members: Option<(Vec<Member>, Now)>,
    /// When each member's beat was last seen to change, by this agent's clock.
    pub hearts: Hearts,
    /// Whole lists, each with when its read began.
    pub lists: BTreeMap<GroupArn, (Vec<Row>, Now)>,
    /// Why the last try of a list failed.
    pub list_faults: BTreeMap<GroupArn, Fault>,
    /// The own target by name.
    pub named: BTreeMap<GroupArn, (Named, Now)>,
    /// Why the last question by name failed.
    pub named_faults: BTreeMap<GroupArn, Fault>,
    /// The coordinating-only nodes that the cluster lists.
    pub nodes: Option<(Vec<ClientNode>, Now)>,
    /// When this agent first saw what the record says: budgets are counted from there.
    pub first: FirstSeen,
    /// How often this agent looks at what, at present.
    pub pace: Option<Pace>,
    /// `in`, `OUT` or `unknown` of each member, and the wall time since when this agent has seen that, in ms; absent = since
    /// its first look.
    pub since: BTreeMap<InstanceId, (String, Option<u64>)>,
    /// This instance is being terminated, by the word of its metadata.
    pub terminating: bool,
    /// Faults of the last try, by source.
    pub faults: BTreeMap<&'static str, Fault>,
    /// Number of this look.
    pub looks: u64,
}

/// What was learnt once and is still good.
#[derive(Debug, Default)]
pub struct Cache {
    /// What groups say about themselves, and when that was read.
    pub groups: BTreeMap<GroupArn, (GroupFacts, Now)>,
    /// The right to come back, proven at.
    pub register_proved: Option<Now>,
    /// The own Elasticsearch node's id, as it last answered.
    pub node_id: Option<Arc<str>>,
    /// The fleet record as this member's own document has it from before a restart.
    pub last_record: Option<serde_json::Value>,
    /// What this member said last to the others' reconcile, before a restart too.
    pub said: Says,
    /// Since when every patch that was asked for was refused: wall time, in ms.
    pub refused_since_ms: Option<u64>,
    /// Something that a person must hear and that was found out where no page can be raised; the loop does.
    pub to_page: Vec<(PageKind, Severity, Arc<str>)>,
    /// The own target is out, no cycle explains it, and this node registers itself then.
    pub heals_at: Option<Now>,
    /// It does not any more, for today, and why.
    pub heals_no_more: Option<Arc<str>>,
    /// The last page that a sink accepted: its number, and when.
    pub page_accepted: Option<(u64, Now)>,
    /// Its kind, and the sink that did.
    pub page_told: Option<(String, String)>,
    /// Why the last reload changed nothing; the config in force is an older one than the file's.
    pub reload_problem: Option<String>,
    /// This node's address, where it was learnt after the start.
    pub local_ipv4: Option<std::net::Ipv4Addr>,
    /// Faults of the last delivery, by sink.
    pub page_faults: BTreeMap<String, Fault>,
    /// Why nobody outside has taken the last heartbeat, where that is so.
    pub watch_fault: Option<String>,
}

/// Shared by all tasks of one agent.
pub struct Shared<W: World> {
    parts: RwLock<Arc<Parts<W>>>,
    /// Who this is.
    pub identity: InstanceIdentity,
    /// Clocks.
    pub clock: W::Clock,
    /// The state directory.
    pub disk: Arc<W::Disk>,
    /// The audit journal.
    pub audit: Audit<W::Disk>,
    /// Written by the loop.
    pub node: watch::Sender<Arc<NodeView>>,
    /// Written by the observer.
    pub observed: watch::Sender<Arc<Observed>>,
    /// Written by the loop, read by `progress`.
    pub progress: watch::Sender<Arc<super::progress::Log>>,
    /// What reconcile's last look came to, and when that look began.
    pub report: watch::Sender<Arc<(Report, Now)>>,
    cache: Mutex<Cache>,
    book: Mutex<Book>,
    /// Where the book is stored, once it was read.
    pub ledger: OnceLock<Arc<Ledger<W::Disk>>>,
    /// One probe of the state directory at a time, also where one hangs.
    pub probing: Arc<tokio::sync::Mutex<()>>,
    /// Which loops still turn.
    pub turns: Turns,
    /// What is counted.
    pub metrics: Metrics,
    /// When slots and holds were first seen, and when this agent started: for the metrics.
    pub measure: Measure,
}

impl<W: World> Shared<W> {
    /// Everything empty.
    pub fn new(
        parts: Parts<W>,
        identity: InstanceIdentity,
        clock: W::Clock,
        disk: Arc<W::Disk>,
        view: NodeView,
    ) -> Self {
        let (fleet, node) = (parts.config.fleet.as_str().into(), NodeName(parts.config.node.name.clone()));
        let book = Book::new(fleet, InstanceId(identity.instance_id.clone()), node);
        let report = watch::Sender::new(Arc::new((Report::default(), clock.now())));
        let measure = Measure::new(&clock.now());
        Shared {
            parts: RwLock::new(Arc::new(parts)),
            identity,
            clock,
            audit: Audit::new(disk.clone()),
            disk,
            node: watch::Sender::new(Arc::new(view)),
            observed: watch::Sender::new(Arc::new(Observed::default())),
            progress: watch::Sender::new(Arc::new(super::progress::Log::default())),
            report,
            cache: Mutex::new(Cache::default()),
            book: Mutex::new(book),
            ledger: OnceLock::new(),
            probing: Arc::default(),
            turns: Turns::default(),
            metrics: Metrics::default(),
            measure,
        }
    }

    /// The same, counting into `metrics` and telling `turns`, which others know too.
    #[must_use]
    pub fn watched(self, metrics: Metrics, turns: Turns) -> Self {
        Shared { turns, metrics, ..self }
    }

    /// The adapters of the moment.
    pub fn parts(&self) -> Arc<Parts<W>> {
        self.parts.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces them.
    pub fn replace_parts(&self, parts: Parts<W>) {
        *self.parts.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(parts);
    }

    /// What was learnt once. Never held across an await.
    pub fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The alerts of this agent. Never held across an await, nor together with the cache.
    pub fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A record that a write of this agent has just put in place: nobody has to wait for the next look to see it, and the
    /// loop hears of it as of any look (a fresh node learns by it that the record knows nothing of it yet).
    pub fn saw_record(&self, record: Record) {
        let now = self.clock.now();
        self.observed.send_modify(|o| {
            // Somebody else's write came after this one, and was read already.
            if o.record.as_ref().is_some_and(|(newer, _)| newer.counter > record.counter) {
                return;
            }
            let o = Arc::make_mut(o);
            o.first.see(&record, &now);
            o.record = Some((record, now));
            o.faults.remove("fleet record");
        });
    }

    /// This instance.
    pub fn instance(&self) -> InstanceId {
        InstanceId(self.identity.instance_id.clone())
    }

    /// This node's name.
    pub fn node_name(&self) -> NodeName {
        NodeName(self.parts().config.node.name.clone())
    }

    /// What a group says about itself, read at most `max_age_ms` ago.
    pub async fn group_facts(&self, parts: &Parts<W>, arn: &GroupArn, max_age_ms: u64) -> Result<GroupFacts, Fault> {
        let now = self.clock.now();
        let known = self.cache().groups.get(arn).cloned();
        if let Some((facts, at)) = known
            && now.since(&at).is_some_and(|ms| ms <= max_age_ms)
        {
            return Ok(facts);
        }
        let facts = parts.balancer.group(arn).await?;
        self.cache().groups.insert(arn.clone(), (facts, now));
        Ok(facts)
    }

    /// The own targets, in the config's order.
    pub async fn own_targets(&self, parts: &Parts<W>, max_age_ms: u64) -> Result<Vec<OwnTarget>, Fault> {
        let mut own = Vec::new();
        for group in &parts.config.target_groups {
            let facts = self.group_facts(parts, &group.arn, max_age_ms).await?;
            own.push(OwnTarget { target: self.own_target(group, &facts)?, facts });
        }
        Ok(own)
    }

    fn own_target(&self, group: &TargetGroup, facts: &GroupFacts) -> Result<Target, Fault> {
        let refused = |why: &str| Fault::new(Class::Refused, format!("target group {}: {why}", group.arn.name()));
        let id: Arc<str> = match (&group.id, facts.target_type) {
            (Some(id), _) => id.clone(),
            (None, TargetType::Instance) => self.identity.instance_id.clone(),
            (None, TargetType::Ip) => match self.identity.local_ipv4.or(self.cache().local_ipv4) {
                Some(ip) => ip.to_string().into(),
                None => return Err(refused("its targets are addresses, and this node's is not known; set `id`")),
            },
            (None, TargetType::Other) => return Err(refused("its targets are neither instances nor addresses")),
        };
        let port = group.port.or(facts.port).ok_or_else(|| refused("it has no port of its own; set `port`"))?;
        Ok(Target { group: group.arn.clone(), id, port })
    }
}

/// 64 random bits, from the system.
pub fn entropy() -> u64 {
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    high ^ low
}

/// Randomness for a retry.
pub fn jitter() -> Jitter {
    Jitter(u16::try_from(entropy().checked_rem(1_001).unwrap_or(0)).unwrap_or(0))
}

/// A nonce that makes a write distinct.
pub fn nonce() -> Arc<str> {
    uuid::Uuid::new_v4().simple().to_string().into()
}
