//! Record and members as files of one host (`single_host = true`: rehearsal, tests). `record.json` is changed only by
//! compare-and-set; `members/<instance>.json` by its own agent, and removed by whoever may.
//!
//! Every write holds an advisory lock for one read, one comparison and one durable replace; a process that dies with it
//! frees it by dying. Readers take no lock: a replace is atomic. All calls block, and every wait is bounded.

use crate::bounded::blocking;
use crate::core::error::{Class, Fault};
use crate::ports::{CasFault, FleetStore, Version};
use crate::state::disk::{Disk, LinuxDisk};
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// The record. It is never removed by this program.
pub const RECORD_NAME: &str = "record.json";
/// The directory of the member documents.
pub const MEMBERS_NAME: &str = "members";
const LOCK_NAME: &str = "lock";

/// A record or a member document has at most so many bytes.
pub const DOCUMENT_BYTES_MAX: u64 = 256 * 1024;
/// More member documents than this are not read: something else fills the directory.
pub const MEMBERS_MAX: usize = 1_000;

/// The longest wait for the lock: so many tries, five milliseconds apart on average (two seconds).
const LOCK_TRIES: u64 = 400;
/// Waits between tries, in milliseconds, in turn: unlike for neighbours, so that none is always late.
const LOCK_WAITS_MS: [u64; 5] = [1, 3, 7, 4, 10];

/// The version of a document is its content: no two can be mistaken for one another.
fn version_of(bytes: &[u8]) -> Version {
    Version(bytes.into())
}

/// Why a write was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CasError {
    /// Somebody else changed it, or it is there already, or is gone. Nothing was written.
    #[error("the document is not the one that was read")]
    Conflict,
    /// It could not be tried. Nothing was written.
    #[error("{what}")]
    NotTried {
        /// What failed, for people.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// It was tried. It may be written or not; only a later acknowledged write tells.
    #[error("{what}")]
    Unknown {
        /// What failed, for people.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl CasError {
    fn not_tried(what: impl Into<String>, source: io::Error) -> CasError {
        CasError::NotTried { what: what.into(), source }
    }

    /// For the core; `None` = a conflict, which is an answer and no fault.
    pub fn fault(&self) -> Option<Fault> {
        match self {
            CasError::Conflict => None,
            CasError::NotTried { what, source } => Some(Fault::transport(format!("{what}: {source}"))),
            CasError::Unknown { what, source } => Some(Fault::new(Class::OutcomeUnknown, format!("{what}: {source}"))),
        }
    }
}

/// The store of one fleet on one host.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    record: LinuxDisk,
    members: LinuxDisk,
    lock_tries: u64,
}

impl FileStore {
    /// Opens the store in this directory, which is created where it is missing. Creates no record.
    pub fn open(path: &Path) -> io::Result<FileStore> {
        let record = LinuxDisk::open_shared(path, 0o770, DOCUMENT_BYTES_MAX)?;
        let members = LinuxDisk::open_shared(&path.join(MEMBERS_NAME), 0o770, DOCUMENT_BYTES_MAX)?;
        Ok(FileStore { path: path.to_owned(), record, members, lock_tries: LOCK_TRIES })
    }

    /// The record and its version; `None` = there is none. Never torn. An error is no answer.
    pub fn read(&self) -> io::Result<Option<(Vec<u8>, Version)>> {
        let bytes = self.record.read(RECORD_NAME)?;
        Ok(bytes.map(|b| {
            let version = version_of(&b);
            (b, version)
        }))
    }

    /// Creates the record. `Conflict` = there is one.
    pub fn create(&self, bytes: &[u8]) -> Result<Version, CasError> {
        fits(bytes)?;
        let _lock = self.lock()?;
        match self.record.create(RECORD_NAME, bytes) {
            Ok(true) => Ok(version_of(bytes)),
            Ok(false) => Err(CasError::Conflict),
            Err(source) => Err(CasError::Unknown { what: "creating the fleet record".to_owned(), source }),
        }
    }

    /// Replaces the record if it still is what `expected` was read as. `Ok` = acknowledged: durable, and seen by every
    /// later read.
    pub fn compare_and_set(&self, expected: &Version, bytes: &[u8]) -> Result<Version, CasError> {
        fits(bytes)?;
        let _lock = self.lock()?;
        let present = self.record.read(RECORD_NAME).map_err(|e| CasError::not_tried("reading the fleet record", e))?;
        if present.as_deref() != Some(&*expected.0) {
            return Err(CasError::Conflict);
        }
        match self.record.replace(RECORD_NAME, bytes) {
            Ok(()) => Ok(version_of(bytes)),
            Err(source) => Err(CasError::Unknown { what: "writing the fleet record".to_owned(), source }),
        }
    }

    /// Writes this instance's document.
    pub fn put_member(&self, instance: &str, bytes: &[u8]) -> Result<(), CasError> {
        let name = member_name(instance)?;
        fits(bytes)?;
        let _lock = self.lock()?;
        let written = self.members.replace(&name, bytes);
        written.map_err(|source| CasError::Unknown { what: format!("writing the member {instance}"), source })
    }

    /// One member's document; `None` = there is none.
    pub fn member(&self, instance: &str) -> io::Result<Option<Vec<u8>>> {
        let name = member_name(instance).map_err(io::Error::other)?;
        self.members.read(&name)
    }

    /// All members' documents by instance, sorted. One that cannot be read makes the whole list an error: a part of it
    /// would look like a smaller fleet.
    pub fn members(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut all = Vec::new();
        let names = self.members.list()?;
        // Temp files and whatever else people leave there are no members.
        let instances =
            names.iter().filter_map(|name| name.strip_suffix(".json")).filter(|i| check_instance(i).is_ok());
        for instance in instances {
            if all.len() >= MEMBERS_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, format!("more than {MEMBERS_MAX} members")));
            }
            // One that has been retired since the list was read is gone.
            let bytes = self.member(instance)?;
            all.extend(bytes.map(|b| (instance.to_owned(), b)));
        }
        Ok(all)
    }

    /// Removes a member's document. No such member is no error.
    pub fn delete_member(&self, instance: &str) -> Result<(), CasError> {
        let name = member_name(instance)?;
        let _lock = self.lock()?;
        let removed = self.members.remove(&name);
        removed.map_err(|source| CasError::Unknown { what: format!("removing the member {instance}"), source })
    }

    /// The write lock, freed when dropped. Waits a bounded time.
    fn lock(&self) -> Result<File, CasError> {
        let path = self.path.join(LOCK_NAME);
        let what = || format!("locking {}", path.display());
        let offset = u64::from(std::process::id());
        for try_number in 0..self.lock_tries {
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o660).open(&path);
            let file = opened.map_err(|e| CasError::not_tried(what(), e))?;
            match file.try_lock() {
                // One that was removed and made anew between open and lock locks nothing.
                Ok(()) if same_file(&file, &path) => return Ok(file),
                Ok(()) | Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(e)) => return Err(CasError::not_tried(what(), e)),
            }
            let turn = usize::try_from(offset.wrapping_add(try_number)).unwrap_or(0);
            pause(LOCK_WAITS_MS.get(turn.checked_rem(LOCK_WAITS_MS.len()).unwrap_or(0)).copied().unwrap_or(5));
        }
        Err(CasError::not_tried(what(), io::Error::new(io::ErrorKind::TimedOut, "another process holds it")))
    }
}

/// A call that takes longer has no answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many calls may hang in the file system; further ones have no answer, and are not begun.
const CALLS_MAX: usize = 8;

/// The port over a [`FileStore`]. Its calls block, so each runs on a thread of its own, and is given up after a while. A
/// directory that cannot be had is an answer of each call and not of the start: it may be there later.
#[derive(Clone, Debug)]
pub struct FileFleet(Arc<Calls>);

#[derive(Debug)]
struct Calls {
    path: PathBuf,
    store: Mutex<Option<Arc<FileStore>>>,
    /// Why there will be no store at all.
    never: Option<String>,
    free: Arc<Semaphore>,
    patience: Duration,
}

impl Calls {
    fn opened(&self) -> io::Result<Arc<FileStore>> {
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = &*store {
            return Ok(store.clone());
        }
        let opened = Arc::new(FileStore::open(&self.path)?);
        *store = Some(opened.clone());
        Ok(opened)
    }
}

impl FileFleet {
    /// Clones use the same directory.
    pub fn new(store: FileStore) -> FileFleet {
        FileFleet::made(store.path.clone(), Some(store), None)
    }

    /// Opened at the first call that finds it, and created where it is missing.
    pub fn at(path: &Path) -> FileFleet {
        FileFleet::made(path.to_owned(), None, None)
    }

    /// No store: every call says why. The way back needs none.
    pub fn none(why: String) -> FileFleet {
        FileFleet::made(PathBuf::new(), None, Some(why))
    }

    /// Calls are given up after `patience`.
    #[must_use]
    pub fn patient(self, patience: Duration) -> FileFleet {
        let store = self.0.store.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let free = Arc::new(Semaphore::new(CALLS_MAX));
        let (path, never) = (self.0.path.clone(), self.0.never.clone());
        FileFleet(Arc::new(Calls { path, store: Mutex::new(store), never, free, patience }))
    }

    fn made(path: PathBuf, store: Option<FileStore>, never: Option<String>) -> FileFleet {
        let (store, free) = (Mutex::new(store.map(Arc::new)), Arc::new(Semaphore::new(CALLS_MAX)));
        FileFleet(Arc::new(Calls { path, store, never, free, patience: PATIENCE }))
    }

    /// `late`: what a call is that was begun and has not come back.
    async fn blocking<T: Send + 'static>(
        &self,
        late: Class,
        work: impl FnOnce(&FileStore) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        if let Some(why) = &self.0.never {
            return Err(Fault::transport(why.clone()));
        }
        let what = || format!("the fleet record in {}", self.0.path.display());
        let free = tokio::time::timeout(self.0.patience, self.0.free.clone().acquire_owned());
        let Ok(Ok(free)) = free.await else {
            return Err(Fault::transport(format!("{}: {CALLS_MAX} earlier calls have not come back", what())));
        };
        let calls = self.0.clone();
        let done = blocking(self.0.patience, move || {
            let _until_it_comes_back = free;
            calls.opened().map(|store| work(&store))
        });
        match done.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(e)) => Err(reading(&self.0.path, &e)),
            Err(why) => Err(Fault::new(late, format!("{}: {why}", what()))),
        }
    }
}

fn reading(path: &Path, e: &io::Error) -> Fault {
    Fault::transport(format!("the fleet record in {}: {e}", path.display()))
}

fn cas(e: &CasError) -> CasFault {
    e.fault().map_or(CasFault::Conflict, CasFault::Fault)
}

impl FleetStore for FileFleet {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.blocking(Class::Transport, |s| s.read().map_err(|e| reading(&s.path, &e))).await?
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let expected = expected.clone();
        let done = self.blocking(Class::OutcomeUnknown, move |s| s.compare_and_set(&expected, &bytes)).await;
        done.map_err(CasFault::Fault)?.map_err(|e| cas(&e))
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let done = self.blocking(Class::OutcomeUnknown, move |s| s.create(&bytes)).await;
        done.map_err(CasFault::Fault)?.map_err(|e| cas(&e))
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        let all = self.blocking(Class::Transport, |s| s.members().map_err(|e| reading(&s.path, &e))).await??;
        Ok(all.into_iter().map(|(_, bytes)| bytes).collect())
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        let instance = instance.to_owned();
        let done = self.blocking(Class::OutcomeUnknown, move |s| s.put_member(&instance, &bytes)).await?;
        done.map_err(|e| e.fault().unwrap_or_else(|| Fault::transport(e.to_string())))
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        let instance = instance.to_owned();
        let done = self.blocking(Class::OutcomeUnknown, move |s| s.delete_member(&instance)).await?;
        done.map_err(|e| e.fault().unwrap_or_else(|| Fault::transport(e.to_string())))
    }
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(mine), Ok(named)) => mine.dev() == named.dev() && mine.ino() == named.ino(),
        _ => false,
    }
}

#[expect(clippy::disallowed_methods, reason = "on a thread for blocking work; what is waited for is another process")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn fits(bytes: &[u8]) -> Result<(), CasError> {
    if u64::try_from(bytes.len()).is_ok_and(|n| n <= DOCUMENT_BYTES_MAX) {
        return Ok(());
    }
    let why = format!("{} bytes, at most {DOCUMENT_BYTES_MAX} are stored", bytes.len());
    Err(CasError::not_tried("the document is too large", io::Error::new(io::ErrorKind::InvalidInput, why)))
}

fn member_name(instance: &str) -> Result<String, CasError> {
    check_instance(instance)?;
    Ok(format!("{instance}.json"))
}

/// An instance id that is a file name and nothing else.
fn check_instance(instance: &str) -> Result<(), CasError> {
    if plain_instance(instance) {
        return Ok(());
    }
    let why = io::Error::new(io::ErrorKind::InvalidInput, "only letters, digits, '.', '_' and '-' are allowed");
    Err(CasError::not_tried(format!("{instance:?} is no instance id"), why))
}

/// An instance id that is one name in every store.
pub(super) fn plain_instance(instance: &str) -> bool {
    !instance.is_empty()
        && instance.len() <= 128
        && !instance.starts_with('.')
        && instance.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> (tempfile::TempDir, FileStore) {
        let temp = tempfile::tempdir().unwrap();
        let store = FileStore::open(&temp.path().join("fleet")).unwrap();
        (temp, store)
    }

    #[test]
    fn a_record_is_created_once_and_changed_only_by_who_saw_the_last_one() {
        let (_temp, store) = store();
        assert!(store.read().unwrap().is_none());
        let first = store.create(b"1").unwrap();
        assert!(matches!(store.create(b"other"), Err(CasError::Conflict)));
        let second = store.compare_and_set(&first, b"2").unwrap();
        assert!(matches!(store.compare_and_set(&first, b"3"), Err(CasError::Conflict)));
        assert_eq!(store.read().unwrap(), Some((b"2".to_vec(), second)));
    }

    #[test]
    fn a_record_that_is_gone_is_a_conflict_and_is_not_made_anew() {
        let (temp, store) = store();
        let version = store.create(b"1").unwrap();
        std::fs::remove_file(temp.path().join("fleet").join(RECORD_NAME)).unwrap();
        assert!(matches!(store.compare_and_set(&version, b"2"), Err(CasError::Conflict)));
        assert!(store.read().unwrap().is_none());
    }

    #[test]
    fn members_come_and_go_by_name_and_no_name_leads_elsewhere() {
        let (temp, store) = store();
        store.put_member("i-0b", b"b").unwrap();
        store.put_member("i-0a", b"a").unwrap();
        File::create(temp.path().join("fleet/members/.i-0c.json.tmp")).unwrap();
        File::create(temp.path().join("fleet/members/note")).unwrap();
        assert_eq!(store.members().unwrap(), [("i-0a".into(), b"a".to_vec()), ("i-0b".into(), b"b".to_vec())]);
        store.delete_member("i-0a").unwrap();
        store.delete_member("i-0a").unwrap();
        assert_eq!((store.member("i-0a").unwrap(), store.members().unwrap().len()), (None, 1));
        for bad in ["", "..", "../record", "a/b", ".x", "a b", "ä"] {
            assert!(matches!(store.put_member(bad, b"x"), Err(CasError::NotTried { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_member_that_cannot_be_read_makes_the_fleet_unknown_and_not_smaller() {
        let (temp, store) = store();
        store.put_member("i-0a", b"a").unwrap();
        let large = File::create(temp.path().join("fleet/members/i-0b.json")).unwrap();
        large.set_len(DOCUMENT_BYTES_MAX + 1).unwrap();
        assert!(store.members().is_err());
        assert!(matches!(store.put_member("i-0c", &vec![0; 256 * 1024 + 1]), Err(CasError::NotTried { .. })));
    }

    #[test]
    fn a_full_lock_wait_is_an_error_of_its_own_and_writes_nothing() {
        let (temp, mut store) = store();
        store.lock_tries = 10;
        let version = store.create(b"1").unwrap();
        let holder = File::open(temp.path().join("fleet").join(LOCK_NAME)).unwrap();
        holder.lock().unwrap();
        let refused = store.compare_and_set(&version, b"2").unwrap_err();
        assert_eq!(refused.fault().unwrap().class, Class::Transport);
        drop(holder);
        store.compare_and_set(&version, b"3").unwrap();
    }

    #[test]
    fn a_lock_file_that_was_removed_is_not_what_is_locked() {
        let (temp, store) = store();
        store.create(b"1").unwrap();
        let path = temp.path().join("fleet").join(LOCK_NAME);
        let stale = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(!same_file(&stale, &path));
        let held = store.lock().unwrap();
        assert!(same_file(&held, &path));
    }

    #[tokio::test]
    async fn a_directory_that_is_none_is_a_fault_of_each_call_and_found_once_it_is_there() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("fleet");
        File::create(&path).unwrap();
        let fleet = FileFleet::at(&path);
        assert_eq!(FleetStore::read(&fleet).await.unwrap_err().class, Class::Transport);
        assert!(matches!(FleetStore::create(&fleet, b"1".to_vec()).await, Err(CasFault::Fault(_))));
        std::fs::remove_file(&path).unwrap();
        FleetStore::create(&fleet, b"1".to_vec()).await.unwrap();
        assert!(FleetStore::read(&fleet).await.unwrap().is_some());
        let none = FileFleet::none("nobody knows where".to_owned());
        assert!(FleetStore::members(&none).await.unwrap_err().message.contains("nobody knows where"));
    }

    #[tokio::test]
    async fn calls_that_hang_are_given_up_bounded_in_number_and_a_write_among_them_is_in_doubt() {
        let (temp, mut store) = store();
        store.lock_tries = u64::MAX;
        let version = store.create(b"1").unwrap();
        let fleet = FileFleet::new(store).patient(Duration::from_millis(50));
        let holder = File::open(temp.path().join("fleet").join(LOCK_NAME)).unwrap();
        holder.lock().unwrap();
        for _ in 0..CALLS_MAX {
            let hung = FleetStore::compare_and_set(&fleet, &version, b"2".to_vec()).await;
            let Err(CasFault::Fault(fault)) = hung else { panic!("{hung:?}") };
            assert_eq!(fault.class, Class::OutcomeUnknown, "it may still land: {fault}");
        }
        let refused = FleetStore::read(&fleet).await.unwrap_err();
        assert!(refused.message.contains("earlier calls have not come back"), "{refused}");
        drop(holder);
        let patient = fleet.patient(Duration::from_mins(1));
        while FleetStore::read(&patient).await.unwrap().unwrap().0 != b"2" {}
    }
}
