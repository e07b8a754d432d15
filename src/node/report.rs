//! The reporter: one task that writes the newest report, and nothing else.
//!
//! It never holds up the looking: reports are handed over by a watch channel in which the newest replaces the
//! one before. While the API server is away nothing piles up; when it is back the newest goes out, once.

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
use client::{CallError, Connect, Connection, Feedback};
use draft::Draft;

/// Least time between two writes.
const LEAST: Duration = Duration::from_secs(1);
/// Time between two reads of the own object while an order may come.
const POLL: Duration = Duration::from_secs(5);
/// For how long after an order the object is still read.
const AFTER_ORDER: Duration = Duration::from_mins(2);
/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 256;
/// After this many failures in a row a new client is made: certificates and addresses change.
const NEW_CLIENT_AFTER: u32 = 3;

/// What the reporter works with.
pub struct Reporter {
    /// Makes a client.
    pub connect: Connect,
    /// Name of the object: the node's.
    pub name: String,
    /// The newest report; `None` until there is a first one.
    pub drafts: watch::Receiver<Option<Arc<Draft>>>,
    /// Where to tell what the object says.
    pub feedback: watch::Sender<Feedback>,
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

/// What the reporter keeps in mind.
#[derive(Default)]
struct Course {
    connection: Option<Connection>,
    sent: Option<Sent>,
    sequence: u64,
    failures: u32,
    /// No call before this.
    wait: Option<Instant>,
    /// When the object was last read or written.
    read: Option<Instant>,
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
                Next::Read => {
                    let result = match course.client(&self.connect).await {
                        Ok(client) => client::read(&client, &self.name).await,
                        Err(error) => Err(error),
                    };
                    self.settle(&mut course, result);
                }
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
        if result.is_ok() {
            course.sequence = sequence;
            course.sent = Some(Sent { draft, at: now, promised: interval, chance });
            self.delivery.send_modify(|delivery| delivery.taken = Some(now));
        }
        self.settle(course, result);
    }

    /// Takes in what came of a call.
    fn settle(&self, course: &mut Course, result: Result<Feedback, CallError>) {
        let now = Instant::now();
        course.read = Some(now);
        match result {
            Ok(feedback) => {
                if course.failures > 0 {
                    tracing::info!(failures = course.failures, "the API server answers again");
                }
                (course.failures, course.wait) = (0, None);
                self.delivery.send_modify(|delivery| delivery.failing = None);
                if feedback.order.is_some() {
                    course.order_seen = Some(now);
                }
                self.feedback.send_if_modified(|known| {
                    let differs = *known != feedback;
                    *known = feedback;
                    differs
                });
            }
            Err(error) => {
                // Where there is no object there is no order either: what stood there was deleted with it.
                if matches!(error, CallError::Missing) {
                    self.feedback.send_if_modified(|known| {
                        let differs = !known.is_known || known.order.is_some();
                        (known.is_known, known.order) = (true, None);
                        differs
                    });
                }
                course.failures = course.failures.saturating_add(1);
                course.wait = now.checked_add(pace::wait(course.failures, pace::chance()));
                self.delivery.send_modify(|delivery| {
                    let since = delivery.failing.as_ref().map_or(now, |(since, _)| *since);
                    delivery.failing = Some((since, bounded(&error.to_string(), MAX_ERROR)));
                });
                let refused = matches!(error, CallError::Refused { code: 401, .. } | CallError::Unusable { .. });
                if refused || course.failures.is_multiple_of(NEW_CLIENT_AFTER) {
                    course.connection = None;
                }
                // The first of a row tells; the rest would only fill the log of a long outage.
                if course.failures == 1 {
                    tracing::warn!(%error, "cannot report: trying again, with the newest report");
                } else {
                    tracing::debug!(%error, failures = course.failures, "still cannot report");
                }
            }
        }
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
        let write = self.write_due(&draft, episode, now).max(self.wait.unwrap_or(now));
        if write <= now {
            return Next::Write(draft);
        }
        let recent = self.order_seen.is_some_and(|seen| now.saturating_duration_since(seen) < AFTER_ORDER);
        let read = (draft.awaits_orders() || recent)
            .then(|| self.read.map_or(now, |read| read + POLL).max(self.wait.unwrap_or(now)));
        match read {
            Some(read) if read <= now => Next::Read,
            Some(read) => Next::Wait(Some(read.min(write))),
            None => Next::Wait(Some(write)),
        }
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
