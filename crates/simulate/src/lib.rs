//! Simulates what policies do in a timeline: a fictional cluster around the very decision function of the controller.
//!
//! ```text
//! timeline ─► play ─► world ⇄ nrh_core::engine ─► account ─► table, expectations
//!     ▲
//! record ◄── snapshot of a cluster
//! ```
//! Nothing in here reads a file or queries a cluster: policies and timelines are arguments.

pub mod account;
pub mod cleared_by;
pub mod expect;
mod injected_fault;
mod lacks;
pub mod play;
pub mod record;
pub mod remediator;
pub mod text;
pub mod timeline;
pub mod workload;
pub mod world;
