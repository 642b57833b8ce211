//! The state directory in trouble, at every stage: the node comes back, the page is delivered, nothing is guessed.

use crate::fakes::{Call, Fake, Trouble, good};
use crate::running::Running;
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::state::fault::Trouble as DiskTrouble;

const TROUBLES: [DiskTrouble; 3] = [DiskTrouble::Full, DiskTrouble::ReadOnly, DiskTrouble::Broken];

/// Brings an agent to a stage; where a stage would pass in no time the job is held.
async fn at(fake: &Fake, stage: StageName) -> Running {
    match stage {
        StageName::Patch => fake.job_ends(None),
        StageName::Deregister => fake.trouble(Call::Deregister, Some(Trouble::Class(Class::Throttled))),
        StageName::Register => fake.trouble(Call::Register, Some(Trouble::Class(Class::Throttled))),
        _ => {}
    }
    let r = Running::start(fake).await;
    r.pass(2).await;
    let reply = r.run_job().await;
    assert!(matches!(reply, RunReply::Started { .. }), "{reply:?}");
    r.until(stage.label(), 300, |r| r.stage() == Some(stage)).await;
    r
}

#[tokio::test]
async fn a_disk_that_fails_at_any_stage_never_strands_the_node() {
    for stage in [
        StageName::Deregister,
        StageName::Drain,
        StageName::Patch,
        StageName::Check,
        StageName::Register,
        StageName::Settle,
    ] {
        for trouble in TROUBLES {
            let when = format!("{trouble:?} in {stage}");
            let fake = Fake::new();
            let r = at(&fake, stage).await;
            fake.files.trouble_always(Some(trouble));
            fake.trouble(Call::Deregister, None);
            fake.trouble(Call::Register, None);
            fake.job_ends(Some(good()));
            r.until("back in service on that disk", 400, |r| {
                r.fake.in_service() && matches!(r.stage(), Some(StageName::Settle | StageName::Release) | None)
            })
            .await;
            if matches!(stage, StageName::Deregister | StageName::Drain) {
                r.until("its page", 100, |r| r.fake.pages().iter().any(|p| p.class.as_deref() == Some("disk"))).await;
                assert_eq!(
                    fake.record().open_latches().count(),
                    1,
                    "{when}: the acknowledged latch is the record of it"
                );
            }
            r.pass(30).await;
            assert!(r.stage().is_some(), "{when}: release waits for the disk");
            assert_eq!(fake.record().slots.len(), 1, "{when}: nothing is freed before the disk is back");
            fake.files.trouble_always(None);
            r.until("released once the disk is back", 300, |r| r.stage().is_none()).await;
            assert!(fake.in_service() && fake.record().slots.is_empty(), "{when}");
        }
    }
}

#[tokio::test]
async fn a_failure_that_only_its_latch_remembers_is_the_verdict_all_the_same() {
    let fake = Fake::new();
    fake.job_ends(None);
    let r = Running::start(&fake).await;
    r.pass(2).await;
    assert!(matches!(r.run_job().await, RunReply::Started { .. }));
    r.until("its job runs", 300, |r| r.stage() == Some(StageName::Patch)).await;
    fake.files.trouble_always(Some(DiskTrouble::Full));
    r.until("latched", 200, |r| r.fake.record().open_latches().count() == 1).await;
    r.kill();
    fake.files.trouble_always(None);
    // By what it has stored its job is still to end, and well.
    fake.job_ends(Some(good()));
    fake.job_is(good());
    let r = Running::start(&fake).await;
    r.until("home", 300, |r| r.stage().is_none()).await;
    let last = r.shared.node.borrow().durable.last.clone().unwrap();
    assert_eq!((last.exit, last.latch.is_some()), (Exit::FailedBack, true), "{last:?}");
    assert!(last.message.contains("has failed before"), "{last:?}");
    assert_eq!(fake.record().open_latches().count(), 1);
}

#[tokio::test]
async fn a_crash_on_a_full_disk_still_brings_the_node_home() {
    for stage in [StageName::Drain, StageName::Patch, StageName::Check, StageName::Settle] {
        let fake = Fake::new();
        let r = at(&fake, stage).await;
        fake.files.trouble_always(Some(DiskTrouble::Full));
        r.pass(1).await;
        r.kill();
        fake.job_ends(Some(good()));
        let r = Running::start(&fake).await;
        r.until("in service", 400, |r| {
            r.fake.in_service() && r.stage() != Some(stage)
                || r.stage() == Some(StageName::Settle) && r.fake.in_service()
        })
        .await;
        fake.files.trouble_always(None);
        r.until("released", 300, |r| r.stage().is_none()).await;
        assert!(fake.in_service() && fake.record().slots.is_empty(), "{stage}");
    }
}

#[tokio::test]
async fn nothing_starts_on_a_disk_that_does_not_take_the_state() {
    for trouble in TROUBLES {
        let fake = Fake::new();
        let r = Running::start(&fake).await;
        r.pass(2).await;
        fake.files.trouble_always(Some(trouble));
        let reply = r.run_job().await;
        assert!(matches!(reply, RunReply::Refused { exit: 17, .. }), "{trouble:?}: {reply:?}");
        r.pass(20).await;
        assert!(fake.in_service() && fake.record().slots.is_empty());
    }
}

/// What a state file can look like when its node was out.
fn spoilt(name: &str, bytes: &[u8]) -> Vec<u8> {
    match name {
        "zero bytes" => Vec::new(),
        "NULs" => vec![0; bytes.len()],
        "torn" => bytes[..bytes.len() / 2].to_vec(),
        "one flipped bit" => {
            let mut b = bytes.to_vec();
            let i = b.len() / 2;
            b[i] ^= 1;
            b
        }
        "not text" => vec![0xff; 64],
        _ => String::from_utf8_lossy(bytes).replace("\"schema\":1", "\"schema\":9").into_bytes(),
    }
}

#[tokio::test]
async fn unreadable_state_latches_pages_and_brings_the_node_back() {
    for spoil in ["zero bytes", "NULs", "torn", "one flipped bit", "not text", "a newer schema"] {
        let fake = Fake::new();
        let r = at(&fake, StageName::Patch).await;
        r.kill();
        let bytes = read_state(&fake);
        fake.files.plant("state.json", &spoilt(spoil, &bytes));
        fake.job_ends(Some(good()));
        let r = Running::start(&fake).await;
        r.until("home", 400, |r| r.stage().is_none()).await;
        assert!(fake.in_service(), "{spoil}: back in service");
        let last = r.shared.node.borrow().durable.last.clone().unwrap();
        assert_eq!(last.exit, Exit::StateUnreadable, "{spoil}: {last:?}");
        let record = fake.record();
        let classes: Vec<_> = record.open_latches().map(|(_, l)| l.class.to_string()).collect();
        assert_eq!(classes, ["state"], "{spoil}");
        let pages = fake.pages();
        assert_eq!(pages.iter().filter(|p| p.class.as_deref() == Some("state")).count(), 1, "{spoil}: {pages:?}");
        r.pass(60).await;
        assert!(fake.record().slots.is_empty(), "{spoil}: its old slot is freed once the node is in service");
        assert!(quarantined(&fake), "{spoil}: the bytes are kept");
        let again = r.run_job().await;
        assert!(matches!(again, RunReply::Refused { exit: 100, .. }), "{spoil}: {again:?}");
    }
}

#[tokio::test]
async fn unreadable_state_on_a_disk_that_takes_nothing_still_brings_the_node_back() {
    for trouble in [DiskTrouble::Full, DiskTrouble::ReadOnly] {
        let fake = Fake::new();
        let r = at(&fake, StageName::Patch).await;
        r.kill();
        fake.files.plant("state.json", b"");
        fake.files.trouble_always(Some(trouble));
        fake.job_ends(Some(good()));
        let r = Running::start(&fake).await;
        r.until("in service without state and disk", 400, |r| r.fake.in_service()).await;
        r.until("its page", 100, |r| r.fake.pages().iter().any(|p| p.class.as_deref() == Some("state"))).await;
        assert_eq!(fake.record().open_latches().count(), 1, "{trouble:?}: latched all the same");
        fake.files.trouble_always(None);
        r.until("released once the disk is back", 300, |r| r.stage().is_none()).await;
        assert!(fake.in_service(), "{trouble:?}");
    }
}

/// A whole state file of another instance, in mid-cycle, as an image that was made of a running node carries it.
fn foreign(fake: &Fake, boot: &str) -> Vec<u8> {
    let text = String::from_utf8(read_state(fake)).unwrap();
    let file: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut durable: backstop::core::cycle::Durable = serde_json::from_value(file["body"].clone()).unwrap();
    durable.instance = "i-00000000000000ff".into();
    if let Some(c) = &mut durable.cycle {
        let mut plan = (*c.plan).clone();
        plan.instance = durable.instance.clone();
        c.plan = plan.into();
        c.entered.boot.0 = boot.into();
    }
    backstop::state::snapshot::encode(backstop::core::cycle::SCHEMA, 7, &durable).unwrap()
}

#[tokio::test]
async fn state_of_another_instance_is_set_aside_and_never_resumed() {
    // A boot id never travels: in this very boot it was this machine, under another id, and somebody hears.
    for (boot, pages) in [("another machine's", 0), ("boot-1", 1)] {
        let theirs = {
            let other = Fake::new();
            at(&other, StageName::Drain).await.kill();
            foreign(&other, boot)
        };
        let fake = Fake::new();
        fake.files.plant("state.json", &theirs);
        let r = Running::start(&fake).await;
        r.pass(60).await;
        assert_eq!(r.stage(), None, "a fresh node");
        assert!(quarantined(&fake) && fake.in_service(), "{boot}");
        assert_eq!(fake.pages().len(), pages, "{boot}");
    }
}

#[tokio::test]
async fn a_node_without_state_that_has_a_slot_is_latched_paged_and_brought_back() {
    for lost in ["another instance's state", "no state"] {
        let fake = Fake::new();
        let r = at(&fake, StageName::Drain).await;
        r.kill();
        if lost == "no state" {
            fake.files.forget("state.json");
        } else {
            let theirs = foreign(&fake, "another machine's");
            fake.files.plant("state.json", &theirs);
        }
        let r = Running::start(&fake).await;
        r.until("home", 400, |r| r.stage().is_none() && r.fake.in_service()).await;
        let record = fake.record();
        let classes: Vec<_> = record.open_latches().map(|(_, l)| l.class.to_string()).collect();
        assert_eq!(classes, ["state"], "{lost}");
        assert!(record.slots.is_empty(), "{lost}: under the lost cycle's own name its slot is freed");
        assert_eq!(fake.pages().len(), 1, "{lost}");
    }
}

fn read_state(fake: &Fake) -> Vec<u8> {
    use backstop::state::disk::Disk;
    let disk = backstop::state::fault::FaultDisk::new(&fake.files);
    disk.read("state.json").unwrap().unwrap()
}

fn quarantined(fake: &Fake) -> bool {
    use backstop::state::disk::Disk;
    let disk = backstop::state::fault::FaultDisk::new(&fake.files);
    disk.list().unwrap().iter().any(|n| n.contains("quarantine"))
}
