//! Why a call failed, read out of an error's source chain by facts that survive a library upgrade.
//!
//! No adapter asks "which type is this error?": client libraries rename and re-nest their types in patch releases. What
//! stays is which [`std::io::ErrorKind`]s are somewhere inside, and the text of the innermost cause, for people.

use std::error::Error;
use std::io;

/// A chain longer than this is cut: a broken `source()` must not loop for ever.
const DEPTH_MAX: usize = 32;

/// The longest piece of foreign text in a message.
const TEXT_MAX_CHARS: usize = 200;

/// Calls `visit` with the error and each cause inside it, outermost first.
///
/// `io::Error::source()` skips its own payload, so that a plain walk never meets what rustls or the connector put into
/// it; hence `get_ref()` first.
pub(crate) fn walk(error: &(dyn Error + 'static), visit: &mut dyn FnMut(&(dyn Error + 'static))) {
    let mut next = Some(error);
    for _ in 0..DEPTH_MAX {
        let Some(error) = next else { return };
        visit(error);
        let payload = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match payload {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
}

/// What the chain of one error says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Causes {
    /// Text of every link, outermost first. For hints only.
    pub(crate) texts: Vec<String>,
    /// Kinds of every `io::Error` in it.
    pub(crate) kinds: Vec<io::ErrorKind>,
}

impl Causes {
    /// Reads a chain.
    pub(crate) fn of(error: &(dyn Error + 'static)) -> Causes {
        let mut causes = Causes::default();
        walk(error, &mut |link| {
            causes.texts.push(tidy(&link.to_string()));
            if let Some(io) = link.downcast_ref::<io::Error>() {
                causes.kinds.push(io.kind());
            }
        });
        causes
    }

    /// The innermost cause that has a text.
    pub(crate) fn innermost(&self) -> &str {
        self.texts.iter().rev().find(|t| !t.is_empty()).map_or("no cause given", String::as_str)
    }

    /// Nothing listened: the connection was refused, so that the request provably never left.
    pub(crate) fn refused(&self) -> bool {
        self.kinds.contains(&io::ErrorKind::ConnectionRefused)
    }

    /// There was a connection, and the other side ended it.
    pub(crate) fn closed(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
        self.kinds.iter().any(|k| matches!(k, ConnectionReset | ConnectionAborted | BrokenPipe | NotConnected))
    }

    /// Some link's text contains `word` (lower case).
    pub(crate) fn mentions(&self, word: &str) -> bool {
        self.texts.iter().any(|t| t.to_ascii_lowercase().contains(word))
    }
}

/// Foreign text for a message: first line, no control characters, bounded. Servers put request dumps (with session
/// tokens in them) on the further lines.
pub(crate) fn tidy(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut out: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_MAX_CHARS).collect();
    if line.chars().nth(TEXT_MAX_CHARS).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt;

    #[derive(Debug)]
    struct Looping;
    impl fmt::Display for Looping {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("again")
        }
    }
    impl Error for Looping {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(self)
        }
    }

    #[test]
    fn the_payload_of_an_io_error_is_found_though_source_skips_it() {
        let inner = io::Error::from_raw_os_error(104);
        let outer = io::Error::other(inner);
        let causes = Causes::of(&outer);
        assert!(causes.kinds.contains(&io::ErrorKind::ConnectionReset), "{causes:?}");
        assert!(causes.innermost().contains("os error 104"), "{causes:?}");
    }

    #[test]
    fn a_chain_that_loops_ends() {
        assert_eq!(Causes::of(&Looping).texts.len(), DEPTH_MAX);
    }

    #[test]
    fn foreign_text_is_one_bounded_line_without_control_characters() {
        let text = format!("first\u{1b}[31m{}\nx-amz-security-token: secret", "é".repeat(500));
        let t = tidy(&text);
        assert!(t.starts_with("first [31m") && t.ends_with('…') && t.chars().count() == TEXT_MAX_CHARS + 1);
        assert!(!t.contains("secret"));
    }
}
