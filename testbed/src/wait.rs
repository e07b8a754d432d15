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
/// The pause between two questions that cost nothing, or whose answer has to be seen at once.
const BRIEF_PAUSE: Duration = Duration::from_millis(10);

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
        sleep((start.elapsed() / 10).max(SHORTEST_PAUSE).min(longest_pause));
    }
}

/// Asks every 10 ms until an answer is good; returns it, or the last one within the limit.
pub fn last_answer<T>(limit: Duration, ask: impl FnMut() -> T, is_good: impl Fn(&T) -> bool) -> T {
    poll(limit, BRIEF_PAUSE, ask, is_good).unwrap_or_else(|last| last)
}

/// Waits until a person or SIGTERM asks this program to end.
pub fn until_asked_to_end() -> std::io::Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut terminated = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            interrupted = tokio::signal::ctrl_c() => interrupted,
            _ = terminated.recv() => Ok(()),
        }
    })
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
