//! Certificates, and a TLS front for a plain server.

use backstop::rehearse::http::{Server, Service};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncWriteExt, copy, split};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

/// When a certificate is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Valid {
    Now,
    NoLonger,
    NotYet,
}

/// What a server shows and asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The name in the certificate.
    pub(crate) name: &'static str,
    pub(crate) valid: Valid,
    /// The client must show one, too.
    pub(crate) mutual: bool,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
    /// Speaks HTTP/2 and nothing else.
    pub(crate) http2_only: bool,
}

impl Terms {
    /// Nothing wrong with it.
    pub(crate) const GOOD: Terms = Terms {
        name: "127.0.0.1",
        valid: Valid::Now,
        mutual: false,
        versions: rustls::ALL_VERSIONS,
        http2_only: false,
    };
}

/// A certificate that signs itself, and its key.
pub(crate) struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
    pem: tempfile::NamedTempFile,
}

impl Identity {
    pub(crate) fn new(terms: &Terms) -> Identity {
        let mut params = CertificateParams::new(vec![terms.name.to_owned()]).expect("a name");
        let (from, to) = match terms.valid {
            Valid::Now => (2020, 4000),
            Valid::NoLonger => (2019, 2020),
            Valid::NotYet => (3990, 4000),
        };
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let cert = params.self_signed(&key).expect("a certificate");
        let mut pem = tempfile::NamedTempFile::new().expect("a file");
        pem.write_all(cert.pem().as_bytes()).expect("written");
        Identity { certificate: cert.der().clone(), key, pem }
    }

    /// A file with the certificate, to be trusted.
    pub(crate) fn pem(&self) -> &str {
        self.pem.path().to_str().expect("text")
    }

    /// A file with the certificate and its private key, to be shown by a client.
    pub(crate) fn with_key(&self) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let certificate = std::fs::read(self.pem.path()).expect("the certificate");
        file.write_all(&certificate).expect("written");
        file.write_all(self.key.serialize_pem().as_bytes()).expect("written");
        file
    }

    fn config(&self, terms: &Terms) -> ServerConfig {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(terms.versions)
            .expect("versions");
        let builder = if terms.mutual {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(self.certificate.clone()).expect("a root");
            let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
        } else {
            builder.with_no_client_auth()
        };
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let mut config = builder.with_single_cert(vec![self.certificate.clone()], key).expect("a server");
        if terms.http2_only {
            config.alpn_protocols = vec![b"h2".to_vec()];
        }
        config
    }
}

/// TLS on a port of its own, and a plain server behind it. Ends with its value.
pub(crate) struct Front {
    server: Server,
    pub(crate) identity: Identity,
}

#[derive(Clone)]
struct Terminator {
    acceptor: TlsAcceptor,
    plain: SocketAddr,
    says_goodbye: bool,
}

impl Front {
    /// `says_goodbye`: a connection ends with `close_notify`, and not just so.
    pub(crate) async fn start(terms: &Terms, plain: SocketAddr, says_goodbye: bool) -> Front {
        let identity = Identity::new(terms);
        let acceptor = TlsAcceptor::from(Arc::new(identity.config(terms)));
        let terminator = Terminator { acceptor, plain, says_goodbye };
        let server = Server::start(SocketAddr::from(([127, 0, 0, 1], 0)), terminator).await.expect("a loopback port");
        Front { server, identity }
    }

    /// `https://127.0.0.1:port`
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.server.address())
    }

    /// The same port, asked without TLS.
    pub(crate) fn plain_url(&self) -> String {
        format!("http://{}", self.server.address())
    }
}

impl Service for Terminator {
    async fn serve(&self, stream: TcpStream, _: watch::Receiver<bool>) {
        // What is wrong with a handshake rustls tells the client by itself.
        let Ok(tls) = self.acceptor.accept(stream).await else { return };
        let mut plain = TcpStream::connect(self.plain).await.expect("the server behind");
        let (mut from_client, mut to_client) = split(tls);
        let (mut from_server, mut to_server) = plain.split();
        tokio::select! {
            _ = copy(&mut from_client, &mut to_server) => {}
            _ = copy(&mut from_server, &mut to_client) => {}
        }
        to_client.flush().await.ok();
        if self.says_goodbye {
            to_client.shutdown().await.ok();
        }
    }
}
