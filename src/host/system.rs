//! The machine port: this machine, or in a rehearsal a stand-in that ends node and agent and starts them again.

use super::identity::Metadata;
use super::machine;
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::http_client;
use crate::ports::Host;
use std::net::IpAddr;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

/// Asking for a restart takes at most this long.
const REBOOT_CALL: Duration = Duration::from_secs(20);

/// Package managers' lock files: who holds one is at work.
const LOCKS: [(&str, &str); 5] = [
    ("/var/lib/dpkg/lock-frontend", "dpkg"),
    ("/var/lib/dpkg/lock", "dpkg"),
    ("/var/lib/rpm/.rpm.lock", "rpm"),
    ("/usr/lib/sysimage/rpm/.rpm.lock", "rpm"),
    ("/run/zypp.pid", "zypper"),
];

/// This machine.
#[derive(Clone, Debug)]
pub struct SystemHost {
    stand_in: Option<Arc<str>>,
    instance: Arc<str>,
    metadata: Option<Metadata>,
}

impl SystemHost {
    /// `stand_in`: base URL of a rehearsal's stand-in for machines. `metadata`: where the lifecycle is asked.
    pub fn new(stand_in: Option<Arc<str>>, instance: Arc<str>, metadata: Option<Metadata>) -> SystemHost {
        SystemHost { stand_in, instance, metadata }
    }

    async fn ask_stand_in(&self, base: &str) -> Result<(), Fault> {
        let url = reqwest::Url::parse(&format!("{base}/reboot/{}", self.instance))
            .map_err(|e| Fault::new(Class::Refused, format!("rehearsal.host is no URL: {e}")))?;
        let fault = |e: reqwest::Error| Fault::transport(format!("stand-in {base}: {}", Causes::of(&e).innermost()));
        let client = http_client::build(http_client::builder(&url, REBOOT_CALL).no_proxy())?;
        let answer = client.post(url).send().await.map_err(fault)?;
        if answer.status().is_success() {
            return Ok(());
        }
        Err(Fault::new(Class::NotReady, format!("stand-in {base} answered {}", answer.status().as_u16())))
    }
}

async fn ask_systemd() -> Result<(), Fault> {
    let mut command = tokio::process::Command::new("systemctl");
    command.arg("reboot").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    match tokio::time::timeout(REBOOT_CALL, command.output()).await {
        Err(_) => Err(Fault::transport("systemctl reboot did not come back")),
        Ok(Err(e)) => Err(Fault::transport(format!("systemctl reboot could not be started: {e}"))),
        Ok(Ok(out)) if out.status.success() => Ok(()),
        Ok(Ok(out)) => {
            let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            Err(Fault::new(Class::Refused, format!("systemctl reboot: {} ({said})", out.status)))
        }
    }
}

/// Who holds a lock on this file, by the kernel's table of locks; `None` = nobody, or no such file.
fn locked(path: &Path, table: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(path) else { return false };
    let device = meta.dev();
    let key = format!("{:02x}:{:02x}:{}", rustix::fs::major(device), rustix::fs::minor(device), meta.ino());
    table.lines().any(|line| line.split_whitespace().any(|word| word == key))
}

impl Host for SystemHost {
    fn connections(&self, port: u16, ignore: &[IpAddr]) -> Result<u32, Fault> {
        let counted = machine::established_connections(port, ignore);
        let n = counted.map_err(|e| Fault::transport(format!("connections on port {port}: {e}")))?;
        Ok(u32::try_from(n).unwrap_or(u32::MAX))
    }

    async fn reboot(&self) -> Result<(), Fault> {
        match &self.stand_in {
            Some(base) => self.ask_stand_in(base).await,
            None => ask_systemd().await,
        }
    }

    fn shutting_down(&self) -> bool {
        machine::shutting_down()
    }

    async fn lifecycle(&self) -> Result<Option<Arc<str>>, Fault> {
        match &self.metadata {
            Some(metadata) => metadata.lifecycle().await,
            None => Ok(None),
        }
    }

    fn package_manager(&self) -> Result<Option<String>, Fault> {
        let table =
            std::fs::read_to_string("/proc/locks").map_err(|e| Fault::transport(format!("/proc/locks: {e}")))?;
        let busy = LOCKS.iter().find(|(path, _)| locked(Path::new(path), &table));
        Ok(busy.map(|(path, name)| format!("{name} (lock {path})")))
    }
}
