//! The bare operations of one directory, each one system call or nearly so, so that the order in which
//! [`super::disk`] makes them can be tested with a failure or a power cut at every single one.

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
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
}

/// A real directory, held open: what happens to its path later changes nothing here.
#[derive(Debug)]
pub struct LinuxFiles {
    dir: OwnedFd,
    path: PathBuf,
}

impl LinuxFiles {
    /// Opens a directory that exists.
    pub fn open(path: &Path) -> io::Result<LinuxFiles> {
        let dir = rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(LinuxFiles { dir, path: path.to_owned() })
    }

    /// The open directory, for `fstat` and its like.
    pub(super) fn dir(&self) -> impl AsFd {
        &self.dir
    }

    /// Opens a regular file and nothing else: neither a link nor a pipe that would block.
    fn open_at(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(&self.dir, name, flags, mode)?);
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("{} is not a regular file", self.path(name).display())))
    }
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
            Err(e) => return Err(e),
        };
        let mut bytes = Vec::new();
        file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.dir, from, &self.dir, to)?)
    }

    fn link(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::linkat(&self.dir, from, &self.dir, to, AtFlags::empty())?)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.dir)?)
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.dir)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn free_bytes(&self) -> io::Result<u64> {
        let stat = rustix::fs::fstatvfs(&self.dir)?;
        Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
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
