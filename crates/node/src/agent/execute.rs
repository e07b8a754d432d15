//! How a node carries actions out: which command is well formed, what is checked right before, and what is done.
//!
//! The file of each action has `Admitted` (the well-formed command), `admit`, `Allowed` (what the check has opened for the action), `check`
//! and `execute`.

mod cleanup_orphans;
mod mark_for_reboot;
mod reboot;
mod release_hung_process;
mod restart;
mod signal;
mod thaw_cgroup;

use std::time::Duration;

use super::checker::{Bounds, Checker};
use super::verdict::{self, Refusal};
use crate::deadline::{DeadlineReached, within};
use nrh_core::action::Action;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::fault::{ProcessRef, Role};
use nrh_core::text::is_full_id;

pub(super) use mark_for_reboot::left;

/// Interval between two checks of the effect of an action.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

macro_rules! executors {
    ($($action:ident in $module:ident,)+) => {
        /// A well-formed command, with everything that its action needs.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Admitted {
            $($action($module::Admitted),)+
        }

        /// What the preflight allows, with everything that the action needs.
        #[derive(Debug)]
        pub(super) enum Allowed {
            $($action($module::Allowed),)+
        }

        /// Checks that the action can resolve such a fault, and that the command is well formed for it.
        pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
            if (command.action.traits().addresses)(command.fault_type).is_err() {
                return Err(no_preflight(command));
            }
            match &command.action {
                $(Action::$action(_) => $module::admit(command).map(Admitted::$action),)+
                other => Err(Refusal::malformed(&format!("no node carries out {}", other.phrase()))),
            }
        }

        /// Checks that the fault still exists, and that nothing forbids the action.
        pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
            match admitted {
                $(Admitted::$action(admitted) => $module::check(checker, command, admitted).await.map(Allowed::$action),)+
            }
        }

        /// Executes the allowed action. The holder of the claim calls it once per claim.
        pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
            match allowed {
                $(Allowed::$action(allowed) => $module::execute(command, allowed, bounds).await,)+
            }
        }
    };
}

executors! {
    CleanupOrphans in cleanup_orphans,
    ThawCgroup in thaw_cgroup,
    ReleaseHungProcess in release_hung_process,
    RestartKubelet in restart,
    RestartRuntime in restart,
    Reboot in reboot,
    MarkForReboot in mark_for_reboot,
}

/// Repeats the check of an action's effect until it is seen. The error is what the last finished check saw instead; `None` if none
/// finished.
async fn effect<T, N, F>(bound: Duration, mut check: impl FnMut() -> F) -> Result<T, Option<N>>
where
    F: Future<Output = Result<T, N>>,
{
    let mut last = None;
    let seen = async {
        loop {
            match check().await {
                Ok(seen) => return seen,
                Err(instead) => last = Some(instead),
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    };
    let seen = within(bound, seen).await;
    seen.map_err(|DeadlineReached| last)
}

fn no_preflight(command: &ActionCommand) -> Refusal {
    Refusal::cannot_check(format!(
        "{} for {}: this version has no preflight for it, so it executes nothing",
        command.action.phrase(),
        command.fault_type
    ))
}

/// Returns the process that the command names, if it may be a target.
fn process(command: &ActionCommand, role: Role) -> Result<ProcessRef, Refusal> {
    let Some(process) = &command.target.process else { return Err(Refusal::malformed("no process is named")) };
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    if process.pid < 2 || process.pid == own {
        let message = format!("process {} may not be named: it is init, ourselves or none", process.pid);
        return Err(Refusal::new(OutcomeReason::TargetChanged, message));
    }
    if process.role != role {
        let message =
            format!("process {}: the role must be {role:?}, the command says {:?}", process.pid, process.role);
        return Err(Refusal::new(OutcomeReason::TargetChanged, message));
    }
    if role == Role::Shim && command.target.sandbox_id.is_none() && command.target.container_id.is_none() {
        return Err(Refusal::malformed("a shim must be named together with the id it serves"));
    }
    if role == Role::RuntimeClient && !command.target.container_id.as_deref().is_some_and(is_full_id) {
        return Err(Refusal::malformed(
            "a client of the runtime must be named together with the full id of its container",
        ));
    }
    Ok(process.clone())
}

fn done(command: &ActionCommand, message: &str) -> Outcome {
    verdict::outcome(command, OutcomeState::Done, OutcomeReason::Executed, message)
}

fn failed(command: &ActionCommand, message: &str) -> Outcome {
    verdict::outcome(command, OutcomeState::Failed, OutcomeReason::RequestFailed, message)
}
