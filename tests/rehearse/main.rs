//! Whole fleets of real processes.

use backstop::core::job::RebootPolicy;
use backstop::rehearse::fleet::{Fleet, FleetOptions, patch_request};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_backstop");

#[tokio::test(flavor = "multi_thread")]
async fn one_cycle_with_a_reboot_takes_the_node_out_and_brings_it_back() {
    let mut fleet = Fleet::start(FleetOptions::new(PROGRAM)).await.unwrap();
    let traffic = fleet.start_traffic(50, 1_000);
    let machine = fleet.machine(0).unwrap().clone();
    let request = patch_request("patch", &["sh", "-c", "echo patched"], RebootPolicy::Always);
    let outcome = machine.run_to_end(&request, Duration::from_secs(60)).await;
    eprintln!("{outcome:?}");
    if std::env::var_os("SHOW").is_some() {
        eprintln!("{}", machine.agent_log());
    }
    let outcome = outcome.unwrap();
    assert_eq!(outcome.exit, 0, "{}", outcome.message);
    assert_eq!(machine.reboots(), 1);
    assert!(fleet.serves(&machine));
    assert_eq!(traffic.totals().failures, []);
    assert_eq!(fleet.receiver().received(), []);
    let record = fleet.record().unwrap();
    assert!(record.slots.is_empty() && record.latches.is_empty(), "{record:?}");
}
