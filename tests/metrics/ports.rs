//! Every call of every port is counted by what came of it, and its answer passed on untouched.

use crate::exposition::{Exposition, read};
use backstop::alerts::Rendered;
use backstop::core::error::{Class, Fault};
use backstop::core::settings::{CheckPass, CheckSettings, GroupFacts, TargetType};
use backstop::core::target::{GroupArn, Named, Poll, Target};
use backstop::metrics::{Counted, Metrics, Readings};
use backstop::ports::{BoxFuture, CasFault, FleetStore, LoadBalancer, MayRegister, NodeCheck, PageSink, Version};
use std::pin::pin;
use std::task::{Context, Poll as Ready, Waker};

/// Answers every call in one way; `None` = as it should be, where there is a plain answer for that.
#[derive(Clone, Debug)]
pub struct Answers(pub Option<Class>);

impl Answers {
    fn with<T>(&self, good: T) -> Result<T, Fault> {
        self.fault().map_or(Ok(good), Err)
    }

    fn fault(&self) -> Option<Fault> {
        self.0.map(|class| Fault::new(class, "told to"))
    }

    fn always(&self) -> Fault {
        self.fault().unwrap_or_else(|| Fault::transport("has no good answer"))
    }
}

impl LoadBalancer for Answers {
    async fn poll(&self, _: &Target, by_name: bool) -> Result<Poll, Fault> {
        assert!(by_name, "passed on");
        self.with(Poll { list: Vec::new(), named: None })
    }
    async fn named(&self, _: &Target) -> Result<Named, Fault> {
        self.with(Named::InvalidTarget)
    }
    async fn register(&self, _: &Target) -> Result<(), Fault> {
        self.with(())
    }
    async fn deregister(&self, _: &Target) -> Result<(), Fault> {
        self.with(())
    }
    async fn group(&self, _: &GroupArn) -> Result<GroupFacts, Fault> {
        Err(self.always())
    }
    async fn may_register(&self, _: &GroupArn, _: TargetType, _: u16) -> MayRegister {
        self.fault().map_or(MayRegister::Yes, MayRegister::No)
    }
}

impl NodeCheck for Answers {
    async fn check(&self, _: &CheckSettings) -> Result<CheckPass, Fault> {
        Err(self.always())
    }
}

impl FleetStore for Answers {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.with(None)
    }
    async fn compare_and_set(&self, expected: &Version, _: Vec<u8>) -> Result<Version, CasFault> {
        self.fault().map_or_else(|| Ok(expected.clone()), |f| Err(CasFault::Fault(f)))
    }
    async fn create(&self, _: Vec<u8>) -> Result<Version, CasFault> {
        Err(CasFault::Conflict)
    }
    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        self.with(Vec::new())
    }
    async fn put_member(&self, _: &str, _: Vec<u8>) -> Result<(), Fault> {
        self.with(())
    }
    async fn delete_member(&self, _: &str) -> Result<(), Fault> {
        self.with(())
    }
}

impl PageSink for Answers {
    fn name(&self) -> &'static str {
        "webhook"
    }
    fn deliver<'a>(&'a self, _: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(async { self.with(()) })
    }
    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async { self.with(()) })
    }
}

/// Of a future that has nothing to wait for.
fn now<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Ready::Ready(done) => done,
        Ready::Pending => panic!("these answer at once"),
    }
}

fn target() -> Target {
    Target { group: GroupArn("g".into()), id: "i-1".into(), port: 9_200 }
}

/// Calls of the balancer that have plain answers.
pub fn ask_all(counted: &Counted<Answers>) {
    let good = counted_answers(counted);
    assert!(good.iter().all(|class| class.is_none()), "{good:?}");
}

fn counted_answers(counted: &Counted<Answers>) -> Vec<Option<Class>> {
    let class = |fault: Option<Fault>| fault.map(|f| f.class);
    let probe = match now(counted.may_register(&GroupArn("g".into()), TargetType::Instance, 9_200)) {
        MayRegister::Yes | MayRegister::TookIt => None,
        MayRegister::No(fault) | MayRegister::Unknown(fault) => Some(fault),
    };
    let version = Version(vec![7].into());
    let cas = match now(counted.compare_and_set(&version, Vec::new())) {
        Ok(v) => {
            assert_eq!(v, version, "passed on");
            None
        }
        Err(CasFault::Fault(fault)) => Some(fault),
        Err(CasFault::Conflict) => panic!("not told to"),
    };
    vec![
        class(now(counted.poll(&target(), true)).err()),
        class(now(counted.register(&target())).err()),
        class(now(counted.deregister(&target())).err()),
        class(probe),
        class(now(counted.read()).err()),
        class(cas),
        class(now(counted.members()).err()),
        class(now(counted.put_member("i-1", Vec::new())).err()),
        class(now(counted.delete_member("i-1")).err()),
    ]
}

fn exposed(metrics: &Metrics) -> Exposition {
    let text = metrics.expose("f", Readings::default());
    read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

fn calls(all: &Exposition, dependency: &str, operation: &str, class: &str) -> f64 {
    all.sum("backstop_calls_total", &[("dependency", dependency), ("operation", operation), ("class", class)])
}

#[test]
fn every_call_is_counted_as_ok_or_by_its_class_and_its_answer_passed_on() {
    for class in [None].into_iter().chain(Class::ALL.map(Some)) {
        let metrics = Metrics::default();
        let counted = Counted::new(Answers(class), &metrics);
        let answers = counted_answers(&counted);
        assert!(answers.iter().all(|a| *a == class), "{class:?}: {answers:?}");
        let (all, label) = (exposed(&metrics), class.map_or("ok", Class::label));
        for (dependency, operation) in [
            ("load-balancer", "describe-target-health"),
            ("load-balancer", "register-targets"),
            ("load-balancer", "deregister-targets"),
            ("load-balancer", "probe-register-targets"),
            ("fleet-record", "read"),
            ("fleet-record", "compare-and-set"),
            ("fleet-record", "read-members"),
            ("fleet-record", "put-member"),
            ("fleet-record", "delete-member"),
        ] {
            assert_eq!(calls(&all, dependency, operation, label), 1.0, "{dependency} {operation} {label}");
        }
        assert_eq!(all.sum("backstop_calls_total", &[]), 9.0, "each once");
    }
}

#[test]
fn a_conflict_is_no_fault_and_calls_without_a_plain_answer_are_counted_too() {
    let metrics = Metrics::default();
    let counted = Counted::new(Answers(Some(Class::Throttled)), &metrics);
    assert_eq!(now(counted.create(Vec::new())).unwrap_err(), CasFault::Conflict);
    now(counted.group(&GroupArn("g".into()))).unwrap_err();
    let settings = CheckSettings {
        url: "http://127.0.0.1:9200".into(),
        timeout_ms: 1,
        ca_file: None,
        api_key_file: None,
        basic_auth_file: None,
        client_cert_file: None,
        canary_index: None,
        node_name: "n".into(),
        expect: None,
        passes: 1,
        over_ms: 0,
        every_ms: 1,
    };
    now(counted.check(&settings)).unwrap_err();
    let all = exposed(&metrics);
    assert_eq!(calls(&all, "fleet-record", "create", "conflict"), 1.0);
    assert_eq!(calls(&all, "load-balancer", "describe-target-group", "throttled"), 1.0);
    assert_eq!(calls(&all, "node", "check", "throttled"), 1.0);
}

fn page() -> Rendered {
    Rendered {
        event: "trigger".into(),
        key: "k".into(),
        id: "1".into(),
        fleet: "f".into(),
        node: "n".into(),
        kind: "latched".into(),
        subject: "n".into(),
        severity: "critical".into(),
        summary: "s".into(),
        text: "t".into(),
        runbook: "r".into(),
        reminder: None,
        raised: "r".into(),
        sent_at: "a".into(),
        cycle: None,
        latch: None,
        stage: None,
        class: None,
        raised_ms: 0,
        sent_ms: 0,
    }
}

#[test]
fn a_pager_is_counted_under_its_own_name() {
    let metrics = Metrics::default();
    for class in [None, Some(Class::Auth)] {
        let sink: Box<dyn PageSink> = Box::new(Answers(class));
        let counted = Counted::new(sink, &metrics);
        assert_eq!(counted.name(), "webhook");
        assert_eq!(now(counted.reachable()).err().map(|f| f.class), class);
        assert_eq!(now(counted.deliver(&page())).err().map(|f| f.class), class);
    }
    let all = exposed(&metrics);
    for operation in ["deliver", "reachable"] {
        assert_eq!(calls(&all, "webhook", operation, "ok"), 1.0);
        assert_eq!(calls(&all, "webhook", operation, "auth"), 1.0);
    }
}
