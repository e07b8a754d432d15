//! Moments by the wall clock of whoever hands them in.

use std::time::Duration;

use jiff::Timestamp;

/// Time from `then` to `now` by the wall clock; zero when the clock was set back.
pub fn since(now: Timestamp, then: Timestamp) -> Duration {
    now.duration_since(then).try_into().unwrap_or(Duration::ZERO)
}

/// `at + wait`; `at` itself if that is beyond all times.
pub fn after(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(wait).unwrap_or(at)
}

/// A time for people, to the second.
pub fn clock(at: Timestamp) -> String {
    Timestamp::from_second(at.as_second()).unwrap_or(at).to_string()
}

/// `now - lasted`, to the second, so that it stays the same from pass to pass.
pub fn begun(now: Timestamp, lasted: Duration) -> Timestamp {
    let at = now.checked_sub(lasted).unwrap_or(now);
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}
