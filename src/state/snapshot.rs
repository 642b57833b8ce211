//! The shape of a state file: JSON that a person can read, and that cannot be mistaken for anything else.
//!
//! `{"magic":"backstop-state","schema":1,"generation":7,"crc32":"0a1b2c3d","body":{…}}` and a line feed. The checksum
//! covers every other byte of the file. The header is read strictly, byte for byte as it is written: what is nearly
//! right is wrong.

use super::disk::{Disk, STATE_BYTES_MAX};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

const HEAD: &str = r#"{"magic":"backstop-state","schema":"#;
const GENERATION: &str = r#","generation":"#;
const CRC: &str = r#","crc32":""#;
const BODY: &str = r#"","body":"#;
const TAIL: &str = "}\n";

/// What a state file turned out to be. Only `Good` carries a value, and only `Missing` may ever mean "fresh".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded<T> {
    /// There is no file, and no trace that there ever was one.
    Missing,
    /// Whole and understood.
    Good {
        /// How many times the state was written.
        generation: u64,
        /// The state.
        body: T,
    },
    /// Whole, and written by a later version.
    Newer {
        /// Its schema.
        schema: u32,
    },
    /// Anything else.
    Unreadable {
        /// What is wrong with it, for people.
        why: String,
    },
}

/// Why a state cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// It has no JSON form, does not read back from it, or is too large: a fault of this program.
    #[error("the state cannot be written as it is: {0}")]
    Unwritable(String),
    /// The disk said no. The file has the old or the new bytes, whole.
    #[error("the disk did not take the state")]
    Disk(#[source] io::Error),
}

/// The bytes of a state file. Errors: no JSON form, or more than [`STATE_BYTES_MAX`] bytes.
pub fn encode<T: Serialize>(schema: u32, generation: u64, body: &T) -> Result<Vec<u8>, SaveError> {
    encode_within(STATE_BYTES_MAX, schema, generation, body)
}

fn encode_within<T: Serialize>(most: u64, schema: u32, generation: u64, body: &T) -> Result<Vec<u8>, SaveError> {
    let body = serde_json::to_string(body).map_err(|e| SaveError::Unwritable(e.to_string()))?;
    let head = format!("{HEAD}{schema}{GENERATION}{generation}{CRC}");
    let tail = format!("{BODY}{body}{TAIL}");
    let bytes = format!("{head}{}{tail}", checksum(&head, &tail)).into_bytes();
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        let why = format!("{} bytes, at most {most} are written", bytes.len());
        return Err(SaveError::Unwritable(why));
    }
    Ok(bytes)
}

/// Reads the bytes of a state file whose newest known schema is `schema`. There is one schema so far, so an older one
/// cannot be.
pub fn decode<T: DeserializeOwned>(schema: u32, bytes: &[u8]) -> Loaded<T> {
    decode_within(STATE_BYTES_MAX, schema, bytes)
}

fn decode_within<T: DeserializeOwned>(most: u64, schema: u32, bytes: &[u8]) -> Loaded<T> {
    match envelope(most, bytes) {
        Err(why) => Loaded::Unreadable { why },
        Ok(found) if found.schema > schema => Loaded::Newer { schema: found.schema },
        Ok(found) if found.schema < schema => {
            Loaded::Unreadable { why: format!("schema {} is not known to this version", found.schema) }
        }
        Ok(found) => match serde_json::from_str(found.body) {
            Ok(body) => Loaded::Good { generation: found.generation, body },
            Err(e) => Loaded::Unreadable { why: format!("its body is not what this version writes: {e}") },
        },
    }
}

struct Envelope<'a> {
    schema: u32,
    generation: u64,
    body: &'a str,
}

fn envelope(most: u64, bytes: &[u8]) -> Result<Envelope<'_>, String> {
    if bytes.is_empty() {
        return Err("it is empty".to_owned());
    }
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > most {
        return Err(format!("it has more than {most} bytes"));
    }
    if bytes.iter().all(|b| *b == 0) {
        return Err("it is nothing but zero bytes".to_owned());
    }
    let text = std::str::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    let (found, head, sum, tail) =
        split(text).ok_or_else(|| "it does not have the form of a state file, or is cut off".to_owned())?;
    if checksum(head, tail) != sum {
        return Err("its checksum is wrong".to_owned());
    }
    Ok(found)
}

/// The envelope, and the text before, of, and after the checksum.
fn split(text: &str) -> Option<(Envelope<'_>, &str, &str, &str)> {
    let rest = text.strip_prefix(HEAD)?;
    let (schema, rest) = rest.split_once(GENERATION)?;
    let (generation, rest) = rest.split_once(CRC)?;
    let (sum, tail) = rest.split_at_checked(8)?;
    let body = tail.strip_prefix(BODY)?.strip_suffix(TAIL)?;
    let head = text.get(..text.len().checked_sub(rest.len())?)?;
    let found = Envelope { schema: canonical(schema)?, generation: canonical(generation)?, body };
    Some((found, head, sum, tail))
}

/// A number as this module writes it, and in no other spelling.
fn canonical<N: std::str::FromStr + ToString>(text: &str) -> Option<N> {
    let number: N = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn checksum(head: &str, tail: &str) -> String {
    let mut sum = crc32fast::Hasher::new();
    sum.update(head.as_bytes());
    sum.update(tail.as_bytes());
    format!("{:08x}", sum.finalize())
}

/// One state file on a disk.
#[derive(Debug)]
pub struct SnapshotFile<D> {
    disk: Arc<D>,
    name: String,
    schema: u32,
    most: u64,
}

impl<D: Disk> SnapshotFile<D> {
    /// The file `name`, written with this schema.
    pub fn new(disk: Arc<D>, name: &str, schema: u32) -> SnapshotFile<D> {
        SnapshotFile { disk, name: name.to_owned(), schema, most: STATE_BYTES_MAX }
    }

    /// The same, with so many bytes at most.
    #[must_use]
    pub fn within(mut self, most: u64) -> SnapshotFile<D> {
        self.most = most;
        self
    }

    fn previous(&self) -> String {
        format!("{}.prev", self.name)
    }

    /// What is there. A file that cannot be read is `Unreadable`; temp files and the previous copy are never promoted,
    /// but where one is found without the file itself, this was no fresh directory.
    pub fn load<T: DeserializeOwned>(&self) -> Loaded<T> {
        match self.disk.read(&self.name) {
            Ok(Some(bytes)) => decode_within(self.most, self.schema, &bytes),
            Err(e) => Loaded::Unreadable { why: format!("it cannot be read: {e}") },
            Ok(None) => match self.traces() {
                Ok(None) => Loaded::Missing,
                Ok(Some(trace)) => Loaded::Unreadable { why: format!("it is gone, but {trace} is still there") },
                Err(e) => Loaded::Unreadable { why: format!("the directory cannot be listed: {e}") },
            },
        }
    }

    /// A file that only exists where a state was once written.
    fn traces(&self) -> io::Result<Option<String>> {
        let previous = self.previous();
        let aside = format!("{}.quarantine-", self.name);
        let names = self.disk.list()?;
        Ok(names.into_iter().find(|name| *name == previous || name.starts_with(&aside)))
    }

    /// Writes the state. `Ok`: it is durable. The copy before it is kept for forensics where that costs nothing.
    pub fn save<T: Serialize + DeserializeOwned>(&self, generation: u64, body: &T) -> Result<(), SaveError> {
        let bytes = encode_within(self.most, self.schema, generation, body)?;
        // What could not be read again would be a quarantine at the next start: better not written at all.
        match decode_within::<T>(self.most, self.schema, &bytes) {
            Loaded::Good { generation: back, .. } if back == generation => {}
            Loaded::Unreadable { why } => return Err(SaveError::Unwritable(why)),
            Loaded::Good { .. } | Loaded::Missing | Loaded::Newer { .. } => {
                return Err(SaveError::Unwritable("it reads back as something else".to_owned()));
            }
        }
        self.disk.replace_keeping(&self.name, &bytes, &self.previous()).map_err(SaveError::Disk)
    }

    /// Moves a file that cannot be used out of the way; its new path. `Err`: it stays where it is, and must not be
    /// written over.
    pub fn set_aside(&self, reason: &str) -> io::Result<PathBuf> {
        self.disk.set_aside(&self.name, reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    type Body = BTreeMap<String, u64>;

    fn body() -> Body {
        BTreeMap::from([("stage".to_owned(), 4), ("ä\"b".to_owned(), 1)])
    }

    #[test]
    fn what_is_written_reads_back_and_is_plain_json() {
        let bytes = encode(1, 7, &body()).unwrap();
        assert_eq!(decode::<Body>(1, &bytes), Loaded::Good { generation: 7, body: body() });
        let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((json["magic"].as_str(), json["generation"].as_u64()), (Some("backstop-state"), Some(7)));
    }

    #[test]
    fn no_prefix_of_a_snapshot_is_a_snapshot() {
        let bytes = encode(1, 7, &body()).unwrap();
        for cut in 0..bytes.len() {
            assert!(matches!(decode::<Body>(1, &bytes[..cut]), Loaded::Unreadable { .. }), "cut at {cut}");
        }
        let mut longer = bytes.clone();
        longer.push(b'\n');
        assert!(matches!(decode::<Body>(1, &longer), Loaded::Unreadable { .. }));
    }

    #[test]
    fn no_single_changed_byte_goes_unseen() {
        let good = encode(1, 7, &body()).unwrap();
        for at in 0..good.len() {
            for flip in 1..=255_u8 {
                let mut bad = good.clone();
                bad[at] ^= flip;
                assert!(matches!(decode::<Body>(1, &bad), Loaded::Unreadable { .. }), "byte {at} xor {flip}");
            }
        }
    }

    #[test]
    fn blocks_of_zero_bytes_inside_are_seen() {
        let good = encode(1, 7, &body()).unwrap();
        for from in 0..good.len() {
            let mut bad = good.clone();
            bad[from..].fill(0);
            assert!(matches!(decode::<Body>(1, &bad), Loaded::Unreadable { .. }), "zero from {from}");
        }
    }

    #[test]
    fn a_newer_schema_is_told_from_rubbish_and_an_unknown_older_one_is_not_guessed_at() {
        assert_eq!(decode::<Body>(1, &encode(2, 7, &"whatever").unwrap()), Loaded::Newer { schema: 2 });
        assert!(matches!(decode::<Body>(2, &encode(1, 7, &body()).unwrap()), Loaded::Unreadable { .. }));
    }

    #[test]
    fn unusable_bytes_say_what_is_wrong_with_them() {
        let why = |bytes: &[u8]| {
            let Loaded::Unreadable { why } = decode::<Body>(1, bytes) else { panic!("it was taken") };
            why
        };
        assert_eq!(why(b""), "it is empty");
        assert_eq!(why(&[0; 4096]), "it is nothing but zero bytes");
        assert_eq!(why(&[0xff, 0xfe, 0x00]), "it is not UTF-8");
        assert!(why(b"{}").contains("form of a state file"));
        assert!(why(&vec![b'x'; 64 * 1024 + 1]).contains("more than"));
        assert!(why(&encode(1, 1, &"text").unwrap()).contains("its body"));
    }

    #[test]
    fn a_state_that_is_too_large_is_not_written() {
        assert!(matches!(encode(1, 1, &"x".repeat(64 * 1024)), Err(SaveError::Unwritable(_))));
    }
}
