//! The control socket: HTTP/JSON over a Unix socket, with roles by peer credentials.
//!
//! [`protocol`] is what goes over it, [`ask`] turns a request into one of the things that can be asked, [`roles`] says who
//! may ask it, [`server`] and [`client`] carry it. [`backend`] is what the server asks of the agent.

pub mod ask;
pub mod backend;
pub mod client;
pub mod peer;
pub mod protocol;
pub mod roles;
pub mod server;
pub(crate) mod socket;
