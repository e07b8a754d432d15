//! The conditions of our objects: a closed set of types and reasons, all positive (True = good).

/// The condition types we write. All are positive: False only on confirmed evidence, True only on a clean
/// look, Unknown whenever nobody could look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionType {
    /// The probe keeps its promised heartbeats (written by the controller).
    ProbeReporting,
    /// The runtime can be reached and answers its lists.
    RuntimeReady,
    /// Every container that was asked answers.
    ContainersResponsive,
    /// Every container has its sandbox, and no shim is left over.
    SandboxesConsistent,
    /// No CNI plugin process is older than its bound.
    NetworkPluginResponsive,
    /// A kubelet has completed its start.
    KubeletReady,
    /// No DaemonSet pod of the node is stuck (controller).
    PodsProgressing,
    /// The node does not flap (controller).
    NodeStable,
    /// Kubelet and runtime can be restarted without harm.
    RestartSafe,
    /// The tool can heal what it found; False = a person is needed (controller).
    SelfHealing,
    /// The policy is valid.
    Valid,
    /// New episodes may start under the policy.
    RemediationAllowed,
    /// The episode is under way (medik8s contract).
    Processing,
    /// The episode has ended with (True) or without (False) a cure (medik8s contract).
    Succeeded,
}

impl ConditionType {
    /// The type as it stands in the object.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ProbeReporting => "ProbeReporting",
            Self::RuntimeReady => "RuntimeReady",
            Self::ContainersResponsive => "ContainersResponsive",
            Self::SandboxesConsistent => "SandboxesConsistent",
            Self::NetworkPluginResponsive => "NetworkPluginResponsive",
            Self::KubeletReady => "KubeletReady",
            Self::PodsProgressing => "PodsProgressing",
            Self::NodeStable => "NodeStable",
            Self::RestartSafe => "RestartSafe",
            Self::SelfHealing => "SelfHealing",
            Self::Valid => "Valid",
            Self::RemediationAllowed => "RemediationAllowed",
            Self::Processing => "Processing",
            Self::Succeeded => "Succeeded",
        }
    }
}

/// Why a condition stands as it does: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConditionReason {
    /// A clean look.
    Clean,
    /// A confirmed fault.
    FaultConfirmed,
    /// A fault is suspected, not confirmed.
    FaultSuspected,
    /// Nobody has looked yet.
    NotYetLooked,
    /// The node lacks what is needed to look.
    CannotLook,
    /// The last look is too old.
    Stale,
    /// Heartbeats arrive as promised.
    Heartbeat,
    /// Heartbeats are missing.
    HeartbeatMissed,
    /// The object was accepted.
    Accepted,
    /// The object has errors.
    Invalid,
    /// Something holds new work back.
    Held,
    /// Nothing is in the way.
    Allowed,
    /// Work is under way.
    UnderWay,
    /// Work has ended.
    Finished,
    /// A person is needed.
    NeedsPerson,
}

impl ConditionReason {
    /// The reason as it stands in the object.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "Clean",
            Self::FaultConfirmed => "FaultConfirmed",
            Self::FaultSuspected => "FaultSuspected",
            Self::NotYetLooked => "NotYetLooked",
            Self::CannotLook => "CannotLook",
            Self::Stale => "Stale",
            Self::Heartbeat => "Heartbeat",
            Self::HeartbeatMissed => "HeartbeatMissed",
            Self::Accepted => "Accepted",
            Self::Invalid => "Invalid",
            Self::Held => "Held",
            Self::Allowed => "Allowed",
            Self::UnderWay => "UnderWay",
            Self::Finished => "Finished",
            Self::NeedsPerson => "NeedsPerson",
        }
    }
}
