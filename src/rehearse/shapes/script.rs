//! The bytes of each shape.
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "each function knows its own shapes; a test sees that every shape is known to one"
)]

use super::Shape;
use crate::rehearse::http::{Answer, End, Response};
use serde_json::{Value, json};
use std::time::Duration;

const DRIP: Duration = Duration::from_millis(500);
const PAGE: &str =
    "<!doctype html><html><head><title>Sign in</title></head><body><form>user, password</form></body></html>";
const PROXY_PAGE: &str = "<html><head><title>upstream</title></head><body><center>nginx/1.22.1</center></body></html>";

pub(super) fn spoil(shape: Shape, right: &Response, path: &str) -> Answer {
    broken_transport(shape, right)
        .or_else(|| not_http(shape))
        .or_else(|| odd_body(shape, right))
        .or_else(|| odd_success(shape, right, path))
        .or_else(|| refusal(shape))
        .or_else(|| unavailable(shape, right))
        .or_else(|| inside(shape))
        .unwrap_or_else(|| Answer::Reply(right.clone()))
}

fn head(extra: &str) -> Vec<u8> {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{extra}\r\n").into_bytes()
}

fn with_body(extra: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = head(extra);
    bytes.extend_from_slice(body);
    bytes
}

fn half(body: &[u8]) -> &[u8] {
    body.get(..body.len().div_euclid(2)).unwrap_or_default()
}

/// The connection breaks, at each place where it can.
fn broken_transport(shape: Shape, right: &Response) -> Option<Answer> {
    let body = right.body.as_slice();
    let length = format!("content-length: {}\r\n", body.len());
    let raw = |bytes: &[u8], end| Some(Answer::Raw(bytes.to_vec(), end));
    let chunked = |tail: &str| {
        let first = half(body);
        let mut bytes = with_body("transfer-encoding: chunked\r\n", format!("{:x}\r\n", first.len()).as_bytes());
        bytes.extend_from_slice(first);
        bytes.extend_from_slice(tail.as_bytes());
        Some(Answer::Raw(bytes, End::Fin))
    };
    match shape {
        Shape::RstOnAccept | Shape::RstAfterRequest | Shape::TlsHandshakeRst => raw(b"", End::Rst),
        Shape::FinBeforeHeaders | Shape::TlsHandshakeFin => raw(b"", End::Fin),
        Shape::FinMidHeader => raw(b"HTTP/1.1 200 OK\r\ncontent-ty", End::Fin),
        Shape::RstMidHeader => raw(b"HTTP/1.1 200 OK\r\ncontent-ty", End::Rst),
        Shape::NeverAnswers | Shape::TlsHandshakeStall => raw(b"", End::Stall),
        Shape::BodyStalls => raw(&head(&length), End::Stall),
        Shape::ShortBody => raw(&with_body(&length, half(body)), End::Fin),
        Shape::RstInBody => raw(&with_body(&length, half(body)), End::Rst),
        Shape::ChunkedCut => chunked("\r\n"),
        Shape::BadChunkSize => chunked("\r\nzz\r\n"),
        Shape::CloseDelimitedCut => raw(&with_body("connection: close\r\n", half(body)), End::Fin),
        Shape::CloseDelimited => raw(&with_body("connection: close\r\n", body), End::Fin),
        Shape::ContinueThenFin => raw(b"HTTP/1.1 100 Continue\r\n\r\n", End::Fin),
        Shape::SlowDrip => Some(Answer::Drip(head(&length), body.to_vec(), DRIP)),
        _ => None,
    }
}

/// Something else speaks, or speaks HTTP that nobody may accept.
fn not_http(shape: Shape) -> Option<Answer> {
    let raw = |bytes: &[u8], end| Some(Answer::Raw(bytes.to_vec(), end));
    match shape {
        Shape::SshBanner => raw(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", End::Fin),
        Shape::NoHead => raw(b"node es-client-1 is fine\n", End::Fin),
        // Alerts: record type 21, version, length 2, level fatal, description.
        Shape::TlsOnPlainPort | Shape::TlsAlertProtocolVersion => raw(&[21, 3, 3, 0, 2, 2, 70], End::Fin),
        Shape::TlsAlertInternalError => raw(&[21, 3, 3, 0, 2, 2, 80], End::Fin),
        Shape::TlsAlertHandshakeFailure => raw(&[21, 3, 3, 0, 2, 2, 40], End::Fin),
        Shape::PlainOnTlsPort => {
            let body = "The plain HTTP request was sent to HTTPS port";
            raw(&Response::new(400, "text/html", body).encode(false), End::Fin)
        }
        // Frames: length (3), type, flags, stream (4), payload.
        Shape::Http2Preface => raw(&[0, 0, 0, 4, 0, 0, 0, 0, 0], End::Fin),
        Shape::Http2Goaway => raw(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], End::Fin),
        Shape::Http2EnhanceYourCalm => raw(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11], End::Fin),
        Shape::Http2RstStream => raw(&[0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 7], End::Fin),
        Shape::TwoContentLengths => raw(&with_body("content-length: 2\r\ncontent-length: 5\r\n", b"{}xyz"), End::Fin),
        Shape::Status1000 => raw(b"HTTP/1.1 1000 Odd\r\ncontent-length: 2\r\n\r\n{}", End::Fin),
        Shape::Status999 => raw(b"HTTP/1.1 999 Request denied\r\ncontent-length: 2\r\n\r\n{}", End::Fin),
        Shape::ManyHeaders => {
            let lines = "x-filler: 1\r\n".repeat(400);
            raw(&with_body(&format!("{lines}content-length: 2\r\n"), b"{}"), End::Fin)
        }
        Shape::HugeHead => {
            let line = format!("x-filler: {}\r\n", "a".repeat(512 * 1024));
            raw(&with_body(&format!("{line}content-length: 2\r\n"), b"{}"), End::Fin)
        }
        Shape::EndlessHead => {
            Some(Answer::Endless(b"HTTP/1.1 200 OK\r\n".to_vec(), b"x-more: and more\r\n".repeat(200)))
        }
        _ => None,
    }
}

/// A complete answer whose body is not what it seems.
fn odd_body(shape: Shape, right: &Response) -> Option<Answer> {
    let json = |body: Vec<u8>| Some(Answer::Reply(Response { body, ..right.clone() }));
    match shape {
        Shape::GzipGarbage => {
            let garbage = b"\xde\xad\xbe\xef no gzip".to_vec();
            Some(Answer::Reply(Response { body: garbage, ..right.clone().with("content-encoding", "gzip") }))
        }
        Shape::GzipTruncated => {
            let start = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0x56];
            Some(Answer::Reply(Response { body: start, ..right.clone().with("content-encoding", "gzip") }))
        }
        Shape::BadUtf8 => {
            let mut body = right.body.clone();
            // Inside the first string.
            if let Some(byte) = body.get_mut(3) {
                *byte = 0xff;
            }
            json(body)
        }
        Shape::DeepJson => json([b"[".repeat(100_000), b"]".repeat(100_000)].concat()),
        Shape::CutJson => json(half(&right.body).to_vec()),
        Shape::NulBody => json(vec![0; right.body.len().max(1)]),
        Shape::EndlessBody => {
            let first = with_body("connection: close\r\n", b"{\"filler\":\"");
            Some(Answer::Endless(first, vec![b'a'; 16 * 1024]))
        }
        _ => None,
    }
}

/// A success that is none, or one that only looks odd.
fn odd_success(shape: Shape, right: &Response, path: &str) -> Option<Answer> {
    let reply = |r: Response| Some(Answer::Reply(r));
    match shape {
        Shape::RedirectLoop => reply(Response::new(302, "text/plain", "").with("location", path)),
        Shape::Moved => reply(Response::new(301, "text/html", PAGE).with("location", "https://login.example.invalid/")),
        Shape::Html200 => reply(Response::new(200, "text/html", PAGE)),
        Shape::Empty200 => reply(Response { body: Vec::new(), ..right.clone() }),
        // Without a length: 204 has no body.
        Shape::Status204 => Some(Answer::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(), End::Fin)),
        Shape::OtherService => reply(Response::json(200, &json!({"status": "UP", "components": {"db": "UP"}}))),
        Shape::JsonNull => reply(Response::json(200, &Value::Null)),
        Shape::NoProductHeader => {
            let mut plain = right.clone();
            plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("x-elastic-product"));
            reply(plain)
        }
        Shape::OtherClusterUuid => {
            reply(edited(right, |body| set(body, "cluster_uuid", json!("zzzzzzzzzzzzzzzzzzzzzz"))))
        }
        Shape::OtherNodeName => reply(edited(right, rename_node)),
        Shape::TimedOut200 => reply(edited(right, |body| set(body, "timed_out", json!(true)))),
        Shape::FailuresInside => reply(edited(right, fail_inside)),
        Shape::Red => reply(edited(right, |body| set(body, "status", json!("red")))),
        Shape::Yellow => reply(edited(right, |body| set(body, "status", json!("yellow")))),
        _ => None,
    }
}

fn edited(right: &Response, change: impl FnOnce(&mut Value)) -> Response {
    let Ok(mut body) = serde_json::from_slice::<Value>(&right.body) else { return right.clone() };
    change(&mut body);
    Response { body: body.to_string().into_bytes(), ..right.clone() }
}

/// Changes a top-level field, where the answer has it.
fn set(body: &mut Value, field: &str, value: Value) {
    if let Some(found) = body.get_mut(field) {
        *found = value;
    }
}

/// Everything that names the node names another one.
fn rename_node(body: &mut Value) {
    if body.get("tagline").is_some() {
        set(body, "name", json!("somebody-else"));
    }
    let Some(nodes) = body.get_mut("nodes").and_then(Value::as_object_mut) else { return };
    let others = std::mem::take(nodes).into_iter().enumerate().map(|(n, (_, mut node))| {
        set(&mut node, "name", json!("somebody-else"));
        (format!("somebodyElse{n:010}"), node)
    });
    nodes.extend(others);
}

fn fail_inside(body: &mut Value) {
    if let Some(shards) = body.get_mut("_shards") {
        set(shards, "failed", json!(1));
    }
}

fn error(status: u16, kind: &str, reason: &str) -> Response {
    let cause = json!({"type": kind, "reason": reason});
    let body = json!({"error": {"root_cause": [cause], "type": kind, "reason": reason}, "status": status});
    Response::json(status, &body)
}

/// The client is told that it is wrong.
fn refusal(shape: Shape) -> Option<Answer> {
    let plain = |status: u16, text: &str| Response::new(status, "text/plain", text);
    let response = match shape {
        Shape::BadRequest => error(400, "media_type_header_exception", "Invalid media-type value on headers [Accept]"),
        Shape::Unauthorized => error(401, "security_exception", "unable to authenticate user [backstop]")
            .with("www-authenticate", "Basic realm=\"security\", charset=\"UTF-8\""),
        Shape::Forbidden => error(403, "security_exception", "action [cluster:monitor/main] is unauthorized"),
        Shape::LicenceForbidden => error(403, "security_exception", "current license is non-compliant for [security]"),
        Shape::Firewall => Response::new(403, "text/html", PROXY_PAGE),
        Shape::ReadOnlyBlock => {
            error(403, "cluster_block_exception", "blocked by: [FORBIDDEN/6/cluster read-only (api)];")
        }
        Shape::NotFound => Response::json(404, &json!({"error": "no handler found for uri", "status": 404})),
        Shape::IndexNotFound => error(404, "index_not_found_exception", "no such index [canary]"),
        Shape::MethodNotAllowed => Response::json(405, &json!({"error": "Incorrect HTTP method", "status": 405})),
        Shape::NotAcceptable => Response::json(406, &json!({"error": "Content-Type not supported", "status": 406})),
        Shape::ProxyAuthentication => plain(407, "proxy authentication required"),
        Shape::RequestTimeout => plain(408, "Request Timeout"),
        Shape::Conflict => error(409, "version_conflict_engine_exception", "required seqNo [0], primary term [1]"),
        Shape::Gone => plain(410, "Gone"),
        Shape::LengthRequired => plain(411, "Length Required"),
        Shape::TooLarge => plain(413, ""),
        Shape::UriTooLong => plain(414, ""),
        Shape::UnsupportedMediaType => plain(415, ""),
        Shape::WeighedAway => error(421, "node_weighed_away_exception", "local node is weighed away"),
        Shape::Decommissioned => error(424, "node_decommissioned_exception", "local node is decommissioned"),
        Shape::UpgradeRequired => plain(426, "Upgrade Required"),
        Shape::CircuitBreaker => {
            let body = json!({
                "error": {"root_cause": [], "type": "circuit_breaking_exception",
                          "reason": "[parent] Data too large", "durability": "TRANSIENT"},
                "status": 429
            });
            Response::json(429, &body).with("retry-after", "2")
        }
        Shape::Rejected => error(429, "es_rejected_execution_exception", "rejected execution of task"),
        Shape::FloodStage => {
            let reason = "index [x] blocked by: [TOO_MANY_REQUESTS/12/disk usage exceeded flood-stage watermark];";
            error(429, "cluster_block_exception", reason)
        }
        Shape::ClusterEventTimeout429 => cluster_event_timeout(429),
        Shape::HeadersTooLarge => plain(431, ""),
        _ => return None,
    };
    Some(Answer::Reply(response))
}

/// The server says that it cannot.
fn unavailable(shape: Shape, right: &Response) -> Option<Answer> {
    let html = |status: u16| Response::new(status, "text/html", PROXY_PAGE);
    let empty = |status: u16| Response { status, ..Response::default() };
    let response = match shape {
        Shape::TimedOut408 => {
            let late = edited(right, |body| set(body, "timed_out", json!(true)));
            Response { status: 408, ..late }
        }
        Shape::InternalError => error(500, "node_not_connected_exception", "[m1][127.0.0.10:9300] Node not connected"),
        Shape::Empty500 => empty(500),
        Shape::NullPointer => error(500, "null_pointer_exception", "Cannot invoke \"Object.toString()\""),
        Shape::TransportClosed => error(500, "transport_exception", "TransportService is closed stopped"),
        Shape::BadGatewayHtml => html(502),
        Shape::BadGateway => error(502, "connect_transport_exception", "[m1][127.0.0.10:9300] connect_exception"),
        Shape::Empty502 => empty(502),
        Shape::NoMaster => no_master("master_not_discovered_exception"),
        Shape::NoClusterManager => no_master("cluster_manager_not_discovered_exception"),
        Shape::BareString503 => Response::json(
            503,
            &json!({"error": "ClusterBlockException[blocked by: [SERVICE_UNAVAILABLE/2/no master];]", "status": 503}),
        ),
        Shape::NotRecovered => not_recovered(),
        Shape::NoMasterBlock => error(503, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/2/no master];"),
        Shape::Empty503 => empty(503),
        Shape::Html503 => html(503),
        Shape::GatewayTimeout => html(504),
        Shape::Cdn520 => html(520),
        Shape::Cdn530 => html(530),
        _ => return None,
    };
    Some(Answer::Reply(response))
}

/// The server answers, and a part behind it does not.
fn inside(shape: Shape) -> Option<Answer> {
    let response = match shape {
        Shape::AuthenticationProcessing => {
            error(503, "authentication_processing_error", "failed to authenticate user: the index .security is missing")
        }
        Shape::LicenceMissing => error(503, "status_exception", "License is not available"),
        Shape::UnavailableShards => {
            error(503, "unavailable_shards_exception", "[backstop][0] primary shard is not active Timeout: [2s]")
        }
        Shape::NoShardAvailable => {
            error(503, "no_shard_available_action_exception", "No shard available for [get [backstop][fleet]]")
        }
        Shape::AllShardsFailed => error(503, "search_phase_execution_exception", "all shards failed"),
        Shape::NodeClosed => error(503, "node_closed_exception", "node closed {es-client-1}"),
        Shape::ClusterEventTimeout => cluster_event_timeout(503),
        _ => return None,
    };
    Some(Answer::Reply(response))
}

/// The same fault has had both statuses.
fn cluster_event_timeout(status: u16) -> Response {
    let reason = "failed to process cluster event (put-mapping) within 30s";
    error(status, "process_cluster_event_timeout_exception", reason)
}

/// 503 of a node that knows no master: `reason` is null.
pub(in crate::rehearse) fn no_master(kind: &str) -> Response {
    let cause = json!({"type": kind, "reason": null});
    let body = json!({"error": {"root_cause": [cause], "type": kind, "reason": null}, "status": 503});
    Response::json(503, &body)
}

/// 503 of a node that never got a cluster state.
pub(in crate::rehearse) fn not_recovered() -> Response {
    error(503, "cluster_block_exception", "blocked by: [SERVICE_UNAVAILABLE/1/state not recovered / initialized];")
}
