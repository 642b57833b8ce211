//! The automation of the incident, without backstop, re-created honestly: it does what such scripts do, in the right order,
//! with a retry that knows the failures its author knew. It ends at the first one of another type, and nothing of it is
//! left that could put the node back.

use super::fleet::Machine;
use super::http::{self, Request};
use super::pace::{self, Origin};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// One try of its check may take so long (real): longer than a busy machine needs for an answer, since a timeout is one of
/// the failures it knows, and it would outlive the fault by it.
const TRY: Duration = Duration::from_secs(10);
/// Between two tries, simulated.
const EVERY_MS: u64 = 5_000;
/// So long it retries the failures it knows, simulated.
const RETRY_MS: u64 = 900_000;

/// One run of it.
#[derive(Debug)]
pub struct Automation<'a> {
    /// The load balancer's API.
    pub api: SocketAddr,
    /// The target group's ARN.
    pub group: &'a str,
    /// The node's machine.
    pub machine: &'a Machine,
    /// The world's clock.
    pub origin: Origin,
}

/// What its check knows how to deal with.
enum Tried {
    Ready,
    /// `except (ConnectionRefusedError, Timeout, ServiceUnavailable)`
    Known,
    /// Any other type.
    Unknown(String),
}

impl Automation<'_> {
    /// Deregister, wait, patch and restart, check, register. `say` hears each step.
    ///
    /// # Errors
    /// What it died of; the node stays as it is then.
    pub async fn run(&self, say: &(dyn Fn(&str) + Sync)) -> Result<(), String> {
        say("automation: deregisters its node");
        self.call("DeregisterTargets").await?;
        while !self.call("DescribeTargetHealth").await?.contains("Target.NotRegistered") {
            pace::sleep(self.origin.real(EVERY_MS)).await;
        }
        say("automation: drained; patches and restarts");
        self.machine.reboot().await;
        self.wait_until_ready().await?;
        say("automation: the node answers; registers it");
        self.call("RegisterTargets").await?;
        Ok(())
    }

    async fn wait_until_ready(&self) -> Result<(), String> {
        let start_ms = self.origin.simulated_ms();
        loop {
            match check(self.machine.address()).await {
                Tried::Ready => return Ok(()),
                Tried::Unknown(error) => return Err(format!("unhandled error in its check: {error}")),
                Tried::Known if self.origin.simulated_ms().saturating_sub(start_ms) > RETRY_MS => {
                    return Err("the node did not come up within 15 min".to_owned());
                }
                Tried::Known => pace::sleep(self.origin.real(EVERY_MS)).await,
            }
        }
    }

    async fn call(&self, action: &str) -> Result<String, String> {
        let targets = format!("Targets.member.1.Id={}", self.machine.instance());
        let port = self.machine.address().port();
        let group = self.group.replace(':', "%3A").replace('/', "%2F");
        let body =
            format!("Action={action}&Version=2015-12-01&TargetGroupArn={group}&{targets}&Targets.member.1.Port={port}");
        let request = Request {
            method: "POST".to_owned(),
            target: "/".to_owned(),
            headers: vec![("content-type".to_owned(), "application/x-www-form-urlencoded".to_owned())],
            body: body.into_bytes(),
            keep_alive: false,
        };
        let answer = http::once(self.api, &request).await.map_err(|e| format!("{action}: {e}"))?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        if answer.status == 200 { Ok(text) } else { Err(format!("{action}: status {}: {text}", answer.status)) }
    }
}

/// One try.
async fn check(address: SocketAddr) -> Tried {
    let request = Request { keep_alive: false, ..Request::get("/_cluster/health?timeout=0s") };
    match pace::within(TRY, http::once(address, &request)).await {
        None => Tried::Known,
        Some(Err(e)) if matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::TimedOut) => Tried::Known,
        Some(Err(e)) => Tried::Unknown(e.to_string()),
        Some(Ok(answer)) => match (answer.status, serde_json::from_slice::<serde_json::Value>(&answer.body)) {
            (200, Ok(_)) => Tried::Ready,
            (503, _) => Tried::Known,
            (200, Err(e)) => Tried::Unknown(format!("JSON: {e}")),
            (status, _) => Tried::Unknown(format!("status {status}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rehearse::node::{Node, NodeFacts, NodeOptions};
    use crate::rehearse::scenario::UNKNOWN_TO_AUTOMATION;

    #[tokio::test]
    async fn every_shape_of_the_incident_is_unknown_to_it() {
        let options = NodeOptions::joined("127.0.0.1:0".parse().unwrap(), NodeFacts::new("es-client-1"));
        let node = Node::start(options).await.unwrap();
        assert!(pace::until(Duration::from_secs(10), || node.control().is_joined()).await);
        assert!(matches!(check(node.address()).await, Tried::Ready));
        for shape in UNKNOWN_TO_AUTOMATION {
            node.control().set_shape(Some(shape));
            assert!(matches!(check(node.address()).await, Tried::Unknown(_)), "{shape}");
        }
    }

    #[tokio::test]
    async fn a_refused_connection_is_what_it_knows() {
        let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(matches!(check(gone).await, Tried::Known));
    }
}
