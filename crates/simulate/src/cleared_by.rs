//! What resolves a fault.

use serde::{Deserialize, Serialize};

/// What resolves a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub enum ClearedBy {
    /// The hung process is resumed (`ReleaseHungProcess` with `Cont`).
    Cont,
    /// The hung process is killed (`ReleaseHungProcess` with `Kill`).
    Kill,
    /// The leftover is removed.
    CleanupOrphans,
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
