//! The shell on the node side: collectors check, the core judges, one report is written; the agent acts on commands.
//!
//! ```text
//! collectors (cri or docker · tasks · processes · kubelet · host · disks · port · bus) ─► Observations ─► core::diagnose ─► core::tracker
//!            ─► report; a fault is confirmed ─► evidence: one bundle, kept on the node
//! command (a NodeCommand's, or a Job's variable) ─► agent: claim ─► check again ─► act on one object ─► outcome
//! ```

#![cfg(target_os = "linux")]

pub mod agent;
pub mod args;
mod bus;
pub mod collect;
pub mod collectors;
pub mod config;
pub mod cri;
mod deadline;
mod docker;
mod evidence;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod http;
mod kmsg;
mod local;
mod lock;
pub(crate) mod parse_error;
mod proc;
mod reader;
pub mod report;
pub mod run;
mod runtime;
mod sentinel;
mod state;
#[cfg(test)]
mod waiting;
pub(crate) mod yaml;
