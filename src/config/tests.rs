//! Whole files: what is accepted, and that every mistake in a bad one is named in one go.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const ARN: &str = "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef";

/// The least that this version accepts.
const MINIMAL: &str = r#"
fleet = "au-search"
[[target_group]]
arn = "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:targetgroup/es-clients/0123456789abcdef"
[pager.webhook]
url = "https://pager.example.com/backstop"
[record]
store = "file"
single_host = true
"#;

const SAMPLE: &str = include_str!("../../config/backstop.toml");

fn accepted(text: &str) -> (Config, Vec<Warning>) {
    parse("b.toml", text.as_bytes(), "es-1").unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn refused(text: &str) -> Vec<Problem> {
    parse("b.toml", text.as_bytes(), "es-1").expect_err(text).list().to_vec()
}

/// `MINIMAL` with lines of the top level and whole tables added; a table of it is replaced by one of the same name.
fn with(top: &str, tables: &str) -> String {
    let mut kept = String::new();
    let mut keep = true;
    for line in MINIMAL.split_inclusive('\n') {
        if line.starts_with('[') {
            keep = !tables.lines().any(|other| other.trim() == line.trim());
        }
        if keep {
            kept.push_str(line);
        }
    }
    format!("{top}\n{kept}\n{tables}\n")
}

fn keys_of(problems: &[Problem]) -> Vec<&str> {
    problems.iter().filter_map(|p| p.key.as_deref()).collect()
}

#[test]
fn three_keys_and_where_the_record_is_suffice() {
    let (config, warnings) = accepted(MINIMAL);
    assert_eq!(config.fleet.as_str(), "au-search");
    assert_eq!((config.minimum_healthy, config.minimum_during_patch, config.max_unavailable), (3, 2, 1));
    assert_eq!(config.region.as_str(), "ap-southeast-2");
    assert_eq!(config.node.name.as_ref(), "es-1");
    assert_eq!(config.elasticsearch.node_name.as_ref(), "es-1");
    assert_eq!(config.elasticsearch.url.as_ref(), "http://127.0.0.1:9200");
    assert_eq!(config.deadlines.patch_ms, 3_600_000);
    assert_eq!(config.paths.socket, Path::new("/run/backstop/agent.sock"));
    assert_eq!(config.record.store, Store::File { dir: "/var/lib/backstop/record".into() });
    assert_eq!(config.rehearsal.time_scale, 1);
    assert_eq!((config.limits.cycles_per_hour(3), config.limits.cycles_per_day(3)), (6, 12));
    let said: Vec<_> = warnings.iter().map(|w| w.key.as_str()).collect();
    assert_eq!(said, ["outside_watch"]);
}

#[test]
fn every_mistake_of_a_file_is_named_at_once_with_line_key_and_next_step() {
    let text = r#"fleet = "AU_Search"
minimum_healty = 3
mode = "observing"
max_unavailable = "1"
[[target_group]]
arn = "arn:aws:elasticloadbalancing:ap-southeast-2:123456789012:loadbalancer/app/es/0123456789abcdef"
[[target_group]]
port = 9200
[deadlines]
patch = 3600
claim = "0s"
check = "15 min"
[elasticsearch]
url = "es-1:9200"
[record]
store = "file"
"#;
    let problems = refused(text);
    let told: Vec<_> = problems.iter().map(|p| (p.line, p.key.as_deref().unwrap_or("-"))).collect();
    assert_eq!(
        told,
        [
            (Some(1), "fleet"),
            (Some(2), "minimum_healty"),
            (Some(3), "mode"),
            (Some(4), "max_unavailable"),
            (Some(6), "target_group[0].arn"),
            (Some(7), "target_group[1].arn"),
            (Some(10), "deadlines.patch"),
            (Some(11), "deadlines.claim"),
            (Some(12), "deadlines.check"),
            (Some(14), "elasticsearch.url"),
            (Some(16), "record.single_host"),
            (None, "pager"),
        ]
    );
    for p in &problems {
        assert!(!p.found.is_empty() && !p.expected.is_empty() && !p.next.is_empty(), "{p}");
        assert_eq!(p.file, "b.toml");
    }
    let shown = Problems::new(problems).expect("some").to_string();
    let line = "b.toml:2: minimum_healty: found a key that does not exist; expected a key of backstop; \
                next: did you mean minimum_healthy?";
    assert!(shown.contains(line), "{shown}");
    assert!(shown.contains("next: which unit? write \"3600s\""), "{shown}");
}

#[test]
fn problems_are_data_for_machines_too() {
    let problems = parse("b.toml", b"fleet = 1", "es-1").expect_err("bad");
    let json = serde_json::to_value(&problems).expect("json");
    assert_eq!(json["problems"][0]["line"], 1);
    assert_eq!(json["problems"][0]["key"], "fleet");
    assert_eq!(json["problems"][0]["found"], "1");
    assert_eq!(json["more"], 0);
}

#[test]
fn every_syntax_error_is_named_and_hides_no_problem_elsewhere() {
    let problems = refused(
        "fleet = au-search\nminimum_healthy = 0\n[deadlines\nclaim = 3\n[elbv2]\nregister_probes = true\nx = = 1\n\
         [check]\nevery = \"15 s\"\nover = \"1m",
    );
    let told: Vec<_> = problems.iter().map(|p| (p.line.expect("line"), p.key.as_deref().unwrap_or("-"))).collect();
    let expected = [
        (1, "-"),
        (2, "minimum_healthy"),
        (3, "-"),
        (6, "elbv2.register_probes"),
        (7, "-"),
        (9, "check.every"),
        (10, "-"),
    ];
    assert_eq!(told, expected, "what could not be read is not called missing");
}

#[test]
fn the_same_key_or_table_twice_is_refused() {
    for text in [with("fleet = \"other\"", ""), format!("{MINIMAL}\n[record]\nstore = \"file\"\n")] {
        assert!(refused(&text).iter().any(|p| p.found.contains("duplicate")), "{text}");
    }
}

#[test]
fn groups_must_be_there_once_and_in_one_region() {
    let group = |arn: &str| format!("[[target_group]]\narn = \"{arn}\"\n");
    let other_region = ARN.replace("ap-southeast-2", "eu-west-1");
    let other_partition = ARN.replace("arn:aws:", "arn:aws-cn:").replace("ap-southeast-2", "cn-north-1");
    for (tables, says) in [
        (group(ARN) + &group(ARN), "the group of target_group[0] again"),
        (group(ARN) + &group(&other_region), "region eu-west-1"),
        (group(ARN) + &group(&other_partition), "region cn-north-1 (aws-cn)"),
        (group(&ARN.replace("abcdef", "abcde")), "the ID \"0123456789abcde\""),
        ("[target_group]\narn = \"x\"\n".to_owned(), "a table"),
    ] {
        let text = MINIMAL.replace(&group(ARN), &tables);
        let problems = refused(&text);
        assert!(problems.iter().any(|p| p.found.contains(says)), "{says}: {problems:#?}");
    }
    let empty = format!("target_group = []\n{}", MINIMAL.replace(&group(ARN), ""));
    let problems = refused(&empty);
    assert_eq!(keys_of(&problems), ["target_group"]);
    assert_eq!(problems[0].found, "an empty list");
    assert_eq!(keys_of(&refused(&MINIMAL.replace(&group(ARN), ""))), ["target_group"]);
}

#[test]
fn an_emulators_short_ids_pass_only_with_its_endpoint() {
    let arn = ARN.replace("0123456789abcdef", "50dc6c");
    let text = MINIMAL.replace(ARN, &arn);
    assert!(parse("b.toml", text.as_bytes(), "es-1").is_err());
    let text = format!(
        "{text}[elbv2]\nendpoint_url = \"http://127.0.0.1:5000\"\nregister_probe = false\n[node]\ninstance_id = \"i-1\"\n"
    );
    let (config, _) = accepted(&text);
    assert_eq!(config.elbv2.endpoint_url.as_deref(), Some("http://127.0.0.1:5000"));
}

/// Lines of the top level, tables, and the key of the one problem that follows.
const CROSS: &[(&str, &str, &str)] = &[
    ("minimum_during_patch = 3", "", "minimum_during_patch"),
    ("minimum_healthy = 1\nminimum_during_patch = 1", "", "minimum_during_patch"),
    ("", "[elbv2]\nconnect_timeout = \"6s\"", "elbv2.connect_timeout"),
    ("", "[elbv2]\nattempt_timeout = \"11s\"", "elbv2.attempt_timeout"),
    ("", "[deadlines]\nregister = \"5s\"", "elbv2.operation_timeout"),
    ("", "[check]\nevery = \"20s\"", "check.every"),
    ("", "[deadlines]\ncheck = \"20s\"", "deadlines.check"),
    ("", "[check]\npasses = 100\nover = \"1h\"\nevery = \"1m\"", "deadlines.check"),
    ("", "[settle]\nbake = \"5m\"", "deadlines.settle"),
    ("", "[reconcile]\nself_heal_after = \"20s\"", "reconcile.self_heal_after"),
    ("", "[elasticsearch]\napi_key_file = \"/a\"\nbasic_auth_file = \"/b\"", "elasticsearch.basic_auth_file"),
    ("", "[elasticsearch]\ntimeout = \"1m\"", "elasticsearch.timeout"),
    ("", "[elbv2]\nendpoint_url = \"http://10.0.0.1:5000\"", "elbv2.endpoint_url"),
    ("", "[node]\ninstance_id = \"i-123\"", "node.instance_id"),
    ("", "[paths]\nstate_dir = \"/run/backstop/\"", "paths.state_dir"),
    ("", "[record]\nstore = \"file\"", "record.single_host"),
    ("", "[record]", "elasticsearch.record_endpoints"),
    ("", "[record]\nsingle_host = false", "elasticsearch.record_endpoints"),
];

#[test]
fn settings_that_contradict_each_other_are_one_problem_each() {
    for (top, tables, key) in CROSS {
        let problems = refused(&with(top, tables));
        assert_eq!(keys_of(&problems), [*key], "{top} {tables}: {problems:#?}");
    }
}

#[test]
fn the_record_is_kept_where_it_can_be_reached_while_this_node_is_patched() {
    let store = |endpoints: &str, more: &str| {
        with(
            "",
            &format!(
                "[elasticsearch]\nurl = \"https://es-1.internal:9200\"\nrecord_endpoints = [{endpoints}]\n[record]\n{more}"
            ),
        )
    };
    let (config, warnings) = accepted(&store("\"https://es-2:9200\", \"https://es-3:9200\"", "index = \"fleets\""));
    assert_eq!(config.record.store, Store::Elasticsearch { index: "fleets".into() });
    assert_eq!(warnings.len(), 1, "outside_watch alone: {warnings:?}");
    let (config, _) = accepted(&with("", "[record]\nsingle_host = true"));
    assert_eq!(config.record.store, Store::Elasticsearch { index: "backstop-fleet".into() });
    for short in [
        "\"https://es-2:9200\"",
        "\"https://es-2:9200\", \"https://es-2:9201\"",
        "\"https://es-2:9200\", \"http://127.0.0.1:9200\"",
        "\"https://es-2:9200\", \"https://es-1.internal:9201\"",
        // `accepted` and `refused` call this host es-1.
        "\"https://es-2:9200\", \"https://es-1:9200\"",
    ] {
        let problems = refused(&store(short, ""));
        assert_eq!(keys_of(&problems), ["elasticsearch.record_endpoints"], "{short}: {problems:#?}");
        assert!(problems[0].found.contains("1 that is not this host"), "{problems:#?}");
        accepted(&store(short, "single_host = true"));
    }
    let (_, warnings) = accepted(&with("", "[record]\nstore = \"file\"\nsingle_host = true\nindex = \"x\""));
    assert!(warnings.iter().any(|w| w.key == "record.index"), "{warnings:?}");
}

#[test]
fn a_refused_value_draws_no_second_problem_from_its_default() {
    let problems = refused(&with(
        "minimum_healthy = 0\nminimum_during_patch = 3",
        "[deadlines]\ncheck = \"1\"\n[check]\nover = \"14m59s\"",
    ));
    assert_eq!(keys_of(&problems), ["minimum_healthy", "deadlines.check"]);
}

#[test]
fn a_long_socket_path_is_refused_before_bind_would_fail() {
    let text = with("", &format!("[paths]\nruntime_dir = \"/{}\"", "r".repeat(100)));
    assert_eq!(keys_of(&refused(&text)), ["paths.socket"]);
}

#[test]
fn a_state_that_would_not_survive_a_reboot_is_refused_on_a_real_fleet() {
    let text = with("", "[paths]\nstate_dir = \"/tmp/backstop\"");
    accepted(&text);
    let real = text.replace("single_host = true", "single_host = false");
    assert!(keys_of(&refused(&real)).contains(&"paths.state_dir"));
    let beside = text.replace("/tmp/backstop", "/tmpfiles/backstop").replace("single_host = true", "");
    assert!(!keys_of(&refused(&beside)).contains(&"paths.state_dir"));
}

#[test]
fn odd_settings_are_warned_about_and_accepted() {
    for (top, tables, key) in [
        ("max_unavailable = 2", "", "max_unavailable"),
        ("minimum_healthy = 1", "", "minimum_healthy"),
        ("minimum_healthy = 2", "", "minimum_healthy"),
        ("", "[elbv2]\nregister_probe = false", "elbv2.register_probe"),
        ("", "[reconcile]\nevery = \"1m\"", "reconcile.every"),
        ("", "[limits]\ncycles_per_hour = 9\ncycles_per_day = 3", "limits.cycles_per_hour"),
        ("", "[roles]\nact_group = \"backstop\"", "roles.read_group"),
        ("", "[elasticsearch]\nurl = \"http://es-1:9200\"\napi_key_file = \"/a\"", "elasticsearch.url"),
        ("", "[elasticsearch]\nca_file = \"/a\"", "elasticsearch.ca_file"),
    ] {
        let (_, warnings) = accepted(&with(top, tables));
        assert!(warnings.iter().any(|w| w.key == key), "{top} {tables}: {warnings:#?}");
    }
    let (_, warnings) = accepted(&with("outside_watch = \"none\"", ""));
    assert_eq!(warnings, [], "an operator who said \"none\" is left alone");
}

#[test]
fn the_rehearsals_keys_never_meet_a_real_fleet() {
    let local = r#"[elbv2]
endpoint_url = "http://127.0.0.1:1"
[pager.webhook]
url = "http://127.0.0.1:2"
[rehearsal]
time_scale = 60
host = "http://127.0.0.1:3"
boot_id = "b-1"
time_epoch_ms = 0
"#;
    let (config, _) = accepted(&with("outside_watch = \"none\"", local));
    assert_eq!((config.rehearsal.time_scale, config.rehearsal.host.as_deref()), (60, Some("http://127.0.0.1:3")));
    for (from, to, key) in [
        ("http://127.0.0.1:2", "https://pager.example.com", "pager.webhook.url"),
        ("http://127.0.0.1:3", "https://es-2", "rehearsal.host"),
        ("http://127.0.0.1:1", "https://elb.example.com", "elbv2.endpoint_url"),
        ("[rehearsal]", "[elasticsearch]\nurl = \"https://es-1:9200\"\n[rehearsal]", "elasticsearch.url"),
        (
            "[rehearsal]",
            "[elasticsearch]\nrecord_endpoints = [\"https://es-1:9200\"]\n[rehearsal]",
            "elasticsearch.record_endpoints",
        ),
        ("[elbv2]\nendpoint_url = \"http://127.0.0.1:1\"\n", "", "elbv2.endpoint_url"),
        ("time_scale = 60", "time_scale = 601", "rehearsal.time_scale"),
    ] {
        assert_eq!(keys_of(&refused(&with("", &local.replace(from, to)))), [key]);
    }
    let several = with("", local).replace("single_host = true", "single_host = false");
    assert!(keys_of(&refused(&several)).contains(&"rehearsal.time_scale"));
}

#[test]
fn one_file_fits_every_node() {
    let text = with("", "[elasticsearch]\nurl = \"https://{hostname}:9200/\"\nca_file = \"/etc/{hostname}.crt\"");
    let (config, _) = parse("b.toml", text.as_bytes(), "es-2.internal").expect("good");
    assert_eq!(config.elasticsearch.url.as_ref(), "https://es-2.internal:9200");
    assert_eq!(config.check_settings().ca_file.as_deref(), Some("/etc/es-2.internal.crt"));
    let problems = parse("b.toml", text.as_bytes(), "").expect_err("no host name");
    assert!(keys_of(problems.list()).contains(&"node.name"), "{problems}");
}

#[test]
fn a_token_in_a_url_is_shown_nowhere() {
    let text = MINIMAL.replace("/backstop\"", "/hunter2\"");
    let text = with("outside_watch = \"https://watch.example.com/hunter2\"", "").replace(MINIMAL, &text);
    let (config, warnings) = accepted(&text);
    assert!(!format!("{config:?}{warnings:?}").contains("hunter2"));
    let walked = walk::walk("b.toml", &text, "es-1");
    let shown: Vec<_> = show::effective(&walked, Some(&config)).iter().map(ToString::to_string).collect();
    assert!(!shown.join("\n").contains("hunter2"));
}

#[test]
fn what_is_in_force_tells_where_it_comes_from() {
    let text = with("minimum_healthy = 4", "");
    let (config, _) = accepted(&text);
    let shown = show::effective(&walk::walk("b.toml", &text, "es-1"), Some(&config));
    let of = |key: &str| shown.iter().find(|e| e.key == key).map(ToString::to_string).expect(key);
    assert_eq!(of("minimum_healthy"), "minimum_healthy = 4  # line 1");
    assert_eq!(of("minimum_during_patch"), "minimum_during_patch = 3  # default: minimum_healthy - 1, at least 1");
    assert_eq!(of("deadlines.patch"), "deadlines.patch = \"60m\"  # default");
    assert_eq!(of("target_group[0].port"), "# target_group[0].port  # unset: the group's own port");
    for key in keys::all().filter(|key| !key.path.contains("[]")) {
        assert!(shown.iter().any(|e| e.key == key.path), "{}", key.path);
    }
}

#[test]
fn a_file_that_is_not_text_or_too_long_is_said_so() {
    for (bytes, says) in [
        (b"fleet = \"a\"\n\xff\xfe".to_vec(), "offset 12 (line 2)"),
        (b"fleet\0= 1".to_vec(), "a zero byte at offset 5 (line 1)"),
        (vec![b'#'; FILE_MAX_BYTES + 1], "more than 262144 bytes"),
    ] {
        let problems = parse("b.toml", &bytes, "es-1").expect_err(says);
        assert_eq!(problems.list().len(), 1);
        assert!(problems.list()[0].found.contains(says), "{problems}");
    }
    assert_eq!(keys_of(&refused("")), ["fleet", "target_group", "pager", "elasticsearch.record_endpoints"]);
}

#[test]
fn a_byte_order_mark_and_carriage_returns_do_no_harm() {
    accepted(&format!("\u{feff}{}", MINIMAL.replace('\n', "\r\n")));
}

#[test]
fn a_missing_file_a_directory_and_a_pipe_are_answered() {
    let dir = tempfile::tempdir().expect("dir");
    let missing = load(&dir.path().join("no.toml"), "es-1").expect_err("missing");
    assert!(missing.to_string().contains(FOUR_SUFFICE) && missing.to_string().contains(EVERY_KEY), "{missing}");
    let directory = load(dir.path(), "es-1").expect_err("directory");
    assert!(directory.to_string().contains("a plain file"), "{directory}");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("mkfifo");
    assert!(load(&pipe, "es-1").is_err());
}

#[test]
fn the_files_that_the_config_names_are_judged_without_repeating_them() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("dir");
    let file = |name: &str, content: &str, mode: u32| {
        let path = dir.path().join(name);
        let mut f = File::create(&path).expect("create");
        std::io::Write::write_all(&mut f, content.as_bytes()).expect("write");
        f.set_permissions(std::fs::Permissions::from_mode(mode)).expect("chmod");
        path.display().to_string()
    };
    let report = |api_key: &str, ca: &str| {
        let (config, _) =
            accepted(&with("", &format!("[elasticsearch]\napi_key_file = \"{api_key}\"\nca_file = \"{ca}\"")));
        check_files(&config)
    };
    let ca = file("ca", "-----BEGIN CERTIFICATE-----\n", 0o644);
    assert_eq!(report(&file("good", "a2V5\n", 0o640), &ca), Files::default());
    let open = report(&file("open", "a2V5", 0o644), &ca);
    assert!(open.problems.is_empty() && open.warnings[0].says.contains("mode 644"), "{open:?}");
    for (path, says) in [
        (file("writable", "a2V5", 0o620), "mode 620"),
        (file("empty", "\n", 0o600), "an empty file"),
        (file("words", "hunter2 hunter2", 0o600), "more than one word"),
        (file("long", &"x".repeat(70_000), 0o600), "more than 65536 bytes"),
        (dir.path().display().to_string(), "a directory"),
        (dir.path().join("none").display().to_string(), "No such file"),
    ] {
        let found = report(&path, &ca);
        assert!(found.problems.iter().any(|p| p.found.contains(says)), "{says}: {found:?}");
        assert!(!format!("{found:?}").contains("hunter2"));
    }
    let der = file("der", "\x30binary", 0o644);
    assert!(report(&file("k", "a2V5", 0o600), &der).problems[0].found.contains("no certificate"));
}

#[test]
fn what_root_can_read_and_the_agents_user_cannot_is_told_with_the_directory_that_is_in_the_way() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("dir");
    let mode =
        |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("chmod");
    let (config_file, secrets) = (dir.path().join("backstop.toml"), dir.path().join("certs"));
    std::fs::create_dir(&secrets).expect("mkdir");
    let ca = secrets.join("ca.crt");
    for path in [&config_file, &ca] {
        File::create(path).expect("create");
        mode(path, 0o644);
    }
    mode(dir.path(), 0o755);
    mode(&secrets, 0o755);
    let (config, _) = accepted(&with("", &format!("[elasticsearch]\nca_file = \"{}\"", ca.display())));
    // Somebody to whom nothing here belongs.
    let user = User { name: "backstop".to_owned(), uid: 54_321, gids: vec![54_321] };
    let told = || unreadable_for(&user, &config_file, &config).into_iter().map(|w| (w.key, w.says)).collect::<Vec<_>>();
    assert_eq!(told(), []);
    mode(&ca, 0o640);
    assert!(told()[0].1.contains("ca.crt does not let it"), "{:?}", told());
    mode(&secrets, 0o750);
    assert!(told()[0].1.contains("certs does not let it"), "{:?}", told());
    mode(&config_file, 0o600);
    assert_eq!(told()[0].0, "the config itself");
    let owner = User { uid: rustix::process::geteuid().as_raw(), ..user.clone() };
    assert_eq!(unreadable_for(&owner, &config_file, &config), []);
}

#[test]
fn the_sample_file_is_what_the_table_of_keys_says() {
    let made = sample();
    if std::env::var_os("BACKSTOP_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("config/backstop.toml");
        let mut file = File::create(path).expect("create");
        std::io::Write::write_all(&mut file, made.as_bytes()).expect("write");
        return;
    }
    for (i, (made, there)) in made.lines().zip(SAMPLE.lines()).enumerate() {
        assert_eq!(made, there, "line {}; BACKSTOP_BLESS=1 cargo test the_sample_file writes it anew", i + 1);
    }
    assert_eq!(made.lines().count(), SAMPLE.lines().count());
}

#[test]
fn the_sample_file_loads_with_and_without_its_comments_to_what_a_minimal_file_says() {
    let endpoints = "[\"https://es-data-1:9200\", \"https://es-data-2:9200\"]";
    let minimal = with("", &format!("[elasticsearch]\nrecord_endpoints = {endpoints}\n[record]"));
    let (minimal, _) = accepted(&minimal);
    assert_eq!(accepted(SAMPLE).0, minimal);
    let mut uncommented = String::new();
    let mut named = BTreeSet::new();
    for line in SAMPLE.lines() {
        let default = line.strip_prefix('#').filter(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()));
        let setting = default.filter(|rest| !rest.starts_with("e.g."));
        uncommented.push_str(setting.unwrap_or(line));
        uncommented.push('\n');
        let name = line.trim_start_matches("#e.g. ").trim_start_matches('#').split(" = ").next();
        named.extend(name.map(str::to_owned));
    }
    assert_eq!(accepted(&uncommented).0, minimal);
    assert!(uncommented.lines().filter(|l| l.contains(" = ")).count() > 50, "the comments were taken off");
    for key in keys::all() {
        assert!(named.contains(key.name()), "{}", key.path);
    }
}

#[test]
fn every_example_in_the_sample_file_is_a_value_that_its_key_takes() {
    for key in keys::all().filter(|key| !key.example.is_empty()) {
        let literal = key.as_toml(key.example);
        let value = toml::de::DeValue::parse(&literal).expect(key.path);
        assert!(value::accept(key, value.get_ref(), "es-1").is_ok(), "{} = {literal}", key.path);
    }
}

#[test]
fn every_default_is_a_value_that_its_key_takes() {
    for key in keys::all() {
        let (keys::Fallback::Value(default) | keys::Fallback::Derived(_, default)) = key.fallback else { continue };
        let literal = key.as_toml(default);
        let value = toml::de::DeValue::parse(&literal).expect(key.path);
        assert!(value::accept(key, value.get_ref(), "es-1").is_ok(), "{} = {literal}", key.path);
    }
}

#[test]
fn the_list_for_the_readme_names_every_key() {
    let list = markdown();
    for key in keys::all() {
        assert!(list.contains(&format!("| `{}` |", key.path.replace("[]", ""))), "{}", key.path);
    }
}

/// The sample with all its examples in force, except those that exclude others; to be damaged.
fn full() -> String {
    let excluded = ["basic_auth_file", "time_scale", "time_epoch_ms", "host", "boot_id"];
    let mut text = String::new();
    for line in SAMPLE.lines() {
        let example = line.strip_prefix("#e.g. ").filter(|l| !excluded.iter().any(|key| l.starts_with(key)));
        text.push_str(example.unwrap_or(line));
        text.push('\n');
    }
    text
}

#[test]
fn the_sample_with_its_examples_is_accepted_too() {
    let (config, _) = accepted(&full());
    assert_eq!(config.target_groups[0].port, Some(9200));
    assert_eq!(config.elasticsearch.record_endpoints.len(), 2);
    assert!(matches!(config.outside_watch, OutsideWatch::Url(_)));
}

/// Where, how much goes, and what comes in its place.
fn damage() -> impl Strategy<Value = (proptest::sample::Index, usize, String)> {
    (any::<proptest::sample::Index>(), 0_usize..6, "[a-z0-9_={}\\[\\]\"'\\.\\-\n #,]{0,6}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
        if let Err(problems) = parse("b.toml", &bytes, "es-1") {
            prop_assert!(!problems.list().is_empty());
        }
    }

    #[test]
    fn a_damaged_file_is_answered_and_never_by_a_bug(
        cuts in proptest::collection::vec(damage(), 1..6)
    ) {
        let mut text: Vec<char> = full().chars().collect();
        for (at, drop, put) in cuts {
            let at = at.index(text.len());
            let end = at.saturating_add(drop).min(text.len());
            text.splice(at..end, put.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = parse("b.toml", text.as_bytes(), "es-1") {
            prop_assert!(!problems.list().is_empty());
            for p in problems.list() {
                prop_assert!(!p.next.contains("bug"), "{}\n{}", p, text);
                prop_assert!(p.key.is_some() || p.line.is_some(), "{}", p);
            }
        }
    }
}
