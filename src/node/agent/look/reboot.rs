//! The second look before the machine is booted anew: it is still as sick as was said, nobody has taken the daemon out of service that
//! it is for, and nobody holds the reboot up.

use super::unit::expected;
use super::{Allowed, Looker, recovered};
use crate::core::fault::{FaultType, ProcessRef};
use crate::core::order::{Order, OutcomeReason, Restart, Signal};
use crate::core::policy::Daemon;
use crate::node::agent::verdict::Refusal;
use crate::node::bus::login::{self, LoginError};
use crate::node::bus::units::{self, UnitSeen};
use crate::node::collect::kubelet::Finder;

impl Looker {
    /// What the login manager says comes last but for the fault itself, which may end at any moment.
    pub(super) async fn still_to_reboot(
        &self,
        order: &Order,
        process: Option<&ProcessRef>,
    ) -> Result<Allowed, Refusal> {
        use FaultType as F;
        let bus = self.system_bus().await?;
        login::may_reboot(&bus, self.bounds.call).await.map_err(refused)?;
        match (order.fault_type, process) {
            (kind @ (F::RuntimeUnreachable | F::RuntimeListHung), None) => {
                drop(self.nobody_has_stopped(Daemon::Runtime).await?);
                self.runtime_still_sick(kind).await?;
            }
            (F::KubeletDown, None) => {
                let unit = self.nobody_has_stopped(Daemon::Kubelet).await?;
                let mut finder = Finder::new(self.prover.root());
                let found = self.reader.run(self.bounds.processes, move || finder.find()).await?;
                let found =
                    found.map_err(|error| Refusal::cannot_look(format!("cannot look for the kubelet: {error}")))?;
                match (found, unit) {
                    (Some(found), _) => self.kubelet_still_down(&found).await?,
                    // One that runs under another name may be well: the two words contradict each other.
                    (None, Some(unit)) if unit.active == "active" => {
                        let stands = unit.phrase();
                        let message =
                            format!("the kubelet's unit is {stands} by systemd's word, and no process of it is seen");
                        return Err(Refusal::cannot_look(message));
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
            (kind, _) => return Err(recovered(format!("nothing is there to be looked at for {kind}"))),
        }
        Ok(Allowed::Reboot { bus })
    }

    /// A daemon that somebody has stopped or masked does not run for a reason, and a reboot would start it anew. Where it is part of
    /// something larger its unit is not known, and nothing speaks against it. The unit as it stands, where it is known.
    async fn nobody_has_stopped(&self, daemon: Daemon) -> Result<Option<UnitSeen>, Refusal> {
        let Ok(name) = expected(daemon, &Restart::default(), &self.endpoint) else { return Ok(None) };
        let bus = self.system_bus().await?;
        let seen = units::look(&bus, &name, self.bounds.call).await;
        let seen = seen.map_err(|error| Refusal::cannot_look(format!("{name}: {error}")))?;
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

/// What the login manager says against it is a word, not silence: nothing is tried anew for it.
fn refused(error: LoginError) -> Refusal {
    match error {
        LoginError::Blocked(_) | LoginError::Cannot(..) => Refusal::new(OutcomeReason::Protected, error.to_string()),
        other => Refusal::cannot_look(other.to_string()),
    }
}
