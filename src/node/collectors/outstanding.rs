//! What became of the collectors' calls.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What became of the collectors' calls, by collector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outstanding {
    /// Calls out now.
    #[serde(rename = "callsOut")]
    pub out: BTreeMap<String, usize>,
    /// Calls dropped without an answer since the probe began.
    #[serde(rename = "callsGivenUp")]
    pub given_up: BTreeMap<String, u64>,
    /// Seconds in which calls were out and the probe itself could not run, since it began. They are not taken for the
    /// silence of others.
    pub held_up_seconds: BTreeMap<String, f64>,
}

impl Outstanding {
    pub(super) fn of(
        out: BTreeMap<&'static str, usize>,
        given_up: &BTreeMap<&'static str, u64>,
        held_up: &BTreeMap<&'static str, Duration>,
    ) -> Self {
        Self {
            out: out.into_iter().map(|(collector, count)| (collector.to_owned(), count)).collect(),
            given_up: given_up.iter().map(|(collector, count)| ((*collector).to_owned(), *count)).collect(),
            held_up_seconds: held_up
                .iter()
                .map(|(collector, time)| ((*collector).to_owned(), time.as_secs_f64()))
                .collect(),
        }
    }
}
