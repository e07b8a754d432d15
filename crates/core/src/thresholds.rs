//! How often, for how long and how far apart the probe checks before it confirms a fault.
//!
//! Every default names its reason. If an established rule or a measurement is behind a default, the comment names it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::observation::{RUNTIME_REQUEST_TIMEOUT, RuntimeKind};

/// What it takes to confirm one kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// Checks in a row that must see the fault.
    pub checks: u32,
    /// Least time between two checks that both count.
    pub interval: Duration,
    /// Least time since the fault was first seen: the grace period in which Kubernetes resolves it by itself.
    pub grace_period: Duration,
    /// Whether the fault may only be slowness, since the node is short of a resource.
    pub may_be_slow: bool,
}

impl Confirmation {
    /// Usual time from the first check to `Confirmed`.
    pub fn usual_time(&self) -> Duration {
        self.grace_period.max(self.interval.saturating_mul(self.checks.saturating_sub(1)))
    }
}

/// What confirms one kind of fault as shipped, under the key by which `probe.yaml` changes it.
#[derive(Debug)]
pub struct Confirm {
    /// The key.
    pub key: &'static str,
    /// The shipped confirmation.
    pub shipped: Confirmation,
    may_be_slow: bool,
    waits_for_kubelet: bool,
}

impl Confirm {
    /// A confirmation of `checks` checks, `interval` seconds apart, with a grace period of `grace_period` seconds.
    pub const fn new(key: &'static str, checks: u32, interval: u64, grace_period: u64) -> Self {
        let shipped =
            Confirmation { checks, interval: secs(interval), grace_period: secs(grace_period), may_be_slow: false };
        Self { key, shipped, may_be_slow: false, waits_for_kubelet: false }
    }

    /// Marks a fault that may be mere slowness on a node that is short of a resource: something gives no answer, or runs for long.
    #[must_use]
    pub const fn may_be_slow(self) -> Self {
        Self { may_be_slow: true, ..self }
    }

    /// Marks a fault that a kubelet, while it waits for its runtime, may still clean up.
    #[must_use]
    pub const fn waits_for_kubelet(self) -> Self {
        Self { waits_for_kubelet: true, ..self }
    }
}

/// How much shorter (as a divisor) and how much longer than shipped a time may be.
pub type TimeRange = (u64, u64);

/// A time from which something counts, under the key by which `probe.yaml` changes it.
#[derive(Debug)]
pub struct Bound {
    /// The key.
    pub key: &'static str,
    /// The shipped time.
    pub shipped: Duration,
    /// How far the time may be changed; `None` = not at all.
    pub range: Option<TimeRange>,
    waits_for_kubelet: bool,
}

impl Bound {
    /// Creates a bound of `seconds` seconds. The executor in a Job knows only the shipped ages and refuses to touch what is
    /// younger. So the bound may become longer, and not shorter.
    pub const fn new(key: &'static str, seconds: u64) -> Self {
        Self { key, shipped: secs(seconds), range: Some((1, 20)), waits_for_kubelet: false }
    }

    /// Sets another range.
    #[must_use]
    pub const fn range(self, shorter: u64, longer: u64) -> Self {
        Self { range: Some((shorter, longer)), ..self }
    }

    /// Marks a bound that cannot be changed.
    #[must_use]
    pub const fn fixed(self) -> Self {
        Self { range: None, ..self }
    }

    /// Marks a bound of something that a kubelet, while it waits for its runtime, may still clean up.
    #[must_use]
    pub const fn waits_for_kubelet(self) -> Self {
        Self { waits_for_kubelet: true, ..self }
    }
}

/// Time without progress from which `runc` or a similar client may hang. Hooks of drivers wait for up to a minute. Together with
/// the grace period of [`runtime_client_hung`](crate::faults::runtime_client_hung), confirmation takes a minute and a half.
pub const NO_PROGRESS_TIME: Bound = Bound::new("runtimeClientStill", 30);
/// Deadline of a list call. On busy nodes, calls of tens of seconds were observed.
///
/// The deadline ends well before a check of the lists is stale, and before the probe gives up a list that has not returned and
/// requests it again.
pub const LIST_DEADLINE: Bound = Bound::new("listDeadline", 60).range(2, 2);
/// Deadline of one `Tasks/Get`. containerd itself gives the shim 2 s.
pub const TASK_DEADLINE: Duration = secs(4);

/// The thresholds of a probe. The shipped thresholds of each fault are in the file of the fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thresholds {
    confirmations: BTreeMap<&'static str, Confirmation>,
    bounds: BTreeMap<&'static str, Duration>,
    /// Clear checks in a row that clear a confirmed fault.
    pub clear_checks: u32,
    /// Least time between two clear checks that both count.
    pub clear_interval: Duration,
    /// For how long a kubelet may wait for its runtime.
    kubelet_waits: Duration,
    under_pressure: bool,
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            confirmations: BTreeMap::new(),
            bounds: BTreeMap::new(),
            clear_checks: 2,
            clear_interval: secs(3),
            kubelet_waits: Duration::ZERO,
            under_pressure: false,
        }
    }
}

/// Least time in which a probe asks every running task once, while it suspects none.
pub const TASK_ROUND: Duration = Duration::from_secs(12);

/// Time for each task in such a round. One request to containerd reaches all shims, so the time is for the shims: 250 take 33 s.
/// Docker and CRI-O are asked for each container separately, which costs the probe half a millisecond each time.
pub fn task_interval(kind: RuntimeKind) -> Duration {
    Duration::from_millis(if kind.answers_itself() { 600 } else { 130 })
}

/// Age up to which an answer about one of `tasks` tasks says something about now: a round and a half, at least 90 s. It changes
/// in steps of 30 s, since conditions state it and a report is written when a condition changes.
pub fn task_max_age(tasks: usize, kind: RuntimeKind) -> Duration {
    const STEP: u128 = 30_000;
    let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
    let round_and_a_half = task_interval(kind).saturating_mul(tasks).saturating_mul(3).as_millis() / 2;
    let steps = u32::try_from(round_and_a_half.div_ceil(STEP)).unwrap_or(u32::MAX);
    Duration::from_secs(30).saturating_mul(steps.max(3))
}

/// How long the probe waits on a node that is short of a resource.
pub(crate) const GRACE_UNDER_PRESSURE: Duration = Duration::from_mins(3);

/// A longer limit counts as this one: a time that waits for the kubelet must come to an end.
const LONGEST_REQUEST_TIMEOUT: Duration = Duration::from_hours(1);
/// The time that a kubelet may need besides the calls that it waits for.
const AFTER_CALLS: Duration = Duration::from_mins(1);

impl Thresholds {
    /// What confirms a fault now.
    pub fn confirm(&self, of: &Confirm) -> Confirmation {
        let mut confirmation = self.confirmations.get(of.key).copied().unwrap_or(of.shipped);
        if of.waits_for_kubelet {
            confirmation.grace_period = confirmation.grace_period.max(self.kubelet_waits);
        }
        if of.may_be_slow && self.under_pressure {
            confirmation.grace_period = confirmation.grace_period.max(GRACE_UNDER_PRESSURE);
            confirmation.may_be_slow = true;
        }
        confirmation
    }

    /// The time from which something counts.
    pub fn bound(&self, of: &Bound) -> Duration {
        let bound = self.bounds.get(of.key).copied().unwrap_or(of.shipped);
        if of.waits_for_kubelet { bound.max(self.kubelet_waits) } else { bound }
    }

    /// Configures what confirms a fault.
    pub fn set_confirm(&mut self, of: &Confirm, confirmation: Confirmation) {
        self.confirmations.retain(|key, _| *key != of.key);
        if confirmation != of.shipped {
            self.confirmations.insert(of.key, confirmation);
        }
    }

    /// Configures the time from which something counts.
    pub fn set_bound(&mut self, of: &Bound, bound: Duration) {
        self.bounds.retain(|key, _| *key != of.key);
        if bound != of.shipped {
            self.bounds.insert(of.key, bound);
        }
    }

    /// These thresholds for a kubelet that gives each call to its runtime `request_timeout`. The kubelet waits twice as long for
    /// the creation of a sandbox. Meanwhile it may complete neither a start nor a cleanup of its own. The shipped thresholds
    /// allow for the shipped two minutes, and they never become shorter.
    #[must_use]
    pub fn beside(&self, request_timeout: Duration) -> Self {
        if request_timeout <= RUNTIME_REQUEST_TIMEOUT {
            return self.clone();
        }
        let kubelet_waits = request_timeout.min(LONGEST_REQUEST_TIMEOUT).saturating_mul(2).saturating_add(AFTER_CALLS);
        Self { kubelet_waits, ..self.clone() }
    }

    /// These thresholds for a node that is short of CPU, memory or disk I/O. A component that gives no answer, or runs for long,
    /// may only be slow there. No fault of that kind is confirmed before three minutes in which every check found the same.
    #[must_use]
    pub fn under_pressure(&self) -> Self {
        Self { under_pressure: true, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults;

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
        let (patient, hours) = (shipped.beside(secs(15 * 60)), shipped.beside(Duration::MAX));
        let mut longer = Vec::new();
        for of in faults::confirmations() {
            let (before, after) = (shipped.confirm(of), patient.confirm(of));
            assert_eq!((before.checks, before.interval), (after.checks, after.interval), "{}", of.key);
            if before != after {
                assert_eq!(after.grace_period, secs(31 * 60), "{}", of.key);
                longer.push(of.key);
            }
        }
        for of in faults::bounds() {
            if shipped.bound(of) != patient.bound(of) {
                assert_eq!(
                    (patient.bound(of), hours.bound(of)),
                    (secs(31 * 60), secs(2 * 3600 + 60)),
                    "it comes to an end"
                );
                longer.push(of.key);
            }
        }
        // A plugin that runs for a minute is hung, however long the kubelet would wait. Without a kubelet nothing waits for one.
        let expected =
            ["orphanKubeletUp", "duplicateSandbox", "untrackedPodProcess", "leakedShimAge", "runtimeClientAge"];
        assert_eq!(longer, expected);
    }
}
