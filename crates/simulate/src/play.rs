//! Plays a timeline: what happens to the world, pass after pass. Each pass calls the very decision function of the controller.

use std::collections::BTreeMap;
use std::time::Duration;

use super::account::Account;
use super::lacks;
use super::timeline::{Event, FlapsEvent, Machine, Nodes, Timeline, own_labels};
use super::world::{World, WorldNode};
use nrh_core::moment::since;
use nrh_core::policy::{Mode, Policy};
use nrh_core::remediation::{Phase, Remediation};
use nrh_core::snapshot::TriState;
use nrh_core::stuck::LONGEST_BACK_OFF;

mod faults;
mod node;
mod people;

use faults::Stuck;

/// Time between two passes while something is in progress. Probes and Jobs answer within it.
const STEP: Duration = Duration::from_secs(5);
/// Time between two passes while nothing is in progress.
const QUIET: Duration = Duration::from_mins(1);

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
        Self {
            world,
            timeline,
            leaving: BTreeMap::new(),
            stuck: BTreeMap::new(),
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
                let sentence = self.change_policy(change);
                self.account.happens(self.elapsed, None, &sentence);
            }
            return;
        };
        let mut sentences: Vec<String> = Vec::new();
        if let Some(machine) = event.machine {
            sentences.push(self.machine(name, machine));
        }
        if event.cancelled {
            sentences.push(self.cancel(name));
        }
        if let Some(by) = &event.approved {
            sentences.push(self.approve(name, by));
        }
        if let Some(cancel) = &event.cancel {
            sentences.push(self.cancel_remediation(name, cancel));
        }
        if let Some(fault) = &event.fault {
            sentences.push(self.fall_ill(name, fault));
        }
        if let Some(kind) = event.clears {
            self.clear(name, kind);
            sentences.push(format!("{kind} is gone"));
        }
        if let Some(flaps) = event.flaps {
            self.flapping.insert(name.to_owned(), (self.elapsed, flaps));
            sentences.push(format!("Ready begins to change every {}s, {} times", flaps.every.0.as_secs(), flaps.times));
        }
        match self.world.nodes.get_mut(name) {
            Some(node) => {
                sentences.extend(node::change(node, event));
                if node.probe_runs {
                    node.send();
                }
            }
            None if event.machine.is_none() => sentences = vec!["nothing happens: the node is gone".to_owned()],
            None => {}
        }
        // A person knows of everything that happens at the same moment.
        if let Some(manual) = &event.manual {
            sentences.push(self.manual(name, manual));
        }
        for sentence in sentences {
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

/// The policies as if all of them enforced.
pub fn enforced(policies: Vec<Policy>) -> Vec<Policy> {
    policies.into_iter().map(|policy| Policy { mode: Mode::Enforce, ..policy }).collect()
}
