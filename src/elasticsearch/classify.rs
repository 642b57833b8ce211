//! Pure functions from what came back (or did not) to a class and a sentence.

use crate::causes::{Causes, tidy};
use crate::core::error::{Class, Fault};
use serde_json::Value;

/// A complete HTTP answer: status, headers and bytes have all arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// `Retry-After`, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as a JSON object. Anything else is `None`: a page, an empty body, a list, half an object.
    pub fn object(&self) -> Option<Value> {
        serde_json::from_slice::<Value>(&self.body).ok().filter(Value::is_object)
    }
}

/// The class of a complete answer that is not the success that was asked for.
pub fn class_of(answer: &Answer) -> Class {
    let error = answer.object().and_then(|v| error_type(&v));
    match (answer.status, error.as_deref()) {
        // A read-only block: no matter of credentials, and none of this node.
        (403, Some("cluster_block_exception")) => Class::Refused,
        (401 | 403, _) => Class::Auth,
        (429, _) => Class::Throttled,
        // In Elasticsearch's own words a 5xx passes, and a 4xx does not.
        (408 | 502 | 503 | 504, _) | (500.., Some(_)) => Class::NotReady,
        (400..=499, Some(_)) => Class::Refused,
        // A redirect, a proxy's page, a status that nobody knows.
        _ => Class::Transport,
    }
}

/// The fault of a complete answer that is not the success that was asked for.
pub fn answered(what: &str, answer: &Answer) -> Fault {
    let class = class_of(answer);
    let object = answer.object();
    let detail = match object.as_ref().and_then(error_type) {
        Some(error) => match object.as_ref().and_then(error_reason) {
            Some(reason) => format!("{error}: {reason}"),
            None => error,
        },
        None => match answer.status {
            300..=399 => "a redirect: is this the node's own port?".to_owned(),
            401 | 403 => "credentials are not accepted (or cannot be checked yet)".to_owned(),
            _ if answer.body.is_empty() => "an empty answer".to_owned(),
            _ if object.is_some() => "an answer that is not an Elasticsearch error".to_owned(),
            _ => "an answer that is not JSON: a proxy?".to_owned(),
        },
    };
    let message = format!("{what}: HTTP {}: {detail}", answer.status);
    Fault { class, message, retry_after_ms: answer.retry_after_ms }
}

/// `error.type`, a bare `type`, or `error` as a string: all three are in use.
pub(crate) fn error_type(object: &Value) -> Option<String> {
    let error = object.get("error");
    let text = error
        .and_then(|e| e.get("type"))
        .or_else(|| error.filter(|e| e.is_string()))
        .or_else(|| object.get("type").filter(|_| object.get("reason").is_some()))
        .and_then(Value::as_str)?;
    // A bare string carries the type in front: "ClusterBlockException[blocked by: ...]".
    let text = if text.starts_with("ClusterBlockException") { "cluster_block_exception" } else { text };
    // Kibana and proxies say {"statusCode":..,"error":"Service Unavailable"}: theirs, not Elasticsearch's.
    if object.get("statusCode").is_some() { None } else { Some(tidy(text)).filter(|t| !t.is_empty()) }
}

fn error_reason(object: &Value) -> Option<String> {
    let reason = object.get("error").and_then(|e| e.get("reason")).or_else(|| object.get("reason"))?;
    reason.as_str().map(tidy).filter(|t| !t.is_empty())
}

/// How far a call came that got no complete answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// No connection, or no TLS on it.
    Nothing,
    /// A connection, and no answer that began.
    Connection,
    /// The head of an answer with this status; its body did not come to its end.
    Head(u16),
}

/// The fault of a call without a complete answer: always `transport`. Only the sentence differs.
pub(crate) fn unanswered(what: &str, tls: bool, reached: Reached, timed_out: bool, causes: &Causes) -> Fault {
    let cause = causes.innermost();
    // A reset (unlike a refusal) means that somebody was there, at whatever point the client noticed.
    let closed = !tls && reached == Reached::Nothing && causes.closed();
    let detail = match if closed { Reached::Connection } else { reached } {
        Reached::Head(status) if timed_out => format!("the answer (HTTP {status}) did not end in time"),
        Reached::Head(status) => format!("the answer (HTTP {status}) was cut off: {cause}"),
        Reached::Nothing if timed_out => "no connection in time".to_owned(),
        Reached::Connection if timed_out => "connected, but no answer in time".to_owned(),
        Reached::Nothing if causes.refused() => "nothing listens on that port (connection refused)".to_owned(),
        Reached::Nothing if tls && causes.mentions("contenttype") => {
            "connected, but the port does not speak TLS: protocol/TLS mismatch? (https:// to an http port)".to_owned()
        }
        Reached::Nothing if tls => format!("no TLS connection: {cause}"),
        Reached::Nothing => format!("no connection: {cause}"),
        Reached::Connection if tls => format!("connected but closed, after TLS began: {cause}"),
        Reached::Connection => {
            format!("connected but closed, or not HTTP: protocol/TLS mismatch? (http:// to an https port) {cause}")
        }
    };
    Fault::transport(format!("{what}: {detail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str) -> Answer {
        Answer { status, retry_after_ms: None, body: body.into() }
    }

    #[test]
    fn a_status_with_elasticsearchs_own_words_is_classed_by_both() {
        let es = |kind: &str| format!(r#"{{"error":{{"type":"{kind}","reason":"because"}},"status":1}}"#);
        for (status, kind, want) in [
            (503, "master_not_discovered_exception", Class::NotReady),
            (503, "cluster_block_exception", Class::NotReady),
            (500, "node_not_connected_exception", Class::NotReady),
            (502, "connect_transport_exception", Class::NotReady),
            (429, "circuit_breaking_exception", Class::Throttled),
            (401, "security_exception", Class::Auth),
            (403, "security_exception", Class::Auth),
            (403, "cluster_block_exception", Class::Refused),
            (404, "index_not_found_exception", Class::Refused),
            (400, "illegal_argument_exception", Class::Refused),
            (421, "node_weighed_away_exception", Class::Refused),
        ] {
            let a = answer(status, &es(kind));
            assert_eq!(class_of(&a), want, "{status} {kind}");
            assert!(answered("GET /", &a).message.contains(&format!("{kind}: because")));
        }
    }

    #[test]
    fn a_strangers_page_is_transport_whatever_its_status_says() {
        for (status, body, want) in [
            (200, "<html>", Class::Transport),
            (301, "", Class::Transport),
            (404, "<html>", Class::Transport),
            (418, "", Class::Transport),
            (500, "<html>", Class::Transport),
            (999, "{}", Class::Transport),
            (408, "", Class::NotReady),
            (502, "<html>", Class::NotReady),
            (503, "", Class::NotReady),
            (504, "<html>", Class::NotReady),
            (429, "", Class::Throttled),
            (403, "<html>", Class::Auth),
        ] {
            assert_eq!(class_of(&answer(status, body)), want, "{status} {body}");
        }
        let kibana = answer(404, r#"{"statusCode":404,"error":"Not Found","message":"x"}"#);
        assert_eq!(class_of(&kibana), Class::Transport);
    }

    #[test]
    fn errors_come_as_object_as_string_and_bare() {
        for body in [
            r#"{"error":"ClusterBlockException[blocked by: [SERVICE_UNAVAILABLE/2/no master];]","status":503}"#,
            r#"{"error":{"type":"cluster_block_exception","reason":null}}"#,
            r#"{"type":"cluster_block_exception","reason":"blocked"}"#,
        ] {
            assert!(answered("x", &answer(503, body)).message.contains("cluster_block_exception"), "{body}");
        }
    }

    #[test]
    fn a_sentence_says_how_far_the_call_came() {
        let refused = Causes::of(&std::io::Error::from(std::io::ErrorKind::ConnectionRefused));
        let reset = Causes::of(&std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        let none = Causes::default();
        let says = |tls, reached, timed_out, causes: &Causes| unanswered("x", tls, reached, timed_out, causes).message;
        assert!(says(false, Reached::Nothing, false, &refused).contains("nothing listens"));
        assert!(says(false, Reached::Connection, false, &none).contains("protocol/TLS mismatch?"));
        assert!(says(false, Reached::Nothing, false, &reset).contains("connected but closed"));
        assert!(says(false, Reached::Nothing, true, &none).contains("no connection in time"));
        assert!(says(true, Reached::Connection, true, &none).contains("no answer in time"));
        assert!(says(false, Reached::Head(200), false, &none).contains("cut off"));
    }
}
