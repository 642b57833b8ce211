//! The real sinks against receivers that answer as they are told to, with a controlled clock: what each is told in the end.

use crate::fakes::{Fake, ME};
use crate::running::{FLOOR, config};
use backstop::agent::alerts::deliver;
use backstop::agent::shared::{NodeView, Parts, Shared};
use backstop::agent::supervisor::{Task, spawn};
use backstop::agent::turn::Request;
use backstop::alerts::alertmanager::Alertmanager;
use backstop::alerts::pagerduty::PagerDuty;
use backstop::alerts::test::try_all;
use backstop::alerts::webhook::Webhook;
use backstop::clock::Clock;
use backstop::core::cycle::{Durable, Seen};
use backstop::core::finding::{Finding, Kind, Report};
use backstop::core::ids::InstanceId;
use backstop::core::page::{self, PageKind, Severity};
use backstop::fleet::Fleet;
use backstop::host::identity::InstanceIdentity;
use backstop::ports::PageSink;
use backstop::rehearse::elbv2::Elbv2;
use backstop::rehearse::receiver::{Received, Receiver, ReceiverControl, Reply};
use backstop::state::fault::FaultDisk;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// A receiver's own time does not matter here.
pub async fn receiver() -> Receiver {
    let local = crate::support::loopback();
    let world = Elbv2::start(local, 1).await.unwrap();
    Receiver::start(local, world.control().origin()).await.unwrap()
}

pub fn key_file(dir: &tempfile::TempDir) -> std::path::PathBuf {
    let path = dir.path().join("key");
    std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), b"0123456789abcdef0123456789abcdef\n")
        .unwrap();
    path
}

/// One process of an agent: its desk, over what the disk holds.
struct Desk {
    shared: Arc<Shared<Fake>>,
    queue: mpsc::Receiver<Request>,
    _task: Task<()>,
}

impl Desk {
    async fn start(fake: &Fake, sinks: Vec<Box<dyn PageSink>>, durable: Durable) -> Desk {
        let (config, _) = backstop::config::parse("test.toml", config(fake, FLOOR).as_bytes(), "es-client-1").unwrap();
        let parts = Parts {
            config,
            problem: None,
            warnings: Vec::new(),
            balancer: fake.clone(),
            check: fake.clone(),
            fleet: Fleet::new(fake.clone(), "test".into()),
            jobs: fake.clone(),
            host: fake.clone(),
            sinks,
        };
        let identity = InstanceIdentity { instance_id: ME.into(), local_ipv4: None };
        let view = NodeView { durable, seen: Seen::default(), unstored: None };
        let disk = Arc::new(FaultDisk::new(&fake.files));
        let shared = Arc::new(Shared::new(parts, identity, fake.clock.clone(), disk, view));
        let (send, queue) = mpsc::channel(16);
        let task = spawn(deliver(shared.clone(), send));
        until("the book is read", fake, 0, || shared.ledger.get().is_some()).await;
        Desk { shared, queue, _task: task }
    }

    fn look(&self, findings: Vec<Finding>) {
        let now = self.shared.clock.now();
        self.shared.report.send_replace(Arc::new((Report::complete("es-client-1", findings), now)));
    }
}

fn raised(fake: &Fake, message: &str) -> Durable {
    let mut durable = Durable::new(InstanceId(ME.into()));
    let now = fake.clock.now();
    let page = page::about_cycle(&durable, PageKind::Latched, Severity::Critical, message.into(), &now);
    page::raise(&mut durable, page);
    durable
}

/// In real time; the clock of the agent is moved by hand, whenever that helps.
async fn until(what: &str, fake: &Fake, step_ms: u64, mut done: impl FnMut() -> bool) {
    for _ in 0..4_000 {
        if done() {
            return;
        }
        fake.clock.advance(step_ms);
        tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>()).await.unwrap_err();
    }
    panic!("it never comes: {what}");
}

pub fn keys(received: &[Received], field: &str) -> BTreeSet<String> {
    received.iter().filter_map(|r| r.body[field].as_str().map(str::to_owned)).collect()
}

pub fn pagerduty(receiver: &Receiver, dir: &tempfile::TempDir) -> Box<dyn PageSink> {
    Box::new(PagerDuty::new(&receiver.url(), 5_000, key_file(dir)).unwrap())
}

#[tokio::test]
async fn a_pager_that_is_dead_for_three_quarters_of_an_hour_across_a_restart_gets_the_page_once_and_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, pd) = (Fake::new(), receiver().await);
    let control = pd.control();
    control.answer_always(Reply::Reset);
    let foreign = Finding {
        kind: Kind::ForeignTarget,
        subject: "i-9:9200".into(),
        severity: Severity::Warning,
        sentence: "i-9:9200 belongs to nobody".into(),
    };
    let durable = raised(&fake, "it failed");
    let first = Desk::start(&fake, vec![pagerduty(&pd, &dir)], durable.clone()).await;
    first.look(vec![foreign.clone()]);
    let began = fake.clock.now();
    let outage = |now: backstop::core::time::Now| now.since(&began).unwrap() > 45 * 60_000;
    until("45 minutes", &fake, 5_000, || outage(fake.clock.now())).await;
    // What the first process learnt by a look is in the book on its disk.
    until("stored", &fake, 0, || {
        let file = fake.files.clone();
        let disk = FaultDisk::new(&file);
        let bytes = backstop::state::disk::Disk::read(&disk, "alerts.json").unwrap().unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains("i-9:9200")
    })
    .await;
    drop(first);
    let mut second = Desk::start(&fake, vec![pagerduty(&pd, &dir)], durable).await;
    control.answer_always(Reply::Status(202));
    until("both are accepted", &fake, 5_000, || keys(&control.accepted(), "dedup_key").len() >= 2).await;
    let expected = ["test/foreign-target/i-9:9200", "test/latched/es-client-1"].map(str::to_owned);
    assert_eq!(keys(&control.accepted(), "dedup_key"), BTreeSet::from(expected.clone()));
    until("told to the loop", &fake, 0, || matches!(second.queue.try_recv(), Ok(Request::PageAccepted(1)))).await;
    // It is over by looks of the second process.
    let mut looks = 0;
    until("the end", &fake, 0, || {
        looks += 1;
        if looks % 5 == 0 {
            fake.clock.advance(15_000);
            second.look(vec![]);
        }
        control.received().iter().any(|r| r.body["event_action"] == "resolve")
    })
    .await;
    let all = keys(&control.received(), "dedup_key");
    assert!(all.iter().all(|key| expected.contains(key)), "nothing went out under another key: {all:?}");
    assert!(!format!("{:?}", control.received()[0].headers).contains("0123456789abcdef"), "no key in a header");
}

#[tokio::test]
async fn one_pager_that_refuses_keeps_nothing_from_the_other_and_is_an_alert_there() {
    for (status, told) in [(400, "answered 400"), (403, "answered 403"), (404, "answered 404")] {
        let dir = tempfile::tempdir().unwrap();
        let (fake, pd, hook) = (Fake::new(), receiver().await, receiver().await);
        pd.control().answer_always(Reply::Status(status));
        let webhook = Box::new(Webhook::new(&hook.url(), 5_000, None).unwrap());
        let sinks: Vec<Box<dyn PageSink>> = vec![pagerduty(&pd, &dir), webhook];
        let desk = Desk::start(&fake, sinks, raised(&fake, "it failed")).await;
        let control: ReceiverControl = hook.control();
        until("both", &fake, 10, || keys(&control.accepted(), "kind").len() == 2).await;
        assert_eq!(
            keys(&control.accepted(), "kind"),
            BTreeSet::from(["latched".to_owned(), "sink-refuses".to_owned()])
        );
        let refuses = control.accepted().into_iter().find(|r| r.body["kind"] == "sink-refuses").unwrap();
        let text = refuses.body["text"].as_str().unwrap();
        assert!(text.contains(told) && !text.contains("0123456789abcdef0123"), "{text}");
        // Repaired: the page arrives there too, and the alert about it ends.
        pd.control().answer_always(Reply::Status(202));
        until("the end", &fake, 20_000, || control.resolved().iter().any(|r| r.body["kind"] == "sink-refuses")).await;
        assert!(keys(&pd.control().accepted(), "dedup_key").contains("test/latched/es-client-1"));
        drop(desk);
    }
}

#[tokio::test]
async fn a_pager_that_asks_for_time_gets_it_in_both_spellings_and_only_202_is_acceptance() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, pd) = (Fake::new(), receiver().await);
    let control = pd.control();
    control.answer_next([Reply::RetryAfter(429, 120), Reply::Status(200), Reply::StoreAndClose, Reply::Status(500)]);
    let desk = Desk::start(&fake, vec![pagerduty(&pd, &dir)], raised(&fake, "it failed")).await;
    until("the first try", &fake, 0, || control.received().len() == 1).await;
    let has_fault = || desk.shared.book().alerts().iter().any(|a| a.sent.values().any(|s| s.fault.is_some()));
    until("its answer", &fake, 0, has_fault).await;
    fake.clock.advance(119_000);
    // Real time, in which a try that came too early would show.
    let early = tokio::time::timeout(Duration::from_millis(50), control.wait_for(2, Duration::from_secs(5))).await;
    assert!(early.is_err(), "Retry-After is honoured");
    until("the last one", &fake, 1_000, || control.received().len() == 5).await;
    until("accepted", &fake, 0, || !control.received().is_empty() && desk.shared.book().undelivered() == 0).await;
    let ids = keys(&control.received(), "dedup_key");
    assert_eq!(ids.len(), 1, "every try has the same key: {ids:?}");
}

#[tokio::test]
async fn every_alertmanager_gets_every_alert_under_labels_that_do_not_change_and_its_end() {
    let (fake, a, b) = (Fake::new(), receiver().await, receiver().await);
    [&a, &b].iter().for_each(|r| r.control().answer_always(Reply::Status(200)));
    let manager = |r: &Receiver| -> Box<dyn PageSink> {
        Box::new(Alertmanager::new(&format!("http://{}", r.address()), 5_000, None).unwrap())
    };
    let sinks: Vec<Box<dyn PageSink>> = vec![manager(&a), manager(&b)];
    let desk = Desk::start(&fake, sinks, Durable::new(InstanceId(ME.into()))).await;
    let found =
        |severity| Finding { kind: Kind::Unhealthy, subject: "es-client-2".into(), severity, sentence: "fails".into() };
    desk.look(vec![found(Severity::Warning)]);
    let of = |r: &Receiver| r.control().received();
    until("both", &fake, 0, || of(&a).len() == 1 && of(&b).len() == 1).await;
    desk.look(vec![found(Severity::Critical)]);
    until("worse", &fake, 0, || of(&a).len() == 2 && of(&b).len() == 2).await;
    let mut n = 0;
    until("the end", &fake, 0, || {
        n += 1;
        if n % 5 == 0 {
            fake.clock.advance(15_000);
            desk.look(vec![]);
        }
        of(&a).len() >= 3 && of(&b).len() >= 3
    })
    .await;
    for r in [&a, &b] {
        let all = of(r);
        let labels: BTreeSet<String> = all.iter().map(|r| r.body[0]["labels"].to_string()).collect();
        assert_eq!(labels.len(), 1, "one alert: {labels:?}");
        assert_eq!(all[0].path, "/api/v2/alerts");
        let ends = |i: usize| all[i].body[0]["endsAt"].as_str().unwrap().to_owned();
        assert!(ends(0) > ends(all.len() - 1), "days ahead at first, now at the end");
    }
}

#[tokio::test]
async fn a_test_goes_through_every_sink_with_its_end_and_says_which_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (fake, pd, hook) = (Fake::new(), receiver().await, receiver().await);
    pd.control().answer_always(Reply::Status(400));
    let webhook = Box::new(Webhook::new(&hook.url(), 5_000, Some(key_file(&dir))).unwrap());
    let sinks: Vec<Box<dyn PageSink>> = vec![pagerduty(&pd, &dir), webhook];
    let results = try_all(&sinks, None, "f", "n-1", &fake.clock.now()).await;
    let told: Vec<_> = results.iter().map(|r| (r.sink.as_str(), r.accepted)).collect();
    assert_eq!(told, [("pagerduty", false), ("webhook", true)]);
    assert!(results[0].message.contains("400"), "{:?}", results[0]);
    let events: Vec<_> =
        hook.control().received().iter().map(|r| r.body["event"].as_str().unwrap().to_owned()).collect();
    assert_eq!(events, ["test", "resolve"]);
    for (page, head) in hook.control().received().iter().zip(["[TEST] ", "[END OF THE TEST] "]) {
        let text = page.body["text"].as_str().unwrap();
        assert!(text.starts_with(head) && text.contains("Human    no."), "{text}");
        for alarming in ["RESOLVED", "unknown", "resolved:", "Traffic"] {
            assert!(!page.body.to_string().contains(alarming), "{alarming}: {page:?}");
        }
    }
    let names: BTreeSet<_> = hook.control().received()[0].headers.iter().map(|(name, _)| name.clone()).collect();
    for header in ["x-backstop-signature", "x-backstop-timestamp", "idempotency-key"] {
        assert!(names.contains(header), "{header}: {names:?}");
    }
    assert!(try_all(&sinks, Some("other"), "f", "n-1", &fake.clock.now()).await.is_empty());
}
