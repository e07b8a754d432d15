//! A small cluster for decisions: nodes with true causes behind their faults, an API server that keeps resource versions, and
//! nodes that claim each operation once.
//!
//! It models only what a decision can see of a cluster. Every effect of a plan changes it as the real call would, and time passes
//! only in [`World::tick`].

mod boot;
mod conditions;
mod effects;
mod manual;
pub(super) mod marks;
mod node;
mod probe;

pub use effects::describe;
pub use node::{InjectedFault, WorldNode};

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use jiff::Timestamp;

pub use self::boot::{Boots, Kured};
use super::cleared_by::ClearedBy;
use super::remediator::Remediators;
use nrh_core::command::ActionCommand;
use nrh_core::condition_history::ConditionHistory;
use nrh_core::engine::plan;
use nrh_core::fault::PodRef;
use nrh_core::flaps::Flaps;
use nrh_core::hand_off::HandedOff;
use nrh_core::matching::{PodSeen, PodTraits};
use nrh_core::moment::since;
use nrh_core::plan::{Effect, Plan, PlanSettings};
use nrh_core::policy::{Policy, asked_keys};
use nrh_core::remediation::Marker;
use nrh_core::snapshot::{JobView, Ledger, NodeView, Snapshot, TriState};

/// The state of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodLike {
    /// The API has it.
    There {
        /// All its labels.
        labels: BTreeMap<String, String>,
        /// Kind of the owner that controls it.
        owner: Option<String>,
    },
    /// The API does not have it any more, and the controller has never seen it.
    Gone,
}

/// The whole cluster: what is kept as a decision reads it, and what has a life of its own.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// What a decision reads as it is. Its `now` is the only clock. [`World::snapshot`] fills in what the fields below say.
    pub state: Snapshot,
    /// Settings of the decision.
    pub settings: PlanSettings,
    /// By name.
    pub nodes: BTreeMap<String, WorldNode>,
    /// By operation id, each with its command.
    pub jobs: BTreeMap<String, (ActionCommand, JobView)>,
    /// The state of pods that faults name. Nothing is known of others.
    pub pods: BTreeMap<PodRef, PodLike>,
    /// Whether the API server refuses every action, as it does when permissions or an admission policy forbid it.
    pub refuses: bool,
    version: u64,
    began: Timestamp,
    notices: ConditionHistory,
    flaps: Flaps,
    /// How often each operation was really executed on objects.
    pub acts: BTreeMap<String, u32>,
    /// The log of requests: `(node, what)`.
    pub log: Vec<(String, String)>,
    /// The objects of remediators.
    pub remediators: Remediators,
}

impl Deref for World {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.state
    }
}

impl DerefMut for World {
    fn deref_mut(&mut self) -> &mut Snapshot {
        &mut self.state
    }
}

impl World {
    /// A world without nodes.
    pub fn new(now: Timestamp, policies: &[Policy]) -> Self {
        let state = Snapshot {
            now,
            policies: policies.to_vec(),
            ledger: Some(Ledger::default()),
            ceiling: 10,
            epoch: 1,
            may_evict: TriState::True,
            ..Snapshot::default()
        };
        Self { state, began: now, ..Self::default() }
    }

    /// The input of a decision, with a cache that does not lag.
    pub fn snapshot(&self) -> Snapshot {
        let nodes = || self.nodes.iter();
        let (mut notices, mut flaps) = (self.notices.clone(), self.flaps.clone());
        self.note_conditions(&mut notices, &mut flaps);
        Snapshot {
            nodes: nodes().map(|(name, node)| (name.clone(), node.view.clone())).collect(),
            reports: nodes().map(|(name, node)| (name.clone(), node.report.clone())).collect(),
            commands: nodes().filter_map(|(name, node)| Some((name.clone(), node.command()?))).collect(),
            matched_conditions: notices.matched_conditions(self.elapsed(), self.now),
            flaps: flaps.views(self.elapsed(), self.now),
            stalls: flaps.stalls(self.elapsed()),
            watched_for: self.elapsed(),
            pods: nodes().flat_map(|(_, node)| node.pods.clone()).collect(),
            pods_read: nodes().map(|(name, _)| (name.clone(), Duration::ZERO)).collect(),
            pods_seen: self.pods_seen(),
            jobs: self.jobs.iter().map(|(id, (_, job))| (id.clone(), job.clone())).collect(),
            hand_offs: self.remediators.views(self.handed_off(), self.now),
            ..self.state.clone()
        }
    }

    /// What policies ask of pods, as the controller reads it. It reads everything at once.
    fn pods_seen(&self) -> BTreeMap<PodRef, PodSeen> {
        let asked = asked_keys(&self.policies);
        let seen = |like: &PodLike| match like {
            PodLike::There { labels, owner } => PodSeen::Read(PodTraits::of(labels, owner.as_deref(), &asked)),
            PodLike::Gone => PodSeen::Gone,
        };
        self.pods.iter().map(|(pod, like)| (pod.clone(), seen(like))).collect()
    }

    /// Objects of hand-offs with pending cleanup in open remediations.
    fn handed_off(&self) -> impl Iterator<Item = HandedOff> {
        let owed = self.remediations.values().flat_map(|remediation| remediation.cleanup.owed());
        owed.filter_map(Marker::hand_off).cloned()
    }

    fn elapsed(&self) -> Duration {
        since(self.now, self.began)
    }

    /// Does what the controller's watches of Nodes and reports do.
    fn note_conditions(&self, notices: &mut ConditionHistory, flaps: &mut Flaps) {
        for (name, node) in &self.nodes {
            // A state without a date in the world is identified by its status alone.
            let view = NodeView { ready_since: node.view.ready_since.or(Some(self.began)), ..node.view.clone() };
            flaps.note_ready(name, &view, self.elapsed());
            flaps.note_report(name, &node.report, self.elapsed());
            notices.note(name, &node.view, &self.policies, self.elapsed());
        }
    }

    /// Decides, and executes the decision.
    pub fn pass(&mut self) -> Plan {
        let plan = plan(&self.snapshot(), &self.settings);
        let mut broken = BTreeSet::new();
        for effect in &plan.effects {
            let node = self.node_of(effect);
            if !broken.contains(&node) && !self.apply(effect, true) {
                broken.insert(node);
            }
        }
        self.note_what_people_stopped(&plan);
        plan
    }

    /// Acts as the status writer and the finalizer: a remediation that a person has deleted disappears once its node has recorded
    /// that.
    pub fn note_what_people_stopped(&mut self, plan: &Plan) {
        for (name, status_view) in &plan.nodes {
            if let Some(node) = self.nodes.get_mut(name) {
                node.report.stopped.clone_from(&status_view.stopped);
            }
        }
        let nodes = &self.nodes;
        self.state.remediations.retain(|_, remediation| {
            let node = nodes.get(&remediation.node);
            let is_noted = node.is_none_or(|node| {
                node.view.uid != remediation.node_uid
                    || remediation.stopped().is_none()
                    || node.report.stopped.is_some()
            });
            !remediation.deleting || remediation.is_live() || !is_noted
        });
    }

    /// The node that an effect is about. A failed effect blocks the following effects of its node.
    pub fn node_of(&self, effect: &Effect) -> String {
        match effect {
            Effect::StoreLedger(_) => "-ledger".into(),
            Effect::WriteRemediation(remediation) | Effect::BeginManualRequest(remediation) => remediation.node.clone(),
            Effect::Act { node, .. }
            | Effect::Remove { node, .. }
            | Effect::TimeOutHandOff { node, .. }
            | Effect::WithdrawCommand { node, .. } => node.clone(),
            Effect::DeleteJob { operation_id } => {
                self.jobs.get(operation_id).map_or_else(String::new, |(command, _)| command.node.clone())
            }
            Effect::UpdateManualRequest { name, .. } | Effect::DeleteRemediation { name } => format!("-{name}"),
        }
    }

    /// Lets time pass: Jobs and node executors act, probes report.
    pub fn tick(&mut self, wait: Duration) {
        let (mut notices, mut flaps) = (std::mem::take(&mut self.notices), std::mem::take(&mut self.flaps));
        self.note_conditions(&mut notices, &mut flaps);
        // This call fixes the time at which a condition was first seen.
        notices.matched_conditions(self.elapsed(), self.now);
        flaps.views(self.elapsed(), self.now);
        (self.notices, self.flaps) = (notices, flaps);
        let now = self.now.checked_add(wait).unwrap_or(self.now);
        self.now = now;
        for name in self.remediators.work(|name| self.nodes.get(name).map(|node| node.remediator)) {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            node.end_all(ClearedBy::HandOff);
            // A rebooted node accepts pods again, whoever has cordoned it.
            node.view.unschedulable = false;
        }
        let acts = &mut self.acts;
        for (command, job) in self.jobs.values_mut() {
            let Some(node) = self.nodes.get_mut(&command.node) else { continue };
            if !job.finished && node.job_starts && node.boots.away.is_none() {
                job.started = true;
                job.finished = true;
                job.outcome = Some(node.execute(command, now, acts));
            }
        }
        for node in self.nodes.values_mut() {
            if node.ends_pods() {
                node.workloads.retain(|workload| !workload.is_gone(now));
            }
            if let Some(heartbeat) = &mut node.report.heartbeat {
                heartbeat.arrived += wait;
            }
            for reported in &mut node.report.faults {
                reported.checked += wait;
            }
            node.work(now, acts);
        }
    }
}
