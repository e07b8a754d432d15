//! Checks what works on each node, and what does not.

use std::collections::BTreeMap;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::{Client, Resource, ResourceExt};
use serde_json::Value;

use super::{Finding, Verdict};
use crate::api::condition::{standing_of, status_of};
use crate::api::health::ProbeMode;
use crate::api::plain::plain;
use crate::api::view::guard::Guarded;
use crate::api::{ConditionType, NodeRuntimeHealth, Suspend, without_probe};
use crate::caller::list;
use crate::core::snapshot::TriState;

/// How long a new probe may take until its first report.
const START: SignedDuration = SignedDuration::from_mins(2);
/// Largest number of names in one line.
const MOST_NAMES: usize = 5;

/// A finding on one node: its verdict, and the sentence.
type Word = (Verdict, String);

/// One finding for each group of nodes with the same result.
pub(super) async fn checked(client: &Client) -> Vec<Finding> {
    match read(client).await {
        Ok(words) => grouped(words),
        Err(error) => vec![Finding::unknown("nodes", &error)],
    }
}

async fn read(client: &Client) -> anyhow::Result<Vec<(String, Word)>> {
    let nodes = list::<Node>(client.clone()).await.context("cannot list nodes")?;
    let reports = list::<NodeRuntimeHealth>(client.clone()).await.context("cannot list noderuntimehealths")?;
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let reports: BTreeMap<String, Guarded<NodeRuntimeHealth>> =
        reports.into_iter().map(|object| (name(&object), Guarded::read(&plain(object, usize::MAX)))).collect();
    let words = nodes.iter().flat_map(|node| {
        let words = describe(node, reports.get(&name(node)));
        words.into_iter().map(move |word| (name(node), word))
    });
    Ok(words.collect())
}

/// The findings on a node with this report.
pub(super) fn describe(node: &Value, report: Option<&Guarded<NodeRuntimeHealth>>) -> Vec<Word> {
    let failed = |message: String| vec![(Verdict::Failed, message)];
    // A node where the probe runs as a unit has a probe in spite of its labels.
    let label = |name: &str| node["metadata"]["labels"][name].as_str();
    let without_probe = |verdict: Verdict, message: &str| match without_probe::reason(label) {
        Some(why) => vec![(Verdict::Ok, format!("not checked: {why}"))],
        None => vec![(verdict, message.to_owned())],
    };
    let Some(report) = report else {
        return without_probe(
            Verdict::Failed,
            "no NodeRuntimeHealth: the controller creates one per Node; is it running?",
        );
    };
    let object = match &report.0 {
        Ok(object) => object,
        Err(bad) => return failed(format!("{} cannot be read: {}", NodeRuntimeHealth::kind(&()), bad.why)),
    };
    let status = object.status.clone().unwrap_or_default();
    let Some(probe) = status.probe else {
        let created = object.creation_timestamp().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let is_young = Timestamp::now().duration_since(created) < START;
        let verdict = if is_young { Verdict::Warning } else { Verdict::Failed };
        return without_probe(verdict, "no probe has reported yet: does its pod (or unit) run there?");
    };
    match standing_of(&status.conditions, ConditionType::ProbeReporting) {
        Some((TriState::True, _)) => {}
        Some((TriState::False, reason)) => {
            let message = format!("the probe does not report ({reason})");
            return if probe.mode == ProbeMode::Pod {
                without_probe(Verdict::Failed, &message)
            } else {
                failed(message)
            };
        }
        _ => return vec![(Verdict::Unknown, "the controller has not judged yet whether its probe reports".to_owned())],
    }
    let mut words = Vec::new();
    let version = env!("CARGO_PKG_VERSION");
    if probe.version != version {
        words.push((Verdict::Warning, format!("its probe has version {}, this `nrh` {version}", probe.version)));
    }
    words.extend(probe.missing_capabilities.iter().map(|lack| (Verdict::Warning, format!("lacks: {lack}"))));
    if !probe.actions_enabled {
        let message = "it accepts no actions: --allow-actions is off, or the self-check of its probe failed".to_owned();
        words.push((Verdict::Warning, message));
    }
    let runtime = status.runtime.as_ref();
    let at = runtime.map(|runtime| format!("{} at {}", runtime.version, runtime.endpoint)).unwrap_or_default();
    let mode = if probe.mode == ProbeMode::Unit { "a unit" } else { "a pod" };
    words.push(match status_of(&status.conditions, ConditionType::RuntimeReady) {
        TriState::True => (Verdict::Ok, format!("probe {} as {mode}, runtime {at}", probe.version)),
        TriState::False => (Verdict::Warning, format!("its runtime does not work: `nrh explain` says why; {at}")),
        TriState::Unknown => (Verdict::Unknown, "its probe cannot tell whether the runtime works".to_owned()),
    });
    if let Some(why) = Suspend::suspended_by_text(object) {
        words.push((Verdict::Warning, format!("suspended {why}")));
    }
    words
}

/// One line per distinct finding, the worst first.
pub(super) fn grouped(words: Vec<(String, Word)>) -> Vec<Finding> {
    let mut groups: BTreeMap<Word, Vec<String>> = BTreeMap::new();
    for (node, word) in words {
        groups.entry(word).or_default().push(node);
    }
    let line = |((verdict, message), mut nodes): (Word, Vec<String>)| {
        nodes.sort();
        let count = nodes.len();
        nodes.truncate(MOST_NAMES);
        let names = nodes.join(", ");
        let subject = match count {
            1 => format!("node {names}"),
            ..=MOST_NAMES => format!("nodes {names}"),
            _ => format!("{count} nodes ({names}, …)"),
        };
        Finding::new(subject, verdict, message)
    };
    groups.into_iter().rev().map(line).collect()
}
