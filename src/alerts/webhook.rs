//! The generic sink: a page as JSON to a URL.

use super::Rendered;
use super::post::{Post, secret};
use crate::core::error::{Class, Fault};
use crate::ports::{BoxFuture, PageSink};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use ring::hmac;
use secrecy::ExposeSecret;
use std::path::PathBuf;

/// What a receiver says that has a page.
const ACCEPTED: &[u16] = &[200, 201, 202, 204];

/// Posts pages to one URL; the receiver drops repeats by `Idempotency-Key`.
pub struct Webhook {
    post: Post,
    secret_file: Option<PathBuf>,
}

impl Webhook {
    /// Errors: a URL that is none, or no TLS to be had.
    pub fn new(url: &str, timeout_ms: u64, secret_file: Option<PathBuf>) -> Result<Webhook, Fault> {
        Ok(Webhook { post: Post::new("webhook", "pager.webhook.url", url, timeout_ms, false)?, secret_file })
    }

    /// `X-Backstop-Timestamp` and `X-Backstop-Signature` (hex HMAC-SHA256 of `TIMESTAMP.BODY`), where there is a secret.
    async fn sign(&self, headers: &mut HeaderMap, body: &[u8], timestamp: &str) -> Result<(), Fault> {
        let Some(file) = &self.secret_file else { return Ok(()) };
        let secret = secret("pager.webhook.secret_file", file).await?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
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
        Ok(())
    }

    async fn send(&self, page: &Rendered) -> Result<(), Fault> {
        let body = serde_json::to_vec(page)
            .map_err(|e| Fault::new(Class::Refused, format!("the page has no JSON form: {e}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let key = HeaderValue::from_str(&super::ascii(&page.id))
            .map_err(|_| Fault::new(Class::Refused, "the page's id is no header value"))?;
        headers.insert("idempotency-key", key);
        self.sign(&mut headers, &body, &page.sent_at).await?;
        self.post.send(headers, body, ACCEPTED, page.sent_ms).await
    }
}

impl PageSink for Webhook {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.send(page))
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.post.answers())
    }
}
