//! The demo: five incidents on a real node, each first watched under a dry run, then repaired, and judged by the bed alone.
//!
//! ```text
//! Stage (bed, nodes, programs) ── each Act ──► control (dry run: stays sick)  ┐
//!                                └─────────► run (enforced: gets well)        ├─► judge ─► report.json, exit code
//!                                  views before and after, audit log          ┘
//! ```
//! Times and verdicts come from here: the kernel, the runtime, the API server and its audit log. What the operator says of
//! itself is shown to the reader and proves nothing.

mod act;
mod acts;
pub mod judge;
pub mod mutations;
mod plot;
pub mod report;
mod stage;
mod tell;
mod wait;
mod workloads;
mod writes;

pub use plot::{play, run};
pub use workloads::{NAMESPACE, some_workloads};

use std::path::PathBuf;

use crate::Platform;

/// How a demo is run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Stand-ins play the runtime and the kubelet: for machines without root, and quick.
    pub fake: bool,
    /// The nodes are machines that run this; else namespaces of this machine.
    pub machines: Option<Platform>,
    /// Leave the cluster up afterwards.
    pub keep: bool,
    /// Only these acts, by name; empty = all.
    pub only: Vec<String>,
    /// Watch no control: quicker, and the report says so.
    pub no_controls: bool,
    /// Simulated nodes beside the real ones.
    pub kwok: usize,
    /// Where the report is written.
    pub report: PathBuf,
}
