//! Every history of a small fleet, with the shipped core; and every broken rule caught.
//!
//!     cargo test -p backstop-core-alone -- --nocapture --test-threads 1
//!     BACKSTOP_MODEL_BUDGET=full cargo test -p backstop-core-alone -- --nocapture --test-threads 1
//!
//! Run for real: `want`, `decide`, `settle_commit`, `apply`, `evaluate`, `floor`, `heal`, `in_service`, `Poll::own` and both
//! invariants. A world holds handles of real `Durable`, `Seen`, `Record` and `Op` values (`fleet/intern.rs`); each distinct
//! call of the core is made once and its answer kept.
//!
//! A history may draw its faults, in any order and combination, from: crash between any two effects (answer got or not),
//! an agent that is down until after its deadline, full disk, store outage, write applied but unanswered, write unanswered
//! that lands later or never, lagging read, unknown read, deadline, failing job, job that leaves no verdict or a sick node,
//! target deregistered by somebody else, instance dead, slot over its budget. `Faults::MORE` adds: calls to the load
//! balancer, the runner and the machine that fail (done or not), a machine that restarts unasked, time that passes between
//! an acknowledgement and its use, a target registered by somebody else. Verbs: `rejoin`, `hold`, `latch clear`, `retire` of
//! a silent agent. A peer's `lost` latch, `retire` of the dead, and all recoveries cost nothing and are always possible.
//!
//! States are counted up to renaming of the nodes, and up to clock readings and texts (`fleet/quotient.rs` says why that
//! loses nothing; `the_quotient_is_sound_on_random_histories` and `node_numbers_carry_no_meaning` try to refute it). The
//! two liveness rules follow, from every reachable state, one fair continuation without new faults (`fleet/home.rs`).
//!
//! What every driver of the core owes, and this one does: a decision that differs from the stored one goes through
//! `settle_commit` before anything else happens; an effect that is `outward` runs only while the stored decision is the one
//! in memory, so a driver stores what is in memory as soon as the disk takes it; a `Wait` is followed by a `Tick`.
//!
//! Left out: `drain`'s connections that never end, clocks that step, pages beyond "each failure raised one", peers'
//! heartbeats, `init`, rates and budgets, overrides, `--skip-check`, late load-balancer writes (only as "deregistered by
//! somebody else"), limits on self-heal. Tables in `src/core/*/tests` cover those of the core.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::pedantic,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::needless_range_loop,
    reason = "tests of small numbers; what fails here fails the test"
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

/// Rows that the default budget leaves out: `BACKSTOP_MODEL_BUDGET=full`.
fn verify_in_full(name: &str, faults: u8, verbs: u8, f: Config) {
    if std::env::var("BACKSTOP_MODEL_BUDGET").is_ok_and(|v| v == "full") {
        verify(name, faults, verbs, f);
    }
}

fn more(f: Config) -> Config {
    Config { kinds: Faults::MORE, ..f }
}

#[test]
fn one_agent() {
    verify("1 agent, 2 cycles", 3, 2, Config { cycles: 2, ..base(1, 1) });
}

#[test]
fn two_agents() {
    verify("2 agents", 3, 0, base(2, 1));
    verify("2 agents", 2, 1, base(2, 1));
    let again = Config { cycles: 2, ..base(2, 1) };
    verify("2 agents, 2 cycles", 1, 0, again);
    verify_in_full("2 agents, 2 cycles", 1, 2, again);
    let silent = Config { retire: RetireOf::Silent, ..base(2, 1) };
    verify("2 agents, retire while silent", 1, 1, silent);
    verify_in_full("2 agents, retire while silent", 2, 1, silent);
}

#[test]
fn two_agents_two_slots() {
    verify("2 agents, 2 slots", 1, 1, base(2, 2));
    verify("2 agents, 2 slots", 2, 0, base(2, 2));
    verify_in_full("2 agents, 2 slots", 2, 1, base(2, 2));
    verify_in_full("2 agents, 2 slots", 3, 0, base(2, 2));
}

#[test]
fn three_agents() {
    verify("3 agents", 2, 0, base(3, 1));
    verify("3 agents", 1, 1, base(3, 1));
    verify("3 agents, 2 slots", 1, 0, base(3, 2));
    verify_in_full("3 agents, 2 slots", 1, 1, base(3, 2));
}

/// The stage that the miniature does not have, and the faults that it leaves out.
#[test]
fn reboots() {
    verify("1 agent, reboot, all faults", 3, 1, more(Config { reboot: true, ..base(1, 1) }));
    verify("2 agents, reboot, all faults", 1, 1, more(Config { reboot: true, ..base(2, 1) }));
}

#[test]
fn two_target_groups() {
    verify("1 agent, 2 groups, all faults", 2, 1, more(Config { groups: 2, ..base(1, 1) }));
    verify("2 agents, 2 groups, all faults", 1, 1, more(Config { groups: 2, ..base(2, 1) }));
}

/// Two checks, a quiet period and a bake time; a server that leaves out the rows of targets that it does not know.
#[test]
fn dwells_and_missing_rows() {
    verify("1 agent, dwells, all faults", 2, 1, more(Config { dwells: true, ..base(1, 1) }));
    let both = more(Config { dwells: true, silent: true, ..base(2, 1) });
    verify("2 agents, dwells, missing rows, all faults", 1, 1, both);
}

#[test]
fn lost_state() {
    verify("2 agents, one lost its state, all faults", 2, 1, more(Config { recovery: true, ..base(2, 1) }));
}

/// What may be left out of a state, may be left out.
#[test]
fn the_quotient_is_sound_on_random_histories() {
    let t = Instant::now();
    let plenty = Config { cycles: 2, faults: 12, verbs: 4, kinds: Faults::MORE, ..base(2, 1) };
    let mut steps = 0;
    for seed in 0..300 {
        for f in [
            plenty,
            Config { reboot: true, ..plenty },
            Config { groups: 2, dwells: true, ..plenty },
            Config { silent: true, n: 3, rules: base(3, 2).rules, ..plenty },
            Config { recovery: true, reboot: true, ..plenty },
        ] {
            steps += walk::side_by_side(f, seed, 160);
        }
    }
    println!("{steps} steps side by side, {:.1?}", t.elapsed());
}

#[test]
fn node_numbers_carry_no_meaning() {
    let plenty = Config { cycles: 2, faults: 12, verbs: 4, kinds: Faults::MORE, ..base(3, 2) };
    for seed in 0..60 {
        walk::names_carry_no_meaning(plenty, seed, 160);
        walk::names_carry_no_meaning(Config { groups: 2, n: 2, rules: base(2, 1).rules, ..plenty }, seed, 160);
    }
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

/// No protocol can help here: the load balancer takes no fencing token. An agent that is frozen between its acknowledged
/// write and its call still makes the call after `retire`.
#[test]
fn known_limit_retire_of_a_frozen_agent() {
    let f = Config { verbs: 1, kinds: Faults::default(), retire: RetireOf::Frozen, ..base(2, 1) };
    let path = shortest(f, "3 one at a time: a slot in hand").expect("the limit has gone: say so");
    println!("{path:?}");
}
