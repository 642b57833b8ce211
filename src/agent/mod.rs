//! The agent: one loop that asks the core what it wants, does it, and tells the core what came of it.
//!
//! `turn` is the loop, `verbs` what people ask of it, `executor` does effects, `facts` reads what guards look at and writes
//! plans, `observe` keeps looking and `sight` puts together what that comes to (`once` for one tick without an agent), `own` puts right what this node may,
//! `peers` what others have left behind, `lost` deals with a state that is gone, `alerts` sees to it that people hear,
//! `handle` answers the control socket (`retire` one verb of it), `status` and `explain` put what is known into words
//! (`missing` which nodes are not in service, `outlook` what a run would meet),
//! `measure` turns it into metrics, `seldom` keeps the log short, and `turns` knows which loops still turn.

pub mod alerts;
mod beat;
mod evidence;
pub mod executor;
mod explain;
pub mod facts;
pub mod handle;
mod lost;
pub mod measure;
mod missing;
pub mod observe;
pub mod once;
mod outlook;
mod own;
mod peers;
pub mod progress;
mod retire;
pub mod seldom;
pub mod shared;
mod sight;
pub mod status;
pub mod turn;
pub mod turns;
pub mod verbs;
pub mod watch;

pub use crate::supervisor;
