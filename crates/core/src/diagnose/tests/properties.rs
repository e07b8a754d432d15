//! What holds for whatever the collectors have seen, also for what no node was ever seen to show.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::observation::{BusStep, LeftOut, ThreadWaiting, UntrackedSeen};

/// A few ids, so that what one collector names is often what another collector knows.
fn id() -> impl Strategy<Value = String> {
    select(vec![SANDBOX, OTHER, WORK, SIDECAR, OTHER_WORK]).prop_map(str::to_owned)
}

/// Mostly short; sometimes as long as a hostile runtime makes them.
fn text() -> impl Strategy<Value = String> {
    prop_oneof![8 => Just("work".to_owned()), 1 => Just("ä\n".repeat(5000)), 1 => Just(String::new())]
}

fn path() -> impl Strategy<Value = String> {
    text().prop_map(|text| format!("/{text}"))
}

/// The pod of a sandbox: no runtime was seen to say two things of it.
fn pod_of(sandbox_id: &str, namespace: String) -> PodRef {
    PodRef { namespace, ..pod(if sandbox_id.starts_with('a') { "one" } else { "other" }) }
}

fn seconds(most: u64) -> impl Strategy<Value = Duration> {
    (0..most).prop_map(Duration::from_secs)
}

/// How a check of this may stand.
fn reading<T: Clone + std::fmt::Debug + 'static>(
    value: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Reading<T>> {
    let took = Duration::from_millis(5);
    prop_oneof![
        6 => (value, seconds(400)).prop_map(move |(value, age)| Reading::Done { value, age, took }),
        1 => Just(Reading::Never),
        1 => seconds(400).prop_map(|out| Reading::Hung { out }),
        1 => (text(), seconds(400)).prop_map(|(error, age)| Reading::Failed { error, age }),
        1 => text().prop_map(|reason| Reading::Unavailable { reason }),
    ]
    .boxed()
}

fn lists() -> impl Strategy<Value = ListRound> {
    let sandbox = (id(), any::<bool>(), text(), 0_u32..3).prop_map(|(id, ready, namespace, attempt)| {
        let pod = pod_of(&id, namespace);
        SandboxSeen { id, ready, pod, attempt }
    });
    let states =
        select(vec![ContainerState::Created, ContainerState::Running, ContainerState::Exited, ContainerState::Unknown]);
    let container = (id(), id(), text(), prop::option::of(text()), states, 0_u32..3).prop_map(
        |(id, sandbox_id, name, namespace, state, attempt)| {
            let pod = namespace.map(|namespace| pod_of(&sandbox_id, namespace));
            ContainerSeen { id, sandbox_id, name, pod, state, attempt }
        },
    );
    let recheck = select(vec![OrphanCheck::Confirmed, OrphanCheck::Refuted, OrphanCheck::NoAnswer]);
    (
        prop::collection::vec(sandbox, 0..4),
        prop::collection::vec(container, 0..5),
        prop::collection::vec(id(), 0..4),
        prop::collection::btree_map(id(), recheck, 0..4),
        prop::collection::btree_map(id(), prop::option::of(any::<bool>()), 0..4),
        (seconds(90), select(vec![900, 7 << 20, 9 << 20]), prop::collection::btree_map(id(), seconds(100), 0..3)),
    )
        .prop_map(|(sandboxes, mut containers, sandboxes_again, orphan_checks, asked_sandboxes, more)| {
            // Ids are keys in every runtime: none was seen to list one twice, in two pods at that.
            containers.sort_by(|one, other| one.id.cmp(&other.id));
            containers.dedup_by(|one, other| one.id == other.id);
            let (containers_before, answer_bytes, unfinished) = more;
            ListRound {
                sandboxes,
                containers,
                containers_before,
                sandboxes_again,
                answer_bytes,
                orphan_checks,
                unfinished,
                asked_sandboxes,
                removals: None,
                round: 1,
            }
        })
}

fn role() -> impl Strategy<Value = ProcessRole> {
    let plugin = (prop::option::of(id()), prop::collection::vec(path(), 0..3), any::<bool>(), 0_u32..4);
    prop_oneof![
        2 => Just(ProcessRole::Runtime),
        2 => Just(ProcessRole::Kubelet),
        4 => (id(), 0_u32..2).prop_map(|(id, living_children)| ProcessRole::Shim { id, living_children }),
        3 => plugin.prop_map(|(sandbox_id, holds, waits, waiters)| ProcessRole::NetworkPlugin {
            plugin: "ptp".into(),
            sandbox_id,
            pod_uid: None,
            pod_name: None,
            holds,
            waits,
            waiters,
        }),
        2 => (id(), prop::option::of(Just(pod("one"))), 0_u32..2)
            .prop_map(|(id, pod, living_children)| ProcessRole::Monitor { id, pod, living_children }),
        2 => (select(vec!["create", "delete", "exec"]), prop::option::of(id()))
            .prop_map(|(verb, container_id)| ProcessRole::RuntimeClient { verb: verb.to_owned(), container_id }),
    ]
}

fn processes() -> impl Strategy<Value = ProcessTable> {
    let one = (2_i32..400, select(vec![1, 50]), seconds(2000), select(vec!['S', 'T', 'D', 'Z', 'R']), text(), role())
        .prop_map(|(pid, parent, age, state, command, role)| ProcessSeen {
            parent,
            age,
            state,
            command,
            still: (age.as_secs() % 2 == 0).then_some(age),
            ..process(pid, role)
        });
    let possible_role = select(vec![
        PossibleRole::Shim,
        PossibleRole::Monitor,
        PossibleRole::NetworkPlugin,
        PossibleRole::RuntimeClient,
        PossibleRole::Other,
    ]);
    let unproven = (2_i32..400, seconds(2000), text(), possible_role, prop::option::of(seconds(400))).prop_map(
        |(pid, age, command, possible_role, waited)| UnprovenProcess {
            pid,
            start_ticks: 7,
            age,
            state: 'D',
            waited,
            command,
            possible_role,
        },
    );
    let why = || prop::option::weighted(0.2, select(vec!["too long".to_owned(), "ä\n".repeat(5000)]));
    let left_out = (why(), why()).prop_map(|(processes, inits)| LeftOut { processes, inits, locks: None });
    (prop::collection::vec(one, 0..7), prop::collection::vec(unproven, 0..2), left_out).prop_map(
        |(mut processes, mut unproven, left_out)| {
            // A pid is one process's at a time: no table lists it twice.
            let mut pids = BTreeSet::new();
            processes.retain(|process| pids.insert(process.pid));
            unproven.retain(|process| pids.insert(process.pid));
            ProcessTable { processes, unproven, left_out, round: 1, ..ProcessTable::default() }
        },
    )
}

/// The kernel's limits: how much of each is used, and what could not be checked.
fn host() -> impl Strategy<Value = HostSeen> {
    let usage = || {
        prop_oneof![
            4 => (0_u64..=100).prop_map(|used| Ok(Usage { used, limit: 100 })),
            1 => text().prop_map(Err),
        ]
    };
    let frozen =
        (id(), seconds(400), text()).prop_map(|(sandbox_id, age, group)| frozen_init(9, age, &sandbox_id, &group));
    let frozen = prop_oneof![3 => prop::collection::vec(frozen, 0..3).prop_map(Ok), 1 => text().prop_map(Err)];
    let thread = (seconds(400), prop::option::of(text())).prop_map(|(waited, wchan)| ThreadWaiting {
        thread: 61,
        waited,
        wchan,
    });
    let untracked_process =
        (id(), text()).prop_map(|(id, group)| UntrackedSeen { id, pod_uid: group.clone(), group, pids: vec![9] });
    let untracked =
        prop_oneof![3 => prop::collection::vec(untracked_process, 0..2).prop_map(Ok), 1 => text().prop_map(Err)];
    (usage(), usage(), frozen, untracked, prop::option::of(thread), prop::option::of(text())).prop_map(
        |(pids, files, frozen, untracked, waiting, unseen)| {
            let mut host = HostSeen { frozen, untracked, unseen, ..roomy() };
            (host.pids[0].usage, host.files[1].usage) = (pids, files);
            host.daemons[0].waiting = Ok(waiting);
            host
        },
    )
}

fn disks() -> impl Strategy<Value = DisksSeen> {
    let left = || select(vec![0_u64, 1, 1000, 300 << 20, 50 << 30]);
    let lifetime = Duration::from_hours(24 * 365);
    let credential = prop_oneof![
        (0_u64..=400, text()).prop_map(move |(days, place)| Credential::Certificate {
            place,
            lifetime,
            left: Duration::from_hours(24 * days),
        }),
        Just(Credential::Other),
        text().prop_map(Credential::Unknown),
    ];
    (left(), left(), prop::option::of(text()), prop::option::of(text()), text(), credential).prop_map(
        |(bytes, inodes, read_only, unseen, folder, credential)| {
            let mut disks = DisksSeen { unseen, credential, ..sound() };
            let first = &mut disks.filesystems[0];
            (first.bytes.left, first.inodes.left, first.read_only) = (bytes, inodes, read_only);
            first.folders.push(folder);
            disks
        },
    )
}

fn port() -> impl Strategy<Value = PortSeen> {
    let relists = (any::<bool>(), prop::option::of(seconds(200)), seconds(200), prop::option::of(seconds(200)))
        .prop_map(|(begun, mean, idle, unmoved)| RelistsSeen { begun, mean, idle, unmoved });
    let sync_loop = prop_oneof![3 => any::<bool>().prop_map(Ok), 1 => text().prop_map(Err)];
    let relists = prop_oneof![3 => relists.prop_map(Ok), 1 => text().prop_map(Err)];
    (sync_loop, relists).prop_map(|(sync_loop, relists)| PortSeen { sync_loop, relists })
}

fn bus() -> impl Strategy<Value = BusSeen> {
    let step = select(vec![BusStep::Connect, BusStep::Login, BusStep::Hello, BusStep::Ping]);
    prop_oneof![
        2 => select(vec![BusSeen::Answered, BusSeen::NoBus, BusSeen::NotOnIt]),
        1 => (step.clone(), text()).prop_map(|(step, how)| BusSeen::Silent { step, how }),
        1 => (step, text()).prop_map(|(step, how)| BusSeen::Refused { step, how }),
    ]
}

fn clock() -> impl Strategy<Value = ClockSeen> {
    (seconds(90), any::<bool>(), seconds(60)).prop_map(|(certain, is_ahead, more)| {
        let (ahead, behind) = if is_ahead { (certain, Duration::ZERO) } else { (Duration::ZERO, certain) };
        ClockSeen { ahead, behind, most: certain + more }
    })
}

fn kubelet() -> impl Strategy<Value = KubeletSeen> {
    (prop::option::of(seconds(2000)), prop::option::of(any::<bool>()), prop::option::of(text())).prop_map(
        |(age, healthz, note)| KubeletSeen {
            process: age.map(|age| (60, 6000, age)),
            healthz,
            note,
            ..KubeletSeen::default()
        },
    )
}

fn status() -> impl Strategy<Value = StatusSeen> {
    let network =
        (any::<bool>(), text(), text()).prop_map(|(ready, reason, message)| NetworkSeen { ready, reason, message });
    prop::option::of(network).prop_map(|network| StatusSeen { network })
}

fn runtime() -> impl Strategy<Value = RuntimeSeen> {
    (select(vec!["containerd", "docker", "cri-o", ""]), text())
        .prop_map(|(name, version)| RuntimeSeen { name: name.to_owned(), version })
}

fn kind() -> impl Strategy<Value = RuntimeKind> {
    select(vec![
        RuntimeKind::Unknown,
        RuntimeKind::Containerd,
        RuntimeKind::Docker,
        RuntimeKind::CriO,
        RuntimeKind::Other,
    ])
}

fn node() -> impl Strategy<Value = Node> {
    let answers = select(vec![
        TaskAnswer::Answered,
        TaskAnswer::DaemonAnswered,
        TaskAnswer::Ended,
        TaskAnswer::NoAnswer,
        TaskAnswer::NotFound,
        TaskAnswer::ProcessGone,
    ]);
    (
        (reading(runtime()), reading(status())),
        reading(lists()),
        any::<bool>(),
        prop::collection::btree_map(id(), reading(answers), 0..5),
        reading(processes()),
        reading(kubelet()),
        (reading(host()), reading(disks()), reading(port()), reading(bus()), reading(clock()), any::<bool>(), kind()),
    )
        .prop_map(|((runtime, status), lists, sandbox_list_hung, tasks, processes, kubelet, more)| {
            let (host, disks, port, bus, clock, list_too_large, kind) = more;
            Node {
                pressure: crate::observation::Pressure::default(),
                status,
                host,
                disks,
                port,
                bus,
                clock,
                list_too_large,
                kind,
                now: Duration::from_secs(10_000),
                runtime,
                lists,
                sandbox_list_hung,
                tasks,
                processes,
                kubelet,
            }
        })
}

fn known() -> impl Strategy<Value = Known> {
    (any::<bool>(), any::<bool>()).prop_map(|(host_processes, tasks)| Known {
        host_processes,
        tasks,
        ..Known::default()
    })
}

fn judged(node: &Node, known: Known) -> Findings {
    diagnose(node, known, &Thresholds::default())
}

/// What is held against what.
fn accused(findings: &Findings) -> Vec<(FaultType, String)> {
    let mut all: Vec<_> = findings.sightings.iter().map(|seen| (seen.kind, seen.key.clone())).collect();
    all.sort();
    all
}

type Change = fn(&mut Node);

/// Each collector: a node on which it cannot check, and the kinds of which nothing can be said without it. A collector
/// whose silence is the sign is among them: it must have been asked.
const COLLECTORS: [(&str, Change, &[FaultType]); 11] = {
    use FaultType as F;
    [
        ("runtime", |node| node.runtime = unavailable("no permission"), &[F::RuntimeUnreachable]),
        ("status", |node| node.status = unavailable("no permission"), &[F::NetworkNotReady]),
        (
            "lists",
            |node| node.lists = unavailable("no permission"),
            &[
                F::OrphanContainer,
                F::DuplicateSandbox,
                F::RuntimeListHung,
                F::RuntimeUpdateBlocked,
                F::ExitedContainerBacklog,
                F::GhostSandbox,
                F::ContainerStuck,
                F::UntrackedPodProcess,
                F::LeakedShim,
                F::LostTask,
            ],
        ),
        (TASKS, |node| node.tasks.clear(), &[F::LostTask]),
        (
            "processes",
            |node| node.processes = unavailable("no permission"),
            &[F::LeakedShim, F::NetworkPluginHung, F::RuntimeClientHung, F::UninterruptibleProcess],
        ),
        ("kubelet", |node| node.kubelet = unavailable("no permission"), &[F::KubeletDown, F::KubeletCrashLoop]),
        (
            "host",
            |node| node.host = unavailable("no permission"),
            &[F::UntrackedPodProcess, F::PidExhaustion, F::FdExhaustion, F::FrozenCgroup],
        ),
        (
            "disks",
            |node| node.disks = unavailable("no permission"),
            &[F::DiskFull, F::ReadOnlyFilesystem, F::ClientCertificateExpiring],
        ),
        ("port", |node| node.port = unavailable("no permission"), &[F::SyncLoopStalled, F::PlegSlow]),
        ("bus", |node| node.bus = unavailable("no permission"), &[F::DbusUnresponsive]),
        ("clock", |node| node.clock = unavailable("no permission"), &[F::ClockUnsynchronised]),
    ]
};

/// The tasks are asked in turn: those that were not are no gap of the one that is missing.
const TASKS: &str = "tasks";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_accusation_has_its_evidence_and_a_check_that_was_made(node in node(), known in known()) {
        let findings = judged(&node, known);
        for seen in &findings.sightings {
            prop_assert!(!seen.evidence.is_empty(), "{:?} without evidence", seen.kind);
            prop_assert!(seen.checked <= node.now);
            prop_assert!(node.now.saturating_sub(seen.checked) <= CLOCK_STALE, "{:?}: a look of long ago", seen.kind);
            prop_assert!(!seen.message.is_empty() && !seen.impact.is_empty() && !seen.key.is_empty());
        }
        for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
            prop_assert!(findings.coverage.contains_key(&kind), "nothing said of {kind}");
        }
    }

    #[test]
    fn a_collector_that_cannot_check_takes_away_what_stands_on_it(node in node(), known in known()) {
        for (collector, take_away, kinds) in COLLECTORS {
            let mut node = node.clone();
            take_away(&mut node);
            let findings = judged(&node, known);
            for seen in findings.sightings.iter().filter(|seen| kinds.contains(&seen.kind)) {
                prop_assert!(false, "{:?} without the collector {collector}: {:?}", seen.kind, seen.evidence);
            }
            for (kind, coverage) in findings.coverage.iter().filter(|(kind, _)| kinds.contains(kind)) {
                let said = coverage.gap().is_some() || collector == TASKS;
                prop_assert!(said, "{kind} is called clean without the collector {collector}");
            }
        }
    }

    #[test]
    fn a_part_of_the_processes_accuses_nobody_and_clears_nobody_whom_the_whole_does_not(
        node in node(),
        known in known(),
    ) {
        let (mut whole, mut part) = (node.clone(), node);
        for (node, why) in [(&mut whole, None), (&mut part, Some("too long".to_owned()))] {
            if let Reading::Done { value, .. } = &mut node.processes {
                value.left_out = LeftOut { processes: why, ..LeftOut::default() };
            }
        }
        let (whole, part) = (judged(&whole, known), judged(&part, known));
        let accused_by_whole = accused(&whole);
        for one in accused(&part) {
            prop_assert!(accused_by_whole.contains(&one), "{one:?}");
        }
        for (kind, coverage) in &part.coverage {
            let is_clear = |coverage: &Coverage| matches!(coverage.others, Verdict::Clean { .. });
            prop_assert!(!is_clear(coverage) || is_clear(&whole.coverage[kind]), "{kind}");
        }
        prop_assert!(!part.runtime_gone);
    }

    #[test]
    fn the_order_in_which_a_collector_answers_is_nothing(node in node(), known in known(), turn in 0_usize..7) {
        let mut turned = node.clone();
        if let Reading::Done { value, .. } = &mut turned.lists {
            let (sandboxes, containers) = (value.sandboxes.len().max(1), value.containers.len().max(1));
            value.sandboxes.rotate_left(turn % sandboxes);
            value.containers.rotate_left(turn % containers);
            value.sandboxes_again.reverse();
        }
        if let Reading::Done { value, .. } = &mut turned.processes {
            value.processes.reverse();
            value.unproven.reverse();
        }
        prop_assert_eq!(accused(&judged(&node, known)), accused(&judged(&turned, known)));
    }

    #[test]
    fn whatever_a_runtime_answers_the_report_stays_small(node in node(), known in known()) {
        let findings = judged(&node, known);
        prop_assert!(findings.ask.len() <= MAX_ASK);
        for seen in &findings.sightings {
            prop_assert!(seen.message.len() <= MAX_LINE && seen.impact.len() <= MAX_LINE);
            prop_assert!(seen.evidence.len() <= MAX_EVIDENCE);
            prop_assert!(seen.evidence.iter().all(|line| line.len() <= MAX_LINE));
            let bounded = serde_json::to_string(&(&seen.subject, &seen.target)).unwrap().len();
            prop_assert!(bounded <= 16 << 10, "{bounded} bytes of subject and target");
        }
    }

    #[test]
    fn old_answers_accuse_nobody(node in node(), known in known()) {
        fn aged<T: Clone>(reading: &Reading<T>, by: Duration) -> Reading<T> {
            match reading.clone() {
                Reading::Done { value, took, .. } => Reading::Done { value, age: by, took },
                Reading::Failed { error, .. } => Reading::Failed { error, age: by },
                // A call that is out is a fact of now, however long it has been out.
                Reading::Hung { .. } => Reading::Never,
                other => other,
            }
        }
        let by = CLOCK_STALE.max(PORT_STALE) + Duration::from_secs(1);
        let old = Node {
            runtime: aged(&node.runtime, by),
            lists: aged(&node.lists, by),
            tasks: node.tasks.iter().map(|(id, reading)| (id.clone(), aged(reading, by))).collect(),
            processes: aged(&node.processes, by),
            kubelet: aged(&node.kubelet, by),
            host: aged(&node.host, by),
            disks: aged(&node.disks, by),
            bus: aged(&node.bus, by),
            clock: aged(&node.clock, by),
            status: aged(&node.status, by),
            port: aged(&node.port, by),
            ..node
        };
        let findings = judged(&old, known);
        // That a collector cannot check is a fact of now too.
        let accused: Vec<_> = accused(&findings).into_iter().filter(|(kind, _)| *kind != FaultType::ProbeDegraded).collect();
        prop_assert_eq!(accused, Vec::new());
        let silent = |kind: &FaultType| findings.coverage.get(kind).and_then(Coverage::gap).is_some();
        for kind in FaultType::ALL.into_iter().filter(|kind| !kind.is_cluster_fault()) {
            prop_assert!(silent(&kind), "{kind} is called clean on answers of long ago");
        }
    }
}
