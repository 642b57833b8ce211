//! The heartbeat for `outside_watch`: whoever hears it pages when it ends. It stops when the agent's loops no longer get
//! on, for an agent that only looks alive is worse than none.

use super::shared::{Shared, World};
use crate::alerts::watch::{EVERY_MS, Heartbeat};
use crate::clock::Clock;
use crate::config::OutsideWatch;
use std::sync::Arc;

/// Runs for ever; also where nobody watches, since a reload may change that.
pub async fn beat<W: World>(shared: Arc<Shared<W>>) {
    loop {
        let alive = shared.turns.works(&shared.clock.now());
        let fault = match &shared.parts().config.outside_watch {
            OutsideWatch::Url(_) if alive.is_err() => {
                let which = alive.err().unwrap_or_default();
                Some(format!("no heartbeat is sent: the loop `{which}` of this agent does not get on"))
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
