//! Forms of text values: names, paths, addresses. Each refusal says what is expected and what to do.

use super::problem::Refusal;
use reqwest::Url;
use std::net::{IpAddr, SocketAddr};
use url_rules::{base, private};

/// What a text value must look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Name of a fleet.
    Fleet,
    /// A target group ARN.
    Arn,
    /// An EC2 instance id.
    InstanceId,
    /// Instance id or IP address.
    TargetId,
    /// Name of a host or node.
    HostText,
    /// Name of a node, or the beginning of one.
    NodePattern,
    /// scheme, host and port, nothing else.
    BaseUrl,
    /// Where instance metadata is asked for.
    MetadataUrl,
    /// A URL that may carry a token.
    SecretUrl,
    /// The same, or "none".
    WatchUrl,
    /// An absolute path.
    Path,
    /// Name of an index.
    Index,
    /// Name of a Unix group.
    UnixGroup,
    /// Address and port on loopback, or "none".
    Loopback,
    /// An absolute path that ends in `.prom`.
    PromFile,
}

impl Form {
    /// After `expected `.
    pub fn expects(self) -> &'static str {
        match self {
            Form::Fleet => "1 to 63 of a-z, 0-9 and inner hyphens",
            Form::Arn => "a target group ARN",
            Form::InstanceId => "an instance id such as i-0123456789abcdef0",
            Form::TargetId => "an instance id or an IP address",
            Form::HostText => "1 to 255 letters, digits, dots, hyphens or underscores",
            Form::NodePattern => "the name of a node; a * at its end stands for any rest",
            Form::BaseUrl => "an http or https URL of host and port alone, such as https://es-1:9200",
            Form::MetadataUrl => "an http URL on loopback, or the address of instance metadata",
            Form::SecretUrl => "an https URL (plain http to loopback only)",
            Form::WatchUrl => "an https URL (plain http to loopback only), or \"none\"",
            Form::Path => "an absolute path of up to 4096 bytes without control characters",
            Form::Index => "the name of one index: lower case, no wildcard",
            Form::UnixGroup => "a Unix group name: 1 to 32 of a-z, 0-9, - and _, a letter first",
            Form::Loopback => "an address of this host alone and a port, such as 127.0.0.1:9477, or \"none\"",
            Form::PromFile => "an absolute path that ends in .prom",
        }
    }

    /// `{hostname}` may stand in it.
    pub fn takes_hostname(self) -> bool {
        matches!(self, Form::HostText | Form::BaseUrl | Form::SecretUrl | Form::WatchUrl | Form::Path | Form::PromFile)
    }

    /// Is this text of the form? `{hostname}` is expanded before.
    pub(super) fn check(self, text: &str) -> Result<(), Refusal> {
        match self {
            Form::Arn => super::arn::parse(text).map(drop),
            Form::BaseUrl => base(text).map(drop),
            Form::MetadataUrl => metadata(text),
            Form::WatchUrl | Form::Loopback if text == "none" => Ok(()),
            Form::Loopback => loopback_address(text),
            Form::SecretUrl | Form::WatchUrl => private(text).map(drop),
            Form::Fleet
            | Form::InstanceId
            | Form::TargetId
            | Form::HostText
            | Form::NodePattern
            | Form::Path
            | Form::Index
            | Form::UnixGroup
            | Form::PromFile => {
                if self.plain(text) {
                    Ok(())
                } else {
                    Err(self.refusal(text))
                }
            }
        }
    }

    fn plain(self, text: &str) -> bool {
        let all = |max: usize, ok: fn(u8) -> bool| !text.is_empty() && text.len() <= max && text.bytes().all(ok);
        let hyphened = text.starts_with('-') || text.ends_with('-');
        match self {
            Form::Fleet => all(63, |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')) && !hyphened,
            Form::InstanceId => instance_like(text),
            Form::TargetId => instance_like(text) || text.parse::<IpAddr>().is_ok(),
            Form::HostText => all(255, |b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_')),
            Form::NodePattern => Form::HostText.plain(text.strip_suffix('*').unwrap_or(text)),
            Form::Path => text.starts_with('/') && text.len() <= 4096 && !text.chars().any(char::is_control),
            Form::PromFile => {
                Form::Path.plain(text) && std::path::Path::new(text).extension().is_some_and(|ending| ending == "prom")
            }
            Form::Index => {
                all(255, |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'+'))
                    && !text.starts_with(['-', '_', '+'])
                    && !text.bytes().all(|b| b == b'.')
            }
            Form::UnixGroup => {
                all(32, |b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_'))
                    && !text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
            }
            Form::Arn | Form::BaseUrl | Form::MetadataUrl | Form::SecretUrl | Form::WatchUrl | Form::Loopback => false,
        }
    }

    fn refusal(self, text: &str) -> Refusal {
        let next = match self {
            _ if text.trim() != text => "take the spaces around it away".to_owned(),
            Form::Fleet if self.plain(&text.to_ascii_lowercase().replace(['_', ' '], "-")) => {
                format!("write \"{}\"", text.to_ascii_lowercase().replace(['_', ' '], "-"))
            }
            Form::PromFile if Form::Path.plain(text) => {
                "name the file so: node_exporter reads no other in its directory".to_owned()
            }
            Form::Path | Form::PromFile if text.starts_with('~') => "write the path out; ~ is not expanded".to_owned(),
            Form::Path | Form::PromFile => "write the path from / on".to_owned(),
            Form::InstanceId => "take it from the console, or leave the key out: instance metadata knows it".to_owned(),
            Form::TargetId => "leave the key out unless the target is registered under another address".to_owned(),
            Form::NodePattern if text == "*" => "leave some of the cluster's client nodes to be looked at".to_owned(),
            Form::NodePattern if text.contains('*') => "one * at the end, and nowhere else".to_owned(),
            Form::Index if text.contains(['*', ',']) => "name one index".to_owned(),
            Form::Fleet
            | Form::Arn
            | Form::HostText
            | Form::NodePattern
            | Form::BaseUrl
            | Form::MetadataUrl
            | Form::SecretUrl
            | Form::WatchUrl
            | Form::Index
            | Form::UnixGroup
            | Form::Loopback => "choose a name of this form".to_owned(),
        };
        Refusal::new(self.expects(), next)
    }
}

/// `i-` and letters or digits; how many is a question of AWS or emulator.
fn instance_like(text: &str) -> bool {
    text.strip_prefix("i-")
        .is_some_and(|id| (1..=32).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
}

/// An instance id as AWS writes it: 8 or 17 hexadecimal digits.
pub(super) fn instance_as_on_aws(text: &str) -> bool {
    text.strip_prefix("i-")
        .is_some_and(|id| matches!(id.len(), 8 | 17) && id.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
}

fn metadata(text: &str) -> Result<(), Refusal> {
    let url = base(text)?;
    let aws = matches!(url.host_str(), Some("169.254.169.254" | "[fd00:ec2::254]"));
    if url.scheme() == "http" && (aws || loopback(&url)) {
        return Ok(());
    }
    Err(Refusal::new(Form::MetadataUrl.expects(), "leave the key out unless an emulator runs on this host"))
}

/// Nobody is asked who they are, so nobody may ask from elsewhere.
fn loopback_address(text: &str) -> Result<(), Refusal> {
    let refuse = |next: &str| Err(Refusal::new(Form::Loopback.expects(), next));
    match text.parse::<SocketAddr>() {
        Ok(address) if !address.ip().is_loopback() => refuse(
            "the metrics say how your fleet is, and ask nobody who they are: let a collector on this host read them on \
             loopback, or put a proxy with a login before them",
        ),
        Ok(address) if address.port() == 0 => refuse("give the port that scrapers will ask"),
        Ok(_) => Ok(()),
        Err(_) if text.starts_with("localhost") => refuse("write 127.0.0.1 in place of localhost"),
        Err(_) => refuse("write address and port, such as 127.0.0.1:9477; [::1]:9477 for IPv6"),
    }
}

/// The URL leads to this host and cannot leave it.
pub(super) fn loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The same for text that was already accepted.
pub(super) fn loopback_text(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| loopback(&url))
}

/// Rules for URLs. None of them ever repeats a URL: it may hold a password or token.
mod url_rules {
    use super::{Form, Refusal, Url, loopback};

    fn parse(text: &str, form: Form) -> Result<Url, Refusal> {
        let refuse = |next: String| Err(Refusal::new(form.expects(), next));
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return refuse("take the whitespace out of the URL".to_owned());
        }
        let Ok(url) = Url::parse(text) else {
            let lacks = !text.contains("://");
            return refuse(if lacks {
                "begin with http:// or https://".to_owned()
            } else {
                "correct the URL".to_owned()
            });
        };
        if !matches!(url.scheme(), "http" | "https") {
            return refuse("begin with http:// or https://".to_owned());
        }
        if !url.username().is_empty() || url.password().is_some() || text.contains('@') && url.host_str().is_none() {
            return refuse("take user and password out of the URL; secrets go into files of their own".to_owned());
        }
        if url.fragment().is_some() {
            return refuse("take the # and what follows out of the URL".to_owned());
        }
        if url.port() == Some(0) {
            return refuse("give the port that the server listens on".to_owned());
        }
        Ok(url)
    }

    /// Scheme, host and port, nothing else.
    pub(super) fn base(text: &str) -> Result<Url, Refusal> {
        let url = parse(text, Form::BaseUrl)?;
        if url.path() == "/" && url.query().is_none() {
            return Ok(url);
        }
        Err(Refusal::new(
            Form::BaseUrl.expects(),
            format!("end the URL after host and port: {}", url.origin().ascii_serialization()),
        ))
    }

    /// https, or http that stays on this host.
    pub(super) fn private(text: &str) -> Result<Url, Refusal> {
        let url = parse(text, Form::SecretUrl)?;
        if url.scheme() == "https" || loopback(&url) {
            return Ok(url);
        }
        Err(Refusal::new(
            Form::SecretUrl.expects(),
            "use https: what is sent there must not be read or changed on its way",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(form: Form, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(form.check(text), Ok(()), "{form:?} {text}");
        }
        for text in bad {
            assert!(form.check(text).is_err(), "{form:?} {text}");
        }
    }

    #[test]
    fn names_have_their_forms() {
        table(Form::Fleet, &["a", "au-search"], &["", "Au", "-a", "a-", "a_b", &"a".repeat(64)]);
        table(Form::InstanceId, &["i-0123456789abcdef0", "i-node1"], &["", "i-", "0123", "i-a b"]);
        table(Form::TargetId, &["10.0.0.1", "::1", "i-1"], &["10.0.0.256", "host"]);
        table(Form::HostText, &["es-client-1.example.com"], &["", "a b", "{host}", "a/b"]);
        table(Form::Index, &["canary", ".canary-1"], &["", "a*", "A", "_all", "a,b", ".."]);
        table(Form::UnixGroup, &["backstop", "_x"], &["", "1a", "a b", "wheel\n"]);
        table(Form::Path, &["/a"], &["", "a", "~/a", "./a", "/a\0b"]);
    }

    #[test]
    fn a_base_url_is_scheme_host_and_port() {
        table(
            Form::BaseUrl,
            &["http://127.0.0.1:9200", "https://es-1:9200/", "https://[::1]:9200"],
            &[
                "es-1:9200",
                "ftp://a",
                "https://u:p@a",
                "https://a/b",
                "https://a?b",
                "https://a#b",
                "https://a:0",
                "https:// a",
                "",
            ],
        );
    }

    #[test]
    fn plain_http_stays_on_this_host() {
        table(
            Form::SecretUrl,
            &["https://a/b?c=d", "http://127.0.0.9:1/x", "http://[::1]/x", "http://localhost/x"],
            &["http://a/b", "http://127.0.0.1.example.com/", "http://localhost.example.com/"],
        );
        table(Form::WatchUrl, &["none", "https://a/b"], &["", "None", "http://a"]);
        table(
            Form::MetadataUrl,
            &["http://127.0.0.1:1338", "http://169.254.169.254", "http://[fd00:ec2::254]"],
            &["http://10.0.0.1", "https://127.0.0.1:1"],
        );
    }

    #[test]
    fn a_refusal_never_repeats_a_secret() {
        for text in ["https://user:hunter2@host/", "https://hooks.example.com/hunter2#hunter2", "http://h/hunter2"] {
            for form in [Form::SecretUrl, Form::WatchUrl, Form::BaseUrl] {
                if let Err(refusal) = form.check(text) {
                    assert!(!format!("{refusal:?}").contains("hunter2"), "{form:?} {refusal:?}");
                }
            }
        }
    }
}
