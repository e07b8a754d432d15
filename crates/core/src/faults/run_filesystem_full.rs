//! `RunFilesystemFull`: the file system in memory in which the runtime keeps sockets, bundles and locks has no room.

use super::filesystems::{is_run, names, room, short_of_room, subject};
use super::spec::{ByDaemon, FaultSpec};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, SubjectKind};
use crate::finding::{Check, Detected, Findings, Sighting};
use crate::thresholds::Confirm;

/// Three checks 30 s apart, over 120 s. Many pods that start at once fill it for a moment. Otherwise it does not shrink by itself.
const CONFIRM: Confirm = Confirm::new("runFilesystemFull", 3, 30, 120);
/// Fewer bytes than this, and less than a hundredth. One container needs some tens of KiB there.
const FULL_BYTES: u64 = 16 << 20;

pub(super) const SPEC: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM],
    condition: Some(ConditionType::StorageReady),
    lasting: true,
    // The runtime writes there when it starts.
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    ..FaultSpec::new(FaultGroup::Node, Severity::High, SubjectKind::Filesystem)
};

/// Detects such a file system where the runtime has one of its own. Where `/run` and the data share one, that is `DiskFull`.
pub(super) fn detect(check: &Check<'_>, findings: &mut Findings) -> Detected {
    short_of_room(check, findings, FULL_BYTES, is_run, |filesystem, left, checked| Sighting {
        subject: subject(filesystem),
        message: format!("the file system of {} has next to no {left} left", names(filesystem)),
        impact: "no container can be started: the runtime has no room for its bundle and its sockets; running ones go on",
        evidence: room(filesystem),
        ..Sighting::new(FaultType::RunFilesystemFull, &filesystem.device, checked, check.thresholds.confirm(&CONFIRM))
    })
}
