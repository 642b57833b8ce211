//! What schema 1 has stored loads for ever: see `tests/fixtures/state/README.md`.

use backstop::core::alert::Sink;
use backstop::core::cycle::{FailureClass, Seen, Stage, StageName};
use backstop::core::effect::Want;
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::finding::Kind;
use backstop::core::ids::InstanceId;
use backstop::core::invariant;
use backstop::core::member::Member;
use backstop::core::plan::Kind as CycleKind;
use backstop::core::record::Record;
use backstop::core::time::{BootId, Now};
use backstop::core::want::want;
use backstop::fleet::Fleet;
use backstop::fleet::file::{FileFleet, FileStore};
use backstop::state::disk::{ALERTS_NAME, Disk};
use backstop::state::fault::{FaultDisk, FaultFiles};
use backstop::state::journal::{Found, Journal, STATE_NAME};
use backstop::state::ledger::{FoundBook, Ledger};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const INSTANCE: &str = "i-0123456789abcdef0";

fn fixtures(below: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(below)
}

/// The agent's own way to its state, over such a file.
fn opened(name: &str) -> Journal<FaultDisk> {
    let disk = Arc::new(FaultDisk::new(&FaultFiles::default()));
    let bytes = std::fs::read(fixtures("state/v1").join(format!("{name}.json"))).unwrap();
    disk.replace(STATE_NAME, &bytes).unwrap();
    let (journal, found) = Journal::open(&disk, &InstanceId(INSTANCE.into()));
    assert!(matches!(found, Found::Resumed), "{name}: {found:?}");
    journal
}

#[test]
fn a_state_of_each_stage_is_resumed() {
    for stage in StageName::ALL {
        let journal = opened(stage.label());
        let d = journal.now();
        assert_eq!(d.stage(), Some(stage));
        assert_eq!(invariant::durable(d), Ok(()), "{stage}");
        let c = d.cycle.as_ref().unwrap();
        assert_eq!(
            (c.plan.id.as_str(), c.plan.instance.as_str(), c.plan.targets.len()),
            ("c-0a1b2c3d4e5f", INSTANCE, 2)
        );
        assert_eq!((c.plan.limits.check_ms, c.plan.rules.minimum_during_patch, c.plan.check.passes), (900_000, 2, 3));
        assert_eq!(c.plan.overrides[0].0.as_ref(), "rate");
        assert_eq!(c.out_since.is_some(), stage != StageName::Claim, "{stage}");
        assert_eq!(d.last.as_ref().unwrap().exit, Exit::FailedBack);
        assert_eq!(d.reboots_ms, [1_789_999_000_000]);
        // The same boot, shortly after: it goes on where it was.
        let now = Now {
            boot: c.entered.boot.clone(),
            wall_ms: c.entered.wall_ms + 1,
            since_boot_ms: c.entered.since_boot_ms + 1,
        };
        assert_ne!(want(d, &Seen::default(), &now), Want::Idle, "{stage}");
    }
}

#[test]
fn an_idle_state_is_resumed() {
    let journal = opened("idle");
    assert_eq!((journal.now().stage(), journal.now().last.as_ref().unwrap().out_ms), (None, 61_000));
}

#[test]
fn what_only_some_stages_store_is_read() {
    let of = |stage: StageName| opened(stage.label()).now().clone();
    let cycle = |stage: StageName| of(stage).cycle.unwrap();

    assert_eq!(cycle(StageName::Claim).stage, Stage::Claim { acked: true });
    let boot = BootId("3f0e6a52-6a0e-4f0e-9a53-0d2a4a5b6c7d".into());
    assert_eq!(cycle(StageName::Reboot).stage, Stage::Reboot { from: boot, asked: 1 });
    let held = cycle(StageName::Held);
    assert!(matches!((&held.stage, &held.plan.kind), (Stage::Held { until }, CycleKind::Hold(h))
        if until.budget_ms() == 14_400_000 && h.order.by.as_ref() == "ann"));

    let check = cycle(StageName::Check);
    let failure = check.failure.as_ref().unwrap();
    assert_eq!((failure.stage, failure.class), (StageName::Patch, FailureClass::Call(Class::Transport)));
    assert!(check.kill_job && check.kill_paged && check.hold.is_some());
    let page = &of(StageName::Check).pages[0];
    assert_eq!((page.stage, page.latch.as_ref().unwrap().as_str()), (Some(StageName::Patch), "L-0a1b2c3d4e5f"));

    let register = cycle(StageName::Register);
    assert!(matches!(register.plan.kind, CycleKind::Return) && register.deadline.fired() && register.bounced);
    assert!(register.refused_paged && register.late == Some(StageName::Register) && register.skip_check.is_some());
    assert_eq!(cycle(StageName::Settle).failure.unwrap().class, FailureClass::State);
    assert_eq!(cycle(StageName::Release).early.unwrap().exit, Exit::EndedEarly);
    assert!(cycle(StageName::Release).verdict.unwrap().good());
}

/// The way back of each stage that was stored failing asks for the latch first, as the version that stored it would have.
#[test]
fn a_failing_state_goes_on_with_its_latch() {
    for stage in [StageName::Check, StageName::Settle] {
        let journal = opened(stage.label());
        let entered = journal.now().cycle.as_ref().unwrap().entered.clone();
        let wanted = want(journal.now(), &Seen::default(), &entered);
        assert!(matches!(&wanted, Want::Do(effect) if effect.label() == "set-latch"), "{stage}: {wanted:?}");
    }
}

#[tokio::test]
async fn a_record_and_a_member_document_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = FileStore::open(dir.path()).unwrap();
    let read = |name: &str| std::fs::read(fixtures("record").join(name)).unwrap();
    store.create(&read("v1.json")).unwrap();
    store.put_member(INSTANCE, &read("member-v1.json")).unwrap();
    let fleet = Fleet::new(FileFleet::new(store), "search".into());

    let record: Record = fleet.read().await.unwrap();
    assert_eq!((record.counter, record.finished.len(), record.retired.len()), (41, 1, 1));
    assert_eq!(record.slots[&InstanceId(INSTANCE.into())].cycle.as_str(), "c-0a1b2c3d4e5f");
    assert_eq!((record.open_latches().count(), record.latches.len()), (1, 2), "one is a tombstone");
    assert_eq!(record.leavers().len(), 2, "a slot and a hold");
    assert!(record.pause.is_some() && record.hold_all.is_some());

    let members: Vec<Member> = fleet.members().await.unwrap();
    assert_eq!((members[0].targets.len(), members[0].beat), (2, 77));
    assert!(members[0].extra.is_empty() && record.extra.is_empty(), "every field has its place");
}

/// What was told stays told, what was owed stays owed.
#[test]
fn a_book_of_alerts_is_read_and_goes_on_where_it_was() {
    let disk = Arc::new(FaultDisk::new(&FaultFiles::default()));
    disk.replace(ALERTS_NAME, &std::fs::read(fixtures("alerts/v1.json")).unwrap()).unwrap();
    let (_, found) = Ledger::open(&disk, &InstanceId(INSTANCE.into()));
    let FoundBook::Kept(mut book) = found else { panic!("{found:?}") };
    let about = |kind, subject: &str| (kind, Arc::<str>::from(subject));
    let latched = book.get(&about(Kind::Latched, "es-client-1")).unwrap().clone();
    assert_eq!(latched.page.as_ref().unwrap().latch.as_ref().unwrap().as_str(), "L-0a1b2c3d4e5f");
    assert!(latched.heard() && latched.sent["alertmanager"].refused && latched.sent["webhook"].fault.is_some());
    assert_eq!(book.folded_into(&about(Kind::BelowFloor, "search")).count(), 9);
    assert!(book.get(&about(Kind::ForeignTarget, "es-clients i-0fff:9200")).is_none_or(|a| !a.fires()));

    // After an hour, in another boot: who has the page does not get it again, and who lacks it does.
    let now = Now { wall_ms: 1_700_100_000_000, boot: BootId("another".into()), since_boot_ms: 5_000 };
    let sink = |name: &str, dedups| Sink { name: name.into(), dedups, renew_ms: None };
    book.started(&now);
    book.sinks(vec![sink("pagerduty", true), sink("webhook", false), sink("alertmanager", true)]);
    book.tick(&now);
    let owed: Vec<_> = book.due(&now).into_iter().filter(|d| d.about.0 == Kind::Latched).collect();
    assert!(owed.iter().any(|d| &*d.sink == "webhook"), "{owed:?}");
    assert!(owed.iter().all(|d| &*d.sink != "pagerduty"), "{owed:?}");
}
