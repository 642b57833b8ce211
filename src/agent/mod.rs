//! The agent: one loop that asks the core what it wants, does it, and tells the core what came of it.
//!
//! `turn` is the loop, `verbs` what people ask of it, `executor` does effects, `facts` reads what guards look at and writes
//! plans, `observe` keeps looking, `own` puts right what this node may, `lost` deals with a state that is gone, `seldom`
//! keeps the log short, `handle` answers the control socket, `status` and `explain` put what is known into words.

pub mod executor;
mod explain;
pub mod facts;
pub mod handle;
mod lost;
pub mod observe;
mod own;
pub mod pages;
pub mod progress;
pub mod seldom;
pub mod shared;
pub mod status;
pub mod turn;
pub mod verbs;

pub use crate::supervisor;
