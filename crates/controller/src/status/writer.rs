//! Writes statuses: one NodeRuntimeHealth per Node with the controller's part of it, and the status of the policies and the
//! config.
//!
//! The writer runs beside the actions and never delays them. It keeps no queue: it finds a dropped or failed write as a
//! difference in the next round, and writes it then.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{
    Difference, NodePart, StatusViews, config_status, difference, news_of_policy, node_part, policy_status,
    same_policy_status,
};
use crate::cache::command::CommandRow;
use crate::cache::fold::Ingest;
use crate::cache::guard::Guardable;
use crate::cache::report::ControllerStatus;
use crate::cache::versions::version_of;
use crate::cache::{Cache, State};
use crate::calls::{CallError, Calls, bounded};
use crate::clock::Clock;
use crate::commands::{Ask, Command, owned_by};
use crate::events::Events;
use crate::leader::Leadership;
use nrh_api::view::guard::Guarded;
use nrh_api::{
    CONFIG_NAME, CONTROLLER_MANAGER, ConditionReason, ConditionType, NodeRuntimeHealth, NodeRuntimeHealthSpec,
    PROBE_LABEL, RemediationConfig, RemediationConfigStatus, RemediationPolicy, RemediationPolicyStatus, WrittenFlap,
};
use nrh_core::along::Along;
use nrh_core::plan::NodeStatusView;

/// Largest number of concurrent writes.
const AT_ONCE: usize = 8;
/// Largest number of writes in one round; the next round finds the rest.
const ROUND: usize = 256;
/// Shortest time between two rounds.
const PAUSE: Duration = Duration::from_millis(50);
/// The writer runs a round at least this often.
const REPAIR: Duration = Duration::from_secs(30);
/// The writer compares every node at least this often, also where neither its object nor its wanted status has changed.
const REPAIR_ALL: Duration = Duration::from_mins(5);
/// Shortest time between two writes about one node where only texts differ.
const WORDS_EVERY: Duration = Duration::from_secs(15);
/// More differing nodes than this in one round are a crowd. Status writes then take API server time from the remediation of these
/// nodes, and most of them are outdated a moment later.
const CROWD: usize = 32;
/// How long the crowd limits apply after the last round with a crowd.
const CROWD_LASTS: Duration = Duration::from_secs(10);
/// Shortest time between two writes about one node in a crowd; the first write is immediate.
const CROWD_EVERY: Duration = Duration::from_secs(5);
/// The same where only texts differ.
const CROWD_WORDS_EVERY: Duration = REPAIR;
/// Writes a second that report a node as watched for long enough: 10,000 of them take eight minutes.
const WATCHED_RATE: u128 = 20;
/// Largest number of such writes in one round.
const WATCHED_ROUND: u128 = 100;
/// Wait after a failed write, before the next try on the same object.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// Key of the only `RemediationConfig`.
const CONFIG: &str = "config";

/// Wait before a third fresh check in a row; doubled with each further one.
const AGAIN: Duration = Duration::from_secs(5);
/// Longest wait before a further check.
const AGAIN_MOST: Duration = Duration::from_secs(40);

/// One write that is due.
#[derive(Debug)]
enum Write {
    /// Create the object of a Node.
    Create { node: String, node_uid: String },
    /// Remove the object of a Node that was replaced under the same name.
    Remove { node: String, uid: String },
    /// Ask the probe for a fresh check.
    Look { node: String, node_uid: String, row: Option<CommandRow>, ask: Ask },
    /// Write the controller's part.
    Node { node: String, part: Box<NodePart> },
    /// Write a policy's status.
    Policy { name: String, status: Box<RemediationPolicyStatus> },
    /// Write the status of the `RemediationConfig`, and report whether it begins or ends to suspend all remediation.
    Config { status: Box<RemediationConfigStatus>, is_news: bool },
}

impl Write {
    fn key(&self) -> String {
        match self {
            Self::Create { node, .. } | Self::Remove { node, .. } | Self::Node { node, .. } => format!("node {node}"),
            Self::Look { node, .. } => format!("command {node}"),
            Self::Policy { name, .. } => format!("policy {name}"),
            Self::Config { .. } => CONFIG.to_owned(),
        }
    }
}

/// The last check that the controller requested from a probe.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: u64,
    /// Sequence of the last report at the time of the request; a different sequence is the answer.
    at: Option<u64>,
    when: Instant,
    /// Number of requests in a row.
    count: u32,
}

/// What the controller requests from a probe in this round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// Nothing, or the request is already written.
    Nothing,
    Now(u64),
    Later,
}

/// Result of a comparison.
#[derive(Debug)]
enum Compared {
    /// The current status is the wanted one.
    Same,
    /// It differs; the writer writes it later.
    PutOff,
    /// The writer writes it now.
    Due(Write),
}

/// What is left in one round, and what waits for a later round.
#[derive(Debug)]
struct Budget {
    /// Writes that report a node as watched for long enough.
    watched: u128,
    /// Nodes that differ, and whose last write is too recent.
    put_off: usize,
}

/// Writes statuses.
#[derive(Debug)]
pub struct StatusWriter {
    calls: Calls,
    cache: Arc<Cache>,
    clock: Clock,
    events: Events,
    leadership: Leadership,
    status_view: watch::Receiver<Arc<StatusViews>>,
    asked: BTreeMap<String, Asked>,
    written: BTreeMap<String, Instant>,
    not_before: BTreeMap<String, Instant>,
    /// The status views of the last comparison, and when all nodes were last compared.
    compared: (Arc<StatusViews>, Option<Instant>),
    /// Until when the crowd limits apply.
    crowded_until: Option<Instant>,
    /// When the writer last had room to report nodes as watched for long enough.
    watched_at: Instant,
}

impl StatusWriter {
    /// A writer of the status views in `outlook`.
    pub fn new(
        calls: Calls,
        cache: Arc<Cache>,
        clock: Clock,
        events: Events,
        leadership: Leadership,
        status_view: watch::Receiver<Arc<StatusViews>>,
    ) -> Self {
        let (asked, written, not_before) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let compared = (Arc::default(), None);
        let (crowded_until, watched_at) = (None, Instant::now());
        Self {
            calls,
            cache,
            clock,
            events,
            leadership,
            status_view,
            asked,
            written,
            not_before,
            compared,
            crowded_until,
            watched_at,
        }
    }

    /// Writes while this process leads. Returns when etcd was restored from a backup during the run, or when the sender of the
    /// status views is gone: the caller treats that as the end of the process.
    pub async fn run(mut self) {
        loop {
            let full = self.round().await;
            if self.is_another_history() {
                return;
            }
            if full {
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            let rest = self.rest();
            tokio::select! {
                changed = self.status_view.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    tokio::time::sleep(PAUSE).await;
                }
                () = tokio::time::sleep(rest) => {}
            }
        }
    }

    /// Whether the API server serves another history than the one in the cache, as a list or the answer to a write has shown.
    /// All writes depend on the cache, and the cache would take no answer to them as newer.
    fn is_another_history(&self) -> bool {
        let state = self.cache.lock();
        let Some((kind, found)) = state.versions.went_back() else { return false };
        tracing::error!(
            kind,
            found,
            "versions of objects have gone back, as after a restore of etcd from a backup: nothing that is known can be trusted; this \
             process ends, and the next one reads all anew"
        );
        true
    }

    /// How long no comparison is needed while no plan arrives: a comparison of all nodes costs as much as a decision.
    fn rest(&self) -> Duration {
        let is_held_back = !self.not_before.is_empty() || !self.written.is_empty();
        if is_held_back { AFTER_FAILURE } else { REPAIR }
    }

    /// One round. Returns whether there is more to write.
    async fn round(&mut self) -> bool {
        let now = Instant::now();
        if self.leadership.term(now).is_none() {
            // Another leader writes meanwhile, too.
            self.compared.1 = None;
            return false;
        }
        self.not_before.retain(|_, until| *until > now);
        self.written.retain(|_, at| now.saturating_duration_since(*at) < REPAIR);
        let status_view = self.status_view.borrow_and_update().clone();
        let writes = self.due(&status_view, now);
        let full = writes.len() >= ROUND;
        let (calls, cache, events, leadership) = (&self.calls, &self.cache, &self.events, &self.leadership);
        let runs = writes.into_iter().map(|write| async move {
            // A term may end during a long round.
            let lead = leadership.term(Instant::now()).is_some();
            let result = if lead { carry_out(calls, cache, events, &write).await } else { Ok(()) };
            (write.key(), result)
        });
        let results: Vec<_> = futures::stream::iter(runs).buffer_unordered(AT_ONCE).collect().await;
        for (key, result) in results {
            if let Err(error) = result {
                tracing::warn!(object = key, error = error.line(), "not written");
                self.not_before.insert(key, Instant::now() + AFTER_FAILURE);
            } else {
                self.written.insert(key, Instant::now());
            }
        }
        full
    }

    fn due(&mut self, status_view: &Arc<StatusViews>, now: Instant) -> Vec<Write> {
        let cache = self.cache.clone();
        let mut state = cache.lock();
        if !state.is_synced() {
            return Vec::new();
        }
        let State { snapshot, standing: standings, commands, policies, config, .. } = &mut *state;
        let wall = self.clock.now();
        let mut writes: Vec<Write> = Vec::new();
        if let Some(row) = config {
            let status = config_status(row, snapshot, wall);
            let ready = |status: &RemediationConfigStatus| {
                status.conditions.iter().find(|one| one.type_ == ConditionType::Ready.as_str()).cloned()
            };
            let is_suspended = |ready: &Option<Condition>| {
                ready.as_ref().is_some_and(|one| one.reason == ConditionReason::Suspended.as_str())
            };
            let (before, now_ready) = (ready(&row.status), ready(&status));
            let is_news = is_suspended(&before) != is_suspended(&now_ready);
            let is_other = before != now_ready || row.status.observed_generation != status.observed_generation;
            let is_count = row.status.active_remediations != status.active_remediations;
            if is_other || (is_count && self.rested(CONFIG, now, WORDS_EVERY)) {
                writes.push(Write::Config { status: Box::new(status), is_news });
            }
        }
        for (name, row) in &*policies {
            let status = policy_status(row, status_view.policies.get(name), wall);
            let is_new =
                || news_of_policy(&row.status, &status) || self.rested(&format!("policy {name}"), now, WORDS_EVERY);
            if !same_policy_status(&row.status, &status) && is_new() {
                writes.push(Write::Policy { name: name.clone(), status: Box::new(status) });
            }
        }
        self.asked.retain(|node, _| standings.contains_key(node));
        let since = now.saturating_duration_since(self.watched_at).as_millis();
        let mut budget =
            Budget { watched: (since.saturating_mul(WATCHED_RATE) / 1_000).min(WATCHED_ROUND), put_off: 0 };
        if budget.watched > 0 {
            self.watched_at = now;
        }
        let is_all = self.compared.1.is_none_or(|at| now.saturating_duration_since(at) >= REPAIR_ALL);
        let before = std::mem::replace(&mut self.compared.0, Arc::clone(status_view));
        if is_all {
            self.compared.1 = Some(now);
        }
        let (mut standings, mut commands) = (Along::new(standings), Along::new(&*commands));
        let (mut said_now, mut said_before) = (Along::new(&status_view.nodes), Along::new(&before.nodes));
        for (node, view) in snapshot.nodes.iter().filter(|(_, view)| !view.deleting) {
            let is_room = writes.len() < ROUND;
            match standings.at(node) {
                None if view.labels.get(PROBE_LABEL).is_some_and(|value| value == "disabled") || !is_room => {}
                None => writes.push(Write::Create { node: node.clone(), node_uid: view.uid.clone() }),
                Some(standing) if standing.deleting => {}
                Some(standing) if standing.owner.as_deref() != Some(view.uid.as_str()) => {
                    writes.extend(is_room.then(|| Write::Remove { node: node.clone(), uid: standing.uid.clone() }));
                }
                Some(standing) => {
                    let Some(said) = said_now.at(node) else { continue };
                    standing.is_settled &= !is_all && said_before.at(node) == Some(said);
                    if standing.is_settled || !is_room {
                        continue;
                    }
                    let row = commands.at(node);
                    let look = self.look(node, said.0.check_sequence, standing.sequence, row, now);
                    let passed_on = row.and_then(|row| row.check_requested.as_ref());
                    let ask = Ask {
                        number: if let Wanted::Now(number) = look { Some(number) } else { None },
                        check: standing.check_requested.clone().filter(|check| passed_on != Some(check)),
                    };
                    let is_asked = look == Wanted::Nothing && ask == Ask::default();
                    if ask != Ask::default() {
                        let (node_uid, row) = (view.uid.clone(), row.cloned());
                        writes.push(Write::Look { node: node.clone(), node_uid, row, ask });
                    }
                    match self.node_write(node, said, standing, now, &mut budget) {
                        Compared::Same => standing.is_settled = is_asked,
                        Compared::PutOff => {}
                        Compared::Due(write) => writes.push(write),
                    }
                }
            }
        }
        if writes.len().saturating_add(budget.put_off) > CROWD {
            self.crowded_until = Some(now + CROWD_LASTS);
        }
        writes.retain(|write| !self.not_before.contains_key(&write.key()));
        writes
    }

    fn node_write(
        &mut self,
        node: &str,
        (status_view, blocked): &(Arc<NodeStatusView>, Vec<String>),
        standing: &ControllerStatus,
        now: Instant,
        budget: &mut Budget,
    ) -> Compared {
        if standing.unreadable {
            return Compared::Same;
        }
        let part = node_part(status_view, blocked, standing, self.clock.now());
        let is_recent = |least| !self.min_interval_elapsed(node, now, least);
        let is_crowded = self.crowded_until.is_some_and(|until| until > now);
        let is_put_off = match difference(standing, &part) {
            Difference::None => return Compared::Same,
            Difference::Matter => is_crowded && is_recent(CROWD_EVERY),
            Difference::Watched => {
                let is_left = budget.watched > 0;
                budget.watched = budget.watched.saturating_sub(1);
                if !is_left {
                    return Compared::PutOff;
                }
                false
            }
            Difference::Words => is_recent(if is_crowded { CROWD_WORDS_EVERY } else { WORDS_EVERY }),
        };
        if is_put_off {
            budget.put_off += 1;
            return Compared::PutOff;
        }
        Compared::Due(Write::Node { node: node.to_owned(), part: Box::new(part) })
    }

    /// Whether the last write about the node is at least `least` ago.
    fn min_interval_elapsed(&self, node: &str, now: Instant, least: Duration) -> bool {
        self.rested(&format!("node {node}"), now, least)
    }

    fn rested(&self, key: &str, now: Instant, least: Duration) -> bool {
        self.written.get(key).is_none_or(|at| now.saturating_duration_since(*at) >= least)
    }

    /// The fresh check to request. There is one request at a time; the next one follows the answer to the last. Where the
    /// answers do not help, as from a probe that cannot check, the waits grow.
    fn look(
        &mut self,
        node: &str,
        wanted: bool,
        sequence: Option<u64>,
        row: Option<&CommandRow>,
        now: Instant,
    ) -> Wanted {
        let last = self.asked.get_mut(node);
        if !wanted {
            if let Some(asked) = last {
                asked.count = 0;
            }
            return Wanted::Nothing;
        }
        let stands = row.and_then(|row| row.check_sequence).unwrap_or(0);
        let (number, count) = match last {
            Some(asked) if asked.at == sequence => {
                return if stands < asked.number { Wanted::Now(asked.number) } else { Wanted::Nothing };
            }
            Some(asked) if now < asked.when + again_after(asked.count) => return Wanted::Later,
            Some(asked) => (stands.max(asked.number).saturating_add(1), asked.count.saturating_add(1)),
            None => (stands.saturating_add(1), 1),
        };
        self.asked.insert(node.to_owned(), Asked { number, at: sequence, when: now, count });
        Wanted::Now(number)
    }
}

/// Shortest wait after the last of `count` checks in a row that did not help. A report that was already on its way may answer
/// one.
fn again_after(count: u32) -> Duration {
    let doubled = AGAIN.saturating_mul(1_u32.checked_shl(count.saturating_sub(2)).unwrap_or(u32::MAX));
    if count < 2 { Duration::ZERO } else { doubled.min(AGAIN_MOST) }
}

async fn carry_out(calls: &Calls, cache: &Cache, events: &Events, write: &Write) -> Result<(), CallError> {
    match write {
        Write::Create { node, node_uid } => create(calls, cache, node, node_uid).await,
        Write::Remove { node, uid } => remove(calls, node, uid).await,
        Write::Look { node, node_uid, row, ask } => {
            let command = Command { calls, cache, node, uid: node_uid };
            match command.ask_look(row.as_ref(), ask).await {
                // The watch delivers the object.
                Err(error) if error.is_conflict() => Ok(()),
                answer => answer,
            }
        }
        Write::Node { node, part } => {
            let api: Api<Guarded<NodeRuntimeHealth>> = calls.act();
            let what = || format!("writing the status of NodeRuntimeHealth {node}");
            let patch = Patch::Apply(node_patch(part));
            let before = latest::<NodeRuntimeHealth>(cache, node);
            let written = bounded(what, api.patch_status(node, &apply(), &patch)).await?;
            let foreign = foreign(&written, part);
            fold(cache, before, written);
            let Some(foreign) = foreign else { return Ok(()) };
            tracing::warn!(node, fields = %foreign, "somebody else has written what is the controller's; it is removed");
            let by_us = PatchParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PatchParams::default() };
            let what = || format!("removing what others wrote into the status of NodeRuntimeHealth {node}");
            let patch = Patch::Merge(json!({"status": foreign}));
            fold(cache, before, bounded(what, api.patch_status(node, &by_us, &patch)).await?);
            Ok(())
        }
        Write::Policy { name, status } => write_status::<RemediationPolicy>(calls, cache, name, status).await.map(drop),
        Write::Config { status, is_news } => {
            let about = write_status::<RemediationConfig>(calls, cache, CONFIG_NAME, status).await?;
            if let Some(ready) = status.conditions.first().filter(|_| *is_news) {
                let is_suspended = ready.reason == ConditionReason::Suspended.as_str();
                events.configured(&about, is_suspended, &ready.message);
            }
            Ok(())
        }
    }
}

/// Writes the whole status of an object, which the controller owns. Returns the object's metadata.
async fn write_status<K>(
    calls: &Calls,
    cache: &Cache,
    name: &str,
    status: &impl Serialize,
) -> Result<ObjectMeta, CallError>
where
    K: Guardable + Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<Guarded<K>> = calls.act();
    let what = || format!("writing the status of {} {name}", K::KIND);
    let patch = Patch::Apply(json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "status": status}));
    let before = latest::<K>(cache, name);
    let written = bounded(what, api.patch_status(name, &apply(), &patch)).await?;
    let about = written.meta().clone();
    fold(cache, before, written);
    Ok(about)
}

/// The controller's fields that still differ after an apply, as a merge patch that removes them. An apply removes only what the
/// controller has applied, not what others wrote there. The next round writes the controller's own values again.
fn foreign(written: &Guarded<NodeRuntimeHealth>, part: &NodePart) -> Option<serde_json::Value> {
    let status = written.0.as_ref().ok()?.status.as_ref()?;
    let fields = [
        ("flapping", status.flapping.as_ref().map(WrittenFlap::read) != part.flap.as_ref().map(Ok)),
        ("clusterFaults", part.cluster_faults.is_empty() && !status.cluster_faults.is_empty()),
        ("kubeletVersion", status.kubelet_version != part.kubelet_version),
    ];
    let removes = |(field, stands): (&str, bool)| stands.then(|| (field.to_owned(), serde_json::Value::Null));
    let fields: serde_json::Map<_, _> = fields.into_iter().filter_map(removes).collect();
    (!fields.is_empty()).then(|| fields.into())
}

fn apply() -> PatchParams {
    PatchParams::apply(CONTROLLER_MANAGER).force()
}

/// All fields that the controller owns in the object: the API server removes those that an apply leaves out.
fn node_patch(part: &NodePart) -> serde_json::Value {
    let mut status = json!({
        "observedGeneration": part.observed_generation,
        "remediation": part.remediation, "summary": part.summary, "conditions": part.conditions,
    });
    if let Some(fields) = status.as_object_mut() {
        if !part.cluster_faults.is_empty() {
            fields.insert("clusterFaults".to_owned(), json!(part.cluster_faults));
        }
        if let Some(flap) = &part.flap {
            fields.insert("flapping".to_owned(), json!(flap));
        }
        if let Some(version) = &part.kubelet_version {
            fields.insert("kubeletVersion".to_owned(), json!(version));
        }
    }
    json!({"apiVersion": NodeRuntimeHealth::api_version(&()), "kind": NodeRuntimeHealth::kind(&()), "status": status})
}

/// The latest known version of an object, read before the controller sends a call about it.
fn latest<K: Ingest>(cache: &Cache, key: &str) -> u64 {
    let state: &mut State = &mut cache.lock();
    K::versions(state).latest(key)
}

/// Stores the answer to a call; `before` is the object's latest version when the call was sent.
fn fold<K: Ingest>(cache: &Cache, before: u64, object: K) {
    let state: &mut State = &mut cache.lock();
    K::versions(state).note_answer(&K::key(object.meta()), before, version_of(object.meta()));
    object.fold(state, Instant::now());
}

/// Creates the object of a Node, owned by exactly that Node: the garbage collector deletes it with the Node.
async fn create(calls: &Calls, cache: &Cache, node: &str, node_uid: &str) -> Result<(), CallError> {
    let object = NodeRuntimeHealth {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            owner_references: Some(vec![owned_by(node, node_uid)]),
            labels: Some(BTreeMap::from([("app.kubernetes.io/part-of".to_owned(), "nrh".to_owned())])),
            ..ObjectMeta::default()
        },
        spec: NodeRuntimeHealthSpec::default(),
        status: None,
    };
    let api = calls.act::<NodeRuntimeHealth>();
    let before = latest::<NodeRuntimeHealth>(cache, node);
    let params = PostParams { field_manager: Some(CONTROLLER_MANAGER.to_owned()), ..PostParams::default() };
    match bounded(|| format!("creating NodeRuntimeHealth {node}"), api.create(&params, &object)).await {
        Ok(made) => {
            fold(cache, before, made);
            cache.wake();
            Ok(())
        }
        // The watch delivers the object.
        Err(error) if error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the report of an earlier node of the same name; the next round creates the right one.
async fn remove(calls: &Calls, node: &str, uid: &str) -> Result<(), CallError> {
    let same = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    let api: Api<Guarded<NodeRuntimeHealth>> = calls.act();
    match bounded(|| format!("deleting NodeRuntimeHealth {node}"), api.delete(node, &params)).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
        Err(error) => Err(error),
    }
}
