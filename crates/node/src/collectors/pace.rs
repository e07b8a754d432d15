//! How often a collector checks, how long it waits, and the one loop that all simple collectors run.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::slot::{Failure, Slot};
use super::{CheckMode, Shared, lock};
use crate::report::pace::chance;
use nrh_core::faults::hung_container;
use nrh_core::thresholds::{LIST_DEADLINE, TASK_DEADLINE, TASK_ROUND, Thresholds};

/// Waits after a call was dropped, longer each time: the work that the call left in the server should end first.
const BACK_OFF: [Duration; 4] =
    [Duration::from_secs(30), Duration::from_mins(2), Duration::from_mins(5), Duration::from_mins(10)];
/// Minimum time between two checks of a collector, also when a check is requested.
const LEAST: Duration = Duration::from_secs(1);

/// A collector at rest uses one part in this many of one processor, which is half a millicore. It rests longer where a check
/// costs more, such as that of the process table of a full node.
const SHARE: u32 = 2000;
/// But it never rests longer than this many times its own rest.
const LONGER: u32 = 4;

/// The intervals and deadlines of one collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from the end of a check to the next one, at rest. It varies by a random fifth more or less, and it is longer where
    /// a check costs much.
    pub rest: Duration,
    /// The same while a fault is suspected; never less, at most a tenth more.
    pub urgent: Duration,
    /// Time after which a call that is out counts as hung; only time in which the probe could run counts.
    pub deadline: Duration,
    /// Time after which a call that is out is dropped. The part beyond the deadline is measured by the clock.
    pub bound: Duration,
    /// Longest wait after a call was dropped.
    pub back_off: Duration,
}

/// The intervals and deadlines of every collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paces {
    /// Version call on a fresh connection.
    pub version: Pace,
    /// Round of lists.
    pub lists: Pace,
    /// The runtime's report on its readiness. Runtimes may run a network plugin for it, and kubelets ask every five seconds.
    pub status: Pace,
    /// Tasks. `urgent` is the maximum time between two questions about one suspect. `rest` is the minimum time in which the
    /// collector asks for all others in turn.
    pub tasks: Pace,
    /// The same with Docker and CRI-O. They have no limit of their own, and a dropped question leaves a waiting call in them.
    /// So a question that is out stays out for long; another one would give no further information.
    pub inspect: Pace,
    /// Time between two readings of a task without an answer that both count. The collector asks in time for the next one.
    pub counted: Duration,
    /// Process table.
    pub processes: Pace,
    /// Kubelet.
    pub kubelet: Pace,
    /// The kernel's limits and the daemons' threads. They change slowly, and the probe reads many files for them.
    pub host: Pace,
    /// The node's disks.
    pub disks: Pace,
    /// The kubelet's own port. Faults there take minutes to show, and for each check the kubelet may ask the API server who the
    /// probe is and what it may do.
    pub port: Pace,
    /// systemd, over the system bus.
    pub bus: Pace,
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Paces {
    /// The intervals and deadlines for these thresholds.
    pub fn of(thresholds: &Thresholds) -> Self {
        let back_off = secs(600);
        let slow = Pace { rest: secs(30), urgent: secs(10), deadline: secs(5), bound: secs(120), back_off };
        let quick = Pace { rest: secs(15), urgent: secs(5), deadline: secs(10), bound: secs(600), back_off };
        let seldom = Pace { rest: secs(60), urgent: secs(45), deadline: secs(15), bound: secs(600), back_off };
        Self {
            // A version call leaves no work in the runtime, and shows first that the runtime answers again.
            version: Pace { back_off: secs(30), ..slow },
            // A kubelet can block a list for minutes behind one blocked update, and the list recovers by itself.
            lists: Pace { deadline: thresholds.bound(&LIST_DEADLINE), bound: secs(600), ..slow },
            status: seldom,
            tasks: Pace { rest: TASK_ROUND, urgent: secs(8), deadline: TASK_DEADLINE, bound: secs(180), back_off },
            inspect: Pace { rest: TASK_ROUND, urgent: secs(8), deadline: secs(5), bound: secs(3600), back_off },
            counted: thresholds.confirm(&hung_container::CONFIRM).interval,
            processes: quick,
            kubelet: quick,
            host: seldom,
            disks: seldom,
            port: Pace { rest: secs(600), ..seldom },
            bus: seldom,
        }
    }
}

impl Default for Paces {
    fn default() -> Self {
        Self::of(&Thresholds::default())
    }
}

/// `interval` with jitter; see [`Pace`]. `chance` is in 0..1000: collectors of many nodes must not run at the same moments.
fn jittered(interval: Duration, urgent: bool, chance: u32) -> Duration {
    let thousandths = if urgent { 1000 + chance / 10 } else { 800 + chance.saturating_mul(2) / 5 };
    interval.saturating_mul(thousandths).checked_div(1000).unwrap_or(interval)
}

/// The rest after a check that used this much processor time.
fn affordable(rest: Duration, cost: Duration) -> Duration {
    rest.max(cost.saturating_mul(SHARE).min(rest.saturating_mul(LONGER)))
}

/// The wait after this many dropped calls in a row.
pub(super) fn back_off(abandoned: u32) -> Option<Duration> {
    let steps = usize::try_from(abandoned).unwrap_or(usize::MAX);
    BACK_OFF.into_iter().take(steps).next_back()
}

/// How one collector checks.
pub(super) trait Checker {
    type Value: Send;
    /// Checks once. It ends with its calls or not at all: the loop bounds it.
    fn check(&mut self, shared: &Shared) -> impl Future<Output = Result<Self::Value, Failure>> + Send;
    /// Processor time of the last check, where it may be long.
    fn cost(&self) -> Duration {
        Duration::ZERO
    }
    /// Whether the next check can wait. A reading that must be compared with another one is of no use until that one exists.
    fn settled(&self) -> bool {
        true
    }
    /// Whether the value contains something that may be the first sign of a fault. All other values of a collector at rest wait
    /// for the next evaluation: to evaluate 250 pods costs more than to read them.
    fn is_suspicious(_seen: &Self::Value) -> bool {
        false
    }
    /// What asks for the next check before its time.
    fn wanted(_shared: &Shared) -> Option<&Notify> {
        None
    }
    /// Called after the outcome is stored.
    fn stored(_shared: &Shared) {}
}

/// Checks for ever, and stores each outcome in `slot`. `name` is the collector's, for people and metrics.
pub(super) async fn drive<L: Checker>(
    shared: &Shared,
    name: &str,
    slot: &Mutex<Slot<L::Value>>,
    mut checker: L,
    pace: Pace,
) {
    let mut tempo = shared.tempo.subscribe();
    let (mut abandoned, mut served) = (0_u32, None);
    loop {
        let began = Instant::now();
        // A request from here on is served by the next check, not by this one.
        tempo.mark_unchanged();
        let asked = tempo.borrow().asked;
        lock(slot).sent(began);
        let result = watched(shared, name, slot, &mut checker, pace.bound).await;
        abandoned = if matches!(result, Err(Failure::Exhausted(_))) {
            shared.call_abandoned(name);
            abandoned.saturating_add(1)
        } else {
            0
        };
        let is_awaited = served.replace(asked) != Some(asked) || tempo.borrow().urgent;
        let is_new = lock(slot).value().is_none() || result.as_ref().map_or(true, L::is_suspicious);
        let ended = Instant::now();
        lock(slot).ended(result, ended, ended.saturating_duration_since(began));
        L::stored(shared);
        if is_new || is_awaited {
            shared.changed.notify_one();
        }
        let settled = Pace { rest: affordable(pace.rest, checker.cost()), ..pace };
        let pace = if checker.settled() { settled } else { Pace { rest: pace.urgent, ..pace } };
        let wanted = async {
            match L::wanted(shared).filter(|_| abandoned == 0) {
                Some(notify) => notify.notified().await,
                None => std::future::pending().await,
            }
            sleep_until(ended + LEAST.min(pace.urgent)).await;
        };
        tokio::select! {
            () = rest(&mut tempo, asked, ended, pace, abandoned) => {}
            () = wanted => {}
        }
    }
}

/// Waits for one check. It notifies when the check passes its deadline, and drops the check after the bound.
async fn watched<L: Checker>(
    shared: &Shared,
    name: &str,
    slot: &Mutex<Slot<L::Value>>,
    checker: &mut L,
    bound: Duration,
) -> Result<L::Value, Failure> {
    let mut check = pin!(checker.check(shared));
    let mut notified = None;
    loop {
        let (sent, wake) = {
            let slot = lock(slot);
            (slot.sent_at(), slot.next_count().or_else(|| slot.abandoned_at(bound, Instant::now())))
        };
        // A check of several calls starts again with each of them: whoever waits for the previous call has to wake.
        let next_call = poll_fn(|_| if lock(slot).sent_at() == sent { Poll::Pending } else { Poll::Ready(()) });
        let result = tokio::select! {
            biased;
            result = &mut check => Some(result),
            () = next_call => None,
            () = sleep_until(wake.unwrap_or_else(Instant::now)) => None,
        };
        let now = Instant::now();
        let (held_up, due, abandoned_at) = {
            let mut slot = lock(slot);
            (slot.count(now), slot.due_since(now), slot.abandoned_at(bound, now))
        };
        shared.was_stalled(name, held_up);
        if let Some(result) = result {
            return result;
        }
        if abandoned_at.is_some_and(|at| now >= at) {
            return Err(Failure::Exhausted(bound));
        }
        if due.is_some() && notified != due {
            notified = due;
            shared.changed.notify_one();
        }
    }
}

/// Waits until the next check is due or requested.
async fn rest(
    tempo: &mut tokio::sync::watch::Receiver<CheckMode>,
    asked: u64,
    ended: Instant,
    pace: Pace,
    abandoned: u32,
) {
    let chance = chance();
    let back_off = back_off(abandoned).map(|wait| wait.min(pace.back_off));
    loop {
        let now = *tempo.borrow_and_update();
        let interval = if now.urgent { pace.urgent } else { pace.rest };
        let mut wait = jittered(interval, now.urgent, chance);
        if now.asked != asked {
            wait = LEAST.min(pace.urgent);
        }
        let due = ended + back_off.map_or(wait, |least| wait.max(least));
        tokio::select! {
            () = sleep_until(due) => return,
            // The sender lives in `Shared`, which outlives this loop.
            _ = tempo.changed() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::collectors::CollectorSettings;
    use nrh_core::observation::{NetworkSeen, StatusSeen};

    #[test]
    fn jitter_never_shortens_an_urgent_wait() {
        let ten = secs(10);
        assert_eq!(jittered(ten, true, 0), ten);
        assert_eq!(jittered(ten, true, 999), Duration::from_millis(10_990));
        assert_eq!(jittered(ten, false, 0), secs(8));
        assert!(jittered(ten, false, 999) < secs(12));
    }

    /// Returns the given results one after the other, and then nothing more.
    struct Scripted(VecDeque<Result<StatusSeen, Failure>>);

    impl Checker for Scripted {
        type Value = StatusSeen;

        fn is_suspicious(seen: &StatusSeen) -> bool {
            seen.network.is_some()
        }

        async fn check(&mut self, _: &Shared) -> Result<StatusSeen, Failure> {
            match self.0.pop_front() {
                Some(seen) => seen,
                None => std::future::pending().await,
            }
        }
    }

    /// How often an evaluation is requested while these checks run at rest.
    async fn calls(checks: &[Result<StatusSeen, Failure>], urgent: bool) -> usize {
        let pace =
            Pace { rest: secs(10), urgent: secs(10), deadline: secs(900), bound: secs(1800), back_off: secs(600) };
        let paces = Paces { status: pace, ..Paces::default() };
        let shared = Arc::new(Shared::new(&CollectorSettings { paces, ..CollectorSettings::default() }));
        shared.tempo.send_modify(|tempo| tempo.urgent = urgent);
        let collector = drive(&shared, "scripted", &shared.status, Scripted(checks.iter().cloned().collect()), pace);
        let mut count = 0;
        let counted = async {
            loop {
                shared.changed.notified().await;
                count += 1;
            }
        };
        let both = async { tokio::join!(collector, counted) };
        // Time for all of them, but not for the deadline of the one that does not return.
        assert!(tokio::time::timeout(secs(100), both).await.is_err());
        count
    }

    #[tokio::test(start_paused = true)]
    async fn after_dropped_calls_it_waits_no_longer_than_its_pace_allows() {
        for (longest, least, most) in [(30, 19, 21), (600, 5, 7)] {
            let back_off = secs(longest);
            let pace = Pace { rest: secs(10), urgent: secs(10), deadline: secs(5), bound: secs(120), back_off };
            let paces = Paces { status: pace, ..Paces::default() };
            let shared = Shared::new(&CollectorSettings { paces, ..CollectorSettings::default() });
            let collector = drive(&shared, "scripted", &shared.status, Scripted(VecDeque::new()), pace);
            assert!(tokio::time::timeout(secs(3_000), collector).await.is_err());
            let dropped = lock(&shared.calls).abandoned["scripted"];
            assert!((least..=most).contains(&dropped), "{longest} s: {dropped}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn at_rest_only_what_is_new_or_stands_out_is_judged_at_once() {
        let (good, odd) = (StatusSeen::default(), StatusSeen { network: Some(NetworkSeen::default()) });
        let failed = || Err(Failure::Failed("no".to_owned()));
        let good = || Ok(good.clone());
        assert_eq!(calls(&[good(), good(), good(), good()], false).await, 1, "the first one");
        assert_eq!(calls(&[good(), Ok(odd.clone()), good(), Ok(odd)], false).await, 3);
        assert_eq!(
            calls(&[good(), failed(), failed(), good(), good()], false).await,
            4,
            "each failure, and what follows it"
        );
        assert_eq!(calls(&[good(), good(), good(), good()], true).await, 4, "while something is suspected");
    }

    #[test]
    fn a_dear_check_is_followed_by_a_long_rest_and_a_cheap_one_by_its_own() {
        assert_eq!(affordable(secs(15), Duration::ZERO), secs(15));
        assert_eq!(affordable(secs(15), Duration::from_millis(7)), secs(15));
        assert_eq!(affordable(secs(15), Duration::from_millis(20)), secs(40));
        assert_eq!(affordable(secs(15), secs(3)), secs(60));
    }

    #[test]
    fn back_off_grows_to_ten_minutes_and_stays() {
        assert_eq!(back_off(0), None);
        let waits: Vec<u64> = (1..7).filter_map(back_off).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [30, 120, 300, 600, 600, 600]);
    }
}
