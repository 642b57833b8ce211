//! How moments and durations are written for people, in one style everywhere: status, pages, progress, the rehearsal. All
//! moments are UTC. (What people type is another matter: `config/duration.rs`.)

use jiff::Timestamp;

/// A second, in ms.
pub const SECOND: u64 = 1_000;
/// A minute, in ms.
pub const MINUTE: u64 = 60 * SECOND;
/// An hour, in ms.
pub const HOUR: u64 = 60 * MINUTE;
/// A day, in ms.
pub const DAY: u64 = 24 * HOUR;

fn utc(ms: u64, format: &str) -> String {
    let at = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    at.map_or_else(|| format!("{ms} ms"), |at| at.strftime(format).to_string())
}

/// `03:02:11`
pub fn time(ms: u64) -> String {
    utc(ms, "%H:%M:%S")
}

/// `03:02` today, `26 Aug 09:12` else.
pub fn moment(ms: u64, now_ms: u64) -> String {
    let today = ms.checked_div(DAY) == now_ms.checked_div(DAY);
    utc(ms, if today { "%H:%M" } else { "%d %b %H:%M" })
}

/// `26 Aug 09:12:03`
pub fn date(ms: u64) -> String {
    utc(ms, "%d %b %H:%M:%S")
}

/// How long something takes or took: `0.4 s`, `9 s`, `48 s`, `5m00s`, `4h02m`, `3d04h`.
pub fn span(ms: u64) -> String {
    let part = |unit: u64, wrap: u64| ms.checked_div(unit).and_then(|n| n.checked_rem(wrap)).unwrap_or(0);
    match ms {
        ..MINUTE if ms < 10 * SECOND && part(1, SECOND) >= 100 => format!("{}.{} s", part(SECOND, 10), part(100, 10)),
        ..MINUTE => format!("{} s", part(SECOND, 60)),
        MINUTE..HOUR => format!("{}m{:02}s", part(MINUTE, 60), part(SECOND, 60)),
        HOUR..DAY => format!("{}h{:02}m", part(HOUR, 24), part(MINUTE, 60)),
        DAY.. => format!("{}d{:02}h", part(DAY, u64::MAX), part(HOUR, 24)),
    }
}

/// How long ago: as [`span`], in whole seconds.
pub fn age(ms: u64) -> String {
    span(ms.saturating_sub(ms.checked_rem(SECOND).unwrap_or(0)))
}

/// At most `max` characters of `text`; what was cut shows as `…`.
pub fn short(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    let cut: String = text.chars().take(max.saturating_sub(1)).collect();
    format!("{}…", cut.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_reads_the_same_wherever_it_stands() {
        let shown = [0, 400, 1_000, 9_999, 48_000, 300_000, 4 * HOUR + 2 * MINUTE, 3 * DAY + 4 * HOUR, 40 * DAY];
        assert_eq!(
            shown.map(span),
            ["0 s", "0.4 s", "1 s", "9.9 s", "48 s", "5m00s", "4h02m", "3d04h", "40d00h"],
            "tenths only where they tell something"
        );
        assert_eq!(
            [0, 3_900, 59_999, 60_000, 2 * HOUR, 3 * DAY].map(age),
            ["0 s", "3 s", "59 s", "1m00s", "2h00m", "3d00h"]
        );
    }

    #[test]
    fn moments_name_the_day_unless_it_is_today() {
        let at = 1_788_318_131_000; // 2 September 2026, 03:02:11
        assert_eq!((time(at), moment(at, at + HOUR)), ("03:02:11".to_owned(), "03:02".to_owned()));
        assert_eq!(moment(at, at + DAY), "02 Sep 03:02");
        assert_eq!(time(u64::MAX), format!("{} ms", u64::MAX), "nonsense is shown, not hidden");
    }

    #[test]
    fn what_is_cut_shows_that_it_was() {
        assert_eq!((short("abc", 3), short("ab cd", 4)), ("abc".to_owned(), "ab…".to_owned()));
    }
}
