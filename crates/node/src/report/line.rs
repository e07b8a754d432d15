//! One kind of call to the API server: its client, its failures, and its waits.

use kube::Client;
use tokio::time::Instant;

use super::client::{CallError, Connect, Connection};
use super::pace;
use nrh_core::text::bounded;

/// Maximum length of the error that is kept, in bytes.
const MAX_ERROR: usize = 256;
/// After this many failures in a row a new client is created: certificates and addresses change.
const NEW_CLIENT_AFTER: u32 = 3;

/// The state of one kind of call.
#[derive(Default)]
pub(super) struct Line {
    connection: Option<Connection>,
    failures: u32,
    /// No call is made before this time.
    pub wait: Option<Instant>,
    /// Since when the calls fail, and the newest error.
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

    /// Records the result of a call; `what` is its purpose for the log.
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
        // Only the first failure of a row is a warning; the others would fill the log during a long outage.
        if self.failures == 1 {
            tracing::warn!(%error, "cannot {what}: trying again");
        } else {
            tracing::debug!(%error, failures = self.failures, "still cannot {what}");
        }
        let refused = matches!(error, CallError::Refused { code: 401, .. } | CallError::Unusable(_));
        if refused || self.failures.is_multiple_of(NEW_CLIENT_AFTER) {
            self.connection = None;
        }
    }
}
