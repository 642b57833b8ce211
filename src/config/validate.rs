//! From the raw document to [`Config`]: the values held against each other. All problems at once; what was refused
//! before is not spoken about again.

use super::arn::{self, Arn};
use super::problem::{Problem, Problems, Warning};
use super::raw::{Group, Raw};
use super::rules;
use super::settings::{
    Alertmanager, Check, Config, ConnectionsLeft, Deadlines, Drain, Elasticsearch, Elbv2, FleetName, JobRunner, Limits,
    Log, LogFormat, LogLevel, Metrics, Mode, Node, OutsideWatch, Pager, PagerDuty, Paths, Reconcile, Record, Region,
    Rehearsal, Roles, SecretUrl, Store, TargetGroup, Webhook,
};
use super::walk::Walked;
use crate::core::target::GroupArn;
use std::path::PathBuf;
use std::sync::Arc;

/// Collects what the rules find.
pub(super) struct Findings<'a> {
    file: &'a str,
    walked: &'a Walked,
    problems: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Findings<'_> {
    /// Something that cannot stand, about these keys; the first one names it.
    pub(super) fn problem(&mut self, keys: &[&str], found: &str, expected: &str, next: &str) {
        // A key that was refused holds its default here: what follows from that is not the operator's doing. In a
        // torn file any key may be one that could not be read.
        if self.walked.torn || keys.iter().any(|key| self.walked.is_bad(key)) {
            return;
        }
        self.problems.push(Problem {
            file: self.file.to_owned(),
            line: self.line(keys),
            key: keys.first().map(|key| (*key).to_owned()),
            found: found.to_owned(),
            expected: expected.to_owned(),
            next: next.to_owned(),
        });
    }

    /// Something odd, about these keys; the first one names it.
    pub(super) fn warning(&mut self, keys: &[&str], says: &str, next: &str) {
        if keys.iter().any(|key| self.walked.is_bad(key)) {
            return;
        }
        self.warnings.push(Warning {
            file: self.file.to_owned(),
            line: self.line(keys),
            key: keys.first().copied().unwrap_or_default().to_owned(),
            says: says.to_owned(),
            next: next.to_owned(),
        });
    }

    /// The file gives this key, in a form that was accepted.
    pub(super) fn given(&self, key: &str) -> bool {
        self.walked.given(key)
    }

    fn line(&self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.walked.line(key))
    }
}

/// Everything that is left to judge after the walk.
pub(super) fn validate(file: &str, mut walked: Walked) -> Result<(Config, Vec<Warning>), Problems> {
    let mut problems = std::mem::take(&mut walked.problems);
    let raw = match Raw::deserialize_from(&walked) {
        Ok(raw) => raw,
        Err(error) => {
            problems.push(internal(file, &error.to_string()));
            return Err(Problems::new(problems.clone()).unwrap_or_else(|| Problems::one(internal(file, ""))));
        }
    };
    let mut findings = Findings { file, walked: &walked, problems, warnings: Vec::new() };
    let arns = arns(&raw);
    rules::all(&mut findings, &raw, &arns);
    let Findings { problems, warnings, .. } = findings;
    if let Some(problems) = Problems::new(problems) {
        return Err(problems);
    }
    match build(raw, &arns) {
        Some(config) => Ok((config, warnings)),
        None => Err(Problems::one(internal(file, "a key that must be there is not"))),
    }
}

impl Raw {
    fn deserialize_from(walked: &Walked) -> Result<Raw, toml::de::Error> {
        toml::Value::Table(walked.doc.clone()).try_into()
    }
}

/// The table of keys and the raw document disagree: a mistake in this program. Still an answer, never a panic.
fn internal(file: &str, error: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        line: None,
        key: None,
        found: format!("settings that backstop cannot put together ({})", error.trim().replace('\n', " ")),
        expected: "settings that it can".to_owned(),
        next: "report this as a bug of backstop, with the file".to_owned(),
    }
}

/// The ARN of each group, by its position; none where it is missing or was refused.
fn arns(raw: &Raw) -> Vec<Option<Arn>> {
    raw.target_group.iter().map(|group| group.arn.as_deref().and_then(|text| arn::parse(text).ok())).collect()
}

fn build(raw: Raw, arns: &[Option<Arn>]) -> Option<Config> {
    let node_name = raw.elasticsearch.node_name.as_deref().unwrap_or(&raw.node.name).into();
    Some(Config {
        fleet: FleetName::new(raw.fleet.as_deref()?),
        mode: if raw.mode == "observe" { Mode::Observe } else { Mode::Act },
        minimum_healthy: raw.minimum_healthy,
        minimum_during_patch: rules::minimum_during_patch(&raw),
        max_unavailable: raw.max_unavailable,
        asg_health_check_ec2: raw.asg_health_check.is_some(),
        outside_watch: outside_watch(raw.outside_watch.as_deref()),
        target_groups: groups(raw.target_group)?,
        region: Region::new(&arns.first()?.as_ref()?.region),
        elbv2: elbv2(&raw.elbv2),
        record: record(&raw.record, &raw.paths.state_dir),
        pager: pager(raw.pager),
        node: Node {
            instance_id: raw.node.instance_id.map(Arc::from),
            name: raw.node.name.into(),
            imds_endpoint: raw.node.imds_endpoint.as_deref().map(base),
        },
        elasticsearch: elasticsearch(raw.elasticsearch, node_name),
        check: Check { passes: raw.check.passes, over_ms: raw.check.over.0, every_ms: raw.check.every.0 },
        drain: drain(&raw.drain),
        settle_bake_ms: raw.settle.bake.0,
        deadlines: deadlines(&raw.deadlines),
        limits: Limits {
            cycles_per_hour: raw.limits.cycles_per_hour,
            cycles_per_day: raw.limits.cycles_per_day,
            reboots_per_day: raw.limits.reboots_per_day,
            free_disk_mib: raw.limits.free_disk_mib,
        },
        reconcile: Reconcile {
            every_ms: raw.reconcile.every.0,
            self_heal_after_ms: raw.reconcile.self_heal_after.0,
            other_nodes: raw.reconcile.other_nodes.into_iter().map(Arc::from).collect(),
            patch_overdue_after_ms: raw.reconcile.patch_overdue_after.map(|ms| ms.0),
        },
        job_runner: match raw.job.runner.as_str() {
            "systemd" => JobRunner::Systemd,
            "process" => JobRunner::Process,
            _ => JobRunner::Auto,
        },
        job_output_max_kib: raw.job.output_max_kib,
        paths: Paths {
            socket: rules::socket(&raw.paths),
            state_dir: raw.paths.state_dir.into(),
            runtime_dir: raw.paths.runtime_dir.into(),
        },
        roles: Roles {
            read_group: raw.roles.read_group.into(),
            act_group: raw.roles.act_group.map(Arc::from),
            admin_group: raw.roles.admin_group.map(Arc::from),
        },
        log: Log { format: log_format(&raw.log.format), level: log_level(&raw.log.level) },
        metrics: metrics(raw.metrics.as_ref()),
        rehearsal: rehearsal(raw.rehearsal.as_ref()),
    })
}

/// A base URL without the slash that some write at its end.
fn base(url: &str) -> Arc<str> {
    url.trim_end_matches('/').into()
}

fn outside_watch(text: Option<&str>) -> OutsideWatch {
    match text {
        None => OutsideWatch::Unset,
        Some("none") => OutsideWatch::None,
        Some(url) => OutsideWatch::Url(SecretUrl::new(url)),
    }
}

fn groups(raw: Vec<Group>) -> Option<Vec<TargetGroup>> {
    raw.into_iter()
        .map(|group| {
            Some(TargetGroup { arn: GroupArn(group.arn?.into()), port: group.port, id: group.id.map(Arc::from) })
        })
        .collect()
}

fn pager(raw: super::raw::Pager) -> Pager {
    let (pagerduty, alertmanager, webhook) = (raw.pagerduty, raw.alertmanager, raw.webhook);
    Pager {
        pagerduty: pagerduty.routing_key_file.map(|file| PagerDuty {
            routing_key_file: file.into(),
            url: SecretUrl::new(&pagerduty.url),
            timeout_ms: pagerduty.timeout.0,
        }),
        alertmanager: (!alertmanager.urls.is_empty()).then(|| Alertmanager {
            urls: alertmanager.urls.iter().map(|url| base(url)).collect(),
            basic_auth_file: alertmanager.basic_auth_file.map(PathBuf::from),
            timeout_ms: alertmanager.timeout.0,
        }),
        webhook: webhook.url.map(|url| Webhook {
            url: SecretUrl::new(&url),
            secret_file: webhook.secret_file.map(PathBuf::from),
            timeout_ms: webhook.timeout.0,
        }),
    }
}

fn elbv2(raw: &super::raw::Elbv2) -> Elbv2 {
    Elbv2 {
        endpoint_url: raw.endpoint_url.as_deref().map(base),
        connect_timeout_ms: raw.connect_timeout.0,
        attempt_timeout_ms: raw.attempt_timeout.0,
        operation_timeout_ms: raw.operation_timeout.0,
        register_probe: raw.register_probe,
    }
}

fn elasticsearch(raw: super::raw::Elasticsearch, node_name: Arc<str>) -> Elasticsearch {
    Elasticsearch {
        url: base(&raw.url),
        record_endpoints: raw.record_endpoints.iter().map(|url| base(url)).collect(),
        ca_file: raw.ca_file.map(PathBuf::from),
        api_key_file: raw.api_key_file.map(PathBuf::from),
        basic_auth_file: raw.basic_auth_file.map(PathBuf::from),
        client_cert_file: raw.client_cert_file.map(PathBuf::from),
        node_name,
        canary_index: raw.canary_index.map(Arc::from),
        timeout_ms: raw.timeout.0,
    }
}

fn record(raw: &super::raw::Record, state_dir: &str) -> Record {
    let store = if raw.store == "file" {
        let dir = raw.path.as_ref().map_or_else(|| PathBuf::from(state_dir).join("record"), PathBuf::from);
        Store::File { dir }
    } else {
        Store::Elasticsearch { index: raw.index.as_str().into() }
    };
    Record { store, single_host: raw.single_host }
}

fn drain(raw: &super::raw::Drain) -> Drain {
    Drain {
        quiet_ms: raw.quiet.0,
        margin_application_ms: raw.margin_application.0,
        margin_network_ms: raw.margin_network.0,
        connections_left: if raw.connections_left == "fail" { ConnectionsLeft::Fail } else { ConnectionsLeft::GoOn },
    }
}

fn deadlines(raw: &super::raw::Deadlines) -> Deadlines {
    Deadlines {
        claim_ms: raw.claim.0,
        deregister_ms: raw.deregister.0,
        patch_ms: raw.patch.0,
        reboot_ms: raw.reboot.0,
        check_ms: raw.check.0,
        register_ms: raw.register.0,
        settle_ms: raw.settle.0,
        settle_network_ms: raw.settle_network.0,
    }
}

fn log_format(word: &str) -> LogFormat {
    if word == "text" { LogFormat::Text } else { LogFormat::Json }
}

fn log_level(word: &str) -> LogLevel {
    [LogLevel::Error, LogLevel::Warn, LogLevel::Debug, LogLevel::Trace]
        .into_iter()
        .find(|level| level.label() == word)
        .unwrap_or(LogLevel::Info)
}

fn metrics(raw: Option<&super::raw::Metrics>) -> Metrics {
    let path = |text: Option<&String>| text.map(PathBuf::from);
    Metrics {
        listen: rules::metrics_listen(raw),
        socket: path(raw.and_then(|m| m.socket.as_ref())),
        textfile: path(raw.and_then(|m| m.textfile.as_ref())),
    }
}

fn rehearsal(raw: Option<&super::raw::Rehearsal>) -> Rehearsal {
    Rehearsal {
        time_scale: raw.and_then(|r| r.time_scale).unwrap_or(1),
        time_epoch_ms: raw.and_then(|r| r.time_epoch_ms),
        host: raw.and_then(|r| r.host.as_deref()).map(base),
        boot_id: raw.and_then(|r| r.boot_id.as_deref()).map(Arc::from),
    }
}
