//! What the fleet's handles promise to other tests.

use super::{BOUND, PROGRAM};
use backstop::core::job::RebootPolicy;
use backstop::rehearse::elbv2::GroupSpec;
use backstop::rehearse::fleet::{Fleet, FleetOptions, patch_request};
use backstop::rehearse::pace;

#[tokio::test(flavor = "multi_thread")]
async fn a_cycle_through_two_groups_with_a_reboot_brings_the_node_back() {
    let mut options = FleetOptions::new(PROGRAM);
    options.groups.push(GroupSpec::new("es-internal"));
    options.groups.iter_mut().for_each(|g| g.deregistration_delay_s = 30);
    let mut fleet = Fleet::start(options).await.unwrap();
    let traffic = fleet.start_traffic(50, 1_000);
    let machine = fleet.machine(0).unwrap().clone();
    let boot = machine.boot_id();
    let request = patch_request("patch", &["sh", "-c", "echo patched"], RebootPolicy::Always);
    let outcome = machine.run_to_end(&request, BOUND).await.unwrap();
    assert_eq!(outcome.exit, 0, "{}\n{}", outcome.message, machine.agent_log());
    assert_eq!((machine.reboots(), machine.agent_starts()), (1, 2));
    assert_ne!(machine.boot_id(), boot);
    assert!(fleet.serves(&machine));
    assert_eq!(traffic.totals().failures, []);
    assert_eq!(fleet.receiver().received(), []);
    let record = fleet.record().unwrap();
    assert!(record.slots.is_empty() && record.latches.is_empty(), "{record:?}");
    let durable = machine.durable().unwrap();
    assert_eq!((durable.stage(), durable.last.map(|e| e.exit.code())), (None, Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_fleet_is_left_when_it_goes_in_the_middle_of_a_job() {
    let mut options = FleetOptions::new(PROGRAM);
    options.groups.iter_mut().for_each(|g| g.deregistration_delay_s = 5);
    let fleet = Fleet::start(options).await.unwrap();
    let machine = fleet.machine(0).unwrap().clone();
    let pid_file = machine.dir().join("job.pid");
    let command = format!("echo $$ > {}; exec sleep 600", pid_file.display());
    machine.run(&patch_request("patch", &["sh", "-c", &command], RebootPolicy::Never)).await.unwrap();
    let job = || std::fs::read_to_string(&pid_file).ok().and_then(|t| t.trim().parse::<u32>().ok());
    assert!(pace::until(BOUND, || job().is_some()).await, "{}", machine.agent_log());
    let mut pids: Vec<u32> = fleet.machines().iter().flat_map(|m| [m.agent_pid(), m.node_pid()]).flatten().collect();
    assert_eq!(pids.len(), 6);
    pids.extend(job());
    let dir = fleet.dir().to_owned();
    drop(machine);
    drop(fleet);
    assert!(pace::until(BOUND, || pids.iter().all(|pid| !super::orphans::runs(*pid))).await, "{pids:?}");
    assert!(!dir.exists());
}
