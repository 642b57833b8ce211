//! The traffic side of the load balancer: an HTTP/1.1 proxy in front of one target group, and the group's health checks.
//!
//! Like an application load balancer it retries nothing, fails open when no target is healthy, answers 503 for an empty
//! group and 502 for a target that refuses or breaks off. Requests that run when a target is deregistered run to their end.

use super::elbv2::{CheckJob, CheckResult, Control, Key};
use super::http::{self, Answer, Connection, Request, Response, Server, Service};
use super::pace::{self, Task};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Real time a target has for its answer before the client gets a 504.
const TARGET_LIMIT: Duration = Duration::from_mins(1);
/// Real time a target has to accept a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How often the checker looks for checks that are due (real).
const CHECK_TICK: Duration = Duration::from_millis(10);

/// What went through so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that were read.
    pub requests: u64,
    /// Answers of targets that were passed on, whatever their status.
    pub passed_on: u64,
    /// 503: no target in the group.
    pub no_target: u64,
    /// 502: the target refused, reset, or broke off.
    pub bad_gateway: u64,
    /// 504: the target did not answer in time.
    pub gateway_timeout: u64,
    /// Requests that went to a target because none is healthy.
    pub fail_open: u64,
    /// Requests by target.
    pub by_target: BTreeMap<Key, u64>,
    /// Requests that run now, by target.
    pub in_flight: BTreeMap<Key, u64>,
    /// Health checks by target.
    pub checks: BTreeMap<Key, u64>,
}

/// The handle on a data plane.
#[derive(Clone, Debug, Default)]
pub struct DataPlaneControl(Arc<Mutex<Counters>>);

impl DataPlaneControl {
    /// The counters now.
    pub fn counters(&self) -> Counters {
        pace::lock(&self.0).clone()
    }

    fn count(&self, change: impl FnOnce(&mut Counters)) {
        change(&mut pace::lock(&self.0));
    }
}

/// A running data plane.
#[derive(Debug)]
pub struct DataPlane {
    server: Server,
    control: DataPlaneControl,
    _checker: Task,
}

impl DataPlane {
    /// Serves one group of the load balancer's world on `address` (port 0: a free one), and checks its targets.
    pub async fn start(address: SocketAddr, elbv2: Control, group: &str) -> io::Result<DataPlane> {
        let control = DataPlaneControl::default();
        let proxy = Proxy { elbv2: elbv2.clone(), group: group.into(), control: control.clone() };
        let server = Server::start(address, proxy).await?;
        let checker = Task::start(check_health(elbv2, group.to_owned(), control.clone()));
        Ok(DataPlane { server, control, _checker: checker })
    }

    /// Where clients connect.
    pub const fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// The handle.
    pub fn control(&self) -> DataPlaneControl {
        self.control.clone()
    }

    /// Lets running requests end, and is gone.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

/// Only the health checks of a group, without a listener: for a group whose traffic nobody looks at.
#[derive(Debug)]
pub struct HealthChecker(#[expect(dead_code, reason = "held for its end")] Task);

impl HealthChecker {
    /// Starts to check the group's targets.
    pub fn start(elbv2: Control, group: &str) -> HealthChecker {
        HealthChecker(Task::start(check_health(elbv2, group.to_owned(), DataPlaneControl::default())))
    }
}

#[derive(Clone)]
struct Proxy {
    elbv2: Control,
    group: Arc<str>,
    control: DataPlaneControl,
}

impl Service for Proxy {
    async fn serve(&self, stream: TcpStream, stop: watch::Receiver<bool>) {
        http::converse(stream, stop, |request| async move { Answer::Reply(self.forward(&request).await) }).await;
    }
}

impl Proxy {
    async fn forward(&self, request: &Request) -> Response {
        self.control.count(|c| c.requests = c.requests.saturating_add(1));
        let Some(pick) = self.elbv2.pick(&self.group) else {
            self.control.count(|c| c.no_target = c.no_target.saturating_add(1));
            return own_page(503);
        };
        self.control.count(|c| {
            add(&mut c.by_target, &pick.target);
            c.fail_open = c.fail_open.saturating_add(u64::from(pick.fail_open));
        });
        let _running = InFlight::new(&self.control, &pick.target);
        let asked = async {
            let address = pick.address.ok_or_else(|| io::Error::from(io::ErrorKind::HostUnreachable))?;
            ask(address, request).await
        };
        match pace::within(TARGET_LIMIT, asked).await {
            Some(Ok(response)) => {
                self.control.count(|c| c.passed_on = c.passed_on.saturating_add(1));
                cleaned(response)
            }
            Some(Err(_)) => {
                self.control.count(|c| c.bad_gateway = c.bad_gateway.saturating_add(1));
                own_page(502)
            }
            None => {
                self.control.count(|c| c.gateway_timeout = c.gateway_timeout.saturating_add(1));
                own_page(504)
            }
        }
    }
}

fn add(map: &mut BTreeMap<Key, u64>, key: &Key) {
    let count = map.entry(key.clone()).or_default();
    *count = count.saturating_add(1);
}

/// Counts a request to a target for as long as it lives, however it ends.
struct InFlight<'a>(&'a DataPlaneControl, &'a Key);

impl<'a> InFlight<'a> {
    fn new(control: &'a DataPlaneControl, key: &'a Key) -> InFlight<'a> {
        control.count(|c| add(&mut c.in_flight, key));
        InFlight(control, key)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.count(|c| {
            if let Some(n) = c.in_flight.get_mut(self.1) {
                *n = n.saturating_sub(1);
            }
        });
    }
}

/// One request to a target, on a connection of its own: a kept one could belong to a node that is gone since.
async fn ask(address: SocketAddr, request: &Request) -> io::Result<Response> {
    let connecting = pace::within(CONNECT_LIMIT, Connection::open(address)).await;
    let mut connection = connecting.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))?;
    let mut forwarded = request.clone();
    forwarded.keep_alive = false;
    let host = request.header("host").unwrap_or_default().to_owned();
    connection.write_request(&forwarded, &host).await?;
    connection.read_response(&request.method).await.map(|(response, _)| response)
}

/// Without the headers that belong to one connection.
fn cleaned(mut response: Response) -> Response {
    response.headers.retain(|(name, _)| {
        !matches!(name.as_str(), "connection" | "content-length" | "transfer-encoding" | "keep-alive")
    });
    response
}

fn own_page(status: u16) -> Response {
    let title = format!("{status} {}", http::reason(status));
    let page =
        format!("<html><head><title>{title}</title></head><body><center><h1>{title}</h1></center></body></html>");
    Response::new(status, "text/html", page).with("server", "awselb/2.0")
}

async fn check_health(elbv2: Control, group: String, control: DataPlaneControl) {
    let mut running = JoinSet::new();
    loop {
        for job in elbv2.due_checks(&group) {
            control.count(|c| add(&mut c.checks, &job.target));
            let elbv2 = elbv2.clone();
            running.spawn(async move {
                let result = check(&job).await;
                elbv2.checked(&job, result);
            });
        }
        pace::sleep(CHECK_TICK).await;
        while running.try_join_next().is_some() {}
    }
}

async fn check(job: &CheckJob) -> CheckResult {
    let Some(address) = job.address else { return CheckResult::Timeout };
    let asked = async {
        let Some(path) = &job.http_path else {
            return TcpStream::connect(address).await.map(|_| true);
        };
        let mut request = Request::get(path);
        request.keep_alive = false;
        request.headers.push(("user-agent".to_owned(), "ELB-HealthChecker/2.0".to_owned()));
        let response = http::once(address, &request).await?;
        Ok(matches(&job.matcher, response.status))
    };
    match pace::within(job.timeout, asked).await {
        Some(Ok(true)) => CheckResult::Pass,
        Some(Ok(false)) => CheckResult::CodeMismatch,
        Some(Err(_)) => CheckResult::Failed,
        None => CheckResult::Timeout,
    }
}

/// `200`, `200,202`, `200-299`
fn matches(matcher: &str, status: u16) -> bool {
    matcher.split(',').any(|part| {
        let (low, high) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        matches!((low.parse::<u16>(), high.parse::<u16>()), (Ok(low), Ok(high)) if (low..=high).contains(&status))
    })
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_matcher_takes_codes_and_ranges() {
        for (matcher, status, expected) in [
            ("200", 200, true),
            ("200", 201, false),
            ("200,202-204", 203, true),
            ("200,202-204", 201, false),
            ("200-299", 299, true),
            ("nonsense", 200, false),
        ] {
            assert_eq!(matches(matcher, status), expected, "{matcher} {status}");
        }
    }
}
