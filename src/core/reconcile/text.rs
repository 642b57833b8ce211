//! How findings are worded.

use super::super::target::{Reason, TargetState};
use std::fmt::Write as _;

/// More names than this are counted, not told.
const NAMES_MAX: usize = 8;

/// `40 s`, `5m00s`, `4h02m`, `3d04h`: as everywhere else.
pub(super) fn span(ms: u64) -> String {
    let s = ms.checked_div(1_000).unwrap_or(0);
    let part = |unit: u64, wrap: u64| s.checked_div(unit).and_then(|n| n.checked_rem(wrap)).unwrap_or(0);
    match s {
        ..60 => format!("{s} s"),
        60..3_600 => format!("{}m{:02}s", part(60, 60), part(1, 60)),
        3_600..86_400 => format!("{}h{:02}m", part(3_600, 24), part(60, 60)),
        86_400.. => format!("{}d{:02}h", part(86_400, u64::MAX), part(3_600, 24)),
    }
}

/// `a`, `a and b`, `a, b and c`; of many the first few, and how many more.
pub(super) fn list<S: AsRef<str>>(names: &[S], between: &str) -> String {
    let shown = names.len().min(NAMES_MAX);
    let more = names.len().saturating_sub(shown);
    let mut text = String::new();
    for (i, name) in names.iter().take(shown).enumerate() {
        let last = more == 0 && i.saturating_add(1) == shown;
        let link = match i {
            0 => "",
            _ if last && between == ", " => " and ",
            _ => between,
        };
        text.push_str(link);
        text.push_str(name.as_ref());
    }
    if more > 0 {
        let _ = write!(text, "{between}and {more} more");
    }
    text
}

/// `unhealthy (Target.Timeout)`
pub(super) fn state(state: TargetState, reason: Option<Reason>) -> String {
    match reason {
        None => state.label().to_owned(),
        Some(reason) => format!("{} ({})", state.label(), reason.label()),
    }
}
