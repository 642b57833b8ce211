//! One body for the real directory and the one in memory, then failures and power cuts at every operation.

use crate::processes::start_holder;
use backstop::state::audit::Audit;
use backstop::state::disk::{AUDIT_BYTES_MAX, Disk, LinuxDisk, QUARANTINED_MAX, STATE_BYTES_MAX};
use backstop::state::fault::{FaultDisk, FaultFiles, Survival, Trouble};
use backstop::state::lock::{InstanceLock, LockError};
use backstop::state::snapshot::{Loaded, SaveError, SnapshotFile, encode};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "state.json";
/// For what takes no time on a machine that is not busy.
const PATIENCE: Duration = Duration::from_mins(1);

fn conforms<D: Disk>(disk: &D) {
    assert_eq!(disk.read(NAME).unwrap(), None);
    disk.replace(NAME, b"one").unwrap();
    disk.replace_keeping(NAME, b"two", "state.json.prev").unwrap();
    disk.replace_keeping(NAME, b"three", "state.json.prev").unwrap();
    assert_eq!(disk.read(NAME).unwrap().unwrap(), b"three");
    assert_eq!(disk.read("state.json.prev").unwrap().unwrap(), b"two");
    let names: Vec<String> = disk.list().unwrap().into_iter().filter(|n| n != "lock").collect();
    assert_eq!(names, [NAME, "state.json.prev"], "no temp file is left");

    assert!(disk.create("once", b"first").unwrap());
    assert!(!disk.create("once", b"second").unwrap());
    assert_eq!(disk.read("once").unwrap().unwrap(), b"first");
    disk.remove("once").unwrap();
    disk.remove("once").unwrap();

    let most = usize::try_from(STATE_BYTES_MAX).unwrap();
    disk.replace(NAME, &vec![b'x'; most]).unwrap();
    assert_eq!(disk.replace(NAME, &vec![b'x'; most + 1]).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(disk.read(NAME).unwrap().unwrap().len(), most);
    assert_eq!(disk.read_up_to(NAME, 10).unwrap().unwrap().len(), 10);
    for bad in ["", ".", "..", "a/b", "/etc/x", "a\0b"] {
        assert_eq!(disk.replace(bad, b"x").unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
    }

    for n in 1..=QUARANTINED_MAX {
        disk.replace(NAME, n.to_string().as_bytes()).unwrap();
        let place = disk.set_aside(NAME, "test").unwrap();
        assert!(place.ends_with(format!("{NAME}.quarantine-{n}")), "{}", place.display());
        assert_eq!(disk.read(NAME).unwrap(), None);
    }
    disk.replace(NAME, b"one too many").unwrap();
    assert!(disk.set_aside(NAME, "test").is_err());
    assert_eq!(disk.read(NAME).unwrap().unwrap(), b"one too many", "it stays where it is");
    assert_eq!(disk.read("state.json.quarantine-1").unwrap().unwrap(), b"1", "and the oldest is kept");
    assert_eq!(disk.read("state.json.quarantine-1.reason").unwrap().unwrap(), b"test\n");

    let line = "x".repeat(1_000);
    for _ in 0..2_500 {
        disk.append("audit.jsonl", &line).unwrap();
    }
    disk.append("audit.jsonl", "a line\nin two").unwrap();
    for name in ["audit.jsonl", "audit.jsonl.1"] {
        let bytes = disk.read_up_to(name, 4 * AUDIT_BYTES_MAX).unwrap().unwrap();
        assert!(
            u64::try_from(bytes.len()).unwrap() <= AUDIT_BYTES_MAX && bytes.len() > 1_000,
            "{name} {}",
            bytes.len()
        );
        let last = if name == "audit.jsonl" { "a line in two\n" } else { "x\n" };
        assert!(bytes.ends_with(last.as_bytes()));
    }
    assert!(disk.free_bytes().unwrap() > 0);
    disk.probe().unwrap();
    assert_eq!(disk.read("probe").unwrap(), None);
}

#[test]
fn a_real_directory_does_what_a_disk_promises() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("a/b");
    let disk = LinuxDisk::open(&dir);
    disk.hold(Ok(InstanceLock::acquire(&dir).unwrap()));
    conforms(&disk);
}

#[test]
fn the_directory_in_memory_does_what_a_disk_promises() {
    conforms(&FaultDisk::new(&FaultFiles::default()));
}

fn snapshots(files: &FaultFiles) -> SnapshotFile<FaultDisk> {
    SnapshotFile::new(Arc::new(FaultDisk::new(files)), NAME, 1)
}

fn generation(loaded: &Loaded<String>) -> u64 {
    match loaded {
        Loaded::Good { generation, body } => {
            assert_eq!(*body, format!("state {generation}"), "content and generation belong together");
            *generation
        }
        other => panic!("{other:?}"),
    }
}

/// Memory with generation 1 and 2 saved, and how many operations a save takes.
fn two_saved() -> (FaultFiles, u64) {
    let files = FaultFiles::default();
    let file = snapshots(&files);
    file.save(1, &"state 1".to_owned()).unwrap();
    let before = files.operations();
    file.save(2, &"state 2".to_owned()).unwrap();
    let operations = files.operations() - before;
    (files, operations)
}

#[test]
fn a_power_cut_at_any_operation_leaves_the_old_state_or_the_new_one_and_never_takes_back_a_yes() {
    let (_, operations) = two_saved();
    assert!(operations >= 7, "the walk would be too short: {operations}");
    for survival in Survival::ALL {
        for at in 0..=operations {
            let (files, _) = two_saved();
            files.trouble_at(files.operations() + at, Trouble::PowerCut);
            let saved = snapshots(&files).save(3, &"state 3".to_owned());
            assert_eq!(saved.is_ok(), at == operations, "{survival:?} at {at}");
            files.power_on(survival);
            let found = generation(&snapshots(&files).load());
            assert!(found == 3 || (saved.is_err() && found == 2), "{survival:?} at {at}: {found}");
            // What a cut leaves behind never stands in the way of the next save.
            snapshots(&files).save(4, &"state 4".to_owned()).unwrap();
            assert_eq!(generation(&snapshots(&files).load()), 4);
        }
    }
}

#[test]
fn a_power_cut_at_the_first_save_of_all_is_a_fresh_directory_or_the_state() {
    for survival in Survival::ALL {
        for at in 0..12 {
            let files = FaultFiles::default();
            files.trouble_at(at, Trouble::PowerCut);
            let saved = snapshots(&files).save(1, &"state 1".to_owned());
            files.power_on(survival);
            let loaded = snapshots(&files).load::<String>();
            assert!(loaded == Loaded::Missing && saved.is_err() || generation(&loaded) == 1, "{survival:?} at {at}");
        }
    }
}

#[test]
fn any_single_error_during_a_save_leaves_a_whole_state_and_the_next_save_works() {
    let (_, operations) = two_saved();
    for trouble in [Trouble::Full, Trouble::ReadOnly, Trouble::Broken, Trouble::ShortWrite] {
        for at in 0..operations {
            let (files, _) = two_saved();
            files.trouble_at(files.operations() + at, trouble);
            let saved = snapshots(&files).save(3, &"state 3".to_owned());
            let found = generation(&snapshots(&files).load());
            assert!(found == 3 || (saved.is_err() && found == 2), "{trouble:?} at {at}: {found} after {saved:?}");
            assert!(trouble != Trouble::ShortWrite || saved.is_ok(), "a short write is gone on with");
            snapshots(&files).save(4, &"state 4".to_owned()).unwrap();
            files.power_on(Survival::Nothing);
            assert_eq!(generation(&snapshots(&files).load()), 4, "{trouble:?} at {at}");
        }
    }
}

#[test]
fn a_disk_that_stays_full_or_read_only_keeps_the_last_state_readable() {
    for trouble in [Trouble::Full, Trouble::ReadOnly] {
        let (files, _) = two_saved();
        files.trouble_always(Some(trouble));
        let file = snapshots(&files);
        for _ in 0..3 {
            assert!(matches!(file.save(3, &"state 3".to_owned()), Err(SaveError::Disk(_))));
            assert_eq!(generation(&file.load()), 2);
        }
        assert!(FaultDisk::new(&files).probe().is_err(), "the probe sees it before anything leaves");
        files.trouble_always(None);
        file.save(3, &"state 3".to_owned()).unwrap();
        assert_eq!(generation(&file.load()), 3);
    }
}

#[test]
fn a_disk_that_cannot_be_read_is_never_a_fresh_one() {
    let (files, _) = two_saved();
    files.trouble_always(Some(Trouble::Broken));
    assert!(matches!(snapshots(&files).load::<String>(), Loaded::Unreadable { .. }));
    let empty = FaultFiles::default();
    empty.trouble_always(Some(Trouble::Broken));
    assert!(matches!(snapshots(&empty).load::<String>(), Loaded::Unreadable { .. }));
}

#[test]
fn a_temp_file_and_the_previous_copy_are_never_promoted() {
    let good = encode(1, 9, &"state 9").unwrap();
    for (name, bytes) in [(NAME, &b""[..]), (NAME, &[0; 512][..]), (NAME, &good[..good.len() - 1])] {
        let files = FaultFiles::default();
        files.plant(name, bytes);
        files.plant(".state.json.tmp", &good);
        files.plant("state.json.prev", &good);
        assert!(matches!(snapshots(&files).load::<String>(), Loaded::Unreadable { .. }));
    }
    let files = FaultFiles::default();
    files.plant(".state.json.tmp", &good);
    assert_eq!(snapshots(&files).load::<String>(), Loaded::Missing, "a first save that was never acknowledged");
    files.plant("state.json.prev", &good);
    assert!(matches!(snapshots(&files).load::<String>(), Loaded::Unreadable { .. }), "there was a state once");
}

#[test]
fn bytes_that_are_set_aside_survive_a_power_cut_at_any_operation() {
    for survival in Survival::ALL {
        for at in 0..12 {
            let files = FaultFiles::default();
            files.plant(NAME, b"rubbish");
            files.trouble_at(at, Trouble::PowerCut);
            let _ = snapshots(&files).set_aside("rubbish");
            files.power_on(survival);
            let disk = FaultDisk::new(&files);
            let kept = [NAME, "state.json.quarantine-1"].map(|name| disk.read(name).unwrap());
            assert!(kept.iter().flatten().any(|bytes| bytes == b"rubbish"), "{survival:?} at {at}");
            let again = snapshots(&files).load::<String>();
            assert!(
                matches!(again, Loaded::Unreadable { .. }),
                "what was set aside leaves no fresh directory: {again:?}"
            );
        }
    }
}

#[test]
fn of_two_that_create_the_same_name_one_wins_and_a_power_cut_does_not_undo_what_the_other_built_on() {
    let (probe, most) = (FaultFiles::default(), 12);
    FaultDisk::new(&probe).create("started", b"a").unwrap();
    assert!(probe.operations() <= most);
    for at in 0..most {
        let files = FaultFiles::default();
        files.trouble_at(at, Trouble::Broken);
        let first = FaultDisk::new(&files).create("started", b"a");
        files.trouble_at(u64::MAX, Trouble::Broken);
        let second = FaultDisk::new(&files).create("started", b"b").unwrap();
        files.power_on(Survival::Nothing);
        let found = FaultDisk::new(&files).read("started").unwrap().unwrap();
        assert_eq!(found, if second { b"b" } else { b"a" }, "at {at}");
        assert!(!second || first.is_err(), "at {at}: both won");
    }
}

#[test]
fn audit_lines_that_the_disk_does_not_take_are_counted_and_hide_no_other() {
    let files = FaultFiles::default();
    let audit = Audit::new(Arc::new(FaultDisk::new(&files)));
    audit.record(&"one");
    assert!(audit.flush(PATIENCE));
    files.trouble_at(files.operations() + 1, Trouble::PowerCut);
    audit.record(&"torn");
    assert!(audit.flush(PATIENCE));
    files.power_on(Survival::Everything);
    audit.record(&"two");
    audit.record(&"x".repeat(100_000));
    assert!(audit.flush(PATIENCE));
    assert_eq!(audit.lost(), 1);
    let entries = audit.entries();
    assert_eq!((&entries[0], &entries[1]), (&"one".into(), &"two".into()), "{entries:?}");
    assert_eq!(entries[2]["bytes"], 100_002);
}

/// Bytes that root or another user could have put there.
fn give_away(path: &Path) -> bool {
    std::os::unix::fs::chown(path, Some(65_534), None).is_ok()
}

#[test]
fn a_directory_that_others_may_write_to_starts_nothing_and_only_own_files_in_it_are_believed() {
    let temp = tempfile::tempdir().unwrap();
    let mode = |mode| std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    let disk = LinuxDisk::open(temp.path());
    disk.hold(Ok(InstanceLock::acquire(temp.path()).unwrap()));
    disk.replace(NAME, b"own").unwrap();
    for open_to_others in [0o777, 0o770] {
        mode(open_to_others);
        let doubt = disk.doubt().expect("others may write");
        assert!(doubt.contains("written to by others") && doubt.contains("chmod"), "{doubt}");
        assert!(disk.probe().unwrap_err().to_string().contains("written to by others"));
        assert_eq!(disk.read(NAME).unwrap().as_deref(), Some(&b"own"[..]), "the way back reads its own state");
    }
    std::fs::set_permissions(temp.path().join(NAME), std::fs::Permissions::from_mode(0o620)).unwrap();
    assert!(disk.read(NAME).unwrap_err().to_string().contains("not this agent's own"));
    std::fs::set_permissions(temp.path().join(NAME), std::fs::Permissions::from_mode(0o600)).unwrap();
    if give_away(&temp.path().join(NAME)) {
        assert!(disk.read(NAME).unwrap_err().to_string().contains("not this agent's own"));
    }
    mode(0o755);
    assert_eq!(disk.doubt(), None);
    disk.probe().unwrap();
    assert!(disk.warnings().iter().any(|w| w.contains("everybody")));
    mode(0o700);
    assert!(!disk.warnings().iter().any(|w| w.contains("everybody")));
    if give_away(temp.path()) {
        assert!(disk.doubt().expect("its owner may write").contains("belongs to user 65534"));
    }
}

#[test]
fn a_state_directory_that_cannot_be_had_is_told_by_every_operation_and_never_fresh_where_it_is_something_else() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    std::fs::File::create(&file).unwrap();
    for path in [file.clone(), file.join("below")] {
        let disk = Arc::new(LinuxDisk::open(&path));
        assert!(disk.doubt().expect("it cannot be used").contains("restart"), "{:?}", disk.doubt());
        assert!(disk.probe().is_err() && disk.replace(NAME, b"x").is_err() && disk.list().is_err());
        assert!(matches!(SnapshotFile::new(disk, NAME, 1).load::<String>(), Loaded::Unreadable { .. }));
    }
    let disk = Arc::new(LinuxDisk::open(Path::new("/proc/backstop/state")));
    assert!(disk.doubt().is_some() && disk.replace(NAME, b"x").is_err());
    assert_eq!(
        SnapshotFile::new(disk, NAME, 1).load::<String>(),
        Loaded::Missing,
        "where there is no directory there never was a state; the fleet record says whether that can be"
    );
}

#[test]
fn a_state_directory_in_memory_is_warned_about_and_takes_no_cycle_once_it_is_distrusted() {
    let Ok(temp) = tempfile::tempdir_in("/dev/shm") else { return };
    let disk = LinuxDisk::open(temp.path());
    let warnings = disk.warnings();
    assert!(warnings.iter().any(|w| w.contains("does not survive a reboot")), "{warnings:?}");
    assert_eq!(disk.doubt(), None, "a rehearsal's machines forget nothing");
    disk.distrust(disk.in_memory().expect("it is in memory"));
    assert!(disk.doubt().expect("it does not last").contains("does not survive a reboot"));
    assert!(disk.probe().unwrap_err().to_string().contains("does not survive a reboot"), "guard state-durable");
    disk.replace(NAME, b"the way back is written down as ever").unwrap();
}

#[test]
fn a_state_file_that_is_a_link_or_a_pipe_is_not_followed_and_does_not_block() {
    let temp = tempfile::tempdir().unwrap();
    let disk = LinuxDisk::open(temp.path());
    std::os::unix::fs::symlink("/etc/hostname", temp.path().join(NAME)).unwrap();
    assert!(disk.read(NAME).is_err());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        temp.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    assert!(disk.read("pipe").is_err());
    disk.replace(NAME, b"own").unwrap();
    assert_eq!(disk.read(NAME).unwrap().unwrap(), b"own", "the link is replaced, not followed");
}

#[test]
fn a_second_agent_is_told_who_holds_the_state_directory() {
    let temp = tempfile::tempdir().unwrap();
    let (mut child, _lines) = start_holder("instance-lock", temp.path());
    match InstanceLock::acquire(temp.path()) {
        Err(LockError::Held { holder, .. }) => assert_eq!(holder, format!("process {}", child.id())),
        other => panic!("{other:?}"),
    }
    child.kill().unwrap();
    child.wait().unwrap();
    InstanceLock::acquire(temp.path()).expect("the kernel frees the lock of a killed process");
}

#[test]
fn a_lock_file_that_a_cleaner_removed_is_noticed() {
    let temp = tempfile::tempdir().unwrap();
    let lock = InstanceLock::acquire(temp.path()).unwrap();
    assert!(lock.still_ours());
    std::fs::remove_file(temp.path().join("lock")).unwrap();
    assert!(!lock.still_ours());
    let second = InstanceLock::acquire(temp.path()).unwrap();
    assert!(second.still_ours() && !lock.still_ours());
}
