//! The control socket: HTTP/JSON over a Unix socket, with roles by peer credentials.

pub mod backend;
pub mod protocol;
