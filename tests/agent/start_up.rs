//! Whatever an agent finds as it starts: with a cycle that is not over it lives, says what is wrong, and walks the way back.

use crate::scene::{After, BOUND, PROGRAM, Scene};
use crate::support::wire::{Wire, reply};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::rehearse::fleet::patch_request;
use backstop::rehearse::http::{Answer, Request, Response};
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[expect(clippy::disallowed_methods, reason = "not state: the directory is moved out of the agent's sight")]
fn rename(from: &Path, to: &Path) {
    std::fs::rename(from, to).unwrap();
}

/// What systemd would be told.
struct Heard {
    lines: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    path: PathBuf,
}

impl Heard {
    fn listen(path: PathBuf) -> Heard {
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let (lines, stop) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (heard, ended) = (Arc::clone(&lines), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while !ended.load(Ordering::SeqCst) {
                if let Ok(n) = socket.recv(&mut bytes) {
                    heard.lock().unwrap().push(String::from_utf8_lossy(&bytes[..n]).into_owned());
                }
            }
        });
        Heard { lines, stop, thread: Some(thread), path }
    }

    fn says(&self, text: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.starts_with("STATUS=") && line.contains(text))
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Out, its job over, its node not up: the agent is in `check`, and killed there. Then the node comes up.
async fn stopped_on_its_way_back(s: &mut Scene) -> Heard {
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s.me.kill_node().await;
    s.let_job_end(0).await;
    s.tries_in_vain(StageName::Check, "").await;
    s.kill().await;
    s.me.start_node().unwrap();
    let heard = Heard::listen(s.me.dir().join("notify"));
    s.me.agent_env(&[("NOTIFY_SOCKET", &heard.path.to_string_lossy())]);
    heard
}

/// The cycle is over by the state on the disk, and the node in service.
async fn home(s: &Scene) {
    let cycle = s.cycle().to_owned();
    let over = |d: &backstop::core::cycle::Durable| {
        d.cycle.is_none() && d.last.as_ref().is_some_and(|e| e.cycle.as_str() == cycle && e.exit == Exit::Done)
    };
    s.on_disk("the end of the cycle", over).await;
    assert!(s.fleet.serves(&s.me), "{:?}", s.fleet.target_state(&s.me));
}

/// The trouble is told in `STATUS=` and in the log, and paged about once.
async fn told(s: &Scene, heard: &Heard, part: &str, says: &str) {
    s.until("STATUS= says it", || heard.says(part) && heard.says(says)).await;
    assert!(s.me.agent_log().contains(says), "{}", s.me.agent_log());
    assert!(s.fleet.receiver().wait_for_accepted(1, BOUND).await);
    let pages = s.fleet.receiver().accepted();
    let page = &pages[0].body;
    assert_eq!(page["kind"], "agent-fault", "{page}");
    assert!(page["text"].as_str().unwrap().contains(says), "{page}");
}

/// One thing that can be wrong with the place of the socket, and how it is put right.
struct Place {
    name: &'static str,
    says: &'static str,
    spoil: fn(&Scene) -> Option<UnixListener>,
    repair: fn(&Scene, Option<UnixListener>),
}

fn run_dir(s: &Scene) -> PathBuf {
    s.me.socket().parent().unwrap().to_owned()
}

const PLACES: [Place; 5] = [
    Place {
        name: "a directory that others may write to",
        says: "can be written to by others (mode 775)",
        spoil: |s| {
            mode(&run_dir(s), 0o775);
            None
        },
        repair: |s, _| mode(&run_dir(s), 0o755),
    },
    Place {
        name: "a directory that cannot be made",
        says: "runtime directory",
        spoil: |s| {
            std::fs::remove_dir_all(run_dir(s)).unwrap();
            std::fs::File::create(run_dir(s)).unwrap();
            None
        },
        repair: |s, _| std::fs::remove_file(run_dir(s)).unwrap(),
    },
    Place {
        name: "a directory in the socket's place",
        says: "is no socket",
        spoil: |s| {
            let _ = std::fs::remove_file(s.me.socket());
            std::fs::create_dir(s.me.socket()).unwrap();
            None
        },
        repair: |s, _| std::fs::remove_dir(s.me.socket()).unwrap(),
    },
    Place {
        name: "a file in the socket's place",
        says: "is no socket",
        spoil: |s| {
            let _ = std::fs::remove_file(s.me.socket());
            std::fs::File::create(s.me.socket()).unwrap();
            None
        },
        repair: |s, _| std::fs::remove_file(s.me.socket()).unwrap(),
    },
    Place {
        name: "a socket that another process serves",
        says: "another process answers there",
        spoil: |s| {
            let _ = std::fs::remove_file(s.me.socket());
            Some(UnixListener::bind(s.me.socket()).unwrap())
        },
        repair: |_, theirs| drop(theirs),
    },
];

async fn comes_home_without_a_socket(place: &Place) {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let theirs = (place.spoil)(&s);
    let found = std::fs::symlink_metadata(s.me.socket()).ok().map(|m| m.ino());
    s.restart();
    home(&s).await;
    told(&s, &heard, "control socket", place.says).await;
    let left = std::fs::symlink_metadata(s.me.socket()).ok().map(|m| m.ino());
    assert_eq!(left, found, "{}: nothing is made or taken away there", place.name);
    assert!(s.me.status().await.is_err(), "{}: nobody answers", place.name);
    (place.repair)(&s, theirs);
    let status = s.me.wait_ready(BOUND).await.unwrap();
    assert!(!status.warnings.iter().any(|w| w.contains("control socket")), "{}: {:?}", place.name, status.warnings);
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
}

macro_rules! each {
    ($($name:ident: $place:expr;)*) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            comes_home_without_a_socket(&PLACES[$place]).await;
        }
    )*};
}

each! {
    a_way_back_goes_on_without_a_socket_where_others_may_write_to_its_directory: 0;
    a_way_back_goes_on_without_a_socket_where_its_directory_cannot_be_made: 1;
    a_way_back_goes_on_without_a_socket_where_a_directory_is_in_its_place: 2;
    a_way_back_goes_on_without_a_socket_where_a_file_is_in_its_place: 3;
    a_way_back_goes_on_without_a_socket_where_another_process_serves_one: 4;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_directory_that_is_missing_is_made() {
    let mut s = Scene::start().await;
    let _heard = stopped_on_its_way_back(&mut s).await;
    std::fs::remove_dir_all(run_dir(&s)).unwrap();
    s.restart();
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_is_removed_while_the_agent_runs_is_made_again() {
    let s = Scene::start().await;
    std::fs::remove_file(s.me.socket()).unwrap();
    assert!(s.me.status().await.is_err());
    s.me.wait_ready(BOUND).await.unwrap();
}

/// A run is refused with this sentence.
async fn refused_as(s: &Scene, wanted: Exit, says: &str) {
    let reply = s.me.run(&patch_request("another", &["true"], RebootPolicy::Never)).await.unwrap();
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, wanted.code(), "{message}");
    assert!(message.contains(says), "{message}");
}

/// The guard refuses with this sentence.
async fn refused(s: &Scene, says: &str) {
    refused_as(s, Exit::Guard, "state-durable").await;
    refused_as(s, Exit::Guard, says).await;
}

async fn comes_home_with_a_doubtful_state_directory(spoil: fn(&Path), says: &str, repair: fn(&Path)) {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    spoil(&s.me.state_dir());
    s.restart();
    home(&s).await;
    told(&s, &heard, "state directory", says).await;
    refused(&s, says).await;
    repair(&s.me.state_dir());
    s.me.wait_status(BOUND, |s| !s.warnings.iter().any(|w| w.contains("state directory"))).await.unwrap();
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
    let reply = s.me.run(&patch_request("again", &["true"], RebootPolicy::Never)).await.unwrap();
    assert!(matches!(reply, RunReply::Started { .. }), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_goes_on_in_a_state_directory_that_others_may_write_to_and_nothing_new_starts() {
    comes_home_with_a_doubtful_state_directory(
        |dir| mode(dir, 0o770),
        "may be written to by others (mode 0770)",
        |dir| mode(dir, 0o700),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_goes_on_in_a_state_directory_of_another_user_and_nothing_new_starts() {
    let temp = tempfile::tempdir().unwrap();
    if chown(temp.path(), Some(65_534), None).is_err() {
        return; // only root can give a directory away, and only root can use one that it does not own
    }
    comes_home_with_a_doubtful_state_directory(
        |dir| chown(dir, Some(65_534), None).unwrap(),
        "belongs to user 65534",
        |dir| chown(dir, Some(0), None).unwrap(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_file_that_somebody_else_put_there_is_not_believed() {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let file = s.me.state_dir().join("state.json");
    mode(&s.me.state_dir(), 0o777);
    mode(&file, 0o666);
    s.restart();
    s.until("home", || s.fleet.serves(&s.me)).await;
    s.until("STATUS= says it", || heard.says("may be written to by others")).await;
    let end = |d: &backstop::core::cycle::Durable| d.last.as_ref().is_some_and(|e| e.exit == Exit::StateUnreadable);
    s.on_disk("the end of a way back without state", end).await;
    assert!(s.me.agent_log().contains("not this agent's own"), "{}", s.me.agent_log());
    let record = s.fleet.record().unwrap();
    assert_eq!(record.open_latches().map(|(_, l)| l.class.to_string()).collect::<Vec<_>>(), ["state"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_state_directory_cannot_be_used_at_all_is_latched_paged_and_brought_back() {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let (dir, aside) = (s.me.state_dir(), s.me.dir().join("aside"));
    rename(&dir, &aside);
    std::fs::File::create(&dir).unwrap();
    s.restart();
    s.until("in service", || s.fleet.serves(&s.me)).await;
    s.until("STATUS= says it", || heard.says("cannot be used")).await;
    assert!(s.fleet.receiver().wait_for_accepted(2, BOUND).await);
    let pages: Vec<_> = s.fleet.receiver().accepted().iter().map(|p| p.body["kind"].clone()).collect();
    assert!(pages.contains(&"latched".into()) && pages.contains(&"agent-fault".into()), "{pages:?}");
    let record = s.fleet.record().unwrap();
    let latches: Vec<_> = record.open_latches().map(|(_, l)| l.class.to_string()).collect();
    assert_eq!((latches, record.slots.len()), (vec!["state".to_owned()], 1), "nothing is freed that is not stored");
    refused_as(&s, Exit::Latched, "failed in check").await;
}

/// As root a directory is written to whatever its mode is, so it is mounted read-only for the agent alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_begins_and_ends_in_service_on_a_state_directory_that_takes_no_write() {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let dir = s.me.state_dir();
    let root = rustix::process::geteuid().is_root();
    let alone = if root {
        let mount = format!("mount --bind -o ro {0} {0} && exec \"$@\"", dir.display());
        if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success()) {
            return; // no name space of its own in this container
        }
        vec!["unshare".to_owned(), "-m".into(), "sh".into(), "-c".into(), mount, "sh".into()]
    } else {
        mode(&dir, 0o500);
        Vec::new()
    };
    let before = s.me.durable().unwrap();
    let agent = Solo::start(&s, &alone, |_| {}, &[("NOTIFY_SOCKET", &heard.path.to_string_lossy())]);
    s.until("in service", || s.fleet.serves(&s.me)).await;
    s.until("STATUS= says what it waits for", || heard.says("settle") || heard.says("release")).await;
    assert_eq!(s.me.durable().unwrap(), before, "nothing was written");
    assert_eq!(s.fleet.record().unwrap().slots.len(), 1, "and nothing is freed by what is not stored");
    agent.kill();
    if !root {
        mode(&dir, 0o700);
    }
    s.restart();
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_waits_in_release_for_a_record_directory_that_is_none_and_ends_once_it_is_back() {
    let mut s = Scene::start().await;
    let _heard = stopped_on_its_way_back(&mut s).await;
    let (dir, aside) = (s.fleet.record_dir().to_owned(), s.fleet.dir().join("aside"));
    rename(&dir, &aside);
    std::fs::File::create(&dir).unwrap();
    s.restart();
    s.stage_on_disk(StageName::Release).await;
    assert!(s.fleet.serves(&s.me));
    s.tries_in_vain(StageName::Release, "fleet record").await;
    std::fs::remove_file(&dir).unwrap();
    rename(&aside, &dir);
    s.ends(&After::GOES_ON).await;
}

/// An agent of the first machine, started otherwise than its machine would. Ends with its value.
struct Solo {
    child: Child,
    log: PathBuf,
}

impl Solo {
    /// `wrapper`: what executes it. `edit` changes the config that the machine would have written.
    fn start(s: &Scene, wrapper: &[String], edit: impl FnOnce(&mut toml::Table), env: &[(&str, &str)]) -> Solo {
        s.me.write_config().unwrap();
        let mut config: toml::Table = std::fs::read_to_string(s.me.config_file()).unwrap().parse().unwrap();
        edit(&mut config);
        let file = s.me.dir().join("solo.toml");
        let mut text = std::fs::File::create(&file).unwrap();
        std::io::Write::write_all(&mut text, toml::to_string(&config).unwrap().as_bytes()).unwrap();
        Solo::with_file(s, wrapper, &file, env)
    }

    fn with_file(s: &Scene, wrapper: &[String], file: &Path, env: &[(&str, &str)]) -> Solo {
        let log = s.me.dir().join("agent.log");
        let out = std::fs::OpenOptions::new().create(true).append(true).open(&log).unwrap();
        let mut line = wrapper.to_vec();
        line.push(PROGRAM.to_owned());
        let mut command = Command::new(&line[0]);
        command.args(&line[1..]).args(["agent", "--config"]).arg(file).arg("--state-dir").arg(s.me.state_dir());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("AWS_ACCESS_KEY_ID", "rehearsal").env("AWS_SECRET_ACCESS_KEY", "rehearsal");
        command.env("AWS_EC2_METADATA_DISABLED", "true").envs(env.iter().copied());
        command.stdin(Stdio::null()).stdout(out.try_clone().unwrap()).stderr(out);
        Solo { child: command.spawn().unwrap(), log }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Solo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An instance metadata service that answers once it is told to, with this id.
async fn metadata(id: &str, answers: &Arc<AtomicBool>) -> Wire {
    let (id, answers) = (id.to_owned(), Arc::clone(answers));
    Wire::answering(move |r: &Request| match r.path() {
        _ if !answers.load(Ordering::SeqCst) => reply(500, ""),
        "/latest/api/token" => {
            let token = Response::new(200, "text/plain", "token");
            Answer::Reply(token.with("x-aws-ec2-metadata-token-ttl-seconds", "21600"))
        }
        "/latest/meta-data/instance-id" => reply(200, &id),
        "/latest/meta-data/local-ipv4" => reply(200, "10.0.0.7"),
        _ => reply(404, ""),
    })
    .await
}

/// The instance is not stated: it is asked for there.
fn asks(server: &Wire) -> impl FnOnce(&mut toml::Table) {
    let url = server.url();
    move |config| {
        let node = config["node"].as_table_mut().unwrap();
        node.remove("instance_id");
        node.insert("imds_endpoint".to_owned(), url.into());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_waits_for_instance_metadata_says_so_and_begins_once_it_is_there() {
    let s = Scene::start().await;
    s.terminate().await;
    let answers = Arc::new(AtomicBool::new(false));
    let server = metadata(s.me.instance(), &answers).await;
    let heard = Heard::listen(s.me.dir().join("notify"));
    let agent = Solo::start(&s, &[], asks(&server), &[("NOTIFY_SOCKET", &heard.path.to_string_lossy())]);
    let waits = |s: &backstop::control::protocol::Status| {
        s.starting.as_ref().is_some_and(|t| t.starts_with("starting: waiting for instance metadata (try"))
    };
    let status = s.me.wait_status(BOUND, waits).await.unwrap_or_else(|e| panic!("{e}\n{}", agent.log()));
    assert_eq!((status.node.as_str(), status.instance.as_str()), (s.me.name(), "unknown"));
    assert!(heard.says("waiting for instance metadata"));
    let pid = rustix::process::Pid::from_child(&agent.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    let reply = s.me.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap();
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{reply:?}") };
    assert_eq!(*exit, Exit::Unreachable.code());
    assert!(message.contains("waiting for instance metadata"), "{message}");
    answers.store(true, Ordering::SeqCst);
    let status = s.me.wait_sees(2, BOUND).await.unwrap();
    assert_eq!((status.starting, status.instance.as_str()), (None, s.me.instance()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_of_the_present_boot_needs_no_instance_metadata_and_the_agent_acts_again_once_it_is_there() {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let answers = Arc::new(AtomicBool::new(false));
    let server = metadata(s.me.instance(), &answers).await;
    let agent = Solo::start(&s, &[], asks(&server), &[("NOTIFY_SOCKET", &heard.path.to_string_lossy())]);
    home(&s).await;
    s.until("STATUS= says why nothing starts", || heard.says("instance metadata does not answer")).await;
    let status = s.me.wait_ready(BOUND).await.unwrap();
    assert!(status.config_problem.is_some_and(|why| why.contains("only the way back")), "{}", agent.log());
    answers.store(true, Ordering::SeqCst);
    s.me.wait_status(BOUND, |s| s.config_problem.is_none() && !s.warnings.iter().any(|w| w.contains("identity")))
        .await
        .unwrap();
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
}

/// An image of a running node carries its state too: what nothing proves is not taken for this node's own.
#[tokio::test(flavor = "multi_thread")]
async fn a_state_of_another_boot_waits_for_instance_metadata_pages_and_is_resumed_only_by_its_own_instance() {
    for own in [true, false] {
        let mut s = Scene::start().await;
        let heard = stopped_on_its_way_back(&mut s).await;
        let answers = Arc::new(AtomicBool::new(false));
        let id = if own { s.me.instance().to_owned() } else { "i-0000000000000beef".to_owned() };
        let server = metadata(&id, &answers).await;
        let edit = asks(&server);
        let edit = |config: &mut toml::Table| {
            edit(config);
            config["rehearsal"].as_table_mut().unwrap().insert("boot_id".to_owned(), "another".into());
        };
        let before = s.me.durable().unwrap();
        let agent = Solo::start(&s, &[], edit, &[("NOTIFY_SOCKET", &heard.path.to_string_lossy())]);
        told(&s, &heard, "identity", "may be OUT and does not come back by itself").await;
        assert_eq!(s.me.durable().unwrap(), before, "nothing is resumed\n{}", agent.log());
        assert!(!s.fleet.serves(&s.me));
        answers.store(true, Ordering::SeqCst);
        if own {
            s.until("home", || s.fleet.serves(&s.me)).await;
        } else {
            s.until("set aside", || s.me.state_dir().join("state.json.quarantine-1").exists()).await;
            assert!(
                !s.fleet.serves(&s.me) && s.fleet.record().unwrap().slots.len() == 1,
                "not that instance's to free"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_back_goes_on_by_what_its_cycle_wrote_down_where_the_config_and_its_copy_are_lost() {
    let mut s = Scene::start().await;
    let heard = stopped_on_its_way_back(&mut s).await;
    let server = metadata(s.me.instance(), &Arc::new(AtomicBool::new(true))).await;
    let copy = s.me.state_dir().join("config.good.toml");
    assert!(copy.exists());
    std::fs::remove_file(&copy).unwrap();
    let file = s.me.dir().join("lost.toml");
    let run = run_dir(&s);
    let agent = Solo::with_file(
        &s,
        &[],
        &file,
        &[
            ("NOTIFY_SOCKET", &heard.path.to_string_lossy()),
            ("RUNTIME_DIRECTORY", &run.to_string_lossy()),
            ("AWS_EC2_METADATA_SERVICE_ENDPOINT", &server.url()),
            ("AWS_ENDPOINT_URL", &s.fleet.endpoint()),
        ],
    );
    s.until("in service", || s.fleet.serves(&s.me)).await;
    s.stage_on_disk(StageName::Release).await;
    s.until("STATUS= says what is missing", || heard.says("nobody is paged")).await;
    assert!(agent.log().contains("its slot stays taken"), "{}", agent.log());
    let status = s.me.wait_ready(BOUND).await.unwrap();
    assert!(status.config_problem.is_some_and(|why| why.contains("lost.toml")));
    assert_eq!(s.fleet.record().unwrap().slots.len(), 1);
    agent.kill();
    s.restart();
    s.until("its slot is free", || s.fleet.record().unwrap().slots.is_empty()).await;
    s.peer_stayed();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_config_copy_and_cycle_an_agent_exits_2() {
    let s = Scene::start().await;
    s.terminate().await;
    std::fs::remove_file(s.me.state_dir().join("config.good.toml")).unwrap();
    let mut agent = Solo::with_file(&s, &[], &s.me.dir().join("lost.toml"), &[]);
    let mut ended = None;
    s.until("its end", || {
        ended = agent.child.try_wait().unwrap();
        ended.is_some()
    })
    .await;
    assert_eq!(ended.unwrap().code(), Some(2), "{}", agent.log());
}

/// Removed, or replaced: somebody may have let another agent in.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_lost_while_the_agent_runs_ends_new_cycles_and_not_the_one_under_way() {
    let mut s = Scene::start().await;
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    let lock = s.me.state_dir().join("lock");
    std::fs::remove_file(&lock).unwrap();
    std::fs::File::create(&lock).unwrap();
    s.let_job_end(0).await;
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
    let page = &s.fleet.receiver().accepted()[0].body;
    assert_eq!(page["kind"], "agent-fault");
    assert!(page["text"].as_str().unwrap().contains("was removed or replaced"), "{page}");
    refused(&s, "restart this one").await;
    s.terminate().await;
    s.restart();
    s.me.wait_sees(2, BOUND).await.unwrap();
    let reply = s.me.run(&patch_request("again", &["true"], RebootPolicy::Never)).await.unwrap();
    assert!(matches!(reply, RunReply::Started { .. }), "{reply:?}");
}

/// The SDK says the whole answer; the agent's own line has what is to be known of it.
#[tokio::test(flavor = "multi_thread")]
async fn no_body_of_an_answer_reaches_the_log_unless_the_environment_asks_for_it() {
    use backstop::rehearse::elbv2::{Action, Fault, Outcome, Trouble};
    for raised in [false, true] {
        let mut o = crate::scene::options();
        if raised {
            o.agent_env = vec![("RUST_LOG".to_owned(), "aws=trace".to_owned())];
        }
        let s = Scene::with(o).await;
        for trouble in [Trouble::Junk, Trouble::Html(503)] {
            s.fleet.elbv2().clear_calls();
            s.fleet.elbv2().inject(Fault::always(trouble.clone()).on(Action::DescribeTargetHealth));
            let outcome = Outcome::Trouble(trouble.name());
            s.until("a call that fails so", || s.fleet.elbv2().calls().iter().any(|c| c.outcome == outcome)).await;
            let told = |s: &backstop::control::protocol::Status| s.sees.iter().any(|s| s.fault.is_some());
            s.me.wait_status(BOUND, told).await.unwrap();
            s.fleet.elbv2().clear_faults();
        }
        let log = s.me.agent_log();
        let shown = ["<html", "xmlns", "it works!"].iter().any(|part| log.contains(part));
        assert_eq!(shown, raised, "{log}");
    }
}
