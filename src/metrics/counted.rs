//! Counts every call of a port by what came of it, and changes nothing else.

use super::{Metrics, OK, class};
use crate::alerts::Rendered;
use crate::core::client_node::ClientNode;
use crate::core::error::Fault;
use crate::core::settings::{CheckPass, CheckSettings, GroupFacts, TargetType};
use crate::core::target::{GroupArn, Named, Poll, Target};
use crate::ports::{
    BoxFuture, CasFault, ClusterNodes, FleetStore, LoadBalancer, Lying, MayRegister, NodeCheck, PageSink, Version,
};

/// An adapter whose calls are counted. A call that its caller gave up is not.
#[derive(Clone, Debug)]
pub struct Counted<T> {
    inner: T,
    metrics: Metrics,
}

impl<T> Counted<T> {
    /// Around an adapter.
    pub fn new(inner: T, metrics: &Metrics) -> Counted<T> {
        Counted { inner, metrics: metrics.clone() }
    }

    fn count<R>(
        &self,
        dependency: &'static str,
        operation: &'static str,
        answer: Result<R, Fault>,
    ) -> Result<R, Fault> {
        let came_to = answer.as_ref().err().map_or(OK, |fault| class(fault.class));
        self.metrics.called(dependency, operation, came_to);
        answer
    }
}

const BALANCER: &str = "load-balancer";
const NODE: &str = "node";
const STORE: &str = "fleet-record";

impl<T: LoadBalancer> LoadBalancer for Counted<T> {
    async fn poll(&self, target: &Target, by_name: bool) -> Result<Poll, Fault> {
        let answer = self.inner.poll(target, by_name).await;
        self.count(BALANCER, "describe-target-health", answer)
    }

    async fn named(&self, target: &Target) -> Result<Named, Fault> {
        let answer = self.inner.named(target).await;
        self.count(BALANCER, "describe-own-target", answer)
    }

    async fn register(&self, target: &Target) -> Result<(), Fault> {
        let answer = self.inner.register(target).await;
        self.count(BALANCER, "register-targets", answer)
    }

    async fn deregister(&self, target: &Target) -> Result<(), Fault> {
        let answer = self.inner.deregister(target).await;
        self.count(BALANCER, "deregister-targets", answer)
    }

    async fn group(&self, group: &GroupArn) -> Result<GroupFacts, Fault> {
        let answer = self.inner.group(group).await;
        self.count(BALANCER, "describe-target-group", answer)
    }

    async fn may_register(&self, group: &GroupArn, target_type: TargetType, port: u16) -> MayRegister {
        let answer = self.inner.may_register(group, target_type, port).await;
        let came_to = match &answer {
            MayRegister::Yes | MayRegister::TookIt => OK,
            MayRegister::No(fault) | MayRegister::Unknown(fault) => class(fault.class),
        };
        self.metrics.called(BALANCER, "probe-register-targets", came_to);
        answer
    }
}

impl<T: NodeCheck> NodeCheck for Counted<T> {
    async fn check(&self, settings: &CheckSettings) -> Result<CheckPass, Fault> {
        let answer = self.inner.check(settings).await;
        self.count(NODE, "check", answer)
    }
}

impl<T: ClusterNodes> ClusterNodes for Counted<T> {
    async fn client_nodes(&self, settings: &CheckSettings) -> Result<Vec<ClientNode>, Fault> {
        let answer = self.inner.client_nodes(settings).await;
        self.count(NODE, "client-nodes", answer)
    }
}

impl<T> Counted<T> {
    fn cas<R>(&self, operation: &'static str, answer: Result<R, CasFault>) -> Result<R, CasFault> {
        let came_to = match &answer {
            Ok(_) => OK,
            Err(CasFault::Conflict) => "conflict",
            Err(CasFault::Fault(fault)) => class(fault.class),
        };
        self.metrics.called(STORE, operation, came_to);
        answer
    }
}

impl<T: FleetStore> FleetStore for Counted<T> {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        let answer = self.inner.read().await;
        self.count(STORE, "read", answer)
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let answer = self.inner.compare_and_set(expected, bytes).await;
        self.cas("compare-and-set", answer)
    }

    async fn lies_there(&self) -> Result<Option<Lying>, Fault> {
        let answer = self.inner.lies_there().await;
        self.count(STORE, "read", answer)
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let answer = self.inner.create(bytes).await;
        self.cas("create", answer)
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        let answer = self.inner.members().await;
        self.count(STORE, "read-members", answer)
    }

    async fn some_members(&self, instances: &[&str]) -> Result<Vec<Vec<u8>>, Fault> {
        let answer = self.inner.some_members(instances).await;
        self.count(STORE, "read-members", answer)
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        let answer = self.inner.put_member(instance, bytes).await;
        self.count(STORE, "put-member", answer)
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        let answer = self.inner.delete_member(instance).await;
        self.count(STORE, "delete-member", answer)
    }
}

/// The sort of a sink: of several Alertmanagers each has a name of its own, and labels are few.
fn pager(name: &str) -> &'static str {
    ["pagerduty", "alertmanager", "webhook"].into_iter().find(|sort| name.starts_with(sort)).unwrap_or("pager")
}

impl PageSink for Counted<Box<dyn PageSink>> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn dedups(&self) -> bool {
        self.inner.dedups()
    }

    fn renew_ms(&self) -> Option<u64> {
        self.inner.renew_ms()
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async move {
            let answer = self.inner.deliver(page).await;
            self.count(pager(self.inner.name()), "deliver", answer)
        })
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let answer = self.inner.reachable().await;
            self.count(pager(self.inner.name()), "reachable", answer)
        })
    }
}
