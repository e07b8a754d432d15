//! The last proof that the admission policies are in force.

use std::time::Duration;

use tokio::time::Instant;

/// How long a proof is valid: longer than some unanswered checks in a row.
pub(crate) const GOOD_FOR: Duration = Duration::from_mins(10);

/// Result of the last proof.
#[derive(Debug, Default)]
pub struct Proof {
    /// When all policies were last proven to be in force.
    proven: Option<Instant>,
    /// What the last check found missing.
    lacks: Vec<String>,
    /// Why the last check proved nothing, if so.
    failed: Option<String>,
}

impl Proof {
    /// Stores the outcome of a check: what is missing. Returns whether that changed.
    pub fn note(&mut self, lacks: Vec<String>, now: Instant) -> bool {
        let is_news = self.not_enforced(now).is_some() == lacks.is_empty() || self.lacks != lacks;
        self.proven = lacks.is_empty().then_some(now);
        self.lacks = lacks;
        self.failed = None;
        is_news
    }

    /// Stores that a check proved nothing, and why: the last proof stays valid for a while.
    pub fn note_failure(&mut self, why: String) {
        self.failed = Some(why);
    }

    /// Why the policies are not known to be in force; `None` = they recently were.
    pub fn not_enforced(&self, now: Instant) -> Option<String> {
        if !self.lacks.is_empty() {
            let lacks = self.lacks.join("; ");
            return Some(format!("admission does not bound the operator as it has to: {lacks}"));
        }
        let is_good = self.proven.is_some_and(|at| now.saturating_duration_since(at) < GOOD_FOR);
        (!is_good).then(|| {
            let why = self.failed.as_deref().unwrap_or("they are checked right now");
            format!("it is not known whether the admission policies are in force: {why}")
        })
    }

    /// What the controller has to report to people; `began` is its start. The list is what is missing; an empty list means that
    /// there was no proof for too long. A single failed check is not reported.
    pub(crate) fn complaint(&self, began: Instant, now: Instant) -> Option<&[String]> {
        let is_overdue = now.saturating_duration_since(self.proven.unwrap_or(began)) >= GOOD_FOR;
        (is_overdue || !self.lacks.is_empty()).then_some(&self.lacks)
    }

    /// When the proof expires.
    pub fn next_change(&self, now: Instant) -> Option<Duration> {
        (self.proven? + GOOD_FOR).checked_duration_since(now)
    }
}
