//! Takes clock readings and texts out of stored values: histories that differ in nothing else are one state.
//!
//! Why that loses nothing: the core compares times in four ways only. (1) *Is the deadline due?* Deadlines are days, all
//! waits and retries of one history together are hours: due only in the step that jumps past one. (2) *May I go on?*
//! (`next_at`): every step begins after the wait of the one before. (3) *Has the dwell lasted, is the acknowledgement
//! young?*: yes or no, kept as such. (4) *Is it the same boot?*: kept as such. Texts, exit codes and pages are never read
//! by `want` or `decide` (whether a failure paged is checked in the step itself). `model.rs` does not believe this: it
//! walks long random histories with whole values and with these, side by side.
use super::names::{ACK_MAX_AGE_MS, Clock, Names, What, cycle_of, what_of};
use backstop_core_alone::cycle::{Cycle, Durable, Early, Failure, FailureClass, Seen, Stage, StageName};
use backstop_core_alone::exit::Exit;
use backstop_core_alone::job::Verdict;
use backstop_core_alone::plan::Kind;
use backstop_core_alone::rules::Mutant;
use backstop_core_alone::time::{BootId, Deadline, Dwell, Now};

/// Everything as if it had just happened, in boot 1; what is of another boot is of boot 0.
pub struct Quotient<'a> {
    pub names: &'a Names,
    /// The clock that the values were made under.
    pub now: &'a Now,
    /// A deadline that is due and not acted on yet: by so much the present is after all that is stored.
    late_ms: u64,
}

/// Where the deadline's end does nothing but page, it is over: release, and the way back of a failed cycle.
fn only_pages(c: &Cycle) -> bool {
    c.stage == Stage::Release || (c.failure.is_some() && c.stage.name().homeward())
}

impl<'a> Quotient<'a> {
    pub fn new(names: &'a Names, now: &'a Now) -> Self {
        Quotient { names, now, late_ms: 0 }
    }
    pub fn of(names: &'a Names, now: &'a Now, d: &Durable) -> Self {
        let late = d.cycle.as_ref().filter(|c| !only_pages(c) && c.deadline.due(now));
        Quotient { names, now, late_ms: late.map_or(0, |c| c.deadline.budget_ms()) }
    }

    fn boot(&self, boot: &BootId) -> BootId {
        self.names.boots[usize::from(*boot == self.now.boot)].clone()
    }
    fn at(&self, boot: &BootId) -> Now {
        Now { boot: self.boot(boot), ..self.here() }
    }
    fn here(&self) -> Now {
        self.names.now(Clock::ZERO)
    }

    fn clock(&self) -> Clock {
        let Clock { wall_ms, boot, since_boot_ms } = Clock::ZERO;
        Clock { wall_ms: wall_ms + self.late_ms, boot, since_boot_ms: since_boot_ms + self.late_ms }
    }
    /// The present of a process: what it has seen counts from here.
    pub fn present(&self) -> Now {
        self.names.now(self.clock())
    }
    fn deadline(&self, d: &Deadline) -> Deadline {
        let fresh = Deadline::start(&self.at(&d.started().boot), d.budget_ms());
        if d.fired() { fresh.spent(&self.here()) } else { fresh }
    }
    fn dwell(&self, d: &Dwell) -> Dwell {
        Dwell::start(&self.present(), u64::from(!d.over(self.now)))
    }

    fn lasted(&self, since: &Now, need_ms: u64) -> Now {
        let here = self.clock();
        let lasted = self.now.since(since).is_some_and(|ms| ms >= need_ms);
        let since_boot_ms = if lasted { here.since_boot_ms - need_ms } else { here.since_boot_ms };
        self.names.now(Clock { since_boot_ms, ..here })
    }

    pub fn durable(&self, d: &Durable) -> Durable {
        let cycle = d.cycle.as_ref().map(|c| self.cycle(c));
        Durable {
            instance: d.instance.clone(),
            cycle,
            last: None,
            pages: Vec::new(),
            page_seq: 0,
            reboots_ms: Vec::new(),
            record: None,
            doubt: None,
            retired: false,
            owed: None,
            heals_ms: Vec::new(),
        }
    }

    fn cycle(&self, c: &Cycle) -> Cycle {
        let (i, number) = cycle_of(&c.plan.id);
        let plan = self.names.plans[&(i, number, what_of(&c.plan.kind))].clone();
        assert_eq!(*plan, *c.plan, "plans never change");
        let stage = match &c.stage {
            Stage::Reboot { from, asked } => Stage::Reboot { from: self.boot(from), asked: *asked },
            Stage::Held { until } => Stage::Held { until: self.deadline(until) },
            other => other.clone(),
        };
        // An invariant of stored values asks for a good verdict in `reboot`; nothing else reads it.
        let verdict = c.verdict.as_ref().filter(|_| c.stage.name() == StageName::Reboot).map(|v| Verdict {
            result: v.result.clone(),
            reboot_needed: v.reboot_needed,
            output_tail: self.names.empty.clone(),
            codes: v.codes,
        });
        let deadline = self.deadline(&c.deadline);
        Cycle {
            deadline: if only_pages(c) { deadline.spent(&self.here()) } else { deadline },
            entered: self.at(&c.entered.boot),
            out_since: c.out_since.as_ref().map(|_| self.here()),
            cut: None,
            job_started: c.job_started && c.stage.name() == StageName::Patch,
            verdict,
            kill_job: c.kill_job,
            kill_paged: false,
            failure: c.failure.as_ref().map(|f| self.failure(f)),
            // Only whether a cycle turned round before it left: an invariant reads it.
            early: c
                .early
                .as_ref()
                .filter(|_| c.out_since.is_none())
                .map(|_| Early { exit: Exit::EndedEarly, message: self.names.empty.clone() }),
            late: None,
            bounced: c.bounced,
            refused_paged: false,
            disk_paged: false,
            skip_check: c.skip_check.as_ref().map(|_| self.names.empty.clone()),
            hold: c.hold.clone(),
            stage,
            plan,
        }
    }

    fn failure(&self, _: &Failure) -> Failure {
        let message = self.names.empty.clone();
        Failure { stage: StageName::Check, class: FailureClass::Deadline, message, at: self.here() }
    }

    /// `d` is the stored state that `v` belongs to.
    pub fn seen(&self, d: &Durable, v: &Seen) -> Seen {
        use StageName as S;
        let Some(c) = &d.cycle else { return Seen::default() };
        let at = c.stage.name();
        let one_of = |stages: &[StageName]| stages.contains(&at);
        let by_read = c.plan.rules.is(Mutant::ClaimByRead);
        let young = |acked: &&Now| {
            at == S::Claim || at == S::Held || self.now.since(acked).is_some_and(|ms| ms <= ACK_MAX_AGE_MS)
        };
        let no_row = one_of(&[S::Drain, S::Patch, S::Reboot]) && v.no_row.iter().any(|n| *n > 0);
        let own_counts =
            at == S::Register || c.hold.is_some() || (at == S::Deregister && what_of(&c.plan.kind) == What::Hold);
        Seen {
            acked_at: v.acked_at.as_ref().filter(young).map(|_| self.present()),
            leavers: if at == S::Deregister { v.leavers.clone() } else { Default::default() },
            floor: v.floor && at == S::Deregister,
            guards: v.guards,
            called: v.called,
            accepted: v.accepted,
            own: if own_counts { v.own.clone() } else { Vec::new() },
            no_row: if no_row { v.no_row.iter().map(|n| (*n).min(2)).collect() } else { Vec::new() },
            again: v.again.min(2),
            gone: v.gone,
            job_new: v.job_new,
            started: v.started,
            start_failed: v.start_failed,
            killed: v.killed,
            passes: v.passes.min(c.plan.check.passes),
            first_pass: v.first_pass.as_ref().map(|first| self.lasted(first, c.plan.check.over_ms)),
            bake: v.bake.as_ref().map(|d| self.dwell(d)),
            quiet: v.quiet.as_ref().map(|d| self.dwell(d)),
            connections: None,
            unknown: v.unknown,
            unread: v.unread && one_of(&[S::Drain, S::Patch, S::Check, S::Register, S::Settle]),
            disk_refused: v.disk_refused && at == S::Settle,
            next_at: None,
            tries: 0,
            fault: None,
            auth_since: None,
            tried: v.tried,
            latched: v.latched,
            doubt: v.doubt && (at == S::Claim || by_read),
            refusal: None,
        }
    }
}

/// The same values under other node numbers: `to[i]` is what node `i` is called from now on.
pub fn renamed_durable(names: &Names, d: &Durable, to: &[usize]) -> Durable {
    let mut d = d.clone();
    d.instance = names.instance[to[names.node(&d.instance)]].clone();
    if let Some(c) = &mut d.cycle {
        let (i, number) = cycle_of(&c.plan.id);
        c.plan = names.plans[&(to[i], number, what_of(&c.plan.kind))].clone();
    }
    d
}

pub fn renamed_seen(names: &Names, v: &Seen, to: &[usize]) -> Seen {
    let leavers = v.leavers.iter().map(|l| names.instance[to[names.node(l)]].clone()).collect();
    Seen { leavers, ..v.clone() }
}

/// What kind of cycle, and its number in the record; 0 where it leaves nothing there.
pub fn number_of(d: &Durable) -> u8 {
    match &d.cycle {
        Some(c) if matches!(c.plan.kind, Kind::Patch(_) | Kind::Recovery) => cycle_of(&c.plan.id).1,
        _ => 0,
    }
}
