//! systemd's manager, as far as jobs need it: over the system bus, and as a trait, so that what is done with its answers is
//! tested without one.

use crate::core::error::{Class, Fault};
use crate::dbus::{Bus, Object, Trouble, read};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::future::Future;
use zbus::{OwnedObjectPath, OwnedVariant};

const SERVICE: &str = "org.freedesktop.systemd1";
const MANAGER: Object<'_> =
    Object { service: SERVICE, path: "/org/freedesktop/systemd1", interface: "org.freedesktop.systemd1.Manager" };
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";

/// A unit that systemd has loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitState {
    /// `LoadState`: `loaded`, or what is wrong with it.
    pub load: String,
    /// `LoadError`, for people.
    pub load_error: String,
    /// `ActiveState`
    pub active: String,
    /// `InvocationID` in hexadecimal digits; empty = none since it was loaded.
    pub invocation: String,
    /// Something is queued for it.
    pub queued: bool,
    /// A condition or assertion kept it from starting the last time.
    pub unmet: bool,
    /// `RemainAfterExit=`: it does not end with its command. Told by [`Units::load`] alone.
    pub remains: bool,
}

impl UnitState {
    /// Something of it runs, or is about to. A state that is not known may be that.
    pub fn busy(&self) -> bool {
        self.queued || !matches!(self.active.as_str(), "inactive" | "failed")
    }
}

/// Why a unit was not started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoStart {
    /// systemd has answered: it does not start it.
    Refused(String),
    /// It may have been started, or may still be.
    Doubt(Fault),
}

/// What a manager of units can be asked.
pub trait Units: Send + Sync + 'static {
    /// The unit as it is; `None` = not loaded: nothing of it runs, and nobody remembers.
    fn show(&self, unit: &str) -> impl Future<Output = Result<Option<UnitState>, Fault>> + Send;
    /// The same of a unit that need not be loaded yet, for its definition.
    fn load(&self, unit: &str) -> impl Future<Output = Result<UnitState, Fault>> + Send;
    /// This agent may do with it what a job needs. Asked by a call that changes nothing of a unit that did not fail.
    fn allowed(&self, unit: &str) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Queues its start.
    fn start(&self, unit: &str) -> impl Future<Output = Result<(), NoStart>> + Send;
    /// Queues its stop.
    fn stop(&self, unit: &str) -> impl Future<Output = Result<(), Fault>> + Send;
    /// SIGKILL to every process of its cgroup.
    fn kill(&self, unit: &str) -> impl Future<Output = Result<(), Fault>> + Send;
    /// Names of those that are not at rest.
    fn busy(&self) -> impl Future<Output = Result<Vec<String>, Fault>> + Send;
}

/// systemd on the system bus.
#[derive(Clone, Debug, Default)]
pub struct SystemdUnits {
    bus: Bus,
}

impl SystemdUnits {
    /// On this connection.
    pub fn new(bus: Bus) -> SystemdUnits {
        SystemdUnits { bus }
    }

    async fn properties(&self, path: &OwnedObjectPath) -> Result<UnitState, Trouble> {
        let object = Object { service: SERVICE, path: path.as_str(), interface: "org.freedesktop.DBus.Properties" };
        let answer = self.bus.call(object, "GetAll", &("org.freedesktop.systemd1.Unit",)).await?;
        state(read(&answer)?)
    }

    /// Has systemd read its units again.
    ///
    /// # Errors
    /// It is not allowed, or there is no answer.
    pub async fn reload(&self) -> Result<(), Trouble> {
        self.bus.call(MANAGER, "Reload", &()).await.map(|_| ())
    }
}

/// From the properties of a unit. Each of them has always been there.
fn state(mut all: HashMap<String, OwnedVariant>) -> Result<UnitState, Trouble> {
    fn get<T: TryFrom<OwnedVariant>>(all: &mut HashMap<String, OwnedVariant>, name: &str) -> Result<T, Trouble> {
        let value = all.remove(name).and_then(|value| T::try_from(value).ok());
        value.ok_or_else(|| Trouble::Unanswered(format!("systemd does not tell {name} as expected")))
    }
    let invocation: Vec<u8> = get(&mut all, "InvocationID")?;
    let (job, _): (u32, OwnedObjectPath) = get(&mut all, "Job")?;
    let (_, load_error): (String, String) = get(&mut all, "LoadError")?;
    // Each is also true of a unit that was never tried.
    let tried = get::<u64>(&mut all, "ConditionTimestampMonotonic")? != 0;
    let met = get::<bool>(&mut all, "ConditionResult")? && get::<bool>(&mut all, "AssertResult")?;
    Ok(UnitState {
        load: get(&mut all, "LoadState")?,
        load_error,
        active: get(&mut all, "ActiveState")?,
        invocation: hex(&invocation),
        queued: job != 0,
        unmet: tried && !met,
        remains: false,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// What came of asking for a start.
fn no_start(trouble: &Trouble) -> NoStart {
    // Nobody was there to ask; systemd has not been told.
    let unheard = ["org.freedesktop.DBus.Error.NoServer", "org.freedesktop.DBus.Error.ServiceUnknown"];
    match trouble {
        Trouble::Said { .. } if unheard.iter().any(|name| trouble.is(name)) => NoStart::Doubt(trouble.fault("systemd")),
        Trouble::Said { .. } if trouble.denied() => {
            NoStart::Refused(format!("the agent may not start it: {trouble}; is backstop.rules among polkit's rules?"))
        }
        Trouble::Said { .. } => NoStart::Refused(trouble.to_string()),
        Trouble::Unanswered(_) => NoStart::Doubt(trouble.write_fault("starting the job's unit")),
    }
}

impl Units for SystemdUnits {
    async fn show(&self, unit: &str) -> Result<Option<UnitState>, Fault> {
        let what = "asking systemd about the job's unit";
        let path: OwnedObjectPath = match self.bus.call(MANAGER, "GetUnit", &(unit,)).await {
            Ok(answer) => read(&answer).map_err(|t| t.fault(what))?,
            Err(trouble) if trouble.is(NO_SUCH_UNIT) => return Ok(None),
            Err(trouble) => return Err(trouble.fault(what)),
        };
        match self.properties(&path).await {
            Ok(state) => Ok(Some(state)),
            // Forgotten between the two questions.
            Err(trouble) if trouble.is(NO_SUCH_UNIT) || trouble.is("org.freedesktop.DBus.Error.UnknownObject") => {
                Ok(None)
            }
            Err(trouble) => Err(trouble.fault(what)),
        }
    }

    async fn load(&self, unit: &str) -> Result<UnitState, Fault> {
        let what = "asking systemd about the job's unit";
        let answer = self.bus.call(MANAGER, "LoadUnit", &(unit,)).await.map_err(|t| t.fault(what))?;
        let path: OwnedObjectPath = read(&answer).map_err(|t| t.fault(what))?;
        let state = self.properties(&path).await.map_err(|t| t.fault(what))?;
        let object = Object { service: SERVICE, path: path.as_str(), interface: "org.freedesktop.DBus.Properties" };
        let answer = self.bus.call(object, "Get", &("org.freedesktop.systemd1.Service", "RemainAfterExit")).await;
        let value: OwnedVariant = answer.and_then(|answer| read(&answer)).map_err(|t| t.fault(what))?;
        Ok(UnitState { remains: bool::try_from(value).unwrap_or(false), ..state })
    }

    async fn allowed(&self, unit: &str) -> Result<(), Fault> {
        let what = "asking systemd whether it lets the agent start the job's unit";
        let answer = self.bus.call(MANAGER, "LoadUnit", &(unit,)).await.map_err(|t| t.fault(what))?;
        let path: OwnedObjectPath = read(&answer).map_err(|t| t.fault(what))?;
        // By its path, at which systemd loads it again where it has been forgotten since.
        let object = Object { service: SERVICE, path: path.as_str(), interface: "org.freedesktop.systemd1.Unit" };
        match self.bus.call(object, "ResetFailed", &()).await {
            Ok(_) => Ok(()),
            Err(trouble) if trouble.denied() => Err(Fault::new(
                Class::Auth,
                format!(
                    "the agent may not start {unit}: {trouble}; is backstop.rules among polkit's rules, and polkit 121 or newer?"
                ),
            )),
            Err(trouble) => Err(trouble.fault(what)),
        }
    }

    async fn start(&self, unit: &str) -> Result<(), NoStart> {
        // "fail": whatever somebody else has queued for it stays.
        self.bus.call(MANAGER, "StartUnit", &(unit, "fail")).await.map(|_| ()).map_err(|trouble| no_start(&trouble))
    }

    async fn stop(&self, unit: &str) -> Result<(), Fault> {
        match self.bus.call(MANAGER, "StopUnit", &(unit, "replace")).await {
            Ok(_) => Ok(()),
            Err(trouble) if trouble.is(NO_SUCH_UNIT) => Ok(()),
            Err(trouble) => Err(trouble.write_fault("stopping the job's unit")),
        }
    }

    async fn kill(&self, unit: &str) -> Result<(), Fault> {
        match self.bus.call(MANAGER, "KillUnit", &(unit, "all", 9_i32)).await {
            Ok(_) => Ok(()),
            Err(trouble) if trouble.is(NO_SUCH_UNIT) => Ok(()),
            Err(trouble) => Err(trouble.write_fault("killing the job's unit")),
        }
    }

    async fn busy(&self) -> Result<Vec<String>, Fault> {
        type Row = (String, String, String, String, String, String, OwnedObjectPath, u32, String, OwnedObjectPath);
        let what = "asking systemd for running jobs";
        let states: &[&str] = &["activating", "active", "reloading", "deactivating"];
        let patterns: &[&str] = &["backstop-job@*.service"];
        let answer =
            self.bus.call(MANAGER, "ListUnitsByPatterns", &(states, patterns)).await.map_err(|t| t.fault(what))?;
        let rows: Vec<Row> = read(&answer).map_err(|t| t.fault(what))?;
        Ok(rows.into_iter().map(|row| row.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zbus::{ObjectPath, Variant};

    fn owned<'v>(value: impl Into<Variant<'v>>) -> OwnedVariant {
        value.into().try_to_owned().unwrap()
    }

    fn told(job: u32, condition: (u64, bool)) -> HashMap<String, OwnedVariant> {
        let path = ObjectPath::try_from("/").unwrap();
        [
            ("LoadState", owned("loaded")),
            ("LoadError", owned(("", ""))),
            ("ActiveState", owned("activating")),
            ("InvocationID", owned(vec![0x0a_u8, 0xff])),
            ("Job", owned((job, path))),
            ("ConditionTimestampMonotonic", owned(condition.0)),
            ("ConditionResult", owned(condition.1)),
            ("AssertResult", owned(true)),
            ("SomethingNew", owned(1_u8)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    #[test]
    fn the_properties_of_a_unit_are_its_state() {
        let state_of = |job, condition| state(told(job, condition)).unwrap();
        let running = state_of(0, (7, true));
        assert_eq!((running.invocation.as_str(), running.busy(), running.unmet), ("0aff", true, false));
        assert!(state_of(3, (7, true)).queued);
        assert!(state_of(0, (7, false)).unmet);
        assert!(!state_of(0, (0, false)).unmet, "never tried");
    }

    #[test]
    fn a_property_that_is_missing_or_of_another_kind_is_no_answer() {
        for name in ["LoadState", "ActiveState", "InvocationID", "Job", "ConditionResult", "AssertResult", "LoadError"]
        {
            let mut all = told(0, (7, true));
            all.remove(name);
            assert!(matches!(state(all), Err(Trouble::Unanswered(_))), "{name}");
            let mut all = told(0, (7, true));
            all.insert(name.to_owned(), owned(1.5_f64));
            assert!(matches!(state(all), Err(Trouble::Unanswered(_))), "{name}");
        }
    }

    #[test]
    fn only_an_answer_of_systemd_itself_says_that_a_unit_was_not_started() {
        let said = |name: &str| Trouble::Said { name: name.to_owned(), text: "text".to_owned() };
        for name in [
            NO_SUCH_UNIT,
            "org.freedesktop.systemd1.LoadFailed",
            "org.freedesktop.systemd1.BadUnitSetting",
            "org.freedesktop.systemd1.UnitMasked",
            "org.freedesktop.DBus.Error.AccessDenied",
            "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
        ] {
            assert!(matches!(no_start(&said(name)), NoStart::Refused(_)), "{name}");
        }
        for name in ["org.freedesktop.DBus.Error.NoServer", "org.freedesktop.DBus.Error.ServiceUnknown"] {
            assert!(matches!(no_start(&said(name)), NoStart::Doubt(f) if f.class == Class::Transport), "{name}");
        }
        let unanswered = no_start(&Trouble::Unanswered("no answer".to_owned()));
        assert!(matches!(unanswered, NoStart::Doubt(f) if f.class == Class::OutcomeUnknown));
    }

    #[test]
    fn a_state_that_is_not_known_may_be_one_that_runs() {
        for (active, busy) in [
            ("inactive", false),
            ("failed", false),
            ("active", true),
            ("activating", true),
            ("deactivating", true),
            ("reloading", true),
            ("maintenance", true),
            ("a-later-word", true),
        ] {
            assert_eq!(UnitState { active: active.into(), ..UnitState::default() }.busy(), busy, "{active}");
        }
    }
}
