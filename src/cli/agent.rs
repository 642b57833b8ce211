//! `backstop agent`: the one place that puts adapters into ports.
//!
//! Nothing that is wrong here ends an agent whose node may be out: what is missing it says (`notices`) and goes on without.

pub(super) mod adapters;
mod chosen;
mod door;
mod front;
mod notices;
mod scrape;
mod who;

use crate::agent::alerts::deliver;
use crate::agent::handle::{Handle, Reload};
use crate::agent::measure;
use crate::agent::observe;
use crate::agent::shared::{NodeView, Parts, Shared, World};
use crate::agent::supervisor::{Task, keep, spawn};
use crate::agent::turn::{Agent, EFFECT_MS, Request};
use crate::agent::turns::{Loop, Turns, feed};
use crate::bounded::blocking;
use crate::clock::{Clock, Scale, SystemClock};
use crate::config::Config;
use crate::control::backend::Backend as _;
use crate::control::protocol::Done;
use crate::core::exit::Exit;
use crate::core::page::{PageKind, Severity};
use crate::core::time::BootId;
use crate::dbus::Bus;
use crate::elasticsearch::NodeChecker;
use crate::elbv2::Elb;
use crate::fleet::file::FileFleet;
use crate::fleet::{self, Fleet};
use crate::host::identity::{InstanceIdentity, Metadata};
use crate::host::system::SystemHost;
use crate::jobs::runner::Runner;
use crate::metrics::{Counted, Metrics};
use crate::ports::PageSink;
use crate::state::disk::LinuxDisk;
use crate::state::journal::{Found, Journal};
use crate::state::lock::{InstanceLock, LockError};
use anyhow::{Context as _, bail};
use chosen::{Chosen, Files};
use door::Door;
use notices::Notices;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Requests that may wait for the loop.
const QUEUE_MAX: usize = 64;
/// Between two starts of a task that died, in ms.
const RESTART_PAUSE_MS: u64 = 1_000;
/// Between two looks at what the state directory stands on, and at an identity that is not the metadata service's, in ms.
const WATCH_MS: u64 = 10_000;
/// One look at the state directory.
const LOOK_WAIT: Duration = Duration::from_secs(5);
/// At its end the agent waits so long for threads that a disk holds.
const END_WAIT: Duration = Duration::from_secs(2);

/// The real world.
struct SystemWorld;

impl World for SystemWorld {
    type Balancer = Counted<Elb>;
    type Check = Counted<NodeChecker>;
    type Store = Counted<fleet::Store>;
    type Jobs = Runner;
    type Host = SystemHost;
    type Clock = SystemClock;
    type Disk = LinuxDisk;
}

/// Arguments of the verb.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Where the last good config is looked for when the file is bad: systemd's StateDirectory
    #[arg(long, value_name = "DIR", default_value = "/var/lib/backstop")]
    state_dir: PathBuf,
}

/// Runs until it is told to stop.
///
/// # Errors
/// What keeps it from starting at all.
pub(super) fn start(config: &Path, args: Args) -> anyhow::Result<Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(run(Files { config: config.to_owned(), state_dir: args.state_dir }));
    // A thread in a system call that never returns must not keep the process.
    runtime.shutdown_timeout(END_WAIT);
    ended
}

/// Runs until SIGTERM. `Usage` = there is no good config and never was.
async fn run(args: Files) -> anyhow::Result<Exit> {
    let host = super::context::hostname();
    let chosen = match chosen::choose(&args, &host) {
        Ok(chosen) => chosen,
        Err(problem) => {
            tracing::error!("{problem}");
            let _ = writeln!(std::io::stderr(), "{problem}");
            return Ok(Exit::Usage);
        }
    };
    crate::telemetry::start(&chosen.config.log);
    let clock = clock(&chosen.config)?;
    let stop = stop_on_signal()?;
    // From here on SIGHUP does not end the process; it is listened to once there is something to reload.
    let _not_yet = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup())?;
    let (send, queue) = mpsc::channel(QUEUE_MAX);
    let notices = Notices::new(send.clone());
    let tasks = Tasks { clock: clock.clone(), notices: notices.clone() };
    let turns = Turns::default();
    let _watchdog = watchdog(&tasks, &turns, &chosen.config);
    let (path, rehearses) = (chosen.config.paths.state_dir.clone(), chosen.config.rehearsal.host.is_some());
    let open = move || state_dir(&path, rehearses);
    let Some(disk) = waited("opening the state directory", open, &notices, &stop).await? else {
        return Ok(Exit::Done);
    };
    let disk = disk?;
    let (looked_at, at, told) = (disk.clone(), clock.clone(), notices.clone());
    let _looks = tasks.keep("state directory", move || watch_state_dir(looked_at.clone(), at.clone(), told.clone()));
    notices.wrong("config", Severity::Critical, chosen.lost.clone());
    let door = Door::new(&chosen.config, &disk, clock.clone(), notices.clone(), turns.clone());
    // Where nobody has to be asked nobody waits: the door opens once all of the agent is behind it.
    let opened = chosen.config.node.instance_id.is_none().then(|| tasks.open(&door));
    if opened.is_some() {
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    }
    let asking = who::Asking {
        config: &chosen.config,
        clock: &clock,
        disk: &disk,
        front: &door.front,
        notices: &notices,
        sinks: &sinks(&chosen).0,
    };
    let Some(known) = asking.identity(stop.clone()).await else { return Ok(Exit::Done) };
    if chosen.problem.is_none() {
        keep_good(&disk, chosen.bytes.clone()).await;
    }
    let started = Started { clock, disk, known, door, opened, notices, tasks, turns, stop, send, queue };
    Box::pin(serve(args, host, chosen, started)).await
}

/// Work that nothing can begin without, on a disk that may hang. `None` = asked to stop.
async fn waited<T: Send + 'static>(
    what: &str,
    work: impl FnOnce() -> T + Send + 'static,
    notices: &Notices,
    stop: &watch::Receiver<bool>,
) -> anyhow::Result<Option<T>> {
    let (mut working, mut stop) = (tokio::task::spawn_blocking(work), stop.clone());
    loop {
        tokio::select! {
            done = tokio::time::timeout(LOOK_WAIT, &mut working) => match done {
                Ok(done) => return Ok(Some(done.with_context(|| what.to_owned())?)),
                Err(_) => notices.doing(&format!("starting: {what} takes long: does its disk hang?")),
            },
            _ = stop.wait_for(|s| *s) => return Ok(None),
        }
    }
}

/// The state directory with its lock. Only another agent on it is a reason to end: that one walks the way back. No cycle
/// begins where it is in memory; a rehearsal's machines restart without forgetting it.
fn state_dir(path: &Path, rehearses: bool) -> anyhow::Result<Arc<LinuxDisk>> {
    let disk = Arc::new(LinuxDisk::open(path));
    for warning in disk.warnings() {
        tracing::warn!("{warning}");
    }
    if let Some(why) = disk.in_memory().filter(|_| !rehearses) {
        disk.distrust(why);
    }
    match InstanceLock::acquire(path) {
        Err(held @ LockError::Held { .. }) => return Err(held.into()),
        Ok(lock) => disk.hold(Ok(lock)),
        Err(e) => {
            let why = format!("there is no lock on {} ({e}), so another agent may run on it", path.display());
            disk.hold(Err(why));
        }
    }
    Ok(disk)
}

/// Looks every few seconds whether the state directory is still sound and this agent's alone. Where it is not no new cycle
/// starts (guard `state-durable`), a person is paged, and the way back goes on.
async fn watch_state_dir(disk: Arc<LinuxDisk>, clock: SystemClock, notices: Notices) {
    loop {
        let looked_at = disk.clone();
        let doubt = blocking(LOOK_WAIT, move || looked_at.doubt()).await;
        let doubt = doubt.unwrap_or_else(|why| Some(format!("it cannot be looked at: {why}")));
        let told = doubt.map(|why| format!("{why}; until then no cycle starts"));
        notices.wrong("state directory", Severity::Critical, told);
        clock.sleep_ms(WATCH_MS).await;
    }
}

/// Starts tasks that are started again when they die.
#[derive(Clone)]
struct Tasks {
    clock: SystemClock,
    notices: Notices,
}

impl Tasks {
    fn keep<F>(&self, name: &'static str, make: impl Fn() -> F + Send + 'static) -> Task<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.keep_and(name, make, || {})
    }

    /// The same, and `died` is told of each death.
    fn keep_and<F>(
        &self,
        name: &'static str,
        make: impl Fn() -> F + Send + 'static,
        died: impl Fn() + Send + 'static,
    ) -> Task<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (notices, clock) = (self.notices.clone(), self.clock.clone());
        let pause = move || {
            let clock = clock.clone();
            async move { clock.sleep_ms(RESTART_PAUSE_MS).await }
        };
        let report = move |task, why: String| {
            notices.died(task, &why);
            died();
        };
        keep(name, make, report, pause)
    }

    fn open(&self, door: &Door<Handle<SystemWorld>>) -> Task<()> {
        let door = door.clone();
        self.keep("control socket", move || door.clone().serve())
    }
}

struct Started {
    clock: SystemClock,
    disk: Arc<LinuxDisk>,
    known: who::Known,
    door: Door<Handle<SystemWorld>>,
    opened: Option<Task<()>>,
    notices: Notices,
    tasks: Tasks,
    turns: Turns,
    stop: watch::Receiver<bool>,
    send: mpsc::Sender<Request>,
    queue: mpsc::Receiver<Request>,
}

async fn serve(args: Files, host: String, chosen: Chosen, s: Started) -> anyhow::Result<Exit> {
    let (problem, doubt) = (chosen.problem.clone(), s.known.doubt.clone());
    let chosen = Chosen { problem: chosen.problem.or(doubt.clone()), ..chosen };
    s.door.front.starting("starting: reading the state".to_owned());
    let instance = crate::core::ids::InstanceId(s.known.identity.instance_id.clone());
    let opened_on = s.disk.clone();
    let open = move || Journal::open(&opened_on, &instance);
    let Some((journal, found)) = waited("reading the state", open, &s.notices, &s.stop).await? else {
        return Ok(Exit::Done);
    };
    let view = NodeView { durable: journal.now().clone(), seen: crate::core::cycle::Seen::default(), unstored: None };
    let metrics = Metrics::default();
    let (parts, wrong) = parts(chosen, &s.known.identity, &metrics).await;
    if !wrong.is_empty() {
        let idle = journal.now().cycle.is_none() && !matches!(found, Found::Unreadable(_));
        if idle {
            bail!("{}", wrong.join("; "));
        }
        s.notices.wrong("adapters", Severity::Critical, Some(wrong.join("; ")));
    }
    let shared = Shared::<SystemWorld>::new(parts, s.known.identity, s.clock.clone(), s.disk, view);
    let shared = Arc::new(shared.watched(metrics, s.turns));

    let reload = reloader(args, host, shared.clone(), s.send.clone());
    let handle = Handle::new(shared.clone(), s.send.clone(), reload.clone());
    s.door.front.ready(handle.clone());
    let _door = s.opened.unwrap_or_else(|| s.tasks.open(&s.door));
    let _reloads = s.tasks.keep("reload", move || on_hup(handle.clone()));
    let _measured = measured(&shared, &s.tasks);
    begin(&shared);
    let looking = shared.clone();
    let observer = move || observe::observe(looking.clone());
    let (stumbling, at) = (shared.turns.clone(), s.clock.clone());
    let stumbled = move || stumbling.stumbled(Loop::Observer, &at.now(), RESTART_PAUSE_MS);
    let _observer = s.tasks.keep_and("observer", observer, stumbled);
    let (delivering, pages) = (shared.clone(), s.send.clone());
    let _pages = s.tasks.keep("pages", move || deliver(delivering.clone(), pages.clone()));
    let beating = shared.clone();
    let _heart = s.tasks.keep("outside watch", move || crate::agent::watch::beat(beating.clone()));
    let (asking, told) = (shared.clone(), s.notices.clone());
    let _metadata = doubt.map(|doubt| {
        told.wrong("identity", Severity::Warning, Some(doubt));
        s.tasks.keep("metadata", move || metadata_again(asking.clone(), reload.clone(), told.clone()))
    });

    let status = s.notices.clone();
    let mut agent = Agent::new(shared.clone(), journal, s.queue, Box::new(move |text| status.doing(text)));
    agent.recover(found).await;
    if let Some(problem) = problem {
        tracing::error!(problem, "the config file cannot be used");
        let message =
            format!("the config file cannot be used; the last good one is in force and no cycle starts:\n{problem}");
        let _ = s.send.try_send(Request::Fault(PageKind::ConfigUnusable, Severity::Critical, message.into()));
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!("ready");
    Box::pin(agent.run(s.stop)).await;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    let _ = blocking(END_WAIT, move || shared.audit.flush(END_WAIT)).await;
    Ok(Exit::Done)
}

/// Loops that are about to start, so that one that never gets anywhere is noticed too.
fn begin(shared: &Shared<SystemWorld>) {
    let now = shared.clock.now();
    // Resuming is a few effects: a state that is lost asks the record and the load balancer about this node.
    shared.turns.begin(Loop::Agent, &now, EFFECT_MS.saturating_mul(3));
    shared.turns.begin(Loop::Observer, &now, observe::look_ms(&shared.parts().config));
}

/// systemd hears that the agent lives only while every loop turns; `None` = it does not ask.
fn watchdog(tasks: &Tasks, turns: &Turns, config: &Config) -> Option<Task<()>> {
    let half_ms = u64::try_from(sd_notify::watchdog_enabled()?.as_millis()).unwrap_or(u64::MAX).checked_div(2)?;
    // systemd's time is never compressed.
    let every_ms = half_ms.max(1).saturating_mul(config.rehearsal.time_scale.into());
    let (turns, clock, notices) = (turns.clone(), tasks.clock.clone(), tasks.notices.clone());
    Some(tasks.keep("watchdog", move || {
        let notices = notices.clone();
        feed(turns.clone(), clock.clone(), every_ms, move |fresh| {
            if fresh.is_ok() {
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
            let why = |which| format!("the loop `{which}` stands still; systemd will start this agent again");
            notices.wrong("watchdog", Severity::Critical, fresh.err().map(why));
        })
    }))
}

/// Whatever tells metrics.
fn measured(shared: &Arc<Shared<SystemWorld>>, tasks: &Tasks) -> Vec<Task<()>> {
    let config = shared.parts().config.clone();
    let answering = scrape::Place::of(&config).into_iter().map(|place| {
        let (shared, clock, notices) = (shared.clone(), tasks.clock.clone(), tasks.notices.clone());
        let expose: crate::metrics::serve::Expose = Arc::new(move || measure::expose(&shared));
        tasks.keep(place.name(), move || place.clone().answer(expose.clone(), clock.clone(), notices.clone()))
    });
    let writing = config.metrics.textfile.clone().map(|path| {
        let shared = shared.clone();
        tasks.keep("metrics file", move || measure::write_file(shared.clone(), path.clone()))
    });
    answering.chain(writing).collect()
}

/// Runs after a start without metadata, until the service answers: then the agent acts again.
async fn metadata_again(shared: Arc<Shared<SystemWorld>>, reload: Reload, notices: Notices) {
    loop {
        match who::ask(&shared.parts().config).await {
            Ok(answer) if answer.instance_id == shared.identity.instance_id => {
                shared.cache().local_ipv4 = answer.local_ipv4;
                let done = reload().await;
                tracing::info!(
                    exit = done.exit,
                    message = done.message,
                    "instance metadata answers, and says the same"
                );
                notices.wrong("identity", Severity::Warning, None);
                // Nothing is left to be done, and an end would be taken for a death.
                return std::future::pending().await;
            }
            Ok(answer) => {
                let (id, stored) = (answer.instance_id, &shared.identity.instance_id);
                let why = format!("instance metadata says {id}, and the state {stored}: restart the agent");
                notices.wrong("identity", Severity::Critical, Some(why));
            }
            Err(fault) => tracing::warn!(%fault, "instance metadata still does not answer"),
        }
        shared.clock.sleep_ms(WATCH_MS).await;
    }
}

async fn keep_good(disk: &Arc<LinuxDisk>, bytes: Vec<u8>) {
    let disk = disk.clone();
    if let Err(why) = blocking(LOOK_WAIT, move || chosen::keep(&disk, &bytes)).await {
        tracing::warn!(why, "the good config may not have been kept");
    }
}

fn clock(config: &Config) -> anyhow::Result<SystemClock> {
    let clock = match &config.rehearsal.boot_id {
        Some(id) => SystemClock::with_boot(BootId(id.clone())),
        None => SystemClock::new()?,
    };
    Ok(match (config.rehearsal.time_scale, config.rehearsal.time_epoch_ms) {
        (0 | 1, _) => clock,
        (factor, epoch) => {
            let epoch_wall_ms = epoch.unwrap_or_else(|| clock.now().wall_ms);
            clock.scaled(Scale { factor, epoch_wall_ms })
        }
    })
}

/// The pagers, and what keeps one from being used.
fn sinks(chosen: &Chosen) -> (Vec<Box<dyn PageSink>>, Vec<String>) {
    if chosen.lost.is_some() {
        return (Vec::new(), Vec::new());
    }
    crate::alerts::sinks(&chosen.config.pager)
}

/// The store of the fleet record.
fn store(chosen: &Chosen) -> fleet::Store {
    match &chosen.lost {
        Some(why) => fleet::Store::File(FileFleet::none(format!("where the fleet record is is not known: {why}"))),
        None => adapters::store(&chosen.config),
    }
}

/// The adapters, and what could not be had of them.
async fn parts(chosen: Chosen, identity: &InstanceIdentity, metrics: &Metrics) -> (Parts<SystemWorld>, Vec<String>) {
    let store = store(&chosen);
    let (sinks, no_pager) = sinks(&chosen);
    let wrong: Vec<String> = no_pager.into_iter().collect();
    let c = &chosen.config;
    // With a stated id nobody may be there to ask.
    let metadata = match &c.node.instance_id {
        Some(_) => None,
        None => Metadata::new(&who::metadata_settings(c)).ok(),
    };
    let bus = Bus::default();
    let parts = Parts {
        balancer: Counted::new(adapters::balancer(c).await, metrics),
        check: Counted::new(NodeChecker::new(), metrics),
        fleet: Fleet::new(Counted::new(store, metrics), c.fleet.as_str().into()),
        jobs: adapters::jobs(c, &bus),
        host: SystemHost::new(c.rehearsal.host.clone(), identity.instance_id.clone(), metadata, bus),
        sinks: sinks.into_iter().map(|sink| -> Box<dyn PageSink> { Box::new(Counted::new(sink, metrics)) }).collect(),
        problem: chosen.problem,
        warnings: chosen.warnings,
        config: chosen.config,
    };
    (parts, wrong)
}

/// Reads the file again. A bad one changes nothing but the answer; some keys need a restart and say so.
fn reloader(args: Files, host: String, shared: Arc<Shared<SystemWorld>>, queue: mpsc::Sender<Request>) -> Reload {
    Arc::new(move || Box::pin(reload(args.clone(), host.clone(), shared.clone(), queue.clone())))
}

async fn reload(args: Files, host: String, shared: Arc<Shared<SystemWorld>>, queue: mpsc::Sender<Request>) -> Done {
    let done = Box::pin(read_again(args, host, &shared, queue)).await;
    shared.cache().reload_problem = (done.exit != 0).then(|| done.message.clone());
    done
}

async fn read_again(
    args: Files,
    host: String,
    shared: &Arc<Shared<SystemWorld>>,
    queue: mpsc::Sender<Request>,
) -> Done {
    let old = shared.parts();
    let not =
        |message: String| Done { exit: Exit::Usage.code(), message, next: Some("backstop config check".to_owned()) };
    let chosen = match chosen::read(&args.config, &host) {
        Ok(chosen) => chosen,
        Err(problem) => {
            tracing::error!(problem, "reload: the old config stays");
            let message = format!("the config file cannot be used; the old one stays in force:\n{problem}");
            let _ = queue.try_send(Request::Fault(PageKind::ConfigUnusable, Severity::Warning, message.clone().into()));
            return not(message);
        }
    };
    let (a, b) = (&old.config, &chosen.config);
    if a.paths != b.paths
        || a.fleet != b.fleet
        || a.record != b.record
        || a.node != b.node
        || a.metrics != b.metrics
        || a.rehearsal != b.rehearsal
    {
        let message =
            "fleet, paths, record, node, metrics and rehearsal cannot change while the agent runs: restart it";
        return not(message.to_owned());
    }
    let bytes = chosen.bytes.clone();
    let identity = shared.identity.clone();
    let (parts, wrong) = parts(chosen, &identity, &shared.metrics).await;
    if !wrong.is_empty() {
        return not(wrong.join("; "));
    }
    keep_good(&shared.disk, bytes).await;
    let fleet = parts.fleet.after(&old.fleet);
    shared.replace_parts(Parts { fleet, ..parts });
    Done { exit: 0, message: "the config file was read again".to_owned(), next: None }
}

/// Each SIGHUP reads the config again.
async fn on_hup(handle: Handle<SystemWorld>) {
    let hup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup());
    let Ok(mut hup) = hup.inspect_err(|error| tracing::error!(%error, "SIGHUP cannot be listened to")) else { return };
    while hup.recv().await.is_some() {
        let done = handle.reload().await;
        tracing::info!(exit = done.exit, message = done.message, "reload");
    }
}

fn stop_on_signal() -> anyhow::Result<watch::Receiver<bool>> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (send, stop) = watch::channel(false);
    let task = spawn(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("asked to stop: the state says what to do next");
        let _ = send.send(true);
        std::future::pending::<()>().await;
    });
    std::mem::forget(task);
    Ok(stop)
}
