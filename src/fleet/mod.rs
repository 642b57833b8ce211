//! Where the fleet record and the member documents are kept.

pub mod file;
