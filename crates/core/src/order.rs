//! An order to touch one object on one node, and what became of it.
//!
//! The same JSON stands in `spec.command` of a `NodeCommand` (for the probe) and in the environment of a Job: one executor
//! serves both.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::fault::{FaultType, Target};
use super::reboot::MarkOrder;

/// The signal that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Signal {
    /// SIGCONT: resumes a stopped process. Harmless on any other.
    #[serde(rename = "SIGCONT")]
    Cont,
    /// SIGKILL. Of a shim it ends every container of its pod.
    #[serde(rename = "SIGKILL")]
    Kill,
}

impl Signal {
    /// The name as it stands in objects.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cont => "SIGCONT",
            Self::Kill => "SIGKILL",
        }
    }
}

/// What is done on a node by the executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NodeAction {
    /// Sends SIGCONT to the one named process.
    ReleaseCont,
    /// Sends SIGKILL to the one named process.
    ReleaseKill,
    /// Removes the one named leftover: an orphan container, or a leaked shim.
    CleanupOrphans,
    /// Has systemd restart the kubelet's unit.
    RestartKubelet,
    /// Has systemd restart the container runtime's unit.
    RestartRuntime,
    /// Has systemd's login manager boot the node anew.
    Reboot,
    /// Leaves the file by which another tool of the node is asked to reboot it, for as long as the order stands.
    MarkForReboot,
}

/// How a daemon is restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Restart {
    /// Name of its unit. Absent = kubelet.service; of the runtime containerd.service or crio.service, where its socket is at
    /// the usual place of one of these. Any other has to be named, since more may hang on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 9, max = 128), regex(pattern = r"^[A-Za-z0-9:_.\\@-]+\.service$"))]
    pub unit: Option<String>,
    /// Whether it is done although it would do harm, or nobody knows: while a container hangs, a deaf shim is there, or a
    /// start or stop is under way. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skip_safety_check: bool,
    /// Whether it is started, too, where somebody has stopped it (systemd calls it inactive, not failed). Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub start_if_stopped: bool,
}

/// Whether it is the name of a service's unit as systemd takes it: no path, no pattern, no other kind of unit.
pub fn is_service(unit: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":_.\\@-".contains(c);
    unit.strip_suffix(".service").is_some_and(|name| !name.is_empty())
        && unit.len() <= 128
        && unit.chars().all(is_plain)
}

/// One act on one object, bound to one operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Order {
    /// Identity of the attempt: the node claims it exclusively, so it happens at most once.
    #[schemars(length(min = 1, max = 63), regex(pattern = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"))]
    pub operation_id: String,
    /// Leader term that gave the order; a node refuses one lower than the highest it has seen.
    pub epoch: u64,
    /// Name of the node: an order for another node is refused.
    #[schemars(length(max = 253))]
    pub node: String,
    /// What to do: `ReleaseCont` (SIGCONT) or `ReleaseKill` (SIGKILL) of the named process, `CleanupOrphans`,
    /// `RestartKubelet`, `RestartRuntime`, `Reboot` or `MarkForReboot`.
    pub action: NodeAction,
    /// Whether a shim may be killed although its pod is not being deleted.
    #[serde(default)]
    pub allow_running_pods: bool,
    /// Id of the fault it is meant to heal.
    #[schemars(length(max = 80))]
    pub fault_id: String,
    /// Kind of that fault.
    pub fault_type: FaultType,
    /// What is to be touched. The node looks again and refuses when it finds something else.
    pub target: Target,
    /// With `RestartKubelet` and `RestartRuntime`: which unit, and how much care. Absent with all others, so that a probe of
    /// before can still read them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// With `Reboot` and `MarkForReboot`: the boot that is to end. A node in any other boot does nothing, for good. Absent with all
    /// others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64), regex(pattern = r"^[A-Za-z0-9-]+$"))]
    pub boot_id: Option<String>,
    /// With `MarkForReboot`: the file. It stands as long as the order does. Absent with all others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reboot_marker: Option<MarkOrder>,
    /// When the order was given (for people; the node measures `ttlSeconds` from when it first read it,
    /// and refuses an order whose age by its own clock exceeds it by more than an hour).
    pub issued_at: Timestamp,
    /// Seconds for which the order may be started.
    #[schemars(range(min = 1, max = 3600))]
    pub ttl_seconds: u32,
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OutcomeState {
    /// Claimed and under way.
    Running,
    /// Done; the object was touched.
    Done,
    /// Not done: the node's own look disagreed. Nothing was touched.
    Refused,
    /// Tried and failed.
    Failed,
}

/// Why an order was refused or failed: a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum OutcomeReason {
    /// The object was touched as ordered.
    Executed,
    /// The file that asks for a reboot is there already, made by somebody else: it was left as it is, and asks for the same.
    AlreadyRequested,
    /// The operation is claimed already (by the other executor or an earlier start).
    AlreadyExecuted,
    /// The node is in another boot than the one that was to end: nothing is left to be done.
    AlreadyRebooted,
    /// The order is for another node.
    WrongNode,
    /// The order is older than its time to live, or was given by an older leader.
    Expired,
    /// Acting is switched off on this node.
    ActionsDisabled,
    /// The process or object named is gone.
    TargetGone,
    /// Something else has its pid, id or role now.
    TargetChanged,
    /// The node's own look does not show the fault any more.
    Recovered,
    /// The node could not look, so it does not act.
    CheckFailed,
    /// A rule that protects running pods forbids it.
    Protected,
    /// The kubelet is still at work on that pod.
    KubeletBusy,
    /// The call or signal itself failed.
    RequestFailed,
}

impl OutcomeReason {
    /// Whether it says that the node was told: it has acted, or another start of the same order has claimed it.
    pub const fn is_told(self) -> bool {
        matches!(self, Self::Executed | Self::AlreadyRequested | Self::AlreadyExecuted | Self::AlreadyRebooted)
    }
}

/// The node's answer to an order: `status.commandResult`, and a Job's termination message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// `operationId` of the order it answers.
    #[schemars(length(max = 63))]
    pub operation_id: String,
    /// What became of it: Running, Done, Refused (the node's own look disagreed, nothing was touched) or Failed.
    pub state: OutcomeState,
    /// Why, as a word from a closed set; `message` says it in a sentence.
    pub reason: OutcomeReason,
    /// One sentence: which object, what was expected, what was found.
    #[schemars(length(max = 512))]
    pub message: String,
    /// When it was answered, by the node's clock.
    pub at: Timestamp,
}
