//! What every program does before its work begins.

use std::future::Future;

use anyhow::Context;

use crate::cli::LogArgs;
use crate::telemetry;

/// Starts logging, then runs `work` to its end.
///
/// One thread is enough for every part, and keeps the probe small; blocking work has threads of its own.
///
/// # Errors
/// Those of `work`, and a kernel that gives no epoll or pipe.
pub fn run(log: &LogArgs, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    telemetry::start(log.log_format, &log.log);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
    runtime.block_on(work)
}
