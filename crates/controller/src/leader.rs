//! Leader election: one leader at a time, by compare-and-swap on one Lease.
//!
//! The published crates compare clocks of different machines, or write without a version. With them two leaders are possible for
//! moments. Here a process takes a lease only after *it* has watched the lease stay unchanged for its whole duration, by its own
//! monotonic clock. Every write carries the version that was read. A leader that could not renew in time ends its process, and so
//! does every replica whose monotonic clock stood still.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::ResourceExt;
use kube::api::{ObjectMeta, PostParams};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, versions};
use super::calls::{CallError, Calls, bounded, bounded_opt, post_params};
use super::clock::{AGREE, Clock, agree};
use nrh_api::{CONTROLLER_MANAGER, LEASE_NAME, SYSTEM_NAMESPACE};

/// How long a lease is valid without renewal.
pub const LEASE_DURATION: Duration = Duration::from_secs(15);
/// How long a leader tries to renew before it stands down. This is well before others may take the lease.
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// How often the leader renews the lease, and how often the other replicas read it.
pub const RETRY: Duration = Duration::from_secs(2);

/// What to do about the lease that was just read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No lease exists.
    Create,
    /// This process holds the lease.
    Renew,
    /// The lease is free, or its holder has not renewed it for its whole duration while this process watched.
    Take,
    /// Another process holds the lease.
    Wait,
}

/// What this process has seen of the lease, by its own clock.
#[derive(Debug, Default)]
pub struct Observed {
    version: Option<String>,
    since: Option<Instant>,
    holder: String,
}

impl Observed {
    /// The next step, by the lease as just read.
    pub fn step(&mut self, lease: Option<&Lease>, me: &str, now: Instant) -> Step {
        let Some(lease) = lease else { return Step::Create };
        let version = lease.resource_version();
        if self.version != version || self.since.is_none() {
            *self = Self { version, since: Some(now), holder: String::new() };
        }
        let spec = lease.spec.as_ref();
        let holder = spec.and_then(|s| s.holder_identity.as_deref()).unwrap_or_default();
        self.holder = nrh_core::text::bounded(holder, 253);
        let seconds = spec.and_then(|s| s.lease_duration_seconds).unwrap_or(0).max(0).unsigned_abs();
        let held = Duration::from_secs(seconds.into());
        if holder == me {
            Step::Renew
        } else if holder.is_empty() || self.since.is_some_and(|since| now.saturating_duration_since(since) >= held) {
            Step::Take
        } else {
            Step::Wait
        }
    }
}

/// A term of leadership.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Number of the term. It rises with each change of leader, and every command carries it.
    pub epoch: u64,
    /// End of the term by this process's monotonic clock. The process executes no action after it.
    pub until: Instant,
}

/// Tells the other parts of the process whether it leads.
#[derive(Clone, Debug)]
pub struct Leadership(watch::Receiver<Option<Term>>, Clock);

impl Leadership {
    /// The term, if it is valid at `now`. While it is open whether time has passed unnoticed, there is none.
    pub fn term(&self, now: Instant) -> Option<Term> {
        self.0.borrow().filter(|term| now < term.until && !self.1.has_jumped())
    }

    /// Waits until a term begins or ends. A renewal alone does not end the wait.
    pub async fn changed(&mut self) {
        let epoch = |seen: &watch::Receiver<Option<Term>>| seen.borrow().map(|term| term.epoch);
        let before = epoch(&self.0);
        while epoch(&self.0) == before {
            if self.0.changed().await.is_err() {
                // The election has ended, and the process ends soon.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// Why leadership was lost.
#[derive(Debug, thiserror::Error)]
pub enum Lost {
    /// Another process holds the lease.
    #[error("the lease {SYSTEM_NAMESPACE}/{LEASE_NAME} is held by {holder:?} now, expected {me:?}: this process exits")]
    Taken {
        /// The holder.
        holder: String,
        /// The identity of this process.
        me: String,
    },
    /// This process could not renew the lease in time.
    #[error("the lease {SYSTEM_NAMESPACE}/{LEASE_NAME} could not be renewed for {} s: this process exits", RENEW_DEADLINE.as_secs())]
    NotRenewed,
    /// Time has passed that this process did not notice. What it knows is older than it seems.
    #[error(
        "this machine was suspended, or its clock or the API server's was set by more than {} s: this process exits, since all that \
         it has read may be old",
        AGREE.as_secs()
    )]
    Suspended,
}

/// Takes part in the election.
#[derive(Debug)]
pub struct Election {
    calls: Calls,
    cache: Arc<Cache>,
    clock: Clock,
    me: String,
    observed: Observed,
    /// The lease as it was before this process took it.
    before: Lease,
    term: watch::Sender<Option<Term>>,
}

impl Election {
    /// `me` must be unique per process: a restarted container must not renew its predecessor's lease.
    pub fn new(calls: Calls, cache: Arc<Cache>, clock: Clock, me: String) -> (Self, Leadership) {
        let (term, seen) = watch::channel(None);
        let leadership = Leadership(seen, clock.clone());
        let (observed, before) = (Observed::default(), Lease::default());
        (Self { calls, cache, clock, me, observed, before, term }, leadership)
    }

    /// Runs until `end`, then releases the lease; or until leadership is lost.
    pub async fn run(mut self, end: CancellationToken) -> Result<(), Lost> {
        loop {
            let began = Instant::now();
            let leading = *self.term.borrow();
            let round = self.round().await;
            if round.is_ok() && self.clock.has_jumped() {
                self.term.send_replace(None);
                return Err(Lost::Suspended);
            }
            match round {
                Ok(Some(epoch)) => {
                    if leading.is_none_or(|term| term.epoch != epoch) {
                        tracing::info!(epoch, me = self.me, "leading");
                        // Before anybody sees the term: nobody may act on what the cache held before it.
                        self.cache.begin_term();
                    }
                    // The term counts from the start of the call, because the server may have counted from then.
                    self.term.send_replace(Some(Term { epoch, until: began + RENEW_DEADLINE }));
                }
                Ok(None) if leading.is_some() => {
                    self.term.send_replace(None);
                    return Err(Lost::Taken { holder: self.observed.holder, me: self.me });
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(error = error.line(), "the leader lease could not be read or written"),
            }
            let is_renewed = self.term.borrow().is_some_and(|term| term.until >= began + RENEW_DEADLINE);
            if leading.is_some_and(|term| Instant::now() >= term.until) && !is_renewed {
                self.term.send_replace(None);
                return Err(Lost::NotRenewed);
            }
            tokio::select! {
                () = tokio::time::sleep(RETRY) => {}
                () = end.cancelled() => {
                    self.release().await;
                    return Ok(());
                }
            }
        }
    }

    /// Reads the lease once, and writes it if needed: once, or twice where a term begins. Returns the epoch while this process leads.
    async fn round(&mut self) -> Result<Option<u64>, CallError> {
        let api = self.calls.act_in::<Lease>(SYSTEM_NAMESPACE);
        let what = |verb: &'static str| move || format!("{verb} lease {SYSTEM_NAMESPACE}/{LEASE_NAME}");
        let old = bounded_opt(what("reading"), api.get(LEASE_NAME)).await?;
        let step = self.observed.step(old.as_ref(), &self.me, Instant::now());
        if matches!(step, Step::Create | Step::Take) {
            self.before = old.clone().unwrap_or_default();
        }
        let want = self.wanted(step, old.as_ref());
        let wrote = match step {
            Step::Wait => return Ok(None),
            Step::Create => bounded(what("creating"), api.create(&post_params(), &want)).await,
            Step::Renew | Step::Take => bounded(what("renewing"), api.replace(LEASE_NAME, &post_params(), &want)).await,
        };
        let mut lease = match wrote {
            Ok(lease) => lease,
            // A renewal that loses the compare-and-swap is settled by the next read, which shows whether another process holds
            // the lease.
            Err(error) if error.is_conflict() && step != Step::Renew => return Ok(None),
            Err(error) => return Err(error),
        };
        // The answer to the call that took the lease may have come too late: then the term begins with a renewal.
        if step != Step::Renew || self.term.borrow().is_none() {
            if let Some(want) = self.with_lower_number(&lease) {
                lease = bounded(what("numbering"), api.replace(LEASE_NAME, &post_params(), &want)).await?;
            }
            // After a jump, what this process has read is older than it knows: it ends before this term begins.
            if !self.clock.has_jumped() {
                self.clock.begin_term(written_at(&lease), server_ahead(&self.before));
            }
        } else if let Some(server) = written_at(&lease) {
            self.clock.hold_against(server);
        }
        Ok(Some(epoch(&lease)))
    }

    /// The lease to write before the term begins, if this machine's clock is ahead of the API server's: the number of the term by the
    /// server's clock. The Lease keeps a number that is too high, and nodes refuse all commands until time has caught up with it.
    /// One that is too low lasts for a term.
    fn with_lower_number(&self, lease: &Lease) -> Option<Lease> {
        let server = written_at(lease).filter(|server| !agree(self.clock.now(), *server))?;
        let spec = lease.spec.clone().unwrap_or_default();
        let number = next_epoch(&self.before, server);
        let is_lower = spec.lease_transitions.is_some_and(|current| number < current);
        let spec = Some(LeaseSpec { lease_transitions: Some(number), ..spec });
        is_lower.then(|| Lease { spec, ..lease.clone() })
    }

    /// The lease to write.
    fn wanted(&self, step: Step, old: Option<&Lease>) -> Lease {
        let now = self.clock.now();
        let spec = old.and_then(|lease| lease.spec.clone()).unwrap_or_default();
        let (transitions, acquired) = match step {
            Step::Create | Step::Take => (next_epoch(&self.before, now), Some(MicroTime(now))),
            Step::Renew | Step::Wait => (spec.lease_transitions.unwrap_or(0), spec.acquire_time.clone()),
        };
        Lease {
            metadata: ObjectMeta {
                name: Some(LEASE_NAME.to_owned()),
                namespace: Some(SYSTEM_NAMESPACE.to_owned()),
                resource_version: old.and_then(ResourceExt::resource_version),
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.me.clone()),
                lease_duration_seconds: i32::try_from(LEASE_DURATION.as_secs()).ok(),
                lease_transitions: Some(transitions),
                acquire_time: acquired,
                renew_time: Some(MicroTime(now)),
                ..spec
            }),
        }
    }

    /// Releases the lease, so that another replica need not wait until it expires.
    async fn release(&mut self) {
        if self.term.send_replace(None).is_none() {
            return;
        }
        let api = self.calls.act_in::<Lease>(SYSTEM_NAMESPACE);
        let what = || format!("releasing lease {SYSTEM_NAMESPACE}/{LEASE_NAME}");
        let released = async {
            let Some(mut lease) = bounded_opt(what, api.get(LEASE_NAME)).await? else { return Ok(()) };
            let is_ours = |spec: &&mut LeaseSpec| spec.holder_identity.as_deref() == Some(self.me.as_str());
            let Some(spec) = lease.spec.as_mut().filter(is_ours) else { return Ok(()) };
            spec.holder_identity = None;
            bounded(what, api.replace(LEASE_NAME, &PostParams::default(), &lease)).await.map(drop)
        };
        match released.await {
            Ok(()) => tracing::info!("lease released"),
            Err(error) => tracing::warn!(error = CallError::line(&error), "the lease runs out by itself"),
        }
    }
}

/// When this process wrote the lease, by the API server's clock.
fn written_at(lease: &Lease) -> Option<Timestamp> {
    versions::written_at(&lease.metadata, CONTROLLER_MANAGER)
}

/// By how much the API server's clock was ahead of the holder's at its last write.
fn server_ahead(lease: &Lease) -> Option<SignedDuration> {
    let renewed = lease.spec.as_ref()?.renew_time.as_ref()?.0;
    Some(written_at(lease)?.duration_since(renewed))
}

/// The term's number in the lease.
fn epoch(lease: &Lease) -> u64 {
    lease.spec.as_ref().and_then(|s| s.lease_transitions).unwrap_or(0).max(0).unsigned_abs().into()
}

/// Number of the term that takes this lease. A Lease that was restored from a backup has a lower number than the nodes have already
/// obeyed.
fn next_epoch(before: &Lease, now: Timestamp) -> i32 {
    let before = before.spec.as_ref().and_then(|spec| spec.lease_transitions).unwrap_or(0);
    before.saturating_add(1).max(first_epoch(now))
}

/// Number of the first term of a new lease. Nodes refuse commands of a lower term than they have seen, so a lease that somebody
/// deleted must not start again from zero. Minutes since 1970 only rise, and they leave room for a change of leader every minute.
fn first_epoch(now: Timestamp) -> i32 {
    i32::try_from(now.as_second().max(0) / 60).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests;
