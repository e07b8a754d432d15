//! The opt-in mirror: what is known of a node, as conditions of the Node object, for tools that read those.
//!
//! It applies its own conditions and no other, without force: where another tool already writes a condition of the same
//! type the API server says so, and that Node is left to the other tool. What was written and is not wanted any more is
//! taken away again, so the list of types is all there is to set.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::cache::{Cache, State};
use super::calls::{CallError, Calls, bounded};
use super::clock::Clock;
use super::leader::Leadership;
use super::status::Outlook;
use crate::api::condition::standing_of;
use crate::core::fault::Fault;
use crate::core::node_condition::{Mirrored, NodeCondition, NodeConditions, mirrored};
use crate::core::snapshot::Tri;

/// Who owns the mirrored conditions of a Node: nobody else's writes are under this name.
pub const MANAGER: &str = "nrh-node-conditions";
/// Most writes at the same time, and in one round.
const AT_ONCE: usize = 4;
const ROUND: usize = 64;
/// Least time between two rounds: conditions of Nodes are for tools that wait minutes.
const PAUSE: Duration = Duration::from_secs(2);
/// Everything is compared again at least this often.
const REPAIR: Duration = Duration::from_secs(30);
/// Wait after a write that failed, and after one that will fail again until a person has changed something.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
const AFTER_REFUSAL: Duration = Duration::from_mins(10);

/// What stands on a Node of the types that are ours to write.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Status, reason and transition time, by type, whoever wrote it.
    pub conditions: BTreeMap<&'static str, (String, String, Option<Timestamp>)>,
    /// Whether any of it, or anything that once was there, is under our name.
    pub ours: bool,
}

/// Reads it off a Node; `None` where there is nothing.
pub fn standing(node: &Node) -> Option<Standing> {
    let managers = node.metadata.managed_fields.as_deref().unwrap_or_default();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let known = |kind: &str| NodeCondition::ALL.into_iter().find(|known| known.as_str() == kind);
    let standing = Standing {
        conditions: conditions
            .iter()
            .filter_map(|one| {
                let since = one.last_transition_time.as_ref().map(|time| time.0);
                Some((known(&one.type_)?.as_str(), (one.status.clone(), one.reason.clone().unwrap_or_default(), since)))
            })
            .collect(),
        ours: managers.iter().any(|entry| entry.manager.as_deref() == Some(MANAGER)),
    };
    (standing.ours || !standing.conditions.is_empty()).then_some(standing)
}

/// One Node's conditions, to be applied as a whole.
#[derive(Debug)]
struct Write {
    node: String,
    uid: String,
    conditions: Vec<Value>,
}

/// Writes the mirror.
#[derive(Debug)]
pub struct Mirror {
    calls: Calls,
    cache: Arc<Cache>,
    clock: Clock,
    leadership: Leadership,
    wanted: NodeConditions,
    outlook: watch::Receiver<Arc<Outlook>>,
    not_before: BTreeMap<String, Instant>,
    /// No write to any Node before this: the right is missing.
    paused: Option<Instant>,
}

impl Mirror {
    /// A mirror of the types in `wanted`, woken by each decision.
    pub fn new(
        calls: Calls,
        cache: Arc<Cache>,
        clock: Clock,
        leadership: Leadership,
        wanted: NodeConditions,
        outlook: watch::Receiver<Arc<Outlook>>,
    ) -> Self {
        Self { calls, cache, clock, leadership, wanted, outlook, not_before: BTreeMap::new(), paused: None }
    }

    /// Writes while this process leads, for as long as it runs.
    pub async fn run(mut self) {
        loop {
            self.round().await;
            sleep(PAUSE).await;
            tokio::select! {
                changed = self.outlook.changed() => if changed.is_err() { return },
                () = sleep(REPAIR) => {}
            }
        }
    }

    async fn round(&mut self) {
        let now = Instant::now();
        self.not_before.retain(|_, until| *until > now);
        if self.leadership.term(now).is_none() || self.paused.is_some_and(|until| until > now) {
            return;
        }
        let writes = {
            let state = self.cache.lock();
            if !state.is_synced() {
                return;
            }
            due(&state, &self.wanted, &self.not_before, self.clock.now())
        };
        let (calls, leadership) = (&self.calls, &self.leadership);
        let runs = writes.into_iter().map(|write| async move {
            let lead = leadership.term(Instant::now()).is_some();
            let result = if lead { apply(calls, &write).await } else { Ok(()) };
            (write.node, result)
        });
        let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
        for (node, result) in results {
            let Err(error) = result else { continue };
            self.failed(node, &error);
        }
    }

    fn failed(&mut self, node: String, error: &CallError) {
        let line = error.line();
        let wait = if error.code() == Some(403) {
            if self.paused.is_none_or(|until| until <= Instant::now()) {
                tracing::warn!(
                    node,
                    error = line,
                    "conditions of Nodes cannot be written: config/node-conditions holds the right; tried again in 10 min"
                );
            }
            self.paused = Some(Instant::now() + AFTER_REFUSAL);
            return;
        } else if error.is_conflict() {
            tracing::warn!(
                node,
                error = line,
                "another tool writes a condition of this type on the Node: it is left to it"
            );
            AFTER_REFUSAL
        } else {
            tracing::warn!(node, error = line, "conditions of the Node not written");
            AFTER_FAILURE
        };
        self.not_before.insert(node, Instant::now() + wait);
    }
}

/// The Nodes whose conditions differ from what they should be.
fn due(state: &State, wanted: &NodeConditions, not_before: &BTreeMap<String, Instant>, wall: Timestamp) -> Vec<Write> {
    let none = Standing::default();
    let mut writes = Vec::new();
    for (node, view) in &state.snapshot.nodes {
        let stands = state.node_conditions.get(node).unwrap_or(&none);
        if view.deleting || not_before.contains_key(node) || (wanted.0.is_empty() && !stands.ours) {
            continue;
        }
        let want = want(state, node, &view.uid, wanted);
        let same = want.iter().all(|one| {
            let there = stands.conditions.get(one.kind.as_str());
            there.is_some_and(|(status, reason, _)| status == text(one.status) && reason == one.reason)
        });
        let spare =
            stands.ours && stands.conditions.keys().any(|kind| want.iter().all(|one| one.kind.as_str() != *kind));
        let bare = stands.ours && want.is_empty();
        if !same || spare || bare {
            let conditions = want.iter().map(|one| condition(one, stands, wall)).collect();
            writes.push(Write { node: node.clone(), uid: view.uid.clone(), conditions });
        }
        if writes.len() >= ROUND {
            break;
        }
    }
    writes
}

/// What should stand on a Node. Of one that has not reported nothing is claimed.
fn want(state: &State, node: &str, uid: &str, wanted: &NodeConditions) -> Vec<Mirrored> {
    let Some(standing) = state.standing.get(node).filter(|standing| standing.owner.as_deref() == Some(uid)) else {
        return Vec::new();
    };
    let faults: Vec<&Fault> = state
        .snapshot
        .reports
        .get(node)
        .into_iter()
        .flat_map(|report| &report.faults)
        .map(|seen| &seen.fault)
        .collect();
    let one = |kind: &NodeCondition| {
        let found = standing.conditions.iter().find(|one| one.type_ == kind.of().as_str())?;
        let (status, reason) = standing_of(&standing.conditions, kind.of())?;
        Some(mirrored(*kind, status, reason, &found.message, &faults))
    };
    wanted.0.iter().filter_map(one).collect()
}

const fn text(status: Tri) -> &'static str {
    match status {
        Tri::True => "True",
        Tri::False => "False",
        Tri::Unknown => "Unknown",
    }
}

fn condition(one: &Mirrored, stands: &Standing, wall: Timestamp) -> Value {
    let (kind, status) = (one.kind.as_str(), text(one.status));
    let since = match stands.conditions.get(kind) {
        Some((before, _, Some(since))) if before == status => *since,
        _ => wall,
    };
    let seconds = |time: Timestamp| Timestamp::from_second(time.as_second()).unwrap_or(time).to_string();
    json!({
        "type": kind, "status": status, "reason": one.reason, "message": one.message,
        "lastHeartbeatTime": seconds(wall), "lastTransitionTime": seconds(since),
    })
}

async fn apply(calls: &Calls, write: &Write) -> Result<(), CallError> {
    let api: Api<Node> = calls.act();
    // The uid: conditions of a node are not those of its successor of the same name.
    let mut object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": write.node, "uid": write.uid},
    });
    // Without a status nothing is ours any more, and our name goes from the object.
    if let (false, Some(fields)) = (write.conditions.is_empty(), object.as_object_mut()) {
        fields.insert("status".to_owned(), json!({"conditions": write.conditions}));
    }
    let patch = Patch::Apply(object);
    let what = || format!("writing conditions of Node {}", write.node);
    bounded(what, api.patch_status(&write.node, &PatchParams::apply(MANAGER), &patch)).await.map(drop)
}
