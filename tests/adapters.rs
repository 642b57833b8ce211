//! The real adapters against servers that fail in every way that was ever seen.
//!
//! What is proven: whatever comes back, a call ends within its deadline, as a fault of a sane class; nothing but the
//! success that was asked for is a success; and nothing is retried behind the core's back.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "helpers of a test fail the test"
)]

mod support;

#[path = "adapters/elb.rs"]
mod elb;
#[path = "adapters/elb_rows.rs"]
mod elb_rows;
#[path = "adapters/made.rs"]
mod made;
#[path = "adapters/metadata.rs"]
mod metadata;
#[path = "adapters/node.rs"]
mod node;
#[path = "adapters/rows.rs"]
mod rows;
#[path = "adapters/walk.rs"]
mod walk;
