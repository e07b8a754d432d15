//! The wall clock of this process, as a value that tests can replace. Monotonic time is tokio's `Instant`, which tests pause.
//!
//! Recorded times are compared for as long as a remediation lasts, also by the next leader. If somebody set a machine's clock
//! meanwhile, all steps would end at once, or none would for years. So the process reads the clock once and continues with
//! monotonic time. It compares the clock with the API server's clock, which all leaders share.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Maximum difference of two clocks that count as equal. An answer takes up to 5 s, and its time is truncated to the second.
pub const AGREE: Duration = Duration::from_secs(30);
/// How often the log reports that the clocks differ.
const TELL_EVERY: Duration = Duration::from_mins(10);

/// The wall time: for records and times to live, never for freshness. Clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    /// The machine's clock, which may be set at any time.
    machine: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// The time at the last read, and when that read was.
    wall: Timestamp,
    read: Instant,
    warned_at: Option<Instant>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn at(&self, now: Instant) -> Timestamp {
        self.wall.checked_add(now.saturating_duration_since(self.read)).unwrap_or(Timestamp::MAX)
    }
}

impl Clock {
    /// The machine's clock, which from now on is as steady as monotonic time.
    pub fn system() -> Self {
        Self::of(Timestamp::now)
    }

    /// A custom clock in place of the machine's.
    pub fn of(tell: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { wall: tell(), read: Instant::now(), warned_at: None });
        Self(Arc::new(Inner { machine: Box::new(tell), state }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.0.state().at(Instant::now())
    }

    /// Begins a term with the API server's time. The machine's clock is read again; if the two do not [agree](AGREE), the
    /// server's time is taken. `None` = the server's time is unknown.
    pub fn begin_term(&self, server: Option<Timestamp>) {
        let machine = (self.0.machine)();
        let wall = server.filter(|server| !agree(machine, *server)).unwrap_or(machine);
        if wall != machine {
            tracing::warn!(
                %machine, server = %wall,
                "this machine's clock and the API server's are apart: the API server's is used; set this machine's (NTP)"
            );
        }
        *self.0.state() = State { wall, read: Instant::now(), warned_at: None };
    }

    /// Compares the clock with the API server's time within a term. If only one clock was set, nothing changes. If the server's
    /// and the machine's clock agree on another time than this one, time has passed unnoticed (a suspended machine), or both were
    /// wrong. Then their time is taken.
    pub fn hold_against(&self, server: Timestamp) {
        let now = Instant::now();
        let mut state = self.0.state();
        let (ours, machine) = (state.at(now), (self.0.machine)());
        if agree(ours, server) {
            return;
        }
        if agree(machine, server) {
            tracing::warn!(%ours, %server, "this machine's clock and the API server's were both set, or time went by unnoticed");
            *state = State { wall: machine, read: now, warned_at: None };
        } else if state.warned_at.is_none_or(|warned_at| now.saturating_duration_since(warned_at) >= TELL_EVERY) {
            tracing::warn!(%ours, %server, %machine, "the API server's clock was set: the time of before goes on here");
            state.warned_at = Some(now);
        }
    }
}

fn agree(one: Timestamp, other: Timestamp) -> bool {
    one.duration_since(other).abs() <= SignedDuration::try_from(AGREE).unwrap_or(SignedDuration::MAX)
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use super::*;

    const START: Timestamp = Timestamp::constant(1_900_000_000, 0);

    /// A machine whose clock was set by so many seconds.
    fn machine() -> (Clock, Arc<AtomicI64>) {
        let (began, set) = (Instant::now(), Arc::new(AtomicI64::new(0)));
        let by = set.clone();
        let tell = move || {
            let passed = SignedDuration::try_from(began.elapsed()).unwrap();
            START + passed + SignedDuration::from_secs(by.load(Ordering::Relaxed))
        };
        (Clock::of(tell), set)
    }

    fn after(seconds: i64) -> Timestamp {
        START + SignedDuration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_whose_clock_is_set_goes_on_with_the_time_of_before() {
        for by in [-7_200, 7_200] {
            let (clock, set) = machine();
            clock.begin_term(Some(START));
            set.store(by, Ordering::Relaxed);
            tokio::time::advance(Duration::from_mins(1)).await;
            clock.hold_against(after(61));
            assert_eq!(clock.now(), after(60), "set by {by} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_begins_with_the_clock_of_the_api_server_where_the_machine_has_another() {
        let (clock, set) = machine();
        for (by, begins) in [(0, 0), (29, 29), (-29, -29), (31, 0), (-31, 0), (i64::from(i32::MAX), 0)] {
            set.store(by, Ordering::Relaxed);
            clock.begin_term(Some(START));
            assert_eq!(clock.now(), after(begins), "ahead by {by} s");
        }
        clock.begin_term(None);
        assert_eq!(clock.now(), after(i64::from(i32::MAX)), "nothing to hold it against");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_alone_does_not_set_it() {
        let (clock, _) = machine();
        clock.begin_term(Some(START));
        clock.hold_against(after(86_400));
        assert_eq!(clock.now(), START);
    }

    /// The machine was suspended, and monotonic time stood still.
    #[tokio::test(start_paused = true)]
    async fn what_both_say_is_taken() {
        let (clock, set) = machine();
        clock.begin_term(Some(START));
        set.store(36_000, Ordering::Relaxed);
        clock.hold_against(after(36_001));
        assert_eq!(clock.now(), after(36_000));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now(), after(36_005));
    }
}
