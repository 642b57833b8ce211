//! A real cluster as the fleet's: its coordinating-only nodes are the client nodes, and it keeps the fleet record. It is
//! somebody else's, so nothing in it is changed but one index, which is made for the rehearsal and removed at its end.

use super::sight::Sight;
use crate::core::client_node::ClientNode;
use crate::core::settings::CheckSettings;
use crate::elasticsearch::NodeChecker;
use crate::elasticsearch::http::base_url;
use crate::fleet::elasticsearch::{EsFleet, EsFleetSettings};
use crate::ports::ClusterNodes as _;
use crate::rehearse::http::{self, Request};
use crate::rehearse::node::NodeFacts;
use crate::rehearse::pace;
use anyhow::{Context as _, bail};
use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

/// As many client nodes make a fleet.
const NODES_MIN: usize = 3;
/// Each of them gets an agent, on this one machine.
const NODES_MAX: usize = 16;
/// A node's name becomes that of a directory, with a socket below it.
const NAME_MAX: usize = 48;
/// One call (real).
const CALL: Duration = Duration::from_secs(10);

/// Its client nodes, and the index that is to be made in it.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Name and HTTP address of each.
    pub nodes: Vec<(String, SocketAddr)>,
    /// A new one each time.
    pub index: String,
}

/// A base URL of plain HTTP on this machine: a rehearsal sends nothing anywhere else.
///
/// # Errors
/// It is something else.
pub fn local_http(url: &str) -> anyhow::Result<String> {
    let base = base_url(url).map_err(|f| anyhow::anyhow!("{}", f.message))?;
    let host = base.host_str().unwrap_or_default();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    if base.scheme() != "http" || !(host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())) {
        bail!("{url} is not plain http on this machine (http://127.0.0.1:PORT): a rehearsal talks to nothing else");
    }
    Ok(url.trim_end_matches('/').to_owned())
}

impl Cluster {
    /// Asks one of its nodes for all its client nodes.
    ///
    /// # Errors
    /// It does not answer, or its client nodes are too few, or are not on this machine.
    pub async fn find(url: &str) -> anyhow::Result<Cluster> {
        let asked = CheckSettings {
            node_name: "any".into(),
            url: local_http(url)?.into(),
            timeout_ms: u64::try_from(CALL.as_millis()).unwrap_or(u64::MAX),
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
            canary_index: None,
            expect: None,
            passes: 1,
            over_ms: 0,
            every_ms: 1,
        };
        let listed = NodeChecker::new().client_nodes(&asked).await;
        let listed = listed.map_err(|f| anyhow::anyhow!("{url} does not list its client nodes: {f}"))?;
        let index = format!("backstop-rehearsal-{}", uuid::Uuid::new_v4().simple());
        Ok(Cluster { nodes: fleet_of(url, &listed)?, index })
    }

    /// Where agents ask for the record.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|(_, address)| format!("http://{address}")).collect()
    }

    pub(super) fn node_facts(&self) -> Vec<NodeFacts> {
        self.nodes.iter().map(|(name, address)| NodeFacts { address: *address, ..NodeFacts::new(name) }).collect()
    }
}

/// The client nodes, where a fleet can be made of them.
fn fleet_of(url: &str, listed: &[ClientNode]) -> anyhow::Result<Vec<(String, SocketAddr)>> {
    let said = |node: &ClientNode| {
        node.port.map_or_else(
            || format!("{} (no HTTP port)", node.name),
            |port| format!("{} at {}:{port}", node.name, node.address),
        )
    };
    let found = match listed {
        [] => "none".to_owned(),
        some => some.iter().map(said).collect::<Vec<_>>().join(", "),
    };
    if !(NODES_MIN..=NODES_MAX).contains(&listed.len()) {
        bail!(
            "the cluster at {url} has {} coordinating-only nodes (node.roles: []): {found}. \
             A rehearsal needs {NODES_MIN} to {NODES_MAX} of them: they are the client nodes behind its load balancer",
            listed.len()
        );
    }
    let address = |node: &ClientNode| {
        let ip = node.address.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)?;
        Some((node.name.to_string(), SocketAddr::new(ip, node.port?)))
    };
    let Some(mut nodes) = listed.iter().map(address).collect::<Option<Vec<_>>>() else {
        bail!(
            "not every coordinating-only node of the cluster at {url} publishes an HTTP address on this machine: {found}. \
             A rehearsal needs a loopback address of each (http.publish_host, http.publish_port)"
        );
    };
    let plain = |name: &String| {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        name.len() <= NAME_MAX && name.chars().all(fits) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    let names: BTreeSet<&String> = nodes.iter().map(|(name, _)| name).filter(|n| plain(n)).collect();
    if names.len() != nodes.len() {
        bail!(
            "the coordinating-only nodes of the cluster at {url} are {found}. A rehearsal needs a name for each that no \
             other has, of at most {NAME_MAX} letters, digits, '.', '_' and '-'"
        );
    }
    nodes.sort();
    Ok(nodes)
}

/// The index of a rehearsal. Removed with its value, where [`Lodging::leave`] has not done so.
#[derive(Debug)]
pub(super) struct Lodging {
    addresses: Vec<SocketAddr>,
    index: String,
    left: bool,
}

impl Lodging {
    pub(super) fn of(cluster: &Cluster) -> Lodging {
        let addresses = cluster.nodes.iter().map(|(_, address)| *address).collect();
        Lodging { addresses, index: cluster.index.clone(), left: false }
    }

    pub(super) fn sight(&self) -> Sight {
        Sight::of_cluster(EsFleet::new(EsFleetSettings {
            endpoints: self.addresses.iter().map(|a| format!("http://{a}").into()).collect(),
            index: self.index.as_str().into(),
            fleet: super::FLEET.into(),
            timeout_ms: u64::try_from(CALL.as_millis()).unwrap_or(u64::MAX),
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
        }))
    }

    /// Removes the index, and looks whether it is gone.
    pub(super) async fn leave(&mut self) -> anyhow::Result<()> {
        let mut last = None;
        for address in &self.addresses {
            // Some other node may have come to an end meanwhile.
            let asked = async {
                http::once(*address, &request("DELETE", &self.index)).await?;
                http::once(*address, &request("GET", &self.index)).await
            };
            match pace::within(CALL, asked).await {
                Some(Ok(answer)) if answer.status == 404 => {
                    self.left = true;
                    return Ok(());
                }
                Some(Ok(answer)) => last = Some(format!("{address} answers HTTP {} for it", answer.status)),
                Some(Err(error)) => last = Some(format!("{address}: {error}")),
                None => last = Some(format!("{address}: no answer within {CALL:?}")),
            }
        }
        let why = last.context("there is no node to ask")?;
        bail!("the index {} is left in the cluster: {why}", self.index)
    }
}

impl Drop for Lodging {
    fn drop(&mut self) {
        // An interrupted rehearsal. Its agents have been killed just now; whatever they had sent arrived before this does.
        if !self.left && !self.addresses.iter().any(|address| remove(*address, &self.index).is_ok()) {
            tracing::error!(index = self.index, "the index of the rehearsal is left in the cluster");
        }
    }
}

fn request(method: &str, index: &str) -> Request {
    Request { method: method.to_owned(), keep_alive: false, ..Request::get(&format!("/{index}")) }
}

/// Blocking, for where nothing can be awaited.
fn remove(address: SocketAddr, index: &str) -> std::io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, CALL)?;
    stream.set_read_timeout(Some(CALL))?;
    write!(stream, "DELETE /{index} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let done = [&b"HTTP/1.1 200 "[..], b"HTTP/1.1 404 "].iter().any(|head| answer.starts_with(head));
    if done { Ok(()) } else { Err(std::io::ErrorKind::Other.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, address: &str, port: Option<u16>) -> ClientNode {
        ClientNode { id: name.into(), name: name.into(), address: address.into(), port }
    }

    #[test]
    fn only_plain_http_on_this_machine_is_talked_to() {
        for good in ["http://127.0.0.1:9200", "http://127.9.8.7:9200/", "http://localhost:9200", "http://[::1]:9200"] {
            assert!(local_http(good).is_ok(), "{good}");
        }
        for bad in ["https://127.0.0.1:9200", "http://10.0.0.1:9200", "http://localhost.example:9200", "127.0.0.1:9200"]
        {
            assert!(local_http(bad).is_err(), "{bad}");
        }
        assert!(local_http("http://10.0.0.1:9200").unwrap_err().to_string().contains("http://10.0.0.1:9200"));
    }

    #[test]
    fn what_is_no_fleet_is_refused_with_what_was_found_and_what_is_needed() {
        let three = ["c1", "c2", "c3"].map(|name| node(name, "127.0.0.1", Some(9200)));
        assert_eq!(fleet_of("u", &three).unwrap().len(), 3);
        let with = |other: ClientNode| [three[0].clone(), three[1].clone(), other];
        let refused = |nodes: &[ClientNode], says: &[&str]| {
            let why = fleet_of("u", nodes).unwrap_err().to_string();
            assert!(says.iter().all(|s| why.contains(s)), "{why}");
        };
        refused(&[], &["has 0 coordinating-only", "none", "needs 3"]);
        refused(&three[..2], &["has 2 coordinating-only", "c2 at 127.0.0.1:9200", "needs 3"]);
        refused(&with(node("c3", "172.18.0.3", Some(9200))), &["c3 at 172.18.0.3:9200", "loopback"]);
        refused(&with(node("c3", "127.0.0.1", None)), &["c3 (no HTTP port)", "loopback"]);
        refused(&with(node("c2", "127.0.0.1", Some(9201))), &["c2 at 127.0.0.1:9201", "no other has"]);
        refused(&with(node("../c3", "127.0.0.1", Some(9200))), &["../c3", "a name"]);
    }
}
