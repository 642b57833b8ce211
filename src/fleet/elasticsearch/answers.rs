//! What complete answers say. Pure: success is defined positively, down to the id and the result, and everything else is a
//! fault whose class comes from the one table of `elasticsearch/classify.rs`.

use crate::core::error::{Class, Fault};
use crate::elasticsearch::classify::{Answer, answered, error_type};
use crate::ports::CasFault;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// What the index says about who made it.
const MARK: &str = "backstop";
/// Of the envelope and the mapping.
const SCHEMA: u64 = 1;

/// What a document is wrapped in. The document itself is text, so that it comes back byte by byte.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Envelope {
    /// Which fleet's.
    pub(super) fleet: String,
    /// `record` or `member`.
    pub(super) kind: String,
    /// Of a member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) instance: Option<String>,
    /// The index that this was written to: another one means a restored copy.
    pub(super) index_uuid: String,
    /// The bytes.
    pub(super) document: String,
}

/// The position of a write, by which the next one names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) seq_no: u64,
    pub(super) primary_term: u64,
}

/// What a GET by id came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Got {
    NoIndex,
    NoDocument,
    Document(Value, Position),
}

/// What a GET of the index came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Index {
    Missing,
    Ours { uuid: String },
}

/// Settings and mapping of the index. `hidden`: not where the server does not know that.
pub(super) fn index_body(hidden: bool) -> Value {
    let mut index = json!({
        "number_of_shards": 1,
        "auto_expand_replicas": "0-1",
        // Stated, or a search after a quiet time would not see the latest members.
        "refresh_interval": "1s",
    });
    if hidden && let Some(index) = index.as_object_mut() {
        index.insert("hidden".to_owned(), json!(true));
    }
    json!({
        "settings": {"index": index},
        "mappings": {
            "dynamic": false,
            "_meta": {MARK: {"schema": SCHEMA}},
            "properties": {
                "fleet": {"type": "keyword"}, "kind": {"type": "keyword"}, "instance": {"type": "keyword"},
            },
        },
    })
}

/// The index by this name, and that `init` made it: one that a server made by itself at a first write would find members by
/// words instead of names.
pub(super) fn index(what: &str, name: &str, answer: &Answer) -> Result<Index, Fault> {
    if no_such_index(name, answer) {
        return Ok(Index::Missing);
    }
    let body = success(what, answer, &[200])?;
    let Some(index) = body.get(name) else {
        let others = body.as_object().into_iter().flatten();
        if others.filter(|(_, index)| index.get("settings").is_some()).count() != 1 {
            return Err(strange(what, "an index"));
        }
        let why = format!("{what}: no index of this name answers: is {name} an alias? record.index must name an index");
        return Err(Fault::new(Class::Refused, why));
    };
    let uuid = index.pointer("/settings/index/uuid").and_then(Value::as_str).filter(|u| !u.is_empty() && *u != "_na_");
    let uuid = uuid.ok_or_else(|| strange(what, "the index's uuid"))?;
    let schema = index.pointer("/mappings/_meta/backstop/schema").and_then(Value::as_u64);
    match schema {
        Some(SCHEMA) => Ok(Index::Ours { uuid: uuid.to_owned() }),
        Some(newer) => Err(Fault::new(
            Class::Refused,
            format!("{what}: the index {name} has schema {newer}, this version knows {SCHEMA}; upgrade backstop"),
        )),
        None => Err(Fault::new(
            Class::Refused,
            format!(
                "{what}: the index {name} was not made by backstop init: look what is in it, remove it or name another \
                 one in record.index, then backstop init --fleet --reason"
            ),
        )),
    }
}

/// The index was made, or was there. `Ok(false)`: the server may not know `hidden`.
pub(super) fn index_made(what: &str, hidden: bool, answer: &Answer) -> Result<bool, Fault> {
    let object = answer.object();
    let error = object.as_ref().and_then(error_type);
    match (answer.status, error.as_deref()) {
        (200, _) if object.as_ref().is_some_and(|o| o.get("acknowledged") == Some(&json!(true))) => Ok(true),
        (200, _) => Err(Fault::new(Class::OutcomeUnknown, format!("{what}: HTTP 200 without acknowledged: true"))),
        (400, Some("resource_already_exists_exception")) => Ok(true),
        (400, Some("illegal_argument_exception" | "settings_exception")) if hidden => Ok(false),
        _ => Err(answered(what, answer)),
    }
}

/// A document by its id.
pub(super) fn got(what: &str, name: &str, id: &str, answer: &Answer) -> Result<Got, Fault> {
    if no_such_index(name, answer) {
        return Ok(Got::NoIndex);
    }
    let object = answer.object();
    let is_this = |o: &Value| o.get("_id").and_then(Value::as_str) == Some(id);
    if answer.status == 404 && object.as_ref().is_some_and(|o| is_this(o) && o.get("found") == Some(&json!(false))) {
        return Ok(Got::NoDocument);
    }
    let body = success(what, answer, &[200])?;
    if !is_this(&body) || body.get("found") != Some(&json!(true)) {
        return Err(strange(what, "found: true and the id that was asked for"));
    }
    let source = body.get("_source").cloned().ok_or_else(|| strange(what, "_source"))?;
    Ok(Got::Document(source, position(&body).ok_or_else(|| strange(what, "_seq_no and _primary_term"))?))
}

/// A write was applied: only then is it a yes. `results`: what it may have come to.
pub(super) fn written(
    what: &str,
    name: &str,
    id: &str,
    results: &[&str],
    answer: &Answer,
) -> Result<Position, CasFault> {
    // With the index gone the document is gone too, and another one is not made in its place.
    if no_such_index(name, answer) {
        return Err(CasFault::Conflict);
    }
    let object = answer.object();
    let error = object.as_ref().and_then(error_type);
    match (answer.status, error.as_deref()) {
        (200 | 201, None) => {
            let body = object.unwrap_or_default();
            let text = |key: &str| body.get(key).and_then(Value::as_str);
            let applied = text("_id") == Some(id) && text("result").is_some_and(|r| results.contains(&r));
            position(&body).filter(|_| applied).ok_or_else(|| {
                let why = format!("{what}: HTTP {} without what an applied write says", answer.status);
                CasFault::Fault(Fault::new(Class::OutcomeUnknown, why))
            })
        }
        (409, Some("version_conflict_engine_exception")) => Err(CasFault::Conflict),
        _ => Err(CasFault::Fault(not_written(what, answer))),
    }
}

/// The document is gone, by this call or before it.
pub(super) fn deleted(what: &str, name: &str, id: &str, answer: &Answer) -> Result<(), Fault> {
    if no_such_index(name, answer) {
        return Ok(());
    }
    let object = answer.object().unwrap_or_default();
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    match (answer.status, text("result")) {
        (200, Some("deleted")) | (404, Some("not_found")) if text("_id") == Some(id) => Ok(()),
        _ => Err(not_written(what, answer)),
    }
}

/// A page of the member documents of this fleet, with the last one's place in the order; whole, or a fault.
pub(super) fn members(what: &str, fleet: &str, answer: &Answer) -> Result<Vec<(String, Vec<u8>)>, Fault> {
    let body = success(what, answer, &[200])?;
    match body.get("timed_out").and_then(Value::as_bool) {
        Some(false) => {}
        Some(true) => return Err(Fault::new(Class::NotReady, format!("{what}: HTTP 200 with timed_out: true"))),
        None => return Err(strange(what, "timed_out")),
    }
    let shards = |key: &str| body.pointer("/_shards").and_then(|s| s.get(key)).and_then(Value::as_u64);
    match (shards("total"), shards("successful"), shards("failed")) {
        (Some(total @ 1..), Some(successful), Some(0)) if total == successful => {}
        (Some(_), Some(_), Some(_)) => {
            return Err(Fault::new(Class::NotReady, format!("{what}: HTTP 200 from a part of the shards")));
        }
        _ => return Err(strange(what, "_shards")),
    }
    let hits = body.pointer("/hits/hits").and_then(Value::as_array).ok_or_else(|| strange(what, "hits"))?;
    hits.iter().map(|hit| member(what, fleet, hit)).collect()
}

fn member(what: &str, fleet: &str, hit: &Value) -> Result<(String, Vec<u8>), Fault> {
    let id = hit.get("_id").and_then(Value::as_str).ok_or_else(|| strange(what, "the id of a hit"))?;
    let unusable = |why: String| Fault::new(Class::Refused, format!("{what}: the document {id} cannot be used: {why}"));
    let source = hit.get("_source").ok_or_else(|| strange(what, "the source of a hit"))?;
    let envelope: Envelope = serde_json::from_value(source.clone()).map_err(|e| unusable(e.to_string()))?;
    match envelope.instance {
        Some(instance) if envelope.fleet == fleet && envelope.kind == "member" && id == member_id(fleet, &instance) => {
            Ok((instance, envelope.document.into_bytes()))
        }
        _ => Err(unusable("it is not the member that its id names".to_owned())),
    }
}

/// Where a fleet's record is.
pub(super) fn record_id(fleet: &str) -> String {
    format!("record:{fleet}")
}

/// Where a member's document is.
pub(super) fn member_id(fleet: &str, instance: &str) -> String {
    format!("member:{fleet}:{instance}")
}

/// A complete answer to a write that is no yes. A server that says that it did not begin may be taken at its word; all
/// others may have done it.
fn not_written(what: &str, answer: &Answer) -> Fault {
    let fault = answered(what, answer);
    let error = answer.object().as_ref().and_then(error_type);
    let begun = match (answer.status, error.as_deref()) {
        (401 | 403 | 429, _) => false,
        (400..=499, Some(_)) => false,
        (503, Some(error)) => !matches!(
            error,
            "cluster_block_exception"
                | "master_not_discovered_exception"
                | "cluster_manager_not_discovered_exception"
                | "unavailable_shards_exception"
        ),
        _ => true,
    };
    if begun { Fault { class: Class::OutcomeUnknown, ..fault } } else { fault }
}

/// A complete answer says that there is no index of this very name.
fn no_such_index(name: &str, answer: &Answer) -> bool {
    let Some(object) = answer.object().filter(|_| answer.status == 404) else { return false };
    error_type(&object).as_deref() == Some("index_not_found_exception")
        && object.pointer("/error/index").and_then(Value::as_str) == Some(name)
}

fn position(body: &Value) -> Option<Position> {
    let number = |key: &str| body.get(key).and_then(Value::as_u64);
    Some(Position { seq_no: number("_seq_no")?, primary_term: number("_primary_term")? })
}

fn success(what: &str, answer: &Answer, statuses: &[u16]) -> Result<Value, Fault> {
    if !statuses.contains(&answer.status) {
        return Err(answered(what, answer));
    }
    answer.object().ok_or_else(|| answered(what, answer))
}

fn strange(what: &str, missing: &str) -> Fault {
    Fault::transport(format!("{what}: HTTP 200 without {missing}: is this Elasticsearch?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &Value) -> Answer {
        Answer { status, retry_after_ms: None, body: body.to_string().into_bytes() }
    }

    fn page(status: u16) -> Answer {
        Answer { status, retry_after_ms: None, body: b"<html>".to_vec() }
    }

    fn error(status: u16, kind: &str) -> Answer {
        answer(status, &json!({"error": {"type": kind, "reason": "because", "index": "i"}, "status": status}))
    }

    #[test]
    fn only_a_complete_answer_that_names_the_document_says_that_there_is_none() {
        let id = "record:f";
        let none = json!({"_index": "i", "_id": id, "found": false});
        assert_eq!(got("x", "i", id, &answer(404, &none)), Ok(Got::NoDocument));
        assert_eq!(got("x", "i", id, &error(404, "index_not_found_exception")), Ok(Got::NoIndex));
        for other in [
            page(404),
            answer(404, &json!({})),
            answer(404, &json!({"_id": "record:g", "found": false})),
            answer(200, &none),
            error(404, "resource_not_found_exception"),
            error(503, "index_not_found_exception"),
            answer(200, &json!({})),
            page(200),
        ] {
            assert!(got("x", "i", id, &other).is_err(), "{other:?}");
        }
        let there = json!({"_id": id, "found": true, "_seq_no": 3, "_primary_term": 2, "_source": {"a": 1}});
        let position = Position { seq_no: 3, primary_term: 2 };
        assert_eq!(got("x", "i", id, &answer(200, &there)), Ok(Got::Document(json!({"a": 1}), position)));
        for key in ["_id", "found", "_seq_no", "_primary_term", "_source"] {
            let mut less = there.clone();
            less.as_object_mut().unwrap().remove(key);
            assert_eq!(got("x", "i", id, &answer(200, &less)).unwrap_err().class, Class::Transport, "{key}");
        }
    }

    #[test]
    fn only_what_an_applied_write_says_is_a_yes() {
        let yes = json!({"_id": "r", "result": "updated", "_seq_no": 4, "_primary_term": 1});
        let judge = |a: &Answer| written("x", "i", "r", &["updated"], a);
        assert_eq!(judge(&answer(200, &yes)), Ok(Position { seq_no: 4, primary_term: 1 }));
        assert_eq!(judge(&error(409, "version_conflict_engine_exception")), Err(CasFault::Conflict));
        assert_eq!(judge(&error(404, "index_not_found_exception")), Err(CasFault::Conflict));
        let class = |a: &Answer| match judge(a) {
            Err(CasFault::Fault(f)) => f.class,
            other => panic!("{a:?}: {other:?}"),
        };
        for (key, value) in
            [("_id", json!("s")), ("result", json!("noop")), ("_seq_no", json!(-2)), ("_primary_term", json!("1"))]
        {
            let mut no = yes.clone();
            no[key] = value;
            assert_eq!(class(&answer(200, &no)), Class::OutcomeUnknown, "{key}");
        }
        for (a, want) in [
            (answer(202, &yes), Class::OutcomeUnknown),
            (page(200), Class::OutcomeUnknown),
            (page(409), Class::OutcomeUnknown),
            (page(502), Class::OutcomeUnknown),
            (page(503), Class::OutcomeUnknown),
            (error(500, "node_not_connected_exception"), Class::OutcomeUnknown),
            (error(502, "node_disconnected_exception"), Class::OutcomeUnknown),
            (error(503, "node_closed_exception"), Class::OutcomeUnknown),
            (error(503, "cluster_block_exception"), Class::NotReady),
            (error(503, "unavailable_shards_exception"), Class::NotReady),
            (error(401, "security_exception"), Class::Auth),
            (error(403, "security_exception"), Class::Auth),
            (error(429, "es_rejected_execution_exception"), Class::Throttled),
            (error(400, "mapper_parsing_exception"), Class::Refused),
        ] {
            assert_eq!(class(&a), want, "{a:?}");
        }
    }

    #[test]
    fn an_index_that_init_did_not_make_is_not_used() {
        let mut body = json!({"i": index_body(true)});
        body["i"]["settings"]["index"]["uuid"] = json!("u1");
        assert_eq!(index("x", "i", &answer(200, &body)), Ok(Index::Ours { uuid: "u1".to_owned() }));
        assert_eq!(index("x", "i", &error(404, "index_not_found_exception")), Ok(Index::Missing));
        let class = |body: &Value| index("x", "i", &answer(200, body)).unwrap_err().class;
        let mut foreign = body.clone();
        foreign["i"]["mappings"].as_object_mut().unwrap().remove("_meta");
        assert_eq!(class(&foreign), Class::Refused, "made by the server itself");
        assert_eq!(class(&json!({"ok": true})), Class::Transport, "another service");
        assert_eq!(class(&json!({"i-1": body["i"]})), Class::Refused, "an alias");
        let mut newer = body.clone();
        newer["i"]["mappings"]["_meta"]["backstop"]["schema"] = json!(2);
        assert_eq!(class(&newer), Class::Refused);
        for uuid in [json!("_na_"), json!(""), json!(null)] {
            body["i"]["settings"]["index"]["uuid"] = uuid;
            assert_eq!(class(&body), Class::Transport);
        }
    }

    #[test]
    fn an_index_is_made_when_the_server_says_so_and_once_without_what_an_older_one_does_not_know() {
        let judge = |hidden, a: &Answer| index_made("x", hidden, a);
        assert_eq!(judge(true, &answer(200, &json!({"acknowledged": true}))), Ok(true));
        assert_eq!(judge(true, &error(400, "resource_already_exists_exception")), Ok(true));
        let unknown = error(400, "illegal_argument_exception");
        assert_eq!(judge(true, &unknown), Ok(false));
        assert_eq!(judge(false, &unknown).unwrap_err().class, Class::Refused);
        assert_eq!(
            judge(true, &answer(200, &json!({"acknowledged": false}))).unwrap_err().class,
            Class::OutcomeUnknown
        );
        assert_eq!(judge(true, &error(403, "security_exception")).unwrap_err().class, Class::Auth);
        assert!(index_body(true).pointer("/settings/index/hidden").is_some());
        assert!(index_body(false).pointer("/settings/index/hidden").is_none());
    }

    #[test]
    fn a_part_of_the_members_is_not_the_members() {
        let envelope = |instance: &str| json!({"fleet": "f", "kind": "member", "instance": instance, "index_uuid": "u", "document": "d"});
        let whole = json!({
            "timed_out": false,
            "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
            "hits": {"hits": [{"_id": "member:f:i-1", "_source": envelope("i-1")}]},
        });
        assert_eq!(members("x", "f", &answer(200, &whole)), Ok(vec![("i-1".to_owned(), b"d".to_vec())]));
        for (at, value, want) in [
            ("/timed_out", json!(true), Class::NotReady),
            ("/timed_out", json!(null), Class::Transport),
            ("/_shards/failed", json!(1), Class::NotReady),
            ("/_shards/successful", json!(0), Class::NotReady),
            ("/_shards/total", json!(0), Class::NotReady),
            ("/_shards", json!(null), Class::Transport),
            ("/hits/hits", json!(null), Class::Transport),
            ("/hits/hits/0/_id", json!("member:f:i-2"), Class::Refused),
            ("/hits/hits/0/_source/fleet", json!("g"), Class::Refused),
            ("/hits/hits/0/_source/document", json!(null), Class::Refused),
        ] {
            let mut part = whole.clone();
            *part.pointer_mut(at).unwrap() = value;
            assert_eq!(members("x", "f", &answer(200, &part)).unwrap_err().class, want, "{at}");
        }
        assert!(members("x", "f", &page(200)).is_err());
    }

    #[test]
    fn a_member_that_is_gone_is_gone_and_nothing_else_is() {
        let gone = |status, result: &str| answer(status, &json!({"_id": "m", "result": result}));
        assert_eq!(deleted("x", "i", "m", &gone(200, "deleted")), Ok(()));
        assert_eq!(deleted("x", "i", "m", &gone(404, "not_found")), Ok(()));
        assert_eq!(deleted("x", "i", "m", &error(404, "index_not_found_exception")), Ok(()));
        assert_eq!(deleted("x", "i", "n", &gone(200, "deleted")).unwrap_err().class, Class::OutcomeUnknown);
        assert!(deleted("x", "i", "m", &page(404)).is_err());
        assert!(deleted("x", "i", "m", &page(200)).is_err());
    }
}
