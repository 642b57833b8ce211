//! `--json` is a contract: what stands in tests/fixtures/json/ is in the answer, with the same value. Fields may be
//! added to an answer, none may be renamed, moved, or change its type. README.md there says how to extend it.

use crate::samples::{cycle, ended, refused, step};
use crate::world::World;
use backstop::control::protocol::{Progress, RunReply};
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use serde_json::Value;
use std::path::PathBuf;

/// Everything in `golden` is in `actual`.
fn contained(at: &str, golden: &Value, actual: &Value, missing: &mut Vec<String>) {
    match (golden, actual) {
        (Value::Object(g), Value::Object(a)) => {
            for (key, value) in g {
                let at = format!("{at}.{key}");
                match a.get(key) {
                    Some(other) => contained(&at, value, other, missing),
                    None => missing.push(format!("{at} is gone")),
                }
            }
        }
        (Value::Array(g), Value::Array(a)) if g.len() == a.len() => {
            for (i, (g, a)) in g.iter().zip(a).enumerate() {
                contained(&format!("{at}[{i}]"), g, a, missing);
            }
        }
        (g, a) if g == a => {}
        (g, a) => missing.push(format!("{at} was {g}, is {a}")),
    }
}

/// Compares; a golden file that is not there yet is written, and the test fails so that somebody looks at it.
fn compare(name: &str, actual: &Value, failures: &mut Vec<String>) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/json").join(format!("{name}.json"));
    match std::fs::read_to_string(&path) {
        Ok(text) => contained(name, &serde_json::from_str(&text).unwrap(), actual, failures),
        Err(_) => {
            let text = format!("{}\n", serde_json::to_string_pretty(actual).unwrap());
            std::io::Write::write_all(&mut std::fs::File::create(&path).unwrap(), text.as_bytes()).unwrap();
            failures.push(format!("{name}.json was not there and is written now: look at it, and commit it"));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_keeps_its_json() {
    let world = World::new();
    let mut failures = Vec::new();
    for (name, args, exit) in [
        ("status", &["status", "--json"][..], 0),
        ("check", &["check", "--json"], 100),
        ("explain", &["explain", "--json"], 0),
        ("history", &["history", "--json", "-n", "1"], 0),
        ("latch-list", &["latch", "list", "--json"], 0),
        ("latch-clear", &["latch", "clear", "L-1", "--reason", "r", "--json"], 0),
        ("rejoin", &["rejoin", "--reason", "r", "--json"], 0),
        ("hold", &["hold", "--for", "1h", "--reason", "r", "--json"], 0),
        ("retire", &["retire", "es-client-3", "--reason", "r", "--json"], 0),
        ("pause", &["pause", "--reason", "r", "--json"], 0),
        ("unpause", &["unpause", "--reason", "r", "--json"], 0),
        ("init", &["init", "--fleet", "--json"], 0),
        ("wait", &["wait", "--json"], 0),
        ("error", &["pause", "--reason", " ", "--json"], 2),
    ] {
        compare(name, &world.backstop(args).await.exits(exit).json(), &mut failures);
    }
    world.fake.tell(|s| {
        s.status.cycle = Some(cycle());
        s.steps = vec![step(1, StageName::Claim, "claimed", Some(400))];
        s.end = Progress { ended: Some(ended(Exit::FailedBack)), ..Progress::default() };
    });
    compare("status-cycle", &world.backstop(&["status", "--json"]).await.json(), &mut failures);
    compare("run", &world.backstop(&["run", "--json", "--", "true"]).await.exits(101).json(), &mut failures);
    let RunReply::Refused { exit, message, .. } = refused(Exit::Latched, "L-7f3a: es-client-2 failed") else {
        panic!()
    };
    let (verdicts, next) = (Some(crate::samples::check().verdicts), Some("backstop explain es-client-2".to_owned()));
    world.fake.tell(|s| s.runs = vec![RunReply::Refused { exit, message, verdicts, next }]);
    compare("run-refused", &world.backstop(&["run", "--json", "--", "true"]).await.exits(100).json(), &mut failures);
    assert!(failures.is_empty(), "the contract is broken:\n{}", failures.join("\n"));
}

#[test]
fn a_renamed_field_or_a_changed_value_breaks_the_contract_and_a_new_field_does_not() {
    let golden = serde_json::json!({"a": [{"b": 1}], "c": null});
    let broken = |actual: Value| {
        let mut missing = Vec::new();
        contained("x", &golden, &actual, &mut missing);
        missing
    };
    assert!(broken(serde_json::json!({"a": [{"b": 1, "new": 2}], "c": null, "also": []})).is_empty());
    assert_eq!(broken(serde_json::json!({"a": [{"B": 1}], "c": null})), ["x.a[0].b is gone"]);
    assert_eq!(
        broken(serde_json::json!({"a": [{"b": "1"}], "c": 0})),
        ["x.a[0].b was 1, is \"1\"", "x.c was null, is 0"]
    );
}
