//! Where the control socket (and that of the metrics) stands: made with its final mode, in a directory that nobody else can write to, and put in
//! the place of an old one only by whoever is known to be the only agent.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Read and write for owner and group: only they connect.
const SOCKET_MODE: u32 = 0o660;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// Whether a socket that is there already may be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replace {
    /// The caller holds the instance lock: a socket that nobody answers at is its own, of an earlier start.
    HoldsInstanceLock,
    /// Unknown who made it: leave it.
    Never,
}

/// Why the socket cannot be made. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The directory is not safe.
    #[error("the directory of the socket, {}, {problem}", .dir.display())]
    Directory {
        /// Which.
        dir: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// Something is there already.
    #[error("{}: {problem}", .path.display())]
    Taken {
        /// Where.
        path: PathBuf,
        /// What is there, and what to do.
        problem: String,
    },
    /// The system says no.
    #[error("cannot make the socket {}: {doing}", .path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A socket in the file system; removed again when this goes, where it is still the same one.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Kept open: as long as it is, no other file gets the same number.
    inode: OwnedFd,
}

impl Place {
    /// What stands at the path is still this socket.
    pub(super) fn stands(&self) -> bool {
        let now = std::fs::symlink_metadata(&self.path);
        let own = rustix::fs::fstat(&self.inode);
        now.is_ok_and(|now| own.is_ok_and(|own| (now.dev(), now.ino()) == (own.st_dev, own.st_ino)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.stands() {
            // Nothing depends on it: the next agent replaces a stale one.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Makes the socket and listens.
pub(crate) fn bind(
    path: &Path,
    gid: Option<u32>,
    replace: Replace,
) -> Result<(std::os::unix::net::UnixListener, Place), BindError> {
    let io = |doing| move |source: io::Error| BindError::Io { path: path.to_owned(), doing, source };
    directory(path.parent().unwrap_or(Path::new("/")))?;
    make_room(path, replace)?;
    let listener = listen(path).map_err(|e| io("bind and listen (a path may have 107 bytes)")(e.into()))?;
    // Made by an agent of that group it has the group already; its sandbox lets it change nobody's.
    let has = |gid| std::fs::metadata(path).is_ok_and(|meta| std::os::unix::fs::MetadataExt::gid(&meta) == gid);
    if let Some(gid) = gid.filter(|gid| !has(*gid))
        && let Err(error) = std::os::unix::fs::chown(path, None, Some(gid))
    {
        // Fewer can connect then, which is no reason to be without an agent.
        tracing::warn!(%error, gid, path = %path.display(), "cannot give a socket to the group of readers");
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE)).map_err(io("set its mode"))?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let inode = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| io("look at it")(e.into()))?;
    Ok((listener, Place { path: path.to_owned(), inode }))
}

fn listen(path: &Path) -> rustix::io::Result<std::os::unix::net::UnixListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // The mode of a socket not yet bound is the one it is made with (less the umask): it is never open to others.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(SOCKET_MODE))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Whoever can write to the directory can put a socket of their own there, and be told "yes" in our place.
fn directory(dir: &Path) -> Result<(), BindError> {
    let wrong = |problem: String| BindError::Directory { dir: dir.to_owned(), problem };
    if let Err(e) = std::fs::DirBuilder::new().mode(0o755).create(dir)
        && e.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(wrong(format!("cannot be made ({e}): make it, or set paths.runtime_dir")));
    }
    let meta = std::fs::metadata(dir).map_err(|e| wrong(format!("cannot be looked at: {e}")))?;
    let me = rustix::process::geteuid().as_raw();
    if !meta.is_dir() {
        Err(wrong("is no directory: set paths.runtime_dir".to_owned()))
    } else if meta.uid() != 0 && meta.uid() != me {
        Err(wrong(format!("belongs to user {}: chown it to the agent's user", meta.uid())))
    } else if meta.mode() & 0o022 != 0 {
        Err(wrong(format!("can be written to by others (mode {:o}): chmod go-w", meta.mode() & 0o7777)))
    } else {
        Ok(())
    }
}

fn make_room(path: &Path, replace: Replace) -> Result<(), BindError> {
    let taken = |problem: String| Err(BindError::Taken { path: path.to_owned(), problem });
    let found: Metadata = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return taken(format!("cannot be looked at: {e}")),
    };
    if !found.file_type().is_socket() {
        return taken("is there and is no socket: remove it, or set paths.socket".to_owned());
    }
    // The lock is on a state directory: an agent with another one may well share this place.
    if answers(path) {
        return taken("another process answers there: set paths.runtime_dir, or stop it".to_owned());
    }
    match replace {
        Replace::HoldsInstanceLock => std::fs::remove_file(path).or_else(|e| taken(format!("cannot be removed: {e}"))),
        Replace::Never => taken("an old socket is there; only an agent with the instance lock removes it".to_owned()),
    }
}

/// Somebody listens there, though perhaps too busy to accept. Never waits.
fn answers(path: &Path) -> bool {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let connected = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .and_then(|socket| rustix::net::connect(&socket, &SocketAddrUnix::new(path)?));
    match connected {
        Ok(()) => true,
        Err(e) => e == Errno::AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says<T: std::fmt::Debug>(result: Result<T, BindError>) -> String {
        result.expect_err("refused").to_string()
    }

    fn safe() -> tempfile::TempDir {
        tempfile::Builder::new().permissions(std::fs::Permissions::from_mode(0o755)).tempdir().unwrap()
    }

    #[test]
    fn the_socket_is_for_owner_and_group_and_goes_with_its_owner() {
        let dir = safe();
        let path = dir.path().join("run/agent.sock");
        let (_listener, place) = bind(&path, None, Replace::Never).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o7777, SOCKET_MODE);
        assert!(place.stands());
        drop(place);
        assert!(!path.exists());
    }

    #[test]
    fn an_old_socket_goes_only_for_the_holder_of_the_lock_and_a_new_one_is_not_removed_by_the_old_owner() {
        let dir = safe();
        let path = dir.path().join("agent.sock");
        let (listener, old) = bind(&path, None, Replace::Never).unwrap();
        for replace in [Replace::Never, Replace::HoldsInstanceLock] {
            assert!(says(bind(&path, None, replace)).contains("another process answers"), "{replace:?}");
            assert!(path.exists(), "a socket that is served is never taken away: {replace:?}");
        }
        drop(listener);
        assert!(says(bind(&path, None, Replace::Never)).contains("old socket"));
        let (_listener, new) = bind(&path, None, Replace::HoldsInstanceLock).unwrap();
        drop(old);
        assert!(path.exists(), "the old owner left the new socket alone");
        assert!(new.stands());
        std::fs::remove_file(&path).unwrap();
        assert!(!new.stands(), "somebody has removed it");
        drop(new);
    }

    #[test]
    fn what_is_no_socket_is_never_removed() {
        let dir = safe();
        let path = dir.path().join("agent.sock");
        std::fs::File::create(&path).unwrap();
        assert!(says(bind(&path, None, Replace::HoldsInstanceLock)).contains("no socket"));
        assert!(path.exists());
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let dir = safe();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o775)).unwrap();
        assert!(says(bind(&dir.path().join("s"), None, Replace::Never)).contains("written to by others (mode 775)"));
    }

    #[test]
    fn a_path_that_is_too_long_says_so() {
        let dir = safe();
        let path = dir.path().join("x".repeat(120));
        assert!(says(bind(&path, None, Replace::Never)).contains("107 bytes"));
    }
}
