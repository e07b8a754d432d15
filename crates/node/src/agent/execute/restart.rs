//! `RestartKubelet` and `RestartRuntime`: systemd restarts the unit of the daemon.

use super::{done, failed, no_preflight};
use crate::agent::checker::{Bounds, Checker, Unit};
use crate::agent::verdict::{self, Refusal};
use crate::bus::units::{self, UnitError};
use nrh_core::action::{Restart, is_service};
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::fault::Daemon;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    daemon: Daemon,
    params: Restart,
}

#[derive(Debug)]
pub(in crate::agent) struct Allowed(Unit);

pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    let (daemon, params) =
        command.action.traits().restarts.zip(command.action.params().restart).ok_or_else(|| no_preflight(command))?;
    if params.unit.as_ref().is_some_and(|unit| !is_service(unit)) {
        return Err(Refusal::malformed("restart.unit is not the name of a service, such as kubelet.service"));
    }
    Ok(Admitted { daemon, params })
}

pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    checker.still_to_restart(command.fault_type, admitted.daemon, &admitted.params).await.map(Allowed)
}

/// Asks systemd to restart the unit and waits for the end of the job. The probe's next checks show whether that
/// resolves the fault.
pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    let Allowed(unit) = &allowed;
    let (name, before) = (&unit.name, unit.seen.phrase());
    let result = match units::restart(&unit.bus, name, &unit.seen, bounds.restart).await {
        Ok(result) => result,
        // The next checks show whether it helped, as for every action.
        Err(error @ UnitError::NotSeen { .. }) => {
            let message = format!("{error}; systemd goes on with it");
            return done(command, &message);
        }
        Err(error @ UnitError::Changed { .. }) => {
            return verdict::outcome(command, OutcomeState::Refused, OutcomeReason::TargetChanged, &error.to_string());
        }
        Err(error) => return failed(command, &format!("{name} was not restarted: {error}")),
    };
    let after = match units::check(&unit.bus, name, bounds.call).await {
        Ok(seen) => seen.phrase(),
        Err(error) => format!("in an unknown state ({error})"),
    };
    let message = format!("{name} was {before}; systemd's restart of it: {result}; it is {after}");
    if result == "done" { done(command, &message) } else { failed(command, &message) }
}
