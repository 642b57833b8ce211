//! What the test binaries share. Each uses a part of it.
//!
//! The list of lints at the head of each binary is not here: an attribute of a crate cannot come from a module.
#![allow(
    dead_code,
    clippy::expect_used,
    clippy::arithmetic_side_effects,
    reason = "each test binary uses a part; what fails here fails the test"
)]

pub(crate) mod engine;
pub(crate) mod index;
pub(crate) mod relay;
pub(crate) mod tls;
pub(crate) mod wire;

use std::time::Duration;

/// The product.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_backstop");

/// Longest wait (real) for anything that must come about, on a busy machine too.
pub(crate) const BOUND: Duration = Duration::from_mins(2);
