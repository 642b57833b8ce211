//! The machine, and which instance it is.

pub mod identity;
pub mod machine;
mod packages;
pub mod system;
