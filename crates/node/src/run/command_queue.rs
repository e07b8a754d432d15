//! Commands: passed to the executor one at a time, each once, in a separate task so that reports continue.

use futures::future::BoxFuture;
use tokio::task::JoinHandle;

use nrh_core::command::{ActionCommand, Outcome};

/// Executes one command. A repeated call with the same command returns its outcome.
pub(super) type Execute = Box<dyn Fn(ActionCommand) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// The command in progress and the outcome of the previous one.
pub(super) struct CommandQueue {
    execute: Execute,
    running: Option<JoinHandle<Outcome>>,
    outcome: Option<Outcome>,
}

impl CommandQueue {
    pub(super) fn new(execute: Execute, outcome: Option<Outcome>) -> Self {
        Self { execute, running: None, outcome }
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_ref()
    }

    /// Starts this command, unless it is in progress or has ended. If another command is in progress, the caller has to
    /// offer this one again.
    pub(super) fn start_if_idle(&mut self, command: &ActionCommand) {
        let ended = self.outcome.as_ref().is_some_and(|outcome| outcome.operation_id == command.operation_id);
        if ended || self.running.is_some() {
            return;
        }
        tracing::info!(operation = command.operation_id, action = ?command.action, fault = command.fault_id, "command received");
        self.running = Some(tokio::spawn((self.execute)(command.clone())));
    }

    /// Waits for the end of the command in progress; for ever if there is none.
    pub(super) async fn ended(&mut self) {
        let Some(running) = &mut self.running else { return std::future::pending().await };
        match running.await {
            Ok(outcome) => self.outcome = Some(outcome),
            Err(error) => tracing::error!(%error, "the command ended without an outcome"),
        }
        self.running = None;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;
    use nrh_core::command::{OutcomeReason, OutcomeState};
    use nrh_core::examples::command;

    fn counting(count: &Arc<AtomicU32>) -> Execute {
        let count = Arc::clone(count);
        Box::new(move |command| {
            count.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                Outcome {
                    operation_id: command.operation_id,
                    state: OutcomeState::Done,
                    reason: OutcomeReason::Executed,
                    message: String::new(),
                    at: jiff::Timestamp::UNIX_EPOCH,
                }
            })
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_command_is_handed_over_once_however_often_it_is_seen() {
        let count = Arc::new(AtomicU32::new(0));
        let mut commands = CommandQueue::new(counting(&count), None);
        for _ in 0..10 {
            commands.start_if_idle(&command("op-1"));
            commands.start_if_idle(&command("op-2"));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(count.load(Ordering::SeqCst), 1, "the second waits for the first");
        commands.ended().await;
        assert_eq!(commands.outcome().map(|outcome| outcome.operation_id.as_str()), Some("op-1"));
        commands.start_if_idle(&command("op-1"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(count.load(Ordering::SeqCst), 1, "it is at its end");
        commands.start_if_idle(&command("op-2"));
        commands.ended().await;
        assert_eq!(count.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn an_outcome_from_before_a_restart_is_not_asked_for_again() {
        let count = Arc::new(AtomicU32::new(0));
        let mut commands = CommandQueue::new(counting(&count), None);
        commands.start_if_idle(&command("op-1"));
        commands.ended().await;
        let mut restarted = CommandQueue::new(counting(&count), commands.outcome().cloned());
        restarted.start_if_idle(&command("op-1"));
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }
}
