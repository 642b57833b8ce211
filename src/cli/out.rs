//! The only way to a terminal or pipe.

use serde::Serialize;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

/// stdout and stderr. A reader that went away is no failure: the rest is dropped, and the exit code still tells.
pub struct Out {
    stdout: Box<dyn Write + Send>,
    stderr: Box<dyn Write + Send>,
    terminal: bool,
    closed: bool,
    failed: Option<io::Error>,
}

/// What other programs said must not steer a terminal.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

impl Out {
    /// Those of this process.
    pub fn process() -> Out {
        let terminal = io::stdout().is_terminal();
        Out { terminal, ..Out::to(io::stdout(), io::stderr()) }
    }

    /// Any two writers; no terminal.
    pub fn to(out: impl Write + Send + 'static, err: impl Write + Send + 'static) -> Out {
        Out { stdout: Box::new(out), stderr: Box::new(err), terminal: false, closed: false, failed: None }
    }

    /// Lines on stdout.
    pub fn line(&mut self, text: impl Display) {
        let text = plain(&text.to_string());
        let written = writeln!(self.stdout, "{text}").and_then(|()| self.stdout.flush());
        self.note(written);
    }

    /// Lines on stderr.
    pub fn complain(&mut self, text: impl Display) {
        // Nobody is left to be told that this failed.
        let _ = writeln!(self.stderr, "{}", plain(&text.to_string())).and_then(|()| self.stderr.flush());
    }

    /// One JSON object on stdout.
    pub fn json<T: Serialize>(&mut self, value: &T) {
        let written = serde_json::to_string_pretty(value)
            .map_err(io::Error::from)
            .and_then(|text| writeln!(self.stdout, "{text}").and_then(|()| self.stdout.flush()));
        self.note(written);
    }

    /// What this program itself has made for another one to read, as it is.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        let written = self.stdout.write_all(bytes).and_then(|()| self.stdout.flush());
        self.note(written);
    }

    /// Starts a fresh screen, on a terminal.
    pub(super) fn clear(&mut self) {
        if self.terminal {
            let written = write!(self.stdout, "\x1b[H\x1b[2J");
            self.note(written);
        }
    }

    /// stdout is a terminal.
    pub(super) const fn terminal(&self) -> bool {
        self.terminal
    }

    /// The reader of stdout went away.
    pub fn closed(&self) -> bool {
        self.closed
    }

    /// The first failure to write to stdout, other than a reader that went away: a full disk, mostly.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    fn note(&mut self, written: io::Result<()>) {
        match written {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(e) => {
                self.failed.get_or_insert(e);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Pipe(Arc<Mutex<Vec<u8>>>, Option<io::ErrorKind>);

    impl Write for Pipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.1 {
                Some(kind) => Err(kind.into()),
                None => self.0.lock().unwrap().write(bytes),
            }
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_a_server_said_cannot_steer_the_terminal() {
        let pipe = Pipe::default();
        Out::to(pipe.clone(), io::sink()).line("a\x1b[2Jb\nc");
        assert_eq!(pipe.0.lock().unwrap().as_slice(), b"a [2Jb\nc\n");
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure_and_a_full_disk_is() {
        let mut out = Out::to(Pipe(Arc::default(), Some(io::ErrorKind::BrokenPipe)), io::sink());
        out.line("x");
        assert!(out.closed() && out.take_failure().is_none());
        let mut out = Out::to(Pipe(Arc::default(), Some(io::ErrorKind::StorageFull)), io::sink());
        out.json(&1);
        assert!(!out.closed() && out.take_failure().is_some());
    }
}
