//! Node Runtime Health: finds the faulty object on a Kubernetes node and remediates it in place.
//!
//! ```text
//!   nrh-node (shell)     nrh-core (pure)       nrh-controller (shell)
//!   collectors ─────────► diagnose ─► report ─► snapshot ─► core::engine ─► effects
//!   agent ◄───────────────────────── commands ◄────────────────────────────┘
//! ```
//!
//! `nrh-api` holds the five objects that all of it speaks through; see `docs/` for the rules. Here are the command lines of both
//! programs, and what each command for people does.

pub mod approve;
pub mod cancel;
pub mod check;
pub mod cli;
#[doc(hidden)]
#[cfg(all(target_os = "linux", any(test, feature = "fuzzing")))]
pub mod fuzz;
pub mod get;
pub mod migrate;
mod objects;
pub mod process;
pub mod remediate;
pub mod restart_safe;
pub mod simulate;
pub mod suspend;
pub mod telemetry;

pub use nrh_api as api;
pub use nrh_caller as caller;
pub use nrh_controller as controller;
pub use nrh_core as core;
pub use nrh_explain as explain;
#[cfg(target_os = "linux")]
pub use nrh_node as node;
pub use nrh_terminal as terminal;

/// The answer of `nrh check`, `nrh restart-safe` or `nrh simulate` is no. Any other error of these commands means that the answer
/// is unknown.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct No(pub(crate) String);
