//! The ways in which a search node fails to answer, by name. A server serves each on a plain socket, byte by byte, since
//! no HTTP library would send most of them.
//!
//! Not here: what needs no server (DNS, a refused or filtered port), and what needs real certificates. The tests of the
//! adapters make those themselves, beside their table of all that was ever seen (`tests/adapters/rows.rs`).

mod script;

pub(super) use script::{no_master, not_recovered};

use super::http::{Answer, Response};
use std::fmt;

/// When a shape strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// Right after the connection is accepted, whatever comes.
    Accept,
    /// When the first bytes arrive: a TLS hello or a request.
    FirstBytes,
    /// When a request has been read.
    Request,
}

macro_rules! shapes {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// One way of failing (or of looking odd and being well: [`Shape::is_ready`]).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Shape { $($(#[$doc])* $variant,)* }

        impl Shape {
            /// All of them.
            pub const ALL: &'static [Shape] = &[$(Shape::$variant,)*];

            /// Its name in options and tests.
            pub const fn name(self) -> &'static str {
                match self { $(Shape::$variant => $name,)* }
            }
        }
    };
}

shapes! {
    /// Reset right after the accept.
    RstOnAccept = "rst-on-accept",
    /// Reset after the request.
    RstAfterRequest = "rst-after-request",
    /// Closed after the request, without a byte.
    FinBeforeHeaders = "fin-before-headers",
    /// Closed inside the head.
    FinMidHeader = "fin-mid-header",
    /// Reset inside the head.
    RstMidHeader = "rst-mid-header",
    /// The request is read and never answered.
    NeverAnswers = "never-answers",
    /// A complete head, and no body comes.
    BodyStalls = "body-stalls",
    /// Closed before the announced length.
    ShortBody = "short-body",
    /// Reset inside the body.
    RstInBody = "rst-in-body",
    /// A chunked body, closed before its end.
    ChunkedCut = "chunked-cut",
    /// A chunk whose size is no number.
    BadChunkSize = "bad-chunk-size",
    /// A body without length, closed in mid-JSON: no transport error at all.
    CloseDelimitedCut = "close-delimited-cut",
    /// The whole body without a length: its end is the close.
    CloseDelimited = "close-delimited",
    /// Announced as gzip, and none.
    GzipGarbage = "gzip-garbage",
    /// The beginning of a gzip stream.
    GzipTruncated = "gzip-truncated",
    /// An SSH server.
    SshBanner = "ssh-banner",
    /// A body without any head, as HTTP/0.9.
    NoHead = "no-head",
    /// A TLS alert to a plain request.
    TlsOnPlainPort = "tls-on-plain-port",
    /// Two different lengths.
    TwoContentLengths = "two-content-lengths",
    /// Status 1000.
    Status1000 = "status-1000",
    /// Several hundred header lines.
    ManyHeaders = "many-headers",
    /// A head of half a megabyte.
    HugeHead = "huge-head",
    /// `100 Continue`, then closed.
    ContinueThenFin = "continue-then-fin",
    /// Status 999.
    Status999 = "status-999",
    /// Closed in the TLS handshake.
    TlsHandshakeFin = "tls-handshake-fin",
    /// Reset in the TLS handshake.
    TlsHandshakeRst = "tls-handshake-rst",
    /// The TLS handshake never goes on.
    TlsHandshakeStall = "tls-handshake-stall",
    /// TLS alert `internal_error`.
    TlsAlertInternalError = "tls-alert-internal-error",
    /// TLS alert `handshake_failure`.
    TlsAlertHandshakeFailure = "tls-alert-handshake-failure",
    /// TLS alert `protocol_version`.
    TlsAlertProtocolVersion = "tls-alert-protocol-version",
    /// A plain HTTP answer to a TLS hello.
    PlainOnTlsPort = "plain-on-tls-port",
    /// An HTTP/2 settings frame.
    Http2Preface = "http2-preface",
    /// An HTTP/2 GOAWAY frame.
    Http2Goaway = "http2-goaway",
    /// An HTTP/2 GOAWAY frame, `ENHANCE_YOUR_CALM`.
    Http2EnhanceYourCalm = "http2-enhance-your-calm",
    /// An HTTP/2 `RST_STREAM` frame, `REFUSED_STREAM`.
    Http2RstStream = "http2-rst-stream",
    /// Redirected to itself.
    RedirectLoop = "redirect-loop",
    /// 301 to another host's page.
    Moved = "moved-301",
    /// 200 with a login page.
    Html200 = "html-200",
    /// 200 without a body.
    Empty200 = "empty-200",
    /// 204.
    Status204 = "status-204",
    /// 200 with the JSON of something else.
    OtherService = "other-service",
    /// 200 with JSON that is no object.
    JsonNull = "json-null",
    /// The right answer of another cluster.
    OtherClusterUuid = "other-cluster-uuid",
    /// The right answer of another node.
    OtherNodeName = "other-node-name",
    /// Joined nothing: uuid `_na_`, health 503.
    NotJoined = "not-joined",
    /// Without `X-elastic-product`: what a search node of another make does, and well.
    NoProductHeader = "no-product-header",
    /// 400 `media_type_header_exception`
    BadRequest = "status-400",
    /// 401 `security_exception`
    Unauthorized = "status-401",
    /// 403 `security_exception`
    Forbidden = "status-403",
    /// 403 `security_exception` of a licence that does not comply.
    LicenceForbidden = "status-403-licence",
    /// 403 HTML of a firewall.
    Firewall = "status-403-html",
    /// 403 `cluster_block_exception`
    ReadOnlyBlock = "status-403-cluster-block",
    /// 404 without a handler.
    NotFound = "status-404",
    /// 404 `index_not_found_exception`
    IndexNotFound = "status-404-index",
    /// 405
    MethodNotAllowed = "status-405",
    /// 406
    NotAcceptable = "status-406",
    /// 407
    ProxyAuthentication = "status-407",
    /// 408 with a full health body, `timed_out: true`.
    TimedOut408 = "status-408-timed-out",
    /// 408 of a proxy.
    RequestTimeout = "status-408",
    /// 409 `version_conflict_engine_exception`
    Conflict = "status-409",
    /// 410
    Gone = "status-410",
    /// 411
    LengthRequired = "status-411",
    /// 413
    TooLarge = "status-413",
    /// 414
    UriTooLong = "status-414",
    /// 415
    UnsupportedMediaType = "status-415",
    /// 421 `node_weighed_away`
    WeighedAway = "status-421",
    /// 424, decommissioned.
    Decommissioned = "status-424",
    /// 426
    UpgradeRequired = "status-426",
    /// 429 `circuit_breaking_exception` with `Retry-After`.
    CircuitBreaker = "status-429",
    /// 429 `es_rejected_execution_exception` without one.
    Rejected = "status-429-rejected",
    /// 429 `cluster_block_exception`, the disk is full.
    FloodStage = "status-429-flood-stage",
    /// 429 `process_cluster_event_timeout_exception`, as newer versions say it.
    ClusterEventTimeout429 = "status-429-cluster-event-timeout",
    /// 431
    HeadersTooLarge = "status-431",
    /// 500 `node_not_connected_exception`
    InternalError = "status-500",
    /// 500 without a body.
    Empty500 = "status-500-empty",
    /// 500 `null_pointer_exception`
    NullPointer = "status-500-null-pointer",
    /// 500 `transport_exception`, the transport is closed.
    TransportClosed = "status-500-transport-closed",
    /// 502 HTML of a proxy.
    BadGatewayHtml = "status-502-html",
    /// 502 `connect_transport_exception`
    BadGateway = "status-502",
    /// 502 without a body.
    Empty502 = "status-502-empty",
    /// 503 `master_not_discovered_exception`
    NoMaster = "status-503-no-master",
    /// 503 `cluster_manager_not_discovered_exception`
    NoClusterManager = "status-503-no-cluster-manager",
    /// 503 whose `error` is a bare string.
    BareString503 = "status-503-bare-string",
    /// 503 `cluster_block_exception`, state not recovered.
    NotRecovered = "status-503-not-recovered",
    /// 503 `cluster_block_exception`, no master.
    NoMasterBlock = "status-503-no-master-block",
    /// 503 `authentication_processing_error`
    AuthenticationProcessing = "status-503-authentication",
    /// 503, the licence is not there yet.
    LicenceMissing = "status-503-licence",
    /// 503 `unavailable_shards_exception`
    UnavailableShards = "status-503-unavailable-shards",
    /// 503 `no_shard_available_action_exception`
    NoShardAvailable = "status-503-no-shard",
    /// 503 `search_phase_execution_exception`, all shards failed.
    AllShardsFailed = "status-503-all-shards-failed",
    /// 503 `node_closed_exception`
    NodeClosed = "status-503-node-closed",
    /// 503 `process_cluster_event_timeout_exception`
    ClusterEventTimeout = "status-503-cluster-event-timeout",
    /// 503 without a body.
    Empty503 = "status-503-empty",
    /// 503 HTML of a load balancer.
    Html503 = "status-503-html",
    /// 504
    GatewayTimeout = "status-504",
    /// 520 of a CDN.
    Cdn520 = "status-520",
    /// 530 of a CDN.
    Cdn530 = "status-530",
    /// 200 health with `timed_out: true`.
    TimedOut200 = "timed-out-200",
    /// 200 with failed shards or nodes inside; the health call is right, so only a canary search or the node call shows it.
    FailuresInside = "failures-inside-200",
    /// 200 and red: a matter of the cluster, not of this node.
    Red = "status-red",
    /// 200 and yellow, likewise.
    Yellow = "status-yellow",
    /// JSON with bytes that are no UTF-8.
    BadUtf8 = "bad-utf8",
    /// JSON nested a hundred thousand deep.
    DeepJson = "deep-json",
    /// JSON with the right length, cut off.
    CutJson = "cut-json",
    /// A body of zero bytes in value.
    NulBody = "nul-body",
    /// A body without end.
    EndlessBody = "endless-body",
    /// Headers without end.
    EndlessHead = "endless-head",
    /// The right body, one byte in half a second.
    SlowDrip = "slow-drip",
}

impl Shape {
    /// By its name.
    pub fn parse(name: &str) -> Option<Shape> {
        Shape::ALL.iter().copied().find(|s| s.name() == name)
    }

    /// Is a node that answers so ready, for a check of identity and health? Only five are: a colour is the cluster's, the
    /// product header is not everybody's, a body may end with the connection, and failed shards show in a canary search
    /// alone.
    pub const fn is_ready(self) -> bool {
        matches!(
            self,
            Shape::Red | Shape::Yellow | Shape::NoProductHeader | Shape::CloseDelimited | Shape::FailuresInside
        )
    }

    /// Would a canary search notice it, and nothing else?
    pub const fn only_a_canary_sees(self) -> bool {
        matches!(self, Shape::FailuresInside)
    }

    /// When it strikes.
    #[expect(clippy::wildcard_enum_match_arm, reason = "nearly all of them wait for a request")]
    pub const fn moment(self) -> Moment {
        match self {
            Shape::RstOnAccept | Shape::SshBanner => Moment::Accept,
            Shape::TlsOnPlainPort
            | Shape::TlsHandshakeFin
            | Shape::TlsHandshakeRst
            | Shape::TlsHandshakeStall
            | Shape::TlsAlertInternalError
            | Shape::TlsAlertHandshakeFailure
            | Shape::TlsAlertProtocolVersion
            | Shape::PlainOnTlsPort
            | Shape::Http2Preface
            | Shape::Http2Goaway
            | Shape::Http2EnhanceYourCalm
            | Shape::Http2RstStream => Moment::FirstBytes,
            _ => Moment::Request,
        }
    }

    /// What goes out instead of the right answer to `path`.
    pub fn spoil(self, right: &Response, path: &str) -> Answer {
        script::spoil(self, right, path)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Shape;
    use std::collections::BTreeSet;

    #[test]
    fn every_shape_is_found_by_its_own_name_and_no_other() {
        let names: BTreeSet<_> = Shape::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(names.len(), Shape::ALL.len());
        for shape in Shape::ALL {
            assert_eq!(Shape::parse(shape.name()), Some(*shape));
        }
        assert_eq!(Shape::parse("no-such-shape"), None);
    }
}
