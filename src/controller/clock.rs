//! The wall clock of this process, as a value that tests can replace. Monotonic time is tokio's `Instant`, which tests pause.
//!
//! Times that are recorded are compared for as long as a remediation lasts, also by the leader after this one. A machine's clock
//! that is set meanwhile would end all steps at once, or none for years. So it is read once and goes on with monotonic time; and
//! what it was read from is held against the API server's clock, which all leaders have in common.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// By how much two clocks may differ and are said to agree: an answer takes up to 5 s, and its time is cut to the second.
pub const AGREE: Duration = Duration::from_secs(30);
/// How often people are told that they do not.
const TELL_EVERY: Duration = Duration::from_mins(10);

/// Tells the wall time: for records and times to live, never for freshness. Clones are the same clock.
#[derive(Clone)]
pub struct Clock(Arc<Inner>);

struct Inner {
    /// The machine's clock, which may be set at any time.
    machine: Box<dyn Fn() -> Timestamp + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    /// What it was when it was read last, and when that was.
    wall: Timestamp,
    read: Instant,
    told: Option<Instant>,
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
    /// The machine's clock, from now on as steady as monotonic time.
    pub fn system() -> Self {
        Self::of(Timestamp::now)
    }

    /// A clock of one's own in place of the machine's.
    pub fn of(tell: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State { wall: tell(), read: Instant::now(), told: None });
        Self(Arc::new(Inner { machine: Box::new(tell), state }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.0.state().at(Instant::now())
    }

    /// A term begins, and the API server has just said what time it is there: the machine's clock is read anew, or the
    /// server's is taken where the two do not [agree](AGREE). `None` = it has not said.
    pub fn begin_term(&self, server: Option<Timestamp>) {
        let machine = (self.0.machine)();
        let wall = server.filter(|server| !agree(machine, *server)).unwrap_or(machine);
        if wall != machine {
            tracing::warn!(
                %machine, server = %wall,
                "this machine's clock and the API server's are apart: the API server's is used; set this machine's (NTP)"
            );
        }
        *self.0.state() = State { wall, read: Instant::now(), told: None };
    }

    /// In a term the API server has just said what time it is there. One clock that was set changes nothing. Where the server's
    /// and the machine's agree on another time than this one, time has gone by unnoticed (a machine that was suspended), or both
    /// were wrong: theirs is taken.
    pub fn hold_against(&self, server: Timestamp) {
        let now = Instant::now();
        let mut state = self.0.state();
        let (ours, machine) = (state.at(now), (self.0.machine)());
        if agree(ours, server) {
            return;
        }
        if agree(machine, server) {
            tracing::warn!(%ours, %server, "this machine's clock and the API server's were both set, or time went by unnoticed");
            *state = State { wall: machine, read: now, told: None };
        } else if state.told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY) {
            tracing::warn!(%ours, %server, %machine, "the API server's clock was set: the time of before goes on here");
            state.told = Some(now);
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

    /// The machine was suspended: monotonic time has stood still.
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
