//! What this node must not forget: one snapshot file is the truth, the audit journal is for people.
//!
//! [`files`] are the bare operations of a directory, [`disk`] makes durable ones of them, [`snapshot`] gives the bytes a
//! shape that cannot be mistaken, [`journal`] hands out effects only under what is stored, [`writer`] is the one
//! writer behind it. [`fault`] is the same directory in memory, with failures on demand.

pub mod audit;
pub mod disk;
pub mod fault;
pub mod files;
pub mod journal;
pub mod ledger;
pub mod lock;
pub mod snapshot;
mod writer;
