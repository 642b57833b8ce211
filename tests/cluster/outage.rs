//! The cluster's master goes, or stands still, while a node is in any stage of its cycle. It holds no data here, so that the
//! record itself outlives it: one kind of server then refuses to write it, the other one goes on. In neither case does
//! anybody leave who has not claimed before, and whoever is out comes back once its check can pass: with a record or without.

use crate::support::BOUND;
use crate::support::engine::preferred;
use crate::world::{Plan, World};
use backstop::core::cycle::StageName;
use backstop::rehearse::elbv2::Action;
use backstop::rehearse::fleet::Machine;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Master {
    Stopped,
    Frozen,
}

/// The stages that the world is held in. The drain comes last: what holds it is remembered by the agents for a while.
const STAGES: [StageName; 8] = [
    StageName::Claim,
    StageName::Deregister,
    StageName::Patch,
    StageName::Check,
    StageName::Register,
    StageName::Settle,
    StageName::Release,
    StageName::Drain,
];

/// Deadlines that cannot be made longer still outlast an outage of some real seconds.
const PLAN: Plan = Plan { split: true, scale: 20, ..Plan::ONE };
const INITIAL: (&str, &str) = ("initial", "Elb.InitialHealthChecking");

impl Master {
    fn goes(self, w: &World) {
        match self {
            Master::Stopped => w.engine.stop("m1"),
            Master::Frozen => w.engine.pause("m1"),
        }
    }

    fn comes_back(self, w: &mut World) {
        match self {
            Master::Stopped => w.engine.start("m1", "manager", &[]),
            Master::Frozen => w.engine.resume("m1"),
        }
        w.engine.wait_joined();
    }

    /// It goes at the moment at which the next write of the record is on its way; true once it has.
    fn goes_before_the_next_write(self, w: &World) -> Arc<AtomicBool> {
        let deed = w.engine.deed(if self == Master::Stopped { "stop" } else { "pause" }, "m1");
        let (gone, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let set = gone.clone();
        w.before_the_next_write(move || {
            let did = std::process::Command::new("sh").args(["-c", &deed]).output().expect("a shell");
            assert!(did.status.success() && !done.swap(true, Ordering::SeqCst), "{did:?}");
            set.store(true, Ordering::SeqCst);
        });
        gone
    }
}

/// Brings the node into this stage, holds it there, and takes the master away. Its cycle.
async fn held_without_a_master(w: &World, me: &Machine, stage: StageName, master: Master) -> String {
    use StageName as S;
    if matches!(stage, S::Claim | S::Release) {
        w.fresh(me).await;
    }
    if stage == S::Claim {
        let gone = master.goes_before_the_next_write(w);
        let cycle = w.begun(me, &World::plain_job(me)).await;
        w.until(me, "its claim is on its way", || gone.load(Ordering::SeqCst)).await;
        return cycle;
    }
    if stage == S::Deregister {
        w.hang(Action::DeregisterTargets);
    }
    let early = matches!(stage, S::Deregister | S::Drain);
    let cycle = w.begun(me, &if early { World::plain_job(me) } else { World::held_job(me) }).await;
    match stage {
        S::Deregister => w.hangs(me, Action::DeregisterTargets).await,
        S::Drain => {
            w.hold_drain(true);
            w.in_stage(me, S::Drain).await;
        }
        _ => w.until(me, "its job has begun", || World::runs(me) > 0).await,
    }
    match stage {
        S::Check => {
            // It cannot pass before the master goes.
            w.engine.pause(me.name());
            w.let_job_end(me, 0).await;
            tries_in_vain(me, S::Check).await;
        }
        S::Register => {
            w.hang(Action::RegisterTargets);
            w.let_job_end(me, 0).await;
            w.hangs(me, Action::RegisterTargets).await;
        }
        S::Settle | S::Release => {
            w.show(me, Some(INITIAL));
            w.let_job_end(me, 0).await;
            w.in_stage(me, S::Settle).await;
        }
        _ => {}
    }
    if stage == S::Release {
        let gone = master.goes_before_the_next_write(w);
        w.show(me, None);
        w.until(me, "it gives its slot back", || gone.load(Ordering::SeqCst)).await;
    } else {
        master.goes(w);
    }
    cycle
}

async fn tries_in_vain(me: &Machine, stage: StageName) {
    let vain = |s: &backstop::control::protocol::Status| {
        s.cycle.as_ref().is_some_and(|c| c.stage == stage && c.tries > 0 && c.fault.is_some())
    };
    me.wait_status(BOUND, vain).await.unwrap_or_else(|e| panic!("{e}\n{}", me.agent_log()));
}

/// Nobody begins anything: nobody else, and not the node itself.
async fn no_cycle_begins(w: &World, me: &Machine) {
    let others = w.others(me);
    let said = tokio::join!(w.refused(&others[0]), w.refused(&others[1]), w.refused(me));
    assert!((10..100).contains(&said.2.0), "another job on {}: {:?}", me.name(), said.2);
    for ((exit, message), other) in [(said.0, &others[0]), (said.1, &others[1])] {
        assert!((10..100).contains(&exit), "{}: {exit} {message}", other.name());
        assert!(w.calls(other, Action::DeregisterTargets).is_empty() && w.fleet.serves(other), "{}", other.name());
    }
}

/// Nothing holds the node any more but that there is no master.
async fn let_go(w: &World, me: &Machine, stage: StageName, master: Master) {
    use StageName as S;
    let writes = w.record_writes();
    match stage {
        S::Claim => assert!(w.calls(me, Action::DeregisterTargets).is_empty(), "it does not leave"),
        // It may go by a yes that is not too old yet, or waits for the next one; the floor holds either way.
        S::Deregister => w.fleet.elbv2().clear_faults(),
        S::Drain => {
            w.hold_drain(false);
            w.on_disk(me, "it is gone", |d| d.stage() >= Some(S::Patch)).await;
            if master == Master::Stopped && refuses_writes(w) {
                w.until(me, "it asks whether it may still begin", || w.record_writes() > writes).await;
                assert_eq!(World::runs(me), 0, "without a yes no job begins");
            }
        }
        S::Patch | S::Check => {
            match stage {
                S::Patch => w.let_job_end(me, 0).await,
                _ => w.engine.resume(me.name()),
            }
            tries_in_vain(me, S::Check).await;
            assert!(w.calls(me, Action::RegisterTargets).is_empty(), "its check cannot pass");
        }
        S::Register | S::Settle | S::Release => {
            w.fleet.elbv2().clear_faults();
            w.show(me, None);
            w.until(me, "in service without a master", || w.fleet.serves(me)).await;
            if refuses_writes(w) && master == Master::Stopped {
                w.in_stage(me, S::Release).await;
                assert_eq!(w.record().await.slots.len(), 1, "nothing is freed by itself");
            }
        }
        S::Reboot | S::Held => {}
    }
}

/// Elasticsearch writes no document without a master; `OpenSearch` does.
fn refuses_writes(w: &World) -> bool {
    w.engine.flavor() != "opensearch"
}

async fn every_stage(flavor: &'static str, master: Master) {
    let mut w = World::start(flavor, PLAN).await;
    for (n, stage) in STAGES.into_iter().enumerate() {
        let me = w.machine(n % 3);
        w.fleet.elbv2().clear_calls();
        World::forget_runs(&me);
        let what = format!("{flavor} {master:?} in {stage}");
        let cycle = held_without_a_master(&w, &me, stage, master).await;
        no_cycle_begins(&w, &me).await;
        let_go(&w, &me, stage, master).await;
        master.comes_back(&mut w);
        let outcome = me.wait_ended(&cycle, BOUND).await;
        let outcome = outcome.unwrap_or_else(|e| panic!("{what}: {e}\n{:?}\n{}", me.durable(), me.agent_log()));
        let runs = World::runs(&me);
        match (stage, outcome.exit) {
            // Given up in time, and nothing was changed.
            (StageName::Claim, 10..100) => assert_eq!(runs, 0, "{what}"),
            (_, exit) => assert_eq!((exit, runs), (0, 1), "{what}: {}\n{}", outcome.message, me.agent_log()),
        }
        w.all_is_well(&what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn without_a_master_no_cycle_begins_and_whoever_is_out_comes_back_in_every_stage() {
    every_stage(preferred("elasticsearch8"), Master::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn with_a_frozen_master_no_cycle_begins_and_whoever_is_out_comes_back_in_every_stage() {
    every_stage(preferred("opensearch"), Master::Frozen).await;
}

/// The check passes and the record cannot be reached: its data node is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs search servers (BACKSTOP_ENGINE)"]
async fn a_node_comes_back_while_nobody_can_reach_the_record_and_its_slot_is_freed_later() {
    let mut w = World::start(preferred("opensearch"), PLAN).await;
    let me = w.machine(0);
    let cycle = w.begun(&me, &World::held_job(&me)).await;
    w.until(&me, "its job has begun", || World::runs(&me) > 0).await;
    w.engine.kill("d1");
    w.let_job_end(&me, 0).await;
    w.until(&me, "in service without a record", || w.fleet.serves(&me)).await;
    w.in_stage(&me, StageName::Release).await;
    tries_in_vain(&me, StageName::Release).await;
    no_cycle_begins(&w, &me).await;
    w.engine.start("d1", "data", &[]);
    let outcome = me.wait_ended(&cycle, BOUND).await.unwrap();
    assert_eq!((outcome.exit, World::runs(&me)), (0, 1), "{}\n{}", outcome.message, me.agent_log());
    w.all_is_well("the record is back").await;
}
