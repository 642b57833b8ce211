//! Puts what is known into words: `status`, `explain`, `STATUS=`. Every value carries its age; old is not fresh.

use super::shared::{Observed, Parts, Shared, World};
use crate::alerts::text::span;
use crate::clock::Clock;
use crate::config::{Mode, OutsideWatch};
use crate::control::protocol::{CycleStatus, Explain, NodeStatus, Source, Status, VERSION};
use crate::core::cycle::{Cycle, Seen, Stage};
use crate::core::member::Member;
use crate::core::plan::Kind;
use crate::core::target::Own;
use crate::core::time::Now;

/// What a cycle waits for, in one line.
pub fn waiting_for(c: &Cycle, v: &Seen, now: &Now) -> String {
    let own = v.own.iter().map(|o| o.sentence()).collect::<Vec<_>>().join(", ");
    let tries = match (&v.fault, v.tries) {
        (Some(f), n) if n > 0 => format!(": try {n}, {f}"),
        _ => String::new(),
    };
    let left = span(c.deadline.budget_ms().saturating_sub(c.deadline.elapsed_ms(now)));
    match &c.stage {
        Stage::Claim { .. } => format!("claim{tries}"),
        Stage::Deregister => format!("deregister: {own}{tries}"),
        Stage::Drain if v.gone => {
            format!("drain: gone, {} connections left, {left} at most", v.connections.unwrap_or(0))
        }
        Stage::Drain => format!("drain: {own}, {left} at most{tries}"),
        Stage::Patch => format!("patch: job {}, {left} at most{tries}", c.plan.job_name()),
        Stage::Reboot { asked, .. } => format!("reboot: asked {asked} times, {left} at most{tries}"),
        Stage::Held { until } => {
            format!("held for another {}", span(until.budget_ms().saturating_sub(until.elapsed_ms(now))))
        }
        Stage::Check => format!("check: {} of {} passes{tries}", v.passes, c.plan.check.passes),
        Stage::Register => format!("register: {own}{tries}"),
        Stage::Settle if v.bake.is_some() => "settle: healthy in every group, baking".to_owned(),
        Stage::Settle => format!("settle: {own}{tries}"),
        Stage::Release => format!("release: giving the slot back{tries}"),
    }
}

fn cycle_status(c: &Cycle, v: &Seen, now: &Now) -> CycleStatus {
    CycleStatus {
        cycle: c.plan.id.to_string(),
        kind: match c.plan.kind {
            Kind::Patch(_) => "patch",
            Kind::Hold(_) => "hold",
            Kind::Return => "return",
            Kind::Recovery => "recovery",
        }
        .to_owned(),
        job: c.plan.job_name().to_string(),
        stage: c.stage.name(),
        stage_since_ms: c.entered.wall_ms,
        out_since_ms: c.out_since.as_ref().map(|s| s.wall_ms),
        waiting_for: waiting_for(c, v, now),
        tries: v.tries,
        fault: v.fault.as_ref().map(ToString::to_string),
        failure: c.failure.as_ref().map(|f| (f.stage, f.class.label().to_owned(), f.message.to_string())),
        early: c.early.as_ref().map(|e| e.message.to_string()),
        late: c.late.is_some(),
        deadline_left_ms: c.deadline.budget_ms().saturating_sub(c.deadline.elapsed_ms(now)),
    }
}

fn age(now: &Now, at: Option<&Now>) -> Option<u64> {
    at.and_then(|at| now.since(at))
}

fn service_of(m: &Member, seen: &Observed) -> (String, Vec<(String, String)>) {
    let own: Vec<(String, Own)> = m
        .targets
        .iter()
        .map(|t| {
            let own = seen.polls.get(&t.group).map_or(Own::Unknown, |p| {
                let own = p.own(&t.id, t.port);
                // A list that was read whole and does not show this member's target: not listed.
                let absent = own == Own::Unknown && !p.list.is_empty() && p.named.is_none();
                if absent { Own::NoRow } else { own }
            });
            (t.group.name().to_owned(), own)
        })
        .collect();
    let service = if own.iter().any(|(_, o)| *o == Own::Unknown) || own.is_empty() {
        "unknown"
    } else if own.iter().all(|(_, o)| *o == Own::InService) {
        "in"
    } else {
        "OUT"
    };
    (service.to_owned(), own.into_iter().map(|(g, o)| (g, o.sentence())).collect())
}

fn node_lines<W: World>(shared: &Shared<W>, seen: &Observed, now: &Now) -> Vec<NodeStatus> {
    let me = shared.instance();
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let line = |m: &Member| {
        let (service, targets) = service_of(m, seen);
        NodeStatus {
            node: m.node.to_string(),
            instance: m.instance.to_string(),
            own: m.instance == me,
            service,
            targets,
            doing: m.doing.to_string(),
            agent: m.agent.to_string(),
            beat_age_ms: seen.beats.get(&m.instance).and_then(|(_, at)| now.since(at)),
        }
    };
    members.iter().map(line).collect()
}

/// `GET /v1/status`, from memory.
pub fn status<W: World>(shared: &Shared<W>) -> Status {
    let parts = shared.parts();
    let now = shared.clock.now();
    let node = shared.node.borrow().clone();
    let seen = shared.observed.borrow().clone();
    let cycle = node.durable.cycle.as_ref().map(|c| cycle_status(c, &node.seen, &now));
    let mut nodes = node_lines(shared, &seen, &now);
    if let (Some(c), Some(own)) = (&cycle, nodes.iter_mut().find(|n| n.own)) {
        own.doing.clone_from(&c.waiting_for);
    }
    // Each look at the cache ends before the next one begins.
    let last_page_accepted = shared.cache().page_accepted.as_ref().map(|(seq, at)| (*seq, at.wall_ms));
    let reload_problem = shared.cache().reload_problem.clone();
    Status {
        v: VERSION,
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        fleet: parts.config.fleet.to_string(),
        node: parts.config.node.name.to_string(),
        instance: shared.identity.instance_id.to_string(),
        mode: if parts.config.mode == Mode::Act { "act" } else { "observe" }.to_owned(),
        config_problem: parts.problem.clone(),
        now_ms: now.wall_ms,
        minimum_healthy: parts.config.minimum_healthy,
        max_unavailable: parts.config.max_unavailable,
        in_service: seen.fleet.as_ref().map(crate::core::member::FleetView::in_service_count),
        nodes,
        next: next(shared, &seen),
        cycle,
        last: node.durable.last.clone(),
        record: seen.record.as_ref().map(|(r, _)| r.clone()),
        pages_waiting: node.durable.pages.clone(),
        last_page_accepted,
        sees: sources(&seen, &now),
        warnings: warnings(&parts, &node, reload_problem),
        starting: None,
    }
}

fn sources(seen: &Observed, now: &Now) -> Vec<Source> {
    let source = |name: &'static str, at: Option<&Now>| Source {
        source: name.to_owned(),
        age_ms: age(now, at),
        fault: seen.faults.get(name).map(ToString::to_string),
    };
    vec![
        source("load balancer", seen.own_at.as_ref()),
        source("fleet record", seen.record.as_ref().map(|(_, at)| at)),
        source("members", seen.members.as_ref().map(|(_, at)| at)),
    ]
}

fn warnings<W: World>(parts: &Parts<W>, node: &super::shared::NodeView, reload: Option<String>) -> Vec<String> {
    let mut warnings = parts.warnings.clone();
    if parts.config.outside_watch == OutsideWatch::Unset && !warnings.iter().any(|w| w.contains("outside_watch")) {
        warnings.push("outside_watch is not set: nobody outside notices when this whole host is gone".to_owned());
    }
    warnings.extend(reload.map(|why| format!("the last reload changed nothing: {why}")));
    warnings.extend(node.unstored.as_ref().map(|why| format!("the state is only in memory: {why}")));
    warnings
}

fn next<W: World>(shared: &Shared<W>, seen: &Observed) -> Option<String> {
    let parts = shared.parts();
    if parts.problem.is_some() {
        return Some("backstop config check".to_owned());
    }
    let (record, _) = seen.record.as_ref()?;
    let (id, latch) = record.open_latches().next()?;
    let out = record.slots.contains_key(&latch.instance);
    Some(if out {
        format!("backstop explain {}", latch.node)
    } else {
        format!("backstop latch clear {id} --reason \"...\"")
    })
}

/// `GET /v1/explain`: about this node or any other one, by what this agent sees.
pub fn explain<W: World>(shared: &Shared<W>, node: Option<&str>) -> Explain {
    let s = status(shared);
    let name = node.unwrap_or(&s.node).to_owned();
    let mut e = Explain { v: VERSION, node: name.clone(), lines: Vec::new(), next: Vec::new() };
    match s.nodes.iter().find(|n| n.node == name || n.instance == name) {
        None => {
            let known = s.nodes.iter().map(|n| n.node.as_str()).collect::<Vec<_>>().join(", ");
            e.lines.push(format!("{name} is no member of fleet {} that this agent knows (members: {known}).", s.fleet));
            return e;
        }
        Some(n) => about_node(&mut e, &s, n),
    }
    about_blocks(&mut e, &s, &name);
    about_sight(&mut e, &s);
    if e.next.is_empty() {
        e.next.push("backstop status".to_owned());
    }
    e
}

fn about_node(e: &mut Explain, s: &Status, n: &NodeStatus) {
    let targets = n.targets.iter().map(|(g, state)| format!("{g}: {state}")).collect::<Vec<_>>().join(", ");
    e.lines.push(match n.service.as_str() {
        "in" => format!("{} is in service ({targets}).", n.node),
        "OUT" => format!("{} is OUT of service ({targets}).", n.node),
        _ => format!("Whether {} is in service is unknown ({targets}).", n.node),
    });
    let beat = n.beat_age_ms.map_or_else(|| "never".to_owned(), |ms| format!("{} ago", span(ms)));
    e.lines.push(format!("Its agent ({}) was last heard {beat} and says: {}.", n.agent, n.doing));
    if n.own {
        match (&s.cycle, &s.last) {
            (Some(c), _) => about_cycle(e, c, s.now_ms),
            (None, Some(last)) => {
                let ago = span(s.now_ms.saturating_sub(last.at.wall_ms));
                e.lines.push(format!(
                    "Its last cycle, {} (job {}), ended {ago} ago: {}.",
                    last.cycle, last.job, last.message
                ));
            }
            (None, None) => e.lines.push("No cycle has run on it with this state directory.".to_owned()),
        }
    }
}

fn about_cycle(e: &mut Explain, c: &CycleStatus, now_ms: u64) {
    let since = span(now_ms.saturating_sub(c.stage_since_ms));
    e.lines.push(format!("Cycle {} (job {}) is in {} since {since}: {}.", c.cycle, c.job, c.stage, c.waiting_for));
    if let Some((stage, class, message)) = &c.failure {
        e.lines.push(format!("It failed in {stage} ({class}): {message}. It is on its way back all the same."));
        e.lines.push(
            "Nothing else is needed for the node to return: it registers the moment its check passes.".to_owned(),
        );
    }
    if let Some(early) = &c.early {
        e.lines.push(format!("It ends early: {early}."));
    }
    if c.late {
        e.lines.push("A deadline of the way back has passed: the node is OUT beyond its budget.".to_owned());
    }
}

fn about_blocks(e: &mut Explain, s: &Status, name: &str) {
    let Some(r) = &s.record else {
        e.lines.push("The fleet record is unknown, so no cycle starts anywhere.".to_owned());
        return;
    };
    for (id, l) in r.open_latches() {
        let ago = span(s.now_ms.saturating_sub(l.since_ms));
        e.lines.push(format!(
            "Patching is blocked on every node by latch {id}: {} failed in {} {ago} ago (job {}, {}): {}.",
            l.node, l.stage, l.job, l.class, l.message
        ));
        if r.slots.contains_key(&l.instance) {
            e.next.push(format!("backstop explain {}", l.node));
        }
        e.next.push(format!("backstop latch clear {id} --reason \"...\"     (once you have looked)"));
    }
    for slot in r.slots.values() {
        let whose = if slot.node.as_str() == name { "It holds" } else { "Another node holds" };
        e.lines.push(format!("{whose} a slot: {}, cycle {}, job {}.", slot.node, slot.cycle, slot.job));
    }
    if let Some(p) = &r.pause {
        e.lines.push(format!("The fleet is paused by {}: {}.", p.by, p.reason));
        e.next.push("backstop unpause --reason \"...\"".to_owned());
    }
    for h in r.holds.values() {
        e.lines.push(format!("{} is held by {}: {}.", h.node, h.order.by, h.order.reason));
    }
    if s.mode == "observe" {
        e.lines
            .push("This agent observes (mode = \"observe\"): it never registers or deregisters anything.".to_owned());
    }
}

fn about_sight(e: &mut Explain, s: &Status) {
    for source in &s.sees {
        let age = source.age_ms.map_or_else(|| "never answered".to_owned(), |ms| format!("answered {} ago", span(ms)));
        match &source.fault {
            Some(f) => e.lines.push(format!("The {} {age}; the last try failed: {f}.", source.source)),
            None if source.age_ms.is_none() => e.lines.push(format!("The {} {age} yet.", source.source)),
            None => {}
        }
    }
    for page in &s.pages_waiting {
        e.lines.push(format!("A page waits for delivery ({}): {}.", page.kind.label(), page.message));
    }
    if let Some(problem) = &s.config_problem {
        e.lines.push(format!("Config or identity are not what they should be, so no cycle starts: {problem}"));
    }
}
