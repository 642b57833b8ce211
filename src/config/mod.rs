//! The config file: bytes → document (every value of its type) → raw → [`Config`]. All problems at once, each with the
//! line, the key, what was found, what is expected and the next step.
//!
//! [`keys`] is the one table that everything here is made from. What to do with a bad file is the agent's business: on
//! reload the old config stays, at start only the way back runs.

mod arn;
mod duration;
mod files;
mod guess;
pub mod keys;
mod problem;
mod raw;
mod rules;
mod settings;
mod show;
mod text;
mod torn;
mod validate;
mod value;
mod walk;

pub use duration::Written;
pub use files::{Files, User, check_files, unreadable_for};
pub use problem::{Problem, Problems, Warning};
pub use settings::{
    Alertmanager, Check, Config, ConnectionsLeft, Deadlines, Drain, Elasticsearch, Elbv2, FleetName, JobRunner, Limits,
    Log, LogFormat, LogLevel, Metrics, Mode, Node, OutsideWatch, Pager, PagerDuty, Paths, Reconcile, Record, Region,
    Rehearsal, Roles, SecretUrl, Store, TargetGroup, Webhook,
};
pub use show::{Effective, Origin, markdown, sample};
pub use text::Form;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;

/// Where the package puts a file with every key in it: `config/backstop.toml` of the sources.
pub const EVERY_KEY: &str = "/usr/share/doc/backstop/backstop.toml";
/// What nobody can derive, and nothing else has to be said.
pub const FOUR_SUFFICE: &str = "the fleet's name, a target group, a pager and elasticsearch.record_endpoints";

/// A config file is a few KiB; what is longer is another file.
const FILE_MAX_BYTES: usize = 256 * 1024;

/// Reads and judges a config file. `hostname` is what `{hostname}` stands for.
///
/// # Errors
/// All problems of the file at once, at least one.
pub fn load(path: &Path, hostname: &str) -> Result<(Config, Vec<Warning>), Problems> {
    let (file, bytes) = read(path)?;
    parse(&file, &bytes, hostname)
}

/// The same for bytes that were read already; `file` is their name in problems.
///
/// # Errors
/// All problems at once, at least one.
pub fn parse(file: &str, bytes: &[u8], hostname: &str) -> Result<(Config, Vec<Warning>), Problems> {
    let text = as_text(file, bytes)?;
    validate::validate(file, walk::walk(file, text, hostname))
}

/// Every key with the value in force and its origin, for a file that is accepted.
///
/// # Errors
/// All problems of the file at once, at least one.
pub fn show(path: &Path, hostname: &str) -> Result<Vec<Effective>, Problems> {
    let (file, bytes) = read(path)?;
    let text = as_text(&file, &bytes)?;
    let (config, _) = validate::validate(&file, walk::walk(&file, text, hostname))?;
    Ok(show::effective(&walk::walk(&file, text, hostname), Some(&config)))
}

fn read(path: &Path) -> Result<(String, Vec<u8>), Problems> {
    let file = path.display().to_string();
    let create = format!("create it: {FOUR_SUFFICE} suffice; {EVERY_KEY} shows every key");
    let trouble = |error: &std::io::Error| {
        let next = if error.kind() == ErrorKind::NotFound {
            create.as_str()
        } else if error.kind() == ErrorKind::PermissionDenied {
            "let the agent's user read it: chgrp backstop and chmod 640"
        } else {
            "look at the path and the disk"
        };
        whole(&file, &error.to_string(), "a file that can be read", next)
    };
    // Asked first: opening a pipe would wait for a writer.
    let meta = std::fs::metadata(path).map_err(|error| trouble(&error))?;
    if !meta.is_file() {
        return Err(whole(&file, "a directory or device", "a plain file", "name the file itself"));
    }
    let limit = u64::try_from(FILE_MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    let mut bytes = Vec::new();
    File::open(path).and_then(|f| f.take(limit).read_to_end(&mut bytes)).map_err(|error| trouble(&error))?;
    Ok((file, bytes))
}

fn as_text<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, Problems> {
    const TEXT: &str = "TOML text in UTF-8";
    if bytes.len() > FILE_MAX_BYTES {
        let found = format!("more than {FILE_MAX_BYTES} bytes");
        return Err(whole(file, &found, "a config file of a few KiB", "name the right file"));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let found = format!("a byte that is not text, at offset {at} (line {})", line_of(bytes, at));
        whole(file, &found, TEXT, "name the right file, or save it as UTF-8")
    })?;
    if let Some(at) = bytes.iter().position(|b| *b == 0) {
        let found = format!("a zero byte at offset {at} (line {})", line_of(bytes, at));
        return Err(whole(file, &found, TEXT, "restore the file: it is damaged, or not saved as UTF-8"));
    }
    Ok(text)
}

fn line_of(bytes: &[u8], offset: usize) -> usize {
    bytes.iter().take(offset).filter(|b| **b == b'\n').count().saturating_add(1)
}

/// A problem of the file as a whole.
fn whole(file: &str, found: &str, expected: &str, next: &str) -> Problems {
    Problems::one(Problem {
        file: file.to_owned(),
        line: None,
        key: None,
        found: found.to_owned(),
        expected: expected.to_owned(),
        next: next.to_owned(),
    })
}

#[cfg(test)]
mod tests;
