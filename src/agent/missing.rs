//! Which members are not in service, and what brings each of them back or why nothing does: for the page about the fleet.
//! Of other nodes by what their own agents say in their beats; nobody guesses for them.

use super::shared::{Observed, Parts, Shared, World};
use super::sight;
use super::status::{standing, waiting_for};
use crate::alerts::text::Missing;
use crate::clock::Clock;
use crate::config::Mode;
use crate::control::protocol::SILENT_MS;
use crate::core::finding::Kind;
use crate::core::heal;
use crate::core::ids::InstanceId;
use crate::core::member::Member;
use crate::core::reconcile::Settings;
use crate::core::record::Record;
use crate::core::target::Own;
use crate::core::time::Now;
use crate::words::{age, span};
use std::sync::Arc;

/// What this agent knows of its own node beside what it has read.
pub(super) struct Me {
    pub(super) instance: InstanceId,
    pub(super) observes: bool,
    /// Registers itself then.
    pub(super) heals_at: Option<Now>,
    /// Has done so as often as it may.
    pub(super) heals_no_more: bool,
    /// What its cycle waits for.
    pub(super) cycle: Option<String>,
    /// `reconcile.self_heal_after`, the same on every node.
    pub(super) heal_after_ms: u64,
    /// Its numbers, `minimum_during_patch` among them.
    pub(super) settings: Settings,
}

/// By what this agent has read.
pub(super) fn of<W: World>(shared: &Shared<W>, parts: &Parts<W>, seen: &Observed) -> Vec<Missing> {
    let (heals_at, heals_no_more) = {
        let cache = shared.cache();
        (cache.heals_at.clone(), cache.heals_no_more.is_some())
    };
    let (now, node) = (shared.clock.now(), shared.node.borrow().clone());
    let me = Me {
        instance: shared.instance(),
        observes: parts.config.mode != Mode::Act,
        heals_at,
        heals_no_more,
        cycle: node.durable.cycle.as_ref().map(|c| waiting_for(c, &node.seen, &now)),
        heal_after_ms: parts.config.reconcile.self_heal_after_ms,
        settings: sight::settings(&parts.config),
    };
    missing(&me, seen, &now)
}

/// Those that nothing explains first.
pub(super) fn missing(me: &Me, seen: &Observed, now: &Now) -> Vec<Missing> {
    let Some(view) = &seen.fleet else { return Vec::new() };
    let members = seen.members.as_ref().map(|(m, _)| m.as_slice()).unwrap_or_default();
    let out = members.iter().filter(|m| view.members.contains(&m.instance) && !view.in_service.contains(&m.instance));
    let mut missing: Vec<Missing> = out.map(|m| one(m, me, seen, now)).collect();
    missing.sort_by_key(|m| m.planned);
    missing
}

fn one(m: &Member, me: &Me, seen: &Observed, now: &Now) -> Missing {
    let record = seen.record.as_ref().map(|(r, _)| r);
    // A plan whose time is over, whose cycle failed or whose agent is gone brings nobody back.
    let in_time = sight::known(seen, &me.settings, now).in_its_time(&m.instance);
    let planned = record.filter(|_| in_time).and_then(|r| planned(m, me, r));
    let says = planned.clone().unwrap_or_else(|| unplanned(m, me, seen, record, now));
    Missing { node: m.node.to_string(), planned: planned.is_some(), says }
}

/// Out by a cycle, or held.
fn planned(m: &Member, me: &Me, record: &Record) -> Option<String> {
    if let Some(hold) = record.holds.get(&m.instance) {
        return Some(format!("is held out by {}: {}", hold.order.by, hold.order.reason));
    }
    let slot = record.slots.get(&m.instance)?;
    Some(format!("is out for its job {} (cycle {}): {}", slot.job, slot.cycle, doing(m, me)))
}

fn doing<'a>(m: &'a Member, me: &'a Me) -> &'a str {
    me.cycle.as_deref().filter(|_| m.instance == me.instance).unwrap_or(&m.doing)
}

fn unplanned(m: &Member, me: &Me, seen: &Observed, record: Option<&Record>, now: &Now) -> String {
    let (own, node) = (m.instance == me.instance, &m.node);
    let heart = seen.hearts.get(&m.instance).and_then(|h| now.since(&h.changed));
    if !own && heart.is_none_or(|ms| ms > SILENT_MS) {
        let since = heart.map_or_else(|| "was never heard".to_owned(), |ms| format!("is silent for {}", age(ms)));
        return format!("stays out: its agent {since}. On it: systemctl restart backstop");
    }
    let said = if own { String::new() } else { format!(" (said {} ago)", age(heart.unwrap_or(0))) };
    let present = doing(m, me);
    // A cycle on its way back, failed or not: its own agent brings it home.
    if !present.starts_with("idle") {
        return format!("is brought back by its cycle, {present}{said}");
    }
    if let Some(all) = record.and_then(|r| r.hold_all.as_ref()) {
        return format!("stays out: self-heal is OFF on every node by {}: {}", all.order.by, all.order.reason);
    }
    let targets = standing(m, seen, &me.instance);
    if let Some((group, state)) = targets.iter().find(|(_, own)| own.registered() && *own != Own::InService)
        && !targets.iter().any(|(_, own)| heal::out(own))
    {
        let state = state.sentence();
        return format!(
            "is registered in {group}, {state}: to register it again would not help; it serves once those checks pass"
        );
    }
    let no_more: Arc<str> = format!("{}/{node}", Kind::HealedTooOften.label()).into();
    if (own && me.heals_no_more) || m.says.finds.contains(&no_more) {
        return "stays out: it has registered itself as often as it may in a day; something takes it out".to_owned();
    }
    if own && me.observes {
        return "stays out: mode is observe, so nothing registers it".to_owned();
    }
    if let Some(at) = me.heals_at.as_ref().filter(|_| own) {
        return format!("registers itself in {} if its check passes", span(at.since(now).unwrap_or(0)));
    }
    match present.strip_prefix("idle, ") {
        Some(heals) => format!("{heals} if its check passes{said}"),
        None => format!("registers itself, if its check passes, {}", usual(me, seen)),
    }
}

/// When a node registers itself that has not said it yet.
fn usual(me: &Me, seen: &Observed) -> String {
    let below = seen.fleet.as_ref().is_some_and(|v| v.in_service_count() < me.settings.minimum_during_patch);
    if below {
        "two or three looks after its agent saw it out, for the fleet is below its floor".to_owned()
    } else {
        format!("{} after its agent saw it out (reconcile.self_heal_after)", span(me.heal_after_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::member::{Says, in_service};
    use crate::core::record::{Extra, Hold, Latch, Pause, Slot};
    use crate::core::target::{GroupArn, Poll, Row, Target, TargetState};
    use crate::core::time::BootId;
    use std::collections::BTreeMap;

    const MIN: u64 = 60_000;

    fn at(ms: u64) -> Now {
        Now { wall_ms: 1_700_000_000_000, boot: BootId("b".into()), since_boot_ms: 1_000 }.plus(ms)
    }

    fn me() -> Me {
        Me {
            instance: "i-1".into(),
            observes: false,
            heals_at: None,
            heals_no_more: false,
            cycle: None,
            heal_after_ms: 5 * MIN,
            settings: Settings::default(),
        }
    }

    fn member(n: u32, doing: &str) -> Member {
        let id = format!("i-{n}");
        Member {
            schema: 1,
            instance: id.as_str().into(),
            node: format!("es-{n}").as_str().into(),
            targets: vec![Target { group: GroupArn("g".into()), id: id.as_str().into(), port: 9200 }],
            agent: "1".into(),
            reads_schema: 1,
            boot: BootId("b".into()),
            beat: 1,
            doing: doing.into(),
            at_ms: 0,
            node_id: None,
            address: None,
            sees: Vec::new(),
            record: None,
            says: Says::default(),
            told: Vec::new(),
            extra: Extra::new(),
        }
    }

    /// es-1 and es-2 as the list has them, es-3 healthy; of es-2 its agent says this.
    fn seen(one: Option<TargetState>, two: Option<TargetState>, doing: &str) -> Observed {
        let members = vec![member(1, "idle"), member(2, doing), member(3, "idle")];
        let row = |id: &str, state| Row { id: id.into(), port: Some(9200), state, reason: None, shifted: false };
        let rows = [one.map(|s| row("i-1", s)), two.map(|s| row("i-2", s)), Some(row("i-3", TargetState::Healthy))];
        let poll = Poll { list: rows.into_iter().flatten().collect(), named: None };
        let polls = BTreeMap::from([(GroupArn("g".into()), poll)]);
        let mut seen = Observed::default();
        seen.saw_members(Ok(members.clone()), at(0), 15_000);
        seen.fleet = Some(in_service(&members, &[GroupArn("g".into())], &polls, at(0)));
        seen.record = Some((Record::new("f".into()), at(0)));
        Observed { polls, ..seen }
    }

    fn order() -> Pause {
        Pause { by: "ann".into(), reason: "a move".into(), since_ms: 0, extra: Extra::new() }
    }

    fn says(me: &Me, seen: &Observed, now: u64) -> Vec<(String, bool, String)> {
        missing(me, seen, &at(now)).into_iter().map(|m| (m.node, m.planned, m.says)).collect()
    }

    fn of_two(seen: &Observed, now: u64) -> String {
        says(&me(), seen, now).into_iter().find(|(node, ..)| node == "es-2").map(|(.., says)| says).unwrap_or_default()
    }

    const HEALTHY: Option<TargetState> = Some(TargetState::Healthy);

    #[test]
    fn a_node_that_puts_itself_back_says_when() {
        let own = Me { heals_at: Some(at(4 * MIN)), ..me() };
        let mut all = seen(None, None, "idle, registers itself in 3m00s");
        all.fleet = all.fleet.map(|v| crate::core::member::FleetView { begun: at(0), ..v });
        assert_eq!(
            says(&own, &all, 12_000),
            [
                ("es-1".to_owned(), false, "registers itself in 3m48s if its check passes".to_owned()),
                ("es-2".to_owned(), false, "registers itself in 3m00s if its check passes (said 12 s ago)".to_owned()),
            ]
        );
        let unsaid = of_two(&seen(HEALTHY, None, "idle"), 0);
        assert_eq!(
            unsaid,
            "registers itself, if its check passes, 5m00s after its agent saw it out (reconcile.self_heal_after)"
        );
        let emptied = of_two(&seen(None, None, "idle"), 0);
        assert!(
            emptied.ends_with("two or three looks after its agent saw it out, for the fleet is below its floor"),
            "{emptied}"
        );
    }

    #[test]
    fn a_node_that_stays_out_says_why() {
        let out = || seen(HEALTHY, None, "idle");
        let silent = of_two(&out(), SILENT_MS + 1_000);
        assert!(silent.starts_with("stays out: its agent is silent for 1m01s"), "{silent}");
        let failing = of_two(&seen(HEALTHY, Some(TargetState::Unhealthy), "idle"), 0);
        assert!(failing.starts_with("is registered in g, unhealthy: to register it again would not help"), "{failing}");
        let mut off = out();
        if let Some((r, _)) = &mut off.record {
            r.hold_all = Some(Hold { node: "es-3".into(), order: order(), for_s: 60, extra: Extra::new() });
        }
        assert_eq!(of_two(&off, 0), "stays out: self-heal is OFF on every node by ann: a move");
        let mut often = out();
        if let Some((members, _)) = &mut often.members {
            for m in members {
                m.says.finds = vec!["healed-too-often/es-2".into()];
            }
        }
        assert!(of_two(&often, 0).contains("as often as it may"), "{}", of_two(&often, 0));
        let observes = says(&Me { observes: true, ..me() }, &seen(None, HEALTHY, "idle"), 0);
        assert_eq!(observes[0].2, "stays out: mode is observe, so nothing registers it");
    }

    #[test]
    fn a_node_that_is_out_on_purpose_comes_last_until_its_cycle_fails() {
        let mut all = seen(None, None, "drain: draining, 4m00s at most");
        let slot = Slot {
            cycle: "c-1".into(),
            node: "es-2".into(),
            job: "apt".into(),
            budget_s: 1,
            since_ms: 0,
            extra: Extra::new(),
        };
        if let Some((r, _)) = &mut all.record {
            r.holds.insert("i-1".into(), Hold { node: "es-1".into(), order: order(), for_s: 9, extra: Extra::new() });
            r.slots.insert("i-2".into(), slot);
        }
        let told = says(&me(), &all, 0);
        assert_eq!(told[0], ("es-1".to_owned(), true, "is held out by ann: a move".to_owned()));
        assert_eq!(told[1].2, "is out for its job apt (cycle c-1): drain: draining, 4m00s at most");
        let mut late = all.clone();
        let (record, begun) = late.record.clone().unwrap();
        late.first.see(&record, &begun);
        let over = says(&me(), &late, 2_000);
        assert_eq!((over[0].0.as_str(), over[0].1), ("es-2", false), "the time of its cycle is over: {over:?}");
        if let Some((r, _)) = &mut all.record {
            let latch = Latch {
                instance: "i-2".into(),
                node: "es-2".into(),
                stage: "drain".into(),
                class: "transport".into(),
                message: "m".into(),
                job: "apt".into(),
                since_ms: 0,
                cleared: None,
                extra: Extra::new(),
            };
            r.latches.insert("c-1".into(), latch);
        }
        let told = says(&me(), &all, 2_000);
        assert_eq!((told[0].0.as_str(), told[0].1), ("es-2", false), "{told:?}");
        assert_eq!(told[0].2, "is brought back by its cycle, drain: draining, 4m00s at most (said 2 s ago)");
    }
}
