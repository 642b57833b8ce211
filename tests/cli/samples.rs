//! One fleet in trouble, as every test sees it: es-client-2 failed in `check`, its latch blocks patching.

use backstop::control::protocol::{
    CheckReply, CycleStatus, Explain, History, NodeStatus, ProgressStep, RunReply, Source, Status,
};
use backstop::core::cycle::{Ended, StageName};
use backstop::core::exit::Exit;
use backstop::core::exit_codes::ExitCodes;
use backstop::core::guard::{Guard, Said, Verdict, Verdicts};
use backstop::core::ids::{CycleId, LatchId};
use backstop::core::job::{JobResult, Verdict as JobVerdict};
use backstop::core::record::Record;
use backstop::core::time::{BootId, Now};
use serde_json::json;

/// 2 September 2026, 03:02:11 UTC.
pub(crate) const AT: u64 = 1_788_318_131_000;
/// A minute.
pub(crate) const MIN: u64 = 60_000;

pub(crate) fn started() -> RunReply {
    RunReply::Started { cycle: "c-91d2".to_owned(), node: "es-client-2".to_owned(), fleet: "au-search".to_owned() }
}

pub(crate) fn refused(exit: Exit, message: &str) -> RunReply {
    RunReply::Refused { exit: exit.code(), message: message.to_owned(), verdicts: None, next: None }
}

pub(crate) fn step(n: u64, stage: StageName, text: &str, took_ms: Option<u64>) -> ProgressStep {
    ProgressStep { n, at_ms: AT + n * 1_000, stage, text: text.to_owned(), took_ms }
}

pub(crate) fn ended(exit: Exit) -> Ended {
    Ended {
        cycle: CycleId::from("c-91d2"),
        request: "".into(),
        job: "apt-security".into(),
        exit,
        message: exit.sentence().into(),
        latch: (exit.code() > 100 && exit != Exit::EndedEarly).then(|| LatchId::from("L-91d2")),
        verdict: Some(JobVerdict {
            result: JobResult::Exited(0),
            reboot_needed: true,
            output_tail: "1 upgraded".into(),
            codes: ExitCodes::Plain,
        }),
        at: Now { wall_ms: AT + 8 * MIN, boot: BootId("b".into()), since_boot_ms: 5 },
        out_ms: 479_000,
    }
}

pub(crate) fn record() -> Record {
    serde_json::from_value(json!({
        "schema": 1, "fleet": "au-search", "counter": 12, "nonce": "n",
        "slots": {"i-2": {"cycle": "c-7f3a", "node": "es-client-2", "job": "apt-security", "budget_s": 3600, "since_ms": AT}},
        "latches": {
            "c-7f3a": {"instance": "i-2", "node": "es-client-2", "stage": "check", "class": "transport",
                "message": "connection refused", "job": "apt-security", "since_ms": AT + 21 * MIN, "cleared": null},
            "c-0001": {"instance": "i-1", "node": "es-client-1", "stage": "patch", "class": "job", "message": "exit 1",
                "job": "apt-security", "since_ms": AT, "cleared": {"by": "anna(1000)", "reason": "seen", "since_ms": AT}}
        },
        "pause": null, "holds": {}, "hold_all": null, "retired": {}, "finished": []
    }))
    .expect("a record")
}

fn node(n: u32, service: &str, doing: &str) -> NodeStatus {
    NodeStatus {
        node: format!("es-client-{n}"),
        instance: format!("i-{n}"),
        own: n == 1,
        service: service.to_owned(),
        targets: vec![("es-clients".to_owned(), if service == "in" { "healthy" } else { "unused" }.to_owned())],
        since_ms: [None, Some(AT), Some(AT - 24 * 60 * MIN)][n as usize - 1],
        registers_as: Vec::new(),
        doing: doing.to_owned(),
        agent: "1.2.0".to_owned(),
        beat_age_ms: Some(3_000),
    }
}

pub(crate) fn status() -> Status {
    let source = |name: &str| Source { source: name.to_owned(), age_ms: Some(4_000), fault: None };
    Status {
        v: 1,
        agent: "1.2.0".to_owned(),
        fleet: "au-search".to_owned(),
        node: "es-client-1".to_owned(),
        instance: "i-1".to_owned(),
        mode: "act".to_owned(),
        config_problem: None,
        now_ms: AT + 25 * MIN,
        minimum_healthy: 3,
        max_unavailable: 1,
        in_service: Some(2),
        nodes: vec![node(1, "in", "idle"), node(2, "OUT", "check: try 168, connection refused"), node(3, "in", "idle")],
        cycle: None,
        last: Some(ended(Exit::Done)),
        record: Some(record()),
        findings: Vec::new(),
        alerts: Vec::new(),
        undelivered: 0,
        heals_in_ms: None,
        pages_waiting: Vec::new(),
        last_page_accepted: Some((7, AT + 21 * MIN)),
        last_page: None,
        sees: vec![source("load balancer"), source("cluster"), source("fleet record"), source("members")],
        would_refuse: None,
        warnings: vec!["outside_watch is not set".to_owned()],
        next: Some("backstop explain es-client-2".to_owned()),
        starting: None,
    }
}

pub(crate) fn cycle() -> CycleStatus {
    CycleStatus {
        cycle: "c-91d2".to_owned(),
        kind: "patch".to_owned(),
        job: "apt-security".to_owned(),
        stage: StageName::Check,
        stage_since_ms: AT,
        out_since_ms: Some(AT),
        waiting_for: "the node check".to_owned(),
        tries: 3,
        fault: Some("connection refused (transport)".to_owned()),
        failure: None,
        early: None,
        late: false,
        deadline_left_ms: 10 * MIN,
    }
}

/// An operator's hold that ended so.
pub(crate) fn hold_ended(exit: Exit, out_ms: u64) -> Ended {
    Ended { job: "hold".into(), verdict: None, latch: None, out_ms, ..ended(exit) }
}

pub(crate) fn check() -> CheckReply {
    let verdict = |guard, said, sentence: &str, exit| Verdict { guard, said, sentence: sentence.into(), exit };
    CheckReply {
        v: 1,
        node: "es-client-1".to_owned(),
        verdicts: Verdicts(vec![
            verdict(Guard::NoLatch, Said::Refused, "L-7f3a: es-client-2 failed in check", Exit::Latched),
            verdict(Guard::Mode, Said::Pass, "mode is act", Exit::Paused),
            verdict(Guard::Rate, Said::Warn, "5 of 6 cycles in the last hour", Exit::Rate),
        ]),
        exit: 100,
        warnings: Vec::new(),
        would_take: vec![("drain".to_owned(), 300_000), ("check".to_owned(), 15_000)],
        next: Some("backstop explain es-client-2".to_owned()),
    }
}

pub(crate) fn explain() -> Explain {
    Explain {
        v: 1,
        node: "es-client-1".to_owned(),
        unknown: false,
        lines: vec!["It is in service.".to_owned(), "No cycle starts: latch L-7f3a is set.".to_owned()],
        next: vec!["backstop latch clear L-7f3a --reason \"...\"".to_owned()],
    }
}

pub(crate) fn history() -> History {
    let line = |stage: &str| json!({"at_ms": AT, "stage": stage});
    History { v: 1, lines: vec![line("claim"), line("deregister"), line("drain")] }
}
