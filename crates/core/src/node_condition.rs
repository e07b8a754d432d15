//! What other tools can read of a node's health on its Node object: a view of our conditions in the polarity and, where there are
//! any, the names that are standard in the field.
//!
//! A condition of a Node that names a problem is True while the problem exists (as `MemoryPressure`, and all of
//! node-problem-detector's). Ours are True while everything is healthy. Machine health checks of Cluster API, `NodeHealthCheck`
//! of medik8s and autoscalers select on type, status and duration. So a type says one thing, and only confirmed faults turn it
//! True.

use std::collections::BTreeSet;
use std::str::FromStr;

use super::condition::{ConditionReason, ConditionType};
use super::fault::{Fault, FaultState, FaultType};
use super::tri_state::TriState;

crate::named! {
    /// A condition that the controller may write to a Node. True = there is a problem.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum NodeCondition {
        /// The runtime as a whole does not answer (a name of node-problem-detector's health checker).
        ContainerRuntimeUnhealthy,
        /// No kubelet completes its start (a name of node-problem-detector's health checker).
        KubeletUnhealthy,
        /// Single containers do not answer.
        ContainersUnresponsive,
        /// Containers, sandboxes and shims are inconsistent.
        SandboxesInconsistent,
        /// A network plugin hangs.
        NetworkPluginUnresponsive,
        /// The kernel is about to refuse processes or open files, or something of runtime and kubelet hangs in it.
        HostUnhealthy,
        /// A file system of runtime or kubelet is full or takes no writes.
        StorageNotReady,
        /// systemd does not answer over the system bus.
        SystemdUnresponsive,
        /// The kubelet's client certificate was not renewed in time.
        ClientCertificateExpiring,
        /// The node's clock and the API server's are far apart.
        ClockUnsynchronised,
        /// A restart of the kubelet or of the runtime would do harm now.
        RestartUnsafe,
    }
}

impl NodeCondition {
    /// The condition of this name on the Node.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }

    /// Our condition that it is the inverse of.
    pub const fn of(self) -> ConditionType {
        match self {
            Self::ContainerRuntimeUnhealthy => ConditionType::RuntimeReady,
            Self::KubeletUnhealthy => ConditionType::KubeletReady,
            Self::ContainersUnresponsive => ConditionType::ContainersResponsive,
            Self::SandboxesInconsistent => ConditionType::SandboxesConsistent,
            Self::NetworkPluginUnresponsive => ConditionType::NetworkPluginResponsive,
            Self::HostUnhealthy => ConditionType::HostHealthy,
            Self::StorageNotReady => ConditionType::StorageReady,
            Self::SystemdUnresponsive => ConditionType::SystemdResponsive,
            Self::ClientCertificateExpiring => ConditionType::ClientCertificateValid,
            Self::ClockUnsynchronised => ConditionType::ClockSynchronised,
            Self::RestartUnsafe => ConditionType::RestartSafe,
        }
    }

    /// The condition that shows a fault of this type. It is none for a fault that the controller finds, that the kubelet itself
    /// writes to its Node (a network that is not ready), that not every kubelet reports, or that concerns only the probe.
    pub fn showing(fault: FaultType) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| fault.spec().condition == Some(kind.of()))
    }
}

/// The condition types to write: none, some, or all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeConditions(pub BTreeSet<NodeCondition>);

impl FromStr for NodeConditions {
    type Err = String;

    /// Parses `all`, names separated by commas, or an empty text.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "all" {
            return Ok(Self(NodeCondition::ALL.into()));
        }
        let named = |name: &str| {
            NodeCondition::named(name).ok_or_else(|| {
                let known = NodeCondition::ALL.map(NodeCondition::as_str).join(", ");
                format!("expected `all` or some of {known}; found {name:?}")
            })
        };
        text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(named).collect::<Result<_, _>>().map(Self)
    }
}

/// One condition, as it should be on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirrored {
    /// Which.
    pub kind: NodeCondition,
    /// True = there is a problem; Unknown = the check was not possible.
    pub status: TriState,
    /// The type of the confirmed fault, or why there is none.
    pub reason: &'static str,
    /// One sentence.
    pub message: String,
}

/// The value of `kind`, from our condition (`status`, `reason`, `message`) and the faults of the same report.
///
/// A suspicion is no problem yet, so it changes nothing here. It matters only for a restart, because `False` there says that a
/// restart does no harm.
pub fn mirrored(kind: NodeCondition, status: TriState, reason: &str, message: &str, faults: &[&Fault]) -> Mirrored {
    let suspected = status == TriState::Unknown && reason == ConditionReason::FaultSuspected.as_str();
    let (status, reason, message) = match status {
        TriState::False => {
            let ours = faults
                .iter()
                .find(|fault| fault.state == FaultState::Confirmed && NodeCondition::showing(fault.kind) == Some(kind));
            let reason = ours.map_or(ConditionReason::FaultConfirmed.as_str(), |fault| fault.kind.as_str());
            (TriState::True, reason, message.to_owned())
        }
        TriState::Unknown if !suspected || kind == NodeCondition::RestartUnsafe => {
            (TriState::Unknown, ConditionReason::CheckFailed.as_str(), format!("{reason}: {message}"))
        }
        TriState::True | TriState::Unknown => {
            (TriState::False, "NoFaultConfirmed", "no such fault is confirmed".to_owned())
        }
    };
    Mirrored { kind, status, reason, message }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::fault;

    #[test]
    fn every_fault_of_the_probe_shows_in_one_condition() {
        for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
            let elsewhere = matches!(
                kind,
                FaultType::NetworkNotReady
                    | FaultType::SyncLoopStalled
                    | FaultType::PlegSlow
                    | FaultType::ProbeDegraded
            );
            assert_eq!(NodeCondition::showing(kind).is_none(), elsewhere, "{kind}");
        }
    }

    #[test]
    fn only_what_is_confirmed_is_a_problem_and_what_nobody_sees_is_unknown() {
        use NodeCondition::{ContainersUnresponsive, RestartUnsafe};
        let confirmed = Fault { state: FaultState::Confirmed, ..fault(FaultType::HungContainer) };
        let other = Fault { state: FaultState::Confirmed, ..fault(FaultType::KubeletDown) };
        let all = [&other, &confirmed];
        for (kind, status, reason, want) in [
            (ContainersUnresponsive, TriState::True, "Clean", (TriState::False, "NoFaultConfirmed")),
            (ContainersUnresponsive, TriState::Unknown, "FaultSuspected", (TriState::False, "NoFaultConfirmed")),
            (ContainersUnresponsive, TriState::Unknown, "FaultWithPartialCoverage", (TriState::Unknown, "CheckFailed")),
            (ContainersUnresponsive, TriState::Unknown, "Stale", (TriState::Unknown, "CheckFailed")),
            (ContainersUnresponsive, TriState::False, "FaultConfirmed", (TriState::True, "HungContainer")),
            (RestartUnsafe, TriState::Unknown, "FaultSuspected", (TriState::Unknown, "CheckFailed")),
            (RestartUnsafe, TriState::True, "Clean", (TriState::False, "NoFaultConfirmed")),
            (RestartUnsafe, TriState::False, "FaultConfirmed", (TriState::True, "FaultConfirmed")),
        ] {
            let shown = mirrored(kind, status, reason, "why", &all);
            assert_eq!((shown.status, shown.reason), want, "{kind:?} {status:?} {reason}");
        }
    }

    #[test]
    fn a_name_that_is_none_is_refused_with_those_there_are() {
        assert_eq!("".parse::<NodeConditions>(), Ok(NodeConditions::default()));
        assert_eq!("all".parse::<NodeConditions>().unwrap().0.len(), 11);
        let some = " KubeletUnhealthy, RestartUnsafe ".parse::<NodeConditions>().unwrap();
        assert_eq!(some.0, [NodeCondition::KubeletUnhealthy, NodeCondition::RestartUnsafe].into());
        let error = "KubeletReady".parse::<NodeConditions>().unwrap_err();
        assert!(error.contains("\"KubeletReady\"") && error.contains("KubeletUnhealthy"), "{error}");
    }
}
