//! What resolves a fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use nrh_core::action::{Action, Signal};

nrh_core::named! {
    /// What resolves a fault.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
    pub enum ClearedBy {
        /// The hung process is resumed (`ReleaseHungProcess` with `SIGCONT`).
        #[serde(rename = "SIGCONT")]
        Cont,
        /// The hung process is killed (`ReleaseHungProcess` with `SIGKILL`).
        #[serde(rename = "SIGKILL")]
        Kill,
        /// The leftover is removed.
        CleanupOrphans,
        /// The control group is thawed.
        ThawCgroup,
        /// The kubelet is restarted.
        RestartKubelet,
        /// The container runtime is restarted.
        RestartRuntime,
        /// The pod is deleted.
        DeletePod,
        /// The node is rebooted (`Reboot`, `MarkForReboot`).
        Reboot,
        /// A remediator reboots the node, or replaces it.
        HandOff,
    }
}

impl fmt::Display for ClearedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cont => Signal::Cont.as_str(),
            Self::Kill => Signal::Kill.as_str(),
            other => other.as_str(),
        })
    }
}

impl ClearedBy {
    /// What an action stands for. `None` for one that resolves nothing.
    pub const fn of(action: &Action) -> Option<Self> {
        Some(match action {
            Action::ReleaseHungProcess(with) => match with.signal {
                Signal::Cont => Self::Cont,
                Signal::Kill => Self::Kill,
            },
            Action::CleanupOrphans(_) => Self::CleanupOrphans,
            Action::ThawCgroup(_) => Self::ThawCgroup,
            Action::RestartKubelet(_) => Self::RestartKubelet,
            Action::RestartRuntime(_) => Self::RestartRuntime,
            Action::DeletePod(_) => Self::DeletePod,
            Action::Reboot(_) | Action::MarkForReboot(_) => Self::Reboot,
            Action::HandOff(_) => Self::HandOff,
            Action::Cordon(_) | Action::Taint(_) | Action::Drain(_) | Action::Notify(_) => return None,
        })
    }
}
