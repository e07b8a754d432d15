//! What most parts of the controller work with.

use std::sync::Arc;

use super::cache::Cache;
use super::calls::Calls;
use super::clock::Clock;
use super::leader::Leadership;

/// Each part has a clone; all of them share the cache, the clock and the leadership.
#[derive(Clone, Debug)]
pub struct Handles {
    /// The clients for the API server.
    pub calls: Calls,
    /// What the API server has shown.
    pub cache: Arc<Cache>,
    /// Wall time for records.
    pub clock: Clock,
    /// Whether this process leads.
    pub leadership: Leadership,
}
