//! What is wrong with a config file, and what is merely odd: each with the place, what was found, what is expected and
//! the next step, for people (`Display`) and for machines (`Serialize`).

use serde::Serialize;
use std::fmt;

/// More than this are counted, not listed: a file that is no config at all would fill the screen.
const LISTED_MAX: usize = 100;

/// One thing that keeps the file from being used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file it is in.
    pub file: String,
    /// Line, from 1; none where something is missing from the file as a whole.
    pub line: Option<usize>,
    /// The key, as in `deadlines.claim` or `target_group[0].arn`; none for a problem of the whole file.
    pub key: Option<String>,
    /// What is there. Never a secret.
    pub found: String,
    /// What may be there.
    pub expected: String,
    /// What to do now.
    pub next: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.file, self.line, self.key.as_deref())?;
        write!(f, "found {}; expected {}; next: {}", self.found, self.expected, self.next)
    }
}

/// Something the file may say, but that an operator should know about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The file it is in.
    pub file: String,
    /// Line, from 1; none where something is missing.
    pub line: Option<usize>,
    /// The key.
    pub key: String,
    /// What follows from it.
    pub says: String,
    /// What to do about it.
    pub next: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        place(f, &self.file, self.line, Some(&self.key))?;
        write!(f, "warning: {}; next: {}", self.says, self.next)
    }
}

/// `file:line: key: `
fn place(f: &mut fmt::Formatter<'_>, file: &str, line: Option<usize>, key: Option<&str>) -> fmt::Result {
    write!(f, "{}:", Plain(file))?;
    if let Some(line) = line {
        write!(f, "{line}:")?;
    }
    f.write_str(" ")?;
    key.map_or(Ok(()), |key| write!(f, "{key}: "))
}

/// Text of unknown origin without control characters, so that it cannot steer a terminal.
struct Plain<'a>(&'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .chars()
            .try_for_each(|c| if c.is_control() { write!(f, "{}", c.escape_default()) } else { write!(f, "{c}") })
    }
}

/// All problems of a file at once; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problems {
    problems: Vec<Problem>,
    /// How many more there are that are not listed.
    more: usize,
}

impl Problems {
    /// `None` when there are none. In the order of the file; what has no line comes last.
    pub fn new(mut problems: Vec<Problem>) -> Option<Problems> {
        if problems.is_empty() {
            return None;
        }
        problems.sort_by_key(|p| p.line.unwrap_or(usize::MAX));
        let more = problems.len().saturating_sub(LISTED_MAX);
        problems.truncate(LISTED_MAX);
        Some(Problems { problems, more })
    }

    /// One problem that makes all other questions pointless.
    pub(super) fn one(problem: Problem) -> Problems {
        Problems { problems: vec![problem], more: 0 }
    }

    /// The problems, at least one, in the order of the file.
    pub fn list(&self) -> &[Problem] {
        &self.problems
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// Why one value is not accepted; the place and what was found are known to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// What may be there.
    pub(super) expected: String,
    /// What to do now.
    pub(super) next: String,
}

impl Refusal {
    pub(super) fn new(expected: impl Into<String>, next: impl Into<String>) -> Refusal {
        Refusal { expected: expected.into(), next: next.into() }
    }
}

/// Text from the file, quoted, without control characters and cut to a length that fits a line.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN_MAX: usize = 120;
    let mut shown: String = text.chars().take(SHOWN_MAX).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    format!("{shown:?}")
}
