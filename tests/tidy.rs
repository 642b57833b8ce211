//! What the compiler does not check: documents that repeat the code, who may name whom, and words that must not be here.
//! `BACKSTOP_BLESS=1 cargo test --test tidy` writes the generated parts of README.md, docs/config.md and docs/metrics.md anew.
#![allow(
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "what fails here fails the test"
)]

use backstop::core::exit::Exit;
use backstop::core::finding::Kind;
use backstop::core::guard::Guard;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All files below a directory with this ending.
fn files(below: &str, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root().join(below)];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no {ending} below {below}");
    found
}

fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap().to_string_lossy().into_owned()
}

/// A part of a document between two marks is what the code says.
fn generated(document: &str, name: &str, text: &str) {
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), format!("<!-- end of {name} -->\n"));
    let present = read(document);
    let (head, rest) = present.split_once(&begin).unwrap_or_else(|| panic!("{document} has no mark {begin}"));
    let (part, tail) = rest.split_once(&end).unwrap_or_else(|| panic!("{document} has no mark {end}"));
    if part == text {
        return;
    }
    assert!(
        std::env::var_os("BACKSTOP_BLESS").is_some(),
        "{document}, part {name}, is not what the code says; BACKSTOP_BLESS=1 cargo test --test tidy"
    );
    #[expect(clippy::disallowed_methods, reason = "a document, not state")]
    std::fs::write(root().join(document), format!("{head}{begin}{text}{end}{tail}")).unwrap();
}

#[test]
fn the_documents_have_every_exit_code_and_every_key() {
    let mut exits = String::from("\n| code | meaning |\n|---|---|\n");
    for e in Exit::ALL {
        writeln!(exits, "| {} | {} |", e.code(), e.sentence()).unwrap();
    }
    exits.push('\n');
    generated("README.md", "exit codes", &exits);
    generated("docs/metrics.md", "metrics", &format!("\n{}\n", backstop::metrics::markdown()));
    generated("docs/config.md", "keys", &format!("\n{}\n", backstop::config::markdown().trim()));
}

/// Whoever was paged reads the first section, whoever installs the fifth: the order is part of the document.
#[test]
fn the_readme_is_in_the_order_in_which_it_is_needed() {
    let readme = read("README.md");
    let sections: Vec<&str> = readme.lines().filter_map(|l| l.strip_prefix("## ")).collect();
    let order = [
        "Paged? Start here",
        "What it does",
        "See it in two minutes",
        "Install",
        "Patch",
        "When something fails",
        "Change the fleet",
        "Alerts",
        "Configuration",
        "Upgrade, downgrade, remove",
        "Limits",
        "Safety claims",
        "Develop",
    ];
    assert_eq!(sections, order);
}

#[test]
fn the_shortest_config_of_the_readme_can_be_used() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("```toml\n").expect("a TOML block");
    let (block, _) = rest.split_once("```").unwrap();
    let (config, _) =
        backstop::config::parse("README.md", block.as_bytes(), "es-client-1").unwrap_or_else(|p| panic!("{p}"));
    assert_eq!((config.fleet.to_string().as_str(), config.target_groups.len()), ("au-search", 1));
}

/// What is said to suffice does, and nothing of it can be left out.
#[test]
fn four_things_suffice_and_each_of_them_is_needed() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("```toml\n").expect("a TOML block");
    let (block, _) = rest.split_once("```").unwrap();
    let keys: Vec<&str> = block.lines().filter(|l| l.contains(" = ")).collect();
    let without = |key: &str| block.lines().filter(|l| *l != key).collect::<Vec<_>>().join("\n");
    let parse = |text: &str| backstop::config::parse("README.md", text.as_bytes(), "es-client-1");
    let needed: Vec<&&str> = keys.iter().filter(|key| parse(&without(key)).is_err()).collect();
    assert_eq!((needed.len(), keys.len()), (4, 5), "all but the mode: {needed:?}");
    for document in ["README.md", "docs/config.md"] {
        let text = read(document).to_lowercase();
        assert!(text.contains("four things suffice") && !text.contains("three keys"), "{document}");
    }
    for word in ["fleet's name", "target group", "pager", "record_endpoints"] {
        assert!(backstop::config::FOUR_SUFFICE.contains(word), "{word}");
    }
}

/// An error that names a file names one that both packages put there.
#[test]
fn files_that_messages_name_are_installed() {
    let manifest = read("Cargo.toml");
    let packages: Vec<&str> =
        manifest.split("\n[package.metadata.").skip(1).filter(|p| p.contains("assets = ")).collect();
    assert_eq!(packages.len(), 2, "a .deb and an .rpm");
    let runbook = format!("{}/test.md", backstop::alerts::text::RUNBOOKS);
    for (named, source) in [(backstop::config::EVERY_KEY, "config/backstop.toml"), (&runbook, "docs/runbooks/*.md")] {
        let to = named.trim_start_matches('/');
        let dir = to.rsplit_once('/').map_or("", |(dir, _)| dir);
        for package in &packages {
            let line = package.lines().find(|l| l.contains(&format!("\"{source}\"")));
            let line = line.unwrap_or_else(|| panic!("{source} is in a package"));
            assert!(line.contains(to) || line.contains(&format!("{dir}/\"")), "{named}: {line}");
        }
    }
}

/// Whoever writes a receiver reads the table.
#[test]
fn the_readme_says_what_a_receiver_does_with_each_event() {
    let readme = read("README.md");
    let (_, rest) = readme.split_once("| `event` | means | the receiver |\n|---|---|---|\n").expect("the table");
    let named: Vec<&str> =
        rest.lines().map_while(|l| l.strip_prefix("| `")).filter_map(|l| l.split('`').next()).collect();
    assert_eq!(named, backstop::alerts::text::EVENTS);
}

/// What a document links to inside the project is there.
#[test]
fn no_link_inside_the_project_is_dead() {
    let documents = ["README.md".to_owned(), "ARCHITECTURE.md".to_owned()];
    let below = files("docs", ".md").iter().map(|p| relative(p)).collect::<Vec<_>>();
    let mut links = 0;
    for document in documents.iter().chain(&below) {
        let at = root().join(document);
        let text = read(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") || link.starts_with('#') {
                continue;
            }
            let path = link.split('#').next().unwrap_or(link);
            assert!(at.parent().unwrap().join(path).exists(), "{document} links to {link}, which is not there");
            links += 1;
        }
    }
    assert!(links > 8, "only {links} links were found");
}

#[test]
fn every_kind_of_alert_has_a_runbook_that_the_readme_names() {
    let readme = read("README.md");
    for kind in Kind::ALL {
        let path = format!("docs/runbooks/{}.md", kind.label());
        let text = read(&path);
        let (first, rest) = text.split_once("\n\n").unwrap_or_else(|| panic!("{path} has one paragraph only"));
        assert!(first.starts_with(&format!("# {}: ", kind.label())), "{path} says in its first line what it is about");
        assert!(rest.starts_with("**What it means.** "), "{path} says what it means");
        assert!(text.contains("**It ends**"), "{path} says how it ends");
        assert!(readme.contains(&path), "README.md names {path}");
    }
    // Prometheus raises some alerts that no agent does; its rules name their runbooks.
    let rules = read("config/prometheus/rules.yml");
    for path in files("docs/runbooks", ".md") {
        let name = relative(&path);
        let kind = Kind::ALL.iter().any(|k| name == format!("docs/runbooks/{}.md", k.label()));
        assert!(kind || rules.contains(name.rsplit('/').next().unwrap_or_default()), "{name} is about nothing");
    }
}

#[test]
fn guards_that_have_verbs_of_their_own_or_prove_identity_cannot_be_overridden() {
    let fixed: Vec<&str> = Guard::ALL.into_iter().filter(|g| !g.overridable()).map(Guard::label).collect();
    let named = [
        "no-latch",
        "mode",
        "identity",
        "state-durable",
        "fleet-record",
        "no-pause",
        "no-hold",
        "slot-free",
        "self-in-service",
    ];
    assert_eq!(fixed, named);
}

#[test]
fn files_are_short_enough_to_hold_one_idea() {
    for path in files("src", ".rs") {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= 620, "{} has {lines} lines", relative(&path));
    }
}

/// `from` (a folder or file below src) must not name any of `never`.
fn never_names(from: &str, never: &[&str]) {
    let at = root().join("src").join(from);
    let sources = if at.is_dir() { files(&format!("src/{from}"), ".rs") } else { vec![at] };
    for path in sources {
        let text = std::fs::read_to_string(&path).unwrap();
        for word in never {
            let named =
                text.lines().find(|l| l.contains(&format!("crate::{word}")) && !l.trim_start().starts_with("//"));
            assert!(named.is_none(), "{} names {word}: {}", relative(&path), named.unwrap_or_default());
        }
    }
}

#[test]
fn arrows_point_one_way() {
    let adapters = ["elbv2", "elasticsearch", "fleet", "jobs", "host", "alerts"];
    let above = ["agent", "cli", "rehearse"];
    for adapter in adapters {
        never_names(adapter, &above);
    }
    never_names(
        "core",
        &["agent", "alerts", "cli", "config", "control", "elbv2", "fleet", "host", "jobs", "ports", "state"],
    );
    never_names("state", &["agent", "cli", "rehearse", "control", "config"]);
    never_names(
        "metrics",
        &["agent", "cli", "rehearse", "control", "config", "state", "elbv2", "elasticsearch", "fleet"],
    );
    never_names("agent", &["cli", "rehearse", "elbv2", "jobs"]);
    never_names("control", &["agent", "cli", "rehearse"]);
    for path in files("src", ".rs") {
        let name = relative(&path);
        if !name.starts_with("src/rehearse") && !name.starts_with("src/cli/rehearse") {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("crate::rehearse"), "{name} names the rehearsal");
        }
    }
}

/// What the packages say of one file: source, and where it goes.
fn packaged(table: &toml::Table, kind: &str) -> Vec<(String, String)> {
    let assets = table["package"]["metadata"][kind]["assets"].as_array().unwrap();
    let text = |v: &toml::Value| v.as_str().unwrap().trim_start_matches('/').to_owned();
    let pair = |a: &toml::Value| match a.as_array() {
        Some(a) => (text(&a[0]), text(&a[1])),
        None => (text(&a["source"]), text(&a["dest"])),
    };
    let mut pairs: Vec<(String, String)> = assets.iter().map(pair).collect();
    pairs.sort();
    pairs
}

#[test]
fn both_packages_bring_the_same_files() {
    let table: toml::Table = read("Cargo.toml").parse().unwrap();
    // Debian's own, and what it calls otherwise.
    let own = ["packaging/lintian-overrides", "target/package/changelog.gz"];
    let mut deb = packaged(&table, "deb");
    deb.retain(|(source, _)| !own.contains(&source.as_str()));
    let mut rpm = packaged(&table, "generate-rpm");
    for (_, to) in &mut rpm {
        *to = to.replace("zsh/site-functions", "zsh/vendor-completions");
    }
    assert!(deb.len() > 15, "{deb:?}");
    assert_eq!(deb, rpm);
}

/// Runs a shell over a text without doing anything of it.
fn shell_reads(shell: &str, what: &str, text: &str) {
    let ran = std::process::Command::new(shell).args(["-n", "-c", text]).output().unwrap();
    assert!(ran.status.success(), "{what}: {}", String::from_utf8_lossy(&ran.stderr));
}

#[test]
fn examples_are_what_their_readers_can_read_and_call_options_that_are_there() {
    let cron = read("examples/backstop.cron");
    let lines: Vec<&str> = cron.lines().filter(|l| l.starts_with(|c: char| c.is_ascii_digit())).collect();
    assert_eq!(lines.len(), 1, "{cron}");
    let fields: Vec<&str> = lines[0].splitn(7, ' ').collect();
    assert_eq!(fields[5], "root");
    assert!(!fields[6].contains('%'), "cron makes a line break of it");
    shell_reads("sh", "cron line", fields[6]);
    shell_reads("sh", "hook", &read("examples/codedeploy/patch"));
    let document: serde_json::Value = serde_json::from_str(&read("examples/ssm-document.json")).unwrap();
    let script = document.pointer("/mainSteps/0/inputs/runCommand").and_then(|c| c.as_array()).unwrap();
    let script: Vec<&str> = script.iter().map(|l| l.as_str().unwrap()).collect();
    shell_reads("bash", "document", &script.join("\n"));

    let help = std::process::Command::new(env!("CARGO_BIN_EXE_backstop")).args(["run", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let mut options = 0;
    for path in files("examples", "") {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines().filter(|l| l.contains("backstop run ") || l.contains("'backstop', 'run'")) {
            let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
            for option in words.filter(|w| w.len() > 3 && w.starts_with("--")) {
                assert!(help.contains(option), "{}: {option} is no option of run", relative(&path));
                options += 1;
            }
        }
    }
    assert!(options > 10, "only {options} options were found");
}

#[test]
fn nothing_points_outside_the_project() {
    let listed = std::process::Command::new("git").args(["ls-files"]).current_dir(root()).output().unwrap();
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(names.contains("Cargo.toml"), "git lists the project's files");
    let words =
        [concat!("../", "shared"), concat!("/wo", "rk/"), concat!("/ro", "ot/."), concat!("index.cra", "tes.io")];
    for name in names.lines().filter(|n| *n != "Cargo.lock") {
        let Ok(text) = std::fs::read_to_string(root().join(name)) else { continue };
        for word in words {
            assert!(!text.contains(word), "{name} contains {word}");
        }
    }
}

#[test]
fn no_test_is_ignored_but_those_that_need_foreign_programs() {
    for path in files("tests", ".rs") {
        let name = relative(&path);
        // What `.ci/run` runs with their programs.
        let foreign = ["tests/peers", "tests/cluster"].iter().any(|dir| name.starts_with(dir));
        if name == "tests/tidy.rs" || name == "tests/metrics/promtool.rs" || foreign {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("#[ignore"), "{name} has an ignored test");
    }
}
