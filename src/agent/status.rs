//! Puts what is known into words: `status`, `STATUS=`. Every value carries its age; old is not fresh.

use super::explain::{self, INIT};
use super::outlook;
use super::shared::{Observed, Parts, Shared, World};
use crate::clock::Clock;
use crate::config::{Mode, OutsideWatch};
use crate::control::protocol::{
    AlertStatus, CycleStatus, Explain, NodeStatus, SILENT_MS, SinkStatus, Source, Status, VERSION,
};
use crate::core::alert::{Alert, Sent, State};
use crate::core::cycle::{Cycle, Seen, Stage};
use crate::core::error::Fault;
use crate::core::ids::InstanceId;
use crate::core::member::Member;
use crate::core::plan::Kind;
use crate::core::target::{Own, Poll};
use crate::core::time::Now;
use crate::words::{moment, span};
use std::collections::BTreeMap;

/// A fault without the address that was asked: there is little room in one line, and the cause is what is looked for.
fn brief(fault: &Fault) -> String {
    let text = fault.to_string();
    match text.split_once(": ") {
        Some((asked, cause)) if asked.starts_with("GET ") && asked.split(' ').count() == 2 => cause.to_owned(),
        _ => text,
    }
}

/// What a cycle waits for, in one line.
pub fn waiting_for(c: &Cycle, v: &Seen, now: &Now) -> String {
    let own = v.own.iter().map(|o| o.sentence()).collect::<Vec<_>>().join(", ");
    let tries = match (&v.fault, v.tries) {
        (Some(f), n) if n > 0 => format!(": try {n}, {}", brief(f)),
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
            let left = until.budget_ms().saturating_sub(until.elapsed_ms(now));
            format!("held until {}, another {}", moment(now.wall_ms.saturating_add(left), now.wall_ms), span(left))
        }
        // A pass that is followed by a failing try does not count.
        Stage::Check if v.tries > 0 => format!("check{tries}"),
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

/// What one poll says of a member's target. The question by name was about this agent's own target; of the others only the
/// whole list tells, and a list that shows somebody shows everybody.
fn own_in(p: &Poll, id: &str, port: u16, asked: bool) -> Own {
    if asked && p.named.is_some() {
        return p.own(id, port);
    }
    match p.list.iter().any(|r| &*r.id == id && r.port == Some(port)) {
        true => Poll { list: p.list.clone(), named: None }.own(id, port),
        false if p.list.is_empty() => Own::Unknown,
        false => Own::NoRow,
    }
}

/// What each group says of a member's target.
pub(super) fn standing(m: &Member, seen: &Observed, me: &InstanceId) -> Vec<(String, Own)> {
    let of = |t: &crate::core::target::Target| {
        let own = seen.polls.get(&t.group).map_or(Own::Unknown, |p| own_in(p, &t.id, t.port, m.instance == *me));
        (t.group.name().to_owned(), own)
    };
    m.targets.iter().map(of).collect()
}

fn service_of(m: &Member, seen: &Observed, me: &InstanceId) -> (&'static str, Vec<(String, String)>) {
    let own = standing(m, seen, me);
    let service = if own.iter().any(|(_, o)| *o == Own::Unknown) || own.is_empty() {
        "unknown"
    } else if own.iter().all(|(_, o)| *o == Own::InService) {
        "in"
    } else {
        "OUT"
    };
    (service, own.into_iter().map(|(g, o)| (g, o.sentence())).collect())
}

/// Since when each member is in or out of service, as this agent has seen it, after one more look. A look that tells nothing
/// changes nothing.
pub fn since(seen: &Observed, me: &InstanceId, now_ms: u64) -> BTreeMap<InstanceId, (String, Option<u64>)> {
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let of = |m: &Member| {
        let service = service_of(m, seen, me).0;
        let now = match seen.since.get(&m.instance) {
            Some(before) if before.0 == service || service == "unknown" => before.clone(),
            Some((before, _)) if before != "unknown" => (service.to_owned(), Some(now_ms)),
            _ => (service.to_owned(), None),
        };
        (m.instance.clone(), now)
    };
    members.iter().map(of).collect()
}

fn seen_since(m: &Member, seen: &Observed, service: &str) -> Option<u64> {
    seen.since.get(&m.instance).filter(|(said, _)| said == service).and_then(|(_, since)| *since)
}

/// Where this agent has not seen the change: what the fleet record says of it.
fn recorded_since(m: &Member, seen: &Observed, service: &str) -> Option<u64> {
    let (record, _) = seen.record.as_ref()?;
    if service == "in" {
        return record.finished.iter().filter(|f| f.node == m.node).map(|f| f.at_ms).max();
    }
    let slot = record.slots.get(&m.instance).map(|s| s.since_ms);
    slot.or_else(|| record.holds.get(&m.instance).map(|h| h.order.since_ms))
}

fn node_lines<W: World>(shared: &Shared<W>, seen: &Observed, now: &Now) -> Vec<NodeStatus> {
    let me = shared.instance();
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let line = |m: &Member| {
        let (service, targets) = service_of(m, seen, &me);
        NodeStatus {
            node: m.node.to_string(),
            instance: m.instance.to_string(),
            own: m.instance == me,
            service: service.to_owned(),
            targets,
            since_ms: seen_since(m, seen, service).or_else(|| recorded_since(m, seen, service)),
            registers_as: m.targets.clone(),
            doing: m.doing.to_string(),
            agent: m.agent.to_string(),
            beat_age_ms: seen.hearts.get(&m.instance).and_then(|heart| now.since(&heart.changed)),
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
        if own.service != "in" {
            own.since_ms = c.out_since_ms.or(own.since_ms);
        }
    }
    // Each look at the cache ends before the next one begins.
    let last_page_accepted = shared.cache().page_accepted.as_ref().map(|(seq, at)| (*seq, at.wall_ms));
    let last_page = shared.cache().page_told.clone();
    let heals_in_ms = shared.cache().heals_at.as_ref().map(|at| at.since(&now).unwrap_or(0));
    let findings = shared.report.borrow().0.findings.clone();
    let (alerts, undelivered) = (alerts(shared), shared.book().undelivered());
    let mut status = Status {
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
        next: None,
        cycle,
        last: node.durable.last.clone(),
        record: seen.record.as_ref().map(|(r, _)| r.clone()),
        findings,
        heals_in_ms,
        pages_waiting: node.durable.pages.clone(),
        last_page_accepted,
        last_page,
        sees: sources(&seen, &now),
        would_refuse: outlook::refusal(shared, &parts, &seen),
        warnings: all_warnings(shared),
        alerts,
        undelivered,
        starting: None,
    };
    status.next = next(&status);
    status
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
        source("cluster nodes", seen.nodes.as_ref().map(|(_, at)| at)),
        source("members", seen.members.as_ref().map(|(_, at)| at)),
    ]
}

/// What the book of this agent has, the worst first.
fn alerts<W: World>(shared: &Shared<W>) -> Vec<AlertStatus> {
    let book = shared.book();
    let mut alerts: Vec<&Alert> = book.alerts().iter().collect();
    alerts.sort_by_key(|a| (!a.fires(), std::cmp::Reverse(a.severity), a.since.wall_ms));
    let sink = |(name, s): (&std::sync::Arc<str>, &Sent)| SinkStatus {
        sink: name.to_string(),
        accepted_ms: s.accepted.as_ref().map(|at| at.wall_ms),
        fault: s.fault.as_ref().map(ToString::to_string),
        refused: s.refused,
        covered_by: s.covered.as_ref().map(ToString::to_string),
    };
    let one = |a: &Alert| AlertStatus {
        key: book.key(&a.about()).to_string(),
        kind: a.kind.label().to_owned(),
        subject: a.subject.to_string(),
        severity: a.severity,
        state: match (&a.state, &a.folded, a.held) {
            (State::Resolved(_), _, _) => "resolved",
            (State::Firing, Some(_), _) => "folded",
            (State::Firing, None, true) => "held",
            (State::Firing, None, false) => "firing",
        }
        .to_owned(),
        since_ms: a.since.wall_ms,
        over_ms: match &a.state {
            State::Resolved(at) => Some(at.wall_ms),
            State::Firing => None,
        },
        told_in: book.told_in(a).map(|about| book.key(&about).to_string()),
        sentence: a.sentence.to_string(),
        told: a.told(),
        sinks: a.sent.iter().map(sink).collect(),
    };
    alerts.into_iter().map(one).collect()
}

/// What a person should look at though nothing is wrong yet.
pub fn all_warnings<W: World>(shared: &Shared<W>) -> Vec<String> {
    let (reload, watch) = {
        let cache = shared.cache();
        (cache.reload_problem.clone(), cache.watch_fault.clone())
    };
    warnings(&shared.parts(), &shared.node.borrow(), reload, watch)
}

fn warnings<W: World>(
    parts: &Parts<W>,
    node: &super::shared::NodeView,
    reload: Option<String>,
    watch: Option<String>,
) -> Vec<String> {
    let mut warnings = parts.warnings.clone();
    if parts.config.outside_watch == OutsideWatch::Unset && !warnings.iter().any(|w| w.contains("outside_watch")) {
        warnings.push("outside_watch is not set: nobody outside notices when this whole host is gone".to_owned());
    }
    warnings.extend(watch.map(|why| format!("outside_watch: {why}")));
    warnings.extend(reload.map(|why| format!("the last reload changed nothing: {why}")));
    warnings.extend(node.unstored.as_ref().map(|why| format!("the state is only in memory: {why}")));
    warnings
}

/// Where to look first. Nothing where nothing is wrong.
fn next(s: &Status) -> Option<String> {
    if s.config_problem.is_some() {
        return Some("backstop config check".to_owned());
    }
    let explain = |node: &str| Some(format!("backstop explain {node}"));
    let Some(record) = &s.record else {
        let none = s.sees.iter().any(|source| source.fault.as_ref().is_some_and(|f| f.contains(INIT)));
        return if none { Some(INIT.to_owned()) } else { explain(&s.node) };
    };
    let out = |instance: &str| s.nodes.iter().any(|n| n.instance == instance && n.service != "in");
    if let Some((id, latch)) = record.open_latches().next() {
        let back = !record.slots.contains_key(&latch.instance) && !out(latch.instance.as_str());
        let clear = || Some(format!("backstop latch clear {id} --reason \"...\""));
        return if back { clear() } else { explain(latch.node.as_str()) };
    }
    let silent = |n: &NodeStatus| n.beat_age_ms.is_some_and(|ms| ms > SILENT_MS);
    let first = s.nodes.iter().find(|n| n.service != "in").or_else(|| s.nodes.iter().find(|n| silent(n)));
    first.and_then(|n| explain(&n.node))
}

/// `GET /v1/explain`: about this node or any other one, by what this agent sees.
pub fn explain<W: World>(shared: &Shared<W>, node: Option<&str>) -> Explain {
    let s = status(shared);
    let name = node.unwrap_or(&s.node).to_owned();
    explain::explain(&s, &name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::NodeName;
    use crate::core::target::{GroupArn, Named, Reason, Row, Target, TargetState};
    use crate::core::time::BootId;

    fn row(id: &str, state: TargetState, reason: Option<Reason>) -> Row {
        Row { id: id.into(), port: Some(9200), state, reason, shifted: false }
    }

    fn member(id: &str) -> Member {
        Member {
            schema: 1,
            instance: InstanceId(id.into()),
            node: NodeName(id.into()),
            targets: vec![Target { group: GroupArn("g".into()), id: id.into(), port: 9200 }],
            agent: "1".into(),
            reads_schema: 1,
            boot: BootId("b".into()),
            beat: 1,
            doing: "idle".into(),
            at_ms: 0,
            node_id: None,
            address: None,
            sees: Vec::new(),
            record: None,
            says: crate::core::member::Says::default(),
            told: Vec::new(),
            extra: BTreeMap::default(),
        }
    }

    /// `i-1` asked by name, since the list does not show it.
    fn seen(list: Vec<Row>) -> Observed {
        let gone = row("i-1", TargetState::Unused, Some(Reason::NotRegistered));
        let poll = Poll { list, named: Some(Named::Rows(vec![gone])) };
        let at = Now { wall_ms: 1, boot: BootId("b".into()), since_boot_ms: 1 };
        Observed {
            polls: BTreeMap::from([(GroupArn("g".into()), poll)]),
            members: Some((vec![member("i-1"), member("i-2"), member("i-3")], at)),
            ..Observed::default()
        }
    }

    #[test]
    fn a_node_that_is_out_still_says_of_the_others_what_the_list_says() {
        let list = vec![row("i-2", TargetState::Healthy, None), row("i-3", TargetState::Unhealthy, None)];
        let (seen, me) = (seen(list), InstanceId("i-1".into()));
        let services = ["i-1", "i-2", "i-3", "i-4"].map(|i| service_of(&member(i), &seen, &me).0);
        assert_eq!(services, ["OUT", "in", "OUT", "OUT"], "who is not on a list that shows others is out");
    }

    #[test]
    fn an_empty_list_tells_nothing_of_the_others() {
        let services = ["i-1", "i-2"].map(|i| service_of(&member(i), &seen(vec![]), &InstanceId("i-1".into())).0);
        assert_eq!(services, ["OUT", "unknown"], "only the question by name was answered");
    }

    #[test]
    fn since_is_when_a_look_saw_it_change_and_a_look_that_tells_nothing_is_no_change() {
        let me = InstanceId("i-1".into());
        let two = |state| vec![row("i-2", state, None), row("i-3", TargetState::Healthy, None)];
        let mut looks = seen(two(TargetState::Healthy));
        let mut of_two = Vec::new();
        for (now_ms, list) in [
            (10, two(TargetState::Healthy)),
            (20, two(TargetState::Unhealthy)),
            (30, vec![]),
            (40, two(TargetState::Unhealthy)),
            (50, two(TargetState::Healthy)),
        ] {
            looks = Observed { since: looks.since, ..seen(list) };
            looks.since = since(&looks, &me, now_ms);
            of_two.push(looks.since[&InstanceId("i-2".into())].1);
        }
        assert_eq!(of_two, [None, Some(20), Some(20), Some(20), Some(50)]);
    }

    #[test]
    fn a_fault_in_one_line_is_its_cause() {
        let of = |text: &str| brief(&Fault::new(crate::core::error::Class::Transport, text));
        assert_eq!(of("GET http://10.0.0.1:9200/: connection refused"), "connection refused (transport)");
        assert_eq!(of("RegisterTargets: AccessDenied: no"), "RegisterTargets: AccessDenied: no (transport)");
    }

    #[test]
    fn next_is_there_as_soon_as_a_node_is_out_and_not_before() {
        let mut s: Status = serde_json::from_str(include_str!("../../tests/fixtures/json/status.json")).unwrap();
        assert_eq!(next(&s).unwrap(), "backstop explain es-client-2", "latched, and out");
        let record = s.record.take();
        s.record = record.map(|r| crate::core::record::Record { slots: BTreeMap::new(), ..r });
        for n in &mut s.nodes {
            n.service = "in".to_owned();
        }
        assert_eq!(next(&s).unwrap(), "backstop latch clear L-7f3a --reason \"...\"", "latched, and back");
        s.record.as_mut().unwrap().latches.clear();
        assert_eq!(next(&s), None, "nothing is wrong");
        s.nodes[2].beat_age_ms = Some(SILENT_MS + 1);
        assert_eq!(next(&s).unwrap(), "backstop explain es-client-3", "silent");
        s.nodes[1].service = "OUT".to_owned();
        assert_eq!(next(&s).unwrap(), "backstop explain es-client-2", "out, and no latch");
        s.record = None;
        s.sees[2].fault = Some(format!("no record; {INIT}"));
        assert_eq!(next(&s).unwrap(), INIT);
    }
}
