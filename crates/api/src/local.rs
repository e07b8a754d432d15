//! What a probe leaves for people on its node: its status over a socket, and its bundles of evidence in a folder.

use serde::{Deserialize, Serialize};

use crate::NodeRuntimeHealthStatus;
use crate::evidence::CallCounts;

#[cfg(target_os = "linux")]
mod folder;

#[cfg(target_os = "linux")]
pub use folder::{Folder, MAX_BUNDLES, name};

/// The node's folder for the probe's lock and state and the executor's claims.
pub const STATE_DIR: &str = "/run/nrh";
/// Name of the socket in the state folder.
pub const SOCKET: &str = "status.sock";

/// Everything the probe knows at one moment. Times are seconds before that moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LocalStatus {
    /// Name of the node.
    pub node: String,
    /// Seconds since the newest judgement; absent before the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged_seconds: Option<u64>,
    /// The probe's part of the object's status, as it would be sent now.
    #[serde(default)]
    pub status: NodeRuntimeHealthStatus,
    /// State of the probe's calls.
    #[serde(flatten)]
    pub calls: CallCounts,
    /// Number of live tasks of the probe: a few fixed ones, and one per outstanding call.
    #[serde(default)]
    pub tasks: usize,
    /// Seconds since the API server last accepted a report; absent if it has accepted none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_taken_seconds: Option<u64>,
    /// For how many seconds calls to the API server have failed; absent while they succeed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report_failing_seconds: Option<u64>,
    /// Error of the newest failed call.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub report_error: String,
}
