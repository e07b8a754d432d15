//! The preflight of a reboot, by the login manager or by another tool: the fault still exists, nobody has taken its
//! daemon out of service, and no inhibitor blocks the reboot.

use std::path::PathBuf;

use super::unit::Unit;
use super::{Checker, recovered};
use crate::agent::verdict::Refusal;
use crate::bus::login::{self, LoginError};
use crate::bus::units::UnitSeen;
use nrh_core::command::{ActionCommand, OutcomeReason};
use nrh_core::fault::{FaultType, ProcessRef};
use nrh_core::policy::Daemon;

impl Checker {
    /// Returns the bus of the login manager, if the login manager reboots the machine now.
    pub(in crate::agent) async fn login_manager(&self) -> Result<PathBuf, Refusal> {
        let bus = self.system_bus().await?;
        login::may_reboot(&bus, self.bounds.call).await.map_err(refused)?;
        Ok(bus)
    }

    /// Checks that the fault still exists, and that nobody has taken its daemon out of service.
    pub(in crate::agent) async fn still_faulty(
        &self,
        command: &ActionCommand,
        process: Option<&ProcessRef>,
    ) -> Result<(), Refusal> {
        use FaultType as F;
        match (command.fault_type, process) {
            (kind @ (F::RuntimeUnreachable | F::RuntimeListHung), None) => {
                let unit = self.nobody_has_stopped(Daemon::Runtime).await?;
                if let Some(seen) = unit.as_ref().filter(|seen| kind == F::RuntimeUnreachable && seen.load != "loaded")
                {
                    let message = format!(
                        "whether somebody has stopped the runtime is not known: its usual unit is {}",
                        seen.load
                    );
                    return Err(Refusal::cannot_check(message));
                }
                self.runtime_still_faulty(kind, unit.as_ref()).await?;
            }
            (F::KubeletDown, None) => {
                let unit = self.nobody_has_stopped(Daemon::Kubelet).await?;
                match (self.running_kubelet().await?, unit) {
                    (Some(found), _) => self.kubelet_still_down(&found).await?,
                    // A kubelet under another name can be healthy: the process table and systemd contradict each other.
                    (None, Some(unit)) if !unit.is_down() => {
                        return Err(Refusal::cannot_check(format!(
                            "the kubelet's unit is {}, {} in systemd, but no process of it runs",
                            unit.load,
                            unit.phrase()
                        )));
                    }
                    (None, _) => {}
                }
            }
            (_, Some(process)) => {
                let held = self.hold(process, &command.target).await?;
                self.process_still_hangs(process.role, &command.target, &held, None).await?;
                self.prove_again(&held, process, &command.target).await?;
            }
            (kind, _) => return Err(recovered(format!("there is nothing to check for {kind}"))),
        }
        Ok(())
    }

    /// Checks that nobody has stopped or masked the daemon: such a daemon is down on purpose, and a reboot would start
    /// it again. Returns the state of the daemon's own unit. `None` if the daemon is part of a larger program: then a unit that
    /// runs does not prove that the daemon does.
    async fn nobody_has_stopped(&self, daemon: Daemon) -> Result<Option<UnitSeen>, Refusal> {
        if let Some(unit) = self.usual_unit(daemon).await? {
            in_service(std::slice::from_ref(&unit))?;
            return Ok(Some(unit.seen));
        }
        let lists = self.possible_units(daemon).await?;
        lists.iter().try_for_each(|units| in_service(units))?;
        let all = || lists.iter().flatten();
        if all().all(|unit| unit.seen.load != "loaded") {
            let names: Vec<&str> = all().map(|unit| unit.name.as_str()).collect();
            let (what, names) = (daemon.as_str(), names.join(", "));
            let message =
                format!("whether somebody has stopped the {what} is not known: systemd loads none of {names}");
            return Err(Refusal::cannot_check(message));
        }
        Ok(None)
    }
}

/// Checks that nobody has stopped or masked one of these units, unless another one of them runs.
fn in_service(units: &[Unit]) -> Result<(), Refusal> {
    let is_masked = |seen: &UnitSeen| seen.load == "masked" || seen.file.starts_with("masked");
    let is_stopped = |seen: &UnitSeen| seen.load == "loaded" && seen.active == "inactive";
    if units.iter().any(|unit| unit.seen.active == "active" && !is_masked(&unit.seen)) {
        return Ok(());
    }
    let Some(Unit { name, seen, .. }) = units.iter().find(|unit| is_masked(&unit.seen) || is_stopped(&unit.seen))
    else {
        return Ok(());
    };
    let how = if is_masked(seen) { "is masked" } else { "was stopped, by a person or with a unit that it is bound to" };
    let message = format!("{name} {how}, so the node is not rebooted for it");
    Err(Refusal::new(OutcomeReason::Protected, message))
}

/// An objection of the login manager is a definite refusal, not silence: it causes no retry.
fn refused(error: LoginError) -> Refusal {
    match error {
        LoginError::Blocked(_) | LoginError::Cannot(..) => Refusal::new(OutcomeReason::Protected, error.to_string()),
        other => Refusal::cannot_check(other.to_string()),
    }
}
