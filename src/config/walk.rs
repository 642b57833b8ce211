//! From bytes to a document in which every value is of its key's type and form, with all defaults filled in, and a
//! problem for everything that is not. serde stops at its first error; this walk does not.

use super::EVERY_KEY;
use super::guess;
use super::keys::{self, Fallback, Key, Kind};
use super::problem::{Problem, Refusal, quoted};
use super::torn::{self, Lines, Torn};
use super::value::{accept, found};
use std::collections::{BTreeMap, BTreeSet};
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// A list of tables longer than this is a mistake, and each entry costs calls.
const LIST_MAX: usize = 50;

/// What the walk leaves behind.
#[derive(Debug)]
pub(super) struct Walked {
    /// What was accepted, and the defaults of what was not given.
    pub(super) doc: toml::Table,
    /// Line of every key, table and list entry in the file.
    lines: BTreeMap<String, usize>,
    /// Places whose content was refused: nothing more is said about them.
    bad: BTreeSet<String>,
    /// What was found.
    pub(super) problems: Vec<Problem>,
    /// The file is not TOML throughout: what seems to be missing may be in the part that could not be read.
    pub(super) torn: bool,
    file: String,
}

impl Walked {
    /// The line where this key stands.
    pub(super) fn line(&self, path: &str) -> Option<usize> {
        self.lines.get(path).copied()
    }

    /// The file gives this key, in a form that was accepted.
    pub(super) fn given(&self, path: &str) -> bool {
        self.lines.contains_key(path) && !self.is_bad(path)
    }

    /// There is a problem with this key or with a table around it already.
    pub(super) fn is_bad(&self, path: &str) -> bool {
        let inside =
            |bad: &String| path.strip_prefix(bad.as_str()).is_some_and(|r| r.is_empty() || r.starts_with(['.', '[']));
        self.bad.iter().any(inside)
    }

    /// A value of the document by its full name.
    pub(super) fn get(&self, path: &str) -> Option<&toml::Value> {
        let mut parts = path.split('.');
        let first = self.doc.get(parts.next()?)?;
        parts.try_fold(first, |value, part| value.get(part))
    }

    fn refuse(&mut self, path: &str, line: Option<usize>, found: String, refusal: Refusal) {
        self.bad.insert(path.to_owned());
        self.problems.push(Problem {
            file: self.file.clone(),
            line,
            key: Some(path.to_owned()),
            found,
            expected: refusal.expected,
            next: refusal.next,
        });
    }
}

/// Reads the text of a file; `file` is its name in problems, `hostname` what `{hostname}` stands for.
pub(super) fn walk(file: &str, text: &str, hostname: &str) -> Walked {
    let lines = Lines::new(text);
    let (readable, errors) = torn::readable(text, &lines);
    let (parsed, _) = DeTable::parse_recoverable(&readable);
    let mut walker = Walker {
        lines,
        hostname,
        out: Walked {
            doc: toml::Table::new(),
            lines: BTreeMap::new(),
            bad: BTreeSet::new(),
            problems: Vec::new(),
            torn: !errors.is_empty(),
            file: file.to_owned(),
        },
    };
    walker.out.doc = walker.table("", "", parsed.get_ref());
    for error in errors {
        walker.syntax(error);
    }
    if !walker.out.torn {
        missing(&mut walker.out);
    }
    defaults(&mut walker.out, hostname);
    walker.out
}

struct Walker<'a> {
    lines: Lines,
    hostname: &'a str,
    out: Walked,
}

impl Walker<'_> {
    /// `shown` is the table's name for people (`target_group[0]`), `path` that in the table of keys (`target_group[]`).
    fn table(&mut self, shown: &str, path: &str, table: &DeTable<'_>) -> toml::Table {
        let mut accepted = toml::Table::new();
        for (name, value) in table {
            let line = self.lines.line(name.span().start);
            let name = name.get_ref().as_ref();
            let section = path;
            let (shown, path) = (join(shown, &printable(name)), join(path, name));
            if let Some(line) = line {
                self.out.lines.insert(shown.clone(), line);
            }
            // A quoted name with a dot is one name, not a path.
            let known = bare(name);
            if let Some(key) = keys::find(&path).filter(|_| known) {
                if let Some(value) = self.value(key, &shown, line, value) {
                    accepted.insert(name.to_owned(), value);
                }
            } else if known && keys::SECTIONS.iter().any(|s| s.path == path) {
                self.section(&shown, &path, line, value, name, &mut accepted);
            } else if known && keys::SECTIONS.iter().any(|s| s.path.strip_suffix("[]") == Some(path.as_str())) {
                self.list(&shown, &path, line, value, name, &mut accepted);
            } else {
                self.out.refuse(
                    &shown,
                    line,
                    "a key that does not exist".to_owned(),
                    guess::unknown(section, name, value.get_ref()),
                );
            }
        }
        accepted
    }

    fn section(
        &mut self,
        shown: &str,
        path: &str,
        line: Option<usize>,
        value: &Spanned<DeValue<'_>>,
        name: &str,
        accepted: &mut toml::Table,
    ) {
        if let DeValue::Table(inner) = value.get_ref() {
            let inner = self.table(shown, path, inner);
            accepted.insert(name.to_owned(), toml::Value::Table(inner));
        } else {
            let refusal = Refusal::new(
                format!("a table [{path}]"),
                format!("write [{path}] on a line of its own, its keys below"),
            );
            self.out.refuse(shown, line, found(value.get_ref(), None), refusal);
        }
    }

    fn list(
        &mut self,
        shown: &str,
        path: &str,
        line: Option<usize>,
        value: &Spanned<DeValue<'_>>,
        name: &str,
        accepted: &mut toml::Table,
    ) {
        let expected = format!("one or more tables [[{path}]]");
        let DeValue::Array(entries) = value.get_ref() else {
            let next = format!("write [[{path}]] with two brackets on a line of its own, its keys below");
            self.out.refuse(shown, line, found(value.get_ref(), None), Refusal::new(expected, next));
            return;
        };
        if entries.is_empty() || entries.len() > LIST_MAX {
            let next = format!("write one [[{path}]] table for each, at most {LIST_MAX}");
            let found =
                if entries.is_empty() { "an empty list".to_owned() } else { format!("{} entries", entries.len()) };
            self.out.refuse(shown, line, found, Refusal::new(expected, next));
            return;
        }
        let entries = self.entries(shown, path, entries, &expected);
        accepted.insert(name.to_owned(), toml::Value::Array(entries));
    }

    fn entries(&mut self, shown: &str, path: &str, entries: &DeArray<'_>, expected: &str) -> Vec<toml::Value> {
        let mut accepted = Vec::new();
        for (i, entry) in entries.iter().enumerate() {
            let shown = format!("{shown}[{i}]");
            let line = self.lines.line(entry.span().start);
            if let Some(line) = line {
                self.out.lines.insert(shown.clone(), line);
            }
            let table = if let DeValue::Table(inner) = entry.get_ref() {
                self.table(&shown, &format!("{path}[]"), inner)
            } else {
                let next = format!("write [[{path}]] on a line of its own, its keys below");
                self.out.refuse(&shown, line, found(entry.get_ref(), None), Refusal::new(expected, next));
                toml::Table::new()
            };
            accepted.push(toml::Value::Table(table));
        }
        accepted
    }

    fn value(
        &mut self,
        key: &Key,
        shown: &str,
        line: Option<usize>,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<toml::Value> {
        match accept(key, value.get_ref(), self.hostname) {
            Ok(value) => Some(value),
            Err(refusal) => {
                self.out.refuse(shown, line, found(value.get_ref(), Some(key)), refusal);
                None
            }
        }
    }

    fn syntax(&mut self, Torn { line, message }: Torn) {
        self.out.problems.push(Problem {
            file: self.out.file.clone(),
            line,
            key: None,
            found: format!("text that is not TOML ({message})"),
            expected: "`key = value`, with text in quotes, or a [table]".to_owned(),
            next: format!("correct this line; {EVERY_KEY} shows every key"),
        });
    }
}

/// What must be there and is not.
fn missing(out: &mut Walked) {
    let absent = |out: &mut Walked, path: &str, line: Option<usize>, expected: String, next: String| {
        out.refuse(path, line, "nothing".to_owned(), Refusal::new(expected, next));
    };
    for key in keys::all().filter(|key| key.fallback == Fallback::Required) {
        let line_for = format!("{} = {}", key.name(), key.as_toml(key.example));
        if let Some(list) = key.section().strip_suffix("[]") {
            if !out.lines.contains_key(list) {
                absent(
                    out,
                    list,
                    None,
                    format!("at least one [[{list}]]"),
                    format!("add [[{list}]] and below it {line_for}"),
                );
            }
            for i in 0..out.doc.get(list).and_then(toml::Value::as_array).map_or(0, Vec::len) {
                let entry = format!("{list}[{i}]");
                let path = format!("{entry}.{}", key.name());
                if !out.lines.contains_key(&path) && !out.is_bad(&path) {
                    absent(out, &path, out.line(&entry), key.expects(), format!("add {line_for}"));
                }
            }
        } else if key.section().is_empty() {
            if !out.lines.contains_key(key.path) {
                absent(out, key.path, None, key.expects(), format!("add at the top of the file: {line_for}"));
            }
        } else if out.lines.contains_key(key.section()) && !out.lines.contains_key(key.path) && !out.is_bad(key.path) {
            absent(out, key.path, out.line(key.section()), key.expects(), format!("add {line_for}"));
        }
    }
}

/// Gives every key with a plain default its value, where the file gives none or a bad one.
fn defaults(out: &mut Walked, hostname: &str) {
    for key in keys::all() {
        let Fallback::Value(default) = key.fallback else { continue };
        if out.get(key.path).is_some() {
            continue;
        }
        let value = match key.kind {
            Kind::Integer { .. } => default.parse().ok().map(toml::Value::Integer),
            Kind::Bool => default.parse().ok().map(toml::Value::Boolean),
            Kind::List(_) => None,
            Kind::Duration { .. } | Kind::Choice(_) => Some(toml::Value::from(default)),
            Kind::Text(_) => match accept(key, &DeValue::String(default.into()), hostname) {
                Ok(value) => Some(value),
                Err(refusal) => {
                    out.refuse(key.path, None, format!("the default {}", quoted(default)), refusal);
                    Some(toml::Value::from(default))
                }
            },
        };
        let table = table_at(&mut out.doc, key.section());
        if let (Some(table), Some(value)) = (table, value) {
            table.insert(key.name().to_owned(), value);
        }
    }
}

/// The table of this full name, made where it is missing.
fn table_at<'a>(doc: &'a mut toml::Table, section: &str) -> Option<&'a mut toml::Table> {
    section.split('.').filter(|part| !part.is_empty()).try_fold(doc, |table, part| {
        table.entry(part).or_insert_with(|| toml::Value::Table(toml::Table::new())).as_table_mut()
    })
}

fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

/// A name that TOML lets stand without quotes.
fn bare(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

fn printable(name: &str) -> String {
    if bare(name) && name.len() <= 64 { name.to_owned() } else { quoted(name) }
}
