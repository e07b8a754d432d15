//! How the faults of a timeline come and go: at an event, by themselves, and with a deleted pod.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Play;
use crate::cleared_by::ClearedBy;
use crate::injected_fault;
use crate::timeline::FaultEvent;
use nrh_core::fault::{Fault, FaultType};

/// How long the controller of a DaemonSet takes to create the successor of a deleted pod.
const SUCCESSOR: Duration = Duration::from_secs(5);

/// A pod of a DaemonSet that does not start.
pub(super) struct Stuck<'t> {
    event: &'t FaultEvent,
    cleared_by: BTreeSet<ClearedBy>,
    lives: usize,
    /// When the pod becomes healthy by itself.
    pub(super) leaves_at: Option<Duration>,
    /// When the deleted pod's successor is created.
    back_at: Option<Duration>,
}

impl<'t> Play<'t> {
    pub(super) fn fall_ill(&mut self, name: &str, event: &'t FaultEvent) -> String {
        let Some(node) = self.world.nodes.get_mut(name) else { return String::new() };
        if let Some(like) = injected_fault::pod_like(event) {
            self.world.pods.insert(injected_fault::pod(event, name, 0), like);
        }
        if event.terminating {
            let terminating = self.world.state.terminating.entry(name.to_owned()).or_default();
            terminating.insert(injected_fault::pod(event, name, 0));
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
        let sick = injected_fault::injected_fault(event, name, self.world.state.now);
        // This fault replaces an earlier one with the same id.
        self.leaving.remove(&(name.to_owned(), sick.fault.id.clone()));
        if let Some(lasts) = event.lasts {
            self.leaving.insert((name.to_owned(), sick.fault.id.clone()), self.elapsed + lasts.0);
        }
        let sentence = format!("the probe confirms {}", sick.fault);
        node.sick.retain(|other| other.fault.id != sick.fault.id);
        node.sick.push(sick);
        node.sick.sort_by(|a, b| Fault::by_urgency(&a.fault, &b.fault));
        sentence
    }

    pub(super) fn clear(&mut self, name: &str, kind: FaultType) {
        let Some(node) = self.world.nodes.get_mut(name) else { return };
        node.sick.retain(|sick| sick.fault.kind != kind);
        if kind == FaultType::StuckDaemonSetPod {
            node.pods.clear();
            self.stuck.remove(name);
        }
    }

    /// Removes faults whose time is over.
    pub(super) fn leave(&mut self) {
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
    pub(super) fn deleted(&mut self) {
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

    pub(super) fn succeed(&mut self) {
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
}
