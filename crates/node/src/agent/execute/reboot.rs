//! `Reboot`: the login manager reboots the machine.

use std::path::PathBuf;

use super::{done, failed, process};
use crate::agent::checker::{Bounds, Checker};
use crate::agent::verdict::Refusal;
use crate::bus::login::{self, LoginError};
use nrh_core::command::{ActionCommand, Outcome};
use nrh_core::fault::ProcessRef;
use nrh_core::reboot::is_boot_id;

/// The boot that is to end. The process of the fault, if the fault has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(super) boot_id: String,
    pub(super) process: Option<ProcessRef>,
}

/// The bus of the login manager.
#[derive(Debug)]
pub(in crate::agent) struct Allowed(PathBuf);

/// The boot and the process of a command that ends a boot.
pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    let boot_id = command.boot_id.clone().filter(|id| is_boot_id(id));
    let boot_id = boot_id.ok_or_else(|| Refusal::malformed("a reboot must name the boot that is to end (bootId)"))?;
    let role = command.fault_type.spec().remedy.hung_process.ok();
    Ok(Admitted { boot_id, process: role.map(|role| process(command, role)).transpose()? })
}

/// Checks the login manager last, except for the fault itself, which can end at any moment.
pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    let bus = checker.login_manager().await?;
    checker.still_faulty(command, admitted.process.as_ref()).await?;
    Ok(Allowed(bus))
}

/// Asks the login manager to reboot the machine. The next boot id shows whether it did.
pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    let message = match login::reboot(&allowed.0, bounds.call).await {
        Ok(delays) if delays.is_empty() => "the login manager was asked to reboot the node".to_owned(),
        Ok(delays) => format!("the login manager was asked to reboot the node, which waits for {delays}"),
        // The login manager can have received the request, so it counts as sent.
        Err(error @ LoginError::NotSeen(_)) => format!("{error}; the boot id will show it"),
        Err(error) => return failed(command, &format!("the node was not rebooted: {error}")),
    };
    done(command, &message)
}
