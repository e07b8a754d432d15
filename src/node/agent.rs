//! The executor: claims an order, looks again, acts on exactly one object, and says what came of it.

use crate::cli::ActArgs;

/// Runs `nrh act`: one order, in a Job.
#[expect(clippy::unused_async, reason = "to come")]
pub async fn run(_args: ActArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
