//! The action itself, on exactly one object, and a short check of its effect.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::look::{Allowed, Bounds, Unit};
use super::target::Held;
use super::verdict;
use crate::bus::login::{self, LoginError};
use crate::bus::units::{self, UnitError};
use crate::cri::{Cri, CriError};
use crate::patience::Patience;
use crate::sentinel::{Folder, Mark, Placed, SentinelError};
use nrh_core::action::Signal;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::observation::ContainerState;
use nrh_core::reboot::sentinel_name;

/// Interval between two checks of the effect.
const RHYTHM: Duration = Duration::from_millis(50);

/// Executes the allowed action. The holder of the claim calls it once per claim.
pub(super) async fn act(order: &ActionCommand, allowed: Allowed, bounds: &Bounds) -> Outcome {
    match allowed {
        Allowed::Signal { held, signal } => send(order, &held, signal, bounds.verify).await,
        Allowed::Remove { cri, container_id, state } => {
            let removed = remove(&cri, &container_id, state, bounds).await;
            match removed {
                Ok(said) => verdict::outcome(order, OutcomeState::Done, OutcomeReason::Executed, &said),
                Err(said) => failed(order, &said),
            }
        }
        Allowed::Reboot { bus } => reboot(order, &bus, bounds).await,
        Allowed::Mark { folder, mark, path } => leave(order, &folder, &mark, &path),
        Allowed::Restart { unit } => restart(order, &unit, bounds).await,
    }
}

/// Asks the login manager to reboot the machine. The next boot id shows whether it did.
async fn reboot(order: &ActionCommand, bus: &Path, bounds: &Bounds) -> Outcome {
    let said = match login::reboot(bus, bounds.call).await {
        Ok(delays) if delays.is_empty() => "the login manager was asked to reboot the node".to_owned(),
        Ok(delays) => format!("the login manager was asked to reboot the node, which waits for {delays}"),
        // The login manager can have received the request, so it counts as sent.
        Err(error @ LoginError::NotSeen(_)) => format!("{error}; the boot id will show it"),
        Err(error) => return failed(order, &format!("the node was not rebooted: {error}")),
    };
    verdict::outcome(order, OutcomeState::Done, OutcomeReason::Executed, &said)
}

/// Places the marker. The next boot id shows whether the node rebooted.
fn leave(order: &ActionCommand, folder: &Folder, mark: &Mark, path: &str) -> Outcome {
    let done = |reason, said: &str| verdict::outcome(order, OutcomeState::Done, reason, said);
    match folder.place(sentinel_name(path).unwrap_or_default(), mark) {
        Ok(Placed::Made) => done(
            OutcomeReason::Executed,
            &format!("{path} was not there; it requests a reboot now, until this command is withdrawn"),
        ),
        Ok(Placed::Others(whose)) => {
            let said = format!(
                "{path} requests a reboot already and belongs to someone else ({whose}): it stays when this command is withdrawn"
            );
            done(OutcomeReason::AlreadyRequested, &said)
        }
        Err(SentinelError::Unfit(said)) => {
            verdict::outcome(order, OutcomeState::Refused, OutcomeReason::Protected, &said)
        }
        Err(error) => failed(order, &format!("the node was not marked for a reboot: {error}")),
    }
}

/// Asks systemd to restart the unit and waits for the end of the job. The probe's next checks show whether that
/// resolves the fault.
async fn restart(order: &ActionCommand, unit: &Unit, bounds: &Bounds) -> Outcome {
    let (name, before) = (&unit.name, unit.seen.phrase());
    let result = match units::restart(&unit.bus, name, &unit.seen, bounds.restart).await {
        Ok(result) => result,
        // The next checks show whether it helped, as for every action.
        Err(error @ UnitError::NotSeen { .. }) => {
            let said = format!("{error}; systemd goes on with it");
            return verdict::outcome(order, OutcomeState::Done, OutcomeReason::Executed, &said);
        }
        Err(error @ UnitError::Changed { .. }) => {
            return verdict::outcome(order, OutcomeState::Refused, OutcomeReason::TargetChanged, &error.to_string());
        }
        Err(error) => return failed(order, &format!("{name} was not restarted: {error}")),
    };
    let after = match units::look(&unit.bus, name, bounds.call).await {
        Ok(seen) => seen.phrase(),
        Err(error) => format!("in an unknown state ({error})"),
    };
    let said = format!("{name} was {before}; systemd's restart of it: {result}; it is {after}");
    if result == "done" {
        verdict::outcome(order, OutcomeState::Done, OutcomeReason::Executed, &said)
    } else {
        failed(order, &said)
    }
}

async fn send(order: &ActionCommand, held: &Arc<Held>, signal: Signal, bound: Duration) -> Outcome {
    let pid = held.process.pid;
    let before = match held.state() {
        Ok(Some(before)) => before,
        Ok(None) => return ended_before(order, pid),
        Err(error) => {
            return failed(order, &format!("cannot read the state of process {pid}: {error}; nothing was sent"));
        }
    };
    if let Err(error) = held.signal(signal) {
        if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) {
            return ended_before(order, pid);
        }
        return failed(
            order,
            &format!(
                "cannot signal process {pid}: {error}; the executor needs CAP_KILL and no security profile in its way"
            ),
        );
    }
    let mut patience = Patience::new(bound, Instant::now());
    loop {
        match effect(held, signal, before) {
            Ok(Some(said)) => return verdict::outcome(order, OutcomeState::Done, OutcomeReason::Executed, &said),
            Ok(None) => {}
            Err(error) => {
                return failed(order, &format!("signalled process {pid}, cannot see what it does now: {error}"));
            }
        }
        let not_stopped = signal == Signal::Cont && before != 'T';
        if patience.left().is_zero() || not_stopped {
            let (state, wchan) = (held.state().ok().flatten(), held.wchan());
            let message = format!(
                "sent {} to process {pid}, which was in state {before}{}; it is in state {} (waits in {})",
                signal.as_str(),
                if not_stopped { " and not stopped" } else { "" },
                state.unwrap_or('?'),
                wchan.as_deref().unwrap_or("nothing known")
            );
            return failed(order, &message);
        }
        tokio::time::sleep(RHYTHM).await;
        patience.count(Instant::now());
    }
}

/// Returns the effect of the signal, once it is visible. Reads `stat` only, which no process can delay.
fn effect(held: &Held, signal: Signal, before: char) -> io::Result<Option<String>> {
    let after = match held.state()? {
        None => "it has ended".to_owned(),
        Some(state) if signal == Signal::Cont && before == 'T' && state != 'T' => {
            format!("it is no longer stopped (state {state})")
        }
        Some(_) => return Ok(None),
    };
    let (pid, command) = (held.process.pid, &held.process.command);
    Ok(Some(format!("sent {} to process {pid} ({command}), which was in state {before}; {after}", signal.as_str())))
}

fn ended_before(order: &ActionCommand, pid: i32) -> Outcome {
    let message = format!("process {pid} ended before a signal was sent");
    verdict::outcome(order, OutcomeState::Refused, OutcomeReason::TargetGone, &message)
}

/// Removes exactly one container; one that can be running is stopped first, and is not removed if the stop fails.
async fn remove(cri: &Cri, id: &str, state: ContainerState, bounds: &Bounds) -> Result<String, String> {
    if state != ContainerState::Exited {
        let deadline = bounds.stop_grace.saturating_add(bounds.remove);
        match cri.stop_container(id, bounds.stop_grace, deadline).await {
            Ok(()) | Err(CriError::NotFound) => {}
            Err(error) => return Err(format!("cannot stop container {id}: {error}; it was not removed")),
        }
    }
    match cri.remove_container(id, bounds.remove).await {
        Ok(()) | Err(CriError::NotFound) => {}
        Err(error) => return Err(format!("cannot remove container {id}: {error}")),
    }
    let mut patience = Patience::new(bounds.verify, Instant::now());
    loop {
        let left = patience.left();
        // The last query also has time for an answer.
        match cri.container_status(id, left.max(RHYTHM)).await {
            Err(CriError::NotFound) => {
                return Ok(format!("removed container {id} ({state:?}); the runtime does not know it any more"));
            }
            answer if left.is_zero() => {
                return Err(format!("removed container {id}, but the runtime still says {answer:?} of it"));
            }
            _ => tokio::time::sleep(RHYTHM).await,
        }
        patience.count(Instant::now());
    }
}

fn failed(order: &ActionCommand, message: &str) -> Outcome {
    verdict::outcome(order, OutcomeState::Failed, OutcomeReason::RequestFailed, message)
}
