//! A panic in a look: said, counted, told once, and survived, whatever part of the look it is in and however long it lasts.

use crate::fakes::{Call, Fake, Trouble, good};
use crate::running::Running;
use backstop::agent::measure::expose;
use backstop::clock::Clock;
use backstop::core::cycle::StageName;
use std::collections::BTreeSet;

/// Calls that only the observer makes in a fleet at rest, and what `status` calls their source.
const PARTS: [(Call, &str); 5] = [
    (Call::Poll, "load balancer"),
    (Call::ReadRecord, "fleet record"),
    (Call::Nodes, "cluster nodes"),
    (Call::Members, "members"),
    (Call::Beat, "own document"),
];

fn keys(fake: &Fake, kind: &str) -> Vec<String> {
    fake.all_pages().into_iter().filter(|p| p.kind == kind).map(|p| p.key).collect()
}

/// Times that a part of a look ended in a panic, by the metric.
fn counted(r: &Running, part: &str) -> u64 {
    let label = format!("part=\"{part}\"");
    let line = |l: &&str| l.starts_with("backstop_panics_total{") && l.contains(&label);
    let text = expose(&r.shared);
    let value = text.lines().find(line).and_then(|l| l.rsplit_once(' ')).map_or(0.0, |(_, n)| n.parse().unwrap());
    value as u64
}

#[tokio::test]
async fn a_panic_in_one_part_of_a_look_is_a_fault_of_that_source_told_once_and_the_other_parts_go_on() {
    for (call, source) in PARTS {
        let fake = Fake::new();
        let r = Running::start(&fake).await;
        r.minutes(11).await;
        fake.trouble(call, Some(Trouble::Panic));
        let of = |r: &Running| r.shared.observed.borrow().faults.get(source).map(ToString::to_string);
        r.comes_within("its source has a fault", 60, |r| of(r).is_some_and(|f| f.contains("a panic"))).await;
        r.comes_within("a person is told", 30, |r| !keys(&r.fake, "agent-fault").is_empty()).await;
        let (looks, counts) = (r.shared.observed.borrow().looks, counted(&r, source));
        assert!(counts > 0, "{source}");
        r.minutes(10).await;
        assert!(r.shared.observed.borrow().looks > looks + 30, "{source}: the looks go on");
        assert!(counted(&r, source) > counts + 3, "{source}: each time is counted");
        assert_eq!(keys(&fake, "agent-fault").len(), 1, "{source}: told once");
        let says = |p: &backstop::alerts::Rendered| p.kind == "agent-fault" && p.text.contains(source);
        assert!(fake.all_pages().iter().any(says), "{source}");
        // What cannot be seen is told as any other blindness; the own document is nothing that is seen.
        assert_eq!(keys(&fake, "blind").is_empty(), call == Call::Beat, "{source}: {:?}", keys(&fake, "blind"));
        assert_eq!((r.shared.turns.fresh(&fake.clock.now()), fake.balancer_writes()), (Ok(()), 0), "{source}");
        fake.trouble(call, None);
        r.comes_within("it sees again", 120, |r| of(r).is_none()).await;
        r.comes_within("and says so", 600, |r| !r.firing().iter().any(|k| k.contains("/blind/"))).await;
    }
}

#[tokio::test]
async fn a_look_that_panics_once_is_told_and_the_next_one_finds_what_is_wrong() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    fake.trouble(Call::Poll, Some(Trouble::Panic));
    r.comes_within("told", 60, |r| keys(&r.fake, "agent-fault").len() == 1).await;
    fake.trouble(Call::Poll, None);
    fake.serves(2, false);
    r.comes_within("it finds it", 60, |r| keys(&r.fake, "below-minimum").len() == 1).await;
    assert_eq!(keys(&fake, "agent-fault").len(), 1);
}

#[tokio::test]
async fn an_observer_of_which_every_part_panics_at_every_look_is_not_ended_and_its_node_comes_home() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    fake.job_ends(None);
    r.run_job().await;
    r.until("patch", 200, |r| r.stage() == Some(StageName::Patch)).await;
    // What the way back needs panics, too: the store and the load balancer.
    let all: Vec<Call> = PARTS.iter().map(|(call, _)| *call).chain([Call::Lifecycle]).collect();
    fake.troubles(&all, Some(Trouble::Panic));
    r.seconds(60).await;
    fake.job_ends(Some(good()));
    r.minutes(10).await;
    let now = fake.clock.now();
    assert_eq!(r.shared.turns.fresh(&now), Ok(()), "systemd has no reason to start it again");
    let told: BTreeSet<String> = keys(&fake, "agent-fault").into_iter().collect();
    assert_eq!(told.len(), keys(&fake, "agent-fault").len(), "each part is told once: {told:?}");
    assert!(!told.is_empty());
    fake.troubles(&[Call::Poll, Call::ReadRecord], None);
    r.comes_within("home, though the rest of each look still panics", 600, |r| {
        r.fake.in_service() && r.stage().is_none()
    })
    .await;
    assert_eq!(keys(&fake, "agent-fault").len(), told.len());
    assert_eq!(r.shared.turns.fresh(&fake.clock.now()), Ok(()));
}

#[tokio::test]
async fn a_panic_that_lasts_for_days_is_one_alert_with_a_reminder_each_day() {
    let fake = Fake::new();
    let r = Running::start(&fake).await;
    r.minutes(11).await;
    fake.trouble(Call::Nodes, Some(Trouble::Panic));
    r.comes_within("told", 120, |r| keys(&r.fake, "agent-fault").len() == 1).await;
    r.minutes(60).await;
    for _ in 0..4 {
        fake.clock.advance(11 * 3_600_000 + 1_800_000);
        r.minutes(30).await;
    }
    let told: Vec<_> = fake.told().into_iter().filter(|p| p.kind == "agent-fault").collect();
    let of = |event: &str| told.iter().filter(|p| p.event == event).count();
    assert_eq!((of("trigger"), of("reminder")), (1, 2), "in two days and two hours: {told:?}");
    assert!(r.firing().iter().any(|key| key.contains("/agent-fault/")), "{:?}", r.firing());
}
