//! What resolves a fault.

use std::fmt;

use serde::{Deserialize, Serialize};

use nrh_core::action::{Action, MarkForReboot, Signal};
use nrh_core::fault::{Daemon, FaultType, Subject, SubjectKind};

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

/// Whether an action can do anything about a fault of this kind at all; otherwise the engine leaves the step out.
///
/// # Errors
/// Why not.
pub fn can_help(action: &Action, kind: FaultType) -> Result<(), &'static str> {
    let remedy = &kind.spec().remedy;
    // Where it depends on the subject, a restart helps the daemon that the fault is about.
    let restart = |daemon, subject| (remedy.restart)(&Subject::of(subject)).of(daemon);
    match action {
        Action::ReleaseHungProcess(_) => remedy.hung_process.map(drop),
        Action::CleanupOrphans(_) => remedy.leftover,
        Action::ThawCgroup(_) => remedy.thaw,
        Action::DeletePod(_) => remedy.new_pod,
        Action::RestartKubelet(_) => restart(Daemon::Kubelet, SubjectKind::Kubelet),
        Action::RestartRuntime(_) => restart(Daemon::Runtime, SubjectKind::Runtime),
        Action::Reboot(_) => remedy.new_boot,
        Action::MarkForReboot(_) => MarkForReboot::addresses(kind),
        Action::HandOff(_) => remedy.other_machine,
        Action::Cordon(_) | Action::Taint(_) | Action::Drain(_) => remedy.fewer_pods,
        Action::Notify(_) => Ok(()),
    }
}
