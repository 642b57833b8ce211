//! What is shipped to go with the metrics: rules, their tests, dashboard, CloudWatch alarms, the unit, the document.

use backstop::core::finding::Kind;
use backstop::metrics::table::{self, Type};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::PathBuf;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn file(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn json(path: &str) -> Value {
    serde_json::from_str(&file(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every `backstop_*` word of a text, but names of files.
fn metric_names(text: &str) -> BTreeSet<String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !word(c)).filter(|w| w.starts_with("backstop_"));
    words.map(str::to_owned).collect()
}

/// The metric that a sample's name belongs to.
fn metric_of(sample: &str) -> Option<&'static table::Metric> {
    let of = |m: &&table::Metric| {
        let ends: &[&str] = if m.kind == Type::Histogram { &["_bucket", "_sum", "_count"] } else { &[""] };
        ends.iter().any(|end| sample.strip_suffix(end).is_some_and(|name| name == m.name))
    };
    table::ALL.iter().find(of)
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_there_are() {
    for path in ["config/prometheus/rules.yml", "config/prometheus/rules_test.yml", "config/grafana/backstop.json"] {
        let names = metric_names(&file(path));
        assert!(names.len() > 10, "{path}: {names:?}");
        for name in names {
            assert!(metric_of(&name).is_some(), "{path} names {name}");
        }
    }
    assert!(metric_of("backstop_stage_duration_seconds").is_none(), "a histogram has no sample of its own name");
    assert!(metric_of("backstop_slots").is_none());
}

/// Labels in braces: `{a="b", c!~"d"}`; no expression here has a brace inside a value.
fn labels_used(text: &str) -> Vec<(String, String)> {
    let mut used = Vec::new();
    for name in metric_names(text) {
        for rest in text.split(&name).skip(1).filter_map(|rest| rest.strip_prefix('{')) {
            let inner = rest.split_once('}').map_or("", |(inner, _)| inner);
            let label = |part: &str| part.trim().split(['=', '!']).next().unwrap_or_default().to_owned();
            used.extend(inner.split("\",").filter(|p| !p.trim().is_empty()).map(|p| (name.clone(), label(p))));
        }
    }
    used
}

#[test]
fn rules_and_dashboard_select_only_by_labels_that_the_metric_has() {
    let dashboard = json("config/grafana/backstop.json");
    let rules = file("config/prometheus/rules.yml");
    let texts = exprs(&dashboard).into_iter().chain([rules, file("config/prometheus/rules_test.yml")]);
    let mut seen = 0;
    for text in texts {
        for (name, label) in labels_used(&text) {
            let metric = metric_of(&name).unwrap();
            let own = metric.labels.contains(&&*label) || [table::FLEET, "job", "instance", "le"].contains(&&*label);
            assert!(own, "{name} has no label {label}");
            seen += 1;
        }
    }
    assert!(seen > 100, "{seen}");
}

struct Rule {
    name: String,
    runbook: String,
    severity: String,
    expr: String,
}

/// The rules, as far as this test must know them; promtool reads the rest (`.ci/run`).
fn rules() -> Vec<Rule> {
    let text = file("config/prometheus/rules.yml");
    let all: Vec<_> = text
        .split("- alert: ")
        .skip(1)
        .map(|rule| {
            let line = |key: &str| {
                let found = rule.lines().find_map(|l| l.trim_start().strip_prefix(key));
                found.unwrap_or_default().trim().to_owned()
            };
            let expr = rule.split_once("expr:").and_then(|(_, rest)| rest.split_once("labels:")).unwrap().0.to_owned();
            let name = rule.lines().next().unwrap().trim().to_owned();
            Rule { name, runbook: line("runbook:"), severity: line("severity:"), expr }
        })
        .collect();
    assert!(all.len() > 10);
    all
}

#[test]
fn every_rule_has_a_severity_and_a_runbook_that_there_is() {
    for rule in rules() {
        assert!(["critical", "warning"].contains(&&*rule.severity), "{}: {}", rule.name, rule.severity);
        let name = rule.runbook.strip_prefix("docs/runbooks/").and_then(|r| r.strip_suffix(".md"));
        let name = name.unwrap_or_else(|| panic!("{}: runbook {:?}", rule.name, rule.runbook));
        let of_a_kind = name == "{{ $labels.kind }}" || Kind::ALL.iter().any(|k| k.label() == name);
        assert!(of_a_kind || root().join(&rule.runbook).exists(), "{}: {} is not there", rule.name, rule.runbook);
    }
}

/// Firing and not firing, each; promtool says whether it is so.
#[test]
fn every_rule_is_tested_firing_and_quiet() {
    let tests = file("config/prometheus/rules_test.yml");
    for rule in rules() {
        let cases: Vec<_> =
            tests.split("alertname: ").skip(1).filter(|c| c.lines().next() == Some(&*rule.name)).collect();
        let quiet = cases.iter().filter(|c| c.lines().nth(1).is_some_and(|l| l.ends_with("exp_alerts: []"))).count();
        assert!(quiet > 0 && cases.len() > quiet, "{}: {} cases, {quiet} quiet", rule.name, cases.len());
    }
}

/// A series that is missing makes a comparison empty: what must be heard of then has to ask for the absence itself.
#[test]
fn absence_is_asked_for_where_it_would_be_bad_news() {
    let rules = rules();
    let asks = |word: &str, metric: &str| rules.iter().any(|r| r.expr.contains(word) && r.expr.contains(metric));
    assert!(asks("absent(", "backstop_build_info"));
    assert!(asks("unless", "backstop_members_in_service"));
    assert!(asks("unless", "backstop_reconcile_last_success_timestamp_seconds"));
    assert!(asks("< max by (fleet) (backstop_members)", "backstop_build_info"), "count against the expected set");
}

/// A kind with a rule of its own is left out of the general one, and only such a kind.
#[test]
fn every_kind_of_finding_has_exactly_one_rule() {
    let rules = rules();
    let general = rules.iter().find(|r| r.name == "BackstopFinding").unwrap();
    let (_, left_out) = general.expr.split_once("kind!~\"").unwrap();
    let left_out: Vec<&str> = left_out.split_once('"').unwrap().0.split('|').collect();
    for kind in &left_out {
        let path = format!("docs/runbooks/{kind}.md");
        assert!(Kind::ALL.iter().any(|k| k.label() == *kind), "{kind} is no kind");
        assert!(rules.iter().any(|r| r.runbook == path), "{kind} has no rule of its own");
    }
}

fn exprs(value: &Value) -> Vec<String> {
    match value {
        Value::Object(map) => {
            let own = map.get("expr").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(map.values().flat_map(exprs)).collect()
        }
        Value::Array(all) => all.iter().flat_map(exprs).collect(),
        _ => Vec::new(),
    }
}

#[test]
fn the_dashboard_shows_every_metric_and_each_panel_has_its_place() {
    let dashboard = json("config/grafana/backstop.json");
    assert!(dashboard["schemaVersion"].as_u64() >= Some(30), "a form that Grafana still loads");
    let panels = dashboard["panels"].as_array().unwrap();
    let (mut ids, mut taken) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().unwrap();
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title}: its id is taken");
        assert!(!panel["description"].as_str().unwrap_or_default().is_empty(), "{title} says what it shows");
        assert!(!exprs(panel).is_empty(), "{title} asks for nothing");
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies over another one");
            }
        }
    }
    let shown: BTreeSet<_> =
        exprs(&dashboard).iter().flat_map(|e| metric_names(e)).filter_map(|n| metric_of(&n)).map(|m| m.name).collect();
    let all: BTreeSet<_> = table::ALL.iter().map(|m| m.name).collect();
    assert_eq!(shown, all);
    let fleet = dashboard["templating"]["list"].as_array().unwrap().iter().find(|v| v["name"] == "fleet").unwrap();
    assert!(fleet["query"]["query"].as_str().unwrap().contains("label_values(backstop_build_info, fleet)"));
}

#[test]
fn cloudwatch_alarms_count_one_group_behind_its_load_balancer_and_take_silence_for_an_alarm() {
    let template = json("config/cloudwatch/alarm.json");
    let parameters = template["Parameters"].as_object().unwrap();
    let resources = template["Resources"].as_object().unwrap();
    let mut against = Vec::new();
    for (name, alarm) in resources {
        assert_eq!(alarm["Type"], "AWS::CloudWatch::Alarm", "{name}");
        let p = &alarm["Properties"];
        assert_eq!(
            (&p["MetricName"], &p["TreatMissingData"]),
            (&"HealthyHostCount".into(), &"breaching".into()),
            "{name}"
        );
        assert_eq!(
            (&p["Statistic"], &p["ComparisonOperator"]),
            (&"Minimum".into(), &"LessThanThreshold".into()),
            "{name}"
        );
        let dimensions: Vec<_> =
            p["Dimensions"].as_array().unwrap().iter().map(|d| (&d["Name"], &d["Value"]["Ref"])).collect();
        let both = [("TargetGroup", "TargetGroup"), ("LoadBalancer", "LoadBalancer")];
        let both: Vec<_> = both.map(|(n, r)| (Value::from(n), Value::from(r))).to_vec();
        assert_eq!(
            dimensions,
            both.iter().map(|(n, r)| (n, r)).collect::<Vec<_>>(),
            "{name}: one without the other is another count"
        );
        assert!(!p["AlarmActions"].as_array().unwrap().is_empty(), "{name} reaches somebody");
        assert!(p["DatapointsToAlarm"].as_u64() <= p["EvaluationPeriods"].as_u64(), "{name}");
        let seconds = p["Period"].as_u64().unwrap() * p["EvaluationPeriods"].as_u64().unwrap();
        assert!(
            p["Period"].as_u64().unwrap() % 60 == 0 && seconds <= 86_400,
            "{name}: CloudWatch takes no more than a day"
        );
        against.push((p["Threshold"]["Ref"].as_str().unwrap(), seconds));
    }
    against.sort_unstable();
    assert_eq!(
        against,
        [("MinimumDuringPatch", 180), ("MinimumHealthy", 9_000)],
        "the floor soon, the minimum after a patch's time"
    );
    for used in template["Resources"].to_string().split("{\"Ref\":\"").skip(1) {
        let name = used.split('"').next().unwrap();
        assert!(parameters.contains_key(name), "{name} is no parameter");
    }
}

/// Half of it is the pace of the pings; a loop's own time comes first.
#[test]
fn the_unit_has_a_watchdog_that_leaves_no_core_behind() {
    let unit = file("systemd/backstop.service");
    let of = |key: &str| unit.lines().find_map(|l| l.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
    let seconds: u64 = of("WatchdogSec=").parse().unwrap();
    assert!((20..=120).contains(&seconds), "{seconds} s");
    assert_eq!(of("WatchdogSignal="), "SIGKILL");
    assert_eq!((of("Type="), of("Restart=")), ("notify", "always"));
}
