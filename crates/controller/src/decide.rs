//! The decision loop, which alone makes decisions. Changes or the plan's own next check wake it, never a fixed interval.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::{Applier, Failures};
use super::ledger::LedgerStore;
use super::shipped_policy;
use super::status::StatusViews;
use nrh_core::engine::plan;
use nrh_core::plan::Effect;

/// Changes within this time share one decision, such as the several objects of one update. It is small compared with any call
/// that follows.
const GATHER: Duration = Duration::from_millis(1);
/// Maximum time without a decision. It is a safety net, in case a plan names no next check.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of passes in a row without a wait. No chain of decisions needs more. Beyond it, a decision that does not take
/// effect must not become a busy loop.
const IN_A_ROW: u32 = 32;
/// Wait between passes beyond that number.
const BREATHE: Duration = Duration::from_secs(1);

/// Maximum number of finished remediations that one pass deletes. After a limit is lowered, there may be thousands of them. A pass
/// ends when all its effects are complete, so no other decision is made while the API server is slow to delete. The next passes
/// delete the rest: a pass that has done anything is followed by another at once.
const DELETIONS: usize = 64;

/// Makes decisions and has them executed.
#[derive(Debug)]
pub struct Planner {
    applier: Applier,
    ceiling: u32,
    status_view: watch::Sender<Arc<StatusViews>>,
    ledger: LedgerStore,
    failures: Failures,
    epoch: Option<u64>,
    /// How long the last decision took. The next one waits as long, so that the other tasks of this thread have half of it.
    took: Duration,
}

impl Planner {
    /// Creates a planner that passes effects to `applier`, and its status views to `status_view`.
    pub fn new(applier: Applier, ceiling: u32, status_view: watch::Sender<Arc<StatusViews>>) -> Self {
        let (ledger, failures) = (LedgerStore::default(), Failures::default());
        Self { applier, ceiling, status_view, ledger, failures, epoch: None, took: Duration::ZERO }
    }

    /// Makes decisions while this process leads, until `end`. A pass that has begun is finished.
    pub async fn run(mut self, end: CancellationToken) {
        let mut in_a_row = 0_u32;
        let mut leadership = self.applier.leadership.clone();
        loop {
            let wait = self.pass().await;
            in_a_row = if wait.is_zero() { in_a_row.saturating_add(1) } else { 0 };
            let wait = if in_a_row > IN_A_ROW { BREATHE } else { wait };
            let cache = self.applier.cache.clone();
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = leadership.changed() => {}
                () = cache.woken_or_soon() => tokio::time::sleep(GATHER.max(self.took)).await,
            }
        }
    }

    /// Runs one pass. Returns the time until the next pass, if nothing happens before.
    async fn pass(&mut self) -> Duration {
        let Some(term) = self.applier.leadership.term(Instant::now()) else {
            self.applier.metrics.leads(false);
            self.epoch = None;
            return MAX_INTERVAL;
        };
        let is_synced = self.applier.cache.lock().is_synced();
        self.applier.metrics.leads(is_synced);
        if !is_synced {
            // Each complete list wakes the decider.
            return MAX_INTERVAL;
        }
        // A new term does not know what the term before has stored.
        let is_new = self.epoch != Some(term.epoch);
        let rests = self.failures.ledger_rests(Instant::now());
        if is_new || (self.ledger.is_uncertain() && rests.is_none()) {
            self.load_ledger(term.epoch, !is_new).await;
            self.epoch = Some(term.epoch);
        } else if self.ledger.is_uncertain() {
            // While the ledger may not be requested, there is none to plan with.
            self.applier.cache.lock().snapshot.ledger = None;
        }
        let known = !self.ledger.is_uncertain();
        let (effects, next) = self.decide(term.epoch, known);
        let planned = effects.len();
        let effects = with_few_deletions(effects, &self.failures);
        let applied = self.applier.apply(effects, &mut self.ledger, &mut self.failures).await;
        let applied = applied.and(self.applier.free_finished(&mut self.failures).await);
        if applied.done > 0 {
            // The results are in the cache already, so a next step may be possible.
            return Duration::ZERO;
        }
        tracing::debug!(planned, ?next, "pass");
        let uncertain = self.ledger.is_uncertain().then_some(Duration::from_secs(1));
        next.into_iter().chain(applied.retry_in).chain(uncertain).min().unwrap_or(MAX_INTERVAL).min(MAX_INTERVAL)
    }

    /// Reads the ledger. If it could not be stored recently, it is written back immediately. While that fails there is no ledger
    /// to plan with. Otherwise steps would be reserved that cannot be executed, and given up one after the other.
    async fn load_ledger(&mut self, epoch: u64, was_uncertain: bool) {
        let calls = &self.applier.calls;
        let mut ledger = self.ledger.load(calls).await.unwrap_or_else(|error| {
            tracing::warn!(error = error.line(), "the ledger cannot be read; nothing starts");
            None
        });
        if let Some(read) = ledger.as_ref().filter(|_| was_uncertain)
            && let Err(error) = self.ledger.store(calls, read, epoch).await
        {
            tracing::warn!(error = error.line(), "the ledger cannot be written; nothing starts");
            if error.retry_after().is_some() {
                self.failures.note_ledger(&error);
            }
            ledger = None;
        }
        self.applier.cache.lock().snapshot.ledger = ledger;
        if self.ledger.is_missing() {
            match shipped_policy::create_at_first_start(self.applier.calls.raw_acts()).await {
                Ok(Some(policy)) => tracing::info!(policy, "first start: the shipped policy was created"),
                Ok(None) => {}
                Err(error) => tracing::warn!(error = %error, "first start"),
            }
        }
    }

    /// Makes the decision, under the lock and without a copy of the snapshot.
    fn decide(&mut self, epoch: u64, ledger_known: bool) -> (Vec<Effect>, Option<Duration>) {
        // A ledger that cannot be read is not known to be missing. Only a ledger that was read may be rebuilt, if it does not
        // exist or is not valid.
        self.applier.settings.rebuild_ledger = ledger_known;
        let began = Instant::now();
        let mut state = self.applier.cache.lock();
        self.applier.refresh(&mut state, began);
        state.snapshot.epoch = epoch;
        state.snapshot.ceiling = self.ceiling;
        let mut decided = plan(&state.snapshot, &self.applier.settings);
        self.took = began.elapsed();
        self.applier.metrics.decided(&state, &decided, self.took.as_secs_f64());
        let next = decided.next.into_iter().chain(state.next_change(began)).min();
        drop(state);
        let effects = std::mem::take(&mut decided.effects);
        self.status_view.send_replace(Arc::new(StatusViews::of(decided)));
        // A next check after zero time would be a busy loop.
        (effects, next.map(|next| next.max(Duration::from_millis(10))))
    }
}

/// The effects with as many deletions as one pass may execute. Those that have not failed come first, then those that have waited
/// for longest: a record whose deletion is refused takes no room from the others.
fn with_few_deletions(effects: Vec<Effect>, failures: &Failures) -> Vec<Effect> {
    let (mut others, mut names) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::DeleteRemediation { name } => names.push(name),
            other => others.push(other),
        }
    }
    names.sort_by_key(|name| failures.until(name));
    others.extend(names.into_iter().take(DELETIONS).map(|name| Effect::DeleteRemediation { name }));
    others
}
