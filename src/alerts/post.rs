//! One POST to a pager: bounded in time and size, and classified by what a complete answer says.

use crate::bounded::blocking;
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::http_client;
use http_body_util::{BodyExt, Limited};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use secrecy::SecretString;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// So much of an answer is read, in bytes.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
/// So much of it is told, in characters.
const TOLD_CHARS_MAX: usize = 200;
/// No secret is longer, in bytes.
const SECRET_BYTES_MAX: u64 = 64 * 1024;
/// A file is waited for so long.
const READ_WAIT: Duration = Duration::from_secs(5);

/// Posts to one URL.
#[derive(Debug)]
pub(super) struct Post {
    client: reqwest::Client,
    url: reqwest::Url,
    /// For people; of the URL never more than where it leads.
    who: String,
    /// What a refusal says is told: only where it cannot repeat a secret.
    tells: bool,
}

impl Post {
    /// `key` names the URL's place in the config.
    ///
    /// # Errors
    /// A URL that is none, or no TLS to be had.
    pub(super) fn new(kind: &str, key: &str, url: &str, timeout_ms: u64, tells: bool) -> Result<Post, Fault> {
        let url = reqwest::Url::parse(url).map_err(|e| Fault::new(Class::Refused, format!("{key} is no URL: {e}")))?;
        let local = url.host_str().is_some_and(|h| h.starts_with("127.") || h == "localhost" || h == "[::1]");
        let mut builder = http_client::builder(&url, Duration::from_millis(timeout_ms)).pool_max_idle_per_host(0);
        if local {
            builder = builder.no_proxy();
        }
        let who = format!("{kind} {}", url.origin().ascii_serialization());
        Ok(Post { client: http_client::build(builder)?, url, who, tells })
    }

    fn fault(&self, e: &reqwest::Error) -> Fault {
        Fault::transport(format!("{}: {}", self.who, Causes::of(e).innermost()))
    }

    /// `accepted` are the statuses that mean that it has been taken. `sent_ms`: the present wall time, where the answer has
    /// no date of its own.
    pub(super) async fn send(
        &self,
        headers: HeaderMap,
        body: Vec<u8>,
        accepted: &[u16],
        sent_ms: u64,
    ) -> Result<(), Fault> {
        let sent = self.client.post(self.url.clone()).headers(headers).body(body).send().await;
        let answer = sent.map_err(|e| self.fault(&e))?;
        let status = answer.status().as_u16();
        if accepted.contains(&status) {
            return Ok(());
        }
        let retry_after_ms = retry_after(answer.headers(), sent_ms);
        let said = if self.tells { said(answer).await } else { String::new() };
        let mut fault = Fault::new(class_of(status), format!("{} answered {status}{said}", self.who));
        fault.retry_after_ms = retry_after_ms;
        Err(fault)
    }

    /// Any answer will do: TLS and HTTP work. HEAD, so that nothing is taken for a page.
    pub(super) async fn answers(&self) -> Result<(), Fault> {
        self.client.head(self.url.clone()).send().await.map(|_| ()).map_err(|e| self.fault(&e))
    }

    /// A heartbeat.
    pub(super) async fn get(&self) -> Result<(), Fault> {
        let answer = self.client.get(self.url.clone()).send().await.map_err(|e| self.fault(&e))?;
        let status = answer.status().as_u16();
        if (200..300).contains(&status) {
            return Ok(());
        }
        Err(Fault::new(class_of(status), format!("{} answered {status}", self.who)))
    }
}

/// What a status that is no acceptance means. Waiting changes neither `Auth` nor `Refused`.
fn class_of(status: u16) -> Class {
    match status {
        401 | 403 | 407 => Class::Auth,
        408 | 425 | 429 => Class::Throttled,
        400..=499 => Class::Refused,
        _ => Class::NotReady,
    }
}

/// `Retry-After` in ms: seconds, or a moment by the server's own clock.
fn retry_after(headers: &HeaderMap, sent_ms: u64) -> Option<u64> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<u64>() {
        return Some(seconds.saturating_mul(1_000));
    }
    let date = headers.get(DATE).and_then(|v| http_date(v.to_str().ok()?)).unwrap_or(sent_ms);
    Some(http_date(text)?.saturating_sub(date))
}

fn http_date(text: &str) -> Option<u64> {
    let zoned = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(zoned.timestamp().as_millisecond()).ok()
}

async fn said(answer: reqwest::Response) -> String {
    let body = Limited::new(reqwest::Body::from(answer), ANSWER_BYTES_MAX).collect().await;
    let Ok(body) = body else { return String::new() };
    let text = String::from_utf8_lossy(&body.to_bytes()).into_owned();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).take(TOLD_CHARS_MAX).collect();
    if line.is_empty() { line } else { format!(": {line}") }
}

/// The text of a file, read at each delivery, so that a new one needs no restart. The fault names the file, never what is in
/// it.
pub(super) async fn secret(key: &'static str, path: &Path) -> Result<SecretString, Fault> {
    let unusable = move |path: &Path, why: &str| {
        let file = path.display();
        Fault::new(Class::Auth, format!("{key}: cannot use the file {file}: {why}; backstop config check judges it"))
    };
    let file = path.to_owned();
    let read = blocking(READ_WAIT, move || -> Result<String, String> {
        let said = |e: std::io::Error| e.kind().to_string();
        // A pipe would be waited for.
        if !std::fs::metadata(&file).map_err(said)?.is_file() {
            return Err("it is not a file".to_owned());
        }
        let mut text = String::new();
        let opened = std::fs::File::open(&file).map_err(said)?;
        opened.take(SECRET_BYTES_MAX).read_to_string(&mut text).map_err(said)?;
        Ok(text.trim().to_owned())
    });
    match read.await {
        Ok(Ok(text)) if text.is_empty() => Err(unusable(path, "it is empty")),
        Ok(Ok(text)) => Ok(SecretString::from(text)),
        Ok(Err(why)) | Err(why) => Err(unusable(path, &why)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::header::HeaderValue;

    #[test]
    fn retry_after_is_a_number_of_seconds_or_a_moment_by_the_servers_own_clock() {
        let of = |after: &'static str, date: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static(after));
            if let Some(date) = date {
                headers.insert(DATE, HeaderValue::from_static(date));
            }
            retry_after(&headers, 784_111_777_000)
        };
        assert_eq!(of("120", None), Some(120_000));
        let (at, later) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:51:37 GMT");
        assert_eq!(of(later, Some(at)), Some(120_000));
        assert_eq!(of(later, None), Some(120_000), "without a date of its own the sender's clock counts");
        assert_eq!(of(at, Some(later)), Some(0), "a moment that has passed");
        assert_eq!((of("soon", None), of("", None)), (None, None));
    }

    #[test]
    fn only_what_waiting_does_not_change_is_a_refusal() {
        use Class::{Auth, NotReady, Refused, Throttled};
        let classes = [200, 301, 400, 401, 403, 404, 413, 429, 408, 500, 502, 503].map(class_of);
        let expected = [
            NotReady, NotReady, Refused, Auth, Auth, Refused, Refused, Throttled, Throttled, NotReady, NotReady,
            NotReady,
        ];
        assert_eq!(classes, expected);
    }
}
