//! What jobs take for granted of a manager of units: the same for the one in memory, with which they are tested, and for
//! systemd itself on a booted host (`tests/hosts/run`).

use super::{NoStart, UnitState, Units, unit_name};
use crate::clock::{Clock as _, SystemClock};
use crate::dbus::Bus;
use crate::jobs::units::SystemdUnits;

/// A job that would take long, and one whose unit has no command.
const GOOD: &str = "contract-good";
const BAD: &str = "contract-bad";
/// An unmet condition.
const UNMET: &str = "contract-unmet";

async fn shown(units: &impl Units, unit: &str) -> UnitState {
    units.show(unit).await.unwrap().unwrap_or_default()
}

/// systemd answers before it has done it.
async fn rests(units: &impl Units, unit: &str) {
    let clock = SystemClock::new().unwrap();
    for _ in 0..2_000 {
        if units.show(unit).await.unwrap().is_none_or(|state| !state.busy()) {
            return;
        }
        clock.sleep_ms(5).await;
    }
    panic!("{unit} goes on: {:?}", units.show(unit).await);
}

/// `defined` has been done for each of the three.
pub(super) async fn holds(units: &impl Units) {
    let (good, bad, unmet) = (unit_name(GOOD), unit_name(BAD), unit_name(UNMET));
    let fresh = units.load(&good).await.unwrap();
    assert_eq!((fresh.load.as_str(), fresh.busy(), fresh.unmet), ("loaded", false, false), "{fresh:?}");
    assert!(units.busy().await.unwrap().is_empty());

    units.allowed(&good).await.unwrap();
    units.start(&good).await.unwrap();
    let first = shown(units, &good).await;
    assert!(first.busy(), "{first:?}");
    assert_eq!(first.invocation.len(), 32, "{first:?}");
    assert_eq!(units.busy().await.unwrap(), std::slice::from_ref(&good));
    // Who asks again while it runs is told yes, and it runs once.
    units.start(&good).await.unwrap();
    assert_eq!(shown(units, &good).await.invocation, first.invocation);

    units.stop(&good).await.unwrap();
    rests(units, &good).await;
    assert!(units.busy().await.unwrap().is_empty());
    // To end what does not run is no fault.
    units.stop(&good).await.unwrap();
    units.kill(&good).await.unwrap();

    units.start(&good).await.unwrap();
    let second = shown(units, &good).await;
    assert!(second.busy() && second.invocation != first.invocation, "{second:?}, before that {first:?}");
    units.kill(&good).await.unwrap();
    rests(units, &good).await;

    assert_ne!(units.load(&bad).await.unwrap().load, "loaded");
    let refused = units.start(&bad).await;
    assert!(matches!(&refused, Err(NoStart::Refused(why)) if !why.is_empty()), "{refused:?}");
    assert!(units.show(&bad).await.unwrap().is_none_or(|state| !state.busy()));

    units.start(&unmet).await.unwrap();
    rests(units, &unmet).await;
    // Nothing of it has run; systemd may have forgotten it by now.
    assert!(units.show(&unmet).await.unwrap().is_none_or(|state| state.unmet), "{:?}", units.show(&unmet).await);
}

#[test]
fn the_manager_in_memory_behaves_as_systemd_does() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let fake = super::tests::Fake::default();
    fake.has(
        &unit_name(BAD),
        UnitState { load: "bad-setting".into(), active: "inactive".into(), ..UnitState::default() },
    );
    fake.has(
        &unit_name(UNMET),
        UnitState { load: "loaded".into(), active: "inactive".into(), unmet: true, ..UnitState::default() },
    );
    runtime.block_on(holds(&fake));
}

#[test]
#[ignore = "as root on a booted host with the package (tests/hosts/run)"]
fn systemd_behaves_as_the_manager_in_memory_does() {
    let define = |instance: &str, text: &str| {
        let folder = format!("/run/systemd/system/{}.d", unit_name(instance));
        std::fs::create_dir_all(&folder).unwrap();
        let mut file = std::fs::File::create(format!("{folder}/job.conf")).unwrap();
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        folder
    };
    let folders = [
        define(GOOD, "[Service]\nExecStart=/bin/sleep 1000\n"),
        define(BAD, "[Service]\nEnvironment=A=B\n"),
        define(UNMET, "[Unit]\nConditionPathExists=/no/such/path\n[Service]\nExecStart=/bin/sleep 1000\n"),
    ];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let units = SystemdUnits::new(Bus::default());
        units.reload().await.unwrap();
        holds(&units).await;
        for folder in &folders {
            std::fs::remove_dir_all(folder).unwrap();
        }
        units.reload().await.unwrap();
    });
}
