//! `outside_watch`: a heartbeat to somebody outside, who pages when it ends.

use super::post::Post;
use crate::core::error::Fault;

/// Between two heartbeats, in ms.
pub const EVERY_MS: u64 = 60_000;
/// One heartbeat, in ms.
const TIMEOUT_MS: u64 = 10_000;

/// Says that this agent is alive.
#[derive(Debug)]
pub struct Heartbeat(Post);

impl Heartbeat {
    /// # Errors
    /// A URL that is none, or no TLS to be had.
    pub fn new(url: &str) -> Result<Heartbeat, Fault> {
        Post::new("outside_watch", "outside_watch", url, TIMEOUT_MS, false).map(Heartbeat)
    }

    /// Once.
    ///
    /// # Errors
    /// Nobody has taken it.
    pub async fn beat(&self) -> Result<(), Fault> {
        self.0.get().await
    }
}
