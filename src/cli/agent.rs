//! `backstop agent`: the one place that puts adapters into ports.

use crate::agent::handle::{Handle, Reload};
use crate::agent::observe;
use crate::agent::pages::deliver;
use crate::agent::shared::{NodeView, Parts, Shared, World};
use crate::agent::supervisor::{fenced, keep, spawn};
use crate::agent::turn::{Agent, Request};
use crate::alerts::webhook::Webhook;
use crate::clock::{Clock, Scale, SystemClock};
use crate::config::{self, Config, Store};
use crate::control::backend::Backend as _;
use crate::control::protocol::Done;
use crate::control::roles::Roles;
use crate::control::server::{Limits, Outcome, Replace, Server};
use crate::core::cycle::{Durable, SCHEMA};
use crate::core::error::Fault;
use crate::core::exit::Exit;
use crate::core::page::{PageKind, Severity};
use crate::core::time::BootId;
use crate::elasticsearch::NodeChecker;
use crate::elbv2::{Elb, ElbSettings, ElbTimeouts};
use crate::fleet::Fleet;
use crate::fleet::file::{FileFleet, FileStore};
use crate::host::identity::{InstanceIdentity, Metadata, MetadataSettings};
use crate::host::system::SystemHost;
use crate::jobs::process::{JobSettings, ProcessJobs};
use crate::ports::PageSink;
use crate::state::disk::{Disk, LinuxDisk};
use crate::state::journal::{Journal, STATE_NAME};
use crate::state::lock::InstanceLock;
use crate::state::snapshot::{Loaded, SnapshotFile};
use anyhow::{Context, bail};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};

/// The last config that was good, kept for a start with a bad one.
const GOOD_CONFIG: &str = "config.good.toml";
/// Requests that may wait for the loop.
const QUEUE_MAX: usize = 64;
/// Between two starts of a task that died, in ms.
const RESTART_PAUSE_MS: u64 = 1_000;
/// Between two tries to learn who this is, in ms.
const IDENTITY_RETRY_MS: u64 = 5_000;
/// After so many tries an unfinished way back begins with the identity that its state has.
const IDENTITY_TRIES: u32 = 6;

/// The real world.
struct SystemWorld;

impl World for SystemWorld {
    type Balancer = Elb;
    type Check = NodeChecker;
    type Store = FileFleet;
    type Jobs = ProcessJobs;
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
    runtime.block_on(run(Files { config: config.to_owned(), state_dir: args.state_dir }))
}

/// Where things are before there is a config.
#[derive(Clone, Debug)]
struct Files {
    config: PathBuf,
    state_dir: PathBuf,
}

/// A config, and what is wrong with the file that it should have come from.
struct Chosen {
    config: Config,
    bytes: Vec<u8>,
    problem: Option<String>,
    warnings: Vec<String>,
}

fn read(path: &Path, hostname: &str) -> Result<Chosen, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (config, warnings) = config::parse(&path.display().to_string(), &bytes, hostname).map_err(|p| p.to_string())?;
    let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    // A file that is wrong now may be right when it is needed: never a reason not to start.
    let files = config::check_files(&config);
    warnings.extend(files.problems.iter().map(ToString::to_string));
    warnings.extend(files.warnings.iter().map(ToString::to_string));
    Ok(Chosen { config, bytes, problem: None, warnings })
}

/// The file, or the last good one where the file is bad: an unfinished way back must go on. Only an agent that never had a
/// good config gives up.
fn choose(args: &Files, hostname: &str) -> Result<Chosen, String> {
    match read(&args.config, hostname) {
        Ok(chosen) => Ok(chosen),
        Err(problem) => match read(&args.state_dir.join(GOOD_CONFIG), hostname) {
            Ok(good) => Ok(Chosen { problem: Some(problem), ..good }),
            Err(_) => Err(problem),
        },
    }
}

/// Runs until SIGTERM. `Usage` = there is no good config and never was.
async fn run(args: Files) -> anyhow::Result<Exit> {
    let host = super::context::hostname();
    let chosen = match choose(&args, &host) {
        Ok(chosen) => chosen,
        Err(problem) => {
            tracing::error!("{problem}");
            let _ = writeln!(std::io::stderr(), "{problem}");
            return Ok(Exit::Usage);
        }
    };
    crate::telemetry::start(&chosen.config.log);
    let clock = clock(&chosen.config)?;
    let state_dir = chosen.config.paths.state_dir.clone();
    let disk =
        Arc::new(LinuxDisk::open(&state_dir).with_context(|| format!("state directory {}", state_dir.display()))?);
    for warning in disk.warnings() {
        tracing::warn!("{warning}");
    }
    let _lock = InstanceLock::acquire(&state_dir)?;
    let server = bind(&chosen.config)?;
    let stop = stop_on_signal()?;
    let asked = identity(&chosen.config, &clock, &disk, stop.clone()).await;
    let Some((identity, doubt)) = asked else { return Ok(Exit::Done) };
    let chosen = Chosen { problem: chosen.problem.or(doubt), ..chosen };
    if chosen.problem.is_none() {
        keep_good(&disk, &chosen.bytes);
    }
    Box::pin(serve(args, host, chosen, Started { clock, disk, identity, server, stop })).await
}

struct Started {
    clock: SystemClock,
    disk: Arc<LinuxDisk>,
    identity: InstanceIdentity,
    server: Server,
    stop: watch::Receiver<bool>,
}

async fn serve(args: Files, host: String, chosen: Chosen, s: Started) -> anyhow::Result<Exit> {
    let problem = chosen.problem.clone();
    let roles = &chosen.config.roles;
    let roles = Roles::named(&roles.read_group, roles.act_group.as_deref(), roles.admin_group.as_deref());
    let instance = crate::core::ids::InstanceId(s.identity.instance_id.clone());
    let (journal, found) = Journal::open(&s.disk, &instance);
    let view = NodeView { durable: journal.now().clone(), seen: crate::core::cycle::Seen::default(), unstored: None };
    let parts = parts(chosen, &s.identity).await?;
    let shared = Arc::new(Shared::<SystemWorld>::new(parts, s.identity, s.clock.clone(), s.disk, view));
    let (send, queue) = mpsc::channel(QUEUE_MAX);

    let handle = Handle::new(shared.clone(), send.clone(), reloader(args, host, shared.clone(), send.clone()));
    let _hup = on_hup(handle.clone())?;
    let told = reporter(send.clone());
    let served = s.server.serve(handle, roles, Limits::default(), audit_denied(shared.clone()));
    let _control = spawn(async move {
        let why = fenced(served).await.err().unwrap_or_else(|| "ended without being asked to".to_owned());
        told("control socket", why);
    });

    let report = reporter(send.clone());
    let pause = {
        let c = s.clock.clone();
        move || {
            let c = c.clone();
            async move { c.sleep_ms(RESTART_PAUSE_MS).await }
        }
    };
    let looking = shared.clone();
    let _observer = keep("observer", move || observe::observe(looking.clone()), report.clone(), pause.clone());
    let (delivering, pages) = (shared.clone(), send.clone());
    let _pages = keep("pages", move || deliver(delivering.clone(), pages.clone()), report, pause);

    let mut agent = Agent::new(shared, journal, queue, Box::new(notify_status));
    agent.recover(found).await;
    if let Some(problem) = problem {
        let message =
            format!("the config file cannot be used; the last good one is in force and no cycle starts:\n{problem}");
        let _ = send.try_send(Request::Fault(PageKind::ConfigUnusable, Severity::Critical, message.into()));
    }
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tracing::info!("ready");
    agent.run(s.stop).await;
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    Ok(Exit::Done)
}

/// What a caller was not allowed, in the audit journal; what was allowed writes its own line.
fn audit_denied(shared: Arc<Shared<SystemWorld>>) -> crate::control::server::Audit {
    Arc::new(move |line| {
        if let Outcome::Refused(status, why) = &line.outcome {
            let at = crate::alerts::text::rfc3339(shared.clock.now().wall_ms);
            shared.audit.record(&serde_json::json!({
                "at": at, "event": "denied", "by": line.caller.name, "uid": line.caller.uid, "pid": line.pid,
                "verb": line.verb.map(crate::control::roles::Verb::label), "about": line.about, "status": status, "outcome": why,
            }));
        }
        tracing::info!(?line, "control");
    })
}

fn notify_status(text: &str) {
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Status(text)]);
    tracing::debug!(status = text);
}

/// A task that died is told to the loop, which pages.
fn reporter(queue: mpsc::Sender<Request>) -> impl Fn(&'static str, String) + Clone + Send + 'static {
    move |task, why| {
        let message = format!("the task `{task}` of the agent died ({why}) and was started again");
        let _ = queue.try_send(Request::Fault(PageKind::AgentFault, Severity::Warning, message.into()));
    }
}

fn keep_good(disk: &LinuxDisk, bytes: &[u8]) {
    if let Err(e) = disk.replace(GOOD_CONFIG, bytes) {
        tracing::warn!(error = %e, "the good config could not be kept");
    }
}

fn bind(config: &Config) -> anyhow::Result<Server> {
    let gid = crate::control::peer::group_id(&config.roles.read_group);
    if let Some(dir) = config.paths.socket.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("runtime directory {}", dir.display()))?;
    }
    Ok(Server::bind(&config.paths.socket, gid, Replace::HoldsInstanceLock)?)
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

fn metadata_settings(config: &Config) -> MetadataSettings {
    MetadataSettings { endpoint_url: config.node.imds_endpoint.clone(), ..MetadataSettings::default() }
}

/// The instance of an unfinished cycle, as this node's own state has it.
fn unfinished(disk: &Arc<LinuxDisk>) -> Option<InstanceIdentity> {
    let loaded = SnapshotFile::new(disk.clone(), STATE_NAME, SCHEMA).load::<Durable>();
    let Loaded::Good { body, .. } = loaded else { return None };
    let known = InstanceIdentity { instance_id: body.instance.0, local_ipv4: None };
    body.cycle.is_some().then_some(known)
}

/// Who this is. Asked until it is known: a machine that has just started may have no metadata service yet. An unfinished
/// way back does not wait for that: what was known before the patch is enough to come home, and for nothing else.
async fn identity(
    config: &Config,
    clock: &SystemClock,
    disk: &Arc<LinuxDisk>,
    mut stop: watch::Receiver<bool>,
) -> Option<(InstanceIdentity, Option<String>)> {
    for tries in 0_u32.. {
        let asked = async {
            if let Some(id) = &config.node.instance_id {
                return Ok(InstanceIdentity { instance_id: id.clone(), local_ipv4: None });
            }
            Metadata::new(&metadata_settings(config))?.identity(None).await
        };
        let fault: Fault = match asked.await {
            Ok(identity) => return Some((identity, None)),
            Err(fault) => fault,
        };
        if tries >= IDENTITY_TRIES
            && let Some(known) = unfinished(disk)
        {
            let doubt = format!("instance metadata does not answer, so only the way back goes on: {fault}");
            return Some((known, Some(doubt)));
        }
        tracing::error!(%fault, "which instance this is cannot be told yet; asking again");
        let _ = sd_notify::notify(&[sd_notify::NotifyState::Status("waiting for the instance metadata service")]);
        tokio::select! {
            () = clock.sleep_ms(IDENTITY_RETRY_MS) => {}
            _ = stop.wait_for(|s| *s) => return None,
        }
    }
    None
}

async fn parts(chosen: Chosen, identity: &InstanceIdentity) -> anyhow::Result<Parts<SystemWorld>> {
    let c = &chosen.config;
    let store = match &c.record.store {
        Store::File { dir } => {
            FileFleet::new(FileStore::open(dir).with_context(|| format!("fleet record in {}", dir.display()))?)
        }
        Store::Elasticsearch => bail!("record.store = \"elasticsearch\" is not built yet in this version"),
    };
    let settings = ElbSettings {
        region: c.region.as_str().into(),
        endpoint_url: c.elbv2.endpoint_url.clone(),
        timeouts: ElbTimeouts {
            connect_ms: c.elbv2.connect_timeout_ms,
            read_ms: c.elbv2.attempt_timeout_ms,
            attempt_ms: c.elbv2.attempt_timeout_ms,
            operation_ms: c.elbv2.operation_timeout_ms,
        },
    };
    let webhook =
        Webhook::new(c.pager.webhook.url.expose(), c.pager.webhook.timeout_ms, c.pager.webhook.secret_file.clone())
            .map_err(|f| anyhow::anyhow!("pager.webhook: {f}"))?;
    // With a stated id nobody may be there to ask.
    let metadata = match &c.node.instance_id {
        Some(_) => None,
        None => Metadata::new(&metadata_settings(c)).ok(),
    };
    let sinks: Vec<Box<dyn PageSink>> = vec![Box::new(webhook)];
    let output_bytes_max = u64::from(c.job_output_max_kib).saturating_mul(1024);
    Ok(Parts {
        balancer: Elb::connect(&settings).await,
        check: NodeChecker::new(),
        fleet: Fleet::new(store, c.fleet.as_str().into()),
        jobs: ProcessJobs::new(&c.paths.state_dir, JobSettings { output_bytes_max, ..JobSettings::default() }),
        host: SystemHost::new(c.rehearsal.host.clone(), identity.instance_id.clone(), metadata),
        sinks,
        problem: chosen.problem,
        warnings: chosen.warnings,
        config: chosen.config,
    })
}

/// Reads the file again. A bad one changes nothing but the answer; some keys need a restart and say so.
fn reloader(args: Files, host: String, shared: Arc<Shared<SystemWorld>>, queue: mpsc::Sender<Request>) -> Reload {
    Arc::new(move || Box::pin(reload(args.clone(), host.clone(), shared.clone(), queue.clone())))
}

async fn reload(args: Files, host: String, shared: Arc<Shared<SystemWorld>>, queue: mpsc::Sender<Request>) -> Done {
    let done = read_again(args, host, &shared, queue).await;
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
    let chosen = match read(&args.config, &host) {
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
        || a.rehearsal != b.rehearsal
    {
        let message = "fleet, paths, record, node and rehearsal cannot change while the agent runs: restart it";
        return not(message.to_owned());
    }
    let bytes = chosen.bytes.clone();
    let identity = shared.identity.clone();
    match parts(chosen, &identity).await {
        Ok(parts) => {
            keep_good(&shared.disk, &bytes);
            let fleet = parts.fleet.after(&old.fleet);
            shared.replace_parts(Parts { fleet, ..parts });
            Done { exit: 0, message: "the config file was read again".to_owned(), next: None }
        }
        Err(e) => not(format!("{e:#}")),
    }
}

fn on_hup(handle: Handle<SystemWorld>) -> anyhow::Result<crate::agent::supervisor::Task<()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut hup = signal(SignalKind::hangup())?;
    Ok(spawn(async move {
        while hup.recv().await.is_some() {
            let done = handle.reload().await;
            tracing::info!(exit = done.exit, message = done.message, "reload");
        }
    }))
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
