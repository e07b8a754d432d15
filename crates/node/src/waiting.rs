//! Waits of tests for real processes.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Waits until it is so, 20 s at most.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(20), "waited 20 s for {what}");
        sleep(Duration::from_millis(10));
    }
}
