//! Waiting, with an end.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::wait::SOON;

/// How often the bed checks.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for something that happens soon; the error says for what.
pub(super) fn wait(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_within(what, SOON, done)
}

/// The same with another limit.
pub(super) fn wait_within(what: &str, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let end = Instant::now() + limit;
    loop {
        let last = done();
        if matches!(last, Ok(true)) {
            return Ok(());
        }
        if Instant::now() > end {
            return match last {
                Err(error) => Err(error.context(format!("{what}: not within {limit:?}"))),
                Ok(_) => bail!("{what}: not within {limit:?}"),
            };
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
