//! Wiring of the controller.

use crate::cli::ControllerArgs;

/// Runs the controller until it is told to end.
#[expect(clippy::unused_async, reason = "to come")]
pub async fn run(_args: ControllerArgs) -> anyhow::Result<()> {
    anyhow::bail!("not built yet")
}
