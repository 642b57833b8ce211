//! Nodes that do not come back: retired by a person, terminated, lost with a slot in hand. And nodes that put themselves
//! back though nobody asked them to.

use crate::fakes::{Call, Fake, instance, name};
use crate::running::Running;
use backstop::control::backend::{Backend as _, Caller};
use backstop::control::protocol::RejoinRequest;
use backstop::control::protocol::{Done, RetireRequest};
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::ids::InstanceId;
use backstop::core::record::{Extra, LOST, Record, Slot};

fn ann() -> Caller {
    Caller { name: "ann".to_owned(), uid: 0, admin: true }
}

async fn retire(r: &Running, node: &str) -> Done {
    r.handle().retire(ann(), RetireRequest { node: node.to_owned(), reason: "scale-in".to_owned() }).await
}

fn id(n: usize) -> InstanceId {
    InstanceId(instance(n).into())
}

/// A slot that another node holds.
fn slot(n: usize, budget_s: u64) -> Slot {
    let node = name(n).as_str().into();
    Slot { cycle: "c-of-2".into(), node, job: "kernel".into(), budget_s, since_ms: 0, extra: Extra::new() }
}

/// The record with a slot in node 2's hand.
fn held_by_2(fake: &Fake, budget_s: u64) {
    let mut record = fake.record();
    record.counter += 1;
    record.slots.insert(id(2), slot(2, budget_s));
    fake.put_record(Some(&record));
}

/// Node 2's heart goes on beating for so many seconds.
async fn beating(r: &Running, seconds: u64) {
    for beat in 1..=seconds / 5 {
        r.fake.beats(2, Some(1_000 + beat));
        r.pass(5).await;
    }
}

fn latches(fake: &Fake) -> Vec<(String, String)> {
    let record: Record = fake.record();
    record.open_latches().map(|(id, l)| (id.to_string(), l.class.to_string())).collect()
}

// ---- by a person ----

#[tokio::test]
async fn a_node_that_is_retired_on_itself_drains_leaves_the_record_and_stays_out_until_rejoin() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(20).await;
    let done = retire(&r, "es-client-1").await;
    assert_eq!(done.exit, 0, "{done:?}");
    r.until("it is retired", 120, |r| r.fake.record().retired.contains_key(&id(1)) && r.stage().is_none()).await;
    let record = fake.record();
    assert!(record.slots.is_empty() && record.holds.is_empty() && latches(&fake).is_empty(), "{record:?}");
    assert_eq!((fake.calls(Call::Deregister), fake.in_service()), (2, false));
    r.until("it is no member", 60, |r| !r.fake.members().contains(&instance(1))).await;
    // Far beyond the time of self-heal, and after a restart whose record cannot be read.
    r.pass(400).await;
    r.kill();
    fake.trouble(Call::ReadRecord, Some(crate::fakes::Trouble::NeverHeardOf));
    let r = Running::start(&fake).await;
    r.pass(400).await;
    assert_eq!(
        (fake.calls(Call::Register), fake.in_service(), fake.members().contains(&instance(1))),
        (0, false, false)
    );

    fake.trouble(Call::ReadRecord, None);
    r.pass(30).await;
    let request = RejoinRequest { reason: "the wrong one".to_owned(), skip_check: false };
    let back = r.handle().rejoin(ann(), request).await;
    assert!(back.exit == 0 && back.message.ends_with("it is no longer retired"), "{back:?}");
    r.until("it is back", 120, |r| r.fake.in_service() && r.stage().is_none()).await;
    r.until("a member again", 60, |r| r.fake.members().contains(&instance(1))).await;
    assert!(fake.record().retired.is_empty());
}

#[tokio::test]
async fn a_peer_is_retired_only_once_no_call_of_it_can_be_under_way_and_its_slot_leaves_a_latch() {
    let fake = Fake::new();
    held_by_2(&fake, 3_600);
    let r = Running::start(&fake).await;
    beating(&r, 60).await;
    let done = retire(&r, "es-client-2").await;
    assert_eq!(done.exit, Exit::Guard.code(), "{done:?}");
    assert!(done.message.contains("run this on es-client-2 itself"), "{done:?}");
    assert!(fake.record().retired.is_empty());
    r.pass(120).await;
    let done = retire(&r, "es-client-2").await;
    assert_eq!(done.exit, 0, "{done:?}");
    assert!(done.message.contains("leaves a latch"), "{done:?}");
    let record = fake.record();
    assert!(record.slots.is_empty() && record.retired.contains_key(&id(2)));
    assert_eq!(latches(&fake), [("L-of-2".to_owned(), LOST.to_owned())]);
    assert!(!fake.members().contains(&instance(2)));
    assert_eq!(retire(&r, "es-client-9").await.exit, Exit::Usage.code(), "nobody of that name");
}

// ---- lost ----

#[tokio::test]
async fn a_slot_beyond_its_budget_becomes_a_latch_by_the_clock_of_whoever_watches() {
    let fake = Fake::new();
    held_by_2(&fake, 100);
    let r = Running::start(&fake).await;
    beating(&r, 80).await;
    assert_eq!(latches(&fake), []);
    beating(&r, 60).await;
    assert_eq!(latches(&fake), [("L-of-2".to_owned(), LOST.to_owned())]);
    // Once is enough: it is not written again, nor after somebody has cleared it.
    let writes = fake.calls(Call::WriteRecord);
    r.pass(60).await;
    assert_eq!(fake.calls(Call::WriteRecord), writes);
    assert!(fake.record().slots.contains_key(&id(2)), "its slot stays until its holder or a person frees it");
}

#[tokio::test]
async fn a_holder_whose_member_document_is_gone_becomes_a_latch_at_once() {
    let fake = Fake::new();
    held_by_2(&fake, 3_600);
    let r = Running::start(&fake).await;
    beating(&r, 60).await;
    assert_eq!(latches(&fake), []);
    fake.beats(2, None);
    r.pass(40).await;
    assert_eq!(latches(&fake), [("L-of-2".to_owned(), LOST.to_owned())]);
}

#[tokio::test]
async fn an_instance_that_is_terminated_mid_cycle_says_goodbye_and_does_not_fight() {
    for stage in [StageName::Drain, StageName::Patch, StageName::Check] {
        let fake = Fake::new();
        let r = Running::start(&fake).await;
        r.pass(20).await;
        fake.job_ends(None);
        r.run_job().await;
        r.until("the stage", 200, |r| {
            if stage == StageName::Check {
                r.fake.trouble(Call::Check, Some(crate::fakes::Trouble::NeverHeardOf));
                r.fake.job_ends(Some(crate::fakes::good()));
            }
            r.stage() == Some(stage)
        })
        .await;
        let registered = fake.calls(Call::Register);
        fake.lifecycle(Some("Terminated"));
        r.until("its slot is free", 60, |r| r.fake.record().slots.is_empty()).await;
        assert_eq!(latches(&fake).iter().map(|(_, class)| &**class).collect::<Vec<_>>(), [LOST], "{stage}");
        r.until("no member", 60, |r| !r.fake.members().contains(&instance(1))).await;
        fake.trouble(Call::Check, None);
        r.pass(400).await;
        assert_eq!(fake.calls(Call::Register), registered, "{stage}");
        assert!(fake.record().retired.is_empty(), "a goodbye is no order of a person");
    }
}

// ---- put back by itself ----

/// Pages that it does not put itself back any more.
fn no_more(fake: &Fake) -> usize {
    let told = |p: &backstop::alerts::Rendered| p.kind == "healed-too-often" && p.event == "trigger";
    fake.all_pages().iter().filter(|p| told(p)).count()
}

#[tokio::test]
async fn a_node_heals_itself_three_times_a_day_and_then_a_person_is_called() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    for time in 1..=3 {
        r.pass(20).await;
        fake.take_out();
        r.until("it is back", 400, |r| r.fake.in_service()).await;
        assert_eq!((r.shared.node.borrow().durable.heals_ms.len(), no_more(&fake)), (time, 0));
    }
    r.pass(20).await;
    fake.take_out();
    r.until("a page", 500, |r| no_more(&r.fake) > 0).await;
    r.pass(400).await;
    assert!(!fake.in_service());
    assert_eq!(no_more(&fake), 1);
    // It is remembered over a restart, and a day later it may again.
    r.kill();
    let r = Running::start(&fake).await;
    r.pass(400).await;
    assert!(!fake.in_service());
    fake.clock.advance(86_400_000);
    r.until("it is back", 400, |r| r.fake.in_service()).await;
}

#[tokio::test]
async fn one_node_waits_its_time_and_an_emptied_fleet_does_not() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.pass(40).await;
    fake.take_out();
    r.pass(200).await;
    assert!(!fake.in_service(), "five minutes for whoever took it out on purpose");
    r.until("it is back", 200, |r| r.fake.in_service()).await;
    r.pass(60).await;
    fake.take_all_out();
    r.until("it is back at once", 75, |r| r.fake.in_service()).await;
}
