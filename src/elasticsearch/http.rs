//! One HTTP exchange: fresh client, plain HTTP/1, no redirects, no proxy, a deadline, a limit on the body.

use super::classify::{Answer, Reached, unanswered};
use super::secrets::{Credentials, Secrets};
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::http_client;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, RequestBuilder, Url};
use secrecy::ExposeSecret;
use std::time::Duration;

/// No answer of a node check is longer.
pub(super) const BODY_MAX_BYTES: usize = 256 * 1024;

/// The base URL of a node, checked: http or https, with a host, without credentials in it.
pub(crate) fn base_url(text: &str) -> Result<Url, Fault> {
    let refused = |why: &str| Fault::new(Class::Refused, format!("the node's URL cannot be used: {why}"));
    let url = Url::parse(text).map_err(|_| refused("it does not parse"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refused("it must be http://host:port or https://host:port"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("it must not carry credentials; name a file with them"));
    }
    Ok(url)
}

/// One client for one check: all calls of a check may share its one connection, so that identity and health speak of
/// the same process, and no connection outlives the check.
pub(super) struct Caller {
    client: Client,
    base: Url,
    timeout: Duration,
    body_max: usize,
}

impl Caller {
    /// Builds the client. Blocking: it reads the system's certificates for an https URL.
    pub(super) fn new(base: Url, secrets: Secrets, timeout: Duration) -> Result<Caller, Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("x-opaque-id", HeaderValue::from_static("backstop-node-check"));
        if let Some(value) = authorization(&secrets.credentials)? {
            headers.insert(AUTHORIZATION, value);
        }
        let mut builder = http_client::builder(&base, timeout).default_headers(headers);
        builder = builder.no_proxy().pool_max_idle_per_host(1);
        if base.scheme() == "https" {
            builder = builder.tls_certs_merge(secrets.roots);
            if let Some(identity) = secrets.identity {
                builder = builder.identity(identity);
            }
        }
        Ok(Caller { client: http_client::build(builder)?, base, timeout, body_max: BODY_MAX_BYTES })
    }

    /// Answers may have so many bytes.
    pub(super) fn up_to(self, body_max: usize) -> Caller {
        Caller { body_max, ..self }
    }

    /// GETs a path (segments are escaped) with a query, and reads the answer to its end.
    pub(super) async fn get(&self, segments: &[&str], query: &[(&str, &str)]) -> Result<Answer, Fault> {
        let mut url = self.base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let what = format!("GET {url}");
        // The client has the same deadline; this one also ends what it might forget to count.
        match tokio::time::timeout(self.timeout, self.exchange(url, &what)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Fault::transport(format!("{what}: no complete answer within {:?}", self.timeout))),
        }
    }

    async fn exchange(&self, url: Url, what: &str) -> Result<Answer, Fault> {
        let tls = url.scheme() == "https";
        answer(self.client.get(url), what, tls, self.body_max).await
    }
}

/// Sends it, and reads the answer piece by piece to its end, or to more than it may have.
pub(crate) async fn answer(request: RequestBuilder, what: &str, tls: bool, body_max: usize) -> Result<Answer, Fault> {
    let broken = |reached: Option<Reached>, error: reqwest::Error| {
        let reached = reached.unwrap_or(if error.is_connect() { Reached::Nothing } else { Reached::Connection });
        let timed_out = error.is_timeout();
        unanswered(what, tls, reached, timed_out, &Causes::of(&error.without_url()))
    };
    let mut response = request.send().await.map_err(|e| broken(None, e))?;
    let status = response.status().as_u16();
    let retry_after_ms = retry_after_ms(response.headers());
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(None) => return Ok(Answer { status, retry_after_ms, body }),
            Ok(Some(chunk)) if body.len().saturating_add(chunk.len()) > body_max => {
                let message = format!("{what}: the answer (HTTP {status}) is longer than {body_max} bytes");
                return Err(Fault::transport(message));
            }
            Ok(Some(chunk)) => body.extend_from_slice(&chunk),
            Err(error) => return Err(broken(Some(Reached::Head(status)), error)),
        }
    }
}

/// `Retry-After` in seconds; a date in it is not looked at.
pub(crate) fn retry_after_ms(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse::<u64>().ok().map(|seconds| seconds.saturating_mul(1_000))
}

/// The header that carries them.
pub(crate) fn authorization(credentials: &Credentials) -> Result<Option<HeaderValue>, Fault> {
    let text = match credentials {
        Credentials::None => return Ok(None),
        Credentials::ApiKey(key) => format!("ApiKey {}", key.expose_secret()),
        Credentials::Basic { user, password } => {
            format!("Basic {}", http_client::base64(format!("{user}:{}", password.expose_secret()).as_bytes()))
        }
    };
    let mut value = HeaderValue::from_str(&text)
        .map_err(|_| Fault::new(Class::Auth, "the API key holds characters that no header can carry"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_credentials_is_refused_without_repeating_them() {
        let fault = base_url("http://elastic:hunter2@127.0.0.1:9200").expect_err("refused");
        assert_eq!(fault.class, Class::Refused);
        assert!(!fault.message.contains("hunter2"), "{fault}");
        for bad in ["", "127.0.0.1:9200", "ftp://x", "unix:///x"] {
            assert!(base_url(bad).is_err(), "{bad}");
        }
        assert!(base_url("https://node-1:9200/").is_ok());
    }
}
