//! Values held against each other: what would make a fleet impossible to patch, or unsafe.

use super::arn::Arn;
use super::duration::Written;
use super::keys::DEFAULT_LISTEN;
use super::raw::{Metrics, Paths, Raw};
use super::text::{instance_as_on_aws, loopback_text};
use super::validate::Findings;
use reqwest::Url;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// A Unix socket's path fits into 108 bytes, the last of which is zero.
const SOCKET_PATH_MAX: usize = 107;

/// All rules, in the order of the file.
pub(super) fn all(findings: &mut Findings<'_>, raw: &Raw, arns: &[Option<Arn>]) {
    floor(findings, raw);
    watch(findings, raw);
    groups(findings, raw, arns);
    identity(findings, raw, arns);
    pager(findings, raw);
    elasticsearch(findings, raw);
    record(findings, raw);
    elbv2(findings, raw);
    cycle(findings, raw);
    network(findings, raw);
    rest(findings, raw);
    paths(findings, raw);
    metrics(findings, raw);
    rehearsal(findings, raw);
}

/// Given, or one less than `minimum_healthy`, at least 1.
pub(super) fn minimum_during_patch(raw: &Raw) -> u32 {
    raw.minimum_during_patch.unwrap_or_else(|| raw.minimum_healthy.saturating_sub(1).max(1))
}

/// Given, or in the runtime directory.
pub(super) fn socket(paths: &Paths) -> PathBuf {
    paths.socket.as_ref().map_or_else(|| Path::new(&paths.runtime_dir).join("agent.sock"), PathBuf::from)
}

fn floor(findings: &mut Findings<'_>, raw: &Raw) {
    let (healthy, during) = (raw.minimum_healthy, minimum_during_patch(raw));
    let keys = ["minimum_during_patch", "minimum_healthy"];
    if raw.minimum_during_patch.is_some() && during >= healthy {
        findings.problem(
            &keys,
            &format!("{during} with minimum_healthy = {healthy}"),
            &format!(
                "less than minimum_healthy: no cycle could run in a fleet of {healthy}, since the node that leaves \
                 does not stay"
            ),
            &format!(
                "leave minimum_during_patch out, or in a larger fleet set minimum_healthy = {}",
                during.saturating_add(1)
            ),
        );
    } else if during == 1 {
        findings.warning(
            &["minimum_healthy", "minimum_during_patch"],
            "while one node is patched a single other one may carry all traffic; if it fails too, nothing answers",
            "run three nodes with minimum_healthy = 3",
        );
    }
    let spare = healthy.saturating_sub(during).max(1);
    if raw.max_unavailable > spare {
        findings.warning(
            &["max_unavailable", "minimum_healthy", "minimum_during_patch"],
            &format!(
                "{} slots, but a fleet of {healthy} nodes (minimum_healthy) has room for {spare}: the others can be used \
                 only while more nodes than that are in service",
                raw.max_unavailable
            ),
            "set max_unavailable = 1 unless the fleet is larger",
        );
    }
}

fn watch(findings: &mut Findings<'_>, raw: &Raw) {
    if raw.outside_watch.is_none() {
        findings.warning(
            &["outside_watch"],
            "nobody outside notices when all agents are dead",
            "set outside_watch to a heartbeat URL, or to \"none\"",
        );
    }
}

fn groups(findings: &mut Findings<'_>, raw: &Raw, arns: &[Option<Arn>]) {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut first: Option<(usize, &Arn)> = None;
    for (i, (group, arn)) in raw.target_group.iter().zip(arns).enumerate() {
        let (Some(text), Some(arn)) = (group.arn.as_deref(), arn) else { continue };
        let key = format!("target_group[{i}].arn");
        if let Some(before) = seen.insert(text, i) {
            findings.problem(
                &[&key],
                &format!("the group of target_group[{before}] again"),
                "every target group once",
                "take this [[target_group]] out",
            );
            continue;
        }
        if raw.elbv2.endpoint_url.is_none() && !arn.id_as_on_aws() {
            findings.problem(
                &[&key, "elbv2.endpoint_url"],
                &format!("the ID {:?} after the name", arn.id),
                "16 of 0-9 and a-f, as AWS gives them",
                "copy the whole ARN; its end seems to be cut off or changed",
            );
        }
        match first {
            None => first = Some((i, arn)),
            Some((at, one)) => same_place(findings, &key, arn, at, one),
        }
    }
}

fn same_place(findings: &mut Findings<'_>, key: &str, arn: &Arn, at: usize, one: &Arn) {
    if (&arn.partition, &arn.region) != (&one.partition, &one.region) {
        findings.problem(
            &[key],
            &format!("region {} ({})", arn.region, arn.partition),
            &format!("region {} ({}), as in target_group[{at}]: a node is in one region", one.region, one.partition),
            "keep the groups of the region that the nodes are in",
        );
    } else if arn.account != one.account {
        findings.warning(
            &[key],
            &format!(
                "account {}, but target_group[{at}] is of account {}: one role rarely may do both",
                arn.account, one.account
            ),
            "check the ARN with `backstop check`",
        );
    }
}

fn identity(findings: &mut Findings<'_>, raw: &Raw, arns: &[Option<Arn>]) {
    let ids = (0..arns.len())
        .zip(&raw.target_group)
        .filter_map(|(i, g)| Some((format!("target_group[{i}].id"), g.id.as_deref()?)));
    let own = raw.node.instance_id.as_deref().map(|id| ("node.instance_id".to_owned(), id));
    for (key, id) in ids.chain(own) {
        if raw.elbv2.endpoint_url.is_none() && id.starts_with("i-") && !instance_as_on_aws(id) {
            findings.problem(
                &[&key, "elbv2.endpoint_url"],
                &format!("{id:?}"),
                "i- and 17 (or 8) of 0-9 and a-f, as AWS gives them",
                "correct the id, or leave the key out: instance metadata knows it",
            );
        } else if !raw.record.single_host {
            findings.warning(
                &[&key],
                "this file belongs to one node alone: with the same file on another, both would move one target",
                "leave the key out where instance metadata can be asked",
            );
        }
    }
}

fn pager(findings: &mut Findings<'_>, raw: &Raw) {
    let pager = &raw.pager;
    let some = pager.webhook.url.is_some()
        || pager.pagerduty.routing_key_file.is_some()
        || !pager.alertmanager.urls.is_empty()
        || ["pager.webhook", "pager.pagerduty", "pager.alertmanager"].iter().any(|table| findings.given(table));
    if !some {
        findings.problem(
            &["pager", "pager.webhook", "pager.pagerduty", "pager.alertmanager"],
            "no pager",
            "at least one of [pager.pagerduty], [pager.alertmanager] and [pager.webhook]: a node that stays out must be heard of",
            "add [pager.pagerduty] and below it routing_key_file = \"/etc/backstop/pagerduty.key\"",
        );
    }
    let open = |url: &String| url.starts_with("http:") && !loopback_text(url);
    if pager.alertmanager.basic_auth_file.is_some() && pager.alertmanager.urls.iter().any(open) {
        findings.warning(
            &["pager.alertmanager.basic_auth_file", "pager.alertmanager.urls"],
            "the password crosses the network in the clear",
            "use https",
        );
    }
}

fn elasticsearch(findings: &mut Findings<'_>, raw: &Raw) {
    let es = &raw.elasticsearch;
    let secret = if es.api_key_file.is_some() { "elasticsearch.api_key_file" } else { "elasticsearch.basic_auth_file" };
    let with_secret = es.api_key_file.is_some() || es.basic_auth_file.is_some();
    if es.api_key_file.is_some() && es.basic_auth_file.is_some() {
        findings.problem(
            &["elasticsearch.basic_auth_file", "elasticsearch.api_key_file"],
            "a password beside an API key",
            "one of the two",
            "keep api_key_file and take basic_auth_file out",
        );
    }
    let open = |url: &str| url.starts_with("http:") && !loopback_text(url);
    if with_secret && (open(&es.url) || es.record_endpoints.iter().any(|url| open(url))) {
        findings.warning(
            &["elasticsearch.url", "elasticsearch.record_endpoints", secret],
            "the key or password crosses the network in the clear",
            "use https with ca_file",
        );
    }
    if es.client_cert_file.is_some()
        && (es.url.starts_with("http:") || es.record_endpoints.iter().any(|u| u.starts_with("http:")))
    {
        findings.warning(
            &["elasticsearch.client_cert_file", "elasticsearch.url", "elasticsearch.record_endpoints"],
            "client_cert_file has no effect where a URL begins with http",
            "write https in every URL",
        );
    }
    if es.ca_file.is_some()
        && es.url.starts_with("http:")
        && es.record_endpoints.iter().all(|url| url.starts_with("http:"))
    {
        findings.warning(
            &["elasticsearch.ca_file", "elasticsearch.url"],
            "ca_file has no effect: no URL begins with https",
            "write https in elasticsearch.url",
        );
    }
}

fn record(findings: &mut Findings<'_>, raw: &Raw) {
    if raw.record.store == "file" {
        if !raw.record.single_host {
            findings.problem(
                &["record.single_host", "record.store"],
                "false with store = \"file\"",
                "true: a file can be the record only of a fleet that runs on this host as a whole",
                "set single_host = true for a test or a rehearsal, and never on a real fleet",
            );
        }
        if findings.given("record.index") {
            findings.warning(&["record.index"], "index has no effect with store = \"file\"", "take it out");
        }
        return;
    }
    if raw.record.path.is_some() {
        findings.warning(&["record.path"], "path has no effect without store = \"file\"", "take it out");
    }
    let others = other_hosts(raw);
    if others < 2 && !raw.record.single_host {
        findings.problem(
            &["elasticsearch.record_endpoints", "elasticsearch"],
            &format!("{} that {} not this host", others, if others == 1 { "is" } else { "are" }),
            "at least two nodes on other hosts: the fleet record must be reached while this host's node is patched",
            "list nodes that stay, such as record_endpoints = [\"https://es-data-1:9200\", \"https://es-data-2:9200\"], \
             below [elasticsearch]",
        );
    }
}

/// Hosts among the record's endpoints that are not this one.
fn other_hosts(raw: &Raw) -> usize {
    let host = |url: &str| Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned));
    let mine = [host(&raw.elasticsearch.url), Some(raw.node.name.clone())];
    let endpoints = raw.elasticsearch.record_endpoints.iter().filter(|url| !loopback_text(url));
    endpoints
        .filter_map(|url| host(url))
        .filter(|h| !mine.iter().flatten().any(|m| m == h))
        .collect::<BTreeSet<_>>()
        .len()
}

fn elbv2(findings: &mut Findings<'_>, raw: &Raw) {
    if let Some(url) = &raw.elbv2.endpoint_url
        && url.starts_with("http:")
        && !loopback_text(url)
    {
        findings.problem(
            &["elbv2.endpoint_url"],
            "plain http to another host",
            "https, or http to loopback: signed calls must not be read or changed on their way",
            "write https, or leave the key out for AWS",
        );
    }
    if !raw.elbv2.register_probe && raw.elbv2.endpoint_url.is_none() {
        findings.warning(
            &["elbv2.register_probe"],
            "a node may leave without proof that it may come back",
            "take it out: it is for emulators",
        );
    }
    ordered(
        findings,
        &[
            ("elbv2.connect_timeout", raw.elbv2.connect_timeout.0),
            ("elbv2.attempt_timeout", raw.elbv2.attempt_timeout.0),
            ("elbv2.operation_timeout", raw.elbv2.operation_timeout.0),
        ],
    );
    for (deadline, ms) in [
        ("deadlines.claim", raw.deadlines.claim.0),
        ("deadlines.deregister", raw.deadlines.deregister.0),
        ("deadlines.register", raw.deadlines.register.0),
    ] {
        ordered(findings, &[("elbv2.operation_timeout", raw.elbv2.operation_timeout.0), (deadline, ms)]);
    }
}

/// Each at most as long as the next one.
fn ordered(findings: &mut Findings<'_>, times: &[(&str, u64)]) {
    for pair in times.windows(2) {
        let [(short, short_ms), (long, long_ms)] = pair else { continue };
        if short_ms > long_ms {
            findings.problem(
                &[short, long],
                &format!("{}", Written(*short_ms)),
                &format!("at most {long}, which is {}: it could never end before", Written(*long_ms)),
                &format!("lower {short} or raise {long}"),
            );
        }
    }
}

fn cycle(findings: &mut Findings<'_>, raw: &Raw) {
    let (check, deadlines, timeout) = (&raw.check, &raw.deadlines, raw.elasticsearch.timeout.0);
    if check.over.0 > 0 {
        ordered(findings, &[("check.every", check.every.0), ("check.over", check.over.0)]);
    }
    ordered(findings, &[("elasticsearch.timeout", timeout), ("deadlines.claim", deadlines.claim.0)]);
    let spread = check.every.0.saturating_mul(u64::from(check.passes.saturating_sub(1)));
    let shortest = check.over.0.max(spread).saturating_add(timeout);
    if shortest >= deadlines.check.0 {
        findings.problem(
            &["deadlines.check", "check.over", "check.every", "check.passes", "elasticsearch.timeout"],
            &format!("{}", Written(deadlines.check.0)),
            &format!(
                "more than {}: {} passes, {} apart, over {}, and one call of {} must fit in",
                Written(shortest),
                check.passes,
                Written(check.every.0),
                Written(check.over.0),
                Written(timeout)
            ),
            "raise deadlines.check, or ask for fewer passes",
        );
    }
    for (name, ms) in
        [("deadlines.settle", deadlines.settle.0), ("deadlines.settle_network", deadlines.settle_network.0)]
    {
        if raw.settle.bake.0 >= ms {
            findings.problem(
                &[name, "settle.bake"],
                &format!("{}", Written(ms)),
                &format!("more than settle.bake, which is {}: every cycle would fail", Written(raw.settle.bake.0)),
                &format!("raise {name} or lower settle.bake"),
            );
        }
    }
    let dwells = [("check.over", check.over.0), ("drain.quiet", raw.drain.quiet.0), ("settle.bake", raw.settle.bake.0)];
    for (name, ms) in dwells {
        if ms == 0 && !raw.record.single_host {
            findings.warning(&[name], "one good answer is believed at once", "give it some seconds: it is for tests");
        }
    }
}

/// A network load balancer announces what it does minutes before it does it.
fn network(findings: &mut Findings<'_>, raw: &Raw) {
    const LAG_MS: u64 = 180_000;
    for (key, ms) in [
        ("drain.margin_network", raw.drain.margin_network.0),
        ("deadlines.settle_network", raw.deadlines.settle_network.0),
    ] {
        if ms < LAG_MS && !raw.record.single_host {
            findings.warning(
                &[key],
                &format!("{} is less than the minutes that a network load balancer needs", Written(ms)),
                "leave the key out",
            );
        }
    }
}

fn rest(findings: &mut Findings<'_>, raw: &Raw) {
    const PAGE_WITHIN_MS: u64 = 30_000;
    if raw.reconcile.every.0 > PAGE_WITHIN_MS {
        findings.warning(
            &["reconcile.every"],
            "a finding needs two looks: a page would come later than a minute",
            "set it to 30s or less",
        );
    }
    if raw.reconcile.self_heal_after.0 < raw.reconcile.every.0.saturating_mul(2) {
        findings.problem(
            &["reconcile.self_heal_after", "reconcile.every"],
            &format!("{}", Written(raw.reconcile.self_heal_after.0)),
            &format!("at least two looks, which is {}", Written(raw.reconcile.every.0.saturating_mul(2))),
            "raise reconcile.self_heal_after",
        );
    }
    if let (Some(hour), Some(day)) = (raw.limits.cycles_per_hour, raw.limits.cycles_per_day)
        && day < hour
    {
        findings.warning(
            &["limits.cycles_per_hour", "limits.cycles_per_day"],
            &format!("{hour} in an hour can never be reached: {day} in a day come first"),
            "lower cycles_per_hour",
        );
    }
    if raw.job.output_max_kib > raw.limits.free_disk_mib.saturating_mul(1024) {
        findings.warning(
            &["job.output_max_kib", "limits.free_disk_mib"],
            "a job's output may fill the space that limits.free_disk_mib keeps free",
            "lower output_max_kib or raise free_disk_mib",
        );
    }
    if raw.roles.act_group.as_ref() == Some(&raw.roles.read_group)
        || raw.roles.admin_group.as_ref() == Some(&raw.roles.read_group)
    {
        findings.warning(
            &["roles.read_group", "roles.admin_group", "roles.act_group"],
            "everybody who may look may also act",
            "use groups of their own for acting",
        );
    }
}

fn short_enough(findings: &mut Findings<'_>, keys: &[&str], socket: &Path) {
    let length = socket.as_os_str().len();
    if length > SOCKET_PATH_MAX {
        findings.problem(
            keys,
            &format!("a path of {length} bytes"),
            &format!("at most {SOCKET_PATH_MAX} bytes, as Unix sockets have it"),
            "use a shorter directory",
        );
    }
}

/// Given, or the default where there is no socket instead.
pub(super) fn metrics_listen(raw: Option<&Metrics>) -> Option<SocketAddr> {
    let listen = raw.and_then(|m| m.listen.as_deref());
    match (listen, raw.and_then(|m| m.socket.as_ref())) {
        (None, Some(_)) => None,
        (None, None) => DEFAULT_LISTEN.parse().ok(),
        (Some(text), _) => text.parse().ok(),
    }
}

fn metrics(findings: &mut Findings<'_>, raw: &Raw) {
    let Some(path) = raw.metrics.as_ref().and_then(|m| m.socket.as_deref()) else { return };
    short_enough(findings, &["metrics.socket"], Path::new(path));
    if Path::new(path) == socket(&raw.paths) {
        findings.problem(
            &["metrics.socket", "paths.socket"],
            "the same path as paths.socket",
            "a socket of its own",
            "choose another name in that directory, such as metrics.sock",
        );
    }
}

fn paths(findings: &mut Findings<'_>, raw: &Raw) {
    short_enough(findings, &["paths.socket", "paths.runtime_dir"], &socket(&raw.paths));
    if raw.paths.state_dir.trim_end_matches('/') == raw.paths.runtime_dir.trim_end_matches('/') {
        findings.problem(
            &["paths.state_dir", "paths.runtime_dir"],
            "the same directory as paths.runtime_dir",
            "two directories: one that survives a reboot, and one that need not",
            "leave one of them out",
        );
    }
    let emptied = ["/run", "/var/run", "/tmp", "/dev/shm"];
    if !raw.record.single_host && emptied.iter().any(|dir| Path::new(&raw.paths.state_dir).starts_with(dir)) {
        findings.problem(
            &["paths.state_dir"],
            &format!("{:?}", raw.paths.state_dir),
            "a directory that survives a reboot: an unfinished cycle must not be forgotten",
            "leave the key out, or use a directory below /var/lib",
        );
    }
}

/// Compressed time and a stand-in for the machine must never meet a real fleet.
fn rehearsal(findings: &mut Findings<'_>, raw: &Raw) {
    let Some(rehearsal) = &raw.rehearsal else { return };
    let keys = [
        ("rehearsal.time_scale", rehearsal.time_scale.is_some()),
        ("rehearsal.time_epoch_ms", rehearsal.time_epoch_ms.is_some()),
        ("rehearsal.host", rehearsal.host.is_some()),
        ("rehearsal.boot_id", rehearsal.boot_id.is_some()),
    ];
    let Some((key, _)) = keys.into_iter().find(|(_, set)| *set) else { return };
    if !raw.record.single_host {
        findings.problem(
            &[key, "record.single_host"],
            "a key of the rehearsal on a fleet of several hosts",
            "these keys only together with record.single_host = true",
            "take [rehearsal] out",
        );
        return;
    }
    let watch = raw.outside_watch.as_deref().filter(|url| *url != "none");
    let outward = [
        ("elasticsearch.url", Some(raw.elasticsearch.url.as_str())),
        ("elbv2.endpoint_url", raw.elbv2.endpoint_url.as_deref()),
        ("node.imds_endpoint", raw.node.imds_endpoint.as_deref()),
        ("pager.webhook.url", raw.pager.webhook.url.as_deref()),
        (
            "pager.pagerduty.url",
            raw.pager.pagerduty.routing_key_file.as_ref().map(|_| raw.pager.pagerduty.url.as_str()),
        ),
        ("rehearsal.host", rehearsal.host.as_deref()),
        ("outside_watch", watch),
    ];
    let records =
        raw.elasticsearch.record_endpoints.iter().map(|url| ("elasticsearch.record_endpoints", Some(url.as_str())));
    let managers = raw.pager.alertmanager.urls.iter().map(|url| ("pager.alertmanager.urls", Some(url.as_str())));
    for (endpoint, url) in outward.into_iter().chain(records).chain(managers) {
        if url.is_some_and(|url| !loopback_text(url)) {
            findings.problem(
                &[endpoint, key],
                "an address off this host",
                "loopback, since [rehearsal] is set",
                "take [rehearsal] out",
            );
        }
    }
    if raw.elbv2.endpoint_url.is_none() {
        findings.problem(
            &["elbv2.endpoint_url", key],
            "none, which means AWS itself",
            "an endpoint on loopback, since [rehearsal] is set",
            "take [rehearsal] out",
        );
    }
}
