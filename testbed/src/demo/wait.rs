//! Waiting, with an end.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often the bed checks.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for something; the error says for what.
pub(super) fn wait(what: &str, limit: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
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
