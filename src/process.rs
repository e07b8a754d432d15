//! The start of every program.

use std::future::Future;

use anyhow::Context;

use crate::cli::LogArgs;
use crate::telemetry;

/// Starts logging, then runs `work` to its end.
///
/// One thread is enough for every part, and keeps the probe small. Blocking work has its own threads.
///
/// # Errors
/// The errors of `work`, and a kernel without epoll or pipe.
pub fn run(log: &LogArgs, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    let log = telemetry::start(log.log_format, &log.log)?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the async runtime")?;
    let result = runtime.block_on(work);
    log.finish();
    result
}

/// An error with its causes. Many libraries repeat their cause in their own message: each cause appears once.
pub fn error_text(error: &anyhow::Error) -> String {
    let mut causes: Vec<String> = Vec::new();
    for cause in error.chain().map(ToString::to_string) {
        if !causes.iter().any(|before| before.contains(cause.trim())) {
            causes.push(cause);
        }
    }
    causes.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let twice = anyhow::anyhow!("refused").context("no answer (refused)").context("cannot list nodes");
        assert_eq!(error_text(&twice), "cannot list nodes: no answer (refused)");
        let once = anyhow::anyhow!("refused").context("no answer").context("cannot list nodes");
        assert_eq!(error_text(&once), "cannot list nodes: no answer: refused");
    }
}
