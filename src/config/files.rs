//! The files that the config names: are they there, readable, small, private and of the right kind? Apart from
//! validation, since it reads the disk, and since no answer here may keep a node from coming back.

use super::problem::{Problem, Warning};
use super::settings::Config;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;

/// A key or password is small; so is a bundle of certificates.
const SECRET_MAX_BYTES: u64 = 64 * 1024;
const CERTIFICATES_MAX_BYTES: u64 = 1024 * 1024;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// What will not work.
    pub problems: Vec<Problem>,
    /// What works but should not stay so.
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Content {
    ApiKey,
    RoutingKey,
    UserAndPassword,
    Secret,
    Certificates,
    CertificateAndKey,
}

/// Looks at every file that the config names. Never repeats what is in them.
pub fn check_files(config: &Config) -> Files {
    let mut files = Files::default();
    for (key, path, content) in named(config) {
        check(&mut files, key, path, content);
    }
    files
}

fn named(config: &Config) -> impl Iterator<Item = (&'static str, &Path, Content)> {
    let es = &config.elasticsearch;
    let pager = &config.pager;
    let pagerduty = pager.pagerduty.as_ref().map(|p| p.routing_key_file.as_path());
    let manager = pager.alertmanager.as_ref().and_then(|a| a.basic_auth_file.as_deref());
    let webhook = pager.webhook.as_ref().and_then(|w| w.secret_file.as_deref());
    let named = [
        ("elasticsearch.ca_file", es.ca_file.as_deref(), Content::Certificates),
        ("elasticsearch.api_key_file", es.api_key_file.as_deref(), Content::ApiKey),
        ("elasticsearch.client_cert_file", es.client_cert_file.as_deref(), Content::CertificateAndKey),
        ("elasticsearch.basic_auth_file", es.basic_auth_file.as_deref(), Content::UserAndPassword),
        ("pager.pagerduty.routing_key_file", pagerduty, Content::RoutingKey),
        ("pager.alertmanager.basic_auth_file", manager, Content::UserAndPassword),
        ("pager.webhook.secret_file", webhook, Content::Secret),
    ];
    named.into_iter().filter_map(|(key, path, content)| Some((key, path?, content)))
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The numbers of its groups.
    pub gids: Vec<u32>,
}

impl User {
    /// By owner, group and mode. What access lists add is not seen.
    fn may(&self, path: &Path, right: u32) -> bool {
        let Ok(meta) = std::fs::metadata(path) else { return true };
        let shift = if meta.uid() == self.uid {
            6
        } else if self.gids.contains(&meta.gid()) {
            3
        } else {
            0
        };
        self.uid == 0 || (meta.mode() >> shift) & right == right
    }

    /// What keeps this user from reading the file: the file itself, or a directory above it.
    fn kept_from<'p>(&self, path: &'p Path) -> Option<&'p Path> {
        let above = path.ancestors().skip(1).filter(|dir| !dir.as_os_str().is_empty());
        above.filter(|dir| !self.may(dir, 1)).last().or_else(|| (!self.may(path, 4)).then_some(path))
    }
}

/// Files that root can read, and the agent, which runs as another user, cannot. `file`: the config itself.
pub fn unreadable_for(user: &User, file: &Path, config: &Config) -> Vec<Warning> {
    let all = std::iter::once(("the config itself", file)).chain(named(config).map(|(key, path, _)| (key, path)));
    let warn = |(key, path): (&str, &Path)| {
        let obstacle = user.kept_from(path)?;
        Some(Warning {
            file: path.display().to_string(),
            line: None,
            key: key.to_owned(),
            says: format!("the agent's user {} may not read it: {} does not let it", user.name, obstacle.display()),
            next: "chgrp backstop and chmod 640 it, in a directory that the group may enter; or LoadCredential= (docs/security.md)".to_owned(),
        })
    };
    all.filter_map(warn).collect()
}

fn check(files: &mut Files, key: &str, path: &Path, content: Content) {
    let file = path.display().to_string();
    let mode = match read(path, content) {
        Ok((mode, bytes)) => {
            if let Err((found, expected, next)) = judge(&bytes, content) {
                files.problems.push(problem(&file, key, found, expected, next));
            }
            mode
        }
        Err((found, expected, next)) => {
            files.problems.push(problem(&file, key, &found, expected, next));
            return;
        }
    };
    if mode & 0o022 != 0 {
        let found = format!("mode {:o}: others than its owner may write it", mode & 0o777);
        files.problems.push(problem(&file, key, &found, "a file that only its owner writes", "chmod go-w it"));
    }
    if mode & 0o004 != 0 && content != Content::Certificates {
        files.warnings.push(Warning {
            file,
            line: None,
            key: key.to_owned(),
            says: format!("mode {:o}: every user of this host may read the secret", mode & 0o777),
            next: "chown root:backstop and chmod 640 it".to_owned(),
        });
    }
}

fn problem(file: &str, key: &str, found: &str, expected: &str, next: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        line: None,
        key: Some(key.to_owned()),
        found: found.to_owned(),
        expected: expected.to_owned(),
        next: next.to_owned(),
    }
}

type Trouble = (String, &'static str, &'static str);

fn read(path: &Path, content: Content) -> Result<(u32, Vec<u8>), Trouble> {
    const READABLE: &str = "a file that the agent may read";
    let failed = |error: std::io::Error| {
        (error.to_string(), READABLE, "create the file, or give the agent's user the right to read it")
    };
    // Asked first: opening a pipe would wait for a writer.
    let meta = std::fs::metadata(path).map_err(failed)?;
    if !meta.is_file() {
        return Err(("a directory or device".to_owned(), "a plain file", "name the file itself"));
    }
    let max = if content == Content::Certificates { CERTIFICATES_MAX_BYTES } else { SECRET_MAX_BYTES };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(max.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > max {
        return Err((format!("more than {max} bytes"), "a short file", "name the right file"));
    }
    Ok((meta.permissions().mode(), bytes))
}

fn has(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|w| w == part)
}

fn judge(bytes: &[u8], content: Content) -> Result<(), (&'static str, &'static str, &'static str)> {
    let text = bytes.trim_ascii();
    if text.is_empty() {
        return Err(("an empty file", "its content", "write it into the file"));
    }
    let line = text.iter().all(|b| matches!(b, b' '..=b'~'));
    match content {
        Content::Secret => Ok(()),
        Content::ApiKey if line && !text.contains(&b' ') => Ok(()),
        Content::ApiKey => Err((
            "more than one word",
            "the encoded API key alone, one line",
            "write the value of `encoded` from the answer that created the key",
        )),
        Content::RoutingKey if text.len() <= 64 && text.iter().all(u8::is_ascii_alphanumeric) => Ok(()),
        Content::RoutingKey => Err((
            "no integration key",
            "the integration key alone: 32 letters and digits",
            "copy it from the service's integration of type Events API v2",
        )),
        Content::UserAndPassword if text.contains(&b':') && !text.contains(&b'\n') => Ok(()),
        Content::UserAndPassword => Err(("no line of that form", "one line user:password", "write it so")),
        Content::CertificateAndKey
            if has(text, b"-----BEGIN CERTIFICATE-----")
                && has(text, b"PRIVATE KEY-----")
                && !has(text, b"ENCRYPTED") =>
        {
            Ok(())
        }
        Content::CertificateAndKey => Err((
            "no certificate with a plain private key in PEM form",
            "-----BEGIN CERTIFICATE----- and -----BEGIN PRIVATE KEY----- in one file",
            "write both into it: cat client.crt client.key; an encrypted key is decrypted by `openssl pkey`",
        )),
        Content::Certificates if has(text, b"-----BEGIN CERTIFICATE-----") => Ok(()),
        Content::Certificates => Err((
            "no certificate in PEM form",
            "-----BEGIN CERTIFICATE-----",
            "convert it with `openssl x509 -inform der`, or name the right file",
        )),
    }
}
