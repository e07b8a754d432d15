//! The start of every program.

use std::future::Future;

use anyhow::Context;

use crate::cli::LogArgs;
use crate::telemetry;

/// The log of a program that runs in the cluster.
pub const SERVICE: &str = "info";
/// The log of a command of a person: its error says once and in words what libraries log.
pub const PERSON: &str = "off";

/// Starts logging, by default with the filter `usual`, then runs `work` to its end.
///
/// One thread is enough for every part, and keeps the probe small. Blocking work has its own threads.
///
/// # Errors
/// The errors of `work`, and a kernel without epoll or pipe.
pub fn run(log: &LogArgs, usual: &str, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let log = telemetry::start(log.log_format, log.log.as_deref().unwrap_or(usual))?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
    let result = runtime.block_on(work);
    log.finish();
    result
}
