//! The machine port: this machine, by logind and systemd on the system bus; or in a rehearsal a stand-in that ends node and
//! agent and starts them again.

use super::identity::Metadata;
use super::{machine, packages};
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::dbus::{Bus, Object, Trouble, read};
use crate::http_client;
use crate::ports::Host;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Asking the stand-in takes at most this long.
const REBOOT_CALL: Duration = Duration::from_secs(20);

const LOGIND: Object<'_> = Object {
    service: "org.freedesktop.login1",
    path: "/org/freedesktop/login1",
    interface: "org.freedesktop.login1.Manager",
};
const SYSTEMD: Object<'_> = Object {
    service: "org.freedesktop.systemd1",
    path: "/org/freedesktop/systemd1",
    interface: "org.freedesktop.systemd1.Manager",
};

/// Asking whether the machine goes down takes at most this long: the way back does not wait for a bus that hangs.
const SHUTDOWN_CALL: Duration = Duration::from_secs(3);

/// This machine.
#[derive(Clone, Debug)]
pub struct SystemHost {
    stand_in: Option<Arc<str>>,
    instance: Arc<str>,
    metadata: Option<Metadata>,
    bus: Bus,
}

impl SystemHost {
    /// `stand_in`: base URL of a rehearsal's stand-in for machines. `metadata`: where the lifecycle is asked.
    pub fn new(stand_in: Option<Arc<str>>, instance: Arc<str>, metadata: Option<Metadata>, bus: Bus) -> SystemHost {
        SystemHost { stand_in, instance, metadata, bus }
    }

    /// logind, which lets others finish first: no more than polkit allows, so nothing is asked of a person.
    async fn ask_logind(&self) -> Result<(), Fault> {
        match self.bus.call(LOGIND, "Reboot", &(false,)).await {
            Ok(_) => Ok(()),
            Err(trouble) => Err(no_reboot(&trouble)),
        }
    }

    async fn property<T>(&self, object: Object<'_>, name: &str) -> Result<T, Trouble>
    where
        T: TryFrom<zbus::OwnedVariant>,
    {
        let properties = Object { interface: "org.freedesktop.DBus.Properties", ..object };
        let answer = self.bus.call(properties, "Get", &(object.interface, name)).await?;
        let value: zbus::OwnedVariant = read(&answer)?;
        T::try_from(value).map_err(|_| Trouble::Unanswered(format!("{name} is of another kind than expected")))
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

/// systemd is this machine's service manager: `sd_booted(3)`.
fn systemd_runs() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// As a fault of asking for a restart, with what helps.
fn no_reboot(trouble: &Trouble) -> Fault {
    if trouble.denied() {
        let text = format!(
            "logind does not let the agent restart this machine ({trouble}): is backstop.rules among polkit's \
                            rules? does somebody inhibit it (systemd-inhibit --list)?"
        );
        return Fault::new(Class::Refused, text);
    }
    trouble.write_fault("asking logind for a restart")
}

/// What logind says of a restart by this agent (`CanReboot`): anything but a plain yes is none.
fn may_reboot(said: &str) -> Result<(), Fault> {
    if said == "yes" {
        return Ok(());
    }
    let text = format!(
        "logind would not restart this machine for the agent (CanReboot: {said}): is backstop.rules among polkit's rules? \
         does somebody inhibit it (systemd-inhibit --list)? Without a restart: --reboot never"
    );
    Err(Fault::new(Class::Auth, text))
}

impl Host for SystemHost {
    fn connections(&self, port: u16, ignore: &[IpAddr]) -> Result<u32, Fault> {
        let counted = machine::established_connections(port, ignore);
        let n = counted.map_err(|e| Fault::transport(format!("connections on port {port}: {e}")))?;
        Ok(u32::try_from(n).unwrap_or(u32::MAX))
    }

    async fn may_reboot(&self) -> Result<(), Fault> {
        if self.stand_in.is_some() || !systemd_runs() {
            return Ok(());
        }
        let what = "asking logind whether it would restart this machine";
        let answer = self.bus.call(LOGIND, "CanReboot", &()).await.map_err(|t| t.fault(what))?;
        may_reboot(&read::<String>(&answer).map_err(|t| t.fault(what))?)
    }

    async fn reboot(&self) -> Result<(), Fault> {
        match &self.stand_in {
            Some(base) => self.ask_stand_in(base).await,
            None => self.ask_logind().await,
        }
    }

    async fn shutting_down(&self) -> bool {
        if self.stand_in.is_some() || !systemd_runs() {
            return false;
        }
        // Asked twice, since `systemctl --force` passes logind by. No answer is no sign of it: the way back goes on.
        let asked = async {
            self.property::<bool>(LOGIND, "PreparingForShutdown").await == Ok(true)
                || self.property::<String>(SYSTEMD, "SystemState").await.as_deref() == Ok("stopping")
        };
        tokio::time::timeout(SHUTDOWN_CALL, asked).await.unwrap_or(false)
    }

    async fn lifecycle(&self) -> Result<Option<Arc<str>>, Fault> {
        match &self.metadata {
            Some(metadata) => metadata.lifecycle().await,
            None => Ok(None),
        }
    }

    fn package_manager(&self) -> Result<Option<String>, Fault> {
        packages::at_work()
    }

    fn unfinished_packages(&self) -> Result<Option<String>, Fault> {
        match &self.stand_in {
            // A rehearsed machine has no packages of its own.
            Some(_) => Ok(None),
            None => packages::unfinished(Path::new(packages::DPKG)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_plain_yes_of_logind_lets_a_node_leave_for_a_restart() {
        assert!(may_reboot("yes").is_ok());
        for said in ["no", "challenge", "na", "inhibited", ""] {
            let fault = may_reboot(said).unwrap_err();
            assert!(fault.class == Class::Auth && fault.message.contains("--reboot never"), "{fault}");
        }
    }

    #[test]
    fn a_restart_that_may_not_be_asked_for_is_refused_and_one_without_an_answer_is_in_doubt() {
        let denied = Trouble::Said {
            name: "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired".to_owned(),
            text: "Interactive authentication required.".to_owned(),
        };
        let fault = no_reboot(&denied);
        assert!(fault.class == Class::Refused && fault.message.contains("backstop.rules"), "{fault}");
        assert_eq!(no_reboot(&Trouble::Unanswered("gone".to_owned())).class, Class::OutcomeUnknown);
    }
}
