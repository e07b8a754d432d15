//! How long to wait for what happens in seconds on a machine that has nothing else to do. One that is busy, or emulated, is slow. No
//! promise of the product is here: what passes does not need these limits.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// For the end of what was killed.
pub const ENDS: Duration = Duration::from_mins(3);
/// For programs, pods, nodes, reports, and what a threshold of a few minutes delays.
pub const SOON: Duration = Duration::from_mins(10);
/// For the reboot of a machine, and for what has a longer threshold.
pub const LONG: Duration = Duration::from_mins(40);

/// Whoever asks starts a program, as a rule: a tenth of what has been waited for already, within these bounds.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(3);

/// Waits until something holds, as it [soon](SOON) does, prints how long that took, and tells it.
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
        sleep((start.elapsed() / 10).clamp(SOONEST, LATEST));
    }
    println!("{what}: {:.1?}", start.elapsed());
    start.elapsed()
}
