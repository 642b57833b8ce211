//! PagerDuty, Events API v2. It knows repeats by their key, so every agent sends; 202 is acceptance.

use super::post::{Post, secret};
use super::{Rendered, cut};
use crate::core::error::{Class, Fault};
use crate::ports::{BoxFuture, PageSink};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::path::PathBuf;

/// PagerDuty's limits: of a dedup key in characters, of a summary in characters, of a whole event in bytes (512 KB).
const KEY_CHARS_MAX: usize = 255;
const SUMMARY_CHARS_MAX: usize = 1_024;
/// Far below the limit of a whole event, also where JSON escapes every character.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Sends events with one integration's key.
pub struct PagerDuty {
    post: Post,
    routing_key_file: PathBuf,
}

impl PagerDuty {
    /// Errors: a URL that is none, or no TLS to be had.
    pub fn new(url: &str, timeout_ms: u64, routing_key_file: PathBuf) -> Result<PagerDuty, Fault> {
        Ok(PagerDuty { post: Post::new("pagerduty", "pager.pagerduty.url", url, timeout_ms, true)?, routing_key_file })
    }

    async fn send(&self, page: &Rendered) -> Result<(), Fault> {
        let key = secret("pager.pagerduty.routing_key_file", &self.routing_key_file).await?;
        let body = serde_json::to_vec(&event(page, key.expose_secret()))
            .map_err(|e| Fault::new(Class::Refused, format!("the page has no JSON form: {e}")))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let sent = self.post.send(headers, body, &[202], page.sent_ms).await;
        // An answer that repeats what was sent is not told.
        sent.map_err(|fault| {
            if fault.message.contains(key.expose_secret()) {
                return Fault { message: "pagerduty refused the event, and repeats the key".to_owned(), ..fault };
            }
            fault
        })
    }
}

/// A key that PagerDuty takes: a longer one ends in its own hash.
fn dedup_key(key: &str) -> String {
    if key.chars().count() <= KEY_CHARS_MAX {
        return key.to_owned();
    }
    let hash = ring::digest::digest(&ring::digest::SHA256, key.as_bytes());
    let hex = hash.as_ref().iter().fold(String::new(), |hex, byte| format!("{hex}{byte:02x}"));
    let head: String = key.chars().take(KEY_CHARS_MAX.saturating_sub(hex.len()).saturating_sub(1)).collect();
    format!("{head}/{hex}")
}

fn event(page: &Rendered, routing_key: &str) -> Value {
    let resolves = page.event == "resolve";
    let summary: String = page.summary.chars().take(SUMMARY_CHARS_MAX).collect();
    json!({
        "routing_key": routing_key,
        "event_action": if resolves { "resolve" } else { "trigger" },
        "dedup_key": dedup_key(&page.key),
        "client": "backstop",
        "payload": {
            "summary": summary,
            "source": page.node,
            "severity": page.severity,
            "timestamp": page.raised,
            "component": page.subject,
            "group": page.fleet,
            "class": page.kind,
            "custom_details": {
                "text": cut(&page.text, TEXT_BYTES_MAX),
                "event": page.event,
                "runbook": page.runbook,
                "cycle": page.cycle,
                "latch": page.latch,
                "stage": page.stage,
                "class": page.class,
            },
        },
    })
}

impl PageSink for PagerDuty {
    fn name(&self) -> &'static str {
        "pagerduty"
    }

    fn dedups(&self) -> bool {
        true
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.send(page))
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.post.answers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_key_keeps_its_head_and_stays_distinct() {
        let (a, b) = (format!("{}a", "x".repeat(300)), format!("{}b", "x".repeat(300)));
        assert_eq!(dedup_key(&a).len(), KEY_CHARS_MAX);
        assert_ne!(dedup_key(&a), dedup_key(&b));
        assert_eq!(dedup_key("au/latched/es-1"), "au/latched/es-1");
    }
}
