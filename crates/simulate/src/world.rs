//! A small cluster for decisions: nodes with true causes behind their faults, an API server that keeps resource versions, and
//! nodes that claim each operation once.
//!
//! It models only what a decision can see of a cluster. Every effect of a plan changes it as the real call would, and time passes
//! only in [`World::tick`].

mod boot;
mod by_hand;
mod conditions;
pub(super) mod marks;
mod probe;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use self::boot::Boots;
pub use self::boot::Kured;
use super::cleared_by::ClearedBy;
use super::remediator::{Remediator, Remediators};
use super::workload::{self, Workload};
use nrh_core::action::Action;
use nrh_core::command::{ActionCommand, Outcome, OutcomeReason, OutcomeState};
use nrh_core::condition_history::ConditionHistory;
use nrh_core::drain::cannot_end;
use nrh_core::engine::plan;
use nrh_core::fault::{Fault, PodRef};
use nrh_core::flaps::Flaps;
use nrh_core::hand_off::{HandedOff, TemplateRef};
use nrh_core::manual::OpenManualRequest;
use nrh_core::matching::{PodSeen, PodTraits};
use nrh_core::moment::since;
use nrh_core::plan::{Effect, Operation, Plan, PlanSettings};
use nrh_core::policy::{Policy, asked_keys};
use nrh_core::remediation::{ActionResult, Remediation, executed, taken_back, timed_out, uncordoned, untainted};
use nrh_core::snapshot::{
    CommandView, Heartbeat, JobView, Ledger, NodeView, ReportView, Snapshot, SuspectPod, TriState,
};

/// Age of the probe's checks when its report arrives.
const LOOKED: Duration = Duration::from_secs(1);
/// The heartbeat interval that a probe with something to report promises.
const INTERVAL: Duration = Duration::from_secs(15);

/// A fault with its true cause.
#[derive(Clone, Debug)]
pub struct InjectedFault {
    /// As the probe reports it.
    pub fault: Fault,
    /// Each of these resolves it.
    pub cleared_by: BTreeSet<ClearedBy>,
}

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

/// One node, and our components on it.
#[derive(Clone, Debug)]
pub struct WorldNode {
    /// The Node object.
    pub view: NodeView,
    /// The last report that arrived.
    pub report: ReportView,
    /// The current command in its `NodeCommand`.
    pub order: Option<ActionCommand>,
    /// Whether its probe reports.
    pub probe_runs: bool,
    /// Whether its kubelet starts the pods of Jobs.
    pub job_starts: bool,
    /// Its faults.
    pub sick: Vec<InjectedFault>,
    /// Its pods of suspect `DaemonSet`s.
    pub pods: Vec<SuspectPod>,
    /// Deleted pods without a successor yet.
    pub deleted: Vec<SuspectPod>,
    /// Claimed operations.
    pub claimed: BTreeSet<String>,
    /// Age of each check when its report arrives.
    pub looked: Duration,
    /// The tool to which it may be handed off.
    pub remediator: Remediator,
    /// Its other pods, which a drain evicts.
    pub workloads: Vec<Workload>,
    /// Its reboots.
    pub boots: Boots,
    /// Conditions of the Node that an action resolves.
    curable: Vec<conditions::Curable>,
}

/// The whole cluster.
#[derive(Clone, Debug)]
pub struct World {
    /// The only clock.
    pub now: Timestamp,
    /// Settings of the decision.
    pub settings: PlanSettings,
    /// Who has suspended all remediation, and why.
    pub suspended: Option<String>,
    /// By name.
    pub nodes: BTreeMap<String, WorldNode>,
    /// All policies, each of them valid.
    pub policies: Vec<Policy>,
    /// By name.
    pub remediations: BTreeMap<String, Remediation>,
    /// Manual requests that have not started, by name.
    pub manual_requests: BTreeMap<String, OpenManualRequest>,
    /// The ledger. `None`: it is lost.
    pub ledger: Option<Ledger>,
    /// By operation id, each with its command.
    pub jobs: BTreeMap<String, (ActionCommand, JobView)>,
    /// Pods that are being deleted.
    pub terminating: BTreeSet<PodRef>,
    /// The state of pods that faults name. Nothing is known of others.
    pub pods: BTreeMap<PodRef, PodLike>,
    /// Maximum number of remediations in flight in the whole cluster.
    pub ceiling: u32,
    /// The leader's term.
    pub epoch: u64,
    /// Whether the controller may evict pods, as far as it knows.
    pub may_evict: TriState,
    /// Uid and generation of templates.
    pub template_versions: BTreeMap<TemplateRef, String>,
    /// Why the admission policies are not known to be in force.
    pub admission_doubt: Option<String>,
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

impl World {
    /// A world without nodes.
    pub fn new(now: Timestamp, policies: &[Policy]) -> Self {
        Self {
            now,
            settings: PlanSettings::default(),
            suspended: None,
            nodes: BTreeMap::new(),
            policies: policies.to_vec(),
            remediations: BTreeMap::new(),
            manual_requests: BTreeMap::new(),
            ledger: Some(Ledger::default()),
            jobs: BTreeMap::new(),
            terminating: BTreeSet::new(),
            pods: BTreeMap::new(),
            ceiling: 10,
            epoch: 1,
            may_evict: TriState::True,
            template_versions: BTreeMap::new(),
            admission_doubt: None,
            refuses: false,
            version: 0,
            began: now,
            notices: ConditionHistory::default(),
            flaps: Flaps::default(),
            acts: BTreeMap::new(),
            log: Vec::new(),
            remediators: Remediators::default(),
        }
    }

    /// The input of a decision, with a cache that does not lag.
    pub fn snapshot(&self) -> Snapshot {
        let nodes = || self.nodes.iter();
        let (mut notices, mut flaps) = (self.notices.clone(), self.flaps.clone());
        self.note_conditions(&mut notices, &mut flaps);
        Snapshot {
            now: self.now,
            suspended: self.suspended.clone(),
            nodes: nodes().map(|(name, node)| (name.clone(), node.view.clone())).collect(),
            reports: nodes().map(|(name, node)| (name.clone(), node.report.clone())).collect(),
            commands: nodes().filter_map(|(name, node)| Some((name.clone(), node.command()?))).collect(),
            policies: self.policies.clone(),
            unusable_policies: BTreeSet::new(),
            remediations: self.remediations.clone(),
            unreadable: BTreeMap::new(),
            manual_requests: self.manual_requests.clone(),
            noticed: notices.noticed(self.elapsed(), self.now),
            flaps: flaps.told(self.elapsed(), self.now),
            watched: self.elapsed(),
            ledger: self.ledger.clone(),
            pods: nodes().flat_map(|(_, node)| node.pods.clone()).collect(),
            pods_read: nodes().map(|(name, _)| (name.clone(), Duration::ZERO)).collect(),
            terminating: self.terminating.clone(),
            pods_seen: self.pods_seen(),
            jobs: self.jobs.iter().map(|(id, (_, job))| (id.clone(), job.clone())).collect(),
            hand_offs: self.remediators.views(self.handed_off(), self.now),
            unproven: BTreeSet::new(),
            lacking: BTreeSet::new(),
            may_evict: self.may_evict,
            template_versions: self.template_versions.clone(),
            admission_doubt: self.admission_doubt.clone(),
            epoch: self.epoch,
            ceiling: self.ceiling,
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
        let owed = self.remediations.values().flat_map(|remediation| &remediation.cleanup.handed_off);
        owed.filter(|handed| handed.deleted_at.is_none()).cloned()
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
        self.remediations.retain(|_, remediation| {
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
            | Effect::Uncordon { node, .. }
            | Effect::Untaint { node, .. }
            | Effect::TimeOutHandOff { node, .. }
            | Effect::TakeBackHandOff { node, .. }
            | Effect::WithdrawOrder { node } => node.clone(),
            Effect::DeleteJob { operation_id } => {
                self.jobs.get(operation_id).map_or_else(String::new, |(order, _)| order.node.clone())
            }
            Effect::UpdateManualRequest { name, .. } | Effect::DeleteRemediation { name } => format!("-{name}"),
        }
    }

    /// Executes one effect. `may_record`: the result of an action is written before anything else happens. Returns false when it
    /// failed.
    pub fn apply(&mut self, effect: &Effect, may_record: bool) -> bool {
        match effect {
            Effect::StoreLedger(ledger) => self.ledger = Some(ledger.clone()),
            Effect::WriteRemediation(remediation) | Effect::BeginManualRequest(remediation) => {
                return self.write(remediation);
            }
            Effect::UpdateManualRequest { name, identity, message, .. } => {
                self.version += 1;
                let version = self.version.to_string();
                let Some(manual) = self.manual_requests.get_mut(name).filter(|manual| manual.identity == *identity)
                else {
                    return false;
                };
                message.clone_into(&mut manual.message);
                manual.identity.1 = version;
            }
            Effect::Act { remediation, operation_id, node, node_uid, operation } => {
                // The preflight of the action.
                if self.remediations.get(remediation).is_none_or(|remediation| remediation.cancel.is_some()) {
                    return false;
                }
                let Some(result) = self.act(node, node_uid, remediation, operation_id, operation) else { return false };
                if may_record && let Some(known) = self.remediations.get(remediation).cloned() {
                    let next = executed(&known, operation_id, result, self.now);
                    return next == known || self.write(&next);
                }
            }
            Effect::Uncordon { remediation, node, successor } => {
                self.uncordon(remediation, node, successor.as_ref());
                return !may_record || self.record(remediation, uncordoned);
            }
            Effect::Untaint { remediation, node } => {
                self.untaint(remediation, node);
                return !may_record || self.record(remediation, untainted);
            }
            Effect::TimeOutHandOff { remediation, handed, why, .. } => {
                self.remediators.tell(handed);
                self.log.push((handed.name.clone(), "time out".into()));
                let next = |known: &Remediation, now| timed_out(known, &handed.operation_id, why, now);
                return !may_record || self.record(remediation, next);
            }
            Effect::TakeBackHandOff { remediation, handed, .. } => {
                self.remediators.delete(handed);
                self.log.push((handed.name.clone(), "take back".into()));
                let next = |known: &Remediation, now| taken_back(known, &handed.operation_id, now);
                return !may_record || self.record(remediation, next);
            }
            Effect::WithdrawOrder { node } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.order = None;
                }
            }
            Effect::DeleteJob { operation_id } => drop(self.jobs.remove(operation_id)),
            Effect::DeleteRemediation { name } => drop(self.remediations.remove(name)),
        }
        true
    }

    fn record(&mut self, remediation: &str, next: impl Fn(&Remediation, Timestamp) -> Remediation) -> bool {
        let Some(known) = self.remediations.get(remediation).cloned() else { return true };
        let next = next(&known, self.now);
        next == known || self.write(&next)
    }

    fn write(&mut self, remediation: &Remediation) -> bool {
        let manual = self.manual_requests.get(&remediation.name).map(|manual| &manual.identity);
        let stored = self.remediations.get(&remediation.name).and_then(|stored| stored.identity.as_ref()).or(manual);
        if stored != remediation.identity.as_ref() {
            return false;
        }
        self.manual_requests.remove(&remediation.name);
        self.version += 1;
        let mut stored = remediation.clone();
        stored.identity = Some((format!("uid-{}", remediation.name), self.version.to_string()));
        self.remediations.insert(remediation.name.clone(), stored);
        true
    }

    fn act(&mut self, node: &str, uid: &str, name: &str, id: &str, operation: &Operation) -> Option<ActionResult> {
        let now = self.now;
        let world_node = self.nodes.get_mut(node)?;
        if world_node.view.uid != uid {
            let message = "another node".to_owned();
            return Some(ActionResult::Refused { reason: OutcomeReason::WrongNode, message });
        }
        if self.refuses && !matches!(operation, Operation::Notify(_)) {
            self.log.push((node.to_owned(), format!("refused {}", describe(operation))));
            return Some(ActionResult::Failed { message: format!("creating Job {id} failed: not allowed here (403)") });
        }
        self.log.push((node.to_owned(), describe(operation)));
        let done = || Some(ActionResult::Done { message: "done".to_owned() });
        match operation {
            Operation::Cordon => {
                let this = self.remediations.get(name);
                let kept = world_node.view.cordoned_by.as_ref().and_then(|mark| self.remediations.get(mark));
                let is_left = kept.zip(this).is_some_and(|(kept, this)| this.shares_cordon_of(kept));
                Some(marks::cordon(world_node, name, is_left))
            }
            Operation::Taint(effect) => marks::taint(world_node, name, *effect),
            Operation::Drain(with) => {
                let is_ours = world_node.view.unschedulable && world_node.view.cordoned_by.as_deref() == Some(name);
                let known = self.remediations.get(name)?;
                let step = known.current_step().filter(|step| is_ours && step.operation_id == id)?;
                let began = step.started_at.unwrap_or(now);
                let faults = world_node.sick.iter().map(|sick| &sick.fault);
                Some(workload::drain(&mut world_node.workloads, with, faults, now, id, since(now, began)))
            }
            Operation::DeletePod(pod) => {
                let Some(at) = world_node.pods.iter().position(|p| p.pod == *pod) else {
                    return Some(ActionResult::Gone { message: "gone".to_owned() });
                };
                *self.acts.entry(id.to_owned()).or_default() += 1;
                world_node.deleted.push(world_node.pods.remove(at));
                done()
            }
            Operation::Notify(_) => done(),
            Operation::HandOff(with) => {
                // The preflight of the action: a finished step creates nothing.
                self.remediations.get(name)?.current_step().filter(|step| step.operation_id == id)?;
                Some(self.remediators.make(self.nodes.get(node)?.remediator, node, id, with, now))
            }
            Operation::RunJob(order) => {
                let job = JobView { operation_id: id.to_owned(), ..JobView::default() };
                self.jobs.entry(id.to_owned()).or_insert_with(|| (order.clone(), job));
                Some(ActionResult::Started)
            }
            Operation::GiveCommand(order) => {
                debug_assert!(order.issued_at <= now, "an order of the future");
                let answered = world_node.report.agent.as_ref().map(|agent| &agent.operation_id);
                let standing = world_node.order.as_ref().map(|order| &order.operation_id);
                if standing.is_some_and(|standing| standing != id && answered != Some(standing)) {
                    return None; // not now: another command waits for its answer
                }
                world_node.order = Some(order.clone());
                Some(ActionResult::Started)
            }
        }
    }

    /// Lets time pass: Jobs and node executors act, probes report.
    pub fn tick(&mut self, wait: Duration) {
        let (mut notices, mut flaps) = (std::mem::take(&mut self.notices), std::mem::take(&mut self.flaps));
        self.note_conditions(&mut notices, &mut flaps);
        // This call fixes the time at which a condition was first seen.
        notices.noticed(self.elapsed(), self.now);
        flaps.told(self.elapsed(), self.now);
        (self.notices, self.flaps) = (notices, flaps);
        self.now = self.now.checked_add(wait).unwrap_or(self.now);
        for name in self.remediators.work(|name| self.nodes.get(name).map(|node| node.remediator)) {
            let Some(node) = self.nodes.get_mut(&name) else { continue };
            node.end_all(ClearedBy::HandOff);
            // A rebooted node accepts pods again, whoever has cordoned it.
            node.view.unschedulable = false;
        }
        let acts = &mut self.acts;
        for (order, job) in self.jobs.values_mut() {
            let Some(node) = self.nodes.get_mut(&order.node) else { continue };
            if !job.finished && node.job_starts && node.boots.away.is_none() {
                job.started = true;
                job.finished = true;
                job.outcome = Some(node.execute(order, self.now, acts));
            }
        }
        for node in self.nodes.values_mut() {
            if node.ends_pods() {
                node.workloads.retain(|workload| !workload.is_gone(self.now));
            }
            if let Some(heartbeat) = &mut node.report.heartbeat {
                heartbeat.arrived += wait;
            }
            for reported in &mut node.report.faults {
                reported.looked += wait;
            }
            node.tend_mark(self.now);
            if node.boot() || !node.probe_runs {
                continue;
            }
            if let Some(order) = node.order.clone()
                && node.report.heartbeat.as_ref().is_some_and(|heartbeat| heartbeat.actions_enabled)
                && node.report.agent.as_ref().is_none_or(|agent| agent.operation_id != order.operation_id)
            {
                node.report.agent = Some(node.execute(&order, self.now, acts));
            }
            node.send();
        }
    }
}

/// The operation in two words.
pub fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Cordon => "cordon".into(),
        Operation::Taint(_) => "taint".into(),
        Operation::Drain(_) => "drain".into(),
        Operation::DeletePod(pod) => format!("delete {}", pod.name),
        Operation::RunJob(order) => format!("job {}", name(order)),
        Operation::GiveCommand(order) => format!("command {}", name(order)),
        Operation::HandOff(with) => format!("hand off by {}", with.remediation_template.object_kind()),
        Operation::Notify(_) => "notify".into(),
    }
}

/// The action of a command, with its signal.
fn name(order: &ActionCommand) -> String {
    let action = order.action.kind().as_str();
    order.signal().map_or_else(|| action.to_owned(), |signal| format!("{action}({})", signal.as_str()))
}

impl WorldNode {
    /// A healthy node.
    pub fn new(name: &str) -> Self {
        let uid = format!("uid-{name}");
        let heartbeat = Heartbeat {
            arrived: LOOKED,
            interval: INTERVAL,
            sequence: 1,
            boot_id: String::new(),
            actions_enabled: true,
            kubelet_works: TriState::True,
        };
        let mut node = Self {
            view: NodeView { uid: uid.clone(), ready: TriState::True, ..NodeView::default() },
            report: ReportView { node_uid: Some(uid), heartbeat: Some(heartbeat), ..ReportView::default() },
            order: None,
            probe_runs: true,
            job_starts: true,
            sick: Vec::new(),
            pods: Vec::new(),
            deleted: Vec::new(),
            claimed: BTreeSet::new(),
            looked: LOOKED,
            remediator: Remediator::default(),
            workloads: Vec::new(),
            boots: Boots::default(),
            curable: Vec::new(),
        };
        node.tell_boot();
        node.view.labels.insert("kubernetes.io/hostname".into(), name.into());
        node
    }

    /// Its `NodeCommand`, while it contains a command.
    fn command(&self) -> Option<CommandView> {
        let order = Some(self.order.clone()?);
        Some(CommandView { node_uid: Some(self.view.uid.clone()), order, unreadable: None })
    }

    /// Whether its runtime and its kubelet end terminating pods, by its true faults.
    fn ends_pods(&self) -> bool {
        let works = self.report.heartbeat.as_ref().map_or(TriState::Unknown, |heartbeat| heartbeat.kubelet_works);
        let known = works != TriState::False;
        known && cannot_end(TriState::True, TriState::True, self.sick.iter().map(|sick| &sick.fault)).is_none()
    }

    fn execute(&mut self, order: &ActionCommand, now: Timestamp, acts: &mut BTreeMap<String, u32>) -> Outcome {
        let outcome = |state, reason: OutcomeReason| Outcome {
            operation_id: order.operation_id.clone(),
            state,
            reason,
            message: format!("{reason:?}"),
            at: now,
        };
        if order.boot_id.is_some() && order.boot_id != self.view.boot_id {
            return outcome(OutcomeState::Refused, OutcomeReason::AlreadyRebooted);
        }
        if !self.claimed.insert(order.operation_id.clone()) {
            return outcome(OutcomeState::Refused, OutcomeReason::AlreadyExecuted);
        }
        let Some(place) = self.sick.iter().position(|sick| sick.fault.id == order.fault_id) else {
            return outcome(OutcomeState::Refused, OutcomeReason::Recovered);
        };
        *acts.entry(order.operation_id.clone()).or_default() += 1;
        match order.action {
            Action::Reboot(_) => self.begin_boot(),
            Action::MarkForReboot(_) => self.mark(order, now),
            _ => {
                let by = ClearedBy::of(&order.action);
                if self.sick.get(place).is_some_and(|sick| by.is_some_and(|by| sick.cleared_by.contains(&by))) {
                    self.sick.remove(place);
                }
            }
        }
        outcome(OutcomeState::Done, OutcomeReason::Executed)
    }
}
