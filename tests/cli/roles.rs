//! Roles over the real socket: what the kernel says of the caller decides.

use crate::world::{World, finish};
use backstop::control::roles::{Group, Role, Roles, Verb};
use backstop::control::server::{Limits, Outcome};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A user and group that mean nothing on any machine.
const STRANGER: u32 = 64_321;

/// A caller that is neither root nor the agent's user, and the gid that it has.
struct Caller {
    program: PathBuf,
    become_uid: Option<u32>,
    gid: u32,
}

impl Caller {
    /// Root becomes somebody else; anybody else stays, and the agent is said to be of another user.
    fn new(world: &World) -> Caller {
        if rustix::process::geteuid().is_root() {
            let program = world.path("backstop");
            // By another process: a copy that is open for writing here, while another test forks, cannot be executed.
            let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_backstop")).arg(&program).status();
            assert!(copied.unwrap().success());
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            Caller { program, become_uid: Some(STRANGER), gid: STRANGER }
        } else {
            let gid = rustix::process::getegid().as_raw();
            Caller { program: env!("CARGO_BIN_EXE_backstop").into(), become_uid: None, gid }
        }
    }

    async fn backstop(&self, world: &World, args: &[&str]) -> crate::world::Ran {
        let mut command = world.command(&self.program, args);
        if let Some(uid) = self.become_uid {
            command.uid(uid).gid(self.gid);
        }
        finish(command.spawn().unwrap()).await
    }
}

fn roles(act: Option<u32>, admin: Option<u32>) -> Roles {
    let group = |name: &str, gid: Option<u32>| gid.map(|gid| Group { name: name.to_owned(), gid: Some(gid) });
    Roles { own_uid: STRANGER + 1, read: None, act: group("patchers", act), admin: group("operators", admin) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_may_look_and_is_told_who_may_do_the_rest() {
    let mut world = World::without_server();
    let caller = Caller::new(&world);
    world.start_with(Some(caller.gid), roles(None, None), Limits::default());
    caller.backstop(&world, &["status"]).await.exits(0);
    caller.backstop(&world, &["check"]).await.exits(100);
    for args in [&["pause", "--reason", "r"][..], &["run", "--", "true"], &["latch", "clear", "L-1", "--reason", "r"]] {
        caller.backstop(&world, args).await.exits(2).complains(&["may not", "Expected", "root", "Next"]);
    }
    assert!(world.fake.script().asked.is_empty(), "none of it reached the agent");
    let audit = world.audited();
    assert_eq!(audit.len(), 3, "looking is not written down: {audit:?}");
    assert!(matches!(&audit[0].outcome, Outcome::Refused(403, _)) && audit[0].verb == Some(Verb::Pause), "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_may_act_may_not_override_or_clear() {
    let mut world = World::without_server();
    let caller = Caller::new(&world);
    world.start_with(Some(caller.gid), roles(Some(caller.gid), Some(STRANGER + 7)), Limits::default());
    caller.backstop(&world, &["pause", "--reason", "r"]).await.exits(0);
    for args in [
        &["run", "--override", "rate", "--reason", "r", "--", "true"][..],
        &["rejoin", "--skip-check", "--reason", "r"],
        &["latch", "clear", "L-1", "--reason", "r"],
        &["init", "--fleet"],
    ] {
        caller.backstop(&world, args).await.exits(2).complains(&["root or a member of group operators"]);
    }
    assert_eq!(world.fake.script().asked, ["pause r"]);
    let audit = world.audited();
    assert_eq!(audit[0].outcome, Outcome::Answered(0, "done".to_owned()));
    assert!(!audit[0].caller.admin && audit[0].about == "r", "{audit:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_group_may_do_everything() {
    let mut world = World::without_server();
    let caller = Caller::new(&world);
    world.start_with(Some(caller.gid), roles(None, Some(caller.gid)), Limits::default());
    caller.backstop(&world, &["latch", "clear", "L-1", "--reason", "seen"]).await.exits(0);
    caller.backstop(&world, &["rejoin", "--skip-check", "--reason", "r"]).await.exits(0);
    assert!(world.audited().iter().all(|line| line.caller.admin));
    assert_eq!(Role::Admin, Verb::LatchClear.needs());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_in_the_sockets_group_is_told_which_group_that_is() {
    let mut world = World::without_server();
    let caller = Caller::new(&world);
    if caller.become_uid.is_none() {
        return; // only root can be somebody who may not connect to its own socket
    }
    world.start_with(Some(0), roles(None, None), Limits::default());
    caller.backstop(&world, &["status"]).await.exits(2).complains(&[
        "no permission",
        "group root",
        "Next      join group",
    ]);
}
