//! Counts of the collectors' calls: those that are out, those that were dropped, and for how long calls were delayed.

use std::collections::BTreeMap;
use std::time::Duration;

use nrh_api::evidence::Outstanding;

/// The counts under their own names.
pub(super) fn outstanding(
    out: BTreeMap<&'static str, usize>,
    given_up: &BTreeMap<&'static str, u64>,
    held_up: &BTreeMap<&'static str, Duration>,
) -> Outstanding {
    Outstanding {
        out: out.into_iter().map(|(collector, count)| (collector.to_owned(), count)).collect(),
        given_up: given_up.iter().map(|(collector, count)| ((*collector).to_owned(), *count)).collect(),
        held_up_seconds: held_up
            .iter()
            .map(|(collector, time)| ((*collector).to_owned(), time.as_secs_f64()))
            .collect(),
    }
}
