//! One kind of call to the API server: its client, its failures, and its waits.

use kube::Client;
use tokio::time::Instant;

use super::client::{CallError, Connect, Connection};
use super::pace;
use crate::core::text::bounded;

/// Longest error that is kept, in bytes.
const MAX_ERROR: usize = 256;
/// After this many failures in a row a new client is made: certificates and addresses change.
const NEW_CLIENT_AFTER: u32 = 3;

/// How one kind of call goes.
#[derive(Default)]
pub(super) struct Line {
    connection: Option<Connection>,
    failures: u32,
    /// No call before this.
    pub wait: Option<Instant>,
    /// Since when it fails, and what the newest error said.
    pub failing: Option<(Instant, String)>,
}

impl Line {
    /// The client in use, or a new one.
    pub(super) async fn client(&mut self, connect: &Connect) -> Result<Client, CallError> {
        if let Some(connection) =
            self.connection.as_ref().filter(|known| known.until.is_none_or(|end| end > Instant::now()))
        {
            return Ok(connection.client.clone());
        }
        let connection = connect().await?;
        Ok(self.connection.insert(connection).client.clone())
    }

    /// Notes how a call went; `what` it was for is logged.
    pub(super) fn note<T>(&mut self, result: &Result<T, CallError>, what: &'static str) {
        let Err(error) = result else {
            if self.failures > 0 {
                tracing::info!(failures = self.failures, what, "the API server answers again");
            }
            *self = Self { connection: self.connection.take(), ..Self::default() };
            return;
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
        if refused || self.failures.is_multiple_of(NEW_CLIENT_AFTER) {
            self.connection = None;
        }
    }
}
