//! The fresh checks that the controller requests from probes.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::command::CommandRow;

/// Wait before a third fresh check in a row; doubled with each further one.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest wait before a further check.
const AGAIN_MOST: Duration = Duration::from_secs(40);

/// The last check that the controller requested from a probe.
#[derive(Clone, Copy, Debug)]
struct LastRequest {
    number: u64,
    /// Sequence of the last report at the time of the request; a different sequence is the answer.
    at: Option<u64>,
    when: Instant,
    count: u32,
}

/// What the controller requests from a probe in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Nothing, or the request is already written.
    Nothing,
    Now(u64),
    /// A request, once the wait after the last one is over.
    Later,
}

/// The last request to each probe, by node.
#[derive(Debug, Default)]
pub struct CheckRequests(BTreeMap<String, LastRequest>);

impl CheckRequests {
    /// Forgets all nodes but these.
    pub fn retain(&mut self, is_known: impl Fn(&str) -> bool) {
        self.0.retain(|node, _| is_known(node));
    }

    /// The fresh check to request. There is one request at a time; the next one follows the answer to the last. Where the
    /// answers do not help, as from a probe that cannot check, the waits grow.
    pub fn wanted(
        &mut self,
        node: &str,
        is_wanted: bool,
        sequence: Option<u64>,
        row: Option<&CommandRow>,
        now: Instant,
    ) -> Wanted {
        let last = self.0.get_mut(node);
        if !is_wanted {
            if let Some(last) = last {
                last.count = 0;
            }
            return Wanted::Nothing;
        }
        let current = row.and_then(|row| row.check_sequence).unwrap_or(0);
        let (number, count) = match last {
            Some(last) if last.at == sequence => {
                return if current < last.number { Wanted::Now(last.number) } else { Wanted::Nothing };
            }
            Some(last) if now < last.when + again_after(last.count) => return Wanted::Later,
            Some(last) => (current.max(last.number).saturating_add(1), last.count.saturating_add(1)),
            None => (current.saturating_add(1), 1),
        };
        self.0.insert(node.to_owned(), LastRequest { number, at: sequence, when: now, count });
        Wanted::Now(number)
    }
}

/// Shortest wait after the last of `count` checks in a row that did not help. A report that was already on its way may answer
/// one.
fn again_after(count: u32) -> Duration {
    let doubled = AGAIN.saturating_mul(1_u32.checked_shl(count.saturating_sub(2)).unwrap_or(u32::MAX));
    if count < 2 { Duration::ZERO } else { doubled.min(AGAIN_MOST) }
}
