//! From method, path and body to one of the things that can be asked. Everything is checked here, once: what gets past
//! is well-formed, bounded, and printable.

use super::protocol::{
    ApiError, ClearRequest, HoldRequest, InitRequest, ReasonRequest, RejoinRequest, RetireRequest, RunRequest,
    TestRequest, VERSION,
};
use super::roles::Verb;
use crate::core::exit::Exit;
use crate::core::guard::Guard;
use crate::core::job::{RUN_PREFIX, check_instance};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Longest reason, in characters: it goes into the fleet record and into pages.
pub const REASON_CHARS_MAX: usize = 500;
/// Longest name of a job, node, cycle, latch or request, in characters.
pub const NAME_CHARS_MAX: usize = 253;
/// Most arguments of a job.
pub const ARGV_MAX: usize = 256;
/// Longest command of a job, in bytes, all arguments together: it is stored with the cycle.
pub const ARGV_BYTES_MAX: usize = 16 * 1024;
/// Longest hold, in seconds.
pub const HOLD_S_MAX: u64 = 7 * 24 * 3_600;
/// Most lines of history at once.
pub const HISTORY_MAX: usize = 1_000;

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// `GET /v1/status`
    Status,
    /// `POST /v1/check`
    Check,
    /// `GET /v1/progress`
    Progress {
        /// Which cycle.
        cycle: Option<String>,
        /// Steps after this number.
        after: u64,
    },
    /// `GET /v1/explain`
    Explain {
        /// Which node; absent = this one.
        node: Option<String>,
    },
    /// `GET /v1/history`
    History {
        /// How many lines.
        limit: usize,
    },
    /// `POST /v1/run`
    Run(RunRequest),
    /// `POST /v1/rejoin`
    Rejoin(RejoinRequest),
    /// `POST /v1/hold`
    Hold(HoldRequest),
    /// `POST /v1/pause`
    Pause(ReasonRequest),
    /// `POST /v1/unpause`
    Unpause(ReasonRequest),
    /// `POST /v1/latch/clear`
    LatchClear(ClearRequest),
    /// `POST /v1/retire`
    Retire(RetireRequest),
    /// `POST /v1/init`
    Init(InitRequest),
    /// `POST /v1/alert/test`
    AlertTest(TestRequest),
    /// `POST /v1/reload`
    Reload,
}

/// Why a request cannot be carried out, with its HTTP status.
#[derive(Clone, Debug, PartialEq)]
pub struct Wrong {
    /// HTTP status.
    pub status: u16,
    /// What the caller is told.
    pub error: ApiError,
}

impl Wrong {
    /// A fault of the request.
    pub fn new(status: u16, error: impl Into<String>, expected: impl Into<String>, next: impl Into<String>) -> Wrong {
        let exit = Exit::Usage.code();
        let (error, expected, next) = (error.into(), expected.into(), next.into());
        let error = ApiError { v: VERSION, error, expected, next, also: Vec::new(), exit };
        Wrong { status, error }
    }

    /// With another exit code.
    #[must_use]
    pub fn exits(mut self, exit: Exit) -> Wrong {
        self.error.exit = exit.code();
        self
    }
}

/// What `POST` without parameters takes: nothing, or `{}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

/// Paths and their methods.
const ROUTES: [(&str, &str); 15] = [
    ("GET", "/v1/status"),
    ("GET", "/v1/progress"),
    ("GET", "/v1/explain"),
    ("GET", "/v1/history"),
    ("POST", "/v1/check"),
    ("POST", "/v1/run"),
    ("POST", "/v1/rejoin"),
    ("POST", "/v1/hold"),
    ("POST", "/v1/pause"),
    ("POST", "/v1/unpause"),
    ("POST", "/v1/latch/clear"),
    ("POST", "/v1/retire"),
    ("POST", "/v1/init"),
    ("POST", "/v1/alert/test"),
    ("POST", "/v1/reload"),
];

/// Is there such a route? Asked before the body is read.
///
/// # Errors
/// 404 and 405, with what there is.
pub fn route(method: &str, path: &str) -> Result<(), Wrong> {
    if ROUTES.contains(&(method, path)) {
        return Ok(());
    }
    let next = "backstop --help lists the verbs; the CLI speaks this protocol";
    if let Some((right, _)) = ROUTES.iter().find(|(_, p)| *p == path) {
        return Err(Wrong::new(405, format!("{path} does not take {method}"), format!("{right} {path}"), next));
    }
    let all = ROUTES.map(|(m, p)| format!("{m} {p}")).join(", ");
    Err(Wrong::new(404, format!("there is no {path}"), format!("one of: {all}"), next))
}

/// Reads and checks one request.
///
/// # Errors
/// What is wrong with it, naming the field.
pub fn parse(method: &str, path: &str, query: Option<&str>, body: &[u8]) -> Result<Ask, Wrong> {
    route(method, path)?;
    let ask = match path {
        "/v1/status" => Query::read(query)?.none_left(Ask::Status)?,
        "/v1/progress" => {
            let mut query = Query::read(query)?;
            let (cycle, after) = (query.take("cycle"), query.number("after")?.unwrap_or(0));
            query.none_left(Ask::Progress { cycle, after })?
        }
        "/v1/explain" => {
            let mut query = Query::read(query)?;
            let node = query.take("node");
            query.none_left(Ask::Explain { node })?
        }
        "/v1/history" => {
            let mut query = Query::read(query)?;
            let limit = usize::try_from(query.number("limit")?.unwrap_or(50)).unwrap_or(usize::MAX);
            query.none_left(Ask::History { limit: limit.min(HISTORY_MAX) })?
        }
        "/v1/check" => nothing(body).map(|()| Ask::Check)?,
        "/v1/reload" => nothing(body).map(|()| Ask::Reload)?,
        "/v1/run" => Ask::Run(json(body)?),
        "/v1/rejoin" => Ask::Rejoin(json(body)?),
        "/v1/hold" => Ask::Hold(json(body)?),
        "/v1/pause" => Ask::Pause(json(body)?),
        "/v1/unpause" => Ask::Unpause(json(body)?),
        "/v1/latch/clear" => Ask::LatchClear(json(body)?),
        "/v1/retire" => Ask::Retire(json(body)?),
        "/v1/alert/test" => Ask::AlertTest(json(body)?),
        _ => Ask::Init(json(body)?),
    };
    ask.check().map_err(|(error, expected)| Wrong::new(400, error, expected, "correct it and ask again"))?;
    Ok(ask)
}

fn nothing(body: &[u8]) -> Result<(), Wrong> {
    if body.is_empty() { Ok(()) } else { json::<Nothing>(body).map(|_| ()) }
}

fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, Wrong> {
    serde_json::from_slice(body).map_err(|e| {
        let next = "are CLI and agent of the same version? (backstop --version; backstop status)";
        Wrong::new(
            400,
            format!("the body is not what this verb takes: {e}"),
            "a JSON object of protocol version 1",
            next,
        )
    })
}

/// The parameters of a GET.
struct Query(Vec<(String, String)>);

impl Query {
    fn read(query: Option<&str>) -> Result<Query, Wrong> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (Some(name), Some(value)) = (decode(name), decode(value)) else {
                let error = format!("the parameter {pair} is not percent-encoded text");
                return Err(Wrong::new(400, error, "UTF-8, percent-encoded", "correct it and ask again"));
            };
            if pairs.iter().any(|(n, _)| *n == name) {
                return Err(Wrong::new(400, format!("{name} is given twice"), "each once", "correct it and ask again"));
            }
            pairs.push((name, value));
        }
        Ok(Query(pairs))
    }

    fn take(&mut self, name: &str) -> Option<String> {
        let at = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(at).1)
    }

    fn number(&mut self, name: &str) -> Result<Option<u64>, Wrong> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let wrong = |_| Wrong::new(400, format!("{name}={value} is not a number"), "a whole number", "correct it");
        value.parse().map(Some).map_err(wrong)
    }

    fn none_left(self, ask: Ask) -> Result<Ask, Wrong> {
        match self.0.first() {
            None => Ok(ask),
            Some((name, _)) => {
                Err(Wrong::new(400, format!("unknown parameter {name}"), "only known ones", "leave it out"))
            }
        }
    }
}

/// Percent-decoding; `None` = not valid.
fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(b) = rest.next() {
        if b == b'%' {
            let digit = |b: Option<u8>| b.and_then(|b| char::from(b).to_digit(16)).and_then(|d| u8::try_from(d).ok());
            let (high, low) = (digit(rest.next())?, digit(rest.next())?);
            bytes.push(high.checked_mul(16)?.checked_add(low)?);
        } else {
            bytes.push(if b == b'+' { b' ' } else { b });
        }
    }
    String::from_utf8(bytes).ok()
}

/// The other direction, for the client.
pub(super) fn encode(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'~');
    text.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

/// What is wrong, and what is expected.
pub type Trouble = (String, String);

impl Ask {
    /// Which verb it is: with its flags, since some need another role.
    pub fn verb(&self) -> Verb {
        match self {
            Ask::Status => Verb::Status,
            Ask::Check => Verb::Check,
            Ask::Progress { .. } => Verb::Progress,
            Ask::Explain { .. } => Verb::Explain,
            Ask::History { .. } => Verb::History,
            Ask::Run(r) if r.overrides.is_empty() => Verb::Run,
            Ask::Run(_) => Verb::RunOverride,
            Ask::Rejoin(r) if r.skip_check => Verb::RejoinSkipCheck,
            Ask::Rejoin(_) => Verb::Rejoin,
            Ask::Hold(_) => Verb::Hold,
            Ask::Pause(_) => Verb::Pause,
            Ask::Unpause(_) => Verb::Unpause,
            Ask::LatchClear(r) if r.unresolved => Verb::LatchClearUnresolved,
            Ask::LatchClear(_) => Verb::LatchClear,
            Ask::Retire(_) => Verb::Retire,
            Ask::Init(_) => Verb::Init,
            Ask::AlertTest(_) => Verb::AlertTest,
            Ask::Reload => Verb::Reload,
        }
    }

    /// What it is about, for the audit line. Arguments of a job are not told: they may hold secrets.
    pub fn about(&self) -> String {
        match self {
            Ask::Status | Ask::Check | Ask::Reload => String::new(),
            Ask::Progress { cycle, .. } => cycle.clone().unwrap_or_default(),
            Ask::Explain { node } => node.clone().unwrap_or_default(),
            Ask::History { limit } => limit.to_string(),
            Ask::Run(r) if r.overrides.is_empty() => format!("job {}", r.name),
            Ask::Run(r) => {
                let reason = r.reason.as_deref().unwrap_or_default();
                format!("job {}, overrides {}: {reason}", r.name, r.overrides.join(", "))
            }
            Ask::Rejoin(RejoinRequest { reason, .. })
            | Ask::Pause(ReasonRequest { reason })
            | Ask::Unpause(ReasonRequest { reason }) => reason.clone(),
            Ask::Hold(r) => format!("{} s{}: {}", r.for_s, if r.all { ", all" } else { "" }, r.reason),
            Ask::LatchClear(r) => format!("{}: {}", r.latch, r.reason),
            Ask::Retire(r) => format!("{}: {}", r.node, r.reason),
            Ask::Init(r) => r.reason.clone().unwrap_or_default(),
            Ask::AlertTest(r) => r.sink.clone().unwrap_or_default(),
        }
    }

    /// What the types alone do not say.
    ///
    /// # Errors
    /// What is wrong, and what is expected.
    pub fn check(&self) -> Result<(), Trouble> {
        match self {
            Ask::Status | Ask::Check | Ask::Reload | Ask::History { .. } => Ok(()),
            Ask::Progress { cycle, .. } => cycle.as_deref().map_or(Ok(()), |c| name("cycle", c)),
            Ask::Explain { node } => node.as_deref().map_or(Ok(()), |n| name("node", n)),
            Ask::Run(r) => run(r),
            Ask::Rejoin(RejoinRequest { reason: r, .. })
            | Ask::Pause(ReasonRequest { reason: r })
            | Ask::Unpause(ReasonRequest { reason: r }) => reason(r),
            Ask::Hold(r) if r.for_s == 0 || r.for_s > HOLD_S_MAX => {
                Err((format!("a hold of {} s", r.for_s), "a time between 1 second and 7 days".to_owned()))
            }
            Ask::Hold(r) => reason(&r.reason),
            Ask::LatchClear(r) if !r.latch.starts_with("L-") => Err((
                format!("{} is not the id of a latch", r.latch),
                "an id as `backstop latch list` shows it: L-…".to_owned(),
            )),
            Ask::LatchClear(r) => name("latch", &r.latch).and_then(|()| reason(&r.reason)),
            Ask::Retire(r) => name("node", &r.node).and_then(|()| reason(&r.reason)),
            Ask::Init(r) => r.reason.as_deref().map_or(Ok(()), reason),
            Ask::AlertTest(r) => r.sink.as_deref().map_or(Ok(()), |s| printable("sink", s, NAME_CHARS_MAX)),
        }
    }
}

fn run(r: &RunRequest) -> Result<(), Trouble> {
    name("name", &r.name)?;
    name("request_id", &r.request_id)?;
    let bytes = r.argv.iter().fold(0_usize, |sum, arg| sum.saturating_add(arg.len()));
    if let Some(unit) = &r.unit
        && let Err(expected) = check_instance(unit)
    {
        return Err((format!("{unit:?} is no job"), expected.to_owned()));
    }
    let own = r.unit.as_deref().is_some_and(|unit| unit.starts_with(RUN_PREFIX));
    if own && r.argv.is_empty() {
        let expected = format!("the name of a job: {RUN_PREFIX}… is the unit of one run, which has a command");
        return Err(("the unit of a run without its command".to_owned(), expected));
    }
    let named = r.unit.is_some() && !own;
    if named && !r.argv.is_empty() {
        return Err(("a job and a command".to_owned(), "either --job NAME or -- COMMAND".to_owned()));
    }
    if !named && r.argv.first().is_none_or(String::is_empty) {
        return Err(("no command to run".to_owned(), "a program and its arguments, after --".to_owned()));
    }
    if r.argv.len() > ARGV_MAX || bytes > ARGV_BYTES_MAX {
        let expected = format!("at most {ARGV_MAX} arguments and {ARGV_BYTES_MAX} bytes; put it into a script");
        return Err((format!("a command of {} arguments and {bytes} bytes", r.argv.len()), expected));
    }
    // Lines of a script are text. The rest grows sixfold in the state file, and hides in every log.
    let unprintable = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if r.argv.iter().any(|arg| arg.chars().any(unprintable)) {
        let expected = "text; line feeds and tabs are, anything else belongs into a script".to_owned();
        return Err(("an argument with control characters".to_owned(), expected));
    }
    for label in &r.overrides {
        match Guard::from_label(label) {
            None => {
                let known = Guard::ALL.into_iter().filter(|g| g.overridable()).map(Guard::label);
                let known = known.collect::<Vec<_>>().join(", ");
                return Err((format!("there is no guard {label}"), format!("one of: {known}")));
            }
            Some(guard) if !guard.overridable() => {
                return Err((format!("{label} cannot be overridden"), instead(guard)));
            }
            Some(_) => {}
        }
    }
    match &r.reason {
        None if !r.overrides.is_empty() => Err((
            "an override without a reason".to_owned(),
            "--reason TEXT: it is put on the record and paged".to_owned(),
        )),
        None => Ok(()),
        Some(text) => reason(text),
    }
}

/// What to do about a guard that nobody can override.
fn instead(guard: Guard) -> String {
    let verb = match guard {
        Guard::NoLatch => "backstop latch clear, once the failure is understood",
        Guard::NoPause => "backstop unpause",
        Guard::NoHold | Guard::SelfInService => "backstop rejoin",
        Guard::SlotFree => "backstop run --wait 4h, which waits for its turn",
        Guard::Mode => "mode = \"act\" in the config",
        Guard::Identity
        | Guard::StateDurable
        | Guard::FleetRecord
        | Guard::MinimumHealthy
        | Guard::PeersSettled
        | Guard::Rate
        | Guard::Budget
        | Guard::RegisterAllowed
        | Guard::ClusterReachable
        | Guard::DrainFits
        | Guard::PagerReachable
        | Guard::PackageManagerFree
        | Guard::Autoscaling => "a repair: backstop explain says what is wrong",
    };
    verb.to_owned()
}

fn printable(what: &str, text: &str, chars_max: usize) -> Result<(), Trouble> {
    let chars = text.chars().count();
    if text.trim().is_empty() {
        Err((format!("{what} is empty"), "some text".to_owned()))
    } else if chars > chars_max {
        Err((format!("{what} has {chars} characters"), format!("at most {chars_max}")))
    } else if text.chars().any(char::is_control) {
        Err((format!("{what} has control characters"), "one line of plain text".to_owned()))
    } else {
        Ok(())
    }
}

fn name(what: &str, text: &str) -> Result<(), Trouble> {
    printable(what, text, NAME_CHARS_MAX)
}

fn reason(text: &str) -> Result<(), Trouble> {
    printable("the reason", text, REASON_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(method: &str, target: &str, body: &str) -> (u16, String, String) {
        let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
        let wrong = parse(method, path, query, body.as_bytes()).expect_err(target);
        (wrong.status, wrong.error.error, wrong.error.expected)
    }

    #[test]
    fn what_is_wrong_is_named_together_with_what_is_expected() {
        const RUN: &str = r#""name":"j","argv":["true"],"reboot":"never","request_id":"r""#;
        let argv = |arg: &str| {
            let rest = r#""name":"j","reboot":"never","request_id":"r","overrides":[],"reason":null"#;
            format!(r#"{{{rest},"argv":["sh","-c","{arg}"]}}"#)
        };
        assert!(parse("POST", "/v1/run", None, argv("a\\n\\tb").as_bytes()).is_ok(), "a script of two lines");
        for (method, target, body, status, says) in [
            ("GET", "/v2/status", String::new(), 404, "no /v2/status"),
            ("POST", "/v1/status", String::new(), 405, "does not take POST"),
            ("GET", "/v1/status?x=1", String::new(), 400, "unknown parameter x"),
            ("GET", "/v1/progress?after=two", String::new(), 400, "after=two"),
            ("GET", "/v1/progress?after=1&after=2", String::new(), 400, "given twice"),
            ("GET", "/v1/explain?node=%zz", String::new(), 400, "percent-encoded"),
            ("GET", "/v1/explain?node=%1b%5b", String::new(), 400, "control characters"),
            ("POST", "/v1/check", r#"{"x":1}"#.into(), 400, "unknown field `x`"),
            ("POST", "/v1/pause", r#"{"reason":"r","why":1}"#.into(), 400, "unknown field `why`"),
            ("POST", "/v1/pause", r#"{"reason":"  "}"#.into(), 400, "reason is empty"),
            ("POST", "/v1/pause", "{".into(), 400, "EOF"),
            ("POST", "/v1/hold", r#"{"for_s":604801,"all":false,"reason":"r"}"#.into(), 400, "604801"),
            ("POST", "/v1/latch/clear", r#"{"latch":"c-1","reason":"r","unresolved":false}"#.into(), 400, "c-1"),
            ("POST", "/v1/run", format!(r#"{{{RUN},"overrides":["rate"],"reason":null}}"#), 400, "without a reason"),
            ("POST", "/v1/run", argv("a\\u0007b"), 400, "control characters"),
            ("POST", "/v1/run", argv("a\\u0000b"), 400, "control characters"),
            ("POST", "/v1/run", format!(r#"{{{RUN},"overrides":["no-latch"],"reason":"r"}}"#), 400, "cannot be"),
            ("POST", "/v1/run", format!(r#"{{{RUN},"overrides":["speed"],"reason":"r"}}"#), 400, "no guard speed"),
        ] {
            let (got, text, _) = error(method, target, &body);
            assert!(got == status && text.contains(says), "{method} {target} {body}: {got} {text}");
        }
        assert!(error("GET", "/v2/status", "").2.contains("GET /v1/status"));
        let latch = format!(r#"{{{RUN},"overrides":["no-latch"],"reason":"r"}}"#);
        assert!(error("POST", "/v1/run", &latch).2.contains("latch clear"));
    }

    #[test]
    fn flags_make_verbs_that_need_another_role() {
        let rejoin = |skip_check| Ask::Rejoin(RejoinRequest { reason: "r".to_owned(), skip_check }).verb();
        assert_eq!((rejoin(false), rejoin(true)), (Verb::Rejoin, Verb::RejoinSkipCheck));
        let clear = |unresolved| {
            Ask::LatchClear(ClearRequest { latch: "L-1".to_owned(), reason: "r".to_owned(), unresolved }).verb()
        };
        assert_eq!((clear(false), clear(true)), (Verb::LatchClear, Verb::LatchClearUnresolved));
    }

    #[test]
    fn any_text_survives_the_query_string() {
        for text in ["es-client-1", "a b&c=d%+/", "größe", ""] {
            assert_eq!(decode(&encode(text)).as_deref(), Some(text));
        }
    }
}
