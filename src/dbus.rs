//! The system bus: one connection, made when it is first needed and made again after it was lost. Every call has a deadline,
//! and nothing here tries twice.

use crate::core::error::{Class, Fault};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use zbus::zvariant::{DynamicDeserialize, DynamicType};
use zbus::{Connection, DBusError, Message};

/// Connecting takes at most this long.
const CONNECT: Duration = Duration::from_secs(5);
/// One call takes at most this long. polkit is asked in it.
const CALL: Duration = Duration::from_secs(10);

/// Whom to call.
#[derive(Clone, Copy, Debug)]
pub struct Object<'a> {
    /// The service's name.
    pub service: &'a str,
    /// The object.
    pub path: &'a str,
    /// The interface of the method.
    pub interface: &'a str,
}

/// Why there is no good answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The other side has answered with an error: it has not done it.
    Said {
        /// Its name, such as `org.freedesktop.DBus.Error.AccessDenied`.
        name: String,
        /// For people.
        text: String,
    },
    /// No answer: what was asked may have been done, or may still be.
    Unanswered(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Said { name, text } => write!(f, "{text} ({name})"),
            Trouble::Unanswered(why) => f.write_str(why),
        }
    }
}

/// Errors of the bus itself, in the name of a service that has not answered.
const UNANSWERED: [&str; 4] = [
    "org.freedesktop.DBus.Error.NoReply",
    "org.freedesktop.DBus.Error.Timeout",
    "org.freedesktop.DBus.Error.TimedOut",
    "org.freedesktop.DBus.Error.Disconnected",
];

/// polkit, or the policy of the bus, says no: waiting changes nothing.
const DENIED: [&str; 3] = [
    "org.freedesktop.DBus.Error.AccessDenied",
    "org.freedesktop.DBus.Error.AuthFailed",
    "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
];

impl Trouble {
    /// From the name and the text of an error reply.
    fn said(name: &str, text: &str) -> Trouble {
        if UNANSWERED.contains(&name) {
            return Trouble::Unanswered(format!("{text} ({name})"));
        }
        Trouble::Said { name: name.to_owned(), text: text.to_owned() }
    }

    /// The other side refuses for want of a right.
    pub fn denied(&self) -> bool {
        matches!(self, Trouble::Said { name, .. } if DENIED.contains(&name.as_str()))
    }

    /// The error has this name.
    pub fn is(&self, wanted: &str) -> bool {
        matches!(self, Trouble::Said { name, .. } if name == wanted)
    }

    /// As a fault of a read.
    pub fn fault(&self, what: &str) -> Fault {
        let class = if self.denied() { Class::Refused } else { Class::Transport };
        Fault::new(class, format!("{what}: {self}"))
    }

    /// As a fault of a call that changes something: unanswered, it may have.
    pub fn write_fault(&self, what: &str) -> Fault {
        match self {
            Trouble::Said { .. } => self.fault(what),
            Trouble::Unanswered(_) => Fault::new(Class::OutcomeUnknown, format!("{what}: {self}")),
        }
    }
}

/// The system bus. Clones share the connection.
#[derive(Clone, Debug, Default)]
pub struct Bus {
    connection: Arc<Mutex<Option<Connection>>>,
}

impl Bus {
    /// Calls a method, and gives its answer for [`read`].
    pub async fn call<B>(&self, object: Object<'_>, method: &str, body: &B) -> Result<Message, Trouble>
    where
        B: serde::Serialize + DynamicType,
    {
        let connection = self.connection().await?;
        let (service, path, interface) = (object.service, object.path, object.interface);
        let called = connection.call_method(Some(service), path, Some(interface), method, body);
        let answer = match tokio::time::timeout(CALL, called).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(e)) => Err(trouble(&e)),
            Err(_) => {
                Err(Trouble::Unanswered(format!("{service} has not answered {method} within {} s", CALL.as_secs())))
            }
        };
        if matches!(answer, Err(Trouble::Unanswered(_))) {
            // It may be this connection: the next call makes one of its own.
            *self.connection.lock().await = None;
        }
        answer
    }

    async fn connection(&self) -> Result<Connection, Trouble> {
        let mut held = self.connection.lock().await;
        if let Some(connection) = held.as_ref() {
            return Ok(connection.clone());
        }
        // Nothing was asked yet, so nothing can have been done; as a fault it is `transport` or, of a write, doubted once.
        let connection = match tokio::time::timeout(CONNECT, Connection::system()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(e)) => {
                let name = "org.freedesktop.DBus.Error.NoServer".to_owned();
                return Err(Trouble::Said { name, text: format!("the system bus cannot be reached: {e}") });
            }
            Err(_) => {
                let name = "org.freedesktop.DBus.Error.NoServer".to_owned();
                return Err(Trouble::Said { name, text: "the system bus does not answer".to_owned() });
            }
        };
        *held = Some(connection.clone());
        Ok(connection)
    }
}

/// The answer's content.
pub fn read<T: for<'d> DynamicDeserialize<'d>>(answer: &Message) -> Result<T, Trouble> {
    answer.body().deserialize().map_err(|e| Trouble::Unanswered(format!("an answer of another form: {e}")))
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a library's enum that grows; what is not an answer is none")]
fn trouble(e: &zbus::Error) -> Trouble {
    match e {
        zbus::Error::MethodError(name, text, _) => Trouble::said(name.as_str(), text.as_deref().unwrap_or_default()),
        zbus::Error::FDO(e) if !matches!(**e, zbus::fdo::Error::ZBus(_)) => {
            Trouble::said(e.name().as_str(), e.description().unwrap_or_default())
        }
        e => Trouble::Unanswered(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_an_answer_unless_the_bus_itself_gave_it() {
        let cases = [
            ("org.freedesktop.DBus.Error.AccessDenied", Class::Refused, Class::Refused),
            ("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", Class::Refused, Class::Refused),
            ("org.freedesktop.systemd1.NoSuchUnit", Class::Transport, Class::Transport),
            ("org.freedesktop.DBus.Error.ServiceUnknown", Class::Transport, Class::Transport),
            ("com.example.NeverHeardOf", Class::Transport, Class::Transport),
            ("org.freedesktop.DBus.Error.NoReply", Class::Transport, Class::OutcomeUnknown),
            ("org.freedesktop.DBus.Error.Disconnected", Class::Transport, Class::OutcomeUnknown),
        ];
        for (name, read, write) in cases {
            let trouble = Trouble::said(name, "text");
            assert_eq!(trouble.fault("asking").class, read, "{name}");
            assert_eq!(trouble.write_fault("starting").class, write, "{name}");
            assert!(trouble.fault("asking").to_string().contains(name), "{name}");
        }
    }

    #[test]
    fn an_error_of_the_library_is_no_answer() {
        let io = zbus::Error::InputOutput(Arc::new(std::io::Error::from(std::io::ErrorKind::BrokenPipe)));
        assert!(matches!(trouble(&io), Trouble::Unanswered(_)));
        let denied = zbus::Error::FDO(Box::new(zbus::fdo::Error::AccessDenied("no".into())));
        assert!(trouble(&denied).denied());
    }
}
