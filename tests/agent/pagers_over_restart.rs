//! A real agent whose pagers are away for three quarters of an hour, in which its process ends and another one begins:
//! nothing is lost, and nothing is told twice.

use crate::fakes::{Fake, good};
use crate::pagers::{key_file, keys, pagerduty, receiver};
use crate::running::Running;
use backstop::alerts::webhook::Webhook;
use backstop::clock::Clock;
use backstop::core::cycle::StageName;
use backstop::core::job::{JobResult, Verdict};
use backstop::ports::PageSink;
use backstop::rehearse::receiver::{Received, Receiver, ReceiverControl, Reply};
use std::collections::BTreeMap;
use std::time::Duration;

/// Simulated time that passes in one step beside real sockets.
const STEP_MS: u64 = 3_000;
const OUTAGE_MS: u64 = 45 * 60_000;

/// What fails: the cycle machine's own page; what a look finds, before the restart and after it.
const KEYS: [&str; 4] = [
    "test/below-minimum/test",
    "test/foreign-target/es-clients i-foreign:9200",
    "test/foreign-target/es-internal i-foreign:9200",
    "test/latched/es-client-1",
];

struct Pagers {
    dir: tempfile::TempDir,
    pd: Receiver,
    hook: Receiver,
}

impl Pagers {
    async fn start() -> Pagers {
        Pagers { dir: tempfile::tempdir().unwrap(), pd: receiver().await, hook: receiver().await }
    }

    fn sinks(&self) -> Vec<Box<dyn PageSink>> {
        let webhook = Webhook::new(&self.hook.url(), 5_000, Some(key_file(&self.dir))).unwrap();
        vec![pagerduty(&self.pd, &self.dir), Box::new(webhook)]
    }

    fn both(&self) -> [(&'static str, ReceiverControl); 2] {
        [("dedup_key", self.pd.control()), ("key", self.hook.control())]
    }

    /// Nobody listens any more; whoever comes back there knows what was stored.
    async fn stop(self) -> impl AsyncFnOnce() -> Pagers {
        let Pagers { dir, pd, hook } = self;
        let kept = [&pd, &hook].map(|r| (r.address(), r.control()));
        pd.stop().await;
        hook.stop().await;
        async move || {
            let [pd, hook] = kept;
            let pd = Receiver::start_with(pd.0, pd.1).await.unwrap();
            Pagers { dir, pd, hook: Receiver::start_with(hook.0, hook.1).await.unwrap() }
        }
    }
}

/// How often each key was accepted as this event, reminders aside.
fn accepted(control: &ReceiverControl, key: &str, over: bool) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let is_over = |r: &Received| r.body["event"] == "resolve" || r.body["event_action"] == "resolve";
    for r in control.received().iter().filter(|r| r.accepted && is_over(r) == over) {
        *counts.entry(r.body[key].as_str().unwrap().to_owned()).or_default() += 1;
    }
    counts
}

fn once() -> BTreeMap<String, usize> {
    KEYS.iter().map(|k| ((*k).to_owned(), 1)).collect()
}

/// Of these keys alone: that a pager refuses is an alert of its own.
fn of_these(mut counts: BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    counts.retain(|k, _| KEYS.contains(&k.as_str()));
    counts
}

/// A fleet at rest whose agent has these pagers.
async fn at_rest(fake: &Fake, pagers: &Pagers) -> Running {
    let r = Running::start_paging(fake, pagers.sinks()).await;
    r.minutes(11).await;
    r
}

/// A cycle has begun: without a pager that answers none would.
async fn patching(r: &Running) {
    r.fake.job_ends(None);
    r.run_job().await;
    r.beside_sockets("patch", 500, |r| r.stage() == Some(StageName::Patch)).await;
}

/// The cycle fails, a node falls out; and a while later, in another process, a foreign target is there for long enough.
async fn goes_wrong_over_a_restart(r: Running, fake: &Fake, sinks: Vec<Box<dyn PageSink>>) -> Running {
    let began = fake.clock.now();
    fake.job_ends(Some(Verdict { result: JobResult::Exited(7), ..good() }));
    r.beside_sockets("the cycle has failed", STEP_MS, |r| r.firing().contains(KEYS[3]) && r.stage().is_none()).await;
    fake.serves(2, false);
    fake.foreign_target(true);
    r.beside_sockets("it is found", STEP_MS, |r| r.firing().contains(KEYS[0])).await;
    let third = |fake: &Fake| fake.clock.now().since(&began).unwrap() > OUTAGE_MS / 5;
    r.beside_sockets("nine minutes", STEP_MS, |r| third(&r.fake)).await;
    r.kill();
    let r = Running::start_paging(fake, sinks).await;
    r.beside_sockets("45 minutes", STEP_MS, |r| r.fake.clock.now().since(&began).unwrap() > OUTAGE_MS).await;
    assert!(KEYS.iter().all(|k| r.firing().contains(*k)), "{:?}", r.firing());
    r
}

async fn mended(r: &Running, pagers: &Pagers) {
    let all = |over: bool| pagers.both().iter().all(|(key, c)| of_these(accepted(c, key, over)) == once());
    r.beside_sockets("each is accepted", STEP_MS, |_| all(false)).await;
    r.fake.serves(2, true);
    r.fake.foreign_target(false);
    r.fake.clear_latches();
    r.beside_sockets("each end is accepted", STEP_MS, |_| all(true)).await;
    // And after that time nothing more of them, however long one waits.
    let quiet = r.fake.clock.now();
    r.beside_sockets("a quarter of an hour", STEP_MS, |r| r.fake.clock.now().since(&quiet).unwrap() > 15 * 60_000)
        .await;
    for (key, control) in pagers.both() {
        assert_eq!(of_these(accepted(&control, key, false)), once(), "{key}");
        assert_eq!(of_these(accepted(&control, key, true)), once(), "{key}");
    }
    assert_eq!(r.shared.book().undelivered(), 0);
}

#[tokio::test]
async fn pagers_that_are_gone_over_a_restart_of_the_agent_get_each_alert_once_and_its_end_once() {
    let (fake, pagers) = (Fake::new(), Pagers::start().await);
    let r = at_rest(&fake, &pagers).await;
    patching(&r).await;
    let (first, second) = (pagers.both(), pagers.sinks());
    let back = pagers.stop().await;
    let r = goes_wrong_over_a_restart(r, &fake, second).await;
    assert!(first.iter().all(|(_, c)| c.received().is_empty()), "nobody was there");
    let pagers = back().await;
    mended(&r, &pagers).await;
}

#[tokio::test]
async fn pagers_that_refuse_or_ask_for_time_over_a_restart_get_each_alert_once_and_its_end_once() {
    for reply in [Reply::Status(400), Reply::Status(403), Reply::RetryAfter(429, 120), Reply::Status(503)] {
        let (fake, pagers) = (Fake::new(), Pagers::start().await);
        let r = at_rest(&fake, &pagers).await;
        patching(&r).await;
        pagers.both().iter().for_each(|(_, c)| c.answer_always(reply.clone()));
        let r = goes_wrong_over_a_restart(r, &fake, pagers.sinks()).await;
        for (key, control) in pagers.both() {
            assert!(!control.received().is_empty() && accepted(&control, key, false).is_empty(), "{reply:?}");
            control.answer_always(Reply::Status(202));
        }
        mended(&r, &pagers).await;
        r.kill();
    }
}

#[tokio::test]
async fn an_answer_that_is_late_is_waited_for_and_one_that_is_too_late_is_sent_again_as_the_same() {
    let (fake, pagers) = (Fake::new(), Pagers::start().await);
    let r = at_rest(&fake, &pagers).await;
    let late = Reply::Late(202, Duration::from_millis(700));
    pagers.both().iter().for_each(|(_, c)| c.answer_always(late.clone()));
    fake.serves(2, false);
    let accepted_here = |r: &Running| r.shared.book().undelivered() == 0 && r.firing().contains(KEYS[0]);
    r.beside_sockets("accepted", 100, accepted_here).await;
    r.beside_sockets("by both", 100, |_| pagers.both().iter().all(|(_, c)| !c.received().is_empty())).await;
    for (key, control) in pagers.both() {
        assert_eq!(accepted(&control, key, false), BTreeMap::from([(KEYS[0].to_owned(), 1)]), "{key}");
    }
    r.kill();

    // Whoever gives up before the answer comes cannot know that it was accepted.
    let (fake, hook) = (Fake::new(), receiver().await);
    let control = hook.control();
    control.answer_next([late.clone(), late]);
    let sinks = || -> Vec<Box<dyn PageSink>> { vec![Box::new(Webhook::new(&hook.url(), 200, None).unwrap())] };
    let r = Running::start_paging(&fake, sinks()).await;
    r.minutes(11).await;
    // One thing, of which nothing more is learnt meanwhile.
    fake.stranger(Some(9));
    let known = |r: &Running| r.shared.book().undelivered() == 0;
    r.beside_sockets("sent until it is known", STEP_MS, |r| control.received().len() >= 3 && known(r)).await;
    let ids: std::collections::BTreeSet<_> = control
        .received()
        .iter()
        .map(|r| r.headers.iter().find(|(name, _)| name == "idempotency-key").unwrap().1.clone())
        .collect();
    assert_eq!((ids.len(), keys(&control.received(), "key").len()), (1, 1), "a receiver can tell that it is the same");
}
