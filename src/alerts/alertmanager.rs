//! Prometheus Alertmanager, API v2. It knows repeats by their labels, so every agent sends; what it was told ends by itself
//! unless it is told again, so an alert that fires is sent again long before that.

use super::Rendered;
use super::post::{Post, secret};
use super::text::rfc3339;
use crate::core::error::{Class, Fault};
use crate::ports::{BoxFuture, PageSink};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use std::path::PathBuf;

/// An alert ends so long after it was last told, in ms: a dead agent must not resolve what it saw.
const ENDS_AFTER_MS: u64 = 4 * 24 * 3_600_000;
/// And is told again after this time, in ms: an Alertmanager that was restarted has forgotten it.
const RENEW_MS: u64 = 5 * 60_000;

/// One Alertmanager of a cluster.
pub struct Alertmanager {
    name: String,
    post: Post,
    basic_auth_file: Option<PathBuf>,
}

impl Alertmanager {
    /// `url` is scheme, host and port.
    ///
    /// # Errors
    /// A URL that is none, or no TLS to be had.
    pub fn new(url: &str, timeout_ms: u64, basic_auth_file: Option<PathBuf>) -> Result<Alertmanager, Fault> {
        let api = format!("{}/api/v2/alerts", url.trim_end_matches('/'));
        let post = Post::new("alertmanager", "pager.alertmanager.urls", &api, timeout_ms, true)?;
        let at = url.split_once("://").map_or(url, |(_, rest)| rest).trim_end_matches('/');
        Ok(Alertmanager { name: format!("alertmanager {at}"), post, basic_auth_file })
    }

    async fn send(&self, page: &Rendered) -> Result<(), Fault> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(file) = &self.basic_auth_file {
            let pair = secret("pager.alertmanager.basic_auth_file", file).await?;
            let value = format!("Basic {}", crate::http_client::base64(pair.expose_secret().as_bytes()));
            let mut value = HeaderValue::from_str(&value)
                .map_err(|_| Fault::new(Class::Auth, "pager.alertmanager.basic_auth_file is no header value"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let body = serde_json::to_vec(&alerts(page))
            .map_err(|e| Fault::new(Class::Refused, format!("the page has no JSON form: {e}")))?;
        self.post.send(headers, body, &[200], page.sent_ms).await
    }
}

/// The labels are the alert's identity: whatever changes while it fires, its severity too, is an annotation.
fn alerts(page: &Rendered) -> Value {
    let end = if page.event == "resolve" { page.sent_ms } else { page.sent_ms.saturating_add(ENDS_AFTER_MS) };
    let mut labels = json!({
        "alertname": "backstop",
        "fleet": page.fleet,
        "kind": page.kind,
        "subject": page.subject,
    });
    if let (Some(n), Some(labels)) = (page.reminder, labels.as_object_mut()) {
        labels.insert("reminder".to_owned(), Value::from(n.to_string()));
    }
    json!([{
        "labels": labels,
        "annotations": {
            "summary": page.summary,
            "description": page.text,
            "severity": page.severity,
            "runbook": page.runbook,
            "key": page.key,
        },
        "startsAt": rfc3339(page.raised_ms.min(end)),
        "endsAt": rfc3339(end),
    }])
}

impl PageSink for Alertmanager {
    fn name(&self) -> &str {
        &self.name
    }

    fn dedups(&self) -> bool {
        true
    }

    fn renew_ms(&self) -> Option<u64> {
        Some(RENEW_MS)
    }

    fn deliver<'a>(&'a self, page: &'a Rendered) -> BoxFuture<'a, Result<(), Fault>> {
        Box::pin(self.send(page))
    }

    fn reachable(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(self.post.answers())
    }
}
