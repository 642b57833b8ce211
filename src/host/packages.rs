//! Package managers: is one at work, and what has one left unfinished? Both refuse a cycle, whose job would fail with the
//! node out.
//!
//! rpm has no unfinished packages to be read: a transaction that was cut off is seen only by rpm itself, which a process
//! without exec cannot ask.

use crate::core::error::Fault;
use std::io::{BufRead, BufReader, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Files on which a package manager holds a lock of the kernel while it works.
const LOCKS: [(&str, &str); 5] = [
    ("/var/lib/dpkg/lock-frontend", "dpkg"),
    ("/var/lib/dpkg/lock", "dpkg"),
    ("/var/lib/rpm/.rpm.lock", "rpm"),
    ("/usr/lib/sysimage/rpm/.rpm.lock", "rpm"),
    ("/run/dnf/rpmtransaction.lock", "dnf"),
];
/// Files with the number of the process that works, and how the names of such processes begin: a number may have been given
/// to another one since. libzypp locks its file only for the moment in which it reads or writes it.
const PID_FILES: [(&str, &str, &[&str]); 4] = [
    ("/run/zypp.pid", "zypper", &["zypp", "y2", "ruby", "packagekit"]),
    ("/var/cache/dnf/metadata_lock.pid", "dnf", DNF),
    ("/var/cache/dnf/download_lock.pid", "dnf", DNF),
    ("/var/lib/dnf/rpmdb_lock.pid", "dnf", DNF),
];
const DNF: &[&str] = &["dnf", "yum", "microdnf", "python", "packagekit"];
/// btrfs: what its files say of their device is not what the kernel's table of locks says.
const BTRFS: rustix::fs::FsWord = 0x9123_683E;

/// The one that works now, by name and by what shows it.
pub(super) fn at_work() -> Result<Option<String>, Fault> {
    let table = std::fs::read_to_string("/proc/locks").map_err(|e| Fault::transport(format!("/proc/locks: {e}")))?;
    if let Some((path, name)) = LOCKS.iter().find(|(path, _)| locked(Path::new(path), &table)) {
        return Ok(Some(format!("{name} (lock {path})")));
    }
    let works = |(path, name, begins): &(&str, &str, &[&str])| {
        let pid = working(Path::new(path), Path::new("/proc"), begins)?;
        Some(format!("{name} (process {pid}, {path})"))
    };
    Ok(PID_FILES.iter().find_map(works))
}

/// Somebody holds a lock on this file, by the kernel's table of locks.
fn locked(path: &Path, table: &str) -> bool {
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let any_device = rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type == BTRFS);
    let device = meta.dev();
    let device = format!("{:02x}:{:02x}:", rustix::fs::major(device), rustix::fs::minor(device));
    let inode = meta.ino().to_string();
    let is_it = |word: &str| match word.rsplit_once(':') {
        Some((_, number)) if any_device => number == inode && word.matches(':').count() == 2,
        _ => word.strip_prefix(&*device).is_some_and(|number| number == inode),
    };
    table.lines().any(|line| line.split_whitespace().any(is_it))
}

/// The process that the file names, if it runs and is of that kind.
fn working(path: &Path, proc: &Path, begins: &[&str]) -> Option<u32> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(64).read_to_string(&mut text).ok()?;
    let pid: u32 = text.split_whitespace().next()?.parse().ok()?;
    let comm = std::fs::read_to_string(proc.join(pid.to_string()).join("comm")).ok()?;
    let comm = comm.trim().to_ascii_lowercase();
    begins.iter().any(|begin| comm.starts_with(begin)).then_some(pid)
}

/// Where dpkg keeps what it knows.
pub(super) const DPKG: &str = "/var/lib/dpkg";
/// A status file of a machine with every package of Debian has about 80 MB.
const STATUS_MAX: u64 = 256 << 20;
/// So many are named.
const NAMED: usize = 3;
/// States in which dpkg leaves a package when it is cut off; dpkg(1). A package that waits for a trigger is whole.
const UNFINISHED: [&str; 3] = ["half-installed", "unpacked", "half-configured"];

/// In words with what to do; `None` = every package is whole, or there is no dpkg here.
pub(super) fn unfinished(dpkg: &Path) -> Result<Option<String>, Fault> {
    let status = dpkg.join("status");
    let unreadable = |path: &Path, e: &std::io::Error| Fault::transport(format!("{}: {e}", path.display()));
    let file = match std::fs::File::open(&status) {
        Ok(file) => file,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(unreadable(&status, &e)),
    };
    let begun = begun(BufReader::new(file.take(STATUS_MAX))).map_err(|e| unreadable(&status, &e))?;
    if let Some((first, rest)) = begun.split_first() {
        let more = rest.len().saturating_sub(NAMED.saturating_sub(1));
        let named = std::iter::once(first).chain(rest).take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let and = if more > 0 { format!(" and {more} more") } else { String::new() };
        return Ok(Some(format!(
            "unfinished packages: {named}{and}; as root: dpkg --configure -a, then apt-get -f install"
        )));
    }
    let journal = dpkg.join("updates");
    if cut_off(&journal).map_err(|e| unreadable(&journal, &e))? {
        return Ok(Some(format!(
            "dpkg was interrupted (its journal {} is not empty); as root: dpkg --configure -a",
            journal.display()
        )));
    }
    Ok(None)
}

/// `name (state)` of each.
fn begun(status: impl BufRead) -> std::io::Result<Vec<String>> {
    let (mut name, mut found) = (String::new(), Vec::new());
    for line in status.split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        if let Some(package) = line.strip_prefix("Package:") {
            package.trim().clone_into(&mut name);
        } else if let Some(words) = line.strip_prefix("Status:") {
            // Want, flag, state.
            let mut words = words.split_whitespace().skip(1);
            let (flag, state) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if flag == "reinstreq" || UNFINISHED.contains(&state) {
                found.push(format!("{name} ({state})"));
            }
        }
    }
    Ok(found)
}

/// dpkg's journal holds entries, whose names are numbers, only while it works or after it was cut off.
fn cut_off(journal: &Path) -> std::io::Result<bool> {
    let entries = match std::fs::read_dir(journal) {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e),
    };
    for entry in entries {
        let name = entry?.file_name();
        if name.to_string_lossy().chars().all(|c| c.is_ascii_digit()) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_counts_while_a_process_of_that_kind_has_the_number() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = place.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::io::Write::write_all(&mut std::fs::File::create(path).unwrap(), text.as_bytes()).unwrap();
        };
        let works = || working(&place.path().join("zypp.pid"), &place.path().join("proc"), &["zypp"]);
        assert_eq!(works(), None, "no such file");
        write("proc/71/comm", "zypper\n");
        write("proc/72/comm", "sshd\n");
        for (said, is) in [("71\n", Some(71)), ("72\n", None), ("73", None), ("", None), ("-1", None), ("x", None)] {
            write("zypp.pid", said);
            assert_eq!(works(), is, "{said:?}");
        }
    }

    #[test]
    fn a_lock_is_told_by_device_and_inode() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!locked(file.path(), ""));
        let meta = std::fs::metadata(file.path()).unwrap();
        let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
        let line = |inode: u64| format!("1: POSIX  ADVISORY  WRITE 12 {major:02x}:{minor:02x}:{inode} 0 EOF\n");
        assert!(locked(file.path(), &line(meta.ino())));
        assert!(!locked(file.path(), &line(meta.ino() + 1)));
        assert!(!locked(Path::new("/no/such/file"), &line(meta.ino())));
    }

    fn states(lines: &[(&str, &str)]) -> Vec<String> {
        let mut text = String::new();
        for (name, status) in lines {
            let stanza =
                ["Package: ", name, "\nStatus: ", status, "\nVersion: 1\nDescription: x\n Status: deinstall\n\n"];
            text.push_str(&stanza.concat());
        }
        begun(text.as_bytes()).unwrap()
    }

    #[test]
    fn packages_that_are_whole_removed_or_waiting_for_a_trigger_are_no_obstacle() {
        let whole = [
            ("a", "install ok installed"),
            ("b", "deinstall ok config-files"),
            ("c", "hold ok installed"),
            ("d", "install ok triggers-pending"),
            ("e", "install ok triggers-awaited"),
            ("f", "purge ok not-installed"),
        ];
        assert_eq!(states(&whole), Vec::<String>::new());
        assert_eq!(begun(b"".as_slice()).unwrap(), Vec::<String>::new());
        assert_eq!(
            begun(b"\xff\xfe\0Status\nStatus:\nPackage:\nStatus: install".as_slice()).unwrap(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn each_state_in_which_dpkg_was_cut_off_is_named_with_its_package() {
        for state in UNFINISHED {
            assert_eq!(
                states(&[("ok", "install ok installed"), ("p", &format!("install ok {state}"))]),
                [format!("p ({state})")]
            );
        }
        assert_eq!(states(&[("p", "install reinstreq installed")]), ["p (installed)"]);
    }

    #[test]
    fn a_machine_without_dpkg_has_nothing_unfinished_and_an_interrupted_one_says_what_to_do() {
        let place = tempfile::tempdir().unwrap();
        let dpkg = place.path().join("dpkg");
        assert_eq!(unfinished(&dpkg).unwrap(), None);
        std::fs::create_dir_all(dpkg.join("updates")).unwrap();
        let write = |path: &str, text: &str| {
            let mut file = std::fs::File::create(dpkg.join(path)).unwrap();
            std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        };
        write("status", "Package: a\nStatus: install ok installed\n");
        write("updates/tmp.i", "");
        assert_eq!(unfinished(&dpkg).unwrap(), None);
        write("updates/0007", "");
        assert!(unfinished(&dpkg).unwrap().unwrap().contains("dpkg --configure -a"));
        let many = ["p0", "p1", "p2", "p3", "p4"]
            .map(|name| format!("Package: {name}\nStatus: install ok half-configured\n\n"))
            .concat();
        write("status", &many);
        let said = unfinished(&dpkg).unwrap().unwrap();
        assert!(
            said.starts_with(
                "unfinished packages: p0 (half-configured), p1 (half-configured), p2 (half-configured) and 2 more;"
            ),
            "{said}"
        );
        std::fs::remove_file(dpkg.join("status")).unwrap();
        std::fs::create_dir(dpkg.join("status")).unwrap();
        assert!(unfinished(&dpkg).is_err(), "what cannot be read is not whole");
    }
}
