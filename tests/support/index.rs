//! As much of a search server as the fleet record needs, in memory, answering as OpenSearch 2.19 and Elasticsearch 8.19 do.

use backstop::rehearse::http::{Request, Response};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug)]
struct Doc {
    source: Value,
    seq_no: u64,
    term: u64,
}

#[derive(Debug, Default)]
struct Contents {
    body: Value,
    uuid: String,
    docs: BTreeMap<String, Doc>,
    seq_no: u64,
}

#[derive(Default)]
struct State {
    indices: BTreeMap<String, Contents>,
    made: u64,
}

/// The server. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct Little(Arc<Mutex<State>>);

impl Little {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("not poisoned")
    }

    /// An answer to one request.
    pub(crate) fn answer(&self, request: &Request) -> Response {
        let path = request.path().trim_matches('/').to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        let body = serde_json::from_slice::<Value>(&request.body).unwrap_or_default();
        let mut state = self.state();
        match (request.method.as_str(), parts.as_slice()) {
            ("GET", [index]) => match state.indices.get(*index) {
                Some(contents) => ok(200, &json!({*index: shown(contents)})),
                None => no_index(index),
            },
            ("PUT", [index]) => state.make(index, body),
            ("DELETE", [index]) => match state.indices.remove(*index) {
                Some(_) => ok(200, &json!({"acknowledged": true})),
                None => no_index(index),
            },
            ("POST", [index, "_search"]) => match state.indices.get(*index) {
                Some(contents) => search(contents, &body),
                None => no_index(index),
            },
            ("GET", [index, "_doc", id]) => match state.indices.get(*index) {
                Some(contents) => get(contents, id),
                None => no_index(index),
            },
            ("DELETE", [index, "_doc", id]) => match state.indices.get_mut(*index) {
                Some(contents) => match contents.docs.remove(*id) {
                    Some(_) => ok(200, &json!({"_id": id, "result": "deleted"})),
                    None => ok(404, &json!({"_id": id, "result": "not_found"})),
                },
                None => no_index(index),
            },
            ("PUT", [index, kind @ ("_doc" | "_create"), id]) => {
                // As a server does that was left as it comes.
                if !state.indices.contains_key(*index) {
                    state.make(index, json!({}));
                }
                let contents = state.indices.get_mut(*index).expect("made just now");
                let there = contents.docs.get(*id).map(|d| (d.seq_no, d.term));
                let expected = query(request, "if_seq_no").zip(query(request, "if_primary_term"));
                let fits = expected.is_none_or(|e| there == Some(e)) && (*kind == "_doc" || there.is_none());
                if fits { write(contents, id, body) } else { error(409, "version_conflict_engine_exception") }
            }
            _ => error(400, "illegal_argument_exception"),
        }
    }
}

impl State {
    fn make(&mut self, index: &str, body: Value) -> Response {
        if self.indices.contains_key(index) {
            return error(400, "resource_already_exists_exception");
        }
        self.made += 1;
        let uuid = format!("uuid-{}", self.made);
        self.indices.insert(index.to_owned(), Contents { body, uuid, ..Contents::default() });
        ok(200, &json!({"acknowledged": true, "shards_acknowledged": true, "index": index}))
    }
}

fn shown(contents: &Contents) -> Value {
    let mut index = contents.body.pointer("/settings/index").cloned().unwrap_or_else(|| json!({}));
    index["uuid"] = json!(contents.uuid);
    let mappings = contents.body.get("mappings").cloned().unwrap_or_else(|| json!({}));
    json!({"aliases": {}, "mappings": mappings, "settings": {"index": index}})
}

fn get(contents: &Contents, id: &str) -> Response {
    match contents.docs.get(id) {
        None => ok(404, &json!({"_id": id, "found": false})),
        Some(d) => ok(
            200,
            &json!({"_id": id, "_seq_no": d.seq_no, "_primary_term": d.term, "found": true, "_source": d.source}),
        ),
    }
}

fn write(contents: &mut Contents, id: &str, source: Value) -> Response {
    let doc = Doc { source, seq_no: contents.seq_no, term: 1 };
    contents.seq_no += 1;
    let answer = json!({"_id": id, "_seq_no": doc.seq_no, "_primary_term": doc.term});
    let replaced = contents.docs.insert(id.to_owned(), doc).is_some();
    let mut answer = answer;
    answer["result"] = json!(if replaced { "updated" } else { "created" });
    ok(if replaced { 200 } else { 201 }, &answer)
}

/// A filter of terms, sorted by `instance`, page by page.
fn search(contents: &Contents, body: &Value) -> Response {
    let filters = body.pointer("/query/bool/filter").and_then(Value::as_array).cloned().unwrap_or_default();
    let matches = |d: &Doc| {
        filters.iter().all(|f| {
            let is = |key: &str, value: &Value| d.source.get(key) == Some(value);
            let one = f["term"].as_object().is_some_and(|t| t.iter().all(|(key, value)| is(key, value)));
            let any = |values: &Value, key: &str| values.as_array().is_some_and(|all| all.iter().any(|v| is(key, v)));
            one || f["terms"].as_object().is_some_and(|t| t.iter().all(|(key, values)| any(values, key)))
        })
    };
    let after = body.pointer("/search_after/0").and_then(Value::as_str).unwrap_or_default();
    let mut hits: Vec<(&str, Value)> = contents
        .docs
        .iter()
        .filter(|(_, d)| matches(d))
        .map(|(id, d)| (d.source["instance"].as_str().unwrap_or_default(), json!({"_id": id, "_source": d.source})))
        .filter(|(instance, _)| *instance > after)
        .collect();
    hits.sort_by(|a, b| a.0.cmp(b.0));
    let size = body["size"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or(10);
    let hits: Vec<Value> = hits.into_iter().take(size).map(|(_, hit)| hit).collect();
    ok(
        200,
        &json!({
            "took": 1, "timed_out": false, "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
            "hits": {"total": {"value": hits.len(), "relation": "eq"}, "max_score": null, "hits": hits},
        }),
    )
}

fn query(request: &Request, name: &str) -> Option<u64> {
    let query = request.target.split_once('?')?.1;
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
}

fn ok(status: u16, body: &Value) -> Response {
    Response::json(status, body)
}

fn no_index(index: &str) -> Response {
    let error =
        json!({"type": "index_not_found_exception", "reason": format!("no such index [{index}]"), "index": index});
    Response::json(404, &json!({"error": error, "status": 404}))
}

/// An error in Elasticsearch's own words.
pub(crate) fn error(status: u16, kind: &str) -> Response {
    Response::json(status, &json!({"error": {"root_cause": [], "type": kind, "reason": "told to"}, "status": status}))
}
