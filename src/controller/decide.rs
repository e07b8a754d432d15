//! The decision loop: the only decider. Woken by news or by the plan's own next look, never by a fixed beat.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::apply::{Applier, Failures};
use super::ledger::LedgerStore;
use super::shipped_policy;
use super::status::StatusViews;
use crate::core::plan::{Plan, PlanSettings, plan};

/// News that come within this time are decided on together, such as the several objects of one change. Small beside any
/// call that follows.
const GATHER: Duration = Duration::from_millis(1);
/// Longest time without a decision: a safety net, should a plan name no next look.
const LONGEST: Duration = Duration::from_secs(30);
/// Passes in a row that may each do something at once. More than any chain of decisions needs; beyond, a
/// decision that does not take effect must not become a busy loop.
const IN_A_ROW: u32 = 32;
/// Wait between passes after that.
const BREATHE: Duration = Duration::from_secs(1);

/// Decides, and has it carried out.
#[derive(Debug)]
pub struct Planner {
    applier: Applier,
    settings: PlanSettings,
    ceiling: u32,
    outlook: watch::Sender<Arc<StatusViews>>,
    ledger: LedgerStore,
    failures: Failures,
    epoch: Option<u64>,
}

impl Planner {
    /// A decider that hands what it carries out to `applier`, and what it sees to `outlook`.
    pub fn new(
        applier: Applier,
        settings: PlanSettings,
        ceiling: u32,
        outlook: watch::Sender<Arc<StatusViews>>,
    ) -> Self {
        let (ledger, failures) = (LedgerStore::default(), Failures::default());
        Self { applier, settings, ceiling, outlook, ledger, failures, epoch: None }
    }

    /// Decides while this process leads, until `end`. A pass that has begun is finished.
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
                () = cache.woken_or_soon() => tokio::time::sleep(GATHER).await,
            }
        }
    }

    /// One pass; how long until the next, if nothing happens before.
    async fn pass(&mut self) -> Duration {
        let Some(term) = self.applier.leadership.term(Instant::now()) else {
            self.applier.metrics.leads(false);
            self.epoch = None;
            return LONGEST;
        };
        self.applier.metrics.leads(true);
        if !self.applier.cache.lock().is_synced() {
            return LONGEST;
        }
        // A new term knows nothing of what the one before has stored.
        let is_new = self.epoch != Some(term.epoch);
        let rests = self.failures.ledger_rests(Instant::now());
        if is_new || (self.ledger.is_doubtful() && rests.is_none()) {
            self.load_ledger(term.epoch, !is_new).await;
            self.epoch = Some(term.epoch);
        } else if self.ledger.is_doubtful() {
            // As long as it may not be asked for there is none to plan with.
            self.applier.cache.lock().snapshot.ledger = None;
        }
        let known = !self.ledger.is_doubtful();
        let (effects, next) = self.decide(term.epoch, known);
        let planned = effects.len();
        let applied = self.applier.apply(effects, &mut self.ledger, &mut self.failures).await;
        let freed = self.applier.free_finished().await;
        if applied.done > 0 || freed > 0 {
            // What was done is in the cache already: there may be a next step.
            return Duration::ZERO;
        }
        tracing::debug!(planned, ?next, "pass");
        let doubtful = self.ledger.is_doubtful().then_some(Duration::from_secs(1));
        next.into_iter().chain(applied.retry_in).chain(doubtful).min().unwrap_or(LONGEST).min(LONGEST)
    }

    /// Reads the ledger. One that could not be stored lately is written back at once: as long as that fails there is none to
    /// plan with, or steps would be reserved that cannot be taken, and given up one after the other.
    async fn load_ledger(&mut self, epoch: u64, was_in_doubt: bool) {
        let calls = &self.applier.calls;
        let mut ledger = self.ledger.load(calls).await.unwrap_or_else(|error| {
            tracing::warn!(error = error.line(), "the ledger cannot be read; nothing is begun");
            None
        });
        if let Some(read) = ledger.as_ref().filter(|_| was_in_doubt)
            && let Err(error) = self.ledger.store(calls, read, epoch).await
        {
            tracing::warn!(error = error.line(), "the ledger cannot be written; nothing is begun");
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

    /// The decision itself: under the lock, without a copy of the snapshot.
    fn decide(&mut self, epoch: u64, ledger_known: bool) -> (Vec<crate::core::plan::Effect>, Option<Duration>) {
        // What cannot be read is not known to be missing: only a ledger that was read and is not there, or
        // is not one, may be rebuilt.
        self.settings.rebuild_ledger = ledger_known;
        let began = Instant::now();
        let mut state = self.applier.cache.lock();
        state.refresh(began, self.applier.clock.now());
        state.snapshot.epoch = epoch;
        state.snapshot.ceiling = self.ceiling;
        let mut decided: Plan = plan(&state.snapshot, &self.settings);
        self.applier.metrics.decided(&state, &decided, began.elapsed().as_secs_f64());
        let next = decided.next.into_iter().chain(state.next_change(began)).min();
        drop(state);
        let effects = std::mem::take(&mut decided.effects);
        self.outlook.send_replace(Arc::new(StatusViews::of(&mut decided)));
        // A next look of zero would be a busy loop.
        (effects, next.map(|next| next.max(Duration::from_millis(10))))
    }
}
