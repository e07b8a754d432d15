//! Limits, file systems, the certificate and the size of the lists: what the node gives and what is left of it.

use super::*;

const KINDS: [FaultType; 8] = [
    FaultType::PidExhaustion,
    FaultType::FdExhaustion,
    FaultType::DiskFull,
    FaultType::RunFilesystemFull,
    FaultType::ReadOnlyFilesystem,
    FaultType::UninterruptibleProcess,
    FaultType::FrozenCgroup,
    FaultType::ClientCertificateExpiring,
];

/// Whether the coverage lets a fault with this key stand as it is.
fn neither(node: &Node, kind: FaultType, key: &str) -> bool {
    clean_at(&node.findings(), kind, key).is_none()
}

#[test]
fn a_limit_that_runs_out_is_sick_at_its_edge_and_well_far_from_it() {
    for (used, expected) in [(90, Sick), (89, Unknown), (80, Unknown), (79, Clean)] {
        let node = Node::with(|node| node.host().pids[0] = limit(Owner::Node, used, 100));
        assert_eq!(said(&node, FaultType::PidExhaustion, "node"), expected, "{used}%");
        assert!(clean_at(&node.findings(), FaultType::PidExhaustion, "containerd").is_some());
    }
}

#[test]
fn whose_limit_it_is_names_the_fault() {
    for (owner, kind, text) in [
        (Owner::Node, SubjectKind::Host, "host"),
        (Owner::Pods, SubjectKind::Host, "host pods"),
        (Owner::Kubelet, SubjectKind::Kubelet, "kubelet kubelet"),
        (containerd(), SubjectKind::Runtime, "runtime containerd"),
    ] {
        let findings = Node::with(|node| node.host().files = vec![limit(owner.clone(), 1000, 1024)]).findings();
        let sighting = only_of(&findings, FaultType::FdExhaustion, owner.key());
        assert_eq!((sighting.subject.kind, sighting.subject.to_string().as_str()), (kind, text));
        assert!(sighting.message.contains(&owner.to_string()) && !sighting.message.contains("1000"), "{sighting:?}");
    }
}

#[test]
fn a_limit_that_cannot_be_read_is_a_gap_of_that_one() {
    let findings = Node::with(|node| node.host().files[1].usage = Err("permission denied".into())).findings();
    assert!(findings.sightings.is_empty());
    assert!(findings.coverage[&FaultType::FdExhaustion].gap().unwrap().1.contains("permission denied"));
    assert!(clean_at(&findings, FaultType::FdExhaustion, "containerd").is_some());
    // A daemon that is not seen at all: nobody knows how it is.
    let node = Node::with(|node| {
        node.host().files.remove(1);
        node.host().unseen = Some("no kubelet runs".into());
    });
    assert!(neither(&node, FaultType::FdExhaustion, "kubelet"));
}

#[test]
fn a_disk_is_full_when_next_to_nothing_is_left() {
    for (total, left, expected) in [
        (100 << 10, 255, Sick),
        (100 << 10, 256, Unknown),
        (100 << 10, 511, Unknown),
        (100 << 10, 512, Clean),
        // A small one: a hundredth.
        (400, 3, Sick),
        (400, 8, Clean),
        // Below the kubelet's own threshold by far, and not full.
        (2 << 20, 1024, Clean),
        (0, 0, Clean),
    ] {
        let space = Space { total: total << 20, left: left << 20 };
        let node = Node::with(|node| node.disks().filesystems[0].bytes = space);
        assert_eq!(said(&node, FaultType::DiskFull, "254:0"), expected, "{left} of {total} MiB");
    }
}

#[test]
fn a_disk_without_inodes_is_full_too_and_is_named_by_its_folders() {
    let mut node = Node::healthy();
    node.disks().filesystems[0].inodes = Space { total: 6_000_000, left: 999 };
    let findings = node.findings();
    let sighting = only_of(&findings, FaultType::DiskFull, "254:0");
    assert_eq!(sighting.subject.to_string(), "file system of /var/lib/containerd, /var/lib/kubelet");
    assert!(sighting.message.contains("inodes") && !sighting.message.contains("999"), "{}", sighting.message);
    // Some file systems do not count them.
    node.disks().filesystems[0].inodes = Space::default();
    assert!(node.kinds().is_empty());
}

#[test]
fn the_runtimes_own_file_system_below_run_is_a_fault_of_its_own() {
    for (total, left, expected) in [
        (1600, 15, Sick),
        (1600, 16, Unknown),
        (1600, 32, Clean),
        // One in a hundred of a small one.
        (100, 0, Sick),
        (100, 1, Unknown),
        (100, 2, Clean),
    ] {
        let mut node = Node::healthy();
        let run = &mut node.disks().filesystems[1];
        assert_eq!(run.folders, ["/run"]);
        run.bytes = Space { total: total << 20, left: left << 20 };
        assert_eq!(said(&node, FaultType::RunFilesystemFull, "0:24"), expected, "{left} of {total} MiB");
    }
}

#[test]
fn a_file_system_that_takes_no_writes_is_that_and_not_full() {
    let mut node = Node::healthy();
    let disk = &mut node.disks().filesystems[0];
    disk.read_only = Some("ext4 has stopped after an error (emergency_ro)".into());
    disk.bytes.left = 0;
    let findings = node.findings();
    let sighting = only(&findings);
    assert_eq!((sighting.kind, sighting.severity), (FaultType::ReadOnlyFilesystem, Severity::Critical));
    assert!(sighting.message.contains("emergency_ro"), "{}", sighting.message);
    assert!(clean_at(&findings, FaultType::ReadOnlyFilesystem, "0:24").is_some());
}

#[test]
fn what_is_out_of_sight_is_not_clean() {
    let mut node = Node::healthy();
    node.disks().filesystems.remove(0);
    for kind in [FaultType::DiskFull, FaultType::ReadOnlyFilesystem] {
        assert!(!neither(&node, kind, "254:0"), "everything was looked at: it is not there any more");
    }
    node.disks().unseen = Some("the folders of containerd cannot be looked at".into());
    for kind in [FaultType::DiskFull, FaultType::ReadOnlyFilesystem] {
        assert!(neither(&node, kind, "254:0"));
    }
    for kind in [FaultType::RunFilesystemFull, FaultType::ReadOnlyFilesystem] {
        assert!(!neither(&node, kind, "0:24"));
    }
}

#[test]
fn a_certificate_is_overdue_when_no_kubelet_would_have_waited_so_long() {
    let hour = Duration::from_hours(1);
    let day = hour * 24;
    for (lifetime, left, severity) in [
        (day * 365, day * 37, None),
        (day * 365, day * 15, None),
        (day * 365, day * 14, Some(Severity::Medium)),
        (day * 365, Duration::ZERO, Some(Severity::High)),
        (day, hour * 2, None),
        (day, hour, Some(Severity::Medium)),
        // One of ten years, renewed by hand.
        (day * 3650, day * 100, None),
        (day * 3650, day * 13, Some(Severity::Medium)),
        // Made to last for no time.
        (Duration::ZERO, Duration::ZERO, Some(Severity::High)),
    ] {
        let credential = Credential::Certificate { place: "/c.pem".into(), lifetime, left };
        let findings = Node::with(|node| node.disks().credential = credential).findings();
        assert_eq!(findings.sightings.first().map(|sighting| sighting.severity), severity, "{left:?} of {lifetime:?}");
        let clean = clean_at(&findings, FaultType::ClientCertificateExpiring, "kubelet").is_some();
        assert_eq!(clean, severity.is_none());
    }
}

#[test]
fn a_kubelet_without_a_certificate_is_clean_and_one_that_cannot_be_read_is_not() {
    let mut node = Node::healthy();
    node.disks().credential = Credential::Other;
    assert!(!neither(&node, FaultType::ClientCertificateExpiring, "kubelet"));
    node.disks().credential = Credential::Unknown("permission denied".into());
    assert!(neither(&node, FaultType::ClientCertificateExpiring, "kubelet"));
    assert!(node.kinds().is_empty());
}

#[test]
fn a_list_on_its_way_to_the_wall_is_told_when_most_of_it_has_ended() {
    const MIB: usize = 1 << 20;
    for (bytes, sick, clean) in
        [(8 * MIB, true, false), (8 * MIB - 1, false, false), (6 * MIB, false, false), (6 * MIB - 1, false, true)]
    {
        let findings = Node::with(|node| {
            node.list().containers.iter_mut().for_each(|container| container.state = ContainerState::Exited);
            node.list().answer_bytes = bytes;
        })
        .findings();
        let sighted = findings.sightings.iter().any(|one| one.kind == FaultType::ExitedContainerBacklog);
        assert_eq!(sighted, sick, "{bytes}");
        assert_eq!(clean_at(&findings, FaultType::ExitedContainerBacklog, "lists").is_some(), clean, "{bytes}");
    }
    // Large by what runs.
    let node = Node::with(|node| node.list().answer_bytes = 9 * MIB);
    assert_eq!(said(&node, FaultType::ExitedContainerBacklog, "lists"), Clean);
}

#[test]
fn a_list_that_is_too_large_is_told_and_one_that_fails_otherwise_is_not() {
    let mut node = Node::healthy();
    node.lists = failed("too large");
    assert!(node.kinds().is_empty());
    assert!(neither(&node, FaultType::ExitedContainerBacklog, "lists"));
    node.list_too_large = true;
    let findings = node.findings();
    assert_eq!((only(&findings).kind, only(&findings).severity), (FaultType::ExitedContainerBacklog, Severity::High));
}

#[test]
fn nobody_checked_is_never_sick_and_never_clean() {
    let mut node = Node::healthy();
    for check in [hung(60), failed("x")] {
        (node.host, node.disks) = (check, Reading::Never);
        let findings = node.findings();
        assert!(of_node(&findings).is_empty());
        for kind in KINDS {
            assert!(findings.coverage[&kind].gap().is_some(), "{kind}");
            assert_eq!(clean_at(&findings, kind, "anything"), None, "{kind}");
        }
    }
}
