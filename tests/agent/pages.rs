//! Delivery of pages: each by itself, whatever becomes of the others.

use crate::fakes::{Fake, ME};
use crate::running::{FLOOR, config};
use backstop::agent::alerts::deliver;
use backstop::agent::shared::{NodeView, Parts, Shared};
use backstop::agent::supervisor::{Task, spawn};
use backstop::agent::turn::Request;
use backstop::alerts::Rendered;
use backstop::core::cycle::{Durable, Seen};
use backstop::core::error::{Class, Fault, RETRY_AFTER_MAX_MS};
use backstop::core::ids::InstanceId;
use backstop::core::page::{self, PageKind, Severity};
use backstop::fleet::Fleet;
use backstop::host::identity::InstanceIdentity;
use backstop::ports::{BoxFuture, PageSink};
use backstop::state::fault::FaultDisk;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;

/// What a page's message asks this sink to do.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<String>>>);

impl PageSink for Sink {
    fn name(&self) -> &'static str {
        "test"
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        let why = page.text.lines().find_map(|l| l.strip_prefix("Why")).unwrap_or_default().trim().to_owned();
        self.0.lock().unwrap().push(why.clone());
        Box::pin(async move {
            match why.as_str() {
                "accept" => Ok(()),
                "panic" => panic!("as asked for"),
                "hang" => std::future::pending().await,
                "later" => Err(Fault { retry_after_ms: Some(86_400_000), ..Fault::new(Class::Throttled, "later") }),
                _ => Err(Fault::transport("never")),
            }
        })
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async { Ok(()) })
    }
}

/// The delivery of one agent, with a loop that does nothing but keep pages and forget accepted ones.
struct World {
    fake: Fake,
    sink: Sink,
    shared: Arc<Shared<Fake>>,
    queue: mpsc::Receiver<Request>,
    _task: Task<()>,
}

impl World {
    fn start() -> World {
        let (fake, sink) = (Fake::new(), Sink::default());
        let (config, _) = backstop::config::parse("test.toml", config(&fake, FLOOR).as_bytes(), "es-client-1").unwrap();
        let view = NodeView { durable: Durable::new(InstanceId(ME.into())), seen: Seen::default(), unstored: None };
        let parts = Parts {
            config,
            problem: None,
            warnings: Vec::new(),
            balancer: fake.clone(),
            check: fake.clone(),
            fleet: Fleet::new(fake.clone(), "test".into()),
            jobs: fake.clone(),
            host: fake.clone(),
            sinks: vec![Box::new(sink.clone())],
        };
        let identity = InstanceIdentity { instance_id: ME.into(), local_ipv4: None };
        let disk = Arc::new(FaultDisk::new(&fake.files));
        let shared = Arc::new(Shared::new(parts, identity, fake.clock.clone(), disk, view));
        let (send, queue) = mpsc::channel(16);
        let task = spawn(deliver(shared.clone(), send));
        World { fake, sink, shared, queue, _task: task }
    }

    fn change(&self, change: impl FnOnce(&mut Durable)) {
        self.shared.node.send_modify(|view| {
            let mut next = NodeView::clone(view);
            change(&mut next.durable);
            *view = Arc::new(next);
        });
    }

    fn raise(&self, message: &str) {
        let raised = backstop::clock::Clock::now(&self.fake.clock);
        self.change(|durable| {
            let page = page::about_cycle(durable, PageKind::AgentFault, Severity::Critical, message.into(), &raised);
            page::raise(durable, page);
        });
    }

    /// The next accepted page, which is forgotten then.
    async fn accepted(&mut self) {
        let next = tokio::time::timeout(Duration::from_secs(20), self.queue.recv());
        match next.await.expect("a page is accepted") {
            Some(Request::PageAccepted(seq)) => self.change(|d| d.pages.retain(|p| p.seq != seq)),
            _ => panic!("nothing but accepted pages is told to the loop"),
        }
    }

    fn tries(&self, of: &str) -> usize {
        self.sink.0.lock().unwrap().iter().filter(|why| *why == of).count()
    }

    /// Waits for a try in real time; the controlled clock stands still.
    async fn tried(&self, of: &str, times: usize) {
        for _ in 0..20_000 {
            if self.tries(of) >= times {
                return;
            }
            tokio::time::timeout(Duration::from_millis(1), std::future::pending::<()>()).await.unwrap_err();
        }
        panic!("{of} was tried {} times, not {times}", self.tries(of));
    }

    /// Everything that can happen at this time has happened: a page raised last was sent after all else that was due.
    async fn calm(&mut self) {
        self.raise("accept");
        self.accepted().await;
    }
}

#[tokio::test]
async fn a_page_waits_for_no_other_one_that_hangs_panics_or_is_refused() {
    let mut w = World::start();
    for stuck in ["hang", "panic", "never", "later"] {
        w.raise(stuck);
        w.tried(stuck, 1).await;
    }
    // The clock stands still: whoever waited for a pace of the others would wait for ever.
    w.calm().await;
    let left: Vec<String> = w.shared.node.borrow().durable.pages.iter().map(|p| p.message.to_string()).collect();
    assert_eq!(left, ["hang", "panic", "never", "later"], "and none of them is forgotten");
}

#[tokio::test]
async fn a_page_whose_delivery_panicked_is_tried_again_and_so_is_a_refused_one() {
    let mut w = World::start();
    for stuck in ["panic", "never"] {
        w.raise(stuck);
        w.tried(stuck, 1).await;
    }
    for times in 2..=4 {
        w.calm().await;
        w.fake.clock.advance(60_000);
        w.tried("panic", times).await;
        w.tried("never", times).await;
    }
}

#[tokio::test]
async fn a_sink_that_asks_to_be_left_alone_for_a_day_is_left_alone_for_minutes() {
    let mut w = World::start();
    w.raise("later");
    w.tried("later", 1).await;
    w.calm().await;
    w.fake.clock.advance(RETRY_AFTER_MAX_MS - 1);
    w.calm().await;
    assert_eq!(w.tries("later"), 1, "Retry-After is honoured");
    w.fake.clock.advance(1);
    w.tried("later", 2).await;
}
