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
    /// it again. If the daemon is part of a larger program, its unit is unknown and nothing forbids the reboot. Returns
    /// the unit's state, if it is known.
    async fn nobody_has_stopped(&self, daemon: Daemon) -> Result<Option<UnitSeen>, Refusal> {
        let Some(Unit { name, seen, .. }) = self.usual_unit(daemon).await? else { return Ok(None) };
        let is_masked = seen.load == "masked" || seen.file.starts_with("masked");
        let is_stopped = seen.load == "loaded" && seen.active == "inactive";
        if is_masked || is_stopped {
            let how = if is_masked { "is masked" } else { "was stopped" };
            let message =
                format!("{name} {how}: somebody has taken it out of service, so the node is not rebooted for it");
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        Ok(Some(seen))
    }
}

/// An objection of the login manager is a definite refusal, not silence: it causes no retry.
fn refused(error: LoginError) -> Refusal {
    match error {
        LoginError::Blocked(_) | LoginError::Cannot(..) => Refusal::new(OutcomeReason::Protected, error.to_string()),
        other => Refusal::cannot_check(other.to_string()),
    }
}
