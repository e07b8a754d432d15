//! `MarkForReboot`: a file by which another tool of the node drains and reboots it.

use jiff::Timestamp;

use super::{done, failed, reboot};
use crate::agent::checker::{Bounds, Checker};
use crate::agent::verdict::{self, Refusal};
use crate::proc;
use crate::sentinel::{Folder, Found, Mark, Placed, SentinelError};
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::reboot::{MARK_STANDS, sentinel_name};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    reboot: reboot::Admitted,
    path: String,
    /// Seconds after which the node removes the file by itself.
    expires_after: u32,
}

#[derive(Debug)]
pub(in crate::agent) struct Allowed {
    folder: Folder,
    mark: Mark,
    path: String,
}

pub(super) fn admit(command: &ActionCommand) -> Result<Admitted, Refusal> {
    let reboot = reboot::admit(command)?;
    let path = path(command);
    if sentinel_name(&path).is_none() {
        return Err(Refusal::malformed("markForReboot.path is not a file directly in /run with reboot in its name"));
    }
    match command.marker_expires_after_seconds {
        Some(expires_after @ 1..=MARK_STANDS) => Ok(Admitted { reboot, path, expires_after }),
        _ => Err(Refusal::malformed("markerExpiresAfterSeconds is not within 1 to 86400")),
    }
}

fn path(command: &ActionCommand) -> String {
    command.action.params().mark_for_reboot.unwrap_or_default().path
}

/// Checks what a reboot needs. Whether the machine may reboot right now is checked by the tool that reboots it.
pub(super) async fn check(checker: &Checker, command: &ActionCommand, admitted: &Admitted) -> Result<Allowed, Refusal> {
    let (root, host) = (checker.prover.root().to_owned(), checker.host.clone());
    let name = sentinel_name(&admitted.path).unwrap_or_default().to_owned();
    let check = move || {
        let folder = Folder::open(&host)?;
        // An existing regular file is no obstacle; anything else is.
        drop(folder.check(&name)?);
        Ok((folder, proc::uptime(&root)))
    };
    let (folder, uptime) = checker.reader.run(checker.bounds.processes, check).await?.map_err(unfit)?;
    let uptime = uptime.map_err(|error| Refusal::cannot_check(format!("cannot read the time since boot: {error}")))?;
    let mark = Mark {
        node: command.node.clone(),
        operation_id: command.operation_id.clone(),
        boot_id: admitted.reboot.boot_id.clone(),
        until: uptime.as_secs().saturating_add(admitted.expires_after.into()),
        made_at: Timestamp::now().as_second(),
    };
    checker.still_faulty(command, admitted.reboot.process.as_ref()).await?;
    Ok(Allowed { folder, mark, path: admitted.path.clone() })
}

/// Places the marker. The next boot id shows whether the node rebooted.
#[expect(clippy::unused_async, reason = "the list of actions calls it so")]
pub(super) async fn execute(command: &ActionCommand, allowed: Allowed, _: &Bounds) -> Outcome {
    let Allowed { folder, mark, path } = allowed;
    match folder.place(sentinel_name(&path).unwrap_or_default(), &mark) {
        Ok(Placed::Made) => {
            done(command, &format!("{path} was not there; it requests a reboot now, until this command is withdrawn"))
        }
        Ok(Placed::Others(whose)) => {
            let message = format!(
                "{path} requests a reboot already and belongs to someone else ({whose}): it stays when this command is withdrawn"
            );
            verdict::outcome(command, OutcomeState::Done, OutcomeReason::AlreadyRequested, &message)
        }
        Err(SentinelError::Unfit(message)) => {
            verdict::outcome(command, OutcomeState::Refused, OutcomeReason::Protected, &message)
        }
        Err(error) => failed(command, &format!("the node was not marked for a reboot: {error}")),
    }
}

/// Returns the result of a reboot marker whose claim has no outcome. The marker file shows the result at once; the
/// boot itself can be hours away.
pub(in crate::agent) async fn left(checker: &Checker, command: &ActionCommand) -> Result<Outcome, Refusal> {
    let path = path(command);
    let (host, name) = (checker.host.clone(), sentinel_name(&path).unwrap_or_default().to_owned());
    let check = move || Folder::open(&host)?.check(&name);
    let found = checker.reader.run(checker.bounds.processes, check).await?;
    let is_ours = matches!(&found, Ok(Found::Ours(mark)) if mark.operation_id == command.operation_id);
    Ok(if is_ours {
        done(command, &format!("{path} requests a reboot until this command is withdrawn"))
    } else {
        let message = format!(
            "the node is not marked for a reboot: the executor that claimed the operation did not create {path}"
        );
        failed(command, &message)
    })
}

/// An unfit folder or file is a definite refusal; a failed reading is not.
fn unfit(error: SentinelError) -> Refusal {
    match error {
        SentinelError::Unfit(message) => Refusal::new(OutcomeReason::Protected, message),
        error @ SentinelError::Io { .. } => Refusal::cannot_check(error.to_string()),
    }
}
