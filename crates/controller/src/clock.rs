//! The wall clock of this process, as a value that tests can replace. Monotonic time is tokio's `Instant`, which tests pause.
//!
//! Recorded times are compared for as long as a remediation lasts, also by the next leader. If somebody set a machine's clock
//! meanwhile, all steps would end at once, or none would for years. So the process reads the clock once and continues with
//! monotonic time. It compares the clock with the API server's clock, which all leaders share.
//!
//! Monotonic time stands still while the machine is suspended. Then evidence seems fresh and a term seems to last, so a process that
//! time has passed unnoticed does not lead, and ends.

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
    /// How far the machine's clock was ahead of this one when the two were last compared with the API server's.
    ahead: SignedDuration,
    /// By how much the machine's clock and the API server's differed when the term began, or when the server's went ahead of both
    /// here, if they have not agreed since.
    disputed: Option<SignedDuration>,
    /// By how much the API server's clock was ahead of the leader before: this much ends no second term.
    known_ahead: Option<SignedDuration>,
    /// Whether the API server's clock went ahead of both here.
    is_overtaken: bool,
    warned_at: Option<Instant>,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn of(wall: Timestamp) -> Self {
        Self {
            wall,
            read: Instant::now(),
            ahead: SignedDuration::ZERO,
            disputed: None,
            known_ahead: None,
            is_overtaken: false,
            warned_at: None,
        }
    }

    fn at(&self, now: Instant) -> Timestamp {
        self.wall.checked_add(now.saturating_duration_since(self.read)).unwrap_or(Timestamp::MAX)
    }

    fn has_jumped(&self, machine: Timestamp, now: Instant) -> bool {
        let ours = self.at(now);
        self.is_overtaken || !agree(machine, ours.checked_add(self.ahead).unwrap_or(ours))
    }
}

impl Clock {
    /// The machine's clock, which from now on is as steady as monotonic time.
    pub fn system() -> Self {
        Self::of(Timestamp::now)
    }

    /// A custom clock in place of the machine's.
    pub fn of(tell: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        let state = Mutex::new(State::of(tell()));
        Self(Arc::new(Inner { machine: Box::new(tell), state }))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.0.state().at(Instant::now())
    }

    /// Begins a term with the API server's time. The machine's clock is read again; if the two do not [agree](AGREE), the
    /// server's time is taken, and is [disputed](Self::disputed). `None` = the server's time is unknown. `known_ahead`: by how much it
    /// was ahead of the leader before.
    pub fn begin_term(&self, server: Option<Timestamp>, known_ahead: Option<SignedDuration>) {
        let machine = (self.0.machine)();
        let wall = server.filter(|server| !agree(machine, *server)).unwrap_or(machine);
        let ahead = machine.duration_since(wall);
        let disputed = (wall != machine).then_some(ahead);
        *self.0.state() = State { ahead, disputed, known_ahead, ..State::of(wall) };
        if let Some(why) = self.disputed() {
            tracing::warn!(%machine, server = %wall, "{why}");
        }
    }

    /// Why it is not known what time it is: the two clocks do not agree, and nothing shows which is right.
    pub fn disputed(&self) -> Option<String> {
        let apart = self.0.state().disputed?.abs().as_secs();
        Some(format!(
            "the clocks of the controller's machine and of the API server are {apart} s apart: nothing starts and nothing ends before \
             they agree within {} s; set the wrong one (NTP)",
            AGREE.as_secs()
        ))
    }

    /// Whether time has passed unnoticed, as far as this process can know: the machine's clock has jumped since it was last
    /// compared, or the API server's has. It may also have been set, which [`hold_against`](Self::hold_against) settles.
    pub fn has_jumped(&self) -> bool {
        self.0.state().has_jumped((self.0.machine)(), Instant::now())
    }

    /// Compares the clock with the API server's time within a term. If the machine's clock has jumped to the server's time, [time has
    /// passed unnoticed](Self::has_jumped). So it has if the server's is ahead of both: a machine that was paused with its clock
    /// shows no more. If it is as far ahead as the leader before has found it, the term goes on in dispute: an API server whose
    /// replicas have different clocks ends no term after the other. In other cases the time of before goes on.
    pub fn hold_against(&self, server: Timestamp) {
        let now = Instant::now();
        let mut state = self.0.state();
        let (ours, machine) = (state.at(now), (self.0.machine)());
        let are_agreed = agree(machine, server);
        if are_agreed && !agree(ours, server) {
            if !state.has_jumped(machine, now) {
                tracing::warn!(%ours, %server, "the API server's clock was set to this machine's: their time is taken");
                *state = State { known_ahead: state.known_ahead, ..State::of(machine) };
            }
            return;
        }
        state.ahead = machine.duration_since(ours);
        state.disputed = state.disputed.filter(|_| !are_agreed);
        if agree(ours, server) {
            return;
        }
        if server > ours.max(machine) {
            state.disputed.get_or_insert(machine.duration_since(server));
            let ahead = server.duration_since(ours);
            let is_known = |known: SignedDuration| !is_small(known) && is_small(known.saturating_sub(ahead));
            state.is_overtaken = !state.known_ahead.is_some_and(is_known);
        }
        if state.warned_at.is_none_or(|warned_at| now.saturating_duration_since(warned_at) >= TELL_EVERY) {
            tracing::warn!(%ours, %server, %machine, "the API server's clock was set: the time of before goes on here");
            state.warned_at = Some(now);
        }
    }
}

/// Whether two clocks count as equal.
pub fn agree(one: Timestamp, other: Timestamp) -> bool {
    is_small(one.duration_since(other))
}

fn is_small(difference: SignedDuration) -> bool {
    difference.abs() <= SignedDuration::try_from(AGREE).unwrap_or(SignedDuration::MAX)
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
            clock.begin_term(Some(START), None);
            set.store(by, Ordering::Relaxed);
            tokio::time::advance(Duration::from_mins(1)).await;
            assert!(clock.has_jumped(), "set by {by} s, or suspended");
            clock.hold_against(after(61));
            assert_eq!((clock.now(), clock.has_jumped()), (after(60), false), "set by {by} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_term_begins_with_the_clock_of_the_api_server_where_the_machine_has_another() {
        let (clock, set) = machine();
        for (by, begins) in [(0, 0), (29, 29), (-29, -29), (31, 0), (-31, 0), (i64::from(i32::MAX), 0)] {
            set.store(by, Ordering::Relaxed);
            clock.begin_term(Some(START), None);
            assert_eq!(clock.now(), after(begins), "ahead by {by} s");
        }
        clock.begin_term(None, None);
        assert_eq!(clock.now(), after(i64::from(i32::MAX)), "nothing to hold it against");
    }

    /// Of a server that is ahead, nothing shows whether it was set or this machine was paused with its clock.
    #[tokio::test(start_paused = true)]
    async fn an_api_server_alone_does_not_set_it_and_ends_the_term_where_it_is_ahead() {
        for (by, ends) in [(29, false), (31, true), (86_400, true), (-31, false), (-86_400, false)] {
            let (clock, _) = machine();
            clock.begin_term(Some(START), None);
            clock.hold_against(after(by));
            assert_eq!((clock.now(), clock.has_jumped(), clock.disputed().is_some()), (START, ends, ends), "by {by} s");
        }
    }

    /// Two servers behind one address, one of which is ten minutes ahead. The first of these terms begins with either.
    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_ahead_now_and_then_ends_one_term_and_then_disputes_the_time() {
        for first in [0, 600] {
            let (clock, _) = machine();
            clock.begin_term(Some(after(first)), Some(SignedDuration::from_secs(602)));
            for _ in 0..3 {
                clock.hold_against(START);
                assert_eq!((clock.now(), clock.has_jumped(), clock.disputed()), (START, false, None));
                clock.hold_against(after(600));
                assert_eq!((clock.has_jumped(), clock.disputed().is_some()), (false, true));
            }
            clock.hold_against(after(1_200));
            assert!(clock.has_jumped(), "another ten minutes");
        }
        let (clock, _) = machine();
        clock.begin_term(Some(START), Some(SignedDuration::from_secs(3)));
        clock.hold_against(after(31));
        assert!(clock.has_jumped(), "before, they agreed");
    }

    /// Monotonic time stood still meanwhile.
    #[tokio::test(start_paused = true)]
    async fn a_suspended_machine_is_told_from_one_whose_clock_was_set() {
        let (clock, set) = machine();
        clock.begin_term(Some(START), None);
        set.store(29, Ordering::Relaxed);
        assert!(!clock.has_jumped(), "such a step is NTP's");
        set.store(36_000, Ordering::Relaxed);
        assert!(clock.has_jumped());
        clock.hold_against(after(36_001));
        assert!(clock.has_jumped(), "the API server says so too");
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_is_set_to_the_machines_time_is_believed() {
        let (clock, set) = machine();
        set.store(-600, Ordering::Relaxed);
        clock.begin_term(Some(START), None);
        assert_eq!(clock.now(), START);
        clock.hold_against(START);
        assert!(clock.disputed().is_some(), "either may be wrong");
        clock.hold_against(after(-600));
        assert_eq!((clock.now(), clock.has_jumped(), clock.disputed()), (after(-600), false, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_dispute_ends_when_the_machine_is_set_to_the_api_servers_time() {
        let (clock, set) = machine();
        set.store(600, Ordering::Relaxed);
        clock.begin_term(Some(START), None);
        set.store(0, Ordering::Relaxed);
        clock.hold_against(START);
        assert_eq!((clock.now(), clock.has_jumped(), clock.disputed()), (START, false, None));
        set.store(600, Ordering::Relaxed);
        clock.hold_against(START);
        assert_eq!(clock.disputed(), None, "this clock and the API server's agree against it");
    }
}
