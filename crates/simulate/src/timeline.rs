//! A timeline: which nodes there are, what happens to them and when, and what is expected of the policies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::remediator::Remediator;
use super::world::Kured;
use nrh_core::fault::{FaultType, Severity};
use nrh_core::plan::BlockReason;
use nrh_core::policy::ActionType;
use nrh_core::remediation::Phase;
use nrh_core::text::matches_pattern;

mod by_hand;
mod condition;
mod flaps;
pub(crate) mod pods;

pub use super::cleared_by::ClearedBy;
pub use by_hand::{CancelEvent, ManualRequestEvent};
pub use condition::ConditionEvent;
pub use flaps::FlapsEvent;
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
    #[serde(default = "default_start")]
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

/// Time since the beginning of the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Offset(pub Duration);

impl TryFrom<String> for Offset {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let read = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        let shown = nrh_core::text::bounded(&text, 32);
        read.filter(|time| *time <= LONGEST).map(Self).ok_or_else(|| {
            format!(
                "{shown:?} is not a time: expected hours, minutes and seconds up to 840h, such as 90s, 5m or 36h10m"
            )
        })
    }
}

impl From<Offset> for String {
    fn from(offset: Offset) -> Self {
        offset.to_string()
    }
}

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = self.0.as_secs();
        write!(f, "{}h{:02}m{:02}s", seconds / 3600, seconds / 60 % 60, seconds % 60)
    }
}

/// Something that happens to nodes or to a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Event {
    /// When.
    pub at: Offset,
    /// The nodes: names, each of which may end with `*`. Empty only with `policy`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Only this many of the nodes, in the order of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<usize>,
    /// One node after the other, with this time in between. Default: all at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<Offset>,
    /// The probe confirms a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<FaultEvent>,
    /// All faults of this type are gone, by themselves or by somebody else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clears: Option<FaultType>,
    /// Another tool writes a condition on the Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub condition: Option<ConditionEvent>,
    /// Pods that a drain would evict run on the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<PodsEvent>,
    /// How the probe behaves from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<ProbeState>,
    /// How the tool to which the node may be handed off behaves from now on: Works (it reboots the node; the default), Fails,
    /// Silent, or Taken (somebody else has handed off the node to it).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remediator: Option<Remediator>,
    /// How kured behaves from now on: Works (it reboots a node that requests it within minutes; the default), or Waits (for its
    /// window or its lock, or there is no kured).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kured: Option<Kured>,
    /// How the kubelet behaves from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubelet: Option<KubeletState>,
    /// The node's `Ready` has this value from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<bool>,
    /// The node's `Ready` changes again and again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flaps: Option<FlapsEvent>,
    /// Somebody else cordons or uncordons the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cordoned: Option<bool>,
    /// Somebody else sets a taint with our key, `NoSchedule`, on the node, or removes all taints with our key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tainted: Option<bool>,
    /// Another tool asks that the node be left alone, for this reason. An empty reason ends the exclusion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excluded: Option<String>,
    /// A person suspends the node (`spec.suspend` of its `NodeRuntimeHealth`) for this reason. An empty reason ends the
    /// suspension.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended: Option<String>,
    /// The machine is removed, or another machine takes its place under the same name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// A person deletes the node's open remediation.
    #[serde(default, skip_serializing_if = "is_false")]
    pub cancelled: bool,
    /// This person approves the step that waits for approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
    /// A person makes a manual request for a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manual: Option<ManualRequestEvent>,
    /// A person cancels the node's remediation, or its waiting manual request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel: Option<CancelEvent>,
    /// A policy is changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<PolicyEvent>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// How a probe behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum ProbeState {
    /// It reports, and actions are enabled.
    ActionsEnabled,
    /// It reports, and actions are disabled.
    ActionsDisabled,
    /// It does not report.
    Silent,
}

/// How a kubelet behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum KubeletState {
    /// It starts pods, and the node is Ready.
    Works,
    /// It starts no pods, and the node is not Ready.
    Down,
}

/// What happens to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub enum Machine {
    /// The Node is deleted.
    Removed,
    /// A new, healthy machine with a new Node.
    Replaced,
}

/// A fault that the probe confirms, or the controller finds.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultEvent {
    /// The type of the fault.
    #[serde(rename = "type")]
    pub kind: FaultType,
    /// Its severity. Default: the one that the probe gives such a fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub severity: Option<Severity>,
    /// Namespace and name of its pod, where the fault is about one. Default: `default/work`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Name of the container, the plugin or whatever the fault is about. For a stuck pod, the name of the DaemonSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Labels of that pod, as the controller reads them. Without labels and owner, nothing is known of the pod, and rules that
    /// ask for it are blocked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_labels: Option<BTreeMap<String, String>>,
    /// Kind of the owner that controls the pod. None: no owner does. Default: `ReplicaSet`, and `DaemonSet` for a stuck pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_owner: Option<String>,
    /// Whether that pod is being deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub terminating: bool,
    /// What resolves the fault, each action by itself. An empty list: no action does. Default: what usually resolves such a
    /// fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cleared_by: Option<Vec<ClearedBy>>,
    /// The fault disappears by itself after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lasts: Option<Offset>,
}

/// What changes in a policy.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PolicyEvent {
    /// Its name.
    pub name: String,
    /// `spec.suspend`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// `spec.pauseRequests`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause_requests: Option<Vec<String>>,
    /// It is deleted.
    #[serde(default, skip_serializing_if = "is_false")]
    pub deleted: bool,
}

/// Something that must happen in the timeline, or must not.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// The node: a name that may end with `*`. Default: any node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// A step is executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub does: Option<ActionType>,
    /// A step would be executed, but it or its policy is a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub would: Option<ActionType>,
    /// Something is blocked for this reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<BlockReason>,
    /// A remediation ends with this phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Phase>,
    /// Our cordon is removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub uncordons: bool,
    /// Our taint is removed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub untaints: bool,
    /// Not before this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Offset>,
    /// Not later than this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<Offset>,
    /// Minimum number of times. Default: once, or zero where there is an `atMost`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_least: Option<usize>,
    /// Maximum number of times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<usize>,
    /// Maximum number of remediations that are open at the same time on these nodes. It stands alone or with `node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_at_most: Option<usize>,
}

impl Timeline {
    /// Parses a timeline.
    ///
    /// # Errors
    /// The text is no YAML of this form, or contains something impossible. The message names it.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let timeline: Self = serde_saphyr::from_str(text)
            .map_err(|error| anyhow!("{}", error.without_snippet()))
            .context("it is no timeline")?;
        timeline.check()?;
        Ok(timeline)
    }

    fn check(&self) -> anyhow::Result<()> {
        let names = self.names();
        ensure!(!names.is_empty(), "nodes: expected at least one");
        ensure!(names.len() <= MAX_NODES, "nodes: expected at most {MAX_NODES}, found {}", names.len());
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

impl Event {
    /// The nodes of the event, in order.
    pub fn chosen<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
        let meant = |name: &&str| self.nodes.iter().any(|pattern| matches_pattern(pattern, name));
        names.into_iter().filter(meant).take(self.first.unwrap_or(usize::MAX)).collect()
    }

    /// The time of the event on the last of this many nodes.
    fn last(&self, count: usize) -> Duration {
        let more = u32::try_from(count.saturating_sub(1)).unwrap_or(u32::MAX);
        let lasts = self.flaps.map_or(Duration::ZERO, |flaps| flaps.lasts());
        self.at.0.saturating_add(self.every.unwrap_or_default().0.saturating_mul(more)).saturating_add(lasts)
    }

    fn check(&self, names: &[(String, &Nodes)]) -> anyhow::Result<()> {
        ensure!(self.first != Some(0), "first: expected at least 1, found 0");
        let of_nodes = [
            self.fault.is_some(),
            self.clears.is_some(),
            self.condition.is_some(),
            self.pods.is_some(),
            self.probe.is_some(),
            self.kubelet.is_some(),
            self.remediator.is_some(),
            self.kured.is_some(),
            self.ready.is_some() || self.flaps.is_some(),
            self.cordoned.is_some(),
            self.tainted.is_some(),
            self.excluded.is_some(),
            self.suspended.is_some(),
            self.machine.is_some(),
            self.cancelled,
            self.approved.is_some(),
            self.manual.is_some(),
            self.cancel.is_some(),
        ]
        .contains(&true);
        ensure!(of_nodes || self.policy.is_some(), "nothing happens in it");
        ensure!(self.approved.as_deref() != Some(""), "approved: expected a person's name, found \"\"");
        ensure!(of_nodes != self.nodes.is_empty(), "what happens to nodes needs `nodes`, and a policy has none");
        for pattern in &self.nodes {
            let is_one = names.iter().any(|(name, _)| matches_pattern(pattern, name));
            ensure!(is_one, "there is no node {pattern:?}");
        }
        if let Some(condition) = &self.condition {
            condition.check()?;
        }
        self.flaps.as_ref().map_or(Ok(()), FlapsEvent::check)?;
        self.manual.as_ref().map_or(Ok(()), ManualRequestEvent::check)?;
        self.cancel.as_ref().map_or(Ok(()), CancelEvent::check)?;
        if let Some(pods) = &self.pods {
            pods.check()?;
        }
        let Some(fault) = &self.fault else { return Ok(()) };
        let instead = match fault.kind {
            FaultType::ProbeNotReporting => Some("`probe: Silent`"),
            FaultType::NodeCondition => Some("`condition: {type, status}`"),
            FaultType::NodeFlapping => Some("`flaps: {times, every}`"),
            FaultType::KubeletStartBlocked | FaultType::PlegStalled => Some("a fault that the probe finds"),
            _ => None,
        };
        if let Some(instead) = instead {
            bail!("{} is found by the controller itself: expected {instead}", fault.kind);
        }
        let has_pod = fault.kind.is_of_a_pod();
        ensure!(has_pod || fault.pod.is_none(), "pod: a {} is about none", fault.kind);
        ensure!(has_pod || !fault.terminating, "terminating: a {} is about no pod", fault.kind);
        let is_described = fault.pod_labels.is_some() || fault.pod_owner.is_some();
        ensure!(has_pod || !is_described, "podLabels, podOwner: a {} is about no pod", fault.kind);
        if let Some(pod) = &fault.pod {
            ensure!(pod.split('/').count() == 2, "pod: expected namespace/name, found {pod:?}");
        }
        Ok(())
    }
}

impl Expectation {
    fn check(&self, names: &[(String, &Nodes)], until: Option<Offset>) -> anyhow::Result<()> {
        let kinds = [
            self.does.is_some(),
            self.would.is_some(),
            self.blocked.is_some(),
            self.ends.is_some(),
            self.uncordons,
            self.untaints,
            self.open_at_most.is_some(),
        ];
        let count = kinds.into_iter().filter(|is| *is).count();
        ensure!(
            count == 1,
            "expected one of does, would, blocked, ends, uncordons, untaints and openAtMost, found {count} of them"
        );
        if let (Some(after), Some(by)) = (self.after, self.by) {
            ensure!(after <= by, "expected after <= by, found {after} and {by}");
        }
        for (field, at) in [("after", self.after), ("by", self.by)] {
            if let Some((at, until)) = at.zip(until).filter(|(at, until)| at > until) {
                bail!("{field}: expected a time until the end at {until}, found {at}");
            }
        }
        let (least, most) = (self.at_least.unwrap_or(0), self.at_most.unwrap_or(usize::MAX));
        ensure!(least <= most, "expected atLeast <= atMost, found {least} and {most}");
        let is_told = self.blocked != Some(BlockReason::InProgress);
        ensure!(is_told, "blocked: InProgress is not in the account, since the step itself is");
        if self.open_at_most.is_some() {
            let more = self.after.or(self.by).is_some() || self.at_least.or(self.at_most).is_some();
            ensure!(!more, "openAtMost goes with `node` alone");
        }
        if let Some(pattern) = &self.node {
            ensure!(names.iter().any(|(name, _)| matches_pattern(pattern, name)), "there is no node {pattern:?}");
        }
        Ok(())
    }
}

/// The first name that occurs twice.
pub fn twice<'n>(names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let mut met = BTreeSet::new();
    names.into_iter().find(|name| !met.insert(*name))
}

#[cfg(test)]
mod tests;
