//! `backstop history`: what happened on this node, from the agent's audit journal.

use super::context::Ctx;
use super::text::{WIDTH, wrap};
use crate::control::protocol::History;
use crate::core::exit::Exit;
use crate::words::date;
use serde_json::{Map, Value};

/// Before what goes on in another line.
const INDENT: usize = 4;

/// `backstop history [-n N] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct HistoryArgs {
    /// How many lines
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    lines: u32,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// Prints the audit journal.
pub(super) async fn history(ctx: &mut Ctx<'_>, args: &HistoryArgs) -> Exit {
    match ctx.client.history(usize::try_from(args.lines).unwrap_or(usize::MAX)).await {
        Ok(history) => {
            ctx.show(args.json, &history, history_lines);
            Exit::Done
        }
        Err(e) => ctx.nobody_tells(&e, None, args.json),
    }
}

fn history_lines(h: &History) -> Vec<String> {
    if h.lines.is_empty() {
        return vec!["nothing has happened on this node yet".to_owned()];
    }
    // What happens again and again (a cron that is refused every minute) is one line.
    let mut runs: Vec<(String, String, String, usize)> = Vec::new();
    // Every later stage of a cycle repeats why it failed; once is enough.
    let mut failure = String::new();
    for line in &h.lines {
        let (when, what) = entry(line, &mut failure);
        match runs.last_mut() {
            Some((_, last, same, times)) if *same == what && !what.is_empty() => {
                (*last, *times) = (when, times.saturating_add(1));
            }
            _ => runs.push((when.clone(), when, what, 1)),
        }
    }
    let told = |(first, last, what, times): &(String, String, String, usize)| {
        let again = if *times > 1 { format!("  ({times} times, the last {last})") } else { String::new() };
        wrap(&format!("{first}  {what}{again}"), WIDTH.saturating_sub(INDENT)).join(&format!("\n{:INDENT$}", ""))
    };
    runs.iter().map(told).collect()
}

/// A stage of a cycle, as it is read: `deregister -> drain  c-91d2, job apt-security`, and how the cycle ended.
fn stage(fields: &Map<String, Value>, told: &mut String) -> Option<String> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let (from, to) = (text("from").unwrap_or("idle"), text("to").unwrap_or("idle"));
    let ended = fields.get("ended").and_then(|e| e.get("message")).and_then(Value::as_str);
    let failure = text("failure").filter(|f| *f != told.as_str() && !ended.is_some_and(|e| e.contains(f)));
    text("failure").unwrap_or_default().clone_into(told);
    let failed = failure.map_or_else(String::new, |f| format!("  failed: {f}"));
    let ended = ended.map_or_else(String::new, |e| format!("  ended: {e}"));
    let (cycle, job) = (text("cycle")?, text("job")?);
    let by = text("by").map_or_else(String::new, |by| format!(", by {by}"));
    Some(format!("stage  {from} -> {to}  {cycle}, job {job}{by}{failed}{ended}"))
}

/// When, and what: everything else as `key=value`, since the entries are the agent's, and a new kind is shown as well.
fn entry(line: &Value, failure: &mut String) -> (String, String) {
    let Value::Object(fields) = line else { return ("-".to_owned(), line.to_string()) };
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let text = |at: &Value| {
        let parsed = at.as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
        parsed.and_then(|t| u64::try_from(t.as_millisecond()).ok()).map_or_else(|| plain(at), date)
    };
    let when = match (fields.get("at"), fields.get("at_ms").and_then(Value::as_u64)) {
        (_, Some(ms)) => date(ms),
        (Some(at), None) => at.get("wall_ms").and_then(Value::as_u64).map_or_else(|| text(at), date),
        (None, None) => "-".to_owned(),
    };
    let event = fields.get("event").map(&plain).unwrap_or_default();
    if let Some(stage) = Some(fields).filter(|_| event == "stage").and_then(|f| stage(f, failure)) {
        return (when, stage);
    }
    if event == "page" {
        fields.get("message").map(&plain).unwrap_or_default().clone_into(failure);
    }
    let first = !event.is_empty();
    let rest =
        fields.iter().filter(|(key, value)| !["at", "at_ms", "event"].contains(&key.as_str()) && !value.is_null());
    let rest = rest.map(|(key, value)| format!("{key}={}", plain(value)));
    let words = std::iter::once(event).filter(|_| first).chain(rest).collect::<Vec<_>>().join("  ");
    (when, words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn history_shows_when_and_what_whatever_the_entry_looks_like() {
        let lines = vec![
            json!({"at": "2026-09-02T03:02:11Z", "event": "pause", "by": "anna(1000)", "exit": 0, "fault": null}),
            json!({"at_ms": 1_788_318_131_000_u64, "exit": 0, "verb": "pause"}),
            json!({"at": {"wall_ms": 1_788_318_131_000_u64}, "stage": "check"}),
            json!("torn"),
        ];
        assert_eq!(
            history_lines(&History { v: 1, lines }),
            [
                "02 Sep 03:02:11  pause  by=anna(1000)  exit=0",
                "02 Sep 03:02:11  exit=0  verb=pause",
                "02 Sep 03:02:11  stage=check",
                "-  \"torn\""
            ]
        );
    }

    #[test]
    fn the_same_again_and_again_is_one_line_with_its_count_and_its_last_time() {
        let refused = |minute: u64, by: &str| {
            let at = format!("2026-09-02T03:{minute:02}:00Z");
            json!({"at": at, "event": "refused", "by": by, "guard": "no-latch", "message": "L-7f3a"})
        };
        let lines =
            vec![refused(2, "cron"), refused(3, "cron"), refused(4, "cron"), refused(5, "anna"), refused(6, "cron")];
        let told = history_lines(&History { v: 1, lines });
        assert_eq!(
            told,
            [
                "02 Sep 03:02:00  refused  by=cron  guard=no-latch  message=L-7f3a  (3 times, the last 02 Sep\n    03:04:00)",
                "02 Sep 03:05:00  refused  by=anna  guard=no-latch  message=L-7f3a",
                "02 Sep 03:06:00  refused  by=cron  guard=no-latch  message=L-7f3a",
            ]
        );
    }

    #[test]
    fn a_stage_reads_as_a_step_and_the_last_one_has_the_end() {
        let lines = vec![
            json!({"at_ms": 1_788_318_131_000_u64, "event": "stage", "cycle": "c-1", "job": "patch", "by": "root(0)", "from": null,
                   "to": "claim", "failure": null, "ended": null}),
            json!({"at_ms": 1_788_318_131_000_u64, "event": "stage", "cycle": "c-1", "job": "patch", "by": "root(0)",
                   "from": "release", "to": null, "failure": "no", "ended": {"message": "failed in check (transport): no"}}),
        ];
        assert_eq!(
            history_lines(&History { v: 1, lines }),
            [
                "02 Sep 03:02:11  stage  idle -> claim  c-1, job patch, by root(0)",
                "02 Sep 03:02:11  stage  release -> idle  c-1, job patch, by root(0)  ended: failed in check\n    \
                 (transport): no",
            ]
        );
    }
}
