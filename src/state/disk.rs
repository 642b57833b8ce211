//! Durable files in one directory: whatever `Ok` was said about is there after a power cut.

use super::files::{Files, LinuxFiles, create_dir_durably};
use super::lock::InstanceLock;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// No file of the state is larger than this, in bytes.
pub const STATE_BYTES_MAX: u64 = 64 * 1024;
/// The book of alerts.
pub const ALERTS_NAME: &str = "alerts.json";
/// But the book of alerts may have so many bytes: it has to hold what fires in a whole fleet.
pub const ALERTS_BYTES_MAX: u64 = 2 * 1024 * 1024;
/// The audit journal is rotated at this size, in bytes; one older file is kept.
pub const AUDIT_BYTES_MAX: u64 = 1024 * 1024;
/// Tells apart the temp files of one process.
static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

/// So many unreadable copies of one file are kept. No more are made, and none is thrown away.
pub const QUARANTINED_MAX: u32 = 8;

/// Where the state lives. All calls block; none of them waits for anything but the disk.
pub trait Disk: Send + Sync + 'static {
    /// Puts `bytes` under `name`. `Ok`: they are durable. `Err`: the old or the new bytes are there, whole; which of
    /// the two only a later `read` after a restart tells, since the last step (fsync of the directory) may be what failed.
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// As [`Disk::replace`], and the bytes that were there are kept under `previous`, if that costs nothing.
    fn replace_keeping(&self, name: &str, bytes: &[u8], previous: &str) -> io::Result<()>;
    /// Puts `bytes` under `name` only where nothing is. `Ok(true)`: durable, and ours alone. `Ok(false)`: it was
    /// there already. Whoever else tries at the same time, in whatever process: one gets `true`.
    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool>;
    /// All bytes; `None` = no such file. A file that is too large is an error (`InvalidData`).
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>>;
    /// The first `max_bytes` at most, whatever its size. For the audit journal.
    fn read_up_to(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>>;
    /// Moves a file that cannot be understood out of the way, durably, with the reason beside it; its new path.
    /// `Err`: it is still where it was, and so it stays, also when [`QUARANTINED_MAX`] copies are kept already.
    fn set_aside(&self, name: &str, reason: &str) -> io::Result<PathBuf>;
    /// Adds a line to the audit journal. Not durable; bounded by rotation to `name.1`.
    fn append(&self, name: &str, line: &str) -> io::Result<()>;
    /// Takes a file away, durably. No such file is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// All names, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Space left, in bytes.
    fn free_bytes(&self) -> io::Result<u64>;
    /// One durable write of each kind, read back and taken away again.
    fn probe(&self) -> io::Result<()>;
}

/// [`Disk`] over any [`Files`]: the order of the operations is the same on the real disk and in memory.
#[derive(Debug)]
pub struct DurableDir<F> {
    files: F,
    bytes_max: u64,
    /// Two writers in one process would take each other's temp file away.
    writing: Mutex<()>,
    /// The journal's last line may be torn: true until the first whole line of this process.
    torn: AtomicBool,
    /// What makes this the only process that writes here, or why there is nothing that does; unset = nobody else can.
    lock: OnceLock<Result<InstanceLock, String>>,
    /// Why what is written here does not last; unset = it does.
    fleeting: OnceLock<String>,
}

/// The real thing.
pub type LinuxDisk = DurableDir<LinuxFiles>;

impl<F: Files> DurableDir<F> {
    /// Over an open directory; files may have this many bytes.
    pub fn over(files: F, bytes_max: u64) -> DurableDir<F> {
        DurableDir {
            files,
            bytes_max,
            writing: Mutex::new(()),
            torn: AtomicBool::new(true),
            lock: OnceLock::new(),
            fleeting: OnceLock::new(),
        }
    }

    /// The directory below.
    pub fn files(&self) -> &F {
        &self.files
    }

    /// Keeps the instance lock for as long as this disk is used; `Err`: why there is none. Only the first call counts.
    pub fn hold(&self, lock: Result<InstanceLock, String>) {
        let _ = self.lock.set(lock);
    }

    /// What is written here does not last, for this reason. Only the first call counts.
    pub fn distrust(&self, why: String) {
        let _ = self.fleeting.set(why);
    }

    /// Why nothing that leads away from service may rest on this disk: it is not sound, or another agent may write to it.
    /// The way back goes on: two agents that bring the same node home do each other no harm, and nobody else would.
    ///
    /// A lock file that was removed or replaced is not taken again. Whoever did that may have let another agent in, and
    /// only a restart reads what that one has written.
    pub fn doubt(&self) -> Option<String> {
        match self.lock.get() {
            Some(Err(why)) => return self.files.doubt().or_else(|| Some(why.clone())),
            Some(Ok(lock)) if !lock.still_ours() => {
                let path = lock.path().display();
                let next = "another agent may run on the same state: restart this one";
                return Some(format!("{path} was removed or replaced while it was locked, so that {next}"));
            }
            Some(Ok(_)) | None => {}
        }
        self.files.doubt().or_else(|| self.fleeting.get().cloned())
    }

    fn writing(&self) -> MutexGuard<'_, ()> {
        // Nothing is kept behind this mutex that a panic could leave half done.
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How large a file of this name may be.
    fn most(&self, name: &str) -> u64 {
        if name.trim_start_matches('.').starts_with(ALERTS_NAME) { ALERTS_BYTES_MAX } else { self.bytes_max }
    }

    fn accept(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        check_name(name)?;
        let most = self.most(name);
        if u64::try_from(bytes.len()).is_ok_and(|n| n <= most) {
            return Ok(());
        }
        let why = format!("{name} would have {} bytes, at most {most} are written", bytes.len());
        Err(io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    /// A new file with these bytes on the medium, read back. Nothing is left of it on an error.
    fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.files.remove(name)?;
        let written = self.fill_new(name, bytes);
        if written.is_err() {
            // A leftover is removed before the next write too.
            let _ = self.files.remove(name);
        }
        written
    }

    fn fill_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let mut handle = self.files.create_new(name)?;
        self.write_all(&mut handle, bytes)?;
        // After an error the kernel may have dropped the pages and call the next fsync a success: never tried again.
        self.files.sync(&handle)?;
        drop(handle);
        match self.files.read(name, self.most(name))? {
            Some(back) if back == bytes => Ok(()),
            _ => {
                Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} does not read back as it was written")))
            }
        }
    }

    fn write_all(&self, handle: &mut F::Handle, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.files.write(handle, bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => bytes = bytes.get(n..).unwrap_or(&[]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn replace_inner(&self, name: &str, bytes: &[u8], previous: Option<&str>) -> io::Result<()> {
        self.accept(name, bytes)?;
        let _one_writer = self.writing();
        let temp = format!(".{name}.tmp");
        self.write_new(&temp, bytes)?;
        if let Some(previous) = previous {
            // For forensics only, so whether it works is nobody's condition.
            let _ = self.files.remove(previous);
            let _ = self.files.link(name, previous);
        }
        if let Err(e) = self.files.rename(&temp, name) {
            let _ = self.files.remove(&temp);
            return Err(e);
        }
        self.files.sync_dir()
    }

    /// A second place for the bytes of `name`, by link or, where there are no links, by copy.
    fn keep_as(&self, name: &str, place: &str) -> io::Result<()> {
        match self.files.link(name, place) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(e),
            Err(_) => {
                // Not cut to the limit of a state file: these bytes are evidence.
                let bytes = self.files.read(name, EVIDENCE_BYTES_MAX)?.ok_or(io::ErrorKind::NotFound)?;
                if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > EVIDENCE_BYTES_MAX {
                    return Err(io::ErrorKind::FileTooLarge.into());
                }
                let mut handle = self.files.create_new(place)?;
                let copied = self.write_all(&mut handle, &bytes).and_then(|()| self.files.sync(&handle));
                if copied.is_err() {
                    let _ = self.files.remove(place);
                }
                copied
            }
        }
    }
}

/// Where there are no links: a larger file is left where it is, since a part of it would not be all of it. In bytes.
const EVIDENCE_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl<F: Files> Disk for DurableDir<F> {
    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.replace_inner(name, bytes, None)
    }

    fn replace_keeping(&self, name: &str, bytes: &[u8], previous: &str) -> io::Result<()> {
        check_name(previous)?;
        self.replace_inner(name, bytes, Some(previous))
    }

    fn create(&self, name: &str, bytes: &[u8]) -> io::Result<bool> {
        self.accept(name, bytes)?;
        let _one_writer = self.writing();
        // Others may be creating the same name, in this process or in another one: each has a temp file of its own, and
        // the link decides.
        let temp = format!(".{name}.{}-{}.tmp", std::process::id(), ATTEMPTS.fetch_add(1, Ordering::Relaxed));
        self.write_new(&temp, bytes)?;
        let linked = self.files.link(&temp, name);
        let _ = self.files.remove(&temp);
        match linked {
            Ok(()) => self.files.sync_dir().map(|()| true),
            // The winner may not have come to its own fsync: whoever builds on "it is there" needs it durable too.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => self.files.sync_dir().map(|()| false),
            Err(e) => Err(e),
        }
    }

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        check_name(name)?;
        let most = self.most(name);
        let bytes = self.files.read(name, most)?;
        match bytes {
            Some(b) if u64::try_from(b.len()).unwrap_or(u64::MAX) > most => {
                let why = format!("{name} has more than {most} bytes");
                Err(io::Error::new(io::ErrorKind::InvalidData, why))
            }
            other => Ok(other),
        }
    }

    fn read_up_to(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        check_name(name)?;
        let bytes = self.files.read(name, max_bytes)?;
        Ok(bytes.map(|mut b| {
            b.truncate(usize::try_from(max_bytes).unwrap_or(usize::MAX));
            b
        }))
    }

    fn set_aside(&self, name: &str, reason: &str) -> io::Result<PathBuf> {
        check_name(name)?;
        let _one_writer = self.writing();
        for n in 1..=QUARANTINED_MAX {
            let place = format!("{name}.quarantine-{n}");
            match self.keep_as(name, &place) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e),
            }
            // The copy is durable before the original goes.
            self.files.sync_dir()?;
            self.files.remove(name)?;
            self.files.sync_dir()?;
            let _ = self.write_new(&format!("{place}.reason"), format!("{reason}\n").as_bytes());
            return Ok(self.files.path(&place));
        }
        let why =
            format!("{QUARANTINED_MAX} unreadable copies of {name} are kept already; look at them and remove them");
        Err(io::Error::new(io::ErrorKind::StorageFull, why))
    }

    fn append(&self, name: &str, line: &str) -> io::Result<()> {
        check_name(name)?;
        let _one_writer = self.writing();
        let (mut handle, length) = self.files.open_append(name)?;
        let added = u64::try_from(line.len()).unwrap_or(u64::MAX).saturating_add(1);
        if length > 0 && length.saturating_add(added) > AUDIT_BYTES_MAX {
            self.files.rename(name, &format!("{name}.1"))?;
            (handle, _) = self.files.open_append(name)?;
        }
        // A line that an earlier failure cut off must not swallow this one.
        let lead = if self.torn.swap(true, Ordering::Relaxed) && length > 0 { "\n" } else { "" };
        let line: String = line.chars().map(|c| if c == '\n' || c == '\r' { ' ' } else { c }).collect();
        self.write_all(&mut handle, format!("{lead}{line}\n").as_bytes())?;
        self.torn.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        check_name(name)?;
        let _one_writer = self.writing();
        self.files.remove(name)?;
        self.files.sync_dir()
    }

    fn list(&self) -> io::Result<Vec<String>> {
        self.files.list()
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.files.free_bytes()
    }

    fn probe(&self) -> io::Result<()> {
        const NAME: &str = "probe";
        if let Some(doubt) = self.doubt() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, doubt));
        }
        // Both roads that later writes take: rename and link.
        self.remove(NAME)?;
        if !self.create(NAME, b"probe 1\n")? {
            return Err(io::Error::other("somebody else writes to this directory"));
        }
        self.replace(NAME, b"probe 2\n")?;
        if self.read(NAME)?.as_deref() != Some(b"probe 2\n") {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the probe does not read back"));
        }
        self.remove(NAME)
    }
}

impl LinuxDisk {
    /// The state directory of one agent, created 0700 where it is missing. Never a reason not to start: see
    /// [`DurableDir::doubt`].
    pub fn open(path: &Path) -> LinuxDisk {
        DurableDir::over(LinuxFiles::own(path), STATE_BYTES_MAX)
    }

    /// A directory that several agents of one host share, created with this mode where it is missing.
    pub fn open_shared(path: &Path, mode: u32, bytes_max: u64) -> io::Result<LinuxDisk> {
        create_dir_durably(path, mode)?;
        Ok(DurableDir::over(LinuxFiles::open(path)?, bytes_max))
    }

    /// A directory that must exist. Nothing is created.
    pub fn open_existing(path: &Path, bytes_max: u64) -> io::Result<LinuxDisk> {
        Ok(DurableDir::over(LinuxFiles::open(path)?, bytes_max))
    }

    /// Where the state is in memory: a sentence that says so.
    pub fn in_memory(&self) -> Option<String> {
        let stat = rustix::fs::fstatfs(self.files.dir().ok()?).ok()?;
        let kind = u64::try_from(stat.f_type).unwrap_or_default();
        (kind == TMPFS_MAGIC || kind == RAMFS_MAGIC).then(|| {
            let path = self.files.path("");
            let path = path.display();
            format!("{path} is in memory: the state does not survive a reboot; put it on a disk and restart the agent")
        })
    }

    /// What an administrator should know about where the state lives. Sentences, none of them a reason not to start.
    pub fn warnings(&self) -> Vec<String> {
        let mut said: Vec<String> = self.in_memory().into_iter().collect();
        let path = self.files.path("");
        let path = path.display();
        let Ok(dir) = self.files.dir() else { return said };
        if let Ok(stat) = rustix::fs::fstat(dir)
            && stat.st_mode & 0o005 != 0
        {
            said.push(format!("{path} may be read by everybody; 0700 or 0750 is enough"));
        }
        said
    }
}

/// `TMPFS_MAGIC` of statfs(2).
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// `RAMFS_MAGIC` of statfs(2).
const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// One component, printable, never a way out of the directory.
fn check_name(name: &str) -> io::Result<()> {
    let fine = !name.is_empty()
        && name.len() <= 200
        && name != "."
        && name != ".."
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
    if fine {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is no name for a file of the state")))
}
