//! The preflight of a reboot, by the login manager or by another tool: the fault still exists, nobody has taken its
//! daemon out of service, and no inhibitor blocks the reboot.

use jiff::Timestamp;

use super::unit::Unit;
use super::{Allowed, Looker, recovered};
use crate::agent::verdict::Refusal;
use crate::bus::login::{self, LoginError};
use crate::bus::units::UnitSeen;
use crate::collect::kubelet::Finder;
use crate::proc;
use crate::sentinel::{Folder, Mark, SentinelError};
use nrh_core::action::Signal;
use nrh_core::command::{ActionCommand, OutcomeReason};
use nrh_core::fault::{FaultType, ProcessRef};
use nrh_core::policy::Daemon;
use nrh_core::reboot::{MarkOrder, sentinel_name};

impl Looker {
    /// Checks the login manager last, except for the fault itself, which can end at any moment.
    pub(super) async fn still_to_reboot(
        &self,
        order: &ActionCommand,
        process: Option<&ProcessRef>,
    ) -> Result<Allowed, Refusal> {
        let bus = self.system_bus().await?;
        login::may_reboot(&bus, self.bounds.call).await.map_err(refused)?;
        self.still_as_sick(order, process).await?;
        Ok(Allowed::Reboot { bus })
    }

    /// The same checks for a marker. Whether the machine may reboot right now is checked by the tool that reboots it.
    pub(super) async fn still_to_mark(
        &self,
        order: &ActionCommand,
        boot_id: &str,
        process: Option<&ProcessRef>,
        with: &MarkOrder,
    ) -> Result<Allowed, Refusal> {
        let (root, host) = (self.prover.root().to_owned(), self.host.clone());
        let name = sentinel_name(&with.path).unwrap_or_default().to_owned();
        let look = move || {
            let folder = Folder::open(&host)?;
            // An existing regular file is no obstacle; anything else is.
            drop(folder.look(&name)?);
            Ok((folder, proc::uptime(&root)))
        };
        let (folder, uptime) = self.reader.run(self.bounds.processes, look).await?.map_err(unfit)?;
        let uptime =
            uptime.map_err(|error| Refusal::cannot_look(format!("cannot read the time since boot: {error}")))?;
        let mark = Mark {
            node: order.node.clone(),
            operation_id: order.operation_id.clone(),
            boot_id: boot_id.to_owned(),
            until: uptime.as_secs().saturating_add(with.expires_after_seconds.into()),
            made_at: Timestamp::now().as_second(),
        };
        self.still_as_sick(order, process).await?;
        Ok(Allowed::Mark { folder, mark, path: with.path.clone() })
    }

    /// Checks that the fault still exists, and that nobody has taken its daemon out of service.
    async fn still_as_sick(&self, order: &ActionCommand, process: Option<&ProcessRef>) -> Result<(), Refusal> {
        use FaultType as F;
        match (order.fault_type, process) {
            (kind @ (F::RuntimeUnreachable | F::RuntimeListHung), None) => {
                let unit = self.nobody_has_stopped(Daemon::Runtime).await?;
                self.runtime_still_sick(kind, unit.as_ref()).await?;
            }
            (F::KubeletDown, None) => {
                let unit = self.nobody_has_stopped(Daemon::Kubelet).await?;
                let mut finder = Finder::new(self.prover.root());
                let found = self.reader.run(self.bounds.processes, move || finder.find()).await?;
                let found = found.map_err(|error| Refusal::cannot_look(format!("cannot find the kubelet: {error}")))?;
                match (found, unit) {
                    (Some(found), _) => self.kubelet_still_down(&found).await?,
                    // A kubelet under another name can be healthy: the process table and systemd contradict each other.
                    (None, Some(unit)) if !unit.is_down() => {
                        return Err(Refusal::cannot_look(format!(
                            "the kubelet's unit is {}, {} by systemd's word, and no process of it is seen",
                            unit.load,
                            unit.phrase()
                        )));
                    }
                    (None, _) => {}
                }
            }
            (F::HungContainer, Some(process)) => {
                let held = self.hold(process, &order.target).await?;
                if held.is_of_docker() {
                    self.docker_container_still_hung(&order.target, &held, Signal::Kill).await?;
                } else {
                    self.container_still_hung(&order.target, &held, Signal::Kill).await?;
                }
                self.allow_signal(held, process, &order.target, Signal::Kill).await?;
            }
            (F::NetworkPluginHung, Some(process)) => {
                let held = self.hold(process, &order.target).await?;
                self.plugin_still_hung(&order.target, &held).await?;
                self.allow_signal(held, process, &order.target, Signal::Kill).await?;
            }
            (F::RuntimeClientHung, Some(process)) => {
                let held = self.hold(process, &order.target).await?;
                self.client_still_hung(&order.target, &held).await?;
                self.allow_signal(held, process, &order.target, Signal::Kill).await?;
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

/// An unfit folder or file is a definite refusal; a failed reading is not.
fn unfit(error: SentinelError) -> Refusal {
    match error {
        SentinelError::Unfit(said) => Refusal::new(OutcomeReason::Protected, said),
        error @ SentinelError::Io { .. } => Refusal::cannot_look(error.to_string()),
    }
}

/// An objection of the login manager is a definite refusal, not silence: it causes no retry.
fn refused(error: LoginError) -> Refusal {
    match error {
        LoginError::Blocked(_) | LoginError::Cannot(..) => Refusal::new(OutcomeReason::Protected, error.to_string()),
        other => Refusal::cannot_look(other.to_string()),
    }
}
