//! Which config the agent runs with. Only an agent that never had a good one, and has no cycle to bring home, has none.

use crate::config::{self, Config};
use crate::core::cycle::{Cycle, Durable, SCHEMA};
use crate::state::disk::{Disk as _, LinuxDisk};
use crate::state::journal::STATE_NAME;
use crate::state::snapshot::{Loaded, SnapshotFile};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

/// The last config that was good, kept for a start with a bad one.
const GOOD_CONFIG: &str = "config.good.toml";
/// What the fleet is called while nobody knows its name. Never written anywhere: without a config there is no record.
const NAMELESS: &str = "config-lost";

/// Where things are before there is a config.
#[derive(Clone, Debug)]
pub(super) struct Files {
    pub(super) config: PathBuf,
    pub(super) state_dir: PathBuf,
}

/// A config, and what is wrong with the file that it should have come from.
pub(super) struct Chosen {
    pub(super) config: Config,
    pub(super) bytes: Vec<u8>,
    pub(super) problem: Option<String>,
    pub(super) warnings: Vec<String>,
    /// There is no config at all, only what the cycle under way carries: what is missing, for people.
    pub(super) lost: Option<String>,
}

/// A config file, if it can be used.
pub(super) fn read(path: &Path, hostname: &str) -> Result<Chosen, String> {
    let bytes = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (config, warnings) = config::parse(&path.display().to_string(), &bytes, hostname).map_err(|p| p.to_string())?;
    let mut warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    // A file that is wrong now may be right when it is needed: never a reason not to start.
    let files = config::check_files(&config);
    warnings.extend(files.problems.iter().map(ToString::to_string));
    warnings.extend(files.warnings.iter().map(ToString::to_string));
    Ok(Chosen { config, bytes, problem: None, warnings, lost: None })
}

/// The file, or the last good one where the file is bad, or what the unfinished cycle carries: a way back must go on.
pub(super) fn choose(args: &Files, hostname: &str) -> Result<Chosen, String> {
    match read(&args.config, hostname) {
        Ok(chosen) => Ok(chosen),
        Err(problem) => match read(&args.state_dir.join(GOOD_CONFIG), hostname) {
            Ok(good) => Ok(Chosen { problem: Some(problem), ..good }),
            Err(copy) => match unfinished(&args.state_dir) {
                Some(cycle) => carried(args, &cycle, &problem, &copy),
                None => Err(problem),
            },
        },
    }
}

/// Keeps a config that is in force for a start with a bad file. Blocks.
pub(super) fn keep(disk: &LinuxDisk, bytes: &[u8]) {
    if let Err(e) = disk.replace(GOOD_CONFIG, bytes) {
        tracing::warn!(error = %e, "the good config could not be kept");
    }
}

/// The cycle of a state directory that is there. Nothing is created.
fn unfinished(state_dir: &Path) -> Option<Cycle> {
    if !state_dir.is_dir() {
        return None;
    }
    let file = SnapshotFile::new(Arc::new(LinuxDisk::open(state_dir)), STATE_NAME, SCHEMA);
    let Loaded::Good { body, .. } = file.load::<Durable>() else { return None };
    body.cycle
}

/// A config made of what the cycle wrote down when it began: enough to come home, and for nothing else.
fn carried(args: &Files, cycle: &Cycle, problem: &str, copy: &str) -> Result<Chosen, String> {
    let text = toml::to_string(&table(args, cycle)).map_err(|e| e.to_string())?;
    let name = format!("the config carried by cycle {}", cycle.plan.id);
    let (config, _) =
        config::parse(&name, text.as_bytes(), cycle.plan.node.as_str()).map_err(|why| format!("{problem}\n{why}"))?;
    let lost = format!(
        "the config file and its kept copy cannot be used, and only the way back of cycle {} goes on, by what it wrote down \
         at its start. Not known are the fleet record (its slot stays taken), the pager (nobody is paged) and a special \
         endpoint of the load balancer: repair {}, then restart the agent. The copy: {copy}",
        cycle.plan.id,
        args.config.display(),
    );
    let problem = Some(format!("{problem}\nThe kept copy cannot be used either."));
    Ok(Chosen { config, bytes: Vec::new(), problem, warnings: Vec::new(), lost: Some(lost) })
}

fn table(args: &Files, cycle: &Cycle) -> Table {
    let plan = &cycle.plan;
    let text = |value: &str| Value::from(value);
    let number = |value: u64| Value::from(i64::try_from(value).unwrap_or(i64::MAX));
    let span = |ms: u64| Value::from(format!("{ms}ms"));
    let of = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect::<Table>();
    let group = |t: &crate::core::settings::OwnTarget| {
        let target = &t.target;
        let port = number(u64::from(target.port));
        Value::Table(of(vec![("arn", text(&target.group.0)), ("id", text(&target.id)), ("port", port)]))
    };
    let c = &plan.check;
    let mut node = vec![("url", text(&c.url)), ("node_name", text(&c.node_name)), ("timeout", span(c.timeout_ms))];
    let optional = [
        ("ca_file", &c.ca_file),
        ("api_key_file", &c.api_key_file),
        ("basic_auth_file", &c.basic_auth_file),
        ("client_cert_file", &c.client_cert_file),
        ("canary_index", &c.canary_index),
    ];
    node.extend(optional.into_iter().filter_map(|(key, value)| Some((key, text(value.as_deref()?)))));
    let mut paths = vec![("state_dir", text(&args.state_dir.to_string_lossy()))];
    // systemd tells where the runtime directory is.
    let runtime = std::env::var("RUNTIME_DIRECTORY").unwrap_or_default();
    if let Some(dir) = runtime.split(':').next().filter(|dir| !dir.is_empty()) {
        paths.push(("runtime_dir", text(dir)));
    }
    // Neither of the two is used: see `lost`.
    let record = vec![
        ("store", text("file")),
        ("single_host", Value::from(true)),
        ("path", text(&args.state_dir.join("no-record").to_string_lossy())),
    ];
    let webhook = of(vec![("url", text("http://127.0.0.1:9/"))]);
    of(vec![
        ("fleet", text(NAMELESS)),
        ("outside_watch", text("none")),
        ("target_group", Value::Array(plan.targets.iter().map(group).collect())),
        ("node", Value::Table(of(vec![("name", text(plan.node.as_str()))]))),
        ("elasticsearch", Value::Table(of(node))),
        ("record", Value::Table(of(record))),
        ("paths", Value::Table(of(paths))),
        ("pager", Value::Table(of(vec![("webhook", Value::Table(webhook))]))),
    ])
}
