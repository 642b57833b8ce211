//! The cluster's own list of its client nodes. Complete or a fault: half a list would look like a smaller fleet, and a node
//! that never joined lists itself alone, with 200.

use super::node_check::{NodeChecker, caller, health, not_elasticsearch, success, text};
use crate::core::client_node::ClientNode;
use crate::core::error::{Class, Fault};
use crate::core::settings::CheckSettings;
use crate::ports::ClusterNodes;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// A list is no longer than this: some thousand nodes.
const LIST_MAX_BYTES: usize = 8 * 1024 * 1024;
/// Reading the files, health, the list.
const STEPS_MAX: u32 = 3;

impl ClusterNodes for NodeChecker {
    async fn client_nodes(&self, settings: &CheckSettings) -> Result<Vec<ClientNode>, Fault> {
        let call = Duration::from_millis(settings.timeout_ms.max(1));
        let whole = call.saturating_mul(STEPS_MAX);
        match tokio::time::timeout(whole, ask(settings, call)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                Err(Fault::transport(format!("client nodes as {} lists them: not within {whole:?}", settings.url)))
            }
        }
    }
}

async fn ask(settings: &CheckSettings, call: Duration) -> Result<Vec<ClientNode>, Fault> {
    let caller = caller(settings, call).await?.up_to(LIST_MAX_BYTES);
    // Without a master the list is an old one, and that of a node which never joined is the node itself.
    health(&caller).await?;
    let what = "GET /_nodes/coordinating_only:true/http";
    let answer = caller.get(&["_nodes", "coordinating_only:true", "http"], &[("timeout", "2s")]).await?;
    listed(what, &success(what, &answer)?)
}

/// The list of a complete answer.
fn listed(what: &str, body: &Value) -> Result<Vec<ClientNode>, Fault> {
    let count = |key: &str| body.get("_nodes").and_then(|n| n.get(key)).and_then(Value::as_u64);
    let (Some(total), Some(successful), Some(failed)) = (count("total"), count("successful"), count("failed")) else {
        return Err(not_elasticsearch(what, "_nodes"));
    };
    let nodes = body.get("nodes").and_then(Value::as_object).ok_or_else(|| not_elasticsearch(what, "nodes"))?;
    let in_list = u64::try_from(nodes.len()).unwrap_or(u64::MAX);
    if failed > 0 || successful != total || in_list != total {
        let why = format!("{what}: a part only: {in_list} of {total} nodes, {failed} did not answer in time");
        return Err(Fault::new(Class::NotReady, why));
    }
    let mut all = nodes.iter().map(|(id, node)| client_node(what, id, node)).collect::<Result<Vec<_>, Fault>>()?;
    all.sort();
    Ok(all)
}

fn client_node(what: &str, id: &str, node: &Value) -> Result<ClientNode, Fault> {
    let name = text(node, "name").ok_or_else(|| not_elasticsearch(what, &format!("the name of node {id}")))?;
    let published = node.get("http").and_then(|http| text(http, "publish_address"));
    let http = match published {
        Some(published) => Some(address(published).ok_or_else(|| {
            Fault::transport(format!("{what}: node {name} publishes its HTTP port as something else than address:port"))
        })?),
        None => None,
    };
    let ip = http.map(|at| at.ip().to_string()).or_else(|| text(node, "ip").map(str::to_owned));
    let ip = ip.ok_or_else(|| not_elasticsearch(what, &format!("an address of node {name}")))?;
    Ok(ClientNode { id: id.into(), name: name.into(), address: ip.into(), port: http.map(|at| at.port()) })
}

/// `ip:port`, `[ip]:port` or, where the node publishes a name, `name/ip:port`.
fn address(published: &str) -> Option<SocketAddr> {
    let text = published.rsplit_once('/').map_or(published, |(_, address)| address);
    if let Ok(address) = text.parse() {
        return Some(address);
    }
    // Without brackets the last colon is the port's.
    let (ip, port) = text.rsplit_once(':')?;
    Some(SocketAddr::new(ip.parse::<IpAddr>().ok()?, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn body(failed: u64, nodes: &Value) -> Value {
        let n = nodes.as_object().unwrap().len() as u64;
        let total = n.saturating_add(failed);
        json!({"_nodes": {"total": total, "successful": n, "failed": failed}, "cluster_name": "x", "nodes": nodes})
    }

    fn node(name: &str, published: &str) -> Value {
        json!({"name": name, "ip": "10.0.0.9", "roles": [], "http": {"publish_address": published}})
    }

    #[test]
    fn a_published_address_has_many_forms() {
        for (published, want) in [
            ("10.0.0.1:9200", Some(("10.0.0.1", 9200))),
            ("es-1.internal/10.0.0.1:9200", Some(("10.0.0.1", 9200))),
            ("[fd00::1]:9201", Some(("fd00::1", 9201))),
            ("es-1/[fd00::1]:9201", Some(("fd00::1", 9201))),
            ("fd00::1:9200", Some(("fd00::1:9200", 0))),
            ("es-1:9200", None),
            ("10.0.0.1", None),
            ("10.0.0.1:99999", None),
            ("", None),
        ] {
            let got = address(published).map(|a| (a.ip().to_string(), a.port()));
            match want {
                // An IPv6 address and its port without brackets: where one ends nobody can tell; the last colon decides.
                Some((_, 0)) => assert_eq!(got, Some(("fd00::1".to_owned(), 9200)), "{published}"),
                want => assert_eq!(got, want.map(|(ip, port)| (ip.to_owned(), port)), "{published}"),
            }
        }
    }

    #[test]
    fn all_nodes_are_listed_whatever_roles_an_older_version_left_them() {
        let mut legacy = node("es-2", "es-2/10.0.0.2:9200");
        legacy["roles"] = json!(["ml", "remote_cluster_client"]);
        let mut silent = node("es-3", "x");
        silent.as_object_mut().unwrap().remove("http");
        let all =
            listed("x", &body(0, &json!({"b": legacy, "a": node("es-1", "[fd00::1]:9200"), "c": silent}))).unwrap();
        let seen: Vec<_> = all.iter().map(|n| (&*n.id, &*n.name, &*n.address, n.port)).collect();
        assert_eq!(
            seen,
            [
                ("a", "es-1", "fd00::1", Some(9200)),
                ("b", "es-2", "10.0.0.2", Some(9200)),
                ("c", "es-3", "10.0.0.9", None)
            ]
        );
        assert_eq!(listed("x", &body(0, &json!({}))).unwrap(), [], "a cluster without client nodes");
    }

    #[test]
    fn a_part_of_the_list_is_no_list() {
        let one = json!({"a": node("es-1", "10.0.0.1:9200")});
        assert_eq!(listed("x", &body(1, &one)).unwrap_err().class, Class::NotReady, "one did not answer in time");
        let mut short = body(0, &one);
        short["_nodes"]["total"] = json!(2);
        short["_nodes"]["successful"] = json!(2);
        assert_eq!(listed("x", &short).unwrap_err().class, Class::NotReady, "fewer than it says");
        for bad in [
            json!({"nodes": one}),
            json!({"_nodes": {"total": 1, "successful": 1, "failed": 0}}),
            body(0, &json!({"a": {"ip": "10.0.0.1"}})),
            body(0, &json!({"a": node("es-1", "es-1:9200")})),
            body(0, &json!({"a": {"name": "es-1"}})),
        ] {
            assert_eq!(listed("x", &bad).unwrap_err().class, Class::Transport, "{bad}");
        }
    }
}
