//! The keys for people: values in force with their origin, the sample file, and the list in docs/config.md. All from the one
//! table of keys.

use super::keys::{self, Fallback, Key, Kind, Section};
use super::settings::{Config, Store, origin};
use super::walk::Walked;
use serde::Serialize;
use std::fmt::Write;

/// One setting as it is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Effective {
    /// Full name.
    pub key: String,
    /// As TOML writes it; none = unset. Of a URL that may hold a token only where it leads.
    pub value: Option<String>,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This line of the file.
    File(usize),
    /// The default.
    Default,
    /// A rule: it follows from another key.
    Derived(String),
    /// Nowhere: unset, which means this.
    Unset(String),
}

impl std::fmt::Display for Effective {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let comment = match &self.origin {
            Origin::File(line) => format!("line {line}"),
            Origin::Default => "default".to_owned(),
            Origin::Derived(rule) => format!("default: {rule}"),
            Origin::Unset(means) => format!("unset: {means}"),
        };
        match &self.value {
            Some(value) => write!(f, "{} = {value}  # {comment}", self.key),
            None => write!(f, "# {}  # {comment}", self.key),
        }
    }
}

/// Every key with its value; `config` is there when the file was accepted.
pub(super) fn effective(walked: &Walked, config: Option<&Config>) -> Vec<Effective> {
    let mut shown = Vec::new();
    for section in keys::SECTIONS {
        let keys = || keys::all().filter(|key| key.section() == section.path);
        if let Some(list) = section.path.strip_suffix("[]") {
            let entries = walked.doc.get(list).and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
            for (i, entry) in entries.iter().enumerate() {
                for key in keys() {
                    let path = format!("{list}[{i}].{}", key.name());
                    shown.push(one(key, entry.get(key.name()), walked.line(&path), path, config));
                }
            }
        } else {
            shown.extend(keys().map(|key| {
                let line = walked.line(key.path).filter(|_| walked.given(key.path));
                one(key, walked.get(key.path), line, key.path.to_owned(), config)
            }));
        }
    }
    shown
}

fn one(
    key: &Key,
    value: Option<&toml::Value>,
    line: Option<usize>,
    path: String,
    config: Option<&Config>,
) -> Effective {
    let text = value.map(|value| if key.secret() { masked(value) } else { value.to_string() });
    let (value, origin) = match (line, key.fallback) {
        (Some(line), _) if text.is_some() => (text, Origin::File(line)),
        (_, Fallback::Derived(rule, _)) => (config.and_then(|c| derived(key, c)), Origin::Derived(rule.to_owned())),
        (_, Fallback::Unset(means)) => (None, Origin::Unset(means.to_owned())),
        (_, Fallback::Required) => (text, Origin::Unset("required".to_owned())),
        (_, Fallback::Value(_)) => (text, Origin::Default),
    };
    Effective { key: path, value, origin }
}

fn masked(value: &toml::Value) -> String {
    match value.as_str() {
        Some("none") => "\"none\"".to_owned(),
        Some(url) => format!("\"{}/…\"", origin(url)),
        None => "\"…\"".to_owned(),
    }
}

fn derived(key: &Key, config: &Config) -> Option<String> {
    let text = match key.path {
        "minimum_during_patch" => config.minimum_during_patch.to_string(),
        "elasticsearch.node_name" => config.elasticsearch.node_name.to_string(),
        "paths.socket" => config.paths.socket.display().to_string(),
        "metrics.listen" => config.metrics.listen.map_or_else(|| "none".to_owned(), |listen| listen.to_string()),
        "record.path" => match &config.record.store {
            Store::File { dir } => dir.display().to_string(),
            Store::Elasticsearch { .. } => return None,
        },
        _ => return None,
    };
    Some(key.as_toml(&text))
}

/// The text of `config/backstop.toml`.
pub fn sample() -> String {
    let mut out = String::from(
        "# backstop: every key. The same file on every node; `{hostname}` becomes the host name.\n\
         # Lines that start with # and no space are the defaults. Lines that start with #e.g. are examples of keys that\n\
         # have no default. `backstop config check` judges a file, `backstop config show` tells what is in force.\n",
    );
    for section in keys::SECTIONS {
        section_sample(&mut out, section);
    }
    out
}

fn section_sample(out: &mut String, section: &Section) {
    let mut keys = keys::all().filter(|key| key.section() == section.path).peekable();
    if keys.peek().is_none() {
        return;
    }
    let _ = write!(out, "\n\n# {}\n", section.doc);
    // Nobody could use a table that lacks a key it must have.
    let lacks = |key: &Key| key.fallback == Fallback::Required && !key.in_sample;
    let example = keys::all().any(|key| key.section() == section.path && lacks(key));
    let _ = match section.path.strip_suffix("[]") {
        _ if example => writeln!(out, "#e.g. [{}]", section.path),
        Some(list) => writeln!(out, "[[{list}]]"),
        None if section.path.is_empty() => Ok(()),
        None => writeln!(out, "[{}]", section.path),
    };
    for key in keys {
        let _ = writeln!(out, "\n# {}", key.doc);
        let limits = match key.kind {
            Kind::Duration { .. } | Kind::Integer { .. } | Kind::Choice(_) => format!("{}; ", capital(&key.expects())),
            Kind::Bool | Kind::Text(_) | Kind::List(_) => String::new(),
        };
        let _ = writeln!(out, "# {}.", capital(&format!("{limits}{}", default_words(key))));
        let line = sample_line(key);
        let mark = if example && !line.starts_with("#e.g.") { "#e.g. " } else { "" };
        let _ = writeln!(out, "{mark}{}", if mark.is_empty() { line.as_str() } else { line.trim_start_matches('#') });
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

fn default_words(key: &Key) -> String {
    match key.fallback {
        Fallback::Required => "required".to_owned(),
        Fallback::Unset(means) => format!("without it: {means}"),
        Fallback::Value(_) | Fallback::Derived(..) => format!("default: {}", key.default_said()),
    }
}

fn sample_line(key: &Key) -> String {
    let (mark, value) = match key.fallback {
        _ if key.in_sample => ("", key.example),
        Fallback::Value(value) | Fallback::Derived(_, value) => ("#", value),
        Fallback::Unset(_) | Fallback::Required => ("#e.g. ", key.example),
    };
    format!("{mark}{} = {}", key.name(), key.as_toml(value))
}

/// The keys as a Markdown table, for docs/config.md.
pub fn markdown() -> String {
    let mut out = String::from("| key | value | default | meaning |\n|---|---|---|---|\n");
    let cell = |text: &str| text.replace('|', "\\|");
    for section in keys::SECTIONS {
        for key in keys::all().filter(|key| key.section() == section.path) {
            let path = key.path.replace("[]", "");
            let default = match key.fallback {
                Fallback::Value(_) => format!("`{}`", key.default_said()),
                Fallback::Required | Fallback::Derived(..) | Fallback::Unset(_) => key.default_said(),
            };
            let _ = writeln!(out, "| `{path}` | {} | {} | {} |", cell(&key.expects()), cell(&default), cell(key.doc));
        }
    }
    out
}
