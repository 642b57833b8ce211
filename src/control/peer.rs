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

/// A user of this machine with all its groups: number of the user, numbers of the groups.
pub fn account(name: &str) -> Option<(u32, Vec<u32>)> {
    let read = |path| std::fs::read_to_string(path).ok();
    account_of(&read("/etc/passwd")?, &read("/etc/group")?, name)
}

fn account_of(passwd: &str, group: &str, name: &str) -> Option<(u32, Vec<u32>)> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut numbers = line.split(':').skip(2).map(str::parse);
    let (uid, gid) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let others = group.lines().filter_map(|line| {
        let mut fields = line.split(':').skip(2);
        let gid = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member == name).then_some(gid)
    });
    Some((uid, std::iter::once(gid).chain(others).collect()))
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
    fn a_user_has_its_own_group_and_those_that_list_it() {
        let passwd = "root:x:0:0::/root:/bin/sh\nbackstop:x:990:989::/:/sbin/nologin\nbroken:x:y:1::\n";
        let group = "root:x:0:\nbackstop:x:989:alice\ntls:x:7:alice,backstop\nbackstop2:x:8:backstopper\n";
        assert_eq!(account_of(passwd, group, "backstop"), Some((990, vec![989, 7])));
        assert_eq!(account_of(passwd, group, "nobody"), None);
        assert_eq!(account_of(passwd, group, "broken"), None);
    }

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
