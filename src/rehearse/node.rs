//! A coordinating-only search node, seen through its HTTP port: refused while it starts, then (if asked for) failing in a
//! way that nobody was told about, then open but not joined, then joined.

mod answers;
mod args;

pub use answers::{Colour, NodeFacts, PeerFacts, View};
pub use args::{MACHINE, keeper, parse, run_node_args, to_args};

use super::http::{self, Answer, End, Request, Server, Service};
use super::pace::{self, Task};
use super::shapes::{Moment, Shape};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::Instant;

/// How a node starts. All times are real milliseconds.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Where it listens (port 0: a free one).
    pub address: SocketAddr,
    /// Who it is.
    pub facts: NodeFacts,
    /// The port is not bound for so long.
    pub refused_ms: u64,
    /// Then every connection fails in this way ...
    pub shape: Option<Shape>,
    /// ... for so long; `None`: for ever.
    pub shape_ms: Option<u64>,
    /// Then it is open, but not joined, for so long.
    pub not_joined_ms: u64,
    /// A search takes so long.
    pub search_ms: u64,
}

impl NodeOptions {
    /// A node that is joined at once.
    pub fn joined(address: SocketAddr, facts: NodeFacts) -> NodeOptions {
        NodeOptions { address, facts, refused_ms: 0, shape: None, shape_ms: None, not_joined_ms: 0, search_ms: 0 }
    }
}

#[derive(Debug)]
struct Shared {
    facts: NodeFacts,
    opened_at: Option<Instant>,
    shape_until: Option<Instant>,
    joined_at: Option<Instant>,
    shape: Option<Shape>,
    view: Option<View>,
    search_ms: u64,
    requests: u64,
    running: u64,
}

/// The handle on a node.
#[derive(Clone, Debug)]
pub struct NodeControl(Arc<Mutex<Shared>>);

impl NodeControl {
    /// From now on every connection fails in this way; `None`: no longer.
    pub fn set_shape(&self, shape: Option<Shape>) {
        let mut shared = pace::lock(&self.0);
        shared.shape = shape;
        shared.shape_until = None;
    }

    /// From now on it has this view of the cluster; `None`: what its start says.
    pub fn set_view(&self, view: Option<View>) {
        pace::lock(&self.0).view = view;
    }

    /// Changes who it is and what it says.
    pub fn change(&self, change: impl FnOnce(&mut NodeFacts)) {
        change(&mut pace::lock(&self.0).facts);
    }

    /// Is the port open?
    pub fn is_open(&self) -> bool {
        pace::lock(&self.0).opened_at.is_some()
    }

    /// Does it answer as a joined node now?
    pub fn is_joined(&self) -> bool {
        let shared = pace::lock(&self.0);
        shared.opened_at.is_some() && shared.shape_now().is_none() && shared.view_now() == View::Joined
    }

    /// Requests read so far.
    pub fn requests(&self) -> u64 {
        pace::lock(&self.0).requests
    }

    /// Requests that run now.
    pub fn running(&self) -> u64 {
        pace::lock(&self.0).running
    }

    fn shape_now(&self) -> Option<Shape> {
        pace::lock(&self.0).shape_now()
    }
}

impl Shared {
    fn shape_now(&self) -> Option<Shape> {
        let over = self.shape_until.is_some_and(|until| pace::now() >= until);
        self.shape.filter(|_| !over)
    }

    fn view_now(&self) -> View {
        let joined = self.joined_at.is_some_and(|at| pace::now() >= at);
        self.view.unwrap_or(if joined { View::Joined } else { View::NotJoined })
    }

    /// The start-up clock begins when the port opens.
    fn open(&mut self, options: &NodeOptions) {
        let now = pace::now();
        self.opened_at = Some(now);
        let mut joined_at = now;
        if self.shape.is_some() {
            self.shape_until = options.shape_ms.map(|ms| pace::after(now, Duration::from_millis(ms)));
            joined_at = self.shape_until.unwrap_or(now);
        }
        self.joined_at = Some(pace::after(joined_at, Duration::from_millis(options.not_joined_ms)));
    }
}

/// A node inside this process.
#[derive(Debug)]
pub struct Node {
    address: SocketAddr,
    control: NodeControl,
    stop: watch::Sender<bool>,
    task: Task,
}

impl Node {
    /// Starts one. The address is known at once, also while connections to it are refused.
    pub async fn start(mut options: NodeOptions) -> io::Result<Node> {
        if options.address.port() == 0 {
            // Found and given back: refused until it is bound again.
            options.address = TcpListener::bind(options.address).await?.local_addr()?;
        }
        options.facts.address = options.address;
        let control = NodeControl(Arc::new(Mutex::new(Shared {
            facts: options.facts.clone(),
            opened_at: None,
            shape_until: None,
            joined_at: None,
            shape: options.shape,
            view: None,
            search_ms: options.search_ms,
            requests: 0,
            running: 0,
        })));
        let (stop, stopped) = watch::channel(false);
        let address = options.address;
        let task = Task::start(live(options, control.clone(), stopped));
        Ok(Node { address, control, stop, task })
    }

    /// Where it listens, or will.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// The handle.
    pub fn control(&self) -> NodeControl {
        self.control.clone()
    }

    /// As on SIGTERM: no new connection, running requests end, then it is gone.
    pub async fn stop(self) {
        self.stop.send(true).ok();
        self.task.join(Duration::from_secs(15)).await;
    }
}

/// A node as a process of its own: starts it and lives until SIGTERM or SIGINT.
pub async fn run_node(options: NodeOptions) -> io::Result<()> {
    let node = Node::start(options).await?;
    told_to_end().await?;
    node.stop().await;
    Ok(())
}

/// SIGTERM or SIGINT.
async fn told_to_end() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

async fn live(options: NodeOptions, control: NodeControl, mut stop: watch::Receiver<bool>) {
    tokio::select! {
        () = pace::sleep(Duration::from_millis(options.refused_ms)) => {}
        () = http::stopping(&mut stop) => return,
    }
    let server = loop {
        match Server::start(options.address, control.clone()).await {
            Ok(server) => break server,
            // The one before may still be ending.
            Err(_) => pace::sleep(Duration::from_millis(20)).await,
        }
        if *stop.borrow() {
            return;
        }
    };
    pace::lock(&control.0).open(&options);
    http::stopping(&mut stop).await;
    server.stop().await;
    pace::lock(&control.0).opened_at = None;
}

impl Service for NodeControl {
    async fn serve(&self, mut stream: TcpStream, stop: watch::Receiver<bool>) {
        let early = self.shape_now().filter(|s| s.moment() != Moment::Request);
        if let Some(shape) = early {
            if shape.moment() == Moment::FirstBytes {
                let mut first = [0_u8; 1024];
                let mut stop = stop.clone();
                tokio::select! {
                    _ = stream.read(&mut first) => {}
                    () = http::stopping(&mut stop) => return,
                }
            }
            http::end_with(stream, shape.spoil(&http::Response::default(), "/"), stop).await;
            return;
        }
        http::converse(stream, stop, |request| self.handle(request)).await;
    }
}

impl NodeControl {
    async fn handle(&self, request: Request) -> Answer {
        let (facts, view, shape, search_ms) = {
            let mut shared = pace::lock(&self.0);
            shared.requests = shared.requests.saturating_add(1);
            shared.running = shared.running.saturating_add(1);
            (shared.facts.clone(), shared.view_now(), shared.shape_now(), shared.search_ms)
        };
        let _running = Running(self);
        if search_ms > 0 && request.path().ends_with("/_search") {
            pace::sleep(Duration::from_millis(search_ms)).await;
        }
        match (shape, facts.answer(view, &request)) {
            (Some(Shape::NotJoined), _) => facts.answer(View::NotJoined, &request).map_or_else(never, Answer::Reply),
            (Some(shape), right) => shape.spoil(&right.unwrap_or_default(), &request.target),
            (None, Some(right)) => Answer::Reply(right),
            (None, None) => never(),
        }
    }
}

fn never() -> Answer {
    Answer::Raw(Vec::new(), End::Stall)
}

/// Counts a request for as long as it runs.
struct Running<'a>(&'a NodeControl);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut shared = pace::lock(&self.0.0);
        shared.running = shared.running.saturating_sub(1);
    }
}
