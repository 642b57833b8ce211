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

/// Base64 with padding (RFC 4648).
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let word = group.iter().chain([0, 0].iter()).take(3).fold(0_u32, |w, b| (w << 8) | u32::from(*b));
        for (i, shift) in [18_u32, 12, 6, 0].into_iter().enumerate() {
            let index = usize::try_from((word >> shift) & 63).unwrap_or(0);
            let symbol = ALPHABET.get(index).copied().map_or('=', char::from);
            out.push(if i > group.len() { '=' } else { symbol });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_that_of_the_rfc() {
        for (plain, coded) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
