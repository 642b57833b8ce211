//! `backstop alert test`: one page and its end through every sink, past the book.

use super::text::{Context, render};
use crate::control::protocol::{TestReply, TestResult};
use crate::core::alert::{Book, Delivered, Sink};
use crate::core::error::Jitter;
use crate::core::exit::Exit;
use crate::core::finding::{Finding, Kind, Report};
use crate::core::ids::InstanceId;
use crate::core::page::Severity;
use crate::core::time::Now;
use crate::ports::PageSink;

/// Tries every sink, or the one of this name, one after the other. Empty = there is none of that name.
pub async fn try_all(
    sinks: &[Box<dyn PageSink>],
    only: Option<&str>,
    fleet: &str,
    node: &str,
    now: &Now,
) -> Vec<TestResult> {
    let mut results = Vec::new();
    for sink in sinks.iter().filter(|s| only.is_none_or(|name| s.name() == name)) {
        let (accepted, message) = match try_one(&**sink, fleet, node, now).await {
            Ok(()) => (true, "accepted the test page and its end".to_owned()),
            Err(why) => (false, why),
        };
        results.push(TestResult { sink: sink.name().to_owned(), accepted, message });
    }
    results
}

/// The answer to whoever asked; `whole`: no sink of the config was left out.
pub fn reply(results: Vec<TestResult>, whole: bool, v: u32) -> TestReply {
    let all = whole && !results.is_empty() && results.iter().all(|r| r.accepted);
    let exit = if all { Exit::Done } else { Exit::Unreachable };
    let next = (!all).then(|| "backstop config check   # judges addresses and files of the pagers".to_owned());
    TestReply { v, results, exit: exit.code(), next }
}

async fn try_one(sink: &dyn PageSink, fleet: &str, node: &str, now: &Now) -> Result<(), String> {
    let mut book = Book::new(fleet.into(), InstanceId("test".into()), node.into());
    book.sinks(vec![Sink { name: sink.name().into(), dedups: true, renew_ms: None }]);
    let finding = Finding {
        kind: Kind::Test,
        subject: node.into(),
        severity: Severity::Warning,
        sentence: format!("`backstop alert test` was run on {node}; nothing is wrong").into(),
    };
    let about = finding.about();
    book.look(&Report { findings: vec![finding], ..Report::default() }, now);
    for what in ["the test page", "the end of the test page"] {
        let due = book.due(now);
        let Some(delivery) = due.first() else { return Err(format!("{what} was not made")) };
        let context = Context {
            fleet: fleet.to_owned(),
            node: node.to_owned(),
            in_service: None,
            members: None,
            floor: 0,
            targets: Vec::new(),
            now_ms: now.wall_ms,
            doing: None,
            listed: Vec::new(),
            missing: Vec::new(),
        };
        let rendered = delivery.of(&book).map(|alert| render(alert, delivery, &context));
        let Some(rendered) = rendered else { return Err(format!("{what} was not made")) };
        sink.deliver(&rendered).await.map_err(|fault| format!("{what}: {fault}"))?;
        book.begin(delivery, now);
        book.result(delivery, &Delivered::Accepted, now, Jitter::default());
        book.look(&Report::default(), now);
        book.over(&about, now);
    }
    Ok(())
}
