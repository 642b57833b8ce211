//! Does one effect and says what came of it. A panic in an adapter is a `transport` fault of that step.

use super::facts;
use super::shared::{Parts, Shared, World, nonce};
use super::supervisor::fenced;
use crate::clock::Clock;
use crate::core::cycle::Durable;
use crate::core::effect::Effect;
use crate::core::error::{Class, Fault};
use crate::core::event::Event;
use crate::core::guard;
use crate::core::ids::LatchId;
use crate::core::member::{FleetView, in_service};
use crate::core::plan::Plan;
use crate::core::record::Op;
use crate::core::target::Own;
use crate::fleet::Outcome;
use crate::ports::{Host, Jobs, LoadBalancer, NodeCheck};
use crate::state::journal::Ready;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Does it. Every call inside has a total timeout of its own.
pub async fn execute<W: World>(shared: &Arc<Shared<W>>, ready: Ready, d: &Durable) -> Event {
    let Some(plan) = d.cycle.as_ref().map(|c| c.plan.clone()) else { return Event::Tick };
    let effect = ready.effect().clone();
    let unfailed = plan.latches() && d.cycle.as_ref().is_some_and(|c| c.failure.is_none());
    let own = Some(plan.id.latch()).filter(|_| unfailed);
    let work = perform(shared.clone(), plan, effect.clone());
    match fenced(work).await {
        Ok(event @ Event::Acked { .. }) => own.and_then(|id| latched(shared, &id)).unwrap_or(event),
        Ok(event) => event,
        Err(why) => came_to_nothing(&effect, Fault::transport(format!("{}: {why}", effect.label()))),
    }
}

/// A disk that lost what came after an earlier state does not take the failure away: the acknowledged latch is its record.
fn latched<W: World>(shared: &Shared<W>, id: &LatchId) -> Option<Event> {
    let observed = shared.observed.borrow().clone();
    let (record, _) = observed.record.as_ref()?;
    let (_, latch) = record.open_latches().find(|(its, _)| its == id)?;
    Some(Event::OwnLatch(
        format!("this cycle has failed before, in {} ({}): {}", latch.stage, latch.class, latch.message).into(),
    ))
}

/// The event of an effect that gave no answer at all.
fn came_to_nothing(effect: &Effect, fault: Fault) -> Event {
    match effect {
        Effect::Record(_) | Effect::ReadGuards => Event::Unanswered(fault),
        #[cfg(feature = "mutants")]
        Effect::ReadRecord => Event::Unanswered(fault),
        Effect::ReadFleet => Event::Fleet(Err(fault)),
        Effect::ReadOwn => Event::Own(vec![Own::Unknown], Some(fault)),
        Effect::Deregister(g) | Effect::Register(g) => Event::Called(*g, Err(fault)),
        Effect::CountConnections => Event::Connections(Err(fault)),
        Effect::AskJob => Event::Job(Err(fault)),
        Effect::StartJob | Effect::Reboot => Event::Started(Err(fault)),
        Effect::KillJob => Event::Killed(Err(fault)),
        Effect::Check => Event::Checked(Err(fault)),
    }
}

async fn perform<W: World>(shared: Arc<Shared<W>>, plan: Arc<Plan>, effect: Effect) -> Event {
    let parts = shared.parts();
    let cycle = plan.id.as_str();
    match &effect {
        Effect::Record(op) => record(&shared, &parts, &plan, op).await,
        #[cfg(feature = "mutants")]
        Effect::ReadRecord => Event::Unanswered(Fault::transport("a mutant's effect in a product build")),
        Effect::ReadGuards => {
            let facts = facts::gather(&shared, &parts, Some(&plan)).await;
            let verdicts = guard::evaluate(&facts, &plan.rules, &plan.overrides);
            shared.metrics.judged(&verdicts);
            Event::Guards(verdicts)
        }
        Effect::ReadFleet => Event::Fleet(read_fleet(&shared, &parts, false).await),
        Effect::ReadOwn => read_own(&parts, &plan).await,
        Effect::Deregister(g) => match plan.targets.get(*g) {
            Some(t) => Event::Called(*g, parts.balancer.deregister(&t.target).await),
            None => Event::Tick,
        },
        Effect::Register(g) => match plan.targets.get(*g) {
            // Traffic for a machine that goes down would be lost; the next boot registers it.
            Some(_) if parts.host.shutting_down().await => Event::Called(
                *g,
                Err(Fault::new(Class::NotReady, "the machine is shutting down: registered after the boot")),
            ),
            Some(t) => {
                let called = parts.balancer.register(&t.target).await;
                if called.is_ok() {
                    shared.cache().register_proved = Some(shared.clock.now());
                }
                Event::Called(*g, called)
            }
            None => Event::Tick,
        },
        // Health checks have stopped by now: every group says gone.
        Effect::CountConnections => Event::Connections(parts.host.connections(plan.port, &[])),
        Effect::AskJob => Event::Job(parts.jobs.ask(cycle).await),
        Effect::StartJob => match plan.job() {
            Some(job) => Event::Started(parts.jobs.start(cycle, job, plan.limits.patch_ms).await),
            None => Event::Tick,
        },
        Effect::KillJob => Event::Killed(parts.jobs.kill(cycle).await),
        Effect::Reboot => Event::Started(reboot(&parts).await),
        Effect::Check => {
            let checked = parts.check.check(&plan.check).await;
            if let Ok(pass) = &checked {
                shared.cache().node_id.clone_from(&pass.identity.node_id);
            }
            Event::Checked(checked)
        }
    }
}

/// Never while a package manager is at work: a reboot in the middle of an installation breaks the machine.
async fn reboot<W: World>(parts: &Parts<W>) -> Result<(), Fault> {
    match parts.host.package_manager()? {
        Some(name) => Err(Fault::new(Class::NotReady, format!("no reboot while {name} is at work"))),
        None => parts.host.reboot().await,
    }
}

async fn record<W: World>(shared: &Shared<W>, parts: &Parts<W>, plan: &Plan, op: &Op) -> Event {
    match parts.fleet.change(op, &plan.rules, nonce).await {
        Outcome::Acked(record) => {
            let leavers = record.leavers();
            // Or the last look, which still shows the old one, would have this node free its slot twice.
            shared.saw_record(*record);
            Event::Acked { leavers }
        }
        Outcome::Refused(refusal) => Event::CasRefused(refusal),
        Outcome::Unanswered(fault) => Event::Unanswered(fault),
    }
}

/// Who is in service, by whole lists read from now on. One group or document that cannot be read makes it unknown.
/// `by_name`: the own targets are asked for by name too, and an answer that contradicts the list makes it unknown.
pub async fn read_fleet<W: World>(shared: &Shared<W>, parts: &Parts<W>, by_name: bool) -> Result<FleetView, Fault> {
    let begun = shared.clock.now();
    let members = parts.fleet.members().await?;
    let own = shared.own_targets(parts, u64::MAX).await?;
    let mut polls = BTreeMap::new();
    for t in &own {
        let poll = parts.balancer.poll(&t.target, by_name).await?;
        if by_name && poll.own(&t.target.id, t.target.port) == Own::Unknown {
            return Err(Fault::transport(format!(
                "the list and the answer by name contradict each other on {}",
                t.target
            )));
        }
        polls.insert(t.target.group.clone(), poll);
    }
    Ok(in_service(&members, &parts.groups(), &polls, begun))
}

async fn read_own<W: World>(parts: &Parts<W>, plan: &Plan) -> Event {
    let (mut own, mut fault) = (Vec::new(), None);
    for t in &plan.targets {
        match parts.balancer.poll(&t.target, true).await {
            Ok(poll) => own.push(poll.own(&t.target.id, t.target.port)),
            Err(f) => {
                own.push(Own::Unknown);
                fault.get_or_insert(f);
            }
        }
    }
    Event::Own(own, fault)
}
