//! Why the engine holds something back: a leaf that budgets, steps and views all name.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Why a step is blocked now: a closed set, each with a sentence beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum BlockReason {
    /// No policy selects the node.
    NoPolicy,
    /// The policy has no rule for this fault.
    NoRule,
    /// It is not known whether a rule applies to the fault, and that does not pass by itself.
    RuleAmbiguous,
    /// A rule asks for labels or the owner of the fault's pod, and they were not read yet.
    PodUnknown,
    /// The policy is a dry run: planned and recorded, not executed.
    DryRun,
    /// The policy, or all remediation, is suspended.
    Suspended,
    /// The policy has pause requests.
    Paused,
    /// A person or another tool excludes the node from remediation.
    Excluded,
    /// A window of the policy forbids the step now, or none that allows it is open.
    OutsideWindow,
    /// The fault is not confirmed (yet, or any more).
    NotConfirmed,
    /// The rule asks that the fault lasts longer.
    MinDurationNotReached,
    /// The last check of the fault is too old; a new one was requested.
    StaleEvidence,
    /// The probe has missed a heartbeat or never reported.
    ProbeNotReporting,
    /// The report is about another node of the same name.
    NodeReplaced,
    /// More of the selected nodes are unhealthy than the policy allows.
    MaxUnhealthyExceeded,
    /// As many remediations run as the policy allows.
    MaxInFlightReached,
    /// As many remediations run on nodes of the same zone, rack or pool as the policy allows.
    TopologyLimit,
    /// As many remediations run for faults of these kinds as the policy allows.
    FaultLimit,
    /// The node got as many actions as the policy allows within some time.
    NodeLimit,
    /// Many nodes have the same new fault: one cause is more likely than many faulty nodes.
    Storm,
    /// As many slots are taken as the whole cluster allows.
    ClusterLimit,
    /// The ledger is missing or unreadable.
    LedgerUnavailable,
    /// The admission policies, which bound what the controller may do, are not known to be in force.
    AdmissionNotEnforced,
    /// Many nodes have a step at the same moment: the more urgent ones start first, and this one follows right after.
    Queued,
    /// A more urgent fault of the same node goes first.
    LowerUrgency,
    /// The step waits until a person has approved it.
    AwaitingApproval,
    /// A step of the node's remediation is running.
    InProgress,
    /// All faults of the node's remediation are gone, and the node flaps: it is watched for a while before the faults
    /// count as resolved.
    NodeFlapping,
    /// The step waits for its cooldown.
    Cooldown,
    /// The API server rejects the request that a step needs; a person has to find out why.
    RequestRejected,
    /// Actions are disabled or impossible on the node.
    ActionsDisabled,
    /// A hung process of the same pod must be released first.
    HungProcessFirst,
    /// A restart of the kubelet or the runtime would do harm or the harm is unknown, and the policy does not allow it
    /// then.
    RestartUnsafe,
    /// The action would end running containers, and the policy does not allow it.
    PodsRunning,
    /// No step is left; a person is needed.
    StepsExhausted,
    /// The remediation of the same fault failed a short time ago.
    RecentlyFailed,
}
