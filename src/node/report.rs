//! The reporter: one task that writes the newest report, and reads what the node is told to do.
//!
//! It never holds up the looking: reports are handed over by a watch channel in which the newest replaces the
//! one before. While the API server is away nothing piles up; when it is back the newest goes out, once.
//!
//! Facts go up in the `NodeRuntimeHealth`, commands come down in the `NodeCommand`. It is read once at the beginning, after each
//! report while anything may be asked of the node, and every few seconds while an order may come. Each of the two calls has failures
//! and waits of its own: neither holds up the other.

pub mod client;
pub mod clock;
pub mod draft;
pub mod pace;
pub(in crate::node) mod plugin;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::core::text::bounded;
use client::{CallError, Command, Connect, Connection, Feedback};
use draft::Draft;

/// Least time between two writes.
const LEAST: Duration = Duration::from_secs(1);
/// Time between two reads of the command while an order may come.
const POLL: Duration = Duration::from_secs(5);
/// For how long after an order the command is still read.
const AFTER_ORDER: Duration = Duration::from_mins(2);
/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 256;
/// After this many failures in a row a new client is made: certificates and addresses change.
const NEW_CLIENT_AFTER: u32 = 3;

/// What the reporter works with.
pub struct Reporter {
    /// Makes a client.
    pub connect: Connect,
    /// Name of both objects: the node's.
    pub name: String,
    /// The newest report; `None` until there is a first one.
    pub drafts: watch::Receiver<Option<Arc<Draft>>>,
    /// Where to tell what the report's object says.
    pub feedback: watch::Sender<Feedback>,
    /// Where to tell what the node is told to do.
    pub command: watch::Sender<Command>,
    /// Where to tell how the reports arrive.
    pub delivery: watch::Sender<Delivery>,
    /// The wall clock, for people to read.
    pub wall: fn() -> Timestamp,
}

/// How the reports arrive.
#[derive(Clone, Debug, Default)]
pub struct Delivery {
    /// When the API server last took one.
    pub taken: Option<Instant>,
    /// Since when calls fail, and what the newest one of them said; `None` while they succeed.
    pub failing: Option<(Instant, String)>,
}

impl std::fmt::Debug for Reporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reporter").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The last report that arrived.
struct Sent {
    draft: Arc<Draft>,
    at: Instant,
    /// The next one was promised by then.
    promised: Duration,
    chance: u32,
}

/// How one kind of call goes.
#[derive(Default)]
struct Line {
    failures: u32,
    /// No call before this.
    wait: Option<Instant>,
    /// Since when it fails, and what the newest error said.
    failing: Option<(Instant, String)>,
}

/// What the reporter keeps in mind.
#[derive(Default)]
struct Course {
    connection: Option<Connection>,
    writes: Line,
    reads: Line,
    sent: Option<Sent>,
    sequence: u64,
    /// When the command was last read.
    read: Option<Instant>,
    /// Whether it is to be read since a report was taken: something may be asked of the node.
    owes_read: bool,
    order_seen: Option<Instant>,
}

/// What to do next.
enum Next {
    Write(Arc<Draft>),
    Read,
    Wait(Option<Instant>),
}

impl Reporter {
    /// Reports until the sender of drafts is gone.
    pub async fn run(mut self) {
        let mut course = Course::default();
        loop {
            let draft = self.drafts.borrow_and_update().clone();
            let episode = self.feedback.borrow().episode;
            match course.next(draft, episode, Instant::now()) {
                Next::Write(draft) => self.write(&mut course, draft).await,
                Next::Read => self.read(&mut course).await,
                Next::Wait(until) => {
                    let timer = async {
                        match until {
                            Some(until) => sleep_until(until).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        changed = self.drafts.changed() => if changed.is_err() { return },
                        () = timer => {}
                    }
                }
            }
        }
    }

    async fn write(&self, course: &mut Course, draft: Arc<Draft>) {
        let (now, chance) = (Instant::now(), pace::chance());
        let interval = pace::interval(draft.pulse(now, self.feedback.borrow().episode), chance);
        let sequence = course.sequence.saturating_add(1);
        let status = draft.sent(now, (self.wall)(), sequence, interval);
        let result = match course.client(&self.connect).await {
            Ok(client) => client::apply(&client, &self.name, &status).await,
            Err(error) => Err(error),
        };
        let answer = course.writes.note(&result, "report");
        self.settle(course, answer);
        let Ok(feedback) = result else { return };
        course.sequence = sequence;
        course.owes_read |=
            draft.is_sick() || feedback.episode || feedback.is_blocked || self.command.borrow().order.is_some();
        course.sent = Some(Sent { draft, at: now, promised: interval, chance });
        self.delivery.send_modify(|delivery| delivery.taken = Some(now));
        replace(&self.feedback, feedback);
    }

    async fn read(&self, course: &mut Course) {
        let result = match course.client(&self.connect).await {
            Ok(client) => client::read(&client, &self.name).await,
            Err(error) => Err(error),
        };
        let answer = course.reads.note(&result, "read this node's NodeCommand");
        self.settle(course, answer);
        let Ok(command) = result else { return };
        let now = Instant::now();
        (course.read, course.owes_read) = (Some(now), false);
        if command.order.is_some() {
            course.order_seen = Some(now);
        }
        replace(&self.command, command);
    }

    /// Takes in what a call has shown of the way to the API server.
    fn settle(&self, course: &mut Course, answer: Answer) {
        if answer == Answer::Renew {
            course.connection = None;
        }
        let failing = course.writes.failing.clone().or_else(|| course.reads.failing.clone());
        self.delivery.send_modify(|delivery| delivery.failing = failing);
    }
}

/// Hands on what is news.
fn replace<T: PartialEq>(sender: &watch::Sender<T>, new: T) {
    sender.send_if_modified(|known| {
        let differs = *known != new;
        *known = new;
        differs
    });
}

/// What a call has shown of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// It will do.
    Keep,
    /// The next call takes a new one.
    Renew,
}

impl Line {
    /// Notes how a call went; `what` it was for is logged.
    fn note<T>(&mut self, result: &Result<T, CallError>, what: &'static str) -> Answer {
        let Err(error) = result else {
            if self.failures > 0 {
                tracing::info!(failures = self.failures, what, "the API server answers again");
            }
            *self = Self::default();
            return Answer::Keep;
        };
        let now = Instant::now();
        self.failures = self.failures.saturating_add(1);
        self.wait = now.checked_add(pace::wait(self.failures, pace::chance()));
        let since = self.failing.as_ref().map_or(now, |(since, _)| *since);
        self.failing = Some((since, bounded(&error.to_string(), MAX_ERROR)));
        // The first of a row tells; the rest would only fill the log of a long outage.
        if self.failures == 1 {
            tracing::warn!(%error, "cannot {what}: trying again");
        } else {
            tracing::debug!(%error, failures = self.failures, "still cannot {what}");
        }
        let refused = matches!(error, CallError::Refused { code: 401, .. } | CallError::Unusable { .. });
        let renew = refused || self.failures.is_multiple_of(NEW_CLIENT_AFTER);
        if renew { Answer::Renew } else { Answer::Keep }
    }
}

impl Course {
    async fn client(&mut self, connect: &Connect) -> Result<Client, CallError> {
        if let Some(connection) =
            self.connection.as_ref().filter(|known| known.until.is_none_or(|end| end > Instant::now()))
        {
            return Ok(connection.client.clone());
        }
        let connection = connect().await?;
        Ok(self.connection.insert(connection).client.clone())
    }

    fn next(&self, draft: Option<Arc<Draft>>, episode: bool, now: Instant) -> Next {
        let Some(draft) = draft else { return Next::Wait(None) };
        let write = self.write_due(&draft, episode, now).max(self.writes.wait.unwrap_or(now));
        match self.read_due(&draft, now).map(|due| due.max(self.reads.wait.unwrap_or(now))) {
            // Also where reports are so slow that the next one is due already.
            Some(read) if read <= now && self.owes_read => Next::Read,
            _ if write <= now => Next::Write(draft),
            Some(read) if read <= now => Next::Read,
            Some(read) => Next::Wait(Some(read.min(write))),
            None => Next::Wait(Some(write)),
        }
    }

    /// When the next read is due: after a report with which something may be asked, and every few seconds while an order may come.
    fn read_due(&self, draft: &Draft, now: Instant) -> Option<Instant> {
        let Some(read) = self.read.filter(|_| !self.owes_read) else { return Some(now) };
        let recent = self.order_seen.is_some_and(|seen| now.saturating_duration_since(seen) < AFTER_ORDER);
        (draft.awaits_orders() || recent).then(|| read + POLL)
    }

    /// When the next write is due: at once for new facts and for a look that was asked for, else as promised.
    fn write_due(&self, draft: &Draft, episode: bool, now: Instant) -> Instant {
        let Some(sent) = &self.sent else { return now };
        if !draft.same_facts(&sent.draft) || draft.answers > sent.draft.answers {
            return sent.at + LEAST;
        }
        sent.at + pace::interval(draft.pulse(now, episode), sent.chance).min(sent.promised)
    }
}
