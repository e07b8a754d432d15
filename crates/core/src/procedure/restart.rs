//! `RestartKubelet` and `RestartRuntime`: when a restart would do harm, and for how long the controller waits until it would not.

use std::time::Duration;

use super::{Procedure, StepContext};
use crate::action::{Restart, RestartKubelet, RestartRuntime};
use crate::context::{Block, NodeContext};
use crate::fault::{Daemon, Fault};
use crate::faults::ShowsIn;
use crate::plan::BlockReason;
use crate::policy::Rule;
use crate::snapshot::TriState;

/// How long an unsafe restart waits, from the time at which its rule is to act, until the next step is selected.
const WAITS: Duration = Duration::from_mins(10);

macro_rules! restarts {
    ($daemon:expr, by $action:ident) => {
        impl Procedure for $action {
            fn require_applicable(&self, fault: &Fault, _: &NodeContext<'_>) -> Result<(), &'static str> {
                (fault.kind.spec().remedy.restart)(&fault.subject).of($daemon)
            }

            fn require_progress(&self, fault: &Fault, node: &NodeContext<'_>, rule: &Rule) -> Result<(), &'static str> {
                require_progress($daemon, &self.0, fault, node, rule)
            }

            fn admit(&self, cx: &StepContext<'_>) -> Result<(), Block> {
                require_safe(cx.node, &cx.seen.fault, $daemon, &self.0)
            }
        }
    };
}

restarts!(Daemon::Kubelet, by RestartKubelet);
restarts!(Daemon::Runtime, by RestartRuntime);

/// Ends the wait for a restart that stays unsafe. Without this limit no later step would notify a person.
fn require_progress(
    daemon: Daemon,
    params: &Restart,
    fault: &Fault,
    node: &NodeContext<'_>,
    rule: &Rule,
) -> Result<(), &'static str> {
    let lasted = node.find(&fault.id).map_or(Duration::ZERO, |seen| seen.lasted);
    let unsafe_for = node.report.map_or(Duration::ZERO, |report| report.restart.unsafe_for);
    let is_long = lasted >= rule.min_duration.saturating_add(WAITS) && unsafe_for >= WAITS;
    // A kubelet waits for its runtime. The runtime has a rule with its own steps.
    let for_runtime =
        daemon == Daemon::Kubelet && node.seen.iter().any(|seen| seen.fault.kind.spec().down == Some(Daemon::Runtime));
    if is_long && !for_runtime && require_safe(node, fault, daemon, params).is_err() {
        return Err("a restart was not safe for 10 min");
    }
    Ok(())
}

/// Whether the probe reports that a restart of the daemon is safe, or the policy skips that check.
fn require_safe(node: &NodeContext<'_>, fault: &Fault, daemon: Daemon, params: &Restart) -> Result<(), Block> {
    let view = node.report.map(|report| &report.restart);
    let safe = view.map_or(TriState::Unknown, |view| view.of(daemon));
    let blocked = node.seen.iter().find(|seen| seen.fault.kind.spec().shows_in == ShowsIn::KubeletStart);
    if let (Daemon::Kubelet, Some(blocked)) = (daemon, blocked) {
        let message = format!(
            "{} on {}: the kubelet is not restarted while its start is blocked, it would wait again: {}",
            fault.kind, node.name, blocked.fault.message
        );
        return Err(Block::new(BlockReason::RestartUnsafe, &message));
    }
    if safe == TriState::True || params.skip_safety_check {
        return Ok(());
    }
    let message = view.map_or("", |view| view.message.as_str());
    let (kind, name, daemon, safe) = (fault.kind, node.name, daemon.as_str(), safe.as_str());
    let message = format!(
        "{kind} on {name}: the {daemon} is not restarted while RestartSafe is {safe} for it: {message}; resolve that first (or \
         set restart.skipSafetyCheck); after 10 min the next step follows"
    );
    Err(Block::new(BlockReason::RestartUnsafe, &message))
}
