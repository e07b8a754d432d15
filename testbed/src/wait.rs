//! Waits and their limits. On an idle machine all of this takes seconds; a busy or emulated one is slow. The limits are no
//! deadlines of the product: a test of a deadline has a constant of its own.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// For the end of what was killed.
pub const ENDS: Duration = Duration::from_mins(3);
/// For programs, pods, nodes, reports, and what a threshold of a few minutes delays.
pub const SOON: Duration = Duration::from_mins(10);
/// For the reboot of a machine, and for what has a longer threshold.
pub const LONG: Duration = Duration::from_mins(40);

/// The first pause between two questions. As a rule a question starts a program, so the pause grows to a tenth of the time waited.
const SHORTEST_PAUSE: Duration = Duration::from_millis(200);
/// The longest one, as a rule.
pub const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Asks until an answer is good. If none is within the limit, the error is the last answer.
pub fn poll<T>(
    limit: Duration,
    longest_pause: Duration,
    mut ask: impl FnMut() -> T,
    is_good: impl Fn(&T) -> bool,
) -> Result<T, T> {
    let start = Instant::now();
    loop {
        let answer = ask();
        if is_good(&answer) {
            return Ok(answer);
        }
        if start.elapsed() >= limit {
            return Err(answer);
        }
        sleep((start.elapsed() / 10).clamp(SHORTEST_PAUSE, longest_pause));
    }
}

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
pub fn until_within(what: &str, limit: Duration, holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    assert!(poll(limit, LONGEST_PAUSE, holds, |holds| *holds).is_ok(), "not within {limit:?}: {what}");
    println!("{what}: {:.1?}", start.elapsed());
    start.elapsed()
}
