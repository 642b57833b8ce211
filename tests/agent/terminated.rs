//! A real instance that is gone for good in the middle of its cycle, agent and node at once: its peers latch what it was at
//! and page, and nobody takes its place until a person has looked. (What a termination notice does is in `retire.rs`.)

use crate::fakes::{Call, Fake, instance};
use crate::running::Running;
use crate::scene::{BOUND, Scene, options};
use crate::together::triggers;
use backstop::control::protocol::{RetireRequest, RunReply};
use backstop::core::cycle::StageName;
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::core::record::LOST;
use backstop::rehearse::elbv2::{Action, Instance};
use backstop::rehearse::fleet::{FleetOptions, patch_request};
use backstop::rehearse::pace;

/// The budget of a slot is the sum of these and of what the group itself takes.
const CONFIG: &str = r#"
[limits]
cycles_per_hour = 1000000
cycles_per_day = 1000000
[drain]
quiet = "2s"
margin_application = "1m"
[check]
over = "4s"
every = "1s"
[settle]
bake = "5s"
[deadlines]
claim = "3m"
deregister = "3m"
patch = "3m"
reboot = "1m"
check = "3m"
register = "3m"
settle = "3m"
"#;

/// In this stage, and held there.
async fn in_stage(stage: StageName) -> Scene {
    let mut s = Scene::with(FleetOptions { config: CONFIG.to_owned(), ..options() }).await;
    match stage {
        StageName::Deregister => s.hang(Action::DeregisterTargets),
        StageName::Drain => s.hold_drain(true),
        _ => {}
    }
    s.run(RebootPolicy::Never).await;
    if stage > StageName::Patch {
        s.job_waits().await;
        match stage {
            StageName::Register => s.hang(Action::RegisterTargets),
            StageName::Check => s.me.kill_node().await,
            StageName::Settle => s.show(Some(("initial", Some("Elb.InitialHealthChecking")))),
            _ => {}
        }
        s.let_job_end(0).await;
    }
    s.stage_on_disk(stage).await;
    s
}

/// Power off, for ever: the load balancer hears of it from the instance's own end.
async fn is_gone(s: &Scene) {
    s.me.kill_agent().await;
    s.me.end_jobs();
    s.me.kill_node().await;
    s.fleet.elbv2().clear_faults();
    s.show(None);
    s.hold_drain(false);
    s.fleet.elbv2().declare(s.me.instance(), Instance::Terminated);
    s.fleet.elbv2().deregister_behind_back(&s.arn, s.me.instance(), s.me.address().port());
}

async fn lost_in(stage: StageName) -> Scene {
    let s = in_stage(stage).await;
    is_gone(&s).await;
    let lost = || {
        let record = s.fleet.record()?;
        let latch = record.latches.iter().find(|(cycle, _)| cycle.as_str() == s.cycle())?;
        Some((latch.1.class.to_string(), record.slots.values().any(|slot| slot.cycle.as_str() == s.cycle())))
    };
    let came = pace::until(BOUND, || lost().is_some()).await;
    assert!(came, "{stage}: no latch; {}", s.fleet.machine(1).unwrap().agent_log());
    assert_eq!(lost(), Some((LOST.to_owned(), true)), "{stage}: by a peer, and its slot stays");
    let told = || s.fleet.receiver().accepted().iter().any(|p| p.body["key"] == "rehearsal/latched/es-client-1");
    assert!(pace::until(BOUND, told).await, "{stage}: {:?}", s.fleet.receiver().received());
    let peer = s.fleet.machine(1).unwrap();
    let reply = peer.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap();
    let RunReply::Refused { exit, .. } = &reply else { panic!("{stage}: {reply:?}") };
    assert_eq!(*exit, Exit::Latched.code(), "{stage}");
    s.peer_stayed();
    s
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_gone_before_or_while_it_leaves_is_latched_and_paged_by_its_peer() {
    tokio::join!(lost_in(StageName::Deregister), lost_in(StageName::Drain));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_gone_on_its_way_back_is_latched_and_paged_by_its_peer() {
    tokio::join!(lost_in(StageName::Check), lost_in(StageName::Register), lost_in(StageName::Settle));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_gone_in_its_patch_is_latched_by_its_peer_and_retire_frees_its_slot_and_leaves_the_latch() {
    let s = lost_in(StageName::Patch).await;
    let peer = s.fleet.machine(1).unwrap();
    let request = RetireRequest { node: s.me.name().to_owned(), reason: "terminated".to_owned() };
    // Refused while its heart may still beat.
    let retired = pace::within(BOUND, async {
        loop {
            let done = peer.client().retire(&request).await.unwrap();
            if done.exit == 0 {
                return;
            }
            assert_eq!(done.exit, Exit::Guard.code(), "{done:?}");
            pace::sleep(std::time::Duration::from_millis(200)).await;
        }
    });
    assert!(retired.await.is_some(), "{}", peer.agent_log());
    let record = s.fleet.record().unwrap();
    assert!(record.slots.is_empty(), "{record:?}");
    let open: Vec<_> = record.open_latches().map(|(_, l)| l.class.to_string()).collect();
    assert_eq!(open, [LOST]);
    let reply = peer.run(&patch_request("patch", &["true"], RebootPolicy::Never)).await.unwrap();
    assert!(matches!(&reply, RunReply::Refused { exit, .. } if *exit == Exit::Latched.code()), "{reply:?}");
}

/// The stages that `retire.rs` has not: on the way back, and with a peer who tells.
#[tokio::test]
async fn a_termination_notice_on_the_way_back_frees_the_slot_leaves_a_latch_and_a_peer_pages() {
    for stage in [StageName::Register, StageName::Settle] {
        let fake = Fake::new();
        let (r, peer) = (Running::start(&fake).await, Running::start(&fake.beside(2)).await);
        let both = async |seconds: u64| {
            for _ in 0..seconds / 5 {
                peer.seconds(0).await;
                r.seconds(5).await;
            }
        };
        both(720).await;
        if stage == StageName::Register {
            fake.trouble(Call::Register, Some(crate::fakes::Trouble::Class(Class::Throttled)));
        }
        r.run_job().await;
        r.until("the stage", 200, |r| r.stage() == Some(stage)).await;
        fake.lifecycle(Some("Terminated"));
        both(30).await;
        let record = fake.record();
        assert!(record.slots.is_empty() && !fake.members().contains(&instance(1)), "{stage}: {record:?}");
        let open: Vec<_> = record.open_latches().map(|(_, l)| l.class.to_string()).collect();
        assert_eq!(open, [LOST], "{stage}");
        let registered = fake.calls(Call::Register);
        fake.trouble(Call::Register, None);
        both(600).await;
        assert_eq!(fake.calls(Call::Register), registered, "{stage}: it does not fight");
        assert!(triggers(&fake).contains_key("test/latched/es-client-1"), "{stage}: {:?}", triggers(&fake));
    }
}
