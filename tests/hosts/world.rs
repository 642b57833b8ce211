//! What the hosts of `tests/hosts/run` see of the world, on the machine's side of their bridge: a load balancer with its API,
//! health checks and traffic, instance metadata, two nodes that keep the fleet record, a pager's receiving end. Started by
//! that script: `hosts-world ADDRESS CONTROL_PORT NAME=ADDRESS…`; lives until its stdin ends.
#![allow(
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::arithmetic_side_effects,
    reason = "what fails here fails the test"
)]

#[path = "../support/index.rs"]
mod index;

use backstop::rehearse::data_plane::DataPlane;
use backstop::rehearse::elbv2::{Action, ApiError, Control, Elbv2, Fault, GroupSpec, HealthSpec, Trouble};
use backstop::rehearse::http::{self, Answer, Request, Response, Server, Service};
use backstop::rehearse::receiver::{Receiver, ReceiverControl, Reply};
use backstop::rehearse::traffic::{Traffic, TrafficControl, TrafficOptions};
use index::Little;
use serde_json::{Value, json};
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Where each part listens.
const API: u16 = 5000;
const METADATA: u16 = 1338;
const RECORD: [u16; 2] = [9201, 9202];
const PAGER: u16 = 8080;
const TRAFFIC: u16 = 8000;

/// Requests a second.
const RATE: u32 = 20;

/// A client node's host.
#[derive(Clone)]
struct Node {
    name: String,
    address: Ipv4Addr,
}

impl Node {
    /// The instance that metadata says it is.
    fn instance(address: Ipv4Addr) -> String {
        format!("i-{:017x}", 0xb_0000_u64 + u64::from(address.octets()[3]))
    }
}

/// Nothing but this machine and the hosts' own bridge: the parts have no locks on their doors.
fn allowed(address: Ipv4Addr) -> bool {
    address.is_loopback() || address.octets()[..3] == [10, 77, 0]
}

/// Instance metadata: who asks is known by where it asks from.
#[derive(Clone)]
struct Metadata;

impl Service for Metadata {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        let Ok(SocketAddr::V4(peer)) = stream.peer_addr() else { return };
        http::converse(stream, stop, |request| async move { Answer::Reply(metadata(&request, *peer.ip())) }).await;
    }
}

fn metadata(request: &Request, asks: Ipv4Addr) -> Response {
    let text = |body: String| Response::new(200, "text/plain", body);
    let credentials = json!({
        "Code": "Success", "Type": "AWS-HMAC", "LastUpdated": "2020-01-01T00:00:00Z", "Expiration": "2099-01-01T00:00:00Z",
        "AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "example", "Token": "example",
    });
    match (request.method.as_str(), request.path().trim_end_matches('/')) {
        ("PUT", "/latest/api/token") => text("token".into()).with("x-aws-ec2-metadata-token-ttl-seconds", "21600"),
        ("GET", "/latest/meta-data/instance-id") => text(Node::instance(asks)),
        ("GET", "/latest/meta-data/local-ipv4") => text(asks.to_string()),
        ("GET", "/latest/meta-data/iam/security-credentials") => text("node".into()),
        ("GET", "/latest/meta-data/iam/security-credentials/node") => Response::json(200, &credentials),
        _ => Response::new(404, "text/plain", "none"),
    }
}

/// A node that keeps the fleet record. Both are the same cluster, which may take no writes for a while.
#[derive(Clone)]
struct Data {
    little: Little,
    read_only: Arc<AtomicBool>,
}

impl Service for Data {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| async move { Answer::Reply(self.answer(&request)) }).await;
    }
}

impl Data {
    fn answer(&self, request: &Request) -> Response {
        let reads = request.method == "GET" || request.path().ends_with("_search");
        if !reads && self.read_only.load(Ordering::SeqCst) {
            return Response::json(503, &json!({"error": {"type": "cluster_block_exception"}, "status": 503}));
        }
        self.little.answer(request)
    }
}

/// What the script asks: `GET /state`; `POST /traffic` (from now on, counted anew), `/quiet` (none any more), `/refuse/WHAT` (an action of the
/// load balancer's API, `record` or `pager`), `/slow` (the load balancer takes its time both ways), `/mend` (all as it was).
#[derive(Clone)]
struct Ask {
    elbv2: Control,
    arn: String,
    nodes: Vec<Node>,
    receiver: ReceiverControl,
    data: SocketAddr,
    read_only: Arc<AtomicBool>,
    traffic: Arc<Mutex<Option<Traffic>>>,
    control: Arc<Mutex<Option<TrafficControl>>>,
}

impl Service for Ask {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| async move { Answer::Reply(self.answer(&request)) }).await;
    }
}

impl Ask {
    fn answer(&self, request: &Request) -> Response {
        match (request.method.as_str(), request.path()) {
            ("GET", "/state") => Response::json(200, &self.state()),
            ("POST", "/traffic") => {
                let options = TrafficOptions { rate_per_s: RATE, ..TrafficOptions::new(self.data) };
                let traffic = Traffic::start(options, self.elbv2.origin());
                *self.control.lock().unwrap() = Some(traffic.control());
                *self.traffic.lock().unwrap() = Some(traffic);
                Response::json(200, &json!({}))
            }
            ("POST", "/quiet") => {
                *self.traffic.lock().unwrap() = None;
                Response::json(200, &json!({}))
            }
            ("POST", "/slow") => {
                self.change(|group| (group.deregistration_delay_s, group.registration_lag_ms) = (20, 12_000))
            }
            ("POST", "/refuse/record") => {
                self.read_only.store(true, Ordering::SeqCst);
                Response::json(200, &json!({}))
            }
            ("POST", "/refuse/pager") => {
                self.receiver.answer_always(Reply::Status(503));
                Response::json(200, &json!({}))
            }
            ("POST", path) if path.starts_with("/refuse/") => {
                let action = Action::parse(path.trim_start_matches("/refuse/"));
                let throttled = Trouble::Error(ApiError::throttling());
                self.elbv2.inject(Fault::always(throttled).on(action));
                Response::json(200, &json!({"action": action.name()}))
            }
            ("POST", "/mend") => {
                self.elbv2.clear_faults();
                self.receiver.answer_always(Reply::Status(202));
                self.read_only.store(false, Ordering::SeqCst);
                self.change(|spec| *spec = group())
            }
            _ => Response::json(404, &json!({})),
        }
    }

    fn change(&self, change: impl FnOnce(&mut GroupSpec)) -> Response {
        let changed = self.elbv2.configure(&self.arn, change);
        Response::json(200, &json!({"changed": changed}))
    }

    fn state(&self) -> Value {
        let serving = self.elbv2.in_service(std::slice::from_ref(&self.arn));
        let names = self.nodes.iter().filter(|n| serving.contains(&Node::instance(n.address))).map(|n| n.name.as_str());
        let totals = self.control.lock().unwrap().as_ref().map(TrafficControl::totals).unwrap_or_default();
        let pages = self.receiver.received();
        json!({
            "arn": self.arn,
            "in_service": names.collect::<Vec<_>>(),
            "writes": self.elbv2.writes(),
            "answered": totals.ok,
            "failed": totals.failed(),
            "not_sent": totals.not_sent,
            "failures": totals.by_failure(),
            "pages": pages.iter().filter(|p| p.accepted).map(|p| p.body.clone()).collect::<Vec<_>>(),
        })
    }
}

fn group() -> GroupSpec {
    let health = HealthSpec { interval_s: 1, timeout_s: 1, healthy_threshold: 2, ..HealthSpec::default() };
    GroupSpec { health, deregistration_delay_s: 2, ..GroupSpec::new("es-clients") }
}

fn node(text: &str) -> Node {
    let (name, address) = text.split_once('=').expect("NAME=ADDRESS");
    Node { name: name.to_owned(), address: address.parse().expect("an address") }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [address, control, nodes @ ..] = args.as_slice() else {
        eprintln!("usage: hosts-world ADDRESS CONTROL_PORT NAME=ADDRESS...");
        return ExitCode::from(2);
    };
    let nodes: Vec<Node> = nodes.iter().map(|n| node(n)).collect();
    let address: Ipv4Addr = address.parse().expect("an address");
    for each in nodes.iter().map(|n| n.address).chain([address]) {
        assert!(allowed(each), "{each} is neither loopback nor in 10.77.0.0/24");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(live(address, control.parse().expect("a port"), nodes));
    runtime.shutdown_background();
    ExitCode::SUCCESS
}

async fn live(address: Ipv4Addr, control: u16, nodes: Vec<Node>) {
    let at = |port: u16| SocketAddr::new(IpAddr::V4(address), port);
    // Real time.
    let elbv2 = Elbv2::start(at(API), 1).await.unwrap();
    let arn = elbv2.control().add_group(group());
    for node in &nodes {
        let (instance, port) = (Node::instance(node.address), group().port);
        elbv2.control().declare_running(&instance, port, SocketAddr::new(IpAddr::V4(node.address), port));
        elbv2.control().register_behind_back(&arn, &instance, port);
    }
    let data_plane = DataPlane::start(at(TRAFFIC), elbv2.control(), &arn).await.unwrap();
    let receiver = Receiver::start(at(PAGER), elbv2.control().origin()).await.unwrap();
    let (little, read_only) = (Little::default(), Arc::<AtomicBool>::default());
    let mut servers = vec![Server::start(at(METADATA), Metadata).await.unwrap()];
    for port in RECORD {
        servers.push(
            Server::start(at(port), Data { little: little.clone(), read_only: read_only.clone() }).await.unwrap(),
        );
    }
    let ask = Ask {
        elbv2: elbv2.control(),
        arn,
        nodes,
        receiver: receiver.control(),
        data: data_plane.address(),
        read_only,
        traffic: Arc::default(),
        control: Arc::default(),
    };
    servers.push(Server::start(SocketAddr::from(([127, 0, 0, 1], control)), ask).await.unwrap());
    let (send, ended) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut buffer = [0_u8; 64];
        while matches!(std::io::stdin().read(&mut buffer), Ok(n) if n > 0) {}
        send.send(()).ok();
    });
    ended.await.ok();
}
