//! One exchange with one endpoint, through the `elasticsearch` crate, behind a fence (docs/adr/0007): a deadline of our own
//! around everything, a task of its own that may panic, status and length before the body, and no decision that asks for the
//! type of an error. What may come in chunks is asked for past the crate.

use crate::bounded::blocking;
use crate::causes::Causes;
use crate::core::error::{Class, Fault};
use crate::elasticsearch::classify::{Answer, Reached, unanswered};
use crate::elasticsearch::http::{answer, authorization, base_url, retry_after_ms};
use crate::elasticsearch::secrets;
use crate::http_client;
use crate::supervisor::fenced;
use ::elasticsearch::auth::{ClientCertificate, Credentials};
use ::elasticsearch::cert::{Certificate, CertificateValidation};
use ::elasticsearch::http::headers::{
    ACCEPT_ENCODING, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT,
};
use ::elasticsearch::http::transport::{SingleNodeConnectionPool, Transport, TransportBuilder};
use ::elasticsearch::http::{Method, Url};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Calls that may be reading their files at the same time.
const READERS_MAX: usize = 16;

/// What the files have that clients are made of.
#[derive(Clone, Default, PartialEq, Eq)]
struct Pem {
    /// Certificates that a server may be known by; `None` = none beside the system's.
    ca: Option<Vec<u8>>,
    /// The own certificate and its key; `None` = none is shown.
    client: Option<Vec<u8>>,
}

impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pem(not shown: it may hold a key)")
    }
}

/// The files that say who calls, and whom to trust. Read again at each call: a rotated one counts at once.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    pub(super) ca: Option<Arc<str>>,
    pub(super) api_key: Option<Arc<str>>,
    pub(super) basic_auth: Option<Arc<str>>,
    pub(super) client_cert: Option<Arc<str>>,
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
    pub(super) answer_max: usize,
    /// A read whose answer may come in chunks, so that its length is known at its end only: the `elasticsearch` crate would
    /// read on whatever comes, so it is not asked.
    pub(super) listing: bool,
}

/// No complete answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    pub(super) fault: Fault,
    /// The request provably never left: it may be sent elsewhere without being sent twice.
    pub(super) unsent: bool,
}

/// Clients for one server.
#[derive(Clone, Debug)]
struct Clients {
    transport: Transport,
    listing: reqwest::Client,
}

/// One server that can be asked.
#[derive(Debug)]
pub(super) struct Endpoint {
    url: Arc<str>,
    files: Files,
    /// So many more may read the files: a file system may hang.
    free: Arc<Semaphore>,
    /// The clients, and the certificates that they were made with.
    made: Mutex<Option<(Pem, Clients)>>,
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
        let (clients, headers) = prepared
            .map_err(|why| unsent(Fault::transport(format!("{what}: preparing the call: {why}"))))?
            .map_err(unsent)?;
        if call.listing {
            return self.listed(clients.listing, headers, call, limit).await.map_err(maybe);
        }
        let transport = clients.transport;
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

    async fn listed(
        &self,
        client: reqwest::Client,
        headers: HeaderMap,
        call: Call,
        limit: Duration,
    ) -> Result<Answer, Fault> {
        let what = call.named(&self.url);
        let mut url = base_url(&self.url)?;
        url.set_path(&call.path);
        url.query_pairs_mut().extend_pairs(&call.query);
        let tls = url.scheme() == "https";
        let request = if call.method == Method::Post { client.post(url) } else { client.get(url) };
        let request = request.headers(headers).header(CONTENT_TYPE, "application/json").timeout(limit);
        let request = match call.body {
            Some(body) => request.body(body),
            None => request,
        };
        let Ok(answered) = tokio::time::timeout(limit, answer(request, &what, tls, call.answer_max)).await else {
            return Err(Fault::transport(format!("{what}: no complete answer within {limit:?}")));
        };
        answered
    }

    /// Reads the files, and makes the clients again where the certificates are not those they were made with. Blocking.
    fn prepared(&self) -> Result<(Clients, HeaderMap), Fault> {
        let f = &self.files;
        let mut headers = HeaderMap::new();
        if let Some(value) = authorization(&secrets::credentials(f.api_key.as_deref(), f.basic_auth.as_deref())?)? {
            headers.insert(AUTHORIZATION, value);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("backstop/", env!("CARGO_PKG_VERSION"))));
        headers.insert(HeaderName::from_static("x-opaque-id"), HeaderValue::from_static("backstop-fleet-record"));
        // What is not packed cannot unpack into more than its length says.
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        let read = |file: &Option<Arc<str>>| file.as_deref().map(secrets::bytes).transpose();
        let pem = Pem { ca: read(&f.ca)?, client: read(&f.client_cert)? };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((with, clients)) = &*made
            && *with == pem
        {
            return Ok((clients.clone(), headers));
        }
        let clients = Clients { transport: self.transport(&pem)?, listing: self.listing_client(&pem)? };
        *made = Some((pem, clients.clone()));
        Ok((clients, headers))
    }

    fn listing_client(&self, pem: &Pem) -> Result<reqwest::Client, Fault> {
        let url = base_url(&self.url)?;
        // Each call states its own deadline.
        let mut builder = http_client::builder(&url, Duration::from_mins(1)).no_proxy().pool_max_idle_per_host(1);
        if url.scheme() == "https" {
            let roots = reqwest::Certificate::from_pem_bundle(pem.ca.as_deref().unwrap_or_default());
            builder = builder.tls_certs_merge(roots.map_err(|_| unreadable(self.files.ca.as_deref()))?);
            if let Some(own) = &pem.client {
                builder = builder.identity(secrets::identity(self.client_cert(), own)?);
            }
        }
        http_client::build(builder)
    }

    fn client_cert(&self) -> &str {
        self.files.client_cert.as_deref().unwrap_or_default()
    }

    fn transport(&self, pem: &Pem) -> Result<Transport, Fault> {
        let url = base_url(&self.url)?;
        let secure = url.scheme() == "https";
        let pool = SingleNodeConnectionPool::new(url);
        let mut builder = TransportBuilder::new(pool).disable_proxy().enable_meta_header(false);
        if secure && let Some(roots) = roots(self.files.ca.as_deref(), pem.ca.as_deref())? {
            builder = builder.cert_validation(CertificateValidation::Full(roots));
        }
        if secure && let Some(own) = &pem.client {
            // Its error would not name the file.
            secrets::identity(self.client_cert(), own)?;
            builder = builder.auth(Credentials::Certificate(ClientCertificate::Pem(own.clone())));
        }
        builder.build().map_err(|e| {
            Fault::transport(format!("cannot make a client for {}: {}", self.url, Causes::of(&e).innermost()))
        })
    }
}

/// Certificates of a file.
fn unreadable(ca: Option<&str>) -> Fault {
    secrets::unusable(ca.unwrap_or_default(), "there is no PEM certificate in it")
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
    if let Some(pem) = pem {
        add(Certificate::from_pem(pem).map_err(|_| unreadable(ca))?);
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
    let unfit = |why: String| maybe(Fault::transport(format!("{what}: the answer (HTTP {status}) {why}")));
    // Its whole body will be in memory, so its length must be known before.
    match response.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<usize>().ok()) {
        Some(length) if length <= limit_answer => {}
        Some(length) => return Err(unfit(format!("has {length} bytes, more than {limit_answer}"))),
        None => return Err(unfit("does not say how long it is: is there a proxy in between?".to_owned())),
    }
    let body = response.bytes().await.map_err(|error| {
        maybe(unanswered(&what, tls, Reached::Head(status), error.is_timeout(), &Causes::of(&error)))
    })?;
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
