//! Waiting, with an end.

use std::time::Duration;

use anyhow::{Result, bail};

use crate::wait::{SOON, poll};

/// Longest pause between two checks of an act.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for something that happens soon; the error says for what.
pub(super) fn wait(what: &str, done: impl FnMut() -> Result<bool>) -> Result<()> {
    wait_within(what, SOON, done)
}

/// The same with another limit.
pub(super) fn wait_within(what: &str, limit: Duration, done: impl FnMut() -> Result<bool>) -> Result<()> {
    match poll(limit, POLL_INTERVAL, done, |last| matches!(last, Ok(true))) {
        Ok(_) => Ok(()),
        Err(Ok(_)) => bail!("{what}: not within {limit:?}"),
        Err(Err(error)) => Err(error.context(format!("{what}: not within {limit:?}"))),
    }
}
