//! The heartbeat for `outside_watch`: whoever hears it pages when it ends. It stops when the agent's loops no longer turn, for
//! an agent that only looks alive is worse than none.

use super::shared::{Shared, World};
use crate::alerts::watch::{EVERY_MS, Heartbeat};
use crate::clock::Clock;
use crate::config::OutsideWatch;
use crate::core::time::Now;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A loop that has not turned for so long stands still, in ms: no effect and no look takes longer.
const STILL_MS: u64 = 5 * 60_000;

/// Something that counts up, as last seen to change.
#[derive(Debug)]
struct Turning {
    count: u64,
    changed: Now,
}

impl Turning {
    fn turns(&mut self, count: u64, now: &Now) -> bool {
        if self.count != count {
            (self.count, self.changed) = (count, now.clone());
        }
        now.since(&self.changed).is_some_and(|ms| ms < STILL_MS)
    }
}

/// Runs for ever; also where nobody watches, since a reload may change that.
pub async fn beat<W: World>(shared: Arc<Shared<W>>) {
    let now = shared.clock.now();
    let mut agent = Turning { count: 0, changed: now.clone() };
    let mut observer = Turning { count: 0, changed: now };
    loop {
        let now = shared.clock.now();
        let looks = shared.observed.borrow().looks;
        let alive = agent.turns(shared.turns.load(Ordering::Relaxed), &now) & observer.turns(looks, &now);
        let fault = match &shared.parts().config.outside_watch {
            OutsideWatch::Url(_) if !alive => {
                Some("no heartbeat is sent: a loop of this agent stands still".to_owned())
            }
            OutsideWatch::Url(url) => match Heartbeat::new(url.expose()) {
                Ok(heart) => heart.beat().await.err().map(|fault| fault.to_string()),
                Err(fault) => Some(fault.to_string()),
            },
            OutsideWatch::Unset | OutsideWatch::None => None,
        };
        if let Some(why) = &fault {
            tracing::warn!(why, "nobody outside has heard this agent's heartbeat");
        }
        shared.cache().watch_fault = fault;
        shared.clock.sleep_ms(EVERY_MS).await;
    }
}
