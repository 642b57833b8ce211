//! A whole fleet on this machine: an embedded load balancer with its traffic side, client nodes and agents as processes, a
//! pager's receiving end, and a stand-in for the machines they run on.

mod ask;
mod cluster;
mod config;
mod dir;
mod machine;
mod sight;

pub use ask::{RunOutcome, patch_request};
pub use cluster::{Cluster, local_http};
pub use machine::{Ended, Machine, NodeStart};
pub use sight::Sight;

use super::data_plane::{DataPlane, DataPlaneControl, HealthChecker};
use super::elbv2::{Control, Elbv2, GroupSpec};
use super::node::NodeFacts;
use super::pace::{self, Origin};
use super::receiver::{Receiver, ReceiverControl};
use super::stand_in::{StandIn, StandInControl};
use super::traffic::{Totals, Traffic, TrafficControl, TrafficOptions};
use crate::clock::{Clock as _, SystemClock};
use crate::core::record::Record;
use crate::core::time::BootId;
use anyhow::{Context as _, bail};
use cluster::Lodging;
use config::{ConfigFacts, RecordAt};
use dir::FleetDir;
use machine::Spec;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Port of every client node: each has a loopback address of its own.
const PORT: u16 = 9_200;
/// Its name.
const FLEET: &str = "rehearsal";
/// Longest wait (real) for a fleet to come up.
const READY: Duration = Duration::from_mins(1);
/// Fleets of one process get distinct addresses.
static FLEETS: AtomicU32 = AtomicU32::new(0);

/// What to start.
#[derive(Clone, Debug)]
pub struct FleetOptions {
    /// The `backstop` program: agents and nodes are processes of it.
    pub program: PathBuf,
    /// Simulated seconds in a real one.
    pub scale: u32,
    /// Client nodes.
    pub nodes: usize,
    /// Target groups; the first one has the traffic.
    pub groups: Vec<GroupSpec>,
    /// TOML text merged over every agent's generated config.
    pub config: String,
    /// Environment of every agent, beside the usual.
    pub agent_env: Vec<(String, String)>,
    /// How nodes come up after a restart.
    pub restart: NodeStart,
    /// How long a machine is off in a restart (simulated ms).
    pub off_ms: u64,
    /// With agents, or only with what they would look after.
    pub agents: bool,
    /// The nodes are those of a real cluster, and the record is in it. Then `nodes`, `restart` and `off_ms` mean nothing.
    pub cluster: Option<Cluster>,
    /// Everything is kept in this directory; `None`: in a temporary one that is removed.
    pub keep: Option<PathBuf>,
}

impl FleetOptions {
    /// Three nodes in one group, a minute in a second.
    pub fn new(program: impl Into<PathBuf>) -> FleetOptions {
        FleetOptions {
            program: program.into(),
            scale: 60,
            nodes: 3,
            groups: vec![GroupSpec::new("es-clients")],
            config: String::new(),
            agent_env: Vec::new(),
            restart: NodeStart::USUAL,
            off_ms: 10_000,
            agents: true,
            cluster: None,
            keep: None,
        }
    }
}

/// A running fleet. Everything ends with it.
#[derive(Debug)]
pub struct Fleet {
    // Dropped in this order: what starts processes first, the processes next, their directory last.
    traffic: Option<Traffic>,
    stand_in: StandIn,
    machines: Vec<Machine>,
    lodging: Option<Lodging>,
    data_plane: DataPlane,
    _checkers: Vec<HealthChecker>,
    receiver: Receiver,
    elbv2: Elbv2,
    groups: Vec<String>,
    epoch_ms: u64,
    record_dir: PathBuf,
    sight: Sight,
    dir: FleetDir,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.stand_in.control().clear();
        if self.lodging.is_some() {
            // Dead before their index goes: a last write would make it anew.
            self.machines.iter().for_each(Machine::kill_agent_at_once);
        }
    }
}

impl Fleet {
    /// Starts everything and waits until all nodes are in service, and all agents know it.
    ///
    /// # Errors
    /// A part does not start, or the fleet does not come up in a minute.
    pub async fn start(options: FleetOptions) -> anyhow::Result<Fleet> {
        let fleet = Fleet::prepare(&options).await?;
        for machine in &fleet.machines {
            machine.start_node()?;
        }
        for (arn, machine) in fleet.groups.iter().flat_map(|arn| fleet.machines.iter().map(move |m| (arn, m))) {
            fleet.elbv2().register_behind_back(arn, machine.instance(), machine.address().port());
        }
        let all = fleet.machines.len();
        if !pace::until(READY, || fleet.in_service() == all).await {
            bail!("{} of {all} nodes came into service within {} s", fleet.in_service(), READY.as_secs());
        }
        if options.agents {
            fleet.start_agents().await?;
        }
        for machine in &fleet.machines {
            machine.usual_start(options.restart);
        }
        Ok(fleet)
    }

    async fn prepare(options: &FleetOptions) -> anyhow::Result<Fleet> {
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let dir = FleetDir::create(options.keep.as_deref()).context("directory of the rehearsal")?;
        let elbv2 = Elbv2::start(local, options.scale).await?;
        let control = elbv2.control();
        let groups: Vec<String> = options.groups.iter().map(|g| control.add_group(g.clone())).collect();
        let data_plane = match groups.first() {
            Some(arn) => DataPlane::start(local, control.clone(), arn).await?,
            None => bail!("a fleet needs a target group"),
        };
        let record_dir = dir.path().join("record");
        let lodging = options.cluster.as_ref().map(Lodging::of);
        let mut fleet = Fleet {
            traffic: None,
            stand_in: StandIn::start(local).await?,
            machines: Vec::new(),
            sight: lodging.as_ref().map_or_else(|| Sight::of_files(&record_dir), Lodging::sight),
            lodging,
            data_plane,
            _checkers: groups.iter().skip(1).map(|arn| HealthChecker::start(control.clone(), arn)).collect(),
            receiver: Receiver::start(local, control.origin()).await?,
            elbv2,
            groups,
            epoch_ms: SystemClock::with_boot(BootId("rehearsal".into())).now().wall_ms,
            record_dir,
            dir,
        };
        // Nobody here can restart the machines of somebody else's nodes.
        fleet.stand_in.control().refuse(options.cluster.is_some());
        let nodes = match &options.cluster {
            Some(cluster) => cluster.node_facts(),
            None => node_facts(options.nodes)?,
        };
        for (i, node) in nodes.into_iter().enumerate() {
            fleet.add_machine(options, i, node)?;
        }
        Ok(fleet)
    }

    fn add_machine(&mut self, options: &FleetOptions, i: usize, node: NodeFacts) -> anyhow::Result<()> {
        let instance = format!("i-{:017x}", 0xb_0001_u64.saturating_add(u64::try_from(i).unwrap_or(0)));
        let port = node.address.port();
        self.elbv2().declare_running(&instance, port, node.address);
        let record = match &options.cluster {
            Some(cluster) => RecordAt::Index { name: cluster.index.clone(), endpoints: cluster.endpoints() },
            None => RecordAt::Dir(self.record_dir.clone()),
        };
        let facts = ConfigFacts {
            fleet: FLEET.to_owned(),
            name: node.name.clone(),
            instance,
            groups: self.groups.clone(),
            node_url: format!("http://{}", node.address),
            endpoint_url: self.elbv2.endpoint(),
            pager_url: self.receiver.url(),
            stand_in_url: self.stand_in.url(),
            record,
            port: (port != PORT).then_some(port),
            dir: self.dir.sub(&node.name)?,
            scale: options.scale,
            epoch_ms: self.epoch_ms,
            nodes: options.cluster.as_ref().map_or(options.nodes, |c| c.nodes.len()),
        };
        let spec = Spec {
            program: options.program.clone(),
            facts,
            node,
            origin: self.origin(),
            off_ms: options.off_ms,
            has_agent: options.agents,
            theirs: options.cluster.is_some(),
        };
        let machine = Machine::new(spec, NodeStart::AT_ONCE, options.config.clone(), options.agent_env.clone());
        self.stand_in.control().add(machine.clone());
        self.machines.push(machine);
        Ok(())
    }

    /// The record is created by the first agent, as `backstop init` does it; then every agent sees the whole fleet.
    async fn start_agents(&self) -> anyhow::Result<()> {
        for machine in &self.machines {
            machine.start_agent()?;
        }
        let first = self.machine(0)?;
        first.wait_ready(READY).await?;
        first.init().await?;
        for machine in &self.machines {
            machine.wait_sees(self.machines.len(), READY).await?;
        }
        Ok(())
    }

    /// Constant traffic through the load balancer from now on: searches, or on somebody else's nodes what costs them least.
    pub fn start_traffic(&mut self, rate_per_s: u32, bucket_ms: u64) -> TrafficControl {
        let mut options = TrafficOptions { rate_per_s, bucket_ms, ..TrafficOptions::new(self.data_plane.address()) };
        if self.lodging.is_some() {
            "/".clone_into(&mut options.path);
        }
        let traffic = Traffic::start(options, self.origin());
        let control = traffic.control();
        self.traffic = Some(traffic);
        control
    }

    /// Ends the traffic; its totals where there was any.
    pub async fn stop_traffic(&mut self) -> Option<Totals> {
        match self.traffic.take() {
            Some(traffic) => Some(traffic.stop().await),
            None => None,
        }
    }

    /// Ends the agents and removes from a real cluster what they have put there: their index. `Ok(false)`: there was
    /// nothing to leave.
    ///
    /// # Errors
    /// The index is still there, or nobody can tell.
    pub async fn leave(&mut self) -> anyhow::Result<bool> {
        let Some(lodging) = &mut self.lodging else { return Ok(false) };
        for machine in &self.machines {
            // First, and waited for: a last write of one of them would make the index anew.
            machine.terminate_agent().await;
        }
        lodging.leave().await.map(|()| true)
    }

    /// The load balancer's world.
    pub fn elbv2(&self) -> Control {
        self.elbv2.control()
    }

    /// Where the load balancer's API is.
    pub fn endpoint(&self) -> String {
        self.elbv2.endpoint()
    }

    /// The traffic side.
    pub fn data_plane(&self) -> DataPlaneControl {
        self.data_plane.control()
    }

    /// The pager's receiving end.
    pub fn receiver(&self) -> ReceiverControl {
        self.receiver.control()
    }

    /// The stand-in for machines.
    pub fn stand_in(&self) -> StandInControl {
        self.stand_in.control()
    }

    /// The world's clock.
    pub fn origin(&self) -> Origin {
        self.elbv2().origin()
    }

    /// ARNs of the target groups.
    pub fn groups(&self) -> &[String] {
        &self.groups
    }

    /// All machines.
    pub fn machines(&self) -> &[Machine] {
        &self.machines
    }

    /// Machine number `i`, from 0.
    ///
    /// # Errors
    /// There is none.
    pub fn machine(&self, i: usize) -> anyhow::Result<&Machine> {
        self.machines.get(i).with_context(|| format!("the fleet has no machine {i}"))
    }

    /// How many nodes are healthy in every group.
    pub fn in_service(&self) -> usize {
        self.elbv2().in_service(&self.groups).len()
    }

    /// Is this machine's node healthy in every group?
    pub fn serves(&self, machine: &Machine) -> bool {
        self.elbv2().in_service(&self.groups).contains(machine.instance())
    }

    /// State and reason of a machine's target in the first group.
    pub fn target_state(&self, machine: &Machine) -> (String, Option<String>) {
        self.groups.first().map_or_else(Default::default, |arn| {
            self.elbv2().state_of(arn, machine.instance(), machine.address().port())
        })
    }

    /// The fleet record as it is on disk, or was in the cluster a moment ago; `None`: there is none, or it is no record.
    pub fn record(&self) -> Option<Record> {
        self.sight.record()
    }

    /// What is seen of the record.
    pub fn sight(&self) -> Sight {
        self.sight.clone()
    }

    /// Directory of the record store, where that is one of files.
    pub fn record_dir(&self) -> &Path {
        &self.record_dir
    }

    /// The agents' wall clock at the world's start, in ms since 1970.
    pub const fn epoch_ms(&self) -> u64 {
        self.epoch_ms
    }

    /// The load balancer's API.
    pub const fn api(&self) -> SocketAddr {
        self.elbv2.address()
    }

    /// Where everything is.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Nodes that know each other, on loopback addresses that nobody else uses.
fn node_facts(nodes: usize) -> anyhow::Result<Vec<NodeFacts>> {
    let addresses = addresses(nodes)?;
    let name = |i: usize| format!("es-client-{}", i.saturating_add(1));
    let all: Vec<NodeFacts> = addresses
        .into_iter()
        .enumerate()
        .map(|(i, address)| NodeFacts { address, ..NodeFacts::new(&name(i)) })
        .collect();
    let others = |me: &NodeFacts| all.iter().filter(|n| n.name != me.name).map(NodeFacts::as_peer).collect();
    Ok(all.iter().map(|n| NodeFacts { peers: others(n), ..n.clone() }).collect())
}

/// One address each in a network of 127.0.0.0/8, from the process id, so that fleets side by side do not meet.
fn addresses(nodes: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let hosts = u8::try_from(nodes).ok().filter(|n| *n <= 200).context("at most 200 nodes")?;
    for _ in 0..64 {
        let number = std::process::id().wrapping_mul(31).wrapping_add(FLEETS.fetch_add(1, Ordering::Relaxed));
        let [_, a, b, c] = number.to_be_bytes();
        // 127.0.x.x is where everybody else is.
        let network = |host: u8| Ipv4Addr::new(127, (a ^ b) | 1, c, host.saturating_add(10));
        let all: Vec<SocketAddr> = (1..=hosts).map(|host| SocketAddr::from((network(host), PORT))).collect();
        if all.iter().all(|a| std::net::TcpListener::bind(a).is_ok()) {
            return Ok(all);
        }
    }
    bail!("no free loopback addresses with port {PORT}")
}
