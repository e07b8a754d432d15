//! Limits of waits. On an idle machine all of this takes seconds; a busy or emulated one is slow. These are no deadlines of the
//! product: a test of a deadline has a constant of its own.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// For the end of what was killed.
pub const ENDS: Duration = Duration::from_mins(3);
/// For programs, pods, nodes, reports, and what a threshold of a few minutes delays.
pub const SOON: Duration = Duration::from_mins(10);
/// For the reboot of a machine, and for what has a longer threshold.
pub const LONG: Duration = Duration::from_mins(40);

/// A question starts a program, as a rule, so the pause between two grows: a tenth of the time waited, within these bounds.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Waits up to [`SOON`] until something holds; prints and returns how long that took.
///
/// # Panics
///
/// When it takes too long.
pub fn until(what: &str, holds: impl FnMut() -> bool) -> Duration {
    until_within(what, SOON, holds)
}

/// The same with another limit.
///
/// # Panics
///
/// When it takes too long.
pub fn until_within(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep((start.elapsed() / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
    }
    println!("{what}: {:.1?}", start.elapsed());
    start.elapsed()
}
