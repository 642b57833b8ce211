//! `explain`: why a node is where it is, why nothing else is happening, and what to do. Made from a status alone.
//!
//! Whoever reads this was paged: every answer ends in commands, the first of them the one to begin with. A remark stands
//! behind `#`, so that a line can be pasted as it is. Words of the trade are explained where they first stand.

use crate::alerts::text::{RUNBOOKS, by_hand, look_at};
use crate::control::protocol::{CycleStatus, Explain, NodeStatus, SILENT_MS, Status, VERSION};
use crate::core::cycle::StageName;
use crate::core::record::Record;
use crate::words::{age, moment};

/// What creates the fleet record.
pub(super) const INIT: &str = "backstop init --fleet";

const CYCLE: &str = "one trip of one node: out, its job, back";
const SLOT: &str = "the right to be out of service, one node at a time";
const LATCH: &str = "the lock that a failed cycle leaves until a person clears it";
const GUARD: &str = "a condition that has to hold before a node may leave";

/// About `name`, a node or an instance, by what the agent that made `s` sees.
pub(super) fn explain(s: &Status, name: &str) -> Explain {
    let mut e = Told { s, lines: Vec::new(), next: Vec::new(), faults: Vec::new() };
    let node = s.nodes.iter().find(|n| n.node == name || n.instance == name);
    match node {
        None => {
            let known = s.nodes.iter().map(|n| n.node.as_str()).collect::<Vec<_>>().join(", ");
            e.say(format!("{name} is no member of fleet {} that this agent knows (members: {known}).", s.fleet));
        }
        Some(n) => {
            e.service(n);
            e.agent(n);
            match (n.own, &s.cycle, &s.last) {
                (true, Some(c), _) => e.cycle(n, c),
                (true, None, Some(last)) => {
                    let (at, cycle, job) = (moment(last.at.wall_ms, s.now_ms), &last.cycle, &last.job);
                    e.say(format!("Its last cycle ({CYCLE}), {cycle}, job {job}, ended at {at}: {}.", last.message));
                }
                (true, None, None) => e.say("No cycle has run on it with this state directory.".to_owned()),
                (false, ..) => {}
            }
            e.findings(n);
            e.way_back(n);
            e.record(n);
        }
    }
    e.sight();
    if e.next.is_empty() {
        e.nothing_to_do(name);
    }
    Explain { v: VERSION, node: name.to_owned(), unknown: node.is_none(), lines: e.lines, next: e.next }
}

struct Told<'a> {
    s: &'a Status,
    lines: Vec<String>,
    next: Vec<String>,
    /// What was said already: one fault reaches many places.
    faults: Vec<String>,
}

fn silent(n: &NodeStatus) -> bool {
    !n.own && n.beat_age_ms.is_none_or(|ms| ms > SILENT_MS)
}

/// The stage of its cycle: its own agent's word, else what its member document begins with.
fn stage(s: &Status, n: &NodeStatus) -> Option<StageName> {
    if let (true, Some(c)) = (n.own, &s.cycle) {
        return Some(c.stage);
    }
    let first = n.doing.split([':', ' ']).next().unwrap_or_default();
    StageName::ALL.into_iter().find(|stage| stage.label() == first)
}

/// What its tries end with, by its own words: `check: try 168, connection refused`.
fn failing(n: &NodeStatus) -> Option<&str> {
    n.doing.split_once(": try ").and_then(|(_, tries)| tries.split_once(", ")).map(|(_, fault)| fault)
}

impl Told<'_> {
    fn say(&mut self, line: String) {
        self.lines.push(line);
    }

    fn then(&mut self, command: String) {
        if !self.next.contains(&command) {
            self.next.push(command);
        }
    }

    /// `: fault`, the first time; what stands in something that was said before is not repeated.
    fn once(&mut self, fault: &str) -> String {
        if self.faults.iter().any(|said| said.contains(fault)) {
            return String::new();
        }
        let again = self.faults.iter().find(|said| !said.is_empty() && fault.contains(said.as_str()));
        let told = again.map_or_else(|| fault.to_owned(), |said| fault.replace(said.as_str(), "the same"));
        self.faults.push(fault.to_owned());
        format!(": {told}")
    }

    fn service(&mut self, n: &NodeStatus) {
        let targets = n.targets.iter().map(|(g, state)| format!("{g}: {state}")).collect::<Vec<_>>().join(", ");
        let since = n.since_ms.map_or_else(String::new, |ms| format!(" since {}", moment(ms, self.s.now_ms)));
        let node = &n.node;
        self.say(match n.service.as_str() {
            "in" => format!("{node} is in service{since} ({targets})."),
            "OUT" => format!("{node} is OUT of service{since} ({targets})."),
            _ => format!("Whether {node} is in service is unknown ({targets})."),
        });
    }

    fn agent(&mut self, n: &NodeStatus) {
        let heard =
            n.beat_age_ms.map_or_else(|| "was never heard".to_owned(), |ms| format!("was last heard {} ago", age(ms)));
        let version = &n.agent;
        if silent(n) {
            self.say(format!(
                "Its agent ({version}) {heard}: it is dead, or its host is, or it cannot write its beat."
            ));
        } else if !n.own {
            self.say(format!("Its agent ({version}) {heard} and says: {}.", n.doing));
            self.faults.extend(failing(n).map(str::to_owned));
        }
    }

    fn cycle(&mut self, n: &NodeStatus, c: &CycleStatus) {
        let (since, now_ms) = (c.stage_since_ms, self.s.now_ms);
        let ago = age(now_ms.saturating_sub(since));
        let about = if c.kind == "patch" { format!("job {}", c.job) } else { c.kind.clone() };
        let what = match (&c.fault, c.tries) {
            (Some(fault), n) if n > 0 => {
                // The failure, which is told below, has it.
                let had = c.failure.as_ref().is_some_and(|(_, _, message)| message.contains(fault.as_str()));
                let fault = if had { String::new() } else { self.once(fault) };
                format!("{n} tries failed{fault}")
            }
            _ => c.waiting_for.clone(),
        };
        self.say(format!(
            "Cycle {} ({CYCLE}; {about}) is in {} since {}, for {ago}: {what}.",
            c.cycle,
            c.stage,
            moment(since, now_ms)
        ));
        if let Some((stage, class, message)) = &c.failure {
            let message = self.once(message);
            self.say(format!("It failed in {stage} ({class}){message}."));
        }
        if let Some(early) = &c.early {
            self.say(format!("It ends early: {early}."));
        }
        if c.late {
            self.say(match n.service.as_str() {
                "in" => "It came back later than its deadlines allow.".to_owned(),
                _ => format!("{} is OUT for longer than its deadlines allow; the agent goes on trying.", n.node),
            });
        }
    }

    /// What is wrong with this node, and with the fleet as a whole; who was told of it.
    fn findings(&mut self, n: &NodeStatus) {
        let s = self.s;
        let about = |subject: &str| {
            let named = |id: &str| subject.split([' ', ':', ',']).any(|word| word == id);
            named(&n.node) || named(&n.instance) || n.registers_as.iter().any(|t| subject.contains(&*t.id))
        };
        for f in s.findings.iter().filter(|f| about(&f.subject) || *f.subject == *s.fleet) {
            let sentence = self.once(&f.sentence);
            self.say(format!("Wrong: {}, {}{sentence}.", f.kind.label(), f.subject));
        }
        for a in s.alerts.iter().filter(|a| about(&a.subject) || a.subject == s.fleet) {
            let told: Vec<String> = a
                .sinks
                .iter()
                .filter_map(|k| Some(format!("{} at {}", k.sink, moment(k.accepted_ms?, s.now_ms))))
                .collect();
            let failing: Vec<String> =
                a.sinks.iter().filter_map(|k| Some(format!("{} ({})", k.sink, k.fault.as_ref()?))).collect();
            let mut parts = Vec::new();
            if !told.is_empty() {
                parts.push(format!("accepted by {}", told.join(", ")));
            }
            if !failing.is_empty() {
                parts.push(format!("NOT DELIVERED to {}", failing.join(", ")));
            }
            if let Some(page) = &a.told_in {
                parts.push(format!("told in the page {page}"));
            }
            if a.state != "resolved" && !parts.is_empty() {
                self.say(format!("People were paged ({}, {}): {}.", a.kind, a.subject, parts.join("; ")));
            }
        }
    }

    /// What brings a node back that is not in service.
    fn way_back(&mut self, n: &NodeStatus) {
        if n.service == "in" {
            return;
        }
        let node = &n.node;
        if silent(n) {
            self.then(format!(
                "systemctl restart backstop   # on {node}: never takes a node out; an unfinished way back goes on"
            ));
            for t in &n.registers_as {
                self.then(format!("{}   # if the agent stays dead and Elasticsearch on {node} answers", by_hand(t)));
            }
            return;
        }
        let held = |r: &Record| r.holds.keys().any(|i| i.as_str() == n.instance);
        match stage(self.s, n) {
            Some(StageName::Held) => {
                self.then(format!("backstop rejoin --reason \"...\"   # on {node}: end the hold now"));
            }
            Some(StageName::Check) if failing(n).is_none() => {
                self.say(format!(
                    "Elasticsearch on {node} answers: the node registers itself after enough passes in a row."
                ));
                self.then(format!("backstop wait   # on {node}: follow it"));
            }
            Some(StageName::Check) => {
                self.say(format!(
                    "To do: mend Elasticsearch on {node}, so that its check passes. Nothing else is needed: the node then registers itself."
                ));
                self.then(format!("journalctl -u elasticsearch -n 100   # on {node}: why its check fails"));
                self.then(format!(
                    "backstop rejoin --skip-check --reason \"...\"   # on {node}: register although its check fails; the load balancer checks too"
                ));
            }
            Some(StageName::Register | StageName::Settle) => {
                self.say(format!("Elasticsearch on {node} answers; what is left is between it and the load balancer."));
                for t in &n.registers_as {
                    self.then(look_at(&t.group.0));
                }
                self.then(format!("less {RUNBOOKS}/out-of-service.md"));
            }
            Some(StageName::Release | StageName::Claim) => {}
            Some(StageName::Deregister | StageName::Drain | StageName::Patch | StageName::Reboot) => {
                self.then(format!("backstop wait   # on {node}: follow it"));
                self.then(format!("backstop rejoin --reason \"...\"   # on {node}: stop it and put the node back"));
            }
            None if self.s.record.as_ref().is_some_and(held) => {
                self.then(format!("backstop rejoin --reason \"...\"   # on {node}: end the hold"));
            }
            None => {
                self.say(match self.s.heals_in_ms.filter(|_| n.own) {
                    Some(ms) => format!(
                        "No cycle explains that. Its agent registers it in {} if its check passes.",
                        crate::words::span(ms)
                    ),
                    None => "No cycle explains that. Its agent registers it after a while (reconcile.self_heal_after) if its \
                             check passes."
                        .to_owned(),
                });
                self.then(format!("backstop rejoin --reason \"...\"   # on {node}: put it back now"));
                self.then(format!("journalctl -u elasticsearch -n 100   # on {node}: if it does not answer"));
            }
        }
    }

    /// What the fleet record says: why no other cycle starts.
    fn record(&mut self, n: &NodeStatus) {
        let s = self.s;
        let Some(r) = &s.record else {
            return self.say("The fleet record is unknown, so no cycle starts anywhere.".to_owned());
        };
        let (mut slot_word, mut latch_word) = (format!(" ({SLOT})"), format!(" ({LATCH})"));
        for (id, l) in r.open_latches() {
            let (at, message) = (moment(l.since_ms, s.now_ms), self.once(&l.message));
            self.say(format!(
                "No node starts another cycle: latch {id}{} is set, since {} failed in {} at {at} (job {}, {}){message}.",
                std::mem::take(&mut latch_word),
                l.node,
                l.stage,
                l.job,
                l.class
            ));
            let out = s.nodes.iter().any(|other| other.instance == l.instance.as_str() && other.service != "in");
            if out && l.instance.as_str() != n.instance {
                self.then(format!("backstop explain {}", l.node));
            }
            let when = if out {
                format!("once {} is back and you know why it failed", l.node)
            } else {
                "once you know why it failed".to_owned()
            };
            self.then(format!("backstop latch clear {id} --reason \"...\"   # {when}"));
        }
        for (instance, slot) in &r.slots {
            let whose = if instance.as_str() == n.instance { "It" } else { slot.node.as_str() };
            let word = std::mem::take(&mut slot_word);
            self.say(format!("{whose} holds a slot{word} for cycle {}, job {}.", slot.cycle, slot.job));
        }
        let full = u32::try_from(r.slots.len()).unwrap_or(u32::MAX) >= s.max_unavailable;
        if let Some((_, slot)) = r.slots.iter().find(|(i, _)| full && i.as_str() != n.instance) {
            self.then(format!("backstop explain {}", slot.node));
        }
        if let Some(p) = &r.pause {
            self.say(format!("The fleet is paused by {} since {}: {}.", p.by, moment(p.since_ms, s.now_ms), p.reason));
            self.then("backstop unpause --reason \"...\"".to_owned());
        }
        for h in r.holds.values() {
            let at = moment(h.order.since_ms, s.now_ms);
            self.say(format!("{} is held out of service by {} since {at}: {}.", h.node, h.order.by, h.order.reason));
        }
        if s.mode == "observe" {
            self.say(
                "This agent observes (mode = \"observe\"): it never registers or deregisters anything.".to_owned(),
            );
        }
    }

    fn sight(&mut self) {
        for source in &self.s.sees {
            let age =
                source.age_ms.map_or_else(|| "never answered".to_owned(), |ms| format!("answered {} ago", age(ms)));
            match &source.fault {
                Some(f) => {
                    if f.contains(INIT) {
                        self.then(format!("{INIT}   # only where this fleet is new"));
                    }
                    let fault = self.once(f);
                    self.say(format!("The {} {age}; the last try failed{fault}.", source.source));
                }
                None if source.age_ms.is_none() => self.say(format!("The {} {age} yet.", source.source)),
                None => {}
            }
        }
        for page in &self.s.pages_waiting {
            self.say(format!("A page waits for delivery ({}): {}.", page.kind.label(), page.message));
        }
        if let Some(problem) = &self.s.config_problem {
            self.say(format!("This node's config or identity is in doubt, so no cycle starts: {problem}"));
            self.then("backstop config check".to_owned());
            self.then("systemctl reload backstop   # once the file is right".to_owned());
        }
    }

    fn nothing_to_do(&mut self, name: &str) {
        if *name != *self.s.node || self.s.cycle.is_some() {
            return self.then("backstop status".to_owned());
        }
        let said = match &self.s.would_refuse {
            Some(v) => {
                let (guard, sentence) = (v.guard, self.once(&v.sentence));
                format!("A run on it would be refused now by the guard {guard} ({GUARD}){sentence}.")
            }
            None => {
                format!(
                    "Nothing that this agent sees keeps it from leaving. backstop check asks every guard ({GUARD})."
                )
            }
        };
        self.say(said);
        self.then("backstop check".to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    /// es-client-2 is out, its cycle failed in `check`, its latch blocks patching; es-client-1 is asked.
    fn status() -> Status {
        serde_json::from_str(include_str!("../../tests/fixtures/json/status.json")).unwrap()
    }

    /// The same, from the node in trouble itself.
    fn affected() -> Status {
        let mut s = status();
        s.node = "es-client-2".to_owned();
        for n in &mut s.nodes {
            n.own = n.node == s.node;
        }
        let fault = "GET http://10.0.0.2:9200/: connection refused (transport)";
        s.cycle = serde_json::from_value(json!({
            "cycle": "c-7f3a", "kind": "patch", "job": "apt-security", "stage": "check", "stage_since_ms": s.now_ms.saturating_sub(60_000),
            "out_since_ms": s.now_ms.saturating_sub(90_000), "waiting_for": "check: try 168, connection refused", "tries": 168,
            "fault": fault, "failure": ["check", "transport", format!("check took longer than 900 s: {fault}")],
            "early": null, "late": true, "deadline_left_ms": 0
        }))
        .unwrap();
        s
    }

    fn texts(e: &Explain) -> String {
        e.lines.join("\n")
    }

    #[test]
    fn no_node_is_explained_by_explaining_it() {
        let (mut held, mut gone) = (affected(), status());
        if let Some(c) = &mut held.cycle {
            c.stage = StageName::Held;
        }
        gone.record = None;
        for s in [status(), affected(), held, gone] {
            for name in ["es-client-1", "es-client-2", "es-client-3"] {
                let told = explain(&s, name);
                assert!(!told.next.is_empty(), "{name}");
                assert!(told.next.iter().all(|n| !n.starts_with(&format!("backstop explain {name}"))), "{told:?}");
            }
        }
    }

    #[test]
    fn the_node_in_trouble_is_told_what_to_mend_then_how_to_force_it_then_what_comes_after() {
        let told = explain(&affected(), "es-client-2");
        let begins = [
            "journalctl -u elasticsearch",
            "backstop rejoin --skip-check --reason",
            "backstop latch clear L-7f3a --reason",
        ];
        assert_eq!(told.next.len(), begins.len(), "{:?}", told.next);
        assert!(told.next.iter().zip(begins).all(|(n, b)| n.starts_with(b)), "{:?}", told.next);
        assert_eq!(texts(&told).matches("connection refused").count(), 1, "one fault is told once: {told:?}");
    }

    #[test]
    fn words_of_the_trade_are_explained_where_they_first_stand_and_only_there() {
        let told = texts(&explain(&affected(), "es-client-2"));
        for word in [CYCLE, SLOT, LATCH] {
            assert_eq!(told.matches(word).count(), 1, "{word}: {told}");
        }
        let mut calm = status();
        calm.record = calm.record.map(|r| Record { latches: BTreeMap::new(), slots: BTreeMap::new(), ..r });
        let told = explain(&calm, "es-client-1");
        assert!(texts(&told).contains(GUARD) && told.next == ["backstop check"], "{told:?}");
    }

    #[test]
    fn a_node_that_could_not_leave_now_is_not_said_to_be_free_to() {
        let mut calm = status();
        calm.record = calm.record.map(|r| Record { latches: BTreeMap::new(), slots: BTreeMap::new(), ..r });
        let refusal = json!({"guard": "minimum-healthy", "said": "refused", "sentence": "2 in service, need 3", "exit": "below-minimum"});
        calm.would_refuse = Some(serde_json::from_value(refusal).unwrap());
        let told = texts(&explain(&calm, "es-client-1"));
        assert!(told.contains("refused now by the guard minimum-healthy"), "{told}");
        assert!(told.contains("2 in service, need 3") && !told.contains("Nothing that this agent sees"), "{told}");
    }

    #[test]
    fn commands_about_a_group_name_its_region() {
        let mut s = affected();
        let group = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef";
        let target = serde_json::from_value(json!({"group": group, "id": "i-2", "port": 9200})).unwrap();
        s.nodes[1].registers_as = vec![target];
        if let Some(c) = &mut s.cycle {
            c.stage = StageName::Settle;
        }
        let told = explain(&s, "es-client-2");
        let look = format!("aws elbv2 describe-target-health --region eu-west-1 --target-group-arn {group}");
        assert_eq!(told.next[0], look);
    }

    #[test]
    fn another_node_points_at_the_one_that_is_out_and_says_what_it_says_of_itself() {
        let told = explain(&status(), "es-client-1");
        assert_eq!(told.next[0], "backstop explain es-client-2");
        let told = explain(&status(), "es-client-2");
        assert!(texts(&told).contains("says: check: try 168, connection refused"), "{told:?}");
        assert!(told.next[0].starts_with("journalctl -u elasticsearch"), "{told:?}");
    }

    #[test]
    fn where_the_agent_is_dead_there_is_a_command_that_needs_none() {
        let mut s = status();
        s.nodes[1].beat_age_ms = Some(SILENT_MS + 1);
        let group = "arn:aws:elasticloadbalancing:eu-west-1:123456789012:targetgroup/es-clients/0123456789abcdef";
        s.nodes[1].registers_as = vec![crate::core::target::Target {
            group: crate::core::target::GroupArn(group.into()),
            id: "i-2".into(),
            port: 9200,
        }];
        let told = explain(&s, "es-client-2");
        assert!(told.next[0].starts_with("systemctl restart backstop"), "{told:?}");
        let aws = format!(
            "aws elbv2 register-targets --region eu-west-1 --target-group-arn {group} --targets Id=i-2,Port=9200   #"
        );
        assert!(told.next[1].starts_with(&aws), "{told:?}");
    }

    #[test]
    fn a_missing_record_names_what_creates_it() {
        let mut s = status();
        s.record = None;
        s.sees[2].fault =
            Some(format!("fleet au-search has no record; if this fleet is new: {INIT}; if not, find out"));
        assert!(explain(&s, "es-client-1").next[0].starts_with(INIT));
    }
}
