//! `CleanupOrphans`: kills a leaked or unresponsive shim, or removes a container whose sandbox is gone.

use std::sync::Arc;

use super::{done, effect, failed, no_preflight, process, signal};
use crate::agent::checker::{Bounds, Checker};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::cri::{Cri, CriError};
use nrh_core::action::Signal;
use nrh_core::command::{ActionCommand, Outcome};
use nrh_core::fault::{FaultType, ProcessRef, Role};
use nrh_core::observation::ContainerState;
use nrh_core::text::is_full_id;

/// What the command names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// A shim that serves no container any more, or a stopped one that may block the start of the runtime.
    Shim(ProcessRef),
    /// A container whose sandbox is gone, by its id.
    Container(String),
}

/// What the preflight allows.
#[derive(Debug)]
pub(in crate::agent) enum Allowed {
    /// Kill this shim.
    Shim(Arc<PinnedProcess>),
    /// Remove this container.
    Container { cri: Cri, container_id: String, state: ContainerState },
}

pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    match command.fault_type {
        FaultType::UnresponsiveShim | FaultType::LeakedShim => process(command, Role::Shim).map(Admitted::Shim),
        FaultType::OrphanContainer => match &command.target.container_id {
            Some(id) if is_full_id(id) => Ok(Admitted::Container(id.clone())),
            _ => Err(Refusal::malformed("an orphan container must be named by its full id of 64 hex digits")),
        },
        _ => Err(no_preflight(command)),
    }
}

pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    let target = &command.target;
    let process = match admitted {
        Admitted::Container(id) => {
            let (cri, state) = checker.container_still_orphaned(target, id).await?;
            return Ok(Allowed::Container { cri, container_id: id.clone(), state });
        }
        Admitted::Shim(process) => process,
    };
    let held = checker.hold(process, target).await?;
    if command.fault_type == FaultType::LeakedShim {
        checker.shim_still_leaked(&held).await?;
    } else {
        checker.shim_still_unresponsive(&held).await?;
    }
    checker.prove_again(&held, process, target).await?;
    Ok(Allowed::Shim(held))
}

pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    match allowed {
        Allowed::Shim(held) => signal::send(command, &held, Signal::Kill, bounds.verify).await,
        Allowed::Container { cri, container_id, state } => match remove(&cri, &container_id, state, bounds).await {
            Ok(message) => done(command, &message),
            Err(message) => failed(command, &message),
        },
    }
}

/// Stops the container unless it has exited, then removes it. If the stop fails, it is not removed.
async fn remove(cri: &Cri, id: &str, state: ContainerState, bounds: &Bounds) -> Result<String, String> {
    if state != ContainerState::Exited {
        let deadline = bounds.stop_grace.saturating_add(bounds.remove);
        CriError::answered(cri.stop_container(id, bounds.stop_grace, deadline).await)
            .map_err(|error| format!("cannot stop container {id}: {error}; it was not removed"))?;
    }
    CriError::answered(cri.remove_container(id, bounds.remove).await)
        .map_err(|error| format!("cannot remove container {id}: {error}"))?;
    let is_gone = || async {
        match cri.container_status(id, bounds.verify).await {
            Err(CriError::NotFound) => Ok(()),
            answer => Err(format!("its last answer: {answer:?}")),
        }
    };
    if let Err(last) = effect(bounds.verify, is_gone).await {
        let (seconds, last) = (bounds.verify.as_secs(), last.unwrap_or_else(|| "it gave no answer".to_owned()));
        return Err(format!(
            "removed container {id}, but the runtime does not say within {seconds} s that it is gone; {last}"
        ));
    }
    Ok(format!("removed container {id}, which was {state:?}"))
}
