//! The fleet record and the member documents: stores behind one port, and the one way to change them.

mod change;
pub mod file;

pub use change::{Fleet, Found, Outcome};
