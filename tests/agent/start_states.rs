//! Every state in which the own target can be found × what an agent may do with it: leave for a cycle, or come back. Only
//! `healthy` in every group may leave; whatever is not clearly registered is registered, again and again; what is
//! registered is waited for; and what waiting does not heal pages at once, and is waited for all the same.

use crate::fakes::{Call, Fake, ME, Shown, Trouble, row};
use crate::running::Running;
use crate::scene::{After, BOUND, Scene, options};
use backstop::control::protocol::RunReply;
use backstop::core::cycle::{FailureClass, StageName};
use backstop::core::error::Class;
use backstop::core::exit::Exit;
use backstop::core::job::RebootPolicy;
use backstop::core::plan::Kind;
use backstop::core::target::{Named, Reason, Row, TargetState};
use backstop::rehearse::elbv2::{Action, Fault, NamedUnknown, Trouble as WireTrouble};
use backstop::rehearse::fleet::patch_request;

/// What coming back makes of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Back {
    /// In service: nothing to wait for.
    There,
    /// Registered: one call, then it is waited for.
    Waits,
    /// The same, and a person is told at once, with this reason.
    Pages(Reason),
    /// Not, or not clearly, registered: the call is made again and again.
    Registers,
}

/// One state of the own target in the first of two groups; in the other one it is what it is.
struct State {
    name: String,
    shown: Shown,
    leaves: bool,
    back: Back,
}

fn shown(list: Vec<Row>, named: Named) -> Shown {
    Shown { list, named, others: true }
}

fn mine(state: TargetState, reason: Option<Reason>) -> Row {
    row(ME, state, reason)
}

fn at_port(port: u16, row: Row) -> Row {
    Row { port: Some(port), ..row }
}

/// The same row in the list and by name.
fn plain(state: TargetState, reason: Option<Reason>, leaves: bool, back: Back) -> State {
    let row = mine(state, reason);
    let name = format!("{} {}", state.label(), reason.map_or("without a reason", Reason::label));
    State { name, shown: shown(vec![row.clone()], Named::Rows(vec![row])), leaves, back }
}

fn odd(name: &str, list: Vec<Row>, named: Named, leaves: bool, back: Back) -> State {
    State { name: name.to_owned(), shown: shown(list, named), leaves, back }
}

fn with_a_reason() -> Vec<State> {
    use Reason as R;
    use TargetState as T;
    vec![
        plain(T::Healthy, None, true, Back::There),
        plain(T::Initial, Some(R::RegistrationInProgress), false, Back::Waits),
        plain(T::Initial, Some(R::InitialHealthChecking), false, Back::Waits),
        plain(T::Unhealthy, Some(R::ResponseCodeMismatch), false, Back::Waits),
        plain(T::Unhealthy, Some(R::Timeout), false, Back::Waits),
        plain(T::Unhealthy, Some(R::FailedHealthChecks), false, Back::Waits),
        plain(T::Unhealthy, Some(R::InternalError), false, Back::Waits),
        plain(T::UnhealthyDraining, Some(R::FailedHealthChecks), false, Back::Waits),
        plain(T::Draining, Some(R::DeregistrationInProgress), false, Back::Registers),
        plain(T::Unused, Some(R::NotRegistered), false, Back::Registers),
        plain(T::Unused, Some(R::NotInUse), false, Back::Pages(R::NotInUse)),
        plain(T::Unused, Some(R::InvalidState), false, Back::Pages(R::InvalidState)),
        plain(T::Unused, Some(R::IpUnusable), false, Back::Pages(R::IpUnusable)),
        plain(T::Unused, Some(R::Unknown), false, Back::Registers),
        plain(T::Unused, None, false, Back::Registers),
        plain(T::Unavailable, Some(R::HealthCheckDisabled), false, Back::Pages(R::HealthCheckDisabled)),
        plain(T::Unavailable, Some(R::InternalError), false, Back::Waits),
        plain(T::Unavailable, Some(R::NotRegistered), false, Back::Registers),
        plain(T::Unavailable, None, false, Back::Waits),
        plain(T::Unknown, None, false, Back::Registers),
        plain(T::Unknown, Some(R::Unknown), false, Back::Registers),
    ]
}

fn oddly_listed() -> Vec<State> {
    use Reason as R;
    use TargetState as T;
    let healthy = || mine(T::Healthy, None);
    let shifted = || Row { shifted: true, ..healthy() };
    let gone = || mine(T::Unused, Some(R::NotRegistered));
    let draining = || mine(T::Draining, Some(R::DeregistrationInProgress));
    let rows = Named::Rows;
    vec![
        odd("not listed, not registered by name", vec![], rows(vec![gone()]), false, Back::Registers),
        odd("absent from the list and by name", vec![], rows(vec![]), false, Back::Registers),
        odd("absent from the list, InvalidTarget by name", vec![], Named::InvalidTarget, false, Back::Registers),
        odd("absent from the list, healthy by name", vec![], rows(vec![healthy()]), false, Back::Registers),
        odd("healthy under a zonal shift", vec![shifted()], rows(vec![shifted()]), false, Back::Waits),
        odd(
            "twice: healthy, and unhealthy at another port",
            vec![healthy(), at_port(9300, mine(T::Unhealthy, Some(R::Timeout)))],
            rows(vec![healthy()]),
            true,
            Back::There,
        ),
        odd(
            "twice: draining, and healthy at another port",
            vec![draining(), at_port(9300, healthy())],
            rows(vec![draining()]),
            false,
            Back::Registers,
        ),
        odd("only at another port", vec![at_port(9300, healthy())], rows(vec![]), false, Back::Registers),
        odd("without a port", vec![Row { port: None, ..healthy() }], rows(vec![]), false, Back::Registers),
        odd(
            "twice at its own port: healthy and draining",
            vec![healthy(), draining()],
            rows(vec![healthy()]),
            false,
            Back::Registers,
        ),
        odd(
            "twice by name: healthy and draining",
            vec![draining()],
            rows(vec![healthy(), draining()]),
            false,
            Back::Registers,
        ),
    ]
}

async fn starts(s: State) {
    let fake = Fake::new();
    fake.show(0, Some(s.shown));
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let reply = r.run_job().await;
    if s.leaves {
        assert!(matches!(reply, RunReply::Started { .. }), "{}: {reply:?}", s.name);
        r.until("it asks to leave", 10, |r| r.fake.calls(Call::Deregister) >= 2).await;
        return;
    }
    let RunReply::Refused { exit, message, .. } = &reply else { panic!("{}: {reply:?}", s.name) };
    assert_eq!(*exit, Exit::Guard.code(), "{}: {message}", s.name);
    assert!(message.starts_with("self-in-service: "), "{}: {message}", s.name);
    r.pass(5).await;
    let writes = (fake.calls(Call::Deregister), fake.calls(Call::Register), fake.calls(Call::WriteRecord));
    assert_eq!(writes, (0, 0, 0), "{}: a refusal changes nothing", s.name);
    assert_eq!(r.stage(), None, "{}", s.name);
}

/// From `register` on: the call is made, and then what the state asks for; at last it is over.
async fn comes_back(r: &Running, s: &State, calls_before: usize) {
    let (fake, back) = (&r.fake, s.back);
    if back != Back::There {
        let stage = if back == Back::Registers { StageName::Register } else { StageName::Settle };
        r.until(&format!("{}: {stage}", s.name), 60, |r| r.stage() == Some(stage)).await;
        r.pass(16).await; // three reads, and less than the deadline
        assert_eq!(r.stage(), Some(stage), "{}: it waits", s.name);
        let calls = fake.calls(Call::Register) - calls_before;
        if back == Back::Registers {
            assert!(calls >= 4, "{}: both groups, then the first one with each read; {calls} calls", s.name);
        } else {
            assert_eq!(calls, 2, "{}: once in both groups", s.name);
        }
        let pages: Vec<_> = fake.pages().iter().map(|p| (p.kind.clone(), p.text.clone())).collect();
        match back {
            Back::Pages(reason) => {
                assert!(pages.len() == 1 && pages[0].0 == "out-of-service", "{}: {pages:?}", s.name);
                assert!(pages[0].1.contains(reason.label()), "{}: {pages:?}", s.name);
            }
            _ => assert!(pages.is_empty(), "{}: {pages:?}", s.name),
        }
        fake.show(0, None);
    }
    r.until(&format!("{}: over", s.name), 100, |r| r.stage().is_none()).await;
    let last = r.shared.node.borrow().durable.last.clone().unwrap();
    assert_eq!(last.exit, Exit::Done, "{}: {last:?}", s.name);
    fake.show(0, None);
    assert!(fake.in_service(), "{}", s.name);
    assert!(fake.record().slots.is_empty() && fake.record().latches.is_empty(), "{}", s.name);
    assert_eq!(fake.pages().len(), usize::from(matches!(back, Back::Pages(_))), "{}: one page at most", s.name);
}

async fn returns(s: State) {
    let fake = Fake::new();
    fake.take_out();
    fake.show(0, Some(s.shown.clone()));
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let reply = r.begin(Kind::Return).await;
    assert!(matches!(reply, RunReply::Started { .. }), "{}: {reply:?}", s.name);
    comes_back(&r, &s, 0).await;
}

async fn resumes_in_register(s: State) {
    let fake = Fake::new();
    fake.trouble(Call::Register, Some(Trouble::Class(Class::Throttled)));
    let r = Running::start(&fake).await;
    r.pass(2).await;
    let reply = r.run_job().await;
    assert!(matches!(reply, RunReply::Started { .. }), "{}: {reply:?}", s.name);
    r.until("register", 200, |r| r.stage() == Some(StageName::Register)).await;
    r.kill();
    fake.trouble(Call::Register, None);
    fake.show(0, Some(s.shown.clone()));
    let before = fake.calls(Call::Register);
    let r = Running::start(&fake).await;
    comes_back(&r, &s, before).await;
}

macro_rules! each {
    ($($name:ident: $states:ident, $does:ident;)*) => {$(
        #[tokio::test]
        async fn $name() {
            for state in $states() {
                $does(state).await;
            }
        }
    )*};
}

each! {
    only_a_healthy_target_starts_a_cycle: with_a_reason, starts;
    only_a_target_that_is_clearly_healthy_starts_a_cycle: oddly_listed, starts;
    a_target_in_any_state_is_brought_back: with_a_reason, returns;
    a_target_that_is_oddly_listed_is_brought_back: oddly_listed, returns;
    a_crash_in_register_goes_on_from_any_state: with_a_reason, resumes_in_register;
    a_crash_in_register_goes_on_however_the_target_is_listed: oddly_listed, resumes_in_register;
}

/// The target is really gone, and nothing but empty answers says so: that proves nothing.
#[tokio::test]
async fn an_empty_200_never_ends_a_drain() {
    for named in [Named::Rows(vec![]), Named::InvalidTarget] {
        let fake = Fake::new();
        let r = Running::start(&fake).await;
        r.pass(2).await;
        assert!(matches!(r.run_job().await, RunReply::Started { .. }));
        r.until("drain", 60, |r| r.stage() == Some(StageName::Drain)).await;
        for group in 0..2 {
            fake.show(group, Some(Shown { list: vec![], named: named.clone(), others: false }));
        }
        r.pass(45).await; // 20 s of delay and 30 s of margin
        assert_eq!(r.stage(), Some(StageName::Drain), "{named:?}");
        r.until("its deadline", 10, |r| r.stage() != Some(StageName::Drain)).await;
        let failure = r.shared.node.borrow().durable.cycle.as_ref().unwrap().failure.clone().unwrap();
        assert_eq!((failure.stage, failure.class), (StageName::Drain, FailureClass::Deadline), "{named:?}");
        fake.show(0, None);
        fake.show(1, None);
        r.until("home", 200, |r| r.stage().is_none()).await;
        assert!(!fake.job_began(), "{named:?}: no job on a node that may still be in the group");
        assert!(fake.in_service() && fake.record().slots.is_empty(), "{named:?}");
        assert_eq!((fake.record().open_latches().count(), fake.pages().len()), (1, 1), "{named:?}");
        assert_eq!(r.shared.node.borrow().durable.last.as_ref().map(|e| e.exit), Some(Exit::FailedBack));
    }
}

/// The same over the wire.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_200_over_the_wire_never_ends_a_drain() {
    let mut o = options();
    o.config = o.config.replace("margin_application = \"1h\"", "margin_application = \"60s\"");
    let mut s = Scene::with(o).await;
    s.run(RebootPolicy::Never).await;
    s.hold_drain(true);
    s.stage_on_disk(StageName::Drain).await;
    s.fleet.elbv2().inject(Fault::always(WireTrouble::EmptyList).on(Action::DescribeTargetHealth));
    s.hold_drain(false);
    s.on_disk("its failure", |d| d.cycle.as_ref().is_some_and(|c| c.failure.is_some())).await;
    let failure = s.me.durable().unwrap().cycle.unwrap().failure.unwrap();
    assert_eq!(failure.stage, StageName::Drain, "{failure:?}");
    s.fleet.elbv2().clear_faults();
    s.ends(&After { exit: Exit::FailedBack, latch: true, pages: 1, runs: 0 }).await;
}

/// Servers that leave out what they do not know, or refuse to talk about it: gone is what two reads say.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_speak_of_unregistered_targets_over_the_wire() {
    let mut s = Scene::start().await;
    s.fleet.elbv2().named_unknown(NamedUnknown::Omitted);
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s.fleet.elbv2().named_unknown(NamedUnknown::InvalidTarget);
    s.let_job_end(0).await;
    s.ends(&After::GOES_ON).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn states_over_the_wire() {
    let mut s = Scene::start().await;
    let request = patch_request("patch", &["true"], RebootPolicy::Never);
    for (state, reason) in [
        ("unhealthy.draining", Some("Target.FailedHealthChecks")),
        ("resting", Some("Elb.SomethingNew")),
        ("unused", Some("Target.NotInUse")),
        ("unavailable", Some("Target.HealthCheckDisabled")),
    ] {
        s.show(Some((state, reason)));
        let reply = s.me.run(&request).await.unwrap();
        let RunReply::Refused { exit, message, .. } = &reply else { panic!("{state}: {reply:?}") };
        assert_eq!(*exit, Exit::Guard.code(), "{state}: {message}");
        assert!(message.starts_with("self-in-service"), "{state}: {message}");
    }
    s.show(None);
    s.never_left();
    s.run(RebootPolicy::Never).await;
    s.job_waits().await;
    s.show(Some(("unused", Some("Target.NotInUse"))));
    s.let_job_end(0).await;
    assert!(s.fleet.receiver().wait_for_accepted(1, BOUND).await);
    let page = &s.fleet.receiver().accepted()[0].body;
    assert_eq!(page["kind"], "out-of-service");
    assert!(page["text"].as_str().unwrap().contains("Target.NotInUse"), "{page}");
    s.stage_on_disk(StageName::Settle).await;
    s.show(None);
    s.ends(&After { pages: 1, ..After::GOES_ON }).await;
}
