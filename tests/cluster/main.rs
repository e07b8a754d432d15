//! What needs a real API server: who may write what, what it takes for an object of ours, and leaders that are interrupted.
//!
//! Each test has a control plane of its own, which is there in seconds: to leave one as clean as it was found takes longer.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod admission;
mod definitions;
mod interruptions;
mod objects;
mod plane;
#[path = "../remediators/mod.rs"]
mod remediators;
#[path = "../simulated_node/mod.rs"]
mod simulated_node;
