//! Who may ask for what: one table, verb × role.

use super::peer::Peer;
use std::fmt;

/// What a caller may do; each role may do all that the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Look.
    Read,
    /// Run jobs, put this node back or keep it out, stop new cycles.
    Act,
    /// Say that a failure is settled, and go against a guard.
    Admin,
}

impl Role {
    /// For people.
    pub const fn label(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Act => "act",
            Role::Admin => "admin",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// Everything that can be asked. A flag that needs more than its verb is a verb of its own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Look at everything.
    Status,
    /// Look at the guards.
    Check,
    /// Follow a cycle.
    Progress,
    /// Ask why.
    Explain,
    /// Look at what happened.
    History,
    /// Begin a cycle.
    Run,
    /// Begin one against a guard.
    RunOverride,
    /// Put this node back.
    Rejoin,
    /// Put it back without the node check.
    RejoinSkipCheck,
    /// Keep it out, or stop self-heal everywhere.
    Hold,
    /// Stop new cycles.
    Pause,
    /// Allow them again.
    Unpause,
    /// A person has looked.
    LatchClear,
    /// A person has looked, and the node is still out.
    LatchClearUnresolved,
    /// Say that an instance is gone for good.
    Retire,
    /// Create the fleet record.
    Init,
    /// Send a test page.
    AlertTest,
    /// Read the config file again.
    Reload,
}

impl Verb {
    /// All of them.
    pub const ALL: [Verb; 18] = [
        Verb::Status,
        Verb::Check,
        Verb::Progress,
        Verb::Explain,
        Verb::History,
        Verb::Run,
        Verb::RunOverride,
        Verb::Rejoin,
        Verb::RejoinSkipCheck,
        Verb::Hold,
        Verb::Pause,
        Verb::Unpause,
        Verb::LatchClear,
        Verb::LatchClearUnresolved,
        Verb::Retire,
        Verb::Init,
        Verb::AlertTest,
        Verb::Reload,
    ];

    /// As a person types it.
    pub const fn label(self) -> &'static str {
        match self {
            Verb::Status => "status",
            Verb::Check => "check",
            Verb::Progress => "wait",
            Verb::Explain => "explain",
            Verb::History => "history",
            Verb::Run => "run",
            Verb::RunOverride => "run --override",
            Verb::Rejoin => "rejoin",
            Verb::RejoinSkipCheck => "rejoin --skip-check",
            Verb::Hold => "hold",
            Verb::Pause => "pause",
            Verb::Unpause => "unpause",
            Verb::LatchClear => "latch clear",
            Verb::LatchClearUnresolved => "latch clear --unresolved",
            Verb::Retire => "retire",
            Verb::Init => "init --fleet",
            Verb::AlertTest => "alert test",
            Verb::Reload => "reload",
        }
    }

    /// The least role that may.
    pub const fn needs(self) -> Role {
        match self {
            Verb::Status | Verb::Check | Verb::Progress | Verb::Explain | Verb::History => Role::Read,
            Verb::Run | Verb::Rejoin | Verb::Hold | Verb::Pause | Verb::Unpause => Role::Act,
            Verb::RunOverride
            | Verb::RejoinSkipCheck
            | Verb::LatchClear
            | Verb::LatchClearUnresolved
            | Verb::Retire
            | Verb::Init
            | Verb::AlertTest
            | Verb::Reload => Role::Admin,
        }
    }

    /// Changes something, if it is allowed: such a request is written down.
    pub const fn changes(self) -> bool {
        !matches!(self.needs(), Role::Read)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.label())
    }
}

/// May this role do that? The whole policy.
pub const fn allowed(role: Role, verb: Verb) -> bool {
    role as u8 >= verb.needs() as u8
}

/// A Unix group with its number, where this machine knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name, as in the config.
    pub name: String,
    /// Its number; absent = no such group, so nobody is in it.
    pub gid: Option<u32>,
}

impl Group {
    /// Looks the name up in `/etc/group`.
    pub fn named(name: &str) -> Group {
        Group { name: name.to_owned(), gid: super::peer::group_id(name) }
    }

    fn has(&self, peer: &Peer) -> bool {
        self.gid.is_some_and(|gid| peer.gid == gid || peer.groups.contains(&gid))
    }
}

/// Which group has which role. Root and the agent's own user are admin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles {
    /// The agent's own user.
    pub own_uid: u32,
    /// Who may look: the socket belongs to this group. Whoever can connect may look.
    pub read: Option<Group>,
    /// Who may act; absent = root only.
    pub act: Option<Group>,
    /// Who is admin; absent = root only.
    pub admin: Option<Group>,
}

impl Roles {
    /// Only root and the own user do more than look.
    pub fn root_only() -> Roles {
        Roles { own_uid: rustix::process::geteuid().as_raw(), read: None, act: None, admin: None }
    }

    /// From the names in the config.
    pub fn named(read: &str, act: Option<&str>, admin: Option<&str>) -> Roles {
        Roles {
            read: Some(Group::named(read)),
            act: act.map(Group::named),
            admin: admin.map(Group::named),
            ..Roles::root_only()
        }
    }

    /// Groups that the config names and this machine does not know.
    pub fn unknown_groups(&self) -> Vec<String> {
        let all = [&self.read, &self.act, &self.admin];
        all.into_iter().flatten().filter(|g| g.gid.is_none()).map(|g| g.name.clone()).collect()
    }

    /// The role of a peer.
    pub fn role(&self, peer: &Peer) -> Role {
        let of = |group: &Option<Group>| group.as_ref().is_some_and(|g| g.has(peer));
        if peer.uid == 0 || peer.uid == self.own_uid || of(&self.admin) {
            Role::Admin
        } else if of(&self.act) {
            Role::Act
        } else {
            Role::Read
        }
    }

    /// Who has that role, in words, for a refusal.
    pub fn who(&self, role: Role) -> String {
        let group = match role {
            Role::Read => self.read.as_ref(),
            Role::Act => self.act.as_ref().or(self.admin.as_ref()),
            Role::Admin => self.admin.as_ref(),
        };
        group.map_or_else(|| "root".to_owned(), |g| format!("root or a member of group {}", g.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(uid: u32, gid: u32, groups: &[u32]) -> Peer {
        Peer { uid, gid, pid: None, groups: groups.to_vec() }
    }

    fn group(name: &str, gid: u32) -> Group {
        Group { name: name.to_owned(), gid: Some(gid) }
    }

    fn roles() -> Roles {
        Roles {
            own_uid: 900,
            read: Some(group("backstop", 10)),
            act: Some(group("patch", 20)),
            admin: Some(group("ops", 30)),
        }
    }

    #[test]
    fn the_policy_is_this_table() {
        use Role::{Act, Admin, Read};
        let table = [
            (Verb::Status, Read),
            (Verb::Check, Read),
            (Verb::Progress, Read),
            (Verb::Explain, Read),
            (Verb::History, Read),
            (Verb::Run, Act),
            (Verb::RunOverride, Admin),
            (Verb::Rejoin, Act),
            (Verb::RejoinSkipCheck, Admin),
            (Verb::Hold, Act),
            (Verb::Pause, Act),
            (Verb::Unpause, Act),
            (Verb::LatchClear, Admin),
            (Verb::LatchClearUnresolved, Admin),
            (Verb::Retire, Admin),
            (Verb::Init, Admin),
            (Verb::AlertTest, Admin),
            (Verb::Reload, Admin),
        ];
        assert_eq!(table.map(|(verb, _)| verb), Verb::ALL, "every verb is in the table");
        for (verb, least) in table {
            for role in [Read, Act, Admin] {
                assert_eq!(allowed(role, verb), role >= least, "{role} {verb}");
            }
            assert_eq!(verb.changes(), least > Read, "{verb}");
        }
    }

    #[test]
    fn roles_come_from_user_primary_group_and_supplementary_groups() {
        let roles = roles();
        for (peer, role) in [
            (peer(0, 0, &[]), Role::Admin),
            (peer(900, 900, &[]), Role::Admin),
            (peer(1000, 30, &[]), Role::Admin),
            (peer(1000, 1000, &[10, 30]), Role::Admin),
            (peer(1000, 20, &[]), Role::Act),
            (peer(1000, 1000, &[10, 20]), Role::Act),
            (peer(1000, 1000, &[10]), Role::Read),
            (peer(1000, 1000, &[]), Role::Read),
        ] {
            assert_eq!(roles.role(&peer), role, "{peer:?}");
        }
    }

    #[test]
    fn a_group_that_this_machine_does_not_know_gives_nobody_a_role() {
        let roles = Roles { admin: Some(Group::named("no-such-group-here")), act: None, ..roles() };
        assert_eq!(roles.role(&peer(1000, 30, &[20, 30])), Role::Read);
        assert_eq!(roles.unknown_groups(), ["no-such-group-here"]);
        assert_eq!(roles.who(Role::Admin), "root or a member of group no-such-group-here");
    }
}
