//! Durations as people write them: "15m", "1h30m", "500ms". Always with a unit.

use super::problem::Refusal;
use std::fmt;

/// Units from large to small; their milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// What people write instead of the units above.
const SYNONYMS: [(&str, &str); 22] = [
    ("day", "d"),
    ("days", "d"),
    ("hour", "h"),
    ("hours", "h"),
    ("hr", "h"),
    ("hrs", "h"),
    ("min", "m"),
    ("mins", "m"),
    ("minute", "m"),
    ("minutes", "m"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("msec", "ms"),
    ("msecs", "ms"),
    ("millis", "ms"),
    ("millisecond", "ms"),
    ("milliseconds", "ms"),
    ("d", "d"),
    ("h", "h"),
    ("s", "s"),
];

const FORM: &str = "a whole number with a unit (d, h, m, s, ms), as in \"30s\", \"15m\" or \"1h30m\"";

/// Milliseconds as the shortest text that [`parse`] reads back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written(pub u64);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        for (unit, ms) in UNITS {
            let count = rest.checked_div(ms).unwrap_or(0);
            rest = rest.checked_rem(ms).unwrap_or(0);
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

/// Milliseconds of a text such as "1h30m": units from large to small, each once, no spaces, signs or fractions.
pub(super) fn parse(text: &str) -> Result<u64, Refusal> {
    strict(text).ok_or_else(|| Refusal::new(FORM, advice(text)))
}

/// How a number without a unit is answered.
pub(super) fn unitless(number: &str) -> Refusal {
    let number = number.trim_start_matches(['-', '+']);
    let short = number.len() <= 9 && number.bytes().all(|b| b.is_ascii_digit());
    let example = if short { number } else { "30" };
    Refusal::new(FORM, format!("which unit? write \"{example}s\" for seconds, \"{example}m\" for minutes"))
}

fn strict(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total: u64 = 0;
    let mut units = UNITS.iter();
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let letters = tail.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(letters)?;
        let (_, ms) = units.find(|(name, _)| *name == unit)?;
        total = total.checked_add(number.parse::<u64>().ok()?.checked_mul(*ms)?)?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

fn advice(text: &str) -> String {
    let bare = text.trim();
    if !bare.is_empty() && bare.bytes().all(|b| b.is_ascii_digit()) {
        return unitless(bare).next;
    }
    if let Some(ms) = strict(&rewritten(text)) {
        return format!("write \"{}\"", Written(ms));
    }
    if let Some(ms) = fraction(bare) {
        return format!("no fractions: write \"{}\"", Written(ms));
    }
    "write a number and a unit, large units first, without spaces".to_owned()
}

/// The text with spaces gone and long unit names replaced.
fn rewritten(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut out = String::new();
    let mut word = String::new();
    for c in lower.chars().chain([' ']) {
        if c.is_ascii_alphabetic() {
            word.push(c);
            continue;
        }
        let unit = SYNONYMS.iter().find(|(long, _)| *long == word).map_or(word.as_str(), |(_, unit)| unit);
        out.push_str(unit);
        word.clear();
        if !c.is_whitespace() && c != ',' {
            out.push(c);
        }
    }
    out
}

/// "1.5h" → milliseconds, for the advice only.
fn fraction(text: &str) -> Option<u64> {
    let (whole, tail) = text.split_once('.')?;
    let digits = tail.find(|c: char| !c.is_ascii_digit())?;
    let (tenths, unit) = tail.split_at_checked(digits)?;
    let (_, ms) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let scale = 10_u64.checked_pow(u32::try_from(tenths.len()).ok()?)?;
    let part = tenths.parse::<u64>().ok()?.checked_mul(*ms)?.checked_div(scale)?;
    whole.parse::<u64>().ok()?.checked_mul(*ms)?.checked_add(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_units() {
        for (text, ms) in [
            ("500ms", 500),
            ("0s", 0),
            ("30s", 30_000),
            ("15m", 900_000),
            ("1h30m", 5_400_000),
            ("1d2h3m4s5ms", 93_784_005),
            ("90m", 5_400_000),
        ] {
            assert_eq!(parse(text), Ok(ms), "{text}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for ms in [0, 1, 999, 1_000, 5_400_000, 93_784_005, u64::MAX] {
            assert_eq!(parse(&Written(ms).to_string()), Ok(ms));
        }
    }

    #[test]
    fn a_wrong_duration_is_answered_with_the_right_one() {
        for (text, next) in [
            ("15", "which unit? write \"15s\""),
            ("15 min", "write \"15m\""),
            ("30 Seconds", "write \"30s\""),
            ("5M", "write \"5m\""),
            ("1 hour, 30 minutes", "write \"1h30m\""),
            ("1.5h", "write \"1h30m\""),
            ("-5m", "write a number and a unit"),
            ("30m1h", "large units first"),
            ("", "write a number"),
            ("m", "write a number"),
            ("99999999999999999999d", "write a number"),
            ("５m", "write a number"),
        ] {
            let refusal = parse(text).expect_err(text);
            assert!(refusal.next.contains(next), "{text:?}: {}", refusal.next);
        }
    }
}
