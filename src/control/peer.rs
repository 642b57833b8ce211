//! Who is at the other end of the socket, by what the kernel says.

use super::backend::Caller;
use super::roles::Role;
use std::fmt::Write;

/// The other process at the moment it connected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Process, where known.
    pub pid: Option<i32>,
    /// Supplementary groups, where its process could still be read.
    pub groups: Vec<u32>,
}

/// What `/proc/PID/status` says of a process.
#[derive(Debug, Default, PartialEq, Eq)]
struct ProcStatus {
    effective_uid: Option<u32>,
    groups: Vec<u32>,
}

impl Peer {
    /// By the credentials of the connection. Supplementary groups count only while that process is still the same user's:
    /// a number that was given to another process since must not lend its groups.
    pub fn of(uid: u32, gid: u32, pid: Option<i32>) -> Peer {
        let status = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/status")).ok());
        let status = status.map(|text| proc_status(&text)).unwrap_or_default();
        let groups = if status.effective_uid == Some(uid) { status.groups } else { Vec::new() };
        Peer { uid, gid, pid, groups }
    }

    /// As the record and the audit journal name it. Whoever became root by sudo is named by the login too.
    pub fn caller(&self, role: Role) -> Caller {
        let mut name = user(self.uid);
        if let Some(login) = self.login_uid().filter(|login| *login != self.uid) {
            // Writing to a String cannot fail.
            let _ = write!(name, ", logged in as {}", user(login));
        }
        Caller { name, uid: self.uid, admin: role == Role::Admin }
    }

    fn login_uid(&self) -> Option<u32> {
        let text = std::fs::read_to_string(format!("/proc/{}/loginuid", self.pid?)).ok()?;
        text.trim().parse().ok().filter(|uid| *uid != u32::MAX)
    }
}

fn proc_status(text: &str) -> ProcStatus {
    let mut status = ProcStatus::default();
    for line in text.lines() {
        if let Some(uids) = line.strip_prefix("Uid:") {
            status.effective_uid = uids.split_whitespace().nth(1).and_then(|uid| uid.parse().ok());
        } else if let Some(groups) = line.strip_prefix("Groups:") {
            status.groups = groups.split_whitespace().filter_map(|gid| gid.parse().ok()).collect();
        }
    }
    status
}

/// `name(uid)`, or the number alone.
fn user(uid: u32) -> String {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    name_of(&text, uid).map_or_else(|| uid.to_string(), |name| format!("{name}({uid})"))
}

/// The number of a group of this machine.
pub fn group_id(name: &str) -> Option<u32> {
    id_of(&std::fs::read_to_string("/etc/group").ok()?, name)
}

/// The name of a group of this machine, as `group NAME`.
pub(super) fn group_name(gid: u32) -> Option<String> {
    let text = std::fs::read_to_string("/etc/group").ok()?;
    name_of(&text, gid).map(|name| format!("group {name}"))
}

/// `name:x:id:…`, the format of both files.
fn entries(text: &str) -> impl Iterator<Item = (&str, u32)> {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty() && !name.starts_with('#'))?;
        Some((name, fields.nth(1)?.parse().ok()?))
    })
}

fn name_of(text: &str, id: u32) -> Option<&str> {
    entries(text).find(|(_, i)| *i == id).map(|(name, _)| name)
}

fn id_of(text: &str, name: &str) -> Option<u32> {
    entries(text).find(|(n, _)| *n == name).map(|(_, id)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tsh\nUid:\t1000\t1001\t1001\t1001\nGid:\t5\t5\t5\t5\nGroups:\t4 27 1000 \nNStgid:\t1\n";

    #[test]
    fn supplementary_groups_and_the_effective_user_are_read_from_proc() {
        let expected = ProcStatus { effective_uid: Some(1001), groups: vec![4, 27, 1000] };
        assert_eq!(proc_status(STATUS), expected);
        assert_eq!(proc_status("Groups:\t\nUid:\tjunk\n"), ProcStatus::default());
    }

    #[test]
    fn a_process_of_another_user_lends_no_groups() {
        let me = rustix::process::geteuid().as_raw();
        let pid = i32::try_from(std::process::id()).unwrap();
        let mine = std::fs::read_to_string("/proc/self/status").unwrap();
        assert_eq!(Peer::of(me, 0, Some(pid)).groups, proc_status(&mine).groups);
        assert!(Peer::of(me.wrapping_add(7), 0, Some(pid)).groups.is_empty());
        assert!(Peer::of(me, 0, None).groups.is_empty());
    }

    #[test]
    fn names_are_looked_up_and_broken_lines_are_skipped() {
        let text = "root:x:0:\n\nbroken\n#x:x:7:\nops:x:not-a-number:\nops:x:30:a,b\n";
        assert_eq!(id_of(text, "ops"), Some(30));
        assert_eq!(id_of(text, "#x"), None);
        assert_eq!(name_of(text, 30), Some("ops"));
        assert_eq!(name_of(text, 31), None);
    }
}
