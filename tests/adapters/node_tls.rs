//! The node check over TLS.

use crate::node::{check, good, impatient, settings};
use crate::support::faults::{Behaviour, Server, Shape, Then};
use backstop::core::error::Class;
use backstop::core::settings::CheckSettings;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::io::Write;
use std::sync::Arc;

pub(crate) struct Identity {
    pub(crate) config: Arc<ServerConfig>,
    pem: tempfile::NamedTempFile,
}

pub(crate) fn identity(name: &str, expired: bool, client_certificate: bool) -> Identity {
    let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
    if expired {
        params.not_before = rcgen::date_time_ymd(2019, 1, 1);
        params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    }
    let key = KeyPair::generate().expect("a key");
    let cert = params.self_signed(&key).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions");
    let builder = if client_certificate {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(cert.der().clone()).expect("a root");
        let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        builder.with_client_cert_verifier(verifier.build().expect("a verifier"))
    } else {
        builder.with_no_client_auth()
    };
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = builder.with_single_cert(vec![cert.der().clone()], key).expect("a server");
    let mut pem = tempfile::NamedTempFile::new().expect("a file");
    pem.write_all(cert.pem().as_bytes()).expect("written");
    Identity { config: Arc::new(config), pem }
}

fn serving(identity: &Identity, then: Then) -> Server {
    Server::start(Behaviour {
        tls: Some(Arc::clone(&identity.config)),
        ..Behaviour::answering(move |r| Shape { then, ..good(r) })
    })
}

fn trusting(server: &Server, identity: &Identity) -> CheckSettings {
    let file = identity.pem.path().to_str().expect("text");
    CheckSettings { ca_file: Some(file.into()), ..settings(&format!("https://{}", server.addr)) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_certificate_of_the_configured_roots_passes() {
    let id = identity("127.0.0.1", false, false);
    let server = serving(&id, Then::Keep);
    check(&trusting(&server, &id)).await.expect("a good node");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_is_not_right_never_passes() {
    let stranger = identity("127.0.0.1", false, false);
    for (name, id, roots_of_another, says) in [
        ("34 expired", identity("127.0.0.1", true, false), false, "xpired"),
        ("35 unknown CA", identity("127.0.0.1", false, false), true, "certificate"),
        ("36 wrong name", identity("elsewhere.example", false, false), false, "not valid for name"),
        ("38 client certificate required", identity("127.0.0.1", false, true), false, ""),
    ] {
        let server = serving(&id, Then::Keep);
        let settings = trusting(&server, if roots_of_another { &stranger } else { &id });
        let fault = check(&settings).await.expect_err(name);
        assert_eq!(fault.class, Class::Transport, "{name}: {fault}");
        assert!(fault.message.contains(says), "{name}: {fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_break_are_transport_within_the_deadline() {
    let alert = |code: u8| Shape::raw([0x15, 3, 3, 0, 2, 2, code], Then::Fin);
    for (name, shape) in [
        ("29 closed", Shape::raw("", Then::Fin)),
        ("30 reset", Shape::raw("", Then::Rst)),
        ("31 stalled", Shape::raw("", Then::Stall)),
        ("32 internal error", alert(80)),
        ("33 handshake failure", alert(40)),
        ("33 protocol version", alert(70)),
        ("37 a plain port", Shape::raw("HTTP/1.1 400 Bad Request\r\n\r\n", Then::Fin)),
    ] {
        let waits = shape.waits();
        let server = Server::start(Behaviour::on_accept(shape));
        let url = format!("https://{}", server.addr);
        let fault = check(&if waits { impatient(&url) } else { settings(&url) }).await.expect_err(name);
        assert_eq!(fault.class, Class::Transport, "{name}: {fault}");
        let mismatch = fault.message.contains("protocol/TLS mismatch?");
        assert_eq!(mismatch, name.starts_with("37"), "{name}: {fault}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plain_http_to_a_tls_port_says_so() {
    let id = identity("127.0.0.1", false, false);
    let server = serving(&id, Then::Keep);
    let fault = check(&settings(&server.url())).await.expect_err("the wrong protocol");
    assert_eq!(fault.class, Class::Transport);
    assert!(fault.message.contains("protocol/TLS mismatch?"), "{fault}");
}
