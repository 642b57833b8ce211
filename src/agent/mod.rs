//! The agent: one loop that asks the core what it wants, does it, and tells the core what came of it.
//!
//! `turn` is the loop, `verbs` what people ask of it, `executor` does effects, `facts` reads what guards look at and writes
//! plans, `observe` keeps looking, `own` puts right what this node may, `peers` what others have left behind, `lost` deals with a state that is gone, `seldom`
//! keeps the log short, `handle` answers the control socket (`retire` one verb of it), `status` and `explain` put what is known into words,
//! `supervisor` owns every task.

pub mod alerts;
mod beat;
mod evidence;
pub mod executor;
mod explain;
pub mod facts;
pub mod handle;
mod lost;
pub mod observe;
mod own;
mod peers;
pub mod progress;
mod retire;
pub mod seldom;
pub mod shared;
mod sight;
pub mod status;
pub mod supervisor;
pub mod turn;
pub mod verbs;
pub mod watch;
