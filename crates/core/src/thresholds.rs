//! How often, how long and how far apart the probe looks before it says that something is so.
//!
//! Every default carries its reason. Where a rule of the field or a measurement stands behind one, it is
//! named.

use std::time::Duration;

use serde::Serialize;

use super::observation::RuntimeKind;

/// What it takes to confirm one kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Confirmation {
    /// Looks in a row that must see it.
    pub checks: u32,
    /// Least time between two looks that both count.
    pub interval: Duration,
    /// Least time since it was first seen: the grace in which Kubernetes heals it alone.
    pub grace_period: Duration,
}

impl Confirmation {
    /// Usual time from the first check to `Confirmed`.
    pub fn usual_time(&self) -> Duration {
        self.grace_period.max(self.interval.saturating_mul(self.checks.saturating_sub(1)))
    }
}

/// All thresholds of a probe and of the controller's own detectors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Thresholds {
    /// Frozen shims never answer again by themselves. Three checks 20 s apart rule out a busy moment; under resource pressure
    /// the probe takes longer where the shim is not stopped, see [`Thresholds::under_pressure`].
    pub hung_container: Confirmation,
    /// A shim outlives its objects for seconds while they are deleted; three rounds 30 s apart.
    pub leaked_shim: Confirmation,
    /// Three looks 20 s apart: a start of the runtime asks each shim in turn, for 5 s each where it has a limit.
    pub unresponsive_shim: Confirmation,
    /// Age from which a shim that runs and whose task containerd does not know counts as left over. Kubelets wait
    /// up to four minutes for a sandbox to be made, and that of a VM may have no child for long. A stopped shim
    /// is no start under way, whatever its age.
    pub leaked_shim_age: Duration,
    /// While a kubelet has completed its start a creator exists, so a race exists: three rounds 30 s apart
    /// and five minutes (a current kubelet replaces a missing sandbox in 1 to 4 s).
    pub orphan_kubelet_up: Confirmation,
    /// No kubelet has completed a start since it was first seen: nothing creates containers.
    pub orphan_kubelet_down: Confirmation,
    /// Three looks 10 s apart at a plugin that is already older than `network_plugin_age`.
    pub network_plugin_hung: Confirmation,
    /// Age from which a CNI plugin process counts as hung. Ordinary ones take well under a second; the
    /// runtime itself gives up only after minutes.
    pub network_plugin_age: Duration,
    /// Three checks of a client that has made no progress for `runtime_client_still`, or is older than `runtime_client_age`.
    pub runtime_client_hung: Confirmation,
    /// Time without progress from which `runc` or its kin may hang. Hooks of drivers wait for up to a minute, so that together
    /// with the grace of `runtime_client_hung` it takes a minute and a half.
    pub runtime_client_still: Duration,
    /// Age from which `runc` or its kin counts as hung, progress or not. Ordinary ones take well under a second, those with hooks of drivers
    /// up to a minute; kubelets wait up to four minutes for what such a client does, and containerd ends it with them.
    pub runtime_client_age: Duration,
    /// A node that has just joined waits for the pod that installs its network plugin, and that for its image.
    pub network_not_ready: Confirmation,
    /// The socket refuses or does not answer a version call: three in a row; a restart takes about 10 s.
    pub runtime_unreachable: Confirmation,
    /// A list call out for longer than `list_deadline`, of sandboxes or of containers.
    pub runtime_list_hung: Confirmation,
    /// The runtime's list follows the end of a process within a second; a restarted runtime loads its containers first.
    pub lost_task: Confirmation,
    /// The kubelet itself ends one of two ready sandboxes at its next sync of the pod; ten minutes are many of those.
    pub duplicate_sandbox: Confirmation,
    /// Kubelets up to 1.35 remove such a sandbox at one of their next rounds, a minute apart.
    pub ghost_sandbox: Confirmation,
    /// A container is in no list while it is made, and its group may outlive it for a moment: ten minutes are neither.
    pub untracked_pod_process: Confirmation,
    /// A kubelet starts a container that it has made within seconds, or makes another one within minutes.
    /// A removal that Docker calls failed does not go on by itself; the kubelet tries again every minute, and a mount that
    /// is busy may be let go of within those.
    pub container_stuck: Confirmation,
    /// Deadline of a list call; busy nodes were seen to take tens of seconds.
    pub list_deadline: Duration,
    /// No kubelet completes a start.
    pub kubelet_down: Confirmation,
    /// A kubelet counts as started when it answers `/healthz` and is at least this old (one that dies at
    /// start answers for a moment too).
    pub kubelet_start_age: Duration,
    /// Kubelets that complete their start, within `crash_loop_window`, from which it is a loop. Few people
    /// restart one by hand more than five times in half an hour; one that dies every minute gets there in six.
    pub crash_loop_starts: u32,
    /// The time within which they count.
    pub crash_loop_window: Duration,
    /// A kubelet that lives for so long has left the loop.
    pub crash_loop_over: Duration,
    /// Three looks 20 s apart at a count that has been reached already.
    pub kubelet_crash_loop: Confirmation,
    /// The kubelet's own check waits five minutes already, and by its monotonic clock.
    pub sync_loop_stalled: Confirmation,
    /// One call of the kubelet to its runtime may take two minutes, and then its next look at its pods is quick again.
    pub pleg_slow: Confirmation,
    /// From which time on one look of the kubelet at its pods is slow. Ordinary ones take well under a second, every
    /// second; with many hundred containers they were seen to take tens of seconds.
    pub slow_relist: Duration,
    /// Age from which a kubelet should have written its node's status, or have completed its start by its own word. It
    /// writes within seconds, and tries again every ten when the API server does not answer.
    pub start_blocked_age: Duration,
    /// For how long the controller itself must have seen that: after an outage of the API server all news come at once,
    /// and in any order.
    pub start_blocked_seen: Duration,
    /// Deadline of one `Tasks/Get`; containerd itself gives the shim 2 s.
    pub task_deadline: Duration,
    /// A DaemonSet pod waits in `CrashLoopBackOff` at the longest back-off, its container ended this long
    /// ago.
    pub stuck_back_off: Duration,
    /// A DaemonSet pod is still there this long after its grace period ended.
    pub stuck_terminating: Duration,
    /// A DaemonSet pod's containers are being created for this long.
    pub stuck_creating: Duration,
    /// An aborted fork storm or a burst of starts is over within a minute.
    pub pid_exhaustion: Confirmation,
    /// The same of open files.
    pub fd_exhaustion: Confirmation,
    /// systemd is busy for a minute at boot, and while it takes in hundreds of mounts at once.
    pub dbus_unresponsive: Confirmation,
    /// The kubelet frees a full disk by itself, if it can: it looks every 10 s for pods to evict, every minute for ended
    /// containers and every 5 min for images.
    pub disk_full: Confirmation,
    /// A file system that has turned read-only stays so; people remount one for a moment.
    pub read_only_filesystem: Confirmation,
    /// Three looks at a wait that is already longer than `uninterruptible_age`. A disk frozen for a snapshot holds a process
    /// up for seconds, a flush to a disk under load for minutes.
    pub uninterruptible_process: Confirmation,
    /// Time from which a process counts that waits uninterruptibly and has not run in between. The kernel's own detector of
    /// hung tasks takes the same evidence, over 120 s.
    pub uninterruptible_age: Duration,
    /// Three looks at a container that has been in the making for `frozen_init_age` and is frozen. Runtimes freeze a running
    /// container for milliseconds while they update it, people pause one for long; nobody freezes one that does not run
    /// yet.
    pub frozen_cgroup: Confirmation,
    /// Age from which the first process of a container that is being made counts as stuck, where it is frozen.
    pub frozen_init_age: Duration,
    /// The kubelet removes ended containers every minute.
    pub exited_container_backlog: Confirmation,
    /// A kubelet that starts late, or a machine that was suspended, renews its certificate at once.
    pub client_certificate_expiring: Confirmation,
    /// Three reports. A clock that is set by hand, or that a machine finds when it wakes, is put right within minutes.
    pub clock_unsynchronised: Confirmation,
    /// How far the node's clock may be from the API server's. Kubelets renew a lease of 40 s by the clock, and tokens and
    /// certificates count from the second in which they are made.
    pub clock_skew: Duration,
    /// A node that boots has its runtime and its kubelet within minutes, and one that is upgraded too.
    pub probe_degraded: Confirmation,
    /// Clean looks in a row that clear a confirmed fault.
    pub clear_checks: u32,
    /// Least time between two clean looks that both count.
    pub clear_interval: Duration,
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            hung_container: Confirmation { checks: 3, interval: secs(20), grace_period: secs(40) },
            leaked_shim: Confirmation { checks: 3, interval: secs(30), grace_period: secs(60) },
            unresponsive_shim: Confirmation { checks: 3, interval: secs(20), grace_period: secs(120) },
            leaked_shim_age: secs(300),
            orphan_kubelet_up: Confirmation { checks: 3, interval: secs(30), grace_period: secs(300) },
            orphan_kubelet_down: Confirmation { checks: 3, interval: secs(10), grace_period: secs(20) },
            network_plugin_hung: Confirmation { checks: 3, interval: secs(10), grace_period: secs(20) },
            network_plugin_age: secs(60),
            runtime_client_hung: Confirmation { checks: 3, interval: secs(10), grace_period: secs(60) },
            runtime_client_still: secs(30),
            runtime_client_age: secs(300),
            network_not_ready: Confirmation { checks: 3, interval: secs(45), grace_period: secs(300) },
            runtime_unreachable: Confirmation { checks: 3, interval: secs(10), grace_period: secs(30) },
            runtime_list_hung: Confirmation { checks: 3, interval: secs(10), grace_period: secs(20) },
            lost_task: Confirmation { checks: 3, interval: secs(20), grace_period: secs(60) },
            duplicate_sandbox: Confirmation { checks: 3, interval: secs(30), grace_period: secs(600) },
            ghost_sandbox: Confirmation { checks: 3, interval: secs(30), grace_period: secs(600) },
            untracked_pod_process: Confirmation { checks: 3, interval: secs(45), grace_period: secs(600) },
            container_stuck: Confirmation { checks: 3, interval: secs(30), grace_period: secs(600) },
            list_deadline: secs(60),
            kubelet_down: Confirmation { checks: 3, interval: secs(10), grace_period: secs(60) },
            kubelet_start_age: secs(20),
            crash_loop_starts: 6,
            crash_loop_window: secs(1800),
            crash_loop_over: secs(600),
            kubelet_crash_loop: Confirmation { checks: 3, interval: secs(20), grace_period: secs(60) },
            sync_loop_stalled: Confirmation { checks: 3, interval: secs(45), grace_period: secs(120) },
            pleg_slow: Confirmation { checks: 5, interval: secs(45), grace_period: secs(300) },
            slow_relist: secs(30),
            start_blocked_age: secs(90),
            start_blocked_seen: secs(60),
            task_deadline: secs(4),
            stuck_back_off: secs(60),
            stuck_terminating: secs(120),
            stuck_creating: secs(120),
            pid_exhaustion: Confirmation { checks: 3, interval: secs(30), grace_period: secs(120) },
            fd_exhaustion: Confirmation { checks: 3, interval: secs(30), grace_period: secs(120) },
            dbus_unresponsive: Confirmation { checks: 3, interval: secs(45), grace_period: secs(180) },
            disk_full: Confirmation { checks: 5, interval: secs(45), grace_period: secs(600) },
            read_only_filesystem: Confirmation { checks: 3, interval: secs(30), grace_period: secs(120) },
            uninterruptible_process: Confirmation { checks: 3, interval: secs(20), grace_period: secs(600) },
            uninterruptible_age: secs(60),
            frozen_cgroup: Confirmation { checks: 3, interval: secs(20), grace_period: secs(60) },
            frozen_init_age: secs(60),
            exited_container_backlog: Confirmation { checks: 3, interval: secs(60), grace_period: secs(600) },
            client_certificate_expiring: Confirmation { checks: 3, interval: secs(45), grace_period: secs(1800) },
            clock_unsynchronised: Confirmation { checks: 3, interval: secs(60), grace_period: secs(600) },
            clock_skew: secs(30),
            probe_degraded: Confirmation { checks: 3, interval: secs(60), grace_period: secs(600) },
            clear_checks: 2,
            clear_interval: secs(3),
        }
    }
}

/// Least time in which a probe asks every running task once, while it suspects none.
pub const TASK_ROUND: Duration = Duration::from_secs(12);

/// Time for each task in such a round. One question to containerd reaches all shims: that is for the shims, and 250 take 33 s.
/// Docker and CRI-O are asked for each alone, which costs the probe half a millisecond each time.
pub fn task_interval(kind: RuntimeKind) -> Duration {
    Duration::from_millis(if kind.answers_itself() { 600 } else { 130 })
}

/// Age up to which an answer about one of `tasks` tasks says something of now: a round and a half, at least 90 s. In steps of
/// 30 s, since conditions state it and a report is written when one changes.
pub fn task_max_age(tasks: usize, kind: RuntimeKind) -> Duration {
    const STEP: u128 = 30_000;
    let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
    let round_and_a_half = task_interval(kind).saturating_mul(tasks).saturating_mul(3).as_millis() / 2;
    let steps = u32::try_from(round_and_a_half.div_ceil(STEP)).unwrap_or(u32::MAX);
    Duration::from_secs(30).saturating_mul(steps.max(3))
}

/// How long a node that is short of a resource is given.
const PATIENCE_UNDER_PRESSURE: Duration = Duration::from_mins(3);

/// A longer limit counts as this: what waits for the kubelet must come to an end.
const LONGEST_REQUEST_TIMEOUT: Duration = Duration::from_hours(1);
/// What a kubelet may need beside the calls it waits for.
const AFTER_CALLS: Duration = Duration::from_mins(1);

impl Thresholds {
    /// These thresholds beside a kubelet that gives each call to its runtime so much time. It waits twice as long for a
    /// sandbox to be made, and meanwhile may neither come to the end of a start nor to what it would clean up by itself.
    /// With its shipped two minutes that is what the shipped thresholds allow for; they never become shorter.
    #[must_use]
    pub fn beside(&self, request_timeout: Duration) -> Self {
        let least = request_timeout.min(LONGEST_REQUEST_TIMEOUT).saturating_mul(2).saturating_add(AFTER_CALLS);
        let longer = |of: Confirmation| Confirmation { grace_period: of.grace_period.max(least), ..of };
        Self {
            leaked_shim_age: self.leaked_shim_age.max(least),
            runtime_client_age: self.runtime_client_age.max(least),
            orphan_kubelet_up: longer(self.orphan_kubelet_up),
            duplicate_sandbox: longer(self.duplicate_sandbox),
            untracked_pod_process: longer(self.untracked_pod_process),
            ..self.clone()
        }
    }

    /// These thresholds on a node that is short of CPU, memory or disk I/O. What gives no answer, or is at work for long, may
    /// be slow there: nothing of that kind is confirmed before three minutes in which every check found the same.
    #[must_use]
    pub fn under_pressure(&self) -> Self {
        let longer =
            |of: Confirmation| Confirmation { grace_period: of.grace_period.max(PATIENCE_UNDER_PRESSURE), ..of };
        Self {
            hung_container: longer(self.hung_container),
            leaked_shim: longer(self.leaked_shim),
            unresponsive_shim: longer(self.unresponsive_shim),
            network_plugin_hung: longer(self.network_plugin_hung),
            runtime_client_hung: longer(self.runtime_client_hung),
            runtime_unreachable: longer(self.runtime_unreachable),
            runtime_list_hung: longer(self.runtime_list_hung),
            lost_task: longer(self.lost_task),
            kubelet_down: longer(self.kubelet_down),
            dbus_unresponsive: longer(self.dbus_unresponsive),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_a_round_and_a_half_and_at_least_ninety_seconds() {
        use RuntimeKind::{Containerd, CriO, Docker};
        for (kind, tasks, seconds) in [
            (Containerd, 0, 90),
            (Containerd, 250, 90),
            (Containerd, 461, 90),
            (Containerd, 500, 120),
            (Containerd, 8192, 1620),
            (Docker, 100, 90),
            (Docker, 220, 210),
            (CriO, 110, 120),
        ] {
            let (age, round) = (task_max_age(tasks, kind), task_interval(kind) * u32::try_from(tasks).unwrap());
            assert_eq!(age, secs(seconds), "{kind:?}, {tasks} tasks");
            assert!(age >= round, "{kind:?}, {tasks} tasks: a round is longer");
        }
    }

    #[test]
    fn a_kubelet_that_waits_longer_is_waited_for_longer_and_no_other() {
        let shipped = Thresholds::default();
        for short in [0, 1, 90, 120] {
            assert_eq!(shipped.beside(secs(short)), shipped, "{short}");
        }
        let patient = shipped.beside(secs(15 * 60));
        let (least, hours) = (secs(31 * 60), shipped.beside(Duration::MAX));
        assert_eq!((patient.leaked_shim_age, patient.runtime_client_age), (least, least));
        assert_eq!((patient.orphan_kubelet_up.grace_period, patient.duplicate_sandbox.grace_period), (least, least));
        assert_eq!(patient.orphan_kubelet_up.checks, shipped.orphan_kubelet_up.checks);
        // A plugin that is at work for a minute is hung, however long the kubelet would wait for it.
        assert_eq!(patient.network_plugin_age, shipped.network_plugin_age);
        assert_eq!(patient.orphan_kubelet_down, shipped.orphan_kubelet_down, "no kubelet is waited for there");
        assert_eq!(hours.leaked_shim_age, secs(2 * 3600 + 60), "it comes to an end");
    }
}
