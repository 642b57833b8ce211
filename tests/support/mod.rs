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

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// An address of its own on this machine, with any port: what another test leaves behind, and whoever still asks there,
/// never meets this one.
pub(crate) fn loopback() -> SocketAddr {
    static TAKEN: AtomicU32 = AtomicU32::new(1);
    let n = TAKEN.fetch_add(1, Ordering::Relaxed) % (1 << 16);
    let process = std::process::id() % 64;
    SocketAddr::from((Ipv4Addr::from(0x7f80_0000 | process << 16 | n), 0))
}

/// The product.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_backstop");

/// Longest wait (real) for anything that must come about, on a busy machine too.
pub(crate) const BOUND: Duration = Duration::from_mins(2);
