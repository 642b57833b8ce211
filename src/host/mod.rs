//! The machine, and which instance it is.

pub mod identity;
pub mod machine;
pub mod system;
