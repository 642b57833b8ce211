//! One agent per state directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The name of the lock file. It is never renamed, replaced or removed.
pub const LOCK_NAME: &str = "lock";

/// Why this process may not use the state directory.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("{} is held by {holder}: one agent per state directory", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// What the holder wrote about itself, or that it wrote nothing.
        holder: String,
    },
    /// This file system has no locks; without one nothing stops a second agent.
    #[error("the file system of {} has no locks; put the state directory on a local disk", path.display())]
    Unsupported {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody removes or replaces the lock file again and again.
    #[error("{} was replaced while it was being locked; leave it alone", path.display())]
    Replaced {
        /// The lock file.
        path: PathBuf,
    },
    /// It cannot be opened.
    #[error("cannot open {}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// The lock, held until dropped; the kernel frees it when the process dies in any way.
#[derive(Debug)]
pub struct InstanceLock {
    file: File,
    path: PathBuf,
}

impl InstanceLock {
    /// Takes the lock of a state directory, at once or not at all.
    pub fn acquire(dir: &Path) -> Result<InstanceLock, LockError> {
        let path = dir.join(LOCK_NAME);
        // A cleaner may have removed the file between open and lock: then this lock is on an inode that nobody else
        // will ever see.
        for _ in 0..3 {
            let lock = try_once(&path)?;
            if lock.still_ours() {
                lock.sign();
                return Ok(lock);
            }
        }
        Err(LockError::Replaced { path })
    }

    /// What is locked: the lock file, or the directory where none can be had.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path still names the file that is locked.
    pub fn still_ours(&self) -> bool {
        match (self.file.metadata(), std::fs::symlink_metadata(&self.path)) {
            (Ok(mine), Ok(named)) => mine.dev() == named.dev() && mine.ino() == named.ino(),
            _ => false,
        }
    }

    /// Says who holds it, for the next one's error. A full disk must not keep the agent from starting.
    fn sign(&self) {
        let mut file = &self.file;
        let _ = file.set_len(0);
        let _ = file.rewind();
        let _ = writeln!(file, "process {}", std::process::id());
    }
}

fn try_once(path: &Path) -> Result<InstanceLock, LockError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path);
    // A file system that takes no write still has locks, on the file that is there or on the directory: the way back must
    // begin on it.
    let directory = path.parent().unwrap_or(path);
    let (file, path) = match opened {
        Ok(file) => (file, path),
        Err(source) => match (File::open(path), File::open(directory)) {
            (Ok(file), _) => (file, path),
            (Err(_), Ok(file)) => (file, directory),
            (Err(_), Err(_)) => return Err(LockError::Io { path: path.to_owned(), source }),
        },
    };
    match file.try_lock() {
        Ok(()) => Ok(InstanceLock { file, path: path.to_owned() }),
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let _ = (&file).take(100).read_to_string(&mut holder);
            let holder = if holder.trim().is_empty() { "a process that did not say who it is" } else { holder.trim() };
            Err(LockError::Held { path: path.to_owned(), holder: holder.to_owned() })
        }
        Err(TryLockError::Error(source)) => Err(LockError::Unsupported { path: path.to_owned(), source }),
    }
}
