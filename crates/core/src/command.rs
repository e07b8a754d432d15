//! An order to touch one object on one node, and what became of it.
//!
//! The same JSON stands in `spec.command` of a `NodeCommand` (for the probe) and in the environment of a Job: one executor
//! serves both.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::Restart;
use super::fault::{FaultType, Target};
use super::reboot::MarkOrder;

/// An action that is executed on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CommandAction {
    /// Sends SIGCONT to the one named process.
    ReleaseCont,
    /// Sends SIGKILL to the one named process.
    ReleaseKill,
    /// Removes the one named orphan container or leaked shim.
    CleanupOrphans,
    /// Restarts the kubelet's systemd unit.
    RestartKubelet,
    /// Restarts the container runtime's systemd unit.
    RestartRuntime,
    /// Reboots the node by systemd's login manager.
    Reboot,
    /// Creates the file that asks another tool of the node for a reboot, for as long as the command is issued.
    MarkForReboot,
}

/// One action on one object, bound to one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ActionCommand {
    /// `operationId` of the command that it answers.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub operation_id: String,
    /// Leader term of the command; a node refuses one lower than the highest it has seen.
    pub epoch: u64,
    /// Name of the node: a command for another node is refused.
    #[schemars(length(max = 253))]
    pub node: String,
    /// What to execute: `ReleaseCont` (SIGCONT) or `ReleaseKill` (SIGKILL) of the named process, `CleanupOrphans`,
    /// `RestartKubelet`, `RestartRuntime`, `Reboot` or `MarkForReboot`.
    pub action: CommandAction,
    /// Allow to kill a shim whose pod is not being deleted.
    #[serde(default)]
    pub allow_running_pods: bool,
    /// Id of the fault that it is meant to resolve.
    #[schemars(length(max = 80))]
    pub fault_id: String,
    /// Kind of that fault.
    pub fault_type: FaultType,
    /// The object to change. The node checks again and refuses if it finds something else.
    pub target: Target,
    /// With `RestartKubelet` and `RestartRuntime`: which unit, and which checks are skipped. Absent with all others, so
    /// that an older probe can still read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// With `Reboot` and `MarkForReboot`: the boot that is to end. A node in another boot executes nothing. Absent with
    /// all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub boot_id: Option<String>,
    /// With `MarkForReboot`: the file, which exists as long as the command is issued. Absent with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_marker: Option<MarkOrder>,
    /// When the command was issued (for people; the node measures `ttlSeconds` from when it first read it, and refuses
    /// a command whose age by its own clock exceeds it by more than an hour).
    pub issued_at: Timestamp,
    /// Seconds after issuedAt within which the node may start the command.
    #[schemars(range(min = 1, max = 3600))]
    pub ttl_seconds: u32,
}

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutcomeState {
    /// Claimed and running.
    Running,
    /// Executed; the object was changed.
    Done,
    /// Not executed: the node's own check disagreed. Nothing was changed.
    Refused,
    /// Tried and failed.
    Failed,
}

/// Why a command was executed, refused or failed: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OutcomeReason {
    /// The object was changed as commanded.
    Executed,
    /// The file that requests a reboot exists already and belongs to someone else: it stays as it is, and requests the
    /// same.
    AlreadyRequested,
    /// The operation is claimed already (by the other executor or an earlier start).
    AlreadyExecuted,
    /// The node is in another boot than the one that was to end: nothing is left to do.
    AlreadyRebooted,
    /// The command is for another node.
    WrongNode,
    /// The command is older than its time to live, or was issued by an older leader.
    Expired,
    /// Actions are disabled on this node.
    ActionsDisabled,
    /// The named process or object is gone.
    TargetGone,
    /// Another process or object has its pid, id or role now.
    TargetChanged,
    /// The node's own check does not show the fault any more.
    Recovered,
    /// The node could not check, so it executes nothing.
    CheckFailed,
    /// A rule that protects running pods forbids it.
    Protected,
    /// The kubelet still works on that pod.
    KubeletBusy,
    /// The request or signal itself failed.
    RequestFailed,
}

impl OutcomeReason {
    /// Whether it says that the node was told: it has acted, or another start of the same order has claimed it.
    pub const fn is_told(self) -> bool {
        matches!(self, Self::Executed | Self::AlreadyRequested | Self::AlreadyExecuted | Self::AlreadyRebooted)
    }
}

/// The node's answer to a command: `status.commandResult`, and the termination message of a Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `operationId` of the command that it answers.
    #[schemars(length(max = 63))]
    pub operation_id: String,
    /// The result: Running, Done, Refused (the node's own check disagreed, nothing was changed) or Failed.
    pub state: OutcomeState,
    /// Why, as a word from a closed set; `message` says it in a sentence.
    pub reason: OutcomeReason,
    /// One sentence: which object, what was expected, what was found.
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was answered, by the node's clock.
    pub at: Timestamp,
}
