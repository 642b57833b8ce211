//! Constant traffic through the load balancer: open loop, so that a slow answer does not slow down the next request, and
//! every request ends in one known way.

use super::http::{Connection, Request};
use super::pace::{self, Origin, Task};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// What to send.
#[derive(Clone, Debug)]
pub struct TrafficOptions {
    /// The data plane.
    pub address: SocketAddr,
    /// Path and query of each request.
    pub path: String,
    /// Requests per real second; at least one.
    pub rate_per_s: u32,
    /// Of a hundred requests so many come on a connection of their own; the others share kept ones.
    pub fresh_percent: u32,
    /// A request that takes longer has failed (real milliseconds).
    pub timeout_ms: u64,
    /// At most so many at once. What would be one more is not sent, and counted apart.
    pub max_in_flight: usize,
    /// Width of a bucket of the timeline (simulated milliseconds).
    pub bucket_ms: u64,
}

impl TrafficOptions {
    /// 50 searches a second, half of them on fresh connections.
    pub fn new(address: SocketAddr) -> TrafficOptions {
        TrafficOptions {
            address,
            path: "/_search?size=0".to_owned(),
            rate_per_s: 50,
            fresh_percent: 50,
            timeout_ms: 10_000,
            max_in_flight: 512,
            bucket_ms: 1_000,
        }
    }
}

/// A request that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When it was sent: simulated milliseconds since the world's start.
    pub at_ms: u64,
    /// With what: `status 503`, `connection refused`, `timeout`, ...
    pub what: String,
    /// On a connection of its own, or on a kept one.
    pub fresh: bool,
}

/// A slice of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    /// Answered 2xx.
    pub ok: u64,
    /// Everything else.
    pub failed: u64,
}

/// What has happened so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that were sent and have ended.
    pub ended: u64,
    /// Of them answered 2xx.
    pub ok: u64,
    /// The others, in order of their end.
    pub failures: Vec<Failure>,
    /// Not sent because too many ran.
    pub not_sent: u64,
    /// By start of the bucket (simulated milliseconds).
    pub buckets: BTreeMap<u64, Bucket>,
}

impl Totals {
    /// How many failed.
    pub const fn failed(&self) -> usize {
        self.failures.len()
    }

    /// How often each failure happened.
    pub fn by_failure(&self) -> BTreeMap<&str, u64> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for failure in &self.failures {
            let count = counts.entry(failure.what.as_str()).or_default();
            *count = count.saturating_add(1);
        }
        counts
    }
}

/// The handle on running traffic.
#[derive(Clone, Debug)]
pub struct TrafficControl(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    options: TrafficOptions,
    origin: Origin,
    totals: Mutex<Totals>,
    kept: Mutex<Vec<Connection>>,
}

impl TrafficControl {
    /// The totals so far.
    pub fn totals(&self) -> Totals {
        pace::lock(&self.0.totals).clone()
    }
}

/// Running traffic.
#[derive(Debug)]
pub struct Traffic {
    control: TrafficControl,
    stop: watch::Sender<bool>,
    task: Task,
}

impl Traffic {
    /// Starts to send. `origin` is the world's clock.
    pub fn start(options: TrafficOptions, origin: Origin) -> Traffic {
        let control = TrafficControl(Arc::new(Shared {
            options,
            origin,
            totals: Mutex::new(Totals::default()),
            kept: Mutex::new(Vec::new()),
        }));
        let (stop, stopped) = watch::channel(false);
        let task = Task::start(send(control.clone(), stopped));
        Traffic { control, stop, task }
    }

    /// The handle.
    pub fn control(&self) -> TrafficControl {
        self.control.clone()
    }

    /// Sends no more, waits for what runs, and returns the totals.
    pub async fn stop(self) -> Totals {
        self.stop.send(true).ok();
        let longest = Duration::from_millis(self.control.0.options.timeout_ms.saturating_add(5_000));
        self.task.join(longest).await;
        self.control.totals()
    }
}

async fn send(control: TrafficControl, mut stopped: watch::Receiver<bool>) {
    let options = &control.0.options;
    let period = Duration::from_micros(1_000_000_u64.checked_div(u64::from(options.rate_per_s)).unwrap_or(1_000_000));
    let mut ticks = tokio::time::interval(period.max(Duration::from_micros(100)));
    // After a standstill of the machine the traffic goes on; it does not make up for it in one burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut running = JoinSet::new();
    let mut number = 0_u32;
    loop {
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            Some(_) = running.join_next() => continue,
            _ = ticks.tick() => {}
        }
        if running.len() >= options.max_in_flight {
            let mut totals = pace::lock(&control.0.totals);
            totals.not_sent = totals.not_sent.saturating_add(1);
            continue;
        }
        number = number.wrapping_add(37);
        // 37 and 100 have no common divisor: an even mixture without long runs of either kind.
        let fresh = number.checked_rem(100).unwrap_or(0) < options.fresh_percent;
        let control = control.clone();
        running.spawn(async move { control.request(fresh).await });
    }
    while running.join_next().await.is_some() {}
}

impl TrafficControl {
    async fn request(self, fresh: bool) {
        let shared = &self.0;
        let at_ms = shared.origin.simulated_ms();
        let limit = Duration::from_millis(shared.options.timeout_ms);
        let failed = match pace::within(limit, shared.ask(fresh)).await {
            Some(Ok(status)) if (200..300).contains(&status) => None,
            Some(Ok(status)) => Some(format!("status {status}")),
            Some(Err(e)) => Some(words(&e)),
            None => Some("timeout".to_owned()),
        };
        shared.note(at_ms, fresh, failed);
    }
}

impl Shared {
    async fn ask(&self, fresh: bool) -> io::Result<u16> {
        let mut request = Request::get(&self.options.path);
        request.keep_alive = !fresh;
        let kept = if fresh { None } else { pace::lock(&self.kept).pop() };
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::open(self.options.address).await?,
        };
        connection.write_request(&request, "search.rehearsal").await?;
        let (response, reusable) = connection.read_response("GET").await?;
        if !fresh && reusable {
            pace::lock(&self.kept).push(connection);
        }
        Ok(response.status)
    }

    fn note(&self, at_ms: u64, fresh: bool, failed: Option<String>) {
        let width = self.options.bucket_ms.max(1);
        let start = at_ms.saturating_sub(at_ms.checked_rem(width).unwrap_or(0));
        let mut totals = pace::lock(&self.totals);
        totals.ended = totals.ended.saturating_add(1);
        let bucket = totals.buckets.entry(start).or_default();
        match failed {
            None => {
                bucket.ok = bucket.ok.saturating_add(1);
                totals.ok = totals.ok.saturating_add(1);
            }
            Some(what) => {
                bucket.failed = bucket.failed.saturating_add(1);
                totals.failures.push(Failure { at_ms, what, fresh });
            }
        }
    }
}

fn words(error: &io::Error) -> String {
    let kind = error.kind();
    if kind == io::ErrorKind::ConnectionRefused {
        "connection refused".to_owned()
    } else if matches!(kind, io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe) {
        "connection reset".to_owned()
    } else {
        error.to_string()
    }
}
