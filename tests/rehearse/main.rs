//! Whole fleets of real processes: through the product's own `rehearse` verb, and through the pieces that it is made of.

mod fleets;
mod orphans;
mod scenarios;

use std::time::Duration;

/// The product.
const PROGRAM: &str = env!("CARGO_BIN_EXE_backstop");
/// Longest wait (real) for anything.
const BOUND: Duration = Duration::from_secs(100);
