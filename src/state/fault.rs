//! The directory in memory, with failures on demand: an error at the k-th operation or from now on, short writes,
//! operations that hang, and power cuts that keep or lose what was not synced. For tests, and kept honest by running the same body on the real disk.

use super::disk::{DurableDir, STATE_BYTES_MAX};
use super::files::Files;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// [`super::disk::Disk`] over [`FaultFiles`].
pub type FaultDisk = DurableDir<FaultFiles>;

impl FaultDisk {
    /// Over this memory, which outlives the "process" that uses it.
    pub fn new(files: &FaultFiles) -> FaultDisk {
        DurableDir::over(files.clone(), STATE_BYTES_MAX)
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// ENOSPC for whatever needs space.
    Full,
    /// EROFS for whatever writes.
    ReadOnly,
    /// EIO for everything, reads too.
    Broken,
    /// The write takes half of the bytes, without an error.
    ShortWrite,
    /// The machine stops right before this operation (a write: in the middle of it). Nothing works until
    /// [`FaultFiles::power_on`].
    PowerCut,
}

/// What a power cut leaves of what was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Nothing: neither content nor names.
    Nothing,
    /// Everything.
    Everything,
    /// The names, but files without content (the zero-length file after a rename without fsync).
    NamesOnly,
    /// The names, and half of the content.
    NamesAndHalf,
}

impl Survival {
    /// All of them, for loops.
    pub const ALL: [Survival; 4] =
        [Survival::Nothing, Survival::Everything, Survival::NamesOnly, Survival::NamesAndHalf];
}

#[derive(Clone, Debug, Default)]
struct Inode {
    live: Vec<u8>,
    synced: Vec<u8>,
}

#[derive(Debug, Default)]
struct Memory {
    inodes: BTreeMap<u64, Inode>,
    names: BTreeMap<String, u64>,
    synced_names: BTreeMap<String, u64>,
    next_inode: u64,
    operations: u64,
    once: Option<(u64, Trouble)>,
    always: Option<Trouble>,
    off: bool,
}

/// A directory in memory. Clones are the same directory.
#[derive(Clone, Debug, Default)]
pub struct FaultFiles {
    memory: Arc<Mutex<Memory>>,
    gate: Arc<Gate>,
}

/// While it is shut every operation waits in front of it, as on a network file system whose server is gone.
#[derive(Debug, Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
}

/// An open file in memory.
#[derive(Debug)]
pub struct FaultHandle(u64);

/// What an operation needs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    Space,
    Writing,
    Reading,
}

impl FaultFiles {
    /// Operations so far; the next one has this number.
    pub fn operations(&self) -> u64 {
        self.memory().operations
    }

    /// Trouble at operation number `at`, once.
    pub fn trouble_at(&self, at: u64, trouble: Trouble) {
        self.memory().once = Some((at, trouble));
    }

    /// Trouble from now on, or no longer.
    pub fn trouble_always(&self, trouble: Option<Trouble>) {
        self.memory().always = trouble;
    }

    /// Every operation hangs from now on, or goes on where it was. Those that wait are not told apart.
    pub fn hang(&self, shut: bool) {
        *self.gate.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.gate.opened.notify_all();
    }

    /// Puts bytes there, synced, behind everybody's back.
    pub fn plant(&self, name: &str, bytes: &[u8]) {
        let mut m = self.memory();
        let id = m.new_inode();
        m.inodes.insert(id, Inode { live: bytes.to_vec(), synced: bytes.to_vec() });
        m.names.insert(name.to_owned(), id);
        m.synced_names.insert(name.to_owned(), id);
    }

    /// Takes a file and every trace of it away, behind everybody's back.
    pub fn forget(&self, name: &str) {
        let mut m = self.memory();
        m.names.retain(|n, _| !n.starts_with(name));
        m.synced_names.retain(|n, _| !n.starts_with(name));
    }

    /// The machine stops now, or has stopped, and starts again; this is left of what was not synced. Troubles end.
    pub fn power_on(&self, survival: Survival) {
        let mut m = self.memory();
        if survival == Survival::Nothing {
            m.names = m.synced_names.clone();
        }
        for inode in m.inodes.values_mut().filter(|i| i.live != i.synced) {
            match survival {
                Survival::Everything => {}
                Survival::Nothing => inode.live.clone_from(&inode.synced),
                Survival::NamesOnly => inode.live.clear(),
                Survival::NamesAndHalf => inode.live.truncate(inode.live.len() / 2),
            }
        }
        for inode in m.inodes.values_mut() {
            inode.synced.clone_from(&inode.live);
        }
        m.synced_names = m.names.clone();
        (m.once, m.always, m.off) = (None, None, false);
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As `memory`, for operations: waits while they hang.
    fn operate(&self) -> MutexGuard<'_, Memory> {
        let shut = self.gate.shut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.gate.opened.wait_while(shut, |shut| *shut));
        self.memory()
    }
}

impl Memory {
    fn new_inode(&mut self) -> u64 {
        self.next_inode = self.next_inode.saturating_add(1);
        self.next_inode
    }

    /// Counts the operation, and says what goes wrong with it.
    fn begin(&mut self, need: Need) -> io::Result<Option<Trouble>> {
        let number = self.operations;
        self.operations = number.saturating_add(1);
        if self.off {
            return Err(Errno::IO.into());
        }
        let once = self.once.filter(|(at, _)| *at == number).map(|(_, trouble)| trouble);
        match once.or(self.always) {
            Some(Trouble::Broken) => Err(Errno::IO.into()),
            Some(Trouble::Full) if need == Need::Space => Err(Errno::NOSPC.into()),
            Some(Trouble::ReadOnly) if need != Need::Reading => Err(Errno::ROFS.into()),
            Some(Trouble::PowerCut) => {
                self.off = true;
                Ok(Some(Trouble::PowerCut))
            }
            Some(Trouble::ShortWrite) => Ok(Some(Trouble::ShortWrite)),
            Some(Trouble::Full | Trouble::ReadOnly) | None => Ok(None),
        }
    }

    /// As `begin`, for operations that a power cut does not leave half done.
    fn begin_whole(&mut self, need: Need) -> io::Result<()> {
        match self.begin(need)? {
            Some(Trouble::PowerCut) => Err(Errno::IO.into()),
            _ => Ok(()),
        }
    }
}

impl Files for FaultFiles {
    type Handle = FaultHandle;

    fn create_new(&self, name: &str) -> io::Result<FaultHandle> {
        let mut m = self.operate();
        m.begin_whole(Need::Space)?;
        if m.names.contains_key(name) {
            return Err(Errno::EXIST.into());
        }
        let id = m.new_inode();
        m.inodes.insert(id, Inode::default());
        m.names.insert(name.to_owned(), id);
        Ok(FaultHandle(id))
    }

    fn open_append(&self, name: &str) -> io::Result<(FaultHandle, u64)> {
        let found = self.operate().names.get(name).copied();
        let Some(id) = found else { return self.create_new(name).map(|h| (h, 0)) };
        let mut m = self.operate();
        m.begin_whole(Need::Writing)?;
        let length = m.inodes.get(&id).map_or(0, |i| i.live.len());
        Ok((FaultHandle(id), u64::try_from(length).unwrap_or(u64::MAX)))
    }

    fn write(&self, handle: &mut FaultHandle, bytes: &[u8]) -> io::Result<usize> {
        let mut m = self.operate();
        let trouble = m.begin(Need::Space)?;
        let half = bytes.len().div_ceil(2);
        let taken = if trouble.is_some() { half } else { bytes.len() };
        if let Some(inode) = m.inodes.get_mut(&handle.0) {
            inode.live.extend(bytes.iter().take(taken));
        }
        if trouble == Some(Trouble::PowerCut) { Err(Errno::IO.into()) } else { Ok(taken) }
    }

    fn sync(&self, handle: &FaultHandle) -> io::Result<()> {
        let mut m = self.operate();
        m.begin_whole(Need::Space)?;
        if let Some(inode) = m.inodes.get_mut(&handle.0) {
            inode.synced.clone_from(&inode.live);
        }
        Ok(())
    }

    fn read(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let mut m = self.operate();
        m.begin_whole(Need::Reading)?;
        let most = usize::try_from(max_bytes.saturating_add(1)).unwrap_or(usize::MAX);
        let inode = m.names.get(name).and_then(|id| m.inodes.get(id));
        Ok(inode.map(|i| i.live.iter().copied().take(most).collect()))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut m = self.operate();
        m.begin_whole(Need::Writing)?;
        let id = m.names.remove(from).ok_or(Errno::NOENT)?;
        m.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        let mut m = self.operate();
        m.begin_whole(Need::Writing)?;
        let id = m.names.get(from).copied().ok_or(Errno::NOENT)?;
        if m.names.contains_key(to) {
            return Err(Errno::EXIST.into());
        }
        m.names.insert(to.to_owned(), id);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut m = self.operate();
        m.begin_whole(Need::Writing)?;
        m.names.remove(name);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut m = self.operate();
        m.begin_whole(Need::Writing)?;
        m.synced_names = m.names.clone();
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut m = self.operate();
        m.begin_whole(Need::Reading)?;
        Ok(m.names.keys().cloned().collect())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let mut m = self.operate();
        m.begin_whole(Need::Reading)?;
        Ok(if m.always == Some(Trouble::Full) { 0 } else { 1 << 30 })
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("memory").join(name)
    }
}
