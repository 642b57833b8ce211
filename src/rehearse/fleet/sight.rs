//! The fleet record, seen from outside and taking no part: in files, or in a cluster.

use crate::core::record::Record;
use crate::fleet::elasticsearch::EsFleet;
use crate::fleet::file::RECORD_NAME;
use crate::ports::FleetStore as _;
use crate::rehearse::pace::{self, Task};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Between two reads of a cluster (real).
const LOOK: Duration = Duration::from_millis(100);

/// The handle.
#[derive(Clone, Debug)]
pub struct Sight(From);

#[derive(Clone, Debug)]
enum From {
    File(PathBuf),
    Cluster { last: Arc<Mutex<Option<Record>>>, _looking: Arc<Task> },
}

impl Sight {
    /// Of a store of files.
    pub(super) fn of_files(dir: &Path) -> Sight {
        Sight(From::File(dir.join(RECORD_NAME)))
    }

    /// Of a store in a cluster: read again and again, until the last handle goes.
    pub(super) fn of_cluster(store: EsFleet) -> Sight {
        let last: Arc<Mutex<Option<Record>>> = Arc::default();
        let seen = last.clone();
        let looking = Task::start(async move {
            loop {
                let read = store.read().await.ok().flatten();
                *pace::lock(&seen) = read.and_then(|(bytes, _)| serde_json::from_slice(&bytes).ok());
                pace::sleep(LOOK).await;
            }
        });
        Sight(From::Cluster { last, _looking: Arc::new(looking) })
    }

    /// The record now (a file), or by the last read (a cluster); `None`: there is none, it is no record, or nobody answers.
    pub fn record(&self) -> Option<Record> {
        match &self.0 {
            From::File(file) => serde_json::from_slice(&std::fs::read(file).ok()?).ok(),
            From::Cluster { last, .. } => pace::lock(last).clone(),
        }
    }
}
