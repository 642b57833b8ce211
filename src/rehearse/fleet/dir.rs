//! The directory of a rehearsal: temporary and removed at its end, or kept where the user says.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

static DIRS: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(super) struct FleetDir {
    path: PathBuf,
    keep: bool,
}

impl FleetDir {
    /// `keep` must not exist yet, or be empty: old state would be taken for this fleet's.
    pub(super) fn create(keep: Option<&Path>) -> io::Result<FleetDir> {
        if let Some(path) = keep {
            make(path, true)?;
            if std::fs::read_dir(path)?.next().is_some() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is not empty", path.display())));
            }
            return Ok(FleetDir { path: std::path::absolute(path)?, keep: true });
        }
        loop {
            // Short: a Unix socket's path must fit below it.
            let name = format!("backstop-{}-{}", std::process::id(), DIRS.fetch_add(1, Ordering::Relaxed));
            let path = std::env::temp_dir().join(name);
            match make(&path, false) {
                Ok(()) => return Ok(FleetDir { path, keep: false }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn sub(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        make(&path, false)?;
        make(&path.join("run"), false)?;
        Ok(path)
    }
}

fn make(path: &Path, parents: bool) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).recursive(parents).create(path)
}

impl Drop for FleetDir {
    fn drop(&mut self) {
        if !self.keep {
            // Left behind where it fails: nothing depends on it.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
