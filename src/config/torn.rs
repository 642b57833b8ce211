//! A file that is not TOML throughout: all the places where it is not, and the rest of it, so that one missing quote
//! does not hide the other mistakes.

use std::borrow::Cow;
use std::ops::Range;
use toml::de::DeTable;

/// After so many the file is something else, and the next ones tell nothing.
const TORN_MAX: usize = 20;

/// A place that is not TOML.
#[derive(Debug)]
pub(super) struct Torn {
    pub(super) line: Option<usize>,
    /// The parser's words.
    pub(super) message: String,
}

/// Where lines end.
pub(super) struct Lines {
    newlines: Vec<usize>,
    length: usize,
}

impl Lines {
    pub(super) fn new(text: &str) -> Lines {
        let newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(at, _)| at).collect();
        Lines { newlines, length: text.len() }
    }

    /// Line of a byte, from 1.
    pub(super) fn line(&self, offset: usize) -> Option<usize> {
        self.newlines.partition_point(|newline| *newline < offset).checked_add(1)
    }

    /// Bytes of a line, without its end.
    fn range(&self, line: usize) -> Range<usize> {
        let before = line.checked_sub(2).and_then(|i| self.newlines.get(i));
        let start = before.map_or(0, |newline| newline.saturating_add(1));
        let end = line.checked_sub(1).and_then(|i| self.newlines.get(i)).copied().unwrap_or(self.length);
        start..end
    }

    fn count(&self) -> usize {
        self.newlines.len().saturating_add(1)
    }
}

/// The text with everything blank that is not TOML, byte for byte in its place, and what those places are.
pub(super) fn readable<'a>(text: &'a str, lines: &Lines) -> (Cow<'a, str>, Vec<Torn>) {
    let mut text = Cow::Borrowed(text);
    let mut torn = Vec::new();
    while torn.len() < TORN_MAX {
        let Err(error) = DeTable::parse(&text) else {
            return (text, torn);
        };
        let line = error.span().and_then(|span| lines.line(span.start.min(text.len())));
        torn.push(Torn { line, message: error.message().to_owned() });
        let Some(rest) = line.and_then(|line| without(&text, lines, line)) else { break };
        text = Cow::Owned(rest);
    }
    // Too much of it is no TOML: nothing that is left can be believed to stand where it was meant to.
    (Cow::Borrowed(""), torn)
}

/// Without a line, and without the keys below it if it is the head of a table: they would fall to the table above.
/// `None` when the line is blank already.
fn without(text: &str, lines: &Lines, line: usize) -> Option<String> {
    let starts =
        |line: usize, with: char| text.get(lines.range(line)).is_some_and(|t| t.trim_start().starts_with(with));
    let mut last = line;
    if starts(line, '[') {
        while last < lines.count() && !starts(last.saturating_add(1), '[') {
            last = last.saturating_add(1);
        }
    }
    let cut = lines.range(line).start..lines.range(last).end;
    let (before, gone, after) = (text.get(..cut.start)?, text.get(cut.clone())?, text.get(cut.end..)?);
    if gone.trim().is_empty() {
        return None;
    }
    let blank: String = gone.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }).collect();
    Some([before, &blank, after].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn torn(text: &str) -> (String, Vec<usize>) {
        let (rest, torn) = readable(text, &Lines::new(text));
        let mut lines: Vec<_> = torn.iter().filter_map(|t| t.line).collect();
        lines.sort_unstable();
        (rest.split_whitespace().collect::<Vec<_>>().join(" "), lines)
    }

    #[test]
    fn every_torn_line_is_named_and_the_rest_stays_in_its_place() {
        assert_eq!(torn("a = 1\nb = x\nc = = 2\nd = \"open\ne = 5\n"), ("a = 1 e = 5".to_owned(), vec![2, 3, 4]));
        assert_eq!(torn("a = 1\na = 2\nb = 3"), ("a = 1 b = 3".to_owned(), vec![2]));
        assert_eq!(torn("é = 1\nb = 2"), ("b = 2".to_owned(), vec![1]));
    }

    #[test]
    fn keys_below_a_torn_head_do_not_fall_to_the_table_above() {
        assert_eq!(torn("[a]\nx = 1\n[b\ny = 2\n\n[c]\nz = 3"), ("[a] x = 1 [c] z = 3".to_owned(), vec![3]));
        assert_eq!(torn("[a]\nx = 1\n[a]\nx = 2\n[b]"), ("[a] x = 1 [b]".to_owned(), vec![3]));
    }

    #[test]
    fn a_file_of_another_kind_ends_after_a_few() {
        let (rest, lines) = torn(&"<p>hello</p>\n".repeat(1_000));
        assert_eq!((rest.as_str(), lines.len()), ("", TORN_MAX));
    }
}
