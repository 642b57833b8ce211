//! `backstop history`: what happened on this node, from the agent's audit journal.

use super::context::Ctx;
use crate::control::protocol::History;
use crate::core::exit::Exit;
use crate::words::date;
use serde_json::Value;

/// `backstop history [-n N] [--json]`
#[derive(clap::Args, Debug)]
pub(super) struct HistoryArgs {
    /// How many lines
    #[arg(short = 'n', long, default_value_t = 50, value_name = "N")]
    lines: usize,
    /// One object on stdout
    #[arg(long)]
    json: bool,
}

/// Prints the audit journal.
pub(super) async fn history(ctx: &mut Ctx<'_>, args: &HistoryArgs) -> Exit {
    match ctx.client.history(args.lines).await {
        Ok(history) => {
            ctx.show(args.json, &history, history_lines);
            Exit::Done
        }
        Err(e) => ctx.no_answer(&e, false, args.json),
    }
}

fn history_lines(h: &History) -> Vec<String> {
    if h.lines.is_empty() {
        return vec!["nothing has happened on this node yet".to_owned()];
    }
    // What happens again and again (a cron that is refused every minute) is one line.
    let mut runs: Vec<(String, String, String, usize)> = Vec::new();
    for line in &h.lines {
        let (when, what) = entry(line);
        match runs.last_mut() {
            Some((_, last, same, times)) if *same == what && !what.is_empty() => {
                (*last, *times) = (when, times.saturating_add(1));
            }
            _ => runs.push((when.clone(), when, what, 1)),
        }
    }
    let told = |(first, last, what, times): &(String, String, String, usize)| {
        let again = if *times > 1 { format!("  ({times} times, the last {last})") } else { String::new() };
        format!("{first}  {what}{again}")
    };
    runs.iter().map(told).collect()
}

/// When, and what: everything else as `key=value`, since the entries are the agent's, and a new kind is shown as well.
fn entry(line: &Value) -> (String, String) {
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
                "02 Sep 03:02:00  refused  by=cron  guard=no-latch  message=L-7f3a  (3 times, the last 02 Sep 03:04:00)",
                "02 Sep 03:05:00  refused  by=anna  guard=no-latch  message=L-7f3a",
                "02 Sep 03:06:00  refused  by=cron  guard=no-latch  message=L-7f3a",
            ]
        );
    }
}
