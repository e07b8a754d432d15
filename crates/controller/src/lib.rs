//! The shell on the cluster side: watches in, one decision loop, effects out.
//!
//! ```text
//! cache (watches, arrival times) ─► Snapshot ─► core::engine ─► apply (ledger, remediations, jobs, status, events)
//! ```
//! The decision loop is the only decider and the only writer; everything else reads.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "the controller runs on Linux"))]

pub mod access;
pub mod admission;
mod apply;
pub mod args;
pub mod cache;
pub mod calls;
pub mod clock;
mod commands;
mod decide;
pub mod events;
pub mod evictions;
pub mod hand_offs;
mod handles;
pub mod http;
pub mod jobs;
pub mod leader;
pub mod ledger;
pub mod metrics;
pub mod node_conditions;
pub mod own_image;
pub mod permissions;
pub mod rbac;
#[cfg(target_os = "linux")]
pub mod run;
pub mod shipped_policy;
mod status;
