//! A real Alertmanager: three agents that see the same thing make one alert, and it ends.

use backstop::alerts::alertmanager::Alertmanager;
use backstop::alerts::text::{Context, render};
use backstop::clock::{Clock, SystemClock};
use backstop::core::alert::{Book, Delivered, Sink};
use backstop::core::error::Jitter;
use backstop::core::finding::{Finding, Kind, Report};
use backstop::core::ids::InstanceId;
use backstop::core::page::Severity;
use backstop::core::time::Now;
use backstop::ports::PageSink;
use backstop::rehearse::pace;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Manager {
    port: u16,
    child: Child,
    _dir: tempfile::TempDir,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Manager {
    /// Debian's own, from PATH, on a free loopback port.
    async fn start() -> Manager {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("alertmanager.yml");
        let text = b"route:\n  receiver: none\nreceivers:\n- name: none\n";
        std::io::Write::write_all(&mut std::fs::File::create(&config).unwrap(), text).unwrap();
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let child = Command::new("prometheus-alertmanager")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.path={}", dir.path().display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .arg("--cluster.listen-address=")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus-alertmanager is installed");
        let manager = Manager { port, child, _dir: dir };
        let up = pace::until(Duration::from_secs(60), || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()).await;
        assert!(up, "it did not come up");
        manager
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Subjects of what is active, as it says itself.
    async fn active(&self) -> Vec<String> {
        let url = reqwest::Url::parse(&format!("{}/api/v2/alerts?active=true", self.url())).unwrap();
        let client = backstop::http_client::builder(&url, Duration::from_secs(30)).no_proxy().build().unwrap();
        let text = client.get(url).send().await.unwrap().text().await.unwrap();
        let alerts: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
        alerts.iter().map(|a| a["labels"]["subject"].as_str().unwrap().to_owned()).collect()
    }
}

/// One agent: its book, and the sink that every agent has.
struct Agent {
    node: String,
    book: Book,
    sink: Alertmanager,
}

impl Agent {
    fn new(n: u32, url: &str, now: &Now) -> Agent {
        let node = format!("es-client-{n}");
        let sink = Alertmanager::new(url, 5_000, None).unwrap();
        let mut book = Book::new("f".into(), InstanceId(format!("i-{n}").into()), node.as_str().into());
        book.started(now);
        book.sinks(vec![Sink { name: sink.name().into(), dedups: sink.dedups(), renew_ms: sink.renew_ms() }]);
        Agent { node, book, sink }
    }

    /// One look, and all that is due after it. The times of the page are real: the server compares them with its clock.
    async fn look(&mut self, findings: Vec<Finding>, now: &Now) {
        self.book.look(&Report::complete(&self.node, findings), now);
        let real = SystemClock::new().unwrap().now().wall_ms;
        for d in self.book.due(now) {
            let context = Context {
                fleet: "f".to_owned(),
                node: self.node.clone(),
                in_service: None,
                members: None,
                floor: 2,
                targets: Vec::new(),
                now_ms: real,
                doing: None,
                listed: Vec::new(),
                missing: Vec::new(),
            };
            let rendered = render(d.of(&self.book).unwrap(), &d, &context);
            self.book.begin(&d, now);
            self.sink.deliver(&rendered).await.unwrap();
            self.book.result(&d, &Delivered::Accepted, now, Jitter(0));
        }
    }
}

#[tokio::test]
#[ignore = "needs prometheus-alertmanager (apt)"]
async fn three_agents_make_one_alert_of_each_key_in_a_real_alertmanager_and_it_ends() {
    let manager = Manager::start().await;
    let start = SystemClock::new().unwrap().now();
    let mut agents: Vec<Agent> = (1..=3).map(|n| Agent::new(n, &manager.url(), &start)).collect();
    let found = |kind, subject: &str| Finding {
        kind,
        subject: subject.into(),
        severity: Severity::Critical,
        sentence: "so".into(),
    };
    let both = || vec![found(Kind::ForeignTarget, "i-9:9200"), found(Kind::AgentSilent, "es-client-4")];
    for agent in &mut agents {
        agent.look(both(), &start).await;
    }
    let mut active = manager.active().await;
    active.sort();
    assert_eq!(active, ["es-client-4", "i-9:9200"], "one each, though three have told it");
    for n in 1..=6 {
        for agent in &mut agents {
            agent.look(vec![found(Kind::AgentSilent, "es-client-4")], &start.plus(n * 15_000)).await;
        }
    }
    let mut left = manager.active().await;
    for _ in 0..100 {
        if left.len() == 1 {
            break;
        }
        tokio::time::timeout(Duration::from_millis(100), std::future::pending::<()>()).await.unwrap_err();
        left = manager.active().await;
    }
    assert_eq!(left, ["es-client-4"], "what is over has ended, and nothing else");
}
