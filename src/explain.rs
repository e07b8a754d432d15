//! `nrh explain NODE`: evidence, fault, rule, held or done, why, and when it is looked at next.

use crate::cli::ExplainArgs;

/// Runs `nrh explain`.
#[expect(clippy::unused_async, reason = "to come")]
pub async fn run(_args: ExplainArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
