//! The traffic side: who gets requests, and what clients see when nobody can.

use super::{eventually, loopback};
use backstop::rehearse::data_plane::DataPlane;
use backstop::rehearse::elbv2::{Checks, Control, GroupSpec, Instance};
use backstop::rehearse::http::{self, Request};
use backstop::rehearse::node::{Node, NodeFacts, NodeOptions, View};
use backstop::rehearse::pace;
use backstop::rehearse::traffic::{Traffic, TrafficOptions};

struct Balanced {
    world: Control,
    arn: String,
    plane: DataPlane,
    nodes: Vec<Node>,
}

const IDS: [&str; 3] = ["i-1", "i-2", "i-3"];

async fn balanced(change: impl FnOnce(&mut GroupSpec)) -> Balanced {
    let world = Control::new(60);
    let mut spec = GroupSpec::new("es-clients");
    spec.health.interval_s = 5;
    "/_cluster/health".clone_into(&mut spec.health.path);
    change(&mut spec);
    let arn = world.add_group(spec);
    let mut nodes = Vec::new();
    for id in IDS {
        let node = Node::start(NodeOptions::joined(loopback(), NodeFacts::new(id))).await.unwrap();
        world.declare(id, Instance::Running);
        world.locate(id, 9200, node.address());
        world.register_behind_back(&arn, id, 9200);
        nodes.push(node);
    }
    let plane = DataPlane::start(loopback(), world.clone(), &arn).await.unwrap();
    Balanced { world, arn, plane, nodes }
}

impl Balanced {
    fn state(&self, id: &str) -> String {
        self.world.state_of(&self.arn, id, 9200).0
    }

    async fn all_healthy(&self) {
        eventually(|| self.world.in_service(std::slice::from_ref(&self.arn)).len() == 3).await;
    }

    async fn status(&self) -> u16 {
        let mut request = Request::get("/_search?size=0");
        request.keep_alive = false;
        http::once(self.plane.address(), &request).await.unwrap().status
    }

    fn sent_to(&self, id: &str) -> u64 {
        self.plane.control().counters().by_target.get(&(id.to_owned(), 9200)).copied().unwrap_or(0)
    }
}

#[tokio::test]
async fn real_checks_make_targets_healthy_and_requests_go_round() {
    let b = balanced(|_| {}).await;
    b.all_healthy().await;
    for _ in 0..9 {
        assert_eq!(b.status().await, 200);
    }
    assert_eq!(IDS.map(|id| b.sent_to(id)), [3, 3, 3]);
    assert_eq!(b.plane.control().counters().fail_open, 0);
}

#[tokio::test]
async fn no_request_fails_while_a_target_drains_stops_and_comes_back() {
    let mut b = balanced(|s| {
        s.deregistration_delay_s = 30;
        s.deregistration_traffic_lag_ms = 12_000;
    })
    .await;
    b.all_healthy().await;
    let mut options = TrafficOptions::new(b.plane.address());
    options.rate_per_s = 200;
    let traffic = Traffic::start(options, b.world.origin());
    b.world.deregister_behind_back(&b.arn, "i-1", 9200);
    assert_eq!(b.state("i-1"), "draining");
    eventually(|| b.state("i-1") == "unused").await;
    let (address, facts) = (b.nodes[0].address(), NodeFacts::new("i-1"));
    let before = b.sent_to("i-1");
    b.nodes.remove(0).stop().await;
    let mut restarted = NodeOptions::joined(address, facts);
    restarted.refused_ms = 300;
    let node = Node::start(restarted).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    assert_eq!(b.sent_to("i-1"), before, "nothing was sent to a target that is gone");
    b.world.register_behind_back(&b.arn, "i-1", 9200);
    b.all_healthy().await;
    eventually(|| b.sent_to("i-1") > before).await;
    let totals = traffic.stop().await;
    assert_eq!(totals.failures, []);
    assert!(totals.ok > 0 && totals.not_sent == 0, "{totals:?}");
}

#[tokio::test]
async fn requests_still_reach_a_deregistered_target_for_the_lag() {
    let b = balanced(|s| s.deregistration_traffic_lag_ms = 3_600_000).await;
    b.all_healthy().await;
    b.world.deregister_behind_back(&b.arn, "i-1", 9200);
    let before = b.sent_to("i-1");
    for _ in 0..6 {
        assert_eq!(b.status().await, 200);
    }
    assert_eq!(b.sent_to("i-1"), before + 2);
}

#[tokio::test]
async fn without_a_lag_a_deregistered_target_gets_nothing_new() {
    let b = balanced(|_| {}).await;
    b.all_healthy().await;
    b.world.deregister_behind_back(&b.arn, "i-1", 9200);
    for _ in 0..6 {
        assert_eq!(b.status().await, 200);
    }
    assert_eq!(b.sent_to("i-1"), 0);
}

#[tokio::test]
async fn a_request_that_runs_at_deregistration_and_at_the_nodes_stop_ends_well() {
    let mut b = balanced(|s| s.deregistration_delay_s = 0).await;
    b.all_healthy().await;
    for id in &IDS[1..] {
        b.world.deregister_behind_back(&b.arn, id, 9200);
    }
    // The node itself is slow: it must be restarted with that wish.
    let address = b.nodes[0].address();
    b.nodes.remove(0).stop().await;
    let mut slow = NodeOptions::joined(address, NodeFacts::new("i-1"));
    slow.search_ms = 1_500;
    let node = Node::start(slow).await.unwrap();
    eventually(|| node.control().is_joined()).await;
    let control = node.control();
    let request = Request::get("/_search");
    let (response, ()) = tokio::join!(http::once(b.plane.address(), &request), async {
        eventually(|| control.running() == 1).await;
        b.world.deregister_behind_back(&b.arn, "i-1", 9200);
        node.stop().await;
    });
    assert_eq!(response.unwrap().status, 200);
    assert_eq!(b.status().await, 503);
}

#[tokio::test]
async fn an_empty_group_is_503() {
    let b = balanced(|_| {}).await;
    b.world.empty_group(&b.arn);
    assert_eq!(b.status().await, 503);
    assert_eq!(b.plane.control().counters().no_target, 1);
}

#[tokio::test]
async fn with_no_healthy_target_it_fails_open_to_all_registered() {
    let b = balanced(|s| s.checks = Checks::Fail("Target.FailedHealthChecks")).await;
    eventually(|| IDS.iter().all(|id| b.state(id) == "unhealthy")).await;
    for _ in 0..3 {
        assert_eq!(b.status().await, 200, "the nodes are fine, only their checks are not");
    }
    assert_eq!(b.plane.control().counters().fail_open, 3);
    assert_eq!(IDS.map(|id| b.sent_to(id)), [1, 1, 1]);
}

#[tokio::test]
async fn a_dead_target_that_counts_as_healthy_is_502() {
    let mut b = balanced(|s| s.health.unhealthy_threshold = 100_000).await;
    b.all_healthy().await;
    b.nodes.remove(0).stop().await;
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(b.status().await);
    }
    answers.sort_unstable();
    assert_eq!(answers, [200, 200, 502]);
    assert_eq!(b.plane.control().counters().bad_gateway, 1);
}

#[tokio::test]
async fn failing_checks_take_a_target_out_and_passing_ones_bring_it_back() {
    let b = balanced(|s| s.health.healthy_threshold = 3).await;
    b.all_healthy().await;
    let control = b.nodes[0].control();
    control.set_view(Some(View::NotJoined));
    eventually(|| b.state("i-1") == "unhealthy").await;
    let reason = b.world.state_of(&b.arn, "i-1", 9200).1;
    assert_eq!(reason.as_deref(), Some("Target.ResponseCodeMismatch"));
    let checks = || b.plane.control().counters().checks.get(&("i-1".to_owned(), 9200)).copied().unwrap_or(0);
    let before = checks();
    control.set_view(None);
    b.all_healthy().await;
    assert!(checks() >= before + 3, "the threshold holds for a target that was unhealthy");
    assert_eq!(b.status().await, 200);
}

#[tokio::test]
async fn a_refused_port_and_a_silent_one_are_different_reasons() {
    let mut b = balanced(|_| {}).await;
    b.all_healthy().await;
    b.nodes[1].control().set_view(Some(View::FrozenMaster));
    b.nodes.remove(0).stop().await;
    eventually(|| b.state("i-1") == "unhealthy" && b.state("i-2") == "unhealthy").await;
    assert_eq!(b.world.state_of(&b.arn, "i-1", 9200).1.as_deref(), Some("Target.FailedHealthChecks"));
    assert_eq!(b.world.state_of(&b.arn, "i-2", 9200).1.as_deref(), Some("Target.Timeout"));
}

#[tokio::test]
async fn a_kept_connection_outlives_the_target_that_served_it() {
    let b = balanced(|s| s.deregistration_delay_s = 0).await;
    b.all_healthy().await;
    let mut connection = http::Connection::open(b.plane.address()).await.unwrap();
    for n in 0..4_usize {
        connection.write_request(&Request::get("/"), "x").await.unwrap();
        let (response, reusable) = connection.read_response("GET").await.unwrap();
        assert_eq!((response.status, reusable), (200, true), "request {n}");
        if let Some(id) = IDS.get(n).filter(|_| n < 2) {
            b.world.deregister_behind_back(&b.arn, id, 9200);
        }
    }
    assert!(pace::within(super::BOUND, b.plane.stop()).await.is_some(), "an idle client does not hold up a stop");
}
