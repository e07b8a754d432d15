//! Wiring of the probe.

use crate::cli::ProbeArgs;

/// Runs the probe until it is told to end.
#[expect(clippy::unused_async, reason = "to come")]
pub async fn run(_args: ProbeArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
