//! What a busy node does to its disks, its processes and its numbers.

use super::super::clock::apart;
use super::*;
use crate::fault::FaultType as F;
use crate::observation::{BusStep, ThreadWaiting};

const KEY: usize = 0;

fn waits(node: &mut Node, seconds: u64) {
    let shim = node.shim(SANDBOX);
    (shim.state, shim.waited) = ('D', Some(Duration::from_secs(seconds)));
}

fn thread_waits(node: &mut Node, seconds: u64) {
    let waited = Duration::from_secs(seconds);
    node.host().daemons[1].waiting = Ok(Some(ThreadWaiting { thread: 55, waited, wchan: None }));
}

fn frozen(node: &mut Node, age: u64) {
    node.host().frozen = Ok(vec![frozen_init(800, Duration::from_secs(age), NEW, "g")]);
}

fn left(node: &mut Node, left: Duration) {
    let Credential::Certificate { left: is, .. } = &mut node.disks().credential else { panic!("no certificate") };
    *is = left;
}

fn no_systemd(node: &mut Node, step: BusStep) {
    node.bus = done(BusSeen::Silent { step, how: "no answer within 5 s".into() });
}

fn many_ended(node: &mut Node) {
    node.list().containers.iter_mut().filter(|c| c.sandbox_id == OTHER).for_each(|c| c.state = ContainerState::Exited);
    node.list().containers.retain(|container| container.sandbox_id == OTHER);
    node.list().sandboxes.iter_mut().for_each(|sandbox| sandbox.ready = false);
    node.list().answer_bytes = 9 << 20;
    node.tasks.clear();
    node.table().retain(|process| !matches!(process.role, ProcessRole::Shim { .. }));
}

/// Over these nothing is confirmed.
pub(super) fn timelines() -> Vec<Timeline> {
    vec![
        at_first("a storm of forks", 100, 300, &[F::PidExhaustion], |node, _| {
            node.host().pids[KEY] = limit(Owner::Node, 31_000, 32_768);
        }),
        timeline("a number at the edge", 1200, &[], |node, t| {
            let used = if t % 10 < 5 { 89 } else { 79 };
            node.host().pids[KEY] = limit(Owner::Node, used, 100);
            node.host().files[KEY] = limit(Owner::Node, used, 100);
        }),
        timeline(
            "a kubelet starts late and renews its certificate",
            3600,
            &[F::ClientCertificateExpiring],
            |node, t| {
                left(node, if t < 300 { Duration::from_hours(2) } else { Duration::from_hours(24 * 300) });
            },
        ),
        at_first("the clock is a year ahead for ten minutes", 600, 3600, &[F::ClientCertificateExpiring], |node, _| {
            left(node, Duration::ZERO);
        }),
        timeline("a certificate that is due to be renewed", 3600, &[], |node, _| {
            left(node, Duration::from_hours(24 * 36));
        }),
        at_first("a container takes four minutes to be made", 240, 400, &[F::UntrackedPodProcess], |node, _| {
            super::super::untracked::lost(node);
        }),
        at_first("ended containers of a storm of jobs", 540, 900, &[F::ExitedContainerBacklog], |node, _| {
            many_ended(node);
        }),
        timeline("runtimes freeze what they update, and people what they look at", 600, &[], |node, t| {
            // Of containers that run nothing is seen; one that is being made is caught frozen now and then.
            if t % 60 < 20 {
                frozen(node, 10 + t % 60);
            }
        }),
        at_first("the kubelet restarts, and is not there to be looked through", 30, 300, &[], |node, _| {
            node.disks().filesystems.remove(0);
            node.disks().unseen = Some("no kubelet runs".into());
            node.disks().credential = Credential::Unknown("no kubelet runs".into());
            node.host().unseen = Some("no kubelet runs".into());
        }),
    ]
}

/// The same, of disks.
pub(super) fn of_disks() -> Vec<Timeline> {
    vec![
        timeline("shims and daemons wait for a slow disk, and run in between", 1200, &[], |node, t| {
            waits(node, t % 60);
            thread_waits(node, (t + 30) % 60);
        }),
        at_first("a disk is frozen for a snapshot", 120, 400, &[F::UninterruptibleProcess], |node, t| {
            waits(node, t);
            thread_waits(node, t);
        }),
        at_first("a slow disk flushes what a pull has left", 400, 700, &[F::UninterruptibleProcess], |node, t| {
            waits(node, t);
            thread_waits(node, t);
        }),
        timeline("images fill the disk, and the kubelet frees it", 900, &[F::DiskFull], |node, t| {
            node.disks().filesystems[0].bytes.left = if t < 540 { 100 << 20 } else { 20 << 30 };
        }),
        timeline("a node at the kubelet's own threshold", 3600, &[], |node, _| {
            node.disks().filesystems[0].bytes.left = 10 << 30;
            node.disks().filesystems[0].inodes.left = 50_000;
        }),
        at_first("a person remounts a disk", 100, 300, &[F::ReadOnlyFilesystem], |node, _| {
            node.disks().filesystems[0].read_only = Some("it is mounted read-only".into());
        }),
        at_first("a disk does not answer for ten minutes", 600, 900, &[F::ProbeDegraded], |node, t| {
            node.disks = hung(t);
        }),
    ]
}

/// The same, of systemd and of the clock.
pub(super) fn of_bus_and_clock() -> Vec<Timeline> {
    vec![
        at_first("systemd is busy while a node boots", 75, 300, &[F::DbusUnresponsive], |node, _| {
            no_systemd(node, BusStep::Ping);
        }),
        at_first("five hundred mounts at once", 170, 600, &[F::DbusUnresponsive], |node, _| {
            no_systemd(node, BusStep::Ping);
        }),
        timeline("the bus is restarted, and systemd executes itself anew", 300, &[F::DbusUnresponsive], |node, t| {
            match t {
                0..20 => no_systemd(node, BusStep::Connect),
                20..40 => no_systemd(node, BusStep::Login),
                40..60 => node.bus = done(BusSeen::NotOnIt),
                _ => {}
            }
        }),
        timeline("a node without systemd", 3600, &[], |node, _| node.bus = done(BusSeen::NoBus)),
        timeline("a bus that systemd is not on", 3600, &[], |node, _| node.bus = done(BusSeen::NotOnIt)),
        at_first("a clock that is behind is put right", 560, 900, &[F::ClockUnsynchronised], |node, t| {
            node.clock = done(apart(0, 7200 - 10 * t, 7202));
        }),
        timeline("the API server takes 30 s for an answer", 3600, &[], |node, t| {
            node.clock = done(apart(0, 0, if t % 60 < 30 { 1 } else { 31 }));
        }),
        timeline("two API servers, one of them 20 s ahead", 3600, &[], |node, t| {
            node.clock = done(if t % 20 < 10 { apart(0, 19, 21) } else { apart(0, 0, 1) });
        }),
        timeline("a clock that is a little wrong, behind a slow network", 3600, &[], |node, t| {
            node.clock = done(apart(29 - t % 30, 0, 31));
        }),
        timeline("the API server is gone, and its last word was odd", 3600, &[F::ClockUnsynchronised], |node, t| {
            let age = Duration::from_secs(t);
            node.clock = Reading::Done { value: apart(3600, 0, 3601), age, took: Duration::ZERO };
        }),
        timeline("there has never been an API server", 3600, &[], |node, _| node.clock = Reading::Never),
    ]
}

/// The same signs, had they stayed.
pub(super) fn staying() -> Vec<(FaultType, u64, Change)> {
    vec![
        (F::UninterruptibleProcess, 700, waits),
        (F::UninterruptibleProcess, 700, thread_waits),
        (F::PidExhaustion, 140, |node, _| node.host().pids[KEY] = limit(Owner::Node, 31_000, 32_768)),
        (F::FdExhaustion, 140, |node, _| node.host().files[KEY] = limit(Owner::Node, 99, 100)),
        (F::DbusUnresponsive, 200, |node, _| no_systemd(node, BusStep::Ping)),
        (F::DbusUnresponsive, 200, |node, _| no_systemd(node, BusStep::Connect)),
        (F::DiskFull, 620, |node, _| node.disks().filesystems[0].bytes.left = 0),
        (F::ReadOnlyFilesystem, 140, |node, _| {
            node.disks().filesystems[0].read_only = Some("it is mounted read-only".into());
        }),
        (F::ClientCertificateExpiring, 1820, |node, _| left(node, Duration::ZERO)),
        (F::ClockUnsynchronised, 620, |node, _| node.clock = done(apart(31, 0, 32))),
        (F::ClockUnsynchronised, 620, |node, t| node.clock = done(apart(0, 31, 32 + t % 60))),
        (F::ExitedContainerBacklog, 620, |node, _| many_ended(node)),
        (F::FrozenCgroup, 140, frozen),
        (F::UntrackedPodProcess, 620, |node, _| super::super::untracked::lost(node)),
    ]
}
