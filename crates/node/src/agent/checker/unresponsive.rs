//! The preflight for a shim for which the runtime can wait at its start: only the process table is available then.

use std::sync::Arc;

use super::leaked::of_the_kubelets;
use super::unit::is_silence;
use super::{Checker, asked, recovered};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict::Refusal;
use crate::cri::{Cri, CriError};
use nrh_core::command::OutcomeReason;
use nrh_core::policy::Daemon;

/// Prefix of the names of the shims that call an OCI runtime.
pub(super) const SHIM_OF_RUNC: &str = "containerd-shim-runc-";

impl Checker {
    /// The name of the program that a shim executes.
    pub(super) async fn program(&self, shim: &Arc<PinnedProcess>) -> Result<String, Refusal> {
        let (read, pid) = (Arc::clone(shim), shim.process.pid);
        let program = self.reader.run(self.bounds.processes, move || read.program()).await?;
        program.map_err(|error| Refusal::cannot_check(format!("what does shim {pid} execute? {error}")))
    }

    /// Checks that the runtime does not answer, and that the shim is stopped, has no living child, and has process 1 as
    /// its parent. Then the end of the shim ends nothing else, whatever the runtime would answer.
    pub(in crate::agent) async fn shim_still_unresponsive(&self, held: &Arc<PinnedProcess>) -> Result<(), Refusal> {
        of_the_kubelets(held)?;
        let pid = held.process.pid;
        // The shim of a VM needs no living child: the VM can be in the shim itself, or a child of process 1.
        let program = self.program(held).await?;
        if !program.starts_with(SHIM_OF_RUNC) {
            let message = format!("shim {pid} is {program}, not one of runc's: what it runs is not known");
            return Err(Refusal::new(OutcomeReason::Protected, message));
        }
        let answer = async { Cri::connect(&self.endpoint.socket).await?.version(self.bounds.call).await };
        let Err(error) = answer.await else {
            return Err(recovered(format!("the runtime answers: nothing waits for shim {pid}")));
        };
        let unit = match error {
            CriError::Missing(_) => self.usual_unit(Daemon::Runtime).await?,
            _ => None,
        };
        if !is_silence(&error, unit.as_ref().map(|unit| &unit.seen)) {
            // The cause can be something that this process lacks.
            return Err(asked("its version", &error));
        }
        self.shim_is_alone(pid).await?;
        match self.state(held).await? {
            Some('T') => Ok(()),
            _ => Err(recovered(format!("shim {pid} is not stopped: whether it answers is not known"))),
        }
    }
}
