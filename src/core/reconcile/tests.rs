//! What one agent finds: the table of target states, the rules that go beyond one state, and what must hold for any sight.
#![allow(unreachable_pub, clippy::pedantic, clippy::arithmetic_side_effects, reason = "tests of small numbers")]

mod by_hand;
mod fleet;
mod kit;
mod once;
#[cfg(not(feature = "mutants"))] // of the product, with its own development dependencies
mod properties;
mod scale;
mod sources;
#[cfg(not(feature = "mutants"))]
mod table;
