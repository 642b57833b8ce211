//! Foreign ELBv2 servers that disagree with each other and with AWS: moto and ministack, from PyPI. `.ci/run` installs them
//! and names their directory in `BACKSTOP_PEERS`; the tests are ignored where nobody did.
//!
//! Both know targets by id alone, so each node has a loopback address of its own. Neither drains, checks or delays.
#![allow(
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "what fails here fails the test"
)]

mod alertmanager;
mod server;
#[path = "../support/mod.rs"]
mod support;

use backstop::core::error::Class;
use backstop::core::job::RebootPolicy;
use backstop::core::target::{GroupArn, Own, Target};
use backstop::elbv2::{Elb, ElbSettings, ElbTimeouts};
use backstop::host::identity::{Metadata, MetadataSettings};
use backstop::ports::LoadBalancer;
use backstop::rehearse::fleet::{Fleet, FleetOptions, patch_request};
use server::{Kind, Server};
use support::{BOUND, PROGRAM};

/// Three nodes patched one after another, the load balancer being a foreign one.
async fn a_whole_fleet(kind: Kind) {
    let server = Server::start(kind).await;
    let mut options = FleetOptions::new(PROGRAM);
    options.scale = 100;
    let fleet = Fleet::start(options).await.unwrap();
    let ids: Vec<String> = fleet.machines().iter().map(|m| m.address().ip().to_string()).collect();
    let arn = server.group(&ids).await;
    for machine in fleet.machines() {
        machine.terminate_agent().await;
        machine.configure(&format!(
            "[elbv2]\nendpoint_url = {:?}\nregister_probe = false\n[[target_group]]\narn = {arn:?}\nid = {:?}\n",
            server.url(),
            machine.address().ip().to_string()
        ));
        machine.start_agent().unwrap();
    }
    for machine in fleet.machines() {
        machine.wait_sees(3, BOUND).await.unwrap();
    }
    for machine in fleet.machines() {
        let request = patch_request("patch", &["true"], RebootPolicy::Never);
        let outcome = machine.run_to_end(&request, BOUND).await.unwrap();
        assert_eq!(outcome.exit, 0, "{kind:?} {}: {}\n{}", machine.name(), outcome.message, machine.agent_log());
        assert!(fleet.record().unwrap().slots.is_empty());
        machine.wait_sees(3, BOUND).await.unwrap();
    }
    assert_eq!(server.registered(&arn).await, 3, "{kind:?}: all three are registered at the end");
    assert!(fleet.receiver().accepted().is_empty(), "{kind:?}: nobody was paged: {:#?}", fleet.receiver().accepted());
}

#[tokio::test]
#[ignore = "needs moto (BACKSTOP_PEERS)"]
async fn a_whole_fleet_is_patched_behind_moto() {
    a_whole_fleet(Kind::Moto).await;
}

#[tokio::test]
#[ignore = "needs ministack (BACKSTOP_PEERS)"]
async fn a_whole_fleet_is_patched_behind_ministack() {
    a_whole_fleet(Kind::Ministack).await;
}

/// `rehearse --endpoint`: the same, as a person types it.
#[tokio::test]
#[ignore = "needs moto (BACKSTOP_PEERS)"]
async fn a_rehearsal_can_be_pointed_at_another_endpoint() {
    let server = Server::start(Kind::Moto).await;
    let arn = server.group(&[]).await;
    let mut command = tokio::process::Command::new(PROGRAM);
    command.args(["rehearse", "--endpoint", &server.url(), "--group", &arn, "--json"]).kill_on_drop(true);
    let output = tokio::time::timeout(BOUND, command.output()).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(server.registered(&arn).await, 3);
}

/// What they disagree about, through the adapter: each answer is one that the core can live with.
async fn answers(kind: Kind) {
    let server = Server::start(kind).await;
    let arn = server.group(&["127.0.0.1".to_owned(), "127.0.0.2".to_owned()]).await;
    let elb = Elb::with_credentials(&settings(&server.url()), server::credentials()).await;
    let target = |id: &str| Target { group: GroupArn(arn.as_str().into()), id: id.into(), port: 9200 };

    let present = elb.poll(&target("127.0.0.1"), true).await.unwrap();
    assert_eq!(present.own("127.0.0.1", 9200), Own::InService, "{kind:?}");
    let absent = elb.poll(&target("127.0.0.3"), true).await.unwrap().own("127.0.0.3", 9200);
    assert!(matches!(absent, Own::Gone | Own::NoRow), "{kind:?}: never registered is {absent:?}");
    // AWS: a success that changes nothing. moto: InvalidTarget. Either way a read decides.
    match elb.deregister(&target("127.0.0.3")).await {
        Ok(()) => {}
        Err(f) => assert_eq!(f.class, Class::OutcomeUnknown, "{kind:?}: {f}"),
    }
    elb.deregister(&target("127.0.0.1")).await.unwrap();
    let gone = elb.poll(&target("127.0.0.1"), true).await.unwrap().own("127.0.0.1", 9200);
    assert!(matches!(gone, Own::Gone | Own::NoRow), "{kind:?}: deregistered is {gone:?}");
    elb.register(&target("127.0.0.1")).await.unwrap();
    let back = elb.poll(&target("127.0.0.1"), true).await.unwrap().own("127.0.0.1", 9200);
    assert_eq!(back, Own::InService, "{kind:?}");

    let nowhere = Target { group: GroupArn(format!("{arn}0").into()), ..target("127.0.0.1") };
    let fault = elb.poll(&nowhere, false).await.unwrap_err();
    assert_eq!(fault.class, Class::Refused, "{kind:?}: {fault}");
    let facts = elb.group(&target("127.0.0.1").group).await.unwrap();
    assert_eq!(facts.port, Some(9200), "{kind:?}");
}

fn settings(url: &str) -> ElbSettings {
    ElbSettings { region: "eu-west-1".into(), endpoint_url: Some(url.into()), timeouts: ElbTimeouts::default() }
}

#[tokio::test]
#[ignore = "needs moto (BACKSTOP_PEERS)"]
async fn what_moto_answers_is_understood() {
    answers(Kind::Moto).await;
}

#[tokio::test]
#[ignore = "needs ministack (BACKSTOP_PEERS)"]
async fn what_ministack_answers_is_understood() {
    answers(Kind::Ministack).await;
}

#[tokio::test]
#[ignore = "needs ministack (BACKSTOP_PEERS)"]
async fn the_instance_id_comes_from_ministacks_metadata_service() {
    let server = Server::start(Kind::Ministack).await;
    let endpoint = MetadataSettings { endpoint_url: Some(server.url().into()), ..MetadataSettings::default() };
    let identity = Metadata::new(&endpoint).unwrap().identity(None).await.unwrap();
    assert!(identity.instance_id.starts_with("i-"), "{identity:?}");
}
