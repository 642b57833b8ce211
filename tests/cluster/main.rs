//! The fleet record in a search cluster: over a server in memory, with every fault on the wire; and over real ones, which
//! `.ci/run` builds and names in `BACKSTOP_ENGINE` (tests that need them are ignored where nobody did).
#![allow(
    dead_code,
    unreachable_pub,
    clippy::pedantic,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::wildcard_enum_match_arm,
    reason = "what fails here fails the test; of what is shared with the agent's tests a part is used"
)]

mod contract;
mod dead;
#[path = "../agent/fakes.rs"]
mod fakes;
mod faults;
mod lost;
mod lost_fleet;
mod master;
#[path = "../agent/meeting.rs"]
mod meeting;
mod nodes;
mod outage;
#[path = "../agent/race.rs"]
mod race;
mod real;
mod rehearsed;
#[path = "../agent/running.rs"]
mod running;
#[path = "../support/mod.rs"]
mod support;
mod world;

/// The agent's tests have it here.
mod scene {
    pub(crate) use crate::support::BOUND;
}

use backstop::fleet::elasticsearch::{EsFleet, EsFleetSettings};
use std::sync::Arc;

/// The index of these tests.
const INDEX: &str = "backstop-fleet";
/// For servers that answer: a busy machine must not turn one failure into another.
const PATIENT_MS: u64 = 20_000;
/// For servers that never come to an end.
const IMPATIENT_MS: u64 = 300;

fn settings(endpoints: &[Arc<str>]) -> EsFleetSettings {
    EsFleetSettings {
        endpoints: endpoints.to_vec(),
        index: INDEX.into(),
        fleet: "test".into(),
        timeout_ms: PATIENT_MS,
        ca_file: None,
        api_key_file: None,
        basic_auth_file: None,
        client_cert_file: None,
    }
}

fn store(endpoints: &[Arc<str>]) -> EsFleet {
    EsFleet::new(settings(endpoints))
}

fn impatient(endpoints: &[Arc<str>]) -> EsFleet {
    EsFleet::new(EsFleetSettings { timeout_ms: IMPATIENT_MS, ..settings(endpoints) })
}
