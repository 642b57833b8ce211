//! `backstop run`: every outcome has its code and its words.

use crate::fake::Script;
use crate::samples::{AT, ended, refused, started, status, step};
use crate::world::{Ran, World, finish, interrupt};
use backstop::control::protocol::{Progress, RunReply};
use backstop::core::cycle::{Ended, StageName};
use backstop::core::exit::Exit;
use serde_json::Value;

const RUN: [&str; 4] = ["run", "--", "apt-get", "-y"];

fn over(exit: Exit) -> Progress {
    Progress { ended: Some(ended(exit)), ..Progress::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_exits_with_its_own_code_and_says_who_why_and_what_next() {
    let world = World::new();
    for exit in Exit::ALL.into_iter().filter(|e| *e != Exit::Done) {
        let next = Some("backstop explain es-client-2".to_owned());
        let message = format!("held by es-client-9 ({})", exit.code());
        let reply = RunReply::Refused { exit: exit.code(), message: message.clone(), verdicts: None, next };
        world.fake.tell(|s| s.runs = vec![reply]);
        world.backstop(&RUN).await.exits(exit.code()).says(&[
            &message,
            &format!("exit {}", exit.code()),
            "Next      backstop explain es-client-2",
        ]);
    }
    assert_eq!(world.fake.script().asked[0], r#"run apt-get ["apt-get", "-y"] WhenNeeded [] admin=true"#);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ended_cycle_exits_with_its_verdict() {
    let world = World::new();
    for (exit, says) in [
        (Exit::Done, "DONE, back in service.  7m59s out of service"),
        (Exit::FailedBack, "FAILED, back in service."),
        (Exit::FailedOut, "OUT."),
        (Exit::NotRebooted, "FAILED, back in service."),
        (Exit::EndedEarly, "ENDED EARLY, back in service."),
    ] {
        world.fake.tell(|s| s.end = over(exit));
        let ran = world.backstop(&RUN).await;
        ran.exits(exit.code()).says(&["cycle c-91d2, es-client-2, fleet au-search.", says]);
        if ended(exit).latch.is_some() {
            ran.says(&["Next      backstop explain es-client-2", "After     backstop latch clear L-91d2 --reason"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_reads_like_a_timeline() {
    let world = World::new();
    world.fake.tell(|s| {
        s.steps = vec![
            step(0, StageName::Claim, "never shown: its number is not after 0", None),
            step(1, StageName::Claim, "19 guards pass; slot 1 of 1", Some(400)),
            step(2, StageName::Drain, "es-clients 300 s", Some(300_000)),
            step(3, StageName::Check, "refused x6 \u{1b}[2J", None),
        ];
        s.end = over(Exit::Done);
    });
    let ran = world.backstop(&RUN).await;
    assert_eq!(
        ran.out,
        "cycle c-91d2, es-client-2, fleet au-search.  Times are UTC.\n\
         Ctrl-C detaches and stops nothing; to stop it: backstop rejoin --reason \"...\"\n\
         03:02:12  claim       19 guards pass; slot 1 of 1                                   0.4 s\n\
         03:02:13  drain       es-clients 300 s                                              5m00s\n\
         03:02:14  check       refused x6  [2J\n\
         DONE, back in service.  7m59s out of service                                     exit 0\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_job_under_way_is_attached_to() {
    let world = World::new();
    let RunReply::Started { cycle, node, fleet } = started() else { panic!() };
    world.fake.tell(|s| {
        s.runs = vec![RunReply::Attached { cycle, node, fleet, unit: None }];
        s.end = over(Exit::Done);
    });
    world.backstop(&RUN).await.exits(0).says(&["which was under way already"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_way_back_is_told_at_once_though_the_cycle_goes_on() {
    let world = World::new();
    world.fake.tell(|s| s.end.late = true);
    world.backstop(&RUN).await.exits(102).says(&["OUT.", "goes on trying", "Next      backstop explain es-client-2"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_agent_is_no_failure_and_no_step_is_told_twice() {
    let mut world = World::new();
    world.fake.tell(|s| s.steps = vec![step(7, StageName::Claim, "claimed", Some(400))]);
    let child = world.spawn(&RUN);
    world.fake.until("the step was read", |s| s.followers == 1 && s.asked.len() == 1).await;
    world.stop().await;
    world.fake.tell(|s| {
        let again = backstop::control::protocol::ProgressStep { n: 1, ..s.steps[0].clone() };
        s.steps = vec![again, step(9, StageName::Check, "3 passes", None)];
        s.end = over(Exit::Done);
    });
    world.start();
    let ran = finish(child).await;
    ran.exits(0).says(&["claimed", "3 passes", "DONE"]);
    assert_eq!(ran.out.matches("claimed").count(), 1, "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_stays_away_ends_with_contact_lost() {
    let mut world = World::new();
    let child = world.spawn(&RUN);
    world.fake.until("it follows", |s| s.followers == 1).await;
    world.stop().await;
    finish(child).await.exits(106).says(&["contact", "lost, trying again", "NO VERDICT.", "systemctl status backstop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_forgot_the_cycle_is_asked_how_it_ended() {
    let world = World::new();
    world.fake.tell(|s| {
        s.end.unknown = true;
        s.status.last = Some(ended(Exit::FailedBack));
    });
    world.backstop(&RUN).await.exits(101).says(&["FAILED, back in service."]);
    world.fake.tell(|s| s.status.last = None);
    world.backstop(&RUN).await.exits(106).says(&["does not know this cycle"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_was_lost_is_sent_again_with_the_same_id() {
    let mut world = World::new();
    world.fake.tell(|s| s.runs.clear());
    let child = world.spawn(&RUN);
    world.fake.until("the request arrived", |s| s.request_ids.len() == 1).await;
    world.stop().await;
    world.fake.tell(|s| {
        s.runs = vec![started()];
        s.end = over(Exit::Done);
    });
    world.start();
    finish(child).await.exits(0);
    let ids = world.fake.script().request_ids;
    assert!(ids.len() == 2 && ids[0] == ids[1], "{ids:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_whose_answer_stays_lost_is_never_called_nothing() {
    let mut world = World::new();
    world.fake.tell(|s| s.runs.clear());
    let child = world.spawn(&["run", "--json", "--", "true"]);
    world.fake.until("the request arrived", |s| s.request_ids.len() == 1).await;
    world.stop().await;
    let ran = finish(child).await;
    assert_eq!(ran.exits(106).json()["changed"], Value::Null);
    let ran = world.backstop(&["run", "--json", "--", "true"]).await;
    assert_eq!(ran.exits(16).json()["changed"], Value::Bool(false), "nothing was ever sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_tells_each_reason_once_and_ends_in_a_cycle() {
    let world = World::new();
    world.fake.tell(|s| {
        let held = || refused(Exit::SlotHeld, "held by es-client-1");
        s.runs = vec![held(), held(), refused(Exit::PeersNotSettled, "es-client-3 is out"), held(), started()];
        s.end = over(Exit::Done);
    });
    let ran = world.backstop(&["run", "--wait", "4h", "--", "true"]).await;
    ran.exits(0).says(&["waiting", "held by es-client-1", "es-client-3 is out", "held by es-client-1", "cycle c-91d2"]);
    assert_eq!(ran.out.matches("waiting").count(), 3, "{}", ran.out);
    assert_eq!(world.fake.script().asked.len(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_queues_and_loses_the_slot_in_its_claim_goes_on_queueing_with_a_new_request() {
    let world = World::new();
    world.fake.tell(|s| s.end.ended = Some(Ended { out_ms: 0, verdict: None, ..ended(Exit::SlotHeld) }));
    let child = world.spawn(&["run", "--wait", "4h", "--", "true"]);
    world.fake.until("it asked again", |s| s.asked.len() == 2).await;
    world.fake.tell(|s| s.end = over(Exit::Done));
    finish(child).await.exits(0).says(&["cycle c-91d2", "waiting", "cycle c-91d2", "DONE"]);
    let ids = world.fake.script().request_ids;
    assert_ne!(ids[0], ids[1], "the first request was carried out");
    world.fake.tell(|s| s.end.ended = Some(Ended { out_ms: 0, verdict: None, ..ended(Exit::SlotHeld) }));
    world.backstop(&RUN).await.exits(10).says(&["REFUSED, nothing was changed."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_waits_for_a_latch() {
    let world = World::new();
    world.fake.tell(|s| {
        s.runs = vec![refused(Exit::SlotHeld, "held"), refused(Exit::Latched, "L-7f3a: es-client-2 failed"), started()];
    });
    let ran = world.backstop(&["run", "--wait", "4h", "--", "true"]).await;
    ran.exits(100).says(&["waiting", "REFUSED, nothing was changed.", "L-7f3a: es-client-2 failed"]);
    assert_eq!(world.fake.script().asked.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_over_ends_with_the_last_refusal() {
    let world = World::new();
    world.fake.tell(|s| s.runs = vec![refused(Exit::BelowMinimum, "2 in service, need 3")]);
    world
        .backstop(&["run", "--wait", "20s", "--", "true"])
        .await
        .exits(11)
        .says(&["2 in service", "(waited 20 s for it)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn interrupted_while_waiting_nothing_was_started() {
    let world = World::new();
    world.fake.tell(|s| s.runs = vec![refused(Exit::SlotHeld, "held")]);
    let child = world.spawn(&["run", "--wait", "7d", "--", "true"]);
    world.fake.until("it asked", |s| s.asked.len() >= 2).await;
    interrupt(&child);
    let ran = finish(child).await;
    assert!([10, 106].contains(&ran.exit), "10, or 106 where a request was under way: {ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_detaches_and_stops_nothing() {
    let world = World::new();
    let child = world.spawn(&RUN);
    world.fake.until("it follows", |s| s.followers == 1).await;
    interrupt(&child);
    finish(child).await.exits(106).says(&["NO VERDICT.", "detached; the cycle goes on", "Next      backstop wait"]);
    assert_eq!(world.fake.script().asked.len(), 1, "nothing but the run was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn only_if_decides_before_the_agent_is_asked() {
    let world = World::new();
    world.fake.tell(|s| s.end = over(Exit::Done));
    let only_if = |cmd: &'static str| ["run", "--only-if", cmd, "--json", "--", "true"];
    let ran = world.backstop(&only_if("echo to people; exit 1")).await;
    ran.exits(0).complains(&["to people"]);
    assert_eq!(ran.json()["changed"], Value::Bool(false));
    world.backstop(&["run", "--only-if", "exit 1", "--", "true"]).await.exits(0).says(&["changed: false"]);
    for (cmd, says) in
        [("exit 3", "ended with 3"), ("no-such-program-x", "ended with 127"), ("kill -9 $$", "by itself")]
    {
        let ran = world.backstop(&only_if(cmd)).await;
        assert!(ran.exits(17).json()["message"].as_str().unwrap().contains(says), "{ran:?}");
    }
    assert!(world.fake.script().asked.is_empty());
    world.backstop(&only_if("true")).await.exits(0);
    assert_eq!(world.fake.script().asked.len(), 1);
}

fn in_stage(s: &mut Script, stage: StageName) {
    s.status.cycle = Some(backstop::control::protocol::CycleStatus { stage, ..crate::samples::cycle() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_run_returns_once_the_claim_is_over() {
    let world = World::new();
    world.fake.tell(|s| in_stage(s, StageName::Claim));
    let child = world.spawn(&["run", "--detach", "--", "true"]);
    world.fake.until("it waits for the claim", |s| s.followers == 1).await;
    world.fake.tell(|s| {
        in_stage(s, StageName::Deregister);
        s.steps.push(step(1, StageName::Claim, "slot acknowledged", Some(400)));
    });
    finish(child).await.exits(0).says(&["slot acknowledged", "DETACHED.", "Next      backstop wait"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_run_that_the_claim_refuses_says_so() {
    let world = World::new();
    world.fake.tell(|s| {
        in_stage(s, StageName::Release);
        s.steps.push(step(1, StageName::Claim, "turned home", Some(400)));
    });
    let child = world.spawn(&["run", "--detach", "--", "true"]);
    world.fake.until("it goes on waiting", |s| s.followers == 1).await;
    world.fake.tell(|s| s.end.ended = Some(Ended { out_ms: 0, verdict: None, ..ended(Exit::SlotHeld) }));
    finish(child).await.exits(10).says(&["REFUSED, nothing was changed."]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_asked_is_told_before_the_agent_hears_of_it() {
    let world = World::new();
    for (args, says) in [
        (&["run", "--"][..], "<CMD>"),
        (&["run", "apt-get"][..], "apt-get"),
        (&["run", "--wait", "soon", "--", "true"][..], "\"soon\" is no time"),
        (&["run", "--reboot", "later", "--", "true"][..], "when-needed"),
        (&["run", "--override", "rate", "--", "true"][..], "--reason"),
        (&["run", "--override", "speed", "--reason", "r", "--", "true"][..], "there is no guard speed"),
        (&["run", "--override", "no-latch", "--reason", "r", "--", "true"][..], "cannot be overridden"),
        (&["hold", "--for", "8d", "--reason", "r"][..], "7 days"),
        (&["pause"][..], "--reason"),
        (&["pause", "--reason", " "][..], "reason is empty"),
        (&["latch", "clear", "c-1", "--reason", "r"][..], "not the id of a latch"),
        (&["init"][..], "--fleet"),
        (&["frobnicate"][..], "frobnicate"),
    ] {
        world.backstop(args).await.exits(2).complains(&[says]);
    }
    assert!(world.fake.script().asked.is_empty());
    assert!(world.audited().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_one_object_and_progress_goes_to_stderr() {
    let world = World::new();
    world.fake.tell(|s| {
        s.steps = vec![step(1, StageName::Claim, "claimed", Some(400))];
        s.end = over(Exit::FailedBack);
    });
    let ran: Ran = world.backstop(&["run", "--json", "--override", "rate", "--reason", "r", "--", "true"]).await;
    ran.exits(101).complains(&["cycle c-91d2", "claimed"]);
    let json = ran.json();
    assert_eq!((json["exit"].as_u64(), json["changed"].as_bool()), (Some(101), Some(true)));
    assert_eq!(json["ended"]["latch"], "L-91d2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_reaches_the_caller_though_nobody_reads_the_progress() {
    let world = World::new();
    world.fake.tell(|s| s.status = status());
    let mut child = world.spawn(&RUN);
    drop(child.stdout.take());
    world.fake.until("it follows", |s| s.followers == 1).await;
    world.fake.tell(|s| {
        s.steps = vec![step(AT, StageName::Claim, "claimed", None)];
        s.end = over(Exit::FailedBack);
    });
    finish(child).await.exits(101);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_refusal_stays_within_the_terminal_and_is_told_once() {
    let world = World::new();
    let long =
        "L-7f3a: es-client-2 failed in check (transport; job apt-security): ".to_owned() + &"no answer ".repeat(12);
    let reply = |verdicts| {
        let message = format!("no-latch: {long}");
        vec![RunReply::Refused { exit: 100, message, verdicts, next: Some("backstop explain es-client-2".to_owned()) }]
    };
    world.fake.tell(|s| s.runs = reply(None));
    let ran = world.backstop(&RUN).await;
    ran.exits(100).says(&["REFUSED, nothing was changed.", "exit 100\n", "Why       no-latch: L-7f3a"]);
    assert!(ran.out.lines().all(|l| l.chars().count() <= 100), "{}", ran.out);
    world.fake.tell(|s| {
        let mut verdicts = s.check.verdicts.clone();
        verdicts.0[0].sentence = long.as_str().into();
        s.runs = reply(Some(verdicts));
    });
    let ran = world.backstop(&RUN).await;
    assert_eq!(ran.out.matches("L-7f3a").count(), 1, "{}", ran.out);
    assert!(ran.out.lines().all(|l| l.chars().count() <= 100), "{}", ran.out);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_forgets_the_dashes_is_given_the_right_form() {
    let world = World::new();
    for (args, right) in [
        (&["run", "apt-get", "-y", "dist-upgrade"][..], " run -- apt-get -y dist-upgrade"),
        (&["run", "--reboot", "never", "sh", "-c", "a b"], " run --reboot never -- sh -c 'a b'"),
        (&["run"], " run -- apt-get -y dist-upgrade"),
    ] {
        world.backstop(args).await.exits(2).complains(&["Next      backstop", right]);
    }
    let ran = world.backstop(&["run", "--nonsense", "--", "true"]).await;
    assert!(!ran.exits(2).err.contains("Next"), "the dashes are there: {}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_specific_error_has_a_specific_next_command() {
    let world = World::new();
    for (args, next) in [
        (&["pause", "--reason", " "][..], "Next      backstop pause --reason"),
        (&["hold", "--for", "8d", "--reason", "r"], "Next      backstop hold --for 4h --reason"),
        (&["latch", "clear", "c-1", "--reason", "r"], "Next      backstop latch list"),
        (&["run", "--override", "speed", "--reason", "r", "--", "true"], "Next      backstop check -v"),
    ] {
        world.backstop(args).await.exits(2).complains(&[next]);
    }
}

const BY_SSM: [&str; 6] = ["run", "--reboot", "ssm", "--", "apt-get", "-y"];

#[tokio::test(flavor = "multi_thread")]
async fn only_a_run_by_ssm_ends_with_its_code_where_the_machine_is_to_be_restarted() {
    let world = World::new();
    world.fake.tell(|s| s.end = Progress { awaits_restart: true, ..Progress::default() });
    world.backstop(&BY_SSM).await.exits(194).says(&["RESTART.", "SSM agent"]);
    world.fake.tell(|s| s.end = Progress { awaits_restart: true, ..over(Exit::Done) });
    world.backstop(&RUN).await.exits(0).says(&["DONE"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_verdict_that_is_owed_after_a_restart_comes_before_the_callers_own_question() {
    let asked = ["run", "--reboot", "ssm", "--only-if", "exit 1", "--", "apt-get", "-y"];
    let world = World::new();
    world.fake.tell(|s| (s.runs, s.end) = (vec![started()], over(Exit::FailedBack)));
    world.backstop(&asked).await.exits(101).says(&["FAILED"]);
    let nothing = RunReply::Refused { exit: 0, message: "no verdict is owed".to_owned(), verdicts: None, next: None };
    world.fake.tell(|s| s.runs = vec![nothing]);
    world.backstop(&asked).await.exits(0).says(&["nothing to do"]);
    world.backstop(&["run", "--detach", "--reboot", "ssm", "--", "true"]).await.exits(2).says(&["--detach"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_run_again_after_a_restart_waits_for_the_agent() {
    let mut world = World::new();
    world.fake.tell(|s| s.end = over(Exit::Done));
    world.stop().await;
    let child = world.spawn(&BY_SSM);
    world.start();
    finish(child).await.exits(0).says(&["DONE"]);
}
