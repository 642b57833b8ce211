//! Times and tables as people read them. All times are UTC, as in pages.

use jiff::Timestamp;

const SECOND: u64 = 1_000;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn utc(ms: u64, format: &str) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| format!("{ms} ms"), |at| at.strftime(format).to_string())
}

/// `03:02:11`
pub(super) fn time(ms: u64) -> String {
    utc(ms, "%H:%M:%S")
}

/// `03:02` today, `26 Aug 09:12` else.
pub(super) fn moment(ms: u64, now_ms: u64) -> String {
    let today = ms.checked_div(DAY) == now_ms.checked_div(DAY);
    utc(ms, if today { "%H:%M" } else { "%d %b %H:%M" })
}

/// `26 Aug 09:12:03`
pub(super) fn date(ms: u64) -> String {
    utc(ms, "%d %b %H:%M:%S")
}

/// How long something took: `0.4 s`, `48 s`, `5m00s`, `4h02m`, `3d04h`.
pub(super) fn span(ms: u64) -> String {
    let part = |of: u64, unit: u64, wrap: u64| of.checked_div(unit).and_then(|n| n.checked_rem(wrap)).unwrap_or(0);
    if ms < 10 * SECOND {
        format!("{}.{} s", part(ms, SECOND, 10), part(ms, 100, 10))
    } else if ms < MINUTE {
        format!("{} s", part(ms, SECOND, 60))
    } else if ms < HOUR {
        format!("{}m{:02}s", part(ms, MINUTE, 60), part(ms, SECOND, 60))
    } else if ms < DAY {
        format!("{}h{:02}m", part(ms, HOUR, 24), part(ms, MINUTE, 60))
    } else {
        format!("{}d{:02}h", part(ms, DAY, u64::MAX), part(ms, HOUR, 24))
    }
}

/// How long ago, roughly: `4 s`, `21 m`, `3 h`, `2 d`.
pub(super) fn age(ms: u64) -> String {
    let (unit, name) = match ms {
        ..MINUTE => (SECOND, "s"),
        MINUTE..HOUR => (MINUTE, "m"),
        HOUR..DAY => (HOUR, "h"),
        DAY.. => (DAY, "d"),
    };
    format!("{} {name}", ms.checked_div(unit).unwrap_or(0))
}

/// `4h`, `90s`, `1h30m`, `7d`: in ms.
pub(super) fn parse_span(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no time: write it like 90s, 30m, 4h, 1h30m or 7d");
    let (mut total, mut digits) = (0_u64, String::new());
    for c in text.chars() {
        if c.is_ascii_digit() {
            digits.push(c);
            continue;
        }
        let unit = match c {
            's' => SECOND,
            'm' => MINUTE,
            'h' => HOUR,
            'd' => DAY,
            _ => return Err(wrong()),
        };
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(unit).ok_or_else(wrong)?;
        total = total.checked_add(part).ok_or_else(wrong)?;
        digits.clear();
    }
    if digits.is_empty() && total > 0 { Ok(total) } else { Err(wrong()) }
}

/// Columns as wide as their widest cell, two spaces apart; the last one is not filled up.
pub(super) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect::<Vec<_>>();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// `Label     text`, as every page of the CLI ends.
pub(super) fn labelled(label: &str, text: impl std::fmt::Display) -> String {
    format!("{label:<9} {text}")
}

/// `text`, and at the right end `tail`.
pub(super) fn with_tail(text: &str, tail: &str, width: usize) -> String {
    format!("{text:<width$}  {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_like_spans_and_are_read_back() {
        let shown = [0, 400, 9_999, 48_000, 300_000, 4 * HOUR + 2 * MINUTE, 3 * DAY + 4 * HOUR, 40 * DAY].map(span);
        assert_eq!(shown, ["0.0 s", "0.4 s", "9.9 s", "48 s", "5m00s", "4h02m", "3d04h", "40d00h"]);
        assert_eq!([0, 59_999, 60_000, 2 * HOUR, 3 * DAY].map(age), ["0 s", "59 s", "1 m", "2 h", "3 d"]);
        for (text, ms) in [("90s", 90_000), ("4h", 4 * HOUR), ("1h30m", 90 * MINUTE), ("7d", 7 * DAY)] {
            assert_eq!(parse_span(text), Ok(ms));
        }
        for text in ["", "4", "h", "4x", "-4h", "4 h", "0s", "99999999999999999999h", "999999999999999d"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_name_the_day_unless_it_is_today() {
        let at = 1_788_318_131_000; // 2 September 2026, 03:02:11
        assert_eq!((time(at), moment(at, at + HOUR)), ("03:02:11".to_owned(), "03:02".to_owned()));
        assert_eq!(moment(at, at + DAY), "02 Sep 03:02");
        assert_eq!(time(u64::MAX), format!("{} ms", u64::MAX), "nonsense is shown, not hidden");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "b".into()], vec!["größe".into(), "x".into()], vec!["only".into()]];
        assert_eq!(table(&rows), ["a      b", "größe  x", "only"]);
    }
}
