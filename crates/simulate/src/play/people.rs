//! What people do in a timeline: they approve, request and cancel steps, and change policies.

use super::Play;
use crate::timeline::{ManualRequestEvent, PolicyEvent};
use nrh_core::fault::Fault;
use nrh_core::manual::choices;
use nrh_core::matching::MatchContext;
use nrh_core::policy::Policy;
use nrh_core::remediation::Cancel;

impl Play<'_> {
    /// A person deletes the remediation. The object exists until its finalizer is removed.
    pub(super) fn cancel(&mut self, name: &str) -> String {
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

    pub(super) fn approve(&mut self, name: &str, by: &str) -> String {
        match self.world.approve(name, by) {
            Some(step) => format!("{by} approves {}", step.phrase()),
            None => format!("{by} would approve a step, and none waits for it"),
        }
    }

    /// Makes a manual request with the policy that a person would be offered first.
    pub(super) fn manual(&mut self, name: &str, event: &ManualRequestEvent) -> String {
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
        let viewed = self.world.policies.iter().find(|one| one.name == policy);
        let manual = event.manual(viewed.map(|policy| policy.generation));
        let sentence = format!(
            "{} requests {} for {}, policy {policy}",
            manual.requested_by,
            manual.action.as_str(),
            manual.fault
        );
        self.world.ask(&format!("by-hand-{}", self.manual_requests), name, &policy, manual);
        sentence
    }

    pub(super) fn cancel_remediation(&mut self, name: &str, cancel: &Cancel) -> String {
        match self.world.cancel(name, cancel) {
            Some(remediation) => format!("{remediation} is cancelled {}", cancel.by_whom()),
            None => format!("{} would cancel the node's remediation, and there is none", cancel.cancelled_by),
        }
    }

    pub(super) fn change_policy(&mut self, change: &PolicyEvent) -> String {
        let name = &change.name;
        if !self.world.policies.iter().any(|policy| policy.name == *name) {
            return format!("policy {name} would be changed, and there is none");
        }
        if change.deleted {
            self.world.policies.retain(|policy| policy.name != *name);
            return format!("policy {name} is deleted");
        }
        let mut changes = vec![format!("policy {name} is changed")];
        for policy in self.world.policies.iter_mut().filter(|policy| policy.name == *name) {
            policy.generation += 1;
            if let Some(suspend) = change.suspend {
                policy.suspend = suspend;
                changes.push(format!("suspend: {suspend}"));
            }
            if let Some(pauses) = &change.pause_requests {
                policy.pause_requests.clone_from(pauses);
                changes.push(format!("pauseRequests: {pauses:?}"));
            }
        }
        changes.join(", ")
    }
}
