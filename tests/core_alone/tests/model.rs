//! Every history of a small fleet, with the shipped core; and every broken rule caught.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    reason = "tests of small numbers"
)]
#![allow(clippy::disallowed_methods, reason = "a table of run times is printed")]
mod fleet;

use backstop_core_alone::rules::{Mutant, Rules};
use fleet::*;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::time::Instant;

/// The defaults of the design where they fit; a smaller fleet, or two slots, may run down to one node.
fn base(n: usize, max_unavailable: u32) -> Config {
    let full = n == 3 && max_unavailable == 1;
    let few = u32::try_from(n).unwrap();
    let rules = Rules {
        max_unavailable,
        minimum_healthy: if full { 3 } else { few.min(2) },
        minimum_during_patch: if full { 2 } else { (few - 1).min(1) },
        mutant: Mutant::None,
    };
    Config {
        n,
        groups: 1,
        rules,
        cycles: 1,
        faults: 0,
        verbs: 0,
        kinds: Faults::ALL,
        retire: RetireOf::Dead,
        symmetric: true,
        reboot: false,
        dwells: false,
        silent: false,
        recovery: false,
    }
}

fn full_budget() -> bool {
    std::env::var("BACKSTOP_MODEL_BUDGET").is_ok_and(|v| v == "full")
}

fn verify(name: &str, faults: u8, verbs: u8, f: Config) {
    let t = Instant::now();
    let f = Config { faults, verbs, ..f };
    let fleet = Fleet::new(f);
    let tables = fleet.t.clone();
    let c = fleet.checker().threads(2).spawn_bfs().join();
    let (states, depth, took) = (c.unique_state_count(), c.max_depth(), t.elapsed());
    println!("| {name} | {faults} | {verbs} | {states} | {depth} | {took:.1?} | {}", tables.sizes());
    report(&c);
}

/// Like `assert_properties`, but with nothing but the steps.
fn report<M: Model<State = World, Action = Act>>(c: &impl Checker<M>) {
    let mut broken = Vec::new();
    for p in c.model().properties() {
        let found = c.discovery(p.name);
        match (p.expectation, found) {
            (Expectation::Always, Some(path)) => {
                broken.push(format!("[{}] broken by {:?}", p.name, path.into_actions()))
            }
            (Expectation::Sometimes, None) => broken.push(format!("[{}] is never reached", p.name)),
            _ => {}
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn table() {
    verify("2 agents", 3, 0, base(2, 1));
}

/// The shortest history that breaks this rule.
fn shortest(f: Config, rule: &'static str) -> Option<Vec<Act>> {
    let fleet = Fleet::new(Config { symmetric: false, ..f });
    let always = |p: &stateright::Property<Fleet>| matches!(p.expectation, Expectation::Always);
    let name = fleet.properties().into_iter().find(|p| always(p) && p.name.starts_with(rule)).expect("a rule").name;
    let look = |depth| {
        let found = HasDiscoveries::AnyOf([name].into_iter().collect());
        let fleet = fleet.clone();
        let c = fleet.checker().threads(2).target_max_depth(depth).finish_when(found).spawn_bfs().join();
        c.discovery(name).map(|path| path.into_actions())
    };
    let depth = (5..100).step_by(5).find(|d| look(*d).is_some())?;
    (depth - 4..=depth).find_map(look)
}

fn caught(mutant: Mutant, rule: &'static str, f: Config, faults: u8, verbs: u8, kinds: Faults) {
    let mut f = Config { faults, verbs, kinds, ..f };
    assert_eq!(shortest(f, rule), None, "the rule must hold without the mutant");
    f.rules.mutant = mutant;
    let path = shortest(f, rule).unwrap_or_else(|| panic!("{mutant:?} survives [{rule}]"));
    println!("| {mutant:?} | {} | {rule} | {path:?}", path.len());
}

#[test]
fn mutants_are_caught() {
    use Mutant::*;
    let no = Faults::default();
    let two_slots = base(2, 2);
    caught(ClaimByRead, "3 one at a time: a slot in hand", base(1, 1), 1, 0, Faults { lost: true, ..no });
    caught(FloorBeforeSlot, "1 floor: enough others", two_slots, 0, 0, no);
    caught(FloorCountsLeavers, "1 floor: enough others", two_slots, 0, 0, no); // a slot's holder
    caught(FloorCountsLeavers, "1 floor: never too few", base(2, 1), 0, 1, no); // a hold's holder
    caught(ReleaseBeforeSettle, "3 one at a time: who is away", base(2, 1), 0, 0, no);
    caught(LatchAfterWayBack, "4 latch: tried before", base(1, 1), 1, 0, Faults { job: true, ..no });
    caught(NoFence, "ghost slot", base(1, 1), 2, 0, Faults { lost: true, deadline: true, ..no });
    caught(HomewardNeedsCommit, "2 way back: needs neither", base(1, 1), 1, 0, Faults { disk: true, ..no });
    caught(LatchExpires, "4 latch: no start over", base(2, 1), 1, 0, Faults { job: true, ..no });
    caught(UnknownIsHealthy, "1 floor: enough others", base(2, 1), 2, 0, Faults { reads: true, outside: true, ..no });
    caught(EffectBeforePersist, "2 way back: who is away knows", base(1, 1), 1, 0, Faults { crash: true, ..no });
    caught(SettleOnlyWaits, "2 way back: once faults end", base(1, 1), 1, 0, Faults { outside: true, ..no });
    caught(
        ReleaseOnlyFrees,
        "2 way back: needs neither",
        base(1, 1),
        2,
        0,
        Faults { outside: true, store: true, ..no },
    );
    caught(FloorOncePerCycle, "1 floor: enough others", base(2, 1), 2, 0, Faults { outside: true, crash: true, ..no });
    let crash_disk = Faults { crash: true, disk: true, ..no };
    caught(ConfirmIgnoresOwnLatch, "4 latch: a failed cycle takes no", base(1, 1), 2, 0, crash_disk);
    let loses_holder = Faults { job: true, death: true, store: true, ..no };
    caught(RetireDropsFailure, "4 latch: a failure whose slot", base(2, 1), 3, 0, loses_holder);
    caught(NoTombstone, "4 latch: cleared stays", base(1, 1), 2, 1, Faults { job: true, lost: true, ..no });
    caught(HoldEndsAtOnce, "1 floor: never too few", base(2, 1), 2, 1, Faults { reads: true, ..no });
    let reboot = Config { reboot: true, ..base(1, 1) };
    caught(SameBootCounts, "reboot: the machine really", reboot, 0, 0, no);
    let two_groups = Config { groups: 2, ..base(1, 1) };
    caught(OneGroupIsEnough, "job and reboot only out", two_groups, 0, 0, no);
    caught(OneGroupIsHome, "3 one at a time: who is away", two_groups, 0, 0, no);
    caught(OneGroupIsHome, "2 way back: home in one group", two_groups, 0, 0, no);
}

fn explain(f: Config) {
    let fleet = Fleet::new(f);
    let c = fleet.clone().checker().threads(2).spawn_bfs().join();
    println!("{} states", c.unique_state_count());
    for p in fleet.properties() {
        let found = c.discovery(p.name);
        match (p.expectation.clone(), found) {
            (Expectation::Always, Some(_)) => {
                let path = shortest(f, p.name);
                println!("[{}] {path:?}", p.name);
                let m = Fleet::new(f);
                let mut w = m.init();
                for a in path.unwrap_or_default() {
                    w = m.step(&w, a).unwrap();
                    print!("  {a:?}:");
                    for n in w.node.iter().take(f.n) {
                        print!(
                            " {:?} {:?} {:?}",
                            n.disk.stage,
                            n.ram.map(|r| (r.disk.stage, r.todo.name())),
                            &n.target[..f.groups]
                        );
                    }
                    println!(" {:?} {:?}", w.rec, w.bad);
                }
                if p.name.starts_with("2 way back: once") {
                    let e = m.end(&w);
                    for n in e.node.iter().take(f.n) {
                        println!(
                            " END {:?} {:?} {:?}",
                            n.disk.stage,
                            n.ram.map(|r| (r.disk.stage, r.todo.name())),
                            &n.target[..f.groups]
                        );
                    }
                    println!("{:?}", e.rec);
                }
            }
            (Expectation::Sometimes, None) => println!("[{}] is never reached", p.name),
            _ => {}
        }
    }
}
