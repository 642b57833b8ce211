//! What the agent needs from the world, as traits. Adapters implement them; only `core` types cross.
//!
//! Every method has a total timeout of its own: a call that never returns would stop the way back. Errors come as
//! [`Fault`]s, already classified; "transport" is the default of every adapter.

use crate::core::client_node::ClientNode;
use crate::core::error::Fault;
use crate::core::job::{JobSpec, JobStatus};
use crate::core::settings::{CheckPass, CheckSettings, GroupFacts, TargetType};
use crate::core::target::{GroupArn, Named, Poll, Target};
use std::future::Future;

/// ELBv2. All writes name exactly one target, id and port.
pub trait LoadBalancer: Send + Sync + 'static {
    /// The whole list of a group, and with `by_name` also the own target by name (id and port).
    fn poll(&self, target: &Target, by_name: bool) -> impl Future<Output = Result<Poll, Fault>> + Send;
    /// The own target by name alone: the small question, of an agent that does not read whole groups.
    fn named(&self, target: &Target) -> impl Future<Output = Result<Named, Fault>> + Send;
    /// RegisterTargets. A yes proves nothing until a read confirms it.
    fn register(&self, target: &Target) -> impl Future<Output = Result<(), Fault>> + Send;
    /// DeregisterTargets. A yes proves nothing until a read confirms it.
    fn deregister(&self, target: &Target) -> impl Future<Output = Result<(), Fault>> + Send;
    /// The group's own settings.
    fn group(&self, group: &GroupArn) -> impl Future<Output = Result<GroupFacts, Fault>> + Send;
    /// May this node register? Asked with one well-formed, non-existing id of the group's type.
    fn may_register(
        &self,
        group: &GroupArn,
        target_type: TargetType,
        port: u16,
    ) -> impl Future<Output = MayRegister> + Send;
}

/// Answer to the question "may I come back?" before leaving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MayRegister {
    /// Refused for the id alone: the right is there.
    Yes,
    /// The right is missing.
    No(Fault),
    /// The server took the non-existing id; it was deregistered again, and this endpoint proves nothing.
    TookIt,
    /// No usable answer.
    Unknown(Fault),
}

/// The own node, on its own port, each try on a fresh connection.
pub trait NodeCheck: Send + Sync + 'static {
    /// One whole check: identity, cluster health (not local), optional canary.
    fn check(&self, settings: &CheckSettings) -> impl Future<Output = Result<CheckPass, Fault>> + Send;
}

/// The client nodes of the cluster, as the cluster itself lists them.
pub trait ClusterNodes: Send + Sync + 'static {
    /// All coordinating-only nodes, asked of the own node. Complete or a fault: a smaller list would look like a smaller
    /// fleet.
    fn client_nodes(&self, settings: &CheckSettings) -> impl Future<Output = Result<Vec<ClientNode>, Fault>> + Send;
}

/// The patch job. Survives the agent: a job that was started goes on when the agent is killed.
pub trait Jobs: Send + Sync + 'static {
    /// Could this job be started, and may this agent? Asked before a node leaves for it. A fault of class `refused` says what
    /// is missing, one of class `not-ready` that it runs already.
    fn ready(&self, _job: &JobSpec) -> impl Future<Output = Result<(), Fault>> + Send {
        async { Ok(()) }
    }
    /// What is known of this cycle's job. A read; never starts anything.
    fn ask(&self, cycle: &str) -> impl Future<Output = Result<JobStatus, Fault>> + Send;
    /// Starts it, once: a second call for the same cycle changes nothing.
    fn start(&self, cycle: &str, job: &JobSpec, timeout_ms: u64) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Cycles whose jobs run now: for a node that has lost its state.
    fn running(&self) -> impl Future<Output = Result<Vec<String>, Fault>> + Send;
    /// Kills the job's whole group; one that was never started is called off for good. Returns when it is gone, or with a fault that says that it is not.
    fn kill(&self, cycle: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The version that a document was read or written with; a compare-and-set names it.
#[derive(Clone, PartialEq, Eq)]
pub struct Version(pub std::sync::Arc<[u8]>);

impl std::fmt::Debug for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Version({:08x}, {} bytes)", crc32fast::hash(&self.0), self.0.len())
    }
}

/// Why a compare-and-set has no acknowledgement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CasFault {
    /// Another write came first (or this very one, whose answer was lost). Nothing is proven: read, and write again.
    Conflict,
    /// No usable answer: it may have been applied, or may still be.
    Fault(Fault),
}

/// What lies where the record should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its version.
    pub version: Version,
    /// Why `read` refuses it, if it does.
    pub why: Option<Fault>,
}

/// The fleet record and the member documents, as bytes. Changed only by compare-and-set.
pub trait FleetStore: Send + Sync + 'static {
    /// The record and its version; `None` = a complete answer that says that there is none.
    fn read(&self) -> impl Future<Output = Result<Option<(Vec<u8>, Version)>, Fault>> + Send;
    /// Replaces the record that has this version.
    fn compare_and_set(
        &self,
        expected: &Version,
        bytes: Vec<u8>,
    ) -> impl Future<Output = Result<Version, CasFault>> + Send;
    /// What lies where the record should be, even where `read` refuses it: for whoever puts another one in its place.
    fn lies_there(&self) -> impl Future<Output = Result<Option<Lying>, Fault>> + Send {
        async { Ok(self.read().await?.map(|(bytes, version)| Lying { bytes, version, why: None })) }
    }
    /// Creates the record; a conflict where there is one.
    fn create(&self, bytes: Vec<u8>) -> impl Future<Output = Result<Version, CasFault>> + Send;
    /// All member documents.
    fn members(&self) -> impl Future<Output = Result<Vec<Vec<u8>>, Fault>> + Send;
    /// The documents of these instances, and maybe others: for whoever watches a few members of a large fleet.
    fn some_members(&self, _instances: &[&str]) -> impl Future<Output = Result<Vec<Vec<u8>>, Fault>> + Send {
        self.members()
    }
    /// Writes one member's document.
    fn put_member(&self, instance: &str, bytes: Vec<u8>) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Removes one member's document; none there is a success.
    fn delete_member(&self, instance: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// The machine.
pub trait Host: Send + Sync + 'static {
    /// Established inbound connections on a local port, without own, loopback and health-check ones.
    fn connections(&self, port: u16, ignore: &[std::net::IpAddr]) -> Result<u32, Fault>;
    /// Would the machine be restarted if this agent asked for it? A fault says why not.
    fn may_reboot(&self) -> impl Future<Output = Result<(), Fault>> + Send {
        async { Ok(()) }
    }
    /// Asks the machine to restart. A yes proves nothing: the boot id tells.
    fn reboot(&self) -> impl Future<Output = Result<(), Fault>> + Send;
    /// The machine is on its way down. Not known is no.
    fn shutting_down(&self) -> impl Future<Output = bool> + Send;
    /// Lifecycle state in an Auto Scaling group; `None` = in none, or not asked since the instance id is stated.
    fn lifecycle(&self) -> impl Future<Output = Result<Option<std::sync::Arc<str>>, Fault>> + Send;
    /// A package manager at work, by name.
    fn package_manager(&self) -> Result<Option<String>, Fault>;
    /// Packages that were begun and not finished, in words.
    fn unfinished_packages(&self) -> Result<Option<String>, Fault>;
}

/// Where pages go. One of several, behind one type.
pub trait PageSink: Send + Sync + 'static {
    /// For status and logs; distinct among the sinks of an agent.
    fn name(&self) -> &str;
    /// It knows repeats by their key: every agent sends to it, and one is enough.
    fn dedups(&self) -> bool {
        false
    }
    /// It forgets: what fires is to be sent again after this time, in ms.
    fn renew_ms(&self) -> Option<u64> {
        None
    }
    /// Delivers one page; accepted is the only success.
    fn deliver<'a>(&'a self, page: &'a crate::alerts::Rendered) -> BoxFuture<'a, Result<(), Fault>>;
    /// Would a page reach it? A TLS and HTTP answer of any status is enough.
    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>>;
}

/// A boxed future, for the list of sinks.
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;
