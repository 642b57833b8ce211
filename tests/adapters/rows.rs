//! Every way in which a search node was ever seen to fail (or to look odd and be well), each row with its number: what it
//! is, how it is served here, and what the node check must make of it. `walk` asks each of them through the real client;
//! a row that cannot be served says why.
//!
//! Nothing in here ends a wait: a class sets the pace and decides when a person hears.

use backstop::core::error::Class;
use backstop::rehearse::shapes::Shape;

/// One row.
pub(crate) struct Row {
    pub(crate) number: u8,
    pub(crate) says: &'static str,
    pub(crate) served: &'static [Served],
}

/// How a row is served, and what must come of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served {
    /// A shape, in the place of each answer of a check in turn.
    Fails(Shape, Class),
    /// A shape that looks odd and is well.
    Passes(Shape),
    /// Made by hand; `None`: it is well.
    Made(Made, Option<Class>),
    /// Proven by this test in this file.
    By(&'static str, &'static str),
    /// Nothing that a test can make; the reason.
    Not(&'static str),
}

/// What no answer on a socket makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    NoSuchName,
    NothingListens,
    NetworkUnreachable,
    AddressWithoutScope,
    NoFileDescriptors,
    SynDropped,
    SynDroppedLonger,
    KeptAliveClosed,
    KeptAliveReset,
    IdleClosed,
    CertificateExpired,
    CertificateNotYetValid,
    UnknownAuthority,
    WrongHost,
    ClientCertificate12,
    ClientCertificate13,
    PlainToATlsPort,
    CutWithoutGoodbye,
    WholeWithoutGoodbye,
    UntilCloseWithoutGoodbye,
    UntilCloseWithGoodbye,
    Http2Only,
    DeadProxy,
    BadUrl,
    SlowAndInTime,
}

use Class::{Auth, NotReady, Refused, Throttled, Transport};
use Served::{By, Fails, Made as M, Not, Passes};

macro_rules! rows {
    ($($number:literal $says:literal: $($served:expr),+;)*) => {
        &[$(Row { number: $number, says: $says, served: &[$($served),+] },)*]
    };
}

/// Rows of the catalogue. 0: seen in no catalogue, and served all the same.
pub(crate) const ROWS: &[Row] = rows! {
    1 "the name does not exist": M(Made::NoSuchName, Some(Transport));
    2 "the name server fails or is silent": Not("a process cannot be pointed at another name server without root, and the \
        machine's own must not be asked; the resolver reports it as it reports row 1, by text alone");
    3 "refused, as by every node that restarts": M(Made::NothingListens, Some(Transport));
    4 "no route to the host or its network": M(Made::NetworkUnreachable, Some(Transport)),
        Not("a host without a route needs a route to be changed: root. The network without one is the same call's error");
    5 "the address cannot be used, or no port is left": M(Made::AddressWithoutScope, Some(Transport));
    6 "no file descriptor is left in the agent": M(Made::NoFileDescriptors, Some(Transport));
    7 "no answer to the connection attempt": M(Made::SynDropped, Some(Transport));
    8 "the whole deadline passes while connecting": M(Made::SynDroppedLonger, Some(Transport));
    9 "reset, at once or after the request": Fails(Shape::RstOnAccept, Transport), Fails(Shape::RstAfterRequest, Transport);
    10 "closed before the head": Fails(Shape::FinBeforeHeaders, Transport);
    11 "closed inside the head": Fails(Shape::FinMidHeader, Transport);
    12 "reset inside the head": Fails(Shape::RstMidHeader, Transport);
    13 "the head never comes": Fails(Shape::NeverAnswers, Transport);
    14 "the body stalls": Fails(Shape::BodyStalls, Transport);
    15 "the body is shorter than announced": Fails(Shape::ShortBody, Transport);
    16 "the body ends in a reset": Fails(Shape::RstInBody, Transport);
    17 "a chunked body is cut": Fails(Shape::ChunkedCut, Transport);
    18 "a chunk's size is no number": Fails(Shape::BadChunkSize, Transport);
    19 "a body that ends with the connection is cut": Fails(Shape::CloseDelimitedCut, Transport);
    20 "gzip that is none, or not all of it": Fails(Shape::GzipGarbage, Transport), Fails(Shape::GzipTruncated, Transport);
    21 "not HTTP": Fails(Shape::SshBanner, Transport), Fails(Shape::NoHead, Transport);
    22 "TLS, to a plain client": Fails(Shape::TlsOnPlainPort, Transport), M(Made::PlainToATlsPort, Some(Transport));
    23 "two lengths; a status of four digits":
        Fails(Shape::TwoContentLengths, Transport), Fails(Shape::Status1000, Transport);
    24 "too much head":
        Fails(Shape::ManyHeaders, Transport), Fails(Shape::HugeHead, Transport), Fails(Shape::EndlessHead, Transport);
    25 "100 Continue, then closed": Fails(Shape::ContinueThenFin, Transport);
    26 "a status that nobody knows": Fails(Shape::Status999, Transport);
    27 "a kept connection is closed after the request": M(Made::KeptAliveClosed, Some(Transport)),
        M(Made::KeptAliveReset, Some(Transport));
    28 "a kept connection was closed while idle": M(Made::IdleClosed, None);
    29 "closed in the TLS handshake": Fails(Shape::TlsHandshakeFin, Transport);
    30 "reset in the TLS handshake": Fails(Shape::TlsHandshakeRst, Transport);
    31 "the TLS handshake stalls": Fails(Shape::TlsHandshakeStall, Transport);
    32 "TLS alert: internal error": Fails(Shape::TlsAlertInternalError, Transport);
    33 "TLS alert: handshake failure, protocol version":
        Fails(Shape::TlsAlertHandshakeFailure, Transport), Fails(Shape::TlsAlertProtocolVersion, Transport);
    34 "the certificate is not valid at this time":
        M(Made::CertificateExpired, Some(Transport)), M(Made::CertificateNotYetValid, Some(Transport));
    35 "nobody we know signed the certificate": M(Made::UnknownAuthority, Some(Transport));
    36 "the certificate is another host's": M(Made::WrongHost, Some(Transport));
    37 "TLS to a plain port": Fails(Shape::PlainOnTlsPort, Transport);
    38 "a client certificate is asked for":
        M(Made::ClientCertificate12, Some(Transport)), M(Made::ClientCertificate13, Some(Transport));
    39 "TLS ends inside a body without a goodbye": M(Made::CutWithoutGoodbye, Some(Transport)),
        M(Made::WholeWithoutGoodbye, None);
    40 "TLS ends without a goodbye, and its end is the body's": M(Made::UntilCloseWithoutGoodbye, Some(Transport)),
        M(Made::UntilCloseWithGoodbye, None);
    41 "HTTP/2: GOAWAY": Fails(Shape::Http2Goaway, Transport);
    42 "HTTP/2: calm down, stream reset, closed": Fails(Shape::Http2EnhanceYourCalm, Transport),
        Fails(Shape::Http2RstStream, Transport), Fails(Shape::Http2Preface, Transport);
    43 "one side speaks HTTP/2 and the other does not": M(Made::Http2Only, Some(Transport));
    44 "a proxy of the environment is dead: it is not asked": M(Made::DeadProxy, None);
    45 "redirected": Fails(Shape::RedirectLoop, Transport), Fails(Shape::Moved, Transport);
    46 "the URL is none": M(Made::BadUrl, Some(Refused));
    47 "200 with a page": Fails(Shape::Html200, Transport);
    48 "200 with nothing, 204": Fails(Shape::Empty200, Transport), Fails(Shape::Status204, Transport);
    49 "200 of another service, another cluster, another node": Fails(Shape::OtherService, Transport),
        Fails(Shape::OtherClusterUuid, Refused), Fails(Shape::OtherNodeName, Refused);
    50 "no product header: other makes send none": Passes(Shape::NoProductHeader);
    51 "400: our headers or parameters": Fails(Shape::BadRequest, Refused);
    52 "401": Fails(Shape::Unauthorized, Auth);
    53 "403: rights, licence, firewall":
        Fails(Shape::Forbidden, Auth), Fails(Shape::LicenceForbidden, Auth), Fails(Shape::Firewall, Auth);
    54 "403: read-only, which is no matter of credentials": Fails(Shape::ReadOnlyBlock, Refused);
    55 "404": Fails(Shape::NotFound, Refused), Fails(Shape::IndexNotFound, Refused);
    56 "other 4xx, in Elasticsearch's words or in a proxy's": Fails(Shape::MethodNotAllowed, Refused),
        Fails(Shape::NotAcceptable, Refused), Fails(Shape::Gone, Transport), Fails(Shape::LengthRequired, Transport),
        Fails(Shape::TooLarge, Transport), Fails(Shape::UriTooLong, Transport),
        Fails(Shape::UnsupportedMediaType, Transport), Fails(Shape::WeighedAway, Refused),
        Fails(Shape::UpgradeRequired, Transport), Fails(Shape::HeadersTooLarge, Transport);
    57 "408, of the node or of a proxy": Fails(Shape::TimedOut408, NotReady), Fails(Shape::RequestTimeout, NotReady);
    58 "409: somebody else's write came first": Fails(Shape::Conflict, Refused),
        By("tests/agent/claim.rs", "of_three_with_two_slots_two_go_and_the_floor_holds");
    59 "429: breaker, queue, full disk": Fails(Shape::CircuitBreaker, Throttled), Fails(Shape::Rejected, Throttled),
        Fails(Shape::FloodStage, Throttled);
    60 "500": Fails(Shape::InternalError, NotReady), Fails(Shape::NullPointer, NotReady),
        Fails(Shape::TransportClosed, NotReady), Fails(Shape::Empty500, Transport);
    61 "502 and 504": Fails(Shape::BadGatewayHtml, NotReady), Fails(Shape::Empty502, NotReady),
        Fails(Shape::BadGateway, NotReady), Fails(Shape::GatewayTimeout, NotReady);
    62 "503: no master": Fails(Shape::NoMaster, NotReady), Fails(Shape::NoClusterManager, NotReady);
    63 "503: the cluster blocks": Fails(Shape::NotRecovered, NotReady), Fails(Shape::NoMasterBlock, NotReady),
        Fails(Shape::BareString503, NotReady);
    64 "503: a part of the cluster is not there yet": Fails(Shape::AuthenticationProcessing, NotReady),
        Fails(Shape::LicenceMissing, NotReady), Fails(Shape::UnavailableShards, NotReady),
        Fails(Shape::NoShardAvailable, NotReady), Fails(Shape::AllShardsFailed, NotReady),
        Fails(Shape::NodeClosed, NotReady), Fails(Shape::ClusterEventTimeout, NotReady),
        Fails(Shape::ClusterEventTimeout429, Throttled);
    65 "5xx of a load balancer or a CDN": Fails(Shape::Empty503, NotReady), Fails(Shape::Html503, NotReady),
        Fails(Shape::Cdn520, Transport), Fails(Shape::Cdn530, Transport);
    66 "200 with failures inside": Fails(Shape::FailuresInside, NotReady), Fails(Shape::TimedOut200, NotReady);
    67 "red and yellow are the cluster's, not the node's": Passes(Shape::Red), Passes(Shape::Yellow);
    68 "right and too slow": Fails(Shape::SlowDrip, Transport), M(Made::SlowAndInTime, None);
    69 "our own task panics or is cancelled":
        By("tests/agent/way_back.rs", "the_node_check_may_fail_in_any_way");
    0 "joined nothing": Fails(Shape::NotJoined, NotReady);
    0 "a body that ends with the connection": Passes(Shape::CloseDelimited);
    0 "JSON that is no object": Fails(Shape::JsonNull, Transport);
    0 "JSON that is none": Fails(Shape::BadUtf8, Transport), Fails(Shape::DeepJson, Transport),
        Fails(Shape::CutJson, Transport), Fails(Shape::NulBody, Transport);
    0 "a body without end": Fails(Shape::EndlessBody, Transport);
    0 "407 of a proxy": Fails(Shape::ProxyAuthentication, Transport);
    0 "424, decommissioned": Fails(Shape::Decommissioned, Refused);
};

/// The last row of the catalogue.
const LAST: u8 = 69;

#[test]
fn every_row_of_the_catalogue_is_here_once_and_is_served() {
    let numbers: Vec<u8> = ROWS.iter().map(|r| r.number).filter(|n| *n != 0).collect();
    assert_eq!(numbers, (1..=LAST).collect::<Vec<_>>());
    for row in ROWS {
        let only_excuses = row.served.iter().all(|s| matches!(s, Not(reason) if !reason.is_empty()));
        assert!(!only_excuses || row.number == 2, "row {} ({}) is served", row.number, row.says);
    }
}

#[test]
fn every_shape_is_in_a_row_and_in_one_only() {
    for shape in Shape::ALL {
        let fits = |s: &&Served| matches!(s, Fails(x, _) | Passes(x) if x == shape);
        let rows = ROWS.iter().flat_map(|r| r.served).filter(fits).count();
        assert_eq!(rows, 1, "{shape}");
    }
}

#[test]
fn a_row_that_another_test_proves_names_one_that_exists() {
    for row in ROWS {
        for served in row.served {
            if let By(file, test) = served {
                let text = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
                let text = text.unwrap_or_else(|e| panic!("row {}: {file}: {e}", row.number));
                assert!(text.contains(test), "row {}: {file} has no {test}", row.number);
            }
        }
    }
}
