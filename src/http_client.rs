//! The one way to an HTTP client: what holds for every call that is not to AWS.

use crate::causes::Causes;
use crate::core::error::Fault;
use reqwest::redirect::Policy;
use reqwest::{Client, ClientBuilder, Url};
use std::time::Duration;

/// A connection that takes longer than this does not come about.
const CONNECT_MAX: Duration = Duration::from_secs(3);

/// A client for the server of this URL: plain HTTP/1, every call bounded in time, no redirects, and no second try behind
/// the back of whoever counts them. The caller says what else it needs, above all which certificates count.
pub fn builder(url: &Url, timeout: Duration) -> ClientBuilder {
    install_tls();
    let builder = Client::builder()
        .user_agent(concat!("backstop/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(Policy::none())
        .retry(reqwest::retry::never())
        // Less than the whole call may take: of two deadlines at the same moment the wrong one would say how far it came.
        .connect_timeout(timeout.mul_f64(0.75).min(CONNECT_MAX))
        .timeout(timeout);
    if url.scheme() == "https" {
        return builder;
    }
    // Without TLS the system's certificates are not needed: they may be missing, and they are a megabyte to read.
    builder.tls_certs_only([])
}

/// Builds it. Blocking: for an https URL it reads the system's certificates.
///
/// # Errors
/// There are no certificates, or a given one is none.
pub fn build(builder: ClientBuilder) -> Result<Client, Fault> {
    builder.build().map_err(|e| {
        Fault::transport(format!("cannot make an HTTP client: {}", Causes::of(&e.without_url()).innermost()))
    })
}

/// Makes rustls's ring provider the process's default, which every HTTP client here needs; where one is installed already
/// it stays.
fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}
