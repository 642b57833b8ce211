//! The one table of keys: name, type, limits, default and meaning. The walk over the file, the defaults, `config show`,
//! the sample file and the list in docs/config.md all come from here, so they cannot disagree.

use super::duration::Written;
use super::text::Form;

const S: u64 = 1_000;
const M: u64 = 60 * S;
const H: u64 = 60 * M;
const DAY: u64 = 24 * H;

/// What a value may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Text such as "15m", within these milliseconds.
    Duration {
        /// Least.
        min_ms: u64,
        /// Most.
        max_ms: u64,
    },
    /// A whole number.
    Integer {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
    },
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text of a certain form.
    Text(Form),
    /// A list of texts of a certain form.
    List(Form),
}

/// What holds when the file does not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// There is none: the file must say.
    Required,
    /// This value, as in TOML but without quotes.
    Value(&'static str),
    /// It follows from another key, as said here; the second is what that comes to when nothing is set.
    Derived(&'static str, &'static str),
    /// The key stays unset, which means this.
    Unset(&'static str),
}

/// One key of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Full name; `[]` after a list of tables.
    pub path: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// When the file does not say.
    pub fallback: Fallback,
    /// An example for a key that has no default, or what the sample file sets.
    pub example: &'static str,
    /// The sample file sets it: nobody can use the file without.
    pub in_sample: bool,
    /// What it means, in one sentence.
    pub doc: &'static str,
}

/// One table of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Full name; `[]` for a list of tables.
    pub path: &'static str,
    /// What it is about.
    pub doc: &'static str,
}

impl Key {
    /// The table it is in; empty for the top of the file.
    pub fn section(&self) -> &'static str {
        self.path.rsplit_once('.').map_or("", |(section, _)| section)
    }

    /// Its name inside that table.
    pub fn name(&self) -> &'static str {
        self.path.rsplit_once('.').map_or(self.path, |(_, name)| name)
    }

    /// What it is to be after `expected `.
    pub fn expects(&self) -> String {
        match self.kind {
            Kind::Duration { min_ms, max_ms } => format!("a duration from {} to {}", Written(min_ms), Written(max_ms)),
            Kind::Integer { min, max } => format!("a whole number from {min} to {max}"),
            Kind::Bool => "true or false".to_owned(),
            Kind::Choice(words) => alternatives(words),
            Kind::Text(form) => form.expects().to_owned(),
            Kind::List(form) => format!("a list, each {}", form.expects()),
        }
    }

    /// A value as TOML writes it.
    pub fn as_toml(&self, plain: &str) -> String {
        match self.kind {
            Kind::Integer { .. } | Kind::Bool | Kind::List(_) => plain.to_owned(),
            Kind::Duration { .. } | Kind::Choice(_) | Kind::Text(_) => toml::Value::from(plain).to_string(),
        }
    }

    /// The default for people: a value, a rule or what unset means.
    pub fn default_said(&self) -> String {
        match self.fallback {
            Fallback::Required => "required".to_owned(),
            Fallback::Value(value) => self.as_toml(value),
            Fallback::Derived(rule, _) => rule.to_owned(),
            Fallback::Unset(means) => format!("unset: {means}"),
        }
    }

    /// The value may hold a token, so it is never shown whole.
    pub fn secret(&self) -> bool {
        matches!(self.kind, Kind::Text(Form::SecretUrl | Form::WatchUrl))
    }

    const fn sampled(mut self, value: &'static str) -> Key {
        self.in_sample = true;
        self.example = value;
        self
    }

    const fn example(mut self, value: &'static str) -> Key {
        self.example = value;
        self
    }
}

/// `"a", "b" or "c"`
fn alternatives(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|w| format!("\"{w}\"")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}

const fn key(path: &'static str, kind: Kind, fallback: Fallback, doc: &'static str) -> Key {
    Key { path, kind, fallback, example: "", in_sample: false, doc }
}

const fn required(path: &'static str, form: Form, sample: &'static str, doc: &'static str) -> Key {
    key(path, Kind::Text(form), Fallback::Required, doc).sampled(sample)
}

const fn time(path: &'static str, limits_ms: (u64, u64), default: &'static str, doc: &'static str) -> Key {
    key(path, Kind::Duration { min_ms: limits_ms.0, max_ms: limits_ms.1 }, Fallback::Value(default), doc)
}

const fn number(path: &'static str, limits: (i64, i64), default: &'static str, doc: &'static str) -> Key {
    key(path, Kind::Integer { min: limits.0, max: limits.1 }, Fallback::Value(default), doc)
}

const fn text(path: &'static str, form: Form, default: &'static str, doc: &'static str) -> Key {
    key(path, Kind::Text(form), Fallback::Value(default), doc)
}

const fn unset(path: &'static str, kind: Kind, example: &'static str, means: &'static str, doc: &'static str) -> Key {
    key(path, kind, Fallback::Unset(means), doc).example(example)
}

const fn choice(path: &'static str, words: &'static [&'static str], default: &'static str, doc: &'static str) -> Key {
    key(path, Kind::Choice(words), Fallback::Value(default), doc)
}

/// The tables of the file, in the order in which people should read them.
pub const SECTIONS: &[Section] = &[
    Section { path: "", doc: "The fleet and its floor." },
    Section {
        path: "target_group[]",
        doc: "One table per target group. A node is in service when it is healthy in all.",
    },
    Section { path: "pager", doc: "Who is told. At least one pager is required." },
    Section { path: "pager.pagerduty", doc: "Pages as events of PagerDuty's Events API v2." },
    Section { path: "pager.alertmanager", doc: "Pages as alerts of Prometheus Alertmanager's API v2." },
    Section { path: "pager.webhook", doc: "Pages as JSON to a URL." },
    Section { path: "elasticsearch", doc: "The node on this host, and the cluster it belongs to." },
    Section { path: "record", doc: "Where the fleet record is kept: who is out, and what blocks patching." },
    Section { path: "node", doc: "Who this node is." },
    Section { path: "elbv2", doc: "Calls to the load balancer's API." },
    Section { path: "check", doc: "When the node counts as fit to go back: passes in a row, spread over a time." },
    Section { path: "drain", doc: "Waiting for traffic to end, on top of the group's own deregistration delay." },
    Section { path: "settle", doc: "After the node is healthy again." },
    Section { path: "deadlines", doc: "How long a stage may last before a person is paged. None ends the way back." },
    Section { path: "limits", doc: "How often this fleet may patch and reboot." },
    Section { path: "reconcile", doc: "Comparing what should be with what is." },
    Section { path: "job", doc: "The patch job." },
    Section { path: "paths", doc: "Where the agent keeps its files." },
    Section { path: "roles", doc: "Who may do what through the agent's socket. Root may do everything." },
    Section { path: "log", doc: "The agent's own log." },
    Section { path: "metrics", doc: "What Prometheus and its like are told: docs/metrics.md." },
    Section { path: "rehearsal", doc: "Set by `backstop rehearse` alone; refused on a real fleet." },
];

/// Where scrapes are answered when the file does not say.
pub(super) const DEFAULT_LISTEN: &str = "127.0.0.1:9477";

/// Every key, in the order of [`SECTIONS`].
pub fn all() -> impl Iterator<Item = &'static Key> {
    [FLEET, GROUPS, WHO, NODE, CYCLE, HOST].into_iter().flatten()
}

/// The key of this full name, `[]` after a list of tables.
pub fn find(path: &str) -> Option<&'static Key> {
    all().find(|key| key.path == path)
}

const FLEET: &[Key] = &[
    required("fleet", Form::Fleet, "au-search", "Name of the fleet: the same on every node, and in every page."),
    choice("mode", &["act", "observe"], "act", "\"observe\" looks and pages but never writes to the load balancer."),
    number("minimum_healthy", (1, 1_000), "3", "No cycle starts with fewer nodes in service, this node among them."),
    key(
        "minimum_during_patch",
        Kind::Integer { min: 1, max: 1_000 },
        Fallback::Derived("minimum_healthy - 1, at least 1", "2"),
        "No node leaves unless at least so many others stay in service.",
    ),
    number("max_unavailable", (1, 100), "1", "How many nodes may be out through cycles at the same time."),
    unset(
        "asg_health_check",
        Kind::Choice(&["EC2"]),
        "EC2",
        "members of an Auto Scaling group are not patched",
        "Says that the Auto Scaling group does not end an instance that left the load balancer.",
    ),
    unset(
        "outside_watch",
        Kind::Text(Form::WatchUrl),
        "https://watch.example.com/beat/{hostname}",
        "nobody outside notices when all agents are dead",
        "Who outside notices when whole hosts are gone: the URL of a heartbeat (a GET once a minute, while the agent's loops turn), or \"none\".",
    ),
];

const GROUPS: &[Key] = &[
    required(
        "target_group[].arn",
        Form::Arn,
        "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef",
        "The target group. Its region is the region of all calls.",
    ),
    unset(
        "target_group[].port",
        Kind::Integer { min: 1, max: 65_535 },
        "9200",
        "the group's own port",
        "Port of this node's target.",
    ),
    unset(
        "target_group[].id",
        Kind::Text(Form::TargetId),
        "10.2.3.12",
        "the instance id, or this host's address in a group of type ip",
        "Id of this node's target.",
    ),
];

const WHO: &[Key] = &[
    key(
        "pager.pagerduty.routing_key_file",
        Kind::Text(Form::Path),
        Fallback::Required,
        "File with the integration key of an Events API v2 integration.",
    )
    .example("/etc/backstop/pagerduty.key"),
    text(
        "pager.pagerduty.url",
        Form::SecretUrl,
        "https://events.pagerduty.com/v2/enqueue",
        "Where events are sent: the EU service region has https://events.eu.pagerduty.com/v2/enqueue.",
    ),
    time("pager.pagerduty.timeout", (100, M), "10s", "Deadline of one delivery."),
    key(
        "pager.alertmanager.urls",
        Kind::List(Form::BaseUrl),
        Fallback::Required,
        "Every Alertmanager of the cluster, not a load balancer before them: each must get every alert.",
    )
    .example("[\"http://alertmanager-1:9093\", \"http://alertmanager-2:9093\"]"),
    unset(
        "pager.alertmanager.basic_auth_file",
        Kind::Text(Form::Path),
        "/etc/backstop/alertmanager.auth",
        "no password",
        "File with one line `user:password`.",
    ),
    time("pager.alertmanager.timeout", (100, M), "10s", "Deadline of one delivery to one of them."),
    required(
        "pager.webhook.url",
        Form::SecretUrl,
        "https://pager.example.com/backstop",
        "Where pages are sent (POST).",
    ),
    unset(
        "pager.webhook.secret_file",
        Kind::Text(Form::Path),
        "/etc/backstop/webhook.secret",
        "pages are not signed",
        "File with the secret that signs every page.",
    ),
    time(
        "pager.webhook.timeout",
        (100, M),
        "10s",
        "Deadline of one delivery; an undelivered page is kept and sent again.",
    ),
    text(
        "elasticsearch.url",
        Form::BaseUrl,
        "http://127.0.0.1:9200",
        "This host's own node. `{hostname}` becomes the host name.",
    ),
    unset(
        "elasticsearch.record_endpoints",
        Kind::List(Form::BaseUrl),
        "[\"https://es-data-1:9200\", \"https://es-data-2:9200\"]",
        "none, which suffices with store = \"file\"",
        "Nodes that are asked for the fleet record, in this order: at least two that are not this host, and none that is \
         reached through the load balancer alone. This host's own node is asked last.",
    )
    .sampled("[\"https://es-data-1:9200\", \"https://es-data-2:9200\"]"),
    unset(
        "elasticsearch.ca_file",
        Kind::Text(Form::Path),
        "/etc/backstop/http_ca.crt",
        "the system's roots",
        "PEM file with the certificate authority to trust.",
    ),
    unset(
        "elasticsearch.api_key_file",
        Kind::Text(Form::Path),
        "/etc/backstop/es.key",
        "no API key",
        "File with an encoded API key. Not together with basic_auth_file.",
    ),
    unset(
        "elasticsearch.basic_auth_file",
        Kind::Text(Form::Path),
        "/etc/backstop/es.auth",
        "no password",
        "File with one line `user:password`.",
    ),
    unset(
        "elasticsearch.client_cert_file",
        Kind::Text(Form::Path),
        "/etc/backstop/es-client.pem",
        "no client certificate",
        "PEM file with a client certificate (and those between it and the root) and its private key, not encrypted.",
    ),
    key(
        "elasticsearch.node_name",
        Kind::Text(Form::HostText),
        Fallback::Derived("node.name", "{hostname}"),
        "The name that the node itself must answer with.",
    ),
    unset(
        "elasticsearch.canary_index",
        Kind::Text(Form::Index),
        "canary",
        "no canary search",
        "Index that a small search must answer from, as part of the check.",
    ),
    time("elasticsearch.timeout", (100, M), "5s", "Deadline of one call, connecting included."),
    choice(
        "record.store",
        &["elasticsearch", "file"],
        "elasticsearch",
        "\"elasticsearch\", in the cluster itself, or \"file\" (one host only).",
    ),
    text(
        "record.index",
        Form::Index,
        "backstop-fleet",
        "Index of the record with store = \"elasticsearch\"; `backstop init --fleet` makes it, and nothing else does.",
    ),
    key(
        "record.path",
        Kind::Text(Form::Path),
        Fallback::Derived("`record` inside paths.state_dir", "/var/lib/backstop/record"),
        "Directory of the record with store = \"file\".",
    ),
    key(
        "record.single_host",
        Kind::Bool,
        Fallback::Value("false"),
        "Says that all nodes of the fleet run on this host (tests, rehearsals); store = \"file\" needs it.",
    ),
];

const NODE: &[Key] = &[
    unset(
        "node.instance_id",
        Kind::Text(Form::InstanceId),
        "i-0123456789abcdef0",
        "asked from instance metadata",
        "This host's instance id.",
    ),
    text("node.name", Form::HostText, "{hostname}", "This node's name in status, pages and commands."),
    unset(
        "node.imds_endpoint",
        Kind::Text(Form::MetadataUrl),
        "http://127.0.0.1:1338",
        "the instance metadata service",
        "Where instance metadata is asked for; for emulators.",
    ),
    unset(
        "elbv2.endpoint_url",
        Kind::Text(Form::BaseUrl),
        "http://127.0.0.1:5000",
        "the region's own endpoint",
        "Another endpoint: a VPC endpoint or an emulator.",
    ),
    time("elbv2.connect_timeout", (100, M), "3s", "Until the connection stands."),
    time("elbv2.attempt_timeout", (100, M), "5s", "One try, connecting included."),
    time("elbv2.operation_timeout", (100, 2 * M), "10s", "One call with all its tries."),
    key(
        "elbv2.register_probe",
        Kind::Bool,
        Fallback::Value("true"),
        "Proves the right to come back before leaving (guard register-allowed). Off for emulators only.",
    ),
];

const CYCLE: &[Key] = &[
    number("check.passes", (1, 100), "3", "Passes in a row."),
    time("check.over", (0, H), "15s", "Over at least this time."),
    time("check.every", (10, 5 * M), "5s", "Between two tries."),
    time("drain.quiet", (0, H), "10s", "So long the node's port must have no connections from outside."),
    time("drain.margin_application", (0, H), "60s", "Added to the group's delay (application load balancer)."),
    time("drain.margin_network", (0, H), "5m", "The same for a network load balancer, which lags by minutes."),
    choice(
        "drain.connections_left",
        &["go-on", "fail"],
        "go-on",
        "The target is gone but connections are left at the deadline: go on and log them, or fail and return.",
    ),
    time("settle.bake", (0, H), "30s", "So long the node must stay healthy in every group before its slot is freed."),
    time("deadlines.claim", (S, 10 * M), "30s", "Guards and slot."),
    time("deadlines.deregister", (S, 10 * M), "60s", "Until no group calls the target healthy."),
    time("deadlines.patch", (S, DAY), "60m", "The job; then its whole process group is killed."),
    time("deadlines.reboot", (10 * S, 4 * H), "15m", "From the reboot until the agent runs again."),
    time(
        "deadlines.check",
        (S, 4 * H),
        "15m",
        "From the start of the check in the present boot; then page and keep checking.",
    ),
    time("deadlines.register", (S, H), "2m", "Then page and keep trying."),
    time(
        "deadlines.settle",
        (S, 4 * H),
        "5m",
        "Until healthy (application load balancer); then page and keep waiting.",
    ),
    time("deadlines.settle_network", (S, 4 * H), "10m", "The same for a network load balancer."),
    key(
        "limits.cycles_per_hour",
        Kind::Integer { min: 1, max: 1_000_000 },
        Fallback::Unset("2 for each member"),
        "Cycles of the whole fleet in an hour.",
    )
    .example("6"),
    key(
        "limits.cycles_per_day",
        Kind::Integer { min: 1, max: 1_000_000 },
        Fallback::Unset("4 for each member"),
        "Cycles of the whole fleet in 24 hours.",
    )
    .example("12"),
    number("limits.reboots_per_day", (1, 1_000_000), "4", "Reboots of this node in 24 hours."),
    number(
        "limits.free_disk_mib",
        (1, 1_048_576),
        "64",
        "MiB that must be free in paths.state_dir before a cycle starts.",
    ),
    time("reconcile.every", (S, 5 * M), "15s", "Between two looks at whole groups."),
    time(
        "reconcile.self_heal_after",
        (S, DAY),
        "5m",
        "A fit node that is not registered registers itself after this time.",
    ),
    unset(
        "reconcile.other_nodes",
        Kind::List(Form::NodePattern),
        "[\"kibana-*\", \"es-client-b-*\"]",
        "every client node of the cluster should have an agent of this fleet",
        "Client nodes of the same cluster that are no business of this fleet, by name; `*` at the end stands for any rest.",
    ),
    unset(
        "reconcile.patch_overdue_after",
        Kind::Duration { min_ms: DAY, max_ms: 365 * DAY },
        "45d",
        "nobody is told",
        "A node without a successful cycle for this long is told as `patch-overdue`.",
    ),
];

const HOST: &[Key] = &[
    choice(
        "job.runner",
        &["auto", "systemd", "process"],
        "auto",
        "Jobs are units of systemd, or processes that an agent that is root starts; auto = units where there is systemd.",
    ),
    number("job.output_max_kib", (1, 1_048_576), "1024", "KiB of the job's output that are kept."),
    text("paths.state_dir", Form::Path, "/var/lib/backstop", "What must survive a reboot."),
    text("paths.runtime_dir", Form::Path, "/run/backstop", "What need not."),
    key(
        "paths.socket",
        Kind::Text(Form::Path),
        Fallback::Derived("`agent.sock` inside paths.runtime_dir", "/run/backstop/agent.sock"),
        "The agent's control socket.",
    ),
    text("roles.read_group", Form::UnixGroup, "backstop", "Unix group that may look."),
    unset(
        "roles.act_group",
        Kind::Text(Form::UnixGroup),
        "backstop-act",
        "root only",
        "Unix group that may also run, wait, rejoin, hold and pause.",
    ),
    unset(
        "roles.admin_group",
        Kind::Text(Form::UnixGroup),
        "backstop-admin",
        "root only",
        "Unix group that may also clear latches, retire nodes and override guards.",
    ),
    choice("log.format", &["json", "text"], "json", "One JSON object a line, or text for people."),
    choice("log.level", &["error", "warn", "info", "debug", "trace"], "info", "The least that is written."),
    key(
        "metrics.listen",
        Kind::Text(Form::Loopback),
        Fallback::Derived("\"127.0.0.1:9477\", or \"none\" with metrics.socket", DEFAULT_LISTEN),
        "Where scrapes are answered, at /metrics; \"none\" = on no port.",
    ),
    unset(
        "metrics.socket",
        Kind::Text(Form::Path),
        "/run/backstop/metrics.sock",
        "no socket",
        "The same on a Unix socket, for members of roles.read_group.",
    ),
    unset(
        "metrics.textfile",
        Kind::Text(Form::PromFile),
        "/var/lib/node_exporter/textfile/backstop.prom",
        "no file",
        "The same as a file, written every 15 s, for node_exporter's textfile collector.",
    ),
    unset(
        "rehearsal.time_scale",
        Kind::Integer { min: 1, max: 600 },
        "60",
        "time runs as it does",
        "So many times faster than real time.",
    ),
    unset(
        "rehearsal.time_epoch_ms",
        Kind::Integer { min: 0, max: 9_007_199_254_740_991 },
        "1700000000000",
        "its own start",
        "Common moment from which time runs faster, in milliseconds since 1970.",
    ),
    unset(
        "rehearsal.host",
        Kind::Text(Form::BaseUrl),
        "http://127.0.0.1:7000",
        "this machine",
        "Stand-in for the machine: asked for a reboot in its place.",
    ),
    unset(
        "rehearsal.boot_id",
        Kind::Text(Form::HostText),
        "boot-1",
        "the kernel's",
        "Stand-in for the kernel's boot id.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_are_unique_and_every_key_has_its_section() {
        let paths: BTreeSet<_> = all().map(|key| key.path).collect();
        assert_eq!(paths.len(), all().count());
        for key in all() {
            assert!(SECTIONS.iter().any(|s| s.path == key.section()), "{}", key.path);
            assert!(key.doc.ends_with('.'), "{}", key.path);
        }
    }

    #[test]
    fn what_has_no_default_has_an_example() {
        for key in all() {
            let needs = matches!(key.fallback, Fallback::Required | Fallback::Unset(_));
            assert!(!needs || !key.example.is_empty(), "{}", key.path);
        }
    }
}
