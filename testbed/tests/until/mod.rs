//! Waiting in a test, with an end.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whoever asks starts a program, as a rule: a tenth of what has been waited for already, within these bounds.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(3);

/// Waits until something holds, prints how long that took, and fails when it takes too long.
pub fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep((start.elapsed() / 10).clamp(SOONEST, LATEST));
    }
    println!("{what}: {:.1?}", start.elapsed());
    start.elapsed()
}
