//! What the engine knows when it decides: the cluster, and each node with its faults, policies and remediations.

mod block;
mod clear_check;
mod cluster_faults;
pub(crate) mod conditions;
pub(crate) mod evidence;
pub(crate) mod exclusion;
pub(crate) mod gather;
mod node;
pub(crate) mod of_policy;
pub(crate) mod pods;
pub(crate) mod stuck_cause;
pub(crate) mod unreadable;

use std::collections::BTreeMap;
use std::time::Duration;

pub(crate) use block::{Block, Requeue};
pub(crate) use clear_check::ClearCheck;
pub(crate) use node::{NodeContext, Nodes, ObservedFault, Probe};

use super::plan::PlanSettings;
use super::policy::{Policy, Step};
use super::snapshot::Snapshot;

/// The cluster as one pass sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterContext<'a> {
    pub snapshot: &'a Snapshot,
    pub settings: &'a PlanSettings,
    /// Valid policies by name.
    pub policies: &'a BTreeMap<&'a str, &'a Policy>,
}

impl ClusterContext<'_> {
    /// The block timeout: how long anything in an open remediation can stay blocked before the controller gives it up.
    pub fn block_timeout(self, step: &Step) -> Duration {
        let longest = step.action.traits().block_timeout.unwrap_or(Duration::MAX);
        step.timeout.min(longest).max(self.settings.answer_within)
    }
}
