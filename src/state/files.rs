//! The bare operations of one directory, each one system call or nearly so, so that the order in which
//! [`super::disk`] makes them can be tested with a failure or a power cut at every single one.

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One directory. Names are single components. Nothing here is durable by itself.
pub trait Files: Send + Sync + 'static {
    /// An open file.
    type Handle: Send;
    /// Creates a file that must not exist, 0600.
    fn create_new(&self, name: &str) -> io::Result<Self::Handle>;
    /// Opens for appending, creating it if need be; with its present length in bytes.
    fn open_append(&self, name: &str) -> io::Result<(Self::Handle, u64)>;
    /// Writes some of the bytes, and says how many.
    fn write(&self, handle: &mut Self::Handle, bytes: &[u8]) -> io::Result<usize>;
    /// Content on the medium. An error is final for this handle.
    fn sync(&self, handle: &Self::Handle) -> io::Result<()>;
    /// Up to `max_bytes + 1` bytes; `None` = no such file.
    fn read(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>>;
    /// Replaces `to` at once.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// A second name; fails with `AlreadyExists` where `to` is taken.
    fn link(&self, from: &str, to: &str) -> io::Result<()>;
    /// Takes a name away. No such name is no error.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Names on the medium.
    fn sync_dir(&self) -> io::Result<()>;
    /// All names but `.` and `..`, sorted.
    fn list(&self) -> io::Result<Vec<String>>;
    /// Space left for this user, in bytes.
    fn free_bytes(&self) -> io::Result<u64>;
    /// The path of a name, for people.
    fn path(&self, name: &str) -> PathBuf;
    /// Why nothing that leads away from service may rest on this directory, for people; `None` = it is sound.
    fn doubt(&self) -> Option<String> {
        None
    }
}

/// A real directory, held open: what happens to its path later changes nothing here.
#[derive(Debug)]
pub struct LinuxFiles {
    dir: Result<OwnedFd, Gone>,
    path: PathBuf,
    /// While others may write to the directory, only files that are this user's own (or root's) are read.
    own: bool,
}

/// A directory that could not be opened.
#[derive(Debug)]
struct Gone {
    kind: io::ErrorKind,
    why: String,
    /// There is no such directory, which is something else than one that cannot be read.
    missing: bool,
}

impl LinuxFiles {
    /// Opens a directory that exists.
    pub fn open(path: &Path) -> io::Result<LinuxFiles> {
        let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(LinuxFiles { dir: Ok(dir), path: path.to_owned(), own: false })
    }

    /// The directory of one agent, created 0700 where it is missing. Whatever is wrong with it every later operation says:
    /// an agent that cannot have it must still look whether its node has to come back.
    pub fn own(path: &Path) -> LinuxFiles {
        let opened = create_dir_durably(path, 0o700).and_then(|()| LinuxFiles::open(path));
        let dir = match opened {
            Ok(files) => files.dir,
            Err(e) => {
                let missing = std::fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
                let why = format!("{} cannot be used ({e}): repair it, and restart the agent", path.display());
                Err(Gone { kind: e.kind(), why, missing })
            }
        };
        LinuxFiles { dir, path: path.to_owned(), own: true }
    }

    /// The open directory, for `fstat` and its like.
    pub(super) fn dir(&self) -> io::Result<BorrowedFd<'_>> {
        match &self.dir {
            Ok(dir) => Ok(dir.as_fd()),
            Err(gone) => Err(io::Error::new(gone.kind, gone.why.clone())),
        }
    }

    fn missing(&self) -> bool {
        self.dir.as_ref().is_err_and(|gone| gone.missing)
    }

    /// Opens a regular file and nothing else: neither a link nor a pipe that would block.
    fn open_at(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(self.dir()?, name, flags, mode)?);
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a regular file", self.path(name).display())))
    }

    /// Whoever may write to the directory can put a file there, but not one that belongs to somebody else.
    fn forged(&self, file: &File) -> io::Result<bool> {
        if !self.own || self.doubt().is_none() {
            return Ok(false);
        }
        let meta = file.metadata()?;
        Ok(!trusted(meta.uid()) || meta.mode() & 0o022 != 0)
    }
}

fn trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

impl Files for LinuxFiles {
    type Handle = File;

    fn create_new(&self, name: &str) -> io::Result<File> {
        self.open_at(name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, Mode::RUSR | Mode::WUSR)
    }

    fn open_append(&self, name: &str) -> io::Result<(File, u64)> {
        let file = self.open_at(name, OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND, Mode::RUSR | Mode::WUSR)?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    fn write(&self, handle: &mut File, bytes: &[u8]) -> io::Result<usize> {
        handle.write(bytes)
    }

    fn sync(&self, handle: &File) -> io::Result<()> {
        handle.sync_all()
    }

    fn read(&self, name: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let file = match self.open_at(name, OFlags::RDONLY, Mode::empty()) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) if self.missing() => return Ok(None),
            Err(e) => return Err(e),
        };
        if self.forged(&file)? {
            let why = format!(
                "{} is not this agent's own, in a directory that others may write to",
                self.path(name).display()
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let mut bytes = Vec::new();
        file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(self.dir()?, from, self.dir()?, to)?)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(self.dir()?, from, self.dir()?, to, AtFlags::empty())?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(self.dir()?, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.dir()?)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        if self.missing() {
            return Ok(names);
        }
        for entry in rustix::fs::Dir::read_from(self.dir()?)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(self.dir()?)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn doubt(&self) -> Option<String> {
        if !self.own {
            return None;
        }
        let path = self.path.display();
        let stat = match self.dir().and_then(|dir| Ok(rustix::fs::fstat(dir)?)) {
            Ok(stat) => stat,
            Err(e) => return Some(e.to_string()),
        };
        // They could forge the state.
        if stat.st_mode & 0o022 != 0 {
            let mode = stat.st_mode & 0o7777;
            return Some(format!("{path} may be written to by others (mode {mode:04o}): chmod 0700 it"));
        }
        let uid = stat.st_uid;
        (!trusted(uid))
            .then(|| format!("{path} belongs to user {uid}, who may write to it: chown it to the agent's user"))
    }
}

/// Creates a directory (and its parents) with this mode and makes its name durable. One that exists is left as it is.
pub fn create_dir_durably(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    create_dir_durably(parent, mode)?;
    match rustix::fs::mkdirat(CWD, path, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e.into()),
    }
    File::open(parent)?.sync_all()
}

/// Replaces a file that other programs read, at once: they see the old or the new one whole. Not durable, and for nothing
/// that has to be.
pub fn replace_public(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = Replacement::write(path, bytes, 0o644, ".new")?;
    new.put_in_place()
}

/// Replaces a file that another user reads, durably: after `Ok` the new one is there after a power cut too, and never is there
/// anything in between. Its directory is one that only this user writes to.
pub fn replace_durably(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let new = Replacement::write(path, bytes, mode, ".tmp")?;
    new.file.sync_all()?;
    new.put_in_place()?;
    Ok(rustix::fs::fsync(&new.dir)?)
}

/// The new content of a file, beside the old one. One temporary name for all tries: one that was given up leaves nothing
/// behind but that.
struct Replacement<'p> {
    dir: OwnedFd,
    file: File,
    temporary: std::ffi::OsString,
    name: &'p std::ffi::OsStr,
}

impl<'p> Replacement<'p> {
    fn write(path: &'p Path, bytes: &[u8], mode: u32, suffix: &str) -> io::Result<Replacement<'p>> {
        let name = path
            .file_name()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a path without a file name"))?;
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(suffix);
        match rustix::fs::unlinkat(&dir, &temporary, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        // Never through a link or into a file that somebody else has put there.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        let mut file = File::from(rustix::fs::openat(&dir, &temporary, flags, mode)?);
        rustix::fs::fchmod(&file, mode)?; // whatever the umask
        file.write_all(bytes)?;
        Ok(Replacement { dir, file, temporary, name })
    }

    fn put_in_place(&self) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, &self.temporary, &self.dir, self.name)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_public_file_is_replaced_whole_readable_by_all_and_never_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("a.prom"), dir.path().join("victim"));
        File::create(&victim).unwrap().write_all(b"precious").unwrap();
        std::os::unix::fs::symlink(&victim, dir.path().join(".a.prom.new")).unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for text in ["one\n", "two\n"] {
            replace_public(&path, text.as_bytes()).unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "nothing temporary is left");
        replace_public(&dir.path().join("missing/a.prom"), b"").unwrap_err();
    }
}
