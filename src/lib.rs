//! Node Runtime Health: finds the one sick object on a Kubernetes node and heals it in place.
//!
//! ```text
//!   node/ (shell)        core/ (pure)          controller/ (shell)
//!   collectors ─────────► diagnose ─► report ─► snapshot ─► core::plan ─► effects
//!   agent ◄───────────────────────── orders ◄──────────────────────────────┘
//! ```
//!
//! `api/` holds the five objects that all of it speaks through; see `docs/` for the rules.

pub mod api;
pub mod approve;
mod caller;
pub mod cancel;
pub mod cli;
pub mod controller;
pub mod explain;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod migrate;
pub mod node;
pub mod process;
pub mod remediate;
pub mod restart_safe;
mod server;
pub mod simulate;
pub mod suspend;
pub mod telemetry;
pub mod terminal;

pub use nrh_core as core;
