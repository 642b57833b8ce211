//! A fleet record in a store, and a barrier in front of it.

use backstop::core::error::Fault;
use backstop::fleet::Store;
use backstop::ports::{CasFault, FleetStore, Version};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::Barrier;

/// A store, but the first write of each agent waits until all agents are at theirs: by then all have read.
#[derive(Clone)]
pub struct Meeting {
    store: Option<Store>,
    barrier: Arc<Barrier>,
    /// What each first write expects the record to be.
    read: Arc<Mutex<Vec<Version>>>,
    met: Arc<AtomicBool>,
    acknowledged: Arc<AtomicUsize>,
}

impl Meeting {
    /// For so many agents.
    pub fn new(agents: usize) -> Meeting {
        Meeting {
            store: None,
            barrier: Arc::new(Barrier::new(agents)),
            read: Arc::default(),
            met: Arc::default(),
            acknowledged: Arc::default(),
        }
    }

    /// The way of one more agent to the same barrier, and to the store behind it.
    pub fn seat(&self, store: Store) -> Meeting {
        Meeting { store: Some(store), met: Arc::default(), acknowledged: Arc::default(), ..self.clone() }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("only a seat is asked")
    }

    /// What the record was for each agent's first write.
    pub fn first_reads(&self) -> Vec<Version> {
        self.read.lock().unwrap().clone()
    }

    /// Writes of this agent that were acknowledged.
    pub fn acknowledged(&self) -> usize {
        self.acknowledged.load(Ordering::SeqCst)
    }

    pub async fn read(&self) -> Result<Option<(Vec<u8>, Version)>, Fault> {
        self.store().read().await
    }

    pub async fn compare_and_set(&self, expected: &Version, bytes: Vec<u8>) -> Result<Version, CasFault> {
        if !self.met.swap(true, Ordering::SeqCst) {
            self.read.lock().unwrap().push(expected.clone());
            self.barrier.wait().await;
        }
        let done = self.store().compare_and_set(expected, bytes).await;
        self.acknowledged.fetch_add(usize::from(done.is_ok()), Ordering::SeqCst);
        done
    }
}
