//! Packages that were begun and not finished, read from dpkg's own database. `apt-get` refuses to work on such a machine
//! ("dpkg was interrupted, you must manually run 'dpkg --configure -a'"), and a job would fail with the node out.
//!
//! rpm has no such state: a transaction that was cut off is seen only by rpm itself, which a process without exec cannot ask.

use crate::core::error::Fault;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

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
