//! The generic sink: a page as JSON to a URL.

use super::Rendered;
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::http_client;
use crate::ports::{BoxFuture, PageSink};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use std::path::PathBuf;
use std::time::Duration;

/// Posts pages to one URL. 200 and 202 are acceptance; the receiver drops repeats by `Idempotency-Key`.
pub struct Webhook {
    client: reqwest::Client,
    url: reqwest::Url,
    secret_file: Option<PathBuf>,
}

impl Webhook {
    /// Errors: a URL that is none, or no TLS to be had.
    pub fn new(url: &str, timeout_ms: u64, secret_file: Option<PathBuf>) -> Result<Webhook, Fault> {
        let url = reqwest::Url::parse(url)
            .map_err(|e| Fault::new(Class::Refused, format!("pager.webhook.url is no URL: {e}")))?;
        let local = url.host_str().is_some_and(|h| h.starts_with("127.") || h == "localhost" || h == "[::1]");
        let mut builder = http_client::builder(&url, Duration::from_millis(timeout_ms)).pool_max_idle_per_host(0);
        if local {
            builder = builder.no_proxy();
        }
        Ok(Webhook { client: http_client::build(builder)?, url, secret_file })
    }

    /// Scheme and host only: the path of a webhook is often its secret.
    fn origin(&self) -> String {
        self.url.origin().ascii_serialization()
    }

    fn fault(&self, e: &reqwest::Error) -> Fault {
        Fault::transport(format!("webhook {}: {}", self.origin(), Causes::of(e).innermost()))
    }

    /// `X-Backstop-Timestamp` and `X-Backstop-Signature` (hex HMAC-SHA256 of `TIMESTAMP.BODY`), where there is a secret. It
    /// is read at each delivery, so that a new one needs no restart.
    fn signature(&self, body: &[u8], timestamp: &str) -> Result<HeaderMap, Fault> {
        let mut headers = HeaderMap::new();
        let Some(file) = &self.secret_file else { return Ok(headers) };
        let secret = std::fs::read_to_string(file)
            .map(SecretString::from)
            .map_err(|e| Fault::new(Class::Auth, format!("pager.webhook.secret_file {}: {e}", file.display())))?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().trim().as_bytes());
        let mut context = hmac::Context::with_key(&key);
        context.update(timestamp.as_bytes());
        context.update(b".");
        context.update(body);
        let hex = context.sign().as_ref().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
        for (name, value) in [("x-backstop-timestamp", timestamp), ("x-backstop-signature", hex.as_str())] {
            let value = HeaderValue::from_str(value)
                .map_err(|_| Fault::new(Class::Refused, "the signature is no header value"))?;
            headers.insert(name, value);
        }
        Ok(headers)
    }

    async fn post(&self, page: &Rendered) -> Result<(), Fault> {
        let body = serde_json::to_vec(page)
            .map_err(|e| Fault::new(Class::Refused, format!("the page has no JSON form: {e}")))?;
        let key = HeaderValue::from_str(&page.id).unwrap_or(HeaderValue::from_static("backstop"));
        let signature = self.signature(&body, &page.sent_at)?;
        let sent = self
            .client
            .post(self.url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("Idempotency-Key", key)
            .headers(signature)
            .body(body)
            .send()
            .await;
        let answer = sent.map_err(|e| self.fault(&e))?;
        let status = answer.status().as_u16();
        let retry_after = answer
            .headers()
            .get(RETRY_AFTER)
            .and_then(|v| v.to_str().ok()?.trim().parse::<u64>().ok())
            .map(|s| s.saturating_mul(1_000));
        let class = match status {
            200..=204 => return Ok(()),
            401 | 403 => Class::Auth,
            408 | 429 => Class::Throttled,
            400..=499 => Class::Refused,
            _ => Class::NotReady,
        };
        let mut fault = Fault::new(class, format!("webhook {} answered {status}", self.origin()));
        fault.retry_after_ms = retry_after;
        Err(fault)
    }
}

impl PageSink for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.post(page))
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async {
            // Any answer will do: TLS and HTTP work. HEAD, so that nothing is taken for a page.
            self.client.head(self.url.clone()).send().await.map(|_| ()).map_err(|e| self.fault(&e))
        })
    }
}
