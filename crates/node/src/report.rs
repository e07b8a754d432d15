//! The reporter: one task that writes the newest report, and reads what the node is told to do.
//!
//! It never holds up the checks: reports are handed over by a watch channel in which the newest replaces the
//! one before. While the API server is away nothing piles up; when it is back the newest goes out, once.
//!
//! Facts go up in the `NodeRuntimeHealth`, commands come down in the `NodeCommand`, which another task follows (`listener`). Each of
//! the two has a connection, failures and waits of its own: neither holds up the other.

pub mod client;
pub mod clock;
pub mod command;
pub(crate) mod draft;
#[cfg(test)]
mod fake;
mod line;
pub(crate) mod listener;
pub(crate) mod pace;
pub(crate) mod plugin;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use client::{Connect, Feedback};
use draft::Draft;
use line::Line;

/// Least time between two writes.
const LEAST: Duration = Duration::from_secs(1);

/// What the reporter works with.
pub(crate) struct Reporter {
    /// Makes a client.
    pub connect: Connect,
    /// Name of the object: the node's.
    pub name: String,
    /// The newest report; `None` until there is a first one.
    pub drafts: watch::Receiver<Option<Arc<Draft>>>,
    /// Where to tell what the report's object says.
    pub feedback: watch::Sender<Feedback>,
    /// Where to tell how the reports arrive.
    pub delivery: watch::Sender<Delivery>,
}

/// How the reports arrive, and commands.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivery {
    /// When the API server last took a report.
    pub taken: Option<Instant>,
    /// Since when reports fail, and what the newest error said; `None` while they succeed.
    pub failing: Option<(Instant, String)>,
    /// The same of the node's command: since when it cannot be followed.
    pub watch_failing: Option<(Instant, String)>,
}

/// The last report that arrived.
struct Sent {
    draft: Arc<Draft>,
    at: Instant,
    /// The next one was promised by then.
    promised: Duration,
    chance: u32,
}

#[derive(Default)]
struct ReporterState {
    line: Line,
    sent: Option<Sent>,
    sequence: u64,
}

enum Next {
    Write(Arc<Draft>),
    Wait(Option<Instant>),
}

impl Reporter {
    /// Reports until the sender of drafts is gone.
    pub(crate) async fn run(mut self) {
        let mut course = ReporterState::default();
        loop {
            let draft = self.drafts.borrow_and_update().clone();
            let remediation = self.feedback.borrow().remediation;
            match course.next(draft, remediation, Instant::now()) {
                Next::Write(draft) => self.write(&mut course, draft).await,
                Next::Wait(until) => tokio::select! {
                    changed = self.drafts.changed() => if changed.is_err() { return },
                    () = sleep_until(until.unwrap_or_else(Instant::now)), if until.is_some() => {}
                },
            }
        }
    }

    async fn write(&self, course: &mut ReporterState, draft: Arc<Draft>) {
        // A plugin that gives the credentials may take its time: the heartbeat is made after it.
        let client = course.line.client(&self.connect).await;
        let (now, chance) = (Instant::now(), pace::chance());
        let interval = pace::interval(draft.activity(now, self.feedback.borrow().remediation), chance);
        let sequence = course.sequence.saturating_add(1);
        let status = draft.sent(now, Timestamp::now(), sequence, interval);
        let result = async { client::apply(&client?, &self.name, &status).await }.await;
        course.line.note(&result, "report");
        self.delivery.send_modify(|delivery| delivery.failing.clone_from(&course.line.failing));
        let Ok(feedback) = result else { return };
        course.sequence = sequence;
        course.sent = Some(Sent { draft, at: now, promised: interval, chance });
        self.delivery.send_modify(|delivery| delivery.taken = Some(now));
        replace(&self.feedback, feedback);
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

impl ReporterState {
    fn next(&self, draft: Option<Arc<Draft>>, remediation: bool, now: Instant) -> Next {
        let Some(draft) = draft else { return Next::Wait(None) };
        let due = self.write_due(&draft, remediation, now).max(self.line.wait.unwrap_or(now));
        if due <= now { Next::Write(draft) } else { Next::Wait(Some(due)) }
    }

    /// When the next write is due: at once for new facts and for a check that was asked for, else as promised.
    fn write_due(&self, draft: &Draft, remediation: bool, now: Instant) -> Instant {
        let Some(sent) = &self.sent else { return now };
        if !draft.same_facts(&sent.draft) || draft.answers > sent.draft.answers {
            return sent.at + LEAST;
        }
        sent.at + pace::interval(draft.activity(now, remediation), sent.chance).min(sent.promised)
    }
}
