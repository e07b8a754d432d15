//! A command to change one object on one node, and its result.
//!
//! The same JSON stands in `spec.command` of a `NodeCommand` (for the probe) and in the environment of a Job: one executor
//! serves both.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::action::{Action, ActionParams, ActionType, MarkForReboot, ReleaseHungProcess, Restart, Signal};
use super::fault::{FaultType, Target};
use super::reboot::MARK_STANDS;

/// One action on one object, bound to one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Wire", into = "Wire")]
#[schemars(with = "Wire")]
pub struct ActionCommand {
    /// Identity of the operation; the node's answer names it.
    pub operation_id: String,
    /// Leader term; a node refuses one lower than the highest it has seen.
    pub epoch: u64,
    /// Name of the node: a command for another node is refused.
    pub node: String,
    /// What to execute. Only actions that a node carries out have a command.
    pub action: Action,
    /// Id of the fault that it is meant to resolve.
    pub fault_id: String,
    /// Kind of that fault.
    pub fault_type: FaultType,
    /// The object to change.
    pub target: Target,
    /// The only boot in which the node executes it: a boot makes the node forget what it has executed.
    pub boot_id: Option<String>,
    /// Seconds after which the node removes the file of `MarkForReboot` by itself.
    pub marker_expires_after_seconds: Option<u32>,
    /// When the command was issued.
    pub issued_at: Timestamp,
    /// Seconds within which the node may start the command, from when it first read it.
    pub ttl_seconds: u32,
}

impl ActionCommand {
    /// The signal that it sends, if it releases a hung process.
    pub const fn signal(&self) -> Option<Signal> {
        match self.action {
            Action::ReleaseHungProcess(params) => Some(params.signal),
            _ => None,
        }
    }
}

/// The command as it stands in objects. A field that this version does not know may restrict it, so the command cannot be read.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    /// Identity of the operation. A node executes it at most once and names it in `status.commandResult`.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    operation_id: String,
    /// Leader term of the command; a node refuses one lower than the highest it has seen.
    epoch: u64,
    /// Name of the node: a command for another node is refused.
    #[schemars(length(max = 253))]
    node: String,
    /// What to execute: `ReleaseHungProcess`, `CleanupOrphans`, `ThawCgroup`, `RestartKubelet`, `RestartRuntime`, `Reboot` or
    /// `MarkForReboot`. A node refuses any other action.
    action: ActionType,
    /// With `ReleaseHungProcess`: the signal, and whether a shim may be killed whose pod is not being deleted. Absent with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    release_hung_process: Option<ReleaseHungProcess>,
    /// With `RestartKubelet` and `RestartRuntime`: which unit, and which checks are skipped. Absent with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    restart: Option<Restart>,
    /// With `MarkForReboot`: the file, which exists as long as the command is issued. Absent with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mark_for_reboot: Option<MarkForReboot>,
    /// Id of the fault that it is meant to resolve.
    #[schemars(length(max = 80))]
    fault_id: String,
    /// Kind of that fault.
    fault_type: FaultType,
    /// The object to change. The node checks again and refuses if it finds something else.
    target: Target,
    /// The only boot in which the command is executed. Required with `Reboot` and `MarkForReboot`, which end it. A node in another
    /// boot executes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    boot_id: Option<String>,
    /// With `MarkForReboot`: seconds after which the node removes the file by itself, even if nobody withdraws the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MARK_STANDS))]
    marker_expires_after_seconds: Option<u32>,
    /// When the command was issued (for people; the node measures `ttlSeconds` from when it first read it, and refuses
    /// a command whose age by its own clock exceeds it by more than an hour).
    issued_at: Timestamp,
    /// Seconds within which the node may start the command, from when it first read it.
    #[schemars(range(min = 1, max = 3600))]
    ttl_seconds: u32,
}

impl From<ActionCommand> for Wire {
    fn from(command: ActionCommand) -> Self {
        let params = command.action.params();
        Self {
            operation_id: command.operation_id,
            epoch: command.epoch,
            node: command.node,
            action: command.action.kind(),
            release_hung_process: params.release_hung_process,
            restart: params.restart,
            mark_for_reboot: params.mark_for_reboot,
            fault_id: command.fault_id,
            fault_type: command.fault_type,
            target: command.target,
            boot_id: command.boot_id,
            marker_expires_after_seconds: command.marker_expires_after_seconds,
            issued_at: command.issued_at,
            ttl_seconds: command.ttl_seconds,
        }
    }
}

impl TryFrom<Wire> for ActionCommand {
    type Error = String;

    fn try_from(wire: Wire) -> Result<Self, String> {
        let params = ActionParams {
            release_hung_process: wire.release_hung_process,
            restart: wire.restart,
            mark_for_reboot: wire.mark_for_reboot,
            ..ActionParams::default()
        };
        let name = wire.action.as_str();
        let action = wire.action.with(&params).ok_or_else(|| format!("the parameters of {name} are missing"))?;
        let with_defaults = action.params();
        let is_of_another = params.release_hung_process.is_some() && with_defaults.release_hung_process.is_none()
            || params.restart.is_some() && with_defaults.restart.is_none()
            || params.mark_for_reboot.is_some() && with_defaults.mark_for_reboot.is_none();
        if is_of_another {
            return Err(format!("it has parameters that are not those of {name}"));
        }
        Ok(Self {
            operation_id: wire.operation_id,
            epoch: wire.epoch,
            node: wire.node,
            action,
            fault_id: wire.fault_id,
            fault_type: wire.fault_type,
            target: wire.target,
            boot_id: wire.boot_id,
            marker_expires_after_seconds: wire.marker_expires_after_seconds,
            issued_at: wire.issued_at,
            ttl_seconds: wire.ttl_seconds,
        })
    }
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

/// How far the node's clock may differ from the leader's before the node refuses a timely command.
pub const CLOCK_SLACK: Duration = Duration::from_hours(1);
/// Time from the start of a command to its answer: an executor shortens what it does to answer by then.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(170);

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
    /// Whether it says that the command was delivered: the node has acted, or another start of the same command has claimed it.
    pub const fn is_delivered(self) -> bool {
        matches!(self, Self::Executed | Self::AlreadyRequested | Self::AlreadyExecuted | Self::AlreadyRebooted)
    }
}

/// The node's answer to a command: `status.commandResult`, and the termination message of a Job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// Identity of the operation. A node executes it at most once and names it in `status.commandResult`.
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
