//! Lines and tables of the CLI: nothing that it says by itself is wider than [`WIDTH`], but for commands, which stay whole.

use crate::words::{DAY, HOUR, MINUTE, SECOND, short};

/// Columns of a terminal that everything fits into.
pub(super) const WIDTH: usize = 100;
/// Columns of a label, with the space behind it.
const LABEL: usize = 10;
/// A column of text is never narrower than this.
const NARROWEST: usize = 16;

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

/// Columns as wide as their widest cell, two spaces apart. The last one is not filled up: what does not fit into [`WIDTH`]
/// goes on below it.
pub(super) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let mut lines = Vec::new();
    let widths = widths(rows);
    for row in rows {
        let Some((last, head)) = row.split_last() else { continue };
        let head: Vec<String> = head.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        let head = head.concat();
        let indent = head.chars().count();
        let mut rest = wrap(last, WIDTH.saturating_sub(indent).max(NARROWEST)).into_iter();
        lines.push(format!("{head}{}", rest.next().unwrap_or_default()).trim_end().to_owned());
        lines.extend(rest.map(|line| format!("{:indent$}{line}", "")));
    }
    lines
}

/// The same, in one line a row: where it is wider than [`WIDTH`], the cells of column `elastic` are cut.
pub(super) fn table_within(mut rows: Vec<Vec<String>>, elastic: usize) -> Vec<String> {
    let widths = widths(&rows);
    let all = widths.iter().fold(widths.len().saturating_sub(1).saturating_mul(2), |sum, w| sum.saturating_add(*w));
    let present = widths.get(elastic).copied().unwrap_or(0);
    let room = present.saturating_sub(all.saturating_sub(WIDTH)).max(NARROWEST);
    for cell in rows.iter_mut().filter_map(|row| row.get_mut(elastic)) {
        *cell = short(cell, room);
    }
    let widths = self::widths(&rows);
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect::<Vec<_>>();
        cells.join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    (0..columns).map(width).collect()
}

/// Lines of at most `width` characters, broken at spaces; a longer word stays whole.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for paragraph in text.lines() {
        let mut line: Option<String> = None;
        // Spaces inside stay as they are: they may line something up.
        for word in paragraph.split(' ') {
            let wide = line.as_ref().map_or(0, |l| l.chars().count()).saturating_add(word.chars().count());
            line = Some(match line.take() {
                None => word.to_owned(),
                Some(full) if wide >= width && !full.trim().is_empty() => {
                    lines.push(full.trim_end().to_owned());
                    word.to_owned()
                }
                Some(line) => format!("{line} {word}"),
            });
        }
        lines.push(line.unwrap_or_default().trim_end().to_owned());
    }
    lines
}

/// `Label     text`, as every page of the CLI ends; longer text goes on below itself.
pub(super) fn labelled(label: &str, text: impl std::fmt::Display) -> String {
    let indent = LABEL;
    let lines = wrap(&text.to_string(), WIDTH.saturating_sub(indent));
    format!("{label:<9} {}", lines.join(&format!("\n{:indent$}", "")))
}

/// A command, whole, so that it can be copied; its remark (behind a `#`, as the shell reads it) above it where it does not
/// fit beside it.
pub(super) fn command(label: &str, text: &str) -> String {
    let indent = LABEL;
    match text.split_once("   # ") {
        Some((command, remark)) if text.chars().count().saturating_add(indent) > WIDTH => {
            format!("{}\n{:indent$}{}", labelled(label, format!("# {remark}")), "", command.trim_end())
        }
        _ => format!("{label:<9} {text}"),
    }
}

/// The next commands: the first is the one to begin with.
pub(super) fn commands<'a>(next: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    let label = |i: usize| if i == 0 { "Next" } else { "" };
    next.into_iter().enumerate().map(|(i, text)| command(label(i), text)).collect()
}

/// `text`, and at the right end `tail`.
pub(super) fn with_tail(text: &str, tail: &str, width: usize) -> String {
    format!("{text:<width$}  {tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_people_type_them() {
        for (text, ms) in [("90s", 90_000), ("4h", 4 * HOUR), ("1h30m", 90 * MINUTE), ("7d", 7 * DAY)] {
            assert_eq!(parse_span(text), Ok(ms));
        }
        for text in ["", "4", "h", "4x", "-4h", "4 h", "0s", "99999999999999999999h", "999999999999999d"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "b".into()], vec!["größe".into(), "x".into()], vec!["only".into()]];
        assert_eq!(table(&rows), ["a      b", "größe  x", "only"]);
    }

    #[test]
    fn what_is_too_wide_goes_on_below_itself_and_an_elastic_column_is_cut() {
        let long = "word ".repeat(40);
        let rows = vec![vec!["a".to_owned(), long.clone(), "z".to_owned()], vec!["b".to_owned(), long.clone()]];
        for line in table(&rows[1..]).iter().chain(&table_within(rows.clone(), 1)) {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        assert!(table_within(rows, 1)[0].ends_with("…  z"));
        let labelled = labelled("Why", &long);
        assert!(labelled.lines().count() == 3 && labelled.lines().all(|l| l.chars().count() <= WIDTH), "{labelled}");
        assert_eq!(wrap("  a  b", 80), ["  a  b"], "what is lined up stays so");
    }

    #[test]
    fn a_command_is_never_broken() {
        let long = format!("aws {}   # {}", "x".repeat(100), "why ".repeat(5));
        assert_eq!(
            command("Next", &long),
            format!("Next      # why why why why why\n          aws {}", "x".repeat(100))
        );
        assert_eq!(command("Next", "backstop status   # now"), "Next      backstop status   # now");
    }
}
