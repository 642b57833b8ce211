//! Adapters that need nothing but a config: whoever looks at the fleet has the same ones, with an agent or without.

use crate::config::{Config, Store};
use crate::dbus::Bus;
use crate::elbv2::{Elb, ElbSettings, ElbTimeouts};
use crate::fleet;
use crate::fleet::elasticsearch::{EsFleet, EsFleetSettings};
use crate::fleet::file::{FileFleet, MEMBERS_NAME};
use crate::jobs::process::{JobSettings, ProcessJobs};
use crate::jobs::runner::{Runner, Which, systemd_runs};
use crate::jobs::systemd::SystemdJobs;
use crate::jobs::units::SystemdUnits;
use std::path::PathBuf;
use std::sync::Arc;

/// ELBv2.
pub(in crate::cli) async fn balancer(c: &Config) -> Elb {
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
    Elb::connect(&settings).await
}

/// The store of the fleet record.
pub(in crate::cli) fn store(c: &Config) -> fleet::Store {
    match &c.record.store {
        Store::File { dir } => fleet::Store::File(FileFleet::at(dir)),
        Store::Elasticsearch { index } => fleet::Store::Elasticsearch(EsFleet::new(record_settings(c, index))),
    }
}

/// Patch jobs.
pub(in crate::cli) fn jobs(c: &Config, bus: &Bus) -> Runner {
    let output_bytes_max = u64::from(c.job_output_max_kib).saturating_mul(1024);
    let process = ProcessJobs::new(&c.paths.state_dir, JobSettings { output_bytes_max, ..JobSettings::default() });
    let units = SystemdJobs::new(&c.paths.state_dir, SystemdUnits::new(bus.clone()));
    let which = if c.jobs_are_units(systemd_runs()) { Which::Systemd } else { Which::Process };
    Runner::new(which, process, units)
}

/// The same for somebody who must not make anything: a directory that is not there stays away.
pub(in crate::cli) fn store_to_read(c: &Config) -> fleet::Store {
    match &c.record.store {
        Store::File { dir } if !dir.join(MEMBERS_NAME).is_dir() => {
            fleet::Store::File(FileFleet::none(format!("there is no record in {}", dir.display())))
        }
        Store::File { .. } | Store::Elasticsearch { .. } => store(c),
    }
}

/// The servers in the order of the config, and the own node last.
fn record_settings(c: &Config, index: &Arc<str>) -> EsFleetSettings {
    let es = &c.elasticsearch;
    let text = |path: &PathBuf| Arc::<str>::from(path.to_string_lossy());
    let mut endpoints = es.record_endpoints.clone();
    endpoints.retain(|url| *url != es.url);
    endpoints.push(es.url.clone());
    EsFleetSettings {
        endpoints,
        index: index.clone(),
        fleet: c.fleet.as_str().into(),
        timeout_ms: es.timeout_ms,
        ca_file: es.ca_file.as_ref().map(text),
        api_key_file: es.api_key_file.as_ref().map(text),
        basic_auth_file: es.basic_auth_file.as_ref().map(text),
        client_cert_file: es.client_cert_file.as_ref().map(text),
    }
}
