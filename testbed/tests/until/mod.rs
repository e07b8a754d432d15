//! Waiting in a test, with an end.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until something holds, prints how long that took, and fails when it takes too long.
pub fn until(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(100));
    }
    println!("{what}: {:.1?}", start.elapsed());
    start.elapsed()
}
