//! `DiskFull` and `ReadOnlyFilesystem`: the file systems in which the kubelet and the runtime keep what they need.

use std::time::Duration;

use super::spec::{ByDaemon, FaultSpec};
use crate::condition_type::ConditionType;
use crate::fault::{FaultGroup, FaultType, Severity, Subject, SubjectKind};
use crate::finding::{Check, Coverage, Detected, Findings, STALE, Sighting, Verdict, answer};
use crate::observation::{DisksSeen, FilesystemSeen, Space};
use crate::text::bounded;
use crate::thresholds::Confirm;

/// The kubelet frees a full disk by itself, if it can. It checks every 10 s for pods to evict, every minute for ended containers
/// and every 5 min for images.
const CONFIRM_FULL: Confirm = Confirm::new("diskFull", 5, 45, 600);

/// A file system that has turned read-only stays read-only. A person may remount one for a moment.
const CONFIRM_READ_ONLY: Confirm = Confirm::new("readOnlyFilesystem", 3, 30, 120);

pub(super) const READ_ONLY: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_READ_ONLY],
    condition: Some(ConditionType::StorageReady),
    lasting: true,
    // Neither the kubelet nor the runtime starts where it cannot write.
    restart_harms: |_| ByDaemon { kubelet: true, runtime: true },
    ..FaultSpec::new(FaultGroup::Node, Severity::Critical, SubjectKind::Filesystem)
};

pub(super) const FULL: FaultSpec = FaultSpec {
    confirm: &[&CONFIRM_FULL],
    condition: Some(ConditionType::StorageReady),
    lasting: true,
    // The databases of the runtime break on a full disk.
    restart_harms: |_| ByDaemon { kubelet: false, runtime: true },
    ..FaultSpec::new(FaultGroup::Node, Severity::High, SubjectKind::Filesystem)
};

/// A full file system has less than a hundredth left, and fewer bytes than this. The kubelet evicts pods from a tenth on: where
/// it can free anything, a file system never becomes this full.
const FULL_BYTES: u64 = 256 << 20;
/// The same for inodes.
const FULL_INODES: u64 = 1000;
/// A full file system is healthy again when this many times as much is left. In between the probe reports nothing.
const CLEAR_FACTOR: u64 = 2;

/// Detects file systems with almost nothing left. One that accepts no writes for another reason is another fault.
pub(super) fn full(check: &Check<'_>, findings: &mut Findings) -> Detected {
    let is_its = |filesystem: &FilesystemSeen| !is_run(filesystem);
    short_of_room(check, findings, FULL_BYTES, is_its, |filesystem, left, checked| Sighting {
        subject: subject(filesystem),
        message: format!(
            "the file system of {} has next to no {left} left, and the kubelet does not get it free",
            names(filesystem)
        ),
        impact: "containers cannot be started, and not even ended: the runtime writes down each change; logs and images \
                 are lost",
        evidence: room(filesystem),
        ..Sighting::new(FaultType::DiskFull, &filesystem.device, checked, check.thresholds.confirm(&CONFIRM_FULL))
    })
}

/// Whether it holds only what lives as long as the boot.
pub(super) fn is_run(filesystem: &FilesystemSeen) -> bool {
    filesystem.folders.iter().all(|folder| folder == "/run" || folder.starts_with("/run/"))
}

/// Detects the file systems of a kind that have less than a hundredth of their bytes left and fewer than this, or the same of their
/// inodes. `fault` makes the fault of one of them, from what is short: `bytes` or `inodes`.
pub(super) fn short_of_room(
    &Check { seen, .. }: &Check<'_>,
    findings: &mut Findings,
    bytes: u64,
    is_its: impl Fn(&FilesystemSeen) -> bool,
    fault: impl Fn(&FilesystemSeen, &str, Duration) -> Sighting,
) -> Detected {
    let (disks, checked) = answer(&seen.disks, seen.now, "the node's file systems", STALE)?;
    let mut coverage = Coverage::new(others(disks, checked));
    for filesystem in disks.filesystems.iter().filter(|filesystem| is_its(filesystem)) {
        let is_less = |space: Space, bound: u64, times: u64| {
            space.total > 0 && space.left < (space.total / 100).min(bound).saturating_mul(times)
        };
        let is_short =
            |times| (is_less(filesystem.bytes, bytes, times), is_less(filesystem.inodes, FULL_INODES, times));
        let verdict = match (is_short(1), is_short(CLEAR_FACTOR)) {
            _ if filesystem.read_only.is_some() => Verdict::undecided("it takes no writes, whatever room it has"),
            ((false, false), (false, false)) => Verdict::Clean { checked },
            ((false, false), _) => Verdict::undecided("it is nearly full"),
            ((bytes, _), _) => {
                let left = if bytes { "bytes" } else { "inodes" };
                findings.sight(fault(filesystem, left, checked));
                Verdict::undecided("it is full")
            }
        };
        coverage.note(&filesystem.device, verdict);
    }
    Ok(coverage)
}

/// Detects file systems that accept no writes, as the kernel reports it. The probe does not write to try.
pub(super) fn read_only(&Check { seen, thresholds, .. }: &Check<'_>, findings: &mut Findings) -> Detected {
    let (disks, checked) = answer(&seen.disks, seen.now, "the node's file systems", STALE)?;
    let mut coverage = Coverage::new(others(disks, checked));
    for filesystem in &disks.filesystems {
        let Some(how) = &filesystem.read_only else {
            coverage.note(&filesystem.device, Verdict::Clean { checked });
            continue;
        };
        findings.sight(Sighting {
            subject: subject(filesystem),
            message: format!("the file system of {} takes no writes: {how}", names(filesystem)),
            impact: "no container can be started or ended, no pod is taken on; the kernel does this after errors of \
                     the disk",
            evidence: vec![format!("device {}: {how}", filesystem.device)],
            ..Sighting::new(
                FaultType::ReadOnlyFilesystem,
                &filesystem.device,
                checked,
                thresholds.confirm(&CONFIRM_READ_ONLY),
            )
        });
    }
    Ok(coverage)
}

/// A file system that is not visible any more is clean only if the check saw all file systems.
fn others(disks: &DisksSeen, checked: Duration) -> Verdict {
    Verdict::clean_unless(disks.unseen.as_deref(), checked)
}

/// What is left of a file system.
pub(super) fn room(FilesystemSeen { device, bytes, inodes, .. }: &FilesystemSeen) -> Vec<String> {
    vec![
        format!("device {device}: {} MiB of {} MiB are left", bytes.left >> 20, bytes.total >> 20),
        format!("{} of {} inodes are left", inodes.left, inodes.total),
    ]
}

pub(super) fn subject(filesystem: &FilesystemSeen) -> Subject {
    Subject::named(SubjectKind::Filesystem, names(filesystem))
}

pub(super) fn names(filesystem: &FilesystemSeen) -> String {
    bounded(&filesystem.folders.join(", "), 253)
}
