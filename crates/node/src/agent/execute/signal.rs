//! Sends a signal to exactly one process, and checks its effect.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::{done, effect, failed};
use crate::agent::target::PinnedProcess;
use crate::agent::verdict;
use nrh_core::action::Signal;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};

pub(super) async fn send(
    command: &ActionCommand,
    held: &Arc<PinnedProcess>,
    signal: Signal,
    bound: Duration,
) -> Outcome {
    let pid = held.process.pid;
    let before = match held.state() {
        Ok(Some(before)) => before,
        Ok(None) => return ended_before(command, pid),
        Err(error) => {
            return failed(command, &format!("cannot read the state of process {pid}: {error}; nothing was sent"));
        }
    };
    if let Err(error) = held.signal(signal) {
        if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) {
            return ended_before(command, pid);
        }
        return failed(
            command,
            &format!(
                "cannot signal process {pid}: {error}; the executor needs CAP_KILL and no security profile in its way"
            ),
        );
    }
    let not_stopped = signal == Signal::Cont && before != 'T';
    let bound = if not_stopped { Duration::ZERO } else { bound };
    match effect(bound, || async { visible(held, signal, before).transpose().ok_or(()) }).await {
        Ok(Ok(message)) => done(command, &message),
        Ok(Err(error)) => failed(command, &format!("signalled process {pid}, cannot see what it does now: {error}")),
        Err(_) => {
            let (state, wchan) = (held.state().ok().flatten(), held.wchan());
            let message = format!(
                "sent {} to process {pid}, which was in state {before}{}; it is in state {} (waits in {})",
                signal.as_str(),
                if not_stopped { " and not stopped" } else { "" },
                state.unwrap_or('?'),
                wchan.as_deref().unwrap_or("nothing known")
            );
            failed(command, &message)
        }
    }
}

/// Returns the effect of the signal, once it is visible. Reads `stat` only, which no process can delay.
fn visible(held: &PinnedProcess, signal: Signal, before: char) -> io::Result<Option<String>> {
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

fn ended_before(command: &ActionCommand, pid: i32) -> Outcome {
    let message = format!("process {pid} ended before a signal was sent");
    verdict::outcome(command, OutcomeState::Refused, OutcomeReason::TargetGone, &message)
}
