//! A timeline: which nodes there are, what happens to them and when, and what is expected of the policies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use jiff::Timestamp;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_saphyr::UserMessageFormatter;

mod condition;
mod event;
mod expectation;
mod fault;
mod flaps;
mod manual;
mod offset;
pub(crate) mod pods;

use nrh_core::text::bounded;

pub use super::cleared_by::ClearedBy;
pub use condition::ConditionEvent;
pub use event::{Event, KubeletState, Machine, PolicyEvent, ProbeState};
pub use expectation::Expectation;
pub use fault::FaultEvent;
pub use flaps::FlapsEvent;
pub use manual::ManualRequestEvent;
pub use offset::Offset;
pub use pods::PodsEvent;

/// Maximum number of nodes in a timeline.
const MAX_NODES: usize = 10_000;
/// Maximum number of events in a timeline.
const MAX_EVENTS: usize = 10_000;
/// Maximum number of happenings in a timeline: one for each event and each node that it concerns.
const MAX_HAPPENINGS: usize = 1_000_000;
/// How long a timeline without `until` waits for its open remediations: as long as the longest approval may take.
const MAX_OPEN: Duration = Duration::from_hours(24);
/// Longest timeline: five weeks.
pub const LONGEST: Duration = Duration::from_hours(24 * 35);

/// The timeline file, as people write it.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Timeline {
    /// What the timeline is about, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// When it begins. The windows of policies use this time.
    #[serde(default = "default_start", deserialize_with = "read_start")]
    pub start: Timestamp,
    /// How long it lasts. Default: until an hour after the last event, or until all remediations that are open then have ended,
    /// at most a day longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Offset>,
    /// Files of the policies, relative to this file. `--policy` replaces them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<PathBuf>,
    /// Maximum number of remediations in flight in the whole cluster (`--max-in-flight` of the controller).
    #[serde(default = "default_ceiling")]
    pub max_in_flight: u32,
    /// The nodes.
    pub nodes: Vec<Nodes>,
    /// The events, in any order.
    pub events: Vec<Event>,
    /// What must result.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub expect: Vec<Expectation>,
}

fn default_start() -> Timestamp {
    // A Monday at three in the morning.
    Timestamp::from_second(1_767_582_000).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn read_start<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text = String::deserialize(from)?;
    let fail = |_| format!("start: expected a time such as 2026-01-05T19:30:00Z, found {:?}", bounded(&text, 32));
    text.parse().map_err(fail).map_err(D::Error::custom)
}

const fn default_ceiling() -> u32 {
    10
}

/// One node, or several equal nodes.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Nodes {
    /// Its name. With `count`: the part before the number.
    pub name: String,
    /// How many: `worker` and 3 are worker-1, worker-2 and worker-3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// Labels in addition to those of every node ([`own_labels`]). They may also override these.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Version of the kubelet, such as v1.36.1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet_version: Option<String>,
    /// Container runtime with its version, as in a Node: `containerd://1.7.24`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime_version: Option<String>,
    /// Image of the operating system, as in a Node: `Ubuntu 24.04.2 LTS`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub os_image: Option<String>,
}

/// The labels that every node has without being written.
pub fn own_labels(name: &str) -> impl Iterator<Item = (&str, &str)> {
    let all = [("kubernetes.io/hostname", name), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "amd64")];
    all.into_iter()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

impl Timeline {
    /// Parses a timeline.
    ///
    /// # Errors
    /// The text is no YAML of this form, or contains something impossible. The message names it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let timeline: Self = serde_saphyr::from_str(text)
            .map_err(|error| anyhow!("{}", error.without_snippet().render_with_formatter(&UserMessageFormatter)))
            .context("it is no timeline")?;
        timeline.check()?;
        Ok(timeline)
    }

    fn check(&self) -> anyhow::Result<()> {
        let names = self.names();
        ensure!(!names.is_empty(), "nodes: expected at least one");
        let found = self.nodes.iter().map(|nodes| nodes.count.unwrap_or(1)).fold(0, usize::saturating_add);
        ensure!(found <= MAX_NODES, "nodes: expected at most {MAX_NODES}, found {found}");
        ensure!(self.events.len() <= MAX_EVENTS, "events: expected at most {MAX_EVENTS}, found {}", self.events.len());
        let empty = self.nodes.iter().find(|nodes| nodes.count == Some(0));
        ensure!(empty.is_none(), "nodes: count: expected at least 1, found 0");
        if let Some(name) = twice(names.iter().map(|(name, _)| name.as_str())) {
            bail!("nodes: there are two of the name {name}");
        }
        let mut happenings = 0_usize;
        for (number, event) in self.events.iter().enumerate() {
            event.check(&names).with_context(|| format!("event {} (at {})", number + 1, event.at))?;
            let count = event.chosen(names.iter().map(|(name, _)| name.as_str())).len();
            happenings = happenings.saturating_add(count);
            let last = Offset(event.last(count));
            if let Some(until) = self.until.filter(|until| *until < last) {
                bail!("event {} (at {}): it is last at {last}, and until is {until}", number + 1, event.at);
            }
        }
        ensure!(
            happenings <= MAX_HAPPENINGS,
            "events: expected at most {MAX_HAPPENINGS} over all nodes, found {happenings}"
        );
        for (number, expectation) in self.expect.iter().enumerate() {
            expectation.check(&names, self.until).with_context(|| format!("expectation {}", number + 1))?;
        }
        Ok(())
    }

    /// The name of every node, with its description.
    pub fn names(&self) -> Vec<(String, &Nodes)> {
        let numbered = |nodes: &Nodes, number: usize| format!("{}-{number}", nodes.name);
        self.nodes
            .iter()
            .flat_map(|nodes| match nodes.count {
                None => vec![(nodes.name.clone(), nodes)],
                // A count above the limit is refused, so the names beyond it are not needed.
                Some(count) => (1..=count.min(MAX_NODES + 1)).map(|number| (numbered(nodes, number), nodes)).collect(),
            })
            .collect()
    }

    /// The latest end, whatever remediation is open then.
    pub fn latest(&self) -> Duration {
        self.until.map_or_else(|| self.end() + MAX_OPEN, |until| until.0)
    }

    /// The end, unless a remediation is open then.
    pub fn end(&self) -> Duration {
        if let Some(until) = self.until {
            return until.0;
        }
        let names = self.names();
        let count = |event: &Event| event.chosen(names.iter().map(|(name, _)| name.as_str())).len();
        let last = self.events.iter().map(|event| event.last(count(event))).max().unwrap_or_default();
        last + Duration::from_hours(1)
    }
}

/// The first name that occurs twice.
pub fn twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut met = BTreeSet::new();
    names.into_iter().find(|name| !met.insert(*name))
}

#[cfg(test)]
mod tests;
