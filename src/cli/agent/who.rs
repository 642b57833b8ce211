//! Who this is. Asked until it is known: a machine that has just started may have no metadata service yet.
//!
//! An unfinished way back does not wait for that for ever: the instance that its state names is this one where the machine
//! itself proves it. It is never taken on trust, since an image of a node in mid-cycle carries the same file, and bringing
//! that one "home" would free the slot of a node that is still out.

use super::front::Front;
use super::notices::Notices;
use crate::alerts::text::{Context, render_page};
use crate::bounded::blocking;
use crate::clock::{Clock as _, SystemClock};
use crate::config::Config;
use crate::control::backend::Backend;
use crate::core::cycle::{Doubt, Durable, SCHEMA, StageName};
use crate::core::error::Fault;
use crate::core::ids::InstanceId;
use crate::core::page::{PageKind, Severity, about_cycle};
use crate::core::time::BootId;
use crate::host::identity::{InstanceIdentity, Metadata, MetadataSettings};
use crate::ports::PageSink;
use crate::state::disk::LinuxDisk;
use crate::state::journal::STATE_NAME;
use crate::state::snapshot::{Loaded, SnapshotFile};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Between two tries, in ms.
const RETRY_MS: u64 = 5_000;
/// After so many tries a road out is given up for a proven identity without metadata, and an unproven one is paged about.
const TRIES: u32 = 6;
/// The state is waited for so long.
const READ_WAIT: Duration = Duration::from_secs(10);
/// Where the firmware tells the instance id on Nitro instances. Elsewhere it holds something else, or nothing.
const ASSET_TAG: &str = "/sys/class/dmi/id/board_asset_tag";

/// Who this is, and why that is not the word of the metadata service.
pub(super) struct Known {
    pub(super) identity: InstanceIdentity,
    pub(super) doubt: Option<String>,
}

/// What the machine itself says of the instance that the state names.
#[derive(Debug, PartialEq, Eq)]
enum Proof {
    /// The same, by this.
    Same(&'static str),
    /// Another one.
    Another(String),
    /// Nothing.
    Silent,
}

/// A boot id is drawn at random by each start of a kernel and never travels to another machine. An asset tag that is an
/// instance id is the firmware's word.
fn proof(named: &InstanceId, written_in: Option<&BootId>, boot: &BootId, asset_tag: Option<&str>) -> Proof {
    if written_in == Some(boot) {
        return Proof::Same("its state was written in the present boot");
    }
    match asset_tag.map(str::trim).filter(|tag| tag.starts_with("i-")) {
        Some(tag) if *tag == *named.0 => Proof::Same("the firmware names the same instance"),
        Some(tag) => Proof::Another(tag.to_owned()),
        None => Proof::Silent,
    }
}

pub(super) fn metadata_settings(config: &Config) -> MetadataSettings {
    MetadataSettings { endpoint_url: config.node.imds_endpoint.clone(), ..MetadataSettings::default() }
}

/// The metadata service's word, or the config's.
pub(super) async fn ask(config: &Config) -> Result<InstanceIdentity, Fault> {
    if let Some(id) = &config.node.instance_id {
        return Ok(InstanceIdentity { instance_id: id.clone(), local_ipv4: None });
    }
    Metadata::new(&metadata_settings(config))?.identity(None).await
}

/// The state of a cycle that is not over; `Err`: whether there is one cannot be told.
async fn unfinished(disk: &Arc<LinuxDisk>) -> Result<Option<Durable>, String> {
    let file = SnapshotFile::new(disk.clone(), STATE_NAME, SCHEMA);
    match blocking(READ_WAIT, move || file.load::<Durable>()).await {
        Ok(Loaded::Good { body, .. }) if matches!(body.doubt, Some(Doubt::Lost { .. })) => {
            Err("the state was lost, and the way back is not planned yet".to_owned())
        }
        Ok(Loaded::Good { body, .. }) => Ok(Some(body).filter(|d| d.cycle.is_some())),
        Ok(Loaded::Missing) => Ok(None),
        Ok(Loaded::Newer { schema }) => Err(format!("the state has schema {schema}, which this version does not know")),
        Ok(Loaded::Unreadable { why }) | Err(why) => Err(format!("the state cannot be read: {why}")),
    }
}

/// What asking needs.
pub(super) struct Asking<'a, B> {
    pub(super) config: &'a Config,
    pub(super) clock: &'a SystemClock,
    pub(super) disk: &'a Arc<LinuxDisk>,
    pub(super) front: &'a Front<B>,
    pub(super) notices: &'a Notices,
    pub(super) sinks: &'a [Box<dyn PageSink>],
}

impl<B: Backend> Asking<'_, B> {
    /// Asks until it is known; `None` = asked to stop.
    pub(super) async fn identity(&self, mut stop: watch::Receiver<bool>) -> Option<Known> {
        let mut paged = false;
        if self.config.node.instance_id.is_none() {
            self.front.starting("starting: waiting for instance metadata".to_owned());
        }
        for tries in 1_u32.. {
            let asked = tokio::select! {
                asked = ask(self.config) => asked,
                _ = stop.wait_for(|s| *s) => return None,
            };
            let fault = match asked {
                Ok(identity) => {
                    self.notices.wrong("identity", Severity::Critical, None);
                    return Some(Known { identity, doubt: None });
                }
                Err(fault) => fault,
            };
            tracing::error!(%fault, tries, "which instance this is cannot be told yet; asking again");
            self.front.starting(format!("starting: waiting for instance metadata (try {tries}): {fault}"));
            let state = unfinished(self.disk).await;
            if let (Err(why), true) = (&state, tries >= TRIES) {
                let why = format!(
                    "{why}; this node may be OUT, and does not come back by itself until instance metadata answers, \
                                   or node.instance_id is stated in the config and the agent restarted ({fault})"
                );
                self.notices.wrong("identity", Severity::Critical, Some(why.clone()));
                paged = paged || self.page(&Durable::new("unknown".into()), why).await;
            }
            if let Ok(Some(state)) = state {
                match self.proven(&state, tries) {
                    Some(Proof::Same(how)) => {
                        tracing::warn!(instance = %state.instance, how, "going on as the instance that the state names");
                        let doubt =
                            format!("instance metadata does not answer, so only the way back goes on ({how}): {fault}");
                        let identity = InstanceIdentity { instance_id: state.instance.0, local_ipv4: None };
                        return Some(Known { identity, doubt: Some(doubt) });
                    }
                    Some(other) => {
                        let why = unproven(&state, &other, &fault);
                        self.notices.wrong("identity", Severity::Critical, Some(why.clone()));
                        paged = paged || self.page(&state, why).await;
                    }
                    None => {}
                }
            }
            tokio::select! {
                () = self.clock.sleep_ms(RETRY_MS) => {}
                _ = stop.wait_for(|s| *s) => return None,
            }
        }
        None
    }

    /// What the machine says of the state's instance; `None` = the metadata service gets more tries. A way back that is
    /// proven begins at once; a road out would be given up by it, and waits.
    fn proven(&self, state: &Durable, tries: u32) -> Option<Proof> {
        let homeward = state.stage().is_some_and(StageName::homeward);
        let tag = std::fs::read_to_string(ASSET_TAG).ok();
        let written_in = state.cycle.as_ref().map(|c| &c.entered.boot);
        let proof = proof(&state.instance, written_in, &self.clock.now().boot, tag.as_deref());
        let now = tries >= TRIES || (homeward && matches!(proof, Proof::Same(_)));
        now.then_some(proof)
    }

    /// Straight to the pagers: the loop that keeps pages does not run yet. True where one accepted it.
    async fn page(&self, state: &Durable, why: String) -> bool {
        let now = self.clock.now();
        let page = about_cycle(state, PageKind::AgentFault, Severity::Critical, why.into(), &now);
        let targets = state.cycle.as_ref().map(|c| c.plan.targets.iter().map(|t| t.target.clone()).collect());
        let context = Context {
            fleet: self.config.fleet.to_string(),
            node: self.config.node.name.to_string(),
            in_service: None,
            members: None,
            floor: self.config.minimum_during_patch,
            targets: targets.unwrap_or_default(),
            now_ms: now.wall_ms,
            doing: None,
            listed: Vec::new(),
            missing: Vec::new(),
        };
        let Some(rendered) = render_page(&page, &context) else { return false };
        let mut accepted = false;
        for sink in self.sinks {
            match sink.deliver(&rendered).await {
                Ok(()) => accepted = true,
                Err(fault) => tracing::error!(sink = sink.name(), %fault, "page not accepted"),
            }
        }
        accepted
    }
}

/// The sentence for whoever has to tell.
fn unproven(state: &Durable, proof: &Proof, fault: &Fault) -> String {
    let says = match proof {
        Proof::Another(tag) => format!("the firmware says that this is {tag}"),
        Proof::Same(_) | Proof::Silent => "nothing proves that this is it".to_owned(),
    };
    format!(
        "the state has an unfinished cycle of instance {}, and {says}; this node may be OUT and does not come back by itself \
         until instance metadata answers, or node.instance_id is stated in the config and the agent restarted ({fault})",
        state.instance
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_machine_itself_proves_that_a_state_is_its_own() {
        let boot = |id: &str| BootId(id.into());
        let (named, written_in) = (InstanceId("i-0000000000000001".into()), boot("a"));
        let proof = |now: &str, tag| proof(&named, Some(&written_in), &boot(now), tag);
        assert!(matches!(proof("a", None), Proof::Same(_)), "a boot id never travels");
        assert!(matches!(proof("a", Some("i-0000000000000002")), Proof::Same(_)));
        assert!(matches!(proof("b", Some("i-0000000000000001\n")), Proof::Same(_)));
        assert_eq!(proof("b", Some("i-0000000000000002")), Proof::Another("i-0000000000000002".into()));
        for says_nothing in [None, Some(""), Some("Not Specified"), Some("VirtualBox")] {
            assert_eq!(proof("b", says_nothing), Proof::Silent, "{says_nothing:?}");
        }
    }
}
