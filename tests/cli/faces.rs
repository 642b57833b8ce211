//! What people read: status, check, explain, latch, history, and the answers of the verbs that steer.

use crate::samples::{AT, MIN, cycle};
use crate::world::{PATIENCE, World, finish, interrupt};
use backstop::control::protocol::{AlertStatus, CycleStatus, Done, SinkStatus};
use backstop::core::cycle::StageName;
use backstop::core::exit::Exit;
use backstop::core::guard::{Guard, Said, Verdict};
use backstop::core::page::Severity;
use std::path::Path;
use tokio::io::{AsyncBufReadExt, BufReader};

#[tokio::test(flavor = "multi_thread")]
async fn status_is_one_page_with_state_cause_and_next_command() {
    let world = World::new();
    let ran = world.backstop(&["status"]).await;
    assert_eq!(
        ran.exits(0).out,
        "\
au-search   2 of 3 in service (minimum 3)   DEGRADED   load balancer read 4 s ago
NODE          SERVICE  SINCE           DOING                               AGENT
es-client-1*  in       -               idle                                1.2.0, 3 s
es-client-2   OUT      03:02 (25m00s)  check: try 168, connection refused  1.2.0, 3 s
es-client-3   in       01 Sep 03:02    idle                                1.2.0, 3 s
Patching  BLOCKED on every node by latch L-7f3a (es-client-2, check, 03:23)
Last      c-91d2, job apt-security, 03:10: done (exit 0)
Slot      1 of 1 held by es-client-2, cycle c-7f3a, job apt-security, since 03:02
Pages     the last one was accepted 02 Sep 03:23:11
Sees      load balancer 4 s | cluster 4 s | fleet record 4 s | members 4 s | agents 3 of 3
Warning   outside_watch is not set
Next      backstop explain es-client-2
"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn status_never_calls_the_unknown_good() {
    let world = World::new();
    world.fake.tell(|s| {
        s.status.in_service = None;
        s.status.record = None;
        s.status.sees[0].age_ms = None;
        s.status.sees[0].fault = Some("AccessDenied (refused)".to_owned());
        s.status.nodes[2].beat_age_ms = Some(300_000);
        s.status.config_problem = Some("line 3: minimum".to_owned());
    });
    world.backstop(&["status"]).await.says(&[
        "? of 3 in service",
        "UNKNOWN",
        "load balancer never read",
        "SILENT 5m00s",
        "Patching  BLOCKED: the fleet record is unknown",
        "load balancer NEVER |",
        "agents 2 of 3",
        "Fault     load balancer: AccessDenied (refused)",
        "Config    CANNOT BE USED",
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_tells_what_a_cycle_waits_for_and_how_it_failed() {
    let world = World::new();
    world.fake.tell(|s| {
        let failure = Some((StageName::Check, "transport".to_owned(), "no answer for 15 min".to_owned()));
        s.status.cycle = Some(CycleStatus { failure, late: true, ..cycle() });
    });
    world.backstop(&["status"]).await.says(&[
        "Cycle     c-91d2, job apt-security, check since 03:02:11; LATE",
        "Trouble   try 3, connection refused",
        "FAILED    in check (transport): no answer for 15 min",
    ]);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_fits_a_hundred_columns_and_tells_each_fault_once() {
    let world = World::new();
    let fault = "GET http://10.2.3.12:9200/: connected but closed, or not HTTP: protocol/TLS mismatch? (http:// to an https \
                 port) invalid HTTP version parsed (transport)";
    world.fake.tell(|s| {
        let failure = (StageName::Check, "transport".to_owned(), format!("check took longer than 900 s: {fault}"));
        let (fault, failure) = (Some(fault.to_owned()), Some(failure));
        s.status.cycle = Some(CycleStatus { fault, failure, late: true, ..cycle() });
        s.status.nodes[0].doing =
            "check: try 168, connected but closed, or not HTTP: protocol/TLS mismatch? (http:// to an \
                                   https port) invalid HTTP version parsed (transport)"
                .to_owned();
        (s.status.nodes[0].service, s.status.nodes[2].service) = ("OUT".to_owned(), "unknown".to_owned());
        s.status.nodes[2].node = "a-node-with-a-very-long-name.and.a.domain.example.org".to_owned();
        for source in &mut s.status.sees {
            source.fault = Some("the directory of the record cannot be read: permission denied (refused)".to_owned());
        }
        s.status.warnings = vec!["w ".repeat(120)];
        s.status.config_problem = Some(format!("/etc/backstop/backstop.toml:3: minimum: {}", "found x; ".repeat(20)));
    });
    let ran = world.backstop(&["status"]).await;
    let wide: Vec<&str> = ran.out.lines().filter(|l| l.chars().count() > 100).collect();
    assert!(wide.is_empty(), "{wide:#?}");
    for said in ["GET http://10.2.3.12:9200/", "permission denied"] {
        assert_eq!(ran.out.matches(said).count(), 1, "{said} in\n{}", ran.out);
    }
    ran.says(&["Fault     load balancer, cluster, fleet record, members: the directory"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_out_and_idle_says_what_the_load_balancer_says_of_it() {
    let world = World::new();
    world.fake.tell(|s| s.status.nodes[1].doing = "idle".to_owned());
    world.backstop(&["status"]).await.says(&["es-client-2   OUT", "idle; es-clients unused"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_node_out_for_its_patch_is_no_alarm_and_everything_else_is() {
    let world = World::new();
    world.fake.tell(|s| s.status.record.as_mut().unwrap().latches.clear());
    world.backstop(&["status"]).await.says(&["2 of 3 in service (minimum 3)   OUT AS PLANNED"]);
    world.fake.tell(|s| s.status.record.as_mut().unwrap().slots.clear());
    world.backstop(&["status"]).await.says(&["2 of 3 in service (minimum 3)   DEGRADED"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_that_is_starting_says_what_it_waits_for() {
    let world = World::new();
    world.fake.tell(|s| {
        s.status.starting = Some("instance metadata does not answer: timeout (transport)".to_owned());
        (s.status.next, s.status.nodes, s.status.record) = (None, Vec::new(), None);
    });
    let ran = world.backstop(&["status"]).await;
    ran.exits(0).says(&[
        "au-search   STARTING   es-client-1, agent 1.2.0",
        "Waits for instance metadata does not answer: timeout",
        "no cycle starts",
        "Next      journalctl -u backstop",
    ]);
    assert!(!ran.out.contains("0 of 0"), "nothing is made up: {}", ran.out);
    assert_eq!(
        world.backstop(&["status", "--json"]).await.json()["starting"],
        "instance metadata does not answer: timeout (transport)"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_config_that_cannot_be_used_is_said_and_which_socket_is_asked_instead() {
    let world = World::without_server();
    let file = world.path("broken.toml");
    std::io::Write::write_all(&mut std::fs::File::create(&file).unwrap(), b"fleet = 3\n").unwrap();
    let broken = file.to_string_lossy().into_owned();
    let absent = world.path("absent.toml").to_string_lossy().into_owned();
    for path in [&broken, &absent] {
        // Only verbs that change nothing: somebody's own agent may answer there.
        for verb in [&["status"][..], &["explain"], &["history"]] {
            let ran = world.backstop(&[&["--config", path], verb].concat()).await;
            ran.complains(&["the config cannot be used", "/run/backstop/agent.sock", path]);
        }
    }
    let socket = world.socket().to_string_lossy().into_owned();
    let ran = world.backstop(&["--config", &broken, "--socket", &socket, "status"]).await;
    assert!(!ran.err.contains("cannot be used"), "the socket is no guess: {}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_a_config_says_where_it_looks_and_how_to_go_on() {
    let world = World::without_server();
    let (absent, state) = (world.path("absent.toml"), world.path("state"));
    let (absent, state) = (absent.to_string_lossy(), state.to_string_lossy());
    let ran = world.backstop(&["agent", "--config", &absent, "--state-dir", &state]).await;
    ran.exits(2).complains(&[&absent, "Expected", "a target group, a pager", "backstop config check", &absent]);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_status_says_what_it_can_and_exits_16() {
    let world = World::without_server();
    let ran = world.backstop(&["status"]).await;
    ran.exits(16).says(&["NO AGENT", "agent.sock", "au-search", "targetgroup/es-clients/0123456789abcdef"]);
    ran.says(&["Look      aws elbv2 describe-target-health --region ap-southeast-2 --target-group-arn arn:aws:"]);
    ran.complains(&["the agent is not running", "agent.sock", "Next      systemctl status backstop"]);
    for args in [&["check"][..], &["explain"], &["pause", "--reason", "r"], &["run", "--", "true"], &["latch", "list"]]
    {
        world.backstop(args).await.exits(16).complains(&["agent.sock", "systemctl status backstop"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_agent_whoever_wants_to_know_hears_who_else_can_tell() {
    let world = World::without_server();
    let once = "backstop reconcile --once   # ";
    for args in
        [&["status"][..], &["explain"], &["explain", "es-client-9"], &["history"], &["check"], &["latch", "list"]]
    {
        let node = if args.len() > 1 && args[0] == "explain" { args[1] } else { "" };
        let other = format!("{node}   # on another node");
        world.backstop(args).await.exits(16).complains(&["Next      systemctl status backstop", once, &other]);
    }
    let also = world.backstop(&["explain", "--json"]).await.json()["also"].clone();
    assert!(also[0].as_str().unwrap().starts_with(once), "{also}");
    let ran = world.backstop(&["pause", "--reason", "r"]).await;
    assert!(!ran.err.contains(once), "that pauses nothing: {}", ran.err);
}

/// One alert of the fake agent's book.
fn alert(kind: &str, subject: &str, state: &str) -> AlertStatus {
    AlertStatus {
        key: format!("au-search/{kind}/{subject}"),
        kind: kind.to_owned(),
        subject: subject.to_owned(),
        severity: Severity::Critical,
        state: state.to_owned(),
        since_ms: AT,
        over_ms: None,
        told_in: None,
        sentence: "so".to_owned(),
        told: true,
        sinks: Vec::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_of_each_alert_how_long_it_was_and_in_whose_page_it_is_told() {
    let world = World::new();
    let sink = |accepted_ms, covered_by: Option<&str>| SinkStatus {
        sink: "webhook".to_owned(),
        accepted_ms,
        fault: None,
        refused: false,
        covered_by: covered_by.map(str::to_owned),
    };
    let page = "au-search/below-floor/au-search";
    world.fake.tell(|s| {
        s.status.alerts = vec![
            AlertStatus { told_in: Some(page.to_owned()), ..alert("unhealthy", "es-client-3", "folded") },
            AlertStatus { sinks: vec![sink(Some(AT + MIN), None)], ..alert("below-floor", "au-search", "firing") },
            AlertStatus { sinks: vec![sink(None, Some("i-3"))], ..alert("foreign-target", "x", "firing") },
            AlertStatus {
                over_ms: Some(AT + 21 * MIN),
                sinks: vec![sink(Some(AT + 21 * MIN), None)],
                ..alert("blind", "es-client-1: members", "resolved")
            },
            AlertStatus {
                over_ms: Some(AT + MIN),
                told_in: Some("au-search/below-minimum/au-search".to_owned()),
                sinks: vec![sink(None, None)],
                ..alert("out-of-service", "es-client-2", "resolved")
            },
            AlertStatus { over_ms: Some(AT + MIN), ..alert("stuck-initial", "es-client-2", "resolved") },
            AlertStatus { told: false, ..alert("agent-silent", "es-client-2", "firing") },
        ];
    });
    let ran = world.backstop(&["status"]).await;
    let told: Vec<&str> = ran.out.lines().filter(|l| l.starts_with("Alert")).collect();
    assert_eq!(
        told,
        [
            "Alert     below-floor au-search, firing since 03:02: accepted by webhook 03:03",
            "Alert     foreign-target x, firing since 03:02: webhook: by the agent of es-client-3",
            "Alert     blind es-client-1: members, over since 03:23 after 21m00s: accepted by webhook 03:23",
            "Alert     stuck-initial es-client-2, over since 03:03 after 1m00s: nobody told, it was over",
            "Alert     agent-silent es-client-2, firing since 03:02: nobody told yet",
            "Alert     unhealthy es-client-3, folded since 03:02: in the page below-floor au-search",
            "Alert     out-of-service es-client-2, over since 03:03 after 1m00s: in the page",
        ]
    );
    ran.says(&["au-search/below-minimum/au-search"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn status_says_what_a_run_would_be_refused_for_and_allows_nothing_that_it_does_not_know() {
    let world = World::new();
    world.fake.tell(|s| {
        let record = s.status.record.as_mut().unwrap();
        record.latches.clear();
        record.slots.clear();
        let (guard, said, exit) = (Guard::MinimumHealthy, Said::Refused, Exit::BelowMinimum);
        s.status.would_refuse = Some(Verdict { guard, said, sentence: "2 in service, need 3".into(), exit });
    });
    let refused = "Patching  would be refused: 2 in service, need 3 (minimum-healthy, exit 11); run --wait queues";
    world.backstop(&["status"]).await.says(&[refused]);
    assert_eq!(world.backstop(&["status", "--json"]).await.json()["would_refuse"]["guard"], "minimum-healthy");
    world.fake.tell(|s| s.status.would_refuse = None);
    world.backstop(&["status"]).await.says(&["Patching  allowed, as far as this agent has looked"]);
    world.fake.tell(|s| s.status.cycle = Some(cycle()));
    world.backstop(&["status"]).await.says(&["Patching  under way on this node (c-91d2)"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_looks_again_until_it_is_interrupted() {
    let world = World::new();
    let mut child = world.spawn(&["status", "--watch"]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut seen = 0;
    while seen < 3 {
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("another look");
        let line = line.unwrap().expect("it goes on");
        seen += usize::from(line.contains("in service (minimum 3)"));
    }
    interrupt(&child);
    finish(child).await.exits(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_went_away_is_no_failure() {
    let world = World::new();
    let mut child = world.spawn(&["status"]);
    drop(child.stdout.take());
    let ran = finish(child).await;
    assert_eq!((ran.exits(0).err.as_str(), ran.out.as_str()), ("", ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_cannot_be_written_is_a_failure() {
    let world = World::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = world.command(Path::new(env!("CARGO_BIN_EXE_backstop")), &["status"]);
    finish(command.stdout(full).spawn().unwrap()).await.exits(1).complains(&["cannot write the answer"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn check_and_explain_answer_why_not() {
    let world = World::new();
    world.backstop(&["check"]).await.exits(100).says(&[
        "May es-client-1 leave now?  NO (exit 100)",
        "nothing was changed",
        "x   no-latch  L-7f3a: es-client-2 failed in check",
        "!   rate      5 of 6 cycles",
        "ok  1 others",
        "Would take about 5m15s and the job: drain 5m00s, the job, check 15 s",
        "Next      backstop explain es-client-2",
    ]);
    world.backstop(&["check", "-v"]).await.says(&["ok  mode      mode is act"]);
    world.backstop(&["explain", "es-client-9"]).await.exits(0).says(&[
        "es-client-9",
        "No cycle starts: latch L-7f3a is set.",
        "Next      backstop latch clear L-7f3a",
    ]);
    // A typing error is no good news to whoever looks at the code alone.
    world.fake.tell(|s| s.explain.unknown = true);
    world.backstop(&["explain", "es-clinet-9"]).await.exits(2);
    world.backstop(&["explain"]).await.exits(0);
    world.backstop(&["history", "-n", "0"]).await.exits(2).complains(&["0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn open_latches_are_listed_with_how_to_clear_them_and_cleared_ones_are_not() {
    let world = World::new();
    let ran = world.backstop(&["latch", "list"]).await;
    ran.exits(0).says(&["L-7f3a  es-client-2 failed in check at 03:23", "connection refused", "latch clear L-7f3a"]);
    assert!(!ran.out.contains("L-0001"), "{}", ran.out);
    world.fake.tell(|s| s.status.record = None);
    world.backstop(&["latch", "list"]).await.exits(13).complains(&["the fleet record is unknown"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn history_shows_as_many_lines_as_asked_for() {
    let world = World::new();
    let ran = world.backstop(&["history", "-n", "2"]).await;
    assert_eq!(ran.out, "02 Sep 03:02:11  stage=claim\n02 Sep 03:02:11  stage=deregister\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn steering_verbs_carry_their_words_and_pass_the_answer_on() {
    let world = World::new();
    for (args, asked) in [
        (&["rejoin", "--reason", "back", "--skip-check"][..], "rejoin back true admin=true"),
        (&["hold", "--for", "1h30m", "--reason", "disk", "--all"][..], "hold 5400 true disk"),
        (&["retire", "es-client-3", "--reason", "scale-in"][..], "retire es-client-3 scale-in"),
        (&["pause", "--reason", "freeze"][..], "pause freeze"),
        (&["unpause", "--reason", "thaw"][..], "unpause thaw"),
        (&["latch", "clear", "L-7f3a", "--reason", "seen", "--unresolved"][..], "clear L-7f3a seen true"),
        (&["init", "--fleet"][..], "init None"),
    ] {
        world.backstop(args).await.exits(0).says(&["done"]);
        assert_eq!(world.fake.script().asked.last().unwrap(), asked);
        let no = Done { exit: Exit::Busy.code(), message: "not now".into(), next: Some("backstop wait".into()) };
        world.fake.tell(|s| s.done = Some(no));
        world.backstop(args).await.exits(18).says(&["NOT DONE (exit 18): not now", "Next      backstop wait"]);
        world.fake.tell(|s| s.done = Some(Done { exit: 0, message: "done".into(), next: None }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_whose_answer_was_lost_is_said_to_be_unknown() {
    let mut world = World::new();
    world.fake.tell(|s| s.done = None);
    let child = world.spawn(&["pause", "--reason", "freeze"]);
    world.fake.until("it arrived", |s| s.asked.len() == 1).await;
    world.stop().await;
    finish(child).await.exits(106).complains(&["it may have been done", "systemctl status backstop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn help_documents_every_exit_code_and_config_needs_no_agent() {
    let world = World::without_server();
    for args in [&["--help"][..], &["run", "--help"], &["wait", "--help"], &["status", "--help"]] {
        let ran = world.backstop(args).await;
        for exit in Exit::ALL {
            ran.exits(0).says(&[&format!("{:>3}  {}", exit.code(), exit.sentence())]);
        }
    }
    world.backstop(&["config", "check"]).await.exits(0).says(&["fleet au-search: this file can be used"]);
    world.backstop(&["config", "show"]).await.exits(0).says(&["minimum_healthy = 3"]);
    let ran = world.backstop(&["config", "check", "/dev/null"]).await;
    ran.exits(2).complains(&["/dev/null", "expected"]);
    // What the file names has to be there too: nobody finds out at night that a key is missing.
    let text = std::fs::read_to_string(world.path("backstop.toml")).unwrap();
    let mut named = std::fs::File::create(world.path("named.toml")).unwrap();
    let keys = "\n[elasticsearch]\napi_key_file = \"/nonexistent/es.key\"\n";
    std::io::Write::write_all(&mut named, format!("{text}{keys}").as_bytes()).unwrap();
    let named = world.path("named.toml").display().to_string();
    let ran = world.backstop(&["config", "check", &named]).await;
    ran.exits(2).complains(&["/nonexistent/es.key", "elasticsearch.api_key_file", "create the file"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_cannot_do_its_work_is_unknown_and_never_critical() {
    let world = World::without_server();
    let usage = world.backstop(&["reconcile", "--once", "--nagios", "--apart", "2m"]).await;
    usage.exits(3).says(&["BACKSTOP UNKNOWN - ", "two looks are 1s to 1m apart"]);
    assert_eq!(usage.out.lines().count(), 1, "{}", usage.out);
    world.backstop(&["reconcile", "--once", "--nagios=1"]).await.exits(3).says(&["BACKSTOP UNKNOWN - "]);
    let ran = world.backstop(&["reconcile", "--once", "--json", "--apart", "2m"]).await;
    let json: serde_json::Value = serde_json::from_str(&ran.exits(2).out).unwrap();
    assert_eq!((&json["v"], &json["exit"]), (&1.into(), &2.into()), "{json}");
    world.backstop(&["reconcile", "--nagios"]).await.exits(3).says(&["BACKSTOP UNKNOWN - ", "--once"]);
    let config = ["--config", "/nonexistent/backstop.toml", "reconcile", "--once"];
    let with = |more: &'static str| [&config[..], &[more]].concat();
    world
        .backstop(&with("--nagios"))
        .await
        .exits(3)
        .says(&["BACKSTOP UNKNOWN - the config /nonexistent/backstop.toml"]);
    let ran = world.backstop(&with("--json")).await;
    let json: serde_json::Value = serde_json::from_str(&ran.exits(2).out).unwrap();
    assert_eq!((&json["v"], &json["exit"]), (&1.into(), &2.into()), "{json}");
    assert!(json["problems"][0].to_string().contains("/nonexistent/backstop.toml"), "{json}");
    world.backstop(&["reconcile", "--once", "--help"]).await.exits(0).says(&["With --nagios: 0 to 3"]);
}
