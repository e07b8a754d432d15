//! Checks whether a command may be started: it is for this node, well formed, from the newest leader, and in time.

use std::time::Duration;

use jiff::Timestamp;

use super::claims::Moment;
use super::verdict::Refusal;
use nrh_core::action::{MarkForReboot, Restart, Signal, is_service};
use nrh_core::command::{ActionCommand, CommandAction, OutcomeReason};
use nrh_core::fault::{FaultType, ProcessRef, Role};
use nrh_core::policy::Daemon;
use nrh_core::reboot::{self, MarkOrder};
use nrh_core::text::is_full_id;

/// How far the node's clock may differ from the leader's before a timely command is refused.
const CLOCK_SLACK: Duration = Duration::from_hours(1);
/// Maximum length of a text in a command.
const MAX_TEXT: usize = 512;

/// The task of a command, with everything that it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// End the wait for the shim of a container that does not answer.
    ReleaseShim { process: ProcessRef, signal: Signal },
    /// End this CNI plugin's wait.
    ReleasePlugin { process: ProcessRef, signal: Signal },
    /// End this client of a low-level runtime.
    ReleaseClient { process: ProcessRef, signal: Signal },
    /// End this shim that serves no container any more.
    RemoveShim { process: ProcessRef },
    /// End this shim, for which the runtime can wait at its start.
    RemoveUnresponsiveShim { process: ProcessRef },
    /// Remove this container whose sandbox is gone.
    RemoveContainer { container_id: String },
    /// Restart this daemon.
    Restart { daemon: Daemon, with: Restart },
    /// Reboot the machine, if it is in this boot. `process` is the process of the fault, if the fault has one.
    Reboot { boot_id: String, process: Option<ProcessRef> },
    /// Place this marker file, which asks another tool to reboot the machine.
    Mark { boot_id: String, process: Option<ProcessRef>, mark: MarkOrder },
}

/// Checks the form of a command and returns its task.
pub(crate) fn task(order: &ActionCommand, node: &str) -> Result<Task, Refusal> {
    if order.node != node {
        let message = format!("the command is for node {:?}, this is {node:?}", order.node);
        return Err(Refusal::new(OutcomeReason::WrongNode, message));
    }
    if !is_operation_id(&order.operation_id) {
        return Err(malformed("operationID is not a name of 1 to 63 lower-case letters, digits and hyphens"));
    }
    if !(1..=3600).contains(&order.ttl_seconds) {
        return Err(malformed("ttlSeconds is not within 1 to 3600"));
    }
    let target = &order.target;
    let texts = [&target.container_id, &target.sandbox_id, &target.lock];
    if order.fault_id.len() > MAX_TEXT || texts.iter().any(|text| text.as_ref().is_some_and(|t| t.len() > MAX_TEXT)) {
        return Err(malformed("a text is longer than 512 bytes"));
    }
    if order.restart.as_ref().and_then(|with| with.unit.as_ref()).is_some_and(|unit| !is_service(unit)) {
        return Err(malformed("restart.unit is not the name of a service, such as kubelet.service"));
    }
    let signal = match order.action {
        CommandAction::ReleaseCont => Some(Signal::Cont),
        CommandAction::ReleaseKill => Some(Signal::Kill),
        CommandAction::CleanupOrphans => None,
        CommandAction::RestartKubelet => return restart(order, Daemon::Kubelet),
        CommandAction::RestartRuntime => return restart(order, Daemon::Runtime),
        CommandAction::Reboot => {
            let (boot_id, process) = boot(order, order.fault_type.spec().remedy.new_boot)?;
            return Ok(Task::Reboot { boot_id, process });
        }
        CommandAction::MarkForReboot => return mark(order),
    };
    match (signal, order.fault_type) {
        (Some(signal), FaultType::HungContainer) => {
            Ok(Task::ReleaseShim { process: process(order, Role::Shim)?, signal })
        }
        (Some(signal), FaultType::NetworkPluginHung) => {
            Ok(Task::ReleasePlugin { process: process(order, Role::NetworkPlugin)?, signal })
        }
        (Some(signal), FaultType::RuntimeClientHung) => {
            Ok(Task::ReleaseClient { process: process(order, Role::RuntimeClient)?, signal })
        }
        (None, FaultType::UnresponsiveShim) => {
            Ok(Task::RemoveUnresponsiveShim { process: process(order, Role::Shim)? })
        }
        (None, FaultType::LeakedShim) => Ok(Task::RemoveShim { process: process(order, Role::Shim)? }),
        (None, FaultType::OrphanContainer) => match &order.target.container_id {
            Some(id) if is_full_id(id) => Ok(Task::RemoveContainer { container_id: id.clone() }),
            _ => Err(malformed("an orphan container must be named by its full id of 64 hex digits")),
        },
        _ => Err(no_second_look(order)),
    }
}

/// Returns a restart task, if this version can check the fault again.
fn restart(order: &ActionCommand, daemon: Daemon) -> Result<Task, Refusal> {
    use FaultType as F;
    match (daemon, order.fault_type) {
        (Daemon::Kubelet, F::KubeletDown | F::FdExhaustion)
        | (Daemon::Runtime, F::RuntimeUnreachable | F::RuntimeListHung | F::FdExhaustion) => {
            Ok(Task::Restart { daemon, with: order.restart.clone().unwrap_or_default() })
        }
        _ => Err(no_second_look(order)),
    }
}

/// Returns the boot id and process of a reboot, if this version can check the fault again.
fn boot(order: &ActionCommand, helps: Result<(), &str>) -> Result<(String, Option<ProcessRef>), Refusal> {
    use FaultType as F;
    let boot_id = order.boot_id.clone().filter(|id| reboot::is_boot_id(id));
    let boot_id = boot_id.ok_or_else(|| malformed("a reboot must name the boot that is to end (bootId)"))?;
    if helps.is_err() {
        return Err(no_second_look(order));
    }
    let process = match order.fault_type {
        F::HungContainer => Some(process(order, Role::Shim)?),
        F::NetworkPluginHung => Some(process(order, Role::NetworkPlugin)?),
        F::RuntimeClientHung => Some(process(order, Role::RuntimeClient)?),
        _ => None,
    };
    Ok((boot_id, process))
}

/// Returns the task of placing a reboot marker for another tool: the path must be valid and the time bounded.
fn mark(order: &ActionCommand) -> Result<Task, Refusal> {
    let (boot_id, process) = boot(order, MarkForReboot::addresses(order.fault_type))?;
    let Some(mark) = order.reboot_marker.clone() else {
        return Err(malformed("MarkForReboot must name the file (rebootMarker)"));
    };
    if reboot::sentinel_name(&mark.path).is_none() {
        return Err(malformed("rebootMarker.path is not a file directly in /run with reboot in its name"));
    }
    if !(1..=reboot::MARK_STANDS).contains(&mark.expires_after_seconds) {
        return Err(malformed("rebootMarker.expiresAfterSeconds is not within 1 to 86400"));
    }
    Ok(Task::Mark { boot_id, process, mark })
}

fn no_second_look(order: &ActionCommand) -> Refusal {
    Refusal::cannot_look(format!(
        "{:?} for {}: this version has no second check for it, so it executes nothing",
        order.action, order.fault_type
    ))
}

/// Returns the process that the command names, if it may be a target.
fn process(order: &ActionCommand, role: Role) -> Result<ProcessRef, Refusal> {
    let Some(process) = &order.target.process else {
        return Err(malformed("no process is named"));
    };
    let own = i32::try_from(std::process::id()).unwrap_or(i32::MAX);
    if process.pid < 2 || process.pid == own {
        let message = format!("process {} may not be named: it is init, ourselves or none", process.pid);
        return Err(Refusal::new(OutcomeReason::TargetChanged, message));
    }
    if process.role != role {
        let message =
            format!("process {}: the role must be {role:?}, the command says {:?}", process.pid, process.role);
        return Err(Refusal::new(OutcomeReason::TargetChanged, message));
    }
    if role == Role::Shim && order.target.sandbox_id.is_none() && order.target.container_id.is_none() {
        return Err(malformed("a shim must be named together with the id it serves"));
    }
    if role == Role::RuntimeClient && !order.target.container_id.as_deref().is_some_and(is_full_id) {
        return Err(malformed("a client of the runtime must be named together with the full id of its container"));
    }
    Ok(process.clone())
}

/// Checks that there is still time to start the command.
pub(super) fn in_time(
    order: &ActionCommand,
    wall: Timestamp,
    first_read: &Moment,
    now: &Moment,
) -> Result<(), Refusal> {
    let ttl = Duration::from_secs(order.ttl_seconds.into());
    let age = Duration::try_from(wall.duration_since(order.issued_at)).unwrap_or_default();
    if age > ttl.saturating_add(CLOCK_SLACK) {
        return Err(stale(&format!(
            "issued {}s ago by this node's clock, to be started within {}s (and an hour for clocks)",
            age.as_secs(),
            ttl.as_secs()
        )));
    }
    if first_read.boot != now.boot {
        return Err(stale("it was first read before the node was booted"));
    }
    let waited = now.uptime.saturating_sub(first_read.uptime);
    if waited > ttl {
        return Err(stale(&format!("first read {}s ago, to be started within {}s", waited.as_secs(), ttl.as_secs())));
    }
    Ok(())
}

fn is_operation_id(id: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&id.len()) && id.bytes().all(inner) && !id.starts_with('-') && !id.ends_with('-')
}

fn malformed(what: &str) -> Refusal {
    Refusal::cannot_look(format!("the command cannot be executed: {what}"))
}

fn stale(what: &str) -> Refusal {
    Refusal::new(OutcomeReason::Expired, format!("the command is too old: {what}"))
}
