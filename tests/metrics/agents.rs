//! Agents as real processes, and what they tell.

use crate::exposition::{Exposition, read};
use crate::served::{scraped, talk};
use crate::support::{BOUND, PROGRAM};
use backstop::control::protocol::RunReply;
use backstop::core::job::RebootPolicy;
use backstop::rehearse::elbv2::GroupSpec;
use backstop::rehearse::fleet::{Fleet, FleetOptions, Machine, NodeStart, patch_request};
use backstop::rehearse::pace;
use std::net::TcpListener;
use std::time::Duration;
use tokio::net::TcpStream;

pub fn options(nodes: usize) -> FleetOptions {
    let group = GroupSpec { deregistration_delay_s: 5, ..GroupSpec::new("es-clients") };
    FleetOptions {
        nodes,
        groups: vec![group],
        config:
            "[limits]\ncycles_per_hour = 1000\ncycles_per_day = 1000\n[drain]\nquiet = \"2s\"\n[check]\nover = \"2s\"\n\
                 every = \"1s\"\n[settle]\nbake = \"2s\"\n"
                .to_owned(),
        restart: NodeStart::AT_ONCE,
        off_ms: 1_000,
        ..FleetOptions::new(PROGRAM)
    }
}

/// A scrape once it says what is awaited.
pub async fn scrape(machine: &Machine, what: &str, wanted: impl Fn(&Exposition) -> bool) -> (String, Exposition) {
    let mut last = String::new();
    let came = pace::within(BOUND, async {
        loop {
            if let Some(text) = scraped(&machine.metrics_socket()).await {
                let all = read(&text).unwrap_or_else(|why| panic!("{why}\n{text}"));
                last = text;
                if wanted(&all) {
                    return all;
                }
            }
            pace::sleep(Duration::from_millis(20)).await; // not too busy; only what is said counts
        }
    })
    .await;
    let all = came.unwrap_or_else(|| panic!("never said: {what}\n{last}\n{}", machine.agent_log()));
    (last, all)
}

fn settled(all: &Exposition) -> bool {
    all.value("backstop_members_in_service") == Some(2.0) && all.value("backstop_in_service") == Some(1.0)
}

#[tokio::test]
async fn an_agent_tells_what_it_knows_and_counts_what_it_does() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let me = fleet.machine(0).unwrap();
    let file = me.dir().join("backstop.prom");
    me.configure(&format!("[metrics]\ntextfile = {:?}\n{}", file.to_string_lossy(), options(2).config));
    me.kill_agent().await.unwrap();
    me.start_agent().unwrap();
    let (text, before) = scrape(me, "in service", settled).await;
    assert_eq!(before.value("backstop_members"), Some(2.0));
    assert_eq!(before.with("backstop_healthy_targets", &[("group", "es-clients")]), Some(2.0));
    assert_eq!(before.value("backstop_minimum_healthy"), Some(2.0));
    assert_eq!((before.value("backstop_latched"), before.value("backstop_slots_held")), (Some(0.0), Some(0.0)));
    for source in ["load-balancer", "fleet-record", "members"] {
        assert!(before.with("backstop_reconcile_last_success_timestamp_seconds", &[("source", source)]).is_some());
    }
    for name in [me.name(), me.instance(), "127.0.0.1"] {
        assert!(!text.contains(name), "no node's name, id or address: {name}\n{text}");
    }

    let job = patch_request("patch", &["true"], RebootPolicy::Never);
    let RunReply::Started { cycle, .. } = me.run(&job).await.unwrap() else { panic!("{}", me.agent_log()) };
    me.wait_ended(&cycle, BOUND).await.unwrap_or_else(|e| panic!("{e}\n{}", me.agent_log()));
    let (_, after) =
        scrape(me, "the cycle counts", |all| all.with("backstop_cycles_total", &[("result", "done")]) == Some(1.0))
            .await;
    for stage in ["claim", "deregister", "drain", "patch", "check", "register", "settle", "release"] {
        let times = after.with("backstop_stage_duration_seconds_count", &[("stage", stage)]);
        assert_eq!(times, Some(1.0), "{stage}");
    }
    let ok = |operation: &str| after.sum("backstop_calls_total", &[("operation", operation), ("class", "ok")]);
    assert_eq!((ok("register-targets"), ok("deregister-targets")), (1.0, 1.0));
    assert!(ok("describe-target-health") > 1.0 && ok("check") >= 3.0 && ok("compare-and-set") >= 2.0);

    let written = || read(&std::fs::read_to_string(&file).unwrap_or_default()).ok();
    let all = |e: &Exposition| e.with("backstop_cycles_total", &[("result", "done")]) == Some(1.0);
    assert!(pace::until(BOUND, || written().is_some_and(|e| all(&e))).await, "the file says the same");
}

#[tokio::test]
async fn a_loop_that_has_turned_says_so_in_a_scrape() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let all = |e: &Exposition| {
        let last = |name| e.with("backstop_loop_last_turn_timestamp_seconds", &[("loop", name)]);
        ["agent", "observer", "pages", "control-socket"].into_iter().all(|name| last(name).is_some())
    };
    let (_, first) = scrape(fleet.machine(0).unwrap(), "all loops turn", all).await;
    let of = |e: &Exposition, name| e.with("backstop_loop_last_turn_timestamp_seconds", &[("loop", name)]).unwrap();
    for name in ["agent", "observer", "pages", "control-socket"] {
        let before = of(&first, name);
        scrape(fleet.machine(0).unwrap(), name, |e| of(e, name) > before).await;
    }
}

#[tokio::test]
async fn a_refusal_is_counted_by_guard() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let me = fleet.machine(0).unwrap();
    me.kill_node().await;
    scrape(me, "out", |e| e.value("backstop_in_service") == Some(0.0)).await;
    let job = patch_request("patch", &["true"], RebootPolicy::Never);
    assert!(matches!(me.run(&job).await.unwrap(), RunReply::Refused { .. }));
    let refused =
        |e: &Exposition| e.with("backstop_guard_refusals_total", &[("guard", "self-in-service")]) >= Some(1.0);
    scrape(me, "the refusal", refused).await;
}

#[tokio::test]
async fn a_port_that_somebody_else_has_is_told_and_taken_once_it_is_free() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let me = fleet.machine(0).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    me.configure(&format!("[metrics]\nlisten = \"{at}\"\n{}", options(2).config));
    me.kill_agent().await.unwrap();
    me.start_agent().unwrap();
    let told = |s: &backstop::control::protocol::Status| {
        s.warnings.iter().any(|w| w.contains("metrics port") && w.contains(&at.to_string()) && w.contains("free it"))
    };
    let status = me.wait_status(BOUND, told).await.unwrap_or_else(|e| panic!("{e}\n{}", me.agent_log()));
    assert!(status.starting.is_none(), "the agent is there all the same");
    scrape(me, "the socket serves meanwhile", settled).await;
    assert_eq!(fleet.receiver().accepted().len(), 0, "nobody is paged about it");
    drop(taken);
    let quiet = |s: &backstop::control::protocol::Status| !s.warnings.iter().any(|w| w.contains("metrics port"));
    me.wait_status(BOUND, quiet).await.unwrap_or_else(|e| panic!("{e}\n{}", me.agent_log()));
    let stream = TcpStream::connect(at).await.unwrap();
    let answer = talk(stream, "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").await;
    assert!(answer.contains("backstop_build_info{"), "{answer}");
}

#[tokio::test]
async fn a_directory_that_refuses_the_file_is_logged_and_nothing_else() {
    let fleet = Fleet::start(options(2)).await.unwrap();
    let me = fleet.machine(0).unwrap();
    let dir = me.dir().join("textfile");
    let file = dir.join("backstop.prom");
    me.configure(&format!("[metrics]\ntextfile = {:?}\n{}", file.to_string_lossy(), options(2).config));
    me.kill_agent().await.unwrap();
    me.start_agent().unwrap();
    let logged = || me.agent_log().contains("metrics.textfile cannot be written");
    assert!(pace::until(BOUND, logged).await, "{}", me.agent_log());
    scrape(me, "the agent goes on", settled).await;
    assert_eq!(fleet.receiver().accepted().len(), 0, "nobody is paged about it");
    std::fs::create_dir(&dir).unwrap();
    assert!(pace::until(BOUND, || file.exists()).await, "{}", me.agent_log());
    assert!(pace::until(BOUND, || me.agent_log().contains("is written again")).await);
}
