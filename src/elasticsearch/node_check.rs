//! Is the own node up and useful? Identity, then cluster health (not local), then the optional canary search.

use super::classify::{Answer, answered};
use super::http::{Caller, base_url};
use super::secrets;
use crate::core::error::{Class, Fault};
use crate::core::settings::{CheckPass, CheckSettings, Colour, NodeIdentity};
use crate::ports::NodeCheck;
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;

/// `cluster_uuid` of a node that never joined.
const NO_CLUSTER: &str = "_na_";

/// The most calls of one check, and the reading of its files: `/`, `_nodes/_local`, health, canary.
const STEPS_MAX: u32 = 5;

/// The node check over HTTP. Holds nothing: every check starts from its settings and files.
#[derive(Clone, Debug)]
pub struct NodeChecker {
    _private: (),
}

impl NodeChecker {
    /// Makes no call.
    pub fn new() -> NodeChecker {
        NodeChecker { _private: () }
    }
}

impl Default for NodeChecker {
    fn default() -> NodeChecker {
        NodeChecker::new()
    }
}

impl NodeCheck for NodeChecker {
    async fn check(&self, settings: &CheckSettings) -> Result<CheckPass, Fault> {
        let call = Duration::from_millis(settings.timeout_ms.max(1));
        let whole = call.saturating_mul(STEPS_MAX);
        match tokio::time::timeout(whole, check(settings, call)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::transport(format!("node check of {}: not done within {whole:?}", settings.url))),
        }
    }
}

async fn check(settings: &CheckSettings, call: Duration) -> Result<CheckPass, Fault> {
    let caller = caller(settings, call).await?;
    let identity = identity(&caller, settings).await?;
    let colour = health(&caller).await?;
    if let Some(index) = &settings.canary_index {
        canary(&caller, index).await?;
    }
    Ok(CheckPass { identity, colour })
}

/// Reads the files and builds the client, off the runtime's threads: a file may be on a file system that hangs.
pub(super) async fn caller(settings: &CheckSettings, call: Duration) -> Result<Caller, Fault> {
    let base = base_url(&settings.url)?;
    let settings = settings.clone();
    let build = tokio::task::spawn_blocking(move || Caller::new(base, secrets::load(&settings)?, call));
    match tokio::time::timeout(call, build).await {
        Ok(Ok(caller)) => caller,
        Ok(Err(_)) => Err(Fault::transport("node check: preparing the HTTP client panicked")),
        Err(_) => Err(Fault::transport("node check: reading the credential and certificate files takes too long")),
    }
}

/// Who answers, and that it is the one expected.
async fn identity(caller: &Caller, settings: &CheckSettings) -> Result<NodeIdentity, Fault> {
    let answer = caller.get(&[""], &[]).await?;
    let what = "GET /";
    let root = success(what, &answer)?;
    let node_name = text(&root, "name").ok_or_else(|| not_elasticsearch(what, "name"))?;
    let cluster_uuid = text(&root, "cluster_uuid").ok_or_else(|| not_elasticsearch(what, "cluster_uuid"))?;
    if cluster_uuid == NO_CLUSTER {
        let message = format!("{what}: node {node_name} answers and has not joined a cluster (cluster_uuid _na_)");
        return Err(Fault::new(Class::NotReady, message));
    }
    let mut identity = NodeIdentity { node_name: node_name.into(), node_id: None, cluster_uuid: cluster_uuid.into() };
    let Some(expect) = &settings.expect else {
        if *identity.node_name != *settings.node_name {
            let message = format!("{what}: another node answers: {node_name}, expected {}", settings.node_name);
            return Err(Fault::new(Class::Refused, message));
        }
        // Being learnt: the id is worth having and not worth failing for.
        identity.node_id = node_id(caller).await.ok();
        return Ok(identity);
    };
    if identity.cluster_uuid != expect.cluster_uuid {
        let message = format!(
            "{what}: node {node_name} is in another cluster: uuid {cluster_uuid}, expected {}",
            expect.cluster_uuid
        );
        return Err(Fault::new(Class::Refused, message));
    }
    if identity.node_name != expect.node_name {
        let other = format!("{what}: another node answers: {node_name}, expected {}", expect.node_name);
        let Some(expected_id) = &expect.node_id else {
            return Err(Fault::new(Class::Refused, other));
        };
        let id = node_id(caller).await?;
        if id != *expected_id {
            return Err(Fault::new(Class::Refused, format!("{other} (and its id differs)")));
        }
        identity.node_id = Some(id);
    }
    Ok(identity)
}

/// The id of the node that answers: a fan-out of one.
async fn node_id(caller: &Caller) -> Result<Arc<str>, Fault> {
    let what = "GET /_nodes/_local/http";
    let answer = caller.get(&["_nodes", "_local", "http"], &[("timeout", "2s")]).await?;
    let body = success(what, &answer)?;
    let nodes = body.get("nodes").and_then(Value::as_object);
    match nodes.map(|n| (n.len(), n.keys().next())) {
        Some((1, Some(id))) if !id.is_empty() => Ok(id.as_str().into()),
        _ => Err(not_elasticsearch(what, "exactly one node")),
    }
}

/// The node reached the elected master. The colour is carried along and decides nothing: it is the whole cluster's.
pub(super) async fn health(caller: &Caller) -> Result<Option<Colour>, Fault> {
    let what = "GET /_cluster/health";
    let answer = caller.get(&["_cluster", "health"], &[("timeout", "0s")]).await?;
    let body = success(what, &answer)?;
    match body.get("timed_out").and_then(Value::as_bool) {
        Some(false) => Ok(match text(&body, "status") {
            Some("green") => Some(Colour::Green),
            Some("yellow") => Some(Colour::Yellow),
            Some("red") => Some(Colour::Red),
            _ => None,
        }),
        Some(true) => Err(Fault::new(Class::NotReady, format!("{what}: HTTP 200 with timed_out: true"))),
        None => Err(not_elasticsearch(what, "timed_out")),
    }
}

/// The node reaches data nodes. A red canary index fails on every node alike: whoever reads the message is told that it
/// was the canary.
async fn canary(caller: &Caller, index: &str) -> Result<(), Fault> {
    let what = format!("canary search on {index}");
    let query = [("size", "0"), ("allow_partial_search_results", "false"), ("timeout", "2s")];
    let named =
        |fault: Fault| Fault { message: format!("canary search on {index} failed: {}", fault.message), ..fault };
    let answer = caller.get(&[index, "_search"], &query).await.map_err(named)?;
    let body = success(&what, &answer)?;
    let not_ready = |why: String| Err(Fault::new(Class::NotReady, format!("{what}: HTTP 200 with {why}")));
    match body.get("timed_out").and_then(Value::as_bool) {
        Some(false) => {}
        Some(true) => return not_ready("timed_out: true".to_owned()),
        None => return Err(not_elasticsearch(&what, "timed_out")),
    }
    let shards = |key: &str| body.get("_shards").and_then(|s| s.get(key)).and_then(Value::as_u64);
    match (shards("failed"), shards("successful")) {
        (Some(0), Some(1..)) => Ok(()),
        (Some(failed), Some(successful)) => not_ready(format!("{failed} shards failed, {successful} successful")),
        _ => Err(not_elasticsearch(&what, "_shards")),
    }
}

/// A complete 200 with a JSON object; everything else is a fault.
pub(super) fn success(what: &str, answer: &Answer) -> Result<Value, Fault> {
    if answer.status != 200 {
        return Err(answered(what, answer));
    }
    answer.object().ok_or_else(|| answered(what, answer))
}

pub(super) fn not_elasticsearch(what: &str, missing: &str) -> Fault {
    Fault::transport(format!("{what}: HTTP 200 without {missing}: is this Elasticsearch?"))
}

pub(super) fn text<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get(key).and_then(Value::as_str).filter(|t| !t.is_empty())
}
