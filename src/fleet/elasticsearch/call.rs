//! One exchange with one endpoint, through the `elasticsearch` crate, behind a fence (docs/adr/0007): a deadline of our own
//! around everything, a task of its own that may panic, status and length before the body, and no decision that asks for the
//! type of an error.

use crate::agent::supervisor::fenced;
use crate::bounded::blocking;
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::elasticsearch::classify::{Answer, Reached, unanswered};
use crate::elasticsearch::http::{authorization, base_url, retry_after_ms};
use crate::elasticsearch::secrets;
use ::elasticsearch::cert::{Certificate, CertificateValidation};
use ::elasticsearch::http::headers::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use ::elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use ::elasticsearch::http::{Method, Url};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Calls that may be reading their files at the same time.
const READERS_MAX: usize = 16;

/// Certificates that a server may be known by, as the file has them. `None` = none beside the system's.
type Pem = Option<Vec<u8>>;

/// The files that say who calls, and whom to trust. Read again at each call: a rotated one counts at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    pub(super) ca: Option<Arc<str>>,
    pub(super) api_key: Option<Arc<str>>,
    pub(super) basic_auth: Option<Arc<str>>,
}

/// What is asked. Sent as it is; nothing in here is a secret.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    /// From the first segment on, escaped, without a slash in front.
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) body: Option<Vec<u8>>,
    /// A longer answer is none.
    pub(super) answer_max: u64,
}

/// No complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) fault: Fault,
    /// The request provably never left: it may be sent elsewhere without being sent twice.
    pub(super) unsent: bool,
}

/// One server that can be asked.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Arc<str>,
    files: Files,
    /// So many more may read the files: a file system may hang.
    free: Arc<Semaphore>,
    /// The client, and the certificates that it was made with.
    made: Mutex<Option<(Pem, Transport)>>,
}

impl Call {
    fn named(&self, url: &str) -> String {
        let method = match self.method {
            Method::Get => "GET",
            Method::Put => "PUT",
            Method::Post => "POST",
            Method::Delete => "DELETE",
            Method::Head => "HEAD",
        };
        format!("{method} {url}/{}", self.path)
    }
}

impl Endpoint {
    /// Makes no call.
    pub(super) fn new(url: Arc<str>, files: Files) -> Endpoint {
        Endpoint { url, files, free: Arc::new(Semaphore::new(READERS_MAX)), made: Mutex::new(None) }
    }

    /// Asks, and reads the answer to its end. Ends within `limit`, whatever the server and the disk do.
    pub(super) async fn ask(self: &Arc<Self>, call: Call, limit: Duration) -> Result<Answer, Unanswered> {
        let what = call.named(&self.url);
        let unsent = |fault: Fault| Unanswered { fault, unsent: true };
        let Ok(free) = self.free.clone().try_acquire_owned() else {
            let why = format!("{what}: {READERS_MAX} earlier calls still read the credential and certificate files");
            return Err(unsent(Fault::transport(why)));
        };
        let me = self.clone();
        let prepared = blocking(limit, move || {
            let _until_it_comes_back = free;
            me.prepared()
        });
        let prepared = prepared.await;
        let (transport, headers) = prepared
            .map_err(|why| unsent(Fault::transport(format!("{what}: preparing the call: {why}"))))?
            .map_err(unsent)?;
        let how_far = Arc::new(Mutex::new(Reached::Connection));
        let exchange = exchange(transport, headers, call, self.url.clone(), limit, how_far.clone());
        match tokio::time::timeout(limit, fenced(exchange)).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(why)) => Err(maybe(Fault::transport(format!("{what}: the client library ended in {why}")))),
            Err(_) => {
                let reached = *how_far.lock().unwrap_or_else(PoisonError::into_inner);
                let tls = self.url.starts_with("https:");
                Err(maybe(unanswered(&what, tls, reached, true, &Causes::default())))
            }
        }
    }

    /// Reads the files, and makes the client again where the certificates are not those it was made with. Blocking.
    fn prepared(&self) -> Result<(Transport, HeaderMap), Fault> {
        let f = &self.files;
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization(&secrets::credentials(f.api_key.as_deref(), f.basic_auth.as_deref())?)? {
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("backstop/", env!("CARGO_PKG_VERSION"))));
        headers.insert(HeaderName::from_static("x-opaque-id"), HeaderValue::from_static("backstop-fleet-record"));
        // What is not packed cannot unpack into more than its length says.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let pem = f.ca.as_deref().map(secrets::bytes).transpose()?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((with, transport)) = &*made
            && *with == pem
        {
            return Ok((transport.clone(), headers));
        }
        let transport = self.transport(pem.as_deref())?;
        *made = Some((pem, transport.clone()));
        Ok((transport, headers))
    }

    fn transport(&self, pem: Option<&[u8]>) -> Result<Transport, Fault> {
        let url = base_url(&self.url)?;
        let secure = url.scheme() == "https";
        let pool = SingleNodeConnectionPool::new(url);
        let mut builder = TransportBuilder::new(pool).disable_proxy().enable_meta_header(false);
        if secure && let Some(roots) = roots(self.files.ca.as_deref(), pem)? {
            builder = builder.cert_validation(CertificateValidation::Full(roots));
        }
        builder.build().map_err(|e| {
            Fault::transport(format!("cannot make a client for {}: {}", self.url, Causes::of(&e).innermost()))
        })
    }
}

/// The system's roots, which this client does not look for by itself, and those of the file.
fn roots(ca: Option<&str>, pem: Option<&[u8]>) -> Result<Option<Certificate>, Fault> {
    let mut all: Option<Certificate> = None;
    let mut add = |more: Certificate| match &mut all {
        Some(all) => all.append(more),
        None => all = Some(more),
    };
    for root in rustls_native_certs::load_native_certs().certs {
        if let Ok(root) = Certificate::from_der(&root) {
            add(root);
        }
    }
    if let (Some(file), Some(pem)) = (ca, pem) {
        add(Certificate::from_pem(pem).map_err(|_| secrets::unusable(file, "there is no PEM certificate in it"))?);
    }
    Ok(all)
}

fn maybe(fault: Fault) -> Unanswered {
    Unanswered { fault, unsent: false }
}

async fn exchange(
    transport: Transport,
    headers: HeaderMap,
    call: Call,
    url: Arc<str>,
    limit: Duration,
    how_far: Arc<Mutex<Reached>>,
) -> Result<Answer, Unanswered> {
    let what = call.named(&url);
    let tls = url.starts_with("https:");
    let (query, limit_answer) = (call.query.as_slice(), call.answer_max);
    let sent = transport.send(call.method, &call.path, headers, Some(query), call.body, Some(limit)).await;
    let response = match sent {
        Ok(response) => response,
        Err(error) => {
            let causes = Causes::of(&error);
            let reached = if causes.refused() { Reached::Nothing } else { Reached::Connection };
            let fault = unanswered(&what, tls, reached, error.is_timeout(), &causes);
            // Only of a refused connection is it certain that nothing went over it; and since the library follows redirects,
            // only where this very server refuses one.
            let unsent = causes.refused() && refuses(&url).await;
            return Err(Unanswered { fault, unsent });
        }
    };
    let status = response.status_code().as_u16();
    let retry_after_ms = retry_after_ms(response.headers());
    *how_far.lock().unwrap_or_else(PoisonError::into_inner) = Reached::Head(status);
    if !asked(response.url(), &url, &call.path) {
        // The library follows redirects, and nobody can keep it from that: whoever answered is not whom we asked.
        return Err(maybe(Fault::transport(format!(
            "{what}: a redirect to another place: is this the node's own port?"
        ))));
    }
    let too_long = |length: u64| {
        maybe(Fault::transport(format!(
            "{what}: the answer (HTTP {status}) has {length} bytes, more than {limit_answer}"
        )))
    };
    let stated = response.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = stated.filter(|n| *n > limit_answer) {
        return Err(too_long(length));
    }
    // Without a stated length the deadline is what bounds it.
    let body = response.bytes().await.map_err(|error| {
        maybe(unanswered(&what, tls, Reached::Head(status), error.is_timeout(), &Causes::of(&error)))
    })?;
    let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
    if length > limit_answer {
        return Err(too_long(length));
    }
    Ok(Answer { status, retry_after_ms, body: body.to_vec() })
}

/// Nothing listens there.
async fn refuses(url: &str) -> bool {
    let Ok(url) = base_url(url) else { return false };
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return false };
    let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
    tokio::net::TcpStream::connect(format!("{host}:{port}")).await.is_err_and(refused)
}

/// The answer comes from where the call went to.
fn asked(answered: &Url, base: &str, path: &str) -> bool {
    let Ok(base) = base_url(base) else { return false };
    let same = answered.scheme() == base.scheme()
        && answered.host_str() == base.host_str()
        && answered.port_or_known_default() == base.port_or_known_default();
    same && answered.path().trim_start_matches('/') == format!("{}{path}", base.path().trim_start_matches('/'))
}

/// The path of these segments, escaped.
pub(super) fn path(segments: &[&str]) -> String {
    let Ok(mut url) = Url::parse("http://x/") else { return String::new() };
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url.path().trim_start_matches('/').to_owned()
}

impl From<Unanswered> for Fault {
    fn from(lost: Unanswered) -> Fault {
        lost.fault
    }
}

impl Unanswered {
    /// The fault of a write.
    pub(super) fn of_a_write(self) -> Fault {
        if self.unsent { self.fault } else { Fault { class: Class::OutcomeUnknown, ..self.fault } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_cannot_lead_elsewhere() {
        assert_eq!(path(&["backstop-fleet", "_doc", "record:search"]), "backstop-fleet/_doc/record:search");
        assert_eq!(path(&["a", "_doc", "member:x/../y?z#"]), "a/_doc/member:x%2F..%2Fy%3Fz%23");
    }

    #[test]
    fn an_answer_from_elsewhere_is_seen() {
        let url = |text: &str| Url::parse(text).unwrap();
        assert!(asked(&url("http://es-1:9200/i/_doc/x?y=1"), "http://es-1:9200", "i/_doc/x"));
        assert!(asked(&url("https://es-1/i/_doc/x"), "https://es-1:443", "i/_doc/x"));
        for elsewhere in ["http://es-2:9200/i/_doc/x", "http://es-1:9201/i/_doc/x", "https://es-1:9200/i/_doc/x"] {
            assert!(!asked(&url(elsewhere), "http://es-1:9200", "i/_doc/x"), "{elsewhere}");
        }
        assert!(!asked(&url("http://es-1:9200/login"), "http://es-1:9200", "i/_doc/x"));
    }
}
