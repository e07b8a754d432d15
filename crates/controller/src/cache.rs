//! The part of the API's content that decisions need: one snapshot, updated in place.
//!
//! ```text
//! watches ──┐
//! re-lists ─┼─► State { snapshot, … } ─► decide (under the lock, no copy)
//! own writes┘        newest version wins
//! ```
//! Nodes change with every heartbeat. The cache keeps only what a decision reads, and wakes the decider only when
//! that changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use nrh_core::condition_history::ConditionHistory;
use nrh_core::external_condition::ExternalCondition;
use nrh_core::fault::{Fault, FaultState};
use nrh_core::flaps::Flaps;
use nrh_core::hand_off::{HandOffView, TemplateRef};
use nrh_core::matching::pod_of;
use nrh_core::policy::asks_of_pods;
use nrh_core::remediation::Remediation;
use nrh_core::snapshot::{ReportedFault, Snapshot, SuspectPod, TriState};

pub mod arrival;
pub mod command;
pub mod conditions;
pub mod daemon_sets;
pub mod fold;
pub mod guard;
pub mod job;
pub mod known_pods;
pub mod mirrored;
pub mod pod_reads;
pub mod policies;
pub mod proof;
mod refresh;
pub mod report;
pub mod report_conditions;
pub mod suspects;
pub mod versions;
pub mod wakes;
pub mod watches;

use arrival::ReportArrivals;
use command::CommandRow;
use conditions::Shared;
use daemon_sets::DaemonSetRow;
use guard::Unreads;
use job::JobRow;
use known_pods::KnownPods;
use pod_reads::PodReads;
use policies::{ConfigRow, PolicyRow};
use report::ControllerStatus;
use report_conditions::ConditionText;
use versions::AllVersions;
use wakes::Wakes;

/// A pod of a DaemonSet may take this long to start before the controller reads its node.
const SUSPECT_FOR: Duration = Duration::from_mins(1);
/// Largest number of nodes that the controller reads for suspect pods alone. A large DaemonSet is listed too seldom for an
/// action. Its nodes are read often, a few at a time.
const SUSPECT_NODES: usize = 16;

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

/// Everything that the controller knows.
#[derive(Debug, Default)]
pub struct State {
    /// The input of a decision. Ages are those of the last [`State::refresh`].
    pub snapshot: Snapshot,
    /// Versions of the objects in it.
    pub versions: AllVersions,
    /// Objects that exist and cannot be read, of kinds that others write.
    pub unread: Unreads,
    /// The controller's part of each NodeRuntimeHealth, by node.
    pub controller_statuses: BTreeMap<String, ControllerStatus>,
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
    condition_texts: Shared<ConditionText>,
    /// Since when conditions have matched what policies ask for, by the time since `started`.
    notices: ConditionHistory,
    /// How often nodes have changed, by the time since `started`.
    flaps: Flaps,
    started: Started,
}

/// When this process began to watch: the time of `State::default()`.
#[derive(Debug)]
struct Started(Instant);

impl Default for Started {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl State {
    /// Monotonic time since this process began to watch.
    pub fn since_start(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started.0)
    }

    /// Whether every kind has been listed since this process started or, while it leads, since its term began.
    pub fn is_synced(&self) -> bool {
        self.versions.unsynced().next().is_none()
    }

    /// Kinds whose list is not complete yet.
    pub fn unsynced(&self) -> Vec<&'static str> {
        self.versions.unsynced().collect()
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
        let is_about_pod = |f: &ReportedFault| f.fault.state == FaultState::Confirmed && names_pod(&f.fault);
        let with_fault = self.snapshot.reports.iter().filter(|(_, view)| view.faults.iter().any(is_about_pod));
        let with_remediation = self.snapshot.remediations.values().filter(|e| e.is_live()).map(|e| &e.node);
        let mut suspects: Vec<&SuspectPod> = self.pod_reads.unhealthy().collect();
        suspects.retain(|pod| pod.age >= SUSPECT_FOR || pod.overdue.is_some());
        suspects.sort_by_key(|pod| std::cmp::Reverse((pod.overdue, pod.age)));
        let of_suspects = suspects.into_iter().map(|pod| &pod.node).take(SUSPECT_NODES);
        let nodes = with_fault.map(|(node, _)| node).chain(with_remediation).chain(of_suspects);
        nodes.filter(|node| self.snapshot.nodes.contains_key(*node)).cloned().collect()
    }
}

/// The state, shared by the tasks that fill it and the one that decides.
#[derive(Debug, Default)]
pub struct Cache {
    state: Mutex<State>,
    decider: Notify,
    decider_soon: Notify,
    reader: Notify,
    terms: watch::Sender<()>,
}

impl Cache {
    /// The state. No caller holds the lock over an await.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under the lock ends the process. Until then the state is still the best available.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A term of this process begins. A watch may have been silent for minutes, so the cache may lack what the predecessor did. The
    /// watches list each kind again, and until then the cache is not synced.
    pub fn begin_term(&self) {
        self.lock().versions.expect_lists();
        self.terms.send_replace(());
    }

    /// Changes whenever a term of this process begins.
    pub fn terms(&self) -> watch::Receiver<()> {
        self.terms.subscribe()
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
            () = self.decider.notified() => {}
            () = self.decider_soon.notified() => {
                tokio::select! { () = self.decider.notified() => {}, () = tokio::time::sleep(wakes::EACH) => {} }
            }
        }
    }

    /// Waits until the reader of suspects' pods may have work.
    pub async fn reader_woken(&self) {
        self.reader.notified().await;
    }
}
