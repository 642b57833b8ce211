//! The fleet record and the member documents: stores behind one port, and the one way to change them.

mod change;
pub mod elasticsearch;
pub mod file;
mod store;

pub use change::{Fleet, Found, Outcome};
pub use store::Store;
