//! `ReleaseHungProcess`: a signal to the one process that hangs.

use std::sync::Arc;

use super::{no_preflight, process, signal};
use crate::agent::checker::{Bounds, Checker};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use nrh_core::action::{ReleaseHungProcess, Signal};
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason};
use nrh_core::fault::{ProcessRef, Role};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    process: ProcessRef,
    params: ReleaseHungProcess,
}

#[derive(Debug)]
pub(in crate::agent) struct Allowed {
    held: Arc<PinnedProcess>,
    signal: Signal,
}

pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    let role = command.fault_type.spec().remedy.hung_process.ok();
    let (role, params) = role.zip(command.action.params().release_hung_process).ok_or_else(|| no_preflight(command))?;
    Ok(Admitted { process: process(command, role)?, params })
}

pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    let Admitted { process, params } = admitted;
    let (target, signal) = (&command.target, params.signal);
    let held = checker.hold(process, target).await?;
    checker.process_still_hangs(process.role, target, &held, Some(signal)).await?;
    if signal == Signal::Kill && process.role == Role::Shim && !params.allow_running_pods {
        let message = format!(
            "killing shim {} would end every container of its pod; the command does not allow that",
            process.pid
        );
        return Err(Refusal::new(OutcomeReason::Protected, message));
    }
    checker.prove_again(&held, process, target).await?;
    Ok(Allowed { held, signal })
}

pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    signal::send(command, &allowed.held, allowed.signal, bounds.verify).await
}
