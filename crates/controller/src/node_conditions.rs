//! The mirror: writes the health of a node as conditions of the Node object, for tools that read those.
//!
//! It applies only its own conditions, without force. Where the API server names another tool as the owner of a condition of
//! the same type, the mirror leaves that condition to the tool. It removes conditions that it has written and that are no
//! longer wanted, so the list of types is the only setting.

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

use super::cache::State;
pub use super::cache::mirrored::MANAGER;
use super::cache::mirrored::{Current, MirroredState};
use super::calls::{CallError, Calls, bounded};
use super::handles::Handles;
use super::status::StatusViews;
use nrh_core::fault::Fault;
use nrh_core::node_condition::{Mirrored, NodeCondition, NodeConditions, mirrored};

/// Largest number of concurrent writes, and of writes in one round.
const AT_ONCE: usize = 4;
const ROUND: usize = 64;
/// Shortest time between two rounds: conditions of Nodes are for tools that wait minutes.
const PAUSE: Duration = Duration::from_secs(2);
/// The mirror compares everything at least this often.
const REPAIR: Duration = Duration::from_secs(30);
/// Wait after a failed write, and after one that fails again until a person has changed something.
const AFTER_FAILURE: Duration = Duration::from_secs(30);
const AFTER_REFUSAL: Duration = Duration::from_mins(10);

/// One Node's conditions, applied as a whole.
#[derive(Debug)]
struct Write {
    node: String,
    uid: String,
    conditions: Vec<Value>,
}

/// Writes the mirror.
#[derive(Debug)]
pub struct Mirror {
    handles: Handles,
    wanted: NodeConditions,
    status_view: watch::Receiver<Arc<StatusViews>>,
    not_before: BTreeMap<String, Instant>,
    /// No write to any Node before this time: the right is missing.
    paused: Option<Instant>,
}

impl Mirror {
    /// A mirror of the types in `wanted`, woken by each decision.
    pub fn new(handles: Handles, wanted: NodeConditions, status_view: watch::Receiver<Arc<StatusViews>>) -> Self {
        Self { handles, wanted, status_view, not_before: BTreeMap::new(), paused: None }
    }

    /// Writes while this process leads, for as long as it runs.
    pub async fn run(mut self) {
        loop {
            self.round().await;
            sleep(PAUSE).await;
            tokio::select! {
                changed = self.status_view.changed() => if changed.is_err() { return },
                () = sleep(REPAIR) => {}
            }
        }
    }

    async fn round(&mut self) {
        let now = Instant::now();
        self.not_before.retain(|_, until| *until > now);
        if self.handles.leadership.term(now).is_none() || self.paused.is_some_and(|until| until > now) {
            return;
        }
        let writes = {
            let state = self.handles.cache.lock();
            if !state.is_synced() {
                return;
            }
            due(&state, &self.wanted, &self.not_before, self.handles.clock.now())
        };
        let Handles { calls, leadership, .. } = &self.handles;
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
        // A missing right is missing for every Node; any other refusal concerns this Node.
        let wait = if error.code() == Some(403) && line.contains("cannot patch resource") {
            if self.paused.is_none_or(|until| until <= Instant::now()) {
                tracing::warn!(
                    node,
                    error = line,
                    "the controller cannot write conditions of Nodes: the ClusterRole nrh:controller grants the right; the controller tries again in 10 min"
                );
            }
            self.paused = Some(Instant::now() + AFTER_REFUSAL);
            return;
        } else if error.code() == Some(409) {
            tracing::warn!(
                node,
                error = line,
                "another tool writes a condition of this type on the Node: it is left to it"
            );
            AFTER_REFUSAL
        } else if error.is_conflict() {
            // Another Node has taken its place.
            AFTER_FAILURE
        } else if error.is_refusal() {
            tracing::warn!(node, error = line, "conditions of the Node are refused");
            AFTER_REFUSAL
        } else {
            tracing::warn!(node, error = line, "conditions of the Node not written");
            AFTER_FAILURE
        };
        self.not_before.insert(node, Instant::now() + wait);
    }
}

/// The Nodes whose conditions differ from the wanted ones.
fn due(state: &State, wanted: &NodeConditions, not_before: &BTreeMap<String, Instant>, wall: Timestamp) -> Vec<Write> {
    let none = MirroredState::default();
    let mut writes = Vec::new();
    for (node, view) in &state.snapshot.nodes {
        let current = state.node_conditions.get(node).unwrap_or(&none);
        // The conditions on an unreadable Node are unknown.
        let is_lost = view.deleting || view.unreadable.is_some();
        if is_lost || not_before.contains_key(node) || (wanted.0.is_empty() && current.ours.is_none()) {
            continue;
        }
        let mut want = want(state, node, &view.uid, wanted);
        want.retain(|one| !current.is_foreign(one.kind.as_str()));
        let same = want.iter().all(|one| {
            let there = current.conditions.get(one.kind.as_str());
            there.is_some_and(|there| {
                let is_same = there.status == one.status.as_str() && there.reason == one.reason;
                // A condition that is not True has the same message on every node.
                is_same && (there.status != "True" || there.message == one.message)
            })
        });
        let is_spare = |kind: &&str| !current.is_foreign(kind) && want.iter().all(|one| one.kind.as_str() != *kind);
        let spare = current.ours.iter().flatten().any(is_spare);
        let bare = current.ours.is_some() && want.is_empty() && current.shared.is_empty();
        if !same || spare || bare {
            let shared = current.shared.iter().filter_map(|kind| shared(kind, current));
            let conditions = want.iter().map(|one| condition(one, current, wall)).chain(shared).collect();
            writes.push(Write { node: node.clone(), uid: view.uid.clone(), conditions });
        }
        if writes.len() >= ROUND {
            break;
        }
    }
    writes
}

/// The conditions that a Node should have; none for a node that has not reported.
fn want(state: &State, node: &str, uid: &str, wanted: &NodeConditions) -> Vec<Mirrored> {
    let Some(current) = state.controller_statuses.get(node).filter(|current| current.owner.as_deref() == Some(uid))
    else {
        return Vec::new();
    };
    let seen = state.snapshot.reports.get(node).into_iter().flat_map(|report| &report.faults);
    let faults: Vec<&Fault> = seen.map(|seen| &seen.fault).collect();
    let one = |kind: &NodeCondition| {
        let text = &current.conditions.get(kind.of())?.text;
        Some(mirrored(*kind, text.status, &text.reason, &text.message, &faults))
    };
    wanted.0.iter().filter_map(one).collect()
}

/// What stays of a condition that another tool writes too: an apply without it would take its status away, and one with another
/// status would be refused as a whole.
fn shared(kind: &str, current: &MirroredState) -> Option<Value> {
    Some(json!({"type": kind, "status": current.conditions.get(kind)?.status}))
}

fn condition(one: &Mirrored, current: &MirroredState, wall: Timestamp) -> Value {
    let (kind, status) = (one.kind.as_str(), one.status.as_str());
    let since = match current.conditions.get(kind) {
        Some(Current { status: before, since: Some(since), .. }) if before == status => *since,
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
    // The uid: the conditions must not reach a successor of the same name.
    let mut object = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": write.node, "uid": write.uid},
    });
    // Without a status the mirror owns nothing, and the API server removes its manager name from the object.
    if let (false, Some(fields)) = (write.conditions.is_empty(), object.as_object_mut()) {
        fields.insert("status".to_owned(), json!({"conditions": write.conditions}));
    }
    let patch = Patch::Apply(object);
    let what = || format!("writing conditions of Node {}", write.node);
    bounded(what, api.patch_status(&write.node, &PatchParams::apply(MANAGER), &patch)).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::super::cache::mirrored;
    use super::*;
    use crate::cache::{Cache, report};

    /// A Node with the condition `KubeletUnhealthy` of another tool, and the mirror's conditions of these types.
    fn node(ours: &[&str]) -> Node {
        let all = ours.iter().chain(&["KubeletUnhealthy", "Ready"]);
        let conditions: Vec<Value> =
            all.map(|kind| json!({"type": kind, "status": "False", "reason": "NoFaultConfirmed"})).collect();
        let owned: serde_json::Map<String, Value> =
            ours.iter().map(|kind| (format!(r#"k:{{"type":"{kind}"}}"#), json!({"f:status": {}}))).collect();
        let entry =
            json!({"manager": MANAGER, "operation": "Apply", "fieldsV1": {"f:status": {"f:conditions": owned}}});
        let managed = if ours.is_empty() { json!([]) } else { json!([entry]) };
        serde_json::from_value(json!({"metadata": {"name": "w1", "uid": "u", "managedFields": managed},
            "status": {"conditions": conditions}}))
        .unwrap()
    }

    fn written(node: &Node, wanted: &str) -> Option<Vec<String>> {
        let type_of = |one: &Value| one["type"].as_str().unwrap().to_owned();
        applied(node, wanted, "").map(|conditions| conditions.iter().map(type_of).collect())
    }

    /// The conditions that are applied where the controller's have this message.
    fn applied(node: &Node, wanted: &str, message: &str) -> Option<Vec<Value>> {
        let cache = Cache::default();
        let mut state = cache.lock();
        let view = nrh_api::view::node::view(node);
        state.snapshot.nodes.insert("w1".into(), view);
        state.node_conditions.extend(mirrored::read(node).map(|current| ("w1".to_owned(), current)));
        let condition = |kind: NodeCondition| {
            json!({"type": kind.of().as_str(), "status": "True", "reason": "Clean",
            "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let conditions = NodeCondition::ALL.map(condition);
        let conditions: Vec<_> = serde_json::from_value(json!(conditions)).unwrap();
        let conditions = crate::cache::report_conditions::Conditions::of(&conditions);
        let row =
            report::ControllerStatus { owner: Some("u".into()), conditions, ..report::ControllerStatus::default() };
        state.controller_statuses.insert("w1".into(), row);
        let writes = due(&state, &wanted.parse().unwrap(), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        writes.into_iter().next().map(|write| write.conditions)
    }

    #[test]
    fn beside_the_condition_of_another_tool_ours_is_written_once_and_then_left_alone() {
        assert_eq!(written(&node(&[]), "HostUnhealthy").unwrap(), ["HostUnhealthy"]);
        assert_eq!(written(&node(&["HostUnhealthy"]), "HostUnhealthy"), None);
        // That type stays with the other tool, whatever is wanted; the other types are written.
        assert_eq!(written(&node(&["HostUnhealthy"]), "HostUnhealthy,KubeletUnhealthy"), None);
        let all = written(&node(&[]), "all").unwrap();
        assert!(all.len() == NodeCondition::ALL.len() - 1 && !all.contains(&"KubeletUnhealthy".to_owned()), "{all:?}");
    }

    #[test]
    fn a_condition_that_another_tool_begins_to_write_is_left_to_it_and_the_others_go_on() {
        let mut shared = node(&["HostUnhealthy", "KubeletUnhealthy"]);
        let fields = json!({"f:status": {"f:conditions": {r#"k:{"type":"KubeletUnhealthy"}"#: {"f:reason": {}, "f:message": {}}}}});
        let entry = json!({"manager": "other", "operation": "Update", "fieldsV1": fields});
        shared.metadata.managed_fields.as_mut().unwrap().push(serde_json::from_value(entry).unwrap());
        assert_eq!(written(&shared, "HostUnhealthy,KubeletUnhealthy"), None);
        let kept = json!({"type": "KubeletUnhealthy", "status": "False"});
        assert_eq!(applied(&shared, "RestartUnsafe,KubeletUnhealthy", "").unwrap().last(), Some(&kept));
        assert_eq!(applied(&shared, "", "").unwrap(), [kept]);
    }

    #[test]
    fn a_true_condition_has_the_sentence_of_today() {
        let mut node = node(&["RestartUnsafe"]);
        let conditions = node.status.as_mut().unwrap().conditions.as_mut().unwrap();
        let ours = conditions.iter_mut().find(|one| one.type_ == "RestartUnsafe").unwrap();
        (ours.status, ours.message) = ("True".to_owned(), Some("of container a".to_owned()));
        let state = mirrored::read(&node).unwrap();
        assert_eq!(state.conditions["RestartUnsafe"].message, "of container a");
        assert_eq!(state.conditions["KubeletUnhealthy"].message, "");
    }

    #[test]
    fn what_is_not_wanted_any_more_is_taken_away_and_nothing_of_others() {
        let some = node(&["HostUnhealthy", "RestartUnsafe"]);
        assert_eq!(written(&some, "RestartUnsafe").unwrap(), ["RestartUnsafe"]);
        assert_eq!(written(&some, "").unwrap(), Vec::<String>::new());
        assert_eq!(written(&node(&[]), ""), None);
    }
}
