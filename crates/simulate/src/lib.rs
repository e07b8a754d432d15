//! What policies do in the course of a timeline: a cluster that is made up around the very decision of the controller.
//!
//! ```text
//! timeline ─► play ─► world ⇄ nrh_core::plan ─► account ─► table, expectations
//!     ▲
//! record ◄── snapshot of a cluster
//! ```
//! Nothing in here reads a file or asks a cluster: policies and timelines are handed in.

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
