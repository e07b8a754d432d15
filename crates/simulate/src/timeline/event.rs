//! Events of a timeline: what happens to nodes or to a policy, and when.

use std::time::Duration;

use anyhow::ensure;
use serde::{Deserialize, Serialize};

use super::{ConditionEvent, FaultEvent, FlapsEvent, ManualRequestEvent, Nodes, Offset, PodsEvent, is_false};
use crate::remediator::Remediator;
use crate::world::Kured;
use nrh_core::fault::FaultType;
use nrh_core::remediation::Cancel;
use nrh_core::text::matches_pattern;

/// Something that happens to nodes or to a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Event {
    /// When.
    pub at: Offset,
    /// The nodes: names, each of which may end with `*`. Empty only with `policy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Only this many of the nodes, in the order of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<usize>,
    /// One node after the other, with this time in between. Default: all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Offset>,
    /// The probe confirms a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultEvent>,
    /// All faults of this type are gone, by themselves or by somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clears: Option<FaultType>,
    /// Another tool writes a condition on the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionEvent>,
    /// Pods that a drain would evict run on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsEvent>,
    /// How the probe behaves from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeState>,
    /// How the tool to which the node may be handed off behaves from now on: Works (it reboots the node; the default), Fails,
    /// Silent, or Taken (somebody else has handed off the node to it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediator: Option<Remediator>,
    /// How kured behaves from now on: Works (it reboots a node that requests it within minutes; the default), or Waits (for its
    /// window or its lock, or there is no kured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kured: Option<Kured>,
    /// How the kubelet behaves from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletState>,
    /// The node's `Ready` has this value from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// The node's `Ready` changes again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaps: Option<FlapsEvent>,
    /// Somebody else cordons or uncordons the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned: Option<bool>,
    /// Somebody else sets a taint with our key, `NoSchedule`, on the node, or removes all taints with our key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tainted: Option<bool>,
    /// Another tool asks that the node be left alone, for this reason. An empty reason ends the exclusion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
    /// A person suspends the node (`spec.suspend` of its `NodeRuntimeHealth`) for this reason. An empty reason ends the
    /// suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// The machine is removed, or another machine takes its place under the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// A person deletes the node's open remediation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancelled: bool,
    /// This person approves the step that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// A person makes a manual request for a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualRequestEvent>,
    /// A person cancels the node's remediation, or its waiting manual request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// A policy is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyEvent>,
}

impl Event {
    /// The nodes of the event, in order.
    pub fn chosen<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
        let meant = |name: &&str| self.nodes.iter().any(|pattern| matches_pattern(pattern, name));
        names.into_iter().filter(meant).take(self.first.unwrap_or(usize::MAX)).collect()
    }

    /// The time of the event on the last of this many nodes.
    pub(super) fn last(&self, count: usize) -> Duration {
        let more = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
        let lasts = self.flaps.map_or(Duration::ZERO, |flaps| flaps.lasts());
        self.at.0.saturating_add(self.every.unwrap_or_default().0.saturating_mul(more)).saturating_add(lasts)
    }

    pub(super) fn check(&self, names: &[(String, &Nodes)]) -> anyhow::Result<()> {
        ensure!(self.first != Some(0), "first: expected at least 1, found 0");
        let of_nodes = [
            self.fault.is_some(),
            self.clears.is_some(),
            self.condition.is_some(),
            self.pods.is_some(),
            self.probe.is_some(),
            self.kubelet.is_some(),
            self.remediator.is_some(),
            self.kured.is_some(),
            self.ready.is_some() || self.flaps.is_some(),
            self.cordoned.is_some(),
            self.tainted.is_some(),
            self.excluded.is_some(),
            self.suspended.is_some(),
            self.machine.is_some(),
            self.cancelled,
            self.approved.is_some(),
            self.manual.is_some(),
            self.cancel.is_some(),
        ]
        .contains(&true);
        ensure!(of_nodes || self.policy.is_some(), "nothing happens in it");
        let is_both = self.fault.is_some() && self.clears.is_some();
        ensure!(
            !is_both,
            "fault and clears: expected one of them, since both at once leave no fault; write two events"
        );
        ensure!(self.approved.as_deref() != Some(""), "approved: expected a person's name, found \"\"");
        ensure!(of_nodes != self.nodes.is_empty(), "what happens to nodes needs `nodes`, and a policy has none");
        for pattern in &self.nodes {
            let is_one = names.iter().any(|(name, _)| matches_pattern(pattern, name));
            ensure!(is_one, "there is no node {pattern:?}");
        }
        self.condition.as_ref().map_or(Ok(()), ConditionEvent::check)?;
        self.flaps.as_ref().map_or(Ok(()), FlapsEvent::check)?;
        self.manual.as_ref().map_or(Ok(()), ManualRequestEvent::check)?;
        let is_anonymous = self.cancel.as_ref().is_some_and(|cancel| cancel.cancelled_by.is_empty());
        ensure!(!is_anonymous, "cancel.cancelledBy: expected a person's name, found \"\"");
        self.pods.as_ref().map_or(Ok(()), PodsEvent::check)?;
        self.fault.as_ref().map_or(Ok(()), FaultEvent::check)
    }
}

/// How a probe behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum ProbeState {
    /// It reports, and actions are enabled.
    ActionsEnabled,
    /// It reports, and actions are disabled.
    ActionsDisabled,
    /// It does not report.
    Silent,
}

/// How a kubelet behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum KubeletState {
    /// It starts pods, and the node is Ready.
    Works,
    /// It starts no pods, and the node is not Ready.
    Down,
}

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Machine {
    /// The Node is deleted.
    Removed,
    /// A new, healthy machine with a new Node.
    Replaced,
}

/// What changes in a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyEvent {
    /// Its name.
    pub name: String,
    /// `spec.suspend`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// `spec.pauseRequests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_requests: Option<Vec<String>>,
    /// It is deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deleted: bool,
}
