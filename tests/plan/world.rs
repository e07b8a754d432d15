//! A small world around the decision: nodes with real causes behind their faults, an API server that keeps
//! resource versions, nodes that claim operations once, and a controller that may crash between any two effects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;
use nrh::core::episode::{ActResult, Episode, acted, uncordoned};
use nrh::core::fault::{Fault, FaultType, PodRef};
use nrh::core::order::{NodeAction, Order, Outcome, OutcomeReason, OutcomeState};
use nrh::core::plan::{Effect, Held, HoldReason, Operation, Plan, PlanSettings, plan};
use nrh::core::policy::{Policy, Step};
use nrh::core::snapshot::{Heartbeat, JobView, Ledger, NodeView, ReportView, ReportedFault, Snapshot, SuspectPod, Tri};

use crate::samples::{policy, rule};

pub use crate::samples::secs;

/// What ends a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cure {
    Cont,
    Kill,
    Cleanup,
    Delete,
    Nothing,
}

/// A fault with its true cause.
#[derive(Clone, Debug)]
pub struct Sickness {
    pub fault: Fault,
    pub cure: Cure,
}

#[derive(Clone, Debug)]
pub struct WorldNode {
    pub view: NodeView,
    pub report: ReportView,
    pub probe_runs: bool,
    pub job_starts: bool,
    pub sick: Vec<Sickness>,
    pub pods: Vec<SuspectPod>,
    pub claimed: BTreeSet<String>,
    /// Where the look of each fault is not fresh.
    pub looked: Duration,
}

/// How one pass of the controller is disturbed.
#[derive(Clone, Debug, Default)]
pub struct Chaos {
    /// The controller dies after so many calls.
    pub crash_after: Option<usize>,
    /// Which calls fail (by number).
    pub failing: BTreeSet<usize>,
}

#[derive(Clone, Debug)]
pub struct World {
    pub now: Timestamp,
    pub settings: PlanSettings,
    pub nodes: BTreeMap<String, WorldNode>,
    pub policies: Vec<Policy>,
    pub episodes: BTreeMap<String, Episode>,
    pub ledger: Option<Ledger>,
    pub jobs: BTreeMap<String, (Order, JobView)>,
    pub terminating: BTreeSet<PodRef>,
    pub ceiling: u32,
    pub epoch: u64,
    /// Whether the API server refuses every act, as it does when rights or an admission policy forbid it.
    pub refuses: bool,
    version: u64,
    /// Operations that were really carried out on objects, with their number of times.
    pub acts: BTreeMap<String, u32>,
    /// What was asked for: `(node, fault, what)`.
    pub log: Vec<(String, String)>,
}

impl World {
    pub fn new(policies: &[Policy], nodes: &[&str]) -> Self {
        Self {
            now: "2026-01-01T01:00:00Z".parse().unwrap(),
            settings: PlanSettings::default(),
            nodes: nodes.iter().map(|name| ((*name).to_owned(), WorldNode::new(name))).collect(),
            policies: policies.to_vec(),
            episodes: BTreeMap::new(),
            ledger: Some(Ledger::default()),
            jobs: BTreeMap::new(),
            terminating: BTreeSet::new(),
            ceiling: 10,
            epoch: 1,
            refuses: false,
            version: 0,
            acts: BTreeMap::new(),
            log: Vec::new(),
        }
    }

    /// One node, one fault, one rule for all kinds of fault.
    pub fn sick(fault: Fault, cure: Cure, steps: &[Step]) -> Self {
        let kinds = FaultType::ALL;
        let mut world = Self::new(&[policy("p", &[rule("r", &kinds, steps)])], &["n1"]);
        world.infect("n1", fault, cure);
        world
    }

    pub fn node(&mut self, name: &str) -> &mut WorldNode {
        self.nodes.get_mut(name).unwrap()
    }

    pub fn infect(&mut self, node: &str, fault: Fault, cure: Cure) {
        let node = self.node(node);
        node.sick.push(Sickness { fault, cure });
        node.send();
    }

    pub fn snapshot(&self) -> Snapshot {
        let nodes = || self.nodes.iter();
        Snapshot {
            now: self.now,
            nodes: nodes().map(|(name, node)| (name.clone(), node.view.clone())).collect(),
            reports: nodes().map(|(name, node)| (name.clone(), node.report.clone())).collect(),
            policies: self.policies.clone(),
            episodes: self.episodes.clone(),
            ledger: self.ledger.clone(),
            pods: nodes().flat_map(|(_, node)| node.pods.clone()).collect(),
            pods_read: nodes().map(|(name, _)| (name.clone(), secs(0))).collect(),
            terminating: self.terminating.clone(),
            jobs: self.jobs.iter().map(|(id, (_, job))| (id.clone(), job.clone())).collect(),
            epoch: self.epoch,
            ceiling: self.ceiling,
        }
    }

    pub fn plan(&self) -> Plan {
        plan(&self.snapshot(), &self.settings)
    }

    /// Decides and does it, undisturbed.
    pub fn pass(&mut self) -> Plan {
        self.disturbed_pass(&Chaos::default())
    }

    /// Decides and does it, with failing calls and a crash.
    pub fn disturbed_pass(&mut self, chaos: &Chaos) -> Plan {
        let snapshot = self.snapshot();
        self.carry_out(&snapshot, chaos)
    }

    /// Decides on what was so at some time, and does it now: what a leader with an old cache would do.
    pub fn carry_out(&mut self, snapshot: &Snapshot, chaos: &Chaos) -> Plan {
        let plan = plan(snapshot, &self.settings);
        let is_ledger_current = snapshot.ledger == self.ledger;
        let (mut calls, mut broken) = (0_usize, BTreeSet::new());
        let mut is_ledger_stored = true;
        for effect in &plan.effects {
            if chaos.crash_after.is_some_and(|limit| calls >= limit) {
                break;
            }
            let conflicts = matches!(effect, Effect::StoreLedger(_)) && !is_ledger_current;
            let fails = conflicts || chaos.failing.contains(&calls);
            calls += 1;
            let node = self.node_of(effect);
            if broken.contains(&node) {
                continue;
            }
            let opens = matches!(effect, Effect::WriteEpisode(e) if e.identity.is_none());
            if fails || (opens && !is_ledger_stored) {
                is_ledger_stored &= !matches!(effect, Effect::StoreLedger(_));
                broken.insert(node);
                continue;
            }
            let may_record = chaos.crash_after.is_none_or(|limit| calls < limit) && !chaos.failing.contains(&calls);
            if !self.apply(effect, may_record) {
                broken.insert(node);
            }
        }
        self.note_what_people_stopped(&plan);
        plan
    }

    /// The status writer, and the finalizer: an episode that a person has deleted goes once its node has noted that.
    fn note_what_people_stopped(&mut self, plan: &Plan) {
        for (name, outlook) in &plan.nodes {
            if let Some(node) = self.nodes.get_mut(name) {
                node.report.stopped.clone_from(&outlook.stopped);
            }
        }
        let nodes = &self.nodes;
        self.episodes.retain(|_, episode| {
            let node = nodes.get(&episode.node);
            let is_noted = node.is_none_or(|node| {
                node.view.uid != episode.node_uid || episode.stopped().is_none() || node.report.stopped.is_some()
            });
            !episode.deleting || episode.is_open() || !is_noted
        });
    }

    fn node_of(&self, effect: &Effect) -> String {
        match effect {
            Effect::StoreLedger(_) => "-ledger".into(),
            Effect::WriteEpisode(episode) => episode.node.clone(),
            Effect::Act { node, .. } | Effect::Uncordon { node, .. } | Effect::WithdrawOrder { node } => node.clone(),
            Effect::DeleteJob { operation_id } => {
                self.jobs.get(operation_id).map_or_else(String::new, |(order, _)| order.node.clone())
            }
            Effect::DeleteEpisode { name } => format!("-{name}"),
        }
    }

    fn apply(&mut self, effect: &Effect, may_record: bool) -> bool {
        match effect {
            Effect::StoreLedger(ledger) => self.ledger = Some(ledger.clone()),
            Effect::WriteEpisode(episode) => return self.write(episode),
            Effect::Act { episode, operation_id, node, node_uid, operation } => {
                let Some(result) = self.act(node, node_uid, episode, operation_id, operation) else { return false };
                if may_record && let Some(known) = self.episodes.get(episode).cloned() {
                    let next = acted(&known, operation_id, result, self.now);
                    return next == known || self.write(&next);
                }
            }
            Effect::Uncordon { episode, node } => {
                if let Some(node) = self.nodes.get_mut(node)
                    && node.view.cordoned_by.as_ref() == Some(episode)
                {
                    node.view.cordoned_by = None;
                    node.view.unschedulable = false;
                    self.log.push((node.view.uid.clone(), "uncordon".into()));
                }
                if may_record && let Some(known) = self.episodes.get(episode).cloned() {
                    let next = uncordoned(&known, self.now);
                    return next == known || self.write(&next);
                }
            }
            Effect::WithdrawOrder { node } => {
                if let Some(node) = self.nodes.get_mut(node) {
                    node.report.order = None;
                }
            }
            Effect::DeleteJob { operation_id } => drop(self.jobs.remove(operation_id)),
            Effect::DeleteEpisode { name } => drop(self.episodes.remove(name)),
        }
        true
    }

    fn write(&mut self, episode: &Episode) -> bool {
        let stored = self.episodes.get(&episode.name);
        if stored.map(|stored| &stored.identity) != episode.identity.as_ref().map(|_| &episode.identity) {
            return false;
        }
        self.version += 1;
        let mut stored = episode.clone();
        stored.identity = Some((format!("uid-{}", episode.name), self.version.to_string()));
        self.episodes.insert(episode.name.clone(), stored);
        true
    }

    fn act(&mut self, node: &str, uid: &str, episode: &str, id: &str, operation: &Operation) -> Option<ActResult> {
        let now = self.now;
        let world_node = self.nodes.get_mut(node)?;
        if world_node.view.uid != uid {
            let message = "another node".to_owned();
            return Some(ActResult::Refused { reason: OutcomeReason::WrongNode, message });
        }
        if self.refuses && !matches!(operation, Operation::Notify(_)) {
            self.log.push((node.to_owned(), format!("refused {}", describe(operation))));
            return Some(ActResult::Failed { message: format!("creating Job {id} failed: not allowed here (403)") });
        }
        self.log.push((node.to_owned(), describe(operation)));
        let done = || Some(ActResult::Done { message: "done".to_owned() });
        match operation {
            Operation::Cordon => {
                let mine = world_node.view.cordoned_by.as_deref() == Some(episode);
                if world_node.view.unschedulable && !mine {
                    return Some(ActResult::AlreadyCordoned);
                }
                world_node.view.unschedulable = true;
                world_node.view.cordoned_by = Some(episode.to_owned());
                done()
            }
            Operation::DeletePod(pod) => {
                if !world_node.pods.iter().any(|p| p.pod == *pod) {
                    return Some(ActResult::Gone { message: "gone".to_owned() });
                }
                *self.acts.entry(id.to_owned()).or_default() += 1;
                world_node.pods.retain(|p| p.pod != *pod);
                done()
            }
            Operation::Notify(_) => done(),
            Operation::RunJob(order) => {
                let job = JobView { operation_id: id.to_owned(), started: false, finished: false, outcome: None };
                self.jobs.entry(id.to_owned()).or_insert_with(|| (order.clone(), job));
                Some(ActResult::Started)
            }
            Operation::GiveOrder(order) => {
                assert!(order.issued_at <= now);
                let answered = world_node.report.agent.as_ref().map(|agent| &agent.operation_id);
                let standing = world_node.report.order.as_ref().map(|order| &order.operation_id);
                if standing.is_some_and(|standing| standing != id && answered != Some(standing)) {
                    return None; // not now: another order waits for its answer
                }
                world_node.report.order = Some(order.clone());
                Some(ActResult::Started)
            }
        }
    }

    /// Time passes: Jobs and agents act, probes report.
    pub fn tick(&mut self, wait: Duration) {
        self.now = self.now.checked_add(wait).unwrap();
        let acts = &mut self.acts;
        for (id, (order, job)) in &mut self.jobs {
            let Some(node) = self.nodes.get_mut(&order.node) else { continue };
            if !job.finished && node.job_starts {
                job.started = true;
                job.finished = true;
                job.outcome = Some(node.execute(order, self.now, acts));
                assert_eq!(*id, order.operation_id);
            }
        }
        for node in self.nodes.values_mut() {
            let heartbeat = node.report.heartbeat.as_mut().unwrap();
            heartbeat.arrived += wait;
            for reported in &mut node.report.faults {
                reported.looked += wait;
            }
            if !node.probe_runs {
                continue;
            }
            if let Some(order) = node.report.order.clone()
                && node.report.heartbeat.as_ref().is_some_and(|h| h.can_act)
                && node.report.agent.as_ref().is_none_or(|a| a.operation_id != order.operation_id)
            {
                node.report.agent = Some(node.execute(&order, self.now, acts));
            }
            node.send();
        }
    }

    /// Passes and time, until no episode is open or the time is over.
    pub fn run(&mut self, most: Duration) -> Vec<Plan> {
        let (mut plans, mut spent) = (Vec::new(), Duration::ZERO);
        loop {
            let plan = self.pass();
            let is_quiet = plan.effects.is_empty() && !self.episodes.values().any(Episode::is_open);
            plans.push(plan);
            if is_quiet || spent >= most {
                return plans;
            }
            self.tick(secs(5));
            spent += secs(5);
        }
    }

    pub fn only_episode(&self) -> &Episode {
        assert_eq!(self.episodes.len(), 1, "{:?}", self.episodes.keys());
        self.episodes.values().next().unwrap()
    }

    pub fn did(&self) -> Vec<&str> {
        self.log.iter().map(|(_, what)| what.as_str()).collect()
    }
}

fn describe(operation: &Operation) -> String {
    match operation {
        Operation::Cordon => "cordon".into(),
        Operation::DeletePod(pod) => format!("delete {}", pod.name),
        Operation::RunJob(order) => format!("job {:?}", order.action),
        Operation::GiveOrder(order) => format!("order {:?}", order.action),
        Operation::Notify(_) => "notify".into(),
    }
}

impl WorldNode {
    fn new(name: &str) -> Self {
        let uid = format!("uid-{name}");
        let heartbeat =
            Heartbeat { arrived: secs(1), interval: secs(15), sequence: 1, can_act: true, kubelet_works: Tri::True };
        let mut node = Self {
            view: NodeView { uid: uid.clone(), ready: Tri::True, ..NodeView::default() },
            report: ReportView { node_uid: Some(uid), heartbeat: Some(heartbeat), ..ReportView::default() },
            probe_runs: true,
            job_starts: true,
            sick: Vec::new(),
            pods: Vec::new(),
            claimed: BTreeSet::new(),
            looked: secs(1),
        };
        node.view.labels.insert("kubernetes.io/hostname".into(), name.into());
        node
    }

    /// The probe reports what is so.
    pub fn send(&mut self) {
        if let Some(heartbeat) = &mut self.report.heartbeat {
            heartbeat.arrived = Duration::ZERO;
            heartbeat.sequence += 1;
        }
        let looked = self.looked;
        let report = |sick: &Sickness| ReportedFault { fault: sick.fault.clone(), looked };
        self.report.faults = self.sick.iter().map(report).collect();
    }

    fn execute(&mut self, order: &Order, now: Timestamp, acts: &mut BTreeMap<String, u32>) -> Outcome {
        let outcome = |state, reason| Outcome {
            operation_id: order.operation_id.clone(),
            state,
            reason,
            message: format!("{reason:?}"),
            at: now,
        };
        if !self.claimed.insert(order.operation_id.clone()) {
            return outcome(OutcomeState::Refused, OutcomeReason::AlreadyClaimed);
        }
        let Some(place) = self.sick.iter().position(|sick| sick.fault.id == order.fault_id) else {
            return outcome(OutcomeState::Refused, OutcomeReason::Recovered);
        };
        *acts.entry(order.operation_id.clone()).or_default() += 1;
        let cure = match order.action {
            NodeAction::ReleaseCont => Cure::Cont,
            NodeAction::ReleaseKill => Cure::Kill,
            NodeAction::CleanupOrphans => Cure::Cleanup,
        };
        if self.sick.get(place).is_some_and(|sick| sick.cure == cure) {
            self.sick.remove(place);
        }
        outcome(OutcomeState::Done, OutcomeReason::Acted)
    }
}

/// Acts of a plan, as `(node, operation)`.
pub fn acts(plan: &Plan) -> Vec<(String, String)> {
    plan.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Act { node, operation, .. } => Some((node.clone(), describe(operation))),
            _ => None,
        })
        .collect()
}

/// Reasons of a plan, for the one fault or node it is about.
pub fn reasons(plan: &Plan) -> Vec<HoldReason> {
    plan.held.iter().map(|held: &Held| held.reason).collect()
}
