//! What a step may do, by name and with its parameters.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::command::{Restart, Signal};
use super::drain::Drain;
use super::fault::Daemon;
use super::hand_off::HandOff;
use super::reboot::{MarkForReboot, Reboot};
use super::taint::TaintEffect;

/// The kinds of step, as they stand in policies and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ActionType {
    /// Marks the node unschedulable; undone when the remediation ends, or by its own rule where no step has healed.
    Cordon,
    /// Puts a taint of ours on the node; undone when the remediation ends.
    Taint,
    /// Evicts the pods of the node that we have cordoned, as their disruption budgets allow.
    Drain,
    /// Deletes the stuck DaemonSet pod.
    DeletePod,
    /// Removes the confirmed leftover.
    CleanupOrphans,
    /// Ends the wait of the one hung process.
    ReleaseHungProcess,
    /// Has systemd restart the unit of the kubelet.
    RestartKubelet,
    /// Has systemd restart the unit of the container runtime.
    RestartRuntime,
    /// Has the node's agent boot the machine anew, once it is cordoned.
    Reboot,
    /// Has the node's agent ask another tool of the node for a reboot, by the file that kured looks for.
    MarkForReboot,
    /// Hands the node to a tool that reboots or replaces it.
    HandOff,
    /// Tells people; ends the ladder.
    Notify,
}

impl ActionType {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Cordon,
        Self::Taint,
        Self::Drain,
        Self::DeletePod,
        Self::CleanupOrphans,
        Self::ReleaseHungProcess,
        Self::RestartKubelet,
        Self::RestartRuntime,
        Self::Reboot,
        Self::MarkForReboot,
        Self::HandOff,
        Self::Notify,
    ];

    /// The daemon that such a step has restarted, if it is one.
    pub const fn restarts(self) -> Option<Daemon> {
        match self {
            Self::RestartKubelet => Some(Daemon::Kubelet),
            Self::RestartRuntime => Some(Daemon::Runtime),
            _ => None,
        }
    }

    /// Whether the node boots anew by it, so that it is about one boot and done when the Node shows another.
    pub const fn boots(self) -> bool {
        matches!(self, Self::Reboot | Self::MarkForReboot)
    }

    /// Whether it may heal: it does more than tell people or keep pods away.
    pub const fn heals(self) -> bool {
        !matches!(self, Self::Cordon | Self::Taint | Self::Drain | Self::Notify)
    }

    /// Whether it disturbs what runs on the node: so often this may be done to one node.
    pub const fn disturbs(self) -> bool {
        !matches!(self, Self::Cordon | Self::Taint | Self::Notify)
    }

    /// Whether the node itself carries it out and answers, and not the controller by its own calls.
    pub const fn is_done_on_node(self) -> bool {
        matches!(
            self,
            Self::CleanupOrphans
                | Self::ReleaseHungProcess
                | Self::RestartKubelet
                | Self::RestartRuntime
                | Self::Reboot
                | Self::MarkForReboot
        )
    }

    /// Whether it is ever done for what another tool says of a node (`NodeCondition`). The others have the node look once more at what
    /// they are for, right before the act, and nobody there can look at that.
    pub const fn is_for_node_conditions(self) -> bool {
        matches!(self, Self::Cordon | Self::Taint | Self::Drain | Self::HandOff | Self::Notify)
    }

    /// Whether it marks the node for as long as the remediation lasts: it is done once, and that it cannot be done stops nothing.
    pub const fn marks(self) -> bool {
        matches!(self, Self::Cordon | Self::Taint)
    }

    /// The name as it stands in objects and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cordon => "Cordon",
            Self::Taint => "Taint",
            Self::Drain => "Drain",
            Self::DeletePod => "DeletePod",
            Self::CleanupOrphans => "CleanupOrphans",
            Self::ReleaseHungProcess => "ReleaseHungProcess",
            Self::RestartKubelet => "RestartKubelet",
            Self::RestartRuntime => "RestartRuntime",
            Self::Reboot => "Reboot",
            Self::MarkForReboot => "MarkForReboot",
            Self::HandOff => "HandOff",
            Self::Notify => "Notify",
        }
    }
}

/// A step's action with its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// See [`ActionType::Cordon`]. It contains, it does not heal: the next step follows at once. With a rule for how long
    /// it lasts after the end of the ladder; none = it ends with it.
    Cordon(Option<Quarantine>),
    /// See [`ActionType::Taint`]. It contains, as a cordon does, and never outlasts the remediation.
    Taint(TaintEffect),
    /// See [`ActionType::Drain`]. It contains, as a cordon does: when it is done, or has failed, the next step follows at once.
    Drain(Drain),
    /// See [`ActionType::DeletePod`].
    DeletePod,
    /// See [`ActionType::CleanupOrphans`].
    CleanupOrphans,
    /// See [`ActionType::ReleaseHungProcess`].
    ReleaseHungProcess {
        /// The signal.
        signal: Signal,
        /// Whether a shim may be killed under a pod that is not being deleted.
        allow_running_pods: bool,
    },
    /// See [`ActionType::RestartKubelet`] and [`ActionType::RestartRuntime`].
    Restart {
        /// Which of the two.
        daemon: Daemon,
        /// Of which unit, and whether also where it may do harm.
        with: Restart,
    },
    /// See [`ActionType::Reboot`].
    Reboot(Reboot),
    /// See [`ActionType::MarkForReboot`].
    MarkForReboot(MarkForReboot),
    /// See [`ActionType::HandOff`].
    HandOff(HandOff),
    /// See [`ActionType::Notify`].
    Notify {
        /// What to tell, beside the facts.
        message: Option<String>,
    },
}

impl Action {
    /// To whom it hands the node, if it does.
    pub const fn hand_off(&self) -> Option<&HandOff> {
        match self {
            Self::HandOff(with) => Some(with),
            _ => None,
        }
    }

    /// The effect of the taint that it puts on the node, if it does.
    pub const fn taint(&self) -> Option<TaintEffect> {
        match self {
            Self::Taint(effect) => Some(*effect),
            _ => None,
        }
    }

    /// With how much care it reboots the node, if it does.
    pub const fn reboot(&self) -> Option<&Reboot> {
        match self {
            Self::Reboot(with) => Some(with),
            _ => None,
        }
    }

    /// By which file it asks for a reboot of the node, if it does.
    pub const fn mark_for_reboot(&self) -> Option<&MarkForReboot> {
        match self {
            Self::MarkForReboot(with) => Some(with),
            _ => None,
        }
    }

    /// How it drains the node, if it does.
    pub const fn drain(&self) -> Option<&Drain> {
        match self {
            Self::Drain(with) => Some(with),
            _ => None,
        }
    }

    /// Its kind.
    pub const fn kind(&self) -> ActionType {
        match self {
            Self::Cordon(_) => ActionType::Cordon,
            Self::Taint(_) => ActionType::Taint,
            Self::Drain(_) => ActionType::Drain,
            Self::DeletePod => ActionType::DeletePod,
            Self::CleanupOrphans => ActionType::CleanupOrphans,
            Self::ReleaseHungProcess { .. } => ActionType::ReleaseHungProcess,
            Self::Restart { daemon: Daemon::Kubelet, .. } => ActionType::RestartKubelet,
            Self::Restart { daemon: Daemon::Runtime, .. } => ActionType::RestartRuntime,
            Self::Reboot(_) => ActionType::Reboot,
            Self::MarkForReboot(_) => ActionType::MarkForReboot,
            Self::HandOff(_) => ActionType::HandOff,
            Self::Notify { .. } => ActionType::Notify,
        }
    }
}

/// How long a node stays cordoned whose fault no step of the ladder has healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantine {
    /// At most for this time after the cordon.
    pub quarantine_for: Duration,
    /// No longer than until the fault has stayed away for this time, by clean looks.
    pub healthy_delay: Duration,
}
