//! Turns effects into API calls. The ledger goes first. Then each node has one chain, and an effect follows only after the one
//! before it.
//!
//! Every effect is idempotent, and nothing that matters is kept only here. When a call fails, or the process dies between two
//! calls, the next pass plans the rest again from what the API server holds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use tokio::time::Instant;

use super::cache::Cache;
use super::calls::{CallError, Calls};
use super::clock::Clock;
use super::events::Events;
use super::leader::Leadership;
use super::ledger::{LedgerStore, StoreError};
use super::metrics::Metrics;
use nrh_core::plan::{Effect, Operation, PlanSettings};
use nrh_core::snapshot::Ledger;

mod act;
mod disruption;
mod drain;
mod hand_off;
mod manual;
mod preflight;
mod recent_answers;
mod remediation;
mod taint;

pub use disruption::Kills;
use preflight::PreflightRequest;
pub use recent_answers::RecentAnswers;

/// Key of the ledger's chain.
const LEDGER: &str = "ledger";
/// Maximum number of chains that run at the same time.
const CHAINS: usize = 8;
/// Wait after the first failure of a chain. It doubles with each further failure.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// Longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(15);

/// Why the controller did not execute an effect.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The preflight refused. Nothing was changed, and the next pass decides on what the preflight read.
    #[error("not done: {0}")]
    NotNow(String),
    /// The ledger is not the version that the decision was based on. Another process has written it, and may lead by now.
    #[error(
        "not done: the ledger of in-flight slots has changed since its slot was stored: expected version {expected}, found {found}; it is \
         read again"
    )]
    Overtaken {
        /// The version that this process wrote.
        expected: String,
        /// The version that was found.
        found: String,
    },
    /// This process no longer leads.
    #[error("not done: this process does not lead any more")]
    NotLeading,
    /// The status of a remediation, or the command to a node, cannot be written as JSON.
    #[error("the status of the remediation, or the command to its node, cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

impl ApplyError {
    /// How long the API server asks the controller to wait before the next request.
    fn retry_after(&self) -> Option<Duration> {
        if let Self::Call(error) = self { error.retry_after() } else { None }
    }

    fn line(&self) -> String {
        match self {
            Self::Call(error) => error.line(),
            other => other.to_string(),
        }
    }
}

/// The result of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Number of effects that were executed.
    pub done: usize,
    /// Time until the controller may retry the first effect that failed, or that was postponed after a failure.
    pub retry_in: Option<Duration>,
}

impl Applied {
    /// Both results together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let sooner = self.retry_in.into_iter().chain(other.retry_in).min();
        Self { done: self.done + other.done, retry_in: sooner }
    }
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    /// Number of failures in a row.
    count: u32,
    until: Instant,
    /// Whether the API server asked for this wait.
    is_asked: bool,
}

/// Chains that failed recently, by key.
#[derive(Debug, Default)]
pub struct Failures(BTreeMap<String, Failure>);

impl Failures {
    /// Until when a chain waits or waited after its last failure.
    pub fn until(&self, chain: &str) -> Option<Instant> {
        Some(self.0.get(chain)?.until)
    }

    fn waits(&self, chain: &str, now: Instant) -> Option<Duration> {
        self.until(chain)?.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    /// How long the API server asks the controller to wait before the next request for the ledger.
    pub fn ledger_rests(&self, now: Instant) -> Option<Duration> {
        self.waits(LEDGER, now).filter(|_| self.0.get(LEDGER).is_some_and(|failure| failure.is_asked))
    }

    /// Records that the ledger was not stored. Returns the wait until the next try.
    pub fn note_ledger(&mut self, error: &StoreError) -> Duration {
        self.note(LEDGER, error.retry_after())
    }

    /// Records a failure. Returns the wait until the next try, which is at least `asked`.
    fn note(&mut self, chain: &str, asked: Option<Duration>) -> Duration {
        let count = self.0.get(chain).map_or(0, |failure| failure.count);
        let wait = FIRST_WAIT.saturating_mul(1_u32.checked_shl(count.min(16)).unwrap_or(u32::MAX)).min(LONGEST_WAIT);
        let wait = wait.max(asked.unwrap_or_default());
        let (count, until) = (count.saturating_add(1), Instant::now() + wait);
        self.0.insert(chain.to_owned(), Failure { count, until, is_asked: asked.is_some() });
        wait
    }

    /// Records how a chain ended, after so many effects.
    fn ended(&mut self, chain: &str, done: usize, error: Option<&ApplyError>) -> Applied {
        let Some(error) = error else {
            self.0.remove(chain);
            return Applied { done, retry_in: None };
        };
        tracing::warn!(chain, error = error.line(), "effect not carried out");
        Applied { done, retry_in: Some(self.note(chain, error.retry_after())) }
    }
}

/// Whether an effect needs its slot in the ledger. A cleanup, a deletion and a dry run do not need one.
fn spends(effect: &Effect) -> bool {
    match effect {
        Effect::Act { .. } | Effect::BeginManualRequest(_) => true,
        Effect::WriteRemediation(remediation) => remediation.identity.is_none() && remediation.is_open(),
        _ => false,
    }
}

/// Executes effects.
#[derive(Debug)]
pub struct Applier {
    pub calls: Calls,
    /// The cache that receives the answers, so that the next pass sees them.
    pub cache: Arc<Cache>,
    /// Wall time for records.
    pub clock: Clock,
    /// Whether this process leads, and may execute actions.
    pub leadership: Leadership,
    /// Writes Events for people.
    pub events: Events,
    pub metrics: Arc<Metrics>,
    /// Image of the Jobs.
    pub image: String,
    /// What was read or written within the last moments.
    pub lately: RecentAnswers,
    /// Pods whose shims were killed within the last moments.
    pub kills: Kills,
    pub settings: PlanSettings,
}

impl Applier {
    /// Executes the effects of one pass.
    pub async fn apply(&self, effects: Vec<Effect>, ledger: &mut LedgerStore, failures: &mut Failures) -> Applied {
        let now = Instant::now();
        failures.0.retain(|_, old| now.saturating_duration_since(old.until) < LONGEST_WAIT.saturating_mul(4));
        let mut applied = Applied::default();
        let mut is_stored = true;
        let mut chains: Vec<(String, Vec<Effect>)> = Vec::new();
        if let Some(slots) = self.to_store(&effects, ledger) {
            let before = self.before(&slots, ledger);
            let stored = self.store(ledger, before.as_ref().unwrap_or(&slots), failures, now).await;
            is_stored = stored.retry_in.is_none() && before.is_none();
            if stored.done > 0 && before.is_some() {
                return stored;
            }
            applied = stored;
        }
        let ledger_version = ledger.ours().filter(|_| is_stored).map(str::to_owned);
        let ledger_version = ledger_version.as_deref();
        for effect in effects.into_iter().filter(|effect| !matches!(effect, Effect::StoreLedger(_))) {
            let key = self.chain_of(&effect);
            match chains.iter_mut().find(|(chain, _)| *chain == key) {
                Some((_, chain)) => chain.push(effect),
                None => chains.push((key, vec![effect])),
            }
        }
        let mut ready = Vec::new();
        for (key, chain) in chains {
            match failures.waits(&key, now) {
                Some(wait) => applied = applied.and(Applied { done: 0, retry_in: Some(wait) }),
                None => ready.push((key, chain)),
            }
        }
        let runs = ready.into_iter().map(|(key, chain)| async move {
            let (done, error) = self.run_chain(chain, ledger_version).await;
            (key, done, error)
        });
        let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(CHAINS).collect().await;
        for (key, done, error) in results {
            if matches!(error, Some(ApplyError::Overtaken { .. })) {
                ledger.mark_uncertain();
            }
            applied = applied.and(failures.ended(&key, done, error.as_ref()));
        }
        applied
    }

    /// What the controller writes into the ledger before all else: the slots that the plan names. If the ledger was only read so
    /// far, and an effect spends a slot, the controller first writes the same slots again.
    fn to_store(&self, effects: &[Effect], ledger: &LedgerStore) -> Option<Ledger> {
        let planned = effects.iter().find_map(|effect| match effect {
            Effect::StoreLedger(slots) => Some(slots.clone()),
            _ => None,
        });
        if planned.is_some() || ledger.is_ours() || !effects.iter().any(spends) {
            return planned;
        }
        self.cache.lock().snapshot.ledger.clone()
    }

    /// What the controller stores before it frees slots whose remediations it cannot see, if the ledger was only read so far: the
    /// same slots again, and nothing else in this pass. A stale leader that holds such a slot sees a new ledger version in its
    /// preflight and stops. If its preflight ran earlier, its remediation already exists and the controller finds it.
    fn before(&self, slots: &Ledger, ledger: &LedgerStore) -> Option<Ledger> {
        let must = !ledger.is_ours() && !self.unseen(slots).is_empty();
        self.cache.lock().snapshot.ledger.clone().filter(|_| must)
    }

    /// Remediations whose slots are to be freed because the controller cannot see them.
    fn unseen(&self, slots: &Ledger) -> Vec<String> {
        let state = self.cache.lock();
        let known = state.snapshot.ledger.iter().flat_map(|ledger| ledger.slots.keys());
        let is_unseen =
            |name: &&String| !slots.slots.contains_key(*name) && !state.snapshot.remediations.contains_key(*name);
        known.filter(is_unseen).cloned().collect()
    }

    /// Whether the API server confirms that the remediations of [`unseen`](Self::unseen) do not exist. The watch of remediations
    /// may be further behind than the controller knows.
    async fn are_gone(&self, slots: &Ledger) -> bool {
        for name in self.unseen(slots) {
            // A manual request that has not begun holds no slot.
            if !self.is_gone(&name).await && !self.cache.lock().snapshot.manual_requests.contains_key(&name) {
                tracing::warn!(
                    remediation = name,
                    "the slot of a remediation that does not show is kept: it is there, or nobody knows"
                );
                return false;
            }
        }
        true
    }

    async fn store(&self, ledger: &mut LedgerStore, slots: &Ledger, failures: &mut Failures, now: Instant) -> Applied {
        if let Some(wait) = failures.waits(LEDGER, now) {
            return Applied { done: 0, retry_in: Some(wait) };
        }
        let Some(term) = self.leadership.term(now) else { return Applied { done: 0, retry_in: Some(FIRST_WAIT) } };
        if !self.are_gone(slots).await {
            return Applied { done: 0, retry_in: Some(failures.note(LEDGER, None)) };
        }
        match ledger.store(&self.calls, slots, term.epoch).await {
            Ok(()) if self.leads() => {
                failures.0.remove(LEDGER);
                self.cache.lock().snapshot.ledger = Some(slots.clone());
                Applied { done: 1, retry_in: None }
            }
            Ok(()) => Applied { done: 0, retry_in: Some(FIRST_WAIT) },
            Err(error) => {
                tracing::warn!(error = error.line(), "the ledger was not stored; nothing is opened in this pass");
                Applied { done: 0, retry_in: Some(failures.note_ledger(&error)) }
            }
        }
    }

    /// Executes the effects of one chain in order, and stops at the first failure. A removal that the API server refuses, perhaps
    /// forever, does not stop it: an action reads the node again, and a node claims an operation once. Slots are spent from
    /// `ledger_version`; without it no slot is spent.
    async fn run_chain(&self, chain: Vec<Effect>, ledger_version: Option<&str>) -> (usize, Option<ApplyError>) {
        let (mut done, mut refused) = (0, None);
        for effect in chain {
            if !self.leads() {
                return (done, Some(ApplyError::NotLeading));
            }
            let removes =
                matches!(effect, Effect::Remove { .. } | Effect::WithdrawCommand { .. } | Effect::DeleteJob { .. });
            match self.one(effect, ledger_version).await {
                Ok(()) => done += 1,
                Err(ApplyError::Call(error)) if removes && error.is_refusal() => refused = Some(error.into()),
                Err(error) => return (done, Some(error)),
            }
        }
        (done, refused)
    }

    async fn one(&self, effect: Effect, ledger_version: Option<&str>) -> Result<(), ApplyError> {
        let paid = || {
            ledger_version.ok_or_else(|| ApplyError::NotNow("its slot could not be stored in the ledger".to_owned()))
        };
        if spends(&effect) {
            paid()?;
            self.not_suspended()?;
        }
        match effect {
            // `apply` stores the ledger before all chains.
            Effect::StoreLedger(_) => Ok(()),
            Effect::WriteRemediation(remediation) if remediation.identity.is_none() => {
                self.open_remediation(&remediation).await
            }
            Effect::WriteRemediation(remediation) => self.write_remediation(&remediation).await,
            Effect::BeginManualRequest(remediation) => self.begin_manual(&remediation).await,
            Effect::UpdateManualRequest { name, identity, message, .. } => {
                self.write_pending_reason(&name, &identity, &message).await
            }
            Effect::Act { remediation, operation_id, node, operation, .. } => {
                let request = PreflightRequest {
                    remediation: &remediation,
                    operation: &operation_id,
                    node: &node,
                    gives_command: matches!(operation, Operation::GiveCommand(_)),
                    ledger_version: paid()?,
                };
                Box::pin(self.act(request, &operation)).await
            }
            Effect::Remove { remediation, node, marker, successor } => {
                self.remove(&remediation, &node, &marker, successor.as_deref()).await
            }
            Effect::TimeOutHandOff { remediation, handed, at, why, .. } => {
                self.time_out_hand_off(&remediation, &handed, at, &why).await
            }
            Effect::WithdrawCommand { node, operation_id } => self.withdraw_command(&node, &operation_id).await,
            Effect::DeleteJob { operation_id } => self.delete_job(&operation_id).await,
            Effect::DeleteRemediation { name } => self.delete_remediation(&name).await,
        }
    }

    fn leads(&self) -> bool {
        self.leadership.term(Instant::now()).is_some()
    }

    /// An error if this process does not lead any more.
    fn must_lead(&self) -> Result<(), ApplyError> {
        if self.leads() { Ok(()) } else { Err(ApplyError::NotLeading) }
    }

    /// Effects with the same key depend on each other.
    fn chain_of(&self, effect: &Effect) -> String {
        match effect {
            Effect::WriteRemediation(remediation) | Effect::BeginManualRequest(remediation) => remediation.node.clone(),
            Effect::Act { node, .. }
            | Effect::Remove { node, .. }
            | Effect::TimeOutHandOff { node, .. }
            | Effect::WithdrawCommand { node, .. } => node.clone(),
            Effect::DeleteJob { operation_id } => {
                let state = self.cache.lock();
                let of = state.snapshot.remediations.values().find(|e| e.attempt(operation_id).is_some());
                of.map_or_else(|| operation_id.clone(), |e| e.node.clone())
            }
            Effect::UpdateManualRequest { name, .. } | Effect::DeleteRemediation { name } => name.clone(),
            Effect::StoreLedger(_) => String::new(),
        }
    }
}
