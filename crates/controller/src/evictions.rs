//! Checks whether the controller may evict pods. Drains need that right, and the default installation does not give it. While it
//! is unknown, a drain is blocked.

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use tokio::time::Instant;

use super::calls::{CallError, Calls};
use super::handles::Handles;
use super::permissions::{POLL_INTERVAL, again, is_allowed};
use nrh_core::snapshot::TriState;

/// Checks repeatedly while a policy drains nodes, for as long as the process runs. Without an answer the last result remains.
pub async fn run(Handles { calls, cache, .. }: Handles) {
    let mut tried: Option<Instant> = None;
    loop {
        let now = Instant::now();
        let (is_asked_for, known) = {
            let state = cache.lock();
            (state.drains(), state.may_evict)
        };
        let is_due = tried.is_none_or(|at| now.saturating_duration_since(at) >= again(known));
        if is_asked_for && is_due {
            tried = Some(now);
            match may(&calls).await {
                Ok(may) => {
                    if cache.lock().note_may_evict(if may { TriState::True } else { TriState::False }, Instant::now()) {
                        cache.wake();
                    }
                }
                Err(error) => tracing::warn!(error = error.line(), "whether pods may be evicted is not known"),
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Whether the controller may evict pods of all namespaces; an error if that cannot be known now.
pub async fn may(calls: &Calls) -> Result<bool, CallError> {
    let attributes = ResourceAttributes {
        resource: Some("pods".to_owned()),
        subresource: Some("eviction".to_owned()),
        verb: Some("create".to_owned()),
        ..ResourceAttributes::default()
    };
    is_allowed(calls, attributes).await
}
