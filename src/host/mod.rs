//! The machine and the instance it is.

pub mod identity;
pub mod machine;
