//! Plays a timeline: what happens to the world, pass after pass. Each pass calls the very decision function of the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::account::Account;
use super::cleared_by::ClearedBy;
use super::injected_fault;
use super::lacks;
use super::remediator::Remediator;
use super::timeline::{
    CancelEvent, Event, FaultEvent, FlapsEvent, KubeletState, Machine, ManualRequestEvent, Nodes, PolicyEvent,
    ProbeState, Timeline, own_labels,
};
use super::world::{Kured, World, WorldNode, marks};
use nrh_core::fault::{Fault, FaultType};
use nrh_core::manual::choices;
use nrh_core::matching::MatchContext;
use nrh_core::moment::since;
use nrh_core::policy::{Mode, Policy};
use nrh_core::remediation::{Approval, Phase, Remediation};
use nrh_core::snapshot::TriState;
use nrh_core::stuck::LONGEST_BACK_OFF;

/// Time between two passes while something is in progress. Probes and Jobs answer within it.
const STEP: Duration = Duration::from_secs(5);
/// Time between two passes while nothing is in progress.
const QUIET: Duration = Duration::from_mins(1);
/// How long the controller of a DaemonSet takes to create the successor of a deleted pod.
const SUCCESSOR: Duration = Duration::from_secs(5);

/// One event on one node, or on a policy.
#[derive(Clone, Debug)]
struct Due<'t> {
    at: Duration,
    node: Option<String>,
    event: &'t Event,
}

/// The world, and what only the timeline knows.
struct Play<'t> {
    world: World,
    timeline: &'t Timeline,
    /// When faults disappear by themselves, by node and id.
    leaving: BTreeMap<(String, String), Duration>,
    /// Stuck pods, by node: the event of each, what resolves it, and how often it has come back.
    stuck: BTreeMap<String, Vec<Stuck<'t>>>,
    account: Account,
    elapsed: Duration,
    /// Nodes with a flapping `Ready`: the time of the next change, and the remaining changes.
    flapping: BTreeMap<String, (Duration, FlapsEvent)>,
    /// Number of manual requests so far.
    manual_requests: usize,
}

struct Stuck<'t> {
    event: &'t FaultEvent,
    cleared_by: BTreeSet<ClearedBy>,
    lives: usize,
    /// When the pod becomes healthy by itself.
    leaves_at: Option<Duration>,
    /// When the deleted pod's successor is created.
    back_at: Option<Duration>,
}

/// Plays the timeline with these policies, to its end.
pub fn play(timeline: &Timeline, policies: &[Policy]) -> Account {
    Play::new(timeline, policies).run().account
}

/// The world at the end of the timeline.
pub fn end_of(timeline: &Timeline, policies: &[Policy]) -> World {
    Play::new(timeline, policies).run().world
}

impl<'t> Play<'t> {
    fn new(timeline: &'t Timeline, policies: &[Policy]) -> Self {
        let mut world = World::new(timeline.start, policies);
        world.ceiling = timeline.max_in_flight;
        for (name, like) in timeline.names() {
            let node = fresh(&name, like);
            world.nodes.insert(name, node);
        }
        let mut account = Account::default();
        account.notes = lacks::lacks(timeline, &world);
        let (leaving, stuck) = (BTreeMap::new(), BTreeMap::new());
        Self {
            world,
            timeline,
            leaving,
            stuck,
            account,
            elapsed: Duration::ZERO,
            flapping: BTreeMap::new(),
            manual_requests: 0,
        }
    }

    fn run(mut self) -> Self {
        let mut due = due(self.timeline);
        let (least, latest) = (self.timeline.end(), self.timeline.latest());
        loop {
            while due.last().is_some_and(|next| next.at <= self.elapsed) {
                if let Some(next) = due.pop() {
                    self.happen(next.node.as_deref(), next.event);
                }
            }
            self.flap();
            self.leave();
            self.succeed();
            let plan = self.world.pass();
            self.deleted();
            self.account.note(self.elapsed, &self.world, &plan);
            let open = || self.world.remediations.values().filter(|remediation| remediation.is_open());
            // Only what has started by then is played to its end: a remediation without success would start again for ever.
            let is_early = |remediation: &Remediation| since(remediation.started_at, self.timeline.start) <= least;
            let end = if open().any(is_early) { latest } else { least };
            if self.elapsed >= end {
                self.account.end(self.elapsed, &self.world, &plan);
                return self;
            }
            // After the last event nothing happens while every open remediation waits for a person.
            let waits =
                |remediation: &Remediation| self.elapsed >= least && remediation.phase == Phase::AwaitingApproval;
            let is_slow = plan.effects.is_empty() && open().all(waits);
            let wake = plan.next.unwrap_or(QUIET).clamp(STEP, QUIET);
            let wait = if is_slow { wake } else { STEP };
            let stuck = self.stuck.values().flatten().filter_map(|stuck| stuck.leaves_at);
            let flaps = self.flapping.values().map(|(next, _)| *next);
            let leaves = self.leaving.values().copied().chain(stuck).chain(flaps).min().unwrap_or(end);
            let next = due.last().map_or(end, |next| next.at.min(end)).min(leaves);
            let left = next.saturating_sub(self.elapsed).max(Duration::from_secs(1));
            self.pass_time(wait.min(left));
        }
    }

    fn pass_time(&mut self, wait: Duration) {
        self.elapsed += wait;
        for node in self.world.nodes.values_mut() {
            for sick in &mut node.sick {
                sick.fault.duration_seconds = sick.fault.duration_seconds.saturating_add(wait.as_secs());
            }
            for pod in &mut node.pods {
                pod.age += wait;
                pod.overdue = pod.overdue.map(|overdue| overdue + wait);
                // The kubelet restarts the container at the end of its back-off, and it ends at once.
                for container in &mut pod.waiting {
                    container.ended =
                        container.ended.map(|ended| (ended + wait).min(LONGEST_BACK_OFF.saturating_sub(STEP)));
                }
            }
        }
        self.world.tick(wait);
    }

    fn happen(&mut self, node: Option<&str>, event: &'t Event) {
        let Some(name) = node else {
            if let Some(change) = &event.policy {
                let sentence = self.change(change);
                self.account.happens(self.elapsed, None, &sentence);
            }
            return;
        };
        let mut told: Vec<String> = Vec::new();
        if let Some(machine) = event.machine {
            told.push(self.machine(name, machine));
        }
        if event.cancelled {
            told.push(self.cancel(name));
        }
        if let Some(by) = &event.approved {
            told.push(self.approve(name, by));
        }
        if let Some(cancel) = &event.cancel {
            told.push(self.cancel_by_hand(name, cancel));
        }
        if let Some(fault) = &event.fault {
            told.push(self.fall_ill(name, fault));
        }
        if let Some(kind) = event.clears {
            self.clear(name, kind);
            told.push(format!("{kind} is gone"));
        }
        if let Some(flaps) = event.flaps {
            self.flapping.insert(name.to_owned(), (self.elapsed, flaps));
            told.push(format!("Ready begins to change every {}s, {} times", flaps.every.0.as_secs(), flaps.times));
        }
        match self.world.nodes.get_mut(name) {
            Some(node) => {
                told.extend(change_node(node, event));
                if node.probe_runs {
                    node.send();
                }
            }
            None if event.machine.is_none() => told = vec!["nothing happens: the node is gone".to_owned()],
            None => {}
        }
        // A person knows of everything that happens at the same moment.
        if let Some(manual) = &event.manual {
            told.push(self.manual(name, manual));
        }
        for sentence in told {
            self.account.happens(self.elapsed, Some(name), &sentence);
        }
    }

    /// Changes `Ready` of flapping nodes when it is time.
    fn flap(&mut self) {
        let (now, at) = (self.elapsed, self.world.now);
        for (name, (next, left)) in self.flapping.iter_mut().filter(|(_, (next, _))| *next <= now) {
            if let Some(node) = self.world.nodes.get_mut(name) {
                node.view.ready = if node.view.ready == TriState::True { TriState::False } else { TriState::True };
                node.view.ready_since = Some(at);
            }
            *next = next.saturating_add(left.every.0);
            left.times = left.times.saturating_sub(1);
        }
        self.flapping.retain(|_, (_, left)| left.times > 0);
    }

    fn machine(&mut self, name: &str, machine: Machine) -> String {
        self.stuck.remove(name);
        self.leaving.retain(|(node, _), _| node != name);
        self.world.nodes.remove(name);
        match machine {
            Machine::Removed => "the node is deleted".to_owned(),
            Machine::Replaced => {
                let names = self.timeline.names();
                let Some((_, like)) = names.iter().find(|(other, _)| other == name) else { return String::new() };
                let mut node = fresh(name, like);
                node.view.uid = format!("uid-{name}-{}", self.elapsed.as_secs());
                node.report.node_uid = Some(node.view.uid.clone());
                self.world.nodes.insert(name.to_owned(), node);
                "another machine takes the node's place".to_owned()
            }
        }
    }

    /// A person deletes the remediation. The object exists until its finalizer is removed.
    fn cancel(&mut self, name: &str) -> String {
        let open =
            self.world.remediations.values_mut().find(|remediation| remediation.node == name && remediation.is_live());
        match open {
            Some(remediation) => {
                remediation.deleting = true;
                format!("a person deletes remediation {}", remediation.name)
            }
            None => "a person would delete the node's remediation, and there is none".to_owned(),
        }
    }

    fn approve(&mut self, name: &str, by: &str) -> String {
        let awaits =
            |remediation: &&mut Remediation| remediation.node == name && remediation.phase == Phase::AwaitingApproval;
        let step = self.world.remediations.values_mut().find(awaits).and_then(|remediation| {
            let step = remediation.current_step()?.clone();
            remediation.approval =
                Some(Approval { approved_by: by.to_owned(), operation_id: step.operation_id.clone() });
            Some(step)
        });
        match step {
            Some(step) => format!("{by} approves {}", step.phrase()),
            None => format!("{by} would approve a step, and none waits for it"),
        }
    }

    /// Makes a manual request with the policy that a person would be offered first.
    fn manual(&mut self, name: &str, event: &ManualRequestEvent) -> String {
        let Some(node) = self.world.nodes.get(name) else { return String::new() };
        let is_meant = |seen: &&Fault| seen.kind == event.fault;
        let reported = node.report.faults.iter().map(|seen| &seen.fault).find(is_meant);
        let around = MatchContext {
            pods: None,
            runtime: node.view.runtime_version.as_deref(),
            kubelet: node.view.kubelet_version.as_deref(),
        };
        let offered = reported.and_then(|fault| {
            let choices = choices(&self.world.policies, &node.view.labels, &around, fault, Some(event.action));
            Some(choices.first()?.policy.name.clone())
        });
        let has_rule = |policy: &Policy| policy.rules.iter().any(|rule| rule.faults.contains(&event.fault));
        let is_its = |policy: &&Policy| policy.selector.matches(&node.view.labels) && has_rule(policy);
        let any = || self.world.policies.iter().find(is_its).map(|policy| policy.name.clone());
        let Some(policy) = event.policy.clone().or(offered).or_else(any) else {
            return format!("{} would request a step, and no policy has a rule for it there", event.requested_by);
        };
        self.manual_requests += 1;
        let looked_at = self.world.policies.iter().find(|one| one.name == policy);
        let manual = event.manual(looked_at.map(|policy| policy.generation));
        let sentence = format!(
            "{} requests {} for {}, policy {policy}",
            manual.requested_by,
            manual.action.as_str(),
            manual.fault
        );
        self.world.ask(&format!("by-hand-{}", self.manual_requests), name, &policy, manual);
        sentence
    }

    fn cancel_by_hand(&mut self, name: &str, event: &CancelEvent) -> String {
        let cancel = event.cancel();
        match self.world.cancel(name, &cancel) {
            Some(remediation) => format!("{remediation} is cancelled {}", cancel.told()),
            None => format!("{} would cancel the node's remediation, and there is none", cancel.cancelled_by),
        }
    }

    fn fall_ill(&mut self, name: &str, event: &'t FaultEvent) -> String {
        let Some(node) = self.world.nodes.get_mut(name) else { return String::new() };
        if let Some(like) = injected_fault::pod_like(event) {
            self.world.pods.insert(injected_fault::pod(event, name, 0), like);
        }
        if event.terminating {
            self.world.terminating.insert(injected_fault::pod(event, name, 0));
        }
        if event.kind == FaultType::StuckDaemonSetPod {
            let pod = injected_fault::stuck_pod(event, name, 0);
            let sentence = format!("pod {} does not come up", pod.pod);
            node.pods.push(pod);
            let leaves_at = event.lasts.map(|lasts| self.elapsed + lasts.0);
            let stuck =
                Stuck { event, cleared_by: injected_fault::cleared_by(event), lives: 0, leaves_at, back_at: None };
            self.stuck.entry(name.to_owned()).or_default().push(stuck);
            return sentence;
        }
        let sick = injected_fault::sickness(event, name, self.world.now);
        // This fault replaces an earlier one with the same id.
        self.leaving.remove(&(name.to_owned(), sick.fault.id.clone()));
        if let Some(lasts) = event.lasts {
            self.leaving.insert((name.to_owned(), sick.fault.id.clone()), self.elapsed + lasts.0);
        }
        let sentence = format!("the probe confirms {} ({})", sick.fault.kind, sick.fault.subject);
        node.sick.retain(|other| other.fault.id != sick.fault.id);
        node.sick.push(sick);
        node.sick.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
        sentence
    }

    fn clear(&mut self, name: &str, kind: FaultType) {
        let Some(node) = self.world.nodes.get_mut(name) else { return };
        node.sick.retain(|sick| sick.fault.kind != kind);
        if kind == FaultType::StuckDaemonSetPod {
            node.pods.clear();
            self.stuck.remove(name);
        }
    }

    /// Removes faults whose time is over.
    fn leave(&mut self) {
        let now = self.elapsed;
        let over: Vec<(String, String)> =
            self.leaving.iter().filter(|(_, at)| **at <= now).map(|(key, _)| key.clone()).collect();
        for (name, id) in over {
            self.leaving.remove(&(name.clone(), id.clone()));
            let Some(node) = self.world.nodes.get_mut(&name) else { continue };
            let before = node.sick.len();
            node.sick.retain(|sick| sick.fault.id != id);
            if node.sick.len() != before {
                node.send();
                self.account.happens(now, Some(&name), "the fault goes by itself");
            }
        }
    }

    /// Deleted pods come back unchanged where the deletion does not help.
    fn deleted(&mut self) {
        let at = self.elapsed + SUCCESSOR;
        for (name, all) in &mut self.stuck {
            let Some(node) = self.world.nodes.get_mut(name) else { continue };
            for pod in std::mem::take(&mut node.deleted) {
                let is_its = |stuck: &&mut Stuck<'_>| injected_fault::pod(stuck.event, name, stuck.lives) == pod.pod;
                if let Some(stuck) = all.iter_mut().find(is_its) {
                    stuck.back_at = (!stuck.cleared_by.contains(&ClearedBy::DeletePod)).then_some(at);
                }
            }
        }
    }

    fn succeed(&mut self) {
        let now = self.elapsed;
        for (name, all) in &mut self.stuck {
            let Some(node) = self.world.nodes.get_mut(name) else { continue };
            for stuck in all.extract_if(.., |stuck| stuck.leaves_at.is_some_and(|at| at <= now)) {
                let pod = injected_fault::pod(stuck.event, name, stuck.lives);
                node.pods.retain(|other| other.pod != pod);
                self.account.happens(now, Some(name), &format!("pod {pod} is well by itself"));
            }
            // While the node has such a taint, the controller of the DaemonSet creates no pod. It does so once the taint is
            // removed.
            if node.view.repels_daemon_sets().is_some() {
                continue;
            }
            for stuck in all.iter_mut().filter(|stuck| stuck.back_at.is_some_and(|at| at <= now)) {
                stuck.back_at = None;
                stuck.lives += 1;
                if let Some(like) = injected_fault::pod_like(stuck.event) {
                    self.world.pods.insert(injected_fault::pod(stuck.event, name, stuck.lives), like);
                }
                node.pods.push(injected_fault::stuck_pod(stuck.event, name, stuck.lives));
            }
        }
    }

    fn change(&mut self, change: &PolicyEvent) -> String {
        let name = &change.name;
        if !self.world.policies.iter().any(|policy| policy.name == *name) {
            return format!("policy {name} would be changed, and there is none");
        }
        if change.deleted {
            self.world.policies.retain(|policy| policy.name != *name);
            return format!("policy {name} is deleted");
        }
        let mut said = vec![format!("policy {name} is changed")];
        for policy in self.world.policies.iter_mut().filter(|policy| policy.name == *name) {
            policy.generation += 1;
            if let Some(suspend) = change.suspend {
                policy.suspend = suspend;
                said.push(format!("suspend: {suspend}"));
            }
            if let Some(pauses) = &change.pause_requests {
                policy.pause_requests.clone_from(pauses);
                said.push(format!("pauseRequests: {pauses:?}"));
            }
        }
        said.join(", ")
    }
}

/// A healthy node, as the timeline describes it.
fn fresh(name: &str, like: &Nodes) -> WorldNode {
    let mut node = WorldNode::new(name);
    node.view.labels.extend(own_labels(name).map(|(key, value)| (key.to_owned(), value.to_owned())));
    node.view.labels.extend(like.labels.clone());
    node.view.kubelet_version.clone_from(&like.kubelet_version);
    node.view.runtime_version.clone_from(&like.runtime_version);
    node.view.os_image.clone_from(&like.os_image);
    node
}

/// All events, the first one last.
fn due(timeline: &Timeline) -> Vec<Due<'_>> {
    let names: Vec<String> = timeline.names().into_iter().map(|(name, _)| name).collect();
    let mut due = Vec::new();
    for event in &timeline.events {
        if event.policy.is_some() {
            due.push(Due { at: event.at.0, node: None, event });
        }
        let apart = event.every.unwrap_or_default().0;
        let mut at = event.at.0;
        for node in event.chosen(names.iter().map(String::as_str)) {
            due.push(Due { at, node: Some(node.to_owned()), event });
            at += apart;
        }
    }
    // The sort is stable: events at the same moment keep the order of the file.
    due.sort_by_key(|due| due.at);
    due.reverse();
    due
}

fn change_node(node: &mut WorldNode, event: &Event) -> Vec<String> {
    let mut told = Vec::new();
    if let Some(change) = &event.condition {
        let cures = change.cleared_by.iter().copied().collect();
        node.set_curable_condition(&change.kind, change.condition(), cures);
        told.push(match change.status {
            None => format!("condition {} of the Node is taken away", change.kind),
            Some(status) => {
                let why = if change.reason.is_empty() { String::new() } else { format!(" ({})", change.reason) };
                format!("another tool writes condition {}={}{why} on the Node", change.kind, status.as_str())
            }
        });
    }
    if let Some(pods) = &event.pods {
        let name = node.view.labels.get("kubernetes.io/hostname").cloned().unwrap_or_default();
        told.push(pods.happen(&name, &mut node.workloads));
    }
    if let Some(state) = event.probe {
        node.probe_runs = state != ProbeState::Silent;
        // A silent probe does not report whether it may act.
        if let Some(heartbeat) = node.report.heartbeat.as_mut().filter(|_| node.probe_runs) {
            heartbeat.actions_enabled = state == ProbeState::ActionsEnabled;
        }
        let what = match state {
            ProbeState::ActionsEnabled => "the probe reports, and actions are enabled",
            ProbeState::ActionsDisabled => "the probe reports, and actions are disabled",
            ProbeState::Silent => "the probe falls silent",
        };
        told.push(what.to_owned());
    }
    if let Some(remediator) = event.remediator {
        node.remediator = remediator;
        let what = match remediator {
            Remediator::Works => "its remediator works",
            Remediator::Fails => "its remediator fails",
            Remediator::Silent => "its remediator does not answer",
            Remediator::Taken => "somebody else has handed the node to the remediator",
        };
        told.push(what.to_owned());
    }
    if let Some(kured) = event.kured {
        node.boots.kured = kured;
        told.push(match kured {
            Kured::Works => "kured may reboot the node".to_owned(),
            Kured::Waits => "kured waits, or there is none".to_owned(),
        });
    }
    if let Some(state) = event.kubelet {
        let works = state == KubeletState::Works;
        node.job_starts = works;
        node.view.ready = if works { TriState::True } else { TriState::False };
        if let Some(heartbeat) = &mut node.report.heartbeat {
            heartbeat.kubelet_works = if works { TriState::True } else { TriState::False };
        }
        told.push(
            if works { "the kubelet works, the node is Ready" } else { "the kubelet is down, the node is not Ready" }
                .to_owned(),
        );
    }
    if let Some(ready) = event.ready {
        node.view.ready = if ready { TriState::True } else { TriState::False };
        told.push(format!("the node is {}Ready", if ready { "" } else { "not " }));
    }
    if let Some(cordoned) = event.cordoned {
        node.view.unschedulable = cordoned;
        told.push(format!("somebody else {} the node", if cordoned { "cordons" } else { "uncordons" }));
    }
    if let Some(tainted) = event.tainted {
        told.push(marks::tainted_by_others(node, tainted));
    }
    if let Some(veto) = &event.excluded {
        node.view.vetoes = Some(veto.clone()).filter(|veto| !veto.is_empty()).into_iter().collect();
        told.push(if veto.is_empty() {
            "nobody excludes the node any more".to_owned()
        } else {
            format!("another tool excludes the node: {veto}")
        });
    }
    if let Some(reason) = &event.suspended {
        node.report.suspended = Some(reason.clone()).filter(|reason| !reason.is_empty());
        told.push(if reason.is_empty() {
            "the node is not suspended any more".to_owned()
        } else {
            format!("a person suspends the node: {reason}")
        });
    }
    told
}

/// The policies as if all of them enforced.
pub fn enforced(policies: Vec<Policy>) -> Vec<Policy> {
    policies.into_iter().map(|policy| Policy { mode: Mode::Enforce, ..policy }).collect()
}
