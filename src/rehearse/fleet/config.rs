//! The config file of a rehearsed agent: what the fleet must say, and on top of it what its user wants.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// What differs from machine to machine, and what all share.
#[derive(Clone, Debug)]
pub(super) struct ConfigFacts {
    pub(super) fleet: String,
    pub(super) name: String,
    pub(super) instance: String,
    pub(super) groups: Vec<String>,
    pub(super) node_url: String,
    pub(super) endpoint_url: String,
    pub(super) pager_url: String,
    pub(super) stand_in_url: String,
    pub(super) record: RecordAt,
    /// Of the node, where it is not the group's.
    pub(super) port: Option<u16>,
    pub(super) dir: PathBuf,
    pub(super) scale: u32,
    pub(super) epoch_ms: u64,
    pub(super) nodes: usize,
}

/// Where the fleet record is.
#[derive(Clone, Debug)]
pub(super) enum RecordAt {
    /// In files.
    Dir(PathBuf),
    /// In a cluster.
    Index { name: String, endpoints: Vec<String> },
}

impl RecordAt {
    /// Its part of the config, and what belongs into the section `elasticsearch`.
    fn generated(&self) -> (String, String) {
        match self {
            RecordAt::Dir(dir) => {
                let path = Value::from(dir.to_string_lossy().into_owned());
                (
                    format!("[record]\nstore = \"file\"\nsingle_host = true\npath = {path}\n"),
                    "timeout = \"1s\"\n".to_owned(),
                )
            }
            // A real server shares the machine with everything else.
            RecordAt::Index { name, endpoints } => (
                format!("[record]\nsingle_host = true\nindex = {name:?}\n"),
                format!("timeout = \"3s\"\nrecord_endpoints = {endpoints:?}\n"),
            ),
        }
    }
}

impl ConfigFacts {
    pub(super) fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join("run").join("agent.sock")
    }

    /// A socket and not the usual port, which all agents of this machine would want.
    pub(super) fn metrics_socket(&self) -> PathBuf {
        self.dir.join("run").join("metrics.sock")
    }

    /// The calls of a rehearsal run on one busy machine in real time, while its deadlines run compressed: the short ones
    /// are therefore longer than on a real fleet. Waits that belong to the protocol (drain, check, bake) keep their size.
    fn generated(&self, boot: &str) -> Result<Table, toml::de::Error> {
        let text = |path: &Path| Value::from(path.to_string_lossy().into_owned());
        let scale = Value::from(i64::from(self.scale));
        let epoch = Value::from(i64::try_from(self.epoch_ms).unwrap_or(i64::MAX));
        let mut all = format!(
            "fleet = {:?}\nminimum_healthy = {}\noutside_watch = \"none\"\n",
            self.fleet,
            self.nodes.clamp(1, 3)
        );
        for arn in &self.groups {
            writeln!(all, "[[target_group]]\narn = {arn:?}").ok();
            if let Some(port) = self.port {
                writeln!(all, "port = {port}").ok();
            }
        }
        let (record, endpoints) = self.record.generated();
        write!(
            all,
            "[pager.webhook]\nurl = {pager:?}\ntimeout = \"3s\"\n\
             [elasticsearch]\nurl = {node:?}\nnode_name = {name:?}\n{endpoints}{record}\
             [node]\ninstance_id = {instance:?}\nname = {name:?}\n\
             [elbv2]\nendpoint_url = {endpoint:?}\n\
             [deadlines]\nclaim = \"10m\"\nderegister = \"10m\"\nregister = \"10m\"\n\
             [reconcile]\nevery = \"30s\"\n\
             [limits]\nfree_disk_mib = 1\nreboots_per_day = 1000\n\
             [paths]\nstate_dir = {state}\nruntime_dir = {run}\n\
             [metrics]\nsocket = {metrics}\n\
             [log]\nformat = \"text\"\nlevel = \"debug\"\n\
             [rehearsal]\ntime_scale = {scale}\ntime_epoch_ms = {epoch}\nhost = {host:?}\nboot_id = {boot:?}\n",
            pager = self.pager_url,
            node = self.node_url,
            name = self.name,
            instance = self.instance,
            endpoint = self.endpoint_url,
            state = text(&self.state_dir()),
            run = text(&self.dir.join("run")),
            metrics = text(&self.metrics_socket()),
            host = self.stand_in_url,
        )
        .ok();
        all.parse()
    }

    /// Writes the file. `overrides` is TOML text, merged over it key by key; arrays are replaced.
    pub(super) fn write(&self, path: &Path, boot: &str, overrides: &str) -> io::Result<()> {
        let wrong = |e: toml::de::Error| io::Error::new(io::ErrorKind::InvalidInput, e.to_string());
        let mut table = self.generated(boot).map_err(wrong)?;
        merge(&mut table, overrides.parse().map_err(wrong)?);
        let text = toml::to_string(&table).map_err(io::Error::other)?;
        std::fs::File::create(path)?.write_all(text.as_bytes())
    }
}

fn merge(into: &mut Table, over: Table) {
    for (key, value) in over {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => {
                into.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overrides_win_key_by_key_and_the_rest_stays() {
        let mut table: Table = "a = 1\n[t]\nx = 1\ny = 2".parse().unwrap();
        merge(&mut table, "b = 3\n[t]\ny = 5".parse().unwrap());
        assert_eq!(table, "a = 1\nb = 3\n[t]\nx = 1\ny = 5".parse().unwrap());
    }
}
