//! States to begin with, and a driver that answers every effect, with controlled time.

use super::super::super::cycle::{Cycle, Durable, Failure, FailureClass, Seen, Stage, StageName};
use super::super::super::effect::{Effect, Want};
use super::super::super::error::{Fault, Jitter};
use super::super::super::event::Event;
use super::super::super::exit_codes::ExitCodes;
use super::super::super::job::{JobResult, JobSpec, RebootPolicy, Verdict};
use super::super::super::page::{self, Page};
use super::super::super::plan::{Kind, Limits, Plan};
use super::super::super::record::{Extra, Hold, Pause};
use super::super::super::rules::Rules;
use super::super::super::settings::{BalancerKind, CheckSettings, GroupFacts, OwnTarget, TargetType};
use super::super::super::target::{GroupArn, Own, Target};
use super::super::super::time::{BootId, Deadline, Now};
use super::super::super::want::want;
use super::super::{decide, settle_commit};
use std::sync::Arc;

/// In boot 1, this long after the tests' beginning.
pub(super) fn at(ms: u64) -> Now {
    Now { wall_ms: 1_700_000_000_000 + ms, boot: BootId("boot-1".into()), since_boot_ms: 1_000_000 + ms }
}

pub(super) fn hold() -> Hold {
    let order = Pause { by: "ann".into(), reason: "to look at it".into(), since_ms: 0, extra: Extra::new() };
    Hold { node: "node-0".into(), order, for_s: 3_600, extra: Extra::new() }
}

pub(super) fn kinds() -> Vec<Kind> {
    let job = JobSpec {
        name: "patch".into(),
        argv: vec!["patch".into()],
        reboots: false,
        reboot: RebootPolicy::WhenNeeded,
        unit: None,
    };
    vec![Kind::Patch(job), Kind::Hold(hold()), Kind::Return, Kind::Recovery]
}

pub(super) fn plan(kind: Kind) -> Arc<Plan> {
    let facts = GroupFacts {
        target_type: TargetType::Instance,
        balancer: BalancerKind::Application,
        port: Some(9200),
        deregistration_delay_ms: 20_000,
        interval_ms: 5_000,
        healthy_threshold: 2,
    };
    let target = |g: usize| Target { group: GroupArn(format!("arn/{g}/x").into()), id: "i-0".into(), port: 9200 };
    Arc::new(Plan {
        request: "".into(),
        id: "c-000000000001".into(),
        kind,
        instance: "i-0".into(),
        node: "node-0".into(),
        by: "ann".into(),
        targets: (0..2).map(|g| OwnTarget { target: target(g), facts }).collect(),
        check: CheckSettings {
            node_name: "node".into(),
            url: "http://own".into(),
            timeout_ms: 1_000,
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
            canary_index: None,
            expect: None,
            passes: 3,
            over_ms: 15_000,
            every_ms: 5_000,
        },
        port: 9200,
        limits: limits(),
        rules: Rules {
            max_unavailable: 1,
            minimum_healthy: 2,
            minimum_during_patch: 1,
            #[cfg(feature = "mutants")]
            mutant: super::super::super::rules::Mutant::None,
        },
        overrides: Vec::new(),
    })
}

/// The defaults of the design.
fn limits() -> Limits {
    Limits {
        claim_ms: 30_000,
        deregister_ms: 60_000,
        drain_margin_ms: 60_000,
        quiet_ms: 5_000,
        connections_left_fail: false,
        patch_ms: 3_600_000,
        reboot_ms: 900_000,
        check_ms: 900_000,
        register_ms: 120_000,
        settle_ms: 300_000,
        bake_ms: 30_000,
        release_ms: 120_000,
        ack_max_age_ms: 10_000,
        reboots_per_day: 2,
        poll_ms: 2_000,
    }
}

pub(super) fn patch_plan() -> Arc<Plan> {
    plan(kinds()[0].clone())
}

pub(super) fn changed(mut d: Durable, change: impl FnOnce(&mut Cycle)) -> Durable {
    change(d.cycle.as_mut().unwrap());
    d
}

pub(super) fn failed(d: Durable, class: FailureClass, now: &Now) -> Durable {
    let mut d = changed(d, |c| {
        c.failure = Some(Failure { stage: StageName::Patch, class, message: "it failed".into(), at: now.clone() });
    });
    page::raise_failure(&mut d, now);
    d
}

/// A cycle of this kind that has just entered this stage.
pub(super) fn cycle_in(name: StageName, kind: &Kind, now: &Now) -> Durable {
    let stage = match name {
        StageName::Claim => Stage::Claim { acked: false },
        StageName::Deregister => Stage::Deregister,
        StageName::Drain => Stage::Drain,
        StageName::Patch => Stage::Patch,
        StageName::Reboot => Stage::Reboot { from: now.boot.clone(), asked: 0 },
        StageName::Held => Stage::Held { until: Deadline::start(now, 3_600_000) },
        StageName::Check => Stage::Check,
        StageName::Register => Stage::Register,
        StageName::Settle => Stage::Settle,
        StageName::Release => Stage::Release,
    };
    let mut c = Cycle::start(plan(kind.clone()), now);
    c.deadline = Deadline::start(now, super::super::super::cycle::stage_ms(&c.plan, &stage));
    c.out_since = (name != StageName::Claim).then(|| now.clone());
    if name == StageName::Reboot {
        c.verdict = Some(Verdict {
            result: JobResult::Exited(0),
            reboot_needed: true,
            output_tail: "".into(),
            codes: ExitCodes::Plain,
        });
    }
    c.stage = stage;
    Durable { cycle: Some(c), ..Durable::new("i-0".into()) }
}

/// A page that was raised, and when.
pub(super) type Raised = (Page, Now);

/// One node, driven as the agent drives it: decide, commit, act, with waits that take no time.
pub(super) struct Driver {
    pub(super) d: Durable,
    pub(super) v: Seen,
    pub(super) now: Now,
    pub(super) stores: bool,
    pub(super) pages: Vec<Raised>,
    /// Every effect, and when.
    pub(super) effects: Vec<(Effect, Now)>,
}

impl Driver {
    pub(super) fn new(d: Durable, now: Now) -> Driver {
        let mut driver = Driver { d, v: Seen::default(), now, stores: true, pages: Vec::new(), effects: Vec::new() };
        driver.deliver();
        driver.pages.clear();
        driver
    }

    pub(super) fn feed(&mut self, e: &Event) {
        let step = decide(&self.d, &self.v, e, &self.now, Jitter(0));
        let step =
            if step.durable == self.d { step } else { settle_commit(&self.d, &self.v, step, self.stores, &self.now) };
        (self.d, self.v) = (step.durable, step.seen);
        self.deliver();
    }

    /// The pager takes every page at once, so that each one raised is counted.
    fn deliver(&mut self) {
        let now = self.now.clone();
        self.pages.extend(self.d.pages.drain(..).map(|p| (p, now.clone())));
    }

    pub(super) fn restart(&mut self) {
        self.v = Seen::recovered();
        self.feed(&Event::Recovered);
    }

    pub(super) fn stage(&self) -> Option<StageName> {
        self.d.stage()
    }

    /// Until idle, at most so many turns. `answer` says what an effect comes back with.
    pub(super) fn run(&mut self, turns: usize, answer: &mut dyn FnMut(&Effect, &Now) -> Event) {
        for _ in 0..turns {
            match want(&self.d, &self.v, &self.now) {
                Want::Idle => return,
                Want::Wait(until) => {
                    assert_eq!(until.boot, self.now.boot);
                    self.now = until;
                    self.feed(&Event::Tick);
                }
                Want::Do(effect) => {
                    self.effects.push((effect.clone(), self.now.clone()));
                    let e = answer(&effect, &self.now);
                    self.now = self.now.plus(1); // no call takes no time
                    self.feed(&e);
                }
            }
        }
        panic!("not home after {turns} turns: {:?} {:?}", self.d.cycle, self.v);
    }
}

/// What a good world answers. `serving`: the own target was registered.
pub(super) fn good(effect: &Effect, serving: &mut bool) -> Event {
    match effect {
        Effect::Record(_) => Event::Acked { leavers: ["i-0".into()].into() },
        Effect::ReadGuards => Event::Guards(super::verdicts(super::Guard::Mode, super::Said::Pass)),
        Effect::ReadFleet => panic!("the fleet's view has a time of its own: see fleet()"),
        Effect::ReadOwn => Event::Own(vec![if *serving { Own::InService } else { Own::Gone }; 2], None),
        Effect::Deregister(g) => {
            *serving = false;
            Event::Called(*g, Ok(()))
        }
        Effect::Register(g) => {
            *serving = true;
            Event::Called(*g, Ok(()))
        }
        Effect::CountConnections => Event::Connections(Ok(0)),
        Effect::AskJob => Event::Job(Ok(super::ended(0, false))),
        Effect::StartJob | Effect::Reboot => Event::Started(Ok(())),
        Effect::KillJob => Event::Killed(Ok(())),
        Effect::Check => Event::Checked(Ok(super::pass())),
        #[cfg(feature = "mutants")]
        Effect::ReadRecord => panic!("only the mutant asks a read"),
    }
}

/// What a call comes back with that fails.
pub(super) fn bad(effect: &Effect, f: &Fault) -> Event {
    match effect {
        Effect::Record(_) => Event::Unanswered(f.clone()),
        Effect::ReadGuards => Event::Guards(super::verdicts(super::Guard::FleetRecord, super::Said::Unknown)),
        Effect::ReadFleet => Event::Fleet(Err(f.clone())),
        Effect::ReadOwn => Event::Own(vec![Own::Unknown; 2], Some(f.clone())),
        Effect::Deregister(g) | Effect::Register(g) => Event::Called(*g, Err(f.clone())),
        Effect::CountConnections => Event::Connections(Err(f.clone())),
        Effect::AskJob => Event::Job(Err(f.clone())),
        Effect::StartJob | Effect::Reboot => Event::Started(Err(f.clone())),
        Effect::KillJob => Event::Killed(Err(f.clone())),
        Effect::Check => Event::Checked(Err(f.clone())),
        #[cfg(feature = "mutants")]
        Effect::ReadRecord => panic!("only the mutant asks a read"),
    }
}
