//! Record and members in the cluster itself: one index of one shard with a replica, documents by id, and a compare-and-set by
//! `if_seq_no` and `if_primary_term`.
//!
//! A read by id is realtime and proves nothing; only an acknowledged write does. A write without a usable answer is never
//! sent again elsewhere: it is a fault, and whoever asked reads and decides. The record is never deleted by this program.

mod answers;
mod call;
mod endpoints;

use crate::core::error::{Class, Fault};
use crate::fleet::file::{DOCUMENT_BYTES_MAX, plain_instance};
use crate::ports::{CasFault, FleetStore, Lying, Version};
use ::elasticsearch::http::Method;
use answers::{Envelope, Got, Index, Position, member_id, record_id};
use call::{Call, Files, path};
use endpoints::Endpoints;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// More member documents than this are no fleet.
pub const MEMBERS_MAX: usize = 2_000;
/// Members in one answer.
const PAGE: usize = 100;
/// A document may have six times its size as JSON text.
const ONE_ANSWER_MAX: usize = 2 * 1024 * 1024;
/// A page of member documents.
const PAGE_ANSWER_MAX: usize = 64 * 1024 * 1024;
/// The server gives up after this; the deadline of the call is this side's own.
const SERVER_TIMEOUT: &str = "2s";

/// Where the fleet record is, and who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EsFleetSettings {
    /// Base URLs in the order in which they are asked; the own node last.
    pub endpoints: Vec<Arc<str>>,
    /// Name of the index.
    pub index: Arc<str>,
    /// Name of the fleet.
    pub fleet: Arc<str>,
    /// Deadline of one call, in ms; a whole operation takes three times as long at most.
    pub timeout_ms: u64,
    /// PEM file with further roots to trust.
    pub ca_file: Option<Arc<str>>,
    /// File with an API key.
    pub api_key_file: Option<Arc<str>>,
    /// File with `user:password`.
    pub basic_auth_file: Option<Arc<str>>,
    /// PEM file with a client certificate and its private key.
    pub client_cert_file: Option<Arc<str>>,
}

/// The port over an index. Clones share what they learn about their servers.
#[derive(Clone, Debug)]
pub struct EsFleet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    endpoints: Endpoints,
    index: Arc<str>,
    fleet: Arc<str>,
}

/// What the version of a document is made of.
#[derive(Debug, PartialEq, Eq)]
struct At {
    uuid: String,
    position: Position,
}

impl At {
    fn version(&self) -> Version {
        let Position { seq_no, primary_term } = self.position;
        Version(format!("{seq_no} {primary_term} {}", self.uuid).into_bytes().into())
    }

    fn of(version: &Version) -> Option<At> {
        let mut parts = std::str::from_utf8(&version.0).ok()?.splitn(3, ' ');
        let (seq_no, primary_term) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        Some(At { uuid: parts.next()?.to_owned(), position: Position { seq_no, primary_term } })
    }
}

impl EsFleet {
    /// Makes no call and reads no file.
    pub fn new(settings: EsFleetSettings) -> EsFleet {
        let files = Files {
            ca: settings.ca_file,
            api_key: settings.api_key_file,
            basic_auth: settings.basic_auth_file,
            client_cert: settings.client_cert_file,
        };
        let timeout = Duration::from_millis(settings.timeout_ms.max(1));
        let endpoints = Endpoints::new(&settings.endpoints, &files, timeout);
        EsFleet(Arc::new(Inner { endpoints, index: settings.index, fleet: settings.fleet }))
    }

    /// The whole of an operation, bounded. `late`: what one is that did not come to its end.
    async fn bounded<T>(
        &self,
        late: Class,
        work: impl Future<Output = Result<T, CasFault>> + Send,
    ) -> Result<T, CasFault> {
        let whole = self.0.endpoints.whole();
        tokio::time::timeout(whole, work).await.unwrap_or_else(|_| {
            let what = format!("the fleet record in the index {}: not done within {whole:?}", self.0.index);
            Err(CasFault::Fault(Fault::new(late, what)))
        })
    }

    async fn reading<T>(&self, work: impl Future<Output = Result<T, Fault>> + Send) -> Result<T, Fault> {
        fault(self.bounded(Class::Transport, async { work.await.map_err(CasFault::Fault) }).await)
    }
}

/// A conflict where none can be.
fn fault<T>(done: Result<T, CasFault>) -> Result<T, Fault> {
    done.map_err(|e| match e {
        CasFault::Fault(fault) => fault,
        CasFault::Conflict => {
            Fault::new(Class::Refused, "the index of the fleet record is gone: backstop init --fleet")
        }
    })
}

impl Inner {
    fn call(&self, method: Method, rest: &[&str], query: &[(&'static str, &str)], body: Option<&Value>) -> Call {
        let segments: Vec<&str> = std::iter::once(&*self.index).chain(rest.iter().copied()).collect();
        Call {
            method,
            path: path(&segments),
            query: query.iter().map(|(key, value)| (*key, (*value).to_owned())).collect(),
            body: body.map(|b| b.to_string().into_bytes()),
            answer_max: ONE_ANSWER_MAX,
            listing: false,
        }
    }

    fn envelope(&self, instance: Option<&str>, uuid: &str, bytes: Vec<u8>) -> Result<Value, Fault> {
        let refused = |why: String| Fault::new(Class::Refused, format!("not written: the document {why}"));
        if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > DOCUMENT_BYTES_MAX {
            return Err(refused(format!("has {} bytes, at most {DOCUMENT_BYTES_MAX} are stored", bytes.len())));
        }
        let envelope = Envelope {
            fleet: self.fleet.to_string(),
            kind: if instance.is_some() { "member" } else { "record" }.to_owned(),
            instance: instance.map(str::to_owned),
            index_uuid: uuid.to_owned(),
            document: String::from_utf8(bytes).map_err(|_| refused("is not text".to_owned()))?,
        };
        serde_json::to_value(envelope).map_err(|e| refused(e.to_string()))
    }

    /// The index as it is now, by the local state of whoever is asked: no master is needed for that.
    async fn index(&self) -> Result<Index, Fault> {
        let call = Call { listing: true, ..self.call(Method::Get, &[], &[("local", "true")], None) };
        let what = format!("GET {}", self.index);
        self.endpoints.read(&call, |answer| answers::index(&what, &self.index, answer)).await
    }

    async fn uuid(&self) -> Result<String, Fault> {
        match self.index().await? {
            Index::Ours { uuid } => Ok(uuid),
            Index::Missing => {
                let next = "if this fleet is new: backstop init --fleet; if not, find out who removed it first";
                Err(Fault::new(
                    Class::Refused,
                    format!("there is no index {} for the fleet record; {next}", self.index),
                ))
            }
        }
    }

    /// The record, whatever it is worth.
    async fn lies_there(&self) -> Result<Option<Lying>, Fault> {
        let id = record_id(&self.fleet);
        let call = self.call(Method::Get, &["_doc", &id], &[], None);
        let what = format!("GET {}/_doc/{id}", self.index);
        let got = self.endpoints.read(&call, |answer| answers::got(&what, &self.index, &id, answer)).await?;
        // The index is asked after the document: one that was replaced in between is seen.
        let (source, position) = match got {
            Got::NoIndex => return Ok(None),
            Got::NoDocument => return self.index().await.map(|_| None),
            Got::Document(source, position) => (source, position),
        };
        let uuid = self.uuid().await?;
        let (bytes, why) = self.unwrapped(&uuid, &source);
        Ok(Some(Lying { bytes, version: At { uuid, position }.version(), why }))
    }

    /// The record's bytes, and why they are not to be used, where they are not.
    fn unwrapped(&self, uuid: &str, source: &Value) -> (Vec<u8>, Option<Fault>) {
        let refused = |why: String| Some(Fault::new(Class::Refused, format!("held by unknown: {why}")));
        let next = "compare it with what the members say, then backstop init --fleet --reason";
        let envelope: Envelope = match serde_json::from_value(source.clone()) {
            Ok(envelope) => envelope,
            Err(e) => {
                let why = format!("the record of fleet {} is not in its envelope ({e}); {next}", self.fleet);
                return (source.to_string().into_bytes(), refused(why));
            }
        };
        let why = if envelope.kind != "record" || envelope.fleet != *self.fleet {
            refused(format!("what lies at the record of fleet {} says that it is something else; {next}", self.fleet))
        } else if envelope.index_uuid != uuid {
            refused(format!(
                "the index {} was made anew (uuid {uuid}, the record was written to {}): a restored copy? {next}",
                self.index, envelope.index_uuid
            ))
        } else {
            None
        };
        (envelope.document.into_bytes(), why)
    }

    /// Writes the record. `Err(Conflict)` also where it was this very write that came first.
    async fn put_record(&self, create: bool, at: Option<&At>, uuid: &str, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let id = record_id(&self.fleet);
        let body = self.envelope(None, uuid, bytes).map_err(CasFault::Fault)?;
        let (seq_no, term) = at
            .map_or_else(Default::default, |at| (at.position.seq_no.to_string(), at.position.primary_term.to_string()));
        let mut query = vec![("timeout", SERVER_TIMEOUT)];
        if at.is_some() {
            query.extend([("if_seq_no", seq_no.as_str()), ("if_primary_term", term.as_str())]);
        }
        let segment = if create { "_create" } else { "_doc" };
        let call = self.call(Method::Put, &[segment, &id], &query, Some(&body));
        let answer = self.endpoints.write(&call).await.map_err(CasFault::Fault)?;
        let what = format!("PUT {}/{segment}/{id}", self.index);
        let result: &[&str] = if create { &["created"] } else { &["updated"] };
        let position = answers::written(&what, &self.index, &id, result, &answer)?;
        Ok(At { uuid: uuid.to_owned(), position }.version())
    }

    /// Makes the index where it is missing. `hidden` came with Elasticsearch 7.7.
    async fn make_index(&self) -> Result<String, Fault> {
        if let Index::Ours { uuid } = self.index().await? {
            return Ok(uuid);
        }
        let query = [("timeout", SERVER_TIMEOUT), ("master_timeout", SERVER_TIMEOUT)];
        for hidden in [true, false] {
            let body = answers::index_body(hidden);
            let answer = self.endpoints.write(&self.call(Method::Put, &[], &query, Some(&body))).await?;
            if answers::index_made(&format!("PUT {}", self.index), hidden, &answer)? {
                break;
            }
        }
        self.uuid().await
    }

    async fn members(&self, only: Option<&[&str]>) -> Result<Vec<Vec<u8>>, Fault> {
        if self.index().await? == Index::Missing {
            return Ok(Vec::new());
        }
        let what = format!("the members of fleet {} in the index {}", self.fleet, self.index);
        let mut all: Vec<Vec<u8>> = Vec::new();
        let mut last: Option<String> = None;
        loop {
            let call = self.search(only, last.as_deref());
            let page = self.endpoints.read(&call, |answer| answers::members(&what, &self.fleet, answer)).await?;
            let more = page.len() >= PAGE;
            last = page.last().map(|(instance, _)| instance.clone());
            all.extend(page.into_iter().map(|(_, bytes)| bytes));
            if all.len() > MEMBERS_MAX {
                return Err(Fault::new(Class::Refused, format!("{what}: more than {MEMBERS_MAX}")));
            }
            if !more {
                return Ok(all);
            }
        }
    }

    fn search(&self, only: Option<&[&str]>, after: Option<&str>) -> Call {
        let mut filter = vec![json!({"term": {"fleet": &*self.fleet}}), json!({"term": {"kind": "member"}})];
        filter.extend(only.map(|instances| json!({"terms": {"instance": instances}})));
        let mut body = json!({
            "size": PAGE,
            "query": {"bool": {"filter": filter}},
            "sort": [{"instance": "asc"}],
        });
        if let (Some(after), Some(body)) = (after, body.as_object_mut()) {
            body.insert("search_after".to_owned(), json!([after]));
        }
        // Always the same copy of the shard: two of them may differ for a moment, and a beat must not go back.
        let query =
            [("allow_partial_search_results", "false"), ("timeout", SERVER_TIMEOUT), ("preference", "backstop")];
        Call {
            answer_max: PAGE_ANSWER_MAX,
            listing: true,
            ..self.call(Method::Post, &["_search"], &query, Some(&body))
        }
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), CasFault> {
        let id = member_id(&self.fleet, plain(instance).map_err(CasFault::Fault)?);
        // Asked first: a server would make an index by itself, and not the right one.
        let uuid = self.uuid().await.map_err(CasFault::Fault)?;
        let body = self.envelope(Some(instance), &uuid, bytes).map_err(CasFault::Fault)?;
        let call = self.call(Method::Put, &["_doc", &id], &[("timeout", SERVER_TIMEOUT)], Some(&body));
        let answer = self.endpoints.write(&call).await.map_err(CasFault::Fault)?;
        let what = format!("PUT {}/_doc/{id}", self.index);
        answers::written(&what, &self.index, &id, &["created", "updated"], &answer).map(|_| ())
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        let id = member_id(&self.fleet, plain(instance)?);
        let call = self.call(Method::Delete, &["_doc", &id], &[("timeout", SERVER_TIMEOUT)], None);
        let answer = self.endpoints.write(&call).await?;
        answers::deleted(&format!("DELETE {}/_doc/{id}", self.index), &self.index, &id, &answer)
    }
}

/// An instance id that names one document and nothing else.
fn plain(instance: &str) -> Result<&str, Fault> {
    if plain_instance(instance) {
        return Ok(instance);
    }
    let why = format!("{instance:?} is no instance id: only letters, digits, '.', '_' and '-' are allowed");
    Err(Fault::new(Class::Refused, why))
}

impl FleetStore for EsFleet {
    async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        match self.lies_there().await? {
            None => Ok(None),
            Some(Lying { why: Some(why), .. }) => Err(why),
            Some(Lying { bytes, version, why: None }) => Ok(Some((bytes, version))),
        }
    }

    async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let Some(at) = At::of(expected) else {
            return Err(CasFault::Fault(Fault::new(Class::Refused, "not a version that this store has given")));
        };
        let put = self.0.put_record(false, Some(&at), &at.uuid, bytes);
        self.bounded(Class::OutcomeUnknown, put).await
    }

    async fn lies_there(&self) -> Result<Option<Lying>, Fault> {
        self.reading(self.0.lies_there()).await
    }

    async fn create(&self, bytes: Vec<u8>) -> Result<Version, CasFault> {
        let work = async {
            let uuid = self.0.make_index().await.map_err(CasFault::Fault)?;
            self.0.put_record(true, None, &uuid, bytes).await
        };
        self.bounded(Class::OutcomeUnknown, work).await
    }

    async fn members(&self) -> Result<Vec<Vec<u8>>, Fault> {
        self.reading(self.0.members(None)).await
    }

    async fn some_members(&self, instances: &[&str]) -> Result<Vec<Vec<u8>>, Fault> {
        self.reading(self.0.members(Some(instances))).await
    }

    async fn put_member(&self, instance: &str, bytes: Vec<u8>) -> Result<(), Fault> {
        fault(self.bounded(Class::OutcomeUnknown, self.0.put_member(instance, bytes)).await)
    }

    async fn delete_member(&self, instance: &str) -> Result<(), Fault> {
        let work = async { self.0.delete_member(instance).await.map_err(CasFault::Fault) };
        fault(self.bounded(Class::OutcomeUnknown, work).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_the_index_and_the_place_of_the_write_in_it() {
        let at = At { uuid: "u 1".to_owned(), position: Position { seq_no: 7, primary_term: 3 } };
        assert_eq!(At::of(&at.version()), Some(at));
        for other in ["", "7", "7 3", "x 3 u", "-1 3 u"] {
            assert_eq!(At::of(&Version(other.as_bytes().into())), None, "{other:?}");
        }
    }

    #[tokio::test]
    async fn without_a_server_or_with_a_document_that_does_not_fit_nothing_is_asked() {
        let settings = EsFleetSettings {
            endpoints: Vec::new(),
            index: "backstop-fleet".into(),
            fleet: "f".into(),
            timeout_ms: 1_000,
            ca_file: None,
            api_key_file: None,
            basic_auth_file: None,
            client_cert_file: None,
        };
        let store = EsFleet::new(settings);
        assert_eq!(store.read().await.unwrap_err().class, Class::Transport);
        let expected = Version("1 1 u".as_bytes().into());
        let large = vec![b'x'; usize::try_from(DOCUMENT_BYTES_MAX).unwrap() + 1];
        for (bytes, version) in [(large, expected.clone()), (vec![0xff], expected), (vec![], Version([0][..].into()))] {
            let Err(CasFault::Fault(fault)) = store.compare_and_set(&version, bytes).await else { panic!("written") };
            assert_eq!(fault.class, Class::Refused, "{fault}");
        }
        for bad in ["", "..", "a/b", "a b"] {
            assert_eq!(store.delete_member(bad).await.unwrap_err().class, Class::Refused, "{bad:?}");
        }
    }
}
