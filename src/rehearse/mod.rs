//! The rehearsal: a whole world on loopback, in which backstop can be watched and tested.
//!
//! The parts below are a load balancer's API ([`elbv2`]) and its traffic side ([`data_plane`]), search nodes ([`node`])
//! that fail in named ways ([`shapes`]), clients ([`traffic`]), a pager's receiving end ([`receiver`]) and the picture
//! of what happened ([`timeline`]). Each part is started by an async `start`, has a real address, a cloneable control
//! handle, and ends when it is stopped or dropped. None of them knows the agent, so tests start the same ones.

pub mod data_plane;
pub mod elbv2;
pub mod fleet;
pub mod http;
pub mod live;
pub mod node;
pub mod pace;
pub mod receiver;
pub mod scenario;
pub mod shapes;
pub mod stand_in;
pub mod timeline;
pub mod traffic;
pub mod unguarded;
