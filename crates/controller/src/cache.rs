//! The part of the API's content that decisions need: one snapshot, updated in place.
//!
//! ```text
//! watches ──┐
//! re-lists ─┼─► State { snapshot, standing, … } ─► decide (under the lock, no copy)
//! own writes┘        newest version wins
//! ```
//! Nodes change with every heartbeat. The cache keeps only what a decision reads, and wakes the decider only when
//! that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::sync::Notify;
use tokio::time::Instant;

use nrh_api::view::pods;
use nrh_api::{RemediationConfigStatus, RemediationPolicyStatus, WrittenFlap};
use nrh_core::along::Along;
use nrh_core::condition_history::ConditionHistory;
use nrh_core::external_condition::ExternalCondition;
use nrh_core::fault::{Fault, FaultState};
use nrh_core::flap::QUIET;
use nrh_core::flaps::Flaps;
use nrh_core::hand_off::{HandOffView, TemplateRef};
use nrh_core::kubelet::unfinished;
use nrh_core::matching::pod_of;
use nrh_core::policy::Policy;
use nrh_core::policy::asks_of_pods;
use nrh_core::remediation::Remediation;
use nrh_core::snapshot::{Snapshot, SuspectPod, TriState};

pub mod arrival;
pub mod command;
pub mod conditions;
pub mod fold;
pub mod guard;
pub mod job;
pub mod known_pods;
pub mod mirrored;
pub mod pod_reads;
pub mod proof;
pub mod report;
pub mod said;
pub mod suspects;
pub mod template;
pub mod versions;
pub mod wakes;
pub mod watches;

use arrival::ReportArrivals;
use command::CommandRow;
use conditions::Shared;
use fold::Ingest;
use guard::Unreads;
use job::JobRow;
use known_pods::KnownPods;
use pod_reads::PodReads;
use report::ControllerStatus;
use said::Said;
use versions::Versions;
use wakes::Wakes;

/// Reported as missing for a policy that drains nodes without the right to evict pods.
const NO_EVICTIONS: &str = "drain: the controller may not create pods/eviction: give it ClusterRole nrh:drain (config/samples/drain-rights.yaml)";

/// A pod of a DaemonSet may take this long to start before the controller reads its node.
const SUSPECT_FOR: Duration = Duration::from_mins(1);
/// Largest number of nodes that the controller reads for suspect pods alone. A large DaemonSet is listed too seldom for an
/// action. Its nodes are read often, a few at a time.
const SUSPECT_NODES: usize = 16;

/// A policy as it is in the API: valid, or with all its errors.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    /// The policy, or its errors.
    pub read: Result<Policy, Vec<String>>,
    /// The last valid version, where the policy has become unreadable. An editing mistake must not end a running remediation,
    /// nor give the faults of the policy to another policy.
    pub kept: Option<Policy>,
    /// The rights and objects that the controller lacks to carry out the policy.
    pub lacks: Vec<String>,
    /// Generation of its spec.
    pub generation: i64,
    /// Its current status.
    pub status: RemediationPolicyStatus,
    /// Uid of the object.
    pub uid: String,
}

impl PolicyRow {
    /// The policy that decisions use.
    pub fn usable(&self) -> Option<&Policy> {
        self.read.as_ref().ok().or(self.kept.as_ref())
    }

    /// The policy, or all reasons why the policy, or some of its steps, cannot be used.
    pub fn valid(&self) -> Result<&Policy, &[String]> {
        match &self.read {
            Ok(policy) if self.lacks.is_empty() => Ok(policy),
            Ok(_) => Err(&self.lacks),
            Err(errors) => Err(errors),
        }
    }
}

/// The `RemediationConfig` as it is in the API; the snapshot has the part that decisions read.
#[derive(Clone, Debug)]
pub struct ConfigRow {
    /// Generation of its spec.
    pub generation: i64,
    /// Its current status.
    pub status: RemediationConfigStatus,
}

/// The part of a remediation's object that is not in the [`Remediation`].
#[derive(Clone, Debug, Default)]
pub struct RemediationRow {
    /// Generation of its spec.
    pub generation: i64,
    /// Its conditions.
    pub conditions: Vec<Condition>,
    /// Whether it has the controller's finalizer.
    pub finalizer: bool,
    /// Whether it also has finalizers of others.
    pub others_finalizers: bool,
}

/// What the controller keeps of a DaemonSet to find suspects among its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DaemonSetRow {
    /// Its uid.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its label selector, in the API's notation.
    pub selector: String,
    /// Number of pods that it wants.
    pub desired: u32,
    /// Whether some of them are missing, not ready or not available.
    pub troubled: bool,
}

/// Versions per kind.
#[derive(Debug, Default)]
pub struct AllVersions {
    /// Nodes.
    pub nodes: Versions,
    /// Reports.
    pub reports: Versions,
    /// Commands to nodes.
    pub commands: Versions,
    /// Policies.
    pub policies: Versions,
    /// The single object that applies to all policies.
    pub configs: Versions,
    /// Remediations.
    pub remediations: Versions,
    /// `DaemonSet`s.
    pub daemon_sets: Versions,
    /// The controller's Jobs.
    pub jobs: Versions,
    /// Pods of the controller's Jobs.
    pub job_pods: Versions,
}

impl AllVersions {
    fn all(&self) -> [(&'static str, &Versions); 9] {
        [
            ("nodes", &self.nodes),
            ("noderuntimehealths", &self.reports),
            ("nodecommands", &self.commands),
            ("remediationpolicies", &self.policies),
            ("remediationconfigs", &self.configs),
            ("noderemediations", &self.remediations),
            ("daemonsets", &self.daemon_sets),
            ("jobs", &self.jobs),
            ("pods of jobs", &self.job_pods),
        ]
    }
}

/// Everything that the controller knows.
#[derive(Debug)]
pub struct State {
    /// The input of a decision. Ages are those of the last [`State::refresh`].
    pub snapshot: Snapshot,
    /// Versions of the objects in it.
    pub versions: AllVersions,
    /// Objects that exist and cannot be read, of kinds that others write.
    pub unread: Unreads,
    /// The controller's part of each NodeRuntimeHealth, by node.
    pub standing: BTreeMap<String, ControllerStatus>,
    /// Each NodeCommand, by node; most nodes have none.
    pub commands: BTreeMap<String, CommandRow>,
    /// The current state of the conditions that may be mirrored on Nodes, by node; most nodes have none.
    pub node_conditions: BTreeMap<String, mirrored::MirroredState>,
    /// Heartbeats, by node.
    pub arrivals: BTreeMap<String, ReportArrivals>,
    /// Policies, valid or not.
    pub policies: BTreeMap<String, PolicyRow>,
    /// What applies to all policies, if that object exists and is readable.
    pub config: Option<ConfigRow>,
    /// The part of each remediation that is not in the snapshot.
    pub remediations: BTreeMap<String, RemediationRow>,
    /// Each `DaemonSet`, by `namespace/name`.
    pub daemon_sets: BTreeMap<String, DaemonSetRow>,
    /// The controller's Jobs, by operation.
    pub jobs: BTreeMap<String, JobRow>,
    /// The reads of the pods of `DaemonSet`s.
    pub pod_reads: PodReads,
    /// What is known of pods that rules may ask for.
    pub known_pods: KnownPods,
    /// Objects of active hand-offs, by operation, and when they were read.
    pub hand_offs: BTreeMap<String, (HandOffView, Instant)>,
    /// What the controller lacks to use the templates that policies name; no entry = not known.
    pub rights: BTreeMap<TemplateRef, Vec<String>>,
    /// Whether the controller may evict pods; asked only where a policy drains nodes.
    pub may_evict: TriState,
    /// Whether the admission policies are in force.
    pub admission: proof::Proof,
    /// How often each node has woken the decider.
    pub wakes: Wakes,
    /// Starts of kubelets that have not finished, by node: when the process began, and since when the controller sees that start.
    unfinished: BTreeMap<String, (Timestamp, Instant)>,
    /// The distinct sets of conditions of Nodes.
    shared: Shared<[ExternalCondition]>,
    /// The contents of conditions of reports.
    said: Shared<Said>,
    /// Since when conditions have matched what policies ask for, by the time since `started`.
    notices: ConditionHistory,
    /// How often nodes have changed, by the time since `started`.
    flaps: Flaps,
    started: Instant,
}

impl State {
    /// Whether a listed DaemonSet with the same uid controls the pod. A name alone, in the `ownerReferences` of the pod, proves
    /// nothing, since the creator of the pod writes it. Unknown where that DaemonSet cannot be read.
    pub fn is_of_daemon_set(&self, pod: &Pod) -> TriState {
        let Some(owner) = pods::daemon_set(pod) else { return TriState::False };
        let key = format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or_default(), owner.name);
        match self.daemon_sets.get(&key) {
            Some(set) if !set.uid.is_empty() && set.uid == owner.uid => TriState::True,
            _ if self.unread.has(DaemonSet::KIND, &key) => TriState::Unknown,
            _ => TriState::False,
        }
    }

    /// An empty state.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            snapshot: Snapshot::default(),
            versions: AllVersions::default(),
            unread: Unreads::default(),
            standing: BTreeMap::new(),
            commands: BTreeMap::new(),
            node_conditions: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            policies: BTreeMap::new(),
            config: None,
            remediations: BTreeMap::new(),
            daemon_sets: BTreeMap::new(),
            jobs: BTreeMap::new(),
            pod_reads: PodReads::default(),
            known_pods: KnownPods::default(),
            hand_offs: BTreeMap::new(),
            rights: BTreeMap::new(),
            may_evict: TriState::Unknown,
            admission: proof::Proof::default(),
            wakes: Wakes::default(),
            unfinished: BTreeMap::new(),
            shared: Shared::default(),
            said: Shared::default(),
            notices: ConditionHistory::default(),
            flaps: Flaps::default(),
            started: now,
        }
    }

    /// Monotonic time since this process began to watch.
    pub fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }

    /// Whether every kind has been listed once.
    pub fn is_synced(&self) -> bool {
        self.versions.all().iter().all(|(_, versions)| versions.is_synced())
    }

    /// Kinds that have not been listed yet.
    pub fn unsynced(&self) -> Vec<&'static str> {
        self.versions.all().iter().filter(|(_, v)| !v.is_synced()).map(|(kind, _)| *kind).collect()
    }

    /// The templates that policies name.
    pub fn templates(&self) -> BTreeSet<TemplateRef> {
        self.policies.values().filter_map(PolicyRow::usable).flat_map(templates).collect()
    }

    /// Stores what the controller lacks to use a template. Returns whether that changed.
    pub fn note_rights(&mut self, template: TemplateRef, read: template::TemplateRead, now: Instant) -> bool {
        let versions = &mut self.snapshot.template_versions;
        let is_same_version = versions.get(&template) == read.version.as_ref();
        if is_same_version && self.rights.get(&template) == Some(&read.lacks) {
            return false;
        }
        match read.version {
            Some(version) => versions.insert(template.clone(), version),
            None => versions.remove(&template),
        };
        self.rights.insert(template, read.lacks);
        self.list_policies(now);
        true
    }

    /// Whether a policy drains nodes.
    pub fn drains(&self) -> bool {
        self.policies.values().filter_map(PolicyRow::usable).any(drains)
    }

    /// Stores whether the controller may evict pods. Returns whether that changed.
    pub fn note_may_evict(&mut self, may: TriState, now: Instant) -> bool {
        let is_news = self.may_evict != may;
        self.may_evict = may;
        if is_news {
            self.list_policies(now);
        }
        is_news
    }

    /// Lists the policies that can be used.
    fn list_policies(&mut self, now: Instant) {
        let named = self.templates();
        self.rights.retain(|template, _| named.contains(template));
        self.snapshot.template_versions.retain(|template, _| named.contains(template));
        for row in self.policies.values_mut() {
            let asked: BTreeSet<TemplateRef> =
                row.usable().map(|policy| templates(policy).collect()).unwrap_or_default();
            let evict = row.usable().is_some_and(drains) && self.may_evict == TriState::False;
            let evict = evict.then(|| NO_EVICTIONS.to_owned());
            row.lacks =
                asked.iter().filter_map(|template| self.rights.get(template)).flatten().cloned().chain(evict).collect();
        }
        // A policy that lacks a right stays: its remediations and its other steps continue.
        self.snapshot.policies = self.policies.values().filter_map(PolicyRow::usable).cloned().collect();
        let unusable = self.policies.iter().filter(|(_, row)| row.usable().is_none());
        self.snapshot.unusable_policies = unusable.map(|(name, _)| name.clone()).collect();
        let is_proven = |template: &TemplateRef| self.rights.get(template).is_some_and(Vec::is_empty);
        let is_known = |template: &&TemplateRef| self.rights.contains_key(*template);
        let unproven: BTreeSet<TemplateRef> = named.into_iter().filter(|template| !is_proven(template)).collect();
        self.snapshot.lacking = unproven.iter().filter(is_known).cloned().collect();
        self.snapshot.unproven = unproven;
        self.snapshot.may_evict = self.may_evict;
        self.note_all_conditions(now);
    }

    /// Stores the conditions of a Node. Returns whether anything changed that policies ask for.
    fn note_conditions(&mut self, node: &str, now: Instant) -> bool {
        let now = self.since_start(now);
        let Some(view) = self.snapshot.nodes.get(node) else { return false };
        self.notices.note(node, view, &self.snapshot.policies, now)
    }

    /// The same for all Nodes, after a change of the policies.
    fn note_all_conditions(&mut self, now: Instant) {
        let now = self.since_start(now);
        let Snapshot { nodes, policies, .. } = &self.snapshot;
        for (node, view) in nodes {
            self.notices.note(node, view, policies, now);
        }
    }

    /// Updates everything that depends on time to `now`.
    pub fn refresh(&mut self, now: Instant, wall: Timestamp) {
        self.snapshot.now = wall;
        self.snapshot.admission_doubt = self.admission.doubt(now);
        let unseen = ReportArrivals::default();
        let mut arrivals = Along::new(&self.arrivals);
        for (node, view) in &mut self.snapshot.reports {
            report::age(view, arrivals.at(node).unwrap_or(&unseen), now);
        }
        self.refresh_starts(now);
        self.snapshot.noticed = self.notices.noticed(self.since_start(now), wall);
        self.refresh_flaps(now, wall);
        self.snapshot.jobs =
            self.jobs.iter().filter(|(_, row)| row.exists).map(|(id, row)| (id.clone(), row.view(id, now))).collect();
        let read = |(view, at): &(HandOffView, Instant)| HandOffView {
            read: now.saturating_duration_since(*at),
            ..view.clone()
        };
        self.snapshot.hand_offs = self.hand_offs.iter().map(|(id, seen)| (id.clone(), read(seen))).collect();
        self.refresh_pods(now);
    }

    /// Updates how nodes have changed. The controller restores the history from the API once, after the first lists are complete.
    fn refresh_flaps(&mut self, now: Instant, wall: Timestamp) {
        let since_start = self.since_start(now);
        if self.is_synced() {
            let standing = &self.standing;
            let written = |node: &str| {
                let standing = standing.get(node)?;
                standing.owner.as_deref().zip(standing.flap.as_ref().map(WrittenFlap::read))
            };
            for (node, why) in self.flaps.restore(since_start, wall, written) {
                tracing::warn!(
                    node,
                    why,
                    "status.flapping of its NodeRuntimeHealth is refused; its history begins anew"
                );
            }
        }
        self.snapshot.flaps = self.flaps.told(since_start, wall);
        self.snapshot.watched = since_start;
    }

    /// Updates since when the controller sees each unfinished start of a kubelet. A new process is a new start.
    fn refresh_starts(&mut self, now: Instant) {
        let Snapshot { nodes, reports, .. } = &mut self.snapshot;
        let seen = std::mem::take(&mut self.unfinished);
        let mut nodes = Along::new(&*nodes);
        for (node, report) in reports {
            let kubelet = &mut report.kubelet;
            let lasts = nodes.at(node).is_some_and(|view| unfinished(view, kubelet).is_some());
            let began = kubelet.began.filter(|_| lasts);
            let since = began.map(|began| match seen.get(node) {
                Some((known, since)) if *known == began => (began, *since),
                _ => (began, now),
            });
            kubelet.unfinished = since.map(|(_, since)| now.saturating_duration_since(since));
            self.unfinished.extend(since.map(|since| (node.clone(), since)));
        }
    }

    fn refresh_pods(&mut self, now: Instant) {
        self.snapshot.pods_read = self.pod_reads.nodes(now);
        self.snapshot.terminating = self.pod_reads.terminating();
        self.snapshot.pods = self.pod_reads.pods(now);
        self.snapshot.pods_seen = self.known_pods.seen(now);
    }

    /// When time alone next changes the result of [`State::refresh`], apart from ages.
    pub fn next_change(&self, now: Instant) -> Option<Duration> {
        let of_jobs = self.jobs.values().filter_map(|row| row.settles_in(now)).min();
        let since_start = self.since_start(now);
        // Until then the controller cannot know that a node does not flap.
        let watched = QUIET.checked_sub(since_start).filter(|left| !left.is_zero());
        let proof = self.admission.next_change(now);
        of_jobs.into_iter().chain(proof).chain(self.flaps.next_change(since_start)).chain(watched).min()
    }

    /// Forgets the labels of the pods of a DaemonSet that is no longer read: no later read would replace them.
    fn settle_set(&mut self, key: &str) {
        let is_troubled = self.daemon_sets.get(key).is_some_and(|row| row.troubled);
        if !is_troubled && !self.pod_reads.unwell_sets().contains(key) {
            self.known_pods.forget_set(key);
        }
    }

    /// The open remediation of a node.
    pub fn open_remediation(&self, node: &str) -> Option<&Remediation> {
        self.snapshot.remediations.values().find(|remediation| remediation.node == node && remediation.is_open())
    }

    /// Nodes whose pods are to be read as a whole: nodes with a live remediation, nodes with a confirmed fault about a pod, and
    /// the nodes of those pods that have been suspects for longest.
    pub fn nodes_of_interest(&self) -> BTreeSet<String> {
        let asks = asks_of_pods(&self.snapshot.policies);
        // Some faults are about a plugin or a process, and name the pod in the target of an action.
        let names_pod = |fault: &Fault| fault.subject.pod.is_some() || (asks && pod_of(fault).is_some());
        let with_fault = self.snapshot.reports.iter().filter(|(_, view)| {
            view.faults.iter().any(|f| f.fault.state == FaultState::Confirmed && names_pod(&f.fault))
        });
        let with_remediation = self.snapshot.remediations.values().filter(|e| e.is_live()).map(|e| &e.node);
        let mut suspects: Vec<&SuspectPod> = self.pod_reads.unwell().collect();
        suspects.retain(|pod| pod.age >= SUSPECT_FOR || pod.overdue.is_some());
        suspects.sort_by_key(|pod| std::cmp::Reverse((pod.overdue, pod.age)));
        let of_suspects = suspects.into_iter().map(|pod| &pod.node).take(SUSPECT_NODES);
        with_fault
            .map(|(node, _)| node)
            .chain(with_remediation)
            .chain(of_suspects)
            .filter(|n| self.snapshot.nodes.contains_key(*n))
            .cloned()
            .collect()
    }
}

/// The templates that a policy names.
fn templates(policy: &Policy) -> impl Iterator<Item = TemplateRef> {
    let steps = policy.rules.iter().flat_map(|rule| &rule.steps);
    steps.filter_map(|step| Some(step.action.hand_off()?.remediation_template.clone()))
}

/// Whether a policy drains nodes.
fn drains(policy: &Policy) -> bool {
    policy.rules.iter().flat_map(|rule| &rule.steps).any(|step| step.action.traits().evicts_pods)
}

/// The state, shared by the tasks that fill it and the one that decides.
#[derive(Debug)]
pub struct Cache {
    state: Mutex<State>,
    decider: Notify,
    decider_soon: Notify,
    reader: Notify,
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        let state = Mutex::new(State::new(Instant::now()));
        Self { state, decider: Notify::new(), decider_soon: Notify::new(), reader: Notify::new() }
    }

    /// The state. No caller holds the lock over an await.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends the process. Until then the state is still the best available.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the decider.
    pub fn wake(&self) {
        self.decider.notify_one();
        self.reader.notify_one();
    }

    /// Wakes the decider within a second.
    pub fn wake_soon(&self) {
        self.decider_soon.notify_one();
    }

    /// Waits until the decider is woken, at once or within a second.
    pub async fn woken_or_soon(&self) {
        tokio::select! {
            biased;
            () = self.woken() => {}
            () = self.decider_soon.notified() => {
                tokio::select! { () = self.woken() => {}, () = tokio::time::sleep(wakes::EACH) => {} }
            }
        }
    }

    /// Waits until the decider is woken.
    pub async fn woken(&self) {
        self.decider.notified().await;
    }

    /// Waits until the reader of suspects' pods may have work.
    pub async fn reader_woken(&self) {
        self.reader.notified().await;
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::new()
    }
}
