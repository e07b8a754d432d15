//! The listener: one task that receives the node's commands at once, by a watch on its own `NodeCommand`.
//!
//! Each round reads the object from the API server's store and watches it from that version, for the better part of an
//! hour. After a failed round, the next one follows after a growing wait. If watches are refused, the reads continue.
//!
//! A hanging watch looks the same as a watch without events. Two things end it: the requested length, and silence after
//! earlier bookmarks (API servers send one per minute, once they have sent the first).

#[cfg(test)]
mod tests;

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::client::{CallError, Connect};
use super::command::{self, Command};
use super::line::Line;
use super::{Delivery, pace, replace};

const WHAT: &str = "follow this node's NodeCommand";
/// A watch that has lasted this long has started successfully.
const SETTLED: Duration = Duration::from_secs(10);
/// Maximum silence of a server that has sent bookmarks.
const SILENCE: Duration = Duration::from_secs(200);
/// How much longer than requested a watch may last.
const GRACE: Duration = Duration::from_secs(30);
/// A connection without a byte for longer than this is useless: it is longer than any watch.
pub(crate) const UNUSED: Duration = Duration::from_mins(62);

/// The parts that the listener uses.
pub(crate) struct Listener {
    /// Creates a client.
    pub connect: Connect,
    /// Name of the object: the node's.
    pub name: String,
    /// Receives the node's command.
    pub command: watch::Sender<Command>,
    /// Receives the state of the calls.
    pub delivery: watch::Sender<Delivery>,
}

impl Listener {
    /// Listens until no receiver is left.
    pub(crate) async fn run(self) {
        let rounds = async {
            let mut line = Line::default();
            loop {
                let result = self.round(&mut line).await;
                self.note(&mut line, &result);
                // The wait applies after a successful round too: many watches can have ended at once.
                sleep_until(line.wait.unwrap_or_else(|| Instant::now() + pace::wait(1, pace::chance()))).await;
            }
        };
        tokio::select! {
            () = rounds => {}
            () = self.command.closed() => {}
        }
    }

    /// Reads the current command, and receives its changes until the watch ends.
    async fn round(&self, line: &mut Line) -> Result<(), CallError> {
        let client = line.client(&self.connect).await?;
        let read = command::read(&client, &self.name).await?;
        replace(&self.command, read.command);
        let length = pace::watch(pace::chance());
        let mut events = pin!(command::watch(&client, &self.name, read.version.as_deref(), length).await?);
        let (opened, mut heard) = (Instant::now(), Instant::now());
        let (mut settles, mut marked) = (Some(opened + SETTLED), false);
        loop {
            let ends = opened + length + GRACE;
            let ends = if marked { ends.min(heard + SILENCE) } else { ends };
            tokio::select! {
                event = events.next() => {
                    heard = Instant::now();
                    match event.transpose()? {
                        None if settles.is_some() => return Err(CallError::Ended),
                        None => return Ok(()),
                        Some(None) => marked = true,
                        Some(Some(command)) => replace(&self.command, command),
                    }
                }
                () = sleep_until(settles.unwrap_or(ends).min(ends)) => {
                    if settles.take().is_none() {
                        return Err(CallError::Silent(heard.elapsed()));
                    }
                    self.note(line, &Ok(()));
                }
            }
        }
    }

    fn note(&self, line: &mut Line, result: &Result<(), CallError>) {
        line.note(result, WHAT);
        self.delivery.send_modify(|delivery| delivery.watch_failing.clone_from(&line.failing));
    }
}
