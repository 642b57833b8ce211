//! `backstop retire`: an instance is gone for good, or this one leaves for good.

use super::facts::ACK_MAX_AGE_MS;
use super::handle::{Handle, not};
use super::shared::{Observed, Parts, World};
use super::turn::Request;
use crate::clock::Clock;
use crate::control::backend::Caller;
use crate::control::protocol::{Done, RetireRequest};
use crate::core::exit::Exit;
use crate::core::ids::InstanceId;
use crate::core::record::{Extra, Hold, Latch, Op, Record, Slot};
use crate::words::span;

/// Beyond the longest time for which a call of a silent agent may still be under way, in ms: its beats come this far apart.
const MARGIN_MS: u64 = 30_000;
/// How long a node that leaves for good may take until the record says so, in seconds: then it would go back.
const LEAVING_S: u64 = 7 * 86_400;

/// Who is meant: by instance id, or by the one node of that name.
fn named(node: &str, seen: &Observed, record: &Record) -> Result<InstanceId, String> {
    let members = seen.members.iter().flat_map(|(members, _)| members).map(|m| (m.instance.clone(), m.node.clone()));
    let slots = record.slots.iter().map(|(i, s)| (i.clone(), s.node.clone()));
    let holds = record.holds.iter().map(|(i, h)| (i.clone(), h.node.clone()));
    let all: std::collections::BTreeMap<_, _> = members.chain(slots).chain(holds).collect();
    if let Some(instance) = all.keys().find(|i| i.as_str() == node) {
        return Ok(instance.clone());
    }
    let of_that_name: Vec<_> = all.iter().filter(|(_, name)| name.as_str() == node).map(|(i, _)| i.clone()).collect();
    match of_that_name.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("no member, slot or hold is of {node}")),
        many => {
            let ids: Vec<_> = many.iter().map(ToString::to_string).collect();
            Err(format!("{node} is the name of {} instances: say which ({})", many.len(), ids.join(", ")))
        }
    }
}

impl<W: World> Handle<W> {
    /// An instance that is gone is taken out of the record; this one leaves through floor check and drain first.
    pub(super) async fn retire_node(&self, by: &Caller, r: &RetireRequest) -> Done {
        let parts = self.shared.parts();
        let me = self.shared.instance();
        let order = self.order(by, &r.reason);
        if r.node == me.as_str() || r.node == *parts.config.node.name {
            let node = self.shared.node_name();
            let hold = Hold { node, order, for_s: LEAVING_S, extra: Extra::default() }.for_good();
            let left = self.ask_verb(|reply| Request::Hold { hold, reply }).await;
            return if left.exit == 0 {
                Done {
                    message: format!(
                        "leaving for good: floor, deregister, drain, and then out of the record ({})",
                        left.message
                    ),
                    next: Some("backstop wait".to_owned()),
                    ..left
                }
            } else {
                left
            };
        }
        let seen = self.shared.observed.borrow().clone();
        let record = match parts.fleet.read().await {
            Ok(record) => record,
            Err(f) => return not(Exit::Unreachable, f.to_string(), Some("backstop status")),
        };
        let instance = match named(&r.node, &seen, &record) {
            Ok(instance) => instance,
            Err(why) => return not(Exit::Usage, why, Some("backstop status")),
        };
        if let Err(why) = self.heart_is_silent(&parts, &seen, &instance, &r.node) {
            return why;
        }
        let now = self.shared.clock.now();
        let slot = record.slots.get(&instance).cloned();
        let why = format!("retired by {}: {}", order.by, order.reason);
        let any = slot.unwrap_or_else(|| Slot {
            cycle: "none".into(),
            node: r.node.as_str().into(),
            job: "none".into(),
            budget_s: 0,
            since_ms: now.wall_ms,
            extra: Extra::default(),
        });
        let latch = Latch::lost(&instance, &any, &why, &now);
        let latched = record.slots.get(&instance).is_some_and(|s| !record.latches.contains_key(&s.cycle));
        let good = if latched {
            format!("{} is retired; the cycle that it was in leaves a latch (backstop latch list)", r.node)
        } else {
            format!("{} is retired", r.node)
        };
        let outcome = self.change(Op::Retire { instance: instance.clone(), order, latch }, good).await;
        if outcome.exit != 0 {
            return outcome;
        }
        match parts.fleet.delete_member(&instance).await {
            Ok(()) => outcome,
            Err(f) => {
                let message = format!("{}; its member document could not be removed yet: {f}", outcome.message);
                not(Exit::Unreachable, message, Some(&format!("backstop retire {} --reason \"...\"", r.node)))
            }
        }
    }

    /// An agent that is not known to be gone may be in the middle of a call: its heart must have been silent for longer than
    /// any call of it can take.
    fn heart_is_silent(
        &self,
        parts: &Parts<W>,
        seen: &Observed,
        instance: &InstanceId,
        node: &str,
    ) -> Result<(), Done> {
        if let Some(f) = seen.faults.get("members") {
            let message = format!("whether {node} still runs is not known: the members cannot be read: {f}");
            return Err(not(Exit::Unreachable, message, Some("backstop status")));
        }
        let is_member = seen.members.iter().any(|(members, _)| members.iter().any(|m| m.instance == *instance));
        if !is_member {
            return Ok(()); // it has said goodbye itself
        }
        let scale = u64::from(parts.config.rehearsal.time_scale.max(1));
        let calls = ACK_MAX_AGE_MS.saturating_add(parts.config.elbv2.operation_timeout_ms);
        let need = calls.saturating_add(MARGIN_MS).saturating_mul(scale);
        let now = self.shared.clock.now();
        let silent = seen.hearts.get(instance).and_then(|heart| now.since(&heart.changed)).unwrap_or(0);
        if silent > need {
            return Ok(());
        }
        let message = format!(
            "the agent of {node} has beaten {} ago: run this on {node} itself, or, where that instance is gone, ask \
             again in {}",
            span(silent),
            span(need.saturating_sub(silent))
        );
        Err(not(Exit::Guard, message, Some(&format!("backstop retire {node} --reason \"...\""))))
    }

    pub(super) async fn retire_noted(&self, by: Caller, r: RetireRequest) -> Done {
        let outcome = self.retire_node(&by, &r).await;
        self.note("retire", &by, &serde_json::json!(r), &outcome);
        outcome
    }
}
