//! The instance metadata service.

use crate::support::wire::{Wire, raw, reply, waits};
use backstop::core::error::{Class, Fault};
use backstop::host::identity::{InstanceIdentity, Metadata, MetadataSettings};
use backstop::rehearse::http::{Answer, End, Request, Response};
use std::time::Duration;

fn metadata(url: &str) -> Metadata {
    with_timeouts(url, 10_000, 20_000)
}

fn with_timeouts(url: &str, io_timeout_ms: u64, total_timeout_ms: u64) -> Metadata {
    let settings = MetadataSettings { endpoint_url: Some(url.into()), io_timeout_ms, total_timeout_ms };
    Metadata::new(&settings).expect("a URL")
}

async fn identity(metadata: &Metadata) -> Result<InstanceIdentity, Fault> {
    tokio::time::timeout(Duration::from_secs(50), metadata.identity(None)).await.expect("ends within its deadline")
}

/// An instance that is in an Auto Scaling group.
fn instance(request: &Request) -> Answer {
    if request.method == "PUT" && request.path() == "/latest/api/token" {
        let token = Response::new(200, "text/plain", "token").with("x-aws-ec2-metadata-token-ttl-seconds", "21600");
        return Answer::Reply(token);
    }
    if request.header("x-aws-ec2-metadata-token") != Some("token") {
        return reply(401, "");
    }
    match request.path() {
        "/latest/meta-data/instance-id" => reply(200, "i-0123456789abcdef0"),
        "/latest/meta-data/local-ipv4" => reply(200, "10.0.0.7"),
        "/latest/meta-data/autoscaling/target-lifecycle-state" => reply(200, "InService"),
        _ => reply(404, "<html>not found</html>"),
    }
}

async fn instance_but(path: &'static str, answer: Answer) -> Wire {
    Wire::answering(move |r| if r.path() == path { answer.clone() } else { instance(r) }).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_knows_its_id_address_and_lifecycle() {
    let server = Wire::answering(instance).await;
    let m = metadata(&server.url());
    let want = InstanceIdentity { instance_id: "i-0123456789abcdef0".into(), local_ipv4: Some([10, 0, 0, 7].into()) };
    assert_eq!(identity(&m).await, Ok(want));
    assert_eq!(m.lifecycle().await, Ok(Some("InService".into())));
    assert_eq!(m.termination_notice().await, Ok(false));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_termination_notice_comes_from_the_group_or_from_spot() {
    let leaving = "/latest/meta-data/autoscaling/target-lifecycle-state";
    let server = instance_but(leaving, reply(200, "Terminated")).await;
    assert_eq!(metadata(&server.url()).termination_notice().await, Ok(true));
    let notice = r#"{"action": "terminate", "time": "2026-01-01T00:00:00Z"}"#;
    let server = instance_but("/latest/meta-data/spot/instance-action", reply(200, notice)).await;
    assert_eq!(metadata(&server.url()).termination_notice().await, Ok(true));
    let server = instance_but(leaving, reply(404, "")).await;
    assert_eq!(metadata(&server.url()).lifecycle().await, Ok(None), "in no Auto Scaling group");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_stated_in_the_config_is_believed_without_a_question() {
    let stated = InstanceIdentity { instance_id: "i-1".into(), local_ipv4: None };
    let m = metadata("http://127.0.0.1:1");
    assert_eq!(m.identity(Some(&stated)).await, Ok(stated));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_fails_is_a_fault_within_its_deadline_and_never_an_identity() {
    let id = "/latest/meta-data/instance-id";
    let token = "/latest/api/token";
    for (name, path, answer, want) in [
        ("token refused", token, reply(403, ""), None),
        ("token hangs", token, raw("", End::Stall), Some(Class::Transport)),
        ("token reset", token, raw("", End::Rst), Some(Class::Transport)),
        ("a page", id, reply(200, "<html>log in</html>"), Some(Class::Transport)),
        ("empty", id, reply(200, ""), Some(Class::Transport)),
        ("404", id, reply(404, ""), Some(Class::NotReady)),
        ("403", id, reply(403, ""), Some(Class::Auth)),
        ("500", id, reply(500, ""), Some(Class::NotReady)),
        ("cut", id, raw("HTTP/1.1 200 OK\r\ncontent-length: 19\r\n\r\ni-01", End::Fin), Some(Class::Transport)),
        ("hangs", id, raw("", End::Stall), Some(Class::Transport)),
        ("bad address", "/latest/meta-data/local-ipv4", reply(200, "x"), Some(Class::Transport)),
    ] {
        let waits = waits(&answer);
        let server = instance_but(path, answer).await;
        let url = server.url();
        let m = if waits { with_timeouts(&url, 300, 1_000) } else { metadata(&url) };
        let fault = identity(&m).await.expect_err(name);
        if let Some(want) = want {
            assert_eq!(fault.class, want, "{name}: {fault}");
        }
        assert!(fault.message.starts_with("instance metadata"), "{name}: {fault}");
    }
    let fault = identity(&metadata("http://127.0.0.1:1")).await.expect_err("nothing listens");
    assert_eq!(fault.class, Class::Transport);
}
