use super::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tempfile::TempDir;

const CYCLE: &str = "c-1";
const INSTANCE: &str = "run-1";

/// A systemd in memory: units that do what a test says.
#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one thing that a test sets")]
struct Manager {
    units: BTreeMap<String, UnitState>,
    starts: Vec<String>,
    stops: Vec<String>,
    kills: Vec<String>,
    /// What the next start comes to.
    no_start: Option<NoStart>,
    /// It starts all the same.
    starts_in_doubt: bool,
    /// Nobody answers.
    away: bool,
    /// polkit says no.
    denied: bool,
    /// Only SIGKILL ends what runs.
    stubborn: bool,
    invocations: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Fake(Arc<Mutex<Manager>>);

impl Fake {
    /// A unit that is not as others are.
    pub(super) fn has(&self, unit: &str, state: UnitState) {
        self.it().units.insert(unit.to_owned(), state);
    }

    fn it(&self) -> MutexGuard<'_, Manager> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> Result<MutexGuard<'_, Manager>, Fault> {
        let it = self.it();
        if it.away { Err(Fault::transport("the system bus cannot be reached")) } else { Ok(it) }
    }
}

fn loaded() -> UnitState {
    UnitState { load: "loaded".into(), active: "inactive".into(), ..UnitState::default() }
}

impl Units for Fake {
    async fn show(&self, unit: &str) -> Result<Option<UnitState>, Fault> {
        Ok(self.answers()?.units.get(unit).cloned())
    }

    async fn load(&self, unit: &str) -> Result<UnitState, Fault> {
        Ok(self.answers()?.units.get(unit).cloned().unwrap_or_else(loaded))
    }

    async fn allowed(&self, _unit: &str) -> Result<(), Fault> {
        let denied = self.answers()?.denied;
        if denied { Err(Fault::new(Class::Auth, "the agent may not start it")) } else { Ok(()) }
    }

    async fn start(&self, unit: &str) -> Result<(), NoStart> {
        let mut it = self.answers().map_err(NoStart::Doubt)?;
        it.starts.push(unit.to_owned());
        let no_start = it.no_start.take();
        if it.units.get(unit).is_some_and(UnitState::busy) {
            return no_start.map_or(Ok(()), Err);
        }
        let odd = it.units.get(unit).filter(|state| state.load != "loaded" || state.unmet);
        if let Some(state) = odd {
            let refused = NoStart::Refused(format!("unit {unit} is not loaded: {}", state.load));
            return if state.load == "loaded" { Ok(()) } else { Err(refused) };
        }
        if no_start.is_none() || it.starts_in_doubt {
            it.invocations = it.invocations.saturating_add(1);
            let invocation = format!("{:032x}", it.invocations);
            let running = UnitState { active: "activating".into(), invocation, ..loaded() };
            it.units.insert(unit.to_owned(), running);
        }
        no_start.map_or(Ok(()), Err)
    }

    async fn stop(&self, unit: &str) -> Result<(), Fault> {
        let mut it = self.answers()?;
        it.stops.push(unit.to_owned());
        if !it.stubborn {
            it.units.remove(unit);
        }
        Ok(())
    }

    async fn kill(&self, unit: &str) -> Result<(), Fault> {
        let mut it = self.answers()?;
        it.kills.push(unit.to_owned());
        it.units.remove(unit);
        Ok(())
    }

    async fn busy(&self) -> Result<Vec<String>, Fault> {
        let it = self.answers()?;
        Ok(it.units.iter().filter(|(_, state)| state.busy()).map(|(unit, _)| unit.clone()).collect())
    }
}

struct World {
    temp: TempDir,
    fake: Fake,
    jobs: SystemdJobs<Fake>,
    runtime: tokio::runtime::Runtime,
}

fn job(instance: &str) -> JobSpec {
    JobSpec {
        name: "patch".into(),
        argv: vec!["true".into()],
        reboots: false,
        reboot: crate::core::job::RebootPolicy::Never,
        unit: Some(instance.into()),
    }
}

impl World {
    fn new() -> World {
        let temp = tempfile::tempdir().unwrap();
        std::fs::create_dir(temp.path().join("ended")).unwrap();
        let fake = Fake::default();
        let jobs = World::jobs(&temp, &fake);
        // Its own waits are on a clock that runs by itself when nothing else does.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        World { temp, fake, jobs, runtime }
    }

    fn jobs(temp: &TempDir, fake: &Fake) -> SystemdJobs<Fake> {
        SystemdJobs::new(temp.path(), fake.clone()).with_lines_in(&temp.path().join("ended"))
    }

    /// The agent is another process now, and remembers nothing.
    fn restarted(mut self) -> World {
        self.jobs = World::jobs(&self.temp, &self.fake);
        self
    }

    fn ask(&self) -> JobStatus {
        self.runtime.block_on(self.jobs.ask(CYCLE)).unwrap()
    }

    fn start(&self) -> Result<(), Fault> {
        self.runtime.block_on(self.jobs.start(CYCLE, &job(INSTANCE), 1_000))
    }

    fn kill(&self) -> Result<(), Fault> {
        self.runtime.block_on(self.jobs.kill(CYCLE))
    }

    fn starts(&self) -> usize {
        self.fake.it().starts.len()
    }

    /// The unit ends: it writes its line, and systemd forgets it.
    fn ends(&self, result: &str, status: &str) {
        let state = self.fake.it().units.remove(&unit_name(INSTANCE)).expect("a unit that runs");
        self.line(&state.invocation, result, status);
    }

    fn line(&self, invocation: &str, result: &str, status: &str) {
        let line = Line {
            result: result.into(),
            code: "exited".into(),
            status: status.into(),
            invocation: invocation.into(),
            boot: machine::boot_id().unwrap().0.to_string(),
            ..Line::default()
        };
        let path = self.temp.path().join("ended").join(INSTANCE);
        crate::state::files::replace_durably(&path, line.text().as_bytes(), 0o600).unwrap();
    }
}

fn exited(status: &JobStatus) -> Option<i32> {
    if let JobStatus::Ended(Verdict { result: JobResult::Exited(code), .. }) = status { Some(*code) } else { None }
}

fn not_begun(status: &JobStatus) -> Option<String> {
    if let JobStatus::Ended(Verdict { result: JobResult::NotStarted(why), .. }) = status {
        return Some(why.to_string());
    }
    None
}

#[test]
fn a_job_is_new_then_runs_then_has_the_verdict_of_its_unit() {
    let world = World::new();
    assert_eq!(world.ask(), JobStatus::New);
    world.start().unwrap();
    assert_eq!(world.ask(), JobStatus::Running);
    world.ends("exit-code", "7");
    assert_eq!(exited(&world.ask()), Some(7));
    world.start().unwrap();
    assert_eq!(world.starts(), 1, "it never runs twice");
}

#[test]
fn another_agent_finds_the_job_running_or_its_verdict_whenever_the_first_one_died() {
    // It died before it had seen the unit run; it died after; the unit ended meanwhile, or not.
    for (seen, ended) in [(false, false), (false, true), (true, false), (true, true)] {
        let world = World::new();
        world.start().unwrap();
        if seen {
            assert_eq!(world.ask(), JobStatus::Running);
        }
        if ended {
            world.ends("success", "0");
        }
        let world = world.restarted();
        world.start().unwrap();
        assert_eq!(world.starts(), 1);
        assert_eq!(exited(&world.ask()), ended.then_some(0));
    }
}

#[test]
fn a_start_without_an_answer_is_a_fault_and_then_what_the_unit_shows() {
    for starts_in_doubt in [false, true] {
        let world = World::new();
        let doubt = Fault::new(Class::OutcomeUnknown, "no answer");
        world.fake.it().no_start = Some(NoStart::Doubt(doubt.clone()));
        world.fake.it().starts_in_doubt = starts_in_doubt;
        assert_eq!(world.start(), Err(doubt));
        let expected = if starts_in_doubt { JobStatus::Running } else { JobStatus::New };
        assert_eq!(world.ask(), expected);
        world.start().unwrap();
        assert_eq!(world.starts(), if starts_in_doubt { 1 } else { 2 }, "started once, whatever was answered");
        assert_eq!(world.ask(), JobStatus::Running);
    }
}

#[test]
fn a_unit_that_systemd_does_not_start_is_a_job_that_failed() {
    let world = World::new();
    world.fake.it().no_start = Some(NoStart::Refused("Unit backstop-job@run-1.service is masked.".to_owned()));
    world.start().unwrap();
    assert_eq!(not_begun(&world.ask()).as_deref(), Some("Unit backstop-job@run-1.service is masked."));
}

#[test]
fn a_unit_without_a_command_is_refused_before_anybody_leaves_and_fails_the_job_later() {
    let world = World::new();
    let bad = UnitState { load: "bad-setting".into(), load_error: "no ExecStart=".into(), ..loaded() };
    world.fake.it().units.insert(unit_name(INSTANCE), bad);
    let refused = world.runtime.block_on(world.jobs.ready(&job(INSTANCE))).unwrap_err();
    assert_eq!(refused.class, Class::Refused);
    assert!(refused.message.contains("job.conf") && refused.message.contains("no ExecStart="), "{}", refused.message);
    world.start().unwrap();
    assert!(not_begun(&world.ask()).unwrap().contains("ExecStart="));
    assert_eq!(world.starts(), 0);
}

#[test]
fn a_command_without_a_unit_is_refused_with_what_to_do() {
    let world = World::new();
    let refused = world.runtime.block_on(world.jobs.ready(&JobSpec { unit: None, ..job("x") })).unwrap_err();
    assert!(refused.class == Class::Refused && refused.message.contains("--job NAME"), "{}", refused.message);
}

#[test]
fn a_unit_that_somebody_else_has_started_is_not_taken_for_the_job() {
    let world = World::new();
    let theirs = UnitState { active: "activating".into(), invocation: "ff".into(), ..loaded() };
    world.fake.it().units.insert(unit_name(INSTANCE), theirs);
    world.start().unwrap();
    assert!(not_begun(&world.ask()).unwrap().contains("runs already"));
    assert_eq!(world.starts(), 0);
    world.kill().unwrap();
    assert!(world.fake.it().stops.is_empty(), "and goes on");
}

#[test]
fn the_line_of_an_earlier_run_of_the_unit_is_not_the_verdict() {
    let world = World::new();
    world.line("ee", "success", "0");
    world.start().unwrap();
    assert_eq!(world.ask(), JobStatus::Running);
    world.fake.it().units.clear();
    assert_eq!(world.ask(), JobStatus::Lost, "it left no line of its own");
}

#[test]
fn a_job_that_ended_without_its_line_is_lost_also_where_systemd_says_success() {
    let world = World::new();
    world.start().unwrap();
    assert_eq!(world.ask(), JobStatus::Running);
    let invocation = world.fake.it().units.remove(&unit_name(INSTANCE)).unwrap().invocation;
    world.fake.it().units.insert(unit_name(INSTANCE), UnitState { invocation, ..loaded() });
    assert_eq!(world.ask(), JobStatus::Lost);
}

#[test]
fn a_unit_whose_condition_is_not_met_never_ran() {
    let world = World::new();
    world.start().unwrap();
    world.fake.it().units.insert(unit_name(INSTANCE), UnitState { unmet: true, ..loaded() });
    assert!(not_begun(&world.ask()).unwrap().contains("condition"));
}

#[test]
fn a_verdict_is_told_while_nobody_answers_on_the_bus_and_nothing_else_is() {
    let world = World::new();
    world.start().unwrap();
    world.fake.it().away = true;
    assert!(world.runtime.block_on(world.jobs.ask(CYCLE)).is_err(), "no answer is neither running nor lost");
    world.fake.it().away = false;
    world.ends("success", "0");
    world.fake.it().away = true;
    assert_eq!(exited(&world.ask()), Some(0));
}

#[test]
fn lines_in_a_directory_that_others_may_write_to_are_not_believed() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = World::new();
    world.start().unwrap();
    world.ends("success", "0");
    let dir = world.temp.path().join("ended");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let fault = world.runtime.block_on(world.jobs.ask(CYCLE)).unwrap_err();
    assert!(fault.message.contains("chmod"), "{}", fault.message);
}

#[test]
fn a_killed_job_is_gone_and_its_verdict_says_so() {
    let world = World::new();
    world.start().unwrap();
    world.kill().unwrap();
    assert_eq!(world.fake.it().stops, [unit_name(INSTANCE)]);
    assert!(matches!(world.ask(), JobStatus::Ended(Verdict { result: JobResult::Killed, .. })));
    world.kill().unwrap();
    assert_eq!(world.fake.it().stops.len(), 1);
}

#[test]
fn what_runs_in_the_unit_of_one_run_is_stopped_with_it_whatever_is_known_of_it() {
    let world = World::new();
    world.start().unwrap();
    assert_eq!(world.ask(), JobStatus::Running);
    let other = UnitState { active: "activating".into(), invocation: "ff".into(), ..loaded() };
    world.fake.it().units.insert(unit_name(INSTANCE), other);
    assert_eq!(world.ask(), JobStatus::Lost);
    world.kill().unwrap();
    assert_eq!(world.fake.it().stops, [unit_name(INSTANCE)]);
}

#[test]
fn an_agent_that_may_not_start_the_unit_is_told_before_anybody_leaves() {
    let world = World::new();
    let ready = || world.runtime.block_on(world.jobs.ready(&job(INSTANCE)));
    assert_eq!(ready(), Ok(()));
    world.fake.it().denied = true;
    assert_eq!(ready().unwrap_err().class, Class::Auth);
    world.fake.it().denied = false;
    let theirs = UnitState { active: "activating".into(), invocation: "ff".into(), ..loaded() };
    world.fake.it().units.insert(unit_name(INSTANCE), theirs);
    assert_eq!(ready().unwrap_err().class, Class::NotReady, "it may end");
}

#[test]
fn what_does_not_stop_is_killed() {
    let world = World::new();
    world.start().unwrap();
    world.fake.it().stubborn = true;
    tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
        // Looking at files is on threads of their own, which hold this clock.
        world.jobs.kill(CYCLE).await.unwrap();
    });
    assert_eq!(world.fake.it().kills, [unit_name(INSTANCE)]);
}

#[test]
fn a_kill_that_nobody_answers_does_not_say_that_it_is_done() {
    let world = World::new();
    world.start().unwrap();
    world.fake.it().away = true;
    assert!(world.kill().is_err());
    world.fake.it().away = false;
    assert_eq!(world.ask(), JobStatus::Running);
}

#[test]
fn a_job_that_was_called_off_never_starts() {
    // Never asked for; and asked for without an answer.
    for asked in [false, true] {
        let world = World::new();
        if asked {
            world.fake.it().no_start = Some(NoStart::Doubt(Fault::transport("no answer")));
            assert!(world.start().is_err());
        }
        world.kill().unwrap();
        assert_eq!(!world.fake.it().stops.is_empty(), asked, "a start that may be on its way is taken back");
        let before = world.starts();
        world.start().unwrap();
        assert_eq!(world.starts(), before);
        assert!(matches!(world.ask(), JobStatus::Ended(Verdict { result: JobResult::Killed, .. })));
    }
}

#[test]
fn running_jobs_are_told_by_their_cycle_and_unknown_ones_by_their_unit() {
    let world = World::new();
    world.start().unwrap();
    let stray = UnitState { active: "activating".into(), invocation: "ff".into(), ..loaded() };
    world.fake.it().units.insert(unit_name("run-stray"), stray);
    let running = |world: &World| world.runtime.block_on(world.jobs.running()).unwrap();
    assert_eq!(running(&world), [CYCLE, "run-stray"]);
    world.runtime.block_on(world.jobs.kill("run-stray")).unwrap();
    assert_eq!(running(&world), [CYCLE]);
}

#[test]
fn a_note_that_cannot_be_read_starts_nothing() {
    let world = World::new();
    world.start().unwrap();
    let note = world.temp.path().join("jobs").join(CYCLE).join("unit");
    std::io::Write::write_all(&mut std::fs::File::create(note).unwrap(), b"{").unwrap();
    assert!(world.start().is_err());
    assert_eq!(world.starts(), 1);
}

#[test]
fn a_verdict_that_was_told_stays_when_the_unit_runs_again() {
    let world = World::new();
    world.start().unwrap();
    world.ends("exit-code", "7");
    assert_eq!(exited(&world.ask()), Some(7));
    world.line("dd", "success", "0");
    assert_eq!(exited(&world.ask()), Some(7));
}

#[test]
fn a_job_of_another_boot_has_ended_or_is_lost() {
    let note = Note {
        instance: INSTANCE.into(),
        boot: "before".into(),
        before: vec!["ee".into()],
        accepted: true,
        invocation: Some("aa".into()),
    };
    let line = |invocation: &str, boot: &str| Line {
        result: "success".into(),
        code: "exited".into(),
        status: "0".into(),
        invocation: invocation.into(),
        boot: boot.into(),
        ..Line::default()
    };
    let of = |note: &Note, line: Option<Line>| judge(note, "now", None, line.as_ref());
    assert!(matches!(of(&note, Some(line("aa", "before"))), Judged::Ended(_)));
    assert_eq!(of(&note, Some(line("bb", "before"))), Judged::Lost);
    assert_eq!(of(&note, None), Judged::Lost);
    let unseen = Note { invocation: None, accepted: false, ..note };
    assert!(matches!(of(&unseen, Some(line("bb", "before"))), Judged::Ended(_)));
    assert_eq!(of(&unseen, Some(line("ee", "before"))), Judged::Lost, "an earlier run");
    assert_eq!(of(&unseen, Some(line("bb", "now"))), Judged::Lost, "a run of this boot is another one");
}
