//! Waits of tests for real processes.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until it is so, five minutes at most.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_mins(5), "waited 5 min for {what}");
        sleep(Duration::from_millis(10));
    }
}
